//! What a climb does while it holds a level: it notes how the rate varies, looks at other levels
//! now and then, and begins again where the rate has left its place.

use super::pairs::{Pairs, Verdict};
use super::{Aim, Climb, HURTS, LOOK_NS, Phase, UNCLEAR};
use crate::tune::Rate;

/// One look in so many goes down, at first and at last: it costs speed where a look up costs only
/// latency.
pub(super) const LOOKS_DOWN: (u32, u32) = (2, 6);
/// A rate that has fallen below this of the highest by and by gives reason to look up.
const FALLS: u64 = 955;
/// A rate outside of this has changed: thousandths.
const SAME: (u64, u64) = (880, 1130);
/// Looks take at most one part in this of the time, where they cost only latency and where they
/// cost speed.
const LOOK_SHARE: (u64, u64) = (5, 25);
/// Thousandths by which the rate of a level that is held differs from its usual one on average,
/// from which on single looks prove nothing. Drives whose times vary by a fifth stay below 30.
const MOODY: u64 = 35;
/// Turns, to above the usual or to below, that tell.
const MOODY_AFTER: u32 = 4;
/// Epochs in a row, outside of what is usual, after which the drive has changed; and at most.
const CHANGED: (u64, u64) = (2, 12);

/// How far the rate of one level differs from its usual one, each time that it turns to above that
/// or to below: one that rises or falls for good does not turn.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Mood {
    /// Thousandths of it on average.
    differs: u64,
    turns: u32,
    is_above: bool,
}

impl Mood {
    fn add(&mut self, rate: Rate, base: Rate) {
        if rate == base || (rate > base) == self.is_above {
            return;
        }
        self.is_above = !self.is_above;
        let ratio = u128::from(rate.0) * 1000 / u128::from(base.0.max(1));
        let differs = u64::try_from(ratio).unwrap_or(u64::MAX).abs_diff(1000).min(1000);
        self.turns = self.turns.saturating_add(1);
        let weight = u64::from(self.turns.min(8));
        self.differs = (self.differs * (weight - 1) + differs) / weight;
    }

    /// Whether single looks prove nothing.
    fn is_moody(self) -> bool {
        self.turns >= MOODY_AFTER && self.differs >= MOODY
    }

    /// Epochs in a row that have to be unusual before the drive counts as another.
    fn patience(self) -> u64 {
        if self.is_moody() { (CHANGED.0 + self.differs / 5).min(CHANGED.1) } else { CHANGED.0 }
    }
}

impl Climb {
    pub(super) fn held(&mut self, rate: Rate) {
        let Some(base) = self.base else {
            if self.promised.take().is_some_and(|best| !rate.is_at_least(SAME.0, best)) {
                // The drive has changed, or a burst has ended, while it was searched.
                return self.again(Vec::new());
            }
            self.base = Some(rate);
            self.look_at_ns = Some(self.busy_ns);
            return;
        };
        let was_moody = self.mood.is_moody();
        if rate.is_at_least(SAME.1, base) || !rate.is_at_least(SAME.0, base) {
            self.changed += 1;
            if u64::from(self.changed) >= self.mood.patience() {
                self.again(Vec::new());
            }
            return;
        }
        self.changed = 0;
        self.mood.add(rate, base);
        let base = base.towards(rate);
        self.base = Some(base);
        let goal = self.goal.unwrap_or(base);
        self.goal = Some(if base > goal { goal.towards(base) } else { goal });
        let moody = self.aim.holds_on && self.mood.is_moody();
        if moody && !was_moody {
            // A search that did not know may have ended too high.
            (self.look_at_ns, self.looks) = (None, self.looks_down);
        } else if self.aim.holds_on && !moody && !base.is_at_least(FALLS, goal) {
            // Perhaps the drive wants more now than before: at once, and up.
            self.goal = Some(base);
            (self.look_at_ns, self.looks) = (None, 0);
        }
        if self.look_at_ns.is_none_or(|at| at <= self.busy_ns) {
            self.look(moody.then_some(rate));
        }
    }

    pub(super) fn again(&mut self, seen: Vec<(usize, Rate)>) {
        self.searches += 1;
        self.changed = 0;
        self.base = None;
        self.goal = None;
        self.doubted = self.aim == Aim::ROUGH;
        self.phase = Phase::Double(seen);
    }

