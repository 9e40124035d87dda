//! Handles dropped, forgotten and waited for at any moment, above all while a drive hangs:
//! memory that the kernel or a GPU may still write to is not returned.

mod lab;

use std::fs;
use std::mem;
use std::sync::Arc;
use std::time::{Duration, Instant};

use forebay::gpu::{Device, DeviceId, GpuSelector};
use forebay::{Buffer, Engine, Error, File, OpenOptions, Options, RingChoice};
use lab::fuse::Fuse;
use lab::{or_skip, pattern, watchdog::Watchdog};

const MIB: u64 = 1 << 20;

/// What a buffer holds before a transfer.
const BEFORE: u8 = 0xee;

/// From here on the drive hangs.
const HANGS_FROM: u64 = 3 * MIB;

const BOUND: Duration = Duration::from_millis(100);

/// A file of 8 MiB on a file system that can hang, and an engine with a simulated GPU.
struct Rig {
    fuse: Fuse,
    engine: Engine,
    gpu: Arc<dyn Device>,
    file: File,
    bytes: Vec<u8>,
    _watchdog: Watchdog,
}

impl Rig {
    fn new(ring: RingChoice) -> Option<Self> {
        let bytes = pattern(1, 8 << 20);
        let fuse = or_skip(Fuse::new(bytes.clone()))?;
        let engine = new_engine(ring);
        let gpu = sim(&engine);
        let options = OpenOptions::writing();
        let file = engine.open_with(fuse.path(), &options).expect("the file opens");
        Some(Self { fuse, engine, gpu, file, bytes, _watchdog: Watchdog::start() })
    }

    /// Runs `check` with every ring, on host memory and on the simulated GPU.
    fn each(check: impl Fn(&Self, Option<DeviceId>)) {
        for ring in [RingChoice::Auto, RingChoice::Pread] {
            for on_gpu in [false, true] {
                lab::note(format!("{ring:?}, on a GPU: {on_gpu}"));
                let Some(rig) = Self::new(ring) else { return };
                check(&rig, on_gpu.then(|| rig.gpu.id()));
            }
        }
    }

    fn buffer(&self, gpu: Option<DeviceId>, len: u64) -> Buffer {
        let buffer = match gpu {
            Some(gpu) => self.engine.allocate(gpu, len),
            None => self.engine.allocate_pinned(len),
        };
        let mut buffer = buffer.expect("memory");
        buffer.fill(BEFORE).expect("a fill");
        buffer
    }

    fn start(&self, gpu: Option<DeviceId>) -> forebay::Transfer {
        let buffer = self.buffer(gpu, self.bytes.len() as u64);
        self.file.read(buffer).exact().start().expect("a start")
    }

    fn hang(&self) {
        self.fuse.set(|faults| faults.hang_from = Some(HANGS_FROM));
    }

    fn answer(&self) {
        self.fuse.set(|faults| faults.hang_from = None);
    }

    /// The engine still moves bytes: where the drive answers, and on other drives.
    fn assert_usable(&self) {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("other");
        fs::write(&path, &self.bytes).expect("a file");
        let other = self.engine.open(&path).expect("the file opens");
        for cold in [false, true] {
            if cold {
                other.evict().expect("an eviction");
            }
            let (buffer, _) = other.read_to_end(None).run().expect("another drive");
            assert!(buffer.as_slice() == Some(&self.bytes[..]));
            let (buffer, _) = other.read_to_end(Some(self.gpu.id())).run().expect("another drive");
            assert!(content(&buffer) == self.bytes);
        }
    }

    fn free_gpu_memory(&self) -> u64 {
        self.gpu.memory().expect("an answer").0
    }
}

fn new_engine(ring: RingChoice) -> Engine {
    let mut options = Options::default();
    options.slot_size = MIB;
    options.segment_size = 128 << 10;
    options.ring = ring;
    Engine::new(options).expect("limits that fit")
}

