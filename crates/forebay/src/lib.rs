//! Moves bytes between files and GPU memory at the speed of the slowest link on the way.

pub mod clock;
mod engine;
pub mod error;
pub mod gpu;
mod options;
pub mod plan;
pub mod units;

pub use error::{Error, Operation, Place, Result};
pub use plan::{Reason, Route};
pub use engine::*;
pub use options::{DirectIo, Options, RingChoice};
