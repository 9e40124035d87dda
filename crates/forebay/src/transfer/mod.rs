//! What caller and engine share while bytes move, and in the end what was done.

mod caller;
mod outcome;
mod told;
mod touch;
mod wait;

use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, OnceLock};
use std::time::{Duration, Instant};

use crate::error::{Place, Result};
use crate::events::Told;
use crate::file::Handle;
use crate::gpu::DeviceError;
use crate::lock::Lock;
use crate::memory::{Buffer, Keep, Last};
use crate::plan::{Reason, Route};
use crate::queue::Batch;
use crate::units::ByteRange;
pub use caller::Transfer;
use outcome::trimmed;
pub use outcome::{Outcome, RouteShare, Stages, SyncMode};
pub(crate) use touch::Touch;

/// The part of a transfer that caller and engine share.
pub(crate) struct State {
    /// Let go with the end. Whoever waits for that waits a moment for the close as well, so that
    /// the file's room is there when it is removed then.
    file: Lock<Option<Arc<Handle>>>,
    range: ByteRange,
    /// Bytes that are wanted of these.
    wanted: u64,
    started: Instant,
    done: AtomicU64,
    bytes: [AtomicU64; Route::ALL.len() * Reason::ALL.len()],
    not_direct: OnceLock<Arc<str>>,
    probe_ns: AtomicU64,
    file_ns: AtomicU64,
    copy_ns: AtomicU64,
    key: AtomicUsize,
    /// A share in the memory that bytes move to or from; let go before anybody can see the end, so
    /// that whoever then frees the memory has it free.
    keep: Lock<Shares>,
    /// What it reads where that are many ranges; let go with the file.
    batch: Lock<Option<Arc<Batch>>>,
    /// Whether it is to stop, where the scheduler does not know it.
    stop: AtomicBool,
    /// Whether its caller is to be free to do something else at any time.
    caller_is_spared: AtomicBool,
    /// Ops that a thread or the kernel has, which may touch the memory.
    touches: AtomicUsize,
    /// Whether it was ended: it is only once.
    finished: AtomicBool,
    /// Set once `end` holds the result; read without its lock.
    ended: AtomicBool,
    end: Lock<End>,
    bell: Condvar,
    /// There from when subscribers were told that it begins until they are told that it ends.
    told: Lock<Option<Told>>,
}

/// See [`State::keep`].
#[derive(Debug)]
struct Shares {
    keep: Vec<Keep>,
    /// Whether the caller has gone on without the end.
    adrift: bool,
}

/// How a transfer ended, and the memory that it owns until then.
struct End {
    result: Option<Result<Outcome>>,
    buffers: Vec<Buffer>,
    /// Whether the file is being closed.
    closing: bool,
    /// Threads that wait: telling nobody would cost a system call as well.
    waiting: usize,
    /// What is to be done then.
    steps: Vec<Box<dyn FnOnce() + Send>>,
}

/// What nobody but an ended transfer holds, and whose drop closes files and frees memory.
#[derive(Debug)]
pub(crate) struct Unused {
    /// Of a caller who has gone on without the end.
    pub(crate) memory: Vec<Last>,
    file: Option<Handle>,
    batch: Option<Batch>,
}

impl Unused {
    /// Whether there is something to close.
    pub(crate) fn has_files(&self) -> bool {
        self.file.is_some() || self.batch.is_some()
    }
}

impl State {
    pub(crate) fn new(
        file: Arc<Handle>,
        range: ByteRange,
        buffers: Vec<Buffer>,
        keep: Vec<Keep>,
    ) -> Self {
        Self {
            file: Lock::new(Some(file)),
            range,
            wanted: range.len(),
            started: Instant::now(),
            done: AtomicU64::new(0),
            bytes: [const { AtomicU64::new(0) }; Route::ALL.len() * Reason::ALL.len()],
            not_direct: OnceLock::new(),
            probe_ns: AtomicU64::new(0),
            file_ns: AtomicU64::new(0),
            copy_ns: AtomicU64::new(0),
            key: AtomicUsize::new(usize::MAX),
            keep: Lock::new(Shares { keep, adrift: false }),
            batch: Lock::default(),
            end: Lock::new(End {
                result: None,
                buffers,
                closing: false,
                waiting: 0,
                steps: Vec::new(),
            }),
            stop: AtomicBool::new(false),
            caller_is_spared: AtomicBool::new(false),
            touches: AtomicUsize::new(0),
            finished: AtomicBool::new(false),
            ended: AtomicBool::new(false),
            bell: Condvar::new(),
            told: Lock::default(),
        }
    }

    /// The same, of a transfer that reads a batch.
    pub(crate) fn of_batch(mut self, batch: Arc<Batch>) -> Self {
        self.wanted = batch.strip().wanted_in(self.range);
        *self.batch.get_mut() = Some(batch);
        self
    }

