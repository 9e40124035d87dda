//! The program under test, which a bundle names or cargo has built, and what its tests share.

use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

/// The program's file.
pub(crate) fn program() -> PathBuf {
    let named = std::env::var_os("FOREBAY_BIN").map(PathBuf::from);
    let file = named.unwrap_or_else(|| env!("CARGO_BIN_EXE_forebay").into());
    // A relative path would be looked for in the folder that the program is to run in.
    std::path::absolute(file).expect("a path that is not empty")
}

/// Runs the program in a folder.
pub(crate) fn run(folder: &Path, arguments: impl IntoIterator<Item = impl AsRef<OsStr>>) -> Output {
    Command::new(program()).current_dir(folder).args(arguments).output().unwrap()
}

/// A folder on a drive, where the system's folder for such files may be in memory.
pub(crate) fn folder() -> tempfile::TempDir {
    tempfile::tempdir_in(".").unwrap()
}

/// The names in a folder, in order.
pub(crate) fn names(folder: &Path) -> Vec<String> {
    let entries = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().file_name());
    let mut names: Vec<String> = entries.map(|name| name.into_string().unwrap()).collect();
    names.sort();
    names
}

pub(crate) fn stderr(output: &Output) -> String {
    String::from_utf8(output.stderr.clone()).unwrap()
}
