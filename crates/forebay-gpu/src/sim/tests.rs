//! The simulated GPU, driven by a clock that only tests advance.

#![expect(unsafe_code, reason = "copies by raw address, as the engine does")]

use std::ptr::NonNull;
use std::sync::Arc;
use std::time::Duration;

use forebay_base::clock::{Clock, ManualClock, SystemClock};

use super::{SimConfig, SimDevice};
use crate::{AddressKind, BATCH_MAX, Device, DeviceCopy, DeviceError, Event, Stream};

/// Host memory that is registered with a device while it lives.
struct Pinned<'a> {
    device: &'a SimDevice,
    bytes: Vec<u8>,
}

impl<'a> Pinned<'a> {
    fn new(device: &'a SimDevice, mut bytes: Vec<u8>) -> Self {
        let start = NonNull::new(bytes.as_mut_ptr()).unwrap();
        // SAFETY: the vector is neither moved nor grown before `drop`.
        unsafe { device.register(start, bytes.len()) }.unwrap();
        Self { device, bytes }
    }

    fn start(&mut self) -> NonNull<u8> {
        NonNull::new(self.bytes.as_mut_ptr()).unwrap()
    }
}

impl Drop for Pinned<'_> {
    fn drop(&mut self) {
        let start = self.start();
        // SAFETY: every test waits for its copies.
        unsafe { self.device.unregister(start) }.unwrap();
    }
}

fn stepped(text: &str) -> (SimDevice, Arc<ManualClock>) {
    let clock = Arc::new(ManualClock::new());
    let config: SimConfig = text.parse().unwrap();
    (SimDevice::new(0, config, Arc::clone(&clock) as Arc<dyn Clock>), clock)
}

fn up(device: &SimDevice, stream: Stream, target: u64, source: &mut Pinned<'_>) {
    // SAFETY: every test waits for its copies.
    unsafe { device.copy_to_device(stream, target, source.start(), source.bytes.len()) }.unwrap();
}

fn down(device: &SimDevice, stream: Stream, target: &mut Pinned<'_>, source: u64) {
    // SAFETY: as above.
    unsafe { device.copy_to_host(stream, target.start(), source, target.bytes.len()) }.unwrap();
}

fn marked(device: &SimDevice, stream: Stream) -> Event {
    let event = device.create_event().unwrap();
    device.record(event, stream).unwrap();
    event
}

fn name(result: Result<(), DeviceError>) -> String {
    result.expect_err("it must be refused").name
}

#[test]
fn bytes_go_there_and_back() {
    let (device, _) = stepped("sim");
    let bytes: Vec<u8> = (0..=255).cycle().take(3 << 20).collect();
    let mut source = Pinned::new(&device, bytes.clone());
    let mut target = Pinned::new(&device, vec![0; bytes.len()]);
    let stream = device.create_stream().unwrap();
    let memory = device.allocate(bytes.len() as u64).unwrap();
    assert_eq!(memory % 256, 0);
    up(&device, stream, memory, &mut source);
    down(&device, stream, &mut target, memory);
    device.synchronize(stream).unwrap();
    assert!(target.bytes == bytes);
    // SAFETY: the range is the allocation's.
    unsafe { device.fill(stream, memory, 7, bytes.len() as u64) }.unwrap();
    down(&device, stream, &mut target, memory);
    device.synchronize(stream).unwrap();
    assert!(target.bytes.iter().all(|&byte| byte == 7));
    // SAFETY: nothing is queued on it.
    unsafe { device.free(memory) }.unwrap();
    assert_eq!(device.memory().unwrap(), (16 << 30, 16 << 30));
}

