//! `forebay doctor --tree`: what it draws of recorded systems and of this one, what it
//! records, and what it refuses.

mod ceilings;
mod live;
pub(crate) mod recorded;

use std::path::Path;
use std::process::Output;

use crate::program::program;
use assert_cmd::Command;

/// Runs `forebay doctor --tree` in `folder`, in a locale that has every character.
fn map(folder: &Path, arguments: &[&str]) -> Output {
    let mut command = Command::new(program());
    command.current_dir(folder).env("LC_ALL", "C.UTF-8").env_remove("COLUMNS");
    command.args(["doctor", "--tree"]).args(arguments).output().unwrap()
}

/// What a run that went well printed: data, then talk.
#[track_caller]
fn good(folder: &Path, arguments: &[&str]) -> (String, String) {
    let output = map(folder, arguments);
    assert!(output.status.success(), "{arguments:?}: {output:?}");
    (String::from_utf8(output.stdout).unwrap(), String::from_utf8(output.stderr).unwrap())
}

/// What a run that failed printed, with its exit code.
#[track_caller]
fn bad(folder: &Path, arguments: &[&str]) -> (i32, String, String) {
    let output = map(folder, arguments);
    let code = output.status.code().unwrap();
    assert_ne!(code, 0, "{arguments:?}: {output:?}");
    (code, String::from_utf8(output.stdout).unwrap(), String::from_utf8(output.stderr).unwrap())
}
