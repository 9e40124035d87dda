//! The state that a caller and the engine share during a transfer, and its outcome. Callers wait
//! for the end: parked, polling when it is near, or checking whether to continue.

mod batch;
mod completions;
mod gate;

use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use crate::error::{Error, Place, Result};
use crate::events::{self, Begin, OpenSpan};
use crate::file::Handle;
use crate::gpu::DeviceError;
use crate::memory::{Buffer, Keep, Last};
pub use crate::outcome::{Outcome, RouteShare, Stages, SyncMode};
use crate::plan::{Reason, Route};
pub(crate) use batch::{Batch, Scatter};
pub use completions::Completions;
use completions::LONG;
use completions::Queue;
pub(crate) use completions::Reaper;
pub(crate) use completions::goes_at_once;
use forebay_base::lock::{Condvar, Lock, MutexGuard, woken};
use forebay_base::units::ByteRange;
pub(crate) use gate::Gate;

/// Interval between two checks of a transfer of a failed engine.
const LOOKS_EVERY: Duration = Duration::from_millis(1);

/// Longest time that a waiting thread polls before an expected end.
const AWAKE_MAX: Duration = Duration::from_millis(1);

/// When a waiting thread checks a transfer's progress for the first time.
const FIRST_LOOK: Duration = Duration::from_micros(500);

/// How long a finished transfer waits for its file to be closed; closing hangs if a server does.
const CLOSING_MAX: Duration = Duration::from_millis(250);

/// The shared state of a transfer.
pub(crate) struct State {
    /// Dropped at the end. Waiting threads also wait briefly for the close, so that the file's
    /// space is freed if they then delete it.
    file: Lock<Option<Arc<Handle>>>,
    range: ByteRange,
    /// Wanted bytes in `range`.
    wanted: u64,
    started: Instant,
    done: AtomicU64,
    /// Bytes by route and reason.
    shares: Lock<Vec<RouteShare>>,
    not_direct: OnceLock<Arc<str>>,
    /// Indexed by [`Stage`].
    stage_ns: [AtomicU64; 3],
    key: AtomicUsize,
    /// The memory that bytes move to or from. Released before the end is visible, so that a caller
    /// who then drops the last reference frees the memory.
    keep: Lock<Keeps>,
    /// The ranges of a batch; dropped with the file.
    batch: Lock<Option<Arc<Batch>>>,
    /// Set to cancel the transfer when the scheduler does not know it.
    stop: AtomicBool,
    /// Whether the caller's thread must not block on a drive for this transfer.
    caller_is_spared: AtomicBool,
    /// Number of ops that a thread or the kernel holds and that may touch the memory.
    touches: AtomicUsize,
    /// Whether the transfer was ended; makes sure that this happens once.
    finished: AtomicBool,
    /// Set once `end` holds the result; read without its lock.
    ended: AtomicBool,
    /// Set once its end is left to the caller's thread, for threads that poll.
    is_left: AtomicBool,
    end: Lock<End>,
    bell: Condvar,
    /// `Some` between the start event and the end event.
    span: Lock<Option<OpenSpan>>,
    /// Who takes the completions of the ring in which it began.
    reaper: OnceLock<Arc<dyn Reaper>>,
    /// Whether it is in that ring.
    is_in_ring: AtomicBool,
}

/// A stage whose time is measured: see [`Stages`].
#[derive(Debug, Clone, Copy)]
pub(crate) enum Stage {
    Probe,
    File,
    Copy,
}

/// The memory that a transfer keeps.
#[derive(Debug)]
struct Keeps {
    keep: Vec<Keep>,
    /// Whether the caller has abandoned the transfer.
    adrift: bool,
}

/// A copy that has succeeded, of all bytes of a transfer.
#[derive(Debug)]
pub(crate) struct Over {
    pub(crate) way: (Route, Reason),
    pub(crate) took_ns: u64,
}

/// The thread that ends a transfer once its copy is over.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) enum Ender {
    #[default]
    CopyThread,
    /// A caller that has a handle.
    Holder,
    /// A caller that polls for the end.
    Polling,
}

