//! Processes that may not have much: locked memory, threads, descriptors, address space.

use std::fs;
use std::os::fd::AsRawFd;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use forebay::{Engine, Error, OpenOptions, Result, RingChoice, Route};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use tempfile::TempDir;

use crate::lab::fuse::Fuse;
use crate::lab::{self, child, or_skip, pattern, watchdog::Watchdog};
use crate::{assert_says, engine, sim, small_engine, try_sim};

/// Lowers a limit of this process; root could raise it again.
fn limit(resource: Resource, most: u64) {
    let maximum = getrlimit(resource).maximum;
    setrlimit(resource, Rlimit { current: Some(most), maximum }).expect("a lower limit");
}

/// A folder in which everybody may write.
fn open_folder() -> TempDir {
    let folder = tempfile::tempdir().expect("a folder");
    fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o777)).expect("a mode");
    folder
}

/// Moves bytes by every way and compares them.
fn move_all(engine: &Engine, path: &Path, len: usize) -> Result<()> {
    let bytes = pattern(3, len);
    let file = engine.open_with(path, &OpenOptions::writing())?;
    file.write(&bytes).run()?;
    for cold in [false, true] {
        if cold {
            file.evict()?;
        }
        let mut target = vec![0; len];
        assert_eq!(file.read(&mut target).exact().run()?.bytes, len as u64);
        assert!(target == bytes);
    }
    file.evict()?;
    let gpu = try_sim(engine, "sim")?;
    let (buffer, _) = file.read_to_end(Some(gpu)).run()?;
    let mut target = vec![0; len];
    buffer.download(0, &mut target)?;
    assert!(target == bytes);
    file.write(&buffer).at(5).run()?;
    Ok(())
}

/// Runs `test` in a process of another user.
fn unprivileged_in_a_child(role: &str, test: impl FnOnce(PathBuf) + Send) {
    if child::role().is_none() {
        child::run(role);
        return;
    }
    let _watchdog = Watchdog::start();
    let folder = open_folder();
    let path = folder.path().join("data");
    let _ = or_skip(lab::unprivileged(|| test(path)));
}

fn with_locked(most: u64) {
    unprivileged_in_a_child("locked", |path| {
        limit(Resource::Memlock, most);
        // First, for a ring that was closed counts until the kernel comes to it.
        fs::write(&path, pattern(7, 40_000_001)).expect("a file");
        stage(&path);
        for ring in [RingChoice::Auto, RingChoice::Pread] {
            let engine = small_engine(|options| options.ring = ring);
            move_all(&engine, &path, 40_000_001).expect("the limit binds nothing here");
            assert_eq!(engine.allocate_pinned(10 << 20).expect("pinned memory").len(), 10 << 20);
        }
    });
}

/// Moves a file by slots of 64 MiB in all, more than the user may lock.
fn stage(path: &Path) {
    if !lab::has_uring() {
        return lab::skip("io_uring is refused here");
    }
    let engine = engine();
    let file = engine.open_with(path, &OpenOptions::writing()).expect("the file opens");
    if let Some(reason) = file.no_direct_io() {
        return lab::skip(format!("the temporary folder has no O_DIRECT: {reason}"));
    }
    let bytes = fs::read(path).expect("a read");
    let mut buffer = engine.allocate(sim(&engine, "sim"), bytes.len() as u64).expect("memory");
    file.evict().expect("an eviction");
    for turn in 0..2 {
        let outcome = file.read(&mut buffer).route(Route::Staged).run().expect("slots do");
        assert!(outcome.routes.iter().all(|share| share.route == Route::Staged), "{outcome:?}");
        let mut got = vec![0; bytes.len()];
        buffer.download(0, &mut got).expect("a download");
        assert!(got == bytes, "turn {turn}");
        file.write(&buffer).route(Route::Staged).run().expect("slots do");
        assert!(fs::read(path).expect("a read") == bytes, "turn {turn}");
        assert_eq!(engine.notes(), [""; 0]);
    }
}

