//! State that exists once per process: a forked child makes its own and leaves the parent's alone.
//!
//! A lock is not enough. Another thread may hold it while the process forks. The child lacks that
//! thread and would wait forever.

#![expect(unsafe_code, reason = "returns references to values that are never freed")]

use std::io;
use std::sync::atomic::{AtomicPtr, Ordering};

/// A value for each process, made on first use and kept until the process ends.
pub(crate) struct PerProcess<T: 'static>(AtomicPtr<Made<T>>);

struct Made<T> {
    process: u32,
    value: T,
}

impl<T: Send + Sync> PerProcess<T> {
    pub(crate) const fn new() -> Self {
        Self(AtomicPtr::new(std::ptr::null_mut()))
    }

    /// This process's value, if it has been made.
    pub(crate) fn get(&self) -> Option<&'static T> {
        self.made().filter(|made| made.process == std::process::id()).map(|made| &made.value)
    }

    /// This process's value, made if needed. If two threads make one at once, one drops its own.
    ///
    /// # Errors
    /// Those of `make`.
    pub(crate) fn get_or_make(&self, make: impl FnOnce() -> io::Result<T>) -> io::Result<&T> {
        let before = self.0.load(Ordering::Acquire);
        if let Some(value) = self.get() {
            return Ok(value);
        }
        let made = Box::into_raw(Box::new(Made { process: std::process::id(), value: make()? }));
        if self.0.compare_exchange(before, made, Ordering::AcqRel, Ordering::Acquire).is_err() {
            // SAFETY: it came from a box, and no other thread has seen it.
            drop(unsafe { Box::from_raw(made) });
        }
        Ok(self.get().expect("the first thread has made this process's"))
    }

    fn made(&self) -> Option<&'static Made<T>> {
        // SAFETY: null, or boxed in `get_or_make` and never freed once stored.
        unsafe { self.0.load(Ordering::Acquire).as_ref() }
    }
}
