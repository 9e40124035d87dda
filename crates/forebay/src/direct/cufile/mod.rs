//! cuFile: the vendor's library for transfers between drives and GPUs.
//!
//! `library` finds and loads it, `table` holds its functions, `layout` the structures that it
//! fills, `failure` its errors with what to do about each, `probe` what it says of a machine,
//! `session` its open driver with the files that it knows, `counting` what that counts, and
//! `sessions` all of these there are. `port` is a file's path to a GPU, by blocking calls.
//!
//! Its driver is one for each process, and its modes are fixed when that opens; opening it may
//! hang. So it is opened in a helper's process first.

mod counting;
mod failure;
mod layout;
mod library;
#[cfg(test)]
mod loaded;
mod port;
mod probe;
mod reach;
#[cfg(test)]
mod rig;
mod session;
mod sessions;
mod simulated;
mod table;

pub use failure::{CuFileError, CuFileFailure};
pub(super) use port::CuFilePort;
pub(super) use probe::ANSWER_MAX;
pub use probe::{Seen, look};
pub(super) use reach::{configured_compat, unreachable};
pub use session::{RegisteredFile, Session};
