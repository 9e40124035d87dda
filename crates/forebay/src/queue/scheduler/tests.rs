//! Step-by-step tests of decisions about a drive that hangs.

use std::sync::Arc;
use std::time::Instant;

use rustix::io::Errno;

use super::*;
use crate::error::{Error, SystemError};
use crate::file::{Handle, OpenOptions};
use crate::options::Priority;
use crate::plan::{Io, Reason, Segment};
use crate::queue::op::{Completion, Op};
use crate::queue::window::Filler;
use crate::transfer::{State, SyncMode};

pub(super) const LEN: u64 = 16 << 10;

/// A scheduler with one drive, which has one thread and a depth of one, and a file on the drive.
pub(super) struct Rig {
    pub(super) scheduler: Scheduler,
    pub(super) drive: usize,
    pub(super) file: Arc<Handle>,
    _folder: tempfile::TempDir,
}

impl Rig {
    /// The next copy to the GPU while `queued` groups are in flight.
    fn next_copy(&mut self, link: usize, queued: usize) -> Option<Copy> {
        let mut group = Vec::new();
        self.scheduler.next_copies(link, (queued, 0), &mut group);
        group.into_iter().next()
    }

    pub(super) fn new() -> Self {
        Self::with(1, 4)
    }

    /// With `in_flight` ops on all drives, and `pool` threads, at most.
    pub(super) fn with(in_flight: usize, pool: usize) -> Self {
        let mut scheduler = Scheduler::new(Limits {
            slot_size: 256 << 10,
            segment: 4 << 10,
            in_flight,
            readers: 1,
            readers_of_host: usize::MAX,
            cache: u64::MAX,
            pool,
            host_windows: 4,
        });
        let drive = scheduler.add_drive(DepthLimits::fixed(1, u64::MAX), &[]);
        scheduler.add_unstarted(4);
        let folder = tempfile::tempdir().unwrap();
        let how = OpenOptions { write: true, create: true, ..OpenOptions::default() };
        let file = Arc::new(Handle::open(folder.path().join("file"), &how).unwrap());
        Self { scheduler, drive, file, _folder: folder }
    }

    /// Gives the drive a ring, and adds a link with one slot.
    pub(super) fn add_ring_and_link(&mut self) -> usize {
        let ring = self.scheduler.add_ring();
        self.scheduler.attach(self.drive, ring);
        let link = self.scheduler.add_link(4);
        let len = self.scheduler.limits.slot_size;
        self.scheduler.add_slots(link, &[Slot::whole(len, len)]);
        link
    }

    /// Starts a read through the page cache that waits for the drive.
    fn start(&mut self) -> (Arc<State>, Claim) {
        self.start_by(Reason::NoDirectIo)
    }

    pub(super) fn start_by(&mut self, reason: Reason) -> (Arc<State>, Claim) {
        let (state, claim) = self.start_to(None, reason, Priority::Normal);
        (state, claim.expect("host memory needs no slot"))
    }

    pub(super) fn start_to(
        &mut self,
        link: Option<usize>,
        reason: Reason,
        priority: Priority,
    ) -> (Arc<State>, Option<Claim>) {
        let request = self.request(link, reason, priority);
        let state = Arc::clone(&request.state);
        let (key, claim) = self.scheduler.start(request);
        state.set_key(key);
        (state, claim)
    }

    pub(super) fn request(
        &self,
        link: Option<usize>,
        reason: Reason,
        priority: Priority,
    ) -> Request {
        let range = ByteRange::at(0, LEN);
        let state = Arc::new(State::new(
            Instant::now(),
            Arc::clone(&self.file),
            range,
            Vec::new(),
            Vec::new(),
        ));
        Request {
            state,
            file: Arc::clone(&self.file),
            batch: None,
            direction: Direction::Read,
            range,
            end: range.end,
            is_sized: true,
            address: 4096,
            link,
            direct: None,
            drive: self.drive,
            parts: [(range, Io::Buffered, reason)].into(),
            shares: Vec::new(),
            alignment: None,
            cold: false,
            exact: false,
            sync: SyncMode::None,
            priority,
        }
    }

    /// The next work item of a reader that returns at once.
    fn take_reader_work(&mut self) -> Option<ReaderWork> {
        let work = self.scheduler.take_reader_work();
        work.iter().for_each(|_| self.scheduler.return_reader());
        work
    }

