//! The CUDA device against the simulated driver: contexts, handles, errors, filling the table.

#![expect(unsafe_code, reason = "copies by raw address, and mocks a C library")]

use std::ffi::{c_char, c_int};
use std::ptr::{self, NonNull};

use super::device::CudaDevice;
use super::table::{CudaTable, Opaque, Resolver, Status};
use super::{query, table};
use crate::cuda::mock::{
    Capture, FAILING, OLD, PART, PLAIN, RESET, RESOLVER, SLOW, SMALL, SimulatedAddress, TABLE,
    calls, loaded, mapped, play, push, reset, retained, stack, swap_mode,
};
use crate::{
    AddressKind, BATCH_MAX, CallerStream, Device, DeviceCopy, DeviceError, DeviceKind, Event,
    Signal, Stream,
};

fn open(index: u32) -> CudaDevice {
    CudaDevice::open_with(&TABLE, index).unwrap()
}

fn name(result: Result<(), DeviceError>) -> String {
    result.expect_err("it must be refused").name
}

#[test]
fn a_missing_library_is_named() {
    let reason = CudaTable::load("libcuda-missing.so.1").unwrap_err();
    assert_eq!(reason, "no NVIDIA driver found (libcuda-missing.so.1)");
    let message =
        |name| format!("{name}: cannot open shared object file: No such file or directory");
    assert!(table::is_missing("libcuda.so.1", &message("libcuda.so.1")));
    assert!(!table::is_missing("libcuda.so.1", &message("libneeded.so.2")));
}

#[test]
fn a_reset_gpu_is_lost_and_its_next_context_is_not_touched() {
    let index = RESET[1];
    for is_used_again in [false, true] {
        let device = open(index);
        let (stream, event) = (device.create_stream().unwrap(), device.create_event().unwrap());
        let (timer, target) = (device.create_timer().unwrap(), device.allocate(4096).unwrap());
        // Leaked, since it stays registered.
        let pointer = NonNull::from(Box::leak(Box::new([0_u8; 4096]))).cast();
        // SAFETY: the memory outlives the registration.
        unsafe { device.register(pointer, 4096) }.unwrap();
        reset(index);
        let other = is_used_again.then(|| open(index));
        assert!(other.iter().all(|other| other.memory().is_ok()), "its context is another one");
        let before = calls(index);
        let copies = [DeviceCopy { host: pointer, device: target, len: 4096 }; 2];
        // SAFETY: nothing is queued; the device refuses each call.
        let refused = unsafe {
            [
                device.memory().map(drop),
                device.allocate(4096).map(drop),
                device.free(target),
                device.register(pointer, 4096),
                device.unregister(pointer),
                device.create_stream().map(drop),
                device.create_event().map(drop),
                device.copy_to_device(stream, target, pointer, 4096),
                device.copy_to_host(stream, pointer, target, 4096),
                device.copy_batch_to_device(stream, &copies),
                device.copy_batch_to_host(stream, &copies),
                device.fill(stream, target, 1, 4096),
                device.xor(stream, target, 1, 4096),
                device.record(event, stream),
                device.is_done(event).map(drop),
                device.wait_event(stream, event),
                device.synchronize(stream),
                device.elapsed(timer, timer).map(drop),
                device.wait_number(stream, pointer.cast(), 1),
                device.write_number(stream, pointer.cast(), 1),
                device.is_capturing(CallerStream(0)).map(drop),
                device.is_idle(CallerStream(0)).map(drop),
                device.within(&mut || panic!("the context is gone")),
                device.destroy_event(event),
                device.destroy_stream(stream),
            ]
        };
        for (number, refused) in refused.into_iter().enumerate() {
            let error = refused.expect_err("a reset GPU");
            assert!(error.is_loss() && error.detail.contains("reset"), "{number}: {error}");
        }
        drop(device);
        assert_eq!(calls(index), before, "the driver is not called");
        assert_eq!(retained(index), i32::from(is_used_again));
    }
}

