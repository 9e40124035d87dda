//! Properties of GPUs that the driver reports without a context.

#![expect(unsafe_code, reason = "calls the driver")]

use std::ffi::{CStr, c_char, c_int};
use std::fs;

use super::table::nonsense;
use super::table::{CudaTable, Ordinal, Status, version_text};
use crate::{DeviceId, DeviceInfo, DeviceKind, DeviceResult};

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
