//! A job that is ready to run.

use forebay_measure::workload::Lane;
use forebay_measure::workload::backend::Method;

use super::options::{Asked, Job};
use super::words::Transfer;

/// A job with its parameters.
pub(super) struct Task<'a> {
    pub(super) asked: &'a Asked,
    pub(super) job: &'a Job,
    /// The method that moves its bytes, and the type that a plain method counts as.
    pub(super) method: Method,
    pub(super) plain: Transfer,
    /// Whether a GPU is the target.
    pub(super) on_gpu: bool,
    /// One for each thread; empty before the files exist.
    pub(super) lanes: Vec<Lane>,
}