#[test]
fn a_library_that_cannot_be_loaded_is_not_called_missing() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("libcuda.so.1");
    std::fs::write(&path, "no library").unwrap();
    let reason = CudaTable::load(path.to_str().unwrap()).unwrap_err();
    assert!(reason.starts_with("cannot load the NVIDIA driver: /"), "{reason}");
}

#[test]
fn a_library_that_is_no_driver_is_refused() {
    let reason = CudaTable::load("libm.so.6").unwrap_err();
    assert!(reason.contains("`libm.so.6` has no cuGetProcAddress"), "{reason}");
}

#[test]
fn the_table_is_filled_by_name() {
    let filled = CudaTable::start(&RESOLVER).unwrap();
    assert_eq!(filled.entries(), TABLE.entries());
    let batch = |table: &CudaTable| table.memcpy_batch_async.map(|function| function as Opaque);
    assert_eq!(batch(&filled), batch(&TABLE));
    assert!(batch(&filled).is_some());
    let kernels = |table: &CudaTable| {
        let kernels = table.kernels.unwrap();
        let (load, get) =
            (kernels.module_load_data as Opaque, kernels.module_get_function as Opaque);
        (load, get, kernels.module_unload as Opaque, kernels.launch_kernel as Opaque)
    };
    assert_eq!(kernels(&filled), kernels(&TABLE));
}

unsafe extern "C" fn knows_nothing(_: *const c_char, _: *mut Opaque, _: c_int, _: u64) -> Status {
    500
}

unsafe extern "C" fn is_a_stub(
    _: *const c_char,
    _: *mut Opaque,
    _: c_int,
    _: u64,
    _: *mut c_int,
) -> Status {
    34
}

#[test]
fn a_driver_without_functions_says_so() {
    let reason = CudaTable::start(&Resolver::First(knows_nothing)).unwrap_err();
    assert_eq!(reason, "the driver has no `cuInit` (error 500)");
    let reason = CudaTable::start(&Resolver::Second(is_a_stub)).unwrap_err();
    assert!(reason.contains("CUDA_ERROR_STUB_LIBRARY"), "{reason}");
}

#[test]
fn errors_carry_the_drivers_own_words() {
    let error = TABLE.error("cuMemAlloc", 2);
    assert_eq!(error.to_string(), "cuMemAlloc: CUDA_ERROR_OUT_OF_MEMORY (2): out of memory");
    let error = TABLE.error("cuInit", 12_345);
    assert_eq!(error.to_string(), "cuInit: CUDA_ERROR_12345 (12345)");
    assert_eq!(TABLE.error("cuInit", 34).name, "CUDA_ERROR_STUB_LIBRARY");
    assert_eq!(table::version_text(12_080), "12.8");
}

#[test]
fn gpus_are_described() {
    let gpus = query::all(&TABLE).unwrap();
    assert_eq!(gpus.len(), 15);
    assert_eq!(gpus[1].id.to_string(), "cuda:1");
    assert_eq!(gpus[1].name, "Simulated H200");
    assert_eq!(gpus[1].uuid, "GPU-01010101-0101-0101-0101-010101010101");
    assert_eq!(gpus[1].pci_address, "0000:a1:00.0");
    assert_eq!(gpus[SMALL as usize].memory, 1 << 20);
    assert!(gpus[PART as usize].uuid.starts_with("MIG-09090909-"));
    assert!(!gpus[1].driver.is_empty());
    let error = CudaDevice::open_with(&TABLE, u32::MAX).unwrap_err();
    assert_eq!(error.name, "CUDA_ERROR_INVALID_DEVICE");
}

#[test]
fn the_primary_context_is_kept_as_long_as_the_device() {
    let index = PLAIN[0];
    let (first, second) = (open(index), open(index));
    assert_eq!(retained(index), 2);
    drop(first);
    assert_eq!(retained(index), 1);
    second.allocate(16).unwrap();
    drop(second);
    assert_eq!(retained(index), 0);
    assert!(stack().is_empty());
}

