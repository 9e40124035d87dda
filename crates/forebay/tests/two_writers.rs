//! Two writers of one file that do not know of each other, one of them with O_DIRECT. They
//! write different pages, but of one folio, which the kernel then cannot drop.

#![allow(unsafe_code, reason = "maps a file")]

mod lab;

use std::fs;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::ptr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use forebay::{Buffer, Engine, Error, File, OpenOptions, Options, Outcome, Route};
use lab::hanging::HangingDrive;
use lab::{FileSystem, or_skip, pattern, watchdog::Watchdog};
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};

const LEN: usize = 4 << 20;
const BODY: usize = (1 << 20) - 4096; // whole pages, and most of a folio
const BEHIND: usize = BODY + 96;
const READ: usize = 16 << 10; // so that the kernel reads ahead, into ever larger folios

/// One engine's file, of old bytes that are on the drive alone, and new ones on a GPU.
struct Rig {
    drive: HangingDrive,
    path: PathBuf,
    plain: fs::File,
    file: File,
    buffer: Buffer,
    body: Vec<u8>,
}

fn open(path: &PathBuf) -> (Engine, File) {
    let engine = Engine::new(Options::default()).expect("limits that fit");
    let file = engine.open_with(path, &OpenOptions::writing()).expect("the file opens");
    (engine, file)
}

impl Rig {
    fn new(file_system: FileSystem) -> Option<Self> {
        let size = if file_system == FileSystem::Xfs { 320 << 20 } else { 64 << 20 };
        let drive = or_skip(HangingDrive::with(file_system, size))?;
        let path = drive.path().join("shared");
        let (engine, file) = open(&path);
        file.write(&vec![1; LEN]).run().expect("room for it");
        file.sync_all().expect("a sync");
        file.evict().expect("an eviction");
        let gpu = engine.device(&"sim".parse().expect("a name")).expect("a GPU").expect("a GPU");
        let mut buffer = engine.allocate(gpu.id(), BODY as u64).expect("memory");
        let body = pattern(7, BODY);
        buffer.upload(0, &body).expect("an upload");
        let plain = fs::File::open(&path).expect("the file opens");
        Some(Self { drive, path, plain, file, buffer, body })
    }

    /// Writes the body with O_DIRECT. Runs `meanwhile` while that is on its way and the
    /// old bytes are in large folios of the page cache.
    fn write_concurrently(&self, meanwhile: impl FnOnce()) -> Result<Outcome, Error> {
        thread::scope(|scope| {
            let hung = Hung::new(&self.drive);
            let around =
                scope.spawn(move || self.file.write(&self.buffer).route(Route::Staged).run());
            self.drive.fuse().wait_for_parked(1);
            let mut part = vec![0; READ];
            for at in (0..LEN).step_by(READ) {
                self.plain.read_exact_at(&mut part, at as u64).expect("a read");
            }
            meanwhile();
            drop(hung);
            around.join().expect("no panic")
        })
    }

    /// Checks that readers see all new bytes, where the write has not failed as it may.
    fn check_written(&self, end: &Result<Outcome, Error>, what: &str) {
        match end {
            Ok(_) => self.check_bytes(what),
            Err(error) => {
                lab::note(format!("{what}: {error}"));
                let Error::StaleCache { place } = error else { panic!("{what}: {error:?}") };
                assert_eq!(error.errno(), Some(libc::EBUSY), "{what}");
                let range = (place.offset, place.len);
                assert_eq!((&place.path, range), (&self.path, (0, BODY as u64)), "{what}");
                let hint = error.hint().expect("a hint");
                assert!(hint.contains("one engine") && hint.contains("2 MiB"), "{what}: {hint}");
            }
        }
    }

