//! The library's error type: every error names the operation, the place and the cause, and
//! [`Error::hint`] the remedy.

mod hint;

use std::fmt;
use std::io::{self, ErrorKind};
use std::path::PathBuf;
use std::time::Duration;

use forebay_base::process::Home;
use forebay_base::units::format_size;
use forebay_gpu::{DeviceError, DeviceId};
use libc::{EAGAIN, EBUSY, EINTR, ENOMEM};
use rustix::io::Errno;

use crate::plan::{Direction, Route};

/// `Result` with this library's [`Error`].
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// An error number of the system, such as `ENOENT`. It prints as [`io::Error`] does.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct SystemError(pub i32);

impl SystemError {
    pub(crate) const fn of(errno: Errno) -> Self {
        Self(errno.raw_os_error())
    }
}

impl std::error::Error for SystemError {}

impl fmt::Display for SystemError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        io::Error::from_raw_os_error(self.0).fmt(f)
    }
}

/// The operation that failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Operation {
    /// Opening or creating a file.
    Open,
    /// Querying a file's size, kind or limits.
    Inspect,
    /// Reading from a file.
    Read,
    /// Writing to a file.
    Write,
    /// Making a file's bytes durable.
    Sync,
    /// Closing a file.
    Close,
    /// Reserving disk space for a file's bytes.
    Preallocate,
    /// Changing a file's length.
    Truncate,
    /// Allocating memory on a GPU.
    Allocate,
    /// Allocating memory for the layers of a stream.
    GiveLayers,
    /// Using a leased layer.
    Use,
    /// Releasing a leased layer.
    Release,
    /// Registering host memory with a GPU or the kernel.
    Register,
    /// Moving bytes between host memory and a GPU.
    Copy,
    /// Waiting for a transfer to end.
    Wait,
}

impl From<Direction> for Operation {
    fn from(direction: Direction) -> Self {
        match direction {
            Direction::Read => Self::Read,
            Direction::Write => Self::Write,
        }
    }
}

impl fmt::Display for Operation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Open => "open",
            Self::Inspect => "inspect",
            Self::Read => "read",
            Self::Write => "write",
            Self::Sync => "sync",
            Self::Close => "close",
            Self::Preallocate => "preallocate",
            Self::Truncate => "truncate",
            Self::Allocate => "allocate",
            Self::GiveLayers => "give layers",
            Self::Use => "use",
            Self::Release => "release",
            Self::Register => "register",
            Self::Copy => "copy",
            Self::Wait => "wait for",
        })
    }
}

/// The bytes of a file that an error is about.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Place {
    /// The path as the caller gave it.
    pub path: PathBuf,
    /// Position of the first byte.
    pub offset: u64,
    /// Number of bytes.
    pub len: u64,
    /// The block device below the file, if known.
    pub drive: Option<String>,
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "`{}`", self.path.display())?;
        if self.offset != 0 || self.len != 0 {
            write!(f, " at {}+{}", self.offset, self.len)?;
        }
        match &self.drive {
            Some(drive) => write!(f, " on {drive}"),
            None => Ok(()),
        }
    }
}