#[test]
fn bytes_go_there_and_back_and_the_stack_stays_as_it_was() {
    let [ours, callers] = [PLAIN[1], PLAIN[2]];
    let (device, callers_device) = (open(ours), open(callers));
    let mut bytes: Vec<u8> = (0..=255).cycle().take(100_000).collect();
    let expected = bytes.clone();
    let start = NonNull::new(bytes.as_mut_ptr()).unwrap();
    let len = bytes.len();
    // No context, another GPU's, and ours: each is restored after the call.
    for given in [None, Some(callers), Some(ours)] {
        if let Some(index) = given {
            push(index);
        }
        let before = stack();
        let stream = device.create_stream().unwrap();
        let event = device.create_event().unwrap();
        let memory = device.allocate(len as u64).unwrap();
        // SAFETY: the vector stays where it is; every copy is waited for.
        unsafe {
            device.register(start, len).unwrap();
            device.copy_to_device(stream, memory, start, len).unwrap();
            device.record(event, stream).unwrap();
            device.wait_event(stream, event).unwrap();
            device.synchronize(stream).unwrap();
            bytes.fill(0);
            device.copy_to_host(stream, start, memory, len).unwrap();
            device.synchronize(stream).unwrap();
            assert!(bytes == expected);
            device.fill(stream, memory, 3, len as u64).unwrap();
            device.fill(stream, memory, 4, 0).unwrap();
            device.copy_to_host(stream, start, memory, len).unwrap();
            device.synchronize(stream).unwrap();
            assert!(bytes.iter().all(|&byte| byte == 3));
            bytes.copy_from_slice(&expected);
            device.unregister(start).unwrap();
            device.free(memory).unwrap();
        }
        assert!(device.is_done(event).unwrap());
        assert_eq!(device.memory().unwrap(), (16 << 30, 16 << 30));
        device.destroy_event(event).unwrap();
        device.destroy_stream(stream).unwrap();
        assert_eq!(stack(), before);
    }
    drop((device, callers_device));
    assert_eq!(stack(), [callers as usize, ours as usize]);
}

/// Copies between pieces of host memory and GPU memory, in the opposite order on the GPU.
fn reversed(host: NonNull<u8>, memory: u64, lens: &[usize]) -> Vec<DeviceCopy> {
    let (mut before, mut behind) = (0, lens.iter().sum::<usize>());
    let next = |&len: &usize| {
        behind -= len;
        // SAFETY: inside the caller's memory, which is as long as all pieces.
        let host = unsafe { host.add(before) };
        before += len;
        DeviceCopy { host, device: memory + behind as u64, len }
    };
    lens.iter().map(next).collect()
}

#[test]
fn batches_move_every_byte_with_and_without_the_drivers_help() {
    // Two groups and a half, with some zero-length copies.
    let lens: Vec<usize> = (0..2 * BATCH_MAX + 300).map(|index| index * 7 % 40).collect();
    let len = lens.iter().sum();
    for (table, has) in [(&TABLE, true), (&OLD, false)] {
        let device = CudaDevice::open_with(table, PLAIN[5]).unwrap();
        assert_eq!(device.has_batches(), has);
        let mut bytes: Vec<u8> = (0..=250).cycle().take(len).collect();
        let expected = bytes.clone();
        let start = NonNull::new(bytes.as_mut_ptr()).unwrap();
        let (stream, memory) =
            (device.create_stream().unwrap(), device.allocate(len as u64).unwrap());
        let copies = reversed(start, memory, &lens);
        // SAFETY: the vector stays where it is, and what is queued is waited for.
        unsafe {
            device.register(start, len).unwrap();
            device.copy_batch_to_device(stream, &copies).unwrap();
            device.synchronize(stream).unwrap();
            bytes.fill(0);
            device.copy_batch_to_host(stream, &copies).unwrap();
            device.synchronize(stream).unwrap();
            assert!(bytes == expected);
            // On the GPU the pieces are in the opposite order.
            device.copy_to_host(stream, start, memory, lens[lens.len() - 1]).unwrap();
            device.synchronize(stream).unwrap();
            assert_eq!(bytes[..9], expected[len - lens[lens.len() - 1]..][..9]);
            device.copy_batch_to_device(stream, &[]).unwrap();
            device.copy_batch_to_host(stream, &[DeviceCopy { len: 0, ..copies[1] }]).unwrap();
            device.unregister(start).unwrap();
            device.free(memory).unwrap();
        }
        device.destroy_stream(stream).unwrap();
    }
    assert!(stack().is_empty());
}

