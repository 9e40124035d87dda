//! Processes that use a real GPU: that fork, that end with copies under way, that make engines
//! again and again. Skipped with the reason where there is none, and failed instead under
//! `FOREBAY_REQUIRE_GPU=1`.

#![expect(unsafe_code, reason = "gets a context from the driver as well")]
#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "a test prints and may panic")]

mod lab;

use std::ffi::{c_int, c_uint};
use std::fs;
use std::io::{BufRead, BufReader};
use std::os::unix::process::ExitStatusExt;
use std::process::ExitStatus;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use forebay::gpu::{Device, GpuSelector, absence_reason, open};
use forebay::{Engine, Error, File, Options, Transfer};
use lab::fork::{Side, fork};
use lab::{child, pattern, watchdog::Watchdog};
use rustix::process::{Pid, Signal, kill_process};

const LEN: usize = 32 << 20;
const ENGINES: usize = 300;

/// One process after the other: what one holds on the GPU another would count.
fn turn() -> MutexGuard<'static, ()> {
    static TURN: Mutex<()> = Mutex::new(());
    TURN.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Runs the test in a process of its own where there is a GPU. Whether this is that process.
fn is_alone() -> bool {
    if child::role().is_some() {
        return true;
    }
    if has_gpu() {
        let _turn = turn();
        child::run("alone");
    }
    false
}

struct Rig {
    engine: Engine,
    gpu: Arc<dyn Device>,
    file: File,
    bytes: Vec<u8>,
    folder: tempfile::TempDir,
}

impl Rig {
    fn new() -> Self {
        let engine = Engine::new(Options::default()).unwrap();
        let gpu = engine.device(&GpuSelector::Auto).unwrap().unwrap();
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("file");
        let bytes = pattern(3, LEN);
        fs::write(&path, &bytes).unwrap();
        let file = engine.open(&path).unwrap();
        Self { engine, gpu, file, bytes, folder }
    }

    fn start(&self) -> Transfer {
        let buffer = self.engine.allocate(self.gpu.id(), LEN as u64).unwrap();
        self.file.read(buffer).exact().start().unwrap()
    }

    fn check(&self, transfer: Transfer) {
        let (result, buffer) = transfer.wait();
        result.unwrap();
        let mut got = vec![0; LEN];
        buffer.unwrap().download(0, &mut got).unwrap();
        assert!(got == self.bytes, "other bytes arrived");
    }
}

#[test]
fn a_fork_during_copies_leaves_them_whole_and_the_driver_alone() {
    if !is_alone() {
        return;
    }
    let _watchdog = Watchdog::start();
    for _ in 0..10 {
        let rig = Rig::new();
        let mut spare = rig.engine.allocate(rig.gpu.id(), 4096).unwrap();
        let under_way = [rig.start(), rig.start()];
        match fork() {
            Side::Child(child) => child.run(move |say| {
                say("its parent's GPU");
                assert!(rig.gpu.memory().is_err() && rig.gpu.create_stream().is_err());
                assert!(matches!(spare.fill(1), Err(Error::Forked { .. })));
                assert!(matches!(rig.file.read(&mut spare).run(), Err(Error::Forked { .. })));
                say("a GPU of its own");
                assert!(open(&GpuSelector::Auto).unwrap().is_none());
                let reason = absence_reason().unwrap();
                assert!(reason.contains("before this one was forked"), "{reason}");
                say("host memory of its own");
                let own = Engine::new(Options::default()).unwrap();
                let mut got = vec![0; LEN];
                own.open(rig.file.path()).unwrap().read(&mut got).exact().run().unwrap();
                assert!(got == rig.bytes, "other bytes arrived");
                say("drops");
                std::mem::forget(rig.folder);
                drop((spare, under_way, rig.file, rig.engine, rig.gpu));
            }),
            Side::Parent(parent) => {
                under_way.into_iter().for_each(|transfer| rig.check(transfer));
                parent.finish();
                rig.check(rig.start());
            }
        }
    }
}

/// Threads, descriptors and kilobytes that are pinned.
fn held() -> (usize, usize, String) {
    let count = |folder: &str| fs::read_dir(folder).unwrap().count();
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let pinned = status.lines().find(|line| line.starts_with("VmPin:")).unwrap().to_owned();
    (count("/proc/self/task"), count("/proc/self/fd"), pinned)
}

