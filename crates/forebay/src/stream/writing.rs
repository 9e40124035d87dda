//! Layers on the way back: what the compute has changed of one is written to where it came from, by
//! a thread that waits for the compute, and keeps the layer's buffer until it is written.

#![expect(unsafe_code, reason = "orders work on streams that a caller names")]

use std::sync::mpsc::{Receiver, SendError, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::thread;
use std::time::Duration;

use super::layer::LayerPart;
use super::marks::Mark;
use super::shared::{Shared, State, released, stuck};
use super::store::Store;
use crate::engine::RequestOptions;
use crate::error::{Error, Operation, Result};
use crate::gpu::CallerStream;
use crate::transfer::Transfer;

/// Time between two questions whether to go on.
const ASKS_EVERY: Duration = Duration::from_millis(50);

/// A layer to be written.
struct Write {
    unit: usize,
    buffer: usize,
    store: Arc<Store>,
    /// Passed when all that changes it is done.
    computed: Mark,
}

/// See the module's own text.
#[derive(Debug, Default)]
pub(super) struct Writer(Mutex<Option<Sender<Write>>>);

/// What is on its way back.
#[derive(Debug, Default)]
pub(super) struct Writes {
    /// The buffers of layers that are being written.
    buffers: Vec<usize>,
    /// What went wrong, and nobody has been told yet.
    failures: Vec<Error>,
    /// Bytes that were written.
    pub(super) bytes: u64,
}

impl Writes {
    /// Whether a layer in a buffer is being written.
    pub(super) fn of(&self, buffer: usize) -> bool {
        self.buffers.contains(&buffer)
    }

    /// Whether any layer is being written.
    pub(super) fn is_any(&self) -> bool {
        !self.buffers.is_empty()
    }
}

impl Shared {
    /// Has what was taken at `position` written to its files, once what is queued on `compute` now
    /// is done.
    ///
    /// # Safety
    /// As for [`LayerStream::next`](super::LayerStream::next).
    pub(super) unsafe fn write_back(
        self: &Arc<Self>,
        position: u64,
        number: usize,
        compute: CallerStream,
    ) -> Result<()> {
        let unit = &self.units[number];
        let mut state = self.lock();
        state.check_open()?;
        let taken = state.taken.iter().find(|taken| taken.0 == position);
        let &(_, buffer) = taken.ok_or_else(released)?;
        if let Some(part) = unit.parts.iter().find(|part| !part.file.is_writable()) {
            return Err(refused(part, "the file was opened for reading: open it for writing"));
        }
        let store = state.store()?;
        // SAFETY: the caller's promise.
        let computed = unsafe { self.marks.put_on(compute) };
        let computed = computed.map_err(|source| self.failed(unit.len, source))?;
        state.schedule.hold(buffer);
        state.writes.buffers.push(buffer);
        // Where it is kept on the host there are old bytes.
        self.let_pages_go(&mut state, number);
        state.filled[number] = false;
        let write = Write { unit: number, buffer, store, computed };
        if let Err(SendError(write)) = self.writer().send(write) {
            let error = refused(&unit.first, "no thread can be had that writes it");
            self.written(&mut state, &write, Err(error));
        }
        Ok(())
    }

    /// Waits until all that was to be written is, as long as `go_on`, asked now and then, says so;
    /// whether it is.
    ///
    /// # Errors
    /// The first of what went wrong since the last call.
    pub(super) fn flush(&self, go_on: &mut dyn FnMut() -> bool) -> Result<bool> {
        let mut state = self.lock();
        while state.writes.is_any() {
            let waited = self.came.wait_timeout(state, ASKS_EVERY);
            let (waited, result) = waited.unwrap_or_else(PoisonError::into_inner);
            if result.timed_out() {
                drop(waited); // what is asked may wait for who wants the lock
                if !go_on() {
                    return Ok(false);
                }
                state = self.lock();
            } else {
                state = waited;
            }
        }
        let mut failures = std::mem::take(&mut state.writes.failures).into_iter();
        failures.next().map_or(Ok(true), Err)
    }

    /// Where the thread hears of writes, which is started for the first.
    fn writer(self: &Arc<Self>) -> Sender<Write> {
        let mut sender = self.writer.0.lock().unwrap_or_else(PoisonError::into_inner);
        let begin = || {
            let (sender, writes) = channel();
            let shared = Arc::downgrade(self);
            let run = move || run(&writes, &shared);
            // Where no thread can be had, the channel's end is gone with it.
            let _ = thread::Builder::new().name("forebay-writer".into()).spawn(run);
            sender
        };
        sender.get_or_insert_with(begin).clone()
    }

    /// Writes a layer, and says how many bytes.
    fn write(&self, write: &Write) -> Result<u64> {
        let unit = &self.units[write.unit];
        let go_on = || self.lock().is_patient(self.engine.options().watchdog);
        let failed = |source| self.failed(unit.len, source);
        if !write.computed.wait_while(&mut || go_on()).map_err(failed)? {
            return Err(self.not_over(stuck()));
        }
        let memory = &write.store.buffers[write.buffer];
        let mut transfers: Vec<Transfer> = Vec::with_capacity(unit.parts.len());
        for (part, &place) in unit.parts.iter().zip(&unit.places).filter(|(part, _)| part.len > 0) {
            let source = memory.share(place, part.len);
            let begun = part.file.start_write(part.offset, source, &RequestOptions::default())?;
            transfers.push(begun);
        }
        for transfer in transfers {
            while transfer.wait_for(ASKS_EVERY).is_none() {
                if !go_on() {
                    transfer.cancel();
                    return Err(self.not_over(stuck()));
                }
            }
            transfer.wait().0?;
        }
        Ok(unit.bytes())
    }

    /// Says what came of a write.
    fn written(self: &Arc<Self>, state: &mut State, write: &Write, ended: Result<u64>) {
        let place = state.writes.buffers.iter().position(|&buffer| buffer == write.buffer);
        if let Some(place) = place {
            state.writes.buffers.swap_remove(place);
        }
        state.schedule.release(write.buffer);
        match ended {
            Ok(bytes) => state.writes.bytes += bytes,
            Err(error) => state.writes.failures.push(error),
        }
    }
}

/// Refuses to write a part of a layer.
fn refused(part: &LayerPart, reason: &str) -> Error {
    let place = part.file.place(part.offset, part.len);
    Error::BadRequest { operation: Operation::Write, place, reason: reason.into() }
}

fn run(writes: &Receiver<Write>, shared: &Weak<Shared>) {
    for write in writes {
        let Some(shared) = shared.upgrade() else { return };
        let ended = shared.write(&write);
        let mut state = shared.lock();
        shared.written(&mut state, &write, ended);
        // What failed is told by who takes the next layer.
        let _ = shared.pump(&mut state);
        drop(state);
        shared.came.notify_all();
    }
}