#[test]
fn a_kernel_gathers_pieces_in_memory_of_its_context() {
    let lens: Vec<usize> = (0..BATCH_MAX + 300).map(|index| index * 7 % 300 * 16).collect();
    let len: usize = lens.iter().sum();
    let device = open(PLAIN[5]);
    let mut bytes: Vec<u8> = (0..=250).cycle().take(len + 32).collect();
    let start = NonNull::new(bytes.as_mut_ptr()).unwrap();
    let words = NonNull::new(Box::into_raw(Box::new([0_u32; 2]))).unwrap().cast::<u32>();
    let (stream, memory) =
        (device.create_urgent_stream().unwrap(), device.allocate(len as u64).unwrap());
    let gathers = |number, copies: &[DeviceCopy]| {
        let mut got = vec![0_u8; len];
        let pointer = NonNull::new(got.as_mut_ptr()).unwrap();
        // SAFETY: all memory outlives the work, which is waited for.
        unsafe {
            device.fill(stream, memory, 0xEE, len as u64).unwrap();
            let is_kernel = device.gathers(copies);
            if is_kernel {
                device.gather(stream, copies, Signal { words, number }).unwrap();
            }
            device.register(pointer, len).unwrap();
            device.copy_to_host(stream, pointer, memory, len).unwrap();
            device.synchronize(stream).unwrap();
            device.unregister(pointer).unwrap();
            assert_eq!(words.read_volatile() == number, is_kernel, "{number}");
            let is_there = copies.iter().all(|copy| {
                let at = usize::try_from(copy.device - memory).unwrap();
                got[at..][..copy.len] == *std::slice::from_raw_parts(copy.host.as_ptr(), copy.len)
            });
            (is_kernel, is_there)
        }
    };
    // SAFETY: the box outlives the registration, and the place is inside.
    let even = unsafe {
        device.register(start, bytes.len()).unwrap();
        start.add((16 - start.addr().get() % 16) % 16)
    };
    let copies = reversed(even, memory, &lens);
    assert_eq!(gathers(9, &copies), (false, false), "it is not loaded");
    device.load_gather();
    assert_eq!(gathers(1, &copies), (true, true));
    // SAFETY: no kernel runs.
    unsafe { words.add(1).write_volatile(4) };
    assert_eq!(gathers(4, &copies), (true, false), "it was withdrawn before it began");
    // More allocations than are kept, in turn; the bounds of one that is freed are not kept.
    let mut parts = [(); 50].map(|()| device.allocate(64).unwrap());
    let in_turn: Vec<DeviceCopy> = (0..BATCH_MAX)
        .map(|at| DeviceCopy { host: even, device: parts[at % 50], len: 64 })
        .collect();
    assert!(device.gathers(&in_turn));
    // SAFETY: nothing is queued on it.
    unsafe { device.free(parts[7]) }.unwrap();
    parts[7] = 0;
    assert!(!device.gathers(&in_turn));
    // SAFETY: as above.
    parts.iter().filter(|at| **at > 0).for_each(|at| unsafe { device.free(*at) }.unwrap());
    // Mapped memory belongs to no context.
    play(memory, len as u64, SimulatedAddress::Mapping { ordinal: 5, accessible: true });
    assert_eq!(gathers(5, &copies), (false, false));
    // SAFETY: nothing is queued on it, and it came from a box.
    unsafe {
        device.unregister(start).unwrap();
        drop(Box::from_raw(words.cast::<[u32; 2]>().as_ptr()));
    }
    device.destroy_stream(stream).unwrap();
}

