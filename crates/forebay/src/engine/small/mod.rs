//! Small blocking transfers on the caller's own thread. A read is a `pread` and a copy, after a
//! query of the page cache if a recent read found bytes missing; a write is a copy and a `pwrite`.
//! Waking other threads costs more than all of it (measured: 60 µs against 10).
//!
//! Anything unusual falls back to the general path, which finds and reports the error.

#![expect(unsafe_code, reason = "moves bytes between files, its own memory and the caller's")]

mod borrowed;
mod cold;
pub(super) mod ring;

use std::ptr::NonNull;
use std::sync::Arc;
use std::time::{Duration, Instant};

use forebay_base::lock::Mutex;
use forebay_base::units::{ByteRange, KIB, MIB};

use crate::engine::Engine;
use crate::engine::readers::cores;
use crate::engine::start::{Call, RESIDENT, WRITE_NOT_REQUIRED};
use crate::engine::unwind::OnUnwind;
use crate::error::{Error, Result};
use crate::events::{self, Begin};
use crate::file::{ResidencySource, read_at_raw, read_nowait_raw, write_at_raw};
use crate::gpu::{Device, DeviceError, DeviceResult, Stream, is_quiet};
use crate::memory::{Buffer, Keep, Room};
use crate::plan::{Access, Direction, Reason, Route};
use crate::queue::{SmallWrite, now_ns};
use crate::staging::{Cell, Cells, SmallRead};
use crate::trace::{Span, What};
use crate::transfer::{Outcome, RouteShare, Stages, State, SyncMode};

/// Minimum and maximum number of concurrent small writes per GPU; further ones use the general
/// path. The number is that of the cores, because a write keeps a core busy
/// (docs/internals.md#many-small-requests; the driver's limit is 170,000 copies per second).
const LANES: std::ops::RangeInclusive<usize> = 8..=64;

/// Lanes that reads shorter than [`LONG`] use, and longer ones. While they are busy, further reads
/// are copied together.
const READ_LANES: [usize; 2] = [16, 4];
const LONG: u64 = 64 * KIB;

/// Whether a call may start a GPU's copy thread and pin memory, which calls the driver.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::engine) enum Setup {
    /// It may.
    Allowed,
    /// It uses the general path instead.
    Refused,
}

/// Longest read to host memory that a call that does not wait makes itself. Readers would copy
/// longer ones at the same time.
pub(in crate::engine) const HERE_MAX: u64 = 64 * KIB;

/// Bytes of other transfers that may be queued on the link: 19 µs at 55 GB/s, a third of the time
/// to wake a thread.
pub(in crate::engine) const QUEUED_MAX: u64 = MIB;

/// Streams for small transfers of a GPU, whose bytes are in its cells.
pub(in crate::engine) type Lanes = Box<[Mutex<Option<SmallLane>>]>;

/// Lanes without a stream, which the first use creates.
pub(in crate::engine) fn lanes() -> Lanes {
    (0..cores().clamp(*LANES.start(), *LANES.end())).map(|_| Mutex::new(None)).collect()
}

#[derive(Debug)]
pub(in crate::engine) struct SmallLane {
    device: Arc<dyn Device>,
    stream: Stream,
}

impl Drop for SmallLane {
    fn drop(&mut self) {
        // Every use ends with a synchronization, so nothing is queued.
        let destroyed = self.device.destroy_stream(self.stream);
        drop(destroyed);
    }
}

impl SmallLane {
    /// Copies the first `len` bytes of a cell to the GPU; returns as [`end`](Self::end) does.
    fn copy_in(&self, cell: Cell, address: u64, len: usize) -> Result<bool, NotOver> {
        // SAFETY: the cell is this transfer's, is registered, and is large enough; the target is
        // the caller's during the call. The copy is over when this returns, or the lane, the cell
        // and the target are given up.
        self.end(unsafe { self.device.copy_to_device(self.stream, address, cell.pointer(), len) })
    }

    /// Copies `len` bytes from the GPU to the start of a cell; returns as [`end`](Self::end) does.
    fn copy_out(&self, cell: Cell, address: u64, len: usize) -> Result<bool, NotOver> {
        // SAFETY: as in `copy_in`, with source and target exchanged.
        self.end(unsafe { self.device.copy_to_host(self.stream, cell.pointer(), address, len) })
    }

