//! File systems that answer a request in part: io_uring would go on with it by itself, on some of
//! them at the wrong offset, so threads move their bytes.

use std::ffi::OsStr;
use std::fs;
use std::path::Path;
use std::time::Duration;

use forebay::{Engine, Error, File, OpenOptions, RingChoice, Route};

use crate::lab::fuse::{Faults, Fuse, NAME};
use crate::lab::{self, or_skip, pattern, watchdog::Watchdog};
use crate::{sim, small_engine};

const LEN: usize = 6_000_000;
const BAD: u64 = 3_500_000;

/// An offset that no block begins at, for a request whose edges bounce.
const ODD: u64 = 4097;

/// What a target holds before.
const BEFORE: u8 = 0xee;

/// Reads from `offset` to the end, to the host or to a simulated GPU.
fn read(engine: &Engine, file: &File, offset: u64, on_gpu: bool) -> Result<Vec<u8>, Error> {
    let mut bytes = vec![BEFORE; LEN - usize::try_from(offset).expect("a small offset")];
    if on_gpu {
        let gpu = sim(engine, "sim");
        let mut buffer = engine.allocate(gpu, bytes.len() as u64)?;
        file.read(&mut buffer).at(offset).exact().run()?;
        buffer.download(0, &mut bytes)?;
    } else {
        file.read(&mut bytes).at(offset).exact().run()?;
    }
    Ok(bytes)
}

/// Runs `check` with each ring, from an aligned and an odd offset, to the host and to a GPU.
fn each(path: &Path, check: impl Fn(&Engine, &File, u64, bool)) {
    for ring in [RingChoice::Auto, RingChoice::Uring, RingChoice::Pread] {
        // Larger requests than one of the FUSE connection: the kernel cuts them.
        let engine = small_engine(|options| {
            (options.ring, options.slot_size, options.segment_size) = (ring, 4 << 20, 4 << 20);
        });
        let file = engine.open_with(path, &OpenOptions::writing()).expect("the file opens");
        for offset in [0, ODD] {
            for on_gpu in [false, true] {
                lab::note(format!("{ring:?}, from {offset}, on a GPU: {on_gpu}"));
                file.evict().expect("an eviction");
                check(&engine, &file, offset, on_gpu);
            }
        }
    }
}

/// A server whose every read is repeated, with and without its own asynchronous reads.
fn served(check: impl Fn(&Fuse, &[u8])) {
    for interruptible in [false, true] {
        let faults = Faults { uncached: true, interruptible, ..Faults::default() };
        let bytes = pattern(5, LEN);
        let Some(fuse) = or_skip(Fuse::with(bytes.clone(), faults)) else { return };
        check(&fuse, &bytes);
    }
}

#[test]
fn an_error_in_the_middle_is_an_error() {
    let _watchdog = Watchdog::start();
    served(|fuse, bytes| {
        fuse.set(|faults| faults.fail_at = Some(BAD));
        each(&fuse.path(), |engine, file, offset, on_gpu| {
            let error = read(engine, file, offset, on_gpu).expect_err("an error");
            assert!(matches!(&error, Error::Io { .. }), "{error:?}");
            let source = std::error::Error::source(&error).map(ToString::to_string);
            assert_eq!(source.as_deref(), Some("Input/output error (os error 5)"));
        });
        fuse.set(|faults| faults.fail_at = None);
        each(&fuse.path(), |engine, file, offset, on_gpu| {
            let right = &bytes[usize::try_from(offset).expect("a small offset")..];
            assert!(read(engine, file, offset, on_gpu).expect("a read") == right);
        });
    });
}

#[test]
fn an_interruption_in_the_middle_is_tried_again() {
    let _watchdog = Watchdog::start();
    served(|fuse, bytes| {
        each(&fuse.path(), |engine, file, offset, on_gpu| {
            fuse.set(|faults| {
                (faults.fail_at, faults.fail_errno) = (Some(BAD), Some(libc::EINTR));
            });
            std::thread::scope(|scope| {
                scope.spawn(|| {
                    std::thread::sleep(Duration::from_millis(20));
                    fuse.set(|faults| faults.fail_at = None);
                });
                let right = &bytes[usize::try_from(offset).expect("a small offset")..];
                assert!(read(engine, file, offset, on_gpu).expect("a read") == right);
            });
        });
    });
}

#[test]
fn short_answers_are_put_together() {
    let _watchdog = Watchdog::start();
    served(|fuse, bytes| {
        fuse.set(|faults| {
            (faults.read_most, faults.write_most) = (Some(10_000), Some(10_000));
        });
        each(&fuse.path(), |engine, file, offset, on_gpu| {
            let right = &bytes[usize::try_from(offset).expect("a small offset")..];
            assert!(read(engine, file, offset, on_gpu).expect("a read") == right);
            if on_gpu {
                let new = pattern(offset, right.len());
                let mut buffer = engine.allocate(sim(engine, "sim"), new.len() as u64).unwrap();
                buffer.upload(0, &new).expect("an upload");
                file.write(&buffer).at(offset).route(Route::Staged).run().expect("a write");
                assert!(fuse.content()[LEN - new.len()..] == new);
                buffer.upload(0, right).expect("an upload");
                file.write(&buffer).at(offset).route(Route::Staged).run().expect("a write");
                assert!(fuse.content() == bytes);
            }
        });
    });
}