fn sim(engine: &Engine) -> Arc<dyn Device> {
    let wanted: GpuSelector = "sim".parse().expect("a name");
    engine.device(&wanted).expect("a simulated GPU").expect("a GPU")
}

fn content(buffer: &Buffer) -> Vec<u8> {
    let mut bytes = vec![0; usize::try_from(buffer.len()).expect("a small buffer")];
    buffer.download(0, &mut bytes).expect("a download");
    bytes
}

/// Waits until `condition` holds; the watchdog ends what never comes.
fn until(condition: impl Fn() -> bool) {
    while !condition() {
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// Threads of this process whose names begin so.
fn threads(prefix: &str) -> usize {
    fs::read_dir("/proc/self/task")
        .expect("this process")
        .flatten()
        .filter_map(|task| fs::read_to_string(task.path().join("comm")).ok())
        .filter(|name| name.starts_with(prefix))
        .count()
}

#[test]
fn a_bound_that_expires_keeps_the_memory() {
    Rig::each(|rig, gpu| {
        let free = rig.free_gpu_memory();
        rig.hang();
        let transfer = rig.start(gpu);
        rig.fuse.wait_for_parked(1);
        let began = Instant::now();
        let (result, buffer) = transfer.wait_at_most(BOUND);
        assert!(began.elapsed() >= BOUND);
        assert!(buffer.is_none(), "memory that the drive may still fill");
        let error = result.expect_err("the drive hangs");
        let Error::TimedOut { place, bound, done } = &error else { panic!("{error}") };
        assert_eq!((place.offset, place.len, *bound), (0, 8 * MIB, BOUND));
        assert!(*done <= HANGS_FROM);
        let path = rig.fuse.path();
        let message = format!(
            "transfer of `{}` at 0+8388608 timed out after 100ms ({done} bytes transferred)",
            path.display()
        );
        assert_eq!(error.to_string(), message);
        assert_eq!(error.hint().as_deref(), Some("look whether the file system still answers"));
        assert!(error.is_retryable());
        if gpu.is_some() {
            assert_eq!(rig.free_gpu_memory(), free - 8 * MIB, "the transfer keeps its memory");
        }
        rig.assert_usable();
        rig.answer();
        until(|| rig.free_gpu_memory() == free);
        let (buffer, _) = rig.file.read_to_end(gpu).run().expect("the drive answers again");
        assert!(content(&buffer) == rig.bytes);
    });
}

#[test]
fn a_bound_that_does_not_expire_gives_all_back() {
    Rig::each(|rig, gpu| {
        let (result, buffer) = rig.start(gpu).wait_at_most(Duration::from_secs(100));
        assert_eq!(result.expect("all bytes").bytes, 8 * MIB);
        assert!(content(&buffer.expect("it comes back")) == rig.bytes);
    });
}

#[test]
fn polling_leaves_a_transfer_as_it_is() {
    Rig::each(|rig, gpu| {
        rig.hang();
        let transfer = rig.start(gpu);
        rig.fuse.wait_for_parked(1);
        assert!(!transfer.is_done());
        assert!(transfer.wait_for(Duration::from_millis(20)).is_none());
        assert!(transfer.progress().0 < transfer.progress().1);
        rig.answer();
        let polled = transfer.wait_for(Duration::from_secs(100)).expect("it answers");
        assert_eq!(polled.expect("all bytes").bytes, 8 * MIB);
        assert!(transfer.is_done());
        assert_eq!(transfer.progress(), (8 * MIB, 8 * MIB));
        let shares: u64 = transfer.routes().iter().map(|share| share.bytes).sum();
        assert_eq!(shares, 8 * MIB);
        let (result, buffer) = transfer.wait();
        assert_eq!(result.expect("all bytes").bytes, 8 * MIB);
        assert!(content(&buffer.expect("it comes back")) == rig.bytes);
    });
}

#[test]
fn a_cancelled_transfer_drains_first() {
    Rig::each(|rig, gpu| {
        rig.hang();
        let transfer = rig.start(gpu);
        rig.fuse.wait_for_parked(1);
        transfer.cancel();
        transfer.cancel();
        assert!(transfer.wait_for(BOUND).is_none(), "what is in flight comes first");
        rig.answer();
        let (result, buffer) = transfer.wait();
        let error = result.expect_err("it was cancelled");
        assert!(matches!(&error, Error::Cancelled { .. }), "{error}");
        assert!(error.to_string().contains("was cancelled after "), "{error}");
        let bytes = content(&buffer.expect("it comes back"));
        // Nothing arrives any more once it has ended.
        std::thread::sleep(Duration::from_millis(20));
        let wrong =
            (0..bytes.len()).filter(|&at| bytes[at] != rig.bytes[at] && bytes[at] != BEFORE);
        assert_eq!(wrong.count(), 0, "bytes that the file does not hold");
        let done = rig.start(gpu);
        until(|| done.is_done());
        done.cancel();
        assert_eq!(done.wait().0.expect("it had ended before").bytes, 8 * MIB);
    });
}

#[test]
fn handles_dropped_in_flight() {
    Rig::each(|rig, gpu| {
        let free = rig.free_gpu_memory();
        rig.hang();
        let transfer = rig.start(gpu);
        rig.fuse.wait_for_parked(1);
        drop(transfer);
        if gpu.is_some() {
            assert_eq!(rig.free_gpu_memory(), free - 8 * MIB, "the drive may still fill it");
        }
        rig.assert_usable();
        rig.answer();
        until(|| rig.free_gpu_memory() == free);
        assert!(content(&rig.file.read_to_end(gpu).run().expect("all bytes").0) == rig.bytes);
    });
}

#[test]
fn transfers_forgotten_in_flight() {
    Rig::each(|rig, gpu| {
        rig.hang();
        for _ in 0..3 {
            mem::forget(rig.start(gpu));
        }
        rig.fuse.wait_for_parked(1);
        rig.assert_usable();
        rig.answer();
        assert!(content(&rig.file.read_to_end(gpu).run().expect("all bytes").0) == rig.bytes);
    });
}

#[test]
fn a_transfer_outlives_its_file_and_engine() {
    Rig::each(|rig, gpu| {
        let engine = new_engine(RingChoice::Auto);
        let file = engine.open(rig.fuse.path()).expect("the file opens");
        let buffer = match gpu {
            Some(_) => engine.allocate(sim(&engine).id(), 8 * MIB),
            None => engine.allocate_pinned(8 * MIB),
        };
        rig.hang();
        let transfer = file.read(buffer.expect("memory")).exact().start().expect("a start");
        rig.fuse.wait_for_parked(1);
        drop(file);
        drop(engine);
        rig.answer();
        let (result, buffer) = transfer.wait();
        assert_eq!(result.expect("all bytes").bytes, 8 * MIB);
        assert!(content(&buffer.expect("it comes back")) == rig.bytes);
    });
}

#[test]
fn a_buffer_outlives_its_engine() {
    let engine = new_engine(RingChoice::Auto);
    let gpu = sim(&engine);
    let mut on_gpu = engine.allocate(gpu.id(), 100_000).expect("memory");
    let mut pinned = engine.allocate_pinned(100_000).expect("memory");
    drop(engine);
    for buffer in [&mut on_gpu, &mut pinned] {
        buffer.upload(7, &pattern(3, 5000)).expect("an upload");
        assert!(content(buffer)[7..5007] == pattern(3, 5000));
    }
    let (left, right) = on_gpu.split_at(5007);
    drop(left);
    assert_eq!(content(&right).len(), 94_993);
}

#[test]
fn the_last_handle_of_an_engine_goes_while_a_drive_hangs() {
    Rig::each(|rig, gpu| {
        let engine = new_engine(RingChoice::Auto);
        let file = engine.open(rig.fuse.path()).expect("the file opens");
        let device = sim(&engine);
        let free = device.memory().expect("an answer").0;
        let buffer = match gpu {
            Some(_) => engine.allocate(device.id(), 8 * MIB),
            None => engine.allocate_pinned(8 * MIB),
        };
        rig.hang();
        let transfer = file.read(buffer.expect("memory")).exact().start().expect("a start");
        rig.fuse.wait_for_parked(1);
        // None of the three waits for the drive without a bound.
        drop(transfer);
        drop(file);
        drop(engine);
        if gpu.is_some() {
            assert_eq!(device.memory().expect("an answer").0, free - 8 * MIB);
        }
        rig.assert_usable();
        rig.answer();
        until(|| device.memory().expect("an answer").0 == free);
    });
}

/// Processor time that threads of this process whose names begin so have used, in ticks.
fn ticks(prefix: &str) -> u64 {
    let tasks = fs::read_dir("/proc/self/task").expect("this process").flatten();
    let stats = tasks.filter_map(|task| fs::read_to_string(task.path().join("stat")).ok());
    let of = stats.filter(|stat| stat.contains(&format!("({prefix}")));
    of.map(|stat| {
        let fields: Vec<&str> = stat.rsplit(')').next().unwrap_or("").split(' ').collect();
        [12, 13].map(|at| fields[at].parse::<u64>().expect("a number")).iter().sum::<u64>()
    })
    .sum()
}

#[test]
fn threads_sleep_while_the_last_transfer_hangs() {
    let _watchdog = Watchdog::start();
    if lab::child::role().is_none() {
        lab::child::run("asleep");
        return;
    }
    let Some(rig) = Rig::new(RingChoice::Pread) else { return };
    // One thread hangs, and those have nothing to do that have read what comes before.
    rig.fuse.set(|faults| (faults.no_direct, faults.hang_from) = (true, Some(8 * MIB - 1)));
    let engine = new_engine(RingChoice::Pread);
    let file = engine.open(rig.fuse.path()).expect("the file opens");
    lab::fuse::drop_pages(&rig.fuse.path());
    let transfer = file
        .read(engine.allocate_pinned(8 * MIB).expect("memory"))
        .exact()
        .start()
        .expect("a start");
    rig.fuse.wait_for_parked(1);
    drop((transfer, file, engine));
    assert!(threads("forebay-wait") > 1);
    let before = ticks("forebay-wait");
    std::thread::sleep(Duration::from_secs(1));
    // A sleeping thread uses none, whatever the machine; one that does not, what it can get.
    let used = ticks("forebay-wait") - before;
    assert!(used <= 3, "{used} ticks of waiting threads");
    rig.answer();
}

#[test]
fn engines_end_with_their_threads() {
    let _watchdog = Watchdog::start();
    if lab::child::role().is_none() {
        lab::child::run("threads");
        return;
    }
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("data");
    let bytes = pattern(2, 3_000_000);
    fs::write(&path, &bytes).expect("a file");
    let descriptors = || fs::read_dir("/proc/self/fd").expect("this process").count();
    let before = descriptors();
    for turn in 0..20 {
        let ring = [RingChoice::Auto, RingChoice::Pread][turn % 2];
        let engine = new_engine(ring);
        let gpu = sim(&engine);
        let file = engine.open(&path).expect("the file opens");
        file.evict().expect("an eviction");
        let (buffer, _) = file.read_to_end(Some(gpu.id())).run().expect("all bytes");
        assert!(threads("forebay-") > 0);
        drop(file);
        drop(engine);
        // The last act of a thread is to say that it ends; the kernel takes a moment longer.
        until(|| threads("forebay-") == 0);
        assert!(content(&buffer) == bytes);
    }
    until(|| descriptors() == before);
}

#[test]
fn a_hung_file_holds_up_no_other() {
    let Some(fuse) = or_skip(Fuse::new(pattern(1, 8 << 20))) else { return };
    let _watchdog = Watchdog::start();
    let mut options = Options::default();
    options.readers = Some(2);
    options.segment_size = 256 << 10;
    options.slot_size = MIB;
    let engine = Engine::new(options).expect("the options fit");
    fuse.set(|faults| faults.no_direct = true); // so that threads hang, not a ring
    let file = engine.open(fuse.path()).expect("the file opens");
    lab::fuse::drop_pages(&fuse.path());
    fuse.set(|faults| faults.hang_from = Some(0));
    let buffer = engine.allocate_pinned(8 * MIB).expect("memory");
    let hung = file.read(buffer).start().expect("a start");
    fuse.wait_for_parked(2); // as many as there are readers

    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("healthy");
    let bytes = pattern(2, 3 << 20);
    fs::write(&path, &bytes).expect("a file");
    let healthy = engine.open(&path).expect("the file opens");
    // A caller who waits does the work itself.
    let mut target = vec![0; bytes.len()];
    healthy.read(&mut target).exact().run().expect("a read during a hung one");
    assert!(target == bytes);
    // Nor does a cancelled transfer wait for the hung one: it ends, cancelled or over before that.
    let buffer = engine.allocate_pinned(3 * MIB).expect("memory");
    let waiting = healthy.read(buffer).start().expect("a start");
    waiting.cancel();
    let end = waiting.wait().0;
    assert!(matches!(end, Ok(_) | Err(Error::Cancelled { .. })), "{end:?}");
    fuse.set(|faults| faults.hang_from = None);
    hung.wait().0.expect("the drive answers again");
}

#[test]
fn writes_that_hang() {
    for ring in [RingChoice::Auto, RingChoice::Pread] {
        let Some(rig) = Rig::new(ring) else { return };
        // No page cache between the write and the server.
        rig.fuse.set(|faults| faults.uncached = true);
        let file = rig.engine.open_with(rig.fuse.path(), &OpenOptions::writing());
        let file = file.expect("the file opens");
        let new = pattern(9, 2 << 20);
        let buffer = || {
            let mut buffer = rig.buffer(Some(rig.gpu.id()), 2 * MIB);
            buffer.upload(0, &new).expect("an upload");
            buffer
        };
        let free = rig.free_gpu_memory();
        rig.fuse.set(|faults| faults.hang_writes = true);
        let transfer = file.write(buffer()).at(MIB).start().expect("a start");
        rig.fuse.wait_for_parked(1);
        let (result, buffer_back) = transfer.wait_at_most(BOUND);
        assert!(matches!(result, Err(Error::TimedOut { .. })) && buffer_back.is_none());
        rig.assert_usable();
        rig.fuse.set(|faults| faults.hang_writes = false);
        until(|| rig.free_gpu_memory() == free);
        let transfer = file.write(buffer()).at(MIB).start().expect("a start");
        assert_eq!(transfer.wait().0.expect("all bytes").bytes, 2 * MIB);
        assert!(rig.fuse.content()[1 << 20..][..2 << 20] == new);
    }
}

/// Handles of every kind go at moments that differ from run to run, on a drive that answers.
#[test]
fn handles_that_go_at_any_moment() {
    Rig::each(|rig, gpu| {
        let free = rig.free_gpu_memory();
        for turn in 0..60_u64 {
            let transfer = rig.start(gpu);
            let moment = Duration::from_micros(turn * turn * 3 % 2500);
            std::thread::sleep(moment);
            match turn % 4 {
                0 => drop(transfer),
                1 => transfer.cancel(),
                2 => drop(transfer.wait_at_most(Duration::from_micros(turn))),
                _ => {
                    transfer.cancel();
                    let (result, buffer) = transfer.wait();
                    let bytes = content(&buffer.expect("it comes back"));
                    match result {
                        Ok(_) => assert!(bytes == rig.bytes),
                        Err(error) => assert!(matches!(error, Error::Cancelled { .. }), "{error}"),
                    }
                }
            }
        }
        until(|| rig.free_gpu_memory() == free);
        assert!(content(&rig.file.read_to_end(gpu).run().expect("all bytes").0) == rig.bytes);
    });
}
