//! How ops are handed out, and what their completions mean.

use std::sync::Arc;

use rustix::io::Errno;

use super::{ReaderWork, Scheduler};
use crate::error::{Error, Operation, Place};
use crate::plan::{Alignment, Io, Route};
use crate::queue::op::{Completion, Direction, Op, Owner, WindowKey, Work};
use crate::transfer::State;
use crate::units::align_down;

/// How often in a row the kernel may bring an op no further although there is more to move.
const EMPTY_MAX: u8 = 3;

/// How often in a row the kernel may ask to try an op again, for want of memory for example.
const AGAIN_MAX: u16 = 10_000;

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
        // Windows are opened ahead, while the other readers still have pieces to fill.
        if self.cached.len() < self.limits.readers
            && let Some(claim) = self.claim()
        {
            return Some(ReaderWork::Open(claim));
        }
        while let Some(op) = self.cached.pop_front() {
            if self.is_wanted(&op) {
                return Some(ReaderWork::Op(op));
            }
        }
        self.claim().map(ReaderWork::Open).or_else(|| self.link_to_grow().map(ReaderWork::Grow))
    }

    /// What a thread that waits for one transfer can do for it; `None`: nothing, or other transfers
    /// come first.
    pub(crate) fn take_work_of(&mut self, state: &Arc<State>) -> Option<ReaderWork> {
        let work = self.next_work_of(state);
        self.effects.work = match work {
            Some(_) => self.effects.work.saturating_sub(1),
            // Whoever was spared so far has to take over what this thread leaves behind.
            None => self.effects.work.max(self.cached.len() + self.openable.len()),
        };
        self.call_more(work.is_some());
        work
    }

    /// Who has taken work calls others to what is left: only a few are called at once.
    fn call_more(&mut self, has_taken: bool) {
        if has_taken {
            self.effects.work = self.effects.work.max(self.cached.len());
        }
    }

    fn next_work_of(&mut self, state: &Arc<State>) -> Option<ReaderWork> {
        // Wherever its work stands in line: those before it may wait for a file that hangs.
        if let Some(at) = self.openable.iter().position(|&key| self.is_of(key, state))
            && !self.cached.iter().any(|op| self.is_of(self.transfer_of(op), state))
        {
            let key = self.openable.remove(at)?;
            self.openable.push_front(key);
            if let Some(claim) = self.claim_of(key) {
                return Some(ReaderWork::Open(claim));
            }
        }
        while let Some(at) =
            self.cached.iter().position(|op| self.is_of(self.transfer_of(op), state))
        {
            let op = self.cached.remove(at)?;
            if self.is_wanted(&op) {
                return Some(ReaderWork::Op(op));
            }
        }
        None
    }

    fn is_of(&self, key: usize, state: &Arc<State>) -> bool {
        self.transfers.get(key).is_some_and(|active| Arc::ptr_eq(&active.request.state, state))
    }

    /// The transfer that an op belongs to.
    pub(super) fn transfer_of(&self, op: &Op) -> usize {
        match op.owner {
            Owner::Piece(window, _) => self.windows[window].transfer,
            Owner::Transfer(key) => key,
        }
    }

    /// The next op for a drive's ring; `None`: nothing.
    pub(crate) fn take_drive_op(&mut self, drive: usize) -> Option<Op> {
        while let Some(op) = self.drives[drive].ready.pop_front() {
            if self.is_wanted(&op) {
                return Some(op);
            }
        }
        None
    }

    /// Has the rings of a transfer's drive give back what they can of its ops.
    pub(super) fn ask_back(&mut self, transfer: usize) {
        let drive = self.transfers[transfer].request.drive;
        let Some(state) = self.drives.get_mut(drive) else { return };
        let before = state.unwanted.len();
        let open = self.windows.iter().filter(|(_, w)| w.transfer == transfer && w.outstanding > 0);
        state.unwanted.extend(open.map(|(key, _)| key));
        if state.unwanted.len() > before {
            self.call_back(drive);
        }
    }

    /// The windows whose ops the rings of a drive are to give back, once.
    pub(crate) fn take_unwanted(&mut self, drive: usize) -> Vec<WindowKey> {
        std::mem::take(&mut self.drives[drive].unwanted)
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
        if op.work == Work::Move(Direction::Write) && op.segment.io == Io::Buffered {
            self.next_write(op.file.identity());
        }
        let (key, piece) = match op.owner {
            Owner::Piece(window, piece) => (window, piece),
            Owner::Transfer(key) => {
                self.transfers[key].open -= 1;
                return self.finish_if_done(key);
            }
        };
        let window = &mut self.windows[key];
        window.complete(piece);
        if let Some(link) = self.transfers[window.transfer].request.link {
            self.call_link(link);
        }
        self.close_if_done(key);
    }

    /// Takes an op back from a ring.
    pub(crate) fn complete(&mut self, completion: Completion) {
        let Completion { mut op, result, size, took_ns } = completion;
        let key = self.transfer_of(&op);
        let alignment = self.transfers[key].request.alignment;
        let state = Arc::clone(&self.transfers[key].request.state);
        state.add_file_time(took_ns);
        match result {
            Err(Errno::INTR) => return self.requeue(op),
            Err(Errno::AGAIN) if op.again < AGAIN_MAX => {
                op.again += 1;
                return self.requeue(op);
            }
            // It was asked back; that says nothing about the file.
            Err(Errno::CANCELED) if self.transfers[key].stopped => return self.count_out(&op),
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
                    let active = &mut self.transfers[key];
                    active.end = active.end.min(reached);
                } else if reached < op.segment.wanted.end {
                    op = restart_aligned(op, alignment);
                    op.empty = if op.moved > before { 0 } else { op.empty + 1 };
                    if op.empty < EMPTY_MAX {
                        return self.requeue(op);
                    }
                    let (operation, place) = self.about(key, &op);
                    self.fail(key, Error::NoProgress { operation, place });
                }
                let until = reached.min(op.segment.wanted.end);
                let bytes = until.saturating_sub(op.segment.wanted.start);
                let link = self.transfers[key].request.link;
                state.add_bytes(route(link, op.segment.io), op.segment.reason, bytes);
                if link.is_none() || direction == Direction::Write {
                    state.add_done(bytes);
                }
            }
        }
        self.count_out(&op);
    }

    /// Puts an op that is not done back, first in line.
    fn requeue(&mut self, op: Op) {
        if op.is_direct() {
            let Owner::Piece(window, _) = op.owner else { return };
            let drive = self.transfers[self.windows[window].transfer].request.drive;
            self.drives[drive].ready.push_front(op);
            self.call_drive(drive);
        } else {
            self.cached.push_front(op);
            self.effects.work += 1;
        }
    }

    fn fail_op(&mut self, key: usize, op: &Op, source: Errno) {
        let (operation, place) = self.about(key, op);
        self.fail(key, Error::Io { operation, place, source });
    }

    /// What an op does, and where, as an error names it.
    fn about(&self, key: usize, op: &Op) -> (Operation, Place) {
        let (operation, range) = match op.work {
            Work::Move(Direction::Read) => (Operation::Read, op.segment.wanted),
            Work::Move(Direction::Write) => (Operation::Write, op.segment.wanted),
            Work::Sync { .. } => (Operation::Sync, self.transfers[key].request.range),
        };
        (operation, op.file.place(range.start, range.len()))
    }
}

/// The route of bytes that go between a file, by `io`, and a GPU or the host.
fn route(link: Option<usize>, io: Io) -> Route {
    match (link, io) {
        (None, _) => Route::Host,
        (Some(_), Io::Direct) => Route::Staged,
        (Some(_), Io::Buffered) => Route::Cached,
    }
}

/// A direct op goes on only at an aligned place: what came beyond the last one is moved again.
fn restart_aligned(mut op: Op, alignment: Option<Alignment>) -> Op {
    if let (true, Some(alignment)) = (op.is_direct(), alignment) {
        op.moved = align_down(op.moved, alignment.offset);
    }
    op
}
