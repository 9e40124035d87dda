//! Measures the rate of a queue that is kept full, over a number of whole turns.
//!
//! An epoch begins when what was in flight at the last change has come back, runs from one
//! completion to another, and ends after whole turns (each as many bytes as may be in flight), for
//! completions come in clumps of a turn. Completions of one moment are never divided. Time in
//! which the queue was not full says nothing about the drive and is left out, and so is the turn
//! after it, in which the queue fills again.

use super::rate::Rate;

/// How long an epoch is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Care {
    /// Enough to tell a half from a whole.
    Quick,
    /// Enough to tell a tenth.
    Careful,
    /// Enough to tell a fiftieth.
    Thorough,
}

impl Care {
    /// Requests and turns, at least.
    fn wanted(self) -> (u64, u64) {
        match self {
            Self::Quick => (24, 2),
            Self::Careful => (64, 4),
            Self::Thorough => (192, 8),
        }
    }

    /// A slow drive need not show as many: after this time, a third of the requests is enough.
    fn enough_ns(self) -> u64 {
        match self {
            Self::Quick => 100_000_000,
            Self::Careful => 250_000_000,
            Self::Thorough => 500_000_000,
        }
    }
}

/// No epoch is shorter: threads that are late, timers and batches of completions would show.
const SHORTEST_NS: u64 = 5_000_000;

/// Requests after which an epoch that falls short ends.
const SHORT: u64 = 8;

/// What an epoch has found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Finding {
    /// This rate, over this time.
    Rate(Rate, u64),
    /// The queue is not kept full, so nothing can be said.
    Starved,
}

/// See the module's own text.
#[derive(Debug, Clone)]
pub(super) struct Epoch {
    /// Bytes of a full queue.
    turn: u64,
    /// Bytes of one request.
    request: u64,
    care: Care,
    /// Bytes that have to pass before anything counts.
    settling: u64,
    /// Time of the latest completion.
    latest_ns: Option<u64>,
    /// Time from which completions count; those of that very moment do not.
    from_ns: u64,
    bytes: u64,
    ns: u64,
    /// Bytes at which the next turn is whole.
    whole_at: u64,
    /// Bytes that passed while the queue was not full.
    missed: u64,
    /// Below this the rate is of no use, however exact.
    floor: Option<Rate>,
}

impl Epoch {
    /// For `level` requests of `request` bytes in flight.
    pub(super) fn new(level: usize, request: u64, care: Care) -> Self {
        let turn = request.saturating_mul(level as u64).max(1);
        Self {
            turn,
            request,
            care,
            settling: turn,
            latest_ns: None,
            from_ns: 0,
            bytes: 0,
            ns: 0,
            whole_at: turn,
            missed: 0,
            floor: None,
        }
    }

    /// Lets the epoch end early where the rate stays below `floor`.
    pub(super) fn set_floor(&mut self, floor: Option<Rate>) {
        self.floor = floor;
    }

    /// Another epoch; what `in_flight` bytes were underway before it do not count.
    pub(super) fn restart(&mut self, level: usize, request: u64, care: Care, in_flight: u64) {
        let latest_ns = self.latest_ns;
        *self = Self::new(level, request, care);
        self.latest_ns = latest_ns;
        self.settling = in_flight.max(1);
    }

    /// Another epoch of the same kind, which takes up where this one has ended.
    pub(super) fn go_on(&mut self, care: Care) {
        self.care = care;
        self.bytes = 0;
        self.ns = 0;
        self.whole_at = self.turn;
        self.missed = 0;
    }

    /// What the completions before `now_ns` amount to, if that is enough.
    pub(super) fn finding(&mut self, now_ns: u64) -> Option<Finding> {
        let (requests, turns) = self.care.wanted();
        let wanted = (self.request * requests).max(self.turn.saturating_mul(turns));
        if self.missed > wanted.saturating_mul(2) {
            return Some(Finding::Starved);
        }
        if self.latest_ns == Some(now_ns) || self.bytes < self.whole_at {
            return None;
        }
        self.whole_at = (self.bytes / self.turn + 1).saturating_mul(self.turn);
        let long = self.bytes >= wanted && self.ns >= SHORTEST_NS;
        let few = (self.request * (requests / 3)).max(self.turn.saturating_mul(2));
        let enough = self.bytes >= few && self.ns >= self.care.enough_ns();
        let rate = Rate::of(self.bytes, self.ns);
        let hopeless = self.bytes >= self.request * SHORT
            && self.ns >= SHORTEST_NS
            && self.floor.is_some_and(|floor| rate < floor);
        (long || enough || hopeless).then_some(Finding::Rate(rate, self.ns))
    }

    /// Takes in a completion. `full`: the queue was full since the one before.
    pub(super) fn add(&mut self, now_ns: u64, len: u64, full: bool) {
        let passed = self.latest_ns.map_or(0, |latest| now_ns.saturating_sub(latest));
        self.latest_ns = Some(now_ns);
        if !full {
            self.missed = self.missed.saturating_add(len);
            self.settling = self.turn;
        } else if self.settling > 0 {
            self.settling = self.settling.saturating_sub(len);
            self.from_ns = now_ns;
        } else if now_ns > self.from_ns {
            self.bytes = self.bytes.saturating_add(len);
            self.ns = self.ns.saturating_add(passed);
        }
    }
}
