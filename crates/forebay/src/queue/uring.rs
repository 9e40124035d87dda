//! io_uring: many ops in flight from a single thread.
//!
//! An op stays in `ops` until its completion is reaped. A ring that fails, or that is dropped with
//! ops in flight, is closed. Its thread then waits until the kernel ends its requests. The kernel
//! releases the files registered with the ring at that point. Among them is the only write end of a
//! pipe, whose read end we poll. The memory of the slots is released last.
//!
//! Unwanted ops are cancelled repeatedly until they complete. The kernel can cancel a request only
//! while it waits for a kernel thread or sleeps interruptibly. A request that a file system keeps
//! answering with `EAGAIN` is in that state only for a moment at a time.

#![expect(unsafe_code, reason = "hands memory to the kernel that the scheduler owns for each op")]

use std::collections::VecDeque;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use forebay_base::forks;
use forebay_base::units::MIB;
use io_uring::{IoUring, Probe, opcode, squeue, types};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use slab::Slab;

use super::Ring;
use super::op::{Completion, Op, OpKind, Owner, WindowKey, now_ns};
use super::parking::Waker;
use super::pread::Bounce;
use crate::events;
use crate::memory::Parts;
use crate::plan::Direction;

/// User data of the waker's read.
const WAKE: u64 = u64::MAX;

/// User data of a cancel request; its result is ignored, since the op completes separately.
const CANCEL: u64 = u64::MAX - 1;

/// User data of the timeout between two cancel requests.
const PAUSE: u64 = u64::MAX - 2;

/// The first and the longest pause; pauses double. Requests that the kernel can cancel return after
/// a few attempts. A drive that hangs costs ten attempts a second.
const PAUSES: [Duration; 2] = [Duration::from_millis(1), Duration::from_millis(100)];

/// Entries of the submission queue.
const ENTRIES: u32 = 256;

/// Entries of the completion queue; the kernel keeps further completions for later.
const COMPLETIONS: u32 = 4096;

/// Memory for bounce buffers, which few ops need unless the caller's own memory is unaligned.
const BOUNCE_MAX: u64 = 32 * MIB;

/// How long the kernel may refuse submissions, for example for lack of memory, before the ring
/// counts as failed.
const REFUSED_MAX: Duration = Duration::from_secs(30);

#[derive(Debug)]
struct Flight {
    op: Op,
    /// The address to which the kernel moves the op's bytes.
    base: u64,
    start: Instant,
    /// True if its transfer stopped, so that the op should be cancelled.
    unwanted: bool,
}

/// Ops to be cancelled, and the pause until the next attempt.
#[derive(Debug)]
struct Recall {
    ops: usize,
    /// Read by the kernel when the timeout is submitted; boxed, since that may be later.
    pause: Box<types::Timespec>,
    length: Duration,
    pausing: bool,
}

/// A ring of io_uring, and the ops and memory that it holds.
pub(crate) struct UringRing {
    ring: std::mem::ManuallyDrop<IoUring>,
    ops: Slab<Flight>,
    /// Ops that wait for a bounce buffer.
    held: VecDeque<Op>,
    bounce: std::mem::ManuallyDrop<Bounce>,
    /// Memory of the slots that ops use; leaked with the ring if the ring cannot be ended.
    parts: std::mem::ManuallyDrop<Arc<Parts>>,
    /// Ops that failed before the kernel saw them.
    refused: Vec<Completion>,
    waker: Waker,
    /// Target of the waker's read; boxed, since the kernel keeps its address.
    woken: std::mem::ManuallyDrop<Box<[u8; 8]>>,
    waiting_for_wake: bool,
    unsubmitted: bool,
    recall: Recall,
    kernel_threads: RingThreads,
    /// A pipe that reports HUP when the kernel releases the closed ring.
    gone: OwnedFd,
    /// True if the ring is closed.
    closed: bool,
    /// Start of a period in which the kernel refuses submissions, and the next pause.
    refused_since: Option<(Instant, Duration)>,
}

