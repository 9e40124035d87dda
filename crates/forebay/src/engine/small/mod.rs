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
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering};
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

/// Longest blocking read to a GPU that is small while several threads make such reads. A lone
/// thread uses the general path, where readers fill slots concurrently (H200, 1 MiB: 9.2 GB/s, by
/// hand in the thread 5.6; general path and small: 6.7 and 10.4 for two threads, 13 and 20 for
/// four).
pub(in crate::engine) const SHARED_MAX: u64 = MIB;
/// Number of threads whose longer reads use lanes. Reads of more threads are copied together.
const SHARED_LANES: usize = READ_LANES[1];

/// Longest read of a lone thread for which the GPU writes a word of host memory after the copy, and
/// the thread polls it (H200, 4 KiB: 0.38 GB/s without the word, 0.44 with it). Several threads
/// would wait for the driver's lock (16 threads: 2.3 and 1.6 GB/s).
const WORD_MAX: u64 = 16 * KIB;
/// Bytes of a cell for that word, and the number of polls before the stream is synchronized.
const WORD_LEN: u64 = 64;
const WORD_POLLS: usize = 10_000;

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
pub(in crate::engine) type Lanes = Box<[Lane]>;

/// A lane in cache lines of its own. Its first use creates the stream.
#[derive(Debug, Default)]
#[repr(align(128))]
pub(in crate::engine) struct Lane {
    /// Whether a transfer uses it, to be checked without the lock.
    is_busy: AtomicBool,
    stream: Mutex<Option<SmallLane>>,
}

/// Lanes without a stream.
pub(in crate::engine) fn lanes() -> Lanes {
    (0..cores().clamp(*LANES.start(), *LANES.end())).map(|_| Lane::default()).collect()
}

#[derive(Debug)]
pub(in crate::engine) struct SmallLane {
    device: Arc<dyn Device>,
    stream: Stream,
    /// Whether the GPU can write words of host memory.
    has_words: bool,
}

impl Drop for SmallLane {
    fn drop(&mut self) {
        // Every use ends with a synchronization, so nothing is queued.
        let destroyed = self.device.destroy_stream(self.stream);
        drop(destroyed);
    }
}

impl SmallLane {
    /// Copies the first `len` bytes of a cell to the GPU, and polls the `word` behind them, if
    /// given; returns as [`end`](Self::end) does.
    fn copy_in(
        &self,
        cell: Cell,
        address: u64,
        len: usize,
        word: Option<&AtomicU32>,
    ) -> Result<bool, NotOver> {
        self.within(|| {
            // SAFETY: the cell is this transfer's, is registered, and is large enough; the target
            // is the caller's during the call. The copy is over when this returns, or the lane, the
            // cell and the target are given up.
            let queued =
                unsafe { self.device.copy_to_device(self.stream, address, cell.pointer(), len) };
            let is_over = |word: &AtomicU32| {
                word.store(0, Ordering::Relaxed);
                let at = NonNull::from(word).cast();
                // SAFETY: as above; the word is in the cell.
                let written = unsafe { self.device.write_number(self.stream, at, 1) };
                let is_written = |_: &usize| {
                    std::hint::spin_loop();
                    word.load(Ordering::Acquire) == 1
                };
                written.is_ok() && (0..WORD_POLLS).find(is_written).is_some()
            };
            match word.filter(|_| queued.is_ok()).is_some_and(is_over) {
                true => Ok(true),
                false => self.end(queued),
            }
        })
    }

    /// Runs `work` with the GPU's context current, so that its calls need not change it.
    fn within<T>(&self, work: impl Fn() -> T) -> T {
        let mut done = None;
        // If the context cannot be made current, each call of `work` reports that itself.
        let _ = self.device.within(&mut || done = Some(work()));
        done.unwrap_or_else(work)
    }

