//! The thread that fills and empties the slots of ordered transfers, and opens their gates. It
//! makes no GPU driver calls, because another thread may hold the driver's locks until a gate is
//! opened. It does not wait for drives or servers either: calls that may hang run on other threads.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};
use std::time::{Duration, Instant};

use forebay_base::lock::Lock;

use super::blocks::Queued;
use super::pieces::Moving;
use super::track::Track;
use super::work::OrderedWork;
use crate::error::{Error, Place, Result};
use crate::events;
use crate::gpu::{DeviceError, DeviceId};
use crate::memory::Courier;
use crate::options::RequestOptions;
use crate::plan::{Direction, Reason, Route};
use crate::queue::Chore;
use crate::transfer::{Outcome, State, SyncMode};

/// Minimum and maximum polling interval; a full slot takes 300 µs. Without progress, for example
/// because the caller's stream has other work, the interval grows to a sixteenth of the time since
/// the last progress.
const NAPS: [Duration; 2] = [Duration::from_micros(20), Duration::from_millis(1)];

/// The thread and its transfers.
#[derive(Debug, Default)]
pub(crate) struct Keepers {
    state: Arc<Lock<Kept>>,
}

#[derive(Debug, Default)]
struct Kept {
    /// Transfers that the thread has not picked up yet.
    new: Vec<Ordered>,
    /// Number of transfers about to be added.
    expected: usize,
    is_running: bool,
    /// Whether each step panics.
    #[cfg(test)]
    breaks: bool,
}

/// A transfer that is about to be added.
#[derive(Debug)]
pub(super) struct Expected<'a>(&'a Lock<Kept>);

/// A transfer in the order of a stream.
#[derive(Debug)]
pub(super) struct Ordered {
    state: Arc<State>,
    work: OrderedWork,
    direction: Direction,
    options: RequestOptions,
    device: DeviceId,
    /// The caller shares it until all work is queued.
    track: Option<Arc<Track>>,
    queued: Arc<Queued>,
    /// Steps in progress between files and slots, oldest first.
    moving: VecDeque<Moving>,
    /// The next step to begin.
    next: u64,
    /// Number of steps that are done.
    done: u64,
    error: Option<Error>,
    bytes: u64,
    /// The progress of the GPU and of the steps, and when it last changed.
    passed: u64,
    seen: u64,
    since: Instant,
    /// Whether all gates are open, after an error.
    is_open: bool,
    /// Whether all work was queued at the last poll.
    was_queued: bool,
    /// The health of the GPU: one of the constants below.
    health: Arc<AtomicU8>,
}

/// No query is running; a query is running; the GPU is gone.
const UNKNOWN: u8 = 0;
const RUNNING: u8 = 1;
const LOST: u8 = 2;

impl Keepers {
    /// Makes sure that the thread runs before a transfer is queued: the GPU will wait for gates
    /// that only this thread opens.
    pub(super) fn expect(&self) -> Result<Expected<'_>> {
        let mut kept = self.state.lock();
        if !kept.is_running {
            let state = Arc::clone(&self.state);
            let thread = std::thread::Builder::new().name("forebay-keeper".into());
            let started = thread.spawn(move || keep(&state));
            started.map_err(|error| Error::resource("a thread that fills slots", &error))?;
            kept.is_running = true;
        }
        kept.expected += 1;
        Ok(Expected(&self.state))
    }
}

impl Expected<'_> {
    /// Adds the transfer.
    pub(super) fn add(self, ordered: Ordered) {
        self.0.lock().new.push(ordered);
    }
}

impl Drop for Expected<'_> {
    fn drop(&mut self) {
        self.0.lock().expected -= 1;
    }
}

