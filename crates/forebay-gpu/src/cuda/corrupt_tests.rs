//! Tests that the CUDA device turns impossible driver answers into errors.

#![expect(unsafe_code, reason = "copies by raw address")]

use std::ptr::NonNull;
use std::sync::atomic::Ordering;

use super::device::CudaDevice;
use super::query;
use super::table::CudaTable;
use crate::cuda::mock::corrupt::{
    ADDRESSES, BLAMED, BLAMES, COUNTS, ENDLESS, HOSTILE, MEMORY, NO_CONTEXT, NO_EVENT, NO_FUNCTION,
    NO_MODULE, NO_STREAM, TINY, answer, seed,
};
use crate::cuda::mock::{PLAIN, loaded, stack};
use crate::{Device, DeviceCopy, DeviceError, DeviceId, DeviceKind, check_range};

const INDEX: u32 = PLAIN[3];

fn open(table: &'static CudaTable) -> CudaDevice {
    CudaDevice::open_with(table, INDEX).unwrap()
}

#[track_caller]
fn assert_nonsense<T: std::fmt::Debug>(result: Result<T, DeviceError>, text: &str) {
    let error = result.unwrap_err();
    assert_eq!(error.to_string(), text);
    assert!(stack().is_empty(), "a context stayed");
}

#[test]
fn handles_that_are_none_are_refused() {
    assert_nonsense(
        CudaDevice::open_with(&NO_CONTEXT, INDEX),
        "cuDevicePrimaryCtxRetain: NONSENSE (-1): the driver reports success, and gives no context",
    );
    assert_nonsense(
        open(&NO_STREAM).create_stream(),
        "cuStreamCreateWithPriority: NONSENSE (-1): the driver reports success, and gives no \
         stream",
    );
    assert_nonsense(
        open(&NO_EVENT).create_event(),
        "cuEventCreate: NONSENSE (-1): the driver reports success, and gives no event",
    );
    let xor = |table| {
        let device = open(table);
        let (stream, memory) = (device.create_stream().unwrap(), device.allocate(64).unwrap());
        // SAFETY: nothing is queued.
        unsafe { device.xor(stream, memory, 1, 64) }
    };
    assert_nonsense(
        xor(&NO_MODULE),
        "cuModuleLoadData: NONSENSE (-1): the driver reports success, and gives no module",
    );
    assert_nonsense(
        xor(&NO_FUNCTION),
        "cuModuleGetFunction: NONSENSE (-1): the driver reports success, and gives no function",
    );
    assert_eq!(loaded(), 0, "a module stayed");
}

#[test]
fn counts_that_cannot_be_are_refused() {
    for count in [-1, i64::from(i32::MIN), 4097, 1_000_000_000, i64::from(i32::MAX)] {
        answer(count);
        assert_nonsense(
            query::all(&COUNTS),
            &format!(
                "cuDeviceGetCount: NONSENSE (-1): the driver reports success, and {count} GPUs"
            ),
        );
    }
    answer(0);
    assert_eq!(query::all(&COUNTS).unwrap(), []);
    answer(5);
    assert_eq!(query::all(&COUNTS).unwrap().len(), 5);
}

#[test]
fn texts_without_an_end_and_sizes_without_a_bound_do_no_harm() {
    for size in [0, -1, i64::MAX, i64::MIN] {
        answer(size);
        let (_, info) = query::one(&ENDLESS, INDEX).unwrap();
        assert_eq!((info.name.as_str(), info.pci_address.as_str()), ("", ""));
        assert_eq!(info.memory, size.cast_unsigned());
    }
    let (_, info) = query::one(&HOSTILE, INDEX).unwrap();
    assert_eq!(info.name, "../[2J/etc\u{fffd}");
    assert_eq!(info.pci_address, "");
}

#[test]
fn memory_that_cannot_be_is_refused() {
    for address in [0, u64::MAX, u64::MAX - 99] {
        answer(address.cast_signed());
        let text = "cuMemAlloc: NONSENSE (-1): the driver reports success, and gives 100 bytes at";
        assert_nonsense(open(&MEMORY).allocate(100), &format!("{text} {address:#x}"));
    }
}

#[test]
fn invalid_answers_about_addresses_are_bounded() {
    let device = open(&ADDRESSES);
    let id = DeviceId { kind: DeviceKind::Cuda, index: INDEX };
    assert_eq!(device.id(), id);
    let (mut taken, mut refused) = (0, 0);
    for number in 0..5_000 {
        seed(number);
        let address = [0, 8, 1 << 40, u64::MAX - 10][usize::try_from(number % 4).unwrap()];
        for len in [0, 1, 4096, u64::MAX] {
            match check_range(&device, device.address_kind(address), address, len) {
                Ok(()) => taken += 1,
                Err(reason) => {
                    refused += 1;
                    assert!(!reason.to_string().is_empty());
                }
            }
        }
    }
    // Some random answers are valid by accident.
    assert!(taken * 50 < refused, "{taken} were believed, {refused} were not");
    assert!(stack().is_empty());
}

#[test]
fn mappings_that_never_end_are_given_up() {
    let device = open(&TINY);
    let check = |len| check_range(&device, device.address_kind(1 << 40), 1 << 40, len);
    let refusal = check(1 << 40).unwrap_err();
    let text = refusal.to_string();
    assert!(text.ends_with("is GPU memory whose bounds the driver does not report"), "{text}");
    check(1000).unwrap();
}

#[test]
fn a_batch_with_an_unknown_copy_is_an_error_as_well() {
    let device = open(&BLAMES);
    let (stream, memory) = (device.create_stream().unwrap(), device.allocate(64).unwrap());
    let mut bytes = [0_u8; 64];
    let host = NonNull::new(bytes.as_mut_ptr()).unwrap();
    let copies = [DeviceCopy { host, device: memory, len: 32 }; 2];
    for index in [1, 2, 3, usize::MAX - 1, usize::MAX, 1 << 63] {
        BLAMED.store(index, Ordering::SeqCst);
        // SAFETY: this driver copies nothing.
        let error = unsafe { device.copy_batch_to_device(stream, &copies) }.unwrap_err();
        assert_eq!((error.call, error.code), ("cuMemcpyBatchAsync", 1));
        assert_eq!(error.detail.contains("copy 1 of 2"), index == 1, "{}", error.detail);
    }
    assert!(stack().is_empty());
}
