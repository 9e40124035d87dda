//! Handing out ops, and handling their completions.

use std::sync::Arc;

use forebay_base::units::{ByteRange, align_down};
use rustix::io::Errno;

use super::Scheduler;
use super::active::Request;
use super::round_robin::{Listed, QueueEnd};
use super::work::{DriveWork, ReaderWork};
use super::workers::Workers;
use crate::error::{Error, Operation, Place};
use crate::plan::{Alignment, Direction, Io, Reason, Route, Segment};
use crate::queue::op::{Completion, Executor, Op, OpKind, Owner, RunBy, WindowKey};
use crate::transfer::{Stage, State, Touch};

/// Maximum consecutive completions without progress although bytes remain.
const EMPTY_MAX: u8 = 3;

/// Maximum consecutive EAGAIN or EINTR results of an op, for example for lack of memory or after a
/// signal. A server may return them forever. Threads pause before a retry, so that all retries last
/// ten seconds.
const AGAIN_MAX: u16 = 1000;

/// Immediate retries on a ring before the op moves to a thread.
const AGAIN_IN_RING: u16 = 3;

impl Scheduler {
    /// Pops the next work item for a reader, unless too many readers are busy. The reader calls
    /// [`return_reader`](Self::return_reader) once it is done.
    pub(crate) fn take_reader_work(&mut self) -> Option<ReaderWork> {
        if self.readers.busy >= self.readers_at_once() {
            return None; // one of them takes it
        }
        let work = self.next_reader_work();
        self.readers.busy += usize::from(work.is_some());
        // Don't wake a reader for work that this reader popped or that no longer exists.
        let taken = if work.is_some() { 1 } else { self.effects.work };
        self.effects.work = self.effects.work.saturating_sub(taken);
        if work.is_some() {
            // Only a few readers are woken at a time, so have more woken for the remaining work.
            self.effects.work = self.effects.work.max(self.readers.queued);
        }
        work
    }

    /// Counts out a reader that took work.
    pub(crate) fn return_reader(&mut self) {
        // The counts were reset when the engine failed.
        if !self.has_failed() {
            self.readers.busy -= 1;
        }
    }

    fn next_reader_work(&mut self) -> Option<ReaderWork> {
        if let Some(link) = self.link_to_grow(true) {
            return Some(ReaderWork::Grow(link));
        }
        // Open windows ahead, while the other readers still have pieces to fill.
        if self.readers.queued < self.readers_at_once()
            && let Some(claim) = self.claim()
        {
            return Some(ReaderWork::Open(claim));
        }
        while let Some(mut op) = self.pop_for_reader() {
            if self.is_wanted(&op) {
                self.hand_out(&mut op);
                return Some(ReaderWork::Op(op));
            }
        }
        let open = self.claim().map(ReaderWork::Open);
        open.or_else(|| self.link_to_grow(false).map(ReaderWork::Grow))
    }

    /// Pops a work item that a thread waiting for this transfer can run itself. `None` if none
    /// exists, or if other transfers precede it.
    pub(crate) fn take_work_of(&mut self, state: &Arc<State>) -> Option<ReaderWork> {
        let work = self.shares_of(state).find_map(|key| self.next_work_of(key));
        // The caller's own op may block on a drive for long.
        let waits = |work: &ReaderWork| matches!(work, ReaderWork::Op(op) if !op.is_in_memory());
        self.effects.work = match &work {
            Some(work) if !waits(work) => self.effects.work.saturating_sub(1),
            // Wake the readers spared so far: they must run the work that remains.
            _ => self.effects.work.max(self.readers.queued + self.readers.openable.len()),
        };
        if work.is_some() {
            // Only a few readers are woken at a time, so have more woken for the remaining work.
            self.effects.work = self.effects.work.max(self.readers.queued);
        }
        work
    }

