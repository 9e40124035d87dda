//! Small reads of bytes that are not in memory, on a ring of their own.
//!
//! Such a read needs no window, no slot and no turn: it is submitted immediately, with O_DIRECT,
//! into the caller's memory or into a cell of the GPU. The thread that waits for it reaps the
//! completions from the ring itself, also those of other reads, and hands that role on when its own
//! read ends. So a read that is waited for wakes no further thread. Reads that are not waited for
//! (callbacks, abandoned calls) are completed by a thread of the engine.
//!
//! The engine ends with its last handle, and a read may need it after its completion. So reads in
//! flight keep a handle: so does every transfer, the thread while it completes reads, and every
//! thread that reaps completions.
//!
//! A read that fails or is short is repeated by the general path, which knows why.

#![expect(unsafe_code, reason = "hands memory to the kernel, which the transfers keep")]

use std::fmt;
use std::mem::{self, ManuallyDrop};
use std::os::fd::AsRawFd as _;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use forebay_base::forks;
use forebay_base::lock::{Condvar, Lock, woken};
use forebay_base::units::{ByteRange, MIB};
use forebay_base::user_copy::copy_to_user;
use io_uring::types::{Fd, SubmitArgs, Timespec};
use io_uring::{IoUring, opcode, squeue};
use rustix::io::Errno;
use slab::Slab;

use crate::engine::RequestOptions;
use crate::file::Handle;
use crate::memory::Span;
use crate::options::{Options, RingChoice};
use crate::plan::{Direction, Reason, Route};
use crate::queue::{Core, Outside, now_ns, try_out};
use crate::staging::{Cell, Cells, SmallRead};
use crate::trace::{Span as TraceSpan, What};
use crate::transfer::{Reaper, Stage, State, Touch};

/// Bytes of all cells for host memory: 32 of the longest reads.
const BOUNCE_MAX: u64 = 8 * MIB;
/// Most reads in flight, which is the ring's capacity for requests; further ones use the general
/// path. They are at most this part of the requests in flight that the caller allows.
const READS_MAX: u32 = 256;
const PART: usize = 4;
/// Pause after the kernel refused to accept requests or to wait for them, for lack of memory.
const PAUSE: Duration = Duration::from_millis(1);
/// How long the kernel may refuse that before the ring is closed.
const REFUSED_MAX: Duration = Duration::from_secs(30);
/// User data of requests without a read: an interrupt, which only wakes the reaping thread, and
/// [`TICK`].
const INTERRUPT: u64 = u64::MAX;
const TICKED: u64 = u64::MAX - 1;
/// How late a wait may end that [`TICK`] bounds.
const LATE_MAX: Duration = Duration::from_millis(10);
/// Bounds the waits of many reads. A timer per wait cost 15 µs on a virtual machine.
static TICK: Timespec = Timespec::new().nsec(LATE_MAX.subsec_nanos());

/// The small cold reads of an engine.
pub(crate) struct ColdReads {
    /// Leaked if the kernel may still write for it.
    ring: ManuallyDrop<IoUring>,
    reads: Lock<Reads>,
    /// Whether all requests were handed to the kernel.
    is_submitted: AtomicBool,
    /// Threads that hand requests to the kernel now, and whether nothing more is handed to it.
    submitting: AtomicUsize,
    is_refused: AtomicBool,
    /// Number of reads in flight.
    count: AtomicUsize,
    /// Whether a thread reaps completions.
    is_reaped: AtomicBool,
    /// Whether an interrupt must wake that thread: it waits, or is about to.
    sleeps: AtomicBool,
    /// Whether [`TICK`] is in the ring.
    ticks: AtomicBool,
    /// Number of threads that wait for a read and do not reap completions.
    waiting: AtomicUsize,
    thread: Lock<Thread>,
    wakes: Condvar,
    /// For host memory that is not aligned, and for ranges that are not.
    pub(crate) bounce: Arc<Cells>,
    /// Most reads in flight.
    most: usize,
    engine: Weak<dyn ColdEngine>,
    core: Arc<Core>,
}

