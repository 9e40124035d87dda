//! Finds the lowest level (of requests in flight) at which the rate stops growing,
//! and stays with it.
//!
//! Levels double while the rate clearly grows. Then the level of the highest rate is measured once
//! more, with care, and so is the doubled one as long as that gains a little ([`Aim`]): flash and
//! arrays gain little by little. Levels below are tried by halves until the lowest is known that is
//! enough. There it holds, and looks now and then a step up and, more rarely, a step down, for a
//! small share of the time; what it knows of the highest rate keeps one step down after the other
//! from losing a little each. A rate that leaves its place for two epochs starts the search again
//! from where it is.

mod hold;
mod pairs;

use hold::{LOOKS_DOWN, Mood};
use pairs::Pairs;

use super::epoch::Care;
use super::rate::Rate;

/// The rate goes on growing: thousandths of the highest before it.
const GROWS: u64 = 1060;
/// Between these a comparison is repeated with more requests: thousandths.
const UNCLEAR: (u64, u64) = (945, 1005);
/// A level whose rate is below this of a lower one's does harm: thousandths.
const HURTS: u64 = 940;
/// What takes longer than so many times the epoch that it brings counts no further.
const PAUSE: u64 = 4;
/// Time between two looks at another level, at first and at last.
const LOOK_NS: (u64, u64) = (200_000_000, 1_000_000_000);

/// How near to the highest rate a level has to come; all in thousandths.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Aim {
    /// Where the rate grows by less than [`GROWS`], the doubled level is measured with care, and
    /// has to gain this.
    reaches: u64,
    /// The same from a level that may not be spared.
    reaches_on: u64,
    /// A level whose rate is at least this of the highest is as good.
    enough: u64,
    /// A look up has to gain this, at first sight and when looked at again.
    step_up: (u64, u64),
    /// Quarters of a level that a look goes up.
    look: usize,
    /// Whether lower levels are compared with the highest rate that is known, not the held one.
    holds_on: bool,
}

impl Aim {
    /// Two hundredths are what a level that is held may lack, and flash gains little by little: two
    /// levels that gain one each are worth having.
    pub(super) const NEAR: Self = Self {
        reaches: 1012,
        reaches_on: 1025,
        enough: 982,
        step_up: (1015, 1020),
        look: 4,
        holds_on: true,
    };
    /// Where each level more costs others something, and far too many do harm: the best may lie
    /// between a level and half as much again.
    pub(super) const ROUGH: Self = Self {
        reaches: GROWS,
        reaches_on: GROWS,
        enough: 975,
        step_up: (1020, 1035),
        look: 1,
        holds_on: false,
    };
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Phase {
    /// Doubling: the levels of this search and their rates.
    Double(Vec<(usize, Rate)>),
    /// The highest rate is measured again, at `level`; `low` is known to be too low.
    Refer {
        low: usize,
    },
    /// Twice `high`, whose rate is `best`, is measured with care.
    Reach {
        low: usize,
        high: usize,
        best: Rate,
        /// What the first look has shown, if this is the second.
        again: Option<Rate>,
    },
    /// `high` is measured once more, since its rate `best` may have been chance: at another level a
    /// rate was seen that is better, or not quite enough.
    Doubt {
        low: usize,
        high: usize,
        best: Rate,
        other: (usize, Rate),
    },
    /// A level between `low`, too low, and `high`, whose rate `best` is enough.
    Narrow {
        low: usize,
        high: usize,
        best: Rate,
        /// What the first look has shown, if this is the second.
        again: Option<Rate>,
    },
    Hold,
    /// Looking from `home` at another level.
    Look {
        home: usize,
        again: bool,
    },
    /// The same where rates vary by themselves: `home` and `away` are measured in turn.
    InTurn {
        home: usize,
        away: usize,
        pairs: Pairs,
    },
}

/// What two rates have in common: the higher of two is so by chance as well, their middle less. It
/// is no lower than the first.
fn shared(best: Rate, other: Rate) -> Rate {
    best.max(best.between(other))
}

/// See the module's own text.
#[derive(Debug, Clone)]
pub(super) struct Climb {
    aim: Aim,
    min: usize,
    max: usize,
    level: usize,
    phase: Phase,
    /// The rate at the level that is held.
    base: Option<Rate>,
    /// What a search has promised it to be.
    promised: Option<Rate>,
    /// The highest rate that is known: a level that is held reaches nearly that, and so must lower
    /// ones, or one step down after the other would each lose a little.
    goal: Option<Rate>,
    /// How the rate of a level that is held varies.
    mood: Mood,
    /// Thousandths of the rate that steps down have kept, all together.
    kept: u64,
    /// Levels up to this are as good as lower ones, whatever their rates.
    spare: usize,
    /// Epochs in a row in which it was another.
    changed: u32,
    /// Time without long pauses, and when it was last told what time it is.
    busy_ns: u64,
    told_ns: u64,
    /// Of that time.
    look_at_ns: Option<u64>,
    look_every_ns: u64,
    /// Looks since the last one down, and how many there are to be.
    looks: u32,
    looks_down: u32,
    /// Searches so far.
    searches: u32,
    /// Whether this search has measured its best once more, since a level below was not quite as
    /// good.
    doubted: bool,
}

impl Climb {
    /// A search that begins at `level`.
    pub(super) fn search(aim: Aim, min: usize, max: usize, level: usize) -> Self {
        Self::new(aim, min, max, level, Phase::Double(Vec::new()), None)
    }