/// The result of a transfer, and the memory that it owns until then.
#[derive(Default)]
struct End {
    result: Option<Result<Outcome>>,
    /// Who takes what is `over`.
    ender: Ender,
    /// The copy, if the copy thread has left it to the caller's thread to end the transfer.
    over: Option<Over>,
    buffers: Vec<Buffer>,
    /// Whether the file is being closed.
    closing: bool,
    /// Number of waiting threads; without any, the wake-up system call is skipped.
    waiting: usize,
    /// Callbacks to run at the end.
    steps: Vec<Box<dyn FnOnce() + Send>>,
    /// Where its end is reported, and by which tag.
    report: Option<(Arc<Queue>, u64)>,
}

/// Resources that only the ended transfer held. Dropping them closes files and frees memory.
#[derive(Debug)]
pub(crate) struct Unused {
    /// Memory of a caller who abandoned the transfer.
    pub(crate) memory: Vec<Last>,
    file: Option<Handle>,
    batch: Option<Batch>,
}

impl Unused {
    /// Whether files have to be closed.
    pub(crate) fn has_files(&self) -> bool {
        self.file.is_some() || self.batch.is_some()
    }
}

/// Held by an op while a thread or the kernel may touch its memory. It is independent of the
/// scheduler: if the scheduler's state is lost, this decides when memory may be returned.
#[derive(Debug)]
pub(crate) struct Touch(Arc<State>);

impl Touch {
    pub(crate) fn new(state: &Arc<State>) -> Self {
        state.touches.fetch_add(1, Ordering::Relaxed);
        Self(Arc::clone(state))
    }
}

impl Clone for Touch {
    fn clone(&self) -> Self {
        Self::new(&self.0)
    }
}

impl Drop for Touch {
    fn drop(&mut self) {
        self.0.touches.fetch_sub(1, Ordering::Release);
    }
}

impl End {
    /// Whether the result is there, or only has to be recorded.
    fn is_near(&self) -> bool {
        self.result.is_some() || self.over.is_some()
    }
}

impl State {
    /// `started`: when the call began. A first transfer allocates slots and starts threads before
    /// its state exists.
    pub(crate) fn new(
        started: Instant,
        file: Arc<Handle>,
        range: ByteRange,
        buffers: Vec<Buffer>,
        keep: Vec<Keep>,
    ) -> Self {
        Self {
            file: Lock::new(Some(file)),
            range,
            wanted: range.len(),
            started,
            done: AtomicU64::new(0),
            shares: Lock::default(),
            not_direct: OnceLock::new(),
            stage_ns: [const { AtomicU64::new(0) }; 3],
            key: AtomicUsize::new(usize::MAX),
            keep: Lock::new(Keeps { keep, adrift: false }),
            batch: Lock::default(),
            end: Lock::new(End { buffers, ..End::default() }),
            stop: AtomicBool::new(false),
            caller_is_spared: AtomicBool::new(false),
            touches: AtomicUsize::new(0),
            finished: AtomicBool::new(false),
            ended: AtomicBool::new(false),
            is_left: AtomicBool::new(false),
            bell: Condvar::new(),
            span: Lock::default(),
            reaper: OnceLock::new(),
            is_in_ring: AtomicBool::new(false),
        }
    }

    /// Names who takes the completions of the ring that it is about to enter.
    pub(crate) fn reaps_with(&self, reaper: Arc<dyn Reaper>) {
        let _ = self.reaper.set(reaper);
    }

    /// Records that it has entered or left the ring.
    pub(crate) fn set_in_ring(&self, is_in_ring: bool) {
        self.is_in_ring.store(is_in_ring, Ordering::SeqCst);
    }

    /// Who takes its completion, if it is in a ring and has not ended.
    fn reaper(&self) -> Option<&Arc<dyn Reaper>> {
        let may_end = self.is_in_ring.load(Ordering::SeqCst) && !self.ended.load(Ordering::Acquire);
        self.reaper.get().filter(|_| may_end)
    }

    /// Whether [`is_done`](Self::is_done) takes completions.
    pub(crate) fn reaps(&self) -> bool {
        self.reaper().is_some()
    }

    /// Wakes a thread that waits for it, to take completions; false if there is none.
    pub(crate) fn wake_to_reap(&self) -> bool {
        let end = self.end.lock();
        if end.waiting > 0 {
            self.bell.notify_all();
            return true;
        }
        let report = end.report.clone();
        drop(end);
        report.is_some_and(|(queue, _)| queue.wake_to_reap())
    }