#[test]
fn the_link_takes_its_time_and_carries_one_copy_at_a_time() {
    let (device, clock) = stepped("sim:bandwidth=1GB/s,latency=10us");
    let mut bytes = Pinned::new(&device, vec![1; 1000]);
    let mut out = Pinned::new(&device, vec![0; 1000]);
    let memory = device.allocate(4096).unwrap();
    let streams: Vec<_> = (0..3).map(|_| device.create_stream().unwrap()).collect();
    // 10 µs plus 1000 bytes at 1 ns each are 11 µs; the other direction has its own side.
    up(&device, streams[0], memory, &mut bytes);
    up(&device, streams[1], memory + 1000, &mut bytes);
    down(&device, streams[2], &mut out, memory + 2000);
    let events: Vec<_> = streams.iter().map(|&stream| marked(&device, stream)).collect();
    let done = || events.iter().map(|&e| device.is_done(e).unwrap()).collect::<Vec<_>>();
    assert_eq!(done(), [false, false, false]);
    clock.advance(Duration::from_nanos(10_999));
    assert_eq!(done(), [false, false, false]);
    clock.advance(Duration::from_nanos(1));
    assert_eq!(done(), [true, false, true]);
    clock.advance(Duration::from_micros(11));
    assert_eq!(done(), [true, true, true]);
}

#[test]
fn an_uplink_is_shared_by_concurrent_copies() {
    let (first, clock) = stepped("sim:bandwidth=1GB/s,uplink=2GB/s");
    let config = |text: &str| text.parse::<SimConfig>().unwrap();
    let below = "sim:bandwidth=1GB/s,uplink=2GB/s";
    let others = [below, below, below, "sim:bandwidth=1GB/s"].into_iter();
    let others: Vec<_> =
        (1..).zip(others).map(|(at, text)| first.sibling(at, config(text))).collect();
    let all: Vec<_> = std::iter::once(first).chain(others).collect();
    let mut bytes = Pinned::new(&all[0], vec![1; 2000]);
    // For each GPU that many copies, of 2 µs on its own link and 1 µs on the shared uplink.
    let mut dues = |copies: [usize; 5]| {
        let start = clock.now();
        let own = all.iter().zip(copies);
        let own = own.map(|(gpu, copies)| (gpu, copies, gpu.create_stream().unwrap()));
        let own: Vec<_> = own.collect();
        for turn in 0..4 {
            for (gpu, _, stream) in own.iter().filter(|(_, copies, _)| turn < *copies) {
                up(gpu, *stream, gpu.allocate(2000).unwrap(), &mut bytes);
            }
        }
        let events: Vec<_> = own.iter().map(|(gpu, _, to)| (gpu, marked(gpu, *to))).collect();
        let mut dues = vec![None; events.len()];
        while dues.contains(&None) {
            for (due, (gpu, event)) in dues.iter_mut().zip(&events) {
                if due.is_none() && gpu.is_done(*event).unwrap() {
                    *due = Some((clock.now() - start).as_micros());
                }
            }
            clock.advance(Duration::from_nanos(500));
        }
        clock.advance(Duration::from_secs(1));
        dues.into_iter().map(Option::unwrap).collect::<Vec<_>>()
    };
    assert_eq!(dues([1, 0, 0, 0, 0]), [2, 0, 0, 0, 0], "its own link binds");
    assert_eq!(dues([1, 1, 0, 0, 0]), [2, 2, 0, 0, 0], "both have all of theirs");
    assert_eq!(dues([1, 1, 1, 1, 1]), [2, 2, 3, 4, 2], "4 µs for four; the fifth is elsewhere");
    assert_eq!(dues([4, 4, 4, 4, 4])[3..], [16, 8], "16 copies of 1 µs");
}

/// Pieces of `len` bytes, in the opposite order on the GPU.
fn reversed(host: NonNull<u8>, memory: u64, len: usize, count: usize) -> Vec<DeviceCopy> {
    let piece = |index: usize| DeviceCopy {
        // SAFETY: inside the caller's `count` pieces.
        host: unsafe { host.add(index * len) },
        device: memory + ((count - 1 - index) * len) as u64,
        len,
    };
    (0..count).map(piece).collect()
}

