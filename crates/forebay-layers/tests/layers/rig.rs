//! Files with layers, an engine with a simulated GPU, and a stream that computes, as a caller would
//! have them.

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
use forebay::{Buffer, Engine, Error, File, Options};
use forebay_layers::{Layer, LayerStream, Order, StreamOptions, Taken};

pub(crate) const SLOT: usize = 256 << 10;

pub(crate) struct Rig {
    pub(crate) engine: Engine,
    pub(crate) device: Arc<SimDevice>,
    pub(crate) stream: Stream,
    pub(crate) folder: tempfile::TempDir,
}

impl Drop for Rig {
    fn drop(&mut self) {
        let misused = self.device.misused();
        assert!(
            misused == 0 || std::thread::panicking(),
            "{misused} times memory was given back that copies were queued on"
        );
    }
}

/// Layers, and the bytes that each of their parts has to be.
pub(crate) struct Model {
    pub(crate) layers: Vec<Layer>,
    pub(crate) bytes: Vec<Vec<Vec<u8>>>,
}

/// What came of a layer: its number and slice, and a copy of its memory that the compute's stream
/// made once it was over.
pub(crate) struct Seen {
    pub(crate) layer: usize,
    pub(crate) slice: usize,
    /// The layer's part that its first one is.
    pub(crate) first: usize,
    pub(crate) parts: Vec<std::ops::Range<u64>>,
    pub(crate) copy: Buffer,
}

impl Rig {
    pub(crate) fn new() -> Self {
        Self::with("sim:bandwidth=4GB/s")
    }

    pub(crate) fn with(config: &str) -> Self {
        Self::with_watchdog(config, Duration::from_secs(10))
    }

    pub(crate) fn with_watchdog(config: &str, watchdog: Duration) -> Self {
        let mut options = Options::default();
        options.slot_size = SLOT as u64;
        options.segment_size = 64 * KIB;
        options.watchdog = watchdog;
        let engine = Engine::new(options).expect("limits that fit");
        let config = config.parse().expect("a configuration");
        let device = Arc::new(SimDevice::new(0, config, Arc::new(SystemClock::new())));
        let shared: Arc<dyn Device> = Arc::clone(&device) as _;
        engine.add_device(&shared).expect("a new device");
        let stream = device.create_stream().expect("a stream");
        Self { engine, device, stream, folder: tempfile::tempdir().expect("a folder") }
    }

    /// Another GPU of the same host, of the same engine.
    pub(crate) fn sibling(&self, config: &str) -> Self {
        let config = config.parse().expect("a configuration");
        let device = Arc::new(self.device.sibling(self.device.id().index + 1, config));
        let shared: Arc<dyn Device> = Arc::clone(&device) as _;
        self.engine.add_device(&shared).expect("a new device");
        let stream = device.create_stream().expect("a stream");
        let (engine, folder) = (self.engine.clone(), tempfile::tempdir().expect("a folder"));
        Self { engine, device, stream, folder }
    }

    pub(crate) fn compute(&self) -> CallerStream {
        CallerStream(self.stream.0)
    }

    pub(crate) fn gpu(&self) -> Arc<dyn Device> {
        Arc::clone(&self.device) as _
    }

    pub(crate) fn file(&self, name: &str, bytes: &[u8]) -> File {
        let path = self.folder.path().join(name);
        fs::write(&path, bytes).expect("room for a file");
        self.engine.open(path).expect("the file opens")
    }

    /// `count` layers of three parts each, at odd offsets of two files, of about `len` bytes.
    pub(crate) fn model(&self, count: usize, len: usize) -> Model {
        let sizes = [len / 2, len / 3 + 11, len / 6];
        let total: usize = count * (len + 1000);
        let bytes: Vec<Vec<u8>> = (0..2_u8).map(|seed| pattern(seed, total)).collect();
        let files: Vec<File> = (0..2).map(|n| self.file(&format!("file {n}"), &bytes[n])).collect();
        let mut at = [13, 4096];
        let (mut layers, mut expected) = (Vec::new(), Vec::new());
        for number in 0..count {
            let mut layer = Layer::named(format!("layer {number}"));
            let mut parts = Vec::new();
            for (part, size) in sizes.into_iter().enumerate() {
                let file = part % 2;
                layer = layer.with(&files[file], at[file] as u64, size as u64);
                parts.push(bytes[file][at[file]..at[file] + size].to_vec());
                at[file] += size + part * 100;
            }
            layers.push(layer);
            expected.push(parts);
        }
        Model { layers, bytes: expected }
    }

    pub(crate) fn stream(&self, model: &Model, options: StreamOptions) -> LayerStream {
        LayerStream::new(&self.engine, &self.gpu(), &model.layers, options).expect("a stream")
    }

    /// Takes the next layer.
    pub(crate) fn next(&self, stream: &LayerStream) -> Result<Option<Taken>, Error> {
        // SAFETY: the stream is this device's and alive.
        unsafe { stream.next(self.compute()) }
    }

    /// Computes for `time`, and at the end of it looks at the layer.
    pub(crate) fn use_layer(&self, layer: &Taken, time: Duration) -> Seen {
        let memory = layer.memory().expect("it is held");
        self.device.work(self.compute(), time).expect("a stream");
        let copy = self.engine.allocate_pinned(memory.len().max(1)).expect("memory");
        let to = NonNull::new(copy.address() as *mut u8).expect("mapped memory");
        let len = usize::try_from(memory.len()).expect("it fits");
        // SAFETY: the copy lives until the stream has been synchronised, as all users here do.
        unsafe { self.device.copy_to_host(self.stream, to, memory.address(), len) }
            .expect("a copy");
        let (layer, slice, first) = (layer.layer(), layer.slice(), layer.first_part());
        Seen { layer, slice, first, parts: Vec::new(), copy }
    }

    /// Takes layers until a pass is over, and computes with each.
    pub(crate) fn pass(&self, stream: &LayerStream, time: Duration) -> Result<Vec<Seen>, Error> {
        let mut seen = Vec::new();
        while let Some(layer) = self.next(stream)? {
            let looked = self.use_layer(&layer, time);
            seen.push(Seen { parts: layer.parts().collect(), ..looked });
        }
        self.device.synchronize(self.stream).expect("the compute ends");
        Ok(seen)
    }
}

impl Model {
    /// Whether a layer's copy is what the files hold.
    pub(crate) fn check(&self, seen: &Seen) {
        let bytes = seen.copy.as_slice().expect("host memory");
        for (part, range) in seen.parts.iter().enumerate() {
            let range = usize::try_from(range.start).expect("small")
                ..usize::try_from(range.end).expect("small");
            let is_right = bytes[range] == self.bytes[seen.layer][seen.first + part][..];
            assert!(is_right, "part {part} of layer {} is not what the file holds", seen.layer);
        }
    }

    pub(crate) fn check_all(&self, seen: &[Seen], layers: &[usize]) {
        assert_eq!(seen.iter().map(|seen| seen.layer).collect::<Vec<_>>(), layers);
        seen.iter().for_each(|seen| self.check(seen));
    }
}

pub(crate) fn ordered(order: Order, gpu_budget: Option<u64>) -> StreamOptions {
    let mut options = StreamOptions::ordered(order);
    options.gpu_budget = gpu_budget;
    options
}

pub(crate) fn pattern(seed: u8, len: usize) -> Vec<u8> {
    let mut state = u32::from(seed) + 1;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 17;
        state ^= state << 5;
        state.to_le_bytes()[1]
    };
    (0..len).map(|_| next()).collect()
}
