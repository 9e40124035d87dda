//! The caller's operations on a stream: take a layer, keep it, release it. They also start the
//! loads that are possible by then.

#![expect(unsafe_code, reason = "orders work on streams that a caller names, and queues copies")]

use std::ops::ControlFlow::{self, Break, Continue};
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::Arc;
use std::time::{Duration, Instant};

use forebay::gpu::CallerStream;
use forebay::internal::{DeviceResult, Stream};
use forebay::{Buffer, Error, Operation, Result};

use super::group::Job;
use super::homes::PinnedUnit;
use super::layer::{Unit, refuse};
use super::mapped::Pages;
use super::marks::{Mark, forget_passed};
use super::schedule::{Load, Next};
use super::shared::{From, FromPages, Held, Loaded, Shared, State, released};
use super::store::Store;
use super::turn::Submit;
use super::{LayerTimes, Step, Taken};

/// Fill byte for released memory in checked mode: a NaN as float of 8, 16, 32 or 64 bits.
const NAN: u8 = 0xff;

/// Interval for calling the `go_on` callback.
const CHECKS_EVERY: Duration = Duration::from_millis(50);

impl Shared {
    /// # Safety
    /// As for [`LayerStream::next`](super::LayerStream::next).
    pub(super) unsafe fn next(
        self: &Arc<Self>,
        compute: CallerStream,
        go_on: &mut dyn FnMut() -> bool,
    ) -> Result<Step> {
        let mut state = self.submit()?;
        state.check().map_err(|error| self.at_requested(&state, error))?;
        let position = state.schedule.position();
        // SAFETY: the caller's promise.
        let requested = state.unlocked(|| unsafe { self.mark_checked(compute) })?;
        // SAFETY: the caller's promise.
        unsafe { self.release_current(&mut state, compute, &requested) }?;
        state.unlocked(|| self.look_again());
        state.copied.next_change()?;
        let pass = state.schedule.sequence().pass_len();
        if pass > 0 && position > 0 && position.is_multiple_of(pass) && !state.turned {
            state.turned = true;
            self.pump(&mut state)?;
            return Ok(Step::End);
        }
        state.taking = true;
        let (mut state, buffer) = match self.wait_for_next(state, go_on) {
            Ok((mut state, found)) => {
                state.taking = false;
                match found {
                    Continue(buffer) => (state, buffer),
                    Break(step) => return Ok(step),
                }
            }
            Err(error) => {
                self.lock().taking = false;
                return Err(error);
            }
        };
        let loaded = state.loads[buffer].clone().expect("it is there, so it was brought");
        let hold = || {
            // SAFETY: the caller's promise.
            unsafe {
                self.device.hold_caller(compute, loaded.ready.event())?;
                self.marks.put_on(compute)
            }
        };
        let entered = state.unlocked(hold);
        let entered = entered.map_err(|source| self.compute_failed(compute, source))?;
        state.gather();
        let unit = state.schedule.sequence().at(position).expect("it is there");
        state.schedule.take(buffer);
        state.turned = false;
        state.taken.push(Held { position, buffer, unit, compute });
        state.current = Some(position);
        let load = (!loaded.counted).then(|| (loaded.begun.clone(), loaded.ready.clone()));
        if load.is_some() {
            self.look_after(&mut state, unit, &loaded);
        }
        if let Some(loaded) = &mut state.loads[buffer] {
            loaded.counted = true;
        }
        let &Unit { layer, slice, .. } = &self.units()[unit];
        let bytes = if load.is_some() { self.units()[unit].bytes() } else { 0 };
        let (pinned, mapped) = (loaded.from == From::Memory, loaded.from == From::Pages);
        let fresh = LayerTimes::default();
        let mut times = LayerTimes { position, layer, slice, bytes, pinned, mapped, ..fresh };
        if load.is_some() {
            times.drive_bytes = state.times.add_routes(&loaded.routes).min(bytes);
            times.routes.clone_from(&loaded.routes);
        }
        state.times.enter(times, load, (requested, entered), pass);
        self.pump(&mut state)?;
        Ok(Step::Taken(Taken::new(self, position, unit)))
    }