#[test]
fn a_batch_pays_the_latency_once_for_each_group() {
    let (device, clock) = stepped("sim:bandwidth=1GB/s,latency=10us");
    assert!(device.has_batches());
    const COUNT: usize = BATCH_MAX + 88;
    let bytes: Vec<u8> = (0..COUNT).flat_map(|index| [index.to_le_bytes()[0]; 10]).collect();
    let mut source = Pinned::new(&device, bytes.clone());
    let mut out = Pinned::new(&device, vec![0; bytes.len()]);
    let memory = device.allocate(bytes.len() as u64).unwrap();
    let stream = device.create_stream().unwrap();
    let copies = reversed(source.start(), memory, 10, COUNT);
    // SAFETY: the test waits for them.
    unsafe { device.copy_batch_to_device(stream, &copies) }.unwrap();
    // 512 × 10 ns and 10 µs, then 88 × 10 ns and 10 µs.
    let event = marked(&device, stream);
    clock.advance(Duration::from_nanos(25_999));
    assert!(!device.is_done(event).unwrap());
    clock.advance(Duration::from_nanos(1));
    assert!(device.is_done(event).unwrap());
    down(&device, stream, &mut out, memory);
    device.synchronize(stream).unwrap();
    let turned: Vec<u8> = bytes.chunks(10).rev().flatten().copied().collect();
    assert!(out.bytes == turned);
    out.bytes.fill(0);
    let copies = reversed(out.start(), memory, 10, COUNT);
    // SAFETY: as above.
    unsafe { device.copy_batch_to_host(stream, &copies) }.unwrap();
    device.synchronize(stream).unwrap();
    assert!(out.bytes == bytes);
}

#[test]
fn copies_before_a_refused_one_of_a_batch_stay_queued() {
    let (device, _) = stepped("sim:latency=1us");
    let mut bytes = Pinned::new(&device, vec![1; 20]);
    let memory = device.allocate(20).unwrap();
    let stream = device.create_stream().unwrap();
    let mut copies = reversed(bytes.start(), memory, 10, 2);
    copies[1].device = memory + 11;
    // SAFETY: the stream is waited for.
    let refused = unsafe { device.copy_batch_to_device(stream, &copies) };
    assert_eq!(name(refused), "SIM_ERROR_OUT_OF_RANGE");
    // SAFETY: refused, since a copy is queued on it.
    assert_eq!(name(unsafe { device.free(memory) }), "SIM_ERROR_IN_USE");
    device.synchronize(stream).unwrap();
    // SAFETY: the stream is synchronised.
    unsafe { device.free(memory) }.unwrap();
}

#[test]
fn synchronize_sleeps_on_the_clock_until_the_stream_is_done() {
    let (device, clock) = stepped("sim:bandwidth=1MB/s");
    let mut bytes = Pinned::new(&device, vec![1; 5000]);
    let memory = device.allocate(5000).unwrap();
    let stream = device.create_stream().unwrap();
    up(&device, stream, memory, &mut bytes);
    device.synchronize(stream).unwrap();
    assert_eq!(clock.now(), Duration::from_millis(5));
    device.synchronize(stream).unwrap();
    assert_eq!(clock.now(), Duration::from_millis(5));
}

#[test]
fn the_source_is_read_when_the_copy_runs() {
    let (device, clock) = stepped("sim:latency=1us");
    let mut bytes = Pinned::new(&device, vec![1; 16]);
    let memory = device.allocate(16).unwrap();
    let stream = device.create_stream().unwrap();
    up(&device, stream, memory, &mut bytes);
    bytes.bytes.fill(2);
    clock.advance(Duration::from_micros(1));
    device.synchronize(stream).unwrap();
    let mut out = Pinned::new(&device, vec![0; 16]);
    down(&device, stream, &mut out, memory);
    device.synchronize(stream).unwrap();
    assert_eq!(out.bytes, [2; 16]);
}