    /// Where it moves bytes; `None` once it has ended.
    pub(crate) fn place(&self) -> Option<Place> {
        let batch = self.batch.lock();
        if let Some(batch) = &*batch {
            return Some(batch.place(self.range));
        }
        let file = self.file.lock();
        file.as_ref().map(|file| file.place(self.range.start, self.range.len()))
    }

    /// Its file, its bytes and its time so far; `None` once it has ended.
    pub(crate) fn described(&self) -> Option<(Box<Path>, ByteRange, Duration)> {
        let file = self.file.lock();
        file.as_ref().map(|file| (file.path().into(), self.range, self.started.elapsed()))
    }

    /// As [`place`](Self::place), without waiting for a lock or looking for the drive.
    fn place_unlocked(&self) -> Option<Place> {
        let file = self.file.try_lock()?;
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

    /// Keeps why its bytes, or the rest of them, do not go straight; what was said first stays.
    pub(crate) fn say_not_direct(&self, why: Arc<str>) {
        let _ = self.not_direct.set(why);
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
        self.keep.lock().keep.iter().for_each(|keep| keep.lose(source));
        let owned = std::mem::take(&mut self.end.lock().buffers);
        drop(owned);
    }

    /// Says that its caller goes on without the end: until that comes nobody may use the memory.
    pub(crate) fn set_adrift(&self) {
        let mut shares = self.keep.lock();
        shares.adrift = true;
        shares.keep.iter().for_each(Keep::set_adrift); // none where it has ended meanwhile
    }

    /// Lets go of the memory; what nobody else has a share in is the answer.
    fn let_go(&self) -> Vec<Last> {
        let mut shares = self.keep.lock();
        let (keep, adrift) = (std::mem::take(&mut shares.keep), shares.adrift);
        drop(shares);
        if adrift {
            keep.iter().for_each(Keep::land);
        }
        keep.into_iter().filter_map(Keep::let_go).collect()
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
    /// [`closed`](Self::closed), and memory is to be freed. Only the first call counts.
    pub(crate) fn finish(&self, result: Result<u64>) -> Option<Unused> {
        if self.finished.swap(true, Ordering::AcqRel) {
            return None;
        }
        let batch = self.batch.lock().take();
        let result = result.map(|bytes| batch.as_ref().map_or(bytes, |batch| batch.got()));
        let result = result.map(|bytes| Outcome {
            bytes,
            routes: trimmed(self.routes(), bytes),
            not_direct: self.not_direct.get().cloned(),
            stages: self.stages(),
            elapsed: self.started.elapsed(),
        });
        let memory = self.let_go();
        let file = self.file.lock().take();
        file.iter().for_each(|file| self.tell_end(file, &result));
        let file = file.and_then(Arc::into_inner);
        let batch = batch.and_then(Arc::into_inner);
        let unused = Unused { memory, file, batch };
        let mut end = self.end.lock();
        end.result = Some(result);
        end.closing = unused.has_files();
        let (waiting, steps) = (end.waiting > 0, std::mem::take(&mut end.steps));
        drop(end);
        self.ended.store(true, Ordering::Release);
        if waiting {
            self.bell.notify_all();
        }
        for step in steps {
            // One that panics would take those with it whom this thread serves.
            drop(catch_unwind(AssertUnwindSafe(step)));
        }
        (unused.has_files() || !unused.memory.is_empty()).then_some(unused)
    }

    /// Says that they are closed.
    pub(crate) fn closed(&self) {
        self.end.lock().closing = false;
        self.bell.notify_all();
    }

    /// Whether it holds memory that is given back with it.
    pub(crate) fn owns_memory(&self) -> bool {
        !self.end.lock().buffers.is_empty()
    }

    /// Has the thread that ends the transfer run `step`, or this one where it has ended. It may not
    /// wait for anything.
    pub(crate) fn on_end(&self, step: impl FnOnce() + Send + 'static) {
        let mut end = self.end.lock();
        if end.result.is_none() {
            return end.steps.push(Box::new(step));
        }
        drop(end);
        step();
    }

    /// Has its caller help with nothing that may wait for a drive.
    pub(crate) fn spare_caller(&self) {
        self.caller_is_spared.store(true, Ordering::Relaxed);
    }

    pub(crate) fn is_caller_spared(&self) -> bool {
        self.caller_is_spared.load(Ordering::Relaxed)
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
        self.end.lock().result.is_some()
    }

    #[cfg(test)]
    pub(crate) fn file(&self) -> Arc<Handle> {
        let file = self.file.lock();
        Arc::clone(file.as_ref().expect("it has not ended"))
    }

    #[cfg(test)]
    pub(crate) fn range(&self) -> ByteRange {
        self.range
    }
}

impl fmt::Debug for State {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "State({:?}, {} bytes done)", self.range, self.done())
    }
}
