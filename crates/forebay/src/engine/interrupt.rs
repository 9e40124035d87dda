//! Blocking calls that ask now and then whether to go on, for callers whom a signal is to reach.
//!
//! Such a caller waits for no drive and no server: it helps with what is in memory, and leaves the
//! rest to the engine's threads. Where it is told to stop the transfer is cancelled, and what does
//! not drain soon keeps its share of the memory, which nobody may use until then.
//!
//! What comes before the first byte is not interrupted: the kernel is asked for the file's size,
//! room is reserved, memory is made. Nor is a small write through the page cache of a local file
//! system, which the caller makes itself as [`File::write`] does.

#![expect(unsafe_code, reason = "looks at streams of others")]

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::Engine;
use super::file::{File, RequestOptions};
use super::lent::OnUnwind;
use super::many::{ManyOutcome, Piece};
use super::start::Call;
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
    /// says no, or panics, the transfer is cancelled, and the call ends a second later at the
    /// latest: what is in flight then keeps the memory, and whatever it was borrowed from. Until
    /// that has drained the memory is refused by every call, and seen by none.
    ///
    /// # Errors
    /// As [`read_with`](Self::read_with); [`Error::Cancelled`] where it was to stop and has, or
    /// [`Error::TimedOut`] where something is in flight still. It may also have ended meanwhile.
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
        let call = Call { may_wait: self.handle().is_memory(), ..call };
        let has_server = self.handle().opens_slowly();
        if !has_server && let Some(done) = self.engine().move_small_traced(&call) {
            return done;
        }
        let state = self.engine().start(&call, None)?;
        self.engine().finish_while(&state, has_server, go_on)
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

    /// Waits until all is done that is queued on a caller's stream now, and asks meanwhile, some
    /// twenty times a second. What is queued there goes on, however the wait ends.
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
            let (mut nap, mut asked) = (NAPS[0], Instant::now());
            while !known.is_done(event)? {
                std::thread::sleep(nap);
                nap = (nap * 5 / 4).min(NAPS[1]);
                if asked.elapsed() >= ASKS_EVERY {
                    if !go_on() {
                        return Err(interrupted());
                    }
                    asked = Instant::now();
                }
            }
            Ok(())
        };
        let waited = wait();
        let destroyed = known.destroy_event(event);
        waited.and(destroyed).map_err(failed)
    }

    /// Helps with a transfer and waits for it, as long as the caller is to go on. `has_server`: a
    /// server may be waited for also for what is in memory.
    pub(super) fn finish_while(
        &self,
        state: &Arc<State>,
        has_server: bool,
        go_on: GoOn<'_>,
    ) -> Result<Outcome> {
        let mut panic = None;
        // The transfer has this caller's memory: there is no way out past what is in flight.
        let mut go_on = || match catch_unwind(AssertUnwindSafe(&mut *go_on)) {
            Ok(goes_on) => goes_on,
            Err(said) => {
                panic = Some(said);
                false
            }
        };
        let guard = OnUnwind::new(self, Some(state));
        let goes_on = has_server || self.help_while(state, &mut go_on);
        let ended = if goes_on && state.wait_near_end(ASKS_EVERY, &mut go_on) {
            state.wait().0
        } else {
            if goes_on {
                self.cancel(state);
            }
            Self::drain(state)
        };
        drop(guard);
        match panic {
            Some(said) => resume_unwind(said),
            None => ended,
        }
    }

    /// Helps with what is in memory; whether the caller is to go on.
    fn help_while(&self, state: &Arc<State>, go_on: GoOn<'_>) -> bool {
        state.spare_caller();
        let (mut asked, mut goes_on) = (Instant::now(), true);
        self.help_and(state, &mut || {
            if goes_on && asked.elapsed() >= ASKS_EVERY {
                goes_on = go_on();
                asked = Instant::now();
                if !goes_on {
                    self.cancel(state); // so that there is nothing more to help with
                }
            }
        });
        goes_on
    }

    /// Waits for what is in flight of a transfer that was cancelled, but not for long.
    fn drain(state: &Arc<State>) -> Result<Outcome> {
        match (state.place(), state.wait_for(DRAIN_MAX)) {
            (Some(place), None) => {
                state.set_adrift();
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
