//! Drives and file systems that fail in the middle.

use std::fs;
use std::path::PathBuf;

use forebay::{
    DirectIo, Engine, Error, File, OpenOptions, Operation, Place, RequestOptions, Result,
    RingChoice, Route,
};
use rustix::io::Errno;

use crate::lab::fuse::Fuse;
use crate::lab::{FileSystem, LoopDrive, LoopOptions, or_skip, pattern, watchdog::Watchdog};
use crate::{assert_adds_up, assert_says, sim, small_engine};

const MIB: usize = 1 << 20;
const SIZE: usize = 8 * MIB;

/// Where the drive ends all of a sudden.
const CUT: usize = 3 * MIB + 512 * 1024;

/// The engines that a failure must look the same to.
fn engines() -> Vec<(&'static str, Engine)> {
    let with = |ring, direct_io| {
        small_engine(|options| {
            options.ring = ring;
            options.direct_io = direct_io;
        })
    };
    let mut engines = vec![
        ("pread", with(RingChoice::Pread, DirectIo::Auto)),
        ("page cache", with(RingChoice::Pread, DirectIo::Off)),
    ];
    if crate::lab::has_uring() {
        engines.push(("io_uring", with(RingChoice::Uring, DirectIo::Auto)));
    }
    engines
}

/// First byte and the one behind the last.
fn ends(place: &Place) -> (usize, usize) {
    let small = |number| usize::try_from(number).expect("a small file");
    (small(place.offset), small(place.offset + place.len))
}

/// An error of a read that touches the byte at `bad`, of bytes inside `offset + len`.
#[track_caller]
fn assert_failed<T: std::fmt::Debug>(
    result: Result<T>,
    file: &File,
    (offset, len): (usize, usize),
    bad: usize,
) {
    let error = result.expect_err("the drive failed");
    let Error::Io {
        operation: Operation::Read,
        place,
        source: forebay::error::SystemError(libc::EIO),
    } = &error
    else {
        panic!("no EIO: {error}");
    };
    let (start, end) = ends(place);
    assert!(offset <= start && end <= offset + len, "{place} in {offset}+{len}");
    assert!(end > bad, "{place} holds what failed at {bad}");
    assert_eq!(place.drive.as_deref(), file.drive());
    let drive = file.drive().map_or(String::new(), |drive| format!(" on {drive}"));
    let message =
        format!("cannot read `{}` at {start}+{}{drive}", file.path().display(), place.len);
    let hint = "the drive or its file system failed: look at the kernel's log (`dmesg`)";
    assert_says(Err::<(), _>(error), &message, "Input/output error (os error 5)", hint);
}

/// A drive with a file whose bytes from `CUT` on are gone.
fn cut_drive(file_system: FileSystem) -> Option<(LoopDrive, PathBuf, Vec<u8>)> {
    let drive = or_skip(LoopDrive::with(file_system))?;
    let path = drive.path().join("data");
    let bytes = pattern(9, SIZE);
    fs::write(&path, &bytes).expect("room for a file");
    fs::File::open(&path).and_then(|file| file.sync_all()).expect("a sync");
    let position = or_skip(drive.position_of(&path))?;
    let engine = small_engine(|_| {});
    engine.open(&path).and_then(|file| file.evict()).expect("an eviction");
    drive.cut(position + CUT as u64);
    Some((drive, path, bytes))
}

