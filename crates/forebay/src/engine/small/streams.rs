//! Waits for the work on a caller's stream.

#![expect(unsafe_code, reason = "queries streams that a caller names")]

use std::time::{Duration, Instant};

use crate::engine::Engine;
use crate::engine::interrupt::CHECKS_EVERY;
use crate::error::{Error, Operation, Result};
use crate::gpu::{CallerStream, Device, DeviceError, DeviceId};

/// Minimum and maximum polling interval for a stream; queued work usually takes longer.
const NAPS: [Duration; 2] = [Duration::from_micros(10), Duration::from_millis(1)];

impl Engine {
    /// Whether the work queued so far on a caller's stream is done. The driver is only queried.
    ///
    /// # Safety
    /// `stream` is alive and belongs to `gpu`.
    ///
    /// # Errors
    /// [`Error::BadOption`] for a stream that is being captured; [`Error::Device`].
    pub unsafe fn is_stream_idle(&self, gpu: &dyn Device, stream: CallerStream) -> Result<bool> {
        self.check_process(Operation::Wait)?;
        let failed = |source| Error::of_device(Operation::Wait, gpu.id(), 0, source);
        // SAFETY: the caller's promise.
        if unsafe { gpu.is_capturing(stream) }.map_err(failed)? {
            let expected = "a stream that is not being captured: end the capture first";
            return Err(Error::bad_option("stream", format!("{:#x}", stream.0), expected));
        }
        // SAFETY: as above.
        unsafe { gpu.is_idle(stream) }.map_err(failed)
    }

    /// Waits until the work queued so far on a caller's stream is done, and calls `go_on` about 20
    /// times a second. The queued work continues, however the wait ends.
    ///
    /// # Safety
    /// `stream` is alive and belongs to `device`.
    ///
    /// # Errors
    /// [`Error::BadOption`] for a stream that is being captured; [`Error::NoDevice`] for a GPU that
    /// is not in the engine; [`Error::Device`], also if the wait was stopped.
    pub unsafe fn wait_for_stream(
        &self,
        device: DeviceId,
        stream: CallerStream,
        go_on: &mut dyn FnMut() -> bool,
    ) -> Result<()> {
        self.check_process(Operation::Wait)?;
        let known = self.known(device)?;
        let failed = |source| Error::of_device(Operation::Wait, device, 0, source);
        // SAFETY: the caller's promise.
        if unsafe { self.is_stream_idle(&*known, stream) }? {
            return Ok(());
        }
        let event = known.create_event().map_err(failed)?;
        let mut wait = || {
            // SAFETY: the caller's promise.
            unsafe { known.record_on_caller(event, stream) }?;
            let (mut nap, mut checked) = (NAPS[0], Instant::now());
            while !known.is_done(event)? {
                std::thread::sleep(nap);
                nap = (nap * 5 / 4).min(NAPS[1]);
                if checked.elapsed() >= CHECKS_EVERY {
                    if !go_on() {
                        return Err(interrupted());
                    }
                    checked = Instant::now();
                }
            }
            Ok(())
        };
        let waited = wait();
        let destroyed = known.destroy_event(event);
        waited.and(destroyed).map_err(failed)
    }
}

/// The error of a stopped wait for a stream.
fn interrupted() -> DeviceError {
    let detail = "the wait was given up".to_owned();
    DeviceError { call: "wait", code: -1, name: "INTERRUPTED".into(), detail }
}