#[test]
fn a_stream_waits_for_the_event_of_another() {
    let (device, clock) = stepped("sim:latency=10us");
    let mut bytes = Pinned::new(&device, vec![1; 16]);
    let mut out = Pinned::new(&device, vec![0; 16]);
    let memory = device.allocate(16).unwrap();
    let (first, second) = (device.create_stream().unwrap(), device.create_stream().unwrap());
    let never_recorded = device.create_event().unwrap();
    device.wait_event(second, never_recorded).unwrap();
    assert!(device.is_done(never_recorded).unwrap());
    up(&device, first, memory, &mut bytes);
    let uploaded = marked(&device, first);
    device.wait_event(second, uploaded).unwrap();
    down(&device, second, &mut out, memory);
    let downloaded = marked(&device, second);
    clock.advance(Duration::from_micros(10));
    assert!(device.is_done(uploaded).unwrap());
    assert!(!device.is_done(downloaded).unwrap());
    clock.advance(Duration::from_micros(10));
    assert!(device.is_done(downloaded).unwrap());
    assert_eq!(out.bytes, [1; 16]);
}

#[test]
fn an_event_recorded_again_waits_for_the_later_place() {
    let (device, clock) = stepped("sim:latency=10us");
    let mut bytes = Pinned::new(&device, vec![1; 16]);
    let memory = device.allocate(16).unwrap();
    let stream = device.create_stream().unwrap();
    up(&device, stream, memory, &mut bytes);
    let event = marked(&device, stream);
    up(&device, stream, memory, &mut bytes);
    device.record(event, stream).unwrap();
    clock.advance(Duration::from_micros(10));
    assert!(!device.is_done(event).unwrap());
    clock.advance(Duration::from_micros(10));
    assert!(device.is_done(event).unwrap());
}

#[test]
fn memory_has_an_end() {
    let (device, _) = stepped("sim:memory=1M");
    let half = device.allocate(512 << 10).unwrap();
    assert_eq!(device.memory().unwrap(), (512 << 10, 1 << 20));
    let error = device.allocate((512 << 10) + 1).unwrap_err();
    assert_eq!(
        error.to_string(),
        "allocate: SIM_ERROR_OUT_OF_MEMORY (2): 524289 bytes requested, 524288 free"
    );
    // SAFETY: nothing is queued on it.
    unsafe { device.free(half) }.unwrap();
    device.allocate(1 << 20).unwrap();
    assert_eq!(device.allocate(0).unwrap_err().name, "SIM_ERROR_INVALID_VALUE");
}

#[test]
fn faults_follow_the_seed_and_reach_the_waiting_caller() {
    let run = |seed: u32| -> Vec<bool> {
        let (device, _) = stepped(&format!("sim:seed={seed},copy-faults=0.3"));
        let mut bytes = Pinned::new(&device, vec![1; 64]);
        let memory = device.allocate(64).unwrap();
        let stream = device.create_stream().unwrap();
        let mut failed = |_| {
            up(&device, stream, memory, &mut bytes);
            let event = marked(&device, stream);
            let result = device.is_done(event);
            // An event keeps its answer, and a failure is reported only once.
            assert_eq!(device.is_done(event), result);
            assert_eq!(device.synchronize(stream), Ok(()));
            result.is_err_and(|error| error.name == "SIM_ERROR_COPY_FAULT")
        };
        (0..64).map(&mut failed).collect()
    };
    assert_eq!(run(1), run(1));
    assert_ne!(run(1), run(2));
    assert!((5..40).contains(&run(1).iter().filter(|&&failed| failed).count()));
}

#[test]
fn a_failed_copy_shows_in_synchronize_and_moves_half() {
    let (device, _) = stepped("sim:copy-faults=1");
    let mut bytes = Pinned::new(&device, vec![1; 64]);
    let memory = device.allocate(64).unwrap();
    let stream = device.create_stream().unwrap();
    up(&device, stream, memory, &mut bytes);
    assert_eq!(name(device.synchronize(stream)), "SIM_ERROR_COPY_FAULT");
    assert_eq!(device.synchronize(stream), Ok(()));
}

