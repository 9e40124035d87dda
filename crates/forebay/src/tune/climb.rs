//! Finds the lowest level (of requests in flight, or of readers) at which the rate stops growing,
//! and stays with it.
//!
//! Levels double while the rate grows. Then the level of the highest rate is measured once more,
//! with care, and levels below it are tried by halves until the lowest is known that reaches
//! [`ENOUGH`] of it. There it holds, and looks now and then a step up and, more rarely, a step
//! down, for a small share of the time. A rate that leaves its place for two epochs starts the
//! search again from where it is.

use super::epoch::Care;
use super::rate::Rate;

/// The rate goes on growing: thousandths of the highest before it.
const GROWS: u64 = 1060;
/// A level whose rate is at least this of the highest is as good: thousandths.
const ENOUGH: u64 = 975;
/// Between these a comparison is repeated with more requests: thousandths.
const UNCLEAR: (u64, u64) = (945, 1005);
/// A level whose rate is below this of a lower one's does harm: thousandths.
const HURTS: u64 = 940;
/// A step up has to gain this: thousandths, at first sight and when looked at again.
const STEP_UP: (u64, u64) = (1020, 1035);
/// One look in so many goes down, at first and at last: it costs speed where a look up costs only
/// latency.
const LOOKS_DOWN: (u32, u32) = (2, 6);
/// A rate outside of this has changed: thousandths.
const SAME: (u64, u64) = (880, 1130);
/// Time between two looks at another level, at first and at last.
const LOOK_NS: (u64, u64) = (200_000_000, 1_000_000_000);
/// Looks take at most one part in this of the time, where they cost only latency and where they
/// cost speed.
const LOOK_SHARE: (u64, u64) = (5, 25);

#[derive(Debug, Clone, PartialEq, Eq)]
enum Phase {
    /// Doubling: the levels of this search and their rates.
    Double(Vec<(usize, Rate)>),
    /// The highest rate is measured again, at `level`; `low` is known to be too low.
    Refer {
        low: usize,
    },
    /// A level between `low`, too low, and `high`, whose rate `best` is enough.
    Narrow {
        low: usize,
        high: usize,
        best: Rate,
        again: bool,
    },
    Hold,
    /// Looking from `home` at another level.
    Look {
        home: usize,
        again: bool,
    },
}

/// See the module's own text.
#[derive(Debug, Clone)]
pub(super) struct Climb {
    min: usize,
    max: usize,
    level: usize,
    phase: Phase,
    /// The rate at the level that is held.
    base: Option<Rate>,
    /// What a search has promised it to be.
    promised: Option<Rate>,
    /// Epochs in a row in which it was another.
    changed: u32,
    look_at_ns: Option<u64>,
    look_every_ns: u64,
    /// Looks since the last one down, and how many there are to be.
    looks: u32,
    looks_down: u32,
    /// Searches so far.
    searches: u32,
}

impl Climb {
    /// A search that begins at `level`.
    pub(super) fn search(min: usize, max: usize, level: usize) -> Self {
        Self::new(min, max, level, Phase::Double(Vec::new()), None)
    }

    /// A search that goes on from `level`, whose `rate` is known.
    pub(super) fn search_from(min: usize, max: usize, level: usize, rate: Rate) -> Self {
        let mut climb = Self::search(min, max, level);
        climb.double(vec![(climb.level, rate)], true);
        climb
    }

    /// Holds `level`, where the rate was `base`.
    pub(super) fn hold(min: usize, max: usize, level: usize, base: Option<Rate>) -> Self {
        Self::new(min, max, level, Phase::Hold, base)
    }

    fn new(min: usize, max: usize, level: usize, phase: Phase, base: Option<Rate>) -> Self {
        let level = level.clamp(min, max);
        Self {
            min,
            max,
            level,
            phase,
            base,
            promised: None,
            changed: 0,
            look_at_ns: None,
            look_every_ns: LOOK_NS.0,
            looks: 0,
            looks_down: LOOKS_DOWN.0,
            searches: 0,
        }
    }

