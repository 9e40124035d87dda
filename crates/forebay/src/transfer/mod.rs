//! What a caller holds while bytes move: wait, poll, cancel, progress, and in the end what was
//! done.

mod outcome;
mod told;

use std::fmt;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use crate::engine::Engine;
use crate::error::{Error, Operation, Place, Result};
use crate::events::Told;
use crate::file::Handle;
use crate::gpu::DeviceError;
use crate::memory::{Buffer, Keep};
use crate::plan::{Reason, Route};
use crate::queue::Batch;
use crate::trace::Range;
use crate::units::ByteRange;
use outcome::trimmed;
pub use outcome::{Outcome, RouteShare, Stages, SyncMode};

/// The most that a waiting thread is awake for before an end that it expects.
const AWAKE_MAX: Duration = Duration::from_millis(1);

/// When a waiting thread looks for the first time how a transfer gets on.
const FIRST_LOOK: Duration = Duration::from_micros(500);

/// How long the end of a transfer waits for its file to be closed, which hangs where a server does.
const CLOSING_MAX: Duration = Duration::from_millis(250);

/// The part of a transfer that caller and engine share.
pub(crate) struct State {
    /// Let go with the end. Whoever waits for that waits a moment for the close as well, so that
    /// the file's room is there when it is removed then.
    file: Mutex<Option<Arc<Handle>>>,
    range: ByteRange,
    /// Bytes that are wanted of these.
    wanted: u64,
    started: Instant,
    done: AtomicU64,
    bytes: [AtomicU64; Route::ALL.len() * Reason::ALL.len()],
    probe_ns: AtomicU64,
    file_ns: AtomicU64,
    copy_ns: AtomicU64,
    key: AtomicUsize,
    /// A share in the memory that bytes move to or from; let go before anybody can see the end, so
    /// that whoever then frees the memory has it free.
    keep: Mutex<Vec<Keep>>,
    /// What it reads where that are many ranges; let go with the file.
    batch: Mutex<Option<Arc<Batch>>>,
    /// Whether it is to stop, where the scheduler does not know it.
    stop: AtomicBool,
    /// Set once `end` holds the result; read without its lock.
    ended: AtomicBool,
    end: Mutex<End>,
    bell: Condvar,
    /// There from when subscribers were told that it begins until they are told that it ends.
    told: Mutex<Option<(Told, Range)>>,
}

/// How a transfer ended, and the memory that it owns until then.
struct End {
    result: Option<Result<Outcome>>,
    buffers: Vec<Buffer>,
    /// Whether the file is being closed.
    closing: bool,
    /// Threads that wait: telling nobody would cost a system call as well.
    waiting: usize,
}

/// What nobody but an ended transfer holds, and whose drop closes files.
#[derive(Debug)]
pub(crate) struct Unused {
    #[expect(dead_code, reason = "held for its drop")]
    file: Option<Handle>,
    #[expect(dead_code, reason = "held for its drop")]
    batch: Option<Batch>,
}

impl State {
    pub(crate) fn new(
        file: Arc<Handle>,
        range: ByteRange,
        buffers: Vec<Buffer>,
        keep: Vec<Keep>,
    ) -> Self {
        Self {
            file: Mutex::new(Some(file)),
            range,
            wanted: range.len(),
            started: Instant::now(),
            done: AtomicU64::new(0),
            bytes: [const { AtomicU64::new(0) }; Route::ALL.len() * Reason::ALL.len()],
            probe_ns: AtomicU64::new(0),
            file_ns: AtomicU64::new(0),
            copy_ns: AtomicU64::new(0),
            key: AtomicUsize::new(usize::MAX),
            keep: Mutex::new(keep),
            batch: Mutex::default(),
            end: Mutex::new(End { result: None, buffers, closing: false, waiting: 0 }),
            stop: AtomicBool::new(false),
            ended: AtomicBool::new(false),
            bell: Condvar::new(),
            told: Mutex::default(),
        }
    }

    /// The same, of a transfer that reads a batch.
    pub(crate) fn of_batch(mut self, batch: Arc<Batch>) -> Self {
        self.wanted = batch.strip().wanted_in(self.range);
        *self.batch.get_mut().unwrap_or_else(PoisonError::into_inner) = Some(batch);
        self
    }

