//! State shared by a stream's caller and its loader: buffers, marks, and who holds which layer.

use std::collections::HashMap;
use std::ops::RangeInclusive;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use forebay::gpu::{CallerStream, Device, DeviceError};
use forebay::internal::{DeviceResult, Stream};
use forebay::{Engine, Error, Operation, Result, RouteShare};

use forebay_base::lock::{Condvar, Mutex, MutexGuard};

use super::group::{Group, Member};
use super::homes::PinnedUnit;
use super::layer::Unit;
use super::mapped::{Copied, Stamps};
use super::marks::{Mark, Marks};
use super::options::StreamOptions;
use super::order::Sequence;
use super::placement::{Placement, Tier};
use super::schedule::{Load, Schedule};
use super::statistics::Times;
use super::store::{Store, Writer, Writes};
use super::{LayerTimes, StreamStatistics};

/// The shared state of a stream.
pub(super) struct Shared {
    pub(super) engine: Engine,
    pub(super) device: Arc<dyn Device>,
    /// The group of streams of the same layers, and the index of this stream.
    pub(super) group: Arc<Group>,
    pub(super) seat: usize,
    pub(super) slices: usize,
    pub(super) buffers: usize,
    pub(super) marks: Arc<Marks>,
    /// The streams for copies from pinned memory and for copies through slots. They are separate so
    /// that neither delays the other.
    pub(super) memory_lane: Stream,
    pub(super) file_lane: Stream,
    pub(super) checks: bool,
    pub(super) writer: Writer,
    state: Mutex<State>,
    /// Notified for the thread that takes layers.
    pub(super) came: Condvar,
    /// Notified for threads that wait for the turn.
    pub(super) turned: Condvar,
}

/// The state of the turn (`turn`).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) enum Turn {
    #[default]
    Free,
    /// Held by a thread, which may be in a driver call.
    Taken,
}

/// The pages that a layer was copied from, which may be unpinned by now, and the earlier stamps of
/// their files.
#[derive(Debug, Clone)]
pub(super) struct FromPages {
    pub(super) home: Weak<PinnedUnit>,
    pub(super) stamps: Stamps,
}

/// Where a layer's bytes were copied from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum From {
    Files,
    Memory,
    Pages,
}

/// The state that the caller and the loader change under its lock.
#[derive(Debug, Default)]
pub(super) struct State {
    pub(super) turn: Turn,
    pub(super) schedule: Schedule,
    /// Present until the stream is closed.
    pub(super) store: Option<Arc<Store>>,
    /// Per buffer: the marks that must be signaled before it may be overwritten.
    pub(super) frees: Vec<Vec<Mark>>,
    /// Per buffer: the load of its contents.
    pub(super) loads: Vec<Option<Loaded>>,
    /// Errors of layers that were not yet reported.
    pub(super) failures: HashMap<usize, Error>,
    /// The error that ended the stream.
    pub(super) lost: Option<Error>,
    pub(super) closing: bool,
    /// When it was closed.
    pub(super) closed: Option<Instant>,
    /// Whether marks were recorded behind the work that uses held layers.
    pub(super) is_marked: bool,
    pub(super) writes: Writes,
    pub(super) copied: Copied,
    /// Whether the end of a pass was reported, so that the next call continues after it.
    pub(super) turned: bool,
    /// Whether a thread waits for a layer.
    pub(super) taking: bool,
    /// Layers that were taken and not released.
    pub(super) taken: Vec<Held>,
    /// Why the end of the compute with held layers is unknown at close.
    pub(super) unmarked: Option<DeviceError>,
    /// The position that is released when the next is taken.
    pub(super) current: Option<u64>,
    pub(super) times: Times,
    pub(super) exports: Vec<(usize, Weak<()>)>,
}

