//! Detects forked children of the process that made an object. A child has a copy of all memory,
//! but none of the threads that may hold the locks in it, no pinned memory, and no access to the
//! GPU driver's state. So the parent's objects refuse calls in a child, and dropping them there
//! does nothing.
//!
//! Detection uses one page marked `MADV_WIPEONFORK` (Linux 4.14), which the kernel zeroes in every
//! child. So a check costs a load, and no kind of fork escapes it.

#![expect(unsafe_code, reason = "maps the page that the kernel wipes")]

use std::fmt;
use std::mem::ManuallyDrop;
use std::ops::Deref;
use std::ptr;
use std::sync::atomic::{AtomicPtr, AtomicU32, Ordering};
use std::sync::{Arc, Weak};

use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap_anonymous, munmap};
use rustix::process::{Pid, getpid};

/// The page that holds this process's mark, or null. A single page serves all objects: with a page
/// per object, 35,000 buffers reached the kernel's bound on mappings, and no library of the process
/// could map memory any more.
static PAGE: AtomicPtr<AtomicU32> = AtomicPtr::new(ptr::null_mut());

/// The mark of the next process without a mark. A child inherits the number.
static NEXT: AtomicU32 = AtomicU32::new(1);

/// Identifies the process in which an object was made.
pub struct Home {
    /// The page, and the mark there. `None` if the kernel cannot wipe pages; process ids are
    /// compared then.
    mark: Option<(&'static AtomicU32, u32)>,
    process: Pid,
}

impl Home {
    /// The calling process.
    pub fn here() -> Self {
        Self { mark: wiped_page().map(|page| (page, mark(page))), process: getpid() }
    }

    /// Whether the calling process is this one and not a child of it.
    #[inline]
    pub fn is_here(&self) -> bool {
        match self.mark {
            Some((page, mark)) => page.load(Ordering::Relaxed) == mark,
            None => getpid() == self.process,
        }
    }

    /// The process id.
    pub fn number(&self) -> u32 {
        self.process.as_raw_nonzero().get().unsigned_abs()
    }
}

impl fmt::Debug for Home {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Home({})", self.number())
    }
}

/// The mark of this process. A child begins with none, and takes one that no ancestor has.
fn mark(page: &AtomicU32) -> u32 {
    match page.load(Ordering::Acquire) {
        0 => {
            // Before it is stored: a child that is forked in between takes the next one.
            let new = NEXT.fetch_add(1, Ordering::Relaxed);
            let stored = page.compare_exchange(0, new, Ordering::AcqRel, Ordering::Acquire);
            stored.map_or_else(|known| known, |_| new)
        }
        known => known,
    }
}

/// The page, which reads as zero in every new child. Acquires no lock: a child may have been forked
/// while a second thread held it.
fn wiped_page() -> Option<&'static AtomicU32> {
    // SAFETY: a page that is stored here is mapped for good, in children too.
    if let Some(page) = unsafe { PAGE.load(Ordering::Acquire).as_ref() } {
        return Some(page);
    }
    let (len, access) = (rustix::param::page_size(), ProtFlags::READ | ProtFlags::WRITE);
    // SAFETY: a new private mapping at an address of the kernel's choice affects no existing
    // memory.
    let page = unsafe { mmap_anonymous(ptr::null_mut(), len, access, MapFlags::PRIVATE) };
    let page = page.ok()?;
    // SAFETY: the mapping was just made, and no other code has its address.
    let is_wiped = unsafe { madvise(page, len, Advice::LinuxWipeOnFork) }.is_ok();
    let (none, set) = (ptr::null_mut(), page.cast());
    let is_stored =
        is_wiped && PAGE.compare_exchange(none, set, Ordering::AcqRel, Ordering::Acquire).is_ok();
    if !is_stored {
        // SAFETY: as above.
        let _ = unsafe { munmap(page, len) };
    }
    // SAFETY: as above; another thread may have stored its page first.
    unsafe { PAGE.load(Ordering::Acquire).as_ref() }
}

/// An object that knows the process in which it was made.
pub trait Housed {
    /// The process in which it was made.
    fn home(&self) -> &Home;
}

/// An `Arc` that is never dropped in a forked child. Dropping it there could wait for locks whose
/// holders do not exist, and would release resources of the parent.
#[derive(Debug)]
pub struct ProcessLocal<T: Housed>(ManuallyDrop<Arc<T>>);

impl<T: Housed> ProcessLocal<T> {
    /// Shares `it`.
    pub fn new(it: T) -> Self {
        Self(ManuallyDrop::new(Arc::new(it)))
    }

    /// Shares `it` again.
    #[must_use]
    pub fn of(it: Arc<T>) -> Self {
        Self(ManuallyDrop::new(it))
    }

    /// The value if `this` is its last share, otherwise `this`. In the process that made it.
    ///
    /// # Errors
    /// `this`.
    pub fn into_inner(this: Self) -> Result<T, Self> {
        let mut this = ManuallyDrop::new(this);
        // SAFETY: taken once, here, since `this` is not dropped.
        let share = unsafe { ManuallyDrop::take(&mut this.0) };
        Arc::try_unwrap(share).map_err(Self::of)
    }

    /// A share that does not keep it.
    #[must_use]
    pub fn downgrade(this: &Self) -> Weak<T> {
        Arc::downgrade(&this.0)
    }
}

impl<T: Housed> Clone for ProcessLocal<T> {
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}

impl<T: Housed> Deref for ProcessLocal<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.0
    }
}

impl<T: Housed> Drop for ProcessLocal<T> {
    fn drop(&mut self) {
        if self.home().is_here() {
            // SAFETY: dropped once, here.
            unsafe { ManuallyDrop::drop(&mut self.0) };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_creating_process_is_at_home() {
        let home = Home::here();
        assert!(home.is_here());
        let old = Home { mark: None, process: getpid() };
        assert!(old.is_here(), "by its number as well");
        assert!(!Home { mark: None, process: Pid::INIT }.is_here());
        assert_eq!(home.mark.map(|(_, mark)| mark), Home::here().mark.map(|(_, mark)| mark));
    }

    #[test]
    fn a_page_without_the_mark_is_a_childs() {
        // The page of a child is zero, and its objects have another mark than the parent's.
        let page: &'static AtomicU32 = Box::leak(Box::default());
        let home = |page| Home { mark: Some((page, mark(page))), process: getpid() };
        let parents = home(page);
        assert!(parents.is_here());
        page.store(0, Ordering::Relaxed);
        assert!(!parents.is_here());
        let childs = home(page);
        assert!(childs.is_here() && !parents.is_here());
    }

    #[test]
    fn a_share_is_given_back_at_home_only() {
        #[derive(Debug)]
        struct Thing(Home);
        impl Housed for Thing {
            fn home(&self) -> &Home {
                &self.0
            }
        }
        let share = ProcessLocal::new(Thing(Home::here()));
        let count = || Arc::strong_count(&share.0);
        let other = share.clone();
        assert_eq!(count(), 2);
        drop(other);
        assert_eq!(count(), 1);
        let away = ProcessLocal::new(Thing(Home { mark: None, process: Pid::INIT }));
        let watched = Arc::downgrade(&away.0);
        drop(away);
        assert!(watched.upgrade().is_some(), "a child's copy stays");
    }
}
