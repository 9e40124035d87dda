//! What is no file, what may not be opened, and files that change under the engine.

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::os::unix::net::UnixListener;

use forebay::{Error, OpenOptions};
use rustix::fs::{CWD, FileType, Mode};

use crate::lab::fuse::Fuse;
use crate::lab::{self, FileSystem, LoopDrive, or_skip, pattern, watchdog::Watchdog};
use crate::{assert_adds_up, assert_says, engine, sim, small_engine};

const NOT_FOUND: &str =
    "look at the path's spelling; a relative path is relative to the current directory";
const NO_RIGHT: &str = "get the permission from the owner, or run as the owner";
const A_FILE: &str = "give a regular file or a block device";

#[test]
fn missing_files() {
    let engine = engine();
    let folder = tempfile::tempdir().expect("a folder");
    let missing = folder.path().join("missing");
    let message = format!("cannot open `{}`", missing.display());
    let cause = "No such file or directory (os error 2)";
    assert_says(engine.open(&missing), &message, cause, NOT_FOUND);
    let dangling = folder.path().join("dangling");
    symlink(&missing, &dangling).expect("a link");
    let message = format!("cannot open `{}`", dangling.display());
    let hint = "it is a link whose target is missing";
    assert_says(engine.open(&dangling), &message, cause, hint);
    for address in ["https://host/file", "s3://bucket/file", "hf://owner/name/file", "s3:/file"] {
        let hint = "addresses such as `https://`, `s3://` and `hf://` are not supported: give a \
                    local path";
        assert_says(engine.open(address), &format!("cannot open `{address}`"), cause, hint);
    }
    let hint = "`~` is not expanded: give the path of the home directory";
    assert_says(engine.open("~/file"), "cannot open `~/file`", cause, hint);
    assert_says(engine.open(""), "cannot open ``", cause, NOT_FOUND);
    let below = missing.join("deeper");
    let created = engine.open_with(&below, &OpenOptions::writing());
    assert_says(created, &format!("cannot open `{}`", below.display()), cause, NOT_FOUND);
    let file = folder.path().join("file");
    fs::write(&file, "").expect("a file");
    let below = file.join("deeper");
    let message = format!("cannot open `{}`", below.display());
    let hint = "a part of the path that should be a folder is a file: look at its spelling";
    assert_says(engine.open(&below), &message, "Not a directory (os error 20)", hint);
    let error = engine.open("a\0b").expect_err("no such path");
    assert!(matches!(error, Error::Io { .. }), "{error}");
}

#[test]
fn paths_that_are_no_files() {
    let _watchdog = Watchdog::start();
    let engine = engine();
    let folder = tempfile::tempdir().expect("a folder");
    let at = |name: &str| folder.path().join(name);
    rustix::fs::mknodat(CWD, at("fifo"), FileType::Fifo, Mode::from_raw_mode(0o600), 0)
        .expect("a FIFO");
    let _listener = UnixListener::bind(at("socket")).expect("a socket");
    fs::create_dir(at("folder")).expect("a folder");
    symlink(at("folder"), at("link")).expect("a link");
    for (path, kind) in [
        (at("fifo"), "FIFO"),
        (at("socket"), "socket"),
        (at("folder"), "folder"),
        (at("link"), "folder"),
        ("/dev/null".into(), "character device"),
    ] {
        let message = format!("cannot open `{}`: it is a {kind}, not a file", path.display());
        assert_says(engine.open(&path), &message, "-", A_FILE);
        assert_says(engine.open_with(&path, &OpenOptions::writing()), &message, "-", A_FILE);
    }
}

#[test]
fn files_without_permission() {
    let folder = tempfile::tempdir().expect("a folder");
    fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o755)).expect("a mode");
    let path = folder.path().join("mine");
    fs::write(&path, "12345").expect("a file");
    let message = format!("cannot open `{}`", path.display());
    let cause = "Permission denied (os error 13)";
    fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).expect("a mode");
    let opened = lab::unprivileged(|| engine().open(&path));
    let Some(opened) = or_skip(opened) else { return };
    assert_says(opened, &message, cause, NO_RIGHT);
    fs::set_permissions(&path, fs::Permissions::from_mode(0o444)).expect("a mode");
    let opened = lab::unprivileged(|| engine().open_with(&path, &OpenOptions::writing()));
    assert_says(or_skip(opened).expect("as before"), &message, cause, NO_RIGHT);
    assert_eq!(fs::read(&path).expect("a read"), b"12345");
}

#[test]
fn files_open_for_reading_only() {
    let engine = engine();
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("data");
    fs::write(&path, "12345").expect("a file");
    let file = engine.open(&path).expect("the file opens");
    let error = file.write(&vec![1; 10]).at(3).run().expect_err("not open for writing");
    let message = format!("{error}");
    assert!(message.starts_with(&format!("cannot write `{}` at 3+10", path.display())), "{error}");
    assert!(message.ends_with(": the file is open for reading only"), "{error}");
    let buffer = engine.allocate_pinned(10).expect("memory");
    let started = file.write(buffer).start();
    assert!(matches!(started, Err(Error::BadRequest { .. })));
    let again = engine.open_with(&path, &OpenOptions::new_file());
    let message = format!("cannot open `{}`", path.display());
    let hint = "give another path, or open the existing file";
    let printed = format!("Err({message}: File exists (os error 17)\nhint: {hint})");
    assert_eq!(format!("{:?}", again.as_ref().map(drop)), printed);
    assert_says(again, &message, "File exists (os error 17)", hint);
    let mut cut = OpenOptions::default();
    cut.truncate = true;
    assert!(matches!(engine.open_with(&path, &cut), Err(Error::BadRequest { .. })));
    assert_eq!(fs::read(&path).expect("a read"), b"12345");
}

