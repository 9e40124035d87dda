//! `forebay bench --find-depth`: the result, and its refusals.

use std::fs;
use std::path::Path;

use assert_cmd::Command;
use tempfile::TempDir;

use crate::program::program;

fn command(folder: &Path, arguments: &[&str]) -> Command {
    let mut command = Command::new(program());
    command.current_dir(folder).env("LC_ALL", "C.UTF-8").args(["bench", "--find-depth"]);
    command.args(arguments);
    command
}

/// stdout and stderr of a run that ends with `code`.
#[track_caller]
fn texts(command: &mut Command, code: i32) -> (String, String) {
    let output = command.output().unwrap();
    assert_eq!(output.status.code(), Some(code), "{output:?}");
    let text = |bytes| String::from_utf8(bytes).unwrap();
    (text(output.stdout), text(output.stderr))
}

#[track_caller]
fn refused(folder: &Path, arguments: &[&str]) -> String {
    let (text, talk) = texts(&mut command(folder, arguments), 1);
    assert_eq!(text, "", "{talk}");
    talk
}

fn names(folder: &Path) -> Vec<String> {
    let names = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().file_name());
    let mut names: Vec<String> = names.map(|name| name.into_string().unwrap()).collect();
    names.sort();
    names
}

/// A folder with a file on a drive that has O_DIRECT.
fn folder() -> Option<TempDir> {
    let folder = tempfile::tempdir_in(".").unwrap();
    fs::write(folder.path().join("file"), vec![7; 32 << 20]).unwrap();
    let engine = forebay::Engine::new(forebay::Options::default()).unwrap();
    let file = engine.open(folder.path().join("file")).unwrap();
    if let Some(reason) = file.no_direct_io() {
        println!("skipped: a search: no O_DIRECT in this folder: {reason}");
        return None;
    }
    if matches!(file.file_system(), "tmpfs" | "ramfs") {
        println!("skipped: a search: this folder is in memory");
        return None;
    }
    Some(folder)
}

#[test]
fn a_curve_a_depth_and_the_reason_are_printed_and_nothing_stays() {
    let Some(folder) = folder() else { return };
    // A depth that is set is not the one that it is compared with.
    let (text, talk) = texts(command(folder.path(), &["file"]).env("FOREBAY_DEPTH", "3"), 0);
    let depths: Vec<&str> =
        text.lines().filter_map(|line| line.split_whitespace().next()).collect();
    assert!(["1", "2", "auto"].iter().all(|depth| depths.contains(depth)), "{text}");
    let reasons = ["FOREBAY_DEPTH=", "eeping the default: depth "];
    assert!(reasons.iter().any(|reason| text.contains(reason)), "{text}");
    assert!(text.contains("interleaved pairs"), "{text}");
    assert!(text.lines().skip(1).all(|line| line.chars().count() <= 80), "{text}");
    assert!(!talk.contains("error:"), "{talk}");
    assert_eq!(names(folder.path()), ["file"]);
}

#[test]
fn files_without_a_drive_or_too_small_are_refused() {
    let folder = tempfile::tempdir_in(".").unwrap();
    fs::write(folder.path().join("small"), vec![0; 3 << 20]).unwrap();
    let texts = ["small", "missing"].map(|name| refused(folder.path(), &[name]));
    insta::assert_snapshot!(texts.join("\n"), @"
    error: cannot find a depth: `small` has 3 MiB
      caused by: at least 16 MiB are required to keep the queue full
    hint: name a larger file, or a folder for a scratch file

    error: cannot open `missing`
      caused by: no such file or directory (os error 2)
    hint: look at the path's spelling; a relative path starts at this folder
    ");
    assert_eq!(names(folder.path()), ["small"]);
    let Ok(memory) = tempfile::tempdir_in("/dev/shm") else {
        return println!("skipped: files in memory: there is no tmpfs at /dev/shm");
    };
    let talk = refused(memory.path(), &[]);
    assert!(talk.contains("error: cannot find a depth: `.` is in memory"), "{talk}");
    assert!(names(memory.path()).is_empty());
}

#[test]
fn without_direct_io_there_is_no_depth() {
    let folder = tempfile::tempdir_in(".").unwrap();
    let mut command = command(folder.path(), &[]);
    let (_, talk) = texts(command.env("FOREBAY_DIRECT_IO", "off"), 1);
    insta::assert_snapshot!(talk, @"
    error: cannot find a depth: O_DIRECT is switched off
      caused by: `FOREBAY_DIRECT_IO` is `off`
    hint: unset it: without O_DIRECT, the kernel's read-ahead sets the queue depth
    ");
    assert!(names(folder.path()).is_empty());
}

#[test]
fn flags_of_a_comparison_do_not_combine() {
    let folder = tempfile::tempdir_in(".").unwrap();
    let talk = [&["--json"][..], &["--size", "1G"], &["a", "b"]]
        .map(|arguments| texts(&mut command(folder.path(), arguments), 2).1);
    insta::assert_snapshot!(talk.join("\n"), @"
    error: the argument `--find-depth` cannot be used with `--json`
    hint: for more information, try `--help`

    error: the argument `--find-depth` cannot be used with `--size <SIZE>`
    hint: for more information, try `--help`

    error: `--find-depth` takes one path
    hint: name one drive after the other
    ");
}