    fn next_work_of(&mut self, key: usize) -> Option<ReaderWork> {
        let active = self.transfers.get(key)?;
        // Ignores the turn order: the transfers ahead may wait for a file that hangs.
        if active.for_readers.ops.is_empty()
            && active.for_pool.ops.is_empty()
            && !self.can_wait(key)
            && let Listed::Openable(ticket) = active.listed
        {
            self.readers.openable.remove(ticket);
            if let Some(claim) = self.claim_of(key) {
                return Some(ReaderWork::Open(claim));
            }
        }
        while let Some(mut op) = self.pop_of(key) {
            if self.is_wanted(&op) {
                self.hand_out(&mut op);
                if !op.is_in_memory() {
                    self.drives.begin(self.transfers[key].request.drive, RunBy::Caller, &mut op);
                }
                return Some(ReaderWork::Op(op));
            }
        }
        None
    }

    /// Key of the transfer that an op belongs to.
    pub(super) fn transfer_of(&self, op: &Op) -> usize {
        match op.owner {
            Owner::Piece(window, _) => self.windows[window].transfer,
            Owner::Transfer(key) => key,
        }
    }

    /// Pops the next work item for a ring or the pool.
    pub(crate) fn take_drive_work(&mut self, workers: Workers) -> Option<DriveWork> {
        match workers {
            // An op of the next drive in turn, or a window to open.
            Workers::Ring(ring) => (0..self.rings[ring].drives.len()).find_map(|_| {
                let drives = &mut self.rings[ring].drives;
                drives.rotate_left(1);
                let drive = *drives.back()?;
                self.take_for_ring(drive)
            }),
            Workers::Pool => self.take_pool_op().map(DriveWork::Op),
            Workers::Readers | Workers::Link(_) => None,
        }
    }

    pub(super) fn take_pool_op(&mut self) -> Option<Op> {
        (0..self.pool.drives.len()).find_map(|_| {
            let drive = self.pool.drives.pop_front()?;
            let op = self.take_for_pool(drive);
            let state = &mut self.drives[drive];
            state.is_queued = !state.pool_order.is_empty();
            if state.is_queued {
                self.pool.drives.push_back(drive);
            }
            if op.is_some() && self.pool.can_wake() {
                self.wake_more_of_pool();
            }
            op
        })
    }

    /// Only a few workers are woken at a time: a worker that pops an op wakes a further worker for
    /// the rest.
    pub(crate) fn wake_more_of_pool(&mut self) {
        let ready = self.pool.drives.iter().find(|drive| self.pool_has_room(**drive));
        if let Some(&drive) = ready {
            self.wake_pool_for(drive);
        }
    }

    /// Pops the next op for a drive's ring, or a window, if the drive's limit allows it.
    fn take_for_ring(&mut self, drive: usize) -> Option<DriveWork> {
        let mut taken = None;
        while taken.is_none()
            && self.drives.has_room(drive, RunBy::Ring)
            && let Some(entry) = self.drives[drive].ring_order.pop()
        {
            if let Some(mut op) = self.pop_op(entry, Executor::Ring) {
                if self.is_wanted(&op) {
                    self.hand_out(&mut op);
                    self.drives.begin(drive, RunBy::Ring, &mut op);
                    taken = Some(DriveWork::Op(op));
                }
                continue;
            }
            // The transfer may have ended, or a reader may have opened its window.
            let active = self.transfers.get(entry.key).filter(|a| a.serial == entry.serial);
            if active.is_some_and(|active| active.listed == Listed::Ring) {
                taken = self.claim_of(entry.key).map(DriveWork::Open);
            }
        }
        self.open_for(drive);
        taken
    }

    /// Pops the next op of a drive for the pool, if the drive's limit allows it.
    fn take_for_pool(&mut self, drive: usize) -> Option<Op> {
        let mut taken = None;
        while taken.is_none() && self.pool_has_room(drive) {
            let Some(op) = self.pop_for_pool(drive) else { break };
            taken = self.is_wanted(&op).then_some(op);
        }
        if let Some(op) = &mut taken {
            self.hand_out(op);
            self.drives.begin(drive, RunBy::Pool, op);
        }
        self.open_for(drive);
        taken
    }

    /// True if the pool may run the next op of a drive now.
    pub(super) fn pool_has_room(&self, drive: usize) -> bool {
        let state = &self.drives[drive];
        let next = || {
            let entry = state.pool_order.first()?;
            let active = self.transfers.get(entry.key).filter(|a| a.serial == entry.serial)?;
            active.for_pool.ops.front()
        };
        self.drives.has_room(drive, RunBy::Pool)
            && !next().is_some_and(|op| state.reads_enough_ahead(op))
    }

