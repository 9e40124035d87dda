//! Work queued on the simulated GPU, and the time at which each item is done.
//!
//! All times are known when work is queued. A copy starts once its stream, the events that it waits
//! for and the link are free. It takes the link's latency plus the time for its bytes, and longer
//! if a shared [`Uplink`] is busy. So one list ordered by due time, then by queueing order, keeps
//! every ordering guarantee.

#![expect(unsafe_code, reason = "carries out copies that were queued with raw addresses")]

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use forebay_base::lock::Lock;

use super::config::SimConfig;
use super::fault::{Dice, Fault};
use super::memory::{DeviceMemory, HostAddress, Registrations};
use super::memory::{Held, Number};
use super::uplink::{Uplink, time_of_bytes};
use crate::{CopyDirection, DeviceCopy, DeviceError, DeviceResult};

/// Handles are unique across all simulated GPUs, so that no device accepts another's.
static NEXT_HANDLE: AtomicU64 = AtomicU64::new(1);

fn new_handle() -> u64 {
    NEXT_HANDLE.fetch_add(1, Ordering::Relaxed)
}

#[derive(Debug)]
pub(super) enum SimWork {
    Copy {
        stream: u64,
        direction: CopyDirection,
        host: HostAddress,
        device: u64,
        len: usize,
        fails: bool,
    },
    Fill {
        device: u64,
        byte: u8,
        len: u64,
    },
    Xor {
        device: u64,
        key: u64,
        len: u64,
    },
    Record {
        stream: u64,
        event: u64,
    },
    Write {
        number: Number,
        value: u32,
    },
}

/// Number of the work item that failed, and its error.
type SimFailure = (u64, DeviceError);

#[derive(Debug, Default)]
pub(super) struct StreamState {
    /// When all work queued on it, except held work, is done.
    pub(super) due: Duration,
    /// Work that waits for a number, and all work behind it.
    pub(super) held: VecDeque<Held>,
    pub(super) capturing: bool,
    /// The first failure since the last recorded event; the next event takes it.
    fresh: Option<SimFailure>,
    /// The first failure that no call has returned yet.
    unreported: Option<SimFailure>,
}

#[derive(Debug, Default)]
pub(super) struct EventState {
    /// The work item that completes it, until that is done.
    pub(super) pending: Option<u64>,
    /// When it is done.
    pub(super) due: Duration,
    pub(super) failure: Option<SimFailure>,
    /// Whether that item is held back, so that its due time is unknown.
    pub(super) is_held: bool,
}

/// One device's streams, events, memory and link.
#[derive(Debug)]
pub(super) struct Timeline {
    pub(super) memory: DeviceMemory,
    pub(super) registered: Arc<Lock<Registrations>>,
    config: SimConfig,
    pub(super) streams: BTreeMap<u64, StreamState>,
    pub(super) events: BTreeMap<u64, EventState>,
    pub(super) queue: BTreeMap<(Duration, u64), SimWork>,
    pub(super) queued: u64,
    /// Records of events that were held back, by number; the due time once one is scheduled.
    pub(super) records: BTreeMap<u64, Option<Duration>>,
    link_free: [Duration; 2],
    /// Number of `is_done` calls.
    pub(super) queries: u64,
    uplink: Option<Arc<Uplink>>,
    dice: Dice,
}

impl Timeline {
    pub(super) fn new(
        config: SimConfig,
        registered: Arc<Lock<Registrations>>,
        uplink: Option<Arc<Uplink>>,
    ) -> Self {
        Self {
            memory: DeviceMemory::new(config.memory),
            registered,
            dice: Dice::new(config.seed),
            config,
            streams: BTreeMap::from([(0, StreamState::default())]),
            events: BTreeMap::new(),
            queue: BTreeMap::new(),
            queued: 0,
            records: BTreeMap::new(),
            link_free: [Duration::ZERO; 2],
            queries: 0,
            uplink,
        }
    }