/// The engine, as the ring sees it.
pub(crate) trait ColdEngine: Send + Sync {
    /// Starts the thread that runs [`ColdReads::run`]; false if it cannot.
    fn start_thread(&self) -> bool;
    /// Repeats a read by the general path, as the same transfer.
    fn repeat(self: Arc<Self>, call: ColdCall);
}

/// A handle of the engine.
type EngineHandle = Arc<dyn ColdEngine>;

/// A call for a small cold read: what the general path needs to repeat it.
#[derive(Debug)]
pub(crate) struct ColdCall {
    pub(crate) state: Arc<State>,
    pub(crate) file: Arc<Handle>,
    pub(crate) span: Span,
    pub(crate) options: RequestOptions,
}

/// The reads in flight. The thread that holds its lock may add requests to the ring.
#[derive(Debug, Default)]
struct Reads {
    /// With the numbers of their requests.
    in_flight: Slab<(usize, ColdRead)>,
    /// Number of requests so far.
    added: usize,
    /// Set when the engine or the ring fails.
    is_closed: bool,
}

/// The engine's thread for reads that are not waited for.
#[derive(Default)]
struct Thread {
    is_started: bool,
    duty: Duty,
}

#[derive(Default)]
enum Duty {
    #[default]
    Parks,
    /// It completes all reads in flight, for this engine.
    Completes(EngineHandle),
    Ends,
}

/// A read, whose transfer began.
#[derive(Debug)]
pub(crate) struct ColdRead {
    pub(crate) call: ColdCall,
    /// The bytes of the request: all wanted ones, in whole units.
    pub(crate) covered: ByteRange,
    pub(crate) target: ColdTarget,
    pub(crate) touch: Touch,
    pub(crate) start: Instant,
}

/// Where the bytes of a read are stored.
#[derive(Debug)]
pub(crate) enum ColdTarget {
    /// To the caller's memory.
    Memory,
    /// To this cell, after `skip` bytes that are not wanted.
    Cell { cells: Arc<Cells>, cell: Cell, skip: u64 },
}

impl ColdReads {
    /// A ring; `None` if the kernel or a policy does not allow it, or if the caller set the depth
    /// of a drive's queue, which the scheduler keeps.
    pub(crate) fn new(
        options: &Options,
        core: &Arc<Core>,
        engine: Weak<dyn ColdEngine>,
    ) -> Option<Arc<Self>> {
        if options.ring == RingChoice::Pread || options.depth.is_some() {
            return None;
        }
        let open = || {
            let mut ring = IoUring::builder().dontfork().build(READS_MAX)?;
            try_out(&mut ring).map(|()| ring)
        };
        let ring = forks::open(open, |ring: &IoUring| ring.as_raw_fd()).ok()?;
        // Waits have a bound (Linux 5.11).
        if !ring.params().is_feature_ext_arg() {
            let descriptor = ring.as_raw_fd();
            forks::close(descriptor, || drop(ring));
            return None;
        }
        // For requests that would block the kernel adds threads to the process.
        let _ = ring.submitter().register_iowq_max_workers(&mut [1, 1]);
        let reads = Arc::new(Self {
            ring: ManuallyDrop::new(ring),
            reads: Lock::default(),
            is_submitted: AtomicBool::new(true),
            submitting: AtomicUsize::new(0),
            is_refused: AtomicBool::new(false),
            count: AtomicUsize::new(0),
            is_reaped: AtomicBool::new(false),
            sleeps: AtomicBool::new(false),
            ticks: AtomicBool::new(false),
            waiting: AtomicUsize::new(0),
            thread: Lock::default(),
            wakes: Condvar::new(),
            bounce: Arc::new(Cells::new(None, options.small_size, BOUNCE_MAX)),
            most: usize::try_from(READS_MAX).expect("small").min(options.in_flight / PART),
            engine,
            core: Arc::clone(core),
        });
        core.ends_on_failure(&reads);
        Some(reads)
    }

