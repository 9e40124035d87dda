//! Marks in streams, used again when nobody needs them any more, and the time between them.

#![expect(unsafe_code, reason = "marks streams of others")]

use std::sync::Arc;
use std::thread;
use std::time::Duration;

use super::shared::device_failed;
use crate::error::{Error, Operation};
use crate::gpu::{CallerStream, Device, DeviceError, DeviceResult, Event, Stream};
use crate::lock::Lock;

/// Time between two looks at a mark that somebody waits for.
const NAP: Duration = Duration::from_micros(50);

/// Looks at it between two questions whether to go on: some 50 ms.
const ASKS_AFTER: u64 = 500;

/// Events of a GPU that are not in use.
#[derive(Debug)]
pub(super) struct Marks {
    device: Arc<dyn Device>,
    idle: Lock<Vec<Event>>,
}

/// A mark in a stream, which knows when it was passed.
#[derive(Debug, Clone)]
pub(super) struct Mark(Arc<Used>);

#[derive(Debug)]
struct Used {
    event: Event,
    of: Arc<Marks>,
}

impl Marks {
    pub(super) fn new(device: &Arc<dyn Device>) -> Arc<Self> {
        Arc::new(Self { device: Arc::clone(device), idle: Lock::default() })
    }

    fn mark(self: &Arc<Self>) -> DeviceResult<Mark> {
        let idle = self.idle.lock().pop();
        let event = idle.map_or_else(|| self.device.create_timer(), Ok)?;
        Ok(Mark(Arc::new(Used { event, of: Arc::clone(self) })))
    }

    /// Marks what is queued on a stream of ours now.
    pub(super) fn put(self: &Arc<Self>, stream: Stream) -> DeviceResult<Mark> {
        let mark = self.mark()?;
        self.device.record(mark.event(), stream)?;
        Ok(mark)
    }

    /// Marks what is queued on a caller's stream now.
    ///
    /// # Safety
    /// The stream is alive, and one of the GPU.
    pub(super) unsafe fn put_on(self: &Arc<Self>, stream: CallerStream) -> DeviceResult<Mark> {
        let mark = self.mark()?;
        // SAFETY: the caller's promise.
        unsafe { self.device.record_on_caller(mark.event(), stream) }?;
        Ok(mark)
    }
}

impl Mark {
    pub(super) fn event(&self) -> Event {
        self.0.event
    }

    /// What went wrong with it, or with what is before it.
    pub(super) fn failed(&self, source: DeviceError) -> Error {
        device_failed(&self.0.of.device, Operation::Copy, 0, source)
    }

    /// Whether all before it is done.
    pub(super) fn is_passed(&self) -> DeviceResult<bool> {
        self.0.of.device.is_done(self.0.event)
    }

    /// Makes what is queued on a caller's stream from now on wait for it.
    ///
    /// # Safety
    /// The stream is alive, and one of the GPU.
    pub(super) unsafe fn hold(&self, stream: CallerStream) -> DeviceResult<()> {
        // SAFETY: the caller's promise.
        unsafe { self.0.of.device.hold_caller(stream, self.0.event) }
    }

    /// Waits until it is passed, as long as `go_on`, asked now and then, says so; whether it is.
    pub(super) fn wait_while(&self, go_on: &mut dyn FnMut() -> bool) -> DeviceResult<bool> {
        let mut looks = 0_u64;
        while !self.is_passed()? {
            looks += 1;
            if looks.is_multiple_of(ASKS_AFTER) && !go_on() {
                return Ok(false);
            }
            thread::sleep(NAP);
        }
        Ok(true)
    }

    /// The time from `earlier` to it, both of which are passed; none where the GPU does not say.
    pub(super) fn since(&self, earlier: &Self) -> Duration {
        self.0.of.device.elapsed(earlier.0.event, self.0.event).unwrap_or_default()
    }
}

/// Lets go of marks that are passed, the oldest first, up to the first that is not.
pub(super) fn forget_passed(marks: &mut Vec<Mark>) {
    let passed = marks.iter().take_while(|mark| matches!(mark.is_passed(), Ok(true))).count();
    marks.drain(..passed);
}

impl Drop for Used {
    fn drop(&mut self) {
        if self.of.device.home().is_here() {
            self.of.idle.lock().push(self.event);
        }
    }
}

impl Drop for Marks {
    fn drop(&mut self) {
        let idle = self.idle.get_mut();
        idle.drain(..).for_each(|event| drop(self.device.destroy_event(event)));
    }
}
