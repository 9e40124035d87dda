//! Blocking calls that check whether to continue: they end where nothing else would, and the memory
//! that is still written stays with its writer.

#![allow(unsafe_code, reason = "lends memory, as a caller would")]

mod lab;

use std::fs;
use std::panic::{AssertUnwindSafe, catch_unwind, panic_any};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::channel;
use std::time::{Duration, Instant};

use forebay::gpu::sim::SimDevice;
use forebay::gpu::{Device, DeviceId};
use forebay::internal::clock::SystemClock;
use forebay::units::{KIB, MIB};
use forebay::{Buffer, Engine, Error, File, OpenOptions, Options, Piece, RequestOptions, Result};
use lab::fuse::{Faults, Fuse, drop_pages};
use lab::hanging::HangingDrive;
use lab::{memory_folder, or_skip, pattern, watchdog::Watchdog};

const LEN: usize = (3 << 20) + 12_345;

/// Far above what the slowest machine needs: only a hang exceeds it.
const BOUND: Duration = Duration::from_secs(60);

struct Rig {
    engine: Engine,
    device: Arc<SimDevice>,
}

impl Rig {
    fn new() -> Self {
        let mut options = Options::default();
        options.slot_size = MIB;
        options.segment_size = 128 * KIB;
        let engine = Engine::new(options).expect("limits that fit");
        let config = "sim:bandwidth=2GB/s".parse().expect("a configuration");
        let device = Arc::new(SimDevice::new(0, config, Arc::new(SystemClock::new())));
        let shared: Arc<dyn Device> = Arc::clone(&device) as _;
        engine.add_device(&shared).expect("a new device");
        Self { engine, device }
    }

    fn gpu(&self) -> DeviceId {
        self.device.id()
    }

    /// A file on a file system that hangs where `faults` say, and all of it in no cache.
    fn hung(&self, len: usize, faults: Faults) -> Option<(Fuse, File)> {
        let fuse = or_skip(Fuse::new(pattern(1, len)))?;
        let file = self.engine.open_with(fuse.path(), &OpenOptions::writing()).expect("it opens");
        drop_pages(&fuse.path());
        fuse.set(|now| *now = faults);
        Some((fuse, file))
    }

    /// Memory of each kind, with a sign of its end.
    fn memory(&self, kind: Kind, len: usize) -> (Buffer, Arc<AtomicBool>) {
        let (len64, gone) = (len as u64, Arc::new(AtomicBool::new(false)));
        let buffer = match kind {
            Kind::Pinned => self.engine.allocate_pinned(len64).expect("memory"),
            Kind::Gpu => self.engine.allocate(self.gpu(), len64).expect("memory"),
            Kind::Lent => lent(&self.engine, vec![0; len + 3], 3),
        };
        (buffer.kept_by(SetOnDrop(Arc::clone(&gone))), gone)
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Pinned,
    Gpu,
    Lent,
}

const KINDS: [Kind; 3] = [Kind::Pinned, Kind::Gpu, Kind::Lent];

/// Says when it is dropped.
struct SetOnDrop(Arc<AtomicBool>);

impl Drop for SetOnDrop {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Release);
    }
}

/// What of a vector begins at `from`, as a buffer that keeps it.
fn lent(engine: &Engine, mut bytes: Vec<u8>, from: usize) -> Buffer {
    let (address, len) = (bytes[from..].as_mut_ptr() as u64, (bytes.len() - from) as u64);
    // SAFETY: the vector goes along, and no other thread has it.
    unsafe { engine.borrow_host_memory(address, len) }.kept_by(bytes)
}

fn bytes_of(buffer: &Buffer) -> Vec<u8> {
    let mut bytes = vec![0; usize::try_from(buffer.len()).expect("memory")];
    buffer.download(0, &mut bytes).expect("a download");
    bytes
}