    /// Submits a read into `memory`: immediately, or with later reads when a thread waits next.
    /// Returns the read if the ring is full.
    ///
    /// # Safety
    /// The read's transfer keeps as many bytes at `memory` until it ends.
    pub(crate) unsafe fn start(
        &self,
        read: ColdRead,
        memory: NonNull<u8>,
        at_once: bool,
    ) -> Option<ColdRead> {
        let fd = read.call.file.o_direct().map(|direct| Fd(direct.fd().as_raw_fd()));
        let (Ok(fd), Ok(len)) = (fd, u32::try_from(read.covered.len())) else {
            return Some(read);
        };
        let mut reads = self.reads.lock();
        if reads.is_closed || reads.in_flight.len() >= self.most {
            return Some(read);
        }
        let entry = opcode::Read::new(fd, memory.as_ptr(), len).offset(read.covered.start).build();
        let key = reads.in_flight.vacant_key() as u64;
        // SAFETY: the memory is kept by the caller's promise, the descriptor by the file.
        if !unsafe { self.add(&mut reads, entry.user_data(key)) } {
            return Some(read);
        }
        read.call.state.set_in_ring(true);
        let number = reads.added;
        reads.in_flight.insert((number, read));
        self.count.fetch_add(1, SeqCst);
        drop(reads);
        if at_once {
            self.submit();
        }
        None
    }

    /// Adds a request; false if the ring is full.
    ///
    /// # Safety
    /// The memory and the descriptor stay until it completes.
    unsafe fn add(&self, reads: &mut Reads, entry: squeue::Entry) -> bool {
        // SAFETY: the lock on `reads` makes this thread the only thread that adds requests; the
        // rest is the caller's promise.
        let is_added = unsafe { self.ring.submission_shared().push(&entry) }.is_ok();
        reads.added += usize::from(is_added);
        self.is_submitted.store(false, SeqCst);
        is_added
    }

    /// Submits nothing to the kernel any more, and repeats the reads that it did not accept.
    /// Accepted reads end as always.
    fn close_ring(&self, engine: &EngineHandle, errno: Errno) {
        self.is_refused.store(true, SeqCst);
        while self.submitting.load(SeqCst) > 0 {
            std::thread::sleep(PAUSE);
        }
        self.core.note_ring_failure(errno);
        let mut reads = self.reads.lock();
        reads.is_closed = true;
        // SAFETY: the lock makes this thread the only thread that adds requests.
        let taken = reads.added - unsafe { self.ring.submission_shared() }.len();
        let (taken, again): (Vec<_>, Vec<_>) = mem::take(&mut reads.in_flight)
            .into_iter()
            .partition(|(_, (number, _))| *number <= taken);
        reads.in_flight = taken.into_iter().collect();
        drop(reads);
        self.count.fetch_sub(again.len(), SeqCst);
        again.into_iter().for_each(|(_, (_, read))| self.end(engine, read, 0));
    }

    /// Ends the reads whose completions arrived. Only the thread that took the role calls it.
    fn collect(&self, engine: &EngineHandle) {
        // SAFETY: a single thread reaps at a time.
        while let Some(entry) = unsafe { self.ring.completion_shared() }.next() {
            if entry.user_data() == TICKED {
                self.ticks.store(false, SeqCst);
            }
            // A tick and an interrupt have no read.
            let key = usize::try_from(entry.user_data()).unwrap_or(usize::MAX);
            let read = self.reads.lock().in_flight.try_remove(key);
            if let Some((_, read)) = read {
                self.count.fetch_sub(1, SeqCst);
                self.end(engine, read, entry.result());
            }
        }
    }

