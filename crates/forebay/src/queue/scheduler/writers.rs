//! Who may write a file: one write through the page cache at a time, and none while some around it
//! are with a ring.
//!
//! More than one writer through the page cache would only spin on the file's lock (measured: 4
//! writers, 4.7 times the CPU, no gain). Beside a ring's it would spoil the page cache (why: see
//! [`SmallWrites`](crate::queue::SmallWrites)); the kernel keeps those apart that its lock covers
//! to their end, so that what cannot go to the ring is written by a call.

use std::collections::VecDeque;
use std::collections::hash_map::Entry;

use super::Scheduler;
use crate::plan::Io;
use crate::queue::op::{Direction, Line, Op, Work};

/// Those of one file; there are none where all is idle.
#[derive(Debug, Default)]
pub(super) struct Writers {
    /// Whether a write through the page cache is in line or under way, and those behind it.
    pub(super) is_writing: bool,
    pub(super) waiting: VecDeque<Op>,
    /// How many around it a ring has.
    pub(super) in_ring: usize,
}

/// What identifies a file: its device and inode.
type File = (u64, u64);

impl Op {
    pub(super) fn is_write(&self) -> bool {
        self.work == Work::Move(Direction::Write)
    }

    pub(super) fn is_cached_write(&self) -> bool {
        self.is_write() && self.segment.io == Io::Buffered
    }
}

impl Scheduler {
    /// Queues a write through the page cache behind those of the same file.
    pub(super) fn push_write(&mut self, key: usize, op: Op) {
        let writers = self.writers.entry(op.file.identity()).or_default();
        if writers.is_writing || writers.in_ring > 0 {
            writers.waiting.push_back(op);
        } else {
            writers.is_writing = true;
            self.queue(key, op);
        }
    }

    /// Lets the next write of a file go, first in line: the same thread takes it, with warm caches.
    pub(super) fn next_write(&mut self, file: File) {
        let Entry::Occupied(mut entry) = self.writers.entry(file) else { return };
        let writers = entry.get_mut();
        let next = writers.waiting.pop_front();
        writers.is_writing = next.is_some();
        match next {
            Some(op) => {
                let key = self.transfer_of(&op);
                self.push_op_first(key, Line::Waits, op);
                self.call_pool(self.transfers[key].request.drive);
            }
            None if writers.in_ring == 0 => drop(entry.remove()),
            None => {}
        }
    }

    /// Whether a ring may have an op, as far as writers of its file go; a write is counted then.
    pub(super) fn enters_ring(&mut self, op: &Op) -> bool {
        if !op.is_write() {
            return true;
        }
        let file = op.file.identity();
        let is_cached = |writers: &Writers| writers.is_writing || !writers.waiting.is_empty();
        if self.writers.get(&file).is_some_and(is_cached) || !self.small_writes.enter_ring(file) {
            return false;
        }
        self.writers.entry(file).or_default().in_ring += 1;
        true
    }

    /// Counts out an op that a ring has had. Where no other write is with it, those that have
    /// waited go on.
    pub(super) fn leave_ring(&mut self, op: &Op) {
        let file = op.file.identity();
        let Some(writers) = self.writers.get_mut(&file).filter(|_| op.is_write()) else { return };
        writers.in_ring -= 1;
        let was_last = writers.in_ring == 0;
        self.small_writes.leave_ring(file);
        if was_last {
            self.next_write(file);
        }
    }
}
