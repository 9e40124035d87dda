//! Tests of an engine with unresponsive GPUs: a failed copy without a known end, copies to the host
//! or registrations that never end, a driver that blocks while a stream is blocked, and a full GPU
//! on which no kernel begins.

mod panics;

use std::collections::HashSet;
use std::fs;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use forebay_base::clock::SystemClock;
use forebay_base::process::Home;

use crate::engine::{Engine, OpenOptions, Piece};
use crate::error::Error;
use crate::gpu::sim::{SimConfig, SimDevice};
use crate::gpu::{
    AddressKind, CallerStream, Device, DeviceCopy, DeviceError, DeviceInfo, DeviceResult, Event,
    Signal, Stream, sealed::Sealed,
};

use crate::options::Options;

/// A simulated GPU that does not report the state of its copies while it is `silent`.
#[derive(Debug)]
struct Silent {
    inner: SimDevice,
    silent: AtomicBool,
    /// Whether copies panic, and queries whether copies are over.
    panics: AtomicBool,
    /// Whether queueing a copy blocks until earlier work is done: another thread holds the driver's
    /// lock and waits for the stream.
    locked: AtomicBool,
    /// Whether copies to the host stay unfinished.
    held: AtomicBool,
    /// The streams of such copies.
    outward: Mutex<HashSet<Stream>>,
    /// The events of such streams.
    waited: Mutex<HashSet<Event>>,
    /// Registering memory needs this lock.
    gate: Mutex<()>,
    /// Freeing memory needs this lock.
    free_gate: Mutex<()>,
    /// Number of attempts to free.
    freeing: AtomicUsize,
    /// Number of attempts to register.
    registering: AtomicUsize,
    /// Number of copies to the GPU that were queued.
    copies: AtomicUsize,
    /// Number of frees while a copy to the memory was running.
    busy_frees: AtomicUsize,
    /// Whether it has kernels that gather, whether they are loaded, and how many were queued.
    gathers: AtomicBool,
    has_loaded: AtomicBool,
    gathered: AtomicUsize,
    /// Kernels begin once this number, if it is registered, is 1.
    begins: Box<AtomicU32>,
}

impl Silent {
    fn new(config: &str) -> Arc<Self> {
        let config: SimConfig = config.parse().unwrap();
        let inner = SimDevice::new(0, config, Arc::new(SystemClock::new()));
        Arc::new(Self {
            inner,
            silent: AtomicBool::new(false),
            panics: AtomicBool::new(false),
            locked: AtomicBool::new(false),
            held: AtomicBool::new(false),
            outward: Mutex::default(),
            waited: Mutex::default(),
            gate: Mutex::default(),
            free_gate: Mutex::default(),
            freeing: AtomicUsize::new(0),
            registering: AtomicUsize::new(0),
            copies: AtomicUsize::new(0),
            busy_frees: AtomicUsize::new(0),
            gathers: AtomicBool::new(false),
            has_loaded: AtomicBool::new(false),
            gathered: AtomicUsize::new(0),
            begins: Box::default(),
        })
    }

    fn panic_if_requested(&self) {
        assert!(!self.panics.load(Ordering::Relaxed), "the driver is broken");
    }

    fn speak(&self, call: &'static str) -> DeviceResult<()> {
        if !self.silent.load(Ordering::Relaxed) {
            return Ok(());
        }
        let name = "CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED".into();
        Err(DeviceError { call, code: 900, name, detail: String::new() })
    }
}

impl Sealed for Silent {
    fn home(&self) -> &Home {
        self.inner.home()
    }
}

