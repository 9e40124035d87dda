//! The settings of a request: a leaf, because every step of a transfer reads them.

use crate::plan::Route;
use crate::queue::Priority;
use crate::transfer::SyncMode;

/// The settings of a [`Request`](super::Request), for callers that make many alike.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct RequestOptions {
    /// See [`Request::route`](super::Request::route).
    pub route: Option<Route>,
    /// See [`Request::exact`](super::Request::exact).
    pub exact: bool,
    /// See [`Request::sync`](super::Request::sync).
    pub sync: SyncMode,
    /// See [`Request::preallocate`](super::Request::preallocate).
    pub preallocate: bool,
    /// See [`Request::past_cache`](super::Request::past_cache).
    pub past_cache: bool,
    /// See [`Request::priority`](super::Request::priority).
    pub priority: Priority,
}
