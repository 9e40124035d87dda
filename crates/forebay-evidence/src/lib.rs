//! Proves which data path bytes took, from counters of the kernel, drivers and libraries.
//!
//! At both edges of a span of work, every relevant counter is read once. [`Sources`] finds the
//! counters, a [`Span`] reads them, and [`Evidence`] holds the differences, or the reasons why they
//! are missing. [`verdict()`] checks the evidence against a [`Claim`], the route that the mover
//! reports, not on speed. It is pure. `drives`, `process`, `nfs`, `rdma`, `nvidia_fs` and
//! `dram` read files of the system, `pages` counts resident pages, and `pcie` queries NVML.
//! [`Sensors`] reads a GPU's power and clocks from NVML too.
//!
//! ```
//! use forebay::{Direction, Engine, Options};
//! use forebay_evidence::{Claim, GpuLink, Memory, Sources, verdict};
//! use forebay_topology::Resolver;
//!
//! # fn main() -> forebay::Result<()> {
//! # let dir = tempfile::tempdir().unwrap();
//! # let path = dir.path().join("weights.bin");
//! # std::fs::write(&path, vec![7; 4 << 20]).unwrap();
//! let engine = Engine::new(Options::from_env()?)?;
//! let file = engine.open(&path)?;
//! let resolver = Resolver::default();
//! let link = GpuLink::none(); // of a GPU: `GpuLink::find(device.info())`
//! let sources = Sources::new(resolver.system())
//!     .gpu(&link)
//!     .file(&file, 0, file.len()?, &resolver.resolve(&path));
//!
//! let span = sources.begin(); // all counters are read once
//! let (_, outcome) = file.read_to_end(None).run()?;
//! let evidence = span.end(); // and once more
//!
//! let claim = Claim::of(&outcome, Direction::Read, Memory::Host); // a GPU's: `.on(device.info())`
//! println!("{}", verdict(&evidence, &claim));
//! # Ok(())
//! # }
//! ```

pub mod observers;

mod claim;
mod cufile;
mod divide;
mod dram;
mod drives;
mod evidence;
mod judge;
mod nfs;
mod nvidia_fs;
mod nvml;
mod pages;
mod pcie;
mod process;
mod rdma;
mod seen;
mod sensors;
mod sources;
mod verdict;

pub use claim::{Claim, Memory};
pub use cufile::cufile_counters;
pub use drives::DriveBytes;
pub use evidence::{Evidence, PageCache, Storage};
pub use judge::verdict;
pub use nfs::{NfsMount, Operation, RdmaConnections};
pub use nvidia_fs::NvidiaFs;
pub use pcie::{GpuLink, How, PcieBytes};
pub use process::ProcessBytes;
pub use rdma::PortBytes;
pub use seen::{Missing, Seen};
pub use sensors::{Sensed, Sensors, THROTTLES};
pub use sources::{Sources, Span};
pub use verdict::{DataPath, Finding, Share, Verdict};