    /// Marks an op's memory as in use, since a thread is about to move bytes to or from it.
    fn hand_out(&self, op: &mut Op) {
        let state = &self.transfers[self.transfer_of(op)].request.state;
        op.touch = Some(Touch::new(state));
    }

    /// Feeds the completion of an op that waited for the drive to the drive's tuner.
    fn update_tuner(&mut self, key: usize, op: &Op, took_ns: u64, at_ns: u64) {
        let OpKind::Move(direction) = op.kind else { return };
        if op.counted.is_some() && (op.is_o_direct() || direction == Direction::Read) {
            let drive = &mut self.drives[self.transfers[key].request.drive];
            if drive.completed(direction, at_ns, op.segment.covered.len(), took_ns) {
                // Transfers at the limit of slots that the drive needed may now have more.
                (0..self.links.len()).for_each(|link| self.admit_waiting(link));
            }
        }
    }

    /// Uncounts an op from its drive, if it was counted.
    fn end_on_drive(&mut self, key: usize, op: &mut Op, took_ns: u64) {
        let Some(by) = op.counted.take() else { return };
        let drive = self.transfers[key].request.drive;
        self.drives.end(drive, by, op, took_ns);
        // The thread that ran it next pops only ops of its own queue.
        if by != RunBy::Pool && self.drives[drive].is_queued {
            self.wake_pool_for(drive);
        }
        if by != RunBy::Ring && !self.drives[drive].ring_order.is_empty() {
            self.wake_ring_for(drive);
        }
    }

    /// Makes the ring of a transfer's drive cancel the transfer's ops.
    pub(super) fn cancel_in_ring(&mut self, transfer: usize) {
        let drive = self.transfers[transfer].request.drive;
        let Some(ring) = self.drives.get(drive).and_then(|state| state.ring) else { return };
        let windows = &self.transfers[transfer].windows;
        let open = windows.iter().filter(|window| self.windows[**window].outstanding > 0);
        let cancelled = &mut self.rings[ring].to_cancel;
        let before = cancelled.len();
        cancelled.extend(open);
        if cancelled.len() > before {
            self.wake_ring(ring);
        }
    }

    /// Returns the windows whose ops the ring of `workers` must cancel, once.
    pub(crate) fn take_to_cancel(&mut self, workers: Workers) -> Vec<WindowKey> {
        match workers {
            Workers::Ring(ring) => std::mem::take(&mut self.rings[ring].to_cancel),
            _ => Vec::new(),
        }
    }

    /// True if an op's transfer still wants it; if not, the op is counted out.
    fn is_wanted(&mut self, op: &Op) -> bool {
        let active = &self.transfers[self.transfer_of(op)];
        let reads = op.kind == OpKind::Move(Direction::Read);
        let past_end = reads && op.segment.wanted.start >= active.end;
        if !active.is_stopped() && !past_end {
            return true;
        }
        self.count_out(op);
        false
    }

    pub(super) fn count_out(&mut self, op: &Op) {
        if op.is_write() {
            self.end_write(op);
        }
        let (key, piece) = match op.owner {
            Owner::Piece(window, piece) => (window, piece),
            Owner::Transfer(key) => {
                self.transfers[key].open -= 1;
                return self.finish_if_done(key);
            }
        };
        let now = self.now_ns;
        let window = &mut self.windows[key];
        window.complete(piece);
        window.filled_ns = now;
        if let Some(link) = self.transfers[window.transfer].request.link {
            self.wake_link(link);
        }
        self.close_if_done(key);
    }

    /// Handles the completion of an op.
    pub(crate) fn complete(&mut self, mut completion: Completion) {
        completion.op.touch = None;
        // If the engine failed, the transfer has ended already.
        if !self.has_failed() {
            self.take_back(completion);
        }
    }

