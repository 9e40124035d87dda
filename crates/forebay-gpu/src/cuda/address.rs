//! Queries the driver for the kind of memory at an address.
//!
//! An address may come from any context, another process, a memory pool, or mapped virtual memory.
//! So the driver is queried anew for each address, and the memory itself is never read or written.

#![expect(unsafe_code, reason = "calls the driver")]

use std::ffi::{c_int, c_uint, c_void};
use std::ptr;

use super::table::{CudaTable, Location, Opaque, SUCCESS};
use crate::{AddressKind, DeviceId, DeviceKind};

/// `CU_MEMORYTYPE_HOST` and `CU_MEMORYTYPE_DEVICE`.
const MEMORY_TYPE_HOST: c_uint = 1;
const MEMORY_TYPE_DEVICE: c_uint = 2;

/// `CU_MEM_ACCESS_FLAGS_PROT_READWRITE`.
const ACCESS_READ_WRITE: u64 = 3;

/// The kind of memory at `address`. Its bounds are only known if a context of its GPU is current.
/// `any` is reported as the GPU of managed memory that belongs to no particular one.
pub(super) fn kind(cuda: &CudaTable, address: u64, any: DeviceId) -> AddressKind {
    let Some(found) = attributes(cuda, address) else { return AddressKind::Unknown };
    let of_gpu = u32::try_from(found.ordinal);
    let device = of_gpu.map_or(any, |index| DeviceId { kind: DeviceKind::Cuda, index });
    if found.managed != 0 {
        let (base, len) = range(cuda, address).unwrap_or(found.range);
        return AddressKind::Managed { device, base, len };
    }
    if found.memory_type == MEMORY_TYPE_HOST {
        return AddressKind::PinnedHost;
    }
    // For virtual memory the attributes give the reserved range, however little of it is mapped.
    if found.range.1 > 0 && found.mapped == 0 {
        return AddressKind::Reserved;
    }
    if found.memory_type != MEMORY_TYPE_DEVICE || of_gpu.is_err() {
        return AddressKind::Unknown;
    }
    // The queries below take 0.1 and 1.4 µs, and the driver's lock (H200, driver 580).
    if found.is_plain != 0 {
        let (base, len) = found.range;
        return AddressKind::Device { device, base, len };
    }
    let (base, len) = range(cuda, address).unwrap_or(found.range);
    if is_mapping(cuda, address) {
        let accessible = is_accessible(cuda, address, found.ordinal);
        return AddressKind::Mapping { device, base, len, accessible };
    }
    AddressKind::Device { device, base, len }
}

/// The allocation that holds the address, if it is memory of the GPU itself and of `context`, which
/// is current. Kernels of that context reach it. Mapped virtual memory belongs to no context.
pub(super) fn of_context(cuda: &CudaTable, address: u64, context: Opaque) -> Option<(u64, u64)> {
    // `CU_POINTER_ATTRIBUTE_CONTEXT`, `MEMORY_TYPE`, `IS_MANAGED`.
    let mut wanted: [c_uint; 3] = [1, 2, 8];
    let (mut owner, mut memory_type, mut managed) = (ptr::null_mut(), 0, 0);
    let mut outputs: [*mut c_void; 3] = [
        (&raw mut owner as *mut Opaque).cast(),
        (&raw mut memory_type as *mut c_uint).cast(),
        (&raw mut managed as *mut c_uint).cast(),
    ];
    // SAFETY: as in `attributes`.
    let status = unsafe {
        let (wanted, outputs) = (wanted.as_mut_ptr(), outputs.as_mut_ptr());
        (cuda.pointer_get_attributes)(3, wanted, outputs, address)
    };
    let is_ours = status == SUCCESS && owner == context && memory_type == MEMORY_TYPE_DEVICE;
    (is_ours && managed == 0).then(|| range(cuda, address))?
}

/// The attributes that the driver reports for any address, even an unknown one.
#[derive(Debug, Clone, Copy)]
struct Attributes {
    memory_type: c_uint,
    managed: c_uint,
    ordinal: c_int,
    /// First address and length of the allocation, or of the reserved virtual memory.
    range: (u64, u64),
    mapped: c_uint,
    /// Whether older IPC calls can share it: an allocation of its own, never a mapping.
    is_plain: c_uint,
}

fn attributes(cuda: &CudaTable, address: u64) -> Option<Attributes> {
    /// `CU_POINTER_ATTRIBUTE_` and `MEMORY_TYPE`, `IS_MANAGED`, `DEVICE_ORDINAL`,
    /// `IS_LEGACY_CUDA_IPC_CAPABLE`, `RANGE_START_ADDR`, `RANGE_SIZE`, `MAPPED`.
    const WANTED: [c_uint; 7] = [2, 8, 9, 10, 11, 12, 13];
    let mut wanted = WANTED;
    let (mut memory_type, mut managed, mut is_plain, mut mapped) = (0, 0, 0, 0);
    let (mut ordinal, mut start, mut len): (c_int, u64, usize) = (-1, 0, 0);
    // The driver writes flags as one byte or as four, so all outputs start at zero.
    let mut outputs: [*mut c_void; WANTED.len()] = [
        (&raw mut memory_type).cast(),
        (&raw mut managed).cast(),
        (&raw mut ordinal).cast(),
        (&raw mut is_plain).cast(),
        (&raw mut start).cast(),
        (&raw mut len).cast(),
        (&raw mut mapped).cast(),
    ];
    // SAFETY: there are as many outputs as attributes, each at least of the documented size. The
    // driver only looks the address up.
    let status = unsafe {
        let (wanted, outputs) = (wanted.as_mut_ptr(), outputs.as_mut_ptr());
        (cuda.pointer_get_attributes)(7, wanted, outputs, address)
    };
    let range = (start, len as u64);
    let found = Attributes { memory_type, managed, ordinal, range, mapped, is_plain };
    (status == SUCCESS).then_some(found)
}

/// First address and length of the allocation or mapping that holds the address.
fn range(cuda: &CudaTable, address: u64) -> Option<(u64, u64)> {
    let (mut base, mut len) = (0, 0_usize);
    // SAFETY: the outputs outlive the call; the driver only looks the address up.
    let status = unsafe { (cuda.mem_get_address_range)(&raw mut base, &raw mut len, address) };
    (status == SUCCESS && len > 0).then_some((base, len as u64))
}

/// Whether the address was mapped by `cuMemMap`: only such memory has an allocation handle.
fn is_mapping(cuda: &CudaTable, address: u64) -> bool {
    let mut handle = 0;
    let Ok(number) = usize::try_from(address) else { return false };
    let pointer = ptr::without_provenance_mut(number);
    // SAFETY: the output outlives the call; the driver only looks the address up.
    let status = unsafe { (cuda.mem_retain_allocation_handle)(&raw mut handle, pointer) };
    if status == SUCCESS {
        // SAFETY: the handle was just retained.
        let _ = unsafe { (cuda.mem_release)(handle) };
    }
    status == SUCCESS
}

/// Whether the GPU may read and write its own memory at this address.
fn is_accessible(cuda: &CudaTable, address: u64, ordinal: c_int) -> bool {
    let (mut flags, gpu) = (0, Location::gpu(ordinal));
    // SAFETY: the output and the location outlive the call; the driver only looks the address up.
    let status = unsafe { (cuda.mem_get_access)(&raw mut flags, &raw const gpu, address) };
    // If the driver cannot say, assume access; a copy will report the error.
    status != SUCCESS || flags == ACCESS_READ_WRITE
}