#[test]
fn engines_leave_no_context_and_no_memory_behind() {
    if !is_alone() {
        return;
    }
    let _watchdog = Watchdog::start();
    let turn = || {
        let rig = Rig::new();
        rig.check(rig.start());
        drop(rig.start()); // cancelled under way
    };
    let kept = open(&GpuSelector::Auto).unwrap().unwrap();
    (0..8).for_each(|_| turn());
    let (before, free) = (held(), kept.memory().unwrap().0);
    (0..ENGINES).for_each(|_| turn());
    for _ in 0..1000 {
        if held() == before && kept.memory().unwrap().0 == free {
            break;
        }
        std::thread::sleep(std::time::Duration::from_millis(10));
    }
    assert_eq!((held(), kept.memory().unwrap().0), (before, free));
    let index = i32::try_from(kept.id().index).unwrap();
    assert!(has_primary_context(index));
    drop(kept);
    assert!(!has_primary_context(index), "the context is left");
    (0..5).for_each(|_| turn());
    assert!(!has_primary_context(index), "the context is left");
}

/// How a process ends that has reads under way; `act` is done to it then.
fn end_of(act: impl FnOnce(Pid)) -> ExitStatus {
    let _watchdog = Watchdog::start();
    let _turn = turn();
    let mut child = child::start("ends");
    let pid = Pid::from_raw(child.id().cast_signed()).unwrap();
    let mut printed = BufReader::new(child.stdout.take().unwrap()).lines();
    assert!(printed.any(|line| line.unwrap() == "under way"), "it began nothing");
    act(pid);
    std::thread::spawn(move || printed.for_each(drop));
    child.wait().unwrap()
}

/// Begins reads in a process that is to end with them; `None` in the test program itself.
fn begin() -> Option<(Rig, Vec<Transfer>)> {
    child::role()?;
    let rig = Rig::new();
    let transfers = (0..8).map(|_| rig.start()).collect();
    println!("\nunder way");
    Some((rig, transfers))
}

#[test]
fn exit_with_copies_under_way() {
    if let Some(_held) = begin() {
        #[allow(clippy::exit, reason = "that is what is tested")]
        std::process::exit(7);
    }
    if has_gpu() {
        assert_eq!(end_of(|_| ()).code(), Some(7));
    }
}

#[test]
fn the_end_of_main_with_copies_under_way() {
    if let Some(held) = begin() {
        return std::mem::forget(held);
    }
    if has_gpu() {
        assert_eq!(end_of(|_| ()).code(), Some(0));
    }
}

#[test]
fn a_signal_with_copies_under_way() {
    if let Some(held) = begin() {
        // Copies go on until the signal comes.
        loop {
            held.0.check(held.0.start());
        }
    }
    if has_gpu() {
        let status = end_of(|pid| kill_process(pid, Signal::TERM).unwrap());
        assert_eq!(status.signal(), Some(Signal::TERM.as_raw()));
    }
}

/// Whether there is a GPU; where there is none the test is skipped.
fn has_gpu() -> bool {
    let Some(reason) = absence_reason() else { return true };
    let required = std::env::var_os("FOREBAY_REQUIRE_GPU").is_some_and(|set| set == "1");
    assert!(!required, "FOREBAY_REQUIRE_GPU is 1, but no GPU: {reason}");
    println!("skipped: no GPU: {reason}");
    false
}

/// Whether the GPU of this index has the context that all libraries of a process share.
fn has_primary_context(index: c_int) -> bool {
    type Get = unsafe extern "C" fn(*mut c_int, c_int) -> c_int;
    type State = unsafe extern "C" fn(c_int, *mut c_uint, *mut c_int) -> c_int;
    let (mut gpu, mut flags, mut active) = (0, 0, 0);
    // SAFETY: the library under test has loaded the same one already; the signatures are the
    // driver's, and the outputs outlive the calls.
    let statuses = unsafe {
        let driver = libloading::Library::new("libcuda.so.1").unwrap();
        let get = driver.get::<Get>(c"cuDeviceGet").unwrap();
        let state = driver.get::<State>(c"cuDevicePrimaryCtxGetState").unwrap();
        let got = get(&raw mut gpu, index);
        [got, state(gpu, &raw mut flags, &raw mut active)]
    };
    assert_eq!(statuses, [0, 0]);
    active != 0
}
