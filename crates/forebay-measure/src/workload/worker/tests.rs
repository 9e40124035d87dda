//! Tests which calls count, and how long each has waited.

use std::path::PathBuf;

use super::*;
use crate::failure::Failure;
use crate::workload::End;
use crate::workload::backend::{Done, Method, Plain};
use crate::workload::pattern::{Pattern, Region};

const MS: Duration = Duration::from_millis(1);

/// The groups of calls that were missed, in milliseconds.
fn groups(waited: Duration, distance: Duration) -> Vec<(u128, u128)> {
    missed(waited, distance).map(|(waited, calls)| (waited.as_millis(), calls)).collect()
}

#[test]
fn each_call_that_was_due_has_waited_since_then() {
    assert_eq!(groups(Duration::ZERO, MS * 10), []);
    assert_eq!(groups(MS * 4, MS * 10), [(4, 1)]);
    // A call due exactly at the end belongs to the next span.
    assert_eq!(groups(MS * 10, MS * 10), [(10, 1)]);
    assert_eq!(groups(MS * 30, MS * 10), [(30, 1), (20, 1), (10, 1)]);
    assert_eq!(groups(MS * 25, MS * 10), [(25, 1), (15, 1), (5, 1)]);
    assert_eq!(groups(MS * 31, MS * 10).len(), 4);
}

#[test]
fn no_call_that_is_due_is_lost() {
    for (waited, distance, calls) in [
        (MS * 1000, MS, 1000),
        (MS * 1001, MS, 1001),
        (MS * 2500, MS, 2500),
        (MS * 2500 + Duration::from_nanos(1), MS, 2501),
        (MS, Duration::ZERO, 1_000_000),
        (Duration::MAX, Duration::ZERO, Duration::MAX.as_nanos()),
    ] {
        let found: Vec<(Duration, u128)> = missed(waited, distance).collect();
        assert!(found.len() as u128 <= MISSED_MAX);
        assert_eq!(found.iter().map(|(_, calls)| calls).sum::<u128>(), calls);
        assert_eq!(found[0].0, waited);
        assert!(found.is_sorted_by(|one, next| one.0 >= next.0), "{waited:?} by {distance:?}");
    }
    // All calls of a group count with the wait of its first call.
    let found: Vec<(Duration, u128)> = missed(MS * 2500, MS).collect();
    assert_eq!((found[0], found[1]), ((MS * 2500, 3), (MS * 2497, 3)));
    assert_eq!((found[499], found[500]), ((MS * 1003, 3), (MS * 1000, 2)));
    assert_eq!(found[999], (MS * 2, 2));
}

/// A drive that stalls: its only call ends at the end.
struct Still(Arc<Phase>, Option<usize>);

impl Backend for Still {
    fn start(&mut self, place: usize, _: Call<'_>) -> Result<Option<Instant>> {
        self.1 = Some(place);
        Ok(None)
    }

    fn wait(&mut self, _: Option<Instant>) -> Result<Option<Done>> {
        self.0.stop();
        let place = self.1.take().ok_or_else(|| Failure::new("nothing is in flight"))?;
        Ok(Some(Done { place, at: Instant::now() }))
    }

    fn memory(&mut self, _: usize) -> Option<&mut Buffer> {
        None
    }
}

/// The result of a thread whose drive stalled for a second, and the time at which it was stopped.
fn stood_still(due: Option<Duration>, calls: Option<u64>) -> (Progress, Duration) {
    let phase = Arc::new(Phase::default());
    phase.count();
    let region = Region { start: 0, len: 1 << 20 };
    let lane = Lane { target: 0, device: None, path: PathBuf::new(), region, content: None };
    let method = Method::Plain(Plain::Cpu);
    let load = Load { batch: 2, ..Load::reads(method, 4096, End::Time(Duration::ZERO)) };
    let offsets = Offsets::new(region, 4096, Pattern::Sequential, 0).unwrap();
    let start = Instant::now().checked_sub(Duration::from_secs(1)).unwrap();
    let mut worker = Worker {
        load: &load,
        lane: &lane,
        backend: Box::new(Still(Arc::clone(&phase), None)),
        progress: Progress::new(start, &load, &offsets),
        offsets,
        content: (Data::new(0), false),
        calls,
        due: due.map(|distance| (Duration::ZERO, distance)),
        phase: Arc::clone(&phase),
        counter: Arc::default(),
        watched: None,
        life: Arc::default(),
    };
    worker.run(start).unwrap();
    let stopped = phase.stopped.get().unwrap().saturating_duration_since(start);
    (worker.progress, stopped)
}

#[test]
fn a_stalled_drive_shows_in_each_call_that_was_due() {
    let reported = |worked: &Progress| worked.latencies.summary(true).unwrap();
    let (worked, stopped) = stood_still(Some(MS * 10), None);
    // One was made, at the start; the others were due until the end.
    let missed = (stopped - MS * 10).as_nanos().div_ceil((MS * 10).as_nanos());
    let count = u64::try_from(2 * (1 + missed)).unwrap();
    assert!(count >= 200);
    assert_eq!((worked.moved, reported(&worked).count), ([8192, 0], Some(count)));
    // The waits grow evenly, so half of the calls waited for less than half of the time.
    let half = u64::try_from(stopped.as_nanos() / 2).unwrap();
    assert!(
        reported(&worked).p50_ns.unwrap().abs_diff(half) < 20_000_000,
        "{:?}",
        reported(&worked)
    );

    let (worked, _) = stood_still(Some(MS * 10), Some(1));
    assert_eq!(reported(&worked).count, Some(2), "all requested calls were made");
    let (worked, _) = stood_still(None, None);
    assert_eq!(worked.latencies.summary(false), None, "without a rate no call is due");
}
