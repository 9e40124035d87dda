//! What a finished transfer did.

use std::sync::Arc;
use std::time::Duration;

use crate::plan::{Reason, Route};

/// Whether, and how, a write is made durable before it counts as done.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum SyncMode {
    /// Not at all: the bytes are in the page cache or the drive's own.
    #[default]
    None,
    /// The bytes and what is needed to find them (`fdatasync`).
    Data,
    /// All of the file's metadata as well (`fsync`).
    All,
}

/// What a finished transfer did.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct Outcome {
    /// Bytes delivered: fewer than asked for only where a read met the end of the file.
    pub bytes: u64,
    /// Bytes by route and reason, most bytes first.
    pub routes: Vec<RouteShare>,
    /// Why bytes did not go straight between drive and GPU although there may be a path: what was
    /// decided as the transfer began, or what the path refused on the way. `None` where all that
    /// could go straight did, where another way than [`Route::Direct`] was demanded, and where
    /// there is no such path. What lies at the edges of units is in `routes` alone.
    pub not_direct: Option<Arc<str>>,
    /// Time by stage, summed over the threads that worked on it.
    pub stages: Stages,
    /// Time from the call to the end.
    pub elapsed: Duration,
}

impl Outcome {
    /// That of a transfer without bytes.
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
    /// Asking the kernel what is resident.
    pub probe: Duration,
    /// Reading or writing the file, from each request's submission to its completion.
    pub file: Duration,
    /// Copies between slots and the GPU, from queued to seen done.
    pub copy: Duration,
}

/// Shares that add up to `bytes`: where a file shrank while it was read, some were read beyond the
/// end that was found later.
pub(super) fn trimmed(mut shares: Vec<RouteShare>, bytes: u64) -> Vec<RouteShare> {
    let sum: u64 = shares.iter().map(|share| share.bytes).sum();
    let mut excess = sum.saturating_sub(bytes);
    for share in &mut shares {
        let less = excess.min(share.bytes);
        share.bytes -= less;
        excess -= less;
    }
    shares.retain(|share| share.bytes > 0);
    shares
}
