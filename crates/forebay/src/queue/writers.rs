//! Turns at a file: any number of direct writes, or writes through the page cache, of which the
//! scheduler runs a single write at a time. More would only spin on the file's lock (measured: 4
//! writers, 4.7 times the CPU, no gain). While direct writes wait, no other write joins, and then
//! all of them start.
//!
//! A cached write that begins during a direct write may dirty a folio (up to 2 MiB) that both
//! touch, even if their ranges are disjoint. The kernel then cannot drop that folio after the
//! direct write. Old bytes stay in the page cache, and the next sync fails with EIO
//! (`docs/internals.md#writes-of-a-file-alternate`). The kernel's lock on the file prevents this
//! only while it is held: for io_uring and GPU drivers, until the request is submitted. Block
//! devices have no such lock.
//!
//! Callers make small cached writes themselves, without the scheduler's lock.

use std::collections::BTreeMap;
use std::mem;
use std::sync::atomic::{AtomicU64, Ordering};

use forebay_base::lock::Lock;

use super::op::Op;

/// Number of shards; files in the same shard share only its lock.
const SHARDS: usize = 64;

/// What identifies a file: its device and inode.
pub(super) type File = (u64, u64);

/// The writes of all files that are being written, in shards.
#[derive(Debug)]
pub(crate) struct Writers {
    shards: [Shard; SHARDS],
    /// Number of writes that had to wait for their turn so far.
    waited: AtomicU64,
}

/// A shard, on its own cache line, with the few files that are being written.
#[derive(Debug, Default)]
#[repr(align(64))]
struct Shard(Lock<Vec<(File, FileWrites)>>);

/// The writes of a file; idle files are not listed.
#[derive(Debug, Default)]
struct FileWrites {
    /// Number of callers that are writing the file themselves, through the page cache.
    callers: usize,
    /// True if the scheduler's write through the page cache is queued or in flight.
    is_writing: bool,
    /// Number of direct writes queued or in flight.
    direct: usize,
    /// Writes waiting for their turn, by ticket; this map for cached writes, the next for direct
    /// ones.
    cached_waits: BTreeMap<u64, Op>,
    direct_waits: BTreeMap<u64, Op>,
    /// Number of cached writes that start before direct writes have their turn.
    turns: usize,
}

/// What becomes of a write.
#[derive(Debug)]
pub(super) enum Admission {
    /// It starts now.
    Starts(Op),
    /// It waits for its turn under this ticket.
    Waits(u64),
}

/// The writes of a file that start now, by ticket.
#[derive(Debug)]
pub(super) enum Next {
    None,
    /// A single write through the page cache.
    Cached(u64, Op),
    /// All direct writes that have waited.
    Direct(BTreeMap<u64, Op>),
}

impl FileWrites {
    /// Whether the scheduler writes the file.
    fn is_busy(&self) -> bool {
        self.is_writing || self.direct > 0
    }

    fn is_waited_for(&self) -> bool {
        !self.cached_waits.is_empty() || !self.direct_waits.is_empty()
    }

    fn is_idle(&self) -> bool {
        self.callers == 0 && !self.is_busy() && !self.is_waited_for()
    }

    fn next(&mut self) -> Next {
        if self.is_busy() {
            return Next::None;
        }
        if self.turns > 0 || self.direct_waits.is_empty() {
            self.turns = self.turns.saturating_sub(1);
            if let Some((ticket, op)) = self.cached_waits.pop_first() {
                self.is_writing = true;
                return Next::Cached(ticket, op);
            }
        }
        if self.callers > 0 || self.direct_waits.is_empty() {
            return Next::None;
        }
        let ops = mem::take(&mut self.direct_waits);
        self.direct = ops.len();
        Next::Direct(ops)
    }
}

impl Default for Writers {
    fn default() -> Self {
        Self { shards: std::array::from_fn(|_| Shard::default()), waited: AtomicU64::default() }
    }
}

impl Writers {
    /// Begins a caller's write, unless a direct write is in flight or waiting.
    pub(super) fn begin(&self, file: File) -> bool {
        self.of(file, |writes| {
            let joins = writes.direct == 0 && writes.direct_waits.is_empty();
            writes.callers += usize::from(joins);
            joins
        })
    }

    /// Ends a caller's write. True if direct writes wait for it: the caller makes the scheduler
    /// start [`next`](Self::next).
    pub(super) fn end(&self, file: File) -> bool {
        self.of(file, |writes| {
            writes.callers -= 1;
            writes.callers == 0 && !writes.is_busy() && writes.is_waited_for()
        })
    }

