//! An engine with a simulated GPU and a stream on it, as a caller would have them.

#![allow(unsafe_code, reason = "queues work on streams of its own, as a caller would")]

use std::fs;
use std::ptr::NonNull;
use std::sync::Arc;
use std::time::Duration;

use forebay::gpu::sim::SimDevice;
use forebay::gpu::{CallerStream, Device};
use forebay::internal::Stream;
use forebay::internal::clock::SystemClock;
use forebay::units::KIB;
use forebay::{Buffer, Engine, Error, File, OpenOptions, Options, Transfer};

pub(crate) const SLOT: usize = 256 << 10;
/// Ten slots and a rest.
pub(crate) const LEN: usize = 10 * SLOT + 12_345;
/// Where reads begin, at no multiple of anything.
pub(crate) const OFFSET: usize = 777;

pub(crate) struct Rig {
    pub(crate) engine: Engine,
    pub(crate) device: Arc<SimDevice>,
    pub(crate) stream: Stream,
    pub(crate) folder: tempfile::TempDir,
}

impl Rig {
    pub(crate) fn new() -> Self {
        Self::with(Duration::from_secs(30))
    }

    pub(crate) fn with(watchdog: Duration) -> Self {
        Self::sized(watchdog, SLOT as u64, 64 * KIB)
    }

    pub(crate) fn sized(watchdog: Duration, slot: u64, segment: u64) -> Self {
        let mut options = Options::default();
        options.slot_size = slot;
        options.segment_size = segment;
        options.watchdog = watchdog;
        let engine = Engine::new(options).expect("limits that fit");
        let config = "sim:bandwidth=2GB/s".parse().expect("a configuration");
        let device = Arc::new(SimDevice::new(0, config, Arc::new(SystemClock::new())));
        let shared: Arc<dyn Device> = Arc::clone(&device) as _;
        engine.add_device(&shared).expect("a new device");
        let stream = device.create_stream().expect("a stream");
        Self { engine, device, stream, folder: tempfile::tempdir().expect("a folder") }
    }

    pub(crate) fn caller(&self) -> CallerStream {
        CallerStream(self.stream.0)
    }

    pub(crate) fn file(&self, bytes: &[u8]) -> File {
        self.opened("file", bytes)
    }

    pub(crate) fn buffer(&self, len: usize) -> Buffer {
        self.engine.allocate(self.device.id(), len as u64).expect("memory")
    }

    pub(crate) fn opened(&self, name: &str, bytes: &[u8]) -> File {
        let path = self.folder.path().join(name);
        fs::write(&path, bytes).expect("room for a file");
        self.engine.open_with(path, &OpenOptions::writing()).expect("the file opens")
    }

    pub(crate) fn read(&self, file: &File, buffer: Buffer) -> Result<Transfer, Error> {
        // SAFETY: the stream is this device's and alive.
        unsafe { file.read(buffer).at(OFFSET as u64).on(self.caller()).start() }
    }

    /// Holds the stream up until the number is one.
    pub(crate) fn hold<'a>(&self, number: &'a mut Number) -> Gate<'a> {
        let at = number.at();
        // SAFETY: the number outlives the gate, which waits for the stream.
        unsafe {
            self.device.register(at.cast(), 4).expect("memory of our own");
            self.device.wait_number(self.stream, at, 1).expect("a wait");
        }
        Gate { number, device: Arc::clone(&self.device), stream: self.stream }
    }

    /// Brings bytes of the GPU to the host in the order of the stream.
    pub(crate) fn fetch(&self, address: u64, len: usize) -> Fetched {
        let mut host = vec![0_u8; len];
        let at = NonNull::new(host.as_mut_ptr()).expect("a vector");
        // SAFETY: the vector is not moved before the stream has been waited for.
        unsafe {
            self.device.register(at, len).expect("memory of our own");
            self.device.copy_to_host(self.stream, at, address, len).expect("a copy");
        }
        Fetched { host, device: Arc::clone(&self.device), stream: self.stream }
    }
}

pub(crate) struct Number(pub(crate) Box<u32>);

impl Number {
    pub(crate) fn at(&mut self) -> NonNull<u32> {
        NonNull::from(&mut *self.0)
    }
}

pub(crate) struct Gate<'a> {
    pub(crate) number: &'a mut Number,
    pub(crate) device: Arc<SimDevice>,
    pub(crate) stream: Stream,
}

impl Gate<'_> {
    pub(crate) fn open(self) {
        let at = self.number.at();
        // SAFETY: read by others as an atomic; registered in `hold`.
        unsafe {
            std::sync::atomic::AtomicU32::from_ptr(at.as_ptr())
                .store(1, std::sync::atomic::Ordering::Release);
            self.device.synchronize(self.stream).expect("the stream goes on");
            self.device.unregister(at.cast()).expect("registered above");
        }
    }
}

pub(crate) struct Fetched {
    pub(crate) host: Vec<u8>,
    pub(crate) device: Arc<SimDevice>,
    pub(crate) stream: Stream,
}

impl Fetched {
    pub(crate) fn bytes(mut self) -> Vec<u8> {
        self.device.synchronize(self.stream).expect("the stream goes on");
        let at = NonNull::new(self.host.as_mut_ptr()).expect("a vector");
        // SAFETY: registered above, and the copy is done.
        unsafe { self.device.unregister(at).expect("registered above") };
        self.host
    }
}
