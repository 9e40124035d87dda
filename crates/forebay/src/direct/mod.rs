//! Ways for bytes to go between a drive and a GPU without a copy in host memory.
//!
//! Each way will be a provider: it answers for a file and a GPU whether it can, or why not, and
//! takes segments as a ring takes ops. There is none yet, so the route `direct` is refused; what
//! `cufile` says of a machine is asked in a `child`'s process.

mod child;
mod cufile;

use std::time::Duration;

pub use child::{End, Program};
pub use cufile::{
    CuFileError, CuFileFailure, RegisteredFile, RegisteredMemory, Seen, Session, look,
};

/// Why the route `direct` cannot be taken.
pub(crate) fn missing() -> String {
    "this version has no provider for it yet (cuFile will be the first)".into()
}

/// What cuFile says of this machine, as `program` finds it within `limit`, and how that ended:
/// opening the driver may hang.
#[must_use]
pub fn ask_cufile(program: &Program, limit: Duration) -> (Seen, End) {
    let (answer, end) = child::run(program, limit, cufile::ANSWER_MAX);
    (Seen::parse(&answer), end)
}