    /// Rejects a stream that is being captured. A graph repeats its compute at every launch, but
    /// not the loads of layers.
    ///
    /// # Safety
    /// `compute` is alive and belongs to the GPU.
    pub(super) unsafe fn check_stream(&self, compute: CallerStream) -> Result<()> {
        // SAFETY: the caller's promise.
        let captures = unsafe { self.device.is_capturing(compute) };
        if captures.map_err(|source| self.compute_failed(compute, source))? {
            return Err(Error::bad_state(
                "the compute stream is being captured: capture only the compute of a layer",
            ));
        }
        Ok(())
    }

    /// Waits until the next layer is on the GPU; returns its buffer, or the step without a layer.
    fn wait_for_next<'a>(
        self: &'a Arc<Self>,
        mut state: Submit<'a>,
        go_on: &mut dyn FnMut() -> bool,
    ) -> Result<(Submit<'a>, ControlFlow<Step, usize>)> {
        loop {
            match self.look_for_next(&mut state)? {
                Next::Coming => {}
                // The caller that takes it may change it again.
                Next::There(buffer) if state.writes.of(buffer) => {}
                Next::There(buffer) if self.is_stale(&mut state, buffer) => continue,
                Next::There(buffer) => return Ok((state, Continue(buffer))),
                _ => return Ok((state, Break(Step::End))),
            }
            let (waited, timed_out) = state.wait(CHECKS_EVERY)?;
            state = waited;
            if timed_out {
                drop(state); // the callback may wait for a thread that wants the turn
                let answer = catch_unwind(AssertUnwindSafe(&mut *go_on));
                match answer {
                    Ok(true) => state = self.submit()?,
                    Ok(false) => return Ok((self.submit()?, Break(Step::Interrupted))),
                    Err(panic) => {
                        self.lock().taking = false;
                        resume_unwind(panic);
                    }
                }
            }
        }
    }

    fn look_for_next(&self, state: &mut Submit<'_>) -> Result<Next> {
        self.pump(state)?;
        state.check_open().map_err(|error| self.at_requested(state, error))?;
        let next = state.next_unit();
        if let Some(unit) = next
            && let Some(error) = state.failures.remove(&unit)
        {
            return Err(error.of_layer(Operation::Read, &self.units()[unit].name));
        }
        match (state.schedule.next(), next) {
            // There will be memory once it is written.
            (Next::NoRoom, _) if state.writes.is_any() => Ok(Next::Coming),
            (Next::NoRoom, Some(unit)) => {
                let (unit, count) = (&self.units()[unit], self.buffers);
                let reason = format!(
                    "there is no room for it: layers that are kept hold all of the {count} \
                     buffers on the GPU; release one, or give a larger `gpu_budget`"
                );
                Err(refuse(&unit.first, reason).of_layer(Operation::Read, &unit.name))
            }
            (found, _) => Ok(found),
        }
    }

    /// Starts all loads that are possible now.
    pub(super) fn pump(&self, state: &mut Submit<'_>) -> Result<()> {
        while !state.closing && state.lost.is_none() {
            let wanted = state.schedule.wanted();
            if wanted.is_some_and(|(_, unit)| state.failures.contains_key(&unit)) {
                return Ok(()); // report the failure before trying again
            }
            let Some(load) = state.schedule.next_load() else { return Ok(()) };
            // They stay in the list until copies are queued behind them.
            let frees = state.frees[load.buffer].clone();
            let store = state.store()?;
            let copied =
                state.unlocked(|| self.copy_kept(&store, load, (self.memory_lane, &frees)));
            match copied {
                Ok(Some(loaded)) => self.arrived(state, load, loaded),
                Ok(None) => {
                    let (seat, since, unpinned) = (self.seat, Instant::now(), false);
                    self.group.request(Job { seat, load, frees, since, unpinned });
                }
                Err(source) => {
                    let unit = &self.units()[load.unit];
                    let place = Some(Box::new(unit.first.file.place(unit.first.offset, unit.len)));
                    let (operation, device) = (Operation::Copy, self.device.id());
                    let error = Error::Device { operation, device, len: unit.len, place, source };
                    state.schedule.failed(load.buffer);
                    state.lost = Some(error.clone());
                    return Err(error);
                }
            }
        }
        Ok(())
    }

    /// Queues the copies of a unit from its host copy on a lane, if its bytes are loaded there.
    pub(super) fn copy_kept(
        &self,
        store: &Store,
        load: Load,
        (lane, frees): (Stream, &[Mark]),
    ) -> DeviceResult<Option<Loaded>> {
        // This reference keeps the pages from being unpinned.
        let home = self.group.homes().filled(load.unit).cloned();
        let Some(home) = home else { return Ok(None) };
        self.wait_for(lane, frees)?;
        let begun = self.marks.put(lane)?;
        for copies in home.copies_to(store.buffers[load.buffer].address()) {
            // SAFETY: pinned memory belongs to the group, and nothing writes to it any more. This
            // process neither reads nor writes pinned pages here. The buffer is as large as the
            // largest unit. All stay alive until the lane is idle.
            unsafe { self.device.copy_batch_to_device(lane, &copies) }?;
        }
        let ready = self.marks.put(lane)?;
        let of = |pages: &Pages| FromPages { home: Arc::downgrade(&home), stamps: pages.stamps() };
        let pages = home.pages().map(of);
        let from = if pages.is_some() { From::Pages } else { From::Memory };
        let (routes, counted) = (Vec::new(), false);
        Ok(Some(Loaded { begun, ready, from, pages, routes, counted }))
    }

    /// Whether a buffer was copied from pages of files that have changed since, and so must be
    /// loaded again.
    fn is_stale(self: &Arc<Self>, state: &mut Submit<'_>, buffer: usize) -> bool {
        let Some(load) = state.loads[buffer].clone() else { return false };
        let Some(unit) = state.next_unit().filter(|_| load.from == From::Pages && !load.counted)
        else {
            return false;
        };
        // A second stream may have pinned the file's new pages since.
        let is_there = |home: &Arc<PinnedUnit>| {
            load.pages.as_ref().is_some_and(|it| std::ptr::eq(it.home.as_ptr(), Arc::as_ptr(home)))
        };
        let home = self.group.home(unit);
        let is_current = state.unlocked(|| {
            home.as_ref().is_some_and(|home| home.pages().is_some_and(Pages::is_current)) //
        });
        if is_current && home.as_ref().is_some_and(is_there) {
            return false;
        }
        if !is_current {
            self.group.let_pages_go(unit);
        }
        state.schedule.failed(buffer);
        state.loads[buffer] = None;
        true
    }

    /// The unit that was taken at `position`, for an operation with it.
    ///
    /// # Errors
    /// `unit` was released.
    pub(super) fn held(
        &self,
        state: &State,
        (position, unit): (u64, usize),
        operation: Operation,
    ) -> Result<Held> {
        state.held(position).ok_or_else(|| released(operation, &self.units()[unit].name))
    }

    /// Releases a unit that was taken at `position`.
    ///
    /// # Safety
    /// As for [`LayerStream::next`](super::LayerStream::next).
    pub(super) unsafe fn release(
        &self,
        (position, unit): (u64, usize),
        compute: CallerStream,
    ) -> Result<()> {
        let mut state = self.submit()?;
        self.held(&state, (position, unit), Operation::Release)?;
        // SAFETY: the caller's promise.
        let freed = state.unlocked(|| unsafe { self.mark_checked(compute) })?;
        self.release_locked(&mut state, position, freed)?;
        self.pump(&mut state)
    }

    /// Releases the last taken unit, unless it is kept, when the next one is requested after a
    /// mark.
    ///
    /// # Safety
    /// As for [`LayerStream::next`](super::LayerStream::next).
    unsafe fn release_current(
        &self,
        state: &mut Submit<'_>,
        compute: CallerStream,
        requested: &Mark,
    ) -> Result<()> {
        let Some(current) = state.current else { return Ok(()) };
        // Its work was queued on the stream for which it was taken, which may be another one.
        let of_it = state.held(current).expect("what is current is held").compute;
        // For the same stream a mark serves both. A driver's queue has a limited length, and a
        // caller that fills it busy-waits there.
        let freed = if of_it == compute {
            requested.clone()
        } else {
            // SAFETY: the caller's promise.
            state.unlocked(|| unsafe { self.mark_checked(of_it) })?
        };
        self.release_locked(state, current, freed)
    }

    /// Records a mark behind the work that a caller queued on a stream that is not captured.
    ///
    /// # Safety
    /// As for [`LayerStream::next`](super::LayerStream::next).
    unsafe fn mark_checked(&self, compute: CallerStream) -> Result<Mark> {
        // SAFETY: the caller's promise.
        unsafe {
            self.check_stream(compute)?;
            self.marks.put_on(compute).map_err(|source| self.compute_failed(compute, source))
        }
    }

    /// Releases the unit taken at `position`; its use ends before the mark.
    fn release_locked(&self, state: &mut Submit<'_>, position: u64, freed: Mark) -> Result<()> {
        let Held { buffer, .. } = state.held(position).expect("just seen");
        let len = state.store()?.buffers[buffer].len();
        let failed = |source| self.failed(len, source);
        // Drop signaled marks. For a layer that stays, nothing else would.
        let mut frees = state.frees[buffer].clone();
        state.unlocked(|| forget_passed(&mut frees));
        frees.push(freed.clone());
        state.frees[buffer] = frees;
        let mut others = state.taken.iter().filter(|held| held.position != position);
        let is_unused = others.all(|held| held.buffer != buffer);
        if is_unused {
            self.fill_unused(state, buffer).map_err(failed)?;
        }
        state.taken.retain(|held| held.position != position);
        state.current = state.current.filter(|&current| current != position);
        state.schedule.release(buffer);
        state.times.leave(position, freed);
        Ok(())
    }

    /// In checked mode, fills a buffer that no caller holds with NaN, unless it is being written
    /// back. The fill is queued behind everything that copies to it or uses it.
    pub(super) fn fill_unused(&self, state: &mut Submit<'_>, buffer: usize) -> DeviceResult<()> {
        let goes_on = !state.closing && state.lost.is_none();
        let Some(store) = state.store.clone().filter(|_| self.checks && goes_on) else {
            return Ok(());
        };
        if state.writes.of(buffer) {
            return Ok(()); // the writer calls this again when it is done
        }
        let memory = &store.buffers[buffer];
        let frees = state.frees[buffer].clone();
        let fill = || {
            self.wait_for(self.memory_lane, &frees)?;
            // SAFETY: the buffer stays allocated until the lane is idle.
            unsafe { self.device.fill(self.memory_lane, memory.address(), NAN, memory.len()) }?;
            self.marks.put(self.memory_lane)
        };
        let filled = state.unlocked(fill)?;
        state.frees[buffer] = vec![filled];
        state.schedule.failed(buffer); // its bytes are overwritten
        Ok(())
    }

    /// Starts a pass: its first layer is taken next. This matters if the previous pass was taken to
    /// its last layer and its end was not requested.
    pub(super) fn begin_pass(&self) {
        let mut state = self.lock();
        let (pass, position) = (state.schedule.sequence().pass_len(), state.schedule.position());
        state.turned |= pass > 0 && position > 0 && position.is_multiple_of(pass);
    }

    /// Restarts the order at the first layer of a pass. Layers loaded ahead are dropped, or used
    /// where they are.
    pub(super) fn rewind(&self) -> Result<()> {
        let mut state = self.submit()?;
        state.check()?;
        if state.schedule.sequence().is_appended() {
            let reason = "the order of the layer stream is given while it runs, so there is no \
                          first layer";
            return Err(Error::bad_state(reason));
        }
        state.schedule.rewind();
        state.turned = true;
        self.pump(&mut state)
    }

    /// Keeps a unit that was taken at `position` until it is released explicitly.
    pub(super) fn keep(&self, (position, unit): (u64, usize)) -> Result<()> {
        let mut state = self.submit()?;
        state.check_open()?;
        let Held { buffer, .. } = self.held(&state, (position, unit), Operation::Use)?;
        state.schedule.keep(buffer);
        state.current = state.current.filter(|&current| current != position);
        Ok(())
    }

    /// Shares part of the memory of a unit that was taken at `position`.
    pub(super) fn lend(
        &self,
        (position, unit): (u64, usize),
        range: Range<u64>,
        alive: &Arc<()>,
    ) -> Result<(Buffer, Mark)> {
        let mut state = self.lock();
        let Held { buffer, .. } = self.held(&state, (position, unit), Operation::Use)?;
        state.exports.retain(|(_, export)| export.strong_count() > 0);
        state.exports.push((unit, Arc::downgrade(alive)));
        let ready = state.loads[buffer].as_ref().expect("it was brought").ready.clone();
        let memory = &state.store()?.buffers[buffer];
        // SAFETY: it is memory of a GPU, never a slice.
        Ok((unsafe { memory.share(range.start, range.end - range.start) }, ready))
    }
}
