//! Mutual exclusion of cached writes that callers make themselves and direct writes to the same
//! file.
//!
//! A cached write that begins during a direct write may dirty a folio (up to 2 MiB) that both
//! touch, even if their ranges are disjoint. The kernel then cannot drop that folio after the
//! direct write. Old bytes stay in the page cache, and the next sync fails with EIO
//! (`docs/internals/turns-at-a-file.md`). The kernel's lock on the file prevents this only while it
//! is held. For io_uring and GPU drivers, that is until the request is submitted; for block devices
//! there is no such lock. `Writers` orders the writes that pass the scheduler, and this module
//! covers the rest.

use forebay_base::lock::{Lock, MutexGuard};

/// Number of shards; files in the same shard share only its lock.
const SHARDS: usize = 64;

/// What identifies a file: its device and inode.
pub(super) type File = (u64, u64);

/// The files that are being written, in shards.
#[derive(Debug)]
pub(crate) struct SmallWrites {
    shards: [Shard; SHARDS],
}

/// One shard, on its own cache line, with the few files that are being written.
#[derive(Debug, Default)]
#[repr(align(64))]
struct Shard(Lock<Vec<Writes>>);

/// The writes of one file, of one kind at a time.
#[derive(Debug)]
struct Writes {
    file: File,
    /// Number of callers that are writing the file themselves.
    callers: usize,
    /// True if a direct write is in flight; and true if one waits for callers to finish.
    around: bool,
    waited: bool,
}

impl Default for SmallWrites {
    fn default() -> Self {
        Self { shards: std::array::from_fn(|_| Shard::default()) }
    }
}

impl SmallWrites {
    /// Begins a caller's write, unless a direct write is in flight or waiting.
    pub(super) fn begin(&self, file: File) -> bool {
        let mut shard = self.shard(file);
        let writes = of(&mut shard, file);
        let joins = !writes.around && !writes.waited;
        writes.callers += usize::from(joins);
        joins
    }

    /// Ends a caller's write. True if it was the last one that a direct write waits for.
    pub(super) fn end(&self, file: File) -> bool {
        let mut shard = self.shard(file);
        let writes = of(&mut shard, file);
        writes.callers -= 1;
        let is_last = writes.callers == 0;
        let is_waited_for = is_last && writes.waited;
        if is_last && !is_waited_for {
            shard.retain(|writes| writes.file != file);
        }
        is_waited_for
    }

    /// Clears the waiting flag once the direct writer has started or given up.
    pub(super) fn give_up(&self, file: File) {
        let is_idle = |writes: &Writes| writes.callers == 0 && !writes.around;
        self.shard(file).retain(|writes| writes.file != file || !is_idle(writes));
    }

    /// Begins direct writes to a file. `false` if callers are writing it: the last of them calls
    /// `Scheduler::small_writes_ended`.
    pub(super) fn begin_direct(&self, file: File) -> bool {
        let mut shard = self.shard(file);
        let writes = of(&mut shard, file);
        writes.around = writes.callers == 0;
        writes.waited = !writes.around;
        writes.around
    }

    /// Ends the direct writes to a file.
    pub(super) fn end_direct(&self, file: File) {
        self.shard(file).retain(|writes| writes.file != file);
    }

    fn shard(&self, (device, inode): File) -> MutexGuard<'_, Vec<Writes>> {
        // Inode numbers are sequential, and those of one folder are similar: multiplying by the
        // golden ratio spreads them.
        let spread = (inode ^ device.rotate_left(32)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let index = spread >> (u64::BITS - SHARDS.ilog2());
        let shard = &self.shards[usize::try_from(index).unwrap_or(0) % SHARDS];
        shard.0.lock()
    }
}

/// The entry of a file, created if there is none.
fn of(shard: &mut Vec<Writes>, file: File) -> &mut Writes {
    let found = shard.iter().position(|writes| writes.file == file);
    let at = found.unwrap_or_else(|| {
        shard.push(Writes { file, callers: 0, around: false, waited: false });
        shard.len() - 1
    });
    &mut shard[at]
}

#[cfg(test)]
mod tests {
    use super::*;

    const FILE: File = (8, 12);

    #[test]
    fn one_kind_writes_a_file_at_a_time() {
        let writes = SmallWrites::default();
        assert!(writes.begin(FILE) && writes.begin(FILE), "callers beside each other");
        assert!(!writes.begin_direct(FILE));
        assert!(!writes.begin(FILE), "one waits for those that are there");
        assert!(!writes.end(FILE));
        assert!(writes.end(FILE), "the last of them");
        assert!(!writes.begin(FILE), "nobody comes before whoever waits");
        assert!(writes.begin_direct(FILE) && !writes.begin(FILE));
        writes.give_up(FILE);
        assert!(!writes.begin(FILE), "it is under way");
        writes.end_direct(FILE);
        assert!(writes.begin(FILE) && !writes.end(FILE), "nobody waits any more");
        assert!(writes.shard(FILE).is_empty());
    }

    #[test]
    fn a_waiter_that_has_left_blocks_no_caller() {
        let writes = SmallWrites::default();
        assert!(writes.begin(FILE) && !writes.begin_direct(FILE) && writes.end(FILE));
        writes.give_up(FILE);
        assert!(writes.begin(FILE) && !writes.end(FILE));
    }

    #[test]
    fn files_do_not_wait_for_each_other() {
        let writes = SmallWrites::default();
        assert!((0..1000).all(|inode| writes.begin_direct((8, inode))));
        assert!((1000..2000).all(|inode| writes.begin((8, inode))));
        assert!((0..1000).all(|inode| !writes.begin((8, inode))));
        (0..1000).for_each(|inode| writes.end_direct((8, inode)));
        assert!((1000..2000).all(|inode| !writes.end((8, inode))));
        assert!(writes.shards.iter().all(|shard| shard.0.lock().is_empty()));
    }
}