#[track_caller]
fn wait_until(what: &str, ready: impl Fn() -> bool) {
    let until = Instant::now() + BOUND;
    while !ready() {
        assert!(Instant::now() < until, "{what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Runs a call that is to end although `fuse` hangs; where it does not, that goes on.
fn in_time<T: Send>(fuse: &Fuse, call: impl FnOnce() -> T + Send) -> T {
    std::thread::scope(|scope| {
        let (ended, end) = channel::<()>();
        scope.spawn(move || {
            let late = end.recv_timeout(BOUND) == Err(std::sync::mpsc::RecvTimeoutError::Timeout);
            if late {
                fuse.set(|faults| *faults = Faults::default());
            }
            assert!(!late, "the call waits for the file system");
        });
        let result = call();
        drop(ended);
        result
    })
}

/// That a call was given up, and bytes are still on their way.
#[track_caller]
fn was_given_up<T: std::fmt::Debug>(result: Result<T>) {
    assert!(matches!(result, Err(Error::TimedOut { .. })), "{result:?}");
}

fn hangs() -> Faults {
    Faults { hang_from: Some(0), ..Faults::default() }
}

/// A slice is only borrowed: nothing may touch it after the call.
#[test]
fn a_stopped_read_of_a_slice_waits_for_its_io() {
    let _watchdog = Watchdog::start();
    let rig = Rig::new();
    for pieces in [0, 2] {
        let Some((fuse, file)) = rig.hung(LEN, hangs()) else { return };
        let pieces: Vec<_> =
            (0..pieces).map(|n| Piece::new(&file, n * MIB, KIB, n * KIB)).collect();
        let (mut bytes, engine) = (vec![0; LEN], &rig.engine);
        std::thread::scope(|scope| {
            let call = scope.spawn(|| {
                let go_on = &mut || fuse.parked() == 0;
                match pieces.is_empty() {
                    true => file.read(&mut bytes).while_(go_on).run().map(drop),
                    false => engine.read_many(&pieces, [&mut bytes]).while_(go_on).run().map(drop),
                }
            });
            std::thread::sleep(Duration::from_millis(1500)); // a buffer would be given up after 1 s
            assert!(!call.is_finished(), "the drive may still fill the memory");
            fuse.set(|faults| faults.hang_from = None);
            let end = call.join().expect("no panic");
            assert!(matches!(end, Err(Error::Cancelled { .. })), "{end:?}");
        });
    }
}

#[test]
fn memory_of_a_hung_read_is_kept_until_the_file_system_answers() {
    let _watchdog = Watchdog::start();
    for kind in KINDS {
        let rig = Rig::new();
        let Some((fuse, file)) = rig.hung(LEN, hangs()) else { return };
        let (mut buffer, gone) = rig.memory(kind, LEN);
        let (options, mut calls) = (RequestOptions { exact: true, ..RequestOptions::default() }, 0);
        let end = in_time(&fuse, || {
            file.read(&mut buffer)
                .options(options)
                .while_(&mut || {
                    calls += 1;
                    calls < 3 || fuse.parked() == 0
                })
                .run()
        });
        was_given_up(end);
        assert!(calls >= 3, "{kind:?}");
        assert!(fuse.parked() > 0, "{kind:?}");
        drop((buffer, file, rig));
        std::thread::sleep(Duration::from_millis(100));
        assert!(!gone.load(Ordering::Acquire), "{kind:?}: it may be written");
        fuse.set(|faults| faults.hang_from = None);
        wait_until("the memory is given back", || gone.load(Ordering::Acquire));
    }
}

#[test]
fn memory_of_a_call_that_was_given_up_is_refused_until_that_is_over() {
    let _watchdog = Watchdog::start();
    for kind in KINDS {
        let rig = Rig::new();
        let Some((fuse, file)) = rig.hung(LEN, hangs()) else { return };
        let (mut buffer, _gone) = rig.memory(kind, LEN);
        let go_on = &mut || fuse.parked() == 0; // until something hangs
        was_given_up(in_time(&fuse, || file.read(&mut buffer).exact().while_(go_on).run()));
        assert!(buffer.as_slice().is_none() && buffer.as_mut_slice().is_none(), "{kind:?}");
        let refused = [
            buffer.fill(1),
            buffer.upload(0, &[1]),
            buffer.download(0, &mut [0]),
            file.read(&mut buffer).run().map(drop),
            file.write(&buffer).run().map(drop),
            file.read(&mut buffer).exact().while_(&mut || true).run().map(drop),
        ];
        let begins =
            ["an abandoned"; 3].into_iter().chain(["cannot read", "cannot write", "cannot read"]);
        for (end, begins) in refused.into_iter().zip(begins) {
            let error = end.expect_err("another writer may use the memory").to_string();
            assert!(error.starts_with(begins) && error.contains("abandoned call"), "{error}");
        }
        fuse.set(|faults| faults.hang_from = None);
        wait_until("the read is over", || buffer.download(0, &mut [0]).is_ok());
        file.read(&mut buffer).exact().while_(&mut || true).run().expect("it answers again");
        assert!(bytes_of(&buffer) == pattern(1, LEN), "{kind:?}");
        assert_eq!(buffer.as_slice().is_some(), kind == Kind::Pinned);
    }
}

#[test]
fn a_write_that_hangs_can_be_given_up_however_small_it_is() {
    let _watchdog = Watchdog::start();
    for (kind, len) in [(Kind::Lent, 4096), (Kind::Gpu, 4096), (Kind::Pinned, LEN)] {
        let rig = Rig::new();
        let faults = Faults { hang_writes: true, ..Faults::default() };
        let Some((fuse, file)) = rig.hung(LEN, faults) else { return };
        let (mut buffer, gone) = rig.memory(kind, len);
        buffer.upload(0, &pattern(2, len)).expect("an upload");
        let go_on = &mut || fuse.parked() == 0;
        was_given_up(in_time(&fuse, || file.write(&buffer).while_(go_on).run()));
        drop(buffer);
        assert!(!gone.load(Ordering::Acquire), "{kind:?}: it may be read");
        fuse.set(|faults| faults.hang_writes = false);
        wait_until("the memory is given back", || gone.load(Ordering::Acquire));
    }
}

#[test]
fn many_pieces_and_whole_files_can_be_given_up() {
    let _watchdog = Watchdog::start();
    for on_gpu in [false, true] {
        let rig = Rig::new();
        let Some((fuse, file)) = rig.hung(LEN, hangs()) else { return };
        let device = on_gpu.then(|| rig.gpu());
        let go_on = &mut || fuse.parked() == 0;
        was_given_up(in_time(&fuse, || file.read_to_end(device).while_(go_on).run()));
    }
    let rig = Rig::new();
    let Some((fuse, file)) = rig.hung(LEN, hangs()) else { return };
    for kind in KINDS {
        let (buffer, gone) = rig.memory(kind, 2048);
        let pieces: Vec<_> = (0..2).map(|n| Piece::new(&file, n * MIB, KIB, n * KIB)).collect();
        let mut targets = [buffer];
        let go_on = &mut || fuse.parked() == 0;
        let (engine, faults) = (&rig.engine, hangs());
        was_given_up(in_time(&fuse, || {
            engine.read_many(&pieces, &mut targets).while_(go_on).run()
        }));
        drop(targets);
        assert!(!gone.load(Ordering::Acquire), "{kind:?}");
        fuse.set(|faults| faults.hang_from = None);
        wait_until("the memory is given back", || gone.load(Ordering::Acquire));
        // And back.
        let (source, gone) = rig.memory(kind, 2048);
        fuse.set(|faults| (faults.hang_from, faults.hang_writes) = (None, true));
        let sources = [source];
        let go_on = &mut || fuse.parked() == 0;
        was_given_up(in_time(&fuse, || {
            rig.engine.write_many(&pieces, &sources).while_(go_on).run()
        }));
        drop(sources);
        fuse.set(|faults| faults.hang_writes = false);
        wait_until("the memory is given back", || gone.load(Ordering::Acquire));
        drop_pages(&fuse.path());
        fuse.set(|now| *now = faults);
    }
}

/// Whether a drive thread waits in the kernel, as for a page that is being read.
fn waits_for_a_page() -> bool {
    let tasks = fs::read_dir("/proc/self/task").expect("the kernel lists threads");
    let stat = |task: fs::DirEntry| fs::read_to_string(task.path().join("stat")).ok();
    let is_one = |stat: String| {
        let (thread, state) = stat.rsplit_once(") ").expect("a name in parentheses");
        thread.contains("(forebay-wait") && state.starts_with('D')
    };
    tasks.flatten().filter_map(stat).any(is_one)
}

/// A local file system, whose drive hangs: also what the page cache has is on its way, since
/// another thread reads it.
#[test]
fn a_read_from_a_drive_that_hangs_can_be_given_up() {
    let _watchdog = Watchdog::start();
    let Some(drive) = or_skip(HangingDrive::new(64 << 20)) else { return };
    let path = drive.path().join("file");
    fs::write(&path, pattern(1, LEN)).expect("room for a file");
    for (len, is_read_ahead) in [(4096, true), (4096, false), (LEN, false)] {
        for kind in KINDS {
            let rig = Rig::new();
            let file = rig.engine.open(&path).expect("the file opens");
            file.evict().expect("an own file");
            drive.hang(true);
            std::thread::scope(|scope| {
                if is_read_ahead {
                    scope.spawn(|| fs::read(&path).expect("all bytes, later"));
                    drive.fuse().wait_for_parked(1);
                    let there = file.residency(0, 4096).expect("a question");
                    let all = forebay::Residency::Known { resident: 4096, len: 4096 };
                    assert_eq!(there, all);
                }
                let (mut buffer, gone) = rig.memory(kind, len);
                // Before its I/O is in flight, a call that is stopped leaves nothing behind.
                let go_on = &mut || match is_read_ahead {
                    true => !waits_for_a_page(),
                    false => drive.fuse().parked() == 0,
                };
                let end =
                    in_time(drive.fuse(), || file.read(&mut buffer).exact().while_(go_on).run());
                drop(buffer);
                assert!(!gone.load(Ordering::Acquire), "{kind:?}: it may be written");
                drive.hang(false);
                was_given_up(end);
                wait_until("the memory is given back", || gone.load(Ordering::Acquire));
            });
        }
    }
}

#[test]
fn a_panic_in_the_question_waits_for_what_is_in_flight_as_well() {
    let _watchdog = Watchdog::start();
    let rig = Rig::new();
    let Some((fuse, file)) = rig.hung(LEN, hangs()) else { return };
    let (mut buffer, gone) = rig.memory(Kind::Pinned, LEN);
    let printed = in_time(&fuse, || {
        let call = || file.read(&mut buffer).exact().while_(&mut || panic_any("enough")).run();
        catch_unwind(AssertUnwindSafe(call)).expect_err("a panic")
    });
    assert_eq!(printed.downcast_ref::<&str>(), Some(&"enough"));
    assert!(buffer.as_slice().is_none(), "it may be written");
    drop(buffer);
    assert!(!gone.load(Ordering::Acquire));
    fuse.set(|faults| faults.hang_from = None);
    wait_until("the memory is given back", || gone.load(Ordering::Acquire));
}

#[test]
fn a_helping_caller_checks_for_interrupts() {
    let _watchdog = Watchdog::start();
    let rig = Rig::new();
    let Some(folder) = or_skip(memory_folder()) else { return };
    let path = folder.path().join("file");
    fs::write(&path, vec![7; 32 << 20]).expect("room for a file");
    let file = rig.engine.open(&path).expect("the file opens");
    // 16 GiB by way of 32 MiB, which no machine moves within 50 ms.
    let pieces = vec![Piece::new(&file, 0, 32 * MIB, 0); 512];
    let mut targets = [rig.engine.allocate_pinned(32 * MIB).expect("memory")];
    let (options, mut calls) = (RequestOptions::default(), 0);
    let end = rig
        .engine
        .read_many(&pieces, &mut targets)
        .options(options)
        .while_(&mut || {
            calls += 1;
            false
        })
        .run();
    assert!(matches!(end, Err(Error::Cancelled { .. })), "{end:?}");
    assert_eq!(calls, 1);
    assert!(targets[0].as_slice().is_some(), "nothing is in flight any more");
}

/// Reads and writes the same ranges by both kinds of calls.
fn compare(rig: &Rig, file: &File, bytes: &[u8], before: &dyn Fn(), kind: Kind) {
    let whole = bytes.len();
    for (offset, len) in [(0, whole), (1, whole), (whole - 1, 4096), (whole + 5, 10), (0, 0)] {
        let case = format!("{kind:?}: {offset}+{len} of {whole}");
        let mut ends = Vec::new();
        for checks in [false, true] {
            let (mut buffer, _) = rig.memory(kind, len);
            buffer.fill(0xee).expect("a fill");
            let (at, options) = (offset as u64, RequestOptions::default());
            before();
            let end = match checks {
                true => file.read(&mut buffer).at(at).options(options).while_(&mut || true).run(),
                false => file.read(&mut buffer).at(at).options(options).run(),
            };
            ends.push((end.expect("a read").bytes, bytes_of(&buffer)));
        }
        let expected = bytes.get(offset..).unwrap_or_default();
        let expected = &expected[..expected.len().min(len)];
        assert!(ends[0] == ends[1], "{case}");
        assert!(ends[1].0 == expected.len() as u64 && ends[1].1.starts_with(expected), "{case}");
        assert!(ends[1].1[expected.len()..].iter().all(|&byte| byte == 0xee), "{case}");
    }
}

fn same_bytes(folder: &std::path::Path, lens: &[usize], evicts: bool) {
    let _watchdog = Watchdog::start();
    for &len in lens {
        let rig = Rig::new();
        let (path, bytes) = (folder.join("file"), pattern(len as u64, len));
        fs::write(&path, &bytes).expect("room for a file");
        let file = rig.engine.open_with(&path, &OpenOptions::writing()).expect("the file opens");
        let evict = || assert!(file.evict().is_ok(), "an own file");
        let before: &dyn Fn() = if evicts { &evict } else { &|| {} };
        for kind in KINDS {
            compare(&rig, &file, &bytes, before, kind);
            before();
            let device = (kind == Kind::Gpu).then(|| rig.gpu());
            let (buffer, outcome) =
                file.read_to_end(device).while_(&mut || true).run().expect("a read");
            assert!(outcome.bytes == len as u64 && bytes_of(&buffer) == bytes, "{kind:?}: {len}");
            // To another file, and in pieces.
            let other = folder.join("written");
            let how = OpenOptions::writing();
            let written = rig.engine.open_with(&other, &how).expect("a new file");
            written.write(&buffer).while_(&mut || true).run().expect("a write");
            assert!(fs::read(&other).expect("a read") == bytes, "{kind:?}: {len}");
            let half = len as u64 / 2;
            let pieces =
                [Piece::new(&file, 0, half, half), Piece::new(&file, half, len as u64 - half, 0)];
            let (target, _) = rig.memory(kind, len);
            let mut targets = [target];
            let many = rig.engine.read_many(&pieces, &mut targets).while_(&mut || true).run();
            assert!(many.expect("a read").results.iter().all(Result::is_ok));
            // What meets in the middle holds bytes of either.
            let got = bytes_of(&targets[0]);
            let (first, rest) = bytes.split_at(len / 2);
            assert!(got.starts_with(&rest[..len / 2]) && (len % 2 == 1 || got.ends_with(first)));
            fs::remove_file(&other).expect("our file");
        }
    }
}

const LENS: [usize; 5] = [4096, 64 << 10, (64 << 10) + 1, (1 << 20) + 77, 9_000_001];

#[test]
fn the_same_bytes_come_from_the_page_cache() {
    same_bytes(tempfile::tempdir_in(".").expect("a folder").path(), &LENS, false);
}

#[test]
fn the_same_bytes_come_from_a_drive() {
    same_bytes(tempfile::tempdir_in(".").expect("a folder").path(), &LENS, true);
}

#[test]
fn the_same_bytes_come_from_memory() {
    let Some(folder) = or_skip(memory_folder()) else { return };
    same_bytes(folder.path(), &LENS, false);
}

#[test]
fn the_same_bytes_come_in_one_large_read() {
    let folder = tempfile::tempdir_in(".").expect("a folder");
    for evicts in [false, true] {
        same_bytes(folder.path(), &[64 << 20], evicts);
    }
}

#[test]
fn files_without_a_size_and_errors_end_as_in_plain_calls() {
    let rig = Rig::new();
    let file = rig.engine.open("/proc/version").expect("the file opens");
    let (checked, _) = file.read_to_end(None).while_(&mut || true).run().expect("all bytes");
    let (plain, _) = file.read_to_end(None).run().expect("all bytes");
    assert_eq!(checked.as_slice(), plain.as_slice());
    let folder = tempfile::tempdir_in(".").expect("a folder");
    let path = folder.path().join("file");
    fs::write(&path, [1; 100]).expect("room for a file");
    let file = rig.engine.open(&path).expect("the file opens");
    let (mut buffer, _) = rig.memory(Kind::Lent, 200);
    let (exact, go_on) =
        (RequestOptions { exact: true, ..RequestOptions::default() }, &mut || true);
    for offset in [50, u64::MAX, i64::MAX as u64] {
        let printed = [
            file.read(&mut buffer).at(offset).options(exact).while_(go_on).run().map(drop),
            file.read(&mut buffer).at(offset).options(exact).run().map(drop),
            file.write(&buffer).at(offset).options(exact).while_(go_on).run().map(drop),
            file.write(&buffer).at(offset).options(exact).run().map(drop),
        ]
        .map(|end| end.expect_err("it cannot be").to_string());
        assert!(printed[0] == printed[1] && printed[2] == printed[3], "{printed:?}");
    }
    let mut target = [0; 8];
    let nowhere: &mut [Buffer] = &mut [];
    let none = rig
        .engine
        .read_many(&[], nowhere)
        .options(exact)
        .while_(go_on)
        .run()
        .expect("nothing to do");
    let plain = rig.engine.read_many(&[], [&mut target[..]]).options(exact).run();
    assert!(none.results.is_empty() && plain.expect("nothing to do").results.is_empty());
    let far = [Piece::new(&file, u64::MAX, 2, 0), Piece::new(&file, 0, 2, u64::MAX)];
    for piece in far {
        let end = rig
            .engine
            .read_many(&[piece], std::slice::from_mut(&mut buffer))
            .options(exact)
            .while_(go_on)
            .run();
        assert!(matches!(end, Err(Error::BadRequest { .. })), "{end:?}");
    }
}