    /// Makes it the state of a transfer that its caller has done.
    pub(crate) fn over(mut self, result: Result<Outcome>) -> Self {
        *self.file.get_mut() = None;
        self.keep.get_mut().keep.clear();
        if let Ok(Outcome { bytes, routes, not_direct, stages, .. }) = &result {
            self.add_done(*bytes);
            routes.iter().for_each(|share| self.add_bytes(share.route, share.reason, share.bytes));
            not_direct.iter().for_each(|why| self.say_not_direct(Arc::clone(why)));
            self.add_stages(stages);
        }
        self.end.get_mut().result = Some(result);
        (*self.finished.get_mut(), *self.ended.get_mut()) = (true, true);
        self
    }

    /// Makes it the state of a batch transfer.
    pub(crate) fn of_batch(mut self, batch: Arc<Batch>) -> Self {
        self.wanted = batch.strip().wanted_in(self.range);
        *self.batch.get_mut() = Some(batch);
        self
    }

    /// The place for errors; `None` once it has ended.
    pub(crate) fn place(&self) -> Option<Place> {
        let batch = self.batch.lock();
        if let Some(batch) = &*batch {
            return Some(batch.place(self.range));
        }
        let file = self.file.lock();
        file.as_ref().map(|file| file.place(self.range.start, self.range.len()))
    }

    /// The file's path, the range and the elapsed time; `None` once it has ended.
    pub(crate) fn described(&self) -> Option<(Box<Path>, ByteRange, Duration)> {
        let file = self.file.lock();
        file.as_ref().map(|file| (file.path().into(), self.range, self.started.elapsed()))
    }

    /// Like [`place`](Self::place), but without waiting for a lock or looking up the drive.
    pub(crate) fn place_unlocked(&self) -> Option<Place> {
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
        let mut shares = self.shares.lock();
        let mut known = shares.iter_mut();
        match known.find(|share| (share.route, share.reason) == (route, reason)) {
            Some(share) => share.bytes += bytes,
            None if bytes > 0 => shares.push(RouteShare { route, reason, bytes }),
            None => {}
        }
    }

    /// Why bytes are not transferred directly, if that is known by now.
    pub(crate) fn not_direct(&self) -> Option<Arc<str>> {
        self.not_direct.get().cloned()
    }

    /// Records why bytes are not transferred directly; the first reason wins.
    pub(crate) fn say_not_direct(&self, why: Arc<str>) {
        let _ = self.not_direct.set(why);
    }

    pub(crate) fn add_time(&self, stage: Stage, ns: u64) {
        self.stage_ns[stage as usize].fetch_add(ns, Ordering::Relaxed);
    }

    /// Adds the times of a transfer that is a step of this one.
    pub(crate) fn add_stages(&self, stages: &Stages) {
        for (sum, time) in self.stage_ns.iter().zip([stages.probe, stages.file, stages.copy]) {
            sum.fetch_add(u64::try_from(time.as_nanos()).unwrap_or(0), Ordering::Relaxed);
        }
    }

    /// Gives up the transfer's memory for good, because a failed copy may still run. Owned buffers
    /// never come back; borrowed memory is marked unusable.
    pub(crate) fn lose_memory(&self, source: &DeviceError) {
        self.keep.lock().keep.iter().for_each(|keep| keep.lose(source));
        drop(self.take_buffers());
    }

    /// Records that the caller has abandoned the transfer: its memory is unusable until the
    /// transfer ends.
    pub(crate) fn set_detached(&self) {
        let mut shares = self.keep.lock();
        shares.adrift = true;
        shares.keep.iter().for_each(Keep::set_detached); // empty if it has ended
        drop(shares);
        self.leave_to_thread();
    }

    /// Makes sure that it ends although its caller does not wait for it.
    pub(crate) fn leave_to_thread(&self) {
        self.reaper().iter().for_each(|reaper| reaper.leave_to_thread());
    }

    /// Drops the shares in the memory; returns the allocations of which they were the last.
    fn dispose(&self) -> Vec<Last> {
        let mut shares = self.keep.lock();
        let (keep, adrift) = (std::mem::take(&mut shares.keep), shares.adrift);
        drop(shares);
        if adrift {
            keep.iter().for_each(Keep::land);
        }
        keep.into_iter().filter_map(Keep::dispose).collect()
    }

