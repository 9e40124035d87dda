//! Memory that others own, as buffers: a GPU's is checked with the driver, none is ever freed.

#![expect(unsafe_code, reason = "others promise to keep memory")]

use std::sync::Arc;

use super::Engine;
use crate::error::{Error, Operation, Result};
use crate::gpu::{self, AddressKind, Device, GpuSelector, NotDeviceMemory};
use crate::memory::Buffer;

impl Engine {
    /// GPU memory that somebody else allocated, as a buffer that every call takes. The driver
    /// tells which GPU it lies on; that GPU is brought into the engine where it is not.
    ///
    /// It may be any memory that the driver knows as a GPU's: of `cudaMalloc` in any context of the
    /// process, of a stream-ordered pool, imported from another process, managed, or mapped to
    /// virtual memory, where the range may span several mappings of one GPU.
    ///
    /// # Safety
    /// The memory stays allocated and mapped until the buffer and all that was split from it are
    /// dropped, and every transfer that owned one of them has ended and given it back. One that
    /// fails with [`Error::CopyNotOver`] never gives it back: the GPU may touch the memory for
    /// ever. Work that others queued on the memory (its stream-ordered allocation is such) is done
    /// before it is used here, and nobody else uses a range while a transfer writes to it.
    ///
    /// # Errors
    /// [`Error::NotDeviceMemory`] for host memory, for what the driver does not know, for a range
    /// beyond its allocation or on several GPUs, and for a mapping that the GPU may not access. A
    /// freed address is found out as long as it is not used anew, and its pool or the driver has
    /// not kept it. [`Error::NoDevice`] where the GPU cannot be had.
    pub unsafe fn borrow_device_memory(&self, address: u64, len: u64) -> Result<Buffer> {
        let device = self.owner_of(address, len)?;
        gpu::check_range(&*device, address, len)
            .map_err(|reason| refused(address, len, &reason))?;
        Ok(Buffer::borrowed(device, address, len))
    }

    /// Many ranges of one GPU's memory as a buffer from the first address to the last, with
    /// whatever lies between them. Each range is checked as
    /// [`borrow_device_memory`](Self::borrow_device_memory) checks one; those in the same
    /// allocation with one question to the driver, which costs microseconds.
    ///
    /// # Safety
    /// As for [`borrow_device_memory`](Self::borrow_device_memory), for all of them; and no byte
    /// outside them is ever moved to or from the buffer.
    ///
    /// # Errors
    /// As of [`borrow_device_memory`](Self::borrow_device_memory), also for a range without bytes;
    /// [`Error::BadOption`] without any range.
    pub unsafe fn borrow_device_ranges(&self, ranges: &[(u64, u64)]) -> Result<Buffer> {
        let Some(&(first, len)) = ranges.first() else {
            let (name, value) = ("ranges".into(), "none".into());
            return Err(Error::BadOption { name, value, expected: "one at least".into() });
        };
        let device = self.owner_of(first, len)?;
        let (mut least, mut most) = (first, first);
        let mut known: Option<(u64, u64)> = None;
        for &(address, len) in ranges {
            let end = address.saturating_add(len);
            // One without bytes is none, wherever it lies.
            let is_known = |(base, limit)| base <= address && address < end && end <= limit;
            if !known.is_some_and(is_known) {
                gpu::check_range(&*device, address, len)
                    .map_err(|reason| refused(address, len, &reason))?;
                let bounds = device.address_kind(address).bounds();
                known = bounds.map(|(base, len)| (base, base.saturating_add(len)));
            }
            (least, most) = (least.min(address), most.max(end));
        }
        Ok(Buffer::borrowed(device, least, most - least))
    }

    /// Host memory that somebody else allocated, as a buffer that every call takes.
    ///
    /// # Safety
    /// The memory stays mapped, and may be written where a call writes to it, until the buffer and
    /// all that was split from it are dropped, and every transfer that owned one of them has ended
    /// and given it back. Nobody else uses a range while a transfer writes to it, nor changes it
    /// while one reads it; a call that was given up ([`File::read_while`](crate::File::read_while))
    /// goes on until its drive or server answers. Without bytes any address will do.
    #[must_use]
    pub unsafe fn borrow_host_memory(&self, address: u64, len: u64) -> Buffer {
        Buffer::lent(address, len)
    }

    /// The GPU that an address lies on.
    fn owner_of(&self, address: u64, len: u64) -> Result<Arc<dyn Device>> {
        self.check(Operation::Open)?;
        let kind = self.address_kind(address);
        let not = NotDeviceMemory::Kind { address, kind };
        let id = kind.device().ok_or_else(|| refused(address, len, &not))?;
        match self.known(id) {
            Some(device) => Ok(device),
            None => self.brought_in(&GpuSelector::Cuda(id.index.to_string())),
        }
    }

    fn brought_in(&self, wanted: &GpuSelector) -> Result<Arc<dyn Device>> {
        self.device(wanted)?.ok_or_else(|| Error::NoDevice {
            wanted: wanted.to_string(),
            reason: "it names host memory".into(),
        })
    }

    /// What the first GPU that knows the address says of it, or the driver where no GPU is open.
    fn address_kind(&self, address: u64) -> AddressKind {
        let known = self.inner.links.devices();
        let mut kinds = known.iter().map(|device| device.address_kind(address));
        let told = kinds.find(|kind| *kind != AddressKind::Unknown);
        told.unwrap_or_else(|| gpu::address_kind(address))
    }
}

fn refused(address: u64, len: u64, reason: &NotDeviceMemory) -> Error {
    Error::NotDeviceMemory { address, len, reason: reason.to_string() }
}
