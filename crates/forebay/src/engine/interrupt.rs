//! Blocking calls that periodically check whether to continue, for callers that must react to
//! signals.
//!
//! Such a caller never waits for a drive or server itself: it helps with data in memory and leaves
//! the rest to the engine's threads. If it has to stop, the transfer is cancelled. Ops that do not
//! drain soon keep their share of a buffer, which must not be used until then; other memory is
//! borrowed, so the call waits for them.
//!
//! The steps before the first byte are not interrupted: querying the file's size, reserving space,
//! allocating memory. Neither is a small write through the page cache of a local file system, which
//! the caller does itself as in [`File::run`].

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::Engine;
use super::file::File;
use super::small::Setup;
use super::start::Call;
use super::unwind::{GoOn, OnUnwind};
use crate::error::{Error, Result};
use crate::transfer::{Outcome, State};

/// Interval between two calls of `go_on`.
pub(super) const CHECKS_EVERY: Duration = Duration::from_millis(50);

/// How long a stopped call waits for ops in flight.
pub(super) const DRAIN_MAX: Duration = Duration::from_secs(1);

impl File {
    pub(super) fn run_while(&self, call: Call<'_>, go_on: GoOn<'_>) -> Result<Outcome> {
        let mut call = Call { may_wait: self.handle.is_memory(), ..call };
        let _caller = self.engine.note_caller(&mut call);
        let has_server = self.handle.opens_slowly();
        if !has_server && let Some(done) = self.engine.move_small(&call) {
            return done;
        }
        let state = match self.engine.start_small(&call, &mut None, Setup::Allowed) {
            Some(state) => state,
            None => self.engine.start(&call, None)?,
        };
        self.engine.finish_while(&state, call.span.keep.is_some(), has_server, go_on)
    }
}

impl Engine {
    /// Helps with a transfer and waits for it, while the caller is to continue. `keeps`: the
    /// transfer keeps its memory alive by itself. `has_server`: even data in memory may need a
    /// server.
    pub(super) fn finish_while(
        &self,
        state: &Arc<State>,
        keeps: bool,
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
        let guard = match keeps {
            true => OnUnwind::new(self, Some(state)),
            false => OnUnwind::drained(self, state),
        };
        self.watch(state);
        let goes_on = has_server || self.help_while(state, &mut go_on);
        let ended = if goes_on && state.wait_near_end(CHECKS_EVERY, &mut go_on) {
            state.wait().0
        } else {
            if goes_on {
                self.cancel(state);
            }
            if keeps { Self::drain(state, DRAIN_MAX) } else { state.wait().0 }
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
