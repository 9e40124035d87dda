//! A real GPU in processes that may lock little memory, and from many threads at once. Skipped
//! with the reason where there is none, and failed instead under `FOREBAY_REQUIRE_GPU=1`.

#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "a test prints and may panic")]

mod lab;

use std::fs;
use std::sync::Barrier;
use std::thread;

use forebay::gpu::{GpuSelector, absence_reason};
use forebay::{Engine, OpenOptions, Options, RingChoice};
use lab::{child, or_skip, pattern, watchdog::Watchdog};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Runs the test in a process of its own where there is a GPU. Whether this is that process.
fn is_alone() -> bool {
    if child::role().is_some() {
        return true;
    }
    match absence_reason() {
        None => drop(child::run("alone")),
        Some(reason) => {
            let required = std::env::var_os("FOREBAY_REQUIRE_GPU").is_some_and(|set| set == "1");
            assert!(!required, "FOREBAY_REQUIRE_GPU is 1, but no GPU: {reason}");
            println!("skipped: no GPU: {reason}");
        }
    }
    false
}

/// Lets this process lock 64 KiB; who is not root is bound by it.
fn lock_little() {
    let maximum = getrlimit(Resource::Memlock).maximum;
    setrlimit(Resource::Memlock, Rlimit { current: Some(64 << 10), maximum }).unwrap();
}

/// Reads and writes a file by way of the GPU, cold and resident.
fn move_all(folder: &std::path::Path) {
    const LEN: usize = 40_000_001;
    let bytes = pattern(9, LEN);
    for ring in [RingChoice::Auto, RingChoice::Pread] {
        let mut options = Options::default();
        options.ring = ring;
        let engine = Engine::new(options).unwrap();
        let gpu = engine.device(&GpuSelector::Auto).unwrap().unwrap();
        let file = engine.open_with(folder.join("data"), &OpenOptions::writing()).unwrap();
        file.write(&bytes).run().unwrap();
        for cold in [true, false] {
            if cold {
                file.evict().unwrap();
            }
            let (buffer, _) = file.read_to_end(Some(gpu.id())).run().unwrap();
            let mut got = vec![0; LEN];
            buffer.download(0, &mut got).unwrap();
            assert!(got == bytes, "{ring:?}, cold: {cold}");
            let copy = engine.open_with(folder.join("copy"), &OpenOptions::writing()).unwrap();
            copy.write(&buffer).run().unwrap();
            assert!(fs::read(folder.join("copy")).unwrap() == bytes, "{ring:?}, cold: {cold}");
        }
        assert_eq!(engine.allocate_pinned(10 << 20).unwrap().len(), 10 << 20);
        println!("{:?}", engine.notes());
    }
}

#[test]
fn root_may_lock_64_kib() {
    if is_alone() {
        let _watchdog = Watchdog::start();
        let folder = tempfile::tempdir().unwrap();
        lock_little();
        move_all(folder.path());
    }
}

#[test]
fn a_process_without_64_kib_of_locked_memory() {
    if is_alone() {
        let _watchdog = Watchdog::start();
        let folder = tempfile::tempdir().unwrap();
        let all = std::os::unix::fs::PermissionsExt::from_mode(0o777);
        fs::set_permissions(folder.path(), all).unwrap();
        lock_little();
        let path = folder.path();
        let _ = or_skip(lab::unprivileged(|| move_all(path)));
    }
}

#[test]
fn hundreds_of_threads_read_to_one_gpu() {
    const CALLERS: usize = 500;
    const LEN: usize = 300_001;
    if !is_alone() {
        return;
    }
    let _watchdog = Watchdog::start();
    let engine = Engine::new(Options::default()).unwrap();
    let gpu = engine.device(&GpuSelector::Auto).unwrap().unwrap();
    let folder = tempfile::tempdir().unwrap();
    let bytes = pattern(2, LEN);
    fs::write(folder.path().join("data"), &bytes).unwrap();
    let file = engine.open(folder.path().join("data")).unwrap();
    let together = Barrier::new(CALLERS);
    let read = |caller: usize| {
        let len = [3000, 70_001, LEN][caller % 3];
        let at = (caller * 7919) % (LEN - len + 1);
        let mut buffer = engine.allocate(gpu.id(), len as u64).unwrap();
        together.wait();
        file.read(&mut buffer).at(at as u64).exact().run().unwrap();
        let mut got = vec![0; len];
        buffer.download(0, &mut got).unwrap();
        assert!(got == bytes[at..at + len], "caller {caller}");
    };
    thread::scope(|scope| {
        for caller in 0..CALLERS {
            let read = &read;
            scope.spawn(move || read(caller));
        }
    });
}