#[test]
fn calls_that_would_corrupt_memory_are_refused() {
    let (device, clock) = stepped("sim:latency=1us");
    let mut bytes = Pinned::new(&device, vec![1; 64]);
    let (start, stream) = (bytes.start(), device.create_stream().unwrap());
    let memory = device.allocate(64).unwrap();
    let mut foreign = [0_u8; 64];
    let foreign = NonNull::new(foreign.as_mut_ptr()).unwrap();
    // SAFETY: the device refuses ranges that it does not know; all other copies are waited for
    // below.
    unsafe {
        let beyond = device.copy_to_device(stream, memory + 1, start, 64);
        assert_eq!(name(beyond), "SIM_ERROR_OUT_OF_RANGE");
        let nowhere = device.copy_to_device(stream, memory + 64, start, 1);
        assert_eq!(name(nowhere), "SIM_ERROR_UNKNOWN_ADDRESS");
        let host_taken_for_device =
            device.copy_to_device(stream, start.addr().get() as u64, start, 1);
        assert_eq!(name(host_taken_for_device), "SIM_ERROR_UNKNOWN_ADDRESS");
        let unregistered = device.copy_to_device(stream, memory, foreign, 64);
        assert_eq!(name(unregistered), "SIM_ERROR_NOT_REGISTERED");
        let too_long = device.copy_to_host(stream, start, memory, 65);
        assert_eq!(name(too_long), "SIM_ERROR_NOT_REGISTERED");
        assert_eq!(name(device.register(start, 1)), "SIM_ERROR_ALREADY_REGISTERED");
        assert_eq!(name(device.unregister(foreign)), "SIM_ERROR_UNKNOWN_ADDRESS");
        assert_eq!(name(device.fill(stream, memory, 0, 65)), "SIM_ERROR_OUT_OF_RANGE");

        device.copy_to_device(stream, memory, start, 64).unwrap();
        assert_eq!(name(device.free(memory)), "SIM_ERROR_IN_USE");
        assert_eq!(name(device.unregister(start)), "SIM_ERROR_IN_USE");
        clock.advance(Duration::from_micros(1));
        device.synchronize(stream).unwrap();
        device.free(memory).unwrap();
        assert_eq!(name(device.free(memory)), "SIM_ERROR_UNKNOWN_ADDRESS");
    }
}

#[test]
fn handles_of_others_are_refused() {
    let (device, _) = stepped("sim");
    let (other, _) = stepped("sim");
    let (stream, event) = (other.create_stream().unwrap(), other.create_event().unwrap());
    assert_eq!(name(device.synchronize(stream)), "SIM_ERROR_UNKNOWN_HANDLE");
    assert_eq!(name(device.destroy_stream(stream)), "SIM_ERROR_UNKNOWN_HANDLE");
    assert_eq!(name(device.destroy_event(event)), "SIM_ERROR_UNKNOWN_HANDLE");
    assert_eq!(device.is_done(event).unwrap_err().name, "SIM_ERROR_UNKNOWN_HANDLE");
    other.destroy_stream(stream).unwrap();
    assert_eq!(name(other.record(event, stream)), "SIM_ERROR_UNKNOWN_HANDLE");
    assert_eq!(name(other.destroy_stream(stream)), "SIM_ERROR_UNKNOWN_HANDLE");
}

#[test]
fn work_on_a_destroyed_stream_still_runs() {
    let (device, clock) = stepped("sim:latency=1us");
    let mut bytes = Pinned::new(&device, vec![9; 8]);
    let mut out = Pinned::new(&device, vec![0; 8]);
    let memory = device.allocate(8).unwrap();
    let stream = device.create_stream().unwrap();
    up(&device, stream, memory, &mut bytes);
    let event = marked(&device, stream);
    device.destroy_stream(stream).unwrap();
    clock.advance(Duration::from_micros(1));
    assert!(device.is_done(event).unwrap());
    let stream = device.create_stream().unwrap();
    down(&device, stream, &mut out, memory);
    device.synchronize(stream).unwrap();
    assert_eq!(out.bytes, [9; 8]);
}

