//! Options of opening a file, and of a request.

use crate::file::OpenHow;
use crate::plan::Route;
use crate::queue::Priority;
use crate::transfer::SyncMode;

/// How to open a file. By default an existing file is opened for reading.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct OpenOptions {
    /// Open for writing as well as reading.
    pub write: bool,
    /// Create the file if it is missing.
    pub create: bool,
    /// Create the file, and fail if it exists.
    pub create_new: bool,
    /// Truncate the file to zero bytes.
    pub truncate: bool,
}

impl OpenOptions {
    /// For writing to a file that may or may not exist.
    #[must_use]
    pub fn writing() -> Self {
        Self { write: true, create: true, ..Self::default() }
    }

    /// For writing to a file that must not exist.
    #[must_use]
    pub fn new_file() -> Self {
        Self { write: true, create_new: true, ..Self::default() }
    }
}

impl From<&OpenOptions> for OpenHow {
    fn from(how: &OpenOptions) -> Self {
        let OpenOptions { write, create, create_new, truncate } = *how;
        Self { write, create, create_new, truncate }
    }
}

/// Options of a request.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct RequestOptions {
    /// Use this route or fail. For host memory, `Cached` means through the page cache, and the
    /// outcome reports `Host`.
    pub route: Option<Route>,
    /// For reads: fail if the file ends early.
    pub exact: bool,
    /// For writes: make the bytes durable before the transfer is done.
    pub sync: SyncMode,
    /// For writes: reserve the space first, so that a full disk is detected at once. The caller
    /// waits for the drive, even in calls that do not block otherwise.
    pub preallocate: bool,
    /// Priority relative to other transfers on the same drive.
    pub priority: Priority,
}

impl RequestOptions {
    /// Requires `route`.
    #[must_use]
    pub fn by_route(route: Route) -> Self {
        Self { route: Some(route), ..Self::default() }
    }

    /// Requires that every byte arrives.
    #[must_use]
    pub fn exactly() -> Self {
        Self { exact: true, ..Self::default() }
    }

    /// Sets `sync`.
    #[must_use]
    pub fn synced(self, sync: SyncMode) -> Self {
        Self { sync, ..self }
    }

    /// Sets the urgent priority.
    #[must_use]
    pub fn urgent(self) -> Self {
        Self { priority: Priority::Urgent, ..self }
    }

    /// Reserves the space first.
    #[must_use]
    pub fn preallocated(self) -> Self {
        Self { preallocate: true, ..self }
    }
}