    /// Where it moves bytes; `None` once it has ended.
    fn place(&self) -> Option<Place> {
        let batch = self.batch.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(batch) = &*batch {
            return Some(batch.place(self.range));
        }
        let file = self.file.lock().unwrap_or_else(PoisonError::into_inner);
        file.as_ref().map(|file| file.place(self.range.start, self.range.len()))
    }

    /// Its file, its bytes and its time so far; `None` once it has ended.
    pub(crate) fn described(&self) -> Option<(Box<Path>, ByteRange, Duration)> {
        let file = self.file.lock().unwrap_or_else(PoisonError::into_inner);
        file.as_ref().map(|file| (file.path().into(), self.range, self.started.elapsed()))
    }

    /// As [`place`](Self::place), without waiting for a lock or looking for the drive.
    fn place_unlocked(&self) -> Option<Place> {
        let file = self.file.try_lock().ok()?;
        let (offset, len) = (self.range.start, self.range.len());
        file.as_ref().map(|file| Place { offset, len, ..Place::whole(file.path()) })
    }

    pub(crate) fn done(&self) -> u64 {
        self.done.load(Ordering::Relaxed)
    }

    pub(crate) fn add_done(&self, bytes: u64) {
        self.done.fetch_add(bytes, Ordering::Relaxed);
    }

    pub(crate) fn add_bytes(&self, route: Route, reason: Reason, bytes: u64) {
        let index = route as usize * Reason::ALL.len() + reason as usize;
        self.bytes[index].fetch_add(bytes, Ordering::Relaxed);
    }

    pub(crate) fn add_probe_time(&self, ns: u64) {
        self.probe_ns.fetch_add(ns, Ordering::Relaxed);
    }

    pub(crate) fn add_file_time(&self, ns: u64) {
        self.file_ns.fetch_add(ns, Ordering::Relaxed);
    }

    pub(crate) fn add_copy_time(&self, ns: u64) {
        self.copy_ns.fetch_add(ns, Ordering::Relaxed);
    }

    /// Gives the transfer's memory up for good, since the copy that failed so may not be over: what
    /// the transfer owns never comes back, what it was lent is marked.
    pub(crate) fn lose_memory(&self, source: &DeviceError) {
        self.keep().iter().for_each(|keep| keep.lose(source));
        let owned = std::mem::take(&mut self.lock().buffers);
        drop(owned);
    }

    fn keep(&self) -> MutexGuard<'_, Vec<Keep>> {
        self.keep.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn set_key(&self, key: usize) {
        self.key.store(key, Ordering::Relaxed);
    }

    pub(crate) fn key(&self) -> usize {
        self.key.load(Ordering::Relaxed)
    }

    fn routes(&self) -> Vec<RouteShare> {
        let mut shares = Vec::new();
        for route in Route::ALL {
            for reason in Reason::ALL {
                let index = route as usize * Reason::ALL.len() + reason as usize;
                let bytes = self.bytes[index].load(Ordering::Relaxed);
                if bytes > 0 {
                    shares.push(RouteShare { route, reason, bytes });
                }
            }
        }
        shares.sort_by_key(|share| std::cmp::Reverse(share.bytes));
        shares
    }

    fn stages(&self) -> Stages {
        let load = |ns: &AtomicU64| Duration::from_nanos(ns.load(Ordering::Relaxed));
        Stages { probe: load(&self.probe_ns), file: load(&self.file_ns), copy: load(&self.copy_ns) }
    }

    /// Ends the transfer: from now on nothing in the kernel or on the GPU touches its memory. Files
    /// that nobody else has are to be closed by the caller, who says when they are
    /// [`closed`](Self::closed).
    pub(crate) fn finish(&self, result: Result<u64>) -> Option<Unused> {
        let batch = self.batch.lock().unwrap_or_else(PoisonError::into_inner).take();
        let result = result.map(|bytes| batch.as_ref().map_or(bytes, |batch| batch.got()));
        let result = result.map(|bytes| Outcome {
            bytes,
            routes: trimmed(self.routes(), bytes),
            stages: self.stages(),
            elapsed: self.started.elapsed(),
        });
        let keep = std::mem::take(&mut *self.keep());
        drop(keep);
        let file = self.file.lock().unwrap_or_else(PoisonError::into_inner).take();
        file.iter().for_each(|file| self.tell_end(file, &result));
        let file = file.and_then(Arc::into_inner);
        let batch = batch.and_then(Arc::into_inner);
        let unused = (file.is_some() || batch.is_some()).then_some(Unused { file, batch });
        let mut end = self.lock();
        end.result = Some(result);
        end.closing = unused.is_some();
        let waiting = end.waiting > 0;
        drop(end);
        self.ended.store(true, Ordering::Release);
        if waiting {
            self.bell.notify_all();
        }
        unused
    }

