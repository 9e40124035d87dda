//! Files and folders that chores make, with errors that name them.

use std::fs;
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};

use crate::process::Result;

/// The text of an error at `path`.
pub(crate) fn failed(path: &Path) -> impl FnOnce(io::Error) -> String + '_ {
    move |error| format!("`{}`: {error}", path.display())
}

/// Makes a folder and its parents.
pub(crate) fn make(folder: &Path) -> Result<()> {
    fs::create_dir_all(folder).map_err(failed(folder))
}

/// Removes a folder and its contents, if it exists.
pub(crate) fn remove(folder: &Path) -> Result<()> {
    match fs::remove_dir_all(folder) {
        Err(error) if error.kind() != ErrorKind::NotFound => Err(failed(folder)(error)),
        _ => Ok(()),
    }
}

/// The contents of a folder, sorted.
pub(crate) fn entries(folder: &Path) -> Result<Vec<PathBuf>> {
    let entries = fs::read_dir(folder).map_err(failed(folder))?;
    let mut paths: Vec<PathBuf> = entries.flatten().map(|entry| entry.path()).collect();
    paths.sort();
    Ok(paths)
}

/// Copies a file with its permissions.
pub(crate) fn copy(source: &Path, target: &Path) -> Result<()> {
    fs::copy(source, target).map(|_| ()).map_err(failed(source))
}

/// The text of a file.
pub(crate) fn text(file: &Path) -> Result<String> {
    let bytes = fs::read(file).map_err(failed(file))?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}