#[test]
fn bytes_that_a_drive_has_lost() {
    let _watchdog = Watchdog::start();
    for file_system in [FileSystem::Ext4, FileSystem::Xfs] {
        let Some((drive, path, bytes)) = cut_drive(file_system) else { return };
        for (name, engine) in engines() {
            crate::lab::note(format!("{file_system:?}, {name}"));
            let file = engine.open(&path).expect("the file opens");
            let gpu = sim(&engine, "sim");
            for range in [(0, SIZE), (CUT - 5000, 20_000), (CUT + 4096, 100), (SIZE - 1, 1)] {
                let (offset, len) = range;
                let mut target = vec![0xee; len];
                assert_failed(file.read(&mut target).at(offset as u64).run(), &file, range, CUT);
                let mut buffer = engine.allocate(gpu, len as u64).expect("memory");
                assert_failed(file.read(&mut buffer).at(offset as u64).run(), &file, range, CUT);
                let started = file.read(buffer).at(offset as u64).start().expect("a start");
                let (result, buffer) = started.wait();
                assert_failed(result, &file, range, CUT);
                assert_eq!(buffer.expect("it comes back").len(), len as u64);
            }
            // What the drive still has arrives, and the engine goes on.
            let mut target = vec![0; CUT - 4096];
            let outcome = file.read(&mut target).run().expect("these bytes are there");
            assert_adds_up(&outcome);
            assert!(target == bytes[..CUT - 4096]);
        }
        drive.restore();
    }
}

#[test]
fn bytes_that_a_file_system_refuses() {
    let _watchdog = Watchdog::start();
    let bytes = pattern(4, SIZE);
    let Some(fuse) = or_skip(Fuse::new(bytes.clone())) else { return };
    fuse.set(|faults| faults.fail_at = Some(CUT as u64));
    for (name, engine) in engines() {
        crate::lab::note(name);
        let file = engine.open(fuse.path()).expect("the file opens");
        let gpu = sim(&engine, "sim");
        let mut buffer = engine.allocate(gpu, SIZE as u64).expect("memory");
        assert_failed(file.read(&mut vec![0; SIZE]).run(), &file, (0, SIZE), CUT);
        assert_failed(file.read(&mut buffer).run(), &file, (0, SIZE), CUT);
        let mut target = vec![0; MIB];
        file.read(&mut target)
            .at(CUT as u64 + 4 * MIB as u64 / 2)
            .run()
            .expect("other bytes are there");
        assert!(target == bytes[CUT + 2 * MIB..][..MIB]);
    }
}

#[test]
fn reads_and_writes_that_come_back_short() {
    let _watchdog = Watchdog::start();
    let bytes = pattern(6, 700_001);
    for most in [1 << 16, 12_288, 5000, 999] {
        for (name, engine) in engines() {
            crate::lab::note(format!("{name}, {most}"));
            let Some(fuse) = or_skip(Fuse::new(bytes.clone())) else { return };
            fuse.set(|faults| faults.uncached = true);
            let file = engine.open_with(fuse.path(), &OpenOptions::writing()).expect("it opens");
            assert!(file.no_direct_io().is_none());
            fuse.set(|faults| faults.read_most = Some(most));
            let gpu = sim(&engine, "sim");
            let mut target = vec![0; bytes.len()];
            let mut buffer = engine.allocate(gpu, bytes.len() as u64).expect("memory");
            for read in [file.read(&mut target).exact().run(), file.read(&mut buffer).exact().run()]
            {
                match read {
                    Ok(outcome) => assert_adds_up(&outcome),
                    // Less than one aligned unit at a time is no progress that O_DIRECT allows.
                    Err(Error::NoProgress { .. }) if most < 4096 => continue,
                    Err(error) => panic!("{error}"),
                }
            }
            if most >= 4096 {
                let mut on_gpu = vec![0; bytes.len()];
                buffer.download(0, &mut on_gpu).expect("a download");
                assert!(target == bytes && on_gpu == bytes);
            }
            fuse.set(|faults| faults.write_most = Some(most));
            let other = pattern(7, 300_000);
            file.write(&other).at(12_345).run().expect("all bytes");
            file.sync_all().expect("a sync");
            let mut model = bytes.clone();
            model[12_345..][..other.len()].copy_from_slice(&other);
            assert!(fuse.content() == model);
        }
    }
}