impl UringRing {
    /// Sets up a ring for ops of at most `segment` bytes. It keeps `parts` mapped and shares
    /// `kernel_threads` with other rings. Must be called on the thread that will use the ring.
    ///
    /// # Errors
    /// The kernel's error: EPERM if a policy forbids io_uring or a call of it; ENOSYS before Linux
    /// 5.1.
    pub(crate) fn new(
        segment: u64,
        waker: Waker,
        parts: Arc<Parts>,
        kernel_threads: Arc<KernelThreads>,
    ) -> Result<Self, Errno> {
        // A single issuer with deferred task work (Linux 6.1) avoids interrupts. Kernels that do
        // not know the flags return EINVAL.
        let open = || {
            let mut ring = IoUring::builder()
                .setup_single_issuer()
                .setup_defer_taskrun()
                .setup_cqsize(COMPLETIONS)
                .dontfork()
                .build(ENTRIES)
                .or_else(|_| IoUring::builder().dontfork().build(ENTRIES))?;
            check_operations(&ring)?;
            try_out(&mut ring)?;
            let gone = watch_end(&ring)?;
            Ok((ring, gone))
        };
        let (ring, gone) = forks::open(open, |(ring, _)| ring.as_raw_fd())
            .map_err(|e: std::io::Error| Errno::from_io_error(&e).unwrap_or(Errno::IO))?;
        let kernel_threads = RingThreads::new(&ring, kernel_threads);
        let pieces = usize::try_from((BOUNCE_MAX / segment).max(2)).map_err(|_| Errno::INVAL)?;
        Ok(Self {
            ring: std::mem::ManuallyDrop::new(ring),
            ops: Slab::new(),
            held: VecDeque::new(),
            bounce: std::mem::ManuallyDrop::new(Bounce::new(pieces, segment)),
            parts: std::mem::ManuallyDrop::new(parts),
            refused: Vec::new(),
            waker,
            woken: std::mem::ManuallyDrop::new(Box::new([0; 8])),
            waiting_for_wake: false,
            unsubmitted: false,
            recall: Recall { ops: 0, pause: Box::default(), length: PAUSES[0], pausing: false },
            kernel_threads,
            gone,
            closed: false,
            refused_since: None,
        })
    }

    fn prepare(&mut self, op: &Op, base: u64, index: usize) -> Result<squeue::Entry, Errno> {
        let fd = types::Fd(op.descriptor()?.as_raw_fd());
        let rest = op.rest();
        let offset = op.offset_of(rest.start);
        let len = u32::try_from(rest.len()).map_err(|_| Errno::INVAL)?;
        let memory = (base + op.moved) as *mut u8;
        let entry = match op.kind {
            OpKind::Move(Direction::Read) => {
                opcode::Read::new(fd, memory, len).offset(offset).build()
            }
            OpKind::Move(Direction::Write) => {
                opcode::Write::new(fd, memory, len).offset(offset).build()
            }
            OpKind::Sync { .. } | OpKind::DropStale => return Err(Errno::INVAL),
        };
        Ok(entry.user_data(index as u64))
    }

    fn refuse(&mut self, op: Op, errno: Errno) {
        self.refused.push(Completion::failed(op, errno));
    }

    fn push(&mut self, entry: &squeue::Entry) -> Result<(), Errno> {
        if self.ring.submission().is_full() {
            self.flush();
        }
        // SAFETY: the entry's memory lives until its completion is reaped. The scheduler promises
        // that for an op's memory. The bounce buffers and the waker's buffer are leaked by drop if
        // necessary. The timespec of a pause is read on submission, which only `self` does.
        if unsafe { self.ring.submission().push(entry) }.is_err() {
            return Err(Errno::AGAIN);
        }
        self.unsubmitted = true;
        Ok(())
    }

    /// Submits the waker's read, unless it is pending already.
    fn listen(&mut self) -> Result<(), Errno> {
        if self.waiting_for_wake {
            return Ok(());
        }
        let fd = types::Fd(self.waker.fd().as_raw_fd());
        let entry = opcode::Read::new(fd, self.woken.as_mut_ptr(), 8).build().user_data(WAKE);
        self.push(&entry)?;
        self.waiting_for_wake = true;
        Ok(())
    }

    /// Cancels the unwanted ops, and sets the timeout for the next attempt.
    fn recall(&mut self) {
        *self.recall.pause = self.recall.length.into();
        let pause: *const types::Timespec = &raw const *self.recall.pause;
        if self.push(&opcode::Timeout::new(pause).build().user_data(PAUSE)).is_err() {
            return;
        }
        self.recall.pausing = true;
        self.recall.length = (self.recall.length * 2).min(PAUSES[1]);
        let unwanted = self.ops.iter().filter(|(_, flight)| flight.unwanted);
        for index in unwanted.map(|(index, _)| index).collect::<Vec<_>>() {
            let entry = opcode::AsyncCancel::new(index as u64).build().user_data(CANCEL);
            if self.push(&entry).is_err() {
                break;
            }
        }
    }

