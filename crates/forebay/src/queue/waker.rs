//! Wake-ups for a thread that waits in a ring.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use rustix::event::{EventfdFlags, eventfd};
use rustix::io::Errno;

/// An eventfd that wakes the thread waiting in a ring.
#[derive(Debug, Clone)]
pub(crate) struct Waker(Arc<OwnedFd>);

impl Waker {
    pub(crate) fn new() -> Result<Self, Errno> {
        eventfd(0, EventfdFlags::CLOEXEC).map(|fd| Self(Arc::new(fd)))
    }

    /// The descriptor that a ring reads to notice a wake-up.
    pub(super) fn fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }

    pub(crate) fn wake(&self) {
        // A write fails only if the counter is at its maximum, and then a wake-up is pending
        // already.
        let _ = rustix::io::write(&*self.0, &1_u64.to_ne_bytes());
    }
}
