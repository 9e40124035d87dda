//! Many callers at once with as little as an engine can do with: two slots, one reader, a depth of
//! one. Each waiting thread must be woken, and concurrent writers must lose nothing. A
//! thousand of them get no more threads of the engine than it may have.

mod lab;

use std::fs;
use std::os::unix::fs::FileExt;
use std::sync::Barrier;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use forebay::gpu::GpuSelector;
use forebay::{Engine, OpenOptions, Options, RequestOptions, Residency, RingChoice, Route};
use lab::hanging::HangingDrive;
use lab::{FileSystem, LoopDrive, child, or_skip, pattern, watchdog::Watchdog};

const SLOT: usize = 256 << 10;

/// An engine with the least of everything.
fn least(ring: RingChoice) -> Engine {
    let mut options = Options::default();
    options.ring = ring;
    options.slot_size = SLOT as u64;
    options.segment_size = 32 << 10;
    options.arena_size = Some(2 * SLOT as u64);
    options.readers = Some(1);
    options.depth = Some(1);
    options.small_size = 0;
    Engine::new(options).expect("limits that fit")
}

#[test]
fn all_waiting_callers_wake() {
    const PART: usize = 3 * SLOT + 777;
    const CALLERS: usize = 6;
    let _watchdog = Watchdog::start();
    for ring in [RingChoice::Auto, RingChoice::Pread] {
        let engine = least(ring);
        let wanted: GpuSelector = "sim".parse().expect("a name");
        let gpu = engine.device(&wanted).expect("a simulated GPU").expect("a GPU").id();
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("shared");
        let file = engine.open_with(&path, &OpenOptions::writing()).expect("a new file");
        file.write(&vec![0; PART * CALLERS]).run().expect("room for it");
        thread::scope(|scope| {
            for caller in 0..CALLERS {
                let (engine, file) = (&engine, &file);
                scope.spawn(move || {
                    for turn in 0..30 {
                        let bytes = pattern((caller * 1000 + turn) as u64, PART);
                        let at = (caller * PART) as u64;
                        let mut buffer = engine.allocate(gpu, PART as u64).expect("memory");
                        if (caller + turn) % 3 == 0 {
                            file.write(&bytes).at(at).run().expect("a write");
                        } else {
                            let mut options = RequestOptions::default();
                            if turn % 2 == 0 && file.no_direct_io().is_none() {
                                options = RequestOptions {
                                    route: Some(Route::Staged),
                                    ..RequestOptions::default()
                                };
                            }
                            buffer.upload(0, &bytes).expect("an upload");
                            file.write(&buffer).at(at).options(options).run().expect("a write");
                        }
                        buffer.fill(0xee).expect("a fill");
                        let mut target = vec![0xee; PART];
                        file.read(&mut target).at(at).exact().run().expect("a read");
                        assert!(target == bytes, "{caller} {turn}");
                        file.read(&mut buffer).at(at).exact().run().expect("a read");
                        buffer.download(0, &mut target).expect("a download");
                        assert!(target == bytes, "{caller} {turn}, on the GPU");
                    }
                });
            }
        });
        let before = fs::read(&path).expect("a read");
        file.evict().expect("an eviction");
        assert!(fs::read(&path).expect("a read") == before, "page cache and drive disagree");
    }
}

/// Ranges of neighbours share pages, and pages share folios: a write with O_DIRECT next to a
/// write through it must leave neither stale bytes in the cache nor lost ones on the drive.
#[test]
fn neighbours_see_their_own_bytes() {
    const RANGE: usize = 20_000;
    const WRITERS: usize = 4;
    const EACH: usize = 8;
    let _watchdog = Watchdog::start();
    for file_system in FileSystem::ALL {
        let Some(drive) = or_skip(LoopDrive::with(file_system)) else { return };
        let engine = least(RingChoice::Auto);
        let wanted: GpuSelector = "sim".parse().expect("a name");
        let gpu = engine.device(&wanted).expect("a simulated GPU").expect("a GPU").id();
        let path = drive.path().join("shared");
        let how = OpenOptions::writing();
        let file = engine.open_with(&path, &how).expect("a new file");
        file.write(&vec![0; RANGE * WRITERS * EACH]).run().expect("room for it");
        let plain = fs::File::open(&path).expect("the file opens");
        thread::scope(|scope| {
            for writer in 0..WRITERS {
                let (engine, file, plain) = (&engine, &file, &plain);
                scope.spawn(move || {
                    let mut buffer = engine.allocate(gpu, RANGE as u64).expect("memory");
                    for turn in 0..25 * EACH {
                        let at = ((turn % EACH * WRITERS + writer) * RANGE) as u64;
                        let bytes = pattern((writer * 100_000 + turn) as u64, RANGE);
                        buffer.upload(0, &bytes).expect("an upload");
                        let route = [Route::Staged, Route::Cached][(turn / 3 + writer) % 2];
                        file.write(&buffer).at(at).route(route).run().expect("a write");
                        let mut seen = vec![0; RANGE];
                        plain.read_exact_at(&mut seen, at).expect("a read");
                        let wrong = seen.iter().zip(&bytes).filter(|(is, should)| is != should);
                        assert_eq!(wrong.count(), 0, "{file_system:?} {route} {writer} {turn}");
                    }
                });
            }
        });
        let before = fs::read(&path).expect("a read");
        file.sync_all().expect("a sync");
        file.evict().expect("an eviction");
        assert!(fs::read(&path).expect("a read") == before, "page cache and drive disagree");
    }
}