    /// Pauses while the kernel refuses submissions.
    ///
    /// # Errors
    /// The kernel refused for too long.
    fn pause(&mut self, errno: Errno) -> Result<(), Errno> {
        let (since, pause) = self.refused_since.unwrap_or((Instant::now(), PAUSES[0]));
        if since.elapsed() > REFUSED_MAX {
            return Err(errno);
        }
        std::thread::sleep(pause);
        self.refused_since = Some((since, (pause * 2).min(PAUSES[1])));
        Ok(())
    }

    /// # Safety
    /// Must be called at most once.
    unsafe fn close_ring(&mut self) {
        let descriptor = self.ring.as_raw_fd();
        // SAFETY: dropped only once, as the caller promises.
        forks::close(descriptor, || unsafe { std::mem::ManuallyDrop::drop(&mut self.ring) });
    }

    /// Closes the ring and waits until the kernel ends all of its requests. False if that cannot be
    /// detected.
    fn end_in_kernel(&mut self) -> bool {
        if !std::mem::replace(&mut self.closed, true) {
            // SAFETY: `closed` was not set before.
            unsafe { self.close_ring() };
        }
        loop {
            let mut polled = [PollFd::new(&self.gone, PollFlags::empty())];
            match poll(&mut polled, None) {
                Ok(_) => return polled[0].revents().contains(PollFlags::HUP),
                Err(Errno::INTR) => {}
                Err(_) => return false,
            }
        }
    }

    fn collect(&mut self, done: &mut Vec<Completion>) {
        let at_ns = now_ns();
        for entry in self.ring.completion() {
            match entry.user_data() {
                WAKE => self.waiting_for_wake = false,
                PAUSE => self.recall.pausing = false,
                _ => {}
            }
            // The waker, timeouts and cancel requests have no op.
            let Some(flight) = usize::try_from(entry.user_data())
                .ok()
                .and_then(|index| self.ops.try_remove(index))
            else {
                continue;
            };
            self.recall.ops -= usize::from(flight.unwanted);
            let mut result = match u64::try_from(entry.result()) {
                Ok(moved) => Ok(moved),
                Err(_) => Err(Errno::from_raw_os_error(-entry.result())),
            };
            if flight.op.segment.bounce {
                result = self.bounce.leave(flight.base, &flight.op, result);
            }
            let took_ns = u64::try_from(flight.start.elapsed().as_nanos()).unwrap_or(u64::MAX);
            let size = flight.op.size_if_short(result);
            let (op, refused) = (flight.op, None);
            done.push(Completion { op, result, refused, size, took_ns, at_ns });
        }
    }
}

/// Linux 5.1 to 5.5 have rings without plain reads and writes, and a sandbox may support fewer
/// operations.
fn check_operations(ring: &IoUring) -> std::io::Result<()> {
    let mut probe = Probe::new();
    let probed = ring.submitter().register_probe(&mut probe);
    let needed =
        [opcode::Read::CODE, opcode::Write::CODE, opcode::AsyncCancel::CODE, opcode::Timeout::CODE];
    let has = needed.iter().all(|&code| probe.is_supported(code));
    if probed.is_ok() && has { Ok(()) } else { Err(Errno::NOSYS.into()) }
}

