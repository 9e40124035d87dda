//! Exit codes, streams and errors of the command.

use std::fs;

use crate::program::{program, run as forebay};
use assert_cmd::Command;

/// The exit code and what stands on stderr, of a command that prints nothing.
fn failure(arguments: &[&str]) -> (i32, String) {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("file"), "0123456789").unwrap();
    fs::write(folder.path().join("empty"), "").unwrap();
    fs::create_dir(folder.path().join("folder")).unwrap();
    let fifo = folder.path().join("fifo");
    let mode = rustix::fs::Mode::from_raw_mode(0o600);
    let kind = rustix::fs::FileType::Fifo;
    rustix::fs::mknodat(rustix::fs::CWD, &fifo, kind, mode, 0).unwrap();
    let _socket = std::os::unix::net::UnixListener::bind(folder.path().join("socket")).unwrap();
    let output = forebay(folder.path(), arguments);
    assert!(output.stdout.is_empty(), "{output:?}");
    let mut names: Vec<_> =
        fs::read_dir(folder.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    names.sort();
    assert_eq!(names, ["empty", "fifo", "file", "folder", "socket"], "something was left");
    (output.status.code().unwrap(), String::from_utf8(output.stderr).unwrap())
}

#[test]
fn nonsense_is_exit_code_2() {
    for arguments in [
        &[][..],
        &["move"],
        &["read"],
        &["bench", "--size", "bananas"],
        &["bench", "--size", "0"],
        &["bench", "--size", "1K,,"],
        &["bench", "--repeats", "0"],
        &["bench", "--threads", "0"],
        &["bench", "--gpu", "sim:bananas=3"],
        &["bench", "file", "file"],
        &["read", "one", "two"],
        &["read", "file", "--len", "-1"],
        &["read", "file", "--offset", "1e3"],
        &["completions", "bananas"],
    ] {
        let (code, text) = failure(arguments);
        assert_eq!(code, 2, "{arguments:?}: {text}");
    }
}

#[test]
fn a_wrong_command_line_is_explained() {
    let texts: Vec<String> = [
        &["bench", "--size", "bananas"][..],
        &["bench", "--repeats", "0"],
        &["bench", "--size", "1K", "--size", "2K"],
        &["bench", "--siz", "3"],
        &["bench", "--quiet=3"],
        &["read", "a", "b"],
        &["read"],
        &["read", "file", "--len"],
        &["mov"],
        &["completions", "nu"],
        &["read", "file", "--offset", "-1"],
        &["version"],
    ]
    .into_iter()
    .map(|arguments| {
        let (code, text) = failure(arguments);
        assert_eq!(code, 2, "{arguments:?}");
        text
    })
    .collect();
    insta::assert_snapshot!(texts.concat(), @"
    error: invalid value `bananas` for `--size <SIZE>`: it takes a size such as `64K` or `1.5GiB`
    hint: for more information, try `--help`
    error: invalid value `0` for `--repeats <N>`: it takes a number from 1 to 4096
    hint: for more information, try `--help`
    error: the argument `--size <SIZE>` cannot be used multiple times
    hint: for more information, try `--help`
    error: unexpected argument `--siz` found
    hint: perhaps `--size` was meant
    error: unexpected value `3` for `--quiet` found; no more were expected
    hint: for more information, try `--help`
    error: unexpected argument `b` found
    hint: for more information, try `--help`
    error: the following required arguments were not provided: <FILE>
    hint: for more information, try `--help`
    error: a value is required for `--len <SIZE>` but none was supplied
    hint: for more information, try `--help`
    error: unrecognized subcommand `mov`
    hint: for more information, try `--help`
    error: invalid value `nu` for `<SHELL>` [possible values: bash, elvish, fish, powershell, zsh]
    hint: for more information, try `--help`
    error: invalid value `-1` for `--offset <SIZE>`: it takes a size such as `64K` or `1.5GiB`
    hint: for more information, try `--help`
    error: unrecognized subcommand `version`
    hint: for more information, try `--help`
    ");
    // Hidden verbs are never suggested, and no name acts on the terminal.
    let (_, text) = failure(&["map"]);
    assert!(!text.contains("was meant"), "{text}");
    let (_, text) = failure(&["bench", "--a\u{7}\u{1b}[2Jb"]);
    assert!(!text.contains(['\u{7}', '\u{1b}']), "{text}");
    let (_, text) = failure(&["bench", "--gpu", "sim:x=3"]);
    assert!(
        text.starts_with("error: invalid value `sim:x=3` for `--gpu <WHICH,…>`: `sim` takes "),
        "{text}"
    );
}

#[test]
fn a_bad_variable_is_exit_code_2_and_named() {
    for verb in [&["bench"][..], &["read", "file"]] {
        let mut command = Command::new(program());
        let folder = tempfile::tempdir().unwrap();
        command.current_dir(folder.path()).args(verb).env("FOREBAY_SLOT_SIZE", "3 bananas");
        let output = command.output().unwrap();
        assert_eq!(output.status.code(), Some(2));
        let text = String::from_utf8(output.stderr).unwrap();
        assert!(text.contains("`FOREBAY_SLOT_SIZE` cannot be `3 bananas`"), "{text}");
    }
}

#[test]
fn an_unused_variable_is_a_warning() {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("file"), "0123456789").unwrap();
    let stderr = |name: &str| {
        let mut command = Command::new(program());
        command.current_dir(folder.path()).args(["read", "file", "--gpu", "none"]);
        let output = command.env(name, "1G").output().unwrap();
        assert!(output.status.success(), "{output:?}");
        String::from_utf8(output.stderr).unwrap()
    };
    let text = stderr("FOREBAY_SLOTSIZE");
    assert!(text.starts_with("warning: unknown variable `FOREBAY_SLOTSIZE`: "), "{text}");
    assert_eq!(stderr("FOREBAY_SLOT_SIZE"), "");
}

