//! Writes through the page cache that callers make by themselves, and the writes around it that
//! they must not meet.
//!
//! A write through the page cache that begins while one around it is on its way may dirty a folio
//! that both touch (up to 2 MiB), although their ranges do not. The kernel, which is to drop that
//! folio once the other is done, then cannot: old bytes stay in the page cache, and the next sync
//! fails with EIO (measured: Linux 6.18, ext4 and XFS). Its lock on the file prevents that only as
//! long as it is held: for what io_uring or a GPU's driver does until that is submitted, for block
//! devices not at all. The scheduler keeps those apart that pass it (`Writers`), and asks here
//! about the rest.

use std::sync::atomic::{AtomicU64, Ordering};

use super::core::Core;

/// Counts of both kinds. Files that share one are taken for the same, which costs them time alone.
const PLACES: usize = 256;

/// In each count: callers' writes below, then whether one around the page cache waits for their
/// end, and writes around it above.
const WAITED: u64 = 1 << 31;
const AROUND: u64 = 1 << 32;

/// What identifies a file: its device and inode.
type File = (u64, u64);

/// See the module's own text.
#[derive(Debug)]
pub(crate) struct SmallWrites {
    places: [Place; PLACES],
}

/// A cache line of its own.
#[derive(Debug, Default)]
#[repr(align(64))]
struct Place(AtomicU64);

/// A caller's write that is under way; over when it is dropped.
#[derive(Debug)]
pub(crate) struct SmallWrite<'a> {
    core: &'a Core,
    file: File,
}

impl<'a> SmallWrite<'a> {
    /// Begins one; `None` where the file is being written around the page cache, or is about to be.
    pub(crate) fn begin(core: &'a Core, file: File) -> Option<Self> {
        core.small_writes().begin(file).then_some(Self { core, file })
    }
}

impl Drop for SmallWrite<'_> {
    fn drop(&mut self) {
        if self.core.small_writes().end(self.file) {
            self.core.with(super::scheduler::Scheduler::small_writes_ended);
        }
    }
}

impl Default for SmallWrites {
    fn default() -> Self {
        Self { places: std::array::from_fn(|_| Place::default()) }
    }
}

impl SmallWrites {
    /// Begins a caller's write, unless one around the page cache is there or waits.
    pub(super) fn begin(&self, file: File) -> bool {
        let place = &self.place(file).0;
        let more = |count: u64| (count < WAITED - 1).then_some(count + 1);
        place.fetch_update(Ordering::AcqRel, Ordering::Acquire, more).is_ok()
    }

    /// Ends a caller's write; whether it was the last that one around the page cache waits for.
    pub(super) fn end(&self, file: File) -> bool {
        let place = &self.place(file).0;
        let before = place.fetch_sub(1, Ordering::AcqRel);
        // Nobody begins where somebody waits, so nobody but the last comes here.
        let is_waited_for = before % AROUND == WAITED + 1;
        if is_waited_for {
            place.fetch_and(!WAITED, Ordering::AcqRel);
        }
        is_waited_for
    }

    /// Begins to write a file around the page cache; where callers write it, `false`: the last of
    /// them calls [`small_writes_ended`](super::scheduler::Scheduler::small_writes_ended).
    pub(super) fn begin_around(&self, file: File) -> bool {
        let place = &self.place(file).0;
        let is_written = |count: u64| !count.is_multiple_of(WAITED);
        let next = |count| Some(if is_written(count) { count | WAITED } else { count + AROUND });
        let before = place.fetch_update(Ordering::AcqRel, Ordering::Acquire, next);
        !is_written(before.unwrap_or_else(|count| count))
    }

    /// Ends that.
    pub(super) fn end_around(&self, file: File) {
        self.place(file).0.fetch_sub(AROUND, Ordering::AcqRel);
    }

    fn place(&self, (device, inode): File) -> &Place {
        // Inodes count up, and those of one folder have much in common: the golden ratio's bits
        // spread them.
        let spread = (inode ^ device.rotate_left(32)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let index = spread >> (u64::BITS - PLACES.ilog2());
        &self.places[usize::try_from(index).unwrap_or(0) % PLACES]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FILE: File = (8, 12);

    #[test]
    fn one_kind_writes_a_file_at_a_time() {
        let writes = SmallWrites::default();
        assert!(writes.begin(FILE) && writes.begin(FILE), "callers beside each other");
        assert!(!writes.begin_around(FILE));
        assert!(!writes.begin(FILE), "one waits for those that are there");
        assert!(!writes.end(FILE));
        assert!(writes.end(FILE), "the last of them");
        assert!(writes.begin_around(FILE) && writes.begin_around(FILE), "these are many");
        assert!(!writes.begin(FILE));
        writes.end_around(FILE);
        assert!(!writes.begin(FILE), "one is still under way");
        writes.end_around(FILE);
        assert!(writes.begin(FILE) && !writes.end(FILE), "nobody waits any more");
    }

    #[test]
    fn whoever_waits_is_told_once() {
        let writes = SmallWrites::default();
        assert!(writes.begin(FILE));
        assert!(!writes.begin_around(FILE) && !writes.begin_around(FILE));
        assert!(writes.end(FILE));
        assert!(writes.begin(FILE) && !writes.end(FILE));
    }

    #[test]
    fn files_of_one_folder_have_places_of_their_own() {
        let writes = SmallWrites::default();
        assert!((100..164).all(|inode| writes.begin_around((8, inode))));
        let free = (164..228).filter(|&inode| writes.begin((8, inode))).count();
        assert!(free >= 32, "{free} of 64 beside 64 others");
    }
}