#[test]
fn a_refused_batch_names_the_copy() {
    let device = open(PLAIN[6]);
    let mut bytes = vec![1_u8; 64];
    let start = NonNull::new(bytes.as_mut_ptr()).unwrap();
    let (stream, memory) = (device.create_stream().unwrap(), device.allocate(64).unwrap());
    let mut copies = reversed(start, memory, &[16, 16, 32]);
    copies[2].device = 0x1234;
    // SAFETY: the stream is waited for, and the driver refuses unknown addresses.
    unsafe {
        device.register(start, 64).unwrap();
        let error = device.copy_batch_to_device(stream, &copies).unwrap_err();
        assert_eq!(
            (error.call, error.name.as_str()),
            ("cuMemcpyBatchAsync", "CUDA_ERROR_INVALID_VALUE")
        );
        let place = format!("copy 2 of 3, {:#x} to 0x1234+32", start.addr().get() + 32);
        assert_eq!(error.detail, place);
        let unknown = device.copy_batch_to_host(Stream(0), &copies).unwrap_err();
        assert_eq!(unknown.name, "CUDA_ERROR_INVALID_HANDLE");
        device.synchronize(stream).unwrap();
        device.unregister(start).unwrap();
    }
}

#[test]
fn a_copy_that_is_not_done_is_not_reported_as_done() {
    let device = open(SLOW);
    let mut bytes = vec![0_u8; 64];
    let start = NonNull::new(bytes.as_mut_ptr()).unwrap();
    let (stream, event) = (device.create_stream().unwrap(), device.create_event().unwrap());
    let memory = device.allocate(64).unwrap();
    // SAFETY: the copy never runs: its link takes a minute, and the memory outlives the test.
    unsafe {
        device.register(start, 64).unwrap();
        device.copy_to_device(stream, memory, start, 64).unwrap();
    }
    device.record(event, stream).unwrap();
    assert_eq!(device.is_done(event), Ok(false));
    std::mem::forget(bytes);
}

#[test]
fn errors_of_the_driver_come_back_by_name() {
    let device = open(SMALL);
    assert_eq!(device.allocate(2 << 20).unwrap_err().name, "CUDA_ERROR_OUT_OF_MEMORY");
    assert_eq!(device.allocate(u64::MAX).unwrap_err().call, "cuMemAlloc");
    assert!(stack().is_empty());
    let device = open(FAILING);
    let mut bytes = vec![0_u8; 64];
    let start = NonNull::new(bytes.as_mut_ptr()).unwrap();
    let (stream, event) = (device.create_stream().unwrap(), device.create_event().unwrap());
    let memory = device.allocate(64).unwrap();
    // SAFETY: the copies are waited for, or refused.
    unsafe {
        let unregistered = device.copy_to_device(stream, memory, start, 64);
        assert_eq!(name(unregistered), "CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED");
        device.register(start, 64).unwrap();
        let twice = device.register(start, 64);
        assert_eq!(name(twice), "CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED");
        device.copy_to_device(stream, memory, start, 64).unwrap();
        device.record(event, stream).unwrap();
        assert_eq!(device.is_done(event).unwrap_err().name, "CUDA_ERROR_LAUNCH_FAILED");
        device.unregister(start).unwrap();
    }
    assert!(stack().is_empty());
}

