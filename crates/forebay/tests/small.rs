//! Small blocking transfers, which the calling thread makes alone, and what becomes of those that
//! do not go smoothly.

mod lab;

use std::fs;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use forebay::gpu::sim::{SimConfig, SimDevice};
use forebay::gpu::{Device, DeviceId};
use forebay::internal::clock::SystemClock;
use forebay::{
    Buffer, Engine, Error, File, OpenOptions, Operation, Options, Outcome, Reason, RequestOptions,
    Result, Route, SyncMode,
};
use lab::fuse::Fuse;
use lab::watchdog::Watchdog;
use lab::{child, or_skip, pattern};

/// The most that is small by default.
const SMALL: usize = 256 << 10;

fn engine() -> Engine {
    Engine::new(Options::default()).expect("the defaults fit")
}

fn sim(engine: &Engine, settings: &str) -> DeviceId {
    let wanted = settings.parse().expect("settings of a simulated GPU");
    engine.device(&wanted).expect("a simulated GPU").expect("a GPU").id()
}

fn writable(engine: &Engine, path: &Path) -> File {
    engine.open_with(path, &OpenOptions::writing()).expect("the file opens")
}

fn uploaded(engine: &Engine, gpu: DeviceId, bytes: &[u8]) -> Buffer {
    let mut buffer = engine.allocate(gpu, bytes.len() as u64).expect("memory");
    buffer.upload(0, bytes).expect("an upload");
    buffer
}

/// Whether this process has threads that read for an engine.
fn has_readers() -> bool {
    let tasks = fs::read_dir("/proc/self/task").expect("this process").flatten();
    let names = tasks.filter_map(|task| fs::read_to_string(task.path().join("comm")).ok());
    names.into_iter().any(|name| name.starts_with("forebay-read"))
}

/// Waits until they have come, or gone: threads take a moment for both.
fn wait_for_readers(there: bool) {
    while has_readers() != there {
        std::thread::sleep(Duration::from_millis(1));
    }
}

#[track_caller]
fn assert_share(outcome: &Outcome, route: Route, reason: Reason, bytes: usize) {
    let [share] = outcome.routes[..] else { panic!("one way only: {outcome:?}") };
    assert_eq!((share.route, share.reason, share.bytes), (route, reason, bytes as u64));
    assert_eq!(outcome.bytes, bytes as u64);
    assert!(outcome.stages.file + outcome.stages.copy <= outcome.elapsed, "{outcome:?}");
    assert_eq!(outcome.stages.copy.is_zero(), route == Route::Host, "{outcome:?}");
}

/// Runs the calling test in a process of its own, so that its threads can be counted.
fn alone(test: impl FnOnce(&Path)) {
    if child::role().is_none() {
        child::run("alone");
        return;
    }
    let _watchdog = Watchdog::start();
    let folder = tempfile::tempdir().expect("a folder");
    test(&folder.path().join("data"));
}

#[test]
fn memory_that_cannot_be_pinned_is_tried_once_and_noted() {
    let _watchdog = Watchdog::start();
    let engine = engine();
    let sim = Arc::new(SimDevice::new(3, SimConfig::default(), Arc::new(SystemClock::new())));
    let device: Arc<dyn Device> = Arc::clone(&sim) as _;
    engine.add_device(&device).expect("a new device");
    let folder = tempfile::tempdir().expect("a folder");
    let bytes = pattern(3, 4 * SMALL);
    fs::write(folder.path().join("data"), &bytes).expect("room");
    let file = engine.open(folder.path().join("data")).expect("the file opens");
    // A large read, after which the long way has memory.
    let (mut buffer, _) = file.read_to_end(Some(device.id())).run().expect("all bytes");
    sim.refuse_pinning(true);
    let (before, began) = (sim.pinnings(), Instant::now());
    for _ in 0..200 {
        let outcome = file.read((&mut buffer, 0..4096)).at(4096).exact().run();
        assert_eq!(outcome.expect("the long way").bytes, 4096);
    }
    // It is tried again every ten seconds, for lanes and for cells.
    let most = 2 * (1 + began.elapsed().as_secs() / 10);
    let tried = sim.pinnings() - before;
    assert!((1..=most).contains(&tried), "{tried} attempts, {most} at most");
    let is_noted = |note: &String| {
        note.starts_with("small transfers to and from sim:3 have no pinned memory")
            && note.contains("the host pins no more memory")
    };
    assert!(engine.notes().iter().any(is_noted), "{:?}", engine.notes());
    sim.refuse_pinning(false);
    let mut target = vec![0; 4096];
    buffer.download(0, &mut target).expect("a download");
    assert!(target == bytes[4096..8192]);
}

