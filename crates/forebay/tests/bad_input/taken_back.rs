//! Requests on FUSE that are under way when their transfer is cancelled. Threads make them, and a
//! thread in a call cannot be interrupted: the transfer drains when the server answers, and until
//! then its memory stays with the engine.

use std::os::unix::process::ExitStatusExt;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use forebay::gpu::{Device, GpuSelector};
use forebay::{Engine, Error, File, RingChoice, Route, Transfer};
use tempfile::TempDir;

use crate::lab::fuse::{self, Faults, Fuse};
use crate::lab::watchdog::Watchdog;
use crate::lab::{Overlay, child, memory_folder, note, or_skip, pattern, skip};
use crate::small_engine;

const SIZE: usize = 8 << 20;

/// What a buffer holds before a transfer.
const BEFORE: u8 = 0xee;

/// A file on a file system that gives no bytes from some place on, and an engine with a simulated
/// GPU.
struct Rig {
    engine: Engine,
    gpu: Arc<dyn Device>,
    file: File,
    // Unmounted before the file system that it lies over.
    _overlay: Option<(Overlay, TempDir)>,
    fuse: Fuse,
    _watchdog: Watchdog,
}

impl Rig {
    /// Runs `check` with few and with many requests in flight, and with an overlay over the file
    /// system where one is requested.
    fn each(interruptible: bool, overlaid: bool, check: impl Fn(&Self)) {
        for depth in [2, 64] {
            note(format!("depth {depth}"));
            let faults = Faults { uncached: true, interruptible, ..Faults::default() };
            let Some(fuse) = or_skip(Fuse::with(pattern(3, SIZE), faults)) else { return };
            let engine = small_engine(|options| {
                options.ring = RingChoice::Auto;
                options.depth = Some(depth);
            });
            let wanted: GpuSelector = "sim".parse().expect("a name");
            let gpu = engine.device(&wanted).expect("a simulated GPU").expect("a GPU");
            let mut path = fuse.path();
            let mut overlay = None;
            if overlaid {
                let Some(folder) = or_skip(memory_folder()) else { return };
                let lower = path.parent().expect("its mount");
                let Some(over) = or_skip(Overlay::over(lower, folder.path())) else { return };
                path = over.path().join("file");
                overlay = Some((over, folder));
            }
            let file = engine.open(&path).expect("the file opens");
            let _watchdog = Watchdog::start();
            check(&Self { fuse, engine, gpu, file, _overlay: overlay, _watchdog });
        }
    }

    fn start(&self) -> Transfer {
        let mut buffer = self.engine.allocate(self.gpu.id(), SIZE as u64).expect("memory");
        buffer.fill(BEFORE).expect("a fill");
        self.file.read(buffer).route(Route::Staged).start().expect("a start")
    }

    fn free_memory(&self) -> u64 {
        self.gpu.memory().expect("an answer").0
    }

    /// The bytes of a cancelled transfer are those of the file, or as they were before.
    fn assert_cancelled(&self, transfer: Transfer) {
        let (result, buffer) = transfer.wait();
        let error = result.expect_err("it was cancelled");
        assert!(matches!(error, Error::Cancelled { .. }), "{error:?}");
        let buffer = buffer.expect("it comes back");
        let mut bytes = vec![0; SIZE];
        buffer.download(0, &mut bytes).expect("a download");
        let right = pattern(3, SIZE);
        let wrong = (0..SIZE).filter(|&at| bytes[at] != right[at] && bytes[at] != BEFORE);
        assert_eq!(wrong.count(), 0, "bytes that the file does not hold");
    }

    fn wait_for_memory(&self, free: u64) {
        while self.free_memory() < free {
            std::thread::sleep(Duration::from_millis(2));
        }
    }

    /// Cancelled requests do not hold up later ones.
    fn assert_answers(&self) {
        self.fuse.set(|faults| *faults = Faults::default());
        let (result, buffer) = self.start().wait();
        assert_eq!(result.expect("all bytes").bytes, SIZE as u64);
        let mut bytes = vec![0; SIZE];
        buffer.expect("it comes back").download(0, &mut bytes).expect("a download");
        assert!(bytes == pattern(3, SIZE));
    }
}