impl Device for Silent {
    fn info(&self) -> &DeviceInfo {
        self.inner.info()
    }
    fn registry(&self) -> u64 {
        self.inner.registry()
    }
    fn memory(&self) -> DeviceResult<(u64, u64)> {
        self.inner.memory()
    }
    fn allocate(&self, len: u64) -> DeviceResult<u64> {
        self.inner.allocate(len)
    }
    unsafe fn free(&self, address: u64) -> DeviceResult<()> {
        self.freeing.fetch_add(1, Ordering::Relaxed);
        let _open = self.free_gate.lock().unwrap();
        // SAFETY: the caller's promise, here and in the calls below.
        let freed = unsafe { self.inner.free(address) };
        self.busy_frees.fetch_add(usize::from(freed.is_err()), Ordering::Relaxed);
        freed
    }
    unsafe fn register(&self, host: NonNull<u8>, len: usize) -> DeviceResult<()> {
        self.registering.fetch_add(1, Ordering::Relaxed);
        let _open = self.gate.lock().unwrap();
        // SAFETY: as above.
        unsafe { self.inner.register(host, len) }
    }
    unsafe fn unregister(&self, host: NonNull<u8>) -> DeviceResult<()> {
        // SAFETY: as above.
        unsafe { self.inner.unregister(host) }
    }
    fn create_stream(&self) -> DeviceResult<Stream> {
        self.inner.create_stream()
    }
    fn destroy_stream(&self, stream: Stream) -> DeviceResult<()> {
        self.inner.destroy_stream(stream)
    }
    fn create_event(&self) -> DeviceResult<Event> {
        self.inner.create_event()
    }
    fn create_timer(&self) -> DeviceResult<Event> {
        self.inner.create_timer()
    }
    fn elapsed(&self, from: Event, to: Event) -> DeviceResult<Duration> {
        self.inner.elapsed(from, to)
    }
    fn destroy_event(&self, event: Event) -> DeviceResult<()> {
        self.inner.destroy_event(event)
    }
    unsafe fn copy_to_device(
        &self,
        stream: Stream,
        target: u64,
        source: NonNull<u8>,
        len: usize,
    ) -> DeviceResult<()> {
        self.panic_if_requested();
        if self.locked.load(Ordering::Relaxed) {
            self.inner.synchronize(stream)?;
        }
        // SAFETY: as above.
        let queued = unsafe { self.inner.copy_to_device(stream, target, source, len) };
        self.copies.fetch_add(1, Ordering::Relaxed);
        queued
    }
    unsafe fn copy_to_host(
        &self,
        stream: Stream,
        target: NonNull<u8>,
        source: u64,
        len: usize,
    ) -> DeviceResult<()> {
        self.outward.lock().unwrap().insert(stream);
        // SAFETY: as above.
        unsafe { self.inner.copy_to_host(stream, target, source, len) }
    }
    fn has_batches(&self) -> bool {
        self.inner.has_batches()
    }
    unsafe fn copy_batch_to_device(
        &self,
        stream: Stream,
        copies: &[DeviceCopy],
    ) -> DeviceResult<()> {
        // SAFETY: as above.
        let queued = unsafe { self.inner.copy_batch_to_device(stream, copies) };
        self.copies.fetch_add(copies.len(), Ordering::Relaxed);
        queued
    }
    fn load_gather(&self) {
        if self.gathers.load(Ordering::Relaxed) {
            self.panic_if_requested();
            self.has_loaded.store(true, Ordering::Relaxed);
        }
    }
    fn gathers(&self, _: &[DeviceCopy]) -> bool {
        self.has_loaded.load(Ordering::Relaxed)
    }
    unsafe fn gather(
        &self,
        stream: Stream,
        copies: &[DeviceCopy],
        signal: Signal,
    ) -> DeviceResult<()> {
        self.gathered.fetch_add(1, Ordering::Relaxed);
        let is_full = self.begins.load(Ordering::Relaxed) == 0;
        // SAFETY: as above; the numbers are registered and used as atomics.
        unsafe {
            if is_full {
                // Withdrawn before it begins, so it copies nothing.
                self.inner.wait_number(stream, NonNull::from(&*self.begins).cast(), 1)?;
            } else {
                self.inner.write_number(stream, signal.words, signal.number)?;
                self.inner.copy_batch_to_device(stream, copies)?;
            }
        }
        Ok(())
    }
    unsafe fn copy_batch_to_host(&self, stream: Stream, copies: &[DeviceCopy]) -> DeviceResult<()> {
        self.outward.lock().unwrap().insert(stream);
        // SAFETY: as above.
        unsafe { self.inner.copy_batch_to_host(stream, copies) }
    }
    unsafe fn fill(&self, stream: Stream, address: u64, byte: u8, len: u64) -> DeviceResult<()> {
        // SAFETY: as above.
        unsafe { self.inner.fill(stream, address, byte, len) }
    }
    fn record(&self, event: Event, stream: Stream) -> DeviceResult<()> {
        if self.outward.lock().unwrap().contains(&stream) {
            self.waited.lock().unwrap().insert(event);
        }
        self.inner.record(event, stream)
    }
    fn is_done(&self, event: Event) -> DeviceResult<bool> {
        self.speak("cuEventQuery")?;
        if self.held.load(Ordering::Relaxed) && self.waited.lock().unwrap().contains(&event) {
            return Ok(false);
        }
        self.inner.is_done(event)
    }
    fn wait_event(&self, stream: Stream, event: Event) -> DeviceResult<()> {
        self.inner.wait_event(stream, event)
    }
    fn synchronize(&self, stream: Stream) -> DeviceResult<()> {
        self.panic_if_requested();
        self.speak("cuStreamSynchronize")?;
        self.inner.synchronize(stream)
    }
    fn address_kind(&self, address: u64) -> AddressKind {
        self.inner.address_kind(address)
    }
    fn no_gates(&self) -> Option<String> {
        self.inner.no_gates()
    }
    unsafe fn wait_number(
        &self,
        stream: Stream,
        number: NonNull<u32>,
        least: u32,
    ) -> DeviceResult<()> {
        // SAFETY: as above.
        unsafe { self.inner.wait_number(stream, number, least) }
    }
    unsafe fn write_number(
        &self,
        stream: Stream,
        number: NonNull<u32>,
        value: u32,
    ) -> DeviceResult<()> {
        // SAFETY: as above.
        unsafe { self.inner.write_number(stream, number, value) }
    }
    unsafe fn record_on_caller(&self, event: Event, stream: CallerStream) -> DeviceResult<()> {
        // SAFETY: as above.
        unsafe { self.inner.record_on_caller(event, stream) }
    }
    unsafe fn hold_caller(&self, stream: CallerStream, event: Event) -> DeviceResult<()> {
        // SAFETY: as above.
        unsafe { self.inner.hold_caller(stream, event) }
    }
    unsafe fn is_capturing(&self, stream: CallerStream) -> DeviceResult<bool> {
        // SAFETY: as above.
        unsafe { self.inner.is_capturing(stream) }
    }
    unsafe fn is_idle(&self, stream: CallerStream) -> DeviceResult<bool> {
        // SAFETY: as above.
        unsafe { self.inner.is_idle(stream) }
    }
}