/// Lets go what hangs, also where a test ends early.
struct Hung<'a>(&'a HangingDrive);

impl<'a> Hung<'a> {
    fn writes(drive: &'a HangingDrive) -> Self {
        drive.hang_writes(true);
        Self(drive)
    }

    fn reads(drive: &'a HangingDrive) -> Self {
        drive.hang(true);
        Self(drive)
    }
}

impl Drop for Hung<'_> {
    fn drop(&mut self) {
        self.0.hang_writes(false);
        self.0.hang(false);
    }
}

/// A write through the page cache and one with O_DIRECT, close enough to share a folio: begun while
/// that one is on its way, it would dirty the folio that the kernel is about to drop, and leave old
/// bytes in the cache and EIO to the next sync. Both small, by its caller, and long.
#[test]
fn a_cached_write_waits_for_its_direct_neighbour() {
    const BODY: usize = (1 << 20) - 4096; // whole pages, and most of a folio
    const READ: usize = 16 << 10; // so that the kernel reads ahead, into ever larger folios
    let _watchdog = Watchdog::start();
    for small_size in [Options::default().small_size, 0] {
        let Some(drive) = or_skip(HangingDrive::new(64 << 20)) else { return };
        let mut options = Options::default();
        options.small_size = small_size;
        let engine = Engine::new(options).expect("limits that fit");
        let wanted: GpuSelector = "sim".parse().expect("a name");
        let gpu = engine.device(&wanted).expect("a simulated GPU").expect("a GPU").id();
        let path = drive.path().join("shared");
        let file = engine.open_with(&path, &OpenOptions::writing()).expect("a new file");
        let mut expected = vec![1; 4 << 20];
        file.write(&expected).run().expect("room for it");
        file.sync_all().expect("a sync");
        file.evict().expect("an eviction");
        let plain = fs::File::open(&path).expect("the file opens");

        let body = pattern(small_size, BODY);
        let edge = pattern(small_size + 1, 3000);
        let mut buffer = engine.allocate(gpu, BODY as u64).expect("memory");
        buffer.upload(0, &body).expect("an upload");
        let waited = thread::scope(|scope| {
            let hung = Hung::writes(&drive);
            let around =
                scope.spawn(|| file.write(&buffer).route(Route::Staged).run().expect("a write"));
            drive.fuse().wait_for_parked(1);
            let mut part = vec![0; READ];
            for at in (0..expected.len()).step_by(READ) {
                plain.read_exact_at(&mut part, at as u64).expect("a read");
            }
            let through = scope.spawn(|| file.write(&edge).at(BODY as u64).run().expect("a write"));
            thread::sleep(Duration::from_millis(200)); // as much as it needs where it does not wait
            let wait = [around, through].map(|write| !write.is_finished());
            drop(hung);
            wait
        });
        assert_eq!(waited, [true; 2], "{small_size}");
        file.sync_all().expect("a sync after both");
        expected[..BODY].copy_from_slice(&body);
        expected[BODY..][..edge.len()].copy_from_slice(&edge);
        assert!(fs::read(&path).expect("a read") == expected, "in the page cache, {small_size}");
        file.evict().expect("an eviction");
        assert!(fs::read(&path).expect("a read") == expected, "on the drive, {small_size}");
    }
}

