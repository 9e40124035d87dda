//! State shared by streams of the same layers, which load them to different GPUs. Their common
//! loader reads a layer once for all of them. The host copies of layers are shared too. A single
//! stream is a group too.

use std::collections::VecDeque;
use std::sync::{Arc, OnceLock, Weak};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use forebay::gpu::Device;
use forebay::internal::DeviceResult;
use forebay::{Engine, Error, Operation, Result};
use forebay_base::lock::{Condvar, Lock, Mutex, MutexGuard, woken};

use super::homes::{Homes, PinnedUnit};
use super::layer::{Shelf, Unit};
use super::mapper::Mapper;
use super::maps::Maps;
use super::marks::Mark;
use super::options::StreamOptions;
use super::placement::Tier;
use super::schedule::Load;

/// Interval for polling whether the loader thread has ended, which it is about to do.
const NAP: Duration = Duration::from_micros(50);

/// State shared by all streams of the same layers. The order of its locks is given in
/// [`turn`](super::turn).
#[derive(Debug)]
pub(super) struct Group {
    pub(super) engine: Engine,
    /// The first stream's GPU, which pins pages for all.
    pub(super) device: Arc<dyn Device>,
    pub(super) units: Vec<Unit>,
    pub(super) mapper: Mapper,
    homes: Mutex<Homes>,
    tiers: OnceLock<Vec<Tier>>,
    streams: OnceLock<Vec<Weak<dyn Member>>>,
    queue: Lock<Queue>,
    /// Notified for the loader.
    queued: Condvar,
    /// Notified by the loader when it dropped a stream.
    parted: Condvar,
    loader: Lock<Option<JoinHandle<()>>>,
}

/// A stream, as its group sees it.
pub(super) trait Member: Send + Sync {
    /// Whether it is closing.
    fn is_closing(&self) -> bool;

    /// Ends it with this error.
    fn lose(&self, error: Error);

    /// Checks the files of copied layers; returns true if copies are still running.
    fn look_again(&self) -> bool;

    /// Marks behind the work queued so far on its lanes.
    ///
    /// # Errors
    /// Errors of the GPU.
    fn mark_lanes(&self) -> DeviceResult<[Mark; 2]>;
}

/// Requests to the loader.
#[derive(Debug, Default)]
struct Queue {
    jobs: VecDeque<Job>,
    /// Whether the loader must look at more than the jobs.
    rung: bool,
    /// Per stream: whether the loader still serves it.
    works: Vec<bool>,
}

/// A request to load a layer for a stream.
#[derive(Debug)]
pub(super) struct Job {
    /// Index of the stream.
    pub(super) seat: usize,
    pub(super) load: Load,
    /// Must be signaled before its buffer may be overwritten.
    pub(super) frees: Vec<Mark>,
    pub(super) since: Instant,
    /// Whether pinning its pages just failed.
    pub(super) unpinned: bool,
}

impl Group {
    /// Creates a group that streams `units` to several GPUs; `device` is the first.
    pub(super) fn new(
        engine: &Engine,
        device: &Arc<dyn Device>,
        units: Vec<Unit>,
        options: &StreamOptions,
    ) -> Arc<Self> {
        let maps = Maps::new(&units, options.mapped_budget, options.passes);
        let homes = Homes::new(units.len(), maps);
        Arc::new(Self {
            engine: engine.clone(),
            device: Arc::clone(device),
            units,
            mapper: Mapper::default(),
            homes: Mutex::new(homes),
            tiers: OnceLock::new(),
            streams: OnceLock::new(),
            queue: Lock::default(),
            queued: Condvar::new(),
            parted: Condvar::new(),
            loader: Lock::default(),
        })
    }

