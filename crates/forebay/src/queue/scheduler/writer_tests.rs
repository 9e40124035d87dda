//! Who writes a file when, step by step.

use super::tests::Rig;
use super::*;
use crate::plan::Io;

/// A rig whose drive has a ring, and room for all.
struct Writing {
    rig: Rig,
    drive: usize,
    ring: usize,
}

impl Writing {
    fn new() -> Self {
        let mut rig = Rig::new();
        let scheduler = &mut rig.scheduler;
        (scheduler.limits.in_flight, scheduler.limits.pool) = (16, 16);
        let drive = scheduler.add_drive(Depth::Fixed(16), 16, &[]);
        let ring = scheduler.add_ring();
        scheduler.attach(drive, ring);
        Self { rig, drive, ring }
    }

    /// Starts a write of four pieces.
    fn write(&mut self, io: Io) -> Arc<State> {
        let request = self.rig.request(None, Reason::Demanded, Priority::Normal);
        let parts = [(request.range, io, Reason::Demanded)].into();
        let request = Request { direction: Direction::Write, drive: self.drive, parts, ..request };
        let state = Arc::clone(&request.state);
        let (key, claim) = self.rig.scheduler.start(request);
        state.set_key(key);
        self.rig.opened(&claim.expect("host memory needs no slot"));
        state
    }

    fn ring_op(&mut self) -> Option<Op> {
        match self.rig.scheduler.take_drive_work(Crew::Ring(self.ring))? {
            DriveWork::Op(op) => Some(op),
            DriveWork::Open(claim) => panic!("nothing is to be opened: {claim:?}"),
        }
    }

    fn pool_op(&mut self) -> Option<Op> {
        self.rig.scheduler.take_pool_op()
    }

    fn done(&mut self, op: Op) {
        let len = op.rest().len();
        self.rig.complete(op, Ok(len));
    }
}

#[test]
fn a_cached_write_waits_for_those_that_a_ring_has() {
    let mut writing = Writing::new();
    writing.write(Io::Direct);
    let in_ring = [(); 2].map(|()| writing.ring_op().expect("an op for the ring"));
    writing.write(Io::Buffered);
    assert!(writing.pool_op().is_none(), "a ring writes the file");
    // What comes for the ring now would have it wait for ever.
    assert!(writing.ring_op().is_none(), "one through the page cache waits");
    let called = [(); 2].map(|()| writing.pool_op().expect("by a call"));
    assert!(called.iter().all(|op| op.by_call && op.is_direct()));
    called.into_iter().for_each(|op| writing.done(op));
    let [first, last] = in_ring;
    writing.done(first);
    assert!(writing.pool_op().is_none(), "a ring writes the file still");
    writing.done(last);
    for _ in 0..4 {
        let op = writing.pool_op().expect("the next through the page cache");
        assert!(op.is_cached_write() && writing.pool_op().is_none(), "one at a time");
        writing.done(op);
    }
    assert!(writing.rig.scheduler.writers.is_empty());
    writing.write(Io::Direct);
    assert!(writing.ring_op().is_some(), "as before");
}

#[test]
fn a_ring_has_no_write_beside_one_through_the_page_cache() {
    let mut writing = Writing::new();
    writing.write(Io::Buffered);
    writing.write(Io::Direct);
    assert!(writing.ring_op().is_none());
    for _ in 0..8 {
        let op = writing.pool_op().expect("one by a call, or through the page cache");
        writing.done(op);
    }
    assert!(writing.rig.scheduler.writers.is_empty());
}

#[test]
fn one_that_is_cancelled_while_it_waits_for_a_ring_ends() {
    let mut writing = Writing::new();
    writing.write(Io::Direct);
    let in_ring = writing.ring_op().expect("an op for the ring");
    let cached = writing.write(Io::Buffered);
    writing.rig.scheduler.cancel(cached.key(), &cached);
    assert!(writing.rig.ended(&cached).is_some(), "it waits for nothing of its own");
    assert!(writing.ring_op().is_some(), "nobody waits any more");
    writing.done(in_ring);
}

#[test]
fn a_ring_and_small_writes_take_turns() {
    let mut writing = Writing::new();
    let small_writes = Arc::clone(writing.rig.scheduler.small_writes());
    let file = writing.rig.file.identity();
    let small = small_writes.begin(file).expect("nobody writes");
    writing.write(Io::Direct);
    assert!(writing.ring_op().is_none(), "a caller writes");
    drop(small);
    writing.write(Io::Direct);
    let in_ring = writing.ring_op().expect("an op for the ring");
    assert!(small_writes.begin(file).is_none(), "a ring writes");
    writing.rig.scheduler.leave_ring(&in_ring);
    assert!(small_writes.begin(file).is_some());
}
