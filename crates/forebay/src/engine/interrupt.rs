//! Blocking calls that ask now and then whether to go on, for callers whom a signal is to reach.
//!
//! Such a caller never waits in a file itself: it helps with what is in memory, and leaves the rest
//! to the engine's threads. Where it is told to stop the transfer is cancelled, and what does not
//! drain soon keeps its share of the memory.

#![expect(unsafe_code, reason = "looks at streams of others")]

use std::sync::Arc;
use std::time::Duration;

use super::Engine;
use super::file::{File, RequestOptions};
use super::many::{ManyOutcome, Piece};
use crate::error::{Error, Operation, Result};
use crate::gpu::{CallerStream, DeviceError, DeviceId};
use crate::memory::Buffer;
use crate::queue::Direction;
use crate::transfer::{Outcome, State};

/// Time between two questions.
const ASKS_EVERY: Duration = Duration::from_millis(50);

/// How long a call that is to stop waits for what is in flight.
const DRAIN_MAX: Duration = Duration::from_secs(1);

/// Time between two looks at a stream: what is queued there usually takes longer.
const NAPS: [Duration; 2] = [Duration::from_micros(10), Duration::from_millis(1)];

/// What a waiting caller is asked.
pub(super) type GoOn<'a> = &'a mut dyn FnMut() -> bool;

impl File {
    /// As [`read_with`](Self::read_with), but asks `go_on` some twenty times a second. Where that
    /// says no the transfer is cancelled, and the call ends a second later at the latest: what is
    /// in flight then keeps the memory, and whatever it was borrowed from.
    ///
    /// # Errors
    /// As [`read_with`](Self::read_with); [`Error::Cancelled`] where it was to stop, or
    /// [`Error::TimedOut`] where it did not.
    pub fn read_while(
        &self,
        offset: u64,
        target: &mut Buffer,
        options: &RequestOptions,
        go_on: &mut dyn FnMut() -> bool,
    ) -> Result<Outcome> {
        self.run_while(Direction::Read, offset, target, options, go_on)
    }

    /// As [`read_whole`](Self::read_whole), with the questions of
    /// [`read_while`](Self::read_while).
    ///
    /// # Errors
    /// As [`read_whole`](Self::read_whole) and [`read_while`](Self::read_while).
    pub fn read_whole_while(
        &self,
        device: Option<DeviceId>,
        go_on: &mut dyn FnMut() -> bool,
    ) -> Result<(Buffer, Outcome)> {
        self.read_whole_by(device, &mut |buffer, options| {
            self.read_while(0, buffer, options, &mut *go_on)
        })
    }

    /// As [`write_with`](Self::write_with), with the questions of
    /// [`read_while`](Self::read_while).
    ///
    /// # Errors
    /// As [`write_with`](Self::write_with) and [`read_while`](Self::read_while).
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
        if let Some(done) = self.engine().move_small_traced(&call) {
            return done;
        }
        let state = self.engine().start(&call, None)?;
        self.engine().finish_while(&state, go_on)
    }
}

impl Engine {
    /// As [`read_many`](Self::read_many), with the questions of [`File::read_while`].
    ///
    /// # Errors
    /// As [`read_many`](Self::read_many) and [`File::read_while`].
    pub fn read_many_while(
        &self,
        pieces: &[Piece<'_>],
        targets: &mut [Buffer],
        options: &RequestOptions,
        go_on: &mut dyn FnMut() -> bool,
    ) -> Result<ManyOutcome> {
        self.run_many_while(Direction::Read, pieces, targets, options, go_on)
    }

    /// As [`write_many`](Self::write_many), with the questions of [`File::read_while`].
    ///
    /// # Errors
    /// As [`write_many`](Self::write_many) and [`File::read_while`].
    pub fn write_many_while(
        &self,
        pieces: &[Piece<'_>],
        sources: &[Buffer],
        options: &RequestOptions,
        go_on: &mut dyn FnMut() -> bool,
    ) -> Result<ManyOutcome> {
        self.run_many_while(Direction::Write, pieces, sources, options, go_on)
    }

    /// Waits until all is done that is queued on a caller's stream now, and asks meanwhile.
    ///
    /// # Safety
    /// `stream` is alive and one of `device`.
    ///
    /// # Errors
    /// [`Error::BadOption`] for a stream that is being captured; [`Error::NoDevice`] for a GPU that
    /// was not brought in; [`Error::Device`], also where the wait was to stop.
    pub unsafe fn wait_for_stream(
        &self,
        device: DeviceId,
        stream: CallerStream,
        go_on: &mut dyn FnMut() -> bool,
    ) -> Result<()> {
        self.check(Operation::Wait)?;
        let known = self.known(device).ok_or_else(|| Error::NoDevice {
            wanted: device.to_string(),
            reason: "it was not brought into this engine".into(),
        })?;
        let failed = |source| {
            let (operation, len) = (Operation::Wait, 0);
            Error::Device { operation, device, len, place: None, source }
        };
        // SAFETY: the caller's promise.
        if unsafe { known.is_capturing(stream) }.map_err(failed)? {
            let (name, value) = ("stream".into(), format!("{:#x}", stream.0));
            let expected = "a stream that is not being captured: end the capture first".into();
            return Err(Error::BadOption { name, value, expected });
        }
        let event = known.create_event().map_err(failed)?;
        let mut wait = || {
            // SAFETY: the caller's promise.
            unsafe { known.record_on_caller(event, stream) }?;
            let mut nap = NAPS[0];
            while !known.is_done(event)? {
                std::thread::sleep(nap);
                nap = (nap * 5 / 4).min(NAPS[1]);
                if nap == NAPS[1] && !go_on() {
                    return Err(interrupted());
                }
            }
            Ok(())
        };
        let waited = wait();
        let destroyed = known.destroy_event(event);
        waited.and(destroyed).map_err(failed)
    }

    /// Helps with a transfer and waits for it, as long as the caller is to go on.
    pub(super) fn finish_while(&self, state: &Arc<State>, go_on: GoOn<'_>) -> Result<Outcome> {
        state.spare_caller();
        self.help(state);
        if state.wait_near_end(ASKS_EVERY, go_on) {
            return state.wait().0;
        }
        self.cancel(state);
        match (state.place(), state.wait_for(DRAIN_MAX)) {
            (Some(place), None) => {
                Err(Error::TimedOut { place, bound: DRAIN_MAX, done: state.done() })
            }
            // It has ended meanwhile, or does just now.
            _ => state.wait().0,
        }
    }
}

/// What a wait for a stream says that was to stop.
fn interrupted() -> DeviceError {
    let detail = "the wait was given up".to_owned();
    DeviceError { call: "wait", code: -1, name: "INTERRUPTED".into(), detail }
}