fn engine_with(gpu: &Arc<Silent>) -> (Engine, Arc<dyn Device>) {
    let engine = Engine::new(Options::default()).unwrap();
    let device: Arc<dyn Device> = Arc::clone(gpu) as _;
    engine.add_device(&device).unwrap();
    (engine, device)
}

#[test]
fn memory_of_a_copy_that_may_not_be_over_is_never_given_back() {
    let gpu = Silent::new("sim:bandwidth=10MB/s");
    let (engine, device) = engine_with(&gpu);
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("file");
    fs::write(&path, vec![7; 8 << 20]).unwrap();
    let file = engine.open(&path).unwrap();
    let buffer = engine.allocate(device.id(), 8 << 20).unwrap();
    gpu.silent.store(true, Ordering::Relaxed);
    let (result, buffer) = file.read(buffer).exact().start().unwrap().wait();
    let error = result.unwrap_err();
    assert!(matches!(&error, Error::CopyNotOver { place: Some(_), .. }), "{error}");
    assert!(error.to_string().contains("file` at "), "{error}");
    assert!(buffer.is_none(), "memory came back that a copy may still touch");
    assert_eq!(gpu.busy_frees.load(Ordering::Relaxed), 0);
    // The link is lost, and reports it at once instead of waiting for slots that never arrive.
    gpu.silent.store(false, Ordering::Relaxed);
    assert!(matches!(file.read_to_end(Some(device.id())).run(), Err(Error::Device { .. })));
}

