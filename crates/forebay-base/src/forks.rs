//! Forks in a process with rings of io_uring: the child closes its copies of their descriptors.
//!
//! The kernel ends a ring when its last descriptor is closed. A child that keeps running, like the
//! workers of a data loader, would keep its parent's rings open. A ring that failed would then wait
//! for its last requests as long as the child lives.

#![expect(unsafe_code, reason = "the C library has handlers for forks only by their address")]

use std::cell::RefCell;
use std::os::fd::RawFd;
use std::sync::Once;

use crate::lock::{Lock, MutexGuard};

type Descriptors = MutexGuard<'static, Vec<RawFd>>;

/// Descriptors of the rings. They are opened and closed under the lock, which a fork acquires.
static OPEN: Lock<Vec<RawFd>> = Lock::new(Vec::new());

static HANDLED: Once = Once::new();

thread_local! {
    /// The lock guard, while the thread forks.
    static FORKS: RefCell<Option<Descriptors>> = const { RefCell::new(None) };
}

/// Opens a ring whose descriptor forked children close. No fork happens during the call.
///
/// # Errors
/// Errors of `open`.
pub fn open<T, E>(
    open: impl FnOnce() -> Result<T, E>,
    descriptor: impl FnOnce(&T) -> RawFd,
) -> Result<T, E> {
    // SAFETY: the handlers are functions of this module. It is never unloaded while a thread may
    // fork, because a library with running threads is not unloaded.
    HANDLED.call_once(|| unsafe {
        libc::pthread_atfork(Some(before), Some(in_parent), Some(in_child));
    });
    let mut all = OPEN.lock();
    let opened = open()?;
    all.push(descriptor(&opened));
    Ok(opened)
}

/// Closes a ring's descriptor with `close`, and removes it from the list.
pub fn close(descriptor: RawFd, close: impl FnOnce()) {
    let mut all = OPEN.lock();
    all.retain(|&open| open != descriptor);
    close();
}

extern "C" fn before() {
    let all = OPEN.lock();
    let _ = FORKS.try_with(|forks| forks.replace(Some(all)));
}

extern "C" fn in_parent() {
    let _ = FORKS.try_with(RefCell::take);
}

/// Uses only operations that are allowed between a fork and exec: the list keeps its memory.
extern "C" fn in_child() {
    let Some(mut all) = FORKS.try_with(RefCell::take).ok().flatten() else { return };
    for &descriptor in &*all {
        // SAFETY: the descriptor refers to the ring here as it did in the parent.
        unsafe { libc::close(descriptor) };
    }
    all.clear();
}
