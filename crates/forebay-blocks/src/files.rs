//! A root's files: only its own are opened, and their space is taken and given back.

#![expect(unsafe_code, reason = "`rustix` has no `sync_file_range`")]

use std::fs::{self, File};
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::Path;

use rustix::fs::FallocateFlags;
use rustix::io::Errno;

/// Opens a file of this store, or makes it. A link, a pipe or a file with another name is refused:
/// it may belong to another program.
pub(crate) fn own(path: &Path) -> io::Result<File> {
    let mut options = File::options();
    options.read(true).write(true).create(true).truncate(false).mode(0o600);
    let file = options.custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK).open(path)?;
    let is = file.metadata()?;
    if is.is_file() && is.nlink() == 1 {
        return Ok(file);
    }
    Err(not_own())
}

pub(crate) fn not_own() -> io::Error {
    let text = "it is not a regular file, or has another name; choose another folder";
    io::Error::new(io::ErrorKind::InvalidInput, text)
}

/// The same, with a length.
pub(crate) fn sized(path: &Path, len: u64) -> io::Result<File> {
    let file = own(path)?;
    if file.metadata()?.len() != len {
        file.set_len(len)?;
    }
    Ok(file)
}

/// Makes a folder for its owner alone, unless it exists.
pub(crate) fn make_folder(path: &Path) -> io::Result<()> {
    match fs::DirBuilder::new().mode(0o700).create(path) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists && path.is_dir() => Ok(()),
        made => made,
    }
}

/// Takes space for a range. False if the drive has none.
pub(crate) fn allocate(file: BorrowedFd<'_>, offset: u64, len: u64) -> io::Result<bool> {
    match rustix::fs::fallocate(file, FallocateFlags::KEEP_SIZE, offset, len) {
        // Without that call the writes take it.
        Ok(()) | Err(Errno::OPNOTSUPP) => Ok(true),
        Err(Errno::NOSPC | Errno::DQUOT | Errno::FBIG) => Ok(false),
        Err(error) => Err(error.into()),
    }
}

/// Gives the space of a file back, which is zeros then.
pub(crate) fn empty(file: BorrowedFd<'_>, len: u64) -> io::Result<()> {
    let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    match rustix::fs::fallocate(file, flags, 0, len) {
        Err(Errno::OPNOTSUPP) => {
            rustix::fs::ftruncate(file, 0)?;
            Ok(rustix::fs::ftruncate(file, len)?)
        }
        emptied => Ok(emptied?),
    }
}

/// Starts to write pages of the page cache to the drive, and `waits` until they are there.
pub(crate) fn write_out(
    file: BorrowedFd<'_>,
    offset: u64,
    len: u64,
    waits: bool,
) -> io::Result<()> {
    let wide = |value: u64| libc::off64_t::try_from(value).map_err(io::Error::other);
    let wait = libc::SYNC_FILE_RANGE_WAIT_BEFORE | libc::SYNC_FILE_RANGE_WAIT_AFTER;
    let flags = libc::SYNC_FILE_RANGE_WRITE | if waits { wait } else { 0 };
    // SAFETY: the descriptor is open, and no memory is passed.
    match unsafe { libc::sync_file_range(file.as_raw_fd(), wide(offset)?, wide(len)?, flags) } {
        -1 => Err(io::Error::last_os_error()),
        _ => Ok(()),
    }
}
