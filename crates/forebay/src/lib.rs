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
//! engine     a call becomes a request; small ones are made on the caller's thread
//!   file       descriptors, alignment, what is resident; topology: the drive below
//!   plan       pure: which way each byte goes, and why
//!   queue      windows and ops; the rings that run them; what comes next
//!     staging    pinned slots, and the thread that copies them      → gpu
//!     direct     ways without a copy in host memory: cuFile         → gpu
//! doctor     what stands between a path and a GPU, and what to do about it
//! remember   small files in the user's cache folder: what was learned about drives
//! tune       pure: how much is kept in flight, and how many threads read
//! transfer   what the caller waits for: progress, bytes by route, the first error
//! statistics how long the stages take
//! trace      what all of these did and when, where somebody asks
//! events     what subscribers of `tracing` are told of the control path
//! process    tells a forked child from the process that made an engine
//! user_copy  copies to and from a caller's memory, which may be a mapping without pages
//! stream     layers of a model, each brought while the one before it is computed
//! proof      counters of others around a span of work, and what they prove of its way
//! ```
//!
//! # Unsafe modules
//!
//! `unsafe` is denied elsewhere; each of these says why it needs it.
//!
//! - `direct/cufile/buffers.rs`: has cuFile know memory, and forget it
//! - `direct/cufile/counting.rs`: has cuFile stop to count as the process ends
//! - `direct/cufile/library.rs`: loads cuFile's library and asks for its version
//! - `direct/cufile/port.rs`: hands on the addresses of transfers
//! - `direct/cufile/probe.rs`: opens cuFile's driver and asks what it serves
//! - `direct/cufile/rig.rs`: hands memory to a port, in tests
//! - `direct/cufile/session.rs`: reads and writes by cuFile
//! - `direct/cufile/simulated/mod.rs`: plays cuFile's functions
//! - `direct/cufile/table.rs`: declares cuFile's functions
//! - `engine/beside.rs`: lends memory of simulated GPUs
//! - `engine/borrow.rs`: others promise to keep memory
//! - `engine/interrupt.rs`: looks at streams of others
//! - `engine/ordered/keeper.rs`: names a stream, in its test
//! - `engine/ordered/mod.rs`: queues copies and waits on streams
//! - `engine/ordered/pieces.rs`: queues copies on streams
//! - `engine/ordered/track.rs`: shares two numbers with the GPU
//! - `engine/small.rs`: moves bytes between files, its own memory and the caller's
//! - `engine/silent.rs`: stands between the engine and a device's calls
//! - `file/calls.rs`: system calls that take raw memory
//! - `file/pages.rs`: maps files, and has the kernel bring their pages in
//! - `file/port.rs`: declares what moves bytes by raw address
//! - `gpu/mod.rs`: the device trait's calls take raw addresses
//! - `gpu/cuda/address.rs`: asks the driver what an address is
//! - `gpu/cuda/batch.rs`: calls the driver
//! - `gpu/cuda/capture.rs`: calls the driver
//! - `gpu/cuda/corrupt.rs`: calls the device against a driver that answers nonsense
//! - `gpu/cuda/device.rs`: calls the driver
//! - `gpu/cuda/events.rs`: calls the driver
//! - `gpu/cuda/info.rs`: asks the driver what a GPU is
//! - `gpu/cuda/kernels.rs`: has the driver compile kernels, and starts them
//! - `gpu/cuda/table.rs`: loads the driver's functions
//! - `gpu/cuda/tests.rs`: calls the device against a simulated driver
//! - `gpu/nvml/mod.rs`: loads NVML and calls it
//! - `gpu/sim/device.rs`: copies between registered host memory and its own
//! - `gpu/sim/gate.rs`: reads and writes numbers that streams wait for
//! - `gpu/sim/memory.rs`: maps the simulated GPU's memory
//! - `gpu/sim/table/addresses.rs`: plays what the driver knows of addresses
//! - `gpu/sim/table/batch.rs`: plays copies in batches
//! - `gpu/sim/table/capture.rs`: plays captures of graphs
//! - `gpu/sim/table/corrupt.rs`: plays a driver that answers nonsense
//! - `gpu/sim/table/kernels.rs`: plays what starts kernels
//! - `gpu/sim/table/mod.rs`: a simulated driver behind the driver's C interface
//! - `gpu/sim/tests.rs`: calls the device
//! - `gpu/sim/timeline.rs`: runs the copies that are due
//! - `memory/allocation.rs`: frees memory of GPUs
//! - `memory/host.rs`: maps and pins memory
//! - `memory/mod.rs`: hands out slices of memory that it maps itself
//! - `memory/node.rs`: asks the kernel to place memory
//! - `process.rs`: maps the page that tells a forked child from its parent
//! - `queue/bounce.rs`: copies between a ring's own memory and an op's
//! - `queue/pread.rs`: reads into an op's memory
//! - `queue/forks.rs`: closes rings in a forked child
//! - `queue/uring.rs`: hands an op's memory to the kernel
//! - `queue/scheduler/peer_tests.rs`: plays a port
//! - `queue/sim/device.rs`: passes calls on to the simulated GPU
//! - `queue/sim/memory.rs`: reads and writes memory on the simulated GPU
//! - `queue/sim/peers.rs`: plays a port
//! - `queue/sim/world.rs`: plays the kernel that moves an op's bytes
//! - `staging/submitter.rs`: queues copies
//! - `stream/closing.rs`: orders work on streams that a caller names
//! - `stream/mapped.rs`: pins what it has mapped
//! - `stream/mapper/tests.rs`: takes layers for a stream that it names
//! - `stream/marks.rs`: marks streams of others
//! - `stream/mod.rs`: orders work on streams that a caller names
//! - `stream/reading.rs`: queues copies to the stream's own memory
//! - `stream/taken.rs`: orders work on streams that a caller names
//! - `stream/taking.rs`: orders work on streams that a caller names, and queues copies
//! - `stream/writing.rs`: orders work on streams that a caller names
//! - `topology/calls.rs`: asks file systems and device nodes about what is below them
//! - `user_copy.rs`: has the kernel copy to and from a caller's memory
//! - `tests/bad_input/rings.rs`: sends signals to its threads
//! - `tests/cuda.rs`: calls a real GPU's driver
//! - `tests/cuda/addresses.rs`: lends a real GPU's memory
//! - `tests/cuda/capture.rs`: lends a real GPU's memory
//! - `tests/cuda/driver.rs`: calls the driver as another library would
//! - `tests/cuda/kernels.rs`: has kernels work on a real GPU's memory
//! - `tests/cuda_processes.rs`: asks a real GPU's driver for a context
//! - `tests/cufile/main.rs`: lends memory to cuFile
//! - `tests/cufile/processes.rs`: opens cuFile as another library would
//! - `tests/cut_mappings.rs`: maps files, and lends the mappings
//! - `tests/events/streams.rs`: queues a copy on a stream, as a caller would
//! - `tests/lab/fuse/mod.rs`: forks the guardian of a mount
//! - `tests/cuda/ordered.rs`: queues work on a real GPU's streams
//! - `tests/fork.rs`: lends memory, as a caller would
//! - `tests/interrupt.rs`: lends memory, as a caller would
//! - `tests/layers/computes.rs`: queues work on streams of its own, as a caller would
//! - `tests/layers/ends.rs`: queues work on streams of its own, as a caller would
//! - `tests/layers/faults.rs`: queues work on streams, as a caller would
//! - `tests/layers/main.rs`: queues work on streams, as a caller would
//! - `tests/layers/messages.rs`: names streams that there are not, as a caller might
//! - `tests/layers/rig.rs`: queues work on streams, as a caller would
//! - `tests/layers/threads.rs`: queues work on streams of its own, as a caller would
//! - `tests/layers/writing.rs`: queues work on streams of its own, as a caller would
//! - `tests/lent.rs`: lends memory, as a caller would
//! - `tests/lab/fork.rs`: forks, and ends the child
//! - `tests/lab/mod.rs`: forks, filters system calls, becomes another user
//! - `tests/ordered/main.rs`: queues work on streams, as a caller would
//! - `tests/ordered/many.rs`: queues work on streams, as a caller would
//! - `tests/ordered/rig.rs`: queues work on streams, as a caller would
//! - `tests/straight/ends.rs`: queues work on a stream, as a caller would
//! - `tests/two_writers.rs`: maps a file

mod aside;
pub mod clock;
pub mod direct;
pub mod doctor;
mod engine;
pub mod error;
mod events;
mod file;
pub mod gpu;
mod lock;
mod memory;
#[doc(hidden)]
pub mod micro;
mod options;
pub mod plan;
mod process;
pub mod proof;
mod queue;
mod remember;
mod staging;
mod statistics;
pub mod stream;
pub mod topology;
mod trace;
mod transfer;
mod tune;
pub mod units;
mod user_copy;

pub use engine::{
    Engine, File, Found, ManyOutcome, ManyTransfer, OpenOptions, Piece, PieceResult, RequestOptions,
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
