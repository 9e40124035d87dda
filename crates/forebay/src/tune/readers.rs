//! How many threads read what is resident.
//!
//! Two numbers, of which the lower counts. One climbs like the depth of a drive, on the rate of
//! the page cache, while all threads have work. The other is as many as the link keeps at work,
//! and a quarter more: where readers run dry because every slot waits for the link, their rate says
//! nothing, and fewer of them are woken less often. As soon as they do not run dry any more, the
//! link is no bound. An application that asks for little changes neither, and the climb passes over
//! what comes after a pause: what readers write to has left the processor's cache meanwhile, and
//! for a while they are slow, however many they are.

use super::climb::{Aim, Climb};
use super::epoch::{Care, Epoch, Finding};

/// Completions after which the work of the threads is added up: 5 ms at 55 GB/s.
const TALLY: u64 = 256;

/// The link binds where one completion in so many finds nothing left but what waits for it.
const RARE: u64 = 16;

/// After so many in a row that found more to do it does not bind any more: four slots' worth.
const PLENTY: u64 = 64;

/// Threads where nothing is known and nothing else limits them: 8 fill 56 GB/s where the link
/// takes 55.5, but only while nobody else uses the memory. Layers of 200 MB came at 52.0 GB/s
/// through 10 and at 54.0 through 12 on a machine that was disturbed, and as fast through either on
/// one that was not (`benches/runs/2026-11-25-h200-readers`).
const START: usize = 12;

/// One core in so many is left to who copies, plans and computes. With 16 readers on 16 cores
/// layers take 1.16 to 1.27 times as long as with 14, most likely since whoever has to stop for
/// those leaves a slot half filled; with 8 on 8 1.1 and 1.2 times as long as with 7
/// (the same runs; `docs/internals/tuning.md`).
const LEFT: usize = 8;

/// A pause from which on readers are slow at first. After 3 ms they are as fast as before, after 10
/// no more in one run of two, after 30 in neither (`benches/runs/2026-11-22-h200-layers-e`).
const PAUSE_NS: u64 = 5_000_000;

/// How long they are slow: a piece takes twice as long at first, and 1.1 to 1.3 times as long 12 to
/// 20 ms later, with 10 and 14 readers; six take 40 ms.
const SLOW_NS: u64 = 20_000_000;

/// There are never fewer: two keep a window's planning beside the copying even on one core, and
/// where a caller helps, one reader is left for everybody else.
const LEAST: usize = 2;

/// How many readers there are to be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Readers {
    /// This many.
    Fixed(usize),
    /// As many as are found.
    Found(ReaderLimits),
}

impl Readers {
    /// As many as there may be.
    pub(crate) fn most(self) -> usize {
        match self {
            Self::Fixed(count) => count,
            Self::Found(limits) => limits.max,
        }
    }

    /// The same, but never more than `most`.
    pub(crate) fn at_most(self, most: usize) -> Self {
        match self {
            Self::Fixed(count) => Self::Fixed(count.min(most)),
            Self::Found(ReaderLimits { start, max }) => {
                Self::Found(ReaderLimits { start: start.min(most), max: max.min(most) })
            }
        }
    }

    /// As many as there are at first.
    pub(crate) fn start(self) -> usize {
        match self {
            Self::Fixed(count) => count,
            Self::Found(limits) => limits.start,
        }
    }
}

/// How many readers there may be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ReaderLimits {
    /// When nothing is known.
    pub(crate) start: usize,
    /// At most.
    pub(crate) max: usize,
}

impl ReaderLimits {
    /// For `cores`, of which a control group may use a quota in thousandths of a core. Threads
    /// above the quota would be stopped for the rest of its period, and hold slots meanwhile; so it
    /// is rounded, but not up. Of eight cores one is left, of fewer none.
    pub(crate) fn of(cores: usize, quota_thousandths: Option<u64>) -> Self {
        let quota = quota_thousandths.map_or(u64::MAX, |quota| quota.saturating_add(500) / 1000);
        let cores = cores.min(usize::try_from(quota).unwrap_or(usize::MAX));
        let max = (cores - cores / LEFT).max(LEAST);
        Self { start: max.min(START), max }
    }
}

/// What there was for a reader to do next when it was done with a piece.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Ahead {
    /// More than it can do.
    Pieces,
    /// Nothing until the link has taken what is filled.
    Link,
    /// Nothing: little was asked for, or the rest waits for a drive.
    Little,
}

/// See the module's own text. It reads no clock: completions bring the time.
#[derive(Debug, Clone)]
pub(crate) struct ReaderTuner {
    piece: u64,
    climb: Climb,
    epoch: Epoch,
    /// As many as the link needs, where it is the bound.
    needed: Option<usize>,
    tally: Tally,
    /// When the latest piece was done, and until when readers are slow after a pause.
    latest_ns: u64,
    slow_until_ns: u64,
    /// Whether any piece counted since then.
    has_counted: bool,
}