    pub(super) fn level(&self) -> usize {
        self.level
    }

    /// The lowest level that is known to be enough, and its rate.
    pub(super) fn found(&self) -> Option<(usize, Rate)> {
        match self.phase {
            Phase::Hold => self.base.map(|base| (self.level, base)),
            Phase::Look { home, .. } => self.base.map(|base| (home, base)),
            Phase::Narrow { high, best, .. } => Some((high, best)),
            Phase::Double(_) | Phase::Refer { .. } => None,
        }
    }

    pub(super) fn is_holding(&self) -> bool {
        self.phase == Phase::Hold
    }

    /// Searches that a changed rate has started.
    pub(super) fn searches(&self) -> u32 {
        self.searches
    }

    /// How long the next epoch is to be.
    pub(super) fn care(&self) -> Care {
        match self.phase {
            Phase::Double(_) => Care::Quick,
            Phase::Refer { .. }
            | Phase::Narrow { again: true, .. }
            | Phase::Look { again: true, .. } => Care::Thorough,
            Phase::Look { .. } => Care::Quick,
            Phase::Narrow { .. } | Phase::Hold => Care::Careful,
        }
    }

    /// The rate below which the next epoch need not be exact.
    pub(super) fn floor(&self) -> Option<Rate> {
        let (best, thousandths) = match &self.phase {
            Phase::Double(seen) => (seen.iter().map(|seen| seen.1).max()?, 950),
            Phase::Narrow { best, .. } => (*best, 900),
            Phase::Look { .. } => (self.base?, 900),
            Phase::Refer { .. } | Phase::Hold => return None,
        };
        Some(best.part(thousandths))
    }

    /// Takes in the rate of an epoch at the level, which took `ns`.
    pub(super) fn measured(&mut self, rate: Rate, ns: u64, now_ns: u64) {
        match std::mem::replace(&mut self.phase, Phase::Hold) {
            Phase::Double(mut seen) => {
                let best = seen.iter().map(|seen| seen.1).max();
                seen.push((self.level, rate));
                self.double(seen, best.is_none_or(|best| rate.is_at_least(GROWS, best)));
            }
            Phase::Refer { low } => self.narrow(low, self.level, rate),
            Phase::Narrow { low, high, best, again } => {
                let between =
                    rate.is_at_least(UNCLEAR.0, best) && !rate.is_at_least(UNCLEAR.1, best);
                if between && !again {
                    self.phase = Phase::Narrow { low, high, best, again: true };
                } else if rate.is_at_least(ENOUGH, best) {
                    // A rate that is higher by chance must not raise the bar.
                    let better = rate.is_at_least(GROWS, best);
                    self.narrow(low, self.level, if better { rate } else { best });
                } else {
                    self.narrow(self.level, high, best);
                }
            }
            Phase::Hold => self.held(rate, now_ns),
            Phase::Look { home, again } => self.looked(home, again, rate, ns, now_ns),
        }
    }

    /// The level cannot be measured, for there is too little to do: falls back to what is known.
    pub(super) fn starved(&mut self) {
        match std::mem::replace(&mut self.phase, Phase::Hold) {
            Phase::Double(mut seen) if !seen.is_empty() => {
                seen.sort_by_key(|seen| seen.1);
                let best = seen.pop().expect("it is not empty");
                self.level = best.0;
            }
            Phase::Double(seen) => self.phase = Phase::Double(seen),
            Phase::Narrow { high, .. } => self.level = high,
            Phase::Look { home, .. } => self.level = home,
            Phase::Refer { .. } | Phase::Hold => {}
        }
    }

