//! Engines leave nothing behind: no thread, no descriptor, no mapping, no pinned page.
//!
//! One test alone, since it counts what the whole process has.

#![allow(clippy::unwrap_used, reason = "a test may fail by panicking")]

use std::fs;
use std::sync::Arc;
use std::time::{Duration, Instant};

use forebay::gpu::Device;
use forebay::gpu::sim::{SimConfig, SimDevice};
use forebay::internal::clock::SystemClock;
use forebay::{Engine, OpenOptions, Options, RequestOptions, RingChoice, Route};

const ENGINES: u32 = 1000;
const LEN: usize = 1_500_000;

/// How long ended threads may take to be gone from the process's list.
const BOUND: Duration = Duration::from_secs(60);

fn count(folder: &str) -> usize {
    fs::read_dir(folder).unwrap().count()
}

/// What a process has of what engines take.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Held {
    threads: usize,
    descriptors: usize,
    /// Kilobytes that are pinned, and that are locked.
    pinned: [u64; 2],
}

impl Held {
    fn now() -> Self {
        let status = fs::read_to_string("/proc/self/status").unwrap();
        let kilobytes = |name| {
            let line = status.lines().find_map(|line| line.strip_prefix(name)).unwrap();
            line.trim().trim_end_matches(" kB").parse().unwrap()
        };
        Self {
            threads: count("/proc/self/task"),
            descriptors: count("/proc/self/fd"),
            pinned: [kilobytes("VmPin:"), kilobytes("VmLck:")],
        }
    }

    /// What there is once the threads that have ended are gone.
    fn settled(goal: Self) -> Self {
        let start = Instant::now();
        loop {
            let now = Self::now();
            if now == goal || start.elapsed() > BOUND {
                return now;
            }
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

fn mappings() -> usize {
    fs::read_to_string("/proc/self/maps").unwrap().lines().count()
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
    let options = match file.no_direct_io() {
        None if number.is_multiple_of(3) => {
            RequestOptions { route: Some(Route::Staged), ..RequestOptions::default() }
        }
        _ => RequestOptions::default(),
    };
    let len = LEN as u64;
    let on_gpu = engine.allocate(gpu.id(), len).unwrap();
    let on_host = engine.allocate_pinned(len).unwrap();
    let first = file.read(on_gpu).options(options).start().unwrap();
    let second = file.read(on_host).start().unwrap();
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
            let third = file.write(third).at(LEN as u64).options(options).start().unwrap();
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
    (0..8).for_each(|number| use_one(number, &path));
    // The test's own thread and the harness's.
    let before = Held::settled(Held { threads: 2, pinned: [0, 0], ..Held::now() });
    assert_eq!(before.pinned, [0, 0]);
    let mapped = mappings();
    (0..ENGINES).for_each(|number| use_one(number, &path));
    assert_eq!(Held::settled(before), before);
    // The C library keeps stacks and arenas of threads that have ended, as many as ran at once.
    let more = mappings().saturating_sub(mapped);
    assert!(more < 100, "{more} mappings more after {ENGINES} engines");
}