    /// Copies `len` bytes from the GPU to the start of a cell; returns as [`end`](Self::end) does.
    fn copy_out(&self, cell: Cell, address: u64, len: usize) -> Result<bool, NotOver> {
        self.within(|| {
            // SAFETY: as in `copy_in`, with source and target exchanged.
            let queued =
                unsafe { self.device.copy_to_host(self.stream, cell.pointer(), address, len) };
            self.end(queued)
        })
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

/// A thread in a read that [`Engine::note_caller`] counts.
pub(in crate::engine) struct Caller<'a>(&'a AtomicUsize);

impl Drop for Caller<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Why a copy may still access a lane and the caller's memory.
struct NotOver(DeviceError);

/// A link's lanes, and the cells of their bytes.
pub(in crate::engine) type Idle<'a> = (&'a Lanes, &'a Arc<Cells>);

impl SmallLane {
    /// Runs `step` with a cell of `len` bytes and an unused lane of the first `most`, that of this
    /// core if possible; `None` if there is none. If a copy may still access the cell, both are
    /// leaked.
    fn with<T>(
        device: &Arc<dyn Device>,
        (lanes, cells): Idle<'_>,
        most: usize,
        (len, room): (u64, &Room),
        step: impl FnOnce(&Self, Cell) -> Result<T, NotOver>,
    ) -> Option<Result<T, NotOver>> {
        let most = most.min(lanes.len());
        let (behind, from) = lanes[..most].split_at(rustix::thread::sched_getcpu() % most);
        // After a panic a copy may still be running, so the lane is given up.
        let mut all = from.iter().chain(behind);
        let (is_busy, mut lane) =
            all.find_map(|lane| Some((&lane.is_busy, lane.stream.try_lock().ok()?)))?;
        let cell = cells.take(len, Some(room))?;
        is_busy.store(true, Ordering::Relaxed);
        if lane.is_none() {
            let stream = device.create_stream().ok();
            let has_words = device.no_gates().is_none();
            *lane = stream.map(|stream| Self { device: Arc::clone(device), stream, has_words });
        }
        let done = lane.as_ref().map(|lane| step(lane, cell));
        match &done {
            Some(Err(_)) => std::mem::forget((lane.take(), Arc::clone(cells))),
            _ => cells.give(cell),
        }
        is_busy.store(false, Ordering::Relaxed);
        done
    }
}

impl Engine {
    /// Does the transfer on this thread, if it is small and without special options, and reports it
    /// to traces and subscribers. `None` if it needs the general path.
    #[inline]
    pub(in crate::engine) fn move_small(&self, call: &Call<'_>) -> Option<Result<Outcome>> {
        let in_lanes = call.callers <= SHARED_LANES;
        if !(self.is_small(call) && in_lanes)
            || call.options.route.is_some()
            || call.options.past_cache
        {
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
        let fits = self.is_small(call);
        let is_plain = call.direction == Direction::Read && call.options.route.is_none();
        // Facts may have to be queried from a server, and the caller must not wait for it.
        if !fits || !is_plain || call.file.opens_slowly() || self.inner.core.failure().is_some() {
            return None;
        }
        let _guard = OnUnwind::new(self, None);
        let range = call.range().ok()?;
        let cold = |buffer: &mut Option<Buffer>| {
            let may = setup == Setup::Allowed && call.span.len <= self.options().small_size;
            may.then(|| self.start_cold(call, buffer))?
        };
        let Some(device) = call.span.gpu() else {
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
            Reason::Resident => self.why_not_direct(call.span.gpu(), RESIDENT),
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

    fn is_small(&self, call: &Call<'_>) -> bool {
        let most = if call.callers > 1 { SHARED_MAX } else { self.options().small_size };
        (1..=most).contains(&call.span.len)
    }

    /// Counts the thread of a blocking read to a GPU that is small only while several threads make
    /// such reads, until the guard is dropped.
    pub(in crate::engine) fn note_caller(&self, call: &mut Call<'_>) -> Option<Caller<'_>> {
        let small_size = self.options().small_size;
        let is_shared = small_size > 0 && (small_size + 1..=SHARED_MAX).contains(&call.span.len);
        let device = call.span.gpu().filter(|_| is_shared)?;
        let callers = self.callers(device).filter(|_| call.direction == Direction::Read)?;
        call.callers = callers.fetch_add(1, Ordering::Relaxed) + 1;
        Some(Caller(callers))
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
        let (route, read) = match call.span.gpu() {
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
                let most = READ_LANES[usize::from(len >= LONG)];
                let is_busy = |lane: &Lane| lane.is_busy.load(Ordering::Relaxed);
                let polls = len <= WORD_MAX && !idle.0.iter().take(most).any(is_busy);
                let room = &**self.inner.tools.arena.room();
                let memory = (len + if polls { WORD_LEN } else { 0 }, room);
                let done = SmallLane::with(device, idle, most, memory, |lane, cell| {
                    // SAFETY: the cell is that long, and nothing else uses it.
                    if !unsafe { read_all(call, range, cell.pointer()) } {
                        return Ok(None);
                    }
                    let read = Instant::now();
                    let bytes = usize::try_from(len).expect("a small size");
                    // SAFETY: the cell has these bytes too; the word is aligned.
                    let word = || unsafe {
                        cell.pointer().add(bytes.next_multiple_of(4)).cast::<AtomicU32>().as_ref()
                    };
                    let word = (polls && lane.has_words).then(word);
                    Ok(lane.copy_in(cell, call.span.address, bytes, word)?.then_some(read))
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
                Reason::Resident => self.why_not_direct(call.span.gpu(), RESIDENT),
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
        let (route, copied) = match call.span.gpu() {
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
            not_direct: self.why_not_direct(call.span.gpu(), WRITE_NOT_REQUIRED),
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
