//! How many requests of what size a drive's queue keeps in flight, for one direction.
//!
//! A cold queue begins with a few requests and takes one more with each completion while they
//! come back as fast as the fastest; the first that queue end this. From then on only measured
//! rates count ([`Climb`]). The size of a request follows from the rate: one should hold the drive
//! for about [`HOLDS_NS`], so that others get their turn soon, but a size that costs speed is not
//! taken.

use super::climb::{Aim, Climb};
use super::epoch::{Care, Epoch, Finding};
use super::rate::Rate;
use crate::units::KIB;

/// How long one request may hold the drive. At 200 MB/s that is 128 KiB, and above 1 GB/s 1 MiB.
const HOLDS_NS: u64 = 1_000_000;
/// Requests that hold the drive for longer are never tried.
const HOLDS_NS_MAX: u64 = 50_000_000;
/// A smaller size must keep this of the rate: thousandths.
const KEEPS: u64 = 970;
/// A larger size must bring the rate to this: thousandths.
const GAINS: u64 = 1080;
/// A completion that took this of the fastest one has waited in line: thousandths.
const QUEUED: u64 = 1750;
/// A queue that holds less than this is not made shorter, whatever it would keep of the rate: that
/// spares others next to nothing, and a thread that is late for a moment would leave the drive
/// idle.
pub(super) const QUEUE_NS: u64 = 3_000_000;
/// The queue counts as full from this share of its bytes on: hundredths.
const FULL: u64 = 85;

/// Requests in flight when nothing is known: from 4 on, 14 GB/s at 2.3 ms take so long to reach
/// that a first 4 GiB fall below 0.95 of the best, by 0.003.
const DEPTH_START: usize = 8;
/// Smaller requests cost the processor more than they spare others.
const SIZE_MIN: u64 = 128 * KIB;

/// What the depth and the size may be. Sizes are powers of two.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct DepthLimits {
    /// Requests in flight when nothing is known.
    pub(crate) depth_start: usize,
    /// Requests in flight at most.
    pub(crate) depth_max: usize,
    /// Bytes of a request, at least.
    pub(crate) size_min: u64,
    /// Bytes of a request when nothing is known; larger only where that gains speed.
    pub(crate) size_start: u64,
    /// Bytes of a request, at most.
    pub(crate) size_max: u64,
}

impl DepthLimits {
    /// For a drive, which `turns` where it is a disk. `size` is a request's usual size.
    pub(crate) fn of(turns: bool, depth_max: usize, size: u64, size_max: u64) -> Self {
        let size_max = size_max.max(size);
        if turns {
            // More requests may only move the heads, and so may smaller ones.
            return Self { depth_start: 1, depth_max, size_min: size, size_start: size, size_max };
        }
        let size_min = SIZE_MIN.min(size);
        Self { depth_start: DEPTH_START, depth_max, size_min, size_start: size, size_max }
    }
}

/// What was found about a drive in one direction.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct Learned {
    /// Requests in flight.
    pub(crate) depth: usize,
    /// Bytes of each.
    pub(crate) size: u64,
    /// What they reach.
    pub(crate) rate: Rate,
}

#[derive(Debug, Clone)]
enum Stage {
    /// One more request in flight with each completion that did not queue.
    Surge {
        level: usize,
        fastest_ns: u64,
        queued: usize,
    },
    Climb,
    /// Another size is tried; what to go back to, and the rate to be reached in thousandths of the
    /// one that was measured.
    Size {
        back: (Box<Climb>, u64),
        needs: u64,
        rate: Rate,
    },
}

/// Which sizes have been tried in this search.
#[derive(Debug, Clone, Copy, Default)]
struct Tried {
    /// How often a smaller one.
    smaller: u8,
    /// How often a larger one, since one has gained.
    larger: u8,
}

/// See the module's own text. It reads no clock: completions bring the time.
#[derive(Debug, Clone)]
pub(crate) struct DepthTuner {
    limits: DepthLimits,
    stage: Stage,
    climb: Climb,
    size: u64,
    epoch: Epoch,
    tried: Tried,
    /// Searches that were begun when they were.
    searches: u32,
    learned: Option<Learned>,
}

