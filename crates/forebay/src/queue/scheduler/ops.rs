//! How ops are handed out, and what their completions mean.

use std::sync::Arc;

use rustix::io::Errno;

use super::depth::Landed;
use super::{Crew, DriveWork, Listed, ReaderWork, Request, Scheduler};
use crate::error::{Error, Operation, Place};
use crate::plan::{Alignment, Reason, Route};
use crate::queue::op::{Completion, Direction, Line, Op, Owner, WindowKey, Work};
use crate::transfer::{State, Touch};
use crate::units::{ByteRange, align_down};

/// How often in a row the kernel may bring an op no further although there is more to move.
const EMPTY_MAX: u8 = 3;

/// How often in a row the kernel may ask to try an op again, for want of memory for example or
/// after a signal; a server may answer so for ever. Threads pause before each, so that these take
/// ten seconds.
const AGAIN_MAX: u16 = 1000;

/// How often a ring tries an op again, which it does at once, before that is left to a thread.
const AGAIN_IN_RING: u16 = 3;

impl Scheduler {
    /// What a reader does next; `None`: nothing.
    pub(crate) fn take_reader_work(&mut self) -> Option<ReaderWork> {
        let work = self.next_reader_work();
        // Nobody has to be called for what this reader does itself, nor for what is gone.
        let taken = if work.is_some() { 1 } else { self.effects.work };
        self.effects.work = self.effects.work.saturating_sub(taken);
        self.call_more(work.is_some());
        work
    }

    fn next_reader_work(&mut self) -> Option<ReaderWork> {
        if let Some(link) = self.link_to_grow(true) {
            return Some(ReaderWork::Grow(link));
        }
        // Windows are opened ahead, while the other readers still have pieces to fill.
        if self.queued < self.limits.readers
            && let Some(claim) = self.claim()
        {
            return Some(ReaderWork::Open(claim));
        }
        while let Some(mut op) = self.pop_cached() {
            if self.is_wanted(&op) {
                self.hand_out(&mut op);
                return Some(ReaderWork::Op(op));
            }
        }
        let open = self.claim().map(ReaderWork::Open);
        open.or_else(|| self.link_to_grow(false).map(ReaderWork::Grow))
    }

    /// What a thread that waits for one transfer can do for it; `None`: nothing, or other transfers
    /// come first.
    pub(crate) fn take_work_of(&mut self, state: &Arc<State>) -> Option<ReaderWork> {
        let work = self.next_work_of(state);
        // Its own op may wait for a drive for long.
        let waits = |work: &ReaderWork| matches!(work, ReaderWork::Op(op) if !op.is_in_memory());
        self.effects.work = match &work {
            Some(work) if !waits(work) => self.effects.work.saturating_sub(1),
            // Whoever was spared so far has to take over what this thread leaves behind.
            _ => self.effects.work.max(self.queued + self.openable.len()),
        };
        self.call_more(work.is_some());
        work
    }

    /// Who has taken work calls others to what is left: only a few are called at once.
    fn call_more(&mut self, has_taken: bool) {
        if has_taken {
            self.effects.work = self.effects.work.max(self.queued);
        }
    }

    fn next_work_of(&mut self, state: &Arc<State>) -> Option<ReaderWork> {
        self.shares_of(state).find_map(|key| self.next_work_at(key))
    }

    fn next_work_at(&mut self, key: usize) -> Option<ReaderWork> {
        let active = self.transfers.get(key)?;
        // Wherever its work stands in line: those before it may wait for a file that hangs.
        if active.cached.ops.is_empty()
            && active.waits.ops.is_empty()
            && !self.can_wait(key)
            && let Listed::Openable(ticket) = active.listed
        {
            self.openable.remove(ticket);
            if let Some(claim) = self.claim_of(key) {
                return Some(ReaderWork::Open(claim));
            }
        }
        while let Some(mut op) = self.pop_of(key) {
            if self.is_wanted(&op) {
                self.hand_out(&mut op);
                if !op.is_in_memory() {
                    self.count_in(self.transfers[key].request.drive, Line::Cached, &mut op);
                }
                return Some(ReaderWork::Op(op));
            }
        }
        None
    }

    /// The transfer that an op belongs to.
    pub(super) fn transfer_of(&self, op: &Op) -> usize {
        match op.owner {
            Owner::Piece(window, _) => self.windows[window].transfer,
            Owner::Transfer(key) => key,
        }
    }

