//! What feeds drives and the page cache: ops, the rings that run them, and the scheduler that says
//! which comes next.
//!
//! A [`Ring`] belongs to one worker. Readers, which move what waits for no drive, have a
//! [`PreadRing`] each. A worker with a [`UringRing`] serves a drive, or several; the workers of the
//! [`Pool`], with a `PreadRing` each, do for all drives what io_uring does not do, or may not.

mod batch;
mod bounce;
mod closers;
mod core;
mod failure;
mod forks;
mod gate;
mod idlers;
mod kernel_threads;
mod op;
mod pool;
mod pread;
mod probe;
mod scheduler;
#[cfg(test)]
mod sim;
mod small_writes;
mod spans;
mod uring;
mod waker;
mod window;
mod worker;

use rustix::io::Errno;

pub(crate) use batch::{Batch, Scatter};
pub(crate) use closers::{Chore, Closers};
pub(crate) use core::{Bell, Core};
pub(crate) use gate::Gate;
pub(crate) use idlers::Idlers;
pub(crate) use kernel_threads::KernelThreads;
pub use op::Direction;
pub(crate) use op::{Completion, Op, WindowKey, now_ns};
pub(crate) use pool::Pool;
pub(crate) use pread::PreadRing;
pub(crate) use probe::Planner;
pub use scheduler::Priority;
pub(crate) use scheduler::{
    Claim, Copy, CopyFailure, Crew, Depth, EACH_MAX, Limits, Peer, Request, Scheduler, Share,
};
pub(crate) use small_writes::{SmallWrite, SmallWrites};
pub(crate) use uring::UringRing;
pub(crate) use waker::Waker;
pub(crate) use window::Slot;
pub(crate) use worker::{Plan, Reader, RingWorker, Tools};

/// Runs ops: takes them in, hands them back.
pub(crate) trait Ring {
    /// How many more ops it takes now.
    fn room(&self) -> usize;

    /// Ops that were taken in and not handed back.
    fn in_flight(&self) -> usize;

    /// Takes an op in; the op's memory is the ring's until it is handed back.
    fn submit(&mut self, op: Op);

    /// Lets the kernel see what was taken in, without waiting for anything.
    fn flush(&mut self) {}

    /// Asks for the ops of a window back early: its transfer wants them no more. Where the kernel
    /// can, it hands them back with `ECANCELED`, or as far as they are; the others go on.
    fn cancel(&mut self, _window: WindowKey) {}

    /// Hands finished ops back. With `wait`, blocks until there is one or until the ring is woken.
    ///
    /// # Errors
    /// The ring has failed for good; its ops are still its own.
    fn reap(&mut self, wait: bool, done: &mut Vec<Completion>) -> Result<(), Errno>;

    /// Closes a ring that has failed, and hands its ops back once the kernel touches none of their
    /// memory any more: as ops that have to be tried again. Where the kernel does not say so they
    /// stay, with their memory.
    fn close(&mut self, _done: &mut Vec<Completion>) {}
}