#[test]
fn a_size_that_is_too_large_is_an_early_end() {
    let _watchdog = Watchdog::start();
    served(|fuse, _| {
        fuse.set(|faults| faults.size = Some(LEN as u64 + 10_000));
        each(&fuse.path(), |engine, file, offset, on_gpu| {
            let len = LEN as u64 + 10_000 - offset;
            let error = if on_gpu {
                let mut buffer = engine.allocate(sim(engine, "sim"), len).expect("memory");
                file.read(&mut buffer).at(offset).exact().run().expect_err("an end")
            } else {
                let mut bytes = vec![BEFORE; usize::try_from(len).expect("a small length")];
                file.read(&mut bytes).at(offset).exact().run().expect_err("an end")
            };
            let known = matches!(
                error,
                Error::EndOfFile { .. } | Error::FileChanged { .. } | Error::NoProgress { .. }
            );
            assert!(known, "{error:?}");
        });
    });
}

/// A folder that is shown again by an unmodified file system in user space.
struct Shown(tempfile::TempDir);

impl Shown {
    fn of(folder: &Path) -> lab::Offer<Self> {
        let target = tempfile::tempdir().map_err(|error| error.to_string())?;
        let words = ["-o", "direct_io"].map(OsStr::new);
        let places = [folder.as_os_str(), target.path().as_os_str()];
        lab::tool("bindfs", words.into_iter().chain(places))?;
        Ok(Self(target))
    }
}

impl Drop for Shown {
    fn drop(&mut self) {
        lab::unmount(self.0.path());
    }
}

#[test]
fn a_bad_place_below_bindfs_is_an_error() {
    let _watchdog = Watchdog::start();
    served(|fuse, bytes| {
        let below = fuse.path();
        let Some(shown) = or_skip(Shown::of(below.parent().expect("a folder"))) else { return };
        let path = shown.0.path().join(NAME);
        each(&path, |engine, file, offset, on_gpu| {
            fuse.set(|faults| faults.fail_at = None);
            let right = &bytes[usize::try_from(offset).expect("a small offset")..];
            assert!(read(engine, file, offset, on_gpu).expect("a read") == right);
            fuse.set(|faults| faults.fail_at = Some(BAD));
            let error = read(engine, file, offset, on_gpu).expect_err("an error");
            assert!(matches!(&error, Error::Io { .. }), "{error:?}");
        });
        fuse.set(|faults| faults.fail_at = None);
    });
}

#[test]
fn only_file_systems_that_complete_requests_are_read_by_io_uring() {
    let engine = small_engine(|_| ());
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("data");
    fs::write(&path, pattern(1, 100_000)).expect("a file");
    let plain = engine.open(&path).expect("the file opens");
    let known = ["ext4", "xfs", "btrfs", "f2fs", "tmpfs"].contains(&plain.file_system());
    assert_eq!(plain.no_io_uring().is_none(), known, "{}", plain.file_system());
    if let Some(overlay) = or_skip(lab::Overlay::over(folder.path(), &std::env::temp_dir())) {
        let above = engine.open(overlay.path().join("data")).expect("the file opens");
        let reports = ["ext4", "xfs", "f2fs"].contains(&plain.file_system());
        assert!(above.no_io_uring().is_none() || !reports || above.no_direct_io().is_some());
    }
    let Some(fuse) = or_skip(Fuse::new(pattern(1, 100_000))) else { return };
    let file = engine.open(fuse.path()).expect("the file opens");
    let reason = file.no_io_uring().expect("threads read it");
    assert!(reason.starts_with("files on `fuse` are read and written by threads: "), "{reason}");
    assert!(engine.notes().is_empty());
    lab::fuse::drop_pages(&fuse.path());
    file.read_to_end(None).run().expect("a read");
    assert_eq!(engine.notes(), [reason]);
    let engine = small_engine(|options| options.ring = RingChoice::Pread);
    engine.open(fuse.path()).and_then(|file| file.read_to_end(None).run()).expect("a read");
    assert!(engine.notes().is_empty());
    let below = fuse.path();
    let lower = below.parent().expect("a folder");
    if let Some(overlay) = or_skip(lab::Overlay::over(lower, &std::env::temp_dir())) {
        let above = engine.open(overlay.path().join(NAME)).expect("the file opens");
        assert!(above.no_io_uring().is_some(), "an overlay reports no alignment of a FUSE file");
    }
}
