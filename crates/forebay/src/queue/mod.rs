//! I/O to drives and the page cache: ops, the rings that run them, and the scheduler that orders
//! them.
//!
//! A [`Ring`] belongs to a worker. Readers run ops that never wait for a drive, with their own
//! [`PreadRing`]. A worker with a [`UringRing`] serves drives. The workers of the [`Pool`], with
//! their own `PreadRing`, run the ops of all drives that io_uring cannot run or may not.

mod closers;
mod core;
mod failure;
mod op;
mod parking;
mod planner;
mod pread;
mod scheduler;
#[cfg(test)]
mod sim;
mod spans;
mod uring;
mod window;
mod worker;
mod writers;

use rustix::io::Errno;

pub(crate) use closers::{Chore, Closers};
#[cfg(test)]
pub(crate) use core::sections_of_this_thread;
pub(crate) use core::{Core, Outside, SmallWrite, Wakeup};
pub(crate) use op::{Completion, Op, WindowKey, now_ns};
pub(crate) use parking::{Parking, Pool, Waker};
pub(crate) use planner::{Plan, Planner};
pub(crate) use pread::PreadRing;
pub(crate) use scheduler::{
    Claim, Copy, CopyFailure, DirectPath, EACH_MAX, Limits, READERS_LEAST, Request, Scheduler,
    Share, Workers,
};
pub(crate) use uring::KernelThreads;
pub(crate) use uring::{UringRing, try_out};
pub(crate) use window::Slot;
pub(crate) use worker::{Reader, RingWorker, Tools};

/// Runs ops and returns their completions.
pub(crate) trait Ring {
    /// Number of ops that it can accept now.
    fn room(&self) -> usize;

    /// Number of ops accepted and not returned yet.
    fn in_flight(&self) -> usize;

    /// Accepts an op; the ring owns the op's memory until it returns the op.
    fn submit(&mut self, op: Op);

    /// Submits accepted ops to the kernel without waiting.
    fn flush(&mut self) {}

    /// Cancels the ops of a window, whose transfer stopped. If the kernel can cancel them, they
    /// return `ECANCELED` or a partial count. The rest complete as usual.
    fn cancel(&mut self, _window: WindowKey) {}

    /// Returns completed ops. With `wait`, blocks until an op completes or the ring is woken.
    ///
    /// # Errors
    /// The ring failed for good; it still owns its ops.
    fn reap(&mut self, wait: bool, done: &mut Vec<Completion>) -> Result<(), Errno>;

    /// Closes a failed ring and returns its ops as ops to be retried, once the kernel no longer
    /// accesses their memory. If the kernel does not confirm that, the ops and their memory stay
    /// with the ring.
    fn close(&mut self, _done: &mut Vec<Completion>) {}
}