#[test]
fn unknown_handles_never_reach_the_driver() {
    let (device, other) = (open(PLAIN[3]), open(PLAIN[3]));
    let (stream, event) = (other.create_stream().unwrap(), other.create_event().unwrap());
    let own_event = device.create_event().unwrap();
    for bad in [stream, Stream(0), Stream(u64::MAX)] {
        assert_eq!(name(device.synchronize(bad)), "CUDA_ERROR_INVALID_HANDLE");
        assert_eq!(name(device.destroy_stream(bad)), "CUDA_ERROR_INVALID_HANDLE");
        assert_eq!(name(device.record(own_event, bad)), "CUDA_ERROR_INVALID_HANDLE");
    }
    for bad in [event, Event(0), Event(8)] {
        let error = device.is_done(bad).unwrap_err();
        assert_eq!((error.call, error.code), ("cuEventQuery", 400));
        assert_eq!(name(device.destroy_event(bad)), "CUDA_ERROR_INVALID_HANDLE");
    }
    other.destroy_stream(stream).unwrap();
    assert_eq!(name(other.synchronize(stream)), "CUDA_ERROR_INVALID_HANDLE");
}

#[test]
fn addresses_are_known_for_what_they_are() {
    let index = PLAIN[4];
    let device = open(index);
    let mut bytes = vec![0_u8; 64];
    let start = NonNull::new(bytes.as_mut_ptr()).unwrap();
    let number = start.addr().get() as u64;
    assert_eq!(device.address_kind(number), AddressKind::Unknown);
    // SAFETY: the vector outlives the registration.
    unsafe { device.register(start, 64).unwrap() };
    assert_eq!(device.address_kind(number + 63), AddressKind::PinnedHost);
    // SAFETY: nothing is queued on it.
    unsafe { device.unregister(start).unwrap() };
    let memory = device.allocate(4096).unwrap();
    let AddressKind::Device { device: found, base, len } = device.address_kind(memory + 4095)
    else {
        panic!("it is device memory");
    };
    assert_eq!((found.kind, found.index, base, len), (DeviceKind::Cuda, index, memory, 4096));
    assert_eq!(device.address_kind(ptr::null::<u8>().addr() as u64), AddressKind::Unknown);
}

#[test]
fn mapped_memory_has_the_length_that_the_driver_knows() {
    let device = open(PLAIN[4]);
    let address = device.allocate(4096).unwrap();
    let handle = device.share(address).unwrap();
    assert_eq!(device.map_shared(handle).unwrap(), (address, 4096));
    let part = device.share(address + 512).unwrap();
    assert_eq!(device.map_shared(part).unwrap(), (address + 512, 3584));
    for mapped in [address, address + 512] {
        // SAFETY: nothing is queued on it.
        unsafe { device.unmap_shared(mapped).unwrap() };
    }
    let unknown = device.map_shared([0; 64]).expect_err("no memory begins at 0");
    assert!(unknown.is_nonsense() && unknown.detail.contains("unknown length"), "{unknown}");
    assert_eq!(mapped(), 0, "also what was refused is closed");
}

/// Copies patterned bytes to the device and back, with `work` in between; returns both versions.
fn before_and_after(
    device: &CudaDevice,
    len: usize,
    work: impl FnOnce(Stream, u64),
) -> (Vec<u8>, Vec<u8>) {
    let before: Vec<u8> = (0..len).map(|at| u8::try_from(at * at % 251).unwrap()).collect();
    let mut bytes = before.clone();
    let start = NonNull::new(bytes.as_mut_ptr()).unwrap();
    let (stream, memory) = (device.create_stream().unwrap(), device.allocate(len as u64).unwrap());
    // SAFETY: the vector stays where it is, and every copy is waited for.
    unsafe {
        device.register(start, len).unwrap();
        device.copy_to_device(stream, memory, start, len).unwrap();
        work(stream, memory);
        device.copy_to_host(stream, start, memory, len).unwrap();
        device.synchronize(stream).unwrap();
        device.unregister(start).unwrap();
        device.free(memory).unwrap();
    }
    device.destroy_stream(stream).unwrap();
    (before, bytes)
}

