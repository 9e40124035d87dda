//! Detects forked children of the process that made an object. A child has a copy of all memory,
//! but none of the threads that may hold the locks in it, no pinned memory, and no access to the
//! GPU driver's state. So the parent's objects refuse calls in a child, and dropping them there
//! does nothing.
//!
//! Detection uses a page marked `MADV_WIPEONFORK` (Linux 4.14), which the kernel zeroes in every
//! child. So a check costs one load, and no kind of fork escapes it.

#![expect(unsafe_code, reason = "maps the page that the kernel wipes")]

use std::fmt;
use std::mem::ManuallyDrop;
use std::ops::Deref;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Weak};

use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap_anonymous, munmap};
use rustix::process::{Pid, getpid};

/// Value in the page of the process that mapped it.
const MARK: u32 = 1;

/// Identifies the process in which an object was made.
pub struct Home {
    /// `None` if the kernel cannot wipe pages; process ids are compared then.
    page: Option<NonNull<AtomicU32>>,
    process: Pid,
}

// SAFETY: the page holds an atomic number, and is unmapped when this is dropped.
unsafe impl Send for Home {}
// SAFETY: as above.
unsafe impl Sync for Home {}

impl Home {
    /// The calling process.
    pub fn here() -> Self {
        Self { page: wiped_page(), process: getpid() }
    }

    /// Whether the calling process is this one and not a child of it.
    #[inline]
    pub fn is_here(&self) -> bool {
        match self.page {
            // SAFETY: the page is mapped as long as `self` lives, also in a child.
            Some(page) => unsafe { page.as_ref() }.load(Ordering::Relaxed) == MARK,
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

impl Drop for Home {
    fn drop(&mut self) {
        if let Some(page) = self.page {
            // SAFETY: the mapping was made in `wiped_page`, also exists in a child, and is unmapped
            // once.
            let _ = unsafe { munmap(page.as_ptr().cast(), rustix::param::page_size()) };
        }
    }
}

/// A page with the mark, which reads as zero in every child.
fn wiped_page() -> Option<NonNull<AtomicU32>> {
    let (len, access) = (rustix::param::page_size(), ProtFlags::READ | ProtFlags::WRITE);
    // SAFETY: a new private mapping at an address of the kernel's choice affects no existing
    // memory.
    let page = unsafe { mmap_anonymous(std::ptr::null_mut(), len, access, MapFlags::PRIVATE) };
    let page = page.ok()?;
    // SAFETY: the mapping was just made, and no other code has its address.
    if unsafe { madvise(page, len, Advice::LinuxWipeOnFork) }.is_err() {
        // SAFETY: as above.
        let _ = unsafe { munmap(page, len) };
        return None;
    }
    let page = NonNull::new(page.cast::<AtomicU32>())?;
    // SAFETY: mapped, zero, and page-aligned.
    unsafe { page.as_ref() }.store(MARK, Ordering::Relaxed);
    Some(page)
}

/// An object that knows the process in which it was made.
pub trait Housed {
    /// The process in which it was made.
    fn home(&self) -> &Home;
}

/// An `Arc` that is never dropped in a forked child. Dropping it there could wait for locks whose
/// holders do not exist, and would release resources of the parent.
#[derive(Debug)]
pub struct Kept<T: Housed>(ManuallyDrop<Arc<T>>);

impl<T: Housed> Kept<T> {
    /// Shares `it`.
    pub fn new(it: T) -> Self {
        Self(ManuallyDrop::new(Arc::new(it)))
    }

    /// Shares `it` again.
    #[must_use]
    pub fn of(it: Arc<T>) -> Self {
        Self(ManuallyDrop::new(it))
    }

    /// A share that does not keep it.
    #[must_use]
    pub fn downgrade(this: &Self) -> Weak<T> {
        Arc::downgrade(&this.0)
    }

    /// Whether there is no other share at the moment.
    #[must_use]
    pub fn is_last(&self) -> bool {
        Arc::strong_count(&self.0) == 1
    }
}

impl<T: Housed> Clone for Kept<T> {
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}

impl<T: Housed> Deref for Kept<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.0
    }
}

impl<T: Housed> Drop for Kept<T> {
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
        let old = Home { page: None, process: getpid() };
        assert!(old.is_here(), "by its number as well");
        assert!(!Home { page: None, process: Pid::INIT }.is_here());
    }

    #[test]
    fn a_page_without_the_mark_is_a_childs() {
        let home = Home::here();
        let Some(page) = home.page else { return println!("skipped: the kernel wipes no page") };
        // SAFETY: as in `is_here`.
        unsafe { page.as_ref() }.store(0, Ordering::Relaxed);
        assert!(!home.is_here());
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
        let share = Kept::new(Thing(Home::here()));
        let count = || Arc::strong_count(&share.0);
        let other = share.clone();
        assert_eq!(count(), 2);
        assert!(!share.is_last());
        drop(other);
        assert!(count() == 1 && share.is_last());
        let away = Kept::new(Thing(Home { page: None, process: Pid::INIT }));
        let watched = Arc::downgrade(&away.0);
        drop(away);
        assert!(watched.upgrade().is_some(), "a child's copy stays");
    }
}
