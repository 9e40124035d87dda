//! What can go wrong, once for the whole library: every error names the operation, the place and
//! the cause, and [`Error::hint`] names the remedy.

mod hint;

use std::fmt;
use std::io;
use std::path::PathBuf;
use std::time::Duration;

use rustix::io::Errno;

use crate::gpu::{DeviceError, DeviceId};
use crate::plan::Route;
use crate::units::format_size;

/// `Result` with this library's [`Error`].
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// What was being done when it failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Operation {
    /// Opening or creating a file.
    Open,
    /// Asking for a file's size, kind or limits.
    Inspect,
    /// Reading from a file.
    Read,
    /// Writing to a file.
    Write,
    /// Making a file's bytes durable.
    Sync,
    /// Closing a file.
    Close,
    /// Reserving room for a file's bytes.
    Preallocate,
    /// Reserving memory on a GPU.
    Allocate,
    /// The same for the layers of a [stream](crate::stream).
    GiveLayers,
    /// Using a layer that was taken.
    Use,
    /// Releasing it.
    Release,
    /// Making host memory known to a GPU or to the kernel.
    Register,
    /// Moving bytes between host memory and a GPU.
    Copy,
    /// Waiting for the end of a transfer.
    Wait,
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

/// Bytes of a file, as an error names them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Place {
    /// The path as the caller gave it.
    pub path: PathBuf,
    /// Position of the first byte.
    pub offset: u64,
    /// Number of bytes.
    pub len: u64,
    /// The block device below the file, where there is one.
    pub drive: Option<String>,
}

impl Place {
    /// The whole of `path`, without a range.
    #[must_use]
    pub fn whole(path: impl Into<PathBuf>) -> Self {
        Self { path: path.into(), offset: 0, len: 0, drive: None }
    }
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

/// Everything that the library reports. Cheap to clone, so that a transfer can repeat its error.
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The system refused an operation on a file.
    #[error("cannot {operation} {place}")]
    Io {
        /// What was tried.
        operation: Operation,
        /// Where.
        place: Place,
        /// What the system said.
        source: Errno,
    },
    /// The file ended before all asked bytes had arrived, and did so when the read began.
    #[error("cannot read {place}: the file ended after {got} bytes")]
    EndOfFile {
        /// The bytes asked for.
        place: Place,
        /// How many of them arrived.
        got: u64,
    },
    /// The file became shorter while it was read: all asked bytes were there when the read began.
    #[error("cannot read {place}: the file changed: it ended after {got} bytes, and was longer")]
    FileChanged {
        /// The bytes asked for.
        place: Place,
        /// How many of them arrived.
        got: u64,
    },
    /// The file was written to, or cut, while a GPU copied its pages, or right after that:
    /// what came may be of before and of after.
    #[error("cannot read {place}: the file changed while a GPU copied its pages")]
    FileOverwritten {
        /// The bytes asked for.
        place: Place,
    },
    /// A file moves no more bytes without saying why: it changed meanwhile, or its file system says
    /// what is not so.
    #[error("cannot {operation} {place}: {}", stall(*.operation))]
    NoProgress {
        /// What was tried, and tried again.
        operation: Operation,
        /// Where.
        place: Place,
    },
    /// A write with O_DIRECT reached the drive, but old bytes of its range stay in the page cache,
    /// where every reader finds them: another writer changed the same folio through the page cache.
    #[error(
        "cannot write {place}: the drive has the bytes, but old ones stay in the page cache, where \
         another writer has changed bytes close by"
    )]
    StaleCache {
        /// The bytes that were written with O_DIRECT.
        place: Place,
    },
    /// The path names something that has no bytes at offsets: a folder, a FIFO, a socket.
    #[error("cannot open `{}`: it is a {kind}, not a file", path.display())]
    NotAFile {
        /// The path as given.
        path: PathBuf,
        /// What it is.
        kind: &'static str,
    },
    /// A route was demanded that this request cannot take.
    #[error("cannot move {place} by the route `{route}`: {reason}")]
    RouteUnavailable {
        /// The demanded route.
        route: Route,
        /// What should have moved.
        place: Place,
        /// What is missing.
        reason: String,
    },
    /// An option or environment variable holds something that it cannot hold.
    #[error("`{name}` cannot be `{value}`: it takes {expected}")]
    BadOption {
        /// The option's or variable's name.
        name: String,
        /// What it held.
        value: String,
        /// What it may hold.
        expected: String,
    },
    /// No such GPU, or no GPU at all.
    #[error("no GPU `{wanted}`: {reason}")]
    NoDevice {
        /// What the caller asked for.
        wanted: String,
        /// Why it is not there.
        reason: String,
    },
    /// An address that was lent to an engine is not memory of a GPU, or not all of the range is.
    #[error("cannot borrow {address:#x}+{len} as GPU memory: {reason}")]
    NotDeviceMemory {
        /// The first address.
        address: u64,
        /// How many bytes.
        len: u64,
        /// What it is instead.
        reason: String,
    },
    /// The GPU or its driver refused.
    #[error("cannot {operation}{} on {device}", amount(*.operation, *.len, place.as_deref()))]
    Device {
        /// What was tried.
        operation: Operation,
        /// On which GPU.
        device: DeviceId,
        /// How many bytes it was about; 0 where that is not known.
        len: u64,
        /// The bytes of the file that should have moved, where it was about any.
        place: Option<Box<Place>>,
        /// What the driver said.
        source: DeviceError,
    },
    /// A copy failed, and the GPU does not say whether it is over. The GPU may still touch the
    /// memory, which is therefore never given back: what the transfer owned does not come back
    /// from it, and what it was lent is refused by every later call.
    #[error("a copy{} on {device} failed and may not be over", copied(*.len, place.as_deref()))]
    CopyNotOver {
        /// On which GPU.
        device: DeviceId,
        /// How many bytes it was about; 0 where that is not known.
        len: u64,
        /// The bytes of the file that should have moved, where it was about any.
        place: Option<Box<Place>>,
        /// What the driver said.
        source: DeviceError,
    },
    /// The host refused memory.
    #[error("cannot allocate {} of host memory", format_size(*.len))]
    HostMemory {
        /// How many bytes.
        len: u64,
        /// What the system said.
        source: Errno,
    },
    /// Memory of the caller is not accessible: it is unmapped, or maps a file that became shorter.
    #[error("cannot copy {} of host memory", format_size(*.len))]
    HostCopy {
        /// How many bytes.
        len: u64,
        /// What the system said.
        source: Errno,
    },
    /// A limit of a control group leaves no room for memory. The kernel would end the process
    /// that uses more, so nothing was tried.
    #[error(
        "cannot allocate {} of host memory: its control group has {} left of {}",
        format_size(*.len),
        format_size(*.available),
        format_size(*.limit)
    )]
    MemoryLimit {
        /// How many bytes.
        len: u64,
        /// How many the limit leaves now.
        available: u64,
        /// The limit.
        limit: u64,
        /// The file of the control group that holds the limit.
        file: PathBuf,
    },
    /// A thread or another resource of the engine itself could not be had.
    #[error("cannot start the engine's {what}")]
    Resource {
        /// What could not be had.
        what: &'static str,
        /// What the system said.
        source: Errno,
    },
    /// A thread of the engine, or a call, has panicked, so that the engine's state is not known any
    /// more. All of its transfers fail with this, and so do all new ones.
    #[error("the engine has failed: {cause}")]
    EngineFailed {
        /// Who panicked, and what it said.
        cause: std::sync::Arc<str>,
    },
    /// A bound expired. What is in flight goes on; its memory stays with the engine until then.
    #[error("no end of the transfer of {place} within {bound:?}: {done} bytes had arrived")]
    TimedOut {
        /// The bytes asked for.
        place: Place,
        /// The bound that expired.
        bound: Duration,
        /// Bytes that had arrived by then.
        done: u64,
    },
    /// The caller cancelled the transfer.
    #[error("the transfer of {place} was cancelled after {done} bytes")]
    Cancelled {
        /// The bytes asked for.
        place: Place,
        /// Bytes that had arrived by then.
        done: u64,
    },
    /// A call in a process that was forked from the one that made the engine, the GPU or the
    /// memory: their threads, locks and pinned pages are the parent's alone.
    #[error(
        "cannot {operation}{}: the engine was made in process {process}, and this one was forked \
         from it",
        place.as_ref().map(|place| format!(" {place}")).unwrap_or_default()
    )]
    Forked {
        /// What was asked.
        operation: Operation,
        /// The bytes of the file that it was about, where it was about any.
        place: Option<Box<Place>>,
        /// The number of the process that made the engine.
        process: u32,
    },
    /// A layer of a [stream](crate::stream) could not be brought, used, or written back.
    #[error("cannot {operation} the layer `{layer}`")]
    Layer {
        /// Whether it was read, used, released or written.
        operation: Operation,
        /// What it is called; of a slice also which one.
        layer: String,
        /// What went wrong.
        source: Box<Self>,
    },
    /// The request itself makes no sense (a range beyond a buffer, a file not open for writing).
    #[error("cannot {operation} {place}: {reason}")]
    BadRequest {
        /// What was asked.
        operation: Operation,
        /// Where.
        place: Place,
        /// What is wrong with it.
        reason: String,
    },
}