    /// Passes a plan of four segments to the scheduler.
    pub(super) fn opened(&mut self, claim: &Claim) {
        let segment = |index: u64| {
            let range = ByteRange::at(claim.range.start + index * (LEN / 4), LEN / 4);
            let (io, reason) = claim.how;
            Segment { wanted: range, covered: range, io, reason, bounce: false }
        };
        self.scheduler.opened(claim.window, LEN / 4, (0..4).map(segment).collect());
    }

    /// The error of a transfer, if it has ended with one.
    pub(super) fn ended(&mut self, state: &Arc<State>) -> Option<Error> {
        let finished = std::mem::take(&mut self.scheduler.take_effects().finished);
        let mut own = finished.into_iter().filter(|(other, _)| Arc::ptr_eq(other, state));
        own.next().and_then(|(_, result)| result.err())
    }

    pub(super) fn complete(&mut self, op: Op, result: Result<u64, Errno>) {
        let (size, refused) = (Some(LEN), None);
        let done = Completion { op, result, refused, size, took_ns: 1, at_ns: 1 };
        self.scheduler.complete(done);
    }
}

#[test]
fn evicted_pages_are_read_by_threads_that_may_wait() {
    let mut rig = Rig::new();
    let (state, claim) = rig.start_by(Reason::Resident);
    rig.opened(&claim);
    // Of the first op only a part is still in memory.
    const PART: u64 = 1000;
    for _ in 0..5 {
        let Some(ReaderWork::Op(op)) = rig.take_reader_work() else {
            panic!("a reader copies what is in memory")
        };
        let end = match (op.segment.wanted.start, op.moved) {
            (0, 0) => Ok(PART),
            (0, _) => Err(Errno::AGAIN),
            _ => Ok(LEN / 4),
        };
        rig.complete(op, end);
    }
    assert!(rig.take_reader_work().is_none(), "a reader would wait");
    let op = rig.scheduler.take_pool_op().expect("the first op");
    assert_eq!(op.segment.reason, Reason::HadToWait);
    assert_eq!(op.rest(), ByteRange { start: PART, end: LEN / 4 });
    rig.complete(op, Ok(LEN / 4 - PART));
    for (state, end) in std::mem::take(&mut rig.scheduler.take_effects().finished) {
        state.finish(end);
    }
    let shares = state.wait().0.expect("all bytes").routes;
    let bytes = shares.iter().map(|share| (share.reason, share.bytes));
    let waited = LEN / 4 - PART;
    let expected = [(Reason::Resident, LEN - waited), (Reason::HadToWait, waited)];
    assert_eq!(bytes.collect::<Vec<_>>(), expected);
}

#[test]
fn the_pool_reads_few_bytes_at_once_through_the_page_cache() {
    const PIECE: u64 = 1 << 20;
    let mut rig = Rig::with(16, 16);
    rig.drive = rig.scheduler.add_drive(DepthLimits::fixed(16, u64::MAX), &[]);
    let range = ByteRange::at(0, 8 * PIECE);
    let (io, reason) = (Io::Buffered, Reason::NoDirectIo);
    let request = Request {
        range,
        end: range.end,
        parts: [(range, io, reason)].into(),
        ..rig.request(None, reason, Priority::Normal)
    };
    let (_, claim) = rig.scheduler.start(request);
    let claim = claim.expect("host memory needs no slot");
    let segment = |index: u64| {
        let range = ByteRange::at(index * PIECE, PIECE);
        Segment { wanted: range, covered: range, io, reason, bounce: false }
    };
    rig.scheduler.opened(claim.window, PIECE, (0..8).map(segment).collect());
    let taken = |rig: &mut Rig| -> Vec<Op> {
        std::iter::from_fn(|| rig.scheduler.take_pool_op()).collect()
    };
    let complete = |rig: &mut Rig, op, took_ns| {
        let (result, size, refused) = (Ok(PIECE), None, None);
        rig.scheduler.complete(Completion { op, result, refused, size, took_ns, at_ns: 1 });
    };
    let mut first = taken(&mut rig);
    assert_eq!(first.len(), 4, "the kernel reads ahead");
    complete(&mut rig, first.remove(0), 2 * PIECE);
    assert_eq!(taken(&mut rig).len(), 1, "one more for one that is done");
    complete(&mut rig, first.remove(0), PIECE / 2);
    assert_eq!(taken(&mut rig).len(), 3, "what is in memory is read by all threads");
}

