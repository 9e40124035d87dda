//! What streams of the same layers share, each of which brings them to a GPU of its own: one loader
//! that reads each layer once for all of them, and where on the host layers are kept. A stream that
//! is alone is a group of one.

use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, Weak};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use super::StreamOptions;
use super::homes::{Home, Homes};
use super::layer::{Shelf, Unit};
use super::mapper::{Mapper, Maps};
use super::marks::Mark;
use super::placement::Tier;
use super::schedule::Load;
use super::shared::Shared;
use crate::engine::Engine;
use crate::error::{Error, Result};
use crate::gpu::Device;
use crate::lock::{Lock, woken};

/// Time between two looks whether the loader has ended, which it is about to.
const NAP: Duration = Duration::from_micros(50);

/// See the module's own text. The order of its locks stands in [`turn`](super::turn).
#[derive(Debug)]
pub(super) struct Group {
    pub(super) engine: Engine,
    /// The first stream's GPU, which pins pages for all.
    pub(super) device: Arc<dyn Device>,
    pub(super) units: Vec<Unit>,
    pub(super) mapper: Mapper,
    homes: Mutex<Homes>,
    tiers: OnceLock<Vec<Tier>>,
    streams: OnceLock<Vec<Weak<Shared>>>,
    queue: Lock<Queue>,
    /// Rung for the loader.
    asked: Condvar,
    /// Rung by the loader when it has let go of a stream.
    parted: Condvar,
    loader: Lock<Option<JoinHandle<()>>>,
}

/// What the loader is asked for.
#[derive(Debug, Default)]
struct Queue {
    jobs: VecDeque<Job>,
    /// Whether there is more to see than jobs.
    rung: bool,
    /// For each stream whether the loader works for it.
    works: Vec<bool>,
}

/// A layer that the loader is to bring for a stream.
#[derive(Debug)]
pub(super) struct Job {
    /// Which stream.
    pub(super) seat: usize,
    pub(super) load: Load,
    /// What has to be passed before its buffer may be written to.
    pub(super) frees: Vec<Mark>,
    pub(super) since: Instant,
    /// Whether its pages could not be pinned just now.
    pub(super) unpinned: bool,
}

impl Group {
    /// Streams of `units` to GPUs of which `device` is the first.
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
            asked: Condvar::new(),
            parted: Condvar::new(),
            loader: Lock::default(),
        })
    }

    /// Where a thread has panicked under it nothing that is kept there is ever given back.
    pub(super) fn homes(&self) -> MutexGuard<'_, Homes> {
        self.homes.lock().unwrap_or_else(|poisoned| {
            let mut homes = poisoned.into_inner();
            homes.stuck = true;
            homes
        })
    }

    /// Where a unit is kept, if it is.
    pub(super) fn home(&self, unit: usize) -> Option<Arc<Home>> {
        self.homes().home(unit).cloned()
    }

    /// Has a loader work for `streams` from now on.
    pub(super) fn begin(&self, streams: &[Arc<Shared>], loader: JoinHandle<()>) {
        let _ = self.streams.set(streams.iter().map(Arc::downgrade).collect());
        *self.loader.lock() = Some(loader);
    }

    /// The streams that there still are.
    pub(super) fn streams(&self) -> Vec<Arc<Shared>> {
        self.streams.get().into_iter().flatten().filter_map(Weak::upgrade).collect()
    }

    /// Whether no other stream has these layers, or had them.
    pub(super) fn is_of_one(&self) -> bool {
        self.streams.get().is_none_or(|streams| streams.len() <= 1)
    }

    /// Places the units, and takes pinned memory for those that are kept there.
    ///
    /// # Errors
    /// The host's or a GPU's.
    pub(super) fn place(&self, tiers: &[Tier]) -> Result<()> {
        for (number, unit) in self.units.iter().enumerate() {
            if tiers[number] == Tier::Pinned {
                let home = Home::in_memory(&self.engine, Shelf::new(&unit.packing))?;
                let _ = self.homes().keep(number, home);
            }
        }
        let _ = self.tiers.set(tiers.to_vec());
        Ok(())
    }

    /// Where each unit is kept.
    pub(super) fn tiers(&self) -> Vec<Tier> {
        self.tiers.get().cloned().unwrap_or_default()
    }

    /// Counts a stream that has memory.
    pub(super) fn join(&self) {
        self.homes().streams += 1;
    }

    /// Counts it no more. Once there is none left, what layers were kept in is given back, unless
    /// the copies of some stream did not settle.
    pub(super) fn leave(&self, is_settled: bool) {
        let mut homes = self.homes();
        homes.stuck |= !is_settled;
        homes.streams -= 1;
        if homes.streams == 0 {
            let (given, stuck) = (homes.give_back(), homes.stuck);
            drop(homes);
            drop(given); // the driver unpins it
            self.give_all_pages_back(stuck);
            self.homes().maps.gone();
        }
    }

    /// Says that a loader works for so many streams, or none any more.
    pub(super) fn works(&self, streams: usize) {
        self.queue.lock().works = vec![true; streams];
        self.parted.notify_all();
    }

    /// Says that the loader has nothing any more of a stream.
    pub(super) fn parted(&self, seat: usize) {
        self.queue.lock().works[seat] = false;
        self.parted.notify_all();
    }

    /// Asks for a layer.
    pub(super) fn ask(&self, job: Job) {
        self.queue.lock().jobs.push_back(job);
        self.asked.notify_one();
    }

    /// What was asked for since the last call, after at most `bound` where that is nothing.
    pub(super) fn take_jobs(&self, bound: Duration) -> VecDeque<Job> {
        let mut queue = self.queue.lock();
        if queue.jobs.is_empty() && !queue.rung && !bound.is_zero() {
            let waited = self.asked.wait_timeout(queue, bound);
            queue = woken(waited).0;
        }
        // Who has time to wait looks at all there is.
        queue.rung &= bound.is_zero();
        std::mem::take(&mut queue.jobs)
    }

    /// Has the loader see that a stream is closing.
    pub(super) fn ring(&self) {
        self.queue.lock().rung = true;
        self.asked.notify_all();
    }

    /// Waits until the loader has nothing any more of a stream that is closing, and has ended where
    /// it was the last; whether that came about in time.
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
            // Whoever else closes it returns when it has ended.
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

    /// Whether no stream is to bring anything any more.
    pub(super) fn is_over(&self) -> bool {
        self.streams().iter().all(|stream| stream.is_closing())
    }

    /// Ends all streams: some GPU fails.
    pub(super) fn lose(&self, error: &Error) {
        self.streams().iter().for_each(|stream| stream.lose(error.clone()));
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        if !self.engine.home().is_here() {
            // The parent's: a child has no such thread.
            let loader = self.loader.get_mut();
            std::mem::forget(loader.take());
        }
    }
}
