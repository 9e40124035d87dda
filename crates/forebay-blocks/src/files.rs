//! A root's files: opens only files of the store, allocates and frees their space.

#![expect(unsafe_code, reason = "`rustix` has no `sync_file_range`")]

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::Path;

use rustix::fs::FallocateFlags;
use rustix::io::Errno;

/// Opens or creates a file of this store.
pub(crate) fn own(path: &Path) -> io::Result<File> {
    open(path, File::options().read(true).write(true).create(true).truncate(false).mode(0o600))
}

/// Opens a file. Refuses links, pipes and hard links, which may belong to a different program.
pub(crate) fn open(path: &Path, options: &mut OpenOptions) -> io::Result<File> {
    let file = options.custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK).open(path)?;
    let is = file.metadata()?;
    if is.is_file() && is.nlink() == 1 {
        return Ok(file);
    }
    let text = "it is not a regular file, or has another name; choose another folder";
    Err(io::Error::new(io::ErrorKind::InvalidInput, text))
}

/// Sets the length of a file, unless it is the same.
pub(crate) fn set_len(file: &File, len: u64) -> io::Result<()> {
    if file.metadata()?.len() == len { Ok(()) } else { file.set_len(len) }
}

/// Makes a folder for its owner alone, unless it exists.
pub(crate) fn make_folder(path: &Path) -> io::Result<()> {
    match fs::DirBuilder::new().mode(0o700).create(path) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists && path.is_dir() => Ok(()),
        made => made,
    }
}

/// Allocates space for a range. False if the drive is full.
pub(crate) fn allocate(file: BorrowedFd<'_>, offset: u64, len: u64) -> io::Result<bool> {
    match rustix::fs::fallocate(file, FallocateFlags::KEEP_SIZE, offset, len) {
        // Without that call the writes allocate it.
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