    /// Adds a write of the scheduler. If it waits, the scheduler must start [`next`](Self::next).
    pub(super) fn add(&self, op: Op) -> Admission {
        self.of(op.file.identity(), |writes| {
            let (is_busy, is_waited_for) = (writes.is_busy(), writes.is_waited_for());
            let is_cached = op.is_cached_write();
            if is_cached && !is_busy && !is_waited_for {
                writes.is_writing = true;
                return Admission::Starts(op);
            }
            if !is_cached && writes.direct > 0 && !is_waited_for {
                writes.direct += 1;
                return Admission::Starts(op);
            }
            let ticket = self.waited.fetch_add(1, Ordering::Relaxed);
            match is_cached {
                true => writes.cached_waits.insert(ticket, op),
                false => writes.direct_waits.insert(ticket, op),
            };
            Admission::Waits(ticket)
        })
    }

    /// Uncounts a completed write of the scheduler, which must start [`next`](Self::next).
    pub(super) fn ended(&self, op: &Op) {
        self.of(op.file.identity(), |writes| {
            if op.is_cached_write() {
                writes.is_writing = false;
                return;
            }
            writes.direct -= 1;
            if writes.direct == 0 {
                writes.turns = writes.cached_waits.len();
            }
        });
    }

    /// Removes a write that waits. The scheduler must start [`next`](Self::next): it may have been
    /// the only waiting write.
    pub(super) fn remove(&self, file: File, ticket: u64) -> Option<Op> {
        self.of(file, |writes| {
            let op = writes.cached_waits.remove(&ticket);
            writes.turns = writes.turns.min(writes.cached_waits.len());
            op.or_else(|| writes.direct_waits.remove(&ticket))
        })
    }

    /// Pops a file's next writes if none is in flight.
    pub(super) fn next(&self, file: File) -> Next {
        self.of(file, FileWrites::next)
    }

    /// Changes the entry of a file, which exists only while the file is written.
    fn of<T>(&self, file: File, change: impl FnOnce(&mut FileWrites) -> T) -> T {
        let (device, inode) = file;
        // Inode numbers are sequential, and those of a folder are similar: multiplying by the
        // golden ratio spreads them.
        let spread = (inode ^ device.rotate_left(32)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let index = spread >> (u64::BITS - SHARDS.ilog2());
        let shard = &self.shards[usize::try_from(index).unwrap_or(0) % SHARDS];
        let mut files = shard.0.lock();
        let at = files.iter().position(|(other, _)| *other == file).unwrap_or_else(|| {
            files.push((file, FileWrites::default()));
            files.len() - 1
        });
        let changed = change(&mut files[at].1);
        if files[at].1.is_idle() {
            files.swap_remove(at);
        }
        changed
    }

    /// The owners of all waiting writes.
    #[cfg(test)]
    pub(super) fn waiting(&self) -> Vec<super::op::Owner> {
        let mut owners = Vec::new();
        for shard in &self.shards {
            for (_, file) in &*shard.0.lock() {
                let ops = file.cached_waits.values().chain(file.direct_waits.values());
                owners.extend(ops.map(|op| op.owner));
            }
        }
        owners
    }

    #[cfg(test)]
    pub(super) fn is_empty(&self) -> bool {
        self.shards.iter().all(|shard| shard.0.lock().is_empty())
    }

    /// Panics unless every file is written by a single write through the page cache or any number
    /// of direct writes. `writes`: the writes of both kinds that are queued or in flight, by file.
    #[cfg(test)]
    pub(super) fn check(&self, mut writes: std::collections::HashMap<File, [usize; 2]>) {
        for shard in &self.shards {
            for (file, state) in &*shard.0.lock() {
                let found = writes.remove(file).unwrap_or_default();
                assert_eq!(found, [usize::from(state.is_writing), state.direct], "{state:?}");
                // Nothing is in flight if direct writes wait for a caller's write.
                let waits_for_caller = found == [0, 0] && state.callers > 0;
                assert!((found[0] > 0) != (found[1] > 0) || waits_for_caller, "{state:?}");
            }
        }
        assert!(writes.is_empty(), "writes that no list knows of: {writes:?}");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn callers_write_at_once_and_leave_nothing_behind() {
        let writes = Writers::default();
        let file = (8, 12);
        assert!(writes.begin(file) && writes.begin(file) && writes.begin((8, 13)));
        assert!(!writes.end(file) && !writes.end(file) && !writes.end((8, 13)));
        assert!(writes.is_empty());
    }
}
