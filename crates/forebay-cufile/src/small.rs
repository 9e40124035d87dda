//! Reads files written by other programs, without blocking on them and with a size limit.

use std::fs::File;
use std::io::Read as _;
use std::path::Path;
use std::time::Duration;

use rustix::fs::{FileType, Mode, OFlags};
use rustix::io::Errno;

use forebay_base::timeout::within;

/// Reads a file of at most `most` bytes; `None` if it does not exist.
///
/// # Errors
/// It cannot be read, is longer, or is not a regular file.
pub(super) fn read(path: &Path, most: u64) -> Result<Option<Vec<u8>>, Errno> {
    // Opening a FIFO would block.
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let Some(file) = there(rustix::fs::open(path, flags, Mode::empty()))? else { return Ok(None) };
    let stat = rustix::fs::fstat(&file)?;
    if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile {
        return Err(Errno::INVAL);
    }
    let mut bytes = Vec::new();
    let mut file = File::from(file).take(most + 1);
    file.read_to_end(&mut bytes).map_err(|e| Errno::from_io_error(&e).unwrap_or(Errno::IO))?;
    if bytes.len() as u64 > most { Err(Errno::FBIG) } else { Ok(Some(bytes)) }
}

/// Like `read`, for a file that may be anywhere, such as on a server that is down.
///
/// # Errors
/// As for [`read`], and `TIMEDOUT` if it does not respond within `limit`.
pub(super) fn read_within(
    limit: Duration,
    path: &Path,
    most: u64,
) -> Result<Option<Vec<u8>>, Errno> {
    let path = path.to_owned();
    match within(limit, "forebay-look", move || read(&path, most)) {
        Ok(answer) => answer.unwrap_or(Err(Errno::TIMEDOUT)),
        Err(_) => Err(Errno::AGAIN),
    }
}

/// Treats a missing file as `None`.
fn there<T>(found: Result<T, Errno>) -> Result<Option<T>, Errno> {
    match found {
        Err(Errno::NOENT | Errno::NOTDIR) => Ok(None),
        found => found.map(Some),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_read_with_a_bound_returns_the_same_bytes() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("file");
        std::fs::write(&path, "four").unwrap();
        let read = |most| read_within(Duration::from_secs(60), &path, most);
        assert_eq!((read(4), read(3)), (Ok(Some(b"four".to_vec())), Err(Errno::FBIG)));
    }

    #[test]
    fn only_plain_files_that_are_short_enough_are_read() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("file");
        assert_eq!(read(&path, 4), Ok(None));
        std::fs::write(&path, "four").unwrap();
        assert_eq!(read(&path, 4), Ok(Some(b"four".to_vec())));
        assert_eq!(read(&path, 3), Err(Errno::FBIG));
        assert_eq!(read(&path.join("below"), 4), Ok(None));
        assert_eq!(read(folder.path(), 4), Err(Errno::INVAL));
        assert_eq!(read(Path::new("/dev/zero"), 4), Err(Errno::INVAL));
        let fifo = folder.path().join("fifo");
        let mode = Mode::RUSR | Mode::WUSR;
        rustix::fs::mknodat(rustix::fs::CWD, &fifo, FileType::Fifo, mode, 0).unwrap();
        assert_eq!(read(&fifo, 4), Err(Errno::INVAL));
    }
}
