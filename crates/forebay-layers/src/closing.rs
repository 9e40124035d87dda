//! Closing a stream. It waits for copies and compute, both for at most the watchdog time, even if a
//! driver call never returns.

#![expect(unsafe_code, reason = "orders work on streams that a caller names")]

use std::sync::Arc;
use std::time::{Duration, Instant};

use forebay::Result;
use forebay::gpu::DeviceError;
use forebay::internal::{DeviceResult, Stream};
use forebay_base::timeout::within;

use super::shared::{Held, Shared, Turn, stuck};

impl Shared {
    /// Ends the stream, as [`LayerStream::close`](super::LayerStream::close) does.
    pub(super) fn close(self: &Arc<Self>) -> Result<Vec<String>> {
        let bound = self.engine.options().watchdog;
        self.request_close();
        let marked = self.mark_held(bound);
        // A loader ends when the copies of all its streams have ended or timed out.
        let streams = u32::try_from(self.group.streams().len()).unwrap_or(u32::MAX);
        let bound_of_all = bound.saturating_mul(streams.saturating_add(1));
        let until = Instant::now() + bound_of_all;
        let is_parted = marked.is_ok() && self.group.wait_for_loader(self.seat, until);
        let exports = self.exports();
        // This wait is bounded: on a closed stream a write without progress is given up. A hanging
        // driver may delay that too.
        let until = Instant::now() + bound;
        let written = self.flush(&mut || is_parted || Instant::now() < until);
        marked?;
        if !is_parted {
            return Err(self.not_over(no_answer("the thread that loads layers waits for it")));
        }
        let settled = self.bounded(bound.saturating_mul(3), Self::give_back);
        written?; // has more detail if it is about the same copy
        settled?;
        self.look_again();
        self.lock().copied.next_change().map(|()| exports)
    }

    /// Stops further layers from being acquired or loaded.
    fn request_close(&self) {
        let mut state = self.lock();
        state.closing = true;
        state.closed.get_or_insert_with(Instant::now);
        drop(state);
        self.group.ring();
        self.came.notify_all();
    }

    /// Records an event on the streams of all held layers, so that the wait covers the compute
    /// queued up to now. No further layer can be acquired.
    fn mark_held(self: &Arc<Self>, bound: Duration) -> Result<()> {
        let state = self.lock();
        let is_quiet = state.taken.is_empty() && state.turn == Turn::Free;
        if is_quiet || state.is_marked {
            return Ok(());
        }
        drop(state);
        self.bounded(bound.saturating_mul(2), Self::mark_all)
    }

    fn mark_all(&self) -> Result<()> {
        let waits = |_| self.not_over(no_answer("another thread waits for it"));
        let mut turn = self.submit().map_err(waits)?;
        if std::mem::replace(&mut turn.is_marked, true) {
            return Ok(());
        }
        for Held { buffer, unit, compute, .. } in turn.taken.clone() {
            let mark = || {
                // SAFETY: the caller that named the stream keeps it alive until the layer is
                // released or this is closed.
                unsafe {
                    if self.device.is_capturing(compute)? {
                        return Err(self.unknown_end("cuStreamIsCapturing", "CAPTURING", unit));
                    }
                    self.marks.put_on(compute)
                }
            };
            match turn.unlocked(mark) {
                Ok(mark) => turn.frees[buffer].push(mark),
                Err(source) => drop(turn.unmarked.get_or_insert(source)),
            }
        }
        Ok(())
    }

    /// Runs `work` on a separate thread and returns its result. The thread is abandoned if a driver
    /// call does not return in time.
    fn bounded(self: &Arc<Self>, bound: Duration, work: fn(&Self) -> Result<()>) -> Result<()> {
        let of = Arc::clone(self);
        match within(bound, "forebay-closes", move || work(&of)) {
            Ok(Some(ended)) => ended,
            Ok(None) => Err(self.not_over(no_answer("the stream's end waits for it"))),
            Err(_) => work(self), // without a thread there is no bound
        }
    }

    /// Waits until no copy of the stream runs and no compute uses its layers.
    pub(super) fn settle(&self) -> Result<()> {
        let until = Instant::now() + self.engine.options().watchdog;
        for lane in [self.memory_lane, self.file_lane] {
            // The first result may only be a failure that is already known.
            let end = self.quiet(lane, until).or_else(|_| self.quiet(lane, until));
            match end {
                Ok(true) => {}
                Ok(false) => return Err(self.not_over(stuck())),
                Err(source) => return Err(self.not_over(source)),
            }
        }
        let (frees, unmarked) = {
            let state = self.lock();
            (state.frees.clone(), state.unmarked.clone())
        };
        for (buffer, marks) in frees.iter().enumerate() {
            // A failed mark counts as over.
            let mut ends = marks.iter().map(|mark| {
                mark.wait_while(&mut || Instant::now() < until).unwrap_or(true) //
            });
            if !ends.all(|is_over| is_over) {
                return Err(self.not_over(self.stuck_in(buffer)));
            }
        }
        unmarked.map_or(Ok(()), |source| Err(self.not_over(source)))
    }

    /// The error for a buffer whose compute may never end.
    fn stuck_in(&self, buffer: usize) -> DeviceError {
        let state = self.lock();
        let held = state.taken.iter().find(|held| held.buffer == buffer);
        held.map_or_else(stuck, |held| self.unknown_end("cuEventQuery", "NO_ANSWER", held.unit))
    }

    /// The error for a unit whose compute may never end.
    fn unknown_end(&self, call: &'static str, name: &str, unit: usize) -> DeviceError {
        let unit = &self.units()[unit].name;
        let detail = format!("it is unknown when the stream that used `{unit}` is done");
        DeviceError { call, code: -1, name: name.into(), detail }
    }

    /// Waits until all work queued on a lane is done; returns whether it is.
    fn quiet(&self, lane: Stream, until: Instant) -> DeviceResult<bool> {
        self.marks.put(lane)?.wait_while(&mut || Instant::now() < until)
    }

    /// Frees the memory once all copies are done. If a copy does not end, the memory is leaked.
    pub(super) fn give_back(&self) -> Result<()> {
        let waits = |_| self.not_over(no_answer("another thread waits for it"));
        drop(self.submit().map_err(waits)?); // a copy that is being queued
        let settled = self.settle();
        let Some(store) = self.lock().store.take() else { return settled };
        if settled.is_err() {
            std::mem::forget(store);
        } else {
            drop(store);
        }
        self.group.leave(settled.is_ok());
        settled
    }
}

/// The error for a driver call that did not return within the bound; `who` names the waiter.
fn no_answer(who: &str) -> DeviceError {
    let detail = format!("a call of the driver does not return, and {who}");
    DeviceError { call: "close", code: -1, name: "NO_ANSWER".into(), detail }
}
