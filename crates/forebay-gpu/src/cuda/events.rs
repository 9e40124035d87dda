//! Events: marks in streams, with or without a timestamp.

#![expect(unsafe_code, reason = "calls the driver")]

use std::ffi::c_uint;
use std::ptr;
use std::time::Duration;

use super::device::{CudaDevice, EventKind};
use super::table::nonsense;
use crate::{DeviceResult, Event};

impl CudaDevice {
    /// Creates an event.
    pub(super) fn new_event(&self, kind: EventKind) -> DeviceResult<Event> {
        let _current = self.enter()?;
        let mut raw = ptr::null_mut();
        // SAFETY: the output outlives the call.
        let status = unsafe { (self.cuda.event_create)(&raw mut raw, kind as c_uint) };
        self.check("cuEventCreate", status)?;
        if raw.is_null() {
            return Err(nonsense("cuEventCreate", "gives no event"));
        }
        self.events.insert(raw).map(Event).ok_or_else(|| {
            // SAFETY: it was just created, and no other code has it.
            let _ = unsafe { (self.cuda.event_destroy)(raw) };
            self.too_many("cuEventCreate", "events")
        })
    }

    /// The time between two completed timers.
    pub(super) fn time_between(&self, from: Event, to: Event) -> DeviceResult<Duration> {
        let call = "cuEventElapsedTime";
        let (from, to) = (self.event(call, from)?, self.event(call, to)?);
        let _current = self.enter()?;
        let mut milliseconds = 0.0_f32;
        // SAFETY: both are alive, and the output outlives the call.
        let status =
            unsafe { (self.cuda.event_elapsed_time)(&raw mut milliseconds, from.raw, to.raw) };
        self.check(call, status)?;
        // Events of two streams may complete in the opposite order, which gives a negative time.
        Duration::try_from_secs_f64(f64::from(milliseconds.max(0.0)) / 1e3)
            .map_err(|_| nonsense(call, "gives no time"))
    }
}