/// Every error of the library. Cheap to clone, so that a transfer can return its error repeatedly.
///
/// `Debug` prints the message, its causes and the hint: this is what a program shows whose `main`
/// returns a [`Result`].
///
/// ```
/// use forebay::{Engine, Error, Options};
///
/// # fn main() -> forebay::Result<()> {
/// # let dir = tempfile::tempdir().unwrap();
/// # let path = dir.path().join("weights.bin");
/// # std::fs::write(&path, vec![7; 100_000]).unwrap();
/// let engine = Engine::new(Options::default())?;
/// let error = engine.open("/no/such/file").unwrap_err();
/// assert_eq!(error.to_string(), "cannot open `/no/such/file`");
/// assert!(error.errno() == Some(libc::ENOENT) && !error.is_retryable());
/// assert!(error.hint().expect("a remedy").contains("spelling"));
/// let error: std::io::Error = error.into();
/// assert_eq!(error.kind(), std::io::ErrorKind::NotFound);
/// # Ok(())
/// # }
/// ```
#[derive(Clone, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The system refused an operation on a file.
    #[error("cannot {operation} {place}")]
    Io {
        /// The operation.
        operation: Operation,
        /// The file and range.
        place: Place,
        /// The system's error.
        source: SystemError,
    },
    /// The file was shorter than requested when the read began.
    #[error("cannot read {place}: the file ended after {got} bytes")]
    EndOfFile {
        /// The requested bytes.
        place: Place,
        /// How many of them were read.
        got: u64,
    },
    /// The file became shorter during the read: all requested bytes existed when it began.
    #[error("cannot read {place}: the file changed: it ended after {got} bytes, and was longer")]
    FileChanged {
        /// The requested bytes.
        place: Place,
        /// How many of them were read.
        got: u64,
    },
    /// The file was written or truncated during or right after a GPU's copy of its pages: the
    /// copied bytes may be a mix of old and new contents.
    #[error("cannot read {place}: the file changed while a GPU copied its pages")]
    FileOverwritten {
        /// The requested bytes.
        place: Place,
    },
    /// A file transfers no more bytes without an error: it changed concurrently, or its file system
    /// returns wrong information.
    #[error("cannot {operation} {place}: {}", stall(*.operation))]
    NoProgress {
        /// The operation.
        operation: Operation,
        /// The file and range.
        place: Place,
    },
    /// A write with O_DIRECT reached the drive, but old bytes of its range remain in the page
    /// cache, where every reader sees them. Another writer changed the same folio through the page
    /// cache.
    #[error(
        "cannot write {place}: the drive has the bytes, but old ones stay in the page cache, where \
         another writer has changed bytes close by"
    )]
    StaleCache {
        /// The bytes that were written with O_DIRECT.
        place: Place,
    },
    /// The path names something without bytes at offsets: a folder, a FIFO, a socket.
    #[error("cannot open `{}`: it is a {kind}, not a file", path.display())]
    NotAFile {
        /// The path as given.
        path: PathBuf,
        /// The kind of object it is.
        kind: &'static str,
    },
    /// The request cannot take the required route.
    #[error("cannot move {place} by the route `{route}`: {reason}")]
    RouteUnavailable {
        /// The required route.
        route: Route,
        /// The bytes to transfer.
        place: Place,
        /// Why the route is not available.
        reason: String,
    },
    /// The state of an object does not allow the call.
    #[error("{reason}")]
    BadState {
        /// The state, and what to do.
        reason: String,
    },
    /// An option or environment variable has an invalid value.
    #[error("`{name}` cannot be `{value}`: it takes {expected}")]
    BadOption {
        /// The option's or variable's name.
        name: String,
        /// Its value.
        value: String,
        /// The values that it accepts.
        expected: String,
    },
    /// The GPU does not exist, or the machine has none.
    #[error("no GPU `{wanted}`: {reason}")]
    NoDevice {
        /// The GPU that the caller requested.
        wanted: String,
        /// Why it is not available.
        reason: String,
    },
    /// An address range lent to an engine is not, or not entirely, GPU memory.
    #[error("cannot borrow {address:#x}+{len} as GPU memory: {reason}")]
    NotDeviceMemory {
        /// The first address.
        address: u64,
        /// How many bytes.
        len: u64,
        /// Why the range is not GPU memory.
        reason: String,
    },
    /// The GPU or its driver returned an error.
    #[error("cannot {operation}{} on {device}", amount(*.operation, *.len, place.as_deref()))]
    Device {
        /// The operation.
        operation: Operation,
        /// The GPU.
        device: DeviceId,
        /// Number of bytes; 0 if unknown.
        len: u64,
        /// The file's bytes, if the operation was about any.
        place: Option<Box<Place>>,
        /// The driver's error.
        source: DeviceError,
    },
    /// A copy failed, and the GPU does not report whether it is over. It may still touch the
    /// memory, which is therefore never freed: the transfer's own buffer does not come back, and
    /// later calls refuse borrowed memory.
    #[error("a copy{} on {device} failed and may not be over", copied(*.len, place.as_deref()))]
    CopyNotOver {
        /// The GPU.
        device: DeviceId,
        /// Number of bytes; 0 if unknown.
        len: u64,
        /// The file's bytes, if the copy was about any.
        place: Option<Box<Place>>,
        /// The driver's error.
        source: DeviceError,
    },
    /// The host is out of memory.
    #[error("cannot allocate {} of host memory", format_size(*.len))]
    HostMemory {
        /// Number of bytes.
        len: u64,
        /// The system's error.
        source: SystemError,
    },
    /// Memory of the caller is not accessible: it is unmapped, or maps a file that became shorter.
    #[error("cannot copy {} of host memory", format_size(*.len))]
    HostCopy {
        /// Number of bytes.
        len: u64,
        /// The system's error.
        source: SystemError,
    },
    /// A control group's limit leaves no room for the memory. Nothing was allocated, because the
    /// kernel would kill the process.
    #[error(
        "cannot allocate {} of host memory: its control group has {} left of {}",
        format_size(*.len),
        format_size(*.available),
        format_size(*.limit)
    )]
    MemoryLimit {
        /// Number of bytes.
        len: u64,
        /// Bytes that the limit leaves now.
        available: u64,
        /// The limit.
        limit: u64,
        /// The file of the control group that holds the limit.
        file: PathBuf,
    },
    /// The engine's limit of pinned memory leaves no room for the memory.
    #[error(
        "cannot pin {}: {} of at most {} are in use",
        format_size(*.len),
        format_size(*.used),
        format_size(*.limit)
    )]
    PinnedLimit {
        /// Number of bytes.
        len: u64,
        /// Bytes in use.
        used: u64,
        /// The limit.
        limit: u64,
        /// Bytes in use that calls return at their end.
        lent: u64,
    },
    /// A thread or another resource of the engine is not available.
    #[error("cannot start the engine's {what}")]
    Resource {
        /// The resource.
        what: &'static str,
        /// The system's error.
        source: SystemError,
    },
    /// A thread of the engine or a call panicked, so the engine's state is unknown. All its current
    /// and new transfers fail with this error.
    #[error("the engine has failed: {cause}")]
    EngineFailed {
        /// The thread and its panic message.
        cause: std::sync::Arc<str>,
    },
    /// A timeout expired. I/O in flight continues, and its memory stays with the engine until it
    /// ends.
    #[error("transfer of {place} timed out after {bound:?} ({done} bytes transferred)")]
    TimedOut {
        /// The requested bytes.
        place: Place,
        /// The timeout.
        bound: Duration,
        /// Bytes that had arrived by then.
        done: u64,
    },
    /// The caller cancelled the transfer.
    #[error("the transfer of {place} was cancelled after {done} bytes")]
    Cancelled {
        /// The requested bytes.
        place: Place,
        /// Bytes that had arrived by then.
        done: u64,
    },
    /// A call in a process that was forked from the one that made the engine, the GPU or the
    /// memory. Their threads, locks and pinned pages belong to the parent.
    #[error(
        "cannot {operation}{}: the engine was made in process {process}, and this one was forked \
         from it",
        place.as_ref().map(|place| format!(" {place}")).unwrap_or_default()
    )]
    Forked {
        /// The operation that was called.
        operation: Operation,
        /// The file's bytes, if the call was about any.
        place: Option<Box<Place>>,
        /// Process id of the process that made the engine.
        process: u32,
    },
    /// A layer of a stream could not be loaded, used or written back.
    #[error("cannot {operation} the layer `{layer}`")]
    Layer {
        /// Whether it was read, used, released or written.
        operation: Operation,
        /// The layer's name, with the slice if it is one.
        layer: String,
        /// The cause.
        source: Box<Self>,
    },
    /// The request is invalid, such as a range outside a buffer or a write to a read-only file.
    #[error("cannot {operation} {place}: {reason}")]
    BadRequest {
        /// The operation that was called.
        operation: Operation,
        /// The file and range.
        place: Place,
        /// Why it is invalid.
        reason: String,
    },
}

impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.with_causes())?;
        self.hint().map_or(Ok(()), |hint| write!(f, "\nhint: {hint}"))
    }
}

impl Error {
    /// Whether the host or the GPU has no memory left, or a limit of it is reached.
    pub(crate) fn is_want_of_memory(&self) -> bool {
        match self {
            Self::HostMemory { .. } | Self::MemoryLimit { .. } | Self::PinnedLimit { .. } => true,
            Self::Device { source, .. } => source.is_want_of_memory(),
            _ => false,
        }
    }

    /// Whether the same call may succeed later without a change by the caller.
    #[must_use]
    pub fn is_retryable(&self) -> bool {
        match self {
            Self::Io { source, .. }
            | Self::HostMemory { source, .. }
            | Self::Resource { source, .. } => {
                matches!(source.0, EAGAIN | EINTR | EBUSY | ENOMEM)
            }
            Self::TimedOut { .. } | Self::MemoryLimit { .. } | Self::PinnedLimit { .. } => true,
            Self::Layer { source, .. } => source.is_retryable(),
            _ => false,
        }
    }

    /// The system's error number, if the system returned the error.
    #[must_use]
    pub fn errno(&self) -> Option<i32> {
        match self {
            Self::Io { source, .. }
            | Self::HostMemory { source, .. }
            | Self::HostCopy { source, .. }
            | Self::Resource { source, .. } => Some(source.0),
            Self::MemoryLimit { .. } | Self::PinnedLimit { .. } => Some(ENOMEM),
            Self::StaleCache { .. } => Some(EBUSY),
            Self::Layer { source, .. } => source.errno(),
            _ => None,
        }
    }

