//! Writes that end all of a sudden: by a quota, by a file system that takes no more.

use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use forebay::{Engine, Error, OpenOptions, Operation, RequestOptions, RingChoice, Route, SyncMode};

use crate::lab::{self, FileSystem, LoopDrive, or_skip, pattern, watchdog::Watchdog};
use crate::{sim, small_engine};

const MIB: usize = 1 << 20;

fn engines() -> Vec<Engine> {
    let with = |ring| small_engine(|options| options.ring = ring);
    let mut engines = vec![with(RingChoice::Pread)];
    if lab::has_uring() {
        engines.push(with(RingChoice::Uring));
    }
    engines
}

/// The ways that a GPU's bytes take to a file.
fn ways() -> [RequestOptions; 2] {
    [
        RequestOptions::default(),
        RequestOptions { route: Some(Route::Staged), ..RequestOptions::default() },
    ]
}

fn btrfs(arguments: &[&OsStr]) -> lab::Offer<String> {
    lab::tool("btrfs", arguments.iter().copied())
}

/// Lets a folder of btrfs hold so many bytes at most.
fn bound(folder: &Path, bytes: usize) -> lab::Offer<()> {
    let most = bytes.to_string();
    btrfs(&["qgroup".as_ref(), "limit".as_ref(), most.as_ref(), folder.as_os_str()]).map(drop)
}

/// A new folder that may hold so many bytes.
fn bounded_folder(drive: &LoopDrive, name: &str, bytes: usize) -> lab::Offer<PathBuf> {
    let folder = drive.path().join(name);
    btrfs(&["quota".as_ref(), "enable".as_ref(), drive.path().as_os_str()])?;
    btrfs(&["subvolume".as_ref(), "create".as_ref(), folder.as_os_str()])?;
    bound(&folder, bytes)?;
    Ok(folder)
}

#[test]
fn a_quota_that_ends_in_the_middle_of_a_write() {
    let _watchdog = Watchdog::start();
    let Some(drive) = or_skip(LoopDrive::with(FileSystem::Btrfs)) else { return };
    let bytes = pattern(2, 20 * MIB);
    for engine in engines() {
        let mut buffer = engine.allocate(sim(&engine, "sim"), bytes.len() as u64).expect("memory");
        buffer.upload(0, &bytes).expect("an upload");
        for options in ways() {
            let name = format!("{:?}, {:?}", engine.options().ring, options.route);
            lab::note(&name);
            let offer = bounded_folder(&drive, &name, 8 * MIB);
            let Some(folder) = or_skip(offer) else { return };
            let path = folder.join("data");
            let file = engine.open_with(&path, &OpenOptions::new_file()).expect("a new file");
            let error =
                file.write(&buffer).options(options).run().expect_err("the quota is too small");
            let Error::Io {
                operation: Operation::Write,
                place,
                source: forebay::error::SystemError(libc::EDQUOT),
            } = &error
            else {
                panic!("no EDQUOT: {error:?}");
            };
            assert!(place.path == path && place.offset < bytes.len() as u64, "{place}");
            let hint = "free room on that file system, or write elsewhere";
            assert_eq!(error.hint().as_deref(), Some(hint));
            let there = fs::read(&path).expect("what was written");
            let wrong = there.iter().zip(&bytes).filter(|(is, should)| is != should && **is != 0);
            assert_eq!(wrong.count(), 0, "bytes that were never written");
            // The same file takes all bytes once it may have them.
            bound(&folder, 64 * MIB).expect("another limit");
            file.write(&buffer).options(options).run().expect("they fit");
            assert!(fs::read(&path).expect("a read") == bytes);
        }
    }
}

#[test]
fn a_file_system_that_takes_no_more_in_the_middle_of_writes() {
    let _watchdog = Watchdog::start();
    let bytes = pattern(4, 2 * MIB + 77);
    for (engine, options) in engines().iter().flat_map(|engine| ways().map(|way| (engine, way))) {
        lab::note(format!("{:?}, {:?}", engine.options().ring, options.route));
        let Some(drive) = or_skip(LoopDrive::with(FileSystem::Ext4)) else { return };
        let (path, kept) = (drive.path().join("data"), drive.path().join("kept"));
        fs::write(&kept, &bytes).expect("room");
        fs::File::open(&kept).and_then(|file| file.sync_all()).expect("a sync");
        let file = engine.open_with(&path, &OpenOptions::writing()).expect("a new file");
        // Who wants to remount a drive that is written is refused: the kernel protects the writer.
        let polite = drive.remount("remount,ro").expect_err("it is open for writing");
        lab::note(polite);
        let mut buffer = engine.allocate(sim(engine, "sim"), bytes.len() as u64).expect("memory");
        buffer.upload(0, &bytes).expect("an upload");
        let written = AtomicU64::new(0);
        let error = thread::scope(|scope| {
            let writing = scope.spawn(|| {
                // A drive of 512 MiB is not filled by this, which only has to last until the abort.
                let begun = Instant::now();
                let lasts = |_: &u64| begun.elapsed() < Duration::from_secs(60);
                (0..).take_while(lasts).find_map(|turn| {
                    let offset = turn % 40 * 4 * MIB as u64 + 1;
                    let result = file
                        .write(&buffer)
                        .at(offset)
                        .options(RequestOptions { sync: SyncMode::Data, ..options })
                        .run();
                    written.fetch_add(1, Ordering::Relaxed);
                    result.err()
                })
            });
            while written.load(Ordering::Relaxed) < 3 {
                thread::yield_now();
            }
            // What ext4 does itself when it finds its own structures broken.
            let aborted = drive.remount("remount,abort");
            (writing.join().expect("writes that end"), aborted)
        });
        let (error, aborted) = error;
        if or_skip(aborted).is_none() {
            return;
        }
        let error = error.expect("the file system takes no more");
        let Error::Io { operation, place, source } = &error else { panic!("{error:?}") };
        assert!(matches!(operation, Operation::Write | Operation::Sync), "{error:?}");
        assert!(matches!(source.0, libc::EROFS | libc::EIO), "{error:?}");
        assert_eq!(place.path, path);
        assert!(error.hint().is_some(), "{error:?}");
        // From now on every write says so at once, and reads go on.
        let error = file.write(&buffer).options(options).run().expect_err("it takes no more");
        let Error::Io {
            operation: Operation::Write,
            source: forebay::error::SystemError(libc::EROFS),
            ..
        } = &error
        else {
            panic!("no EROFS: {error:?}");
        };
        let hint = "the file system is mounted read-only: remount it or write elsewhere";
        assert_eq!(error.hint().as_deref(), Some(hint));
        let file = engine.open(&kept).expect("the file opens");
        file.evict().expect("an eviction");
        let (buffer, _) = file.read_to_end(None).run().expect("it can be read");
        assert!(buffer.as_slice() == Some(&bytes[..]));
    }
}
