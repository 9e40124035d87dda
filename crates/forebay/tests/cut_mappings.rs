//! Memory that is a mapping of a file which became shorter: the processor raises SIGBUS where it
//! touches such a page, and every call of the engine has to report EFAULT instead.

#![allow(unsafe_code, reason = "maps files, and lends the mappings")]

mod lab;

use std::fs::{self, File as PlainFile, OpenOptions as PlainOptions};
use std::path::Path;
use std::ptr;

use forebay::units::{KIB, MIB};
use forebay::{
    Buffer, Engine, Error, File, OpenOptions, Operation, Options, Piece, RequestOptions, RingChoice,
};
use lab::{or_skip, pattern, watchdog::Watchdog};
use rustix::io::Errno;
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};

const LEN: usize = 3 << 20;

/// Pages that are left of a mapping.
const LEFT: usize = 16 << 10;

/// Shared memory over a file that is cut to [`LEFT`] bytes once it is mapped.
struct CutMapping {
    start: *mut u8,
    _folder: tempfile::TempDir,
}

impl CutMapping {
    fn new() -> Self {
        let folder = tempfile::tempdir_in(".").expect("a folder");
        let path = folder.path().join("mapped");
        let file = PlainFile::create_new(&path).expect("a file");
        file.set_len(LEN as u64).expect("room");
        drop(file);
        let file = PlainOptions::new().read(true).write(true).open(&path).expect("our file");
        let (access, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::SHARED);
        // SAFETY: a new mapping at an address of the kernel's choice.
        let start = unsafe { mmap(ptr::null_mut(), LEN, access, flags, &file, 0) };
        file.set_len(LEFT as u64).expect("a cut");
        Self { start: start.expect("a mapping").cast(), _folder: folder }
    }

    /// Memory that begins `from` bytes behind the start of the mapping.
    fn lend(&self, engine: &Engine, from: usize, len: usize) -> Buffer {
        assert!(from + len <= LEN);
        // SAFETY: each test keeps the mapping until its transfers have ended.
        unsafe { engine.borrow_host_memory(self.start as u64 + from as u64, len as u64) }
    }

    /// All of it, as Rust's own calls see a mapping.
    fn bytes(&mut self) -> &mut [u8] {
        // SAFETY: mapped as long as `self`, and only handed to calls of the engine.
        unsafe { std::slice::from_raw_parts_mut(self.start, LEN) }
    }
}

impl Drop for CutMapping {
    fn drop(&mut self) {
        // SAFETY: our own mapping, which nothing uses any more.
        unsafe { munmap(self.start.cast(), LEN) }.expect("our own mapping");
    }
}

fn engine(ring: RingChoice) -> Engine {
    let mut options = Options::default();
    (options.slot_size, options.segment_size) = (MIB, 128 * KIB);
    options.ring = ring;
    Engine::new(options).expect("limits that fit")
}

fn open(engine: &Engine, path: &Path) -> File {
    engine.open_with(path, &OpenOptions::writing()).expect("the file opens")
}

/// Whether an error says that the memory is not accessible, and about which bytes of which file.
#[track_caller]
fn check<T: std::fmt::Debug>(
    end: Result<T, impl Into<Box<Error>>>,
    operation: Operation,
    file: &File,
    what: &str,
) {
    let error = *end.map_err(Into::into).expect_err(what);
    assert_eq!(error.errno(), Some(Errno::FAULT.raw_os_error()), "{what}: {error:?}");
    let Error::Io { operation: was, place, .. } = &error else { panic!("{what}: {error:?}") };
    assert!(*was == operation && place.path == file.path() && place.len > 0, "{what}: {error:?}");
    let hint = error.hint().expect("a hint");
    assert!(hint.contains("not accessible"), "{what}: {hint}");
}

/// Where the target begins, the file's offset, and the number of bytes: within the pages that are
/// left, at their end, and behind it; in whole units of O_DIRECT and across them.
fn ranges() -> impl Iterator<Item = (usize, u64, usize)> {
    let starts = [0, 1, 8, 512 - 100, LEFT - 4096, LEFT - 5, LEFT, LEFT + 4096 + 13];
    let offsets = [0, 100, 4096 + 512];
    let lens = [200, 4096, 60_000, (1 << 20) + 333];
    let all = starts.into_iter().flat_map(move |start| {
        offsets.into_iter().flat_map(move |offset| lens.map(move |len| (start, offset, len)))
    });
    all.filter(|(start, _, len)| start + len > LEFT)
}

#[test]
fn reading_into_a_mapping_that_was_cut_is_an_error() {
    let _watchdog = Watchdog::start();
    let folder = tempfile::tempdir_in(".").expect("a folder");
    let path = folder.path().join("file");
    fs::write(&path, pattern(1, 2 * LEN)).expect("room for a file");
    let (read, exactly) =
        (Operation::Read, RequestOptions { exact: true, ..RequestOptions::default() });
    for ring in [RingChoice::Auto, RingChoice::Pread] {
        let engine = engine(ring);
        let file = open(&engine, &path);
        let mapping = CutMapping::new();
        for (start, offset, len) in ranges() {
            for cold in [true, false] {
                let what = format!("{ring:?}, {start}, {offset}+{len}, cold: {cold}");
                let lend = || {
                    if cold {
                        file.evict().expect("an own file");
                    }
                    mapping.lend(&engine, start, len)
                };
                let end = file.read(&mut lend()).at(offset).exact().run();
                check(end, read, &file, &format!("{what}, blocking"));
                let started =
                    file.read(lend()).at(offset).options(exactly).start().expect("a start");
                check(started.wait().0, read, &file, &format!("{what}, not blocking"));
                // Two pieces, the first of which fits what is left where that is anything.
                let first = LEFT.saturating_sub(start).clamp(1, len - 1) as u64;
                let rest = len as u64 - first;
                let pieces = [
                    Piece::new(&file, offset, first, 0),
                    Piece::new(&file, offset + first + 8192, rest, first),
                ];
                let mut buffer = lend();
                let targets = [&mut buffer];
                let many = engine
                    .read_many(&pieces, targets)
                    .options(exactly)
                    .run()
                    .expect("a result each");
                check(many.results[1].clone(), read, &file, &format!("{what}, many"));
                let started = engine.read_many(&pieces, vec![lend()]).options(exactly).start();
                let many = started.expect("a start").wait().0.expect("a result each");
                check(many.results[1].clone(), read, &file, &format!("{what}, many, not blocking"));
                if start + usize::try_from(first).expect("a small number") <= LEFT {
                    assert!(many.results[0].is_ok(), "{what}: {:?}", many.results[0]);
                }
            }
        }
    }
}

