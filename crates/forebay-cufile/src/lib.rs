//! cuFile: NVIDIA's library for transfers between drives and GPUs, loaded at run time.
//!
//! `library` finds and loads it and holds its functions, `layout` the structures that it fills, and
//! `failure` its errors with a hint for each. `probe` reports what it supports on a machine,
//! `session` is its open driver with registered files and counters, and `sessions` all open
//! sessions. `driver` opens it once per process, and `bounded` bounds the time of registrations.
//! `provider` serves the engine's direct route. `simulated` is a library without a GPU.
//!
//! The driver exists once per process. Its modes are fixed when it opens, and opening may hang. So
//! a helper process opens it first ([`probe_cufile`]).

mod answer;
mod bounded;
mod child;
mod counters;
mod driver;
mod failure;
mod layout;
mod library;
#[cfg(test)]
mod loaded_tests;
mod probe;
mod provider;
mod reach;
mod session;
mod sessions;
mod simulated;
#[cfg(test)]
#[allow(dead_code, reason = "tests of the engine and of the command use the rest")]
#[path = "../tests/lab/cufile/mod.rs"]
mod simulated_library;
mod small;

use std::time::Duration;

use answer::usable;
pub use answer::{Answer, answer_from_lines, answer_to_lines};
pub use bounded::{BoundedFile, NotRegistered};
pub use child::{End, Program, run};
pub use counters::{Counters, GpuCounters, Moves, Paths};
pub use driver::Driver;
pub use failure::{CuFileError, CuFileFailure};
pub use probe::{Seen, look};
pub use provider::{CuFilePort, CuFileProvider};
pub use reach::Compat;
use reach::{configured_compat, unreachable};
pub use session::{RegisteredFile, Session};

/// Maximum time for the driver to open: 0.4 s on an H200 (2026-11-21, `5d670fdb`).
pub const OPENS_WITHIN: Duration = Duration::from_secs(20);

/// Probes cuFile on this machine by running `program` for at most `limit`, because opening the
/// driver may hang. Returns what it found, and how the program ended.
#[must_use]
pub fn probe_cufile(program: &Program, limit: Duration) -> Answer {
    let (answer, end) = run(program, limit, probe::ANSWER_MAX);
    (Seen::parse(&answer), end)
}