    pub(super) fn create_stream(&mut self) -> u64 {
        let handle = new_handle();
        self.streams.insert(handle, StreamState::default());
        handle
    }

    pub(super) fn destroy_stream(&mut self, stream: u64) -> DeviceResult<()> {
        let state = self.streams.remove(&stream);
        let state = state.ok_or_else(|| unknown("destroy_stream", "stream"))?;
        // Held work is dropped without running.
        self.drop_held(state.held);
        Ok(())
    }

    pub(super) fn create_event(&mut self) -> u64 {
        let handle = new_handle();
        self.events.insert(handle, EventState::default());
        handle
    }

    /// The time between two completed events; zero if `to` completed first.
    pub(super) fn elapsed(&mut self, now: Duration, from: u64, to: u64) -> DeviceResult<Duration> {
        let call = "elapsed";
        let mut passed = |event| match self.is_done(now, event)? {
            true => Ok(self.events[&event].due),
            false => Err(Fault::InvalidValue.in_call(call, format!("event {event} is not done"))),
        };
        let (from, to) = (passed(from)?, passed(to)?);
        Ok(to.saturating_sub(from))
    }

    pub(super) fn destroy_event(&mut self, event: u64) -> DeviceResult<()> {
        self.events.remove(&event).map(drop).ok_or_else(|| unknown("destroy_event", "event"))
    }

    /// Queues copies, which take their share of the link and together its latency once. If one is
    /// refused, those before it stay queued.
    ///
    /// # Safety
    /// The host ranges may be read or written, according to the direction, until the copies are
    /// done.
    pub(super) unsafe fn copy(
        &mut self,
        now: Duration,
        stream: u64,
        direction: CopyDirection,
        copies: &[DeviceCopy],
    ) -> DeviceResult<()> {
        let is_held = !self.stream(direction.call(), stream)?.held.is_empty();
        let mut latency = self.config.latency;
        let mut held = Vec::new();
        for copy in copies.iter().filter(|copy| copy.len > 0) {
            self.hold_memory(direction.call(), copy)?;
            let fails = self.dice.roll(self.config.copy_faults);
            if is_held {
                held.push((*copy, fails));
            } else {
                self.schedule(now, stream, direction, *copy, latency, fails);
                latency = Duration::ZERO;
            }
        }
        if !held.is_empty() {
            let held = Held::Copies(direction, held, latency);
            self.stream(direction.call(), stream)?.held.push_back(held);
        }
        Ok(())
    }

    fn hold_memory(&mut self, call: &'static str, copy: &DeviceCopy) -> DeviceResult<()> {
        let host = HostAddress(copy.host);
        self.registered.lock().hold(call, host, copy.len)?;
        if let Err(error) = self.memory.hold(call, copy.device, copy.len as u64) {
            self.registered.lock().dispose(host);
            return Err(error);
        }
        Ok(())
    }

    /// Schedules a copy on the link. Its memory is already counted as in use.
    pub(super) fn schedule(
        &mut self,
        now: Duration,
        stream: u64,
        direction: CopyDirection,
        copy: DeviceCopy,
        latency: Duration,
        fails: bool,
    ) {
        let DeviceCopy { host, device, len } = copy;
        let host = HostAddress(host);
        let Some(stream_due) = self.streams.get(&stream).map(|state| state.due) else {
            return self.dispose(host, device); // the stream was destroyed while this was held back
        };
        let free = self.link_free[direction as usize];
        let on_link = latency.saturating_add(time_of_bytes(len as u64, self.config.bandwidth));
        let shared = self.uplink.as_ref();
        let shared = shared.map(|uplink| uplink.carries(now, direction, len as u64));
        let due = (now.max(stream_due).max(free) + on_link).max(shared.unwrap_or_default());
        self.link_free[direction as usize] = due;
        self.push(due, SimWork::Copy { stream, direction, host, device, len, fails });
        if let Some(state) = self.streams.get_mut(&stream) {
            state.due = due;
        }
    }

