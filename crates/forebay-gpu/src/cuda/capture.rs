//! Keeps driver calls from disturbing a CUDA graph capture in the same process.
//!
//! While any thread captures in global mode (the default), the driver refuses potentially
//! synchronising calls (`cuMemAlloc`, `cuEventQuery`) to every thread that is not in relaxed mode,
//! and invalidates the capture. Our calls touch only our own streams, which are never captured. So
//! each call runs in relaxed mode, and the thread's previous mode is restored: it is the caller's,
//! who may rely on being warned.

#![expect(unsafe_code, reason = "calls the driver")]

use std::ffi::c_int;
use std::marker::PhantomData;

use super::table::CudaTable;
use crate::DeviceResult;

/// `CU_STREAM_CAPTURE_MODE_RELAXED`.
const RELAXED: c_int = 2;

/// Puts this thread into relaxed mode until dropped.
pub(super) struct Relaxed<'a> {
    cuda: &'a CudaTable,
    before: c_int,
    /// The mode is per thread, so this type is not `Send`.
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
            // This fails only if the driver is shutting down, and then there is nothing to restore.
            let _ = exchange(self.cuda, self.before);
        }
    }
}

/// Sets this thread's mode and returns the previous one.
#[inline]
fn exchange(cuda: &CudaTable, mut mode: c_int) -> DeviceResult<c_int> {
    // SAFETY: the mode is a valid one, and outlives the call.
    let status = unsafe { (cuda.thread_exchange_stream_capture_mode)(&raw mut mode) };
    cuda.check("cuThreadExchangeStreamCaptureMode", status)?;
    Ok(mode)
}
