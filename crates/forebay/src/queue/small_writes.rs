//! Writes through the page cache that callers make by themselves, and the writes around it that
//! they must not meet.
//!
//! A ring's write holds the kernel's lock on the file until it is submitted, not until it is done.
//! A write through the page cache that begins in between may dirty a folio that both touch (up to
//! 2 MiB), although their ranges do not. The kernel, which is to drop that folio once the ring's
//! write is done, then cannot: old bytes stay in the page cache, and the next sync fails with EIO
//! (measured: Linux 6.18, ext4 and XFS). The scheduler orders what it moves itself by
//! [`Writers`](super::scheduler), and asks here about the rest.

use std::sync::atomic::{AtomicU64, Ordering};

/// Counts of both kinds, for files that share a place as if they were one: that costs the long way
/// and nothing else.
const PLACES: usize = 64;

/// One write of a ring, in a count whose lower half is for those of callers.
const OF_RING: u64 = 1 << 32;

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
pub(crate) struct SmallWrite<'a>(&'a Place);

impl Default for SmallWrites {
    fn default() -> Self {
        Self { places: std::array::from_fn(|_| Place::default()) }
    }
}

impl SmallWrites {
    /// Begins a caller's write of the file with this device and inode; `None` where a ring writes
    /// it.
    pub(crate) fn begin(&self, file: (u64, u64)) -> Option<SmallWrite<'_>> {
        let place = self.place(file);
        let before = place.0.fetch_add(1, Ordering::AcqRel);
        let write = SmallWrite(place);
        (before < OF_RING).then_some(write)
    }

    /// Begins a ring's write; `false`, and nothing is begun, where a caller is writing.
    pub(super) fn enter_ring(&self, file: (u64, u64)) -> bool {
        let place = self.place(file);
        let before = place.0.fetch_add(OF_RING, Ordering::AcqRel);
        let free = before.is_multiple_of(OF_RING);
        if !free {
            place.0.fetch_sub(OF_RING, Ordering::AcqRel);
        }
        free
    }

    /// Ends a ring's write.
    pub(super) fn leave_ring(&self, file: (u64, u64)) {
        self.place(file).0.fetch_sub(OF_RING, Ordering::AcqRel);
    }

    fn place(&self, (device, inode): (u64, u64)) -> &Place {
        // Inodes count up, and those of one folder have much in common: the golden ratio's bits
        // spread them.
        let spread = (inode ^ device.rotate_left(32)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let index = spread >> (u64::BITS - PLACES.ilog2());
        &self.places[usize::try_from(index).unwrap_or(0) % PLACES]
    }
}

impl Drop for SmallWrite<'_> {
    fn drop(&mut self) {
        self.0.0.fetch_sub(1, Ordering::AcqRel);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FILE: (u64, u64) = (8, 12);

    #[test]
    fn one_kind_writes_a_file_at_a_time() {
        let writes = SmallWrites::default();
        let two = [writes.begin(FILE), writes.begin(FILE)];
        assert!(two.iter().all(Option::is_some), "callers beside each other");
        assert!(!writes.enter_ring(FILE));
        drop(two);
        assert!(writes.enter_ring(FILE) && writes.enter_ring(FILE), "a ring has many");
        assert!(writes.begin(FILE).is_none());
        writes.leave_ring(FILE);
        assert!(writes.begin(FILE).is_none(), "one is still under way");
        writes.leave_ring(FILE);
        assert!(writes.begin(FILE).is_some());
    }

    #[test]
    fn files_of_one_folder_have_places_of_their_own() {
        let writes = SmallWrites::default();
        let began = (100..132).filter(|&inode| writes.enter_ring((8, inode)));
        assert_eq!(began.count(), 32);
        let free = (132..164).filter(|&inode| writes.begin((8, inode)).is_some()).count();
        assert!(free >= 8, "{free} of 32 beside 32 others");
    }
}