    /// What a ring or the pool does next; `None`: nothing.
    pub(crate) fn take_drive_work(&mut self, crew: Crew) -> Option<DriveWork> {
        match crew {
            Crew::Ring(ring) => self.take_ring_work(ring),
            Crew::Pool => self.take_pool_op().map(DriveWork::Op),
            Crew::Readers | Crew::Link(_) => None,
        }
    }

    /// One op of each drive in turn, or a window.
    fn take_ring_work(&mut self, ring: usize) -> Option<DriveWork> {
        (0..self.rings[ring].drives.len()).find_map(|_| {
            let drives = &mut self.rings[ring].drives;
            drives.rotate_left(1);
            let drive = *drives.back()?;
            self.take_direct(drive)
        })
    }

    pub(super) fn take_pool_op(&mut self) -> Option<Op> {
        (0..self.pool.line.len()).find_map(|_| {
            let drive = self.pool.line.pop_front()?;
            let op = self.take_waiting(drive);
            let state = &mut self.drives[drive];
            state.in_line = !state.waits.is_empty();
            if state.in_line {
                self.pool.line.push_back(drive);
            }
            if op.is_some() && self.can_call_pool() {
                self.call_more_of_pool();
            }
            op
        })
    }

    /// Only a few are called at once: who has taken an op calls another to what is left.
    fn call_more_of_pool(&mut self) {
        let ready = self.pool.line.iter().find(|drive| self.has_room(**drive, Line::Waits));
        if let Some(&drive) = ready {
            self.call_pool(drive);
        }
    }

    /// The next op of a drive for its ring, or a window, where it may have one more in flight.
    fn take_direct(&mut self, drive: usize) -> Option<DriveWork> {
        let mut taken = None;
        while taken.is_none() && self.has_room(drive, Line::Direct) {
            taken = match self.pop_direct(drive) {
                Some(DriveWork::Op(mut op)) if self.is_wanted(&op) => {
                    self.hand_out(&mut op);
                    self.count_in(drive, Line::Direct, &mut op);
                    Some(DriveWork::Op(op))
                }
                Some(DriveWork::Op(_)) => None,
                Some(window) => Some(window),
                None => break,
            };
        }
        self.open_for(drive);
        taken
    }

    /// The next op of a drive for the pool, where it may have one more in flight.
    fn take_waiting(&mut self, drive: usize) -> Option<Op> {
        let mut taken = None;
        while taken.is_none() && self.has_room(drive, Line::Waits) {
            let Some(op) = self.pop_waiting(drive) else { break };
            taken = self.is_wanted(&op).then_some(op);
        }
        if let Some(op) = &mut taken {
            self.hand_out(op);
            self.count_in(drive, Line::Waits, op);
        }
        self.open_for(drive);
        taken
    }

    /// Notes that a thread gets an op, and with it the memory that it moves bytes to or from.
    fn hand_out(&self, op: &mut Op) {
        let state = &self.transfers[self.transfer_of(op)].request.state;
        op.touch = Some(Touch::new(state));
    }

    /// Counts an op in flight on its drive; [`Line::Cached`] where a caller waits for it.
    fn count_in(&mut self, drive: usize, line: Line, op: &mut Op) {
        op.counted = Some(line);
        let state = &mut self.drives[drive];
        self.in_flight += 1;
        if state.in_flight() == 0 {
            self.busy += 1;
            state.hardware.iter().for_each(|&piece| self.sharers[piece] += 1);
        }
        *state.flying(line) += 1;
        self.pool.flying += usize::from(line == Line::Waits);
        state.flying_len += op.segment.covered.len();
        state.filled_len = state.flying_len;
        if let Work::Move(direction) = op.work {
            state.direction = direction;
        }
    }

    /// Lets the tuner of a drive learn from a request that waited for it.
    fn tell_tuner(&mut self, key: usize, op: &Op, took_ns: u64, at_ns: u64) {
        let Work::Move(direction) = op.work else { return };
        if op.counted.is_some() && (op.is_direct() || direction == Direction::Read) {
            let drive = &mut self.drives[self.transfers[key].request.drive];
            let (len, filled_len) = (op.segment.covered.len(), drive.filled_len);
            if drive.depth.completed(direction, Landed { at_ns, len, took_ns, filled_len }) {
                // Those that had as many slots as the drive needed may have more.
                (0..self.links.len()).for_each(|link| self.admit_waiting(link));
            }
        }
    }

