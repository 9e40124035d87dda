//! Paths that cannot be measured: each failure names the one.

use std::fs;
use std::path::Path;
use std::process::Stdio;
use std::time::{Duration, Instant};

use super::{command, folder_with, names, run, stderr};

/// The exit code and what stands on stderr, of a run that prints nothing and leaves nothing.
fn failure(folder: &Path, arguments: &[&str]) -> (i32, String) {
    let before = names(folder);
    let output = run(folder, &[arguments, &["--gpu", "none"]].concat());
    assert!(output.stdout.is_empty(), "{output:?}");
    assert_eq!(names(folder), before, "something was left");
    (output.status.code().unwrap(), stderr(&output))
}

#[test]
fn the_same_path_twice_makes_no_sense() {
    let folder = folder_with(&[("a", 100), ("b", 100)]);
    std::os::unix::fs::symlink("a", folder.path().join("link")).unwrap();
    let (code, text) = failure(folder.path(), &["a", "b", "a"]);
    assert_eq!(code, 2);
    insta::assert_snapshot!(text, @"
    error: `a` is given twice
    hint: name each file or folder once
    ");
    let (code, text) = failure(folder.path(), &["a", "b", "link"]);
    assert_eq!(code, 2);
    assert!(text.starts_with("error: `link` is the same as `a`\n"), "{text}");
    let (code, text) = failure(folder.path(), &[".", "b", "./."]);
    assert_eq!(code, 2);
    assert!(text.starts_with("error: `./.` is the same as `.`\n"), "{text}");
}

#[test]
fn one_that_is_missing_is_named() {
    let folder = folder_with(&[("a", 100), ("b", 100)]);
    fs::create_dir(folder.path().join("scratch")).unwrap();
    let (code, text) = failure(folder.path(), &["a", "scratch", "missing", "b"]);
    assert_eq!(code, 1);
    insta::assert_snapshot!(text, @"
    error: cannot open `missing`
      caused by: no such file or directory (os error 2)
    hint: look at the path's spelling; a relative path starts at this folder
    ");
    assert!(names(&folder.path().join("scratch")).is_empty(), "scratch was left");
}

#[test]
fn a_folder_that_cannot_be_written_is_named() {
    let folder = folder_with(&[]);
    fs::create_dir(folder.path().join("good")).unwrap();
    let (code, text) = failure(folder.path(), &["good", "/proc"]);
    assert_eq!(code, 1);
    assert!(text.starts_with("error: cannot make a scratch file in `/proc`\n"), "{text}");
    assert!(names(&folder.path().join("good")).is_empty(), "scratch was left");
}

#[test]
fn one_that_is_empty_is_named() {
    let folder = folder_with(&[("a", 100), ("empty", 0)]);
    let (code, text) = failure(folder.path(), &["a", "empty"]);
    assert_eq!(code, 1);
    insta::assert_snapshot!(text, @"
    error: nothing to measure: `empty` is empty
    hint: name a folder instead, for a scratch file
    ");
}

#[test]
fn one_that_is_too_small_is_named() {
    let folder = folder_with(&[("a", 1000), ("b", 100)]);
    let (code, text) = failure(folder.path(), &["a", "b", "--size", "500"]);
    assert_eq!(code, 1);
    insta::assert_snapshot!(text, @"
    error: cannot read 500 B of `b`
      caused by: it has 100 B
    hint: `--size 100` reads all of it
    ");
}

#[test]
fn a_scratch_that_would_fill_the_disk_is_refused() {
    let folder = folder_with(&[]);
    for name in ["one", "two"] {
        fs::create_dir(folder.path().join(name)).unwrap();
    }
    let (code, text) = failure(folder.path(), &["one", "two", "--size", "1000000T"]);
    assert_eq!(code, 1);
    assert!(text.contains("stay free"), "{text}");
    // Each alone would fit, but they share the room.
    let room = rustix::fs::statvfs(folder.path()).unwrap();
    let size = (room.f_bavail * room.f_frsize / 10 * 6).to_string();
    let (code, text) = failure(folder.path(), &["one", "two", "--size", &size]);
    assert_eq!(code, 1);
    assert!(text.contains("stay free"), "{text}");
}

/// Starts a run over `a` and `b` that would last very long, spoils `b`, and waits for the end.
fn spoiled(resident: bool, spoil: impl FnOnce(&Path)) -> (Option<i32>, String) {
    let folder = folder_with(&[("a", 200_000), ("b", 200_000)]);
    let mut arguments = vec!["a", "b", "--gpu", "none", "--repeats", "1000"];
    if resident {
        arguments.push("--resident");
    }
    let mut command = command(folder.path(), &arguments);
    command.stdout(Stdio::null()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    // It is in the middle once it has opened and closed the file far more often than at its start.
    let start = Instant::now();
    let id = child.id();
    let has_opened = || {
        let fds = format!("/proc/{id}/fd");
        let entries = fs::read_dir(&fds).into_iter().flatten().flatten();
        entries.filter_map(|entry| fs::read_link(entry.path()).ok()).any(|path| path.ends_with("b"))
    };
    let (mut was_open, mut times) = (false, 0);
    while times < 30 && child.try_wait().unwrap().is_none() {
        assert!(start.elapsed() < Duration::from_secs(120), "it never came that far");
        let is_open = has_opened();
        times += u32::from(is_open && !was_open);
        was_open = is_open;
    }
    spoil(&folder.path().join("b"));
    let output = child.wait_with_output().unwrap();
    assert_eq!(names(folder.path()).iter().filter(|name| name.starts_with('.')).count(), 0);
    (output.status.code(), stderr(&output))
}

#[test]
fn one_that_vanishes_in_the_middle_is_named() {
    let (code, text) = spoiled(true, |path| fs::remove_file(path).unwrap());
    assert_eq!(code, Some(1), "{text}");
    // Whoever opens it first finds it gone.
    assert!(text.contains("error: cannot open `b`"), "{text}");
    assert!(text.contains("\n  caused by: no such file"), "{text}");
}

#[test]
fn one_that_is_cut_in_the_middle_is_named() {
    let (code, text) = spoiled(true, |path| {
        fs::OpenOptions::new().write(true).open(path).unwrap().set_len(1000).unwrap();
    });
    assert_eq!(code, Some(1), "{text}");
    assert!(text.contains("error: cannot read `b`"), "{text}");
}

#[test]
fn a_signal_leaves_no_scratch_in_any_folder() {
    let folder = folder_with(&[]);
    let folders = ["one", "two"].map(|name| folder.path().join(name));
    folders.iter().for_each(|folder| fs::create_dir(folder).unwrap());
    let arguments = ["one", "two", "--size", "2M", "--repeats", "1000", "--gpu", "none"];
    let mut command = command(folder.path(), &arguments);
    let mut child = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    let is_made = |folder: &Path| {
        let entries = fs::read_dir(folder).unwrap().flatten().map(|entry| entry.path());
        let mut files = entries.filter_map(|path| fs::metadata(path.join("read")).ok());
        files.any(|facts| facts.len() > 0)
    };
    let start = Instant::now();
    while !folders.iter().all(|folder| is_made(folder)) {
        assert!(start.elapsed() < Duration::from_secs(120), "it never came that far");
        std::thread::sleep(Duration::from_millis(5));
    }
    let pid = rustix::process::Pid::from_raw(i32::try_from(child.id()).unwrap()).unwrap();
    rustix::process::kill_process(pid, rustix::process::Signal::TERM).unwrap();
    assert!(child.wait().unwrap().code().is_none(), "it did not end by the signal");
    assert!(folders.iter().all(|folder| names(folder).is_empty()), "scratch was left");
}
