//! How many threads read what is resident.
//!
//! It climbs like the depth of a drive while all threads have work, and so follows the rate of the
//! page cache. Where threads find no work (the link binds, or the application asks for little) the
//! rate says nothing about them; then their number falls to those that had work, and one more.

use super::climb::{Aim, Climb};
use super::epoch::{Care, Epoch, Finding};
use super::rate::Rate;

/// Completions after which the work of the threads is added up.
const TALLY: u64 = 256;

/// Threads when nothing else limits them: 8 fill 56 GB/s where the link takes 55.5, and 2 keep a
/// window's planning beside the copying even on one core.
const START: (usize, usize) = (2, 10);

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
    /// above the quota would be stopped for the rest of its period, and hold slots meanwhile.
    pub(crate) fn of(cores: usize, quota_thousandths: Option<u64>) -> Self {
        let quota = quota_thousandths.map_or(u64::MAX, |quota| quota.div_ceil(1000).max(1));
        let usable = cores.max(1).min(usize::try_from(quota).unwrap_or(usize::MAX));
        let max = usable.max(START.0);
        Self { start: max.min(START.1), max }
    }
}

/// See the module's own text. It reads no clock: completions bring the time.
#[derive(Debug, Clone)]
pub(crate) struct ReaderTuner {
    limits: ReaderLimits,
    piece: u64,
    climb: Climb,
    epoch: Epoch,
    /// Readers that had work, added up over so many completions.
    busy: (u64, u64),
}

impl ReaderTuner {
    /// For readers that read `piece` bytes at a time.
    pub(crate) fn new(limits: ReaderLimits, piece: u64) -> Self {
        let max = limits.max.max(1);
        let climb = Climb::hold(Aim::ROUGH, 1, max, limits.start, None);
        let epoch = Epoch::new(climb.level(), piece, Care::Careful);
        Self { limits: ReaderLimits { max, ..limits }, piece, climb, epoch, busy: (0, 0) }
    }

    /// Readers that may work at once.
    pub(crate) fn count(&self) -> usize {
        self.climb.level()
    }

    /// The rate that they reached where they were held, if it was measured.
    pub(crate) fn rate(&self) -> Option<Rate> {
        self.climb.found().map(|found| found.1)
    }

    /// Takes in a piece of `len` bytes that took `took_ns`. `busy`: readers that had work
    /// meanwhile, this one among them.
    pub(crate) fn completed(&mut self, now_ns: u64, len: u64, took_ns: u64, busy: usize) {
        let count = self.count();
        if let Some(finding) = self.epoch.finding(now_ns) {
            match finding {
                Finding::Rate(rate, ns) => self.climb.measured(rate, ns, now_ns),
                Finding::Starved => self.climb.starved(),
            }
            self.follow(count, busy);
        }
        // With many readers, one of them is now and then between two pieces.
        self.epoch.add(now_ns, len, took_ns, busy * 8 >= count * 7);
        self.busy = (self.busy.0 + busy.min(count) as u64, self.busy.1 + 1);
        if self.busy.1 == TALLY {
            self.shrink();
        }
    }

    /// Makes the epoch one of the present level.
    fn follow(&mut self, before: usize, busy: usize) {
        if before == self.count() {
            self.epoch.go_on(self.climb.care());
        } else {
            let in_flight = self.piece.saturating_mul(busy as u64);
            self.epoch.restart(self.count(), self.piece, self.climb.care(), in_flight);
        }
        self.epoch.set_floor(self.climb.floor());
    }

    /// Lets go of readers that find no work.
    fn shrink(&mut self) {
        let (sum, completions) = std::mem::take(&mut self.busy);
        let needed = usize::try_from(sum.div_ceil(completions)).unwrap_or(usize::MAX) + 1;
        let count = self.count();
        if needed < count {
            self.climb = Climb::hold(Aim::ROUGH, 1, self.limits.max, needed, None);
            // What all were busy with is over: this one's work is what is in flight at least.
            self.follow(count, needed);
        }
    }
}
