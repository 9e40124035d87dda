//! Moves bytes between files and GPU memory at the speed of the slowest link on the way.
//!
//! ```
//! use forebay::{Engine, Options};
//!
//! # fn main() -> forebay::Result<()> {
//! # let dir = tempfile::tempdir().unwrap();
//! # let path = dir.path().join("weights.bin");
//! # std::fs::write(&path, vec![7; 100_000]).unwrap();
//! let engine = Engine::new(Options::from_env()?)?;
//! let gpu = engine.device(&"sim".parse()?)?; // `auto`, `0`, `GPU-…`; `none` is host memory
//! let file = engine.open(&path)?;
//! let (buffer, outcome) = file.read_to_end(gpu.map(|gpu| gpu.id())).run()?;
//! assert_eq!(buffer.len(), 100_000);
//! for share in &outcome.routes {
//!     println!("{} bytes by `{}`: {}", share.bytes, share.route, share.reason);
//! }
//! # Ok(())
//! # }
//! ```
//!
//! The modules are the data path:
//!
//! ```text
//! engine     turns a call into a request and a handle to wait on; small ones run on the caller's
//!            thread
//!   file       descriptors, alignment, page cache residency
//!   plan       pure: chooses the route of each byte, and the reason
//!   queue      windows and ops, their scheduler, and the rings that run them
//!     staging    pinned slots, and the thread that copies them → gpu
//! tune       pure: chooses the queue depth
//! transfer   the state that caller and engine share: progress, bytes by route, the first error
//! statistics durations of the stages
//! trace      optional recording of all of these, with times
//! events     `tracing` events of the control path
//! ```

#[cfg(test)]
mod cost_tests;
mod engine;
pub mod error;
mod events;
mod file;
pub mod gpu;
#[doc(hidden)]
pub mod internal;
mod memory;
mod options;
mod outcome;
mod plan;
mod queue;
mod staging;
mod statistics;
mod trace;
mod transfer;
mod tune;

pub use forebay_base::units;

pub use engine::{
    At, Engine, File, ManyOutcome, ManyTransfer, Piece, PieceResult, Pieces, Quiesced, Request,
    Transfer,
};
pub use error::{Error, Operation, Place, Result};
pub use file::{OpenOptions, Residency};
pub use memory::{Buffer, Lent, ReadInto, ToRun, ToStart, WriteFrom};
pub use options::{DirectIo, Options, Priority, RequestOptions, RingChoice, Variable};
pub use plan::{Direction, Reason, Route};
pub use statistics::{Histogram, Statistics};
pub use transfer::{Completions, Outcome, RouteShare, Stages, SyncMode};
