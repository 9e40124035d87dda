//! Writing layers back: changes made by the compute are written to the layer's files. A separate
//! thread waits for the compute and keeps the layer's buffer until it is written.

#![expect(unsafe_code, reason = "orders work on streams that a caller names")]

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::mpsc::{Receiver, SendError, Sender, channel};
use std::sync::{Arc, Weak};
use std::thread;
use std::time::{Duration, Instant};

use forebay::gpu::CallerStream;
use forebay::{Error, Operation, Result, Transfer};

use super::layer::LayerPart;
use super::shared::{Held, Shared, State, stuck};
use super::store::{Write, Writes};
use super::ties::Ties;

/// Interval for calling the `go_on` callback.
const CHECKS_EVERY: Duration = Duration::from_millis(50);

impl Shared {
    /// Writes the unit taken at `position` to its files, after the work queued on `compute` up to
    /// now.
    ///
    /// # Safety
    /// As for [`LayerStream::next`](super::LayerStream::next).
    pub(super) unsafe fn write_back(
        self: &Arc<Self>,
        (position, number): (u64, usize),
        compute: CallerStream,
    ) -> Result<()> {
        let unit = &self.units()[number];
        let of_it = |error: Error| error.of_layer(Operation::Write, &unit.name);
        let bytes = |part: &LayerPart| (part.file.identity(), part.offset, part.len);
        let all = self.units().iter().map(|unit| unit.parts.iter().map(bytes));
        let ties = Ties::new(number, unit.parts.iter().map(bytes), all);
        let mut state = self.submit()?;
        state.check_open()?;
        let Held { buffer, .. } = self.held(&state, (position, number), Operation::Write)?;
        if let Some(part) = unit.parts.iter().find(|part| !part.file.is_writable()) {
            let reason = "the file was opened for reading: open it for writing";
            return Err(of_it(refused(part, reason.into())));
        }
        if let Some((part, other)) = ties.shared {
            let reason = if other == number {
                "another part of it has some of these bytes too, so a write would be ambiguous"
                    .into()
            } else {
                let other = &self.units()[other].name;
                format!("`{other}` has some of these bytes too, and would keep the old")
            };
            return Err(of_it(refused(&unit.parts[part], reason)));
        }
        if !self.group.is_of_one() {
            let reason = "streams to other GPUs share the layer, and would keep the old bytes";
            return Err(of_it(refused(&unit.first, reason.into())));
        }
        let store = state.store()?;
        let mark = || {
            // SAFETY: the caller's promise.
            unsafe {
                self.check_stream(compute)?;
                Ok(self.marks.put_on(compute))
            }
        };
        let computed = state.unlocked(mark)?;
        let computed = computed.map_err(|source| of_it(self.compute_failed(compute, source)))?;
        let ready = state.loads[buffer].as_ref().expect("it was brought").ready.clone();
        state.schedule.hold(buffer);
        state.writes.buffers.push(buffer);
        // The host copy, if any, holds old bytes now.
        self.group.homes().outdate(number);
        self.let_written_pages_go(&ties);
        let copied = state.copied.take(&ties.units);
        let write = Write { unit: number, buffer, store, marks: [ready, computed], copied };
        if let Err(SendError(mut write)) = self.writer().send(write) {
            state.copied.put_back(std::mem::take(&mut write.copied));
            let error = refused(&unit.first, "no thread can be started to write it".into());
            self.written(&mut state, &write, Err(error));
        }
        Ok(())
    }

    /// Unpins pages of files that a unit is written to. A reader cannot distinguish this
    /// write from another process's.
    fn let_written_pages_go(&self, ties: &Ties) {
        for &other in &ties.units {
            let mut homes = self.group.homes();
            if homes.maps.is_open(other) {
                let name = &self.units()[other].name;
                let reason = format!("`{name}` is in a file that layers are written to");
                homes.maps.refuse(other, reason);
                drop(homes);
                self.group.let_pages_go(other);
            }
        }
    }