    pub(crate) fn set_key(&self, key: usize) {
        self.key.store(key, Ordering::Relaxed);
    }

    pub(crate) fn key(&self) -> usize {
        self.key.load(Ordering::Relaxed)
    }

    /// Bytes by route and reason so far, the most first; at most `most` together. If a file shrank
    /// during the read, some bytes were read after the end that was found later.
    pub(crate) fn routes(&self, most: u64) -> Vec<RouteShare> {
        let mut shares = self.shares.lock().clone();
        shares.sort_by_key(|share| (std::cmp::Reverse(share.bytes), share.route, share.reason));
        let mut excess = shares.iter().map(|share| share.bytes).sum::<u64>().saturating_sub(most);
        for share in &mut shares {
            let less = excess.min(share.bytes);
            share.bytes -= less;
            excess -= less;
        }
        shares.retain(|share| share.bytes > 0);
        shares
    }

    /// Time by stage so far.
    pub(crate) fn stages(&self) -> Stages {
        let [probe, file, copy] = &self.stage_ns;
        let load = |ns: &AtomicU64| Duration::from_nanos(ns.load(Ordering::Relaxed));
        Stages { probe: load(probe), file: load(file), copy: load(copy) }
    }

    /// Ends the transfer: from now on neither the kernel nor the GPU touches its memory. The caller
    /// drops the returned resources, then calls [`closed`](Self::closed) if they held files. Only
    /// the first call has an effect.
    pub(crate) fn finish(&self, result: Result<u64>) -> Option<Unused> {
        if self.finished.swap(true, Ordering::AcqRel) {
            return None;
        }
        let batch = self.batch.lock().take();
        let result = result.map(|bytes| batch.as_ref().map_or(bytes, |batch| batch.got()));
        let result = result.map(|bytes| Outcome {
            bytes,
            routes: self.routes(bytes),
            not_direct: self.not_direct(),
            stages: self.stages(),
            elapsed: self.started.elapsed(),
        });
        let memory = self.dispose();
        let file = self.file.lock().take();
        file.iter().for_each(|file| self.emit_end(file, &result));
        let file = file.and_then(Arc::into_inner);
        let batch = batch.and_then(Arc::into_inner);
        let unused = Unused { memory, file, batch };
        let mut end = self.end.lock();
        end.result = Some(result);
        end.closing = unused.has_files();
        let (waiting, steps) = (end.waiting > 0, std::mem::take(&mut end.steps));
        let report = end.report.take();
        drop(end);
        // A failed engine ends transfers whose reads are still in their ring.
        let reaper = self.reaper();
        self.ended.store(true, Ordering::Release);
        if waiting {
            self.bell.notify_all();
        }
        reaper.iter().for_each(|reaper| reaper.interrupt());
        report.iter().for_each(|(queue, tag)| queue.push(*tag));
        for step in steps {
            // A panicking callback must not harm the other transfers of this thread.
            drop(catch_unwind(AssertUnwindSafe(step)));
        }
        (unused.has_files() || !unused.memory.is_empty()).then_some(unused)
    }

    /// Records that the files are closed.
    pub(crate) fn closed(&self) {
        self.end.lock().closing = false;
        self.bell.notify_all();
    }

    /// Whether it owns buffers, which are returned at its end.
    pub(crate) fn owns_memory(&self) -> bool {
        !self.end.lock().buffers.is_empty()
    }

    /// Runs `step` on the thread that ends the transfer, or on this one if it has ended. The step
    /// must not block.
    pub(crate) fn on_end(&self, step: impl FnOnce() + Send + 'static) {
        let mut end = self.end.lock();
        if end.result.is_none() {
            end.steps.push(Box::new(step));
            drop(end);
            return self.leave_to_thread();
        }
        drop(end);
        step();
    }

    /// Reports its end to `completions`, by this tag.
    pub(crate) fn report_to(&self, completions: &Completions, tag: u64) {
        let queue = Arc::clone(&completions.0);
        // A thread that waits there takes the completions of one engine's ring.
        let is_waited_for = self.reaper().is_none_or(|reaper| queue.reaps_with(reaper));
        let mut end = self.end.lock();
        if is_waited_for && end.result.is_none() && end.report.is_none() {
            end.report = Some((queue, tag));
            drop(end);
            if self.reaps() {
                self.wake_to_reap(); // a thread may have waited there before
            }
            return;
        }
        drop(end);
        self.on_end(move || queue.push(tag));
    }

