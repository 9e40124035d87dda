//! Write exclusion per file: any number of direct writes, or one write through the page cache.
//!
//! More than one cached writer would only spin on the file's lock (measured: 4 writers, 4.7 times
//! the CPU, no gain). A cached write concurrent with a direct one would spoil the page cache (why:
//! see [`SmallWrites`](crate::queue::SmallWrites)). The two kinds take turns: while one kind waits,
//! no write of the other kind joins, and then all waiting writes start.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use crate::queue::op::Op;
use crate::queue::small_writes::{File, SmallWrites};

/// The writes of all files that are being written.
#[derive(Debug, Default)]
pub(super) struct Writers {
    files: HashMap<File, FileWrites>,
    /// Number of writes that had to wait for their turn so far.
    waited: u64,
    /// The state shared with callers that write small ranges themselves.
    small: Arc<SmallWrites>,
}

/// The writes of one file; idle files have no entry.
#[derive(Debug, Default)]
struct FileWrites {
    /// True if a write through the page cache is queued or in flight.
    is_writing: bool,
    /// Number of direct writes queued or in flight.
    around: usize,
    /// Writes waiting for their turn, by ticket; this map for cached writes, the next for direct
    /// ones.
    through_waits: BTreeMap<u64, Op>,
    around_waits: BTreeMap<u64, Op>,
    /// Number of cached writes that start before direct writes have their turn.
    turns: usize,
}

/// What becomes of a write.
#[derive(Debug)]
pub(super) enum Entry {
    /// It starts now.
    Starts(Op),
    /// It waits for its turn under this ticket.
    Waits(u64),
}

/// The writes of a file that start now, by ticket.
#[derive(Debug)]
pub(super) enum Next {
    None,
    /// One through the page cache.
    Through(u64, Op),
    /// All direct writes that have waited.
    Around(BTreeMap<u64, Op>),
}

impl FileWrites {
    fn is_busy(&self) -> bool {
        self.is_writing || self.around > 0
    }

    fn is_waited_for(&self) -> bool {
        !self.through_waits.is_empty() || !self.around_waits.is_empty()
    }
}

impl Writers {
    /// With the state of callers that write small ranges of the same files.
    pub(super) fn new(small: Arc<SmallWrites>) -> Self {
        Self { small, ..Self::default() }
    }

    /// The state shared with callers that write small ranges themselves.
    pub(super) fn small(&self) -> &Arc<SmallWrites> {
        &self.small
    }

    /// Adds a write. If it waits, the caller must start [`next`](Self::next).
    pub(super) fn add(&mut self, op: Op) -> Entry {
        let writes = self.files.entry(op.file.identity()).or_default();
        let (is_busy, is_waited_for) = (writes.is_busy(), writes.is_waited_for());
        let is_cached = op.is_cached_write();
        if is_cached && !is_busy && !is_waited_for {
            writes.is_writing = true;
            return Entry::Starts(op);
        }
        if !is_cached && writes.around > 0 && !is_waited_for {
            writes.around += 1;
            return Entry::Starts(op);
        }
        let waits = if is_cached { &mut writes.through_waits } else { &mut writes.around_waits };
        let ticket = self.waited;
        waits.insert(ticket, op);
        self.waited += 1;
        Entry::Waits(ticket)
    }

    /// Uncounts a completed write. The caller must start [`next`](Self::next).
    pub(super) fn end(&mut self, op: &Op) {
        let file = op.file.identity();
        let Some(writes) = self.files.get_mut(&file) else { return };
        if op.is_cached_write() {
            writes.is_writing = false;
            return;
        }
        writes.around -= 1;
        if writes.around == 0 {
            writes.turns = writes.through_waits.len();
            self.small.end_direct(file);
        }
    }

    /// Removes a write that waits. The caller must start [`next`](Self::next): it may have been the
    /// only one to wait.
    pub(super) fn remove(&mut self, file: File, ticket: u64) -> Option<Op> {
        let writes = self.files.get_mut(&file)?;
        let op = writes.through_waits.remove(&ticket);
        let op = op.or_else(|| writes.around_waits.remove(&ticket));
        writes.turns = writes.turns.min(writes.through_waits.len());
        op
    }

    /// The files with writes that wait although none is in flight here: a caller writes them.
    pub(super) fn waiting_for_callers(&self) -> Vec<File> {
        let waits = |writes: &FileWrites| !writes.is_busy() && writes.is_waited_for();
        self.files.iter().filter(|(_, writes)| waits(writes)).map(|(file, _)| *file).collect()
    }

    /// Takes a file's next writes if none is in flight.
    pub(super) fn next(&mut self, file: File) -> Next {
        let idle = self.files.get_mut(&file).filter(|writes| !writes.is_busy());
        let Some(writes) = idle else { return Next::None };
        if writes.turns > 0 || writes.around_waits.is_empty() {
            writes.turns = writes.turns.saturating_sub(1);
            if let Some((ticket, op)) = writes.through_waits.pop_first() {
                writes.is_writing = true;
                return Next::Through(ticket, op);
            }
        }
        if writes.around_waits.is_empty() {
            self.files.remove(&file);
        } else if self.small.begin_direct(file) {
            let ops = std::mem::take(&mut writes.around_waits);
            writes.around = ops.len();
            return Next::Around(ops);
        }
        Next::None
    }

    /// All waiting writes.
    #[cfg(test)]
    pub(super) fn waiting(&self) -> impl Iterator<Item = &Op> {
        let maps = self.files.values().flat_map(|file| [&file.through_waits, &file.around_waits]);
        maps.flat_map(BTreeMap::values)
    }

    #[cfg(test)]
    pub(super) fn is_empty(&self) -> bool {
        self.files.is_empty()
    }

    /// Panics unless each file has one write through the page cache or any number of direct writes.
    /// `writes`: for each file, the writes of both kinds that are queued or in flight.
    #[cfg(test)]
    pub(super) fn check(&self, mut writes: HashMap<File, [usize; 2]>) {
        for (file, state) in &self.files {
            let found = writes.remove(file).unwrap_or_default();
            assert_eq!(found, [usize::from(state.is_writing), state.around], "{state:?}");
            // Nothing is in flight if direct writes wait for a caller's write.
            let waits_for_caller = found == [0, 0] && !state.around_waits.is_empty();
            assert!((found[0] > 0) != (found[1] > 0) || waits_for_caller, "{state:?}");
        }
        assert!(writes.is_empty(), "writes that no list knows of: {writes:?}");
    }
}