    /// Waits until all pending writes are done, while `go_on`, called periodically, returns true.
    /// Returns whether they are.
    ///
    /// # Errors
    /// The first error that was not yet reported; the next call reports the next.
    pub(super) fn flush(&self, go_on: &mut dyn FnMut() -> bool) -> Result<bool> {
        let mut state = self.lock();
        while state.writes.is_any() {
            let (waited, is_late) = self.wait(&self.came, state, CHECKS_EVERY);
            if is_late {
                drop(waited); // the callback may wait for a thread that wants the lock
                if !go_on() {
                    return Ok(false);
                }
                state = self.lock();
            } else {
                state = waited;
            }
        }
        state.writes.failures.pop_front().map_or(Ok(true), Err)
    }

    /// The sender to the writer thread, which is started at the first write.
    fn writer(self: &Arc<Self>) -> Sender<Write> {
        let mut sender = self.writer.0.lock();
        if let Some(sender) = &*sender {
            return sender.clone();
        }
        let (made, writes) = channel();
        let shared = Arc::downgrade(self);
        let run = move || run(&writes, &shared);
        // If no thread can be started, the receiver is dropped with the closure; a later call tries
        // again.
        let begun = thread::Builder::new().name("forebay-writer".into()).spawn(run);
        *sender = begun.is_ok().then(|| made.clone());
        made
    }

    /// Writes a layer and returns the number of bytes. Afterwards nothing reads its buffer, or the
    /// buffer is never used again.
    fn write(&self, write: &Write) -> Result<u64> {
        let unit = &self.units()[write.unit];
        let failed = |source| self.failed(unit.len, source);
        let bound = self.engine.options().watchdog;
        let waits = || self.closed_for().is_none_or(|closed| closed < bound);
        for mark in write.marks.iter().chain(write.copied.iter().map(|one| &one.ready)) {
            if !mark.wait_while(&mut || waits()).map_err(failed)? {
                return Err(self.not_over(stuck()));
            }
        }
        write.copied.iter().for_each(|one| self.judge(one));
        let memory = &write.store.buffers[write.buffer];
        let (mut transfers, mut error) = (Vec::with_capacity(unit.parts.len()), None);
        for (part, &place) in unit.parts.iter().zip(&unit.places).filter(|(part, _)| part.len > 0) {
            // SAFETY: it is memory of a GPU, never a slice.
            let source = unsafe { memory.share(place, part.len) };
            match part.file.write(source).at(part.offset).start() {
                Ok(transfer) => transfers.push((part, transfer)),
                Err(refusal) => {
                    error = Some(refusal);
                    break;
                }
            }
        }
        // While other parts make progress, a part waits for its turn.
        let moved = || transfers.iter().map(|(_, transfer)| transfer.progress().0).sum();
        for (part, transfer) in &transfers {
            if error.is_some() {
                transfer.cancel(); // ops in flight are waited for
            }
            match self.landed((part, transfer), &moved, bound) {
                Ok(()) => {}
                Err(stalled @ Error::TimedOut { .. }) => {
                    // Its copies may read the buffer forever.
                    std::mem::forget(Arc::clone(&write.store));
                    return Err(error.unwrap_or(stalled));
                }
                Err(failure) => {
                    error.get_or_insert(failure);
                }
            }
        }
        error.map_or(Ok(unit.bytes()), Err)
    }

    /// Waits for the end of a part's transfer: without limit, or once the stream is closed only
    /// while more bytes have `moved` within `bound`.
    fn landed(
        &self,
        (part, transfer): (&LayerPart, &Transfer),
        moved: &dyn Fn() -> u64,
        bound: Duration,
    ) -> Result<()> {
        let (mut done, mut since) = (moved(), Instant::now());
        loop {
            if let Some(ended) = transfer.wait_for(CHECKS_EVERY) {
                return ended.map(drop);
            }
            let now = moved();
            if now != done {
                (done, since) = (now, Instant::now());
            }
            if since.elapsed() > bound && self.closed_for().is_some_and(|closed| closed > bound) {
                transfer.cancel();
                let place = part.file.place(part.offset, part.len);
                return Err(Error::TimedOut { place, bound, done: transfer.progress().0 });
            }
        }
    }

    /// How long ago it was closed.
    fn closed_for(&self) -> Option<Duration> {
        self.lock().closed.map(|since| since.elapsed())
    }