    /// Waits for the queued copy; returns true if it succeeded, and false if it failed but is over.
    /// An error means that it may still be running.
    fn end(&self, queued: DeviceResult<()>) -> Result<bool, NotOver> {
        match queued.and_then(|()| self.device.synchronize(self.stream)) {
            Ok(()) => Ok(true),
            Err(_) if is_quiet(&*self.device, self.stream) => Ok(false),
            Err(source) => Err(NotOver(source)),
        }
    }
}

/// Why a copy may still access a lane and the caller's memory.
struct NotOver(DeviceError);

/// A link's lanes, and the cells of their bytes.
pub(in crate::engine) type Idle<'a> = (&'a Lanes, &'a Arc<Cells>);

impl SmallLane {
    /// Runs `step` with a cell of `len` bytes and an unused lane of the first `most`; `None` if
    /// there is none. If a copy may still access the cell, both are leaked.
    fn with<T>(
        device: &Arc<dyn Device>,
        (lanes, cells): Idle<'_>,
        most: usize,
        (len, room): (u64, &Room),
        step: impl FnOnce(&Self, Cell) -> Result<T, NotOver>,
    ) -> Option<Result<T, NotOver>> {
        // After a panic a copy may still be running, so the lane is given up.
        let mut lane = lanes.iter().take(most).find_map(|lane| lane.try_lock().ok())?;
        let cell = cells.take(len, Some(room))?;
        if lane.is_none() {
            let stream = device.create_stream().ok();
            *lane = stream.map(|stream| Self { device: Arc::clone(device), stream });
        }
        let done = lane.as_ref().map(|lane| step(lane, cell));
        match &done {
            Some(Err(_)) => std::mem::forget((lane.take(), Arc::clone(cells))),
            _ => cells.give(cell),
        }
        done
    }
}

impl Engine {
    /// Does the transfer on this thread, if it is small and without special options, and reports it
    /// to traces and subscribers. `None` if it needs the general path.
    #[inline]
    pub(in crate::engine) fn move_small(&self, call: &Call<'_>) -> Option<Result<Outcome>> {
        let fits = call.span.len > 0 && call.span.len <= self.options().small_size;
        if !fits || call.options.route.is_some() || call.options.past_cache {
            return None;
        }
        if self.inner.core.failure().is_some() {
            return None; // the general path reports the failure
        }
        let done = self.try_small(call);
        done.iter().for_each(|done| self.trace_small(call, done));
        done
    }

    /// Starts a small read without special options. If its bytes are in memory, a read to the host
    /// is over when this returns, and for a GPU the bytes are in a cell that the link's copy thread
    /// copies in a group. If no byte is, it is read from the drive on the ring of cold reads.
    /// `None` if it needs the general path, which then gets the buffer.
    pub(in crate::engine) fn start_small(
        &self,
        call: &Call<'_>,
        buffer: &mut Option<Buffer>,
        setup: Setup,
    ) -> Option<Arc<State>> {
        let fits = call.span.len > 0 && call.span.len <= self.options().small_size;
        let is_plain = call.direction == Direction::Read && call.options.route.is_none();
        // Facts may have to be queried from a server, and the caller must not wait for it.
        if !fits || !is_plain || call.file.opens_slowly() || self.inner.core.failure().is_some() {
            return None;
        }
        let _guard = OnUnwind::new(self, None);
        let range = call.range().ok()?;
        let cold = |buffer: &mut Option<Buffer>| {
            (setup == Setup::Allowed).then(|| self.start_cold(call, buffer))?
        };
        let Some(device) = &call.span.gpu else {
            let is_made_here = call.span.len <= HERE_MAX;
            let done = is_made_here.then(|| self.read_small(call)).flatten();
            let Some(done) = done else { return cold(buffer) };
            self.trace_small(call, &done);
            let state = Arc::into_inner(self.state_of(call, range, buffer)).expect("a new one");
            return Some(Arc::new(state.over(done)));
        };
        let Some(reason) = resident(call) else { return cold(buffer) };
        let probed = Instant::now();
        let (cells, room) = match setup {
            Setup::Allowed => (self.cells(device)?, Some(&**self.inner.tools.arena.room())),
            Setup::Refused => (self.ready_cells(device)?, None),
        };
        let cell = cells.take(range.len(), room)?;
        // SAFETY: the cell is that long, and nothing else uses it.
        if !unsafe { read_all(call, range, cell.pointer()) } {
            cells.give(cell);
            return None;
        }
        let state = self.state_of(call, range, buffer);
        let access = Access::cached(reason);
        let why = match reason {
            Reason::Resident => self.why_not_direct(call.span.gpu.as_ref(), RESIDENT),
            _ => None,
        };
        state.emit_begin(call.file, &Begin { not_direct: why, ..call.begin(Some(access)) });
        state.add_stages(&Stages {
            probe: probed - call.started,
            file: probed.elapsed(),
            copy: Duration::ZERO,
        });
        let way = (Route::Cached, reason);
        let is_ours = call.span.keep.as_ref().is_some_and(Keep::is_ours);
        let target = (call.span.address, range.len(), is_ours);
        let read = SmallRead::new(cell, target, way, &state);
        if !cells.post(read)
            && let Some(error) = self.inner.core.failure()
        {
            self.inner.core.end(Arc::clone(&state), Err(error));
        }
        Some(state)
    }

