//! Locks whose order is checked in builds with debug assertions
//! (`docs/decisions.md#0037-debug-builds-check-the-order-of-locks`).
//!
//! [`Lock`] ignores poisoning. It is for values that are valid at every moment: a number, a cache,
//! a list that each change leaves complete. A thread that panics under such a lock has made its
//! whole change or none of it, so the next thread may continue.
//!
//! If several values change together, a panic may leave them half-changed. They use a [`Mutex`]: a
//! thread that finds it poisoned fails everything that depends on them.
//!
//! The types have the methods of the standard library's, as far as they are used.

use std::ops::{Deref, DerefMut};
use std::sync::{self, LockResult, PoisonError, TryLockError, TryLockResult, WaitTimeoutResult};
use std::time::Duration;

use order::Held;

/// A mutex that reports poisoning.
#[derive(Debug, Default)]
pub struct Mutex<T>(sync::Mutex<T>);

/// Holds a [`Mutex`] or a [`Lock`] until it is dropped.
#[derive(Debug)]
#[must_use = "the lock is released at once"]
pub struct MutexGuard<'a, T> {
    guard: sync::MutexGuard<'a, T>,
    held: Held,
}

impl<T> Mutex<T> {
    /// A mutex over `value`.
    pub const fn new(value: T) -> Self {
        Self(sync::Mutex::new(value))
    }

    /// Blocks until the mutex is free, and holds it.
    ///
    /// # Errors
    /// A thread panicked while it held the mutex; the error has the guard.
    ///
    /// # Panics
    /// With debug assertions, if this order of locks contradicts an earlier order.
    pub fn lock(&self) -> LockResult<MutexGuard<'_, T>> {
        let held = Held::after_others::<T>();
        with(self.0.lock(), held)
    }

    /// Holds the mutex if it is free now.
    ///
    /// # Errors
    /// It is not free, or as for [`lock`](Self::lock).
    pub fn try_lock(&self) -> TryLockResult<MutexGuard<'_, T>> {
        let held = |guard| MutexGuard { guard, held: Held::at_once::<T>() };
        match self.0.try_lock() {
            Ok(guard) => Ok(held(guard)),
            Err(TryLockError::WouldBlock) => Err(TryLockError::WouldBlock),
            Err(TryLockError::Poisoned(poisoned)) => {
                Err(PoisonError::new(held(poisoned.into_inner())).into())
            }
        }
    }

    /// Makes later locks succeed after a panic under the mutex.
    pub fn clear_poison(&self) {
        self.0.clear_poison();
    }
}

impl<T> Deref for MutexGuard<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.guard
    }
}

impl<T> DerefMut for MutexGuard<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        &mut self.guard
    }
}

fn with<T>(
    locked: LockResult<sync::MutexGuard<'_, T>>,
    held: Held,
) -> LockResult<MutexGuard<'_, T>> {
    match locked {
        Ok(guard) => Ok(MutexGuard { guard, held }),
        Err(poisoned) => Err(PoisonError::new(MutexGuard { guard: poisoned.into_inner(), held })),
    }
}

/// A mutex that ignores poisoning.
#[derive(Debug, Default)]
pub struct Lock<T>(Mutex<T>);

impl<T> Lock<T> {
    /// A lock over `value`.
    pub const fn new(value: T) -> Self {
        Self(Mutex::new(value))
    }

    /// Blocks until the lock is free, and holds it.
    ///
    /// # Panics
    /// With debug assertions, if this order of locks contradicts an earlier order.
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
        woken(self.0.0.get_mut())
    }
}

/// Lets threads wait under a lock of this module.
#[derive(Debug, Default)]
pub struct Condvar(sync::Condvar);

impl Condvar {
    /// A condition variable without waiting threads.
    #[must_use]
    pub const fn new() -> Self {
        Self(sync::Condvar::new())
    }

    /// Releases the lock, blocks until notified, and acquires the lock again.
    ///
    /// # Errors
    /// As for [`Mutex::lock`].
    pub fn wait<'a, T>(&self, guard: MutexGuard<'a, T>) -> LockResult<MutexGuard<'a, T>> {
        let MutexGuard { guard, held } = guard;
        drop(held);
        let locked = self.0.wait(guard);
        with(locked, Held::at_once::<T>())
    }

    /// Like [`wait`](Self::wait), at most for `bound`.
    ///
    /// # Errors
    /// As for [`Mutex::lock`].
    pub fn wait_timeout<'a, T>(
        &self,
        guard: MutexGuard<'a, T>,
        bound: Duration,
    ) -> LockResult<(MutexGuard<'a, T>, WaitTimeoutResult)> {
        self.wait_timeout_by(guard, |condvar, guard| condvar.wait_timeout(guard, bound))
    }

    /// Waits as long as `pending` is true, at most for `bound`.
    ///
    /// # Errors
    /// As for [`Mutex::lock`].
    pub fn wait_timeout_while<'a, T>(
        &self,
        guard: MutexGuard<'a, T>,
        bound: Duration,
        pending: impl FnMut(&mut T) -> bool,
    ) -> LockResult<(MutexGuard<'a, T>, WaitTimeoutResult)> {
        self.wait_timeout_by(guard, |condvar, guard| {
            condvar.wait_timeout_while(guard, bound, pending)
        })
    }

    fn wait_timeout_by<'a, T>(
        &self,
        guard: MutexGuard<'a, T>,
        wait: impl FnOnce(
            &sync::Condvar,
            sync::MutexGuard<'a, T>,
        ) -> LockResult<(sync::MutexGuard<'a, T>, WaitTimeoutResult)>,
    ) -> LockResult<(MutexGuard<'a, T>, WaitTimeoutResult)> {
        let MutexGuard { guard, held } = guard;
        drop(held);
        let locked = wait(&self.0, guard);
        let held = Held::at_once::<T>();
        match locked {
            Ok((guard, late)) => Ok((MutexGuard { guard, held }, late)),
            Err(poisoned) => {
                let (guard, late) = poisoned.into_inner();
                Err(PoisonError::new((MutexGuard { guard, held }, late)))
            }
        }
    }

    /// Wakes a waiting thread.
    pub fn notify_one(&self) {
        self.0.notify_one();
    }

    /// Wakes all waiting threads.
    pub fn notify_all(&self) {
        self.0.notify_all();
    }
}

