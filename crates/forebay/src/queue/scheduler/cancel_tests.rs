//! To cancel a transfer takes no longer where many others are outstanding.

use super::tests::Rig;
use super::*;

/// CPU time of this thread.
fn cpu_ns() -> i64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    now.tv_sec * 1_000_000_000 + now.tv_nsec
}

/// What each of so many transfers takes to be cancelled, where `start` starts them, the last or the
/// first of them first; the least of some runs.
fn each_ns(count: usize, start: fn(&mut Rig) -> Arc<State>, last_first: bool) -> i64 {
    let run = || {
        let mut rig = Rig::new();
        rig.add_ring_and_link();
        let mut started: Vec<Arc<State>> = (0..count).map(|_| start(&mut rig)).collect();
        if last_first {
            started.reverse();
        }
        let begun = cpu_ns();
        for state in &started {
            rig.scheduler.cancel(state.key(), state);
            drop(rig.scheduler.take_effects());
        }
        let took = cpu_ns() - begun;
        let _ = rig.scheduler.take_effects();
        assert!(rig.scheduler.is_idle(), "nothing was in flight");
        took / i64::try_from(count).unwrap()
    };
    (0..3).map(|_| run()).min().unwrap()
}

/// Thirty times as many would take thirty times as long for each, if any list were searched: from
/// its start or from its end.
fn takes_as_long_among_many(start: fn(&mut Rig) -> Arc<State>) {
    for last_first in [false, true] {
        let [few, many] = [300, 9000].map(|count| each_ns(count, start, last_first));
        let order = if last_first { "last first" } else { "first first" };
        assert!(many < few * 8, "{order}: {few} ns for each of 300, {many} ns for each of 9,000");
    }
}

#[test]
fn of_reads_to_host_memory() {
    takes_as_long_among_many(|rig| {
        let (state, claim) = rig.start_by(Reason::Resident);
        rig.opened(&claim);
        state
    });
}

#[test]
fn of_reads_that_wait_for_their_drive() {
    takes_as_long_among_many(|rig| {
        let (state, claim) = rig.start_by(Reason::NoDirectIo);
        rig.opened(&claim);
        state
    });
}

#[test]
fn of_reads_that_wait_for_a_slot() {
    takes_as_long_among_many(|rig| {
        let (state, claim) = rig.start_to(Some(0), Reason::Resident, Priority::Normal);
        claim.iter().for_each(|claim| rig.opened(claim));
        state
    });
}

#[test]
fn of_writes_of_one_file() {
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