    /// Locks the host copies. After a panic under the lock, none of their memory is ever freed.
    pub(super) fn homes(&self) -> MutexGuard<'_, Homes> {
        self.homes.lock().unwrap_or_else(|poisoned| {
            let mut homes = poisoned.into_inner();
            homes.stuck = true;
            homes
        })
    }

    /// The host copy of a unit, if any.
    pub(super) fn home(&self, unit: usize) -> Option<Arc<PinnedUnit>> {
        self.homes().home(unit).cloned()
    }

    /// Registers `streams` with the loader.
    pub(super) fn begin(&self, streams: Vec<Weak<dyn Member>>, loader: JoinHandle<()>) {
        let _ = self.streams.set(streams);
        *self.loader.lock() = Some(loader);
    }

    /// The streams that still exist.
    pub(super) fn streams(&self) -> Vec<Arc<dyn Member>> {
        self.streams.get().into_iter().flatten().filter_map(Weak::upgrade).collect()
    }

    /// Whether no other stream uses, or used, these layers.
    pub(super) fn is_of_one(&self) -> bool {
        self.streams.get().is_none_or(|streams| streams.len() <= 1)
    }

    /// Assigns tiers to the units and allocates pinned memory for those in the pinned tier.
    ///
    /// # Errors
    /// Errors of the host or of a GPU.
    pub(super) fn place(&self, tiers: &[Tier]) -> Result<()> {
        for (number, unit) in self.units.iter().enumerate() {
            if tiers[number] == Tier::Pinned {
                let home = PinnedUnit::in_memory(&self.engine, Shelf::new(&unit.packing))?;
                let _ = self.homes().keep(number, home);
            }
        }
        let _ = self.tiers.set(tiers.to_vec());
        Ok(())
    }

    /// The tiers of the units.
    pub(super) fn tiers(&self) -> Vec<Tier> {
        self.tiers.get().cloned().unwrap_or_default()
    }

    /// Counts a stream with memory.
    pub(super) fn join(&self) {
        self.homes().streams += 1;
    }

    /// Removes a stream from the count. When the last stream ends, the host copies are freed,
    /// unless the copies of some stream did not settle.
    pub(super) fn leave(&self, is_settled: bool) {
        let mut homes = self.homes();
        homes.stuck |= !is_settled;
        homes.streams -= 1;
        if homes.streams == 0 {
            let (given, stuck) = (homes.give_back(), homes.stuck);
            drop(homes);
            drop(given); // the driver unpins it
            self.give_all_pages_back(stuck);
            self.homes().maps.clear();
        }
    }

    /// Sets how many streams the loader serves; 0 when it ended.
    pub(super) fn works(&self, streams: usize) {
        self.queue.lock().works = vec![true; streams];
        self.parted.notify_all();
    }

    /// Records that the loader holds nothing of a stream any more.
    pub(super) fn parted(&self, seat: usize) {
        self.queue.lock().works[seat] = false;
        self.parted.notify_all();
    }

    /// Queues a load request.
    pub(super) fn request(&self, job: Job) {
        self.queue.lock().jobs.push_back(job);
        self.queued.notify_one();
    }

    /// Pops the queued requests, waiting at most `bound` if there are none.
    pub(super) fn take_jobs(&self, bound: Duration) -> VecDeque<Job> {
        let mut queue = self.queue.lock();
        if queue.jobs.is_empty() && !queue.rung && !bound.is_zero() {
            let waited = self.queued.wait_timeout(queue, bound);
            queue = woken(waited).0;
        }
        // A caller that can wait looks at everything afterwards.
        queue.rung &= bound.is_zero();
        std::mem::take(&mut queue.jobs)
    }

    /// Wakes the loader because a stream is closing.
    pub(super) fn ring(&self) {
        self.queue.lock().rung = true;
        self.queued.notify_all();
    }

    /// Waits until the loader holds nothing of a closing stream, and has ended if that was the last
    /// one. Returns false on timeout.
    pub(super) fn wait_for_loader(&self, seat: usize, until: Instant) -> bool {
        let left = || until.saturating_duration_since(Instant::now());
        let mut queue = self.queue.lock();
        while queue.works.get(seat) == Some(&true) {
            if left().is_zero() {
                return false;
            }
            let waited = self.parted.wait_timeout(queue, left());
            queue = woken(waited).0;
        }
        let is_last = !queue.works.contains(&true);
        drop(queue);
        if is_last {
            // A concurrent closer also returns only after the loader ended.
            let mut loader = self.loader.lock();
            while loader.as_ref().is_some_and(|loader| !loader.is_finished()) {
                if left().is_zero() {
                    return false;
                }
                thread::sleep(NAP); // the driver unpins its slots
            }
            if let Some(loader) = loader.take() {
                let _ = loader.join();
            }
        }
        true
    }

    /// Whether all streams are closing.
    pub(super) fn is_over(&self) -> bool {
        self.streams().iter().all(|stream| stream.is_closing())
    }

    /// Checks the files of copied layers in all streams; returns true if copies are still running.
    pub(super) fn look_again(&self) -> bool {
        // Check every stream, whatever the result for the earlier ones.
        self.streams().iter().filter(|stream| stream.look_again()).count() > 0
    }

    /// Fails all streams because a GPU failed.
    pub(super) fn lose(&self, error: &Error) {
        self.streams().iter().for_each(|stream| stream.lose(error.clone()));
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        if self.engine.check_process(Operation::Read).is_err() {
            // The thread belongs to the parent process; a forked child lacks it.
            let loader = self.loader.get_mut();
            std::mem::forget(loader.take());
        }
    }
}
