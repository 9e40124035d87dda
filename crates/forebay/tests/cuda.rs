//! The CUDA device on a real GPU: skipped with the reason where there is none, and failed instead
//! under `FOREBAY_REQUIRE_GPU=1`.

#![expect(unsafe_code, reason = "copies by raw address, and calls the driver as well")]

#[cfg(test)]
#[path = "cuda/addresses.rs"]
mod addresses;
#[cfg(test)]
#[path = "cuda/capture.rs"]
mod capture;
#[cfg(test)]
#[path = "cuda/driver.rs"]
mod driver;
#[cfg(test)]
#[path = "cuda/kernels.rs"]
mod kernels;
#[cfg(test)]
#[path = "cuda/ordered.rs"]
mod ordered;

#[cfg(test)]
mod tests {
    use std::ffi::{c_int, c_uint, c_void};
    use std::ptr::{self, NonNull};
    use std::sync::Arc;
    use std::thread;
    use std::time::Duration;

    use forebay::gpu::{Device, DeviceInfo, GpuSelector, absence_reason, open, visible};
    use forebay::internal::{AddressKind, DeviceCopy, Event, Stream};

    /// The first GPU, or the test is skipped.
    pub(super) fn gpu() -> Option<Arc<dyn Device>> {
        let device = open(&GpuSelector::Auto).unwrap();
        if device.is_none() {
            let reason = absence_reason().unwrap_or_default();
            let required = std::env::var_os("FOREBAY_REQUIRE_GPU").is_some_and(|set| set == "1");
            assert!(!required, "FOREBAY_REQUIRE_GPU is 1, but no GPU: {reason}");
            println!("skipped: no GPU: {reason}");
        }
        device
    }