#[test]
fn a_caller_that_ends_its_op_wakes_the_pool_for_the_next() {
    let mut rig = Rig::with(2, 4);
    rig.drive = rig.scheduler.add_drive(DepthLimits::fixed(2, u64::MAX), &[]);
    let (state, claim) = rig.start();
    rig.opened(&claim);
    let _hung = rig.scheduler.take_pool_op().expect("the first op");
    let Some(ReaderWork::Op(op)) = rig.scheduler.take_work_of(&state) else {
        panic!("one more may be in flight")
    };
    assert!(rig.scheduler.take_pool_op().is_none(), "no more than two");
    let started = rig.scheduler.take_effects().starts;
    (0..started).for_each(|_| rig.scheduler.resumes(Workers::Pool));
    (1..started).for_each(|_| rig.scheduler.parks(Workers::Pool));
    rig.complete(op, Ok(LEN / 4));
    let effects = rig.scheduler.take_effects();
    assert!(effects.pool + effects.starts > 0, "no thread comes");
}

#[test]
fn a_transfer_cancelled_during_planning_ends_despite_a_hung_drive() {
    let mut rig = Rig::new();
    let (_hung, claim) = rig.start();
    rig.opened(&claim);
    let _in_flight = rig.scheduler.take_pool_op().expect("the first op");
    let (state, claim) = rig.start();
    rig.scheduler.cancel(state.key(), &state);
    assert!(rig.ended(&state).is_none(), "ended while it is planned");
    rig.opened(&claim);
    assert!(matches!(rig.ended(&state), Some(Error::Cancelled { .. })));
}

#[test]
fn a_short_read_after_a_cancel_ends() {
    let mut rig = Rig::new();
    let (state, claim) = rig.start();
    rig.opened(&claim);
    let op = rig.scheduler.take_pool_op().expect("the first op");
    rig.scheduler.cancel(state.key(), &state);
    rig.complete(op, Ok(100));
    assert!(matches!(rig.ended(&state), Some(Error::Cancelled { .. })));
}

#[test]
fn helping_callers_keep_to_a_drives_depth() {
    let mut rig = Rig::new();
    let (first, claim) = rig.start();
    rig.opened(&claim);
    let (second, claim) = rig.start();
    rig.opened(&claim);
    let Some(ReaderWork::Op(op)) = rig.scheduler.take_work_of(&first) else {
        panic!("nothing is in flight")
    };
    assert!(rig.scheduler.take_work_of(&second).is_none(), "one more than there may be");
    // Ops that a caller may not run go to the pool, which always has one op of each drive.
    assert!(rig.scheduler.take_pool_op().is_some());
    assert!(rig.scheduler.take_pool_op().is_none());
    rig.complete(op, Ok(LEN / 4));
    assert!(rig.scheduler.take_work_of(&second).is_none(), "the pool has one");
}

#[test]
fn urgent_transfers_get_the_first_slot_and_a_reader_is_called_to_make_it() {
    let mut rig = Rig::new();
    let link = rig.scheduler.add_link(4);
    rig.scheduler.parks(Workers::Readers);
    let start = |rig: &mut Rig, priority| {
        let (state, claim) = rig.start_to(Some(link), Reason::Resident, priority);
        assert!(claim.is_none(), "there is no slot yet");
        state
    };
    start(&mut rig, Priority::Normal);
    let urgent = start(&mut rig, Priority::Urgent);
    // A reader that looks for work finds none, but both transfers are then queued for a slot.
    assert!(rig.scheduler.claim().is_none());
    rig.scheduler.effects.work = 0;
    assert_eq!(rig.scheduler.take_effects().readers, 1, "no reader comes to make slots");
    assert!(matches!(rig.take_reader_work(), Some(ReaderWork::Grow(_))));
    let len = rig.scheduler.limits.slot_size;
    rig.scheduler.add_slots(link, &[Slot::whole(len, len)]);
    let claim = rig.scheduler.claim().expect("a slot is there");
    assert!(Arc::ptr_eq(&claim.state, &urgent));
}

