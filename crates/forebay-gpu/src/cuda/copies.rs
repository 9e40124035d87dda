//! Copies: batches, which are many copies in a single driver call, and copies between GPUs.
//!
//! A copy costs the link 2.7 µs whatever its size, and a batch pays that once. Drivers before CUDA
//! 12.8 have no batches, so every copy is a separate call. Nothing here allocates.
//!
//! A GPU that copies to another one must reach the target. For an allocation of the driver its
//! context may access the other one's. Mapped memory and memory of a pool have access rights of
//! their own, and a copy that breaks them can end the process's use of the GPU. So such memory is
//! not copied to.

#![expect(unsafe_code, reason = "calls the driver")]

use std::ffi::{c_int, c_uint, c_void};
use std::ops::Range;
use std::ptr;

use super::device::CudaDevice;
use super::handles::InUse;
use super::query;
use super::table::{
    CopyAttributes, CudaTable, Location, MemcpyBatchAsync, SOURCE_ORDER_STREAM, SUCCESS, Status,
};
use crate::{
    BATCH_MAX, CopyDirection, DeviceCopy, DeviceError, DeviceId, DeviceKind, DeviceResult, Stream,
};

const CALL: &str = "cuMemcpyBatchAsync";

/// Allocations of a group's targets that are queried once; with more, some are queried again.
const KNOWN_MAX: usize = 32;

/// The parallel arrays that the driver takes, with `count` entries each.
struct Lists {
    targets: [u64; BATCH_MAX],
    sources: [u64; BATCH_MAX],
    lens: [usize; BATCH_MAX],
    count: usize,
}

impl Lists {
    const fn new() -> Self {
        Self { targets: [0; BATCH_MAX], sources: [0; BATCH_MAX], lens: [0; BATCH_MAX], count: 0 }
    }

    fn push(&mut self, direction: CopyDirection, copy: DeviceCopy) {
        let host = copy.host.as_ptr().expose_provenance() as u64;
        let (target, source) = match direction {
            CopyDirection::ToDevice => (copy.device, host),
            CopyDirection::ToHost => (host, copy.device),
        };
        (self.targets[self.count], self.sources[self.count]) = (target, source);
        self.lens[self.count] = copy.len;
        self.count += 1;
    }
}

impl CudaDevice {
    /// Whether kernels of the current context, which is ours, reach the targets. An address that
    /// they do not reach would be the end of the context.
    pub(super) fn reaches(&self, copies: &[DeviceCopy]) -> bool {
        let mut known: [Range<u64>; KNOWN_MAX] = std::array::from_fn(|_| 0..0);
        let mut oldest = (0..KNOWN_MAX).cycle();
        copies.iter().all(|copy| {
            let Some(end) = copy.device.checked_add(copy.len as u64) else { return false };
            let holds = |range: &Range<u64>| range.start <= copy.device && end <= range.end;
            copy.len == 0 || known.iter().any(holds) || {
                let found = query::of_context(self.cuda, copy.device, self.context.0);
                let range = found.map_or(0..0, |(base, len)| base..base.saturating_add(len));
                let is_held = holds(&range);
                oldest.next().iter().for_each(|&index| known[index] = range.clone());
                is_held
            }
        })
    }

    /// Queues copies in groups, with one call for each group if the driver has batches.
    ///
    /// # Safety
    /// All ranges stay valid, and the host's untouched, until the copies are done.
    pub(super) unsafe fn copy_batch(
        &self,
        stream: Stream,
        direction: CopyDirection,
        copies: &[DeviceCopy],
    ) -> DeviceResult<()> {
        let stream = self.stream(CALL, stream)?;
        // The driver refuses zero-length copies and empty batches.
        let mut copies = copies.iter().filter(|copy| copy.len > 0).copied().peekable();
        if copies.peek().is_none() {
            return Ok(());
        }
        let _current = self.enter()?;
        let Some(batch) = self.cuda.memcpy_batch_async else {
            // SAFETY: the caller's promise; the context is current.
            return copies
                .try_for_each(|copy| unsafe { self.copy_alone(&stream, direction, copy) });
        };
        let mut lists = Lists::new();
        while copies.peek().is_some() {
            lists.count = 0;
            copies.by_ref().take(BATCH_MAX).for_each(|copy| lists.push(direction, copy));
            // SAFETY: as above.
            unsafe { self.queue(batch, &stream, direction, &mut lists)? };
        }
        Ok(())
    }

    /// Queues one group with one call.
    ///
    /// # Safety
    /// As for [`copy_batch`](Self::copy_batch), and the context is current.
    unsafe fn queue(
        &self,
        batch: MemcpyBatchAsync,
        stream: &InUse<'_>,
        direction: CopyDirection,
        lists: &mut Lists,
    ) -> DeviceResult<()> {
        let gpu = Location::gpu(self.ordinal);
        let (source_hint, target_hint) = match direction {
            CopyDirection::ToDevice => (Location::HOST, gpu),
            CopyDirection::ToHost => (gpu, Location::HOST),
        };
        let mut attributes = CopyAttributes {
            source_order: SOURCE_ORDER_STREAM,
            source_hint,
            target_hint,
            flags: 0,
        };
        let (mut first, mut failed) = (0, usize::MAX);
        // SAFETY: each array has `count` entries, and the one set of attributes applies from the
        // first copy on. The driver keeps none of the pointers. The caller keeps the ranges valid;
        // the stream is alive.
        let status = unsafe {
            batch(
                lists.targets.as_mut_ptr(),
                lists.sources.as_mut_ptr(),
                lists.lens.as_mut_ptr(),
                lists.count,
                &raw mut attributes,
                &raw mut first,
                1,
                &raw mut failed,
                stream.raw,
            )
        };
        self.check(CALL, status).map_err(|mut error| {
            if failed < lists.count {
                blame(&mut error, lists, failed);
            }
            error
        })
    }

    /// Queues one copy with one call.
    ///
    /// # Safety
    /// As for [`queue`](Self::queue).
    unsafe fn copy_alone(
        &self,
        stream: &InUse<'_>,
        direction: CopyDirection,
        copy: DeviceCopy,
    ) -> DeviceResult<()> {
        let DeviceCopy { host, device, len } = copy;
        match direction {
            CopyDirection::ToDevice => {
                let source = host.as_ptr().cast_const().cast();
                // SAFETY: the caller keeps both ranges valid; the stream is alive.
                let status =
                    unsafe { (self.cuda.memcpy_htod_async)(device, source, len, stream.raw) };
                self.check("cuMemcpyHtoDAsync", status)
            }
            CopyDirection::ToHost => {
                let target = host.as_ptr().cast();
                // SAFETY: as above.
                let status =
                    unsafe { (self.cuda.memcpy_dtoh_async)(target, device, len, stream.raw) };
                self.check("cuMemcpyDtoHAsync", status)
            }
        }
    }
}

/// Adds the copy that the driver blames to the error.
#[cold]
fn blame(error: &mut DeviceError, lists: &Lists, index: usize) {
    let (target, source) = (lists.targets[index], lists.sources[index]);
    let copy = format!("copy {index} of {}, {source:#x} to {target:#x}", lists.count);
    let words = if error.detail.is_empty() { "" } else { ", " };
    error.detail = format!("{}{words}{copy}+{}", error.detail, lists.lens[index]);
}

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