impl DepthTuner {
    /// With what was `remembered` of the drive it holds that until the rate is another.
    pub(crate) fn new(limits: DepthLimits, remembered: Option<Learned>) -> Self {
        let (max, size) = (limits.depth_max.max(1), limits.size_start);
        let start = limits.depth_start.clamp(1, max);
        let surge = Stage::Surge { level: start, fastest_ns: u64::MAX, queued: 0 };
        let (stage, climb, size) = match remembered {
            Some(Learned { depth, size, rate }) => {
                let size = 1 << size.max(1).ilog2();
                let size = size.clamp(limits.size_min, limits.size_max);
                (Stage::Climb, Climb::hold(Aim::NEAR, 1, max, depth, Some(rate)), size)
            }
            None => (surge, Climb::search(Aim::NEAR, 1, max, start), size),
        };
        let epoch = Epoch::new(climb.level(), size, climb.care());
        let learned = None;
        Self { limits, stage, climb, size, epoch, tried: Tried::default(), searches: 0, learned }
    }

    /// Requests of [`request_size`](Self::request_size) to keep in flight.
    pub(crate) fn depth(&self) -> usize {
        match self.stage {
            Stage::Surge { level, .. } => level,
            _ => self.climb.level(),
        }
    }

    /// Bytes of one request.
    pub(crate) fn request_size(&self) -> u64 {
        self.size
    }

    /// Whether one more request may be submitted where `ops` of `len` bytes together are in flight.
    /// Smaller requests than asked for may be more of them, up to the most that is allowed.
    pub(crate) fn admits(&self, ops: usize, len: u64) -> bool {
        ops < self.limits.depth_max.max(1) && len < self.window()
    }

    /// What is known now, if it is worth remembering.
    pub(crate) fn learned(&self) -> Option<Learned> {
        self.learned
    }

    /// Bytes of a full queue.
    pub(crate) fn window(&self) -> u64 {
        self.size.saturating_mul(self.depth() as u64)
    }

    /// Takes in a completion: a request of `len` bytes that took `took_ns`. `in_flight_len` are the
    /// bytes that were in flight, with this one's, when the queue was last filled up. All that were
    /// reaped together bring the same `now_ns`.
    pub(crate) fn completed(&mut self, now_ns: u64, len: u64, took_ns: u64, in_flight_len: u64) {
        let full = in_flight_len >= self.window().saturating_mul(FULL) / 100;
        if let Stage::Surge { .. } = self.stage {
            self.surge(len, took_ns, full, in_flight_len);
        } else if let Some(finding) = self.epoch.finding(now_ns) {
            self.decide(finding, now_ns, in_flight_len);
        }
        self.epoch.add(now_ns, len, took_ns, full);
    }

    fn surge(&mut self, len: u64, took_ns: u64, full: bool, in_flight_len: u64) {
        let max = self.limits.depth_max;
        let Stage::Surge { level, fastest_ns, queued } = &mut self.stage else { return };
        if !full || len < self.size / 2 {
            return;
        }
        *fastest_ns = (*fastest_ns).min(took_ns.max(1));
        let has_queued = Rate(took_ns).is_at_least(QUEUED, Rate(*fastest_ns));
        if has_queued {
            *queued += 1;
        } else {
            *queued = 0;
            *level = (*level + 1).min(max);
        }
        if *queued >= (*level / 8).max(2) || *level == max {
            self.climb = Climb::search(Aim::NEAR, 1, max, *level);
            self.stage = Stage::Climb;
            self.restart(in_flight_len);
        }
    }

    fn restart(&mut self, in_flight_len: u64) {
        let (care, floor) = match &self.stage {
            Stage::Size { rate, .. } => (Care::Thorough, Some(rate.part(900))),
            _ => (self.climb.care(), self.climb.floor()),
        };
        self.epoch.restart(self.depth(), self.size, care, in_flight_len);
        self.epoch.set_floor(floor);
    }