#[test]
fn writing_from_a_mapping_that_was_cut_is_an_error() {
    let _watchdog = Watchdog::start();
    let folder = tempfile::tempdir_in(".").expect("a folder");
    let path = folder.path().join("file");
    fs::write(&path, pattern(1, LEN)).expect("room for a file");
    let (write, any) = (Operation::Write, RequestOptions::default());
    for ring in [RingChoice::Auto, RingChoice::Pread] {
        let engine = engine(ring);
        let file = open(&engine, &path);
        let mapping = CutMapping::new();
        for (start, offset, len) in ranges() {
            let what = format!("{ring:?}, {start}, {offset}+{len}");
            let lend = || mapping.lend(&engine, start, len);
            check(file.write(&lend()).at(offset).run(), write, &file, &format!("{what}, blocking"));
            let started = file.write(lend()).at(offset).options(any).start().expect("a start");
            check(started.wait().0, write, &file, &format!("{what}, not blocking"));
            let (buffer, pieces) = (lend(), [Piece::new(&file, offset, len as u64, 0)]);
            let many = engine.write_many(&pieces, [&buffer]).options(any).run();
            let result = many.expect("a result each").results.remove(0);
            check(result, write, &file, &format!("{what}, many"));
        }
    }
}

#[test]
fn copies_to_and_from_a_mapping_that_was_cut_are_errors() {
    let engine = engine(RingChoice::Auto);
    let gpu = engine.device(&"sim".parse().expect("a name")).expect("a GPU").expect("a GPU").id();
    let mut mapping = CutMapping::new();
    let check = |end: Result<(), Error>, what: &str| {
        let error = end.expect_err(what);
        assert!(
            matches!(
                &error,
                Error::HostCopy { source: forebay::error::SystemError(libc::EFAULT), .. }
            ),
            "{what}: {error:?}"
        );
        assert!(error.hint().expect("a hint").contains("not accessible"), "{what}");
    };
    let mut lent = mapping.lend(&engine, 1, LEN - 1);
    check(lent.fill(3), "a fill");
    let (small, at) = (&mut [0; 100], LEFT as u64 + 5000);
    check(lent.upload(at, small), "an upload to it");
    check(lent.download(at, small), "a download from it");
    lent.download(0, small).expect("its pages are there");
    assert_eq!(*small, [3; 100], "what was filled before the end");
    drop(lent);
    let (len, bytes) = (LEN as u64, mapping.bytes());
    let pinned = engine.allocate_pinned(len).expect("memory");
    for mut buffer in [pinned, engine.allocate(gpu, len).expect("memory")] {
        check(buffer.upload(0, bytes), "an upload of it");
        check(buffer.download(0, bytes), "a download into it");
        buffer.upload(0, &bytes[..LEFT]).expect("its pages are there");
    }
}

/// A sandbox may refuse the call by which the kernel copies within a process.
#[test]
fn a_sandbox_that_refuses_the_copies_changes_nothing() {
    let _watchdog = Watchdog::start();
    let folder = tempfile::tempdir_in(".").expect("a folder");
    let path = folder.path().join("file");
    let bytes = pattern(1, LEN);
    fs::write(&path, &bytes).expect("room for a file");
    let calls = [libc::SYS_process_vm_readv, libc::SYS_process_vm_writev];
    for (call, errno) in calls.into_iter().zip([libc::EPERM, libc::ENOSYS]) {
        let tried = lab::without_call(call, errno, || {
            let engine = engine(RingChoice::Pread);
            let file = open(&engine, &path);
            file.evict().expect("an own file");
            let mut got = vec![0; (1 << 20) + 1];
            file.read(&mut got[1..]).at(777).exact().run().expect("a read");
            assert!(got[1..] == bytes[777..777 + (1 << 20)], "other bytes");
            let mut pinned = engine.allocate_pinned(LEN as u64).expect("memory");
            pinned.upload(3, &bytes[..100_000]).expect("an upload");
            pinned.download(3, &mut got[..100_000]).expect("a download");
            assert!(got[..100_000] == bytes[..100_000], "other bytes");
            let mapping = CutMapping::new();
            file.evict().expect("an own file");
            let end = file.read(&mut mapping.lend(&engine, LEFT - 300, 400)).at(100).exact().run();
            check(end, Operation::Read, &file, "across the end");
            let mut lent = mapping.lend(&engine, 0, LEN);
            let end = (lent.upload(LEFT as u64 - 300, &[1; 400]), lent.download(0, &mut got));
            assert!(matches!(end, (Err(Error::HostCopy { .. }), Err(Error::HostCopy { .. }))));
        });
        or_skip(tried);
    }
}
