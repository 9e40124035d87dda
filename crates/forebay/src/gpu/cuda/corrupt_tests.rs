//! Tests that the CUDA device turns impossible driver answers into errors.

#![expect(unsafe_code, reason = "copies by raw address")]

use std::fs;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::device::CudaDevice;
use super::info;
use super::table::CudaTable;
use crate::engine::Engine;
use crate::error::Error;
use crate::gpu::cuda::mock::corrupt::{
    ADDRESSES, BLAMED, BLAMES, COUNTS, ENDLESS, EVENTS, HOSTILE, MEMORY, NO_CONTEXT, NO_EVENT,
    NO_FUNCTION, NO_MODULE, NO_STREAM, STATUSES, STREAMS, TINY, answer, seed,
};
use crate::gpu::cuda::mock::{PLAIN, loaded, stack};
use crate::gpu::{Device, DeviceCopy, DeviceError, DeviceId, DeviceKind, check_range};
use crate::options::Options;

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
            info::all(&COUNTS),
            &format!(
                "cuDeviceGetCount: NONSENSE (-1): the driver reports success, and {count} GPUs"
            ),
        );
    }
    answer(0);
    assert_eq!(info::all(&COUNTS).unwrap(), []);
    answer(5);
    assert_eq!(info::all(&COUNTS).unwrap().len(), 5);
}

#[test]
fn texts_without_an_end_and_sizes_without_a_bound_do_no_harm() {
    for size in [0, -1, i64::MAX, i64::MIN] {
        answer(size);
        let (_, info) = info::one(&ENDLESS, INDEX).unwrap();
        assert_eq!((info.name.as_str(), info.pci_address.as_str()), ("", ""));
        assert_eq!(info.memory, size.cast_unsigned());
        let device: Arc<dyn Device> = Arc::new(open(&ENDLESS));
        Engine::new(Options::default()).unwrap().add_device(&device).unwrap();
    }
    let (_, info) = info::one(&HOSTILE, INDEX).unwrap();
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

/// An engine with one GPU of this driver, and a file a few slots long.
fn engine(table: &'static CudaTable) -> (Engine, Arc<dyn Device>, tempfile::TempDir) {
    let options = Options { slot_size: 1 << 20, segment_size: 64 << 10, ..Options::default() };
    let engine = Engine::new(options).unwrap();
    let device: Arc<dyn Device> = Arc::new(open(table));
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("file"), vec![7; 5 << 20]).unwrap();
    (engine, device, folder)
}

#[test]
fn an_engine_reports_nonsense_and_continues() {
    // Without streams the device cannot be added.
    let (lacking, device, _folder) = engine(&NO_STREAM);
    let error = lacking.add_device(&device).unwrap_err();
    assert!(error.to_string().contains(&device.id().to_string()), "{error}");
    // Without events no copy is known to be done, and none is assumed to be.
    let (engine, device, folder) = engine(&NO_EVENT);
    engine.add_device(&device).unwrap();
    let file = engine.open(folder.path().join("file")).unwrap();
    let error = file.read_to_end(Some(device.id())).run().unwrap_err();
    assert!(matches!(&error, Error::Device { source, .. } if source.is_nonsense()), "{error}");
    assert!(error.hint().is_some_and(|hint| hint.contains("`nvidia-smi`")));
    assert!(file.read_to_end(None).run().unwrap().0.as_slice() == Some(&[7; 5 << 20][..]));
}

#[test]
fn statuses_that_do_not_exist_are_errors() {
    for status in [-1, 12_345, i32::MIN, i32::MAX] {
        let (engine, device, folder) = engine(&STATUSES);
        engine.add_device(&device).unwrap();
        let file = engine.open(folder.path().join("file")).unwrap();
        let buffer = engine.allocate(device.id(), 5 << 20).unwrap();
        let (result, buffer) = file.read(buffer).exact().start().unwrap().wait();
        assert_eq!(result.unwrap().bytes, 5 << 20);
        // If an event fails, the copy failed, but its stream reports that it is over.
        EVENTS.store(status, Ordering::SeqCst);
        let buffer = buffer.unwrap();
        let (result, buffer) = file.read(buffer).exact().start().unwrap().wait();
        let error = result.unwrap_err();
        let Error::Device { source, .. } = &error else { panic!("{error:?}") };
        assert_eq!((source.code, source.name.clone()), (status, format!("CUDA_ERROR_{status}")));
        // If the stream fails too, it is unknown whether the copy is over.
        STREAMS.store(status, Ordering::SeqCst);
        let buffer = buffer.expect("a copy that is over gives the memory back");
        let (result, buffer) = file.read(buffer).exact().start().unwrap().wait();
        assert!(matches!(result, Err(Error::CopyNotOver { .. })), "{result:?}");
        assert!(buffer.is_none());
        assert!(file.read_to_end(None).run().unwrap().0.as_slice() == Some(&[7; 5 << 20][..]));
        EVENTS.store(0, Ordering::SeqCst);
        STREAMS.store(0, Ordering::SeqCst);
    }
}
