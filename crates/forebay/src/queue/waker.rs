//! What wakes a thread that waits in a ring.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

use rustix::event::{EventfdFlags, PollFd, PollFlags, eventfd, poll};
use rustix::io::Errno;

/// Wakes the thread that waits in a ring.
#[derive(Debug, Clone)]
pub(crate) struct Waker(Arc<OwnedFd>);

impl Waker {
    pub(crate) fn new() -> Result<Self, Errno> {
        eventfd(0, EventfdFlags::CLOEXEC).map(|fd| Self(Arc::new(fd)))
    }

    /// The descriptor that a ring reads to hear of a wake-up.
    pub(super) fn fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }

    pub(crate) fn wake(&self) {
        // Only a counter at its maximum refuses, and then a wake-up is under way already.
        let _ = rustix::io::write(&*self.0, &1_u64.to_ne_bytes());
    }

    /// Waits for a wake-up, for ever with `None`; whether there was one.
    pub(crate) fn wait(&self, longest: Option<Duration>) -> bool {
        let longest = longest.and_then(|longest| rustix::event::Timespec::try_from(longest).ok());
        let mut polled = [PollFd::from_borrowed_fd(self.0.as_fd(), PollFlags::IN)];
        let is_woken = poll(&mut polled, longest.as_ref()).is_ok_and(|ready| ready > 0);
        // It does not block: there is one to be read.
        is_woken && rustix::io::read(&*self.0, &mut [0; 8]).is_ok()
    }
}
