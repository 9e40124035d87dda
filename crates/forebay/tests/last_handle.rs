//! The last handle of an engine is dropped while a transfer is on any of its paths: the transfer
//! ends, its callback and its queue report it, its bytes arrive, and the engine's threads end.

#![allow(unsafe_code, reason = "reads a target that its transfer has returned or freed")]

mod lab;

use std::fs;
use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use forebay::gpu::sim::SimDevice;
use forebay::gpu::{CallerStream, Device, DeviceId};
use forebay::internal::clock::SystemClock;
use forebay::{
    Buffer, Completions, Engine, File, ManyTransfer, OpenOptions, Options, Piece, Transfer,
};
use lab::{pattern, watchdog::Watchdog};

const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;
/// The file ends inside of a sector.
const LEN: usize = (8 << 20) + 777;

/// Far above what the slowest machine needs: only a transfer that never ends exceeds it.
const BOUND: Duration = Duration::from_secs(60);

/// A path of reads through the engine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Path {
    /// Resident bytes in a cell of the GPU.
    Cells,
    /// The ring of small cold reads: to a cell of the GPU, to the memory, or to a cell of the host.
    ColdToGpu,
    ColdToHost,
    ColdToBounce,
    /// The same, repeated by the scheduler: the file ends before the request does.
    Repeated,
    /// The scheduler.
    Cached,
    Staged,
    Many,
    /// In the order of a stream.
    Ordered,
}

impl Path {
    const ALL: [Self; 9] = [
        Self::Cells,
        Self::ColdToGpu,
        Self::ColdToHost,
        Self::ColdToBounce,
        Self::Repeated,
        Self::Cached,
        Self::Staged,
        Self::Many,
        Self::Ordered,
    ];

    /// Whether it reads pages that are not resident.
    fn is_cold(self) -> bool {
        !matches!(self, Self::Cells | Self::Cached)
    }

    fn is_on_gpu(self) -> bool {
        !matches!(self, Self::ColdToHost | Self::ColdToBounce)
    }

    /// Offset and length of its first read.
    fn range(self) -> (u64, u64) {
        match self {
            Self::Cells | Self::ColdToGpu | Self::ColdToHost => (MIB, 64 * KIB),
            Self::ColdToBounce => (MIB + 3, 64 * KIB - 5),
            Self::Repeated => (8 * MIB - 8 * KIB, 64 * KIB),
            Self::Cached | Self::Staged | Self::Many | Self::Ordered => (MIB, 3 * MIB + 5),
        }
    }
}

/// The last thing that a caller does with a transfer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Use {
    Waits,
    Detaches,
    /// Leaves a callback, which owns a handle of the engine.
    CallsBack,
    /// Leaves a queue, at which it waits without a handle.
    Reports,
    /// Drops the handle, which cancels what has not begun.
    Cancels,
}

impl Use {
    const ALL: [Self; 5] =
        [Self::Waits, Self::Detaches, Self::CallsBack, Self::Reports, Self::Cancels];
}

enum Read {
    One(Transfer),
    Many(ManyTransfer),
}

impl Read {
    fn transfer(&self) -> &Transfer {
        match self {
            Self::One(read) => read,
            Self::Many(reads) => reads.transfer(),
        }
    }

    fn detach(self) {
        match self {
            Self::One(read) => read.detach(),
            Self::Many(reads) => reads.detach(),
        }
    }
}

struct Rig {
    engine: Engine,
    device: Arc<SimDevice>,
    file: File,
}

impl Rig {
    fn new(path: &std::path::Path) -> Self {
        let engine = Engine::new(Options::default()).expect("limits that fit");
        let config = "sim:bandwidth=4GB/s".parse().expect("a configuration");
        let device = Arc::new(SimDevice::new(0, config, Arc::new(SystemClock::new())));
        let shared: Arc<dyn Device> = Arc::clone(&device) as _;
        engine.add_device(&shared).expect("a new device");
        let file = engine.open_with(path, &OpenOptions::writing()).expect("the file opens");
        Self { engine, device, file }
    }

