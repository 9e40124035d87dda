//! One thread: keeps its calls in flight until it is stopped.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use forebay::{Buffer, Engine};

use super::backend::{Backend, Call, Done};
use super::latency::Latencies;
use super::pattern::Offsets;
use super::written::Written;
use super::{Lane, Load};
use crate::data::Pattern as Data;
use crate::failure::Result;
use crate::memory::whole;
use crate::results::Direction;
use crate::steps::Step;

/// Interval at which a thread that waits for a due call checks whether the load has ended.
const SLEEP_MAX: Duration = Duration::from_millis(20);

/// Maximum number of groups of missed calls.
const MISSED_MAX: u128 = 1000;

/// The current instruction to all threads.
#[derive(Debug, Default)]
pub(super) struct Phase {
    counts: AtomicBool,
    /// The time from which on no further calls start.
    stopped: OnceLock<Instant>,
}

impl Phase {
    /// From now on calls count.
    pub(super) fn count(&self) {
        self.counts.store(true, Ordering::Relaxed);
    }

    /// Stops starting calls.
    pub(super) fn stop(&self) {
        self.stopped.get_or_init(Instant::now);
    }

    /// Whether a call that ends now counts. After the stop, only paced calls count, which were due
    /// within the span, and all calls of a load that counts all.
    fn counts(&self, is_due: bool) -> bool {
        self.counts.load(Ordering::Relaxed) && (is_due || !self.is_over())
    }

    fn is_over(&self) -> bool {
        self.stopped.get().is_some()
    }
}

/// The progress of one thread. Each has its own cache line, since it is written for every call.
#[derive(Debug, Default)]
#[repr(align(128))]
pub(super) struct Counter {
    bytes: AtomicU64,
    requests: AtomicU64,
}

impl Counter {
    /// Bytes and requests so far.
    pub(super) fn read(&self) -> (u64, u64) {
        (self.bytes.load(Ordering::Relaxed), self.requests.load(Ordering::Relaxed))
    }
}

/// One thread: its parameters, and what it has done in its last run.
pub(super) struct Worker<'a> {
    pub(super) load: &'a Load,
    pub(super) lane: &'a Lane,
    pub(super) backend: Box<dyn Backend>,
    /// All offsets, from the first request on.
    pub(super) offsets: Offsets,
    /// The bytes of each written request, and whether they are stamped with its offset.
    pub(super) content: (Data, bool),
    /// Number of calls; `None` means no limit.
    pub(super) calls: Option<u64>,
    /// The start and the interval of due calls.
    pub(super) due: Option<(Duration, Duration)>,
    pub(super) phase: Arc<Phase>,
    pub(super) counter: Arc<Counter>,
    /// The engine, if the command should end when no data arrive for too long.
    pub(super) watched: Option<Engine>,
    /// Counts progress: completed requests, and polls during which none completed.
    pub(super) life: Arc<AtomicU64>,
    pub(super) progress: Progress,
}

/// What a thread has done. Each has its own cache lines, since it is written for every call.
#[repr(align(128))]
pub(super) struct Progress {
    /// When it began, and when its last call ended.
    start: Instant,
    pub(super) done: Instant,
    /// The offsets of further calls.
    offsets: Offsets,
    /// Calls that were started.
    made: u64,
    /// Hundredths of a write that are due.
    mix: u32,
    /// When the call of each place was due, or made.
    since: Vec<Instant>,
    /// The direction and the offsets of the last call in each place that had one.
    pub(super) last: Vec<Option<(Direction, Vec<u64>)>>,
    pub(super) latencies: Latencies,
    /// Bytes read and written, also those outside the span.
    pub(super) moved: [u64; 2],
}