    fn end(&self, engine: &EngineHandle, read: ColdRead, result: i32) {
        let ColdRead { call, covered, target, touch, start } = read;
        let ColdCall { state, span, .. } = &call;
        let wanted = state.requested();
        state.set_in_ring(false);
        let came = covered.start + u64::try_from(result).unwrap_or(0);
        let took_ns = u64::try_from(start.elapsed().as_nanos()).unwrap_or(0);
        let mut is_whole = came >= wanted.end;
        if is_whole {
            state.add_time(Stage::File, took_ns);
        }
        if let ColdTarget::Cell { cells, cell, skip } = target {
            let from = cell.without(skip);
            if is_whole && span.gpu().is_some() {
                let way = (Route::Staged, Reason::NotResident);
                let read = SmallRead::new(from, (span.address, span.len, false), way, state);
                let ColdCall { state, file, .. } = call;
                drop(file); // as below
                if !cells.post(read)
                    && let Some(error) = self.core.failure()
                {
                    drop(touch);
                    self.core.end(state, Err(error));
                }
                return;
            }
            if is_whole {
                let len = usize::try_from(span.len).expect("a small size");
                let (from, to) = (from.pointer().as_ptr(), span.address as *mut u8);
                // SAFETY: the transfer keeps its memory, and this read the cell.
                is_whole = unsafe { copy_to_user(from, to, len) }.is_ok();
            }
            cells.give(cell);
        }
        drop(touch);
        if !is_whole {
            return Arc::clone(engine).repeat(call);
        }
        self.core.recorder().note_small(|| {
            let end_ns = now_ns();
            let start_ns = end_ns.saturating_sub(took_ns);
            let bytes = (wanted.start, wanted.len());
            TraceSpan {
                start_ns,
                end_ns,
                what: What::Small { name: Direction::Read.name(), bytes },
            }
        });
        state.add_bytes(Route::Host, Reason::NotResident, wanted.len());
        state.add_done(wanted.len());
        let ColdCall { state, file, .. } = call;
        drop(file); // the transfer has it too, and hands it to a thread that closes files
        self.core.end(state, Ok(wanted.len()));
    }

    /// Reaps completions until `until`, or until `is_over`.
    fn take(&self, engine: &EngineHandle, until: Option<Instant>, is_over: &dyn Fn() -> bool) {
        let submitter = self.ring.submitter();
        let mut refused_since = None;
        loop {
            self.sleeps.store(false, SeqCst);
            self.collect(engine);
            self.sleeps.store(true, SeqCst); // before the condition is checked
            let left = until.map(|until| until.saturating_duration_since(Instant::now()));
            if is_over() || left.is_some_and(|left| left.is_zero()) {
                return;
            }
            if self.is_refused.load(SeqCst) {
                std::thread::sleep(PAUSE);
                continue;
            }
            let timer = left.filter(|left| *left <= LATE_MAX || !self.tick());
            self.is_submitted.store(true, SeqCst);
            let waited = match timer.map(Timespec::from) {
                None => submitter.submit_and_wait(1),
                Some(timer) => submitter.submit_with_args(1, &SubmitArgs::new().timespec(&timer)),
            };
            match waited.map_err(|error| Errno::from_io_error(&error).unwrap_or(Errno::IO)) {
                Ok(_) | Err(Errno::TIME | Errno::INTR) => refused_since = None,
                Err(Errno::AGAIN | Errno::BUSY | Errno::NOMEM)
                    if refused_since.get_or_insert_with(Instant::now).elapsed() < REFUSED_MAX =>
                {
                    std::thread::sleep(PAUSE);
                }
                Err(errno) => self.close_ring(engine, errno),
            }
        }
    }

    /// Adds the tick, unless it is in the ring; false if the ring is full.
    fn tick(&self) -> bool {
        let entry = opcode::Timeout::new(&raw const TICK).build().user_data(TICKED);
        if !self.ticks.load(SeqCst) {
            // SAFETY: the tick is never freed.
            self.ticks.store(unsafe { self.add(&mut self.reads.lock(), entry) }, SeqCst);
        }
        self.ticks.load(SeqCst)
    }

    /// Number of requests so far.
    #[cfg(test)]
    pub(crate) fn added(&self) -> usize {
        self.reads.lock().added
    }

    /// Stops reaping; wakes the next waiting thread to reap.
    fn leave(&self) {
        self.sleeps.store(false, SeqCst);
        self.is_reaped.store(false, SeqCst);
        let is_over = self.count.load(SeqCst) == 0;
        // A thread that starts to wait after this finds that the role is free.
        if !is_over && self.waiting.load(SeqCst) > 0 {
            let reads = self.reads.lock();
            if reads.in_flight.iter().any(|(_, (_, read))| read.call.state.wake_to_reap()) {
                return;
            }
        }
        let mut thread = self.thread.lock();
        let Duty::Completes(engine) = &mut thread.duty else { return };
        if is_over {
            let engine = mem::take(&mut thread.duty);
            drop(thread);
            drop(engine);
        } else {
            let engine = Arc::clone(engine);
            drop(thread);
            self.complete_all(engine);
        }
    }

