//! Keeps KV blocks on drives: a bounded store that several processes share.
//!
//! A block is up to 64 MiB of bytes under a key. It is there whole, with a right checksum, or it is
//! a miss: after a process is killed, the power is cut, a drive returns wrong bytes or is full.
//!
//! ```text
//! store      calls, queues and threads: reads do not wait for writes; what is late is dropped
//!   run        reads, checks and delivers blocks; reserves, writes and publishes them
//!     root       a folder: its bounds and its health
//!       log        which places are written next, and which block is evicted
//!         volume     the open files, and what makes them
//!           index      finds a key's record
//!           locks      keep threads and processes apart
//!     traffic    reads precede writes
//!     pool       memory through which blocks pass
//! work       a call in progress
//! ```

mod failure;
mod files;
mod health;
mod index;
mod key;
mod locks;
mod log;
mod pool;
mod root;
mod run;
mod statistics;
mod store;
mod traffic;
mod volume;
mod work;

pub use key::Key;
pub use log::Policy;
pub use root::RootOptions;
pub use statistics::RootStatistics;
pub use store::{Options, Store};
pub use work::{BLOCK_MAX, Batch, Block, End, Why};
