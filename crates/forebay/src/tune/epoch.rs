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
    /// The same for a queue that is deep, and enough to tell a tenth for one that is not.
    Short,
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
            Self::Short => (64, 2),
            Self::Careful => (64, 4),
            Self::Thorough => (192, 5),
        }
    }

    /// A slow drive need not show as many: after this time, a third of the requests is enough.
    fn enough_ns(self) -> u64 {
        match self {
            Self::Quick => 100_000_000,
            Self::Short | Self::Careful => 250_000_000,
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
        let wanted = self.request.saturating_mul(requests).max(self.turn.saturating_mul(turns));
        if self.missed > wanted.saturating_mul(2) {
            return Some(Finding::Starved);
        }
        if self.latest_ns == Some(now_ns) || self.bytes < self.whole_at {
            return None;
        }
        self.whole_at = (self.bytes / self.turn + 1).saturating_mul(self.turn);
        let long = self.bytes >= wanted && self.ns >= SHORTEST_NS;
        let few = self.request.saturating_mul(requests / 3).max(self.turn.saturating_mul(2));
        let enough = self.bytes >= few && self.ns >= self.care.enough_ns();
        let rate = Rate::of(self.bytes, self.ns);
        let hopeless = self.bytes >= self.request.saturating_mul(SHORT)
            && self.ns >= SHORTEST_NS
            && self.floor.is_some_and(|floor| rate < floor);
        (long || enough || hopeless).then_some(Finding::Rate(rate, self.ns))
    }

    /// Takes in a completion of what took `took_ns`. `full`: the queue was full since the last.
    pub(super) fn add(&mut self, now_ns: u64, len: u64, took_ns: u64, full: bool) {
        let latest = self.latest_ns.unwrap_or(now_ns);
        // Several threads may bring theirs in another order.
        let now_ns = now_ns.max(latest);
        let passed = now_ns - latest;
        // Nothing was asked for between the completion before and the start of this one.
        let idle = passed.saturating_sub(took_ns) > took_ns / 2;
        self.latest_ns = Some(now_ns);
        if !full || idle {
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

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    fn found(epoch: &mut Epoch, from_ms: u64, completions: u64) -> Option<Finding> {
        (0..completions).find_map(|index| {
            let now_ns = (from_ms + index) * MS;
            let finding = epoch.finding(now_ns);
            epoch.add(now_ns, 1000, 4 * MS, true);
            finding
        })
    }

    #[test]
    fn a_steady_queue_shows_its_rate() {
        let mut epoch = Epoch::new(4, 1000, Care::Careful);
        assert_eq!(found(&mut epoch, 1, 60), None, "that is too little");
        let finding = found(&mut epoch, 61, 60);
        assert!(matches!(finding, Some(Finding::Rate(Rate(1_000_000), _))), "{finding:?}");
    }

    #[test]
    fn pauses_do_not_count() {
        let mut epoch = Epoch::new(4, 1000, Care::Careful);
        found(&mut epoch, 1, 60);
        // An hour later it goes on, and that hour is not held against the drive.
        let finding = found(&mut epoch, 3_600_000, 60);
        assert!(matches!(finding, Some(Finding::Rate(Rate(1_000_000), _))), "{finding:?}");
    }

    #[test]
    fn completions_of_one_moment_stay_together() {
        let mut epoch = Epoch::new(8, 1000, Care::Quick);
        let mut finding = None;
        for batch in 1..20 {
            for _ in 0..8 {
                finding = finding.or(epoch.finding(batch * 8 * MS));
                epoch.add(batch * 8 * MS, 1000, 8 * MS, true);
            }
        }
        assert!(matches!(finding, Some(Finding::Rate(Rate(1_000_000), _))), "{finding:?}");
    }

    #[test]
    fn a_queue_that_is_never_full_starves() {
        let mut epoch = Epoch::new(4, 1000, Care::Quick);
        let finding = (0..200).find_map(|index| {
            epoch.add(index * MS, 1000, MS, false);
            epoch.finding((index + 1) * MS)
        });
        assert_eq!(finding, Some(Finding::Starved));
    }

    #[test]
    fn a_rate_that_falls_short_is_not_made_exact() {
        let ended_after = |floor| {
            let mut epoch = Epoch::new(2, 1000, Care::Thorough);
            epoch.set_floor(floor);
            let mut count = 0;
            while epoch.finding(count * MS).is_none() {
                epoch.add(count * MS, 1000, 2 * MS, true);
                count += 1;
            }
            count
        };
        assert!(ended_after(Some(Rate(2_000_000))) * 10 < ended_after(Some(Rate(500_000))));
    }
}