    /// A search that goes on from `level`, whose `rate` is known.
    pub(super) fn search_from(aim: Aim, min: usize, max: usize, level: usize, rate: Rate) -> Self {
        let mut climb = Self::search(aim, min, max, level);
        climb.double(vec![(climb.level, rate)], true);
        climb
    }

    /// Holds `level`, where the rate was `base`.
    pub(super) fn hold(aim: Aim, min: usize, max: usize, level: usize, base: Option<Rate>) -> Self {
        Self::new(aim, min, max, level, Phase::Hold, base)
    }

    fn new(
        aim: Aim,
        min: usize,
        max: usize,
        level: usize,
        phase: Phase,
        base: Option<Rate>,
    ) -> Self {
        let level = level.clamp(min, max);
        Self {
            aim,
            min,
            max,
            level,
            phase,
            base,
            promised: None,
            goal: base,
            mood: Mood::default(),
            kept: 1000,
            spare: 0,
            changed: 0,
            busy_ns: 0,
            told_ns: 0,
            look_at_ns: None,
            look_every_ns: LOOK_NS.0,
            looks: 0,
            looks_down: LOOKS_DOWN.0,
            searches: 0,
            doubted: aim == Aim::ROUGH,
        }
    }

    pub(super) fn level(&self) -> usize {
        self.level
    }

    /// The lowest level that is known to be enough, and its rate.
    pub(super) fn found(&self) -> Option<(usize, Rate)> {
        match self.phase {
            Phase::Hold => self.base.map(|base| (self.level, base)),
            Phase::Look { home, .. } | Phase::InTurn { home, .. } => {
                self.base.map(|base| (home, base))
            }
            Phase::Reach { high, best, .. }
            | Phase::Doubt { high, best, .. }
            | Phase::Narrow { high, best, .. } => Some((high, best)),
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
            | Phase::Doubt { .. }
            | Phase::Reach { again: Some(_), .. }
            | Phase::Narrow { again: Some(_), .. }
            | Phase::Look { again: true, .. } => Care::Thorough,
            Phase::Look { .. } => Care::Quick,
            Phase::Reach { .. } => Care::Short,
            Phase::Narrow { .. } | Phase::InTurn { .. } | Phase::Hold => Care::Careful,
        }
    }

    /// The rate below which the next epoch need not be exact.
    pub(super) fn floor(&self) -> Option<Rate> {
        let (best, thousandths) = match &self.phase {
            Phase::Double(seen) => (seen.iter().map(|seen| seen.1).max()?, 950),
            Phase::Reach { best, .. } => (*best, 950),
            Phase::Narrow { best, .. } => (*best, 900),
            Phase::Look { .. } => (self.base?, 900),
            Phase::Refer { .. } | Phase::Doubt { .. } | Phase::InTurn { .. } | Phase::Hold => {
                return None;
            }
        };
        Some(best.part(thousandths))
    }

    /// Does without levels below `level`: those up to it are as good.
    pub(super) fn spare_below(&mut self, level: usize) {
        self.spare = level.min(self.max);
    }

    /// What twice `level` has to gain: more where that is a long queue already.
    fn reaches(&self, level: usize) -> u64 {
        if level >= self.spare { self.aim.reaches_on } else { self.aim.reaches }
    }