#[test]
fn short_and_cold_transfers_begin_in_a_part_of_a_slot() {
    for (cold, share, part) in [(true, 1, 16), (false, 1, 1), (false, 5, 4), (false, 16, 16)] {
        let mut rig = Rig::new();
        let link = rig.add_ring_and_link();
        let whole = rig.scheduler.limits.slot_size;
        let range = ByteRange::at(0, whole / share);
        let request = Request {
            cold,
            range,
            end: range.end,
            parts: [(range, Io::Buffered, Reason::NotResident)].into(),
            ..rig.request(Some(link), Reason::NotResident, Priority::Normal)
        };
        let claim = rig.scheduler.start(request).1.expect("a slot is there");
        let slot = rig.scheduler.windows[claim.window].slot.expect("the link needs one");
        assert_eq!(slot.len, whole / part, "cold: {cold}, a share of {share}");
    }
}

/// A read whose first half is on one drive and whose second half is on another.
fn start_on_two(rig: &mut Rig) -> (Arc<State>, [Claim; 2]) {
    let other = rig.scheduler.add_drive(DepthLimits::fixed(1, u64::MAX), &[]);
    let part = |start, end| (ByteRange { start, end }, Io::Buffered, Reason::NoDirectIo);
    let shares = vec![Share { drive: other, parts: [part(LEN / 2, LEN)].into() }];
    let request = rig.request(None, Reason::NoDirectIo, Priority::Normal);
    let state = Arc::clone(&request.state);
    let parts = [part(0, LEN / 2)].into();
    let (key, first) = rig.scheduler.start(Request { parts, shares, ..request });
    state.set_key(key);
    let claims = [first, rig.scheduler.claim()].map(|claim| claim.expect("no slot is needed"));
    for claim in &claims {
        let (io, reason) = claim.how;
        let segment = |half: u64| {
            let range = ByteRange::at(claim.range.start + half * (LEN / 4), LEN / 4);
            Segment { wanted: range, covered: range, io, reason, bounce: false }
        };
        rig.scheduler.opened(claim.window, LEN / 4, (0..2).map(segment).collect());
    }
    (state, claims)
}

#[test]
fn a_drive_that_hangs_holds_up_only_its_own_share() {
    let mut rig = Rig::new();
    let (state, _) = start_on_two(&mut rig);
    let hung = rig.scheduler.take_pool_op().expect("the first of the first drive");
    for _ in 0..2 {
        let op = rig.scheduler.take_pool_op().expect("the other drive's");
        assert!(op.segment.wanted.start >= LEN / 2);
        rig.complete(op, Ok(LEN / 4));
    }
    assert!(rig.scheduler.take_pool_op().is_none(), "a hung drive has one in flight");
    assert_eq!((state.done(), rig.ended(&state).is_none()), (LEN / 2, true));
    rig.scheduler.cancel(state.key(), &state);
    assert!(rig.ended(&state).is_none(), "its drive still has something");
    rig.complete(hung, Err(Errno::CANCELED));
    assert!(matches!(rig.ended(&state), Some(Error::Cancelled { .. })));
}

#[test]
fn the_first_error_of_a_share_stops_the_others() {
    let mut rig = Rig::new();
    let (state, _) = start_on_two(&mut rig);
    let ops = [(); 2].map(|()| rig.scheduler.take_pool_op().expect("one of each drive"));
    let [first, second] = ops;
    rig.complete(second, Err(Errno::IO));
    assert!(rig.scheduler.take_pool_op().is_none(), "the rest is not wanted");
    assert!(rig.ended(&state).is_none(), "something is in flight");
    rig.complete(first, Err(Errno::NODEV));
    assert!(matches!(rig.ended(&state), Some(Error::Io { source: SystemError(libc::EIO), .. })));
}

#[test]
fn a_file_that_ends_in_one_share_ends_for_all() {
    let mut rig = Rig::new();
    let _started = start_on_two(&mut rig);
    let size = LEN / 4 + 100;
    while let Some(op) = rig.scheduler.take_pool_op() {
        let moved = size.saturating_sub(op.segment.wanted.start).min(LEN / 4);
        let (result, size) = (Ok(moved), Some(size));
        let done = Completion { op, result, refused: None, size, took_ns: 1, at_ns: 1 };
        rig.scheduler.complete(done);
    }
    let ends = std::mem::take(&mut rig.scheduler.take_effects().finished);
    assert!(matches!(ends.as_slice(), [(_, Ok(got))] if *got == size), "{ends:?}");
}

#[test]
fn a_drive_takes_few_parts_but_for_short_reads() {
    for (len, expected) in [(LEN, 1 + 4), (1000, 8)] {
        let mut rig = Rig::new();
        let link = rig.add_ring_and_link();
        let range = ByteRange::at(0, len);
        let claims = (0..8).filter_map(|_| {
            let request = rig.request(Some(link), Reason::NotResident, Priority::Normal);
            let parts = [(range, Io::ODirect, Reason::NotResident)].into();
            let request = Request { cold: true, range, end: len, parts, ..request };
            rig.scheduler.start(request).1
        });
        assert_eq!(claims.count(), expected, "reads of {len} bytes");
    }
}

