//! Events recorded in streams, pooled for reuse, and the time between them.

#![expect(unsafe_code, reason = "marks streams of others")]

use std::sync::Arc;
use std::thread;
use std::time::Duration;

use forebay::gpu::{CallerStream, Device, DeviceError};
use forebay::internal::{DeviceResult, Event, Stream};
use forebay::{Error, Operation};
use forebay_base::lock::Lock;

/// Polling interval while a thread waits for a mark.
const NAP: Duration = Duration::from_micros(50);

/// Polls between two calls of `go_on`: about 50 ms.
const CHECKS_AFTER: u64 = 500;

/// Pool of a GPU's events that are not in use.
#[derive(Debug)]
pub(super) struct Marks {
    device: Arc<dyn Device>,
    idle: Lock<Vec<Event>>,
}

/// A recorded event of a stream that can report when it was signaled.
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

    /// Records a mark behind the work queued on our stream up to now.
    pub(super) fn put(self: &Arc<Self>, stream: Stream) -> DeviceResult<Mark> {
        let mark = self.mark()?;
        self.device.record(mark.event(), stream)?;
        Ok(mark)
    }

    /// Records a mark behind the work queued on a caller's stream up to now.
    ///
    /// # Safety
    /// The stream is alive and belongs to the GPU.
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

    /// The error for a failure of the mark, or of work before it.
    pub(super) fn failed(&self, source: DeviceError) -> Error {
        Error::of_device(Operation::Copy, self.0.of.device.id(), 0, source)
    }

    /// Whether all work before it is done.
    pub(super) fn is_passed(&self) -> DeviceResult<bool> {
        self.0.of.device.is_done(self.0.event)
    }

    /// Makes work queued on a caller's stream from now on wait for it.
    ///
    /// # Safety
    /// The stream is alive and belongs to the GPU.
    pub(super) unsafe fn hold(&self, stream: CallerStream) -> DeviceResult<()> {
        // SAFETY: the caller's promise.
        unsafe { self.0.of.device.hold_caller(stream, self.0.event) }
    }

    /// Waits until it is signaled, while `go_on`, called periodically, returns true. Returns
    /// whether it is.
    pub(super) fn wait_while(&self, go_on: &mut dyn FnMut() -> bool) -> DeviceResult<bool> {
        let mut looks = 0_u64;
        while !self.is_passed()? {
            looks += 1;
            if looks.is_multiple_of(CHECKS_AFTER) && !go_on() {
                return Ok(false);
            }
            thread::sleep(NAP);
        }
        Ok(true)
    }

    /// The time from `earlier` to this mark, both signaled; zero if the GPU does not report it.
    pub(super) fn since(&self, earlier: &Self) -> Duration {
        self.0.of.device.elapsed(earlier.0.event, self.0.event).unwrap_or_default()
    }
}

/// Drops signaled marks, the oldest first, up to the first that is not signaled.
pub(super) fn forget_passed(marks: &mut Vec<Mark>) {
    let passed = marks.iter().take_while(|mark| matches!(mark.is_passed(), Ok(true))).count();
    marks.drain(..passed);
}

impl Drop for Used {
    fn drop(&mut self) {
        if self.of.device.is_of_this_process() {
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