    /// Counts an op out of its drive, if it was counted in.
    fn land(&mut self, key: usize, op: &mut Op) {
        if let Some(line) = op.counted.take() {
            let state = &mut self.drives[self.transfers[key].request.drive];
            *state.flying(line) -= 1;
            self.pool.flying -= usize::from(line == Line::Waits);
            state.flying_len -= op.segment.covered.len();
            self.in_flight -= 1;
            if state.in_flight() == 0 {
                self.busy -= 1;
                state.hardware.iter().for_each(|&piece| self.sharers[piece] -= 1);
            }
        }
    }

    /// Has the ring of a transfer's drive give back what it can of its ops.
    pub(super) fn ask_back(&mut self, transfer: usize) {
        let drive = self.transfers[transfer].request.drive;
        let Some(ring) = self.drives.get(drive).and_then(|state| state.ring) else { return };
        let windows = &self.transfers[transfer].windows;
        let open = windows.iter().filter(|window| self.windows[**window].outstanding > 0);
        let unwanted = &mut self.rings[ring].unwanted;
        let before = unwanted.len();
        unwanted.extend(open);
        if unwanted.len() > before {
            self.call_back(ring);
        }
    }

    /// The windows whose ops the ring that `crew` feeds is to give back, once.
    pub(crate) fn take_unwanted(&mut self, crew: Crew) -> Vec<WindowKey> {
        match crew {
            Crew::Ring(ring) => std::mem::take(&mut self.rings[ring].unwanted),
            _ => Vec::new(),
        }
    }

    /// Whether an op's transfer still wants it; if not, the op is counted out.
    fn is_wanted(&mut self, op: &Op) -> bool {
        let active = &self.transfers[self.transfer_of(op)];
        let reads = op.work == Work::Move(Direction::Read);
        let past_end = reads && op.segment.wanted.start >= active.end;
        if !active.stopped && !past_end {
            return true;
        }
        self.count_out(op);
        false
    }

    pub(super) fn count_out(&mut self, op: &Op) {
        self.end_write(op);
        let (key, piece) = match op.owner {
            Owner::Piece(window, piece) => (window, piece),
            Owner::Transfer(key) => {
                self.transfers[key].open -= 1;
                return self.finish_if_done(key);
            }
        };
        let now = self.now_ns();
        let window = &mut self.windows[key];
        window.complete(piece);
        window.filled_ns = now;
        if let Some(link) = self.transfers[window.transfer].request.link {
            self.call_link(link);
        }
        self.close_if_done(key);
    }

    /// Takes an op back from a ring.
    pub(crate) fn complete(&mut self, mut completion: Completion) {
        completion.op.touch = None;
        // Where the engine has failed its transfer has ended.
        if !self.is_closed() {
            self.take_back(completion);
        }
    }

    fn take_back(&mut self, completion: Completion) {
        let Completion { mut op, result, refused, size, took_ns, at_ns } = completion;
        self.count_file(took_ns, at_ns);
        let key = self.transfer_of(&op);
        if result.is_ok() {
            self.tell_tuner(key, &op, took_ns, at_ns);
        }
        self.land(key, &mut op);
        let alignment = self.transfers[key].request.alignment_of(&op);
        let state = Arc::clone(&self.transfers[key].request.state);
        state.add_file_time(took_ns);
        match result {
            // It was asked back; that says nothing about the file.
            Err(Errno::CANCELED | Errno::INTR | Errno::AGAIN) if self.transfers[key].stopped => {
                return self.count_out(&op);
            }
            Err(errno) if op.port.is_some() && !is_tried_again(errno, &op) => {
                return self.refuse_peer(key, &op, Some(refused.unwrap_or_else(|| errno.into())));
            }
            // It has left the page cache, and whoever found that waits for no drive.
            Err(Errno::AGAIN) if op.is_in_memory() => {
                if op.batch.is_some() {
                    return self.requeue_each(&op);
                }
                op.segment.reason = Reason::HadToWait;
                return self.requeue(op);
            }
            Err(errno @ (Errno::INVAL | Errno::OPNOTSUPP)) if op.is_direct() => {
                return self.refuse_direct(key, op, errno);
            }
            Err(errno) if is_tried_again(errno, &op) => {
                op.again += 1;
                return self.requeue(op);
            }
            _ => op.again = 0,
        }
        let Work::Move(direction) = op.work else {
            if let Err(errno) = result {
                self.fail_op(key, &op, errno);
            }
            return self.count_out(&op);
        };
        match result {
            Err(errno) => self.fail_op(key, &op, errno),
            Ok(moved) => {
                let before = op.moved;
                op.moved += moved;
                let reached = op.segment.covered.start + op.moved;
                let at_end = direction == Direction::Read && size.is_some_and(|s| reached >= s);
                if reached < op.segment.wanted.end && at_end {
                    self.end_at(key, reached);
                } else if reached < op.segment.wanted.end {
                    op = restart_aligned(op, alignment);
                    op.empty = if op.moved > before { 0 } else { op.empty + 1 };
                    if op.empty < EMPTY_MAX {
                        return self.requeue(op);
                    }
                    if op.port.is_some() {
                        return self.refuse_peer(key, &op, None);
                    }
                    let (operation, place) = self.about(key, &op);
                    self.fail_one(key, &op, Error::NoProgress { operation, place });
                }
                self.count_bytes(key, &op);
            }
        }
        self.count_out(&op);
    }