#[test]
fn addresses_are_known_for_what_they_are() {
    let (device, _) = stepped("sim");
    let mut bytes = Pinned::new(&device, vec![1; 64]);
    let start = bytes.start().addr().get() as u64;
    let memory = device.allocate(100).unwrap();
    let here = AddressKind::Device { device: device.id(), base: memory, len: 100 };
    assert_eq!(device.address_kind(memory + 99), here);
    assert_eq!(device.address_kind(memory + 100), AddressKind::Unknown);
    assert_eq!(device.address_kind(start + 63), AddressKind::PinnedHost);
    assert_eq!(device.address_kind(8), AddressKind::Unknown);
    let sibling = device.sibling(1, SimConfig::default());
    assert_eq!(sibling.address_kind(start), AddressKind::PinnedHost);
    assert_eq!(sibling.address_kind(memory), AddressKind::Unknown);
    assert_eq!(sibling.id().to_string(), "sim:1");
}

#[test]
fn a_device_that_goes_with_copies_queued_leaves_the_host_memory_free() {
    let (device, _) = stepped("sim");
    let sibling = device.sibling(1, "sim:latency=1s".parse().unwrap());
    let mut bytes = Pinned::new(&device, vec![1; 64]);
    let memory = sibling.allocate(64).unwrap();
    let stream = sibling.create_stream().unwrap();
    up(&sibling, stream, memory, &mut bytes);
    drop(sibling);
}

#[test]
fn many_threads_on_the_machines_own_clock() {
    let config = "sim:bandwidth=10GB/s,latency=1us".parse().unwrap();
    let device = SimDevice::new(0, config, Arc::new(SystemClock::new()));
    std::thread::scope(|scope| {
        for byte in 0..4_u8 {
            let device = &device;
            scope.spawn(move || {
                let mut source = Pinned::new(device, vec![byte; 100_000]);
                let mut target = Pinned::new(device, vec![255; 100_000]);
                let memory = device.allocate(100_000).unwrap();
                let stream = device.create_stream().unwrap();
                for _ in 0..20 {
                    up(device, stream, memory, &mut source);
                    down(device, stream, &mut target, memory);
                    device.synchronize(stream).unwrap();
                    assert!(target.bytes.iter().all(|&got| got == byte));
                    target.bytes.fill(255);
                }
            });
        }
    });
}

#[test]
fn words_are_taken_by_exclusive_or_in_their_turn() {
    const KEY: u64 = 0xFEDC_BA98_7654_3210;
    let (device, _) = stepped("sim");
    let memory = device.allocate(96).unwrap();
    let mut bytes = Pinned::new(&device, (0..96).collect());
    let mut number = Pinned::new(&device, vec![0; 8]);
    let stream = device.create_stream().unwrap();
    up(&device, stream, memory, &mut bytes);
    device.synchronize(stream).unwrap();
    let at = number.start().cast::<u32>();
    // SAFETY: the number and the memory stay in place until the stream has been waited for.
    unsafe {
        device.wait_number(stream, at, 1).unwrap();
        device.xor(stream, memory + 16, KEY, 64).unwrap();
    }
    let other = device.create_stream().unwrap();
    down(&device, other, &mut bytes, memory);
    device.synchronize(other).unwrap();
    assert!(bytes.bytes.iter().copied().eq(0..96), "it waits for the number");
    // SAFETY: only the device accesses the number, as an atomic.
    unsafe { std::sync::atomic::AtomicU32::from_ptr(at.as_ptr()) }
        .store(1, std::sync::atomic::Ordering::Release);
    device.synchronize(stream).unwrap();
    down(&device, other, &mut bytes, memory);
    device.synchronize(other).unwrap();
    let key = KEY.to_ne_bytes();
    for (at, byte) in (0..96).zip(&bytes.bytes) {
        let inside = (16..80).contains(&at);
        assert_eq!(*byte, if inside { at ^ key[usize::from(at) % 8] } else { at });
    }
    // SAFETY: the device checks the range first.
    unsafe {
        assert!(device.xor(stream, memory + 8, KEY, 16).is_err());
        assert!(device.xor(stream, memory + 48, KEY, 64).is_err());
        assert!(device.xor(stream, memory, KEY, 0).is_ok());
        assert!(device.xor(Stream(u64::MAX), memory, KEY, 16).is_err());
        device.free(memory).unwrap();
    }
    assert_eq!(device.memory_rate(), None);
}
