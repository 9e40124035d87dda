//! Facts about a path that the user names.

use std::fs::File;
use std::io::Read as _;
use std::path::Path;

use crate::failure::{Failure, Result};
use crate::steps::Step;

/// Whether there is a folder at `path`.
pub fn is_folder(path: &Path) -> bool {
    let _step = Step::begin("inspect", path);
    path.is_dir()
}

/// Checks that a file with a reported size of 0 has no bytes: the kernel makes those of some files
/// only when they are read.
///
/// # Errors
/// If it has bytes, so that its size is unknown.
pub fn check_size(path: &Path, len: u64) -> Result<()> {
    if len > 0 {
        return Ok(());
    }
    let mut byte = [0];
    // A read that fails here fails again later, and is reported then.
    match File::open(path).and_then(|mut file| file.read(&mut byte)) {
        Ok(1) => Err(Failure::new(format!("cannot read `{}`", path.display()))
            .because("its size is reported as 0, but it has bytes: the kernel makes them on demand")
            .hint("copy it to a regular file (`cat FILE >COPY`), and name the copy")),
        _ => Ok(()),
    }
}
