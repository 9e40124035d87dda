//! Proves which way bytes took, from counters that others keep.
//!
//! Around a span of work every counter is read that could say something of it, once at each edge:
//! [`Sources`] knows which there are, a [`Span`] reads them, [`Evidence`] is what they told, or why
//! not. [`verdict`] holds this against a [`Claim`], what is said of the bytes by those who moved
//! them, and speed is no part of it. It is pure; so is [`cufile`], which reads the buffers that
//! cuFile fills. `drives`, `process`, `nfs`, `rdma`, `nvidia_fs` and `dram` read files of the
//! system's, `pcie` asks NVML.

pub mod cufile;

mod claim;
mod dram;
mod drives;
mod evidence;
mod json;
mod judge;
mod nfs;
mod nvidia_fs;
mod pcie;
mod process;
mod rdma;
mod seen;
mod sources;
mod verdict;

pub use claim::{Claim, Memory};
pub use drives::DriveBytes;
pub use evidence::{Evidence, PageCache, Storage};
pub use judge::verdict;
pub use nfs::{NfsMount, Operation, RdmaConnections};
pub use nvidia_fs::NvidiaFs;
pub use pcie::{How, PcieBytes};
pub use process::ProcessBytes;
pub use rdma::PortBytes;
pub use seen::{Missing, Seen};
pub use sources::{Sources, Span};
pub use verdict::{Finding, Share, Verdict, Way};