    pub(super) fn random(len: usize, mut state: u64) -> Vec<u8> {
        let step = || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            state.to_le_bytes()[7]
        };
        std::iter::repeat_with(step).take(len).collect()
    }

    fn start(bytes: &mut [u8]) -> NonNull<u8> {
        NonNull::new(bytes.as_mut_ptr()).unwrap()
    }

    /// To the GPU, over it with another byte on the host, and back.
    fn round_trip(device: &dyn Device, stream: Stream, len: usize, seed: u64) {
        let mut bytes = random(len, seed);
        let expected = bytes.clone();
        let memory = device.allocate(len as u64).unwrap();
        let host = start(&mut bytes);
        // SAFETY: the vector stays where it is, and every copy is waited for.
        unsafe {
            device.register(host, len).unwrap();
            device.fill(stream, memory, 0xEE, len as u64).unwrap();
            device.copy_to_device(stream, memory, host, len).unwrap();
            device.synchronize(stream).unwrap();
            bytes.fill(0);
            device.copy_to_host(stream, host, memory, len).unwrap();
            device.synchronize(stream).unwrap();
            device.unregister(host).unwrap();
            device.free(memory).unwrap();
        }
        assert!(bytes == expected, "{len} bytes of the seed {seed}");
    }

    #[test]
    fn bytes_of_every_size_go_there_and_back() {
        let Some(device) = gpu() else { return };
        let stream = device.create_stream().unwrap();
        for len in [1, 3, 4096, 65_537, 16 << 20] {
            round_trip(&*device, stream, len, len as u64);
        }
        device.destroy_stream(stream).unwrap();
    }

    #[test]
    fn batches_move_every_byte() {
        let Some(device) = gpu() else { return };
        println!("the driver has batches: {}", device.has_batches());
        const PIECES: usize = 1300;
        let stream = device.create_stream().unwrap();
        for piece in [1, 512, 4096, 9001, 65_536] {
            let len = PIECES * piece;
            let mut bytes = random(len, piece as u64);
            let expected = bytes.clone();
            let memory = device.allocate(len as u64).unwrap();
            let host = start(&mut bytes);
            // The host's pieces in a shuffled order: 7 and the number of pieces share no factor.
            let copy = |index: usize| DeviceCopy {
                // SAFETY: inside the vector.
                host: unsafe { host.add(index * 7 % PIECES * piece) },
                device: memory + (index * piece) as u64,
                len: piece,
            };
            let mut copies: Vec<_> = (0..PIECES).map(copy).collect();
            copies.insert(5, DeviceCopy { len: 0, ..copies[5] });
            // SAFETY: the vector stays where it is, and every copy is waited for.
            unsafe {
                device.register(host, len).unwrap();
                device.copy_batch_to_device(stream, &copies).unwrap();
                device.synchronize(stream).unwrap();
                bytes.fill(0);
                device.copy_to_host(stream, host, memory, len).unwrap();
                device.synchronize(stream).unwrap();
                let shuffled = bytes.chunks(piece).enumerate().all(|(index, bytes)| {
                    *bytes == expected[index * 7 % PIECES * piece..][..piece]
                });
                assert!(shuffled, "pieces of {piece}");
                bytes.fill(0);
                device.copy_batch_to_host(stream, &copies).unwrap();
                device.synchronize(stream).unwrap();
                assert!(bytes == expected, "pieces of {piece}");
                device.copy_batch_to_device(stream, &[]).unwrap();
                device.unregister(host).unwrap();
                device.free(memory).unwrap();
            }
        }
        device.destroy_stream(stream).unwrap();
    }

    #[test]
    fn threads_share_a_device() {
        let Some(device) = gpu() else { return };
        thread::scope(|scope| {
            for seed in 0..4 {
                let device = &device;
                scope.spawn(move || {
                    let stream = device.create_stream().unwrap();
                    for turn in 0..8 {
                        round_trip(&**device, stream, 1 << 20, seed * 8 + turn);
                    }
                    device.destroy_stream(stream).unwrap();
                });
            }
        });
    }

    #[test]
    fn fills_reach_every_byte_and_no_other() {
        let Some(device) = gpu() else { return };
        let stream = device.create_stream().unwrap();
        let memory = device.allocate(4096).unwrap();
        let mut bytes = vec![0_u8; 4096];
        let host = start(&mut bytes);
        // SAFETY: the vector stays where it is, and every copy is waited for.
        unsafe {
            device.register(host, 4096).unwrap();
            device.fill(stream, memory, 1, 4096).unwrap();
            device.fill(stream, memory + 7, 2, 1001).unwrap();
            device.fill(stream, memory, 3, 0).unwrap();
            device.copy_to_device(stream, memory, host, 0).unwrap();
            device.copy_to_host(stream, host, memory, 4096).unwrap();
            device.synchronize(stream).unwrap();
            device.unregister(host).unwrap();
            device.free(memory).unwrap();
        }
        let expected = |at: usize| if (7..1008).contains(&at) { 2 } else { 1 };
        assert!(bytes.iter().enumerate().all(|(at, &byte)| byte == expected(at)));
    }

    #[test]
    fn events_report_the_end_of_a_copy_and_order_streams() {
        let Some(device) = gpu() else { return };
        const LEN: usize = 64 << 20;
        let (first, second) = (device.create_stream().unwrap(), device.create_stream().unwrap());
        let (event, never) = (device.create_event().unwrap(), device.create_event().unwrap());
        assert_eq!(device.is_done(never), Ok(true));
        let mut source = random(LEN, 5);
        let mut target = vec![0_u8; LEN];
        let (from, to) = (start(&mut source), start(&mut target));
        let memory = device.allocate(LEN as u64).unwrap();
        // SAFETY: the vectors stay where they are; the last copy is waited for, which orders all.
        unsafe {
            device.register(from, LEN).unwrap();
            device.register(to, LEN).unwrap();
            device.copy_to_device(first, memory, from, LEN).unwrap();
            device.record(event, first).unwrap();
            device.wait_event(second, event).unwrap();
            device.copy_to_host(second, to, memory, LEN).unwrap();
            device.record(event, second).unwrap();
            while !device.is_done(event).unwrap() {
                thread::sleep(Duration::from_micros(50));
            }
            device.unregister(from).unwrap();
            device.unregister(to).unwrap();
            device.free(memory).unwrap();
        }
        assert!(source == target);
        device.destroy_event(event).unwrap();
        device.destroy_stream(first).unwrap();
        // The second stream and the other event go with the device.
    }

    #[test]
    fn host_memory_is_registered_once_and_unregistered_once() {
        let Some(device) = gpu() else { return };
        let mut bytes = vec![1_u8; 1 << 20];
        let host = start(&mut bytes);
        // SAFETY: the vector outlives the registration, and nothing is queued on it.
        unsafe {
            device.register(host, 1 << 20).unwrap();
            let twice = device.register(host, 1 << 20).unwrap_err();
            assert_eq!(twice.name, "CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED");
            device.unregister(host).unwrap();
            let gone = device.unregister(host).unwrap_err();
            assert_eq!(gone.name, "CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED");
        }
    }

    #[test]
    fn too_much_memory_is_refused_and_nothing_else_suffers() {
        let Some(device) = gpu() else { return };
        let (free, total) = device.memory().unwrap();
        assert!(0 < free && free <= total);
        let error = device.allocate(total + (1 << 40)).unwrap_err();
        assert_eq!((error.name.as_str(), error.code), ("CUDA_ERROR_OUT_OF_MEMORY", 2));
        assert!(!error.detail.is_empty());
        let stream = device.create_stream().unwrap();
        round_trip(&*device, stream, 4096, 1);
    }

    #[test]
    fn addresses_are_known_for_what_they_are() {
        let Some(device) = gpu() else { return };
        let memory = device.allocate(3 << 20).unwrap();
        assert_eq!(memory % 256, 0);
        let expected = AddressKind::Device { device: device.id(), base: memory, len: 3 << 20 };
        assert_eq!(device.address_kind(memory), expected);
        assert_eq!(device.address_kind(memory + (3 << 20) - 1), expected);
        let mut bytes = vec![1_u8; 1 << 20];
        let host = start(&mut bytes);
        let number = host.addr().get() as u64;
        assert_eq!(device.address_kind(number), AddressKind::Unknown);
        // SAFETY: the vector outlives the registration.
        unsafe { device.register(host, 1 << 20).unwrap() };
        assert_eq!(device.address_kind(number + 1000), AddressKind::PinnedHost);
        // SAFETY: nothing is queued on either.
        unsafe {
            device.unregister(host).unwrap();
            device.free(memory).unwrap();
        }
        assert_eq!(device.address_kind(number), AddressKind::Unknown);
        assert_eq!(device.address_kind(0), AddressKind::Unknown);
    }

    #[test]
    fn unknown_handles_are_refused() {
        let Some(device) = gpu() else { return };
        let error = device.synchronize(Stream(0)).unwrap_err();
        assert_eq!(error.name, "CUDA_ERROR_INVALID_HANDLE");
        assert!(device.is_done(Event(12_345)).is_err());
        let stream = device.create_stream().unwrap();
        device.destroy_stream(stream).unwrap();
        assert!(device.synchronize(stream).is_err());
        assert!(device.destroy_stream(stream).is_err());
    }

    #[test]
    fn every_name_of_a_gpu_opens_it() {
        let Some(device) = gpu() else { return };
        let info = device.info();
        println!("{info:?}");
        assert!(!info.name.is_empty() && !info.driver.is_empty() && !info.simulated);
        assert!(info.memory > 1 << 30);
        assert!(info.uuid.starts_with("GPU-") || info.uuid.starts_with("MIG-"), "{}", info.uuid);
        assert_eq!(info.uuid.len(), "GPU-".len() + 36);
        let names = [info.id.index.to_string(), info.uuid.clone(), info.pci_address.clone()];
        for name in names {
            let found = open(&name.parse().unwrap()).unwrap().unwrap();
            assert_eq!(found.info(), info, "{name}");
        }
        let gpus: Vec<DeviceInfo> = visible().unwrap();
        assert_eq!(gpus[info.id.index as usize], *info);
        let error = open(&GpuSelector::Cuda("4000".into())).unwrap_err();
        assert!(error.to_string().starts_with("no GPU `4000`: there"), "{error}");
    }

    type Context = *mut c_void;

    /// The calls by which another library of the process would use the driver.
    struct Caller {
        driver: libloading::Library,
    }

    impl Caller {
        fn new() -> Self {
            // SAFETY: the library under test has loaded the same one already.
            Self { driver: unsafe { libloading::Library::new("libcuda.so.1") }.unwrap() }
        }

        fn current(&self) -> Context {
            let mut context = ptr::null_mut();
            // SAFETY: the signature is the driver's; the output outlives the call.
            let status = unsafe {
                let call = self
                    .driver
                    .get::<unsafe extern "C" fn(*mut Context) -> c_int>(c"cuCtxGetCurrent");
                call.unwrap()(&raw mut context)
            };
            assert_eq!(status, 0);
            context
        }

        /// A context of the caller's own, current on this thread.
        fn create(&self) -> Context {
            type Create = unsafe extern "C" fn(*mut Context, c_uint, c_int) -> c_int;
            let mut context = ptr::null_mut();
            // SAFETY: as above; there is a GPU 0 where this test runs.
            let status = unsafe {
                let call = self.driver.get::<Create>(c"cuCtxCreate_v2");
                call.unwrap()(&raw mut context, 0, 0)
            };
            assert_eq!(status, 0);
            context
        }

        fn destroy(&self, context: Context) {
            // SAFETY: as above; the context is the caller's own.
            let status = unsafe {
                let call =
                    self.driver.get::<unsafe extern "C" fn(Context) -> c_int>(c"cuCtxDestroy_v2");
                call.unwrap()(context)
            };
            assert_eq!(status, 0);
        }
    }

    #[test]
    fn the_callers_context_stays_current() {
        let Some(device) = gpu() else { return };
        // A thread of its own, whose stack of contexts is untouched.
        thread::scope(|scope| {
            scope.spawn(|| {
                let caller = Caller::new();
                assert!(caller.current().is_null());
                let stream = device.create_stream().unwrap();
                round_trip(&*device, stream, 4096, 1);
                assert!(caller.current().is_null());
                let theirs = caller.create();
                assert_eq!(caller.current(), theirs);
                round_trip(&*device, stream, 4096, 2);
                assert!(device.allocate(1 << 60).is_err());
                let another = open(&GpuSelector::Auto).unwrap().unwrap();
                drop(another);
                device.destroy_stream(stream).unwrap();
                assert_eq!(caller.current(), theirs);
                caller.destroy(theirs);
                assert!(caller.current().is_null());
            });
        });
    }
}
