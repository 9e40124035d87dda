//! Queries that need no context: the GPUs and their properties, and the kind of memory at an
//! address.
//!
//! An address may come from any context, a different process, a memory pool, or mapped virtual
//! memory. So the driver is queried anew for each address, and the memory itself is never read or
//! written.

#![expect(unsafe_code, reason = "calls the driver")]

use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::{fs, ptr};

use super::table::{CudaTable, Location, Opaque, Ordinal, SUCCESS, Status, nonsense, version_text};
use crate::{AddressKind, DeviceId, DeviceInfo, DeviceKind, DeviceResult};

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

/// Largest plausible GPU count; a driver that reports more is not believed.
const COUNT_MAX: u32 = 4096;

/// All GPUs, in the driver's order.
pub(super) fn all(cuda: &CudaTable) -> DeviceResult<Vec<DeviceInfo>> {
    let mut count = 0;
    // SAFETY: the output outlives the call.
    let status = unsafe { (cuda.device_get_count)(&raw mut count) };
    cuda.check("cuDeviceGetCount", status)?;
    let known = u32::try_from(count).ok().filter(|&count| count <= COUNT_MAX);
    let known = known.ok_or_else(|| nonsense("cuDeviceGetCount", format!("{count} GPUs")))?;
    (0..known).map(|index| Ok(one(cuda, index)?.1)).collect()
}

/// The GPU of this index, and the driver's ordinal for it.
pub(super) fn one(cuda: &CudaTable, index: u32) -> DeviceResult<(Ordinal, DeviceInfo)> {
    // An index too large for `c_int` fails like any other that does not exist.
    let wanted = c_int::try_from(index).unwrap_or(c_int::MAX);
    let mut ordinal: Ordinal = 0;
    // SAFETY: the output outlives the call.
    let status = unsafe { (cuda.device_get)(&raw mut ordinal, wanted) };
    cuda.check("cuDeviceGet", status)?;
    let mut memory = 0_usize;
    // SAFETY: as above; the ordinal is the driver's own.
    let status = unsafe { (cuda.device_total_mem)(&raw mut memory, ordinal) };
    cuda.check("cuDeviceTotalMem", status)?;
    let name = text(cuda.device_get_name, ordinal);
    let info = DeviceInfo {
        id: DeviceId { kind: DeviceKind::Cuda, index },
        uuid: uuid(cuda, ordinal, &name),
        pci_address: pci_address(&text(cuda.device_get_pci_bus_id, ordinal)),
        driver: driver_version(cuda),
        memory: memory as u64,
        simulated: false,
        name,
    };
    Ok((ordinal, info))
}

/// A text property of a GPU, without control characters; empty if the driver has none.
fn text(
    query: unsafe extern "C" fn(*mut c_char, c_int, Ordinal) -> Status,
    ordinal: Ordinal,
) -> String {
    const LEN: c_int = 256;
    let mut buffer = [0_u8; LEN as usize];
    // SAFETY: the driver writes at most `LEN` bytes, into the buffer.
    let status = unsafe { query(buffer.as_mut_ptr().cast(), LEN, ordinal) };
    match CStr::from_bytes_until_nul(&buffer) {
        Ok(text) if status == 0 => text.to_string_lossy().replace(char::is_control, ""),
        _ => String::new(),
    }
}

fn uuid(cuda: &CudaTable, ordinal: Ordinal, name: &str) -> String {
    let mut bytes = [0_u8; 16];
    // SAFETY: the output outlives the call.
    if unsafe { (cuda.device_get_uuid)(&raw mut bytes, ordinal) } != 0 {
        return String::new();
    }
    // From CUDA 11.4 on a MIG instance has its own UUID, but only its name says that it is one.
    let kind = if name.contains(" MIG ") { "MIG" } else { "GPU" };
    uuid_text(kind, bytes)
}

fn uuid_text(kind: &str, bytes: [u8; 16]) -> String {
    let mut text = kind.to_owned();
    for (position, byte) in bytes.iter().enumerate() {
        if matches!(position, 0 | 4 | 6 | 8 | 10) {
            text.push('-');
        }
        text.push_str(&format!("{byte:02x}"));
    }
    text
}

/// The driver's PCI address in the kernel's form: lower case, four-digit domain. Empty if it is
/// malformed, since it becomes part of a path.
fn pci_address(text: &str) -> String {
    let lower = text.to_ascii_lowercase();
    let (numbers, marks) = ("0123456789abcdef", ":.");
    if !lower.chars().all(|c| numbers.contains(c) || marks.contains(c)) || lower.contains("..") {
        return String::new();
    }
    match lower.split_once(':') {
        Some((domain, rest)) if domain.len() > 4 => {
            let domain = domain.trim_start_matches('0');
            format!("{domain:0>4}:{rest}")
        }
        _ => lower,
    }
}

fn driver_version(cuda: &CudaTable) -> String {
    let module = fs::read_to_string("/sys/module/nvidia/version").ok();
    let version = module
        .map(|text| text.trim().to_owned())
        .or_else(|| parse_proc_version(&fs::read_to_string("/proc/driver/nvidia/version").ok()?));
    version.filter(|text| !text.is_empty()).unwrap_or_else(|| {
        cuda.cuda_version().map(|cuda| format!("CUDA {}", version_text(cuda))).unwrap_or_default()
    })
}

/// The version in `/proc/driver/nvidia/version`: the first line's first word of digits and dots.
fn parse_proc_version(text: &str) -> Option<String> {
    let version = |word: &&str| {
        word.contains('.') && word.bytes().all(|byte| byte.is_ascii_digit() || byte == b'.')
    };
    text.lines().next()?.split_whitespace().find(version).map(str::to_owned)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn driver_versions_of_both_kernel_modules_are_found() {
        let closed =
            "NVRM version: NVIDIA UNIX x86_64 Kernel Module  580.159.03  Tue Oct 7\nGCC 9.1";
        let open = "NVRM version: NVIDIA UNIX Open Kernel Module for aarch64  570.86.10  Release";
        assert_eq!(parse_proc_version(closed).as_deref(), Some("580.159.03"));
        assert_eq!(parse_proc_version(open).as_deref(), Some("570.86.10"));
        assert_eq!(parse_proc_version("nothing"), None);
    }

    #[test]
    fn pci_addresses_are_written_as_the_kernel_does() {
        assert_eq!(pci_address("0000:1B:00.0"), "0000:1b:00.0");
        assert_eq!(pci_address("00000000:1B:00.0"), "0000:1b:00.0");
        assert_eq!(pci_address("00010001:1B:00.0"), "10001:1b:00.0");
        for none in ["", "../../etc", "0000:1B:00.0\u{1b}", "/etc", "..", "0000:..:00"] {
            assert_eq!(pci_address(none), "");
        }
    }

    #[test]
    fn uuids_are_grouped() {
        let bytes = std::array::from_fn(|n| u8::try_from(n * 17).unwrap());
        assert_eq!(uuid_text("GPU", bytes), "GPU-00112233-4455-6677-8899-aabbccddeeff");
    }
}
