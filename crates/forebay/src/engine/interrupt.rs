//! Blocking calls that periodically check whether to continue, for callers that must react to
//! signals.
//!
//! Such a caller never waits for a drive or server itself: it helps with data in memory and leaves
//! the rest to the engine's threads. If it has to stop, the transfer is cancelled. Ops that do not
//! drain soon keep their share of the memory, which must not be used until then.
//!
//! The steps before the first byte are not interrupted: querying the file's size, reserving space,
//! allocating memory. Neither is a small write through the page cache of a local file system, which
//! the caller does itself as in [`File::write`].

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::Engine;
use super::file::File;
use super::lent::{GoOn, OnUnwind};
use super::many::{ManyOutcome, Piece};
use super::raw::small::First;
use super::request::RequestOptions;
use super::start::Call;
use crate::error::{Error, Result};
use crate::gpu::DeviceId;
use crate::memory::Buffer;
use crate::plan::Direction;
use crate::transfer::{Outcome, State};

/// Interval between two calls of `go_on`.
pub(super) const CHECKS_EVERY: Duration = Duration::from_millis(50);

/// How long a stopped call waits for ops in flight.
pub(super) const DRAIN_MAX: Duration = Duration::from_secs(1);

impl File {
    /// Like [`read_with`](Self::read_with), but calls `go_on` about 20 times a second. If it
    /// returns false or panics, the transfer is cancelled, and the call ends within a second; only
    /// a small copy to or from a GPU is waited for. Ops in flight then keep the memory alive,
    /// and the object that it was borrowed from. Until they have drained, every call rejects the
    /// memory and none can read it.
    ///
    /// # Errors
    /// As for [`read_with`](Self::read_with). [`Error::Cancelled`] if it was stopped, or
    /// [`Error::TimedOut`] if ops are still in flight. The transfer may also have ended before the
    /// cancel.
    pub fn read_while(
        &self,
        offset: u64,
        target: &mut Buffer,
        options: &RequestOptions,
        go_on: &mut dyn FnMut() -> bool,
    ) -> Result<Outcome> {
        self.run_while(Direction::Read, offset, target, options, go_on)
    }

    /// Like [`read_whole`](Self::read_whole), with the callback of
    /// [`read_while`](Self::read_while).
    ///
    /// # Errors
    /// As for [`read_whole`](Self::read_whole) and [`read_while`](Self::read_while).
    pub fn read_whole_while(
        &self,
        device: Option<DeviceId>,
        go_on: &mut dyn FnMut() -> bool,
    ) -> Result<(Buffer, Outcome)> {
        self.read_whole_by(device, &mut |buffer, options| {
            self.read_while(0, buffer, options, &mut *go_on)
        })
    }

    /// Like [`write_with`](Self::write_with), with the callback of
    /// [`read_while`](Self::read_while).
    ///
    /// # Errors
    /// As for [`write_with`](Self::write_with) and [`read_while`](Self::read_while).
    pub fn write_while(
        &self,
        offset: u64,
        source: &Buffer,
        options: &RequestOptions,
        go_on: &mut dyn FnMut() -> bool,
    ) -> Result<Outcome> {
        self.run_while(Direction::Write, offset, source, options, go_on)
    }

    fn run_while(
        &self,
        direction: Direction,
        offset: u64,
        memory: &Buffer,
        options: &RequestOptions,
        go_on: GoOn<'_>,
    ) -> Result<Outcome> {
        let call = self.call(direction, offset, memory, options)?;
        let call = Call { may_wait: self.handle.is_memory(), ..call };
        let has_server = self.handle.opens_slowly();
        if !has_server && let Some(done) = self.engine.move_small(&call) {
            return done;
        }
        let state = match self.engine.start_small(&call, &mut None, First::Prepares) {
            Some(state) => state,
            None => self.engine.start(&call, None)?,
        };
        self.engine.finish_while(&state, has_server, go_on)
    }
}

impl Engine {
    /// Like [`read_many`](Self::read_many), with the callback of [`File::read_while`].
    ///
    /// # Errors
    /// As for [`read_many`](Self::read_many) and [`File::read_while`].
    pub fn read_many_while(
        &self,
        pieces: &[Piece<'_>],
        targets: &mut [Buffer],
        options: &RequestOptions,
        go_on: &mut dyn FnMut() -> bool,
    ) -> Result<ManyOutcome> {
        self.run_many_while(Direction::Read, pieces, targets, options, go_on)
    }

    /// Like [`write_many`](Self::write_many), with the callback of [`File::read_while`].
    ///
    /// # Errors
    /// As for [`write_many`](Self::write_many) and [`File::read_while`].
    pub fn write_many_while(
        &self,
        pieces: &[Piece<'_>],
        sources: &[Buffer],
        options: &RequestOptions,
        go_on: &mut dyn FnMut() -> bool,
    ) -> Result<ManyOutcome> {
        self.run_many_while(Direction::Write, pieces, sources, options, go_on)
    }

    /// Helps with a transfer and waits for it, while the caller is to continue. `has_server`: even
    /// data in memory may need a server.
    pub(super) fn finish_while(
        &self,
        state: &Arc<State>,
        has_server: bool,
        go_on: GoOn<'_>,
    ) -> Result<Outcome> {
        let mut panic = None;
        // The transfer uses this caller's memory, so the call cannot return while ops are in
        // flight.
        let mut go_on = || match catch_unwind(AssertUnwindSafe(&mut *go_on)) {
            Ok(goes_on) => goes_on,
            Err(payload) => {
                panic = Some(payload);
                false
            }
        };
        let guard = OnUnwind::new(self, Some(state));
        self.watch(state);
        let goes_on = has_server || self.help_while(state, &mut go_on);
        let ended = if goes_on && state.wait_near_end(CHECKS_EVERY, &mut go_on) {
            state.wait().0
        } else {
            if goes_on {
                self.cancel(state);
            }
            Self::drain(state, DRAIN_MAX)
        };
        drop(guard);
        match panic {
            Some(payload) => resume_unwind(payload),
            None => ended,
        }
    }

    /// Helps with data in memory; returns whether the caller is to continue.
    fn help_while(&self, state: &Arc<State>, go_on: GoOn<'_>) -> bool {
        state.spare_caller();
        let (mut checked, mut goes_on) = (Instant::now(), true);
        self.help(state, &mut || {
            if goes_on && checked.elapsed() >= CHECKS_EVERY {
                goes_on = go_on();
                checked = Instant::now();
                if !goes_on {
                    self.cancel(state); // so that there is nothing more to help with
                }
            }
        });
        goes_on
    }

    /// Waits briefly for the ops in flight of a cancelled transfer.
    pub(super) fn drain(state: &Arc<State>, bound: Duration) -> Result<Outcome> {
        match (state.place(), state.wait_for(bound)) {
            (Some(place), None) => {
                state.set_detached();
                Err(Error::TimedOut { place, bound, done: state.done() })
            }
            // It has ended by now, or is just ending.
            _ => state.wait().0,
        }
    }
}
