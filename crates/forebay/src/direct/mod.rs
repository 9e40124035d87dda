//! The direct route: bytes move between a drive and a GPU without a copy in host memory.
//!
//! Each provider has a `Port` for a file and a GPU, or reports why not. The first provider is
//! `cufile`. Its driver may hang while it opens, so a `child` process opens it first, once per
//! process. Until the result is known, transfers are staged.

mod answer;
mod child;
mod cufile;
mod providers;
#[cfg(test)]
#[allow(dead_code, reason = "tests of the whole library use the rest")]
#[path = "../../tests/lab/cufile/mod.rs"]
mod simulated_library;
mod small;

use std::time::Duration;

pub use answer::{Answer, answer_from_lines, answer_to_lines};
pub use child::{End, Program};
pub use cufile::{
    Counters, CuFileError, CuFileFailure, GpuCounters, Moves, Paths, RegisteredFile, Seen, Session,
    look,
};
pub(crate) use providers::Providers;

/// Maximum time for the driver to open: 0.4 s on an H200 (2026-11-21, `5d670fdb`).
const OPENS_WITHIN: Duration = Duration::from_secs(20);

/// Probes cuFile on this machine by running `program` for at most `limit`, because opening the
/// driver may hang. Returns what it found, and how the program ended.
#[must_use]
pub fn ask_cufile(program: &Program, limit: Duration) -> Answer {
    let (answer, end) = child::run(program, limit, cufile::ANSWER_MAX);
    (Seen::parse(&answer), end)
}