/// Steps all transfers until the last has ended. May drop the engine: its drop does not wait for
/// this thread.
fn keep(state: &Lock<Kept>) {
    let mut all: Vec<Ordered> = Vec::new();
    loop {
        let mut kept = state.lock();
        all.append(&mut kept.new);
        if all.is_empty() && kept.expected == 0 {
            kept.is_running = false;
            return;
        }
        drop(kept);
        for index in (0..all.len()).rev() {
            let ordered = all.swap_remove(index);
            all.extend(ordered.go_on());
        }
        let still = all.iter().map(|ordered| ordered.since.elapsed()).min();
        std::thread::sleep(still.map_or(NAPS[0], |still| (still / 16).clamp(NAPS[0], NAPS[1])));
    }
}

impl Ordered {
    pub(super) fn new(
        state: Arc<State>,
        work: OrderedWork,
        direction: Direction,
        options: &RequestOptions,
        (track, queued): (Arc<Track>, Arc<Queued>),
    ) -> Self {
        Self {
            state,
            work,
            direction,
            options: *options,
            device: track.courier.device.id(),
            track: Some(track),
            queued,
            moving: VecDeque::new(),
            next: 0,
            done: 0,
            error: None,
            bytes: 0,
            passed: 0,
            seen: 0,
            since: Instant::now(),
            is_open: false,
            was_queued: false,
            health: Arc::default(),
        }
    }

    fn track(&self) -> &Track {
        self.track.as_ref().expect("there until it ends")
    }

    fn bound(&self) -> Duration {
        self.work.file.engine.options().watchdog
    }

    fn place(&self) -> Place {
        self.work.place.clone()
    }

    /// Number of steps for the host.
    fn steps(&self) -> u64 {
        let of_writes = match self.direction {
            Direction::Read => SyncMode::None,
            Direction::Write => self.options.sync,
        };
        self.work.steps(of_writes)
    }

    /// Steps it; `None` once it has ended. A panic fails the engine and ends the transfer with that
    /// error. Its gates are opened, because the GPU waits for them, and memory that copies may
    /// touch is leaked.
    fn go_on(mut self) -> Option<Self> {
        let (state, engine) = (Arc::clone(&self.state), self.work.file.engine.clone());
        let core = &engine.inner.core;
        let mut is_over = None;
        core.guard(|| {
            #[cfg(test)]
            assert!(!engine.inner.keepers.state.lock().breaks, "a step is broken");
            is_over = Some(self.step());
        });
        let mut has_ended = false;
        match is_over {
            Some(false) => return Some(self),
            Some(true) => core.guard(|| {
                self.end();
                has_ended = true;
            }),
            None => {
                self.track().open(self.work.blocks);
                std::mem::forget(self.track.take());
                let handles = self.work.into_parts().0;
                core.aside(Chore::Close, move || drop(handles));
            }
        }
        if let Some(error) = core.failure().filter(|_| !has_ended) {
            state.give_memory_up(&error);
            engine.inner.core.end(state, Err(error));
        }
        None
    }

    /// Advances as far as possible; returns true once it has ended.
    fn step(&mut self) -> bool {
        let count = self.work.blocks;
        let passed = self.track().has_passed();
        let moved = self.moving.iter().map(|moving| moving.transfer.progress().0).sum();
        if (passed, moved) != (self.passed, self.seen) {
            (self.passed, self.seen, self.since) = (passed, moved, Instant::now());
        }
        if let Some(Err(source)) = self.queued.get() {
            let source = source.clone();
            self.fail(self.not_over(source));
        }
        if !std::mem::replace(&mut self.was_queued, self.queued.get().is_some()) && self.was_queued
        {
            self.since = Instant::now(); // the GPU has it from now on
        }
        if self.error.is_none() && self.state.should_stop() {
            self.fail(Error::Cancelled { place: self.place(), done: self.state.done() });
        }
        let ended = |moving: &Moving| moving.transfer.ended();
        while let Some(end) = self.moving.front().and_then(ended) {
            let mut moved = self.moving.pop_front().expect("the one that has ended");
            self.since = Instant::now();
            self.moved(&mut moved, end);
        }
        while self.error.is_none() && self.may_begin(passed) {
            self.begin();
        }
        self.let_pass();
        let has_all = match self.error {
            // An op stuck in a drive or a server is abandoned, with its slots.
            Some(_) => {
                let hangs = self.is_open && self.since.elapsed() >= self.bound();
                self.moving.is_empty() || hangs
            }
            None => self.done == self.steps(),
        };
        match self.queued.get() {
            Some(Err(_)) => return has_all,
            Some(Ok(())) if has_all && passed == count => return true,
            _ => self.watch(),
        }
        // The thread that still queues work uses the track.
        self.queued.get().is_some() && self.is_lost()
    }