    /// Writes a layer and frees its buffer for reuse.
    fn finish(self: &Arc<Self>, write: &Write) {
        let ended = self.write(write);
        let Ok(mut state) = self.submit() else {
            // The stream is closed, so nothing is loaded to that buffer any more.
            return self.written(&mut self.lock(), write, ended);
        };
        #[cfg(test)]
        assert!(!state.writes.breaks, "a step is broken");
        self.written(&mut state, write, ended);
        if !state.taken.iter().any(|held| held.buffer == write.buffer) {
            let filled = self.fill_unused(&mut state, write.buffer);
            let len = write.store.buffers[write.buffer].len();
            if let Err(source) = filled {
                state.lost.get_or_insert(self.failed(len, source));
            }
        }
        // The caller that takes the next layer reports a failure.
        let _ = self.pump(&mut state);
    }

    /// Records the result of a write.
    fn written(self: &Arc<Self>, state: &mut State, write: &Write, ended: Result<u64>) {
        let place = state.writes.buffers.iter().position(|&buffer| buffer == write.buffer);
        if let Some(place) = place {
            state.writes.buffers.swap_remove(place);
        }
        state.schedule.release(write.buffer);
        match ended {
            Ok(bytes) => state.writes.bytes += bytes,
            Err(error) => {
                let layer = &self.units()[write.unit].name;
                state.writes.failures.push_back(error.of_layer(Operation::Write, layer));
            }
        }
    }
}

/// The error for a part of a layer that cannot be written.
fn refused(part: &LayerPart, reason: String) -> Error {
    let place = part.file.place(part.offset, part.len);
    Error::BadRequest { operation: Operation::Write, place, reason }
}

/// Runs the writer thread. A panic ends the streams: it is unknown what still reads the layer's
/// buffer, and which part of the state was changed.
fn run(writes: &Receiver<Write>, shared: &Weak<Shared>) {
    for write in writes {
        let Some(shared) = shared.upgrade() else { return };
        if catch_unwind(AssertUnwindSafe(|| shared.finish(&write))).is_err() {
            std::mem::forget(Arc::clone(&write.store));
            let unit = &shared.units()[write.unit];
            let error = refused(&unit.first, "the writer thread panicked".into());
            shared.group.lose(&error);
            let Writes { buffers, failures, .. } = &mut shared.lock().writes;
            buffers.retain(|&buffer| buffer != write.buffer); // nothing is loaded to it any more
            failures.push_back(error.of_layer(Operation::Write, &unit.name));
        }
        shared.came.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Layer, LayerStream, Order, StreamOptions};
    use super::*;
    use forebay::gpu::Device;
    use forebay::gpu::sim::{SimConfig, SimDevice};
    use forebay::{Engine, OpenOptions, Options};
    use forebay_base::clock::SystemClock;

    const LEN: u64 = 100_001;

    #[test]
    fn a_panic_behind_a_write_ends_the_stream_and_what_waits_for_it() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("file");
        std::fs::write(&path, vec![7; 1 << 20]).unwrap();
        let engine = Engine::new(Options::default()).unwrap();
        let clock = Arc::new(SystemClock::new());
        let device: Arc<dyn Device> = Arc::new(SimDevice::new(0, SimConfig::default(), clock));
        let file = engine.open_with(&path, &OpenOptions::writing()).unwrap();
        let layer = |n| Layer::named(format!("layer {n}")).with(&file, n * LEN, LEN);
        let layers: Vec<Layer> = (0..4).map(layer).collect();
        let mut options = StreamOptions::ordered(Order::Forward);
        options.mapped_budget = Some(0);
        let stream = LayerStream::new(&engine, &device, &layers, options).unwrap();
        // SAFETY: the default stream always exists, here and below.
        let next = || unsafe { stream.next(CallerStream(0)) };
        let taken = next().unwrap().unwrap();
        stream.shared.lock().writes.breaks = true;
        // SAFETY: as above.
        unsafe { taken.write_back(CallerStream(0)) }.unwrap();
        let until = Instant::now() + Duration::from_secs(30);
        let error = stream.flush_while(&mut || Instant::now() < until).unwrap_err();
        let message = format!("{error:?}");
        assert!(message.contains("layer 0") && message.contains("panicked"), "{message}");
        let message = next().unwrap_err().to_string();
        assert!(message.contains("panicked"), "{message}");
        stream.close().unwrap();
    }
}