#[test]
fn a_target_of_a_pending_copy_is_refused() {
    let gpu = Silent::new("sim:bandwidth=100kB/s");
    let (engine, device) = engine_with(&gpu);
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("file");
    fs::write(&path, vec![7; 8 << 20]).unwrap();
    let file = engine.open(&path).unwrap();
    // A cancelled transfer reports that its memory is lost, too.
    let free = device.memory().unwrap().0;
    let buffer = engine.allocate(device.id(), 8 << 20).unwrap();
    let transfer = file.read(buffer).start().unwrap();
    while gpu.copies.load(Ordering::Relaxed) == 0 {
        std::thread::yield_now();
    }
    transfer.cancel();
    gpu.silent.store(true, Ordering::Relaxed);
    let (result, buffer) = transfer.wait();
    assert!(matches!(result, Err(Error::CopyNotOver { .. })), "{result:?}");
    assert!(buffer.is_none());
    gpu.silent.store(false, Ordering::Relaxed);
    drop((file, engine));
    assert_eq!(device.memory().unwrap().0, free - (8 << 20));
    // Lost memory is returned by the call, but no further transfer uses it.
    let (engine, device) = engine_with(&gpu);
    let file = engine.open(&path).unwrap();
    let mut target = engine.allocate(device.id(), 8 << 20).unwrap();
    gpu.silent.store(true, Ordering::Relaxed);
    assert!(matches!(file.read(&mut target).run(), Err(Error::CopyNotOver { .. })));
    gpu.silent.store(false, Ordering::Relaxed);
    let refused = [
        file.read(&mut target).run().map(drop),
        file.read((&mut target, 0..4096)).run().map(drop),
        target.fill(1),
        target.upload(0, &[1]),
        target.download(0, &mut [0]),
    ];
    for result in refused {
        assert!(matches!(result, Err(Error::CopyNotOver { .. })), "{result:?}");
    }
    drop(target);
    assert_eq!(gpu.busy_frees.load(Ordering::Relaxed), 0);
}

#[test]
fn a_small_copy_that_may_not_be_over_keeps_its_lane_and_its_target() {
    let gpu = Silent::new("sim:latency=300ms");
    let (engine, device) = engine_with(&gpu);
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("file");
    fs::write(&path, vec![1; 4096]).unwrap();
    let file = engine.open(&path).unwrap();
    let mut target = engine.allocate(device.id(), 4096).unwrap();
    file.read(&mut target).run().unwrap();
    gpu.silent.store(true, Ordering::Relaxed);
    assert!(matches!(file.read(&mut target).run(), Err(Error::CopyNotOver { .. })));
    gpu.silent.store(false, Ordering::Relaxed);
    drop(target);
    assert_eq!(gpu.busy_frees.load(Ordering::Relaxed), 0);
}

#[test]
fn a_small_write_whose_copy_may_not_be_over_keeps_its_source() {
    let gpu = Silent::new("sim:latency=300ms");
    let (engine, device) = engine_with(&gpu);
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("file");
    let file = engine.open_with(&path, &OpenOptions::writing()).unwrap();
    let mut source = engine.allocate(device.id(), 4096).unwrap();
    source.fill(3).unwrap();
    file.write(&source).run().unwrap();
    gpu.silent.store(true, Ordering::Relaxed);
    assert!(matches!(file.write(&source).at(4096).run(), Err(Error::CopyNotOver { .. })));
    gpu.silent.store(false, Ordering::Relaxed);
    drop(source);
    assert_eq!(gpu.busy_frees.load(Ordering::Relaxed), 0);
    assert_eq!(fs::read(&path).unwrap(), [3; 4096]);
}