    /// Counts what has come of an op that goes no further.
    pub(super) fn count_bytes(&self, key: usize, op: &Op) {
        let reached = op.segment.covered.start + op.moved;
        let came = op.segment.wanted.intersect(ByteRange { start: 0, end: reached });
        let Request { state, link, .. } = &self.transfers[key].request;
        let bytes = self.transfers[key].request.wanted_in(came);
        let route = self.transfers[key].request.route(op.segment.io);
        state.add_bytes(route, op.segment.reason, bytes);
        if link.is_none() || op.work == Work::Move(Direction::Write) {
            state.add_done(bytes);
        }
    }

    /// A file system that takes O_DIRECT when a file is opened has refused a request with it. What
    /// nobody demanded goes through the page cache from now on.
    fn refuse_direct(&mut self, key: usize, op: Op, errno: Errno) {
        let (reason, is_news) = op.file.refuse_direct(errno);
        let reason = reason.to_owned();
        if is_news {
            self.effects.refused.push((op.file.path().into(), reason.clone()));
        }
        if op.segment.reason != Reason::Demanded {
            debug_assert!(!op.is_write(), "its file has them in turn, by their kind");
            return self.requeue(op.through_cache(Reason::NoDirectIo));
        }
        let (_, place) = self.about(key, &op);
        self.fail(key, Error::RouteUnavailable { route: Route::Staged, place, reason });
        self.count_out(&op);
    }

    /// Puts an op that is not done back, first in line. One that nobody wants any more would wait
    /// there for a drive that may hang.
    pub(super) fn requeue(&mut self, op: Op) {
        let key = self.transfer_of(&op);
        if self.transfers[key].stopped {
            return self.count_out(&op);
        }
        let line = self.line_of(key, &op);
        self.push_op_first(key, line, op);
        self.call_for(key, line);
    }

    /// Where an op waits.
    pub(super) fn line_of(&self, key: usize, op: &Op) -> Line {
        let has_ring = self.drives[self.transfers[key].request.drive].ring.is_some();
        let by_ring = op.port.is_none() && op.file.allows_io_uring() && op.again <= AGAIN_IN_RING;
        if op.is_direct() && has_ring && by_ring {
            Line::Direct
        } else if op.is_in_memory() {
            Line::Cached
        } else {
            Line::Waits
        }
    }

    /// Calls somebody to a transfer's line.
    pub(super) fn call_for(&mut self, key: usize, line: Line) {
        let drive = self.transfers[key].request.drive;
        match line {
            Line::Direct => self.call_ring(drive),
            Line::Waits => self.call_pool(drive),
            Line::Cached => self.effects.work += 1,
        }
    }

    /// What an op does, and where, as an error names it.
    pub(super) fn about(&self, key: usize, op: &Op) -> (Operation, Place) {
        let (operation, range) = match op.work {
            Work::Move(Direction::Read) => (Operation::Read, op.segment.wanted),
            Work::Move(Direction::Write) => (Operation::Write, op.segment.wanted),
            Work::Sync { .. } if self.transfers[key].request.batch.is_some() => {
                return (Operation::Sync, op.file.place(0, 0));
            }
            Work::Sync { .. } => (Operation::Sync, self.transfers[key].request.range),
            Work::DropStale => (Operation::Write, op.segment.wanted),
        };
        (operation, op.file.place(op.offset_of(range.start), range.len()))
    }
}

/// Whether an error asks to try an op again that has not been tried too often.
fn is_tried_again(errno: Errno, op: &Op) -> bool {
    matches!(errno, Errno::AGAIN | Errno::INTR) && op.again < AGAIN_MAX
}

/// A direct op goes on only at an aligned place: what came beyond the last one is moved again.
fn restart_aligned(mut op: Op, alignment: Option<Alignment>) -> Op {
    if let (true, Some(alignment)) = (op.is_direct(), alignment) {
        op.moved = align_down(op.moved, alignment.offset);
    }
    op
}