    /// The error of a call in a child forked from `home`.
    #[cold]
    pub(crate) fn forked(home: &Home, operation: Operation, place: Option<Place>) -> Self {
        Self::Forked { operation, place: place.map(Box::new), process: home.number() }
    }
}

/// Keeps the error as the source. The kind follows the system's error number, where there is one.
impl From<Error> for io::Error {
    fn from(error: Error) -> Self {
        let kind = match (error.errno(), error.without_layer()) {
            (Some(errno), _) => Self::from_raw_os_error(errno).kind(),
            (_, Error::EndOfFile { .. } | Error::FileChanged { .. }) => ErrorKind::UnexpectedEof,
            (_, Error::TimedOut { .. }) => ErrorKind::TimedOut,
            (_, Error::RouteUnavailable { .. } | Error::NoDevice { .. }) => ErrorKind::Unsupported,
            (_, Error::NotAFile { .. } | Error::BadOption { .. } | Error::BadRequest { .. }) => {
                ErrorKind::InvalidInput
            }
            _ => ErrorKind::Other,
        };
        Self::new(kind, error)
    }
}

/// Refuses a call in a child forked from `home`; `place` is the file range for the error.
///
/// # Errors
/// [`Error::Forked`].
#[inline]
pub(crate) fn refuse_child(
    home: &Home,
    operation: Operation,
    place: impl FnOnce() -> Option<Place>,
) -> Result<()> {
    if home.is_here() { Ok(()) } else { Err(Error::forked(home, operation, place())) }
}

/// Describes the bytes of an operation, as far as they are known.
fn amount(operation: Operation, len: u64, place: Option<&Place>) -> String {
    match (len, place) {
        (0, Some(place)) => format!(" {place}"),
        (0, None) if operation == Operation::Wait => " what is queued".into(),
        (0, None) => String::new(),
        (len, Some(place)) => format!(" {} of {place}", format_size(len)),
        (len, None) => format!(" {}", format_size(len)),
    }
}

fn copied(len: u64, place: Option<&Place>) -> String {
    let amount = amount(Operation::Copy, len, place);
    if amount.is_empty() { amount } else { format!(" of{amount}") }
}

fn stall(operation: Operation) -> &'static str {
    match operation {
        Operation::Write => "repeated writes made no progress and returned no error",
        _ => "repeated reads made no progress before the end of the file",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_become_those_of_std() {
        let place = || Place::whole("file");
        let (operation, full) = (Operation::Write, io::Error::from_raw_os_error(libc::ENOSPC));
        let short = Error::EndOfFile { place: place(), got: 3 }.of_layer(Operation::Read, "a");
        for (error, kind) in [
            (Error::io(operation, place(), full), ErrorKind::StorageFull),
            (short, ErrorKind::UnexpectedEof),
            (Error::bad_option("route", "x", "y"), ErrorKind::InvalidInput),
            (Error::bad_state("it is closed"), ErrorKind::Other),
        ] {
            let (text, converted) = (error.to_string(), io::Error::from(error));
            assert_eq!((converted.to_string(), converted.kind()), (text, kind));
            assert!(converted.into_inner().is_some_and(|source| source.is::<Error>()));
        }
    }
}
