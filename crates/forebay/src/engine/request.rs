//! Options of a request.

use crate::plan::Route;
use crate::queue::Priority;
use crate::transfer::SyncMode;

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
    /// For writes without a route: bypass the page cache (O_DIRECT) if the file allows it, at any
    /// size. Bytes that do not fill a unit of the file system at either end still go through it.
    pub past_cache: bool,
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

    /// Bypasses the page cache if the file allows it.
    #[must_use]
    pub fn past_cache(self) -> Self {
        Self { past_cache: true, ..self }
    }

    /// Reserves the space first.
    #[must_use]
    pub fn preallocated(self) -> Self {
        Self { preallocate: true, ..self }
    }
}