    /// Looks at another level; `moody`: in turn with this one, which has just shown that rate.
    fn look(&mut self, moody: Option<Rate>) {
        let home = self.level;
        self.looks += 1;
        let least = self.spare.clamp(self.min, self.max);
        let down = home > least && (self.looks >= self.looks_down || home == self.max);
        if down {
            self.looks = 0;
            self.looks_down = (self.looks_down + 1).min(LOOKS_DOWN.1);
        }
        let step_down = if moody.is_some() { home / 2 } else { home / 4 };
        self.level = match down {
            true => (home - step_down.max(1)).max(least),
            false => home + (home * self.aim.look / 4).max(1),
        };
        self.level = self.level.clamp(self.min, self.max);
        if self.level == home {
            return;
        }
        self.phase = match moody {
            None => Phase::Look { home, again: false },
            Some(rate) => Phase::InTurn { home, away: self.level, pairs: Pairs::new(rate) },
        };
    }

    /// Goes on with two levels that are measured in turn: `home`, which is held, and `away`.
    pub(super) fn in_turn(
        &mut self,
        home: usize,
        away: usize,
        mut pairs: Pairs,
        rate: Rate,
        ns: u64,
    ) {
        if self.level == away {
            pairs.away(rate, ns);
            self.level = home;
            self.phase = Phase::InTurn { home, away, pairs };
            return;
        }
        pairs.home(rate);
        let up = away > home;
        let needs = match up {
            true => self.aim.step_up.0.max(self.reaches(home)),
            // What steps down have lost together counts.
            false => self.aim.enough * 1000 / self.kept.max(1),
        };
        match pairs.verdict(needs, !up) {
            Verdict::Unclear => {
                self.level = away;
                self.phase = Phase::InTurn { home, away, pairs };
            }
            Verdict::Enough => {
                self.kept = if up { 1000 } else { (self.kept * pairs.mean() / 1000).min(1000) };
                self.level = away;
                self.base = None;
                self.goal = None;
                // Where one step has helped another may, at once.
                self.looks = if up { 0 } else { self.looks_down };
                self.look_at_ns = None;
            }
            Verdict::TooLittle => {
                let least = pairs.away_ns().saturating_mul(LOOK_SHARE.1);
                self.look_every_ns = self.look_every_ns.saturating_mul(2).min(LOOK_NS.1).max(least);
                self.look_at_ns = Some(self.busy_ns.saturating_add(self.look_every_ns));
            }
        }
    }

    pub(super) fn looked(&mut self, home: usize, again: bool, rate: Rate, ns: u64) {
        let base = self.base.unwrap_or(rate);
        let up = self.level > home;
        let promising = rate.is_at_least(if up { self.aim.step_up.0 } else { UNCLEAR.0 }, base);
        if promising && !again {
            self.phase = Phase::Look { home, again: true };
            return;
        }
        if up && again && rate.is_at_least(self.aim.step_up.1, base) {
            let reached = self.level;
            self.again(vec![(home, base)]);
            return match self.aim {
                Aim::ROUGH => self.double_from(reached, rate),
                _ => self.go_on(self.min - 1, home, base, (reached, rate)),
            };
        }
        let goal = self.goal.filter(|_| self.aim.holds_on).unwrap_or(base);
        if !up && again && rate.is_at_least(self.aim.enough, goal) {
            return self.narrow(self.min - 1, self.level, goal);
        }
        if up {
            // More brings nothing now, so what both have in common is what can be had.
            let both =
                if rate.is_at_least(self.aim.enough, base) { base.between(rate) } else { base };
            self.goal = Some(goal.towards(both));
        }
        self.level = home;
        // A drive that more requests slow down is looked at more rarely.
        let hurts = up && !rate.is_at_least(HURTS, base);
        let (factor, most) = if hurts { (4, 8 * LOOK_NS.1) } else { (2, LOOK_NS.1) };
        let costs = hurts || !up;
        let least = ns.saturating_mul(if costs { LOOK_SHARE.1 } else { LOOK_SHARE.0 });
        self.look_every_ns = self.look_every_ns.saturating_mul(factor).min(most).max(least);
        self.look_at_ns = Some(self.busy_ns.saturating_add(self.look_every_ns));
    }

    /// Goes on doubling from a level that a look has found to be better.
    fn double_from(&mut self, level: usize, rate: Rate) {
        let Phase::Double(mut seen) = std::mem::replace(&mut self.phase, Phase::Hold) else {
            return;
        };
        self.level = level;
        seen.push((level, rate));
        self.double(seen, true);
    }
}
