//! What callers pass by address: memory as buffers, and streams to wait for. GPU memory is checked
//! with the driver; none is ever freed here.

#![expect(unsafe_code, reason = "others promise to keep memory")]

use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::engine::Engine;
use crate::engine::interrupt::CHECKS_EVERY;
use crate::error::{Error, Operation, Result};
use crate::gpu::{
    self, AddressKind, CallerStream, Device, DeviceError, DeviceId, GpuSelector, NotDeviceMemory,
};
use crate::memory::Buffer;

impl Engine {
    /// Wraps GPU memory that other code allocated in a buffer that every call accepts. The driver
    /// reports which GPU owns it; that GPU is added to the engine if needed.
    ///
    /// Any memory that the driver attributes to a GPU is accepted: from `cudaMalloc` in any context
    /// of the process, from a stream-ordered pool, imported from a different process, managed, or
    /// mapped to virtual memory. A virtual range may span several mappings of a GPU.
    ///
    /// # Safety
    /// The memory stays allocated and mapped until the buffer and all parts split from it are
    /// dropped, and every transfer that owned such a part ended and returned it. A transfer that
    /// fails with [`Error::CopyNotOver`] never returns it: the GPU may access the memory forever.
    /// Other work queued on the memory, such as its stream-ordered allocation, is done before it is
    /// used here. Nothing else uses a range while a transfer writes to it.
    ///
    /// # Errors
    /// [`Error::NotDeviceMemory`] for host memory, for memory unknown to the driver, for a range
    /// beyond its allocation or on several GPUs, and for a mapping that the GPU may not access. A
    /// freed address is detected unless it was allocated again, or its pool or the driver kept it.
    /// [`Error::NoDevice`] if the GPU is not available.
    pub unsafe fn borrow_device_memory(&self, address: u64, len: u64) -> Result<Buffer> {
        // SAFETY: the caller's promise.
        unsafe { self.borrow_device_ranges(&[(address, len)]) }
    }

    /// Wraps many ranges of a GPU's memory in a single buffer, from the first address to the last,
    /// including the gaps. Ranges are checked as in
    /// [`borrow_device_memory`](Self::borrow_device_memory). Ranges in the same allocation share a
    /// driver query, which costs microseconds.
    ///
    /// # Safety
    /// As for [`borrow_device_memory`](Self::borrow_device_memory), for all ranges; and no byte
    /// outside them is ever moved to or from the buffer.
    ///
    /// # Errors
    /// As for [`borrow_device_memory`](Self::borrow_device_memory), also for an empty range;
    /// [`Error::BadOption`] without any range.
    pub unsafe fn borrow_device_ranges(&self, ranges: &[(u64, u64)]) -> Result<Buffer> {
        let Some(&(first, len)) = ranges.first() else {
            return Err(Error::bad_option("ranges", "none", "one at least"));
        };
        self.check_process(Operation::Open)?;
        let owner = self.owner_of(first, len)?;
        self.borrow(owner, ranges)
    }

    /// Like [`borrow_device_ranges`](Self::borrow_device_ranges), for a caller that holds a
    /// contended lock, such as an interpreter's: the driver is only queried. `None` if the GPU must
    /// be opened, or if the memory is refused.
    ///
    /// # Safety
    /// As for [`borrow_device_ranges`](Self::borrow_device_ranges).
    #[doc(hidden)]
    pub unsafe fn borrow_at_once(&self, ranges: &[(u64, u64)]) -> Option<Buffer> {
        self.check_process(Operation::Open).ok()?;
        let owner = self.open_owner_of(ranges.first()?.0)?;
        self.borrow(owner, ranges).ok()
    }

    fn borrow(
        &self,
        (device, mut kind): (Arc<dyn Device>, AddressKind),
        ranges: &[(u64, u64)],
    ) -> Result<Buffer> {
        let (mut least, mut most) = (u64::MAX, 0);
        let mut known: Option<(u64, u64)> = None;
        for &(address, len) in ranges {
            let end = address.saturating_add(len);
            // An empty range is never known, whatever its address.
            let is_known = |(base, limit)| base <= address && address < end && end <= limit;
            if !known.is_some_and(is_known) {
                if known.is_some() {
                    kind = device.address_kind(address);
                }
                gpu::check_range(&*device, kind, address, len)
                    .map_err(|reason| refused(address, len, &reason))?;
                known = kind.bounds().map(|(base, len)| (base, base.saturating_add(len)));
            }
            (least, most) = (least.min(address), most.max(end));
        }
        Ok(Buffer::borrowed(self.inner.tools.arena.couriers(), device, least, most - least))
    }

    /// Wraps host memory that other code allocated in a buffer that every call accepts.
    ///
    /// # Safety
    /// The memory stays mapped, and writable if a call writes to it, until the buffer and all parts
    /// split from it are dropped, and every transfer that owned such a part ended and returned it.
    /// Nothing else uses a range while a transfer writes to it, or changes it while a transfer
    /// reads it. A call that was given up ([`Request::while_`](crate::Request::while_)) continues
    /// until its drive or server responds. With length 0 any address is valid.
    #[must_use]
    pub unsafe fn borrow_host_memory(&self, address: u64, len: u64) -> Buffer {
        Buffer::lent(address, len)
    }

    /// The GPU that owns an address, if it is open, and the kind of memory there.
    fn open_owner_of(&self, address: u64) -> Option<(Arc<dyn Device>, AddressKind)> {
        self.inner.links.devices().into_iter().find_map(|device| {
            let kind = device.address_kind(address);
            (kind.device() == Some(device.id())).then_some((device, kind))
        })
    }

    /// The GPU that owns an address, which is opened if needed, and the kind of memory there.
    fn owner_of(&self, address: u64, len: u64) -> Result<(Arc<dyn Device>, AddressKind)> {
        if let Some(owner) = self.open_owner_of(address) {
            return Ok(owner);
        }
        // What the first open GPU knows of it, or the driver if none is open.
        let known = self.inner.links.devices();
        let mut kinds = known.iter().map(|device| device.address_kind(address));
        let kind = kinds.find(|kind| *kind != AddressKind::Unknown);
        let kind = kind.unwrap_or_else(|| gpu::address_kind(address));
        let not = NotDeviceMemory::Kind { address, kind };
        let id = kind.device().ok_or_else(|| refused(address, len, &not))?;
        let device = self.device(&GpuSelector::Cuda(id.index.to_string()))?;
        let device = device.expect("a GPU, not host memory");
        // A different GPU, or none, may not know the bounds.
        let kind = device.address_kind(address);
        Ok((device, kind))
    }
}

fn refused(address: u64, len: u64, reason: &NotDeviceMemory) -> Error {
    Error::NotDeviceMemory { address, len, reason: reason.to_string() }
}

/// Minimum and maximum polling interval for a stream; queued work usually runs longer.
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