    fn check_bytes(&self, what: &str) {
        let mut seen = vec![0; BODY];
        self.plain.read_exact_at(&mut seen, 0).expect("a read");
        let wrong = seen.iter().zip(&self.body).filter(|(is, should)| is != should).count();
        assert_eq!(wrong, 0, "{what}: bytes that are not those that were written");
        let mut behind = [0; 100];
        self.plain.read_exact_at(&mut behind, BEHIND as u64).expect("a read");
        assert_eq!(behind, [b'x'; 100], "{what}: the other writer's bytes");
    }
}

/// Lets go what hangs, also where a test ends early.
struct Hung<'a>(&'a HangingDrive);

impl<'a> Hung<'a> {
    fn new(drive: &'a HangingDrive) -> Self {
        drive.fuse().set(|faults| faults.hang_writes = true);
        Self(drive)
    }
}

impl Drop for Hung<'_> {
    fn drop(&mut self) {
        self.0.fuse().set(|faults| faults.hang_writes = false);
    }
}

/// The kernel has noted that it could not drop pages, and reports it to the next sync as EIO.
fn check_sync(file: &File, what: &str) {
    if let Err(error) = file.sync_all() {
        lab::note(format!("{what}: {error}"));
        assert_eq!(error.errno(), Some(libc::EIO), "{what}: {error:?}");
        let hint = error.hint().expect("a hint");
        assert!(hint.contains("O_DIRECT") && hint.contains("one engine"), "{what}: {hint}");
    }
}

#[test]
fn two_engines_leave_no_old_bytes() {
    let _watchdog = Watchdog::start();
    for file_system in [FileSystem::Ext4, FileSystem::Xfs] {
        let what = file_system.name();
        let Some(rig) = Rig::new(file_system) else { return };
        let (_engine, other) = open(&rig.path);
        let end = rig.write_concurrently(|| {
            other
                .write(&vec![b'x'; 100])
                .at(BEHIND as u64)
                .run()
                .expect("a write through the page cache");
        });
        rig.check_written(&end, what);
        check_sync(&other, what);
        check_sync(&rig.file, what);
        other.sync_all().expect("it was reported once");
        rig.file.sync_all().expect("it was reported once");
        rig.file.evict().expect("an eviction");
        rig.check_bytes(what);
    }
}

/// A mapping that is read all the time keeps the folio in the page cache, old bytes and all.
#[test]
fn old_bytes_that_stay_are_an_error() {
    let _watchdog = Watchdog::start();
    for file_system in [FileSystem::Ext4, FileSystem::Xfs] {
        let what = file_system.name();
        let Some(rig) = Rig::new(file_system) else { return };
        let (access, flags) = (ProtFlags::READ, MapFlags::SHARED);
        // SAFETY: a new mapping at an address of the kernel's choice.
        let start = unsafe { mmap(ptr::null_mut(), LEN, access, flags, &rig.plain, 0) };
        let start: *mut u8 = start.expect("a mapping").cast();
        let is_over = AtomicBool::new(false);
        let touch = |start: usize| {
            while !is_over.load(Ordering::Relaxed) {
                let start = start as *const u8;
                // SAFETY: inside the mapping, which outlives the thread, and within the file.
                unsafe { start.add(BODY - 4096).read_volatile() };
            }
        };
        let (_engine, other) = open(&rig.path);
        thread::scope(|scope| {
            let end = rig.write_concurrently(|| {
                let start = start.addr();
                scope.spawn(move || touch(start));
                other
                    .write(&vec![b'x'; 100])
                    .at(BEHIND as u64)
                    .run()
                    .expect("a write through the cache");
            });
            is_over.store(true, Ordering::Relaxed);
            rig.check_written(&end, what);
        });
        // SAFETY: our own mapping, which is unused by now.
        unsafe { munmap(start.cast(), LEN) }.expect("our own mapping");
        rig.file.write(&rig.buffer).route(Route::Staged).run().expect("no other writer");
        rig.check_bytes(what);
        check_sync(&rig.file, what);
        rig.file.evict().expect("an eviction");
        rig.check_bytes(what);
    }
}
