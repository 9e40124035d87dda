//! Moves bytes between files and GPU memory at the speed of the slowest link on the way.

pub mod clock;
mod direct;
mod engine;
pub mod error;
mod file;
pub mod gpu;
mod memory;
#[doc(hidden)]
pub mod micro;
mod options;
pub mod plan;
mod queue;
mod staging;
mod topology;
mod transfer;
pub mod units;

pub use engine::{Engine, File, OpenOptions, RequestOptions};
pub use error::{Error, Operation, Place, Result};
pub use file::Residency;
pub use memory::{Buffer, Source, Target};
pub use options::{DirectIo, Options, RingChoice};
pub use plan::{Reason, Route};
pub use transfer::{Outcome, RouteShare, Stages, SyncMode, Transfer};