    /// Records a small transfer that just ended, and emits its event.
    fn trace_small(&self, call: &Call<'_>, done: &Result<Outcome>) {
        let bytes = (call.offset, call.span.len);
        events::small_ended(call.direction.name(), call.file.path(), bytes, done);
        self.inner.core.recorder().note_small(|| {
            let took = done.as_ref().map_or(0, |outcome| outcome.elapsed.as_nanos());
            let end_ns = now_ns();
            let start_ns = end_ns.saturating_sub(u64::try_from(took).unwrap_or(0));
            Span { start_ns, end_ns, what: What::Small { name: call.direction.name(), bytes } }
        });
    }

    fn try_small(&self, call: &Call<'_>) -> Option<Result<Outcome>> {
        let options = call.options;
        match call.direction {
            Direction::Read => self.read_small(call),
            Direction::Write if options.sync == SyncMode::None && !options.preallocate => {
                self.write_small(call)
            }
            Direction::Write => None,
        }
    }

    fn read_small(&self, call: &Call<'_>) -> Option<Result<Outcome>> {
        let len = call.span.len;
        let range = call.range().ok()?;
        let reason = resident(call)?;
        let probed = Instant::now();
        let (route, read) = match &call.span.gpu {
            None => {
                let memory = NonNull::new(call.span.address as *mut u8)?;
                // SAFETY: the span is the caller's memory, lent for the length of this call.
                if !unsafe { read_all(call, range, memory) } {
                    return None;
                }
                (Route::Host, None)
            }
            Some(device) => {
                let idle = self.idle_lanes(device, call.started)?;
                let memory = (len, &**self.inner.tools.arena.room());
                let most = READ_LANES[usize::from(len >= LONG)];
                let done = SmallLane::with(device, idle, most, memory, |lane, cell| {
                    // SAFETY: the cell is that long, and nothing else uses it.
                    if !unsafe { read_all(call, range, cell.pointer()) } {
                        return Ok(None);
                    }
                    let read = Instant::now();
                    let bytes = usize::try_from(len).expect("a small size");
                    Ok(lane.copy_in(cell, call.span.address, bytes)?.then_some(read))
                })?;
                match done {
                    Ok(Some(read)) => (Route::Cached, Some(read)),
                    Ok(None) => return None,
                    Err(source) => return Some(Err(lost(call, device, source))),
                }
            }
        };
        let ended = Instant::now();
        let read = read.unwrap_or(ended);
        Some(Ok(Outcome {
            bytes: len,
            routes: vec![RouteShare { route, reason, bytes: len }],
            not_direct: match reason {
                Reason::Resident => self.why_not_direct(call.span.gpu.as_ref(), RESIDENT),
                _ => None,
            },
            stages: Stages {
                probe: probed - call.started,
                file: read - probed,
                copy: ended - read,
            },
            elapsed: ended - call.started,
        }))
    }

