//! `forebay tune`: what it finds and keeps, what it leaves as it was, and what it says where there
//! is nothing to tune.

mod drives;
mod here;
mod refused;
mod slow;

use std::path::Path;
use std::process::Output;

use crate::program::program;
use assert_cmd::Command;
use forebay_cli::tune::json::TuneReport;

/// `forebay tune` in `folder`, in a locale that has every character.
fn command(folder: &Path, arguments: &[&str]) -> Command {
    let mut command = Command::new(program());
    command.current_dir(folder).env("LC_ALL", "C.UTF-8").env_remove("COLUMNS");
    command.arg("tune").args(arguments);
    command
}

/// What a run that went well printed: data, then talk.
#[track_caller]
fn good(folder: &Path, arguments: &[&str]) -> (String, String) {
    texts(&command(folder, arguments).output().unwrap(), Some(0))
}

/// What a run that failed said.
#[track_caller]
fn bad(folder: &Path, arguments: &[&str]) -> String {
    let (text, talk) = texts(&command(folder, arguments).output().unwrap(), Some(1));
    assert_eq!(text, "", "{talk}");
    talk
}

#[track_caller]
fn texts(output: &Output, code: Option<i32>) -> (String, String) {
    assert_eq!(output.status.code(), code, "{output:?}");
    let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap();
    (text(&output.stdout), text(&output.stderr))
}

/// The findings of a run, for a program.
#[track_caller]
fn report(folder: &Path, arguments: &[&str]) -> TuneReport {
    let all = [arguments, &["--json"]].concat();
    serde_json::from_str(&good(folder, &all).0).unwrap()
}