/// Starts a resident read of `len` bytes to a link.
fn start_resident(rig: &mut Rig, link: usize, len: u64) -> (Arc<State>, Option<Claim>) {
    let range = ByteRange::at(0, len);
    let state =
        Arc::new(State::new(Instant::now(), Arc::clone(&rig.file), range, Vec::new(), Vec::new()));
    let request = Request {
        state: Arc::clone(&state),
        range,
        end: len,
        parts: [(range, Io::Buffered, Reason::Resident)].into(),
        ..rig.request(Some(link), Reason::Resident, Priority::Normal)
    };
    let (key, claim) = rig.scheduler.start(request);
    state.set_key(key);
    (state, claim)
}

#[test]
fn callers_fill_no_slots_of_their_own_while_others_are_filled() {
    let mut rig = Rig::new();
    if !(rig.file.is_memory() || rig.file.supports_nowait()) {
        return println!("skipped: readers may wait in files here");
    }
    let link = rig.add_ring_and_link();
    let len = rig.scheduler.limits.slot_size;
    rig.scheduler.add_slots(link, &[Slot::whole(2 * len, len)]);
    let (first, claim) = start_resident(&mut rig, link, len);
    let claim = claim.expect("a slot is there");
    let (second, none) = start_resident(&mut rig, link, len);
    assert!(none.is_none(), "the first is planned, and has enough for the reader");
    rig.opened(&claim);
    assert!(rig.scheduler.take_work_of(&second).is_none(), "and when it is being filled");
    while let Some(ReaderWork::Op(op)) = rig.scheduler.take_work_of(&first) {
        rig.complete(op, Ok(LEN / 4));
    }
    let work = rig.scheduler.take_work_of(&second);
    assert!(matches!(work, Some(ReaderWork::Open(_))), "nothing is left of the first: {work:?}");
}

#[test]
fn a_caller_opens_its_own_windows_where_readers_do_not_come() {
    let mut rig = Rig::new();
    let link = rig.add_ring_and_link();
    let len = rig.scheduler.limits.slot_size;
    rig.scheduler.add_slots(link, &[Slot::whole(2 * len, len)]);
    let (_first, claim) = start_resident(&mut rig, link, len);
    rig.opened(&claim.expect("a slot is there"));
    let (second, _) = start_resident(&mut rig, link, len);
    let is_quick = rig.file.is_memory() || rig.file.supports_nowait();
    assert_eq!(rig.scheduler.is_left_to_readers(&second), is_quick);
    rig.scheduler.insist(&second);
    assert!(!rig.scheduler.is_left_to_readers(&second));
    if is_quick {
        let work = rig.scheduler.take_work_of(&second);
        assert!(matches!(work, Some(ReaderWork::Open(_))), "{work:?}");
    }
}

#[test]
fn slots_are_made_at_once_for_a_short_transfer() {
    let mut rig = Rig::new();
    let link = rig.add_ring_and_link();
    let len = rig.scheduler.limits.slot_size;
    let (_long, claim) = start_resident(&mut rig, link, 4 * len);
    rig.opened(&claim.expect("a slot is there"));
    let (short, none) = start_resident(&mut rig, link, LEN);
    assert!(none.is_none(), "the only slot is taken");
    // The long transfer has ops, and another window of it could be opened.
    let work = rig.take_reader_work();
    assert!(matches!(work, Some(ReaderWork::Grow(_))), "{work:?}");
    rig.scheduler.add_slots(link, &[Slot::whole(2 * len, len)]);
    let Some(ReaderWork::Open(claim)) = rig.scheduler.take_work_of(&short) else {
        panic!("the short one has its part");
    };
    let slot = rig.scheduler.windows[claim.window].slot.expect("the link needs one");
    assert_eq!(slot.len, len / 16);
}

