//! Queues of pending ops, by transfer; transfers are served in turn.
//!
//! The worker of a drive's ring also opens the windows of transfers whose bytes come from the
//! drive. It opens a window only when the drive may run a further request, so only requests in
//! flight hold memory, which stays in a CPU cache (`docs/internals.md#hot-slots`).

use super::Scheduler;
use super::active::{Queue, Request};
use super::round_robin::{Entry, Listed, QueueEnd, RoundRobin};
use crate::queue::op::{Executor, Op, Owner, RunBy};
use crate::queue::writers::{Admission, File, Next};

impl Scheduler {
    /// Adds an op to its transfer's queue. The transfer enters its turn order at the same `end`, if
    /// it is not in it already.
    pub(super) fn push_op(&mut self, key: usize, executor: Executor, op: Op, end: QueueEnd) {
        let active = &mut self.transfers[key];
        let ops = &mut active.queue(executor).ops;
        match end {
            QueueEnd::Back => ops.push_back(op),
            QueueEnd::Front => ops.push_front(op),
        }
        let (entry, drive) = (active.entry(key, executor), active.request.drive);
        let (order, queued) = self.order_of(key, executor);
        *queued += 1;
        entry.into_iter().for_each(|entry| order.push(entry, end));
        if executor == Executor::Pool && !std::mem::replace(&mut self.drives[drive].is_queued, true)
        {
            match end {
                QueueEnd::Back => self.pool.drives.push_back(drive),
                QueueEnd::Front => self.pool.drives.push_front(drive),
            }
        }
    }

    /// Pops the next pool op of a drive. Does not check the drive's limit.
    pub(super) fn pop_for_pool(&mut self, drive: usize) -> Option<Op> {
        loop {
            let entry = self.drives[drive].pool_order.pop()?;
            if let Some(op) = self.pop_op(entry, Executor::Pool) {
                return Some(op);
            }
        }
    }

    /// Pops the next op for a reader.
    pub(super) fn pop_for_reader(&mut self) -> Option<Op> {
        loop {
            let entry = self.readers.order.pop()?;
            if let Some(op) = self.pop_op(entry, Executor::Readers) {
                return Some(op);
            }
        }
    }

    /// Pops the next op of the transfer that is in turn. `None` if the transfer has ended, or if
    /// its ops were taken already.
    pub(super) fn pop_op(&mut self, entry: Entry, executor: Executor) -> Option<Op> {
        let active = self.transfers.get_mut(entry.key).filter(|a| a.serial == entry.serial)?;
        let queue = active.queue(executor);
        queue.is_queued = false;
        let op = queue.ops.pop_front()?;
        let next = active.entry(entry.key, executor);
        let (order, queued) = self.order_of(entry.key, executor);
        *queued -= 1;
        next.into_iter().for_each(|entry| order.push(entry, QueueEnd::Back));
        Some(op)
    }

    /// Pops an op of a transfer that its caller can run itself, regardless of the turn order. An op
    /// that waits for a drive counts as in flight there, so the drive must have space for it.
    pub(super) fn pop_of(&mut self, key: usize) -> Option<Op> {
        let active = self.transfers.get_mut(key)?;
        if let Some(op) = active.for_readers.ops.pop_front() {
            self.readers.queued -= 1;
            return Some(op);
        }
        let drive = active.request.drive;
        let spared = active.request.state.is_caller_spared();
        if spared || active.for_pool.ops.is_empty() || !self.drives.has_room(drive, RunBy::Caller) {
            return None;
        }
        let op = self.transfers[key].for_pool.ops.pop_front()?;
        self.drives[drive].queued -= 1;
        self.open_for(drive);
        Some(op)
    }

    /// Removes all ops from a transfer's queues.
    pub(super) fn drain_ops(&mut self, key: usize) -> Vec<Op> {
        let mut all = Vec::new();
        for executor in [Executor::Ring, Executor::Pool, Executor::Readers] {
            let ops = std::mem::take(&mut self.transfers[key].queue(executor).ops);
            *self.order_of(key, executor).1 -= ops.len();
            all.extend(ops);
        }
        all
    }

    fn order_of(&mut self, key: usize, executor: Executor) -> (&mut RoundRobin, &mut usize) {
        match executor {
            Executor::Readers => (&mut self.readers.order, &mut self.readers.queued),
            _ => {
                let drive = &mut self.drives[self.transfers[key].request.drive];
                let direct = executor == Executor::Ring;
                let order = if direct { &mut drive.ring_order } else { &mut drive.pool_order };
                (order, &mut drive.queued)
            }
        }
    }

