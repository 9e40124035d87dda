//! Writes that take turns at their files.

use super::Scheduler;
use super::round_robin::QueueEnd;
use crate::queue::op::{Executor, Op, Owner};
use crate::queue::writers::{Entry, File, Next};

impl Scheduler {
    /// Queues a write, or makes it wait for its file's turn.
    pub(super) fn push_write(&mut self, key: usize, op: Op) {
        let file = op.file.identity();
        match self.writers.add(op) {
            Entry::Starts(op) => self.queue(key, op, QueueEnd::Back),
            Entry::Waits(ticket) => {
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

    /// Starts the writes whose turn has come, such as those that waited for callers' own writes.
    pub(in crate::queue) fn start_next_writes(&mut self, file: File) {
        match self.writers.next(file) {
            Next::None => {}
            // At the head of the queue: the same thread takes it, with warm CPU caches.
            Next::Through(ticket, op) => {
                let key = self.transfer_of(&op);
                self.transfers[key].writes_waiting.remove(&ticket);
                self.push_op(key, Executor::Pool, op, QueueEnd::Front);
                self.wake_pool_for(self.transfers[key].request.drive);
            }
            Next::Around(ops) => {
                for (ticket, op) in ops {
                    let key = self.transfer_of(&op);
                    self.transfers[key].writes_waiting.remove(&ticket);
                    self.queue(key, op, QueueEnd::Back);
                }
            }
        }
    }
}