impl Progress {
    /// Of a thread that begins at `start`.
    pub(super) fn new(start: Instant, load: &Load, offsets: &Offsets) -> Self {
        Self {
            start,
            done: start,
            offsets: offsets.clone(),
            made: 0,
            mix: 0,
            since: vec![start; load.places()],
            last: vec![None; load.places()],
            latencies: Latencies::default(),
            moved: [0; 2],
        }
    }

    /// The direction of the next call: reads and writes alternate as evenly as their shares allow.
    fn direction(&mut self, read_percent: u8) -> Direction {
        self.mix += 100 - u32::from(read_percent.min(100));
        if self.mix >= 100 {
            self.mix -= 100;
            return Direction::Write;
        }
        Direction::Read
    }
}

impl Worker<'_> {
    /// Works until it is stopped, or all calls are made. `start` is the time when it began.
    pub(super) fn run(&mut self, start: Instant) -> Result<()> {
        self.progress = Progress::new(start, self.load, &self.offsets);
        let step = self.step();
        let result = self.work();
        drop(step);
        self.progress.done = Instant::now();
        result
    }

    /// Its writes, if it reads nothing.
    pub(super) fn wrote(&self) -> Option<Written> {
        let [_, bytes] = self.progress.moved;
        let written =
            || Written::new(self.offsets.clone(), self.load.request_size, self.content, bytes);
        (self.load.read_percent == 0).then(written)
    }

    /// Ends the command if its reads make no progress for too long.
    fn step(&self) -> Option<Step> {
        let engine = self.watched.clone()?;
        let (life, counter) = (Arc::clone(&self.life), Arc::clone(&self.counter));
        let count = move || {
            let (seen, (_, own)) = (engine.statistics(), counter.read());
            let of_engine = seen.file.count().wrapping_add(seen.copy.count());
            own.wrapping_add(life.load(Ordering::Relaxed)).wrapping_add(of_engine)
        };
        Some(Step::of_requests("read", &self.lane.path, count))
    }

    fn work(&mut self) -> Result<()> {
        let mut free: Vec<usize> = (0..self.load.places()).rev().collect();
        let mut first = Ok(());
        loop {
            while let Some(&place) = free.last()
                && first.is_ok()
                && self.goes_on()
            {
                if let Some(due) = self.due().filter(|due| *due > Instant::now()) {
                    self.until(due, &mut free)?;
                    continue;
                }
                match self.start(place) {
                    Ok(None) => _ = free.pop(),
                    Ok(Some(at)) => self.end(place, at),
                    Err(failure) => first = Err(failure),
                }
            }
            if free.len() == self.load.places() {
                break;
            }
            match self.backend.wait(None) {
                Ok(done) => {
                    let Done { place, at } = done.expect("a call is in flight");
                    free.push(place);
                    self.end(place, at);
                }
                // The place is unknown but not needed: no more calls start, and the backend drains
                // the rest when it is dropped.
                Err(failure) => return first.and(Err(failure)),
            }
        }
        let more = self.calls.is_none_or(|calls| self.progress.made < calls);
        if let Some(stopped) = self.phase.stopped.get().copied().filter(|_| more) {
            self.count_missed(stopped);
        }
        first
    }

    /// Waits for a call to end, until the next one is due or for [`SLEEP_MAX`].
    fn until(&mut self, due: Instant, free: &mut Vec<usize>) -> Result<()> {
        let until = due.min(Instant::now() + SLEEP_MAX);
        if free.len() == self.load.places() {
            self.life.fetch_add(1, Ordering::Relaxed);
            std::thread::sleep(until.saturating_duration_since(Instant::now()));
        } else if let Some(done) = self.backend.wait(Some(until))? {
            free.push(done.place);
            self.end(done.place, done.at);
        }
        Ok(())
    }

    /// When the next call is due; `None` if calls are not paced.
    fn due(&self) -> Option<Instant> {
        let (first, distance) = self.due?;
        Some(self.progress.start + first + times(distance, self.progress.made))
    }

    /// Counts the calls that were due but not made, with the time since each was due. Otherwise a
    /// stalled drive would only show as fewer calls.
    fn count_missed(&mut self, stopped: Instant) {
        let Some(((_, distance), due)) = self.due.zip(self.due()) else { return };
        // Calls that become due while the last ones drain do not count.
        for (waited, calls) in missed(stopped.saturating_duration_since(due), distance) {
            let requests = calls.saturating_mul(self.load.batch.into());
            let requests = u64::try_from(requests).unwrap_or(u64::MAX);
            self.progress.latencies.add(waited, requests);
        }
    }

    /// Whether to start a call. If all calls count, there is at least one.
    fn goes_on(&self) -> bool {
        let made = self.progress.made;
        let is_over = self.phase.is_over() && !(self.load.counts_all() && made == 0);
        !is_over && self.calls.is_none_or(|calls| made < calls)
    }

    /// Makes the next call; returns when it ended if it has.
    fn start(&mut self, place: usize) -> Result<Option<Instant>> {
        let due = self.due();
        let progress = &mut self.progress;
        let direction = progress.direction(self.load.read_percent);
        // The memory of the last call in this place is used again.
        let mut offsets = progress.last[place].take().map_or_else(Vec::new, |(_, offsets)| offsets);
        offsets.clear();
        offsets.extend(progress.offsets.by_ref().take(self.load.requests()));
        if let (content, true) = self.content {
            let memory = self.backend.memory(place).and_then(Buffer::as_mut_slice);
            let requests =
                memory.unwrap_or_default().chunks_exact_mut(whole(self.load.request_size));
            for (bytes, &offset) in requests.zip(&offsets) {
                content.stamp(offset, 0, bytes);
            }
        }
        // The latency of a late call counts from the time when it was due.
        progress.since[place] = due.unwrap_or_else(Instant::now);
        let ended = self.backend.start(place, Call { direction, offsets: &offsets })?;
        progress.last[place] = Some((direction, offsets));
        progress.made += 1;
        Ok(ended)
    }

    fn end(&mut self, place: usize, at: Instant) {
        let progress = &mut self.progress;
        let (direction, _) = progress.last[place].as_ref().expect("it was made");
        let requests = u64::from(self.load.batch);
        let bytes = self.load.call_len();
        progress.moved[usize::from(*direction == Direction::Write)] += bytes;
        // Only this thread writes its counter.
        let add = |counter: &AtomicU64, more| {
            counter.store(counter.load(Ordering::Relaxed) + more, Ordering::Relaxed);
        };
        add(&self.counter.bytes, bytes);
        add(&self.counter.requests, requests);
        if self.phase.counts(self.due.is_some() || self.load.counts_all()) {
            let took = at.saturating_duration_since(progress.since[place]);
            progress.latencies.add(took, requests);
        }
    }
}

/// The calls that were due during `waited`: one at its beginning, then one per `distance`. They are
/// in groups, each with the wait of its first call and the number of calls; the longest wait first.
///
/// A call that was due exactly at the end belongs to the next span.
fn missed(waited: Duration, distance: Duration) -> impl Iterator<Item = (Duration, u128)> {
    let calls = waited.as_nanos().div_ceil(distance.as_nanos().max(1));
    let groups = calls.min(MISSED_MAX);
    let mut before = 0;
    (0..groups).map(move |group| {
        let own = calls / groups + u128::from(group < calls % groups);
        let first = before;
        before += own;
        (waited.saturating_sub(times(distance, u64::try_from(first).unwrap_or(u64::MAX))), own)
    })
}

/// `count` times `distance`; the standard library multiplies only by 32-bit numbers.
fn times(distance: Duration, count: u64) -> Duration {
    let ns = distance.as_nanos().saturating_mul(u128::from(count));
    Duration::from_nanos(u64::try_from(ns).unwrap_or(u64::MAX))
}

#[cfg(test)]
#[path = "worker/tests.rs"]
mod tests;