    fn decide(&mut self, finding: Finding, now_ns: u64, in_flight_len: u64) {
        let before = (self.depth(), self.size);
        match (std::mem::replace(&mut self.stage, Stage::Climb), finding) {
            (Stage::Size { back, needs, rate }, finding) => self.judge(back, needs, rate, finding),
            (_, Finding::Starved) => self.climb.starved(),
            (_, Finding::Rate(rate, ns)) => {
                let spare = rate.bytes_in(QUEUE_NS) / self.size.max(1);
                self.climb.spare_below(usize::try_from(spare).unwrap_or(usize::MAX));
                self.climb.measured(rate, ns, now_ns);
                self.note();
                self.try_size(before.0, rate);
            }
        }
        if before == (self.depth(), self.size) {
            self.epoch.go_on(self.climb.care());
            self.epoch.set_floor(self.climb.floor());
        } else {
            self.restart(in_flight_len);
        }
    }

    /// Keeps what was found, and what a new search has to try again.
    fn note(&mut self) {
        if let Some((depth, rate)) = self.climb.found() {
            self.learned = Some(Learned { depth, size: self.size, rate });
        }
        if self.climb.searches() != self.searches {
            self.searches = self.climb.searches();
            self.tried = Tried::default();
        }
    }

    /// The size at which one request holds a drive of `rate` for as long as it may.
    fn preferred(&self, rate: Rate) -> u64 {
        let held = rate.bytes_in(HOLDS_NS).max(1);
        let size = 1 << held.ilog2();
        size.clamp(self.limits.size_min, self.limits.size_start.max(self.limits.size_min))
    }

    /// Begins to try another size where that is due: a smaller one as soon as the `rate` at `depth`
    /// is known and once more when a depth is held, a larger one after that.
    fn try_size(&mut self, depth: usize, rate: Rate) {
        let preferred = self.preferred(rate);
        if preferred < self.size && self.tried.smaller == 0 {
            self.tried.smaller = 1;
            return self.begin_size(depth, rate, preferred, KEEPS);
        }
        let Some((depth, rate)) = self.climb.found() else { return };
        if preferred < self.size && self.tried.smaller == 1 && self.climb.is_holding() {
            // It may have failed by chance: the first rate was a rough one.
            self.tried.smaller = 2;
            return self.begin_size(depth, rate, preferred, KEEPS);
        }
        let larger = preferred.max(self.size.saturating_mul(2));
        let fits = larger <= self.limits.size_max.min(rate.bytes_in(HOLDS_NS_MAX));
        let wanted = larger <= preferred;
        if fits && self.climb.is_holding() && self.tried.larger < 1 + u8::from(wanted) {
            self.tried.larger += 1;
            let needs = if wanted { KEEPS } else { GAINS };
            self.begin_size(depth, rate, larger, needs);
        }
    }

    /// Tries another size with as many bytes in flight. A few requests stay as many, for half of
    /// them may be too few whatever their size; and where the depth could grow no more, only larger
    /// requests put more in flight.
    fn begin_size(&mut self, depth: usize, rate: Rate, size: u64, needs: u64) {
        let max = self.limits.depth_max.max(1);
        let bytes = self.size.saturating_mul(depth as u64);
        let same = usize::try_from(bytes.div_ceil(size)).unwrap_or(max);
        let level = if depth == max { max } else { same.max(depth.min(4)) };
        let trial = Climb::hold(Aim::NEAR, 1, max, level, None);
        let back = (Box::new(std::mem::replace(&mut self.climb, trial)), self.size);
        self.size = size;
        self.stage = Stage::Size { back, needs, rate };
    }

    fn judge(&mut self, back: (Box<Climb>, u64), needs: u64, reference: Rate, finding: Finding) {
        match finding {
            Finding::Rate(rate, _) if rate.is_at_least(needs, reference) => {
                // A size that was made smaller is made larger again only if the drive turns out to
                // be faster; one that has gained may gain more.
                self.tried.larger = u8::from(self.size < back.1);
                let max = self.limits.depth_max.max(1);
                self.climb = Climb::search_from(Aim::NEAR, 1, max, self.climb.level(), rate);
                self.searches = 0;
            }
            _ => (self.climb, self.size) = (*back.0, back.1),
        }
    }
}