#[test]
fn copies_to_the_host_hold_up_none_to_the_gpu() {
    let gpu = Silent::new("sim");
    let engine = Engine::new(Options { slot_size: 1 << 20, ..Options::default() }).unwrap();
    let device: Arc<dyn Device> = Arc::clone(&gpu) as _;
    engine.add_device(&device).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("written");
    let file = engine.open_with(&path, &OpenOptions::writing()).unwrap();
    // Three of the four slots: more copies than may be queued.
    let mut source = engine.allocate(device.id(), 3 << 20).unwrap();
    source.fill(5).unwrap();
    gpu.held.store(true, Ordering::Relaxed);
    let writing = file.write(source).start().unwrap();
    let read = folder.path().join("read");
    fs::write(&read, vec![6; 8 << 20]).unwrap();
    let (buffer, outcome) =
        engine.open(&read).unwrap().read_to_end(Some(device.id())).run().unwrap();
    assert_eq!(outcome.bytes, 8 << 20);
    assert!(!writing.is_done());
    gpu.held.store(false, Ordering::Relaxed);
    assert_eq!(writing.wait().0.unwrap().bytes, 3 << 20);
    assert_eq!(fs::read(&path).unwrap(), vec![5; 3 << 20]);
    let mut bytes = vec![0; 8 << 20];
    buffer.download(0, &mut bytes).unwrap();
    assert_eq!(bytes, vec![6; 8 << 20]);
}

/// Another thread holds the driver's lock until our stream is empty, so the stream must make
/// progress before all work is queued.
#[test]
fn a_streams_first_bytes_arrive_while_the_rest_is_queued() {
    let gpu = Silent::new("sim");
    let engine = Engine::new(Options { slot_size: 1 << 20, ..Options::default() }).unwrap();
    let device: Arc<dyn Device> = Arc::clone(&gpu) as _;
    engine.add_device(&device).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("file");
    fs::write(&path, vec![7; 10 << 20]).unwrap();
    let file = engine.open(&path).unwrap();
    let buffer = engine.allocate(device.id(), 10 << 20).unwrap();
    let stream = CallerStream(device.create_stream().unwrap().0);
    gpu.locked.store(true, Ordering::Relaxed);
    let (sender, done) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        // SAFETY: the stream belongs to the test and is alive.
        let transfer = unsafe { file.read(buffer).exact().on(stream).start() }.unwrap();
        drop(sender.send(transfer.wait()));
    });
    // The bound only separates late from never.
    let (end, buffer) = done.recv_timeout(std::time::Duration::from_secs(60)).unwrap();
    assert_eq!(end.unwrap().bytes, 10 << 20);
    let mut bytes = vec![0; 10 << 20];
    buffer.unwrap().download(0, &mut bytes).unwrap();
    assert!(bytes.iter().all(|&byte| byte == 7));
}

#[test]
fn memory_that_is_being_freed_blocks_no_caller() {
    let gpu = Silent::new("sim");
    let (engine, device) = engine_with(&gpu);
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("written");
    let file = engine.open_with(&path, &OpenOptions::writing()).unwrap();
    let source = engine.allocate(device.id(), 1 << 20).unwrap();
    gpu.held.store(true, Ordering::Relaxed);
    let shut = gpu.free_gate.lock().unwrap();
    let writing = file.write(source).start().unwrap();
    while gpu.outward.lock().unwrap().is_empty() {
        std::thread::yield_now();
    }
    // No thread waits for it any more, so its end frees the memory.
    drop(writing);
    gpu.held.store(false, Ordering::Relaxed);
    while gpu.freeing.load(Ordering::Relaxed) == 0 {
        std::thread::yield_now();
    }
    let read = folder.path().join("read");
    fs::write(&read, vec![6; 1 << 20]).unwrap();
    let buffer = engine.allocate(device.id(), 1 << 20).unwrap();
    let reading = engine.open(&read).unwrap().read(buffer).start().unwrap();
    // The bound only separates late from never.
    let end = reading.wait_for(std::time::Duration::from_secs(60));
    assert!(matches!(end, Some(Ok(_))), "{end:?}");
    drop(shut);
}

