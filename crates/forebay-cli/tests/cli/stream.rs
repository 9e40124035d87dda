//! `forebay stream`, which hands on what it was given to the package's measurement.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Output};
use std::time::{Duration, Instant};

use crate::help::stdout;
use crate::program::program;

/// A `python3` that has the package, as far as it is asked, and says what it was called with.
const PYTHON: &str = "#!/bin/sh\n[ \"$2\" = -c ] && exit 0\necho \"$@\"\nexit 7\n";

/// Runs `forebay stream` where nothing but `python3`, if anything, is on the path.
fn stream(folder: &Path, python: Option<&str>, arguments: &[&str]) -> Output {
    if let Some(script) = python {
        let path = folder.join("python3");
        fs::write(&path, script).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
    }
    let mut command = Command::new(program());
    command.arg("stream").args(arguments).env("PATH", folder).current_dir(folder);
    let start = Instant::now();
    loop {
        let output = command.output().unwrap();
        // Another test's fork has the descriptor that the script was written by for a moment.
        if !String::from_utf8_lossy(&output.stderr).contains("Text file busy") {
            return output;
        }
        assert!(start.elapsed() < Duration::from_secs(60), "it stays busy");
    }
}

#[test]
fn what_was_given_is_handed_on_with_what_came_of_it() {
    let folder = tempfile::tempdir().unwrap();
    let given = ["--layers", "4", "--from", "mapped", "--tokens=1,2", "--out", "a b"];
    let output = stream(folder.path(), Some(PYTHON), &given);
    let said = String::from_utf8(output.stdout).unwrap();
    let expected = "-P -m forebay.stream_bench --layers=4 --tokens=1,2 --from=mapped --out=a b\n";
    assert_eq!((said.as_str(), output.status.code()), (expected, Some(7)));
    // What makes no sense too: it says what does.
    let output = stream(folder.path(), Some(PYTHON), &["--seed", "-1", "--order", "sideways"]);
    let said = String::from_utf8(output.stdout).unwrap();
    assert_eq!(said, "-P -m forebay.stream_bench --order=sideways --seed=-1\n");
}

#[test]
fn what_is_missing_is_named_with_the_remedy() {
    let folder = tempfile::tempdir().unwrap();
    for (python, why) in [
        (None, "cannot start `python3`"),
        (Some("#!/bin/sh\nexit 1\n"), "`python3` has no package `forebay`"),
        (Some("#!/bin/sh\necho no torch here >&2\nexit 1\n"), "its last line was: no torch here"),
    ] {
        let output = stream(folder.path(), python, &[]);
        let talk = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(1), "{talk}");
        assert!(talk.contains(why) && talk.contains("pip install '.[torch]'"), "{talk}");
    }
    let other = "#!/bin/sh\n[ \"$2\" = -c ] && echo 0.0.7\nexit 0\n";
    let output = stream(folder.path(), Some(other), &[]);
    let talk = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(1), "{talk}");
    let own = env!("CARGO_PKG_VERSION");
    let both = format!("`python3` has `forebay` 0.0.7, but this command is {own}");
    assert!(talk.contains(&both), "{talk}");
    let output = stream(folder.path(), Some(PYTHON), &["--tokenz", "1"]);
    let talk = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(2), "{talk}");
    assert!(talk.contains("perhaps `--tokens` was meant"), "{talk}");
}

/// Names of flags behind `--`.
fn flags(text: &str, mark: &str) -> BTreeSet<String> {
    let named = |rest: &str| {
        let end = rest.find(|c: char| !c.is_ascii_lowercase() && c != '-').unwrap_or(rest.len());
        rest[..end].to_owned()
    };
    text.split(mark).skip(1).map(named).filter(|name| name != "help").collect()
}

#[test]
fn its_flags_are_those_of_the_measurement() {
    let parser = include_str!("../../../../python/forebay/stream_bench/arguments.py");
    let theirs = flags(parser, "add(\"--");
    let help = stdout(&["stream", "--help"]);
    let options = help.split("Examples:").next().unwrap();
    assert_eq!(flags(options, " --"), theirs);
}
