//! Moves bytes between files and GPU memory at the speed of the slowest link on the way.

mod engine;
pub mod error;
#[allow(dead_code, unused_imports, reason = "the queues and the engine ask for it bit by bit")]
pub(crate) mod file;
pub mod gpu;
mod options;
pub mod plan;
#[allow(dead_code, reason = "the queues and the engine ask for it bit by bit")]
pub(crate) mod topology;
pub mod units;

pub use error::{Error, Operation, Place, Result};
pub use plan::{Reason, Route};
pub use engine::*;
pub use options::{DirectIo, Options, RingChoice};