#[test]
fn locked_memory_of_64_kib() {
    with_locked(64 << 10);
}

#[test]
fn locked_memory_of_8_mib() {
    with_locked(8 << 20);
}

/// Root may lock what it likes, whatever the limit says.
#[test]
fn locked_memory_of_64_kib_as_root() {
    if child::role().is_none() {
        child::run("locked root");
        return;
    }
    let _watchdog = Watchdog::start();
    if !rustix::process::geteuid().is_root() {
        return lab::skip("this process is not root's");
    }
    let folder = open_folder();
    let path = folder.path().join("data");
    limit(Resource::Memlock, 64 << 10);
    for ring in [RingChoice::Auto, RingChoice::Pread] {
        let engine = small_engine(|options| options.ring = ring);
        move_all(&engine, &path, 20_000_001).expect("the limit binds nothing here");
        assert_eq!(engine.allocate_pinned(10 << 20).expect("pinned memory").len(), 10 << 20);
        assert_eq!(engine.notes(), <[String; 0]>::default());
    }
}

#[test]
fn no_more_threads() {
    unprivileged_in_a_child("threads", |path| {
        let before = getrlimit(Resource::Nproc).current;
        for most in [1, 2, 3, 4, 6] {
            limit(Resource::Nproc, most);
            let engine = small_engine(|_| {});
            match move_all(&engine, &path, 5_000_001) {
                Ok(()) => assert!(most > 1, "one thread is too few"),
                Err(error) => {
                    let message = error.to_string();
                    assert!(message.starts_with("cannot start the engine's "), "{message}");
                    assert!(matches!(&error, Error::Resource { .. }), "{message}");
                    assert_eq!(error.errno(), Some(libc::EAGAIN));
                    assert!(error.is_retryable());
                    let hint =
                        "raise the limit on threads and open files (`ulimit -u`, `ulimit -n`)";
                    assert_eq!(error.hint().as_deref(), Some(hint));
                    // The same engine goes on once it may.
                    limit(Resource::Nproc, before.unwrap_or(1 << 20));
                    move_all(&engine, &path, 5_000_001).expect("threads enough");
                }
            }
        }
    });
}

/// The only thread that waits for drives hangs, and a second one is refused for a while.
#[test]
fn a_drive_is_served_once_threads_can_be_started_again() {
    if child::role().is_none() {
        child::run("threads later");
        return;
    }
    let _watchdog = Watchdog::start();
    let Some(fuse) = or_skip(Fuse::new(pattern(1, 100_000))) else { return };
    let folder = open_folder();
    let path = folder.path().join("data");
    let test = || {
        let before = getrlimit(Resource::Nproc).current;
        let engine = small_engine(|options| options.ring = RingChoice::Pread);
        fs::write(&path, pattern(2, 100_000)).expect("room for a file");
        let [hangs, file] = [fuse.path(), path].map(|path| engine.open(path).expect("it opens"));
        file.evict().expect("an eviction");
        let buffer = || engine.allocate_pinned(100_000).expect("memory");
        fuse.set(|faults| faults.hang_from = Some(0));
        let one = hangs.read(buffer()).start().expect("a start");
        fuse.wait_for_parked(1);
        limit(Resource::Nproc, 1);
        let other = file.read(buffer()).start().expect("a start");
        std::thread::sleep(Duration::from_millis(100)); // until a thread was refused
        let is_done = other.is_done();
        limit(Resource::Nproc, before.unwrap_or(1 << 20));
        let end = other.wait_for(Duration::from_secs(60));
        fuse.set(|faults| faults.hang_from = None);
        assert!(!is_done, "no thread was free");
        assert_eq!(end.expect("it ends").expect("a read").bytes, 100_000);
        assert_eq!(one.wait().0.expect("the server answers").bytes, 100_000);
    };
    let _ = or_skip(lab::unprivileged(test));
}

