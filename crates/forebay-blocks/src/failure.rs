//! Errors of the system as errors of the engine.

use std::fmt::Display;
use std::io;
use std::path::Path;

use forebay::Error;
use forebay::error::{Operation, Place};
use rustix::io::Errno;

/// Makes the error of a failed operation on a path. The store's own errors keep their text.
pub(crate) fn failed(operation: Operation, path: &Path) -> impl Fn(io::Error) -> Error + use<> {
    let place = Place::whole(path);
    move |error| match (error.kind(), error.raw_os_error()) {
        (kind, None) if kind != io::ErrorKind::TimedOut => {
            Error::BadState { reason: format!("cannot {operation} {place}: {error}") }
        }
        _ => Error::io(operation, place.clone(), errno(&error)),
    }
}

/// The error of a root that cannot be opened like this.
pub(crate) fn refused(root: &Path, why: impl Display) -> Error {
    let root = root.display();
    Error::BadState { reason: format!("cannot open the block store `{root}`: {why}") }
}

pub(crate) fn errno(error: &io::Error) -> Errno {
    let is_late = error.kind() == io::ErrorKind::TimedOut;
    Errno::from_io_error(error).unwrap_or(if is_late { Errno::TIMEDOUT } else { Errno::IO })
}