/// A layer that was taken and not released.
#[derive(Debug, Clone, Copy)]
pub(super) struct Held {
    pub(super) position: u64,
    pub(super) buffer: usize,
    pub(super) unit: usize,
    /// The stream for which it was taken.
    pub(super) compute: CallerStream,
}

/// How a unit was loaded into its buffer.
#[derive(Debug, Clone)]
pub(super) struct Loaded {
    /// Signaled when the first copy may begin, and when the last is done.
    pub(super) begun: Mark,
    pub(super) ready: Mark,
    pub(super) from: From,
    pub(super) pages: Option<FromPages>,
    pub(super) routes: Vec<RouteShare>,
    /// Whether a visit counts it.
    pub(super) counted: bool,
}

impl Shared {
    /// Creates a stream of a group's layers to `device`, with as many buffers as there is room for.
    pub(super) fn new(
        group: &Arc<Group>,
        (seat, device): (usize, &Arc<dyn Device>),
        (sequence, slices): (Sequence, usize),
        counts: RangeInclusive<usize>,
        options: &StreamOptions,
    ) -> Result<Arc<Self>> {
        let store = Store::new(&group.engine, device, &group.units, &counts)?;
        let count = store.buffers.len();
        let failed = |source| Error::of_device(Operation::Allocate, device.id(), 0, source);
        let memory_lane = device.create_stream().map_err(failed)?;
        let file_lane = device.create_stream();
        let file_lane = file_lane.inspect_err(|_| drop(device.destroy_stream(memory_lane)));
        let file_lane = file_lane.map_err(failed)?;
        let state = State {
            schedule: Schedule::new(sequence, count),
            store: Some(Arc::new(store)),
            frees: vec![Vec::new(); count],
            loads: vec![None; count],
            ..State::default()
        };
        group.join();
        Ok(Arc::new(Self {
            engine: group.engine.clone(),
            device: Arc::clone(device),
            group: Arc::clone(group),
            seat,
            slices,
            buffers: count,
            marks: Marks::new(device),
            memory_lane,
            file_lane,
            checks: options.check,
            writer: Writer::default(),
            state: Mutex::new(state),
            came: Condvar::new(),
            turned: Condvar::new(),
        }))
    }

    /// Fails in a forked child: it lacks the threads, and locks may be held forever.
    pub(super) fn check_home(&self) -> Result<()> {
        self.engine.check_process(Operation::Read)
    }

    pub(super) fn units(&self) -> &[Unit] {
        &self.group.units
    }