#[test]
fn memory_that_is_being_registered_blocks_no_caller() {
    let gpu = Silent::new("sim");
    let (engine, device) = engine_with(&gpu);
    let shut = gpu.gate.lock().unwrap();
    let (allocating, other) = (engine.clone(), engine.clone());
    let pinned = std::thread::spawn(move || allocating.allocate_pinned(4096).unwrap().len());
    while gpu.registering.load(Ordering::Relaxed) == 0 {
        std::thread::yield_now();
    }
    let (sender, done) = std::sync::mpsc::channel();
    std::thread::spawn(move || sender.send(other.allocate(device.id(), 4096).unwrap().len()));
    // The bound only separates late from never.
    assert_eq!(done.recv_timeout(std::time::Duration::from_secs(60)), Ok(4096));
    drop(shut);
    assert_eq!(pinned.join().unwrap(), 4096);
}

#[test]
fn a_gpu_whose_memory_is_being_pinned_holds_up_no_other() {
    let (slow, folder) = (Silent::new("sim"), tempfile::tempdir().unwrap());
    let (engine, device) = engine_with(&slow);
    let other: Arc<dyn Device> =
        Arc::new(SimDevice::new(1, SimConfig::default(), Arc::new(SystemClock::new())));
    engine.add_device(&other).unwrap();
    let path = folder.path().join("file");
    fs::write(&path, vec![7; 1 << 20]).unwrap();
    let read = |device: &Arc<dyn Device>, len| {
        let buffer = engine.allocate(device.id(), len).unwrap();
        let file = engine.open(&path).unwrap();
        let (sender, done) = std::sync::mpsc::channel();
        std::thread::spawn(move || {
            let transfer = file.read(buffer).start().unwrap();
            sender.send(transfer.wait().0.unwrap().bytes)
        });
        done
    };
    let shut = slow.gate.lock().unwrap();
    let waits = read(&device, 1 << 20);
    while slow.registering.load(Ordering::Relaxed) == 0 {
        std::thread::yield_now();
    }
    // The bound only separates late from never.
    let bound = Duration::from_secs(60);
    assert_eq!(read(&other, 1 << 20).recv_timeout(bound), Ok(1 << 20));
    assert!(waits.try_recv().is_err(), "its memory is being pinned");
    drop(shut);
    assert_eq!(waits.recv_timeout(bound), Ok(1 << 20));
}

#[test]
fn the_time_of_a_first_transfer_includes_its_slots() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("file");
    fs::write(&path, vec![7; 1 << 20]).unwrap();
    for is_many in [false, true] {
        let gpu = Silent::new("sim");
        let (engine, device) = engine_with(&gpu);
        let (file, starter) = (engine.open(&path).unwrap(), engine.clone());
        let buffer = engine.allocate(device.id(), 1 << 20).unwrap();
        let shut = gpu.gate.lock().unwrap();
        let reading = std::thread::spawn(move || {
            if is_many {
                let pieces = [Piece::new(&file, 0, 1 << 20, 0)];
                let many = starter.read_many(&pieces, vec![buffer]).start().unwrap();
                return many.wait().0.unwrap().whole.elapsed;
            }
            file.read(buffer).start().unwrap().wait().0.unwrap().elapsed
        });
        while gpu.registering.load(Ordering::Relaxed) == 0 {
            std::thread::yield_now();
        }
        let pause = Duration::from_millis(50);
        std::thread::sleep(pause);
        drop(shut);
        assert!(reading.join().unwrap() >= pause, "many: {is_many}");
    }
}

