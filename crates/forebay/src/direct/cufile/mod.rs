//! cuFile: the vendor's library for transfers between drives and GPUs.
//!
//! `library` finds and loads it, `table` holds its functions, `layout` the structures that it
//! fills, and `failure` its errors with a hint for each. `probe` reports what it supports on a
//! machine, `session` is its open driver with registered files, `counting` its counters, and
//! `sessions` all open sessions. `port` is the path from a file to a GPU, by blocking calls.
//!
//! The driver exists once per process. Its modes are fixed when it opens, and opening may hang. So
//! it is opened in a helper process first.

mod counters;
mod counting;
mod failure;
mod layout;
mod library;
#[cfg(test)]
mod loaded_tests;
mod port;
mod probe;
mod reach;
#[cfg(test)]
mod rig;
mod session;
mod sessions;
mod simulated;
mod table;

pub use counters::{Counters, GpuCounters, Moves, Paths};
pub use failure::{CuFileError, CuFileFailure};
pub(super) use port::CuFilePort;
pub(super) use probe::ANSWER_MAX;
pub use probe::{Seen, look};
pub(super) use reach::{configured_compat, unreachable};
pub use session::{RegisteredFile, Session};