#[test]
fn requests_that_are_answered_with_try_again_for_ever() {
    Rig::each(false, false, |rig| {
        rig.fuse.set(|faults| {
            faults.fail_at = Some(200_000);
            faults.fail_errno = Some(libc::EAGAIN);
        });
        // The engine tries again by itself, as a few rounds show.
        let request = || {
            let before = rig.fuse.reads();
            while rig.fuse.reads() < before + 30 {
                std::thread::sleep(Duration::from_millis(1));
            }
        };
        let free = rig.free_memory();
        let transfer = rig.start();
        request();
        assert!(!transfer.is_done());
        transfer.cancel();
        rig.assert_cancelled(transfer);
        let transfer = rig.start();
        request();
        let (result, buffer) = transfer.wait_at_most(Duration::from_millis(20));
        assert!(matches!(result, Err(Error::TimedOut { .. })) && buffer.is_none());
        rig.wait_for_memory(free);
        drop(rig.start());
        rig.wait_for_memory(free);
        rig.assert_answers();
    });
}

#[test]
fn requests_that_hang_keep_their_memory_until_they_are_answered() {
    for overlaid in [true, false] {
        Rig::each(true, overlaid, |rig| {
            rig.fuse.set(|faults| faults.hang_from = Some(3 << 20));
            let free = rig.free_memory();
            let cancelled = rig.start();
            rig.fuse.wait_for_parked(1);
            cancelled.cancel();
            assert!(cancelled.wait_for(Duration::from_millis(50)).is_none(), "it is in flight");
            let start = Instant::now();
            let (result, buffer) = rig.start().wait_at_most(Duration::from_millis(20));
            assert!(matches!(result, Err(Error::TimedOut { .. })) && buffer.is_none());
            drop(rig.start());
            assert!(start.elapsed() < Duration::from_secs(10), "a caller waits for the server");
            rig.fuse.set(|faults| faults.hang_from = None);
            rig.assert_cancelled(cancelled);
            rig.wait_for_memory(free);
            rig.assert_answers();
        });
    }
}

/// The file system of these tests itself: a process waits for it no longer than its server
/// lives, however that ends.
#[test]
fn a_process_that_waits_for_itself_ends() {
    let _watchdog = Watchdog::start();
    if child::role().is_none() {
        let mut itself = child::start("hangs");
        let bound = Instant::now() + Duration::from_secs(60);
        while itself.try_wait().expect("a child can be waited for").is_none() {
            assert!(Instant::now() < bound, "it waits for itself for ever");
            thread::sleep(Duration::from_millis(10));
        }
        let output = itself.wait_with_output().expect("it has ended");
        let printed = String::from_utf8_lossy(&output.stdout);
        let Some(left) = printed.lines().find_map(|line| line.strip_prefix("at ")) else {
            assert!(output.status.success(), "{output:?}");
            let reported = String::from_utf8_lossy(&output.stderr);
            let reasons = reported.lines().filter_map(|line| line.strip_prefix("skipped: "));
            return reasons.for_each(skip);
        };
        fuse::take_away(left.as_ref()).expect("the mount stays behind");
        std::fs::remove_dir(left).expect("the mount point is empty");
        return assert_eq!(output.status.signal(), Some(libc::SIGABRT));
    }
    let Some(fuse) = or_skip(Fuse::new(pattern(3, SIZE))) else { return };
    // Not even a signal that kills ends a wait for an answer that is not the page cache's.
    fuse.set(|faults| (faults.hang_from, faults.uncached) = (Some(0), true));
    let path = fuse.path();
    note(format!("\nat {}", path.parent().expect("its mount").display()));
    thread::spawn(move || drop(std::fs::read(path)));
    fuse.wait_for_parked(1);
    std::process::abort();
}
