//! State that exists once per process: a forked child makes its own and leaves the parent's alone.
//!
//! A static lock, or a static that is initialized on first use, is not enough. Another thread may
//! hold the lock or run the initialization while the process forks. The child lacks that thread and
//! would wait forever.

#![expect(unsafe_code, reason = "returns references to values that are never freed")]

use std::convert::Infallible;
use std::fmt;
use std::ptr;
use std::sync::atomic::{AtomicPtr, Ordering};

use crate::process::Home;

/// A value per process, made on first use and kept until the process ends: for statics.
pub struct PerProcess<T: 'static>(AtomicPtr<Made<T>>);

struct Made<T> {
    home: Home,
    value: T,
}

impl<T: Send + Sync> PerProcess<T> {
    /// No value yet.
    pub const fn new() -> Self {
        Self(AtomicPtr::new(ptr::null_mut()))
    }

    /// This process's value, if it was made.
    pub fn get(&self) -> Option<&'static T> {
        self.made().filter(|made| made.home.is_here()).map(|made| &made.value)
    }

    /// The value of the process that this one was forked from, with its process id, if that process
    /// had made one and this one has not.
    pub fn inherited(&self) -> Option<(u32, &'static T)> {
        let made = self.made().filter(|made| !made.home.is_here())?;
        Some((made.home.number(), &made.value))
    }

    /// This process's value, made if needed. If two threads make one at once, one drops its own.
    ///
    /// # Errors
    /// Those of `make`.
    pub fn get_or_make<E>(&self, make: impl FnOnce() -> Result<T, E>) -> Result<&'static T, E> {
        let before = self.0.load(Ordering::Acquire);
        if let Some(value) = self.get() {
            return Ok(value);
        }
        let made = Box::into_raw(Box::new(Made { home: Home::here(), value: make()? }));
        if self.0.compare_exchange(before, made, Ordering::AcqRel, Ordering::Acquire).is_err() {
            // SAFETY: it came from a box, and no other thread has seen it.
            drop(unsafe { Box::from_raw(made) });
        }
        // Whichever thread stored a value, it was one of this process.
        Ok(self.get().expect("this process's value has been stored"))
    }

    /// As [`get_or_make`](Self::get_or_make), for a value that can always be made.
    pub fn get_or_init(&self, make: impl FnOnce() -> T) -> &'static T {
        let Ok(value) = self.get_or_make(|| Ok::<_, Infallible>(make()));
        value
    }

    fn made(&self) -> Option<&'static Made<T>> {
        // SAFETY: null, or boxed in `get_or_make` and never freed once stored.
        unsafe { self.0.load(Ordering::Acquire).as_ref() }
    }
}

impl<T: Send + Sync> Default for PerProcess<T> {
    fn default() -> Self {
        Self::new()
    }
}

impl<T: Send + Sync + fmt::Debug> fmt::Debug for PerProcess<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("PerProcess").field(&self.get()).finish()
    }
}

#[cfg(test)]
mod tests {
    use std::io;

    use super::*;

    #[test]
    fn a_value_is_made_once() {
        static VALUE: PerProcess<i32> = PerProcess::new();
        let value = &VALUE;
        assert!(value.get().is_none() && value.inherited().is_none());
        assert!(value.get_or_make(|| Err(io::ErrorKind::Other)).is_err());
        assert_eq!(*value.get_or_init(|| 7), 7);
        assert_eq!(*value.get_or_init(|| 8), 7);
        assert!(value.inherited().is_none());
    }
}
