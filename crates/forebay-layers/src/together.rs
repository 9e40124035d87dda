//! Decides which streams of a group read a layer together, and how long streams wait for the rest.
//! Pure.
//!
//! Streams request their layers by themselves. A layer is read when all streams that are about to
//! request it have done so and their buffers are free. So a busy GPU does not block the read
//! halfway. A late stream is waited for briefly and then excluded. It is included again after it
//! has advanced, each time by more layers, until it reads a layer together with others.

use std::time::Duration;

/// How long a stream waits for the rest: longer than the jitter between streams that run in step,
/// and too short to look like a hang. A guess, which no run measured.
const WAITS_MAX: Duration = Duration::from_millis(250);

/// A stream's request for a layer.
#[derive(Debug, Clone, Copy)]
pub(super) struct Request {
    /// Index of the stream.
    pub(super) seat: usize,
    pub(super) unit: usize,
    /// Whether its buffer may be overwritten.
    pub(super) free: bool,
    /// How long ago it was requested.
    pub(super) waited: Duration,
}

/// The progress of a stream.
#[derive(Debug, Clone)]
pub(super) struct Progress {
    /// The position that it takes next.
    pub(super) next: u64,
    /// The layers that it is about to request.
    pub(super) missing: Vec<usize>,
    /// Whether other streams wait for it.
    pub(super) is_with: bool,
}

/// How long other streams do not wait for a stream that was late.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Apart {
    /// The position at which others wait for it again, and how often it was left behind.
    until: u64,
    times: u32,
}

impl Apart {
    /// Excludes a stream whose next layer is at `next`.
    pub(super) fn leave(&mut self, next: u64) {
        self.until = next.saturating_add(1 << self.times);
        self.times = (self.times + 1).min(20);
    }

    /// Whether others wait for it again when it takes the layer at `next`.
    pub(super) fn is_over(&self, next: u64) -> bool {
        next >= self.until
    }
}

/// The requests to begin.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Pick {
    /// Indices of the requests, all for the same layer.
    pub(super) requests: Vec<usize>,
    /// Excluded streams.
    pub(super) without: Vec<usize>,
}

/// Chooses the requests to begin now; `None` if there are none yet.
pub(super) fn pick(requests: &[Request], streams: &[Option<Progress>]) -> Option<Pick> {
    requests.iter().enumerate().find_map(|(place, first)| {
        let is_first = requests[..place].iter().all(|before| before.unit != first.unit);
        if is_first { pick_unit(requests, streams, first) } else { None }
    })
}

fn pick_unit(requests: &[Request], streams: &[Option<Progress>], first: &Request) -> Option<Pick> {
    let of_unit = || requests.iter().enumerate().filter(|(_, request)| request.unit == first.unit);
    let (free, busy): (Vec<_>, Vec<_>) = of_unit().partition(|(_, request)| request.free);
    if free.is_empty() {
        return None;
    }
    let is_late = |seat: usize, stream: &Progress| {
        let is_busy = busy.iter().any(|(_, request)| request.seat == seat);
        let has_request = free.iter().any(|(_, request)| request.seat == seat);
        stream.is_with && (is_busy || !has_request && stream.missing.contains(&first.unit))
    };
    let late = streams.iter().enumerate().filter(|(seat, stream)| {
        stream.as_ref().is_some_and(|stream| is_late(*seat, stream)) //
    });
    let without: Vec<usize> = late.map(|(seat, _)| seat).collect();
    if !without.is_empty() && first.waited < WAITS_MAX {
        return None;
    }
    Some(Pick { requests: free.into_iter().map(|(place, _)| place).collect(), without })
}

#[cfg(test)]
mod tests {
    use super::*;

    const LONG: Duration = WAITS_MAX;

    fn request(seat: usize, unit: usize, waited: Duration) -> Request {
        Request { seat, unit, free: true, waited }
    }

    /// A stream that is about to request these layers.
    fn at(missing: &[usize]) -> Option<Progress> {
        Some(Progress { next: 4, missing: missing.to_vec(), is_with: true })
    }

    fn behind(missing: &[usize]) -> Option<Progress> {
        at(missing).map(|stream| Progress { is_with: false, ..stream })
    }

    fn begun(requests: &[usize], without: &[usize]) -> Option<Pick> {
        Some(Pick { requests: requests.to_vec(), without: without.to_vec() })
    }

    #[test]
    fn a_layer_is_read_once_all_have_requested_it() {
        let one = request(0, 7, Duration::ZERO);
        assert_eq!(pick(&[one], &[at(&[8]), at(&[7, 8])]), None, "the other is about to");
        let both = [one, request(1, 7, Duration::ZERO)];
        assert_eq!(pick(&both, &[at(&[8]), at(&[8])]), begun(&[0, 1], &[]));
        assert_eq!(pick(&[one], &[at(&[8]), None]), begun(&[0], &[]), "the other has ended");
        assert_eq!(pick(&[one], &[at(&[8]), at(&[9, 0])]), begun(&[0], &[]), "it does not want it");
        assert_eq!(pick(&[], &[at(&[8]), at(&[8])]), None);
    }

    #[test]
    fn a_late_member_is_left_behind() {
        let (late, soon) = (request(0, 7, LONG), request(0, 8, Duration::ZERO));
        assert_eq!(pick(&[late], &[at(&[8]), at(&[7])]), begun(&[0], &[1]));
        assert_eq!(pick(&[soon], &[at(&[9]), behind(&[7, 8])]), begun(&[0], &[]));
        assert_eq!(pick(&[soon], &[at(&[9]), at(&[7, 8])]), None, "it goes on");
    }

    #[test]
    fn a_stream_that_is_behind_is_served_alone() {
        // The first waits for layer 8, the second for layer 7, which the first has.
        let requests = [request(0, 8, Duration::ZERO), request(1, 7, Duration::ZERO)];
        assert_eq!(pick(&requests, &[at(&[9]), at(&[8, 9])]), begun(&[1], &[]));
    }

    #[test]
    fn a_buffer_that_is_busy_is_waited_for() {
        let busy = Request { free: false, ..request(1, 7, Duration::ZERO) };
        let streams = [at(&[8]), at(&[8])];
        assert_eq!(pick(&[request(0, 7, Duration::ZERO), busy], &streams), None);
        assert_eq!(pick(&[request(0, 7, LONG), busy], &streams), begun(&[0], &[1]));
        assert_eq!(pick(&[busy], &streams), None, "for ever, by itself");
        let without = [at(&[8]), behind(&[8])];
        assert_eq!(pick(&[request(0, 7, Duration::ZERO), busy], &without), begun(&[0], &[]));
    }

    #[test]
    fn a_member_that_was_late_often_is_waited_for_more_rarely() {
        let mut apart = Apart::default();
        assert!(apart.is_over(0));
        let mut waits = 0;
        for next in 0..1000 {
            if apart.is_over(next) {
                apart.leave(next);
                waits += 1;
            }
            assert!(!apart.is_over(next), "it is where it was");
        }
        assert_eq!(waits, 10);
        (0..100).for_each(|_| apart.leave(u64::MAX - 5));
        assert!(!apart.is_over(0) && apart.is_over(u64::MAX));
    }
}