/// Unwraps the result of a wait on such a lock, or of a `RwLock` over such a value.
pub fn woken<T>(locked: LockResult<T>) -> T {
    locked.unwrap_or_else(PoisonError::into_inner)
}

/// Records which kinds of locks are acquired under which. A kind is the type of a lock's value; a
/// lock that protects no value needs a type of its own. If two kinds are acquired in both orders,
/// threads can deadlock. Nothing here blocks, so a forked child can use it.
#[cfg(debug_assertions)]
mod order {
    use std::any::type_name;
    use std::cell::RefCell;
    use std::collections::BTreeSet;
    use std::sync::Mutex;

    type Kind = &'static str;

    thread_local! {
        static HELD: RefCell<Vec<Kind>> = const { RefCell::new(Vec::new()) };
        /// The orders that this thread has recorded.
        static KNOWN: RefCell<BTreeSet<(Kind, Kind)>> = const { RefCell::new(BTreeSet::new()) };
    }

    /// All orders: the second kind was acquired under the first.
    static ORDERS: Mutex<BTreeSet<(Kind, Kind)>> = Mutex::new(BTreeSet::new());

    /// A lock that this thread holds.
    #[derive(Debug)]
    pub(super) struct Held(Kind);

    impl Held {
        /// Records a lock that the thread may block on.
        pub(super) fn after_others<T>() -> Self {
            let kind = type_name::<T>();
            // A panic hook may acquire locks, so nothing is borrowed while an order is recorded.
            let held = HELD.try_with(|held| held.borrow().clone()).unwrap_or_default();
            held.iter().filter(|other| **other != kind).for_each(|other| record(other, kind));
            Self::at_once::<T>()
        }

        /// Records a lock that the thread got without blocking, or acquires again after a wait.
        pub(super) fn at_once<T>() -> Self {
            let kind = type_name::<T>();
            let _ = HELD.try_with(|held| held.borrow_mut().push(kind));
            Self(kind)
        }
    }

    impl Drop for Held {
        fn drop(&mut self) {
            let _ = HELD.try_with(|held| {
                let mut held = held.borrow_mut();
                if let Some(at) = held.iter().rposition(|kind| *kind == self.0) {
                    held.remove(at);
                }
            });
        }
    }

    fn record(first: Kind, second: Kind) {
        let is_known = |known: &RefCell<BTreeSet<_>>| known.borrow().contains(&(first, second));
        if KNOWN.try_with(is_known).unwrap_or(true) {
            return;
        }
        // If a second thread records now, this order is recorded the next time.
        let Ok(mut orders) = ORDERS.try_lock() else { return };
        let contradicts = leads_to(&orders, second, first);
        if !contradicts {
            orders.insert((first, second));
        }
        drop(orders);
        assert!(!contradicts, "`{second}` is locked under `{first}`, and the other way round");
        let _ = KNOWN.try_with(|known| known.borrow_mut().insert((first, second)));
    }

    /// True if a lock of kind `to` was acquired under a lock of kind `from`, directly or through
    /// further locks.
    fn leads_to(orders: &BTreeSet<(Kind, Kind)>, from: Kind, to: Kind) -> bool {
        let (mut seen, mut next) = (BTreeSet::new(), vec![from]);
        while let Some(kind) = next.pop() {
            if kind == to {
                return true;
            }
            if seen.insert(kind) {
                next.extend(orders.iter().filter(|order| order.0 == kind).map(|order| order.1));
            }
        }
        false
    }
}

/// Without debug assertions nothing is recorded.
#[cfg(not(debug_assertions))]
mod order {
    #[derive(Debug)]
    pub(super) struct Held;

    impl Held {
        pub(super) fn after_others<T>() -> Self {
            Self
        }

        pub(super) fn at_once<T>() -> Self {
            Self
        }
    }
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

    #[test]
    #[cfg(debug_assertions)]
    fn two_locks_taken_in_both_orders_are_found() {
        #[derive(Debug, Default)]
        struct First;
        #[derive(Debug, Default)]
        struct Between;
        #[derive(Debug, Default)]
        struct Last;
        let (first, between, last) =
            (Lock::<First>::default(), Lock::<Between>::default(), Lock::<Last>::default());
        drop((first.lock(), between.lock()));
        drop((between.lock(), last.lock()));
        let reversed = || drop((last.lock(), first.lock()));
        assert!(catch_unwind(AssertUnwindSafe(reversed)).is_err());
        // A lock that is only tried blocks no thread.
        drop((last.lock(), first.try_lock()));
        let held = last.lock();
        let (held, late) = woken(Condvar::new().wait_timeout(held, Duration::ZERO));
        assert!(late.timed_out());
        drop(held);
        drop((first.lock(), last.lock()));
    }
}
