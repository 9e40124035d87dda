//! Write exclusion per file: any number of direct writes, or one write through the page cache.
//!
//! More than one cached writer would only spin on the file's lock (measured: 4 writers, 4.7 times
//! the CPU, no gain). A cached write concurrent with a direct one would spoil the page cache (why:
//! see [`SmallWrites`](crate::queue::SmallWrites)). The two kinds take turns: while one kind waits,
//! no write of the other kind joins, and then all waiting writes start.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::Scheduler;
use crate::queue::op::{Line, Op, Owner};
use crate::queue::small_writes::{File, SmallWrites};

/// The writes of one file; idle files have no entry.
#[derive(Debug, Default)]
pub(super) struct Writers {
    /// True if a write through the page cache is queued or in flight.
    pub(super) is_writing: bool,
    /// Number of direct writes queued or in flight.
    pub(super) around: usize,
    /// Writes waiting for their turn, by ticket; this map for cached writes, the next for direct
    /// ones.
    pub(super) through_waits: BTreeMap<u64, Op>,
    pub(super) around_waits: BTreeMap<u64, Op>,
    /// Number of cached writes that start before direct writes have their turn.
    turns: usize,
}

impl Writers {
    fn is_busy(&self) -> bool {
        self.is_writing || self.around > 0
    }

    /// All waiting writes.
    #[cfg(test)]
    pub(super) fn waiting(&self) -> impl Iterator<Item = &Op> {
        self.through_waits.values().chain(self.around_waits.values())
    }

    fn is_waited_for(&self) -> bool {
        !self.through_waits.is_empty() || !self.around_waits.is_empty()
    }
}

impl Scheduler {
    /// The state shared with callers that write small ranges themselves.
    pub(crate) fn small_writes(&self) -> &Arc<SmallWrites> {
        &self.small_writes
    }

    /// Queues a write, or makes it wait for its file's turn.
    pub(super) fn push_write(&mut self, key: usize, op: Op) {
        let file = op.file.identity();
        let writers = self.writers.entry(file).or_default();
        let (is_busy, is_waited_for) = (writers.is_busy(), writers.is_waited_for());
        match op.is_cached_write() {
            true if !is_busy && !is_waited_for => {
                writers.is_writing = true;
                return self.queue(key, op);
            }
            false if writers.around > 0 && !is_waited_for => {
                writers.around += 1;
                return self.queue(key, op);
            }
            true => writers.through_waits.insert(self.waited, op),
            false => writers.around_waits.insert(self.waited, op),
        };
        self.transfers[key].writes_waiting.insert(self.waited, file);
        self.waited += 1;
        self.next_write(file);
    }

    /// Uncounts a completed write, and starts the writes whose turn comes then.
    pub(super) fn end_write(&mut self, op: &Op) {
        if !op.is_write() {
            return;
        }
        let file = op.file.identity();
        let Some(writers) = self.writers.get_mut(&file) else { return };
        if op.is_cached_write() {
            writers.is_writing = false;
        } else {
            writers.around -= 1;
            if writers.around == 0 {
                writers.turns = writers.through_waits.len();
                self.small_writes.end_around(file);
            }
        }
        self.next_write(file);
    }

    /// Counts out a transfer's writes that wait for their turn at a file.
    pub(super) fn drop_waiting_writes(&mut self, key: usize) {
        let mut files = Vec::new();
        for (ticket, file) in std::mem::take(&mut self.transfers[key].writes_waiting) {
            let writers = self.writers.get_mut(&file).expect("something waits there");
            let op = writers.through_waits.remove(&ticket);
            let op = op.or_else(|| writers.around_waits.remove(&ticket));
            writers.turns = writers.turns.min(writers.through_waits.len());
            if let Some(Op { owner: Owner::Piece(window, piece), .. }) = op {
                self.windows[window].complete(piece);
            }
            if files.last() != Some(&file) {
                files.push(file);
            }
        }
        // The removed writes may have been the only ones to wait.
        files.into_iter().for_each(|file| self.next_write(file));
    }

    /// Starts the writes that waited for callers' own writes to end.
    pub(crate) fn small_writes_ended(&mut self) {
        let waiting = |writers: &Writers| !writers.is_busy() && writers.is_waited_for();
        let files = self.writers.iter().filter(|(_, writers)| waiting(writers));
        let files: Vec<File> = files.map(|(file, _)| *file).collect();
        files.into_iter().for_each(|file| self.next_write(file));
    }

    /// Starts a file's next writes if none is in flight.
    pub(super) fn next_write(&mut self, file: File) {
        let Some(writers) = self.writers.get_mut(&file).filter(|writers| !writers.is_busy()) else {
            return;
        };
        if writers.turns > 0 || writers.around_waits.is_empty() {
            writers.turns = writers.turns.saturating_sub(1);
            if let Some((ticket, op)) = writers.through_waits.pop_first() {
                writers.is_writing = true;
                return self.queue_first(ticket, op);
            }
        }
        if writers.around_waits.is_empty() {
            self.writers.remove(&file);
        } else if self.small_writes.begin_around(file) {
            let ops = std::mem::take(&mut writers.around_waits);
            writers.around = ops.len();
            for (ticket, op) in ops {
                let key = self.transfer_of(&op);
                self.transfers[key].writes_waiting.remove(&ticket);
                self.queue(key, op);
            }
        }
    }

    /// Queues a write at the head: the same thread takes it, with warm CPU caches.
    fn queue_first(&mut self, ticket: u64, op: Op) {
        let key = self.transfer_of(&op);
        self.transfers[key].writes_waiting.remove(&ticket);
        self.push_op_first(key, Line::Waits, op);
        self.call_pool(self.transfers[key].request.drive);
    }
}