#[test]
fn the_caller_needs_no_other_thread() {
    alone(|path| {
        let engine = engine();
        let gpu = sim(&engine, "sim");
        let file = writable(&engine, path);
        let mut model = Vec::new();
        let ranges =
            [(0, 1), (1, SMALL), (4095, 2), (100, 8192), (200_000, 4096), (77, 1000), (3, SMALL)];
        for (turn, (offset, len)) in ranges.into_iter().enumerate() {
            let bytes = pattern(turn as u64, len + 5);
            let (on_host, on_gpu) = (&bytes[..len], uploaded(&engine, gpu, &bytes));
            model.resize(model.len().max(offset + len), 0);
            let (outcome, route) = if turn % 2 == 0 {
                model[offset..offset + len].copy_from_slice(&bytes[5..]);
                (file.write((&on_gpu, 5..len as u64 + 5)).at(offset as u64).run(), Route::Cached)
            } else {
                model[offset..offset + len].copy_from_slice(on_host);
                (file.write(on_host).at(offset as u64).run(), Route::Host)
            };
            let outcome = outcome.expect("room for a few bytes");
            assert_share(&outcome, route, Reason::WriteThroughCache, len);
            assert!(fs::read(path).expect("a read") == model, "{offset}+{len}");
        }
        assert!(!has_readers(), "a small write needed another thread");
        let mut got = vec![0; SMALL];
        file.read(&mut got).run().expect("resident bytes");
        assert!(got == model[..SMALL] && !has_readers());
    });
}

/// A write of `len` bytes with these options takes other threads, or hangs here.
fn takes_others(
    path: &Path,
    change: impl FnOnce(&mut Options),
    options: RequestOptions,
    len: usize,
) {
    let mut limits = Options::default();
    change(&mut limits);
    let engine = Engine::new(limits).expect("limits that fit");
    let gpu = sim(&engine, "sim");
    let file = writable(&engine, path);
    let bytes = pattern(len as u64, len);
    let buffer = uploaded(&engine, gpu, &bytes);
    wait_for_readers(false); // those of the engine before
    let outcome = file.write(&buffer).options(options).run().expect("a write");
    assert_eq!(outcome.bytes, len as u64);
    wait_for_readers(true);
    assert!(fs::read(path).expect("a read")[..len] == bytes);
}

#[test]
fn options_and_long_writes_take_other_threads() {
    alone(|path| {
        let default = RequestOptions::default();
        for options in [
            RequestOptions { sync: SyncMode::Data, ..default },
            RequestOptions { sync: SyncMode::All, ..default },
            RequestOptions { preallocate: true, ..default },
            RequestOptions { route: Some(Route::Cached), ..RequestOptions::default() },
        ] {
            takes_others(path, |_| {}, options, 1000);
        }
        takes_others(path, |_| {}, default, SMALL + 1);
        takes_others(path, |limits| limits.small_size = 0, default, 1000);
        takes_others(path, |limits| limits.small_size = 999, default, 1000);
    });
}

#[test]
fn writes_that_come_to_less_are_written_to_the_end() {
    let _watchdog = Watchdog::start();
    let Some(fuse) = or_skip(Fuse::new(vec![0; 100_000])) else { return };
    fuse.set(|faults| {
        faults.uncached = true;
        faults.write_most = Some(700);
    });
    let engine = engine();
    let gpu = sim(&engine, "sim");
    let file = writable(&engine, &fuse.path());
    let bytes = pattern(1, 5000);
    file.write(&bytes).at(10).run().expect("all bytes in the end");
    file.write(&uploaded(&engine, gpu, &bytes)).at(50_000).run().expect("all bytes in the end");
    let there = fuse.content();
    assert!(there[10..5010] == bytes && there[50_000..55_000] == bytes);
    assert!(there[..10].iter().chain(&there[5010..50_000]).all(|byte| *byte == 0));
}

#[test]
fn writes_that_fail_say_why() {
    let _watchdog = Watchdog::start();
    let Some(fuse) = or_skip(Fuse::new(vec![0; 100_000])) else { return };
    fuse.set(|faults| {
        faults.uncached = true;
        faults.fail_writes_at = Some((3000, libc::EDQUOT));
    });
    let engine = engine();
    let gpu = sim(&engine, "sim");
    let file = writable(&engine, &fuse.path());
    let bytes = pattern(1, 5000);
    let buffer = uploaded(&engine, gpu, &bytes);
    for ended in [file.write(&bytes).at(100).run(), file.write(&buffer).at(100).run()] {
        let error = ended.expect_err("no quota left");
        assert!(matches!(&error, Error::Io { operation: Operation::Write, .. }), "{error}");
        assert_eq!(error.errno(), Some(libc::EDQUOT));
        let range = "at 100+5000";
        assert!(error.to_string().contains(range), "{error}");
    }
    file.write(&buffer).at(3001).run().expect("the rest of the file takes bytes");
    assert!(fuse.content()[3001..8001] == bytes);
    let reader = engine.open(fuse.path()).expect("the file opens");
    let error = reader.write(&bytes).run().expect_err("open for reading only");
    assert!(matches!(error, Error::BadRequest { operation: Operation::Write, .. }), "{error}");
    let beyond = file.write(&bytes).at(u64::MAX - 10).run().expect_err("beyond the largest offset");
    assert!(matches!(beyond, Error::BadRequest { operation: Operation::Write, .. }), "{beyond}");
}