    fn double(&mut self, seen: Vec<(usize, Rate)>, grows: bool) {
        if grows && self.level < self.max {
            self.level = self.level.saturating_mul(2).min(self.max);
            self.phase = Phase::Double(seen);
            return;
        }
        let (high, best) = seen.iter().copied().max_by_key(|seen| seen.1).expect("one was pushed");
        let too_low = |seen: &&(usize, Rate)| seen.0 < high && !seen.1.is_at_least(HURTS, best);
        let low = seen.iter().filter(too_low).map(|seen| seen.0).max();
        let low = low.unwrap_or(self.min - 1);
        self.level = high;
        if seen.last().is_some_and(|last| !last.1.is_at_least(HURTS, best)) {
            // Levels below will differ as clearly, so there is no need to be exact.
            return self.narrow(low, high, best);
        }
        self.phase = Phase::Refer { low };
    }

    fn narrow(&mut self, low: usize, high: usize, best: Rate) {
        if high - low <= (high / 8).max(1) {
            self.level = high;
            self.base = None;
            self.promised = Some(best);
            self.changed = 0;
            self.look_at_ns = None;
            self.look_every_ns = LOOK_NS.0;
            (self.looks, self.looks_down) = (0, LOOKS_DOWN.0);
            return;
        }
        let half = high.div_ceil(2);
        self.level = if low < self.min || half > low { half } else { (low + high) / 2 };
        self.phase = Phase::Narrow { low, high, best, again: false };
    }

    fn held(&mut self, rate: Rate, now_ns: u64) {
        let Some(base) = self.base else {
            if self.promised.take().is_some_and(|best| !rate.is_at_least(SAME.0, best)) {
                // The drive has changed, or a burst has ended, while it was searched.
                return self.again(Vec::new());
            }
            self.base = Some(rate);
            self.look_at_ns = Some(now_ns);
            return;
        };
        if rate.is_at_least(SAME.1, base) || !rate.is_at_least(SAME.0, base) {
            self.changed += 1;
            if self.changed >= 2 {
                self.again(Vec::new());
            }
            return;
        }
        self.changed = 0;
        self.base = Some(base.towards(rate));
        if self.look_at_ns.is_none_or(|at| at <= now_ns) {
            self.look();
        }
    }

    fn again(&mut self, seen: Vec<(usize, Rate)>) {
        self.searches += 1;
        self.changed = 0;
        self.base = None;
        self.phase = Phase::Double(seen);
    }

    fn look(&mut self) {
        let home = self.level;
        self.looks += 1;
        let down = home > self.min && (self.looks >= self.looks_down || home == self.max);
        if down {
            self.looks = 0;
            self.looks_down = (self.looks_down + 1).min(LOOKS_DOWN.1);
        }
        self.level = if down { home - (home / 4).max(1) } else { home + (home / 2).max(1) };
        self.level = self.level.clamp(self.min, self.max);
        if self.level != home {
            self.phase = Phase::Look { home, again: false };
        }
    }

    fn looked(&mut self, home: usize, again: bool, rate: Rate, ns: u64, now_ns: u64) {
        let base = self.base.unwrap_or(rate);
        let up = self.level > home;
        let promising = rate.is_at_least(if up { STEP_UP.0 } else { UNCLEAR.0 }, base);
        if promising && !again {
            self.phase = Phase::Look { home, again: true };
            return;
        }
        if up && again && rate.is_at_least(STEP_UP.1, base) {
            let reached = self.level;
            self.again(vec![(home, base)]);
            self.double_from(reached, rate);
            return;
        }
        if !up && again && rate.is_at_least(ENOUGH, base) {
            return self.narrow(self.min - 1, self.level, base);
        }
        self.level = home;
        // A drive that more requests slow down is looked at more rarely.
        let hurts = up && !rate.is_at_least(HURTS, base);
        let (factor, most) = if hurts { (4, 8 * LOOK_NS.1) } else { (2, LOOK_NS.1) };
        let costs = hurts || !up;
        let least = ns.saturating_mul(if costs { LOOK_SHARE.1 } else { LOOK_SHARE.0 });
        self.look_every_ns = self.look_every_ns.saturating_mul(factor).min(most).max(least);
        self.look_at_ns = Some(now_ns.saturating_add(self.look_every_ns));
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