    /// Makes the engine's thread complete all reads in flight.
    fn complete_all(&self, engine: EngineHandle) {
        let mut thread = self.thread.lock();
        if self.count.load(SeqCst) == 0 {
            return;
        }
        thread.is_started = thread.is_started || engine.start_thread();
        thread.duty = Duty::Completes(engine);
        let is_started = thread.is_started;
        drop(thread);
        match is_started {
            true => self.wakes.notify_all(),
            // This thread must do it, or the reaping thread.
            false => self.reap(None, &|| self.count.load(SeqCst) == 0),
        }
    }

    /// Completes reads that are not waited for, on a thread of its own.
    pub(crate) fn run(&self) {
        let mut thread = self.thread.lock();
        loop {
            match thread.duty {
                Duty::Ends => return,
                Duty::Completes(_) if self.is_free() => {
                    drop(thread);
                    self.reap(None, &|| self.count.load(SeqCst) == 0);
                    thread = self.thread.lock();
                }
                _ => thread = woken(self.wakes.wait(thread)),
            }
        }
    }

    /// Lets the engine's thread end. No read is in flight.
    pub(crate) fn finish(&self) {
        self.thread.lock().duty = Duty::Ends;
        self.wakes.notify_all();
    }
}

impl Reaper for ColdReads {
    fn is_free(&self) -> bool {
        !self.is_reaped.load(SeqCst)
    }

    fn reap(&self, until: Option<Instant>, is_over: &dyn Fn() -> bool) {
        if self.is_reaped.swap(true, SeqCst) {
            return;
        }
        let role = Role { reads: self, engine: self.engine.upgrade() };
        // Without an engine no read is in flight.
        role.engine.iter().for_each(|engine| self.take(engine, until, is_over));
    }

    fn has_reads(&self) -> bool {
        self.count.load(SeqCst) > 0
    }

    fn submit(&self) {
        if self.is_submitted.swap(true, SeqCst) {
            return;
        }
        self.submitting.fetch_add(1, SeqCst);
        // If the kernel refuses, the next wait tries again.
        if !self.is_refused.load(SeqCst) && self.ring.submitter().submit().is_err() {
            self.is_submitted.store(false, SeqCst);
        }
        self.submitting.fetch_sub(1, SeqCst);
    }

    fn interrupt(&self) {
        if self.sleeps.swap(false, SeqCst) {
            let entry = opcode::Nop::new().build().user_data(INTERRUPT);
            // SAFETY: it names no memory. If the ring is full, completions arrive soon.
            unsafe { self.add(&mut self.reads.lock(), entry) };
        }
        self.submit();
    }

    fn add_waiting(&self) {
        self.waiting.fetch_add(1, SeqCst);
    }

    fn remove_waiting(&self) {
        self.waiting.fetch_sub(1, SeqCst);
    }

    fn leave_to_thread(&self) {
        self.submit();
        self.engine.upgrade().into_iter().for_each(|engine| self.complete_all(engine));
    }
}

/// The role, until it is dropped.
struct Role<'a> {
    reads: &'a ColdReads,
    engine: Option<EngineHandle>,
}

impl Drop for Role<'_> {
    fn drop(&mut self) {
        self.reads.leave();
    }
}

impl Outside for ColdReads {
    fn close(&self) -> Vec<Arc<State>> {
        let mut reads = self.reads.lock();
        reads.is_closed = true;
        reads.in_flight.iter().map(|(_, (_, read))| Arc::clone(&read.call.state)).collect()
    }
}

impl Drop for ColdReads {
    fn drop(&mut self) {
        if self.count.load(SeqCst) > 0 {
            // The kernel may still write to the memory of the reads.
            std::mem::forget(std::mem::take(&mut self.reads.lock().in_flight));
            return;
        }
        let descriptor = self.ring.as_raw_fd();
        // SAFETY: dropped once, here.
        forks::close(descriptor, || unsafe { ManuallyDrop::drop(&mut self.ring) });
    }
}

impl fmt::Debug for ColdReads {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ColdReads({} in flight)", self.count.load(SeqCst))
    }
}