/// Runs a no-op request: a filter on system calls may allow setting up a ring but not using it.
pub(crate) fn try_out(ring: &mut IoUring) -> std::io::Result<()> {
    // SAFETY: the entry names no memory.
    let pushed = unsafe { ring.submission().push(&opcode::Nop::new().build()) };
    pushed.map_err(|_| Errno::NOSYS)?;
    loop {
        match ring.submit_and_wait(1) {
            Ok(_) => break,
            Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    ring.completion().for_each(drop);
    Ok(())
}

/// The read end of a pipe whose write end only the ring holds. The kernel releases a ring's files
/// when it ends all of its requests.
fn watch_end(ring: &IoUring) -> std::io::Result<OwnedFd> {
    let (reads, writes) = std::io::pipe()?;
    ring.submitter().register_files(&[writes.as_raw_fd()])?;
    Ok(reads.into())
}

impl Ring for UringRing {
    fn room(&self) -> usize {
        usize::MAX - self.in_flight()
    }

    fn in_flight(&self) -> usize {
        self.ops.len() + self.held.len() + self.refused.len()
    }

    fn submit(&mut self, op: Op) {
        if !op.file.supports_nowait() || rustix::fs::major(op.file.identity().0) == 0 {
            self.kernel_threads.take_more(&self.ring);
        }
        let bounces = op.segment.bounce;
        let base = match if bounces { self.bounce.enter(&op) } else { Ok(Some(op.address)) } {
            Ok(Some(base)) => base,
            // It waits for a bounce buffer.
            Ok(None) => return self.held.push_back(op),
            Err(errno) => return self.refuse(op, errno),
        };
        let entry = self.prepare(&op, base, self.ops.vacant_key());
        match entry.and_then(|entry| self.push(&entry)) {
            Ok(()) => {
                self.ops.insert(Flight { op, base, start: Instant::now(), unwanted: false });
            }
            Err(errno) => {
                if op.segment.bounce {
                    let _ = self.bounce.leave(base, &op, Err(errno));
                }
                self.refuse(op, errno);
            }
        }
    }

    fn flush(&mut self) {
        if self.unsubmitted && self.ring.submit().is_ok() {
            self.unsubmitted = false; // if it failed, `reap` tries again and reports the error
        }
    }

    fn cancel(&mut self, window: WindowKey) {
        for (_, flight) in &mut self.ops {
            let is_of = matches!(flight.op.owner, Owner::Piece(key, _) if key == window);
            if is_of && !std::mem::replace(&mut flight.unwanted, true) {
                self.recall.ops += 1;
            }
        }
        self.recall.length = PAUSES[0];
        let held = std::mem::take(&mut self.held);
        for op in held {
            if matches!(op.owner, Owner::Piece(key, _) if key == window) {
                self.refuse(op, Errno::CANCELED);
            } else {
                self.held.push_back(op);
            }
        }
    }

    fn reap(&mut self, wait: bool, done: &mut Vec<Completion>) -> Result<(), Errno> {
        done.append(&mut self.refused);
        let mut wait = wait && done.is_empty();
        if wait {
            if self.recall.ops > 0 && !self.recall.pausing {
                self.recall();
            }
            // If the queue is full, the next attempt follows when the kernel consumed its entries.
            wait = self.listen().is_ok();
        }
        if self.unsubmitted || wait || !self.ops.is_empty() {
            let want = usize::from(wait);
            match self.ring.submit_and_wait(want) {
                Ok(_) => {
                    self.unsubmitted = false;
                    self.refused_since = None;
                }
                Err(e) => match Errno::from_io_error(&e) {
                    // A signal.
                    Some(Errno::INTR) => {}
                    // Out of memory, or the completion queue must be drained first.
                    Some(errno @ (Errno::BUSY | Errno::AGAIN | Errno::NOMEM)) => {
                        let before = done.len();
                        self.collect(done);
                        if done.len() == before {
                            self.pause(errno)?;
                        }
                    }
                    other => return Err(other.unwrap_or(Errno::IO)),
                },
            }
        }
        self.collect(done);
        // Submit held ops, as many as bounce buffers may have been returned.
        for _ in 0..done.len() {
            let Some(op) = self.held.pop_front() else { break };
            self.submit(op);
        }
        Ok(())
    }

    fn close(&mut self, done: &mut Vec<Completion>) {
        if !self.end_in_kernel() {
            return;
        }
        self.waiting_for_wake = false;
        done.append(&mut self.refused);
        for Flight { op, base, .. } in self.ops.drain() {
            if op.segment.bounce {
                let _ = self.bounce.leave(base, &op, Err(Errno::AGAIN));
            }
            done.push(Completion::failed(op, Errno::AGAIN));
        }
        for op in self.held.drain(..) {
            done.push(Completion::failed(op, Errno::AGAIN));
        }
    }
}

impl Drop for UringRing {
    fn drop(&mut self) {
        if !self.ops.is_empty() && !self.end_in_kernel() {
            // The kernel may still write to the memory of the ops and of the ring.
            std::mem::forget(std::mem::take(&mut self.ops));
            return;
        }
        let was_closed = std::mem::replace(&mut self.closed, true);
        // SAFETY: dropped once, here; the ring only if it was not closed before. Closing the ring
        // cancels the waker's read. Its eight bytes are leaked if that read was not reaped, since
        // cancelling is asynchronous. The memory of the slots is released after the ring.
        unsafe {
            if !was_closed {
                self.close_ring();
            }
            std::mem::ManuallyDrop::drop(&mut self.bounce);
            std::mem::ManuallyDrop::drop(&mut self.parts);
            if was_closed || !self.waiting_for_wake {
                std::mem::ManuallyDrop::drop(&mut self.woken);
            }
        }
    }
}

impl std::fmt::Debug for UringRing {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "UringRing({} in flight)", self.in_flight())
    }
}

/// A ring reserves the remaining threads divided by this, so that later rings get some too.
const PART: usize = 4;

/// State shared by all rings of an engine.
#[derive(Debug)]
pub(crate) struct KernelThreads {
    /// Threads not yet assigned to a ring.
    left: AtomicUsize,
    /// Kernels before Linux 6.4 apply the limit per NUMA node.
    nodes: usize,
    /// The kernel's error when it refused to limit the threads of a ring that needed more.
    refusal: OnceLock<Errno>,
}