    /// Locks the state. After a panic under the lock the stream ends, because the state may be
    /// inconsistent.
    pub(super) fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(|poisoned| {
            self.state.clear_poison();
            let mut state = poisoned.into_inner();
            state.lost.get_or_insert_with(panicked);
            state
        })
    }

    /// Waits for a condition variable for at most `bound`; returns true on timeout.
    pub(super) fn wait<'a>(
        &'a self,
        bell: &Condvar,
        state: MutexGuard<'a, State>,
        bound: Duration,
    ) -> (MutexGuard<'a, State>, bool) {
        match bell.wait_timeout(state, bound) {
            Ok((state, waited)) => (state, waited.timed_out()),
            Err(poisoned) => {
                drop(poisoned);
                (self.lock(), false)
            }
        }
    }

    /// Sets which layers stay on the GPU.
    pub(super) fn arrange(&self, placement: &Placement) {
        let stays = placement.tiers.iter().map(|tier| *tier == Tier::Gpu);
        self.lock().schedule.arrange(stays.collect(), placement.protects);
    }

    /// The unit that was taken.
    pub(super) fn unit_of(&self, times: &LayerTimes) -> usize {
        times.layer * self.slices + times.slice
    }

    /// Starts to load the first layers.
    pub(super) fn begin(&self) -> Result<()> {
        let begun = self.marks.put(self.memory_lane).map_err(|source| self.failed(0, source))?;
        let mut turn = self.submit()?;
        turn.times.begin(begun);
        self.pump(&mut turn)
    }

    /// Appends layers to the order.
    pub(super) fn append(&self, layers: &[usize]) -> Result<()> {
        let mut turn = self.submit()?;
        turn.check_open()?;
        let bad = |value: &str, expected: &str| Err(Error::bad_option("prefetch", value, expected));
        if !turn.schedule.sequence().is_appended() {
            return Err(Error::bad_state(
                "`prefetch` needs a layer stream with the order `appended`",
            ));
        }
        let count = self.units().len() / self.slices;
        if let Some(unknown) = layers.iter().find(|&&layer| layer >= count) {
            return bad(&unknown.to_string(), &format!("numbers of the {count} layers, from 0"));
        }
        let units = |layer| (0..self.slices).map(move |slice| layer * self.slices + slice);
        layers.iter().copied().flat_map(units).for_each(|unit| turn.schedule.append(unit));
        self.pump(&mut turn)
    }

    /// The stream's GPU memory.
    pub(super) fn store(&self) -> Result<Arc<Store>> {
        self.lock().store()
    }

    /// Makes later work on a lane wait for marks.
    pub(super) fn wait_for(&self, lane: Stream, marks: &[Mark]) -> DeviceResult<()> {
        marks.iter().try_for_each(|mark| self.device.wait_event(lane, mark.event()))
    }

    /// The names of units whose memory is still referenced, without duplicates.
    pub(super) fn exports(&self) -> Vec<String> {
        let state = self.lock();
        let alive = state.exports.iter().filter(|(_, export)| export.strong_count() > 0);
        let mut units: Vec<usize> = alive.map(|&(unit, _)| unit).collect();
        units.sort_unstable();
        units.dedup();
        units.into_iter().map(|unit| self.units()[unit].name.clone()).collect()
    }

    pub(super) fn statistics(&self) -> StreamStatistics {
        self.look_again();
        let of = |state: &State| {
            let written_bytes = state.writes.bytes;
            StreamStatistics { written_bytes, ..state.times.summary() }
        };
        match self.submit() {
            Ok(mut turn) => {
                turn.gather();
                of(&turn)
            }
            Err(_) => of(&self.lock()), // it is closed: use the times collected before
        }
    }

    /// The position that is taken next, and the layers that it is about to request.
    pub(super) fn progress(&self) -> (u64, Vec<usize>) {
        let state = self.lock();
        let is_open = !state.closing && state.lost.is_none() && state.failures.is_empty();
        let next = state.schedule.position();
        // A stream that must take more than that first is too far behind to wait for.
        let until = next.saturating_add(2 * self.buffers as u64);
        (next, if is_open { state.schedule.missing(until) } else { Vec::new() })
    }

    /// Records that all copies of a layer are queued.
    pub(super) fn arrived(&self, state: &mut State, load: Load, loaded: Loaded) {
        // The next contents of the buffer wait for these copies too, because the layer may never be
        // taken.
        state.frees[load.buffer] = vec![loaded.ready.clone()];
        state.loads[load.buffer] = Some(loaded);
        state.schedule.arrived(load.buffer);
        self.came.notify_all();
    }

    /// Records that a job failed; `mark` is behind everything that may still write to its buffer.
    pub(super) fn gave_up(&self, load: Load, mark: Mark, error: Error) {
        // The marks stay with the load until it ended.
        let mut frees = self.lock().frees[load.buffer].clone();
        frees.retain(|mark| !matches!(mark.is_passed(), Ok(true)));
        frees.push(mark);
        let mut state = self.lock();
        state.frees[load.buffer] = frees;
        state.schedule.failed(load.buffer);
        state.failures.entry(load.unit).or_insert(error);
        drop(state);
        self.came.notify_all();
    }

    pub(super) fn not_over(&self, source: DeviceError) -> Error {
        Error::CopyNotOver { device: self.device.id(), len: 0, place: None, source }
    }

    pub(super) fn failed(&self, len: u64, source: DeviceError) -> Error {
        Error::of_device(Operation::Copy, self.device.id(), len, source)
    }

    /// Turns a GPU error about a caller's stream into ours. Usually the handle is unknown to the
    /// GPU.
    pub(super) fn compute_failed(&self, compute: CallerStream, source: DeviceError) -> Error {
        if !source.is_unknown_handle() {
            return self.failed(0, source);
        }
        let device = self.device.id();
        Error::bad_state(format!(
            "the compute stream {} belongs to another GPU than {device}, or was destroyed \
             ({source}); keep it alive until its layers are released",
            compute.0
        ))
    }

    /// The error that ended the stream. If a copy failed, it names the layer the caller requests,
    /// because the layer of the failed copy is not always known.
    pub(super) fn at_requested(&self, state: &State, mut error: Error) -> Error {
        if let Error::Device { operation: Operation::Copy, source, .. } = &mut error
            && let Some(unit) = state.next_unit()
        {
            let name = &self.units()[unit].name;
            let colon = if source.detail.is_empty() { "" } else { "; " };
            source.detail = format!("{}{colon}`{name}` was to be taken next", source.detail);
        }
        error
    }
}