#[test]
fn a_file_system_that_may_only_be_read() {
    let Some(drive) = or_skip(LoopDrive::with(FileSystem::Ext4)) else { return };
    let path = drive.path().join("data");
    fs::write(&path, pattern(1, 100_000)).expect("a file");
    let remounted = std::process::Command::new("mount")
        .args(["-o", "remount,ro"])
        .arg(drive.path())
        .status()
        .is_ok_and(|status| status.success());
    if !remounted {
        return lab::skip("no remount read-only here");
    }
    let engine = engine();
    let hint = "the file system is mounted read-only: remount it or write elsewhere";
    for path in [path.clone(), drive.path().join("new")] {
        let message = format!("cannot open `{}`", path.display());
        let opened = engine.open_with(&path, &OpenOptions::writing());
        assert_says(opened, &message, "Read-only file system (os error 30)", hint);
    }
    let (buffer, _) =
        engine.open(&path).expect("reading").read_to_end(None).run().expect("all bytes");
    assert!(buffer.as_slice() == Some(&pattern(1, 100_000)));
}

#[test]
fn files_that_the_kernel_makes_up() {
    let _watchdog = Watchdog::start();
    // `stat` reports no size of these, or a page; none changes meanwhile.
    let paths =
        ["/proc/cpuinfo", "/proc/self/cmdline", "/sys/kernel/mm/transparent_hugepage/enabled"];
    for engine in [engine(), small_engine(|options| options.small_size = 0)] {
        let gpu = sim(&engine, "sim");
        for path in paths {
            let Ok(expected) = fs::read(path) else {
                println!("skipped: no {path}");
                continue;
            };
            // What differs from one reading to the next is not compared.
            let expected = first_lines(&expected);
            let file = engine.open(path).expect("the file opens");
            let mut target = vec![0; 3_000_000];
            let outcome = file.read(&mut target).run().expect("what there is");
            assert_adds_up(&outcome);
            let len = usize::try_from(outcome.bytes).expect("small");
            assert_eq!(first_lines(&target[..len]), expected, "{path}");
            let (buffer, outcome) = file.read_to_end(Some(gpu)).run().expect("all bytes");
            assert_eq!(buffer.len(), outcome.bytes);
            let mut got = vec![0; usize::try_from(buffer.len()).expect("small")];
            buffer.download(0, &mut got).expect("a download");
            assert_eq!(first_lines(&got), expected, "{path}");
            let exact = file.read(&mut target).exact().run().expect_err("it ends before");
            assert!(matches!(exact, Error::EndOfFile { .. }), "{exact}");
        }
    }
    let Some(fuse) = or_skip(Fuse::new(pattern(4, 700_001))) else { return };
    fuse.set(|faults| (faults.size, faults.uncached) = (Some(0), true));
    let engine = engine();
    let file = engine.open(fuse.path()).expect("the file opens");
    let (buffer, _) = file.read_to_end(None).run().expect("all bytes");
    assert!(buffer.as_slice() == Some(&pattern(4, 700_001)[..]));
}

/// All lines but those with a frequency.
fn first_lines(bytes: &[u8]) -> Vec<&[u8]> {
    let lines = bytes.split(|byte| *byte == b'\n');
    lines.filter(|line| !line.starts_with(b"cpu MHz")).collect()
}

#[test]
fn a_file_that_is_replaced_or_removed() {
    let engine = engine();
    let folder = tempfile::tempdir().expect("a folder");
    let (path, other) = (folder.path().join("data"), folder.path().join("other"));
    let (old, new) = (pattern(1, 300_000), pattern(2, 200_000));
    fs::write(&path, &old).expect("a file");
    let file = engine.open_with(&path, &OpenOptions::writing()).expect("the file opens");
    fs::write(&other, &new).expect("a file");
    fs::rename(&other, &path).expect("a rename");
    for cold in [false, true] {
        if cold {
            file.evict().expect("an eviction");
        }
        let (buffer, _) = file.read_to_end(None).run().expect("the old file");
        assert!(buffer.as_slice() == Some(&old[..]), "cold: {cold}");
    }
    file.write(&vec![7; 5000]).at(100).run().expect("the old file");
    assert!(fs::read(&path).expect("a read") == new);
    let file = engine.open(&path).expect("the new file");
    fs::remove_file(&path).expect("a removal");
    file.evict().expect("an eviction");
    let (buffer, _) = file.read_to_end(None).run().expect("the removed file");
    assert!(buffer.as_slice() == Some(&new[..]));
}
