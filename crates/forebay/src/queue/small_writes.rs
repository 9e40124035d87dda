//! Writes through the page cache that callers make by themselves, and the writes around it that
//! they must not meet.
//!
//! A write through the page cache that begins while one around it is on its way may dirty a folio
//! that both touch (up to 2 MiB), although their ranges do not. The kernel, which is to drop that
//! folio once the other is done, then cannot: old bytes stay in the page cache, and the next sync
//! fails with EIO (`docs/internals/turns-at-a-file.md`). Its lock on the file prevents that only as
//! long as it is held: for what io_uring or a GPU's driver does until that is submitted, for block
//! devices not at all. The scheduler keeps those apart that pass it (`Writers`), and asks here
//! about the rest.

use std::sync::MutexGuard;

use super::core::Core;
use super::scheduler::Scheduler;
use crate::lock::Lock;

/// Places for files that are being written; those that share one wait for its lock alone.
const PLACES: usize = 64;

/// What identifies a file: its device and inode.
pub(super) type File = (u64, u64);

/// See the module's own text.
#[derive(Debug)]
pub(crate) struct SmallWrites {
    places: [Place; PLACES],
}

/// A cache line of its own, with the few files of its place that are being written.
#[derive(Debug, Default)]
#[repr(align(64))]
struct Place(Lock<Vec<Writes>>);

/// Those of one file: of one kind at a time.
#[derive(Debug)]
struct Writes {
    file: File,
    /// How many callers write it by themselves.
    callers: usize,
    /// Whether it is being written around the page cache, and whether somebody waits to do so.
    around: bool,
    waited: bool,
}

/// A caller's write that is under way; over when it is dropped.
#[derive(Debug)]
pub(crate) struct SmallWrite<'a> {
    core: &'a Core,
    file: File,
}

impl<'a> SmallWrite<'a> {
    /// Begins one; `None` where the file is being written around the page cache, or is about to be.
    pub(crate) fn begin(core: &'a Core, file: File) -> Option<Self> {
        core.small_writes().begin(file).then(|| Self { core, file })
    }
}

impl Drop for SmallWrite<'_> {
    fn drop(&mut self) {
        if self.core.small_writes().end(self.file) {
            self.core.with(Scheduler::small_writes_ended);
            self.core.small_writes().give_up(self.file);
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
        let mut place = self.place(file);
        let writes = of(&mut place, file);
        let joins = !writes.around && !writes.waited;
        writes.callers += usize::from(joins);
        joins
    }

    /// Ends a caller's write; whether it was the last that one around the page cache waits for.
    pub(super) fn end(&self, file: File) -> bool {
        let mut place = self.place(file);
        let writes = of(&mut place, file);
        writes.callers -= 1;
        let is_last = writes.callers == 0;
        let is_waited_for = is_last && writes.waited;
        if is_last && !is_waited_for {
            place.retain(|writes| writes.file != file);
        }
        is_waited_for
    }

    /// Has nobody wait for callers' writes, where those who waited have gone, or are at it.
    pub(super) fn give_up(&self, file: File) {
        let is_idle = |writes: &Writes| writes.callers == 0 && !writes.around;
        self.place(file).retain(|writes| writes.file != file || !is_idle(writes));
    }

    /// Begins to write a file around the page cache; where callers write it, `false`: the last of
    /// them calls [`Scheduler::small_writes_ended`].
    pub(super) fn begin_around(&self, file: File) -> bool {
        let mut place = self.place(file);
        let writes = of(&mut place, file);
        writes.around = writes.callers == 0;
        writes.waited = !writes.around;
        writes.around
    }

    /// Ends that.
    pub(super) fn end_around(&self, file: File) {
        self.place(file).retain(|writes| writes.file != file);
    }

    fn place(&self, (device, inode): File) -> MutexGuard<'_, Vec<Writes>> {
        // Inodes count up, and those of one folder have much in common: the golden ratio's bits
        // spread them.
        let spread = (inode ^ device.rotate_left(32)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let index = spread >> (u64::BITS - PLACES.ilog2());
        let place = &self.places[usize::try_from(index).unwrap_or(0) % PLACES];
        place.0.lock()
    }
}

/// The writes of a file, of which none may be under way.
fn of(place: &mut Vec<Writes>, file: File) -> &mut Writes {
    let found = place.iter().position(|writes| writes.file == file);
    let at = found.unwrap_or_else(|| {
        place.push(Writes { file, callers: 0, around: false, waited: false });
        place.len() - 1
    });
    &mut place[at]
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
        assert!(!writes.begin(FILE), "nobody comes before whoever waits");
        assert!(writes.begin_around(FILE) && !writes.begin(FILE));
        writes.give_up(FILE);
        assert!(!writes.begin(FILE), "it is under way");
        writes.end_around(FILE);
        assert!(writes.begin(FILE) && !writes.end(FILE), "nobody waits any more");
        assert!(writes.place(FILE).is_empty());
    }

    #[test]
    fn nobody_is_held_up_by_who_waited_and_has_gone() {
        let writes = SmallWrites::default();
        assert!(writes.begin(FILE) && !writes.begin_around(FILE) && writes.end(FILE));
        writes.give_up(FILE);
        assert!(writes.begin(FILE) && !writes.end(FILE));
    }

    #[test]
    fn files_do_not_wait_for_each_other() {
        let writes = SmallWrites::default();
        assert!((0..1000).all(|inode| writes.begin_around((8, inode))));
        assert!((1000..2000).all(|inode| writes.begin((8, inode))));
        assert!((0..1000).all(|inode| !writes.begin((8, inode))));
        (0..1000).for_each(|inode| writes.end_around((8, inode)));
        assert!((1000..2000).all(|inode| !writes.end((8, inode))));
        assert!(writes.places.iter().all(|place| place.0.lock().is_empty()));
    }
}