impl Member for Shared {
    fn is_closing(&self) -> bool {
        self.lock().closing
    }

    fn lose(&self, error: Error) {
        self.lock().lost.get_or_insert(error);
        self.came.notify_all();
    }

    fn look_again(&self) -> bool {
        Self::look_again(self);
        !self.lock().copied.all.is_empty()
    }

    fn mark_lanes(&self) -> DeviceResult<[Mark; 2]> {
        Ok([self.marks.put(self.memory_lane)?, self.marks.put(self.file_lane)?])
    }
}

impl State {
    /// The stream's GPU memory.
    pub(super) fn store(&self) -> Result<Arc<Store>> {
        self.store.clone().ok_or_else(closed)
    }

    /// The layer taken at `position`, unless it was released.
    pub(super) fn held(&self, position: u64) -> Option<Held> {
        self.taken.iter().find(|held| held.position == position).copied()
    }

    /// The unit that is taken next, if it is known.
    pub(super) fn next_unit(&self) -> Option<usize> {
        self.schedule.sequence().at(self.schedule.position())
    }

    /// Fails if the stream ended, or if a second thread acquires a layer.
    pub(super) fn check(&self) -> Result<()> {
        self.check_open()?;
        if self.taking {
            return Err(Error::bad_state("another thread is taking a layer of the stream"));
        }
        Ok(())
    }

    /// Fails if the stream ended.
    pub(super) fn check_open(&self) -> Result<()> {
        match &self.lost {
            Some(error) => Err(error.clone()),
            None if self.closing => Err(closed()),
            None => Ok(()),
        }
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        if self.check_home().is_err() {
            return; // it belongs to the parent
        }
        if self.lock().store.is_some() {
            let _ = self.give_back();
        }
        let lanes = [self.memory_lane, self.file_lane];
        lanes.into_iter().for_each(|lane| drop(self.device.destroy_stream(lane)));
    }
}

pub(super) fn stuck() -> DeviceError {
    let (call, name) = ("cuEventQuery", "NO_ANSWER".to_owned());
    let detail = "copies wait for a stream of the caller that makes no progress".to_owned();
    DeviceError { call, code: -1, name, detail }
}

pub(super) fn closed() -> Error {
    Error::bad_state("the layer stream is closed")
}

pub(super) fn panicked() -> Error {
    Error::bad_state("a thread of the layer stream panicked")
}

/// The error for an operation on a layer that was released.
pub(super) fn released(operation: Operation, layer: &str) -> Error {
    let reason = match operation {
        Operation::Release => "it was released already, explicitly or by taking the next layer",
        _ => "it was released: use a layer before the next one is taken, or keep it",
    };
    Error::bad_state(reason).of_layer(operation, layer)
}