    /// Says that they are closed.
    pub(crate) fn closed(&self) {
        self.lock().closing = false;
        self.bell.notify_all();
    }

    /// Waits a moment for the files of an ended transfer to be closed.
    fn wait_for_closing(&self) {
        let waited = self.bell.wait_timeout_while(self.lock(), CLOSING_MAX, |end| end.closing);
        drop(waited);
    }

    /// Whether it holds memory that is given back with it.
    pub(crate) fn owns_memory(&self) -> bool {
        !self.lock().buffers.is_empty()
    }

    fn lock(&self) -> MutexGuard<'_, End> {
        self.end.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Blocks until the transfer has drained, as [`wait`](Self::wait) does, but is awake when a GPU
    /// transfer's end is near: waking a thread whose core sleeps took up to 200 µs on a virtual
    /// machine, 4 % of 256 MiB. What is spent awake is a fifth of the time waited for, and at most
    /// 1 ms.
    pub(crate) fn wait_awake(&self) -> (Result<Outcome>, Option<Buffer>) {
        loop {
            let (elapsed, done) = (self.started.elapsed(), self.done());
            let awake = (elapsed / 5).min(AWAKE_MAX);
            let left = match (self.wanted.saturating_sub(done), done) {
                (_, 0) => awake + elapsed.max(FIRST_LOOK),
                (left, done) => elapsed.mul_f64(float(left) / float(done)),
            };
            if left > awake {
                if self.wait_for(left - awake).is_some() {
                    return self.wait();
                }
                continue;
            }
            let until = Instant::now() + awake;
            while Instant::now() < until {
                if self.ended.load(Ordering::Acquire) {
                    return self.wait();
                }
                std::thread::yield_now();
            }
            return self.wait();
        }
    }

    /// Blocks until the transfer has drained.
    pub(crate) fn wait(&self) -> (Result<Outcome>, Option<Buffer>) {
        let (result, mut buffers) = self.wait_for_all();
        (result, buffers.pop())
    }

    /// The same, of a transfer that owns several buffers.
    pub(crate) fn wait_for_all(&self) -> (Result<Outcome>, Vec<Buffer>) {
        let mut end = self.lock();
        loop {
            if let Some(result) = end.result.clone() {
                return (result, std::mem::take(&mut end.buffers));
            }
            end.waiting += 1;
            end = self.bell.wait(end).unwrap_or_else(PoisonError::into_inner);
            end.waiting -= 1;
        }
    }

    /// Asks it to stop, where the scheduler does not know it.
    pub(crate) fn ask_to_stop(&self) {
        self.stop.store(true, Ordering::Relaxed);
    }

    pub(crate) fn is_asked_to_stop(&self) -> bool {
        self.stop.load(Ordering::Relaxed)
    }

    /// What it was asked to move.
    pub(crate) fn asked(&self) -> ByteRange {
        self.range
    }

    pub(crate) fn is_done(&self) -> bool {
        self.lock().result.is_some()
    }

    #[cfg(test)]
    pub(crate) fn file(&self) -> Arc<Handle> {
        let file = self.file.lock().unwrap_or_else(PoisonError::into_inner);
        Arc::clone(file.as_ref().expect("it has not ended"))
    }

    #[cfg(test)]
    pub(crate) fn range(&self) -> ByteRange {
        self.range
    }

    /// Blocks until the transfer has drained; at once where it has.
    pub(crate) fn wait_drained(&self) {
        while !self.ended.load(Ordering::Acquire) {
            let waited = self.wait_for(Duration::from_secs(3600));
            drop(waited);
        }
    }

    pub(crate) fn wait_for(&self, bound: Duration) -> Option<Result<Outcome>> {
        let pending = |end: &mut End| end.result.is_none();
        let mut end = self.lock();
        end.waiting += 1;
        let (mut end, _) = self
            .bell
            .wait_timeout_while(end, bound, pending)
            .unwrap_or_else(PoisonError::into_inner);
        end.waiting -= 1;
        end.result.clone()
    }
}

