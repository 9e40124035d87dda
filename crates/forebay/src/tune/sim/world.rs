//! A transfer to or from a simulated drive: an application that asks, a queue that is kept as the
//! tuner says, and a record of what was in flight when.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use super::drive::Drive;
use crate::tune::{DepthTuner, Rate};
use crate::units::{KIB, MIB};

/// Who says how much is in flight.
#[derive(Debug, Clone)]
pub(super) enum Policy {
    Fixed { depth: usize, size: u64 },
    Tuned(Box<DepthTuner>),
}

impl Policy {
    pub(super) fn setting(&self) -> (usize, u64) {
        match self {
            Self::Fixed { depth, size } => (*depth, *size),
            Self::Tuned(tuner) => (tuner.depth(), tuner.request_size()),
        }
    }

    fn admits(&self, ops: usize, len: u64) -> bool {
        match self {
            Self::Fixed { depth, .. } => ops < *depth,
            Self::Tuned(tuner) => tuner.admits(ops, len),
        }
    }

    pub(super) fn tuner(&self) -> &DepthTuner {
        match self {
            Self::Tuned(tuner) => tuner,
            Self::Fixed { .. } => panic!("a fixed depth learns nothing"),
        }
    }
}

/// What an application asks for.
#[derive(Debug, Clone, Copy)]
pub(super) struct Asks {
    /// Bytes in all.
    pub(super) len: u64,
    /// Bytes a second at most.
    pub(super) rate: u64,
    /// Bytes between two pauses, and their length.
    pub(super) pauses: Option<(u64, u64)>,
    /// Of a hundred requests, those that are of 4 KiB.
    pub(super) small: u64,
    /// Nothing is asked for from this time on.
    pub(super) until_ns: u64,
    /// Completions are seen at multiples of this time.
    pub(super) reaped_every_ns: u64,
}

impl Asks {
    pub(super) fn all(len: u64) -> Self {
        Self { len, rate: u64::MAX, pauses: None, small: 0, until_ns: u64::MAX, reaped_every_ns: 1 }
    }

    /// When the byte at `offset` may be asked for, from the start.
    fn at_ns(&self, offset: u64) -> u64 {
        let paced = u128::from(offset) * 1_000_000_000 / u128::from(self.rate);
        let pauses = self.pauses.map_or(0, |(every, ns)| offset / every * ns);
        u64::try_from(paced).expect("a short run") + pauses
    }
}

/// What was the case from `at_ns` on.
#[derive(Debug, Clone, Copy)]
pub(super) struct Moment {
    pub(super) at_ns: u64,
    pub(super) depth: usize,
    pub(super) size: u64,
    /// Bytes done.
    pub(super) done: u64,
}

/// See the module's own text.
#[derive(Debug)]
pub(super) struct World {
    pub(super) drive: Drive,
    pub(super) policy: Policy,
    pub(super) now_ns: u64,
    pub(super) moments: Vec<Moment>,
    offset: u64,
    done: u64,
    flights: BinaryHeap<Reverse<(u64, u64, u64)>>,
    in_flight: u64,
}

impl World {
    pub(super) fn new(drive: Drive, policy: Policy) -> Self {
        Self {
            drive,
            policy,
            now_ns: 0,
            moments: Vec::new(),
            offset: 0,
            done: 0,
            flights: BinaryHeap::new(),
            in_flight: 0,
        }
    }

    /// Moves what an application asks for.
    pub(super) fn run(&mut self, asks: Asks) {
        let (start_ns, start, mut asked) = (self.now_ns, self.offset, 0);
        let more = |asked, now_ns| asked < asks.len && now_ns < asks.until_ns;
        while more(asked, self.now_ns) || !self.flights.is_empty() {
            let mut ready_ns = u64::MAX;
            while more(asked, self.now_ns) && self.policy.admits(self.flights.len(), self.in_flight)
            {
                ready_ns = start_ns + asks.at_ns(asked);
                if ready_ns > self.now_ns {
                    break;
                }
                let small = (asked / KIB).wrapping_mul(0x9E37_79B9) >> 7;
                let size = if small % 100 < asks.small { 4 * KIB } else { self.policy.setting().1 };
                let len = size.min(asks.len - asked).min(16 * MIB);
                let done_ns = self.drive.submit(self.now_ns, start + asked, len);
                let seen_ns = done_ns.next_multiple_of(asks.reaped_every_ns);
                self.flights.push(Reverse((seen_ns, self.now_ns, len)));
                self.in_flight += len;
                asked += len;
                ready_ns = u64::MAX;
            }
            let full = self.in_flight;
            let next_ns = self.flights.peek().map_or(u64::MAX, |flight| flight.0.0);
            self.now_ns = next_ns.min(ready_ns.max(self.now_ns));
            while let Some(&Reverse((seen_ns, began_ns, len))) = self.flights.peek() {
                if seen_ns > self.now_ns {
                    break;
                }
                self.flights.pop();
                self.in_flight -= len;
                self.done += len;
                if let Policy::Tuned(tuner) = &mut self.policy {
                    tuner.completed(self.now_ns, len, self.now_ns - began_ns, full);
                }
            }
            self.note();
        }
        self.offset += asked;
    }

    fn note(&mut self) {
        let (depth, size) = self.policy.setting();
        let moment = Moment { at_ns: self.now_ns, depth, size, done: self.done };
        self.moments.push(moment);
    }

    /// Bytes a second between two times.
    pub(super) fn rate(&self, from_ns: u64, until_ns: u64) -> u64 {
        let at = |ns: u64| {
            let after = self.moments.partition_point(|moment| moment.at_ns <= ns);
            after.checked_sub(1).map_or(0, |index| self.moments[index].done)
        };
        Rate::of(at(until_ns) - at(from_ns), until_ns - from_ns).0
    }

    /// Bytes that were allowed in flight half of the time between two times.
    pub(super) fn median(&self, from_ns: u64, until_ns: u64, of: impl Fn(&Moment) -> u64) -> u64 {
        let mut spans: Vec<(u64, u64)> = self
            .moments
            .windows(2)
            .filter(|pair| pair[0].at_ns >= from_ns && pair[1].at_ns <= until_ns)
            .map(|pair| (of(&pair[0]), pair[1].at_ns - pair[0].at_ns))
            .collect();
        spans.sort_unstable();
        let half = spans.iter().map(|span| span.1).sum::<u64>() / 2;
        let mut passed = 0;
        for (value, ns) in spans {
            passed += ns;
            if passed >= half {
                return value;
            }
        }
        0
    }
}
