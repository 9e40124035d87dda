//! The engine's events on stderr, with `FOREBAY_LOG`.

use std::fs;
use std::path::Path;
use std::process::Output;

use crate::program::{program, stderr};
use assert_cmd::Command;

fn forebay(folder: &Path, log: &str, arguments: &[&str]) -> Output {
    let mut command = Command::new(program());
    command.current_dir(folder).env("FOREBAY_LOG", log).args(arguments).output().unwrap()
}

#[test]
fn lines_go_to_stderr_and_leave_the_data_alone() {
    let folder = tempfile::tempdir_in(".").unwrap();
    fs::write(folder.path().join("a file"), vec![7; 3_000_000]).unwrap();
    let arguments = ["read", "a file", "--gpu", "sim", "--output", "-"];
    let output = forebay(folder.path(), "debug", &arguments);
    assert!(output.status.success(), "{output:?}");
    assert!(output.stdout == vec![7; 3_000_000], "the bytes alone");
    let text = stderr(&output);
    for part in [
        "DEBUG forebay::engine: engine made readers=",
        "DEBUG forebay::gpu: GPU brought in gpu=sim:0",
        "DEBUG forebay::file: file opened path=a file",
        "DEBUG forebay::transfer: transfer begins direction=\"read\" path=a file offset=0 ",
        "DEBUG forebay::transfer: transfer ended direction=\"read\" path=a file bytes=3000000 ",
        "DEBUG forebay::engine: engine ended\n",
    ] {
        assert!(text.contains(part), "{part}: {text}");
    }
}

#[test]
fn only_requested_lines_are_printed() {
    let folder = tempfile::tempdir_in(".").unwrap();
    fs::write(folder.path().join("file"), vec![7; 3_000_000]).unwrap();
    for log in ["off", "warn"] {
        let output = forebay(folder.path(), log, &["read", "file", "--gpu", "sim"]);
        assert!(output.status.success() && output.stderr.is_empty(), "{log}: {output:?}");
    }
    let lost = ["read", "file", "--gpu", "sim:lost-after=0", "--len", "2M"];
    let output = forebay(folder.path(), "warn", &lost);
    let text = stderr(&output);
    assert_eq!(output.status.code(), Some(1), "{text}");
    assert!(text.contains(" WARN forebay::gpu: GPU lost gpu=sim:0 error="), "{text}");
    assert!(text.contains(" WARN forebay::transfer: transfer failed direction=\"read\" path=file"));
    assert!(!text.contains("DEBUG"), "{text}");
}

#[test]
fn another_level_makes_no_sense() {
    let folder = tempfile::tempdir().unwrap();
    let output = forebay(folder.path(), "bananas", &["read", "file"]);
    assert_eq!(output.status.code(), Some(2), "{output:?}");
    let text = stderr(&output);
    let expected = "error: `FOREBAY_LOG` cannot be `bananas`: it takes `off`, `warn`, `info` or \
        `debug`\n";
    assert!(text.starts_with(expected), "{text}");
    // Help and the manual, which say what the variable takes, are printed.
    assert!(forebay(folder.path(), "bananas", &["--help"]).status.success());
    assert!(forebay(folder.path(), "bananas", &["man"]).status.success());
}