impl fmt::Debug for State {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "State({:?}, {} bytes done)", self.range, self.done())
    }
}

/// `bytes` for a ratio; what is lost above 2^53 does not matter to one.
#[expect(clippy::cast_precision_loss, reason = "a ratio")]
fn float(bytes: u64) -> f64 {
    bytes as f64
}

/// Bytes on their way. Dropping it cancels what has not begun; what is in flight drains in the
/// background, and the memory that it owns is given back only then.
///
/// A forked child has no share in it: waiting fails with [`Error::Forked`] there, and dropping it
/// cancels nothing.
#[derive(Debug)]
pub struct Transfer {
    state: Arc<State>,
    engine: Engine,
}

impl Transfer {
    pub(crate) fn new(state: Arc<State>, engine: Engine) -> Self {
        Self { state, engine }
    }

    /// Waits for the end. The buffer that the transfer owned comes back, after an error as well.
    ///
    /// # Errors
    /// The first error of the transfer; all in flight has drained by then. Only
    /// [`Error::CopyNotOver`] comes without the buffer, and before any other.
    pub fn wait(self) -> (Result<Outcome>, Option<Buffer>) {
        if let Some(error) = self.forked() {
            return (Err(error), None);
        }
        let end = self.state.wait();
        self.state.wait_for_closing();
        end
    }

    /// As [`wait`](Self::wait), of a transfer that owns several buffers.
    pub(crate) fn wait_for_all(&self) -> (Result<Outcome>, Vec<Buffer>) {
        if let Some(error) = self.forked() {
            return (Err(error), Vec::new());
        }
        let end = self.state.wait_for_all();
        self.state.wait_for_closing();
        end
    }

    /// Waits for the end, at most for `bound`. When the bound expires the transfer is cancelled,
    /// and its memory stays with the engine until nothing can touch it any more: it never comes
    /// back from this call.
    ///
    /// # Errors
    /// [`Error::TimedOut`], or the first error of the transfer.
    pub fn wait_at_most(self, bound: Duration) -> (Result<Outcome>, Option<Buffer>) {
        if let Some(error) = self.forked() {
            return (Err(error), None);
        }
        let waited = self.state.wait_for(bound);
        match (waited, self.state.place()) {
            (None, Some(place)) => {
                (Err(Error::TimedOut { place, bound, done: self.state.done() }), None)
            }
            // It may have ended just now.
            _ => self.state.wait(),
        }
    }

    /// Waits for the end for at most `bound`, and leaves the transfer as it is: `None` where it is
    /// still on its way.
    #[must_use]
    pub fn wait_for(&self, bound: Duration) -> Option<Result<Outcome>> {
        if let Some(error) = self.forked() {
            return Some(Err(error));
        }
        self.state.wait_for(bound)
    }

    /// Whether it has ended; in a forked child it has, and waiting says why.
    #[must_use]
    pub fn is_done(&self) -> bool {
        !self.engine.home().is_here() || self.state.is_done()
    }

    /// How it ended; `None` while it is on its way.
    pub(crate) fn ended(&self) -> Option<Result<Outcome>> {
        self.state.ended.load(Ordering::Acquire).then(|| self.state.wait_for(Duration::ZERO))?
    }

    /// Stops it: nothing new starts, what is in flight drains, and waiting reports
    /// [`Error::Cancelled`] unless it had ended before.
    pub fn cancel(&self) {
        self.engine.cancel(&self.state);
    }

    /// Bytes done so far, and bytes asked for.
    #[must_use]
    pub fn progress(&self) -> (u64, u64) {
        (self.state.done(), self.state.wanted)
    }

    /// Bytes by route and reason so far.
    #[must_use]
    pub fn routes(&self) -> Vec<RouteShare> {
        self.state.routes()
    }

    /// Time by stage so far.
    #[must_use]
    pub fn stages(&self) -> Stages {
        self.state.stages()
    }
}

impl Transfer {
    /// What a forked child is told instead of the end, which its parent waits for.
    fn forked(&self) -> Option<Error> {
        let home = self.engine.home();
        (!home.is_here()).then(|| home.refusal(Operation::Wait, self.state.place_unlocked()))
    }
}

impl Drop for Transfer {
    fn drop(&mut self) {
        if !self.is_done() {
            self.cancel();
        }
    }
}