    fn take_back(&mut self, completion: Completion) {
        let Completion { mut op, result, refused, size, took_ns, at_ns } = completion;
        self.set_time(at_ns);
        // A request that was never made took no time.
        if at_ns > 0 {
            self.statistics.file.add(took_ns);
        }
        let key = self.transfer_of(&op);
        if result.is_ok() {
            self.update_tuner(key, &op, took_ns, at_ns);
        }
        self.end_on_drive(key, &mut op, took_ns);
        let state = Arc::clone(&self.transfers[key].request.state);
        state.add_time(Stage::File, took_ns);
        match result {
            // The op was cancelled; that says nothing about the file.
            Err(Errno::CANCELED | Errno::INTR | Errno::AGAIN)
                if self.transfers[key].is_stopped() =>
            {
                return self.count_out(&op);
            }
            Err(errno) if op.port.is_some() && !is_tried_again(errno, &op) => {
                return self.refuse_direct(key, &op, Some(refused.unwrap_or_else(|| errno.into())));
            }
            // The page was evicted, and the reader that noticed must not wait for a drive.
            Err(Errno::AGAIN) if op.is_in_memory() => {
                if op.batch.is_some() {
                    return self.requeue_each(&op);
                }
                self.count_bytes(key, &op);
                return self.requeue(op.rest_from_drive());
            }
            Err(errno @ (Errno::INVAL | Errno::OPNOTSUPP)) if op.is_o_direct() => {
                return self.refuse_o_direct(key, op, errno);
            }
            Err(errno) if is_tried_again(errno, &op) => {
                op.again += 1;
                return self.requeue(op);
            }
            _ => op.again = 0,
        }
        let OpKind::Move(direction) = op.kind else {
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
                    let alignment = self.transfers[key].request.alignment_of(&op);
                    op = restart_aligned(op, alignment);
                    op.empty = if op.moved > before { 0 } else { op.empty + 1 };
                    if op.empty < EMPTY_MAX {
                        return self.requeue(op);
                    }
                    if op.port.is_some() {
                        return self.refuse_direct(key, &op, None);
                    }
                    let (operation, place) = self.about(key, &op);
                    self.fail_one(key, &op, Error::NoProgress { operation, place });
                }
                self.count_bytes(key, &op);
            }
        }
        self.count_out(&op);
    }

    /// Counts the bytes of an op that moves no more.
    pub(super) fn count_bytes(&self, key: usize, op: &Op) {
        let reached = op.segment.covered.start + op.moved;
        let came = op.segment.wanted.intersect(ByteRange { start: 0, end: reached });
        let Request { state, link, .. } = &self.transfers[key].request;
        let bytes = self.transfers[key].request.wanted_in(came);
        let route = self.transfers[key].request.route(op.segment.io);
        state.add_bytes(route, op.segment.reason, bytes);
        if link.is_none() || op.kind == OpKind::Move(Direction::Write) {
            state.add_done(bytes);
        }
    }

    /// Handles a file system that accepts O_DIRECT on open but refuses a request with it. Unless
    /// the route was required, the file uses the page cache from now on.
    fn refuse_o_direct(&mut self, key: usize, op: Op, errno: Errno) {
        let (reason, is_news) = op.file.refuse_o_direct(errno);
        let reason = reason.to_owned();
        if is_news {
            self.effects.refused.push((op.file.path().into(), reason.clone()));
        }
        if op.segment.reason != Reason::Required {
            if !op.is_write() {
                return self.requeue(op.through_cache(Reason::NoDirectIo));
            }
            if self.transfers[key].is_stopped() {
                return self.count_out(&op);
            }
            // Writes of both kinds take turns at a file.
            self.end_write(&op);
            return self.push_write(key, op.through_cache(Reason::NoDirectIo));
        }
        let (_, place) = self.about(key, &op);
        self.fail_one(key, &op, Error::RouteUnavailable { route: Route::Staged, place, reason });
        self.count_out(&op);
    }

    /// Puts an unfinished op back at the head of its queue. If its transfer was stopped, the op is
    /// counted out: otherwise it might wait there for a drive that hangs.
    pub(super) fn requeue(&mut self, op: Op) {
        let key = self.transfer_of(&op);
        if self.transfers[key].is_stopped() {
            return self.count_out(&op);
        }
        self.queue(key, op, QueueEnd::Front);
    }

    /// Queues an op of a transfer and wakes a thread for it.
    pub(super) fn queue(&mut self, key: usize, op: Op, end: QueueEnd) {
        let drive = self.transfers[key].request.drive;
        let has_ring = self.drives[drive].ring.is_some();
        let by_ring = op.port.is_none() && op.file.allows_io_uring() && op.again <= AGAIN_IN_RING;
        let executor = match op.is_in_memory() {
            _ if op.is_o_direct() && has_ring && by_ring => Executor::Ring,
            true => Executor::Readers,
            false => Executor::Pool,
        };
        self.push_op(key, executor, op, end);
        match executor {
            Executor::Ring => self.wake_ring_for(drive),
            Executor::Pool => self.wake_pool_for(drive),
            Executor::Readers => self.effects.work += 1,
        }
    }

    /// The operation and place of an op, for an error message.
    pub(super) fn about(&self, key: usize, op: &Op) -> (Operation, Place) {
        let (operation, range) = match op.kind {
            OpKind::Move(Direction::Read) => (Operation::Read, op.segment.wanted),
            OpKind::Move(Direction::Write) => (Operation::Write, op.segment.wanted),
            OpKind::Sync { .. } if self.transfers[key].request.batch.is_some() => {
                return (Operation::Sync, op.file.place(0, 0));
            }
            OpKind::Sync { .. } => (Operation::Sync, self.transfers[key].request.range),
            OpKind::DropStale => (Operation::Write, op.segment.wanted),
        };
        (operation, op.file.place(op.offset_of(range.start), range.len()))
    }
}