    /// Names who ends it once its copy is over.
    pub(crate) fn set_ended_by(&self, ender: Ender) {
        self.end.lock().ender = ender;
    }

    /// Leaves the end of the transfer to the thread that waits for it. Returns the copy if there
    /// is none, or if callbacks have to run.
    pub(crate) fn leave(&self, over: Over) -> Option<Over> {
        let mut end = self.end.lock();
        if end.ender == Ender::CopyThread || !end.steps.is_empty() {
            return Some(over);
        }
        end.over = Some(over);
        let (waiting, report) = (end.waiting > 0, end.report.take());
        if end.ender == Ender::Polling {
            self.is_left.store(true, Ordering::Release); // for others it would be a cache miss
        }
        drop(end);
        if waiting {
            self.bell.notify_all();
        }
        report.iter().for_each(|(queue, tag)| queue.push(*tag));
        None
    }

    /// The copy that was left, for the thread that ends the transfer.
    pub(crate) fn take_over(&self) -> Option<Over> {
        self.end.lock().over.take()
    }

    /// Records a copy of all its bytes; returns their number.
    pub(crate) fn record(&self, Over { way: (route, reason), took_ns }: &Over) -> u64 {
        let len = self.range.len();
        self.add_time(Stage::Copy, *took_ns);
        self.add_bytes(*route, *reason, len);
        self.add_done(len);
        len
    }

    /// Keeps the caller's thread from helping with work that may block on a drive.
    pub(crate) fn spare_caller(&self) {
        self.caller_is_spared.store(true, Ordering::Relaxed);
    }

    pub(crate) fn is_caller_spared(&self) -> bool {
        self.caller_is_spared.load(Ordering::Relaxed)
    }

    /// Requests cancellation of a transfer that the scheduler does not know.
    pub(crate) fn request_stop(&self) {
        self.stop.store(true, Ordering::Relaxed);
    }

    pub(crate) fn should_stop(&self) -> bool {
        self.stop.load(Ordering::Relaxed)
    }

    /// Number of requested bytes.
    pub(crate) fn wanted(&self) -> u64 {
        self.wanted
    }

    /// The requested range.
    pub(crate) fn requested(&self) -> ByteRange {
        self.range
    }

    pub(crate) fn is_done(&self) -> bool {
        if let Some(reaper) = self.reaper() {
            reaper.submit();
            reaper.reap(None, &|| true);
        }
        self.end.lock().result.is_some()
    }

    /// Emits the start event and keeps why the transfer is not direct. Without a start event there
    /// is no end event either.
    pub(crate) fn emit_begin(&self, file: &Handle, begin: &Begin) {
        begin.not_direct.iter().for_each(|why| self.say_not_direct(Arc::clone(why)));
        let span = events::transfer_begins(file.path(), self.range, self.wanted, begin);
        *self.span.lock() = Some(span);
    }

    /// Emits a cancel event, if the transfer has not ended.
    pub(crate) fn emit_cancel(&self) {
        let is_open = self.span.lock().is_some();
        if is_open
            && events::hears_cancels()
            && let Some((path, range, _)) = self.described()
        {
            events::cancel_requested(&path, range, self.done());
        }
    }

    /// Emits the end event of a transfer that could not be started.
    pub(crate) fn emit_refused(&self, error: &Error) {
        let file = self.file.lock().clone();
        file.iter().for_each(|file| self.emit_end(file, &Err(error.clone())));
    }

    /// Emits the end event, before any waiting thread sees the end.
    fn emit_end(&self, file: &Handle, result: &Result<Outcome>) {
        let span = self.span.lock().take();
        if let Some(span) = span {
            let report =
                move || events::transfer_ended(&span, file.path(), self.started.elapsed(), result);
            // Dropping the span notifies subscribers too. A panicking subscriber must not keep
            // waiting threads from being woken.
            drop(catch_unwind(AssertUnwindSafe(report)));
        }
    }

    fn is_untouched(&self) -> bool {
        self.touches.load(Ordering::Acquire) == 0
    }

