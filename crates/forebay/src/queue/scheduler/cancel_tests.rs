//! Cancelling a transfer takes no longer if many transfers are outstanding.

use super::tests::Rig;
use super::*;
use crate::options::Priority;
use crate::plan::Reason;
use crate::transfer::State;

/// Number of transfers that are cancelled, and the number of schedulers for the baseline.
const COUNT: usize = 9000;
const PARTS: usize = 30;

/// CPU time of this thread.
fn cpu_ns() -> i64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    now.tv_sec * 1_000_000_000 + now.tv_nsec
}

/// Time to cancel all transfers, distributed round-robin over `schedulers` by `start`, in order of
/// start or in reverse. The memory use does not depend on the number of schedulers.
fn all_ns(schedulers: usize, start: fn(&mut Rig) -> Arc<State>, last_first: bool) -> i64 {
    let mut rigs: Vec<Rig> = (0..schedulers).map(|_| Rig::new()).collect();
    for rig in &mut rigs {
        rig.add_ring_and_link();
    }
    let mut started: Vec<(usize, Arc<State>)> =
        (0..COUNT).map(|n| (n % schedulers, start(&mut rigs[n % schedulers]))).collect();
    if last_first {
        started.reverse();
    }
    let begun = cpu_ns();
    for (rig, state) in &started {
        let scheduler = &mut rigs[*rig].scheduler;
        scheduler.cancel(state.key(), state);
        drop(scheduler.take_effects());
    }
    let took = cpu_ns() - begun;
    for rig in &mut rigs {
        let _ = rig.scheduler.take_effects();
        assert!(rig.scheduler.transfers.is_empty(), "nothing was in flight");
    }
    took
}

/// If cancelling searched any list, from its start or its end, one scheduler would take thirty
/// times as long as thirty schedulers. That would show in every run; a busy machine causes it only
/// in some runs.
fn takes_as_long_among_many(start: fn(&mut Rig) -> Arc<State>) {
    for last_first in [false, true] {
        let runs = (0..5).map(|_| [PARTS, 1].map(|count| all_ns(count, start, last_first)));
        let mut slow = Vec::new();
        let is_fast = |[few, many]: [i64; 2]| {
            slow.push((few, many));
            many < few * 8
        };
        let is_any = { runs }.any(is_fast);
        let order = if last_first { "last first" } else { "first first" };
        assert!(is_any, "{order}: ns for all in {PARTS} schedulers, and in one: {slow:?}");
    }
}

#[test]
fn cancelled_reads_to_host_memory() {
    takes_as_long_among_many(|rig| {
        let (state, claim) = rig.start_by(Reason::Resident);
        rig.opened(&claim);
        state
    });
}

#[test]
fn cancelled_reads_that_wait_for_their_drive() {
    takes_as_long_among_many(|rig| {
        let (state, claim) = rig.start_by(Reason::NoDirectIo);
        rig.opened(&claim);
        state
    });
}

#[test]
fn cancelled_reads_that_wait_for_a_slot() {
    takes_as_long_among_many(|rig| {
        let (state, claim) = rig.start_to(Some(0), Reason::Resident, Priority::Normal);
        claim.iter().for_each(|claim| rig.opened(claim));
        state
    });
}

#[test]
fn cancelled_writes_of_one_file() {
    takes_as_long_among_many(|rig| {
        let request = rig.request(None, Reason::WriteThroughCache, Priority::Normal);
        let request = Request { direction: Direction::Write, ..request };
        let state = Arc::clone(&request.state);
        let (key, claim) = rig.scheduler.start(request);
        state.set_key(key);
        rig.opened(&claim.expect("host memory needs no slot"));
        state
    });
}