    pub(super) fn fill(
        &mut self,
        now: Duration,
        stream: u64,
        device: u64,
        byte: u8,
        len: u64,
    ) -> DeviceResult<()> {
        let due = now.max(self.stream("fill", stream)?.due);
        if len == 0 {
            return Ok(());
        }
        self.memory.hold("fill", device, len)?;
        let state = self.stream("fill", stream)?;
        if !state.held.is_empty() {
            state.held.push_back(Held::Fill(device, byte, len));
            return Ok(());
        }
        self.push(due, SimWork::Fill { device, byte, len });
        self.stream("fill", stream)?.due = due;
        Ok(())
    }

    pub(super) fn xor(
        &mut self,
        now: Duration,
        stream: u64,
        device: u64,
        key: u64,
        len: u64,
    ) -> DeviceResult<()> {
        let due = now.max(self.stream("xor", stream)?.due);
        if len == 0 {
            return Ok(());
        }
        self.memory.hold("xor", device, len)?;
        let state = self.stream("xor", stream)?;
        if !state.held.is_empty() {
            state.held.push_back(Held::Xor(device, key, len));
            return Ok(());
        }
        self.push(due, SimWork::Xor { device, key, len });
        self.stream("xor", stream)?.due = due;
        Ok(())
    }

    /// Keeps a stream busy for `time`, like a kernel.
    pub(super) fn work(&mut self, now: Duration, stream: u64, time: Duration) -> DeviceResult<()> {
        let state = self.stream("work", stream)?;
        if state.held.is_empty() {
            state.due = now.max(state.due) + time;
        } else {
            state.held.push_back(Held::Work(time));
        }
        Ok(())
    }

    pub(super) fn record(&mut self, now: Duration, event: u64, stream: u64) -> DeviceResult<()> {
        let due = now.max(self.stream("record", stream)?.due);
        let is_held = !self.stream("record", stream)?.held.is_empty();
        let state = self.events.get_mut(&event).ok_or_else(|| unknown("record", "event"))?;
        let number = self.queued;
        *state = EventState { pending: Some(number), due, failure: None, is_held };
        if is_held {
            self.queued += 1;
            self.records.insert(number, None);
            self.stream("record", stream)?.held.push_back(Held::Record(event, number));
            return Ok(());
        }
        self.push(due, SimWork::Record { stream, event });
        self.stream("record", stream)?.due = due;
        Ok(())
    }

    /// An event that was never recorded is not waited for.
    pub(super) fn wait_event(&mut self, stream: u64, event: u64) -> DeviceResult<()> {
        let known = self.events.get(&event).ok_or_else(|| unknown("wait_event", "event"))?;
        let (event_due, pending, is_held) = (known.due, known.pending, known.is_held);
        let state = self.stream("wait_event", stream)?;
        if let Some(record) = pending.filter(|_| is_held || !state.held.is_empty()) {
            state.held.push_back(Held::Event(record));
            self.records.entry(record).or_insert((!is_held).then_some(event_due));
        } else {
            state.due = state.due.max(event_due);
        }
        Ok(())
    }

    pub(super) fn is_done(&mut self, now: Duration, event: u64) -> DeviceResult<bool> {
        self.queries += 1;
        self.run_due(now);
        let state = self.events.get(&event).ok_or_else(|| unknown("is_done", "event"))?;
        let Some((number, error)) = &state.failure else {
            return Ok(state.pending.is_none());
        };
        // A failure that was returned here is not returned again by a later `synchronize`.
        for stream in self.streams.values_mut() {
            stream.unreported.take_if(|(unreported, _)| unreported == number);
        }
        Err(error.clone())
    }

    /// When all work queued on `stream` now is done.
    pub(super) fn stream_due(&mut self, stream: u64) -> DeviceResult<Duration> {
        self.stream("synchronize", stream).map(|state| state.due)
    }