    /// Blocks until no thread and no op in the kernel touches the memory.
    pub(crate) fn wait_untouched(&self) {
        self.leave_to_thread(); // if its read is still in a ring
        while !self.is_untouched() {
            std::thread::sleep(LOOKS_EVERY);
        }
    }

    /// Blocks until the transfer has drained. If it `polls`, it does so when the end of a GPU
    /// transfer is near. Waking a thread on an idle core took up to 200 µs on a virtual machine,
    /// 4 % of the time for 256 MiB. Polling takes at most a fifth of the time since the call, and
    /// at most 1 ms.
    pub(crate) fn wait_awake(&self, polls: bool) -> Result<Outcome> {
        let ended = !polls || self.wait_near_end(LONG, &mut || true);
        debug_assert!(ended, "without a limit it returns only at the end");
        self.wait_for_all().0
    }

    /// The result; `None` while the transfer is in progress. Takes no lock until then.
    pub(crate) fn ended(&self) -> Option<Result<Outcome>> {
        self.ended.load(Ordering::Acquire).then(|| self.wait_for(Duration::ZERO))?
    }

    /// Like [`wait_awake`](Self::wait_awake), but calls `go_on` about once per `every`. Returns
    /// whether the transfer has ended.
    pub(crate) fn wait_near_end(&self, every: Duration, go_on: &mut dyn FnMut() -> bool) -> bool {
        let mut checked = Instant::now();
        loop {
            let (elapsed, done) = (self.started.elapsed(), self.done());
            let awake = (elapsed / 5).min(AWAKE_MAX);
            let left = match (self.wanted.saturating_sub(done), done) {
                _ if self.reaps() => LONG, // the thread takes its completion
                (_, 0) => awake + elapsed.max(FIRST_LOOK),
                (left, done) => elapsed.mul_f64(float(left) / float(done)),
            };
            if left > awake {
                let pause = every.saturating_sub(checked.elapsed());
                if self.wait_for((left - awake).min(pause)).is_some() {
                    return true;
                }
                // Near the end every pause is short: call `go_on` by elapsed time.
                if checked.elapsed() >= every {
                    if !go_on() {
                        return false;
                    }
                    checked = Instant::now();
                }
                continue;
            }
            return self.polls(Instant::now() + awake) || self.wait_while(every, go_on);
        }
    }

    /// Whether it is a small read whose bytes are in pinned memory.
    pub(crate) fn is_in_cell(&self) -> bool {
        self.key() == usize::MAX && self.reaper().is_none()
    }

    /// Polls until `until`; whether the transfer has ended by then, or its end was left.
    pub(crate) fn polls(&self, until: Instant) -> bool {
        loop {
            if self.ended.load(Ordering::Acquire) || self.is_left.load(Ordering::Acquire) {
                return true;
            }
            if Instant::now() >= until {
                return false;
            }
            std::thread::yield_now();
        }
    }

    /// Waits for the end and calls `go_on` once per `every`. Returns whether the transfer has
    /// ended.
    pub(crate) fn wait_while(&self, every: Duration, go_on: &mut dyn FnMut() -> bool) -> bool {
        loop {
            if self.wait_for(every).is_some() {
                return true;
            }
            if !go_on() {
                return false;
            }
        }
    }

    /// Blocks until the transfer has drained.
    pub(crate) fn wait(&self) -> (Result<Outcome>, Option<Buffer>) {
        let (result, mut buffers) = self.wait_for_all();
        (result, buffers.pop())
    }

    /// Like [`wait`](Self::wait), for a transfer that owns several buffers.
    pub(crate) fn wait_for_all(&self) -> (Result<Outcome>, Vec<Buffer>) {
        loop {
            let mut end = self.wait_until(None);
            if let Some(result) = end.result.clone() {
                return (result, std::mem::take(&mut end.buffers));
            }
        }
    }

    /// The buffers that it owns, once. Before its end the transfer still uses them.
    pub(crate) fn take_buffers(&self) -> Vec<Buffer> {
        std::mem::take(&mut self.end.lock().buffers)
    }

    /// Blocks until the transfer has drained; returns at once if it has.
    pub(crate) fn wait_drained(&self) {
        while !self.ended.load(Ordering::Acquire) {
            let waited = self.wait_for(LONG);
            drop(waited);
        }
        self.wait_untouched(); // a failed engine ends transfers early
    }

