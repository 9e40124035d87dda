//! Engines leave nothing behind: no thread, no descriptor, no mapping that counts.
//!
//! One test alone, since it counts what the whole process has.

#![allow(clippy::unwrap_used, reason = "a test may fail by panicking")]

use std::fs;
use std::sync::Arc;
use std::time::{Duration, Instant};

use forebay::clock::SystemClock;
use forebay::gpu::Device;
use forebay::gpu::sim::{SimConfig, SimDevice};
use forebay::{Engine, OpenOptions, Options, RequestOptions, RingChoice, Route};

const ENGINES: u32 = 300;
const LEN: usize = 1_500_000;

/// How long ended threads may take to be gone from the process's list.
const BOUND: Duration = Duration::from_secs(60);

fn count(folder: &str) -> usize {
    fs::read_dir(folder).unwrap().count()
}

fn threads_and_descriptors() -> (usize, usize) {
    (count("/proc/self/task"), count("/proc/self/fd"))
}

/// Uses an engine in one of several ways, and lets it go while transfers are on their way.
fn use_one(number: u32, path: &std::path::Path) {
    let mut options = Options::default();
    options.slot_size = 256 << 10;
    options.segment_size = 64 << 10;
    options.arena_size = Some(1 << 20);
    options.readers = Some(2);
    options.ring = if number.is_multiple_of(2) { RingChoice::Auto } else { RingChoice::Pread };
    let engine = Engine::new(options).unwrap();
    if number.is_multiple_of(7) {
        return; // never used
    }
    let gpu: Arc<dyn Device> =
        Arc::new(SimDevice::new(0, SimConfig::default(), Arc::new(SystemClock::new())));
    engine.add_device(&gpu).unwrap();
    let file = engine.open_with(path, &OpenOptions::writing()).unwrap();
    let demands = match file.no_direct_io() {
        None if number.is_multiple_of(3) => RequestOptions::by_route(Route::Staged),
        _ => RequestOptions::default(),
    };
    let len = LEN as u64;
    let on_gpu = engine.allocate(gpu.id(), len).unwrap();
    let on_host = engine.allocate_pinned(len).unwrap();
    let first = file.start_read(0, on_gpu, &demands).unwrap();
    let second = file.start_read(0, on_host, &RequestOptions::default()).unwrap();
    match number % 4 {
        0 => {
            first.wait().0.unwrap();
            second.wait().0.unwrap();
        }
        1 => {
            drop((engine, file));
            first.wait().0.unwrap();
        }
        2 => second.cancel(),
        _ => {
            let third = engine.allocate(gpu.id(), len).unwrap();
            let third = file.start_write(LEN as u64, third, &demands).unwrap();
            drop((file, engine, first, second));
            drop(third);
        }
    }
}

#[test]
fn engines_leave_nothing_behind() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("file");
    fs::write(&path, vec![7; LEN]).unwrap();
    // Whatever the process starts once only is there before the count.
    (0..4).for_each(|number| use_one(number, &path));
    let settled = |goal: (usize, usize)| {
        let start = Instant::now();
        loop {
            let now = threads_and_descriptors();
            if now == goal || start.elapsed() > BOUND {
                return now;
            }
            std::thread::sleep(Duration::from_millis(5));
        }
    };
    // The test's own thread and the harness's.
    let before = settled((2, threads_and_descriptors().1));
    (0..ENGINES).for_each(|number| use_one(number, &path));
    assert_eq!(settled(before), before, "threads and descriptors");
}