#[test]
fn no_more_descriptors() {
    if child::role().is_none() {
        child::run("descriptors");
        return;
    }
    let _watchdog = Watchdog::start();
    let folder = open_folder();
    let path = folder.path().join("data");
    let before = getrlimit(Resource::Nofile).current.unwrap_or(1 << 16);
    for extra in 0..8 {
        // The number that the next descriptor will have.
        let next = fs::File::open("/dev/null").expect("a descriptor").as_raw_fd();
        let engine = small_engine(|_| {});
        limit(Resource::Nofile, u64::from(next.cast_unsigned()) + extra);
        let moved = move_all(&engine, &path, 5_000_001);
        let notes = engine.notes();
        limit(Resource::Nofile, before);
        lab::note(format!("{extra} descriptors: {moved:?}, {notes:?}"));
        if extra == 0 {
            let error = moved.expect_err("no descriptor at all");
            assert_eq!(error.to_string(), format!("cannot open `{}`", path.display()));
            assert_eq!(error.errno(), Some(libc::EMFILE));
            assert_eq!(
                error.hint().as_deref(),
                Some("raise the limit on open files (`ulimit -n`)")
            );
        } else if let Err(error) = moved {
            assert_eq!(error.errno(), Some(libc::EMFILE), "{error}");
        }
        let file = engine.open(&path);
        drop(file);
        move_all(&engine, &path, 1_000_001).expect("descriptors enough");
    }
}

#[test]
fn a_descriptor_that_is_refused_once_is_requested_again() {
    if child::role().is_none() {
        child::run("one descriptor");
        return;
    }
    let folder = open_folder();
    let path = folder.path().join("data");
    fs::write(&path, pattern(3, 100_000)).expect("a file");
    let engine = engine();
    let expected = engine.open(&path).expect("the file opens").no_direct_io().map(str::to_owned);
    let file = engine.open(&path).expect("the file opens");
    let plain = fs::File::open(&path).expect("the file opens");
    let before = getrlimit(Resource::Nofile).current.unwrap_or(1 << 16);
    let next = fs::File::open("/dev/null").expect("a descriptor").as_raw_fd();
    limit(Resource::Nofile, u64::from(next.cast_unsigned()));
    let refused = file.no_direct_io().map(str::to_owned);
    let duplicated = engine.open_borrowed_fd(&plain);
    limit(Resource::Nofile, before);
    let message = format!("cannot open `{}`", path.display());
    let hint = "raise the limit on open files (`ulimit -n`)";
    assert_says(duplicated, &message, "Too many open files (os error 24)", hint);
    if expected.is_none() {
        let reason = "too many files are open for a second descriptor with O_DIRECT";
        assert_eq!(refused.as_deref(), Some(reason));
    }
    assert_eq!(file.no_direct_io(), expected.as_deref());
}

