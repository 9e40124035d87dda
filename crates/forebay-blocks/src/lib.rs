//! Keeps KV blocks on drives: a bounded store that several processes share.
//!
//! A block is up to 64 MiB of bytes under a key. It is there whole, with a right checksum, or it is
//! a miss: after a process is killed, the power is cut, a drive returns wrong bytes or is full.
//!
//! ```text
//! store      calls, queues and threads: reads do not wait for writes; what is late is dropped
//!   run        reads, checks and delivers blocks; takes, writes and publishes them
//!     root       one folder: its space, its health; `format` says what it is
//!       class      an index and data files for blocks of one length; which block leaves
//!         record     what the index has of a block
//!     traffic    reads go before writes
//!     pool       memory through which blocks pass
//! work       a call in progress
//! ```

mod class;
mod failure;
mod format;
mod health;
mod key;
mod locks;
mod pool;
mod record;
mod root;
mod run;
mod statistics;
mod store;
mod traffic;
mod work;

pub use class::Policy;
pub use key::Key;
pub use root::RootOptions;
pub use statistics::RootStatistics;
pub use store::{Options, Store};
pub use work::{BLOCK_MAX, Batch, Block, End, Why};