#[test]
fn pieces_arrive_although_no_kernel_begins() {
    const EACH: u64 = 10_000;
    let gpu = Silent::new("sim");
    gpu.gathers.store(true, Ordering::Relaxed);
    // SAFETY: the GPU, which the test keeps, has the number in a box.
    unsafe { gpu.inner.register(NonNull::from(&*gpu.begins).cast(), 4) }.unwrap();
    let (engine, device) = engine_with(&gpu);
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("file");
    let bytes: Vec<u8> = (0..=250).cycle().take(40 * usize::try_from(EACH).unwrap()).collect();
    fs::write(&path, &bytes).unwrap();
    let file = engine.open(&path).unwrap();
    let mut target = engine.allocate(device.id(), 80 * EACH).unwrap();
    let mut read = || {
        target.fill(0xEE).unwrap();
        let piece = |n| Piece::new(&file, n * EACH, EACH, 2 * n * EACH);
        let pieces: Vec<Piece<'_>> = (0..40).map(piece).collect();
        engine.read_many(&pieces, [&mut target]).exact().run().unwrap();
        let mut got = vec![0; 80 * usize::try_from(EACH).unwrap()];
        target.download(0, &mut got).unwrap();
        let each = usize::try_from(EACH).unwrap();
        for (got, expected) in got.chunks(2 * each).zip(bytes.chunks(each)) {
            assert!(got[..each] == *expected && got[each..].iter().all(|&byte| byte == 0xEE));
        }
    };
    let start = std::time::Instant::now();
    while !gpu.has_loaded.load(Ordering::Relaxed) {
        assert!(start.elapsed() < Duration::from_secs(60), "the first reads do not load them");
        std::thread::yield_now();
    }
    read();
    let late = gpu.gathered.load(Ordering::Relaxed);
    assert!(late > 0, "a kernel was queued, and withdrawn");
    read();
    gpu.begins.store(1, Ordering::Relaxed);
    let start = std::time::Instant::now();
    while gpu.gathered.load(Ordering::Relaxed) == late {
        read();
        assert!(start.elapsed() < Duration::from_secs(60), "kernels are used again");
    }
    read();
    // Nothing waits for a kernel that never begins.
    gpu.begins.store(0, Ordering::Relaxed);
    let start = std::time::Instant::now();
    let before = gpu.gathered.load(Ordering::Relaxed);
    while gpu.gathered.load(Ordering::Relaxed) == before {
        read();
        assert!(start.elapsed() < Duration::from_secs(60));
    }
    drop((file, target, engine));
    gpu.begins.store(1, Ordering::Relaxed);
}

#[test]
fn a_copy_that_fails_waits_for_no_kernel_that_has_not_begun() {
    const SHORT: u64 = 4096;
    const LONG: u64 = 300 << 10; // copied by the driver
    let gpu = Silent::new("sim:copy-faults=0.5,seed=3");
    gpu.gathers.store(true, Ordering::Relaxed);
    // SAFETY: the GPU, which the test keeps, has the number in a box.
    unsafe { gpu.inner.register(NonNull::from(&*gpu.begins).cast(), 4) }.unwrap();
    let (engine, device) = engine_with(&gpu);
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("file");
    fs::write(&path, vec![7; 4 << 20]).unwrap();
    let file = engine.open(&path).unwrap();
    let start = |offset, len| {
        let buffer = engine.allocate(device.id(), len).unwrap();
        file.read(buffer).at(offset).start().unwrap()
    };
    let mut failed = 0;
    for _ in 0..5 {
        let short = (0..16).map(|number| start(number * SHORT, SHORT));
        let reads: Vec<_> = short.chain((0..8).map(|number| start(number * LONG, LONG))).collect();
        for read in &reads {
            let ended = read.wait_for(Duration::from_secs(60)).expect("it ends");
            failed += usize::from(ended.is_err());
        }
        std::thread::sleep(Duration::from_millis(110)); // then kernels are used again
    }
    assert!(failed > 0 && gpu.gathered.load(Ordering::Relaxed) > 0);
    gpu.begins.store(1, Ordering::Relaxed);
}
