//! Step-by-step tests of the order of writes to a file.

use super::tests::Rig;
use super::*;
use crate::file::Handle;
use crate::options::Priority;
use crate::plan::{Io, Reason};
use crate::queue::op::{Op, OpKind};
use crate::transfer::State;

/// A rig whose drive has a ring and room for all writes.
struct Writing {
    rig: Rig,
    drive: usize,
    ring: usize,
}

impl Writing {
    fn new() -> Self {
        let mut rig = Rig::with(16, 16);
        let scheduler = &mut rig.scheduler;
        let drive = scheduler.add_drive(DepthLimits::fixed(16, u64::MAX), &[]);
        let ring = scheduler.add_ring();
        scheduler.attach(drive, ring);
        Self { rig, drive, ring }
    }

    /// Starts a write of four pieces.
    fn write(&mut self, io: Io) -> Arc<State> {
        let request = self.rig.request(None, Reason::Required, Priority::Normal);
        let parts = [(request.range, io, Reason::Required)].into();
        let request = Request { direction: Direction::Write, drive: self.drive, parts, ..request };
        let state = Arc::clone(&request.state);
        let (key, claim) = self.rig.scheduler.start(request);
        state.set_key(key);
        self.rig.opened(&claim.expect("host memory needs no slot"));
        state
    }

    /// Takes all ops that a ring and the pool can run now. Checks of the page cache are completed
    /// at once.
    fn take(&mut self) -> [Vec<Op>; 2] {
        let scheduler = &mut self.rig.scheduler;
        let mut ops = [Vec::new(), Vec::new()];
        while let Some(work) = scheduler.take_drive_work(Workers::Ring(self.ring)) {
            let DriveWork::Op(op) = work else { panic!("nothing is to be opened: {work:?}") };
            assert!(op.is_o_direct());
            ops[1].push(op);
        }
        while let Some(op) = self.rig.scheduler.take_pool_op() {
            if op.kind == OpKind::DropStale {
                self.rig.complete(op, Ok(0));
                continue;
            }
            assert!(op.is_cached_write());
            ops[0].push(op);
        }
        let _ = self.rig.scheduler.take_effects();
        ops
    }

    fn done(&mut self, ops: impl IntoIterator<Item = Op>) {
        for op in ops {
            let len = op.rest().len();
            self.rig.complete(op, Ok(len));
        }
    }

    /// Runs all writes; returns how many cached and direct ones ran in each turn.
    fn turns(&mut self) -> Vec<[usize; 2]> {
        let mut turns = Vec::new();
        loop {
            let ops = self.take();
            let counts = [ops[0].len(), ops[1].len()];
            if counts == [0, 0] {
                assert!(self.rig.scheduler.writers.waiting().is_empty());
                return turns;
            }
            turns.push(counts);
            self.done(ops.into_iter().flatten());
        }
    }
}

#[test]
fn a_cached_write_waits_for_direct_ones() {
    let mut writing = Writing::new();
    writing.write(Io::ODirect);
    let [through, mut around] = writing.take();
    assert_eq!((through.len(), around.len()), (0, 4));
    writing.write(Io::Buffered);
    // If this write could start now, the cached one would wait forever.
    writing.write(Io::ODirect);
    assert_eq!(writing.take().map(|ops| ops.len()), [0, 0]);
    let last = around.pop();
    writing.done(around);
    assert_eq!(writing.take().map(|ops| ops.len()), [0, 0], "one is still under way");
    writing.done(last);
    assert_eq!(writing.turns(), [[1, 0], [1, 0], [1, 0], [1, 0], [0, 4]]);
}

#[test]
fn direct_writes_have_their_turn_among_many_cached_ones() {
    let mut writing = Writing::new();
    writing.write(Io::Buffered);
    let [through, _] = writing.take();
    writing.write(Io::ODirect);
    writing.write(Io::Buffered);
    writing.done(through);
    // The direct writes start now, before cached ones that were queued earlier or later.
    let [through, around] = writing.take();
    assert_eq!((through.len(), around.len()), (0, 4));
    writing.write(Io::ODirect);
    writing.done(around);
    let expected = [[1, 0]; 7].into_iter().chain([[0, 4]]);
    assert_eq!(writing.turns(), expected.collect::<Vec<_>>());
}

#[test]
fn files_do_not_wait_for_each_other() {
    let mut writing = Writing::new();
    writing.write(Io::ODirect);
    let other = crate::file::OpenOptions { write: true, create: true, ..Default::default() };
    let path = writing.rig.file.path().with_file_name("other");
    writing.rig.file = Arc::new(Handle::open(path, &other).expect("a new file"));
    writing.write(Io::Buffered);
    assert_eq!(writing.take().map(|ops| ops.len()), [1, 4]);
}

#[test]
fn a_write_cancelled_while_it_waits_ends() {
    for [first, second] in [[Io::ODirect, Io::Buffered], [Io::Buffered, Io::ODirect]] {
        let mut writing = Writing::new();
        writing.write(first);
        let ops = writing.take();
        let waits = writing.write(second);
        writing.rig.scheduler.cancel(waits.key(), &waits);
        assert!(writing.rig.ended(&waits).is_some(), "it waits for nothing of its own");
        writing.done(ops.into_iter().flatten());
        writing.turns();
    }
}

#[test]
fn small_cached_writes_and_direct_ones_take_turns() {
    let mut writing = Writing::new();
    let writers = Arc::clone(&writing.rig.scheduler.writers);
    let file = writing.rig.file.identity();
    assert!(writers.begin(file), "the file is idle");
    writing.write(Io::Buffered);
    assert_eq!(writing.turns(), [[1, 0]; 4], "the kernel keeps these apart");
    writing.write(Io::ODirect);
    assert_eq!(writing.take().map(|ops| ops.len()), [0, 0], "a caller writes");
    assert!(!writers.begin(file), "no other caller joins while direct writes wait");
    assert!(writers.end(file), "they wait");
    writing.rig.scheduler.start_next_writes(file);
    let ops = writing.take();
    assert_eq!(ops[1].len(), 4);
    assert!(!writers.begin(file));
    writing.done(ops.into_iter().flatten());
    assert!(writers.is_empty() && writers.begin(file));
    // A write that is cancelled while it waits holds no caller up, and leaves nothing behind.
    let waits = writing.write(Io::ODirect);
    assert!(!writers.begin(file));
    writing.rig.scheduler.cancel(waits.key(), &waits);
    assert!(writing.rig.ended(&waits).is_some() && writers.begin(file));
    assert!(!writers.end(file) && !writers.end(file) && writers.is_empty());
}