#[test]
fn full_slots_are_copied_in_turn() {
    let mut rig = Rig::new();
    let link = rig.add_ring_and_link();
    let len = rig.scheduler.limits.slot_size;
    rig.scheduler.add_slots(link, &[2, 3, 4].map(|at| Slot::whole(at * len, len)));
    let fill = |rig: &mut Rig, claim: &Claim| {
        rig.opened(claim);
        for _ in 0..4 {
            let Some(ReaderWork::Op(op)) = rig.take_reader_work() else { panic!("there are four") };
            rig.complete(op, Ok(LEN / 4));
        }
    };
    let (_long, claim) = start_resident(&mut rig, link, 4 * len);
    fill(&mut rig, &claim.expect("a slot is there"));
    let first = rig.next_copy(link, 0).expect("it is full");
    let key = rig.scheduler.windows[first.window].transfer;
    let claim = rig.scheduler.claim_of(key).expect("a slot is there");
    fill(&mut rig, &claim);
    let (short, claim) = start_resident(&mut rig, link, LEN);
    fill(&mut rig, &claim.expect("a part is there"));
    let second = rig.next_copy(link, 1).expect("two are full");
    assert_eq!(rig.scheduler.windows[second.window].transfer, short.key(), "it came last");
}

#[test]
fn small_windows_leave_together_and_a_long_one_alone() {
    let mut rig = Rig::new();
    let link = rig.add_ring_and_link();
    let len = rig.scheduler.limits.slot_size;
    let slots: Vec<_> = (2..16).map(|at| Slot::whole(at * len, len)).collect();
    rig.scheduler.add_slots(link, &slots);
    let fill = |rig: &mut Rig, len: u64| {
        let (_state, claim) = start_resident(rig, link, len);
        rig.opened(&claim.expect("a slot is there"));
        while let Some(ReaderWork::Op(op)) = rig.take_reader_work() {
            let len = op.segment.wanted.len();
            rig.complete(op, Ok(len));
        }
    };
    for _ in 0..3 {
        fill(&mut rig, LEN);
    }
    let mut group = Vec::new();
    rig.scheduler.next_copies(link, (1, 0), &mut group);
    let transfers: Vec<_> =
        group.iter().map(|copy| rig.scheduler.windows[copy.window].transfer).collect();
    assert_eq!(transfers.len(), 3, "those of three transfers");
    assert!(transfers.is_sorted() && group.iter().all(|copy| copy.run.range.len() == LEN));
}

#[test]
fn each_link_in_use_has_its_readers_and_its_share_of_the_cache() {
    let mut rig = Rig::new();
    let len = rig.scheduler.limits.slot_size;
    let limits = &mut rig.scheduler.limits;
    (limits.readers, limits.readers_of_host, limits.cache) = (2, 6, 6 * len);
    let links = [0, 1].map(|index| {
        let link = rig.scheduler.add_link(16);
        let slots: Vec<_> = (0..16).map(|at| Slot::whole((16 * index + at) * len, len)).collect();
        rig.scheduler.add_slots(link, &slots);
        link
    });
    // Readers that take work without an end, and slots of the first link that another drive gets.
    let most = |rig: &mut Rig| {
        let (filler, in_flight) = (Filler::Readers, 0);
        let need = link::Need { len, filler, in_flight, is_first: false, others_wait: false };
        let mut slots = rig.scheduler.links[links[0]].slots.clone();
        let slots = std::iter::from_fn(|| slots.take(9, need)).count();
        let ops: Vec<_> = std::iter::from_fn(|| rig.scheduler.take_reader_work()).collect();
        for work in ops.iter().rev() {
            rig.scheduler.return_reader();
            let ReaderWork::Op(op) = work else { panic!("each window is open") };
            assert_eq!(op.segment.wanted.len(), LEN / 4);
        }
        (ops.len(), slots)
    };
    let begin = |rig: &mut Rig, link| {
        let (state, claim) = start_resident(rig, link, LEN);
        rig.opened(&claim.expect("a slot is free"));
        state
    };
    let _first = begin(&mut rig, links[0]);
    assert_eq!(most(&mut rig), (2, 4), "one slot for two readers, and three for copies");
    let second = begin(&mut rig, links[1]);
    let _third = begin(&mut rig, links[1]);
    assert_eq!(most(&mut rig), (4, 3), "two links have a half of the cache each");
    // Four of six links are those of another process.
    rig.scheduler.set_links_elsewhere(4);
    assert_eq!(rig.scheduler.readers_at_once(), 2, "a third of six");
    rig.scheduler.set_links_elsewhere(0);
    rig.scheduler.cancel(second.key(), &second);
    assert_eq!(rig.scheduler.links_in_use().count(), 2, "it has another transfer");
}
