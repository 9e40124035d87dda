//! Copies from one GPU's memory to another's.
//!
//! The GPU that copies has to reach the target. For an allocation of the driver that is so once its
//! context may access the other one. Memory that is mapped or that comes from a pool has access
//! rights of its own, and a copy that breaks them can end the process's use of the GPU. So such
//! memory is not copied to.

#![expect(unsafe_code, reason = "calls the driver")]

use std::ffi::{c_int, c_uint, c_void};
use std::ptr;

use super::device::CudaDevice;
use super::table::{CudaTable, SUCCESS, Status};
use crate::{DeviceId, DeviceKind, DeviceResult, Stream};

/// `CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE`: an allocation of `cuMemAlloc`.
const IS_PLAIN: c_uint = 10;

/// `CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED`.
const ALREADY_ENABLED: Status = 704;

impl CudaDevice {
    /// Whether copies of this GPU reach an address of another one; allows its context to access the
    /// other.
    pub(super) fn can_reach(&self, peer: DeviceId, address: u64) -> bool {
        if peer.kind != DeviceKind::Cuda || !is_plain(self.cuda, address) {
            return false;
        }
        peer == self.info.id || self.allow(peer.index).unwrap_or(false)
    }

    fn allow(&self, index: u32) -> DeviceResult<bool> {
        let _current = self.enter()?;
        let (mut ordinal, mut can, mut context) = (0, 0, ptr::null_mut());
        let index = c_int::try_from(index).unwrap_or(c_int::MAX);
        // SAFETY: the outputs outlive the calls, and the ordinals are the driver's.
        unsafe {
            self.check("cuDeviceGet", (self.cuda.device_get)(&raw mut ordinal, index))?;
            let status = (self.cuda.device_can_access_peer)(&raw mut can, self.ordinal, ordinal);
            self.check("cuDeviceCanAccessPeer", status)?;
        }
        if can == 0 {
            return Ok(false);
        }
        // SAFETY: as above; the context is retained until it has been given to the driver, and
        // afterwards by the other GPU's device.
        let status = unsafe {
            let status = (self.cuda.primary_ctx_retain)(&raw mut context, ordinal);
            self.check("cuDevicePrimaryCtxRetain", status)?;
            let status = (self.cuda.ctx_enable_peer_access)(context, 0);
            let _ = (self.cuda.primary_ctx_release)(ordinal);
            status
        };
        Ok(status == SUCCESS || status == ALREADY_ENABLED)
    }

    /// # Safety
    /// As for [`Device::copy_to_peer`](crate::Device::copy_to_peer).
    pub(super) unsafe fn copy_on(
        &self,
        stream: Stream,
        source: u64,
        target: u64,
        len: usize,
    ) -> DeviceResult<()> {
        let call = "cuMemcpyDtoDAsync";
        let stream = self.stream(call, stream)?;
        let _current = self.enter()?;
        // SAFETY: the caller keeps both ranges valid until the copy is done; the stream is alive.
        let status = unsafe { (self.cuda.memcpy_dtod_async)(target, source, len, stream.raw) };
        self.check(call, status)
    }
}

/// Whether an address is in an allocation of `cuMemAlloc`.
fn is_plain(cuda: &CudaTable, address: u64) -> bool {
    let (mut wanted, mut plain): (c_uint, c_uint) = (IS_PLAIN, 0);
    let mut output: *mut c_void = (&raw mut plain).cast();
    // SAFETY: there is one attribute and one output, of at least the documented size. The driver
    // only looks the address up.
    let status =
        unsafe { (cuda.pointer_get_attributes)(1, &raw mut wanted, &raw mut output, address) };
    status == SUCCESS && plain != 0
}