#[test]
fn a_gpu_that_fails_writes_nothing_wrong() {
    let _watchdog = Watchdog::start();
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("data");
    let mut failed = 0;
    for seed in 0..8 {
        let engine = engine();
        let gpu = sim(&engine, &format!("sim:seed={seed},copy-faults=0.6"));
        let file = writable(&engine, &path);
        for turn in 0..20 {
            let bytes = pattern(seed * 100 + turn, 3000);
            let mut buffer = engine.allocate(gpu, 3000).expect("memory");
            let uploaded = (0..50).any(|_| buffer.upload(0, &bytes).is_ok());
            assert!(uploaded, "one upload in fifty succeeds");
            let written: Result<Outcome> = file.write(&buffer).at(turn * 3000).run();
            let at = usize::try_from(turn * 3000).expect("small");
            match written {
                Ok(_) => assert!(fs::read(&path).expect("a read")[at..at + 3000] == bytes),
                Err(error) => {
                    failed += 1;
                    assert!(matches!(&error, Error::Device { .. }), "{error}");
                }
            }
        }
    }
    assert!(failed > 0, "two copies of a kind fail by these seeds");
}

#[test]
fn small_writes_during_long_ones() {
    const PART: usize = 1000;
    const LONG: usize = 3 << 20;
    let _watchdog = Watchdog::start();
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("data");
    let engine = engine();
    let gpu = sim(&engine, "sim");
    let file = writable(&engine, &path);
    let parts: Vec<_> = (0..240).map(|n| pattern(n, PART)).collect();
    let long = pattern(1000, LONG);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let buffer = uploaded(&engine, gpu, &long);
            for _ in 0..4 {
                file.write(&buffer).at((240 * PART) as u64).run().expect("a long write");
            }
        });
        // More threads than there are lanes.
        for first in 0..12 {
            let (engine, file, parts) = (&engine, &file, &parts);
            scope.spawn(move || {
                for n in (first..parts.len()).step_by(12) {
                    let buffer = uploaded(engine, gpu, &parts[n]);
                    file.write(&buffer).at((n * PART) as u64).run().expect("a small write");
                }
            });
        }
    });
    let expected = [parts.concat(), long].concat();
    assert!(fs::read(&path).expect("a read") == expected);
}

#[test]
fn a_write_past_the_cache_leaves_nothing_there_but_its_edges() {
    let folder = tempfile::tempdir().unwrap();
    let engine = Engine::new(Options::default()).unwrap();
    let file = engine.open_with(folder.path().join("new"), &OpenOptions::writing()).unwrap();
    if let Some(reason) = file.no_direct_io() {
        return lab::skip(reason);
    }
    for (offset, len) in [(0, 8192), (1 << 20, 1 << 20), (4096 + 100, 20_000), (3, 5)] {
        let bytes = pattern(offset, len);
        let outcome = file.write(&bytes).at(offset).past_cache().run().unwrap();
        let through: u64 = outcome
            .routes
            .iter()
            .filter(|share| share.reason == Reason::UnalignedEdge)
            .map(|share| share.bytes)
            .sum();
        let direct = outcome.routes.iter().filter(|share| share.reason == Reason::WritePastCache);
        assert_eq!(direct.map(|share| share.bytes).sum::<u64>() + through, len as u64);
        assert!(through < 8192 && (through == 0) == offset.is_multiple_of(4096), "{outcome:?}");
        let mut back = vec![0; len];
        file.read(&mut back).at(offset).exact().run().unwrap();
        assert_eq!(back, bytes);
    }
    let memory = lab::memory_folder();
    let Some(folder) = or_skip(memory) else { return };
    let file = engine.open_with(folder.path().join("new"), &OpenOptions::writing()).unwrap();
    let outcome = file.write(&vec![1; 4096]).past_cache().run().unwrap();
    assert_share(&outcome, Route::Host, Reason::WriteThroughCache, 4096);
}