    pub(crate) fn wait_for(&self, bound: Duration) -> Option<Result<Outcome>> {
        // Without a bound if it exceeds the clock.
        let until = Instant::now().checked_add(bound);
        self.wait_until(until).result.clone()
    }

    /// Waits as [`wait_until`](Self::wait_until) does; whether the transfer has ended.
    pub(crate) fn ends_by(&self, until: Option<Instant>) -> bool {
        self.wait_until(until).result.is_some()
    }

    /// Blocks until the transfer has drained, or until `until`, or until its end is left to the
    /// caller. If its read is in a ring and no other thread takes the completions, this one does.
    fn wait_until(&self, until: Option<Instant>) -> MutexGuard<'_, End> {
        loop {
            if let Some(reaper) = self.reaper() {
                let is_over = || !self.is_in_ring.load(Ordering::SeqCst);
                reaper.reap(until, &|| is_over() || self.ended.load(Ordering::Acquire));
            }
            let reaper = self.reaper();
            reaper.iter().for_each(|reaper| reaper.submit());
            let mut end = self.end.lock();
            if end.result.is_some() {
                return end; // without reading the clock
            }
            // Counted before the role is looked at: who gives it up looks at the count after that.
            reaper.iter().for_each(|reaper| reaper.add_waiting());
            end.waiting += 1;
            let waits = |end: &mut End| {
                !end.is_near() && !self.reaper().is_some_and(|reaper| reaper.is_free())
            };
            let left = until.map_or(LONG, |until| until.saturating_duration_since(Instant::now()));
            let (mut end, _) = woken(self.bell.wait_timeout_while(end, left, waits));
            end.waiting -= 1;
            reaper.iter().for_each(|reaper| reaper.remove_waiting());
            if end.is_near() || until.is_some_and(|until| Instant::now() >= until) {
                return end;
            }
        }
    }

    /// Waits briefly for the files of a finished transfer to be closed.
    pub(crate) fn wait_for_closing(&self) {
        let end = self.end.lock();
        if end.closing {
            drop(self.bell.wait_timeout_while(end, CLOSING_MAX, |end| end.closing));
        }
    }

    /// Gives up the memory of a transfer whose engine has failed, if it may still be touched. Owned
    /// buffers never come back, and later calls refuse borrowed memory. It is unknown which GPU
    /// copies are over.
    pub(crate) fn give_memory_up(&self, error: &Error) {
        let mut shares = self.keep.lock();
        if self.is_untouched() && !shares.keep.iter().any(Keep::is_on_gpu) {
            return;
        }
        let (name, detail) = ("ENGINE_FAILED".into(), error.to_string());
        let source = DeviceError { call: "engine", code: -1, name, detail };
        for keep in std::mem::take(&mut shares.keep) {
            keep.lose(&source);
            keep.set_detached();
            std::mem::forget(keep);
        }
        drop(shares);
        drop(self.take_buffers());
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

/// Converts `bytes` for a ratio; the precision lost above 2^53 does not matter.
#[expect(clippy::cast_precision_loss, reason = "a ratio")]
fn float(bytes: u64) -> f64 {
    bytes as f64
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::file::{Handle, OpenOptions};
    use forebay_base::units::{ByteRange, GIB};

    /// When nearly all bytes have arrived, the end is expected at any moment, here for minutes.
    #[test]
    fn a_waiting_caller_is_polled_also_when_the_end_seems_near() {
        let file = Handle::open("/proc/version", &OpenOptions::default()).expect("it is there");
        let range = ByteRange::at(0, GIB);
        let long_ago = Instant::now().checked_sub(Duration::from_secs(20));
        let started = long_ago.expect("a machine that has run for a while");
        let mut state = State::new(started, Arc::new(file), range, Vec::new(), Vec::new());
        for left in [GIB, GIB / 2, GIB / 1000, GIB / 10_000, 1, 0] {
            state.done = (GIB - left).into();
            let (start, mut calls) = (Instant::now(), 0);
            let ended = state.wait_near_end(Duration::from_millis(10), &mut || {
                calls += 1;
                // Bounds the test if `go_on` is called too late.
                calls < 5 && start.elapsed() < Duration::from_secs(5)
            });
            assert!(!ended && calls == 5, "{left} bytes left: calls {calls} times");
        }
    }
}
