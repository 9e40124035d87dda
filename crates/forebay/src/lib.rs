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
//! let (buffer, outcome) = file.read_whole(gpu.map(|gpu| gpu.id()))?;
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
//! engine     turns a call into a request; small ones run on the caller's thread
//!   file       descriptors, alignment, page cache residency
//!   plan       pure: chooses the route of each byte, and the reason
//!   queue      windows and ops, their scheduler, and the rings that run them
//!     staging    pinned slots, and the thread that copies them → gpu
//!     direct     transfers without a copy in host memory (cuFile) → gpu
//! tune       pure: chooses the queue depth and the number of reading threads
//! transfer   the handle a caller waits on: progress, bytes by route, the first error
//! statistics durations of the stages
//! trace      optional recording of all of these, with times
//! events     `tracing` events of the control path
//! ```
//!
//! # Unsafe modules
//!
//! `unsafe` is denied elsewhere; each item says what its module does with it.
//!
//! - `direct/cufile/counting.rs`: stops cuFile's counters when the process ends
//! - `direct/cufile/library.rs`: loads cuFile's library and reads its version
//! - `direct/cufile/port.rs`: passes on the addresses of transfers
//! - `direct/cufile/probe.rs`: opens cuFile's driver and queries its features
//! - `direct/cufile/rig.rs`: hands memory to a port, in tests
//! - `direct/cufile/session.rs`: reads and writes through cuFile
//! - `direct/cufile/simulated/mod.rs`: simulates cuFile's functions
//! - `direct/cufile/table.rs`: declares cuFile's functions
//! - `engine/beside.rs`: lends memory of simulated GPUs
//! - `engine/borrow.rs`: borrows memory that its owner promises to keep
//! - `engine/interrupt.rs`: queries callers' streams
//! - `engine/ordered/keeper.rs`: names a stream, in its test
//! - `engine/ordered/mod.rs`: queues copies and waits on streams
//! - `engine/ordered/pieces.rs`: queues copies on streams
//! - `engine/ordered/track.rs`: shares two numbers with the GPU
//! - `engine/small.rs`: moves bytes between files, its own memory and the caller's
//! - `engine/silent.rs`: wraps a device's calls
//! - `file/calls.rs`: makes system calls that take raw memory
//! - `file/pages.rs`: maps files, and has the kernel load their pages
//! - `file/port.rs`: declares the trait that moves bytes by raw address
//! - `gpu/mod.rs`: declares device calls that take raw addresses
//! - `gpu/cuda/address.rs`: queries the driver for the kind of memory at an address
//! - `gpu/cuda/batch.rs`: calls the driver
//! - `gpu/cuda/capture.rs`: calls the driver
//! - `gpu/cuda/corrupt.rs`: tests the device against drivers with impossible answers
//! - `gpu/cuda/device.rs`: calls the driver
//! - `gpu/cuda/events.rs`: calls the driver
//! - `gpu/cuda/info.rs`: queries the driver for a GPU's properties
//! - `gpu/cuda/kernels.rs`: has the driver compile kernels, and starts them
//! - `gpu/cuda/table.rs`: loads the driver's functions
//! - `gpu/cuda/tests.rs`: tests the device against a simulated driver
//! - `gpu/sim/device.rs`: copies between registered host memory and its own
//! - `gpu/sim/gate.rs`: accesses numbers that streams wait for
//! - `gpu/sim/memory.rs`: maps the simulated GPU's memory
//! - `gpu/sim/table/addresses.rs`: simulates address queries of the driver
//! - `gpu/sim/table/batch.rs`: simulates batched copies
//! - `gpu/sim/table/capture.rs`: simulates graph captures
//! - `gpu/sim/table/corrupt.rs`: simulates drivers with impossible answers
//! - `gpu/sim/table/kernels.rs`: simulates kernel launches
//! - `gpu/sim/table/mod.rs`: a simulated driver behind the driver's C interface
//! - `gpu/sim/tests.rs`: calls the device
//! - `gpu/sim/timeline.rs`: runs copies that are due
//! - `memory/allocation.rs`: frees GPU memory
//! - `memory/host.rs`: maps and pins memory
//! - `memory/mod.rs`: hands out slices of memory that it maps itself
//! - `memory/node.rs`: has the kernel place memory on a node
//! - `queue/bounce.rs`: copies between a ring's own memory and an op's
//! - `queue/pread.rs`: reads into an op's memory
//! - `queue/forks.rs`: closes rings in a forked child
//! - `queue/uring.rs`: hands an op's memory to the kernel
//! - `queue/scheduler/peer_tests.rs`: mocks a port
//! - `queue/sim/device.rs`: forwards calls to the simulated GPU
//! - `queue/sim/memory.rs`: accesses memory on the simulated GPU
//! - `queue/sim/peers.rs`: mocks a port
//! - `queue/sim/world.rs`: simulates the kernel that moves an op's bytes
//! - `staging/submitter.rs`: queues copies
//! - `tests/bad_input/rings.rs`: sends signals to its threads
//! - `tests/cuda.rs`: calls a real GPU's driver
//! - `tests/cuda/addresses.rs`: lends a real GPU's memory
//! - `tests/cuda/capture.rs`: lends a real GPU's memory
//! - `tests/cuda/driver.rs`: calls the driver as another library would
//! - `tests/cuda/kernels.rs`: runs kernels on a real GPU's memory
//! - `tests/cuda_processes.rs`: creates a context on a real GPU
//! - `tests/cufile/main.rs`: lends memory to cuFile
//! - `tests/cufile/processes.rs`: opens cuFile as another library would
//! - `tests/cut_mappings.rs`: maps files, and lends the mappings
//! - `tests/events/streams.rs`: queues a copy on a stream, as a caller would
//! - `tests/lab/fuse/mod.rs`: forks the guardian of a mount
//! - `tests/cuda/ordered.rs`: queues work on a real GPU's streams
//! - `tests/fork.rs`: lends memory, as a caller would
//! - `tests/interrupt.rs`: lends memory, as a caller would
//! - `tests/lent.rs`: lends memory, as a caller would
//! - `tests/lab/fork.rs`: forks, and ends the child
//! - `tests/lab/mod.rs`: forks, filters system calls, changes the user
//! - `tests/ordered/main.rs`: queues work on streams, as a caller would
//! - `tests/ordered/many.rs`: queues work on streams, as a caller would
//! - `tests/ordered/rig.rs`: queues work on streams, as a caller would
//! - `tests/straight/ends.rs`: queues work on a stream, as a caller would
//! - `tests/two_writers.rs`: maps a file

pub mod direct;
mod engine;
pub mod error;
mod events;
mod file;
pub mod gpu;
mod memory;
#[doc(hidden)]
pub mod micro;
mod options;
pub mod plan;
mod queue;
mod staging;
mod statistics;
mod trace;
mod transfer;
mod tune;

pub use forebay_base::{clock, units};

/// Reads of many pieces, block by block, and pages of files: for schedulers above the engine.
pub mod blocks {
    pub use crate::engine::BlockRead;
    pub use crate::file::pages::{FilePages, Stamp};
    pub use crate::plan::{Packed, Packing, SKEW, Wanted};
}

pub use engine::{
    Engine, File, ManyOutcome, ManyTransfer, OpenOptions, Piece, PieceResult, RequestOptions,
};
pub use error::{Error, Operation, Place, Result};
pub use file::Residency;
pub use memory::{Buffer, Source, Target};
pub use options::{DirectIo, Options, RingChoice, Variable};
pub use plan::{Reason, Route};
pub use queue::{Direction, Priority};
pub use statistics::{Histogram, Statistics};
pub use trace::Trace;
pub use transfer::{Outcome, RouteShare, Stages, SyncMode, Transfer};