#[test]
fn a_kernel_takes_every_word_once() {
    const KEY: u64 = 0x0123_4567_89AB_CDEF;
    let device = open(PLAIN[8]);
    for (from, words) in [(0, 2), (16, 2), (16, 500), (32, 9998), (16, 100_000)] {
        let len = 8 * words;
        let (before, after) = before_and_after(&device, from + len + 16, |stream, memory| {
            // SAFETY: inside the memory, and waited for.
            unsafe { device.xor(stream, memory + from as u64, KEY, len as u64) }.unwrap();
        });
        let key = KEY.to_ne_bytes();
        for (at, (before, after)) in before.iter().zip(&after).enumerate() {
            let inside = (from..from + len).contains(&at);
            assert_eq!(*after, if inside { before ^ key[at % 8] } else { *before }, "{at}");
        }
    }
    assert_eq!(loaded(), 1, "it is compiled once");
    assert!(stack().is_empty());
    drop(device);
    assert_eq!(loaded(), 0);
}

#[test]
fn invalid_arguments_of_a_kernel_are_refused() {
    let (device, old) = (open(PLAIN[8]), CudaDevice::open_with(&OLD, PLAIN[8]).unwrap());
    let (before, after) = before_and_after(&device, 64, |stream, memory| {
        for (address, len) in [(memory + 8, 16), (memory, 8), (memory + 1, 32), (memory, 17)] {
            // SAFETY: inside the memory.
            let refused = unsafe { device.xor(stream, address, 1, len) };
            assert_eq!(refused.unwrap_err().name, "UNALIGNED");
        }
        // SAFETY: the length is zero.
        unsafe { device.xor(stream, memory, 1, 0) }.unwrap();
        // SAFETY: the simulated GPU checks the range first.
        let beyond = unsafe { device.xor(stream, memory, 1, 80) };
        assert_eq!(name(beyond), "CUDA_ERROR_INVALID_VALUE");
    });
    assert_eq!(before, after);
    before_and_after(&old, 64, |stream, memory| {
        // SAFETY: inside the memory.
        let none = unsafe { old.xor(stream, memory, 1, 64) }.unwrap_err();
        assert!(none.to_string().contains("no functions that load and start kernels"), "{none}");
    });
    assert_eq!(device.memory_rate(), Some(4_916_736_000_000));
}

#[test]
fn calls_are_relaxed_while_a_capture_is_on() {
    let capture = Capture::begin();
    for mode in [0, 1, 2] {
        swap_mode(mode);
        let device = open(PLAIN[7]);
        let (stream, event) = (device.create_stream().unwrap(), device.create_event().unwrap());
        let memory = device.allocate(64).unwrap();
        // SAFETY: the stream is waited for.
        unsafe { device.fill(stream, memory, 1, 64) }.unwrap();
        // SAFETY: as above.
        unsafe { device.xor(stream, memory, 1, 64) }.unwrap();
        device.record(event, stream).unwrap();
        device.synchronize(stream).unwrap();
        assert_eq!(device.is_done(event), Ok(true));
        assert!(device.allocate(1 << 60).is_err());
        // SAFETY: nothing is queued on it.
        unsafe { device.free(memory) }.unwrap();
        drop(device);
        assert_eq!(swap_mode(0), mode);
    }
    assert!(capture.is_whole());
    // A call outside relaxed mode is refused and invalidates the capture.
    push(PLAIN[7]);
    let mut address = 0;
    // SAFETY: the output outlives the call.
    let status = unsafe { (TABLE.mem_alloc)(&raw mut address, 64) };
    assert_eq!(TABLE.error("cuMemAlloc", status).name, "CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED");
    assert!(!capture.is_whole());
}