/// The other way round: a small write that its caller makes, and that waits for the rest of its
/// page, is waited for, and wakes who waits.
#[test]
fn a_direct_write_waits_for_a_small_cached_one() {
    const BODY: usize = 64 << 10;
    const AT: usize = BODY + 100; // part of a page that has to be read first
    let _watchdog = Watchdog::start();
    let Some(drive) = or_skip(HangingDrive::new(64 << 20)) else { return };
    let engine = Engine::new(Options::default()).expect("limits that fit");
    let wanted: GpuSelector = "sim".parse().expect("a name");
    let gpu = engine.device(&wanted).expect("a simulated GPU").expect("a GPU").id();
    let path = drive.path().join("shared");
    let file = engine.open_with(&path, &OpenOptions::writing()).expect("a new file");
    let mut expected = vec![1; 1 << 20];
    file.write(&expected).run().expect("room for it");
    file.sync_all().expect("a sync");
    let left = file.evict().expect("an eviction");
    if !matches!(left, Residency::Known { resident: 0, .. }) {
        return lab::skip("nothing leaves the page cache here");
    }
    let (body, small) = (pattern(1, BODY), pattern(2, 3000));
    let mut buffer = engine.allocate(gpu, BODY as u64).expect("memory");
    buffer.upload(0, &body).expect("an upload");
    let waited = thread::scope(|scope| {
        let hung = Hung::reads(&drive);
        let through = scope.spawn(|| file.write(&small).at(AT as u64).run().expect("a write"));
        drive.fuse().wait_for_parked(1);
        let around =
            scope.spawn(|| file.write(&buffer).route(Route::Staged).run().expect("a write"));
        thread::sleep(Duration::from_millis(200)); // as above
        let wait = [through, around].map(|write| !write.is_finished());
        drop(hung);
        wait
    });
    assert_eq!(waited, [true; 2]);
    expected[..BODY].copy_from_slice(&body);
    expected[AT..][..small.len()].copy_from_slice(&small);
    file.sync_all().expect("a sync after both");
    assert!(fs::read(&path).expect("a read") == expected, "in the page cache");
    file.evict().expect("an eviction");
    assert!(fs::read(&path).expect("a read") == expected, "on the drive");
}

/// Threads of this process that an engine has started, by their name.
fn own_threads() -> usize {
    let Ok(tasks) = fs::read_dir("/proc/self/task") else { return 0 };
    let name =
        |task: fs::DirEntry| fs::read_to_string(task.path().join("comm")).unwrap_or_default();
    tasks.flatten().map(name).filter(|name| name.starts_with("forebay-")).count()
}

/// A thousand threads that read at once: each has its own bytes, and of the engine's threads there
/// are no more than it may have.
#[test]
fn a_thousand_threads_read_from_one_engine() {
    const CALLERS: usize = 1000;
    const FILES: usize = 50;
    const LEN: usize = 300_001;
    const THREADS: usize = 24;
    if child::role().is_none() {
        child::run("a thousand"); // where no other test has threads
        return;
    }
    let _watchdog = Watchdog::start();
    let folder = tempfile::tempdir().expect("a folder");
    let bytes: Vec<_> = (0..FILES).map(|number| pattern(number as u64, LEN)).collect();
    for ring in [RingChoice::Auto, RingChoice::Pread] {
        let mut options = Options::default();
        options.ring = ring;
        options.slot_size = SLOT as u64;
        options.segment_size = 32 << 10;
        options.threads = THREADS;
        let engine = Engine::new(options).expect("limits that fit");
        let wanted: GpuSelector = "sim".parse().expect("a name");
        let gpu = engine.device(&wanted).expect("a simulated GPU").expect("a GPU").id();
        let open = |(number, bytes): (usize, &Vec<u8>)| {
            let path = folder.path().join(number.to_string());
            fs::write(&path, bytes).expect("room for a file");
            let file = engine.open(path).expect("the file opens");
            // Half of them come from the drive.
            if number % 2 == 0 {
                file.evict().expect("an eviction");
            }
            file
        };
        let files: Vec<_> = bytes.iter().enumerate().map(open).collect();
        let together = Barrier::new(CALLERS);
        let most = AtomicUsize::new(0);
        let read = |caller: usize| {
            let (file, bytes) = (&files[caller % FILES], &bytes[caller % FILES]);
            // Of every kind: a small piece, one of a few segments, and all of the file.
            let len = [3000, 70_001, LEN][caller / FILES % 3];
            let at = (caller * 7919) % (LEN - len + 1);
            together.wait();
            let mut got = vec![0; len];
            if caller.is_multiple_of(2) {
                file.read(&mut got).at(at as u64).exact().run().expect("a read");
            } else {
                let mut buffer = engine.allocate(gpu, len as u64).expect("memory");
                file.read(&mut buffer).at(at as u64).exact().run().expect("a read");
                buffer.download(0, &mut got).expect("a download");
            }
            assert!(got == bytes[at..at + len], "caller {caller}");
            if caller.is_multiple_of(50) {
                most.fetch_max(own_threads(), Ordering::Relaxed);
            }
        };
        thread::scope(|scope| {
            let start = |caller: usize| {
                let read = &read;
                let thread = thread::Builder::new().stack_size(256 << 10);
                thread.spawn_scoped(scope, move || read(caller)).expect("a thread")
            };
            let callers: Vec<_> = (0..CALLERS).map(start).collect();
            callers.into_iter().for_each(|caller| caller.join().expect("no panic"));
        });
        let most = most.into_inner();
        assert!((1..=THREADS).contains(&most), "{most} threads, {ring:?}");
        lab::note(format!("{most} threads of the engine, {ring:?}"));
    }
}
