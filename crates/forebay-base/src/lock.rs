//! Locks that ignore poisoning, for values that are valid at every moment: a number, a cache, a
//! list that each change leaves complete. A thread that panics under such a lock has made its whole
//! change or none of it, so the next thread may continue.
//!
//! If several values change together, a panic may leave them half-changed. They use a plain
//! `Mutex`: a thread that finds it poisoned fails everything that depends on them.

use std::sync::{LockResult, Mutex, MutexGuard, PoisonError, TryLockError};

/// A mutex that ignores poisoning.
#[derive(Debug, Default)]
pub struct Lock<T>(Mutex<T>);

impl<T> Lock<T> {
    /// A lock over `value`.
    pub const fn new(value: T) -> Self {
        Self(Mutex::new(value))
    }

    /// Blocks until the lock is free, and holds it.
    pub fn lock(&self) -> MutexGuard<'_, T> {
        woken(self.0.lock())
    }

    /// Holds the lock if it is free now.
    pub fn try_lock(&self) -> Option<MutexGuard<'_, T>> {
        match self.0.try_lock() {
            Ok(held) => Some(held),
            Err(TryLockError::Poisoned(poisoned)) => Some(poisoned.into_inner()),
            Err(TryLockError::WouldBlock) => None,
        }
    }

    /// The value; the exclusive reference proves that the lock is free.
    pub fn get_mut(&mut self) -> &mut T {
        woken(self.0.get_mut())
    }
}

/// Unwraps the result of a wait on such a lock, or of a `RwLock` over such a value.
pub fn woken<T>(locked: LockResult<T>) -> T {
    locked.unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use std::panic::{AssertUnwindSafe, catch_unwind};

    use super::*;

    #[test]
    fn a_panic_under_a_lock_leaves_it_open() {
        let lock = Lock::new(7);
        let panics = || {
            let _held = lock.lock();
            panic!("under the lock")
        };
        let ended: Result<(), _> = catch_unwind(AssertUnwindSafe(panics));
        assert!(ended.is_err());
        assert_eq!(lock.try_lock().map(|held| *held), Some(7));
        assert_eq!(*lock.lock(), 7);
    }
}
