//! Calls beside a capture: what a thread records into a CUDA graph meanwhile is not disturbed.
//!
//! While any thread captures in the global mode, which is the default one, the driver refuses calls
//! that might synchronise (`cuMemAlloc`, `cuEventQuery`) to every thread whose own mode is not
//! relaxed, and spoils the capture besides. Ours touch only streams of our own, which nobody
//! captures. So each call is made in the relaxed mode, and the thread gets back the mode it had: it
//! is the caller's, who may rely on being warned.

#![expect(unsafe_code, reason = "calls the driver")]

use std::ffi::c_int;
use std::marker::PhantomData;

use super::table::CudaTable;
use crate::gpu::DeviceResult;

/// `CU_STREAM_CAPTURE_MODE_RELAXED`.
const RELAXED: c_int = 2;

/// The relaxed mode, on this thread as long as this lives.
pub(super) struct Relaxed<'a> {
    cuda: &'a CudaTable,
    before: c_int,
    /// A mode is a thread's, so this is never sent to another.
    thread: PhantomData<*const ()>,
}

impl<'a> Relaxed<'a> {
    #[inline]
    pub(super) fn enter(cuda: &'a CudaTable) -> DeviceResult<Self> {
        let before = exchange(cuda, RELAXED)?;
        Ok(Self { cuda, before, thread: PhantomData })
    }
}

impl Drop for Relaxed<'_> {
    #[inline]
    fn drop(&mut self) {
        if self.before != RELAXED {
            // It fails only where the driver is shutting down, and nothing is left to put right.
            let _ = exchange(self.cuda, self.before);
        }
    }
}

/// Sets this thread's mode and returns the one before.
#[inline]
fn exchange(cuda: &CudaTable, mut mode: c_int) -> DeviceResult<c_int> {
    // SAFETY: the mode is one of the driver's, and outlives the call.
    let status = unsafe { (cuda.thread_exchange_stream_capture_mode)(&raw mut mode) };
    cuda.check("cuThreadExchangeStreamCaptureMode", status)?;
    Ok(mode)
}
