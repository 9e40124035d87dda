//! Writes a report. A file that is overwritten keeps its owner and its access rights.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

use forebay_measure::failure::{Failure, Result};
use forebay_measure::memory::close;
use forebay_measure::output::New;
use forebay_measure::steps::Step;
use rustix::fs::{FallocateFlags, fallocate};
use rustix::io::Errno;

/// What to do about an output that is no regular file.
const REGULAR: &str = "only a regular file is overwritten: name another with `-o`";

/// A report must not overwrite its own input.
pub(super) fn refuse_input(output: &Path, inputs: &[PathBuf]) -> Result<()> {
    let identity = |path: &Path| fs::metadata(path).map(|facts| (facts.dev(), facts.ino())).ok();
    let Some(there) = identity(output) else { return Ok(()) };
    if inputs.iter().any(|input| identity(input) == Some(there)) {
        let text = format!("cannot write the report to `{}`", output.display());
        return Err(Failure::usage(text)
            .because("it holds the results that the report is made from")
            .hint("name a new file with `-o`"));
    }
    Ok(())
}

/// Writes a new file, or with `overwrite` the contents of an existing file.
pub(super) fn write(path: &Path, overwrite: bool, bytes: &[u8]) -> Result<()> {
    let _step = Step::of_thread("write", path);
    let failed = |error: &io::Error| Failure::at("write the report to", path, error);
    let put = |mut file: &File| {
        file.write_all(bytes)?;
        // Network file systems and late allocation report a full disk only here.
        file.sync_all()
    };
    if fs::metadata(path).is_ok_and(|facts| facts.file_type().is_char_device()) {
        // `/dev/null`, or a terminal: nothing is replaced.
        let written = OpenOptions::new().write(true).open(path);
        return written.and_then(|mut file| file.write_all(bytes)).map_err(|error| failed(&error));
    }
    if overwrite {
        // Follows no link, and does not block on a pipe without a reader.
        let flags = libc::O_NOFOLLOW | libc::O_NONBLOCK;
        match OpenOptions::new().write(true).custom_flags(flags).open(path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            opened => {
                let written = opened.and_then(|file| {
                    if !file.metadata()?.is_file() {
                        return Err(io::ErrorKind::InvalidInput.into());
                    }
                    reserve(&file, bytes.len() as u64)?;
                    put(&file)?;
                    file.set_len(bytes.len() as u64)?;
                    close(file)
                });
                let is_other = fs::symlink_metadata(path).is_ok_and(|facts| !facts.is_file());
                return written.map_err(|error| match failed(&error) {
                    failure if is_other => failure.hint(REGULAR),
                    failure => failure,
                });
            }
        }
    }
    let made = New::create(path, 0o666).map_err(|error| match error.kind() {
        io::ErrorKind::AlreadyExists => {
            failed(&error).hint("name a new file, or give `--overwrite`")
        }
        _ => failed(&error),
    })?;
    // Some file systems report a failed write only when a descriptor is closed.
    let written = put(&made.file).and_then(|()| close(made.file.try_clone()?));
    written.map_err(|error| failed(&error))?;
    made.keep();
    Ok(())
}

/// Reserves `len` bytes if the file system can, so that a full disk preserves the old contents.
fn reserve(file: &File, len: u64) -> io::Result<()> {
    match fallocate(file, FallocateFlags::KEEP_SIZE, 0, len) {
        Err(Errno::OPNOTSUPP | Errno::NOSYS) => Ok(()),
        reserved => Ok(reserved?),
    }
}
