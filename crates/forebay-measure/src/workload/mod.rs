//! Keeps files busy with a given load and reports request latencies. Sweeps, `gdsio` and
//! comparisons of GPUs are built on it.
//!
//! Threads begin together. Each keeps a number of calls in flight and records the latency of each.
//! Only a span in the middle counts, without the warm-up and the drain. If the load is a number of
//! bytes, everything counts. At the end, written bytes are read back. The bytes that were read last
//! are compared with what the command put into the file, or with a second read if the file's
//! contents are unknown.
//!
//! [`pattern`] decides the offsets of requests, [`backend`] makes them, `worker` is one thread, and
//! [`run`] runs all of them. [`clock`] decides when the span begins and ends, `written` derives the
//! bytes that writes have left, `check` compares, [`latency`] and [`steady`] judge.

pub mod backend;
pub mod check;
pub mod clock;
pub mod expected;
pub mod latency;
pub mod measure;
pub mod pattern;
pub mod run;
pub mod steady;
mod worker;
mod written;

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use forebay::gpu::Device;

use self::backend::Method;
use self::pattern::{Pattern, Region};
use crate::data::Pattern as Data;
use crate::memory::whole;
use crate::results::{Cache, Direction};

/// A load on files.
#[derive(Debug, Clone, PartialEq)]
pub struct Load {
    /// The method.
    pub method: Method,
    /// Percentage of calls that are reads.
    pub read_percent: u8,
    /// The pattern of requests.
    pub pattern: Pattern,
    /// Bytes of one request.
    pub request_size: u64,
    /// Calls in flight of each thread, including one that is copied while the next is read.
    pub depth: u32,
    /// Requests in one call.
    pub batch: u32,
    /// The page cache before the load. A cold write ends when its bytes are on the drive.
    pub cache: Cache,
    /// Time at the start that does not count.
    pub warm_up: Duration,
    /// When the load ends.
    pub end: End,
    /// Whether each thread goes over its part of the files at most once before their pages are
    /// evicted: on a second pass, bytes that went through the page cache would be in memory.
    pub once: bool,
    /// Requests per second of all threads together, evenly spaced; `None` means no limit.
    pub rate: Option<f64>,
    /// Random seed.
    pub seed: u64,
}

impl Load {
    /// Cold sequential reads, one request at a time.
    #[must_use]
    pub const fn reads(method: Method, request_size: u64, end: End) -> Self {
        Self {
            method,
            read_percent: 100,
            pattern: Pattern::Sequential,
            request_size,
            depth: 1,
            batch: 1,
            cache: Cache::Cold,
            warm_up: Duration::ZERO,
            end,
            once: false,
            rate: None,
            seed: 0,
        }
    }

    /// The same load with reads or writes only.
    #[must_use]
    pub const fn in_direction(self, direction: Direction) -> Self {
        Self { read_percent: if matches!(direction, Direction::Read) { 100 } else { 0 }, ..self }
    }

    /// Whether anything is written.
    #[must_use]
    pub const fn writes(&self) -> bool {
        self.read_percent < 100
    }

    /// Whether all bytes count, from the first one on.
    #[must_use]
    pub fn counts_all(&self) -> bool {
        self.once || !matches!(self.end, End::Time(_))
    }

    /// The time of a sample; `None` if bytes end it.
    #[must_use]
    pub const fn time(&self) -> Option<Duration> {
        match self.end {
            End::Time(time) | End::AtLeast(time) => Some(time),
            End::Bytes(_) => None,
        }
    }

    /// The number of calls of a thread with the part `region` of a file; `None` if time ends it.
    #[must_use]
    pub fn calls(&self, region: Region) -> Option<u64> {
        let pass = (region.len / self.call_len().max(1)).max(1);
        match self.end {
            End::Time(_) | End::AtLeast(_) => self.once.then_some(pass),
            End::Bytes(bytes) => {
                let calls = bytes.div_ceil(self.call_len().max(1)).max(1);
                Some(if self.once { calls.min(pass) } else { calls })
            }
        }
    }

    /// Calls in flight of one thread, one or more.
    pub(crate) fn places(&self) -> usize {
        whole(self.depth.max(1).into())
    }

    /// Requests of one call, one or more.
    pub(crate) fn requests(&self) -> usize {
        whole(self.batch.max(1).into())
    }

    /// Bytes of one call.
    #[must_use]
    pub fn call_len(&self) -> u64 {
        self.request_size.saturating_mul(u64::from(self.batch))
    }
}

/// When a load ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum End {
    /// After this time, which does not include the warm-up.
    Time(Duration),
    /// When each thread has moved this many bytes, rounded up to whole calls.
    Bytes(u64),
    /// With the first call of each thread that ends after this time; all calls count.
    AtLeast(Duration),
}

/// The file, part and target of one thread.
#[derive(Debug, Clone, Default)]
pub struct Lane {
    /// Index of its target.
    pub target: usize,
    /// The GPU; `None` for host memory.
    pub device: Option<Arc<dyn Device>>,
    /// The file.
    pub path: PathBuf,
    /// Its part of the file. Parts of threads that write do not overlap.
    pub region: Region,
    /// The file's contents, if this command made it and nothing has written to it since.
    pub content: Option<Data>,
}