#[test]
fn a_path_that_is_no_file_is_an_error() {
    let (code, text) = failure(&["read", "missing", "--gpu", "none"]);
    assert_eq!(code, 1);
    insta::assert_snapshot!(text, @"
        error: cannot open `missing`
          caused by: no such file or directory (os error 2)
        hint: look at the path's spelling; a relative path is relative to the current directory
        ");
    for verb in ["read", "bench"] {
        for (path, says) in [
            ("missing", "no such file"),
            ("folder", "folder"),
            ("fifo", "FIFO"),
            ("socket", "socket"),
            ("/dev/null", "/dev/null"),
        ] {
            if (verb, path) == ("bench", "folder") {
                // A place for scratch.
                continue;
            }
            let (code, text) = failure(&[verb, path, "--gpu", "none"]);
            assert_eq!(code, 1, "{verb} {path}: {text}");
            assert!(text.starts_with("error: ") && text.contains(says), "{verb} {path}: {text}");
        }
    }
    let (code, text) = failure(&["bench", "empty", "--gpu", "none"]);
    assert_eq!(code, 1);
    insta::assert_snapshot!(text, @"
        error: nothing to measure: `empty` is empty
        hint: give a folder instead, and scratch files are made there
        ");
}

#[test]
fn a_size_that_is_not_true_is_an_error() {
    for verb in ["read", "bench"] {
        let (code, text) = failure(&[verb, "/proc/cpuinfo", "--gpu", "none"]);
        assert_eq!(code, 1, "{text}");
        assert!(text.contains("`/proc/cpuinfo`"), "{text}");
        assert!(text.contains("its size is reported as 0, but it has bytes"), "{text}");
    }
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("empty"), "").unwrap();
    let output = forebay(folder.path(), ["read", "empty", "--gpu", "none"]);
    assert!(output.status.success(), "{output:?}");
    assert!(String::from_utf8(output.stdout).unwrap().contains("moved    0 bytes"));
}

#[test]
fn a_range_behind_the_end_is_an_error() {
    let (code, text) = failure(&["read", "file", "--offset", "4", "--len", "7", "--gpu", "none"]);
    assert_eq!(code, 1);
    insta::assert_snapshot!(text, @"
        error: cannot read `file` at 4+7: the file has 10 bytes
        hint: `--len 6` reads up to the end
        ");
    let (code, text) = failure(&["read", "file", "--offset", "11", "--gpu", "none"]);
    assert_eq!(code, 1);
    insta::assert_snapshot!(text, @"
        error: cannot read `file` at 11+0: the file has 10 bytes
        hint: give an `--offset` inside the file
        ");
    let (code, text) = failure(&["bench", "file", "--size", "11", "--gpu", "none"]);
    assert_eq!(code, 1);
    insta::assert_snapshot!(text, @"
        error: cannot read 11 B of `file`
          caused by: it has 10 B
        hint: `--size 10` reads all of it
        ");
}

#[test]
fn a_path_through_a_file_names_the_cause() {
    for arguments in [&["read", "file/x"][..], &["read", "file", "--output", "file/x"]] {
        let (code, text) = failure(&[arguments, &["--gpu", "none"]].concat());
        assert_eq!(code, 1, "{text}");
        assert!(text.contains("should be a folder is a file"), "{text}");
    }
}

#[test]
fn a_name_does_nothing_to_the_terminal() {
    let folder = tempfile::tempdir().unwrap();
    let name = "a\u{1b}[2J\nb";
    let (code, text) = failure(&["read", name, "--gpu", "none"]);
    assert_eq!(code, 1);
    assert!(text.starts_with("error: cannot open `a\\u{1b}[2J\\nb`\n"), "{text}");
    fs::write(folder.path().join(name), "0").unwrap();
    for arguments in [&["read", name][..], &["bench", name, "--time=100ms", "--repeats=1"]] {
        let output = forebay(folder.path(), [arguments, &["--gpu", "none"]].concat());
        let text = String::from_utf8(output.stdout).unwrap();
        assert!(text.contains("a\\u{1b}[2J\\nb") && !text.contains('\u{1b}'), "{text}");
        assert_eq!(text.contains("moved    1 byte\n"), arguments[0] == "read", "{text}");
    }
}

#[test]
fn unwritable_output_is_a_failure_unless_its_reader_left() {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("file"), "0123456789").unwrap();
    let full = || fs::OpenOptions::new().write(true).open("/dev/full").unwrap();
    let closed = || std::io::pipe().unwrap().1;
    let read = ["read", "file", "--gpu", "none"];
    for arguments in [&["--help"][..], &["-h"], &["--version"], &["man"], &read] {
        let run = |stdout: std::process::Stdio| {
            let mut command = std::process::Command::new(program());
            command.current_dir(folder.path()).args(arguments).stdout(stdout).output().unwrap()
        };
        let output = run(full().into());
        assert_eq!(output.status.code(), Some(1), "{arguments:?}");
        let text = String::from_utf8(output.stderr).unwrap();
        assert!(text.starts_with("error: cannot write to stdout"), "{text}");
        let output = run(closed().into());
        assert_eq!((output.status.code(), output.stderr.len()), (Some(0), 0), "{arguments:?}");
    }
}

#[test]
fn a_route_that_is_missing_is_named() {
    for arguments in [
        &["read", "file", "--route", "direct", "--gpu", "sim"][..],
        &["bench", "file", "--route", "direct", "--gpu", "sim"],
        &["bench", "--route", "direct", "--gpu", "sim"],
    ] {
        let (code, text) = failure(arguments);
        assert_eq!(code, 1, "{text}");
        assert!(text.contains("by the route `direct`"), "{text}");
        assert!(text.contains("the simulated GPU lacks cuFile"), "{text}");
    }
    for verb in ["read", "bench"] {
        let (code, text) = failure(&[verb, "file", "--route", "direct", "--gpu", "none"]);
        assert_eq!(code, 1, "{text}");
        let cause = "by the route `direct` without a GPU\n  caused by: `--gpu none`";
        assert!(text.contains(cause) && text.contains("hint: `forebay doctor`"), "{text}");
    }
}

#[test]
fn a_gpu_that_is_missing_is_named() {
    for verb in ["read", "bench"] {
        let (code, text) = failure(&[verb, "file", "--gpu", "GPU-ffffffff-ffff"]);
        assert_eq!(code, 1, "{text}");
        assert!(text.contains("GPU-ffffffff-ffff"), "{text}");
    }
}

#[test]
fn no_room_on_the_gpu_is_an_error() {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("file"), vec![1; 3 << 20]).unwrap();
    let output = forebay(folder.path(), ["read", "file", "--gpu", "sim:memory=1M"]);
    let text = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(1), "{text}");
    assert!(text.contains("cannot allocate 3 MiB on sim:0"), "{text}");
    // Where the size is ours to choose, it is one that fits; else pieces do.
    for size in [&[][..], &["--size", "3M"]] {
        let words =
            ["bench", "file", "--gpu", "sim:memory=1M", "--time=100ms", "--repeats=1", "-v"];
        let output = forebay(folder.path(), [&words[..], size].concat());
        let text = String::from_utf8(output.stderr).unwrap();
        assert!(output.status.success(), "{text}");
        let pieces = "a file of 3 MiB is moved in pieces of 256 KiB";
        assert_eq!(text.contains(pieces), !size.is_empty(), "{text}");
    }
}

#[test]
fn a_file_that_is_too_large_is_refused() {
    let (code, text) = failure(&["bench", "--size", "1000000T", "--gpu", "none"]);
    assert_eq!(code, 1, "{text}");
    assert!(text.starts_with("error: cannot make 2000000 TiB of scratch in `.`"), "{text}");
}

#[test]
fn colours_follow_the_terminal_and_variables() {
    let (_, text) = failure(&["read", "missing", "--gpu", "none"]);
    assert!(!text.contains('\u{1b}'), "{text}");
    let coloured = |no_color: bool| {
        let mut command = Command::new(program());
        command.args(["read", "/nowhere/missing", "--gpu", "none"]).env("CLICOLOR_FORCE", "1");
        if no_color {
            command.env_remove("CLICOLOR_FORCE").env("NO_COLOR", "1");
        }
        String::from_utf8(command.output().unwrap().stderr).unwrap().contains('\u{1b}')
    };
    assert!(coloured(false));
    assert!(!coloured(true));
}

#[test]
fn only_a_near_flag_is_suggested() {
    let (code, text) = failure(&["read", "file", "--force"]);
    assert_eq!(code, 2);
    assert!(text.contains("`--force`") && !text.contains("perhaps"), "{text}");
    let (_, text) = failure(&["read", "file", "--trase", "x"]);
    assert!(text.contains("perhaps `--trace` was meant"), "{text}");
}