    /// Takes in the rate of an epoch at the level, which took `ns`.
    pub(super) fn measured(&mut self, rate: Rate, ns: u64, now_ns: u64) {
        // An application that pauses between its transfers would else do nothing but look.
        let passed_ns = now_ns.saturating_sub(self.told_ns);
        self.busy_ns = self.busy_ns.saturating_add(passed_ns.min(ns.saturating_mul(PAUSE)));
        self.told_ns = now_ns;
        match std::mem::replace(&mut self.phase, Phase::Hold) {
            Phase::Double(mut seen) => {
                let best = seen.iter().map(|seen| seen.1).max();
                seen.push((self.level, rate));
                self.double(seen, best.is_none_or(|best| rate.is_at_least(GROWS, best)));
            }
            Phase::Refer { low } => self.reach(low, self.level, rate),
            Phase::Reach { low, high, best, again } => {
                let seen = again.map_or(rate, |first| rate.towards(first));
                let gains = seen.is_at_least(self.reaches(high), best);
                if gains && again.is_none() {
                    self.phase = Phase::Reach { low, high, best, again: Some(rate) };
                } else if gains {
                    self.doubt(low, high, best, (self.level, seen));
                } else {
                    self.narrow(low, high, shared(best, seen));
                }
            }
            Phase::Doubt { low, high, best, other } => {
                let best = best.between(rate);
                if other.0 < high {
                    self.cut(low, high, best, other);
                } else if other.1.is_at_least(self.reaches(high), best) {
                    self.go_on(low, high, best, other);
                } else {
                    self.narrow(low, high, shared(best, other.1));
                }
            }
            Phase::Narrow { low, high, best, again } => {
                let between =
                    rate.is_at_least(UNCLEAR.0, best) && !rate.is_at_least(UNCLEAR.1, best);
                // The second look took three times as many requests.
                let seen = again.map_or(rate, |first| rate.towards(first));
                if between && again.is_none() {
                    self.phase = Phase::Narrow { low, high, best, again: Some(rate) };
                } else if again.is_some()
                    && !self.doubted
                    && !seen.is_at_least(self.aim.enough, best)
                {
                    self.doubted = true;
                    self.doubt(low, high, best, (self.level, seen));
                } else {
                    self.cut(low, high, best, (self.level, seen));
                }
            }
            Phase::Hold => self.held(rate),
            Phase::Look { home, again } => self.looked(home, again, rate, ns),
            Phase::InTurn { home, away, pairs } => self.in_turn(home, away, pairs, rate, ns),
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
            // What is known is enough to find out whether less does as well.
            Phase::Reach { low, high, best, .. } | Phase::Doubt { low, high, best, .. } => {
                self.narrow(low, high, best);
            }
            Phase::Narrow { high, .. } => self.level = high,
            Phase::Look { home, .. } | Phase::InTurn { home, .. } => self.level = home,
            Phase::Refer { .. } | Phase::Hold => {}
        }
    }

    fn double(&mut self, seen: Vec<(usize, Rate)>, grows: bool) {
        if grows && self.level < self.max {
            self.level = self.level.saturating_mul(2).min(self.max);
            self.phase = Phase::Double(seen);
            return;
        }
        let (mut high, best) =
            seen.iter().copied().max_by_key(|seen| seen.1).expect("one was pushed");
        if self.aim != Aim::ROUGH {
            // The highest of several may be so by chance, and higher ones are tried with care.
            let near = seen.iter().filter(|seen| seen.1.is_at_least(self.aim.enough, best));
            high = near.map(|seen| seen.0).min().unwrap_or(high);
        }
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

    fn doubled(&self, level: usize) -> usize {
        level.saturating_mul(2).min(self.max)
    }

    /// Measures `high` once more before it is compared with another level.
    fn doubt(&mut self, low: usize, high: usize, best: Rate, other: (usize, Rate)) {
        self.level = high;
        self.phase = Phase::Doubt { low, high, best, other };
    }

    /// Goes on below or above a `half` between `low` and `high`, as its rate is enough or not.
    fn cut(&mut self, low: usize, high: usize, best: Rate, half: (usize, Rate)) {
        if half.1.is_at_least(self.aim.enough, best) {
            // A rate that is higher by chance must not raise the bar.
            let better = half.1.is_at_least(GROWS, best);
            self.narrow(low, half.0, if better { half.1 } else { best });
        } else {
            self.narrow(half.0, high, best);
        }
    }

    /// Goes on from a level that is `better` than `high`, whose rate is `best`.
    fn go_on(&mut self, low: usize, high: usize, best: Rate, better: (usize, Rate)) {
        let low = if best.is_at_least(self.aim.enough, better.1) { low } else { high };
        self.reach(low, better.0, better.1);
    }

    /// Goes on doubling, with care, from `high`, whose rate is `best`.
    fn reach(&mut self, low: usize, high: usize, best: Rate) {
        if high >= self.max || self.aim == Aim::ROUGH {
            return self.narrow(low, high, best);
        }
        self.level = self.doubled(high);
        self.phase = Phase::Reach { low, high, best, again: None };
    }

    fn narrow(&mut self, low: usize, high: usize, best: Rate) {
        if high - low <= (high / 8).max(1) || high <= self.spare {
            self.level = high;
            self.base = None;
            self.promised = Some(best);
            self.goal = Some(best);
            (self.changed, self.kept) = (0, 1000);
            self.look_at_ns = None;
            self.look_every_ns = LOOK_NS.0;
            (self.looks, self.looks_down) = (0, LOOKS_DOWN.0);
            return;
        }
        let half = high.div_ceil(2);
        let half = if low < self.min || half > low { half } else { (low + high) / 2 };
        self.level = half.max(self.spare);
        self.phase = Phase::Narrow { low, high, best, again: None };
    }
}