    fn not_over(&self, source: DeviceError) -> Error {
        let (device, len) = (self.device, self.work.len);
        Error::CopyNotOver { device, len, place: Some(Box::new(self.place())), source }
    }

    /// Whether the next step may begin.
    fn may_begin(&self, passed: u64) -> bool {
        let (blocks, steps) = (self.work.blocks, self.steps());
        let ready = match self.direction {
            Direction::Read => self.next < passed + self.track().slots(),
            Direction::Write => self.next < passed || self.next == blocks,
        };
        // The step that makes the bytes durable must run last.
        let syncs = self.direction == Direction::Write && self.options.sync != SyncMode::None;
        let alone = !syncs || self.next + 1 < steps || self.moving.is_empty();
        self.next < steps && ready && alone
    }

    fn begin(&mut self) {
        let _in_use = self.work.file.engine.link(&self.track().courier.device);
        let started = self.work.begin(self.next, self.track(), self.direction, &self.options);
        match started {
            Ok(moving) => {
                self.moving.push_back(moving);
                self.next += 1;
            }
            Err(error) => self.fail(error),
        }
    }

    /// Handles a step that is done or has failed.
    fn moved(&mut self, moved: &mut Moving, end: Result<Outcome>) {
        let outcome = match end {
            Ok(outcome) if self.error.is_none() => outcome,
            Ok(_) => return,
            Err(error) => return self.fail(error),
        };
        for share in &outcome.routes {
            let route = match share.reason {
                Reason::NotResident | Reason::TriedNotResident => Route::Staged,
                _ => Route::Cached,
            };
            self.state.add_bytes(route, share.reason, share.bytes);
        }
        self.state.add_stages(&outcome.stages);
        self.work.note(moved, &outcome);
        self.bytes += outcome.bytes;
        self.state.add_done(outcome.bytes);
        self.done += 1;
        self.track().open(self.done);
    }

    /// Ends it with an error. It is over when the GPU has passed all gates and no step is in
    /// progress.
    fn fail(&mut self, error: Error) {
        if self.error.is_some() {
            return;
        }
        self.error = Some(error);
        self.moving.iter().for_each(|moving| moving.transfer.cancel());
        self.let_pass();
    }

    /// Opens all gates after an error. The gates of a write keep the GPU from a slot that a drive
    /// still reads: they stay shut until no step is in progress, or the drive hangs.
    fn let_pass(&mut self) {
        let shut = self.error.is_some() && !self.is_open;
        let is_read = self.direction == Direction::Read;
        if shut && (is_read || self.moving.is_empty() || self.since.elapsed() >= self.bound()) {
            self.is_open = true;
            self.since = Instant::now();
            self.track().open(self.work.blocks);
        }
    }

    /// Fails a transfer that has made no progress for too long.
    fn watch(&mut self) {
        let bound = self.bound();
        if self.since.elapsed() < bound {
            return;
        }
        if self.passed == 0 {
            self.query();
        }
        // Before the first copy the GPU waits for the caller's queued work, for as long as that
        // takes. So may the driver before it accepts the rest.
        let began = self.direction == Direction::Write || self.done > 0;
        let first = self.passed == 0 || self.queued.get().is_none();
        let waits = self.moving.is_empty() && began && first;
        if self.error.is_none() && !waits {
            events::watchdog_fired(self.work.file.path(), bound);
            self.fail(Error::TimedOut { place: self.place(), bound, done: self.state.done() });
        }
    }