    /// Gives a transfer a turn at its drive's ring, which then opens a window of it.
    pub(super) fn offer_to_ring(&mut self, key: usize, end: QueueEnd) {
        let active = &mut self.transfers[key];
        active.listed = Listed::Ring;
        let drive = active.request.drive;
        if let Some(entry) = active.entry(key, Executor::Ring) {
            self.drives[drive].ring_order.push(entry, end);
        }
        self.wake_ring_for(drive);
    }

    /// True if the drive's ring serves a request: the file allows io_uring and the route is not
    /// direct.
    pub(super) fn has_ring(&self, request: &Request) -> bool {
        let has_ring = self.drives.get(request.drive).is_some_and(|drive| drive.ring.is_some());
        has_ring && request.direct.is_none() && request.file.allows_io_uring()
    }

    /// Assigns a drive to a ring. If the ring failed, threads keep serving the drive.
    pub(crate) fn attach(&mut self, drive: usize, ring: usize) {
        if self.rings[ring].is_lost {
            return;
        }
        self.rings[ring].drives.push_back(drive);
        self.drives[drive].ring = Some(ring);
    }

    /// Moves the drives of a failed ring to threads.
    pub(crate) fn lose_ring(&mut self, ring: usize) {
        self.rings[ring].is_lost = true;
        self.rings[ring].to_cancel.clear();
        for drive in std::mem::take(&mut self.rings[ring].drives) {
            self.drives[drive].ring = None;
            self.drives[drive].ring_order = RoundRobin::default();
            let of_drive = self.transfers.iter().filter(|(_, a)| a.request.drive == drive);
            for key in of_drive.map(|(key, _)| key).collect::<Vec<_>>() {
                self.leave_ring(key);
            }
        }
    }

    /// Moves a transfer's ops for the drive's ring to the pool.
    fn leave_ring(&mut self, key: usize) {
        let active = &mut self.transfers[key];
        let Queue { ops, .. } = std::mem::take(&mut active.for_ring);
        if active.pace == Executor::Ring {
            active.pace = Executor::Pool;
        }
        let was_to_open = active.listed == Listed::Ring;
        if was_to_open {
            active.listed = Listed::Nowhere;
        }
        self.drives[active.request.drive].queued -= ops.len();
        ops.into_iter().for_each(|op| self.queue(key, op, QueueEnd::Back));
        if was_to_open {
            self.list(key);
        }
    }
}

impl Scheduler {
    /// Queues a write, or makes it wait for its file's turn.
    pub(super) fn push_write(&mut self, key: usize, op: Op) {
        let file = op.file.identity();
        match self.writers.add(op) {
            Admission::Starts(op) => self.queue(key, op, QueueEnd::Back),
            Admission::Waits(ticket) => {
                self.transfers[key].writes_waiting.insert(ticket, file);
                self.start_next_writes(file);
            }
        }
    }

    /// Uncounts a completed write, and starts the writes whose turn comes then.
    pub(super) fn end_write(&mut self, op: &Op) {
        self.writers.ended(op);
        self.start_next_writes(op.file.identity());
    }

    /// Counts out a transfer's writes that wait for their turn at a file.
    pub(super) fn drop_waiting_writes(&mut self, key: usize) {
        let mut files = Vec::new();
        for (ticket, file) in std::mem::take(&mut self.transfers[key].writes_waiting) {
            let op = self.writers.remove(file, ticket).expect("it waits under its ticket");
            if let Owner::Piece(window, piece) = op.owner {
                self.windows[window].complete(piece);
            }
            if files.last() != Some(&file) {
                files.push(file);
            }
        }
        files.into_iter().for_each(|file| self.start_next_writes(file));
    }

    /// Starts the writes whose turn it is, such as those that waited for callers' own writes.
    pub(in crate::queue) fn start_next_writes(&mut self, file: File) {
        match self.writers.next(file) {
            Next::None => {}
            // At the head of the queue: the same thread runs it, with warm CPU caches.
            Next::Cached(ticket, op) => {
                let key = self.transfer_of(&op);
                self.transfers[key].writes_waiting.remove(&ticket);
                self.push_op(key, Executor::Pool, op, QueueEnd::Front);
                self.wake_pool_for(self.transfers[key].request.drive);
            }
            Next::Direct(ops) => {
                for (ticket, op) in ops {
                    let key = self.transfer_of(&op);
                    self.transfers[key].writes_waiting.remove(&ticket);
                    self.queue(key, op, QueueEnd::Back);
                }
            }
        }
    }
}