#[test]
fn ten_thousand_open_files() {
    const FILES: usize = 10_000;
    if child::role().is_none() {
        child::run("files");
        return;
    }
    let _watchdog = Watchdog::start();
    // Not all of them can have a second descriptor, and others still find room.
    let most = FILES as u64 + 1000;
    if getrlimit(Resource::Nofile).maximum.is_some_and(|maximum| maximum < most) {
        return lab::skip(format!("this process may not have {most} descriptors"));
    }
    limit(Resource::Nofile, most);
    let folder = open_folder();
    // Each of them is opened many times, which is to an engine a file each time.
    let names = FILES / 20;
    let bytes: Vec<_> = (0..names).map(|name| pattern(name as u64, 5000 + name % 7)).collect();
    for (name, bytes) in bytes.iter().enumerate() {
        fs::write(folder.path().join(name.to_string()), bytes).expect("room for a file");
    }
    rustix::fs::syncfs(fs::File::open(folder.path()).expect("the folder")).expect("a sync");
    let engine = small_engine(|_| {});
    let gpu = sim(&engine, "sim");
    let open = |number: usize| {
        let path = folder.path().join((number % names).to_string());
        engine.open_with(&path, &OpenOptions::writing()).expect("the file opens")
    };
    let files: Vec<_> = (0..FILES).map(open).collect();
    let mut direct = 0;
    for (number, file) in files.iter().enumerate() {
        let expected = &bytes[number % names];
        let mut target = vec![0; expected.len()];
        file.read(&mut target).exact().run().expect("all bytes");
        assert!(target == *expected, "file {number}");
        // Every fourth from the drive, by a second descriptor while there are any.
        if number % 4 == 0 {
            rustix::fs::fadvise(
                fs::File::open(file.path()).expect("the file opens"),
                0,
                None,
                rustix::fs::Advice::DontNeed,
            )
            .expect("an advice");
            let (buffer, _) = file.read_to_end(Some(gpu)).run().expect("all bytes");
            buffer.download(0, &mut target).expect("a download");
            assert!(target == *expected, "file {number}");
            match file.no_direct_io() {
                None => direct += 1,
                Some(reason) => {
                    let few = "too many files are open for a second descriptor with O_DIRECT";
                    assert!([few, "the file lives in memory"].contains(&reason), "{reason}");
                }
            }
        }
    }
    assert!(direct < FILES / 4, "{direct} files had a second descriptor, so none was refused");
    for number in [0, FILES / 2, FILES - 1] {
        let file = &files[number];
        file.write(&vec![7; 3000]).at(100).run().expect("room");
        assert!(fs::read(file.path()).expect("a read")[100..3100] == [7; 3000]);
    }
    drop(files);
    // They are closed, and a second descriptor can be had again.
    let path = folder.path().join("0");
    let file = engine.open(&path).expect("the file opens");
    assert!(file.no_direct_io().is_none_or(|reason| reason == "the file lives in memory"));
    move_all(&engine, &path, 2_000_001).expect("descriptors enough");
}

#[test]
fn no_more_memory() {
    if child::role().is_none() {
        child::run("memory");
        return;
    }
    let _watchdog = Watchdog::start();
    let folder = open_folder();
    let path = folder.path().join("data");
    let before = getrlimit(Resource::As).current.unwrap_or(1 << 46);
    let engine = small_engine(|options| {
        options.slot_size = 64 << 20;
        options.segment_size = 1 << 20;
    });
    let bytes = pattern(3, 2_000_001);
    fs::write(&path, &bytes).expect("a file");
    let file = engine.open(&path).expect("the file opens");
    // A thread that cannot be made whole ends the process in the standard library, so all threads
    // are there before.
    file.evict().expect("an eviction");
    file.read_to_end(None).run().expect("all bytes");
    let gpu = sim(&engine, "sim");
    let status = fs::read_to_string("/proc/self/status").expect("this process");
    let used = status.lines().find_map(|line| line.strip_prefix("VmSize:"));
    let used: u64 = used
        .and_then(|text| text.trim().strip_suffix(" kB")?.parse().ok())
        .expect("the size of this process");
    limit(Resource::As, (used << 10) + (48 << 20));
    let moved = file.read_to_end(Some(gpu)).run();
    let allocated = engine.allocate_pinned(1 << 30);
    limit(Resource::As, before);
    for (error, message) in [
        (moved.expect_err("no room for slots"), "cannot allocate 64 MiB of host memory"),
        (allocated.expect_err("no room for it"), "cannot allocate 1 GiB of host memory"),
    ] {
        assert_eq!(error.to_string(), message);
        assert_eq!(error.errno(), Some(libc::ENOMEM));
        assert!(error.is_retryable() && error.hint().is_some());
    }
    let (buffer, _) = file.read_to_end(Some(gpu)).run().expect("memory enough");
    let mut got = vec![0; bytes.len()];
    buffer.download(0, &mut got).expect("a download");
    assert!(got == bytes);
}