/// An error of a read that met no error of the system, at or behind `end`.
#[track_caller]
fn assert_stalled(error: &Error, end: usize) {
    let Error::NoProgress { operation: Operation::Read, place } = error else {
        panic!("{error:?}");
    };
    assert!(ends(place).1 > end, "{place}");
    let message =
        format!("cannot read {place}: repeated reads made no progress before the end of the file");
    assert_eq!(error.to_string(), message);
    assert_eq!(error.errno(), None);
    let hint = "look whether the file changed meanwhile; if it did not, its file system reports a \
                size that it does not have";
    assert_eq!(error.hint().as_deref(), Some(hint));
}

#[test]
fn a_size_that_is_a_lie() {
    let _watchdog = Watchdog::start();
    let bytes = pattern(8, 2_000_000);
    for (name, engine) in engines() {
        crate::lab::note(name);
        let Some(fuse) = or_skip(Fuse::new(bytes.clone())) else { return };
        fuse.set(|faults| faults.size = Some(5_000_000));
        let file = engine.open(fuse.path()).expect("the file opens");
        let mut target = vec![0; 5_000_000];
        // The file goes on by its size and has no bytes there: an error, or zeros from the kernel,
        // but never an endless wait.
        match file.read(&mut target).run() {
            Ok(outcome) => {
                assert_adds_up(&outcome);
                let got = usize::try_from(outcome.bytes).expect("small");
                assert!(target[..got.min(bytes.len())] == bytes[..got.min(bytes.len())]);
                assert!(target[got.min(bytes.len())..got].iter().all(|byte| *byte == 0));
            }
            Err(error) => assert_stalled(&error, bytes.len()),
        }
        // Without the page cache there are no made-up zeros.
        fuse.set(|faults| faults.uncached = true);
        let file = engine.open(fuse.path()).expect("the file opens");
        assert_stalled(&file.read(&mut target).run().expect_err("a lie"), bytes.len());
        fuse.set(|faults| faults.uncached = false);
        fuse.set(|faults| faults.size = Some(1_000_000));
        let file = engine.open(fuse.path()).expect("the file opens");
        let outcome = file.read(&mut target).run().expect("what the size says");
        assert_eq!(outcome.bytes, 1_000_000);
        assert!(target[..1_000_000] == bytes[..1_000_000]);
    }
}

/// A small file system with a file that must survive, and one that will be full in a moment.
fn small_drive() -> Option<(LoopDrive, PathBuf)> {
    let options = LoopOptions { size: 64 << 20, ..LoopOptions::default() };
    let drive = or_skip(LoopDrive::new(&options))?;
    let kept = drive.path().join("kept");
    fs::write(&kept, pattern(1, MIB)).expect("room for a file");
    fs::File::open(&kept).and_then(|file| file.sync_all()).expect("a sync");
    Some((drive, kept))
}

#[track_caller]
fn assert_full<T: std::fmt::Debug>(result: Result<T>, file: &File, operation: Operation) {
    let error = result.expect_err("the disk is full");
    let Error::Io { operation: failed, place, source: forebay::error::SystemError(libc::ENOSPC) } =
        &error
    else {
        panic!("no ENOSPC: {error}");
    };
    assert_eq!(*failed, operation);
    let drive = file.drive().map_or(String::new(), |drive| format!(" on {drive}"));
    let (path, offset, len) = (file.path().display(), place.offset, place.len);
    let message = format!("cannot {operation} `{path}` at {offset}+{len}{drive}");
    let hint = "free room on that file system, or write elsewhere";
    assert_says(Err::<(), _>(error), &message, "No space left on device (os error 28)", hint);
}