    /// Runs due work and returns the stream's first unreported failure.
    pub(super) fn settle(&mut self, now: Duration, stream: u64) -> DeviceResult<()> {
        self.run_due(now);
        let unreported = self.stream("synchronize", stream)?.unreported.take();
        unreported.map_or(Ok(()), |(_, error)| Err(error))
    }

    pub(super) fn stream(
        &mut self,
        call: &'static str,
        stream: u64,
    ) -> DeviceResult<&mut StreamState> {
        self.streams.get_mut(&stream).ok_or_else(|| unknown(call, "stream"))
    }

    pub(super) fn push(&mut self, due: Duration, work: SimWork) {
        self.queue.insert((due, self.queued), work);
        self.queued += 1;
    }

    pub(super) fn run_due(&mut self, now: Duration) {
        self.release(now);
        while let Some(entry) = self.queue.first_entry()
            && entry.key().0 <= now
        {
            let ((_, number), work) = entry.remove_entry();
            self.run(number, work);
            self.release(now);
        }
    }

    fn run(&mut self, number: u64, work: SimWork) {
        match work {
            SimWork::Copy { stream, direction, host, device, len, fails } => {
                // A failed copy moves half of its bytes, so that tests detect code that uses them.
                let moved = if fails { len / 2 } else { len };
                let source = self.registered.lock().source(host);
                // SAFETY: the host range was promised to `copy` until now, and the device range has
                // been held since then.
                unsafe {
                    match direction {
                        CopyDirection::ToDevice => self.memory.write(device, source, moved),
                        CopyDirection::ToHost => self.memory.read(device, host, moved),
                    }
                }
                self.dispose(host, device);
                if fails && let Some(state) = self.streams.get_mut(&stream) {
                    let detail = format!("copy {number} of the seed {}", self.config.seed);
                    let failure = (number, Fault::CopyFailed.in_call(direction.call(), detail));
                    state.fresh.get_or_insert_with(|| failure.clone());
                    state.unreported.get_or_insert(failure);
                }
            }
            SimWork::Fill { device, byte, len } => {
                // SAFETY: the range has been held since it was queued.
                unsafe { self.memory.fill(device, byte, len) }
                self.memory.dispose(device);
            }
            SimWork::Xor { device, key, len } => {
                // SAFETY: as above, and the range starts at a multiple of 16.
                unsafe { self.memory.xor(device, key, len) }
                self.memory.dispose(device);
            }
            SimWork::Write { number, value } => {
                number.write(value);
                self.registered.lock().dispose(number.host());
            }
            SimWork::Record { stream, event } => {
                // A later `record` of the same event may have replaced this one.
                if let Some(state) = self.events.get_mut(&event)
                    && state.pending == Some(number)
                {
                    state.pending = None;
                    state.failure = self.streams.get_mut(&stream).and_then(|s| s.fresh.take());
                }
            }
        }
    }

    pub(super) fn dispose(&mut self, host: HostAddress, device: u64) {
        self.registered.lock().dispose(host);
        self.memory.dispose(device);
    }
}

impl Drop for Timeline {
    /// Drops queued work without running it; the registered memory may outlive this device.
    fn drop(&mut self) {
        for work in std::mem::take(&mut self.queue).into_values() {
            match work {
                SimWork::Copy { host, device, .. } => self.dispose(host, device),
                SimWork::Write { number, .. } => self.registered.lock().dispose(number.host()),
                SimWork::Fill { .. } | SimWork::Xor { .. } | SimWork::Record { .. } => {}
            }
        }
        for stream in std::mem::take(&mut self.streams).into_values() {
            self.drop_held(stream.held);
        }
    }
}

pub(super) fn unknown(call: &'static str, what: &str) -> DeviceError {
    let detail = format!("no {what} of this device, or one that is destroyed");
    Fault::UnknownHandle.in_call(call, detail)
}
