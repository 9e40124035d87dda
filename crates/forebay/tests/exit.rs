//! A process that ends with transfers in flight ends at once, with the status that it was to have:
//! by `exit`, by the end of `main`, by a panic, by a signal.
//!
//! Each ends a process of its own, which says on standard output that bytes are under way.

#![allow(clippy::unwrap_used, reason = "a test may fail by panicking")]

mod lab;

use std::fs;
use std::io::{BufRead, BufReader};
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::ExitStatus;
use std::sync::Arc;
use std::time::{Duration, Instant};

use forebay::gpu::Device;
use forebay::gpu::sim::SimDevice;
use forebay::internal::clock::SystemClock;
use forebay::{Engine, OpenOptions, Options, Transfer};
use lab::hanging::HangingDrive;
use lab::{child, or_skip, watchdog::Watchdog};
use rustix::process::{Pid, Signal, kill_process};

const LEN: u64 = 8 << 20;

/// The child's transfers would take this long at least: 8 MiB at 10 kB/s.
const NEVER: Duration = Duration::from_secs(800);

/// Written by a child whose transfers are under way.
const UNDER_WAY: &str = "under way";

/// What a child holds when it ends.
struct Held {
    _engine: Engine,
    _transfers: Vec<Transfer>,
}

/// What a child is to read and write: a file of its parent's, and one that hangs, if any.
struct Paths {
    file: PathBuf,
    hangs: Option<PathBuf>,
}

/// Has reads and a write of a slow GPU under way, and reads of the file that hangs.
#[allow(clippy::print_stdout, reason = "the parent reads it")]
fn begin(paths: &Paths) -> Held {
    let engine = Engine::new(Options::default()).unwrap();
    let config = "sim:bandwidth=10kB/s".parse().unwrap();
    let gpu: Arc<dyn Device> = Arc::new(SimDevice::new(0, config, Arc::new(SystemClock::new())));
    engine.add_device(&gpu).unwrap();
    let file = engine.open_with(&paths.file, &OpenOptions::writing()).unwrap();
    let mut transfers = Vec::new();
    for _ in 0..2 {
        let buffer = engine.allocate(gpu.id(), LEN).unwrap();
        transfers.push(file.read(buffer).start().unwrap());
    }
    let buffer = engine.allocate(gpu.id(), LEN).unwrap();
    transfers.push(file.write(buffer).at(LEN).start().unwrap());
    if let Some(hangs) = &paths.hangs {
        let file = engine.open(hangs).unwrap();
        for on_gpu in [true, false] {
            let buffer = match on_gpu {
                true => engine.allocate(gpu.id(), LEN),
                false => engine.allocate_pinned(LEN),
            };
            transfers.push(file.read(buffer.unwrap()).start().unwrap());
        }
    }
    println!("\n{UNDER_WAY}");
    Held { _engine: engine, _transfers: transfers }
}

/// Runs the running test in a process of its own; `act` gets its number once bytes are under way.
fn end_of(hangs: Option<&Path>, act: impl FnOnce(Pid)) -> ExitStatus {
    let _watchdog = Watchdog::start();
    let folder = tempfile::tempdir_in(".").unwrap();
    let file = folder.path().join("file");
    fs::write(&file, vec![7; usize::try_from(LEN).unwrap()]).unwrap();
    let hangs = hangs.unwrap_or(Path::new(""));
    let mut child = child::start(&format!("{}\n{}", file.display(), hangs.display()));
    let pid = Pid::from_raw(child.id().cast_signed()).unwrap();
    let mut printed = BufReader::new(child.stdout.take().unwrap()).lines();
    assert!(printed.any(|line| line.unwrap() == UNDER_WAY), "it began nothing");
    let begun = Instant::now();
    act(pid);
    // What it prints last has to go somewhere.
    std::thread::spawn(move || printed.for_each(drop));
    let status = child.wait().unwrap();
    assert!(begun.elapsed() < NEVER / 8, "it waited for its transfers");
    status
}

/// What a child works with; `None` in the test program itself.
fn paths() -> Option<Paths> {
    let role = child::role()?;
    let (file, hangs) = role.split_once('\n').unwrap();
    let hangs = (!hangs.is_empty()).then(|| hangs.into());
    Some(Paths { file: file.into(), hangs })
}

#[test]
fn exit_in_the_middle() {
    if let Some(paths) = paths() {
        let _held = begin(&paths);
        // From a thread, as others may: the one that has the transfers goes on meanwhile.
        #[allow(clippy::exit, reason = "that is what is tested")]
        std::thread::spawn(|| std::process::exit(7)).join().unwrap();
    }
    assert_eq!(end_of(None, |_| ()).code(), Some(7));
}

#[test]
fn the_end_of_main() {
    if let Some(paths) = paths() {
        // Neither the engine nor a transfer is dropped.
        std::mem::forget(begin(&paths));
        return;
    }
    assert_eq!(end_of(None, |_| ()).code(), Some(0));
}

#[test]
fn a_panic() {
    if let Some(paths) = paths() {
        let _held = begin(&paths);
        panic!("on purpose");
    }
    assert_eq!(end_of(None, |_| ()).code(), Some(101));
}

#[test]
fn a_signal() {
    if let Some(paths) = paths() {
        let _held = begin(&paths);
        std::thread::sleep(NEVER);
    }
    let status = end_of(None, |pid| kill_process(pid, Signal::TERM).unwrap());
    assert_eq!(status.signal(), Some(Signal::TERM.as_raw()));
}

/// Of a drive: on FUSE a thread waits in a call that the kernel ends only when the server answers.
#[test]
fn during_a_drive_that_hangs() {
    if let Some(paths) = paths() {
        let _held = begin(&paths);
        #[allow(clippy::exit, reason = "that is what is tested")]
        std::process::exit(7);
    }
    let Some(drive) = or_skip(HangingDrive::new(64 << 20)) else { return };
    let path = drive.path().join("file");
    fs::write(&path, vec![7; usize::try_from(LEN).unwrap()]).unwrap();
    let engine = Engine::new(Options::default()).unwrap();
    engine.open_with(&path, &OpenOptions::writing()).unwrap().evict().unwrap();
    drive.hang(true);
    assert_eq!(end_of(Some(&path), |_| ()).code(), Some(7));
}