#[test]
fn a_disk_that_fills_up() {
    let _watchdog = Watchdog::start();
    let Some((drive, kept)) = small_drive() else { return };
    let bytes = pattern(2, 80 * MIB);
    let folder = fs::File::open(drive.path()).expect("its folder");
    let free = || {
        let found = rustix::fs::fstatvfs(&folder).expect("an answer");
        found.f_bavail * found.f_frsize
    };
    let routes = [None, Some(Route::Staged), Some(Route::Cached)];
    for (name, engine) in engines() {
        let gpu = sim(&engine, "sim");
        let mut buffer = engine.allocate(gpu, bytes.len() as u64).expect("memory");
        buffer.upload(0, &bytes).expect("an upload");
        let free_at_first = free();
        for route in routes {
            crate::lab::note(format!("{name}, {route:?}"));
            let path = drive.path().join("full");
            let file = engine.open_with(&path, &OpenOptions::new_file()).expect("a new file");
            if route == Some(Route::Staged) && name == "page cache" {
                drop(file);
                fs::remove_file(&path).expect("a removal");
                continue;
            }
            let options = RequestOptions { route, ..RequestOptions::default() };
            let result = match route {
                None => file.write(&bytes).run(),
                Some(_) => file.write(&buffer).options(options).run(),
            };
            assert_full(result, &file, Operation::Write);
            let there = fs::read(&path).expect("what was written");
            let wrong = there.iter().zip(&bytes).filter(|(is, should)| is != should && **is != 0);
            assert_eq!(wrong.count(), 0, "bytes that were never written");
            assert_full(file.write(&bytes).preallocate().run(), &file, Operation::Preallocate);
            drop(file);
            fs::remove_file(&path).expect("a removal");
            // The file goes with its last op, and its room comes back when the journal is written.
            while free() + (MIB as u64) < free_at_first {
                rustix::fs::syncfs(&folder).expect("a sync");
            }
        }
        let file = engine.open_with(drive.path().join("next"), &OpenOptions::writing());
        let file = file.expect("a new file");
        file.write(&bytes[..MIB].to_vec()).preallocate().run().expect("there is room again");
        assert!(fs::read(&kept).expect("a read") == pattern(1, MIB));
    }
}

#[test]
fn a_write_that_fails_in_the_middle() {
    let _watchdog = Watchdog::start();
    for (name, engine) in engines() {
        crate::lab::note(name);
        let Some(fuse) = or_skip(Fuse::new(vec![0; SIZE])) else { return };
        fuse.set(|faults| faults.fail_writes_at = Some((CUT as u64, libc::EDQUOT)));
        let file = engine.open_with(fuse.path(), &OpenOptions::writing()).expect("it opens");
        let error = file.write(&pattern(3, SIZE)).run().expect_err("no quota left");
        match &error {
            Error::Io {
                operation: Operation::Write,
                place,
                source: forebay::error::SystemError(libc::EDQUOT),
            } => {
                let (start, end) = ends(place);
                assert!(start <= CUT && CUT < end, "{place}");
            }
            other => panic!("no EDQUOT: {other}"),
        }
        let hint = "free room on that file system, or write elsewhere";
        assert_eq!(error.hint().as_deref(), Some(hint));
        file.write(&pattern(3, MIB)).run().expect("the rest of the file takes bytes");
        assert!(fuse.content()[..MIB] == pattern(3, MIB));
    }
}

#[test]
fn a_file_system_that_always_says_try_again() {
    let _watchdog = Watchdog::start();
    always_says(libc::EAGAIN, Errno::AGAIN);
}

#[test]
fn a_file_system_that_always_reports_a_signal() {
    let _watchdog = Watchdog::start();
    always_says(libc::EINTR, Errno::INTR);
}

fn always_says(answer: i32, expected: Errno) {
    let Some(fuse) = or_skip(Fuse::new(pattern(3, SIZE))) else { return };
    fuse.set(|faults| {
        faults.uncached = true;
        faults.fail_at = Some(200_000);
        faults.fail_errno = Some(answer);
    });
    // With io_uring the kernel tries again by itself, without an end, and reports it only when the
    // read is cancelled (`taken_back.rs`).
    let engine = small_engine(|options| options.ring = RingChoice::Pread);
    let file = engine.open(fuse.path()).expect("the file opens");
    let error = file.read(&mut vec![0; SIZE]).run().expect_err("it never gives the bytes");
    assert!(
        matches!(error, Error::Io { source, .. } if source.0 == expected.raw_os_error()),
        "{error:?}"
    );
    assert!(error.is_retryable());
}