    /// Writes through the page cache. If a longer transfer is writing the file, it waits for the
    /// kernel's lock on the file, like any other process. After a failed copy or a short write the
    /// general path repeats it: the same bytes to the same place.
    fn write_small(&self, call: &Call<'_>) -> Option<Result<Outcome>> {
        let range = call.range().ok()?;
        let len = usize::try_from(range.len()).ok()?;
        let (route, copied) = match &call.span.gpu {
            None => {
                let memory = NonNull::new(call.span.address as *mut u8)?;
                let _write = SmallWrite::begin(&self.inner.core, call.file.identity())?;
                // SAFETY: the span is the caller's memory, lent for the length of this call.
                let all = unsafe { write_all(call, range, memory) };
                (Route::Host, all.then_some(call.started)?)
            }
            Some(device) => {
                let idle = self.idle_lanes(device, call.started)?;
                let memory = (range.len(), &**self.inner.tools.arena.room());
                let copied = SmallLane::with(device, idle, usize::MAX, memory, |lane, cell| {
                    if !lane.copy_out(cell, call.span.address, len)? {
                        return Ok(None);
                    }
                    let copied = Instant::now();
                    let file = call.file.identity();
                    let Some(_write) = SmallWrite::begin(&self.inner.core, file) else {
                        return Ok(None);
                    };
                    // SAFETY: the cell is that long, and nothing else uses it.
                    let all = unsafe { write_all(call, range, cell.pointer()) };
                    Ok(all.then_some(copied))
                })?;
                match copied {
                    Ok(copied) => (Route::Cached, copied?),
                    Err(source) => return Some(Err(lost(call, device, source))),
                }
            }
        };
        let ended = Instant::now();
        let share = RouteShare { route, reason: Reason::WriteThroughCache, bytes: range.len() };
        Some(Ok(Outcome {
            bytes: range.len(),
            routes: vec![share],
            not_direct: self.why_not_direct(call.span.gpu.as_ref(), WRITE_NOT_REQUIRED),
            stages: Stages {
                probe: std::time::Duration::ZERO,
                file: ended - copied,
                copy: copied - call.started,
            },
            elapsed: ended - call.started,
        }))
    }
}

/// Why the bytes of a read are in memory; `None` if they are not, or if that is unknown.
fn resident(call: &Call<'_>) -> Option<Reason> {
    match call.file.residency_source() {
        ResidencySource::InMemory => Some(Reason::InMemory),
        // Bytes of a warm file may be missing; then `read_all` fails.
        _ if call.file.is_warm() || call.is_resident() => Some(Reason::Resident),
        _ => {
            call.file.count_small(false);
            None
        }
    }
}

/// Gives the caller's memory up, and returns the error.
fn lost(call: &Call<'_>, device: &Arc<dyn Device>, NotOver(source): NotOver) -> Error {
    call.span.keep.iter().for_each(|keep| keep.lose(&source));
    let (device, len) = (device.id(), call.span.len);
    events::copy_not_over(device, &source);
    let place = Some(Box::new(call.file.place(call.offset, len)));
    Error::CopyNotOver { device, len, place, source }
}

/// Reads all of `range` into `memory`; `false` if the file ends early, if bytes that were expected
/// in memory are not there, or if the read fails. The general path reads and reports then.
///
/// # Safety
/// `memory` is valid for writes of `range.len()` bytes.
unsafe fn read_all(call: &Call<'_>, range: ByteRange, memory: NonNull<u8>) -> bool {
    let Ok(len) = usize::try_from(range.len()) else { return false };
    let is_known = call.file.is_memory() || call.residency.get().is_some();
    // Pages that count as resident may still be arriving from a drive that hangs.
    let read_raw = if call.may_wait && is_known { read_at_raw } else { read_nowait_raw };
    // SAFETY: the caller's promise.
    let read = unsafe { read_raw(call.file.fd(), memory.as_ptr(), len, range.start) };
    call.file.count_small(read.is_ok_and(|got| got == len))
}

/// Writes all of `range` from `memory`; `false` if the write fails or is short.
///
/// # Safety
/// `memory` is valid for reads of `range.len()` bytes.
unsafe fn write_all(call: &Call<'_>, range: ByteRange, memory: NonNull<u8>) -> bool {
    let Ok(len) = usize::try_from(range.len()) else { return false };
    // SAFETY: the caller's promise.
    let written = unsafe { write_at_raw(call.file.fd(), memory.as_ptr(), len, range.start) };
    written.is_ok_and(|moved| moved == len)
}
