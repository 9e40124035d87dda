//! `forebay bench` with several paths, on real files.

mod bad_input;
mod kvikio;
mod rows;

use std::fs;
use std::path::Path;
use std::process::{Command, Output};

use crate::program::program;
use forebay_cli::report::json::Report;

/// The command, with nothing of KvikIO's to be found unless a test puts it there.
fn command(folder: &Path, arguments: &[&str]) -> Command {
    let mut command = Command::new(program());
    command.current_dir(folder).arg("bench").args(arguments);
    command.env("XDG_CACHE_HOME", folder).env_remove("PYTHONPATH");
    command
}

fn run(folder: &Path, arguments: &[&str]) -> Output {
    command(folder, arguments).output().unwrap()
}

fn report(output: &Output) -> Report {
    let text = String::from_utf8_lossy(&output.stderr);
    serde_json::from_slice(&output.stdout).unwrap_or_else(|error| panic!("{error}: {text}"))
}

fn stderr(output: &Output) -> String {
    String::from_utf8(output.stderr.clone()).unwrap()
}

/// A folder on a drive, with files of these lengths.
fn folder_with(files: &[(&str, usize)]) -> tempfile::TempDir {
    let folder = tempfile::tempdir_in(".").unwrap();
    for (name, len) in files {
        let bytes: Vec<u8> = (0..=250).flat_map(|byte| [byte; 3]).cycle().take(*len).collect();
        fs::write(folder.path().join(name), bytes).unwrap();
    }
    folder
}

/// The names in a folder.
fn names(folder: &Path) -> Vec<String> {
    let entries = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().file_name());
    let mut names: Vec<String> = entries.map(|name| name.into_string().unwrap()).collect();
    names.sort();
    names
}
