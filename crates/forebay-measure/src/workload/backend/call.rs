//! One call of a method, and what a method needs to make calls.

use std::borrow::Cow;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Instant;

use forebay::gpu::Device;
use forebay::{Engine, Route};
use serde::{Serialize, Serializer};

use super::pool::{Places, Pool};
use crate::data::Pattern;
use crate::failure::Result;
use crate::memory::{put_into, whole};
use crate::results::{Cache, Direction};

/// One call: requests of the same size, each at its offset in the file, contiguous in memory.
#[derive(Debug, Clone, Copy)]
pub struct Call<'a> {
    /// From or to the file.
    pub direction: Direction,
    /// The offsets of the requests in the file.
    pub offsets: &'a [u64],
}

/// A call that has ended.
#[derive(Debug, Clone, Copy)]
pub struct Done {
    /// Its place.
    pub place: usize,
    /// When it ended.
    pub at: Instant,
}

/// The parameters of a backend.
#[derive(Debug, Clone, Copy)]
pub struct Context<'a> {
    /// The engine: a plain method only uses its pinned memory.
    pub engine: &'a Engine,
    /// What earlier measurements left for this one.
    pub pool: &'a Arc<Pool>,
    /// The GPU; `None` for host memory.
    pub device: Option<&'a Arc<dyn Device>>,
    /// The file.
    pub path: &'a Path,
    /// Whether the file is written.
    pub writes: bool,
    /// The page cache before the load.
    pub cache: Cache,
    /// Bytes of one request.
    pub request_size: u64,
    /// Calls in flight.
    pub depth: usize,
    /// Requests in one call.
    pub batch: usize,
    /// Distinguishes the memory of this thread from that of other threads.
    pub key: u64,
    /// Counts completed requests, also those of a call in progress.
    pub life: &'a Arc<AtomicU64>,
}

impl Context<'_> {
    /// The bytes of each written request, from the start of this pattern on.
    pub(crate) fn written(&self) -> Pattern {
        Pattern::new(self.key).inverse()
    }

    /// Bytes of one call.
    pub(super) fn call_len(&self) -> u64 {
        self.request_size * self.batch as u64
    }

    /// Memory of all calls on `device`, or of the host: with the bytes to write, or with other
    /// contents than any test data.
    pub(super) fn places(&self, device: Option<&Arc<dyn Device>>) -> Result<Places> {
        let len = self.call_len();
        let mut places = self.pool.take(self.engine, device, (self.depth, len))?;
        for buffer in places.buffers.iter_mut().flatten() {
            if !self.writes {
                buffer.fill(self.other_byte())?;
                continue;
            }
            for at in (0..len).step_by(whole(self.request_size)) {
                put_into(buffer, at, self.written(), self.request_size)?;
            }
        }
        Ok(places)
    }

    /// A byte that differs from every byte of test data, from the zeros of many files, and mostly
    /// from that of other runs.
    pub(super) fn other_byte(&self) -> u8 {
        self.key.to_le_bytes()[3] & !1 | 2
    }
}

/// Bytes that took one route.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Taken {
    /// From or to the file.
    #[serde(skip)]
    pub direction: Direction,
    /// The route, or the closest equivalent.
    #[serde(serialize_with = "by_name")]
    pub route: Route,
    /// Whether the engine reported it.
    #[serde(skip)]
    pub is_engines: bool,
    /// The reason for the route.
    pub reason: Cow<'static, str>,
    /// Number of bytes.
    pub bytes: u64,
}

/// Serializes a route as its name.
///
/// # Errors
/// The serializer's own.
pub fn by_name<S: Serializer>(route: &Route, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(route.name())
}

/// Adds the bytes of a route to its sum.
pub fn add(all: &mut Vec<Taken>, more: Taken) {
    let kind = |taken: &Taken| (taken.direction, taken.route);
    let same = |taken: &&mut Taken| kind(taken) == kind(&more) && taken.reason == more.reason;
    match all.iter_mut().find(same) {
        Some(taken) => taken.bytes += more.bytes,
        None => all.push(more),
    }
}

/// The read and written bytes of a method without an engine.
pub(super) fn taken(
    moved: [u64; 2],
    route: Route,
    reason: impl Into<Cow<'static, str>>,
) -> Vec<Taken> {
    let reason = reason.into();
    let moved = [Direction::Read, Direction::Write].into_iter().zip(moved);
    let moved = moved.filter(|(_, bytes)| *bytes > 0);
    let taken = |(direction, bytes)| Taken {
        direction,
        route,
        is_engines: false,
        reason: reason.clone(),
        bytes,
    };
    moved.map(taken).collect()
}