/// True if the error allows a retry and retries remain.
fn is_tried_again(errno: Errno, op: &Op) -> bool {
    matches!(errno, Errno::AGAIN | Errno::INTR) && op.again < AGAIN_MAX
}

/// A direct op resumes only at an aligned offset: bytes after the last aligned offset are moved
/// again.
fn restart_aligned(mut op: Op, alignment: Option<Alignment>) -> Op {
    if let (true, Some(alignment)) = (op.is_o_direct(), alignment) {
        op.moved = align_down(op.moved, alignment.offset);
    }
    op
}

impl Scheduler {
    /// Fails an op's transfer or batch items with the kernel's error.
    pub(super) fn fail_op(&mut self, key: usize, op: &Op, source: Errno) {
        let (operation, place) = self.about(key, op);
        let error = match (op.kind, source) {
            (OpKind::DropStale, Errno::BUSY) => Error::StaleCache { place },
            _ => Error::io(operation, place, source),
        };
        self.fail_one(key, op, error);
    }

    /// Fails the transfer of an op; for a batch, only the items that the op moves.
    pub(super) fn fail_one(&mut self, key: usize, op: &Op, error: Error) {
        match &self.transfers[key].request.batch {
            Some(batch) if matches!(op.kind, OpKind::Sync { .. }) => {
                batch.fail_sync(&op.file, error)
            }
            Some(batch) => batch.fail(op.segment.wanted, error),
            None => self.fail(key, error),
        }
    }

    /// Records that the file of an op ends at `position` of its transfer.
    pub(super) fn end_at(&mut self, key: usize, position: u64) {
        let active = &mut self.transfers[key];
        match &active.request.batch {
            Some(batch) => batch.ends_at(position),
            None => active.end = active.end.min(position),
        }
    }

    /// Splits an op of several stretches into ops of a single stretch and queues them. These ops
    /// may block, and should do so concurrently.
    pub(super) fn requeue_each(&mut self, op: &Op) {
        let key = self.transfer_of(op);
        let (Some(batch), Owner::Piece(window, piece)) = (&op.batch, op.owner) else { return };
        if self.transfers[key].is_stopped() {
            return self.count_out(op);
        }
        self.count_bytes(key, op);
        for (part, address) in op.targets(batch) {
            let (file, shift) = batch.source_of(part.start);
            let segment = Segment::plain(part, Io::Buffered, Reason::HadToWait);
            self.windows[window].expect(piece);
            let one = Op::new(op.owner, Arc::clone(file), op.kind, segment, address);
            self.queue(key, Op { shift, ..one }, QueueEnd::Back);
        }
        self.count_out(op);
    }
}