impl Error {
    /// What went wrong, without the layer that it concerns, where it concerns one.
    #[must_use]
    pub fn without_layer(&self) -> &Self {
        match self {
            Self::Layer { source, .. } => source.without_layer(),
            other => other,
        }
    }

    /// Whether the same call may succeed later without any change by the caller.
    #[must_use]
    pub fn is_retryable(&self) -> bool {
        match self {
            Self::Io { source, .. }
            | Self::HostMemory { source, .. }
            | Self::Resource { source, .. } => {
                matches!(*source, Errno::AGAIN | Errno::INTR | Errno::BUSY | Errno::NOMEM)
            }
            Self::TimedOut { .. } | Self::MemoryLimit { .. } => true,
            Self::Layer { source, .. } => source.is_retryable(),
            _ => false,
        }
    }

    /// The system's error number, where the system refused.
    #[must_use]
    pub fn errno(&self) -> Option<i32> {
        match self {
            Self::Io { source, .. }
            | Self::HostMemory { source, .. }
            | Self::HostCopy { source, .. }
            | Self::Resource { source, .. } => Some(source.raw_os_error()),
            Self::MemoryLimit { .. } => Some(Errno::NOMEM.raw_os_error()),
            Self::StaleCache { .. } => Some(Errno::BUSY.raw_os_error()),
            Self::Layer { source, .. } => source.errno(),
            _ => None,
        }
    }

    /// The same, of a layer.
    pub(crate) fn of_layer(self, operation: Operation, layer: &str) -> Self {
        Self::Layer { operation, layer: layer.to_owned(), source: Box::new(self) }
    }

    pub(crate) fn io(operation: Operation, place: Place, source: io::Error) -> Self {
        let source = Errno::from_io_error(&source).unwrap_or(Errno::IO);
        Self::Io { operation, place, source }
    }
}

/// What an operation was about, as far as that is known.
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
        Operation::Write => "it takes no more bytes, and the system names no error",
        _ => "no more bytes come, though its size says that there are some",
    }
}