    /// Queries on another thread whether the GPU still exists, because the driver may take long to
    /// answer.
    fn query(&self) {
        let (unknown, relaxed) = (UNKNOWN, Ordering::Relaxed);
        if self.health.compare_exchange(unknown, RUNNING, relaxed, relaxed).is_err() {
            return;
        }
        let health = Arc::clone(&self.health);
        let Courier { device, event, .. } = &self.track().courier;
        let (device, event) = (Arc::clone(device), *event);
        self.work.file.engine.inner.core.aside(Chore::Free, move || {
            let found = if device.is_done(event).is_err() { LOST } else { UNKNOWN };
            std::thread::sleep(NAPS[1]); // limits the rate of queries
            health.store(found, Ordering::Relaxed);
        });
    }

    /// Whether the GPU is gone, or makes no progress although all gates are open. Work that the
    /// caller queued before may take as long as it likes.
    fn is_lost(&self) -> bool {
        let began = self.passed > 0 && self.passed < self.work.blocks;
        let stands = self.is_open && began && self.since.elapsed() >= self.bound();
        stands || self.health.load(Ordering::Relaxed) == LOST
    }

    fn end(mut self) {
        let track = self.track.take().and_then(Arc::into_inner);
        let track = track.expect("each thread with a share has queued all");
        if let Some(Err(source)) = self.queued.get().cloned() {
            self.state.emit_refused(&self.not_over(source.clone()));
            let state = Arc::clone(&self.state);
            let core = &self.work.file.engine.inner.core;
            core.aside(Chore::Free, move || track.settle(&state, &source));
            let (handles, engine) = self.work.into_parts();
            return engine.inner.core.aside(Chore::Close, move || drop(handles));
        }
        let drained = track.has_passed() == self.work.blocks;
        let mut rest = None;
        if !drained {
            let source = track.lose();
            events::copy_not_over(self.device, &source);
            self.state.lose_memory(&source);
            self.error = Some(self.not_over(source));
        } else {
            // Steps in progress share its memory.
            rest = track.end(&self.work.file.engine);
        }
        let (got, requested) = (self.bytes, self.state.requested().len());
        let result = match self.error.take() {
            Some(error) => Err(error),
            None => self.work.end(got, requested, self.options.exact),
        };
        drop(self.moving);
        let (handles, engine) = self.work.into_parts();
        // Freeing these may take long, and closing a file may hang.
        engine.inner.core.aside(Chore::Free, move || drop(rest));
        engine.inner.core.aside(Chore::Close, move || drop(handles));
        engine.inner.core.end(self.state, result);
    }
}

#[cfg(test)]
#[expect(unsafe_code, reason = "names a stream, as a caller does")]
mod tests {
    use super::*;
    use crate::gpu::sim::{SimConfig, SimDevice};
    use crate::gpu::{CallerStream, Device};
    use crate::{Engine, Options};
    use forebay_base::clock::SystemClock;

    #[test]
    fn a_panic_of_the_keeper_ends_the_transfer_and_opens_its_gates() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("file"), vec![7; 1 << 20]).unwrap();
        let engine = Engine::new(Options::default()).unwrap();
        let clock = Arc::new(SystemClock::new());
        let device: Arc<dyn Device> = Arc::new(SimDevice::new(0, SimConfig::default(), clock));
        engine.add_device(&device).unwrap();
        let stream = device.create_stream().unwrap();
        let file = engine.open(folder.path().join("file")).unwrap();
        let target = engine.allocate(device.id(), 1 << 20).unwrap();
        engine.inner.keepers.state.lock().breaks = true;
        // SAFETY: the stream belongs to this device and is alive.
        let read = unsafe { file.read(target).on(CallerStream(stream.0)) };
        let started = read.start().unwrap();
        // The bound only separates late from never.
        let end = started.wait_for(Duration::from_secs(60));
        let Some(Err(error @ Error::EngineFailed { .. })) = end else { panic!("{end:?}") };
        let text = error.to_string();
        assert!(text.contains("forebay-keeper") && text.contains("a step is broken"), "{text}");
        assert!(started.wait().1.is_none(), "memory came back that a copy may still touch");
        device.synchronize(stream).unwrap();
        device.destroy_stream(stream).unwrap();
    }
}