    /// Makes what the first transfer of a path makes: threads, rings, pinned memory.
    fn prepare(&self, path: Path) {
        self.evict(path);
        let (read, target) = self.start(path, 0);
        read.transfer().wait_for(BOUND).expect("an end").expect("all bytes");
        drop((read, target));
    }

    fn evict(&self, path: Path) {
        match path.is_cold() {
            true => drop(self.file.evict().expect("an eviction")),
            false => drop(fs::read(self.file.path()).expect("the file")),
        }
    }

    fn target(&self, gpu: Option<DeviceId>, len: u64) -> Buffer {
        let made = match gpu {
            Some(gpu) => self.engine.allocate(gpu, len),
            None => self.engine.allocate_pinned(len),
        };
        made.expect("memory")
    }

    /// Starts read `number` of a path, and returns a second share in its target.
    fn start(&self, path: Path, number: u64) -> (Read, Buffer) {
        let (offset, len) = path.range();
        let offset = offset + number * 128 * KIB * u64::from(path != Path::Repeated);
        let target = self.target(path.is_on_gpu().then(|| self.device.id()), len);
        // SAFETY: it is read after the transfer has ended.
        let shared = unsafe { target.share(0, len) };
        let transfer = match path {
            Path::Many => {
                let piece = Piece::new(&self.file, offset, len, 0);
                let read = self.engine.read_many(&[piece], vec![target]).start();
                return (Read::Many(read.expect("a start")), shared);
            }
            Path::Ordered => {
                let stream = self.device.create_stream().expect("a stream");
                // SAFETY: the stream belongs to this device and is never destroyed.
                unsafe { self.file.read(target).at(offset).on(CallerStream(stream.0)).start() }
            }
            _ => self.file.read(target).at(offset).start(),
        };
        (Read::One(transfer.expect("a start")), shared)
    }
}

/// Compares a target with the file, or with zeros where nothing came.
fn is_filled(path: Path, number: u64, target: &Buffer, bytes: &[u8]) -> bool {
    let (offset, len) = path.range();
    let offset = offset + number * 128 * KIB * u64::from(path != Path::Repeated);
    let offset = usize::try_from(offset).expect("small");
    let len = usize::try_from(len).expect("small").min(bytes.len() - offset);
    let mut got = vec![0; len];
    target.download(0, &mut got).expect("a download");
    got == bytes[offset..offset + len]
}

/// Threads of engines in this process.
fn threads() -> usize {
    let tasks = fs::read_dir("/proc/self/task").expect("this process").flatten();
    let names = tasks.filter_map(|task| fs::read_to_string(task.path().join("comm")).ok());
    names.filter(|name| name.starts_with("forebay-")).count()
}