/// The completions of a while in which there was enough to do.
#[derive(Debug, Clone, Copy, Default)]
struct Tally {
    count: u64,
    /// How many of them found nothing but the link ahead.
    dry: u64,
    /// How many since the last of those.
    plenty: u64,
    /// The time that passed, and that which readers were at work, added up.
    passed_ns: u64,
    worked_ns: u64,
    /// When the last piece was done, unless little was left then.
    since_ns: Option<u64>,
}

impl Tally {
    fn add(&mut self, now_ns: u64, took_ns: u64, ahead: Ahead) {
        if let Some(since_ns) = self.since_ns {
            self.count += 1;
            self.dry += u64::from(ahead == Ahead::Link);
            self.plenty = if ahead == Ahead::Link { 0 } else { self.plenty + 1 };
            self.passed_ns += now_ns.saturating_sub(since_ns);
            self.worked_ns += took_ns;
        }
        let since_ns = self.since_ns.map_or(now_ns, |since_ns| now_ns.max(since_ns));
        self.since_ns = (ahead != Ahead::Little).then_some(since_ns);
    }

    /// Readers at work on average.
    fn at_work(&self) -> usize {
        usize::try_from(self.worked_ns.div_ceil(self.passed_ns.max(1))).unwrap_or(usize::MAX)
    }
}

impl ReaderTuner {
    /// For readers that read `piece` bytes at a time.
    pub(crate) fn new(limits: ReaderLimits, piece: u64) -> Self {
        let max = limits.max.max(1);
        let climb = Climb::hold(Aim::ROUGH, LEAST.min(max), max, limits.start, None);
        let epoch = Epoch::new(climb.level(), piece, Care::Careful);
        let (latest_ns, slow_until_ns, has_counted) = (0, 0, true);
        let (needed, tally) = (None, Tally::default());
        Self { piece, climb, epoch, needed, tally, latest_ns, slow_until_ns, has_counted }
    }

    /// Readers that may work at once.
    pub(crate) fn count(&self) -> usize {
        self.needed.map_or(self.climb.level(), |needed| needed.min(self.climb.level()))
    }

    /// The rate that they reached where they were held, if it was measured.
    #[cfg(test)]
    pub(crate) fn rate(&self) -> Option<super::Rate> {
        self.climb.found().map(|found| found.1)
    }

    /// Whether no other number is being looked at.
    #[cfg(test)]
    pub(crate) fn climb_holds(&self) -> bool {
        self.climb.is_holding()
    }

    /// Takes in a piece of `len` bytes that took `took_ns`. `busy`: readers that had work
    /// meanwhile, this one among them.
    pub(crate) fn completed(
        &mut self,
        now_ns: u64,
        len: u64,
        took_ns: u64,
        busy: usize,
        ahead: Ahead,
    ) {
        let before = self.count();
        let is_slow = self.is_slow(now_ns, took_ns);
        if let Some(finding) = self.epoch.finding(now_ns) {
            match finding {
                Finding::Rate(rate, ns) => self.climb.measured(rate, ns, now_ns),
                Finding::Starved => self.climb.starved(),
            }
            self.epoch.go_on(self.climb.care());
        }
        self.tally.add(now_ns, took_ns, ahead);
        self.judge_link();
        let count = self.count();
        if before != count {
            let in_flight = self.piece.saturating_mul(busy as u64);
            self.epoch.restart(count, self.piece, self.climb.care(), in_flight);
        }
        self.epoch.set_floor(self.climb.floor());
        if is_slow {
            return;
        }
        self.has_counted = true;
        // With many readers, one of them is now and then between two pieces. More than there should
        // be are callers who help, or were begun before the number fell.
        let full = busy * 8 >= count * 7 && busy <= count && ahead == Ahead::Pieces;
        self.epoch.add(now_ns, len, took_ns, full && self.needed.is_none());
    }

    /// Whether there was a pause a short while ago. What comes then tells of the pause, not of the
    /// number of readers, and a number that is measured later would seem better. Where nothing
    /// counted between two pauses there is too little to do, and a search goes back to what it
    /// knows.
    fn is_slow(&mut self, now_ns: u64, took_ns: u64) -> bool {
        let begun_ns = now_ns.saturating_sub(took_ns);
        if begun_ns.saturating_sub(self.latest_ns) > PAUSE_NS {
            self.slow_until_ns = now_ns.saturating_add(SLOW_NS);
            if !std::mem::take(&mut self.has_counted) {
                self.climb.starved();
            }
        }
        self.latest_ns = self.latest_ns.max(now_ns);
        now_ns < self.slow_until_ns
    }

    /// Finds out now and then whether the link binds, and how many readers it keeps at work.
    fn judge_link(&mut self) {
        let tally = self.tally;
        let ends = self.needed.is_some() && tally.plenty >= PLENTY;
        if tally.count < TALLY && !ends {
            return;
        }
        self.tally = Tally { since_ns: tally.since_ns, ..Tally::default() };
        // Slots come free one by one, with pieces for all at once: where there is a reader too few,
        // they take one more round, and the link waits.
        let at_work = tally.at_work();
        let needed = at_work.saturating_add(at_work.div_ceil(4)).max(LEAST);
        self.needed = (tally.dry * RARE >= tally.count && !ends).then_some(needed);
    }
}