impl KernelThreads {
    /// At most `all` threads for at most `rings` rings, on a machine with `nodes` NUMA nodes.
    pub(crate) fn new(all: usize, rings: usize, nodes: usize) -> Arc<Self> {
        let nodes = nodes.max(1);
        let left = AtomicUsize::new(all.saturating_sub(rings * nodes));
        Arc::new(Self { left, nodes, refusal: OnceLock::new() })
    }

    /// The error, if the kernel may start more threads than the limit.
    pub(crate) fn refusal(&self) -> Option<Errno> {
        self.refusal.get().copied()
    }

    /// Reserves a part of the remaining threads; returns the number per node.
    fn take(&self) -> usize {
        let mut each = 0;
        let taken = self.left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| {
            each = left.div_ceil(PART) / self.nodes;
            Some(left - each * self.nodes)
        });
        debug_assert!(taken.is_ok(), "every number has a rest");
        each
    }

    /// Returns reserved threads.
    fn give(&self, each: usize) {
        self.left.fetch_add(each * self.nodes, Ordering::Relaxed);
    }
}

/// The kernel threads of a ring.
#[derive(Debug)]
pub(super) struct RingThreads {
    all: Arc<KernelThreads>,
    /// Threads per node beyond the first; `None` before `take_more`.
    more: Option<usize>,
}

impl RingThreads {
    /// Limits the ring to a single kernel thread. Must be called on the thread that uses the ring:
    /// the kernel's threads belong to that thread.
    pub(super) fn new(ring: &IoUring, all: Arc<KernelThreads>) -> Self {
        let _ = bound(ring, 1); // an error matters only to rings that take more
        Self { all, more: None }
    }

    /// Reserves more threads, once.
    pub(super) fn take_more(&mut self, ring: &IoUring) {
        if self.more.is_none() {
            let more = self.all.take();
            self.more = Some(more);
            if let Err(errno) = bound(ring, 1 + more)
                && self.all.refusal.set(errno).is_ok()
            {
                events::refused("to bound its own threads for io_uring", errno);
            }
        }
    }
}

impl Drop for RingThreads {
    fn drop(&mut self) {
        self.all.give(self.more.unwrap_or(0));
    }
}

/// Lets the kernel start `most` threads for a ring's requests to files, and a single thread for all
/// further requests.
fn bound(ring: &IoUring, most: usize) -> Result<(), Errno> {
    let most = u32::try_from(most).unwrap_or(u32::MAX);
    let answer = ring.submitter().register_iowq_max_workers(&mut [most, 1]);
    answer.map_err(|error| Errno::from_io_error(&error).unwrap_or(Errno::IO))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The kernel's limits for a ring: setting zero changes nothing and returns them.
    fn bounds(ring: &IoUring) -> [u32; 2] {
        let mut bounds = [0, 0];
        ring.submitter().register_iowq_max_workers(&mut bounds).unwrap();
        bounds
    }

    #[test]
    fn rings_never_have_more_than_there_are() {
        for (all, rings, nodes) in [(64, 32, 1), (64, 16, 2), (3, 2, 1), (1, 1, 1), (1, 1, 2)] {
            let threads = KernelThreads::new(all, rings, nodes);
            let taken: Vec<usize> = (0..rings).map(|_| threads.take()).collect();
            let sum: usize = taken.iter().map(|each| (1 + each) * nodes).sum();
            assert!(sum <= all.max(rings * nodes), "{taken:?} of {all}");
            assert!(taken.is_sorted_by(|one, next| one >= next), "{taken:?}");
            taken.iter().for_each(|&each| threads.give(each));
            assert_eq!(threads.take(), taken[0]);
        }
    }

    #[test]
    fn the_kernel_is_notified() {
        let ring = match IoUring::new(8) {
            Ok(ring) => ring,
            Err(error) => return println!("skipped: no io_uring: {error}"),
        };
        let threads = KernelThreads::new(41, 1, 1);
        if let Err(errno) = bound(&ring, 7) {
            return println!("skipped: the kernel does not bound its threads: {errno}");
        }
        let mut threads_of_ring = RingThreads::new(&ring, Arc::clone(&threads));
        assert_eq!(bounds(&ring), [1, 1]);
        threads_of_ring.take_more(&ring);
        assert_eq!(bounds(&ring), [11, 1]);
        threads_of_ring.take_more(&ring);
        assert_eq!((bounds(&ring), threads.take()), ([11, 1], 8));
    }
}
