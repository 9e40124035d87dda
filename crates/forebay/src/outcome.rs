//! The outcome of a finished transfer.

use std::sync::Arc;
use std::time::Duration;

use crate::plan::{Reason, Route};

/// Whether a write is made durable before it is done, and how far.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum SyncMode {
    /// Not durable: the bytes may be in the page cache or the drive's own cache.
    #[default]
    None,
    /// The bytes and the metadata needed to read them (`fdatasync`).
    Data,
    /// The bytes and all of the file's metadata (`fsync`).
    All,
}

/// The outcome of a finished transfer.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct Outcome {
    /// Bytes delivered; fewer than requested only if a read reached the end of the file.
    pub bytes: u64,
    /// Bytes by route and reason, most bytes first.
    pub routes: Vec<RouteShare>,
    /// Why bytes did not go directly between drive and GPU although a direct path may exist: the
    /// decision at the start, or the refusal during the transfer. `None` if all bytes that could go
    /// directly did, if a route other than [`Route::Direct`] was required, or if no such path
    /// exists. Unaligned edges are only in `routes`.
    pub not_direct: Option<Arc<str>>,
    /// Time by stage, summed over the threads that worked on it.
    pub stages: Stages,
    /// Time from the call to the end.
    pub elapsed: Duration,
}

impl Outcome {
    /// The outcome of a transfer without bytes.
    pub(crate) fn nothing() -> Self {
        let (stages, elapsed) = (Stages::default(), Duration::ZERO);
        Self { bytes: 0, routes: Vec::new(), not_direct: None, stages, elapsed }
    }
}

/// Bytes that took one route for one reason.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct RouteShare {
    /// The route.
    pub route: Route,
    /// Why it was taken.
    pub reason: Reason,
    /// How many bytes took it.
    pub bytes: u64,
}

/// Time spent in each stage. Stages overlap, and several threads work on one stage, so the sum may
/// be far above the elapsed time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct Stages {
    /// Querying the kernel for page cache residency.
    pub probe: Duration,
    /// Reading or writing the file, from the submission of each request to its completion.
    pub file: Duration,
    /// Copies between slots and the GPU, from when they were queued until completion was seen. Not
    /// measured for stream-ordered transfers, whose copies the host does not observe.
    pub copy: Duration,
}