#[track_caller]
fn until(what: &str, holds: impl Fn() -> bool) {
    let start = Instant::now();
    while !holds() {
        assert!(start.elapsed() < BOUND, "{what}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// One test at a time: they count the threads of the process.
static ALONE: Mutex<()> = Mutex::new(());

fn data() -> Option<(tempfile::TempDir, std::path::PathBuf, Vec<u8>)> {
    // A folder in memory has no cold bytes.
    let folder = tempfile::tempdir_in(".").expect("a folder");
    let (path, bytes) = (folder.path().join("data"), pattern(1, LEN));
    fs::write(&path, &bytes).expect("a file");
    let file = fs::File::open(&path).expect("the file");
    file.sync_all().expect("a sync");
    let rig = Rig::new(&path);
    if let Some(reason) = rig.file.no_direct_io() {
        lab::skip(format!("reads of cold bytes: {reason}"));
        return None;
    }
    Some((folder, path, bytes))
}

/// Uses the reads of a path in one way, and drops the handles in one order.
fn check(path: Path, how: Use, order: [usize; 3], file: &std::path::Path, bytes: &[u8]) {
    lab::note(format!("{path:?}, {how:?}, {order:?}"));
    let reads = if path == Path::Ordered { 2 } else { 8 };
    let rig = Rig::new(file);
    rig.prepare(path);
    rig.evict(path);
    let started = (0..reads).map(|number| rig.start(path, number));
    let (mut reads, targets): (Vec<_>, Vec<_>) = started.unzip();
    let (sender, called) = channel();
    let completions = Completions::new();
    let count = reads.len();
    for (tag, read) in reads.iter().enumerate() {
        match how {
            Use::CallsBack => {
                let (sender, engine) = (sender.clone(), rig.engine.clone());
                read.transfer().on_end(move || {
                    drop(engine);
                    sender.send(()).expect("the test waits");
                });
            }
            Use::Reports => read.transfer().report_to(&completions, tag as u64),
            Use::Waits | Use::Detaches | Use::Cancels => {}
        }
    }
    let (mut engine, mut file, device) = (Some(rig.engine), Some(rig.file), rig.device);
    for handle in order {
        match (handle, how) {
            (0, _) => drop(engine.take()),
            (1, _) => drop(file.take()),
            (_, Use::Cancels) => reads.clear(),
            (_, Use::Waits) => {}
            (_, _) => reads.drain(..).for_each(Read::detach),
        }
    }
    match how {
        Use::Waits => reads.drain(..).for_each(|read| {
            read.transfer().wait_for(BOUND).expect("an end").expect("all bytes");
        }),
        Use::CallsBack => {
            (0..count).for_each(|_| called.recv_timeout(BOUND).expect("a callback"));
        }
        Use::Reports => (0..count).for_each(|_| {
            completions.wait(Some(Instant::now() + BOUND)).expect("a report");
        }),
        Use::Detaches | Use::Cancels => {}
    }
    for (number, target) in (0..).zip(&targets).filter(|_| how != Use::Cancels) {
        until("the bytes arrive", || is_filled(path, number, target, bytes));
    }
    until("the engine ends", || threads() == 0);
    drop((targets, device));
}

fn check_each(paths: &[Path]) {
    let _alone = ALONE.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    let _watchdog = Watchdog::start();
    let Some((_folder, file, bytes)) = data() else { return };
    for &path in paths {
        for how in Use::ALL {
            // 0 is the engine, 1 the file, 2 the transfers.
            for order in [[0, 1, 2], [2, 1, 0], [1, 2, 0], [2, 0, 1]] {
                check(path, how, order, &file, &bytes);
            }
        }
    }
}

#[test]
fn reads_on_any_path_end_without_handles() {
    check_each(&Path::ALL);
}

/// Blocking calls borrow a file, which is then the last handle.
#[test]
fn blocking_reads_end_while_other_handles_are_dropped() {
    let _alone = ALONE.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    let _watchdog = Watchdog::start();
    let Some((_folder, path, bytes)) = data() else { return };
    for (len, cold) in [(64 * KIB, false), (64 * KIB, true), (3 * MIB, false), (3 * MIB, true)] {
        for targets in [1, 2] {
            let Rig { engine, device, file } = Rig::new(&path);
            let config = "sim:bandwidth=4GB/s".parse().expect("a configuration");
            let other = Arc::new(SimDevice::new(1, config, Arc::new(SystemClock::new())));
            let shared: Arc<dyn Device> = Arc::clone(&other) as _;
            engine.add_device(&shared).expect("a new device");
            let ids = [device.id(), other.id()].into_iter().take(targets);
            let mut buffers: Vec<Buffer> =
                ids.map(|id| engine.allocate(id, len).expect("memory")).collect();
            if cold {
                file.evict().expect("an eviction");
            }
            let reads = std::thread::spawn(move || {
                let read = file.read_to_all(&mut buffers).at(MIB).while_(&mut || true).run();
                drop(file);
                (read, buffers)
            });
            drop(engine);
            let (read, buffers) = reads.join().expect("no panic");
            assert_eq!(read.expect("all bytes").bytes, len);
            for buffer in &buffers {
                let mut got = vec![0; usize::try_from(len).expect("small")];
                buffer.download(0, &mut got).expect("a download");
                assert!(got == bytes[1 << 20..][..got.len()], "{len} bytes, cold: {cold}");
            }
            until("the engine ends", || threads() == 0);
        }
    }
}
