//! One call of a method, and what a method needs to make calls.

use std::borrow::Cow;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::{Duration, Instant};

use forebay::direct::Counters;
use forebay::gpu::Device;
use forebay::{Buffer, Engine, Route};
use forebay_evidence::Seen;

use super::plain::Opened;
use super::pool::{Places, Pool};
use crate::data::Pattern;
use crate::failure::{Failure, Result};
use crate::memory::{put_into, whole};
use crate::results::{Cache, Direction};
use crate::workload::expected::Expected;

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

    /// A byte that differs from every byte of test data, and mostly from that of other runs.
    pub(super) fn other_byte(&self) -> u8 {
        self.key.to_le_bytes()[3] & !1
    }
}

/// Makes the requests of one thread.
pub trait Backend: Send {
    /// Starts a call in a free place. Returns when it ended, if it did before this function
    /// returned.
    ///
    /// # Errors
    /// If the call cannot be started; the place remains free.
    fn start(&mut self, place: usize, call: Call<'_>) -> Result<Option<Instant>>;

    /// Waits for any call that is in flight to end, until `until` at most.
    ///
    /// # Errors
    /// If a call failed or moved too few bytes; its place is free then.
    fn wait(&mut self, until: Option<Instant>) -> Result<Option<Done>> {
        let _ = until;
        Err(Failure::new("no call is in flight"))
    }

    /// The file of a method that opens it itself.
    fn opened(&self) -> Option<&Opened> {
        None
    }

    /// Syncs the written bytes.
    ///
    /// # Errors
    /// System errors.
    fn sync(&mut self) -> Result<()> {
        self.opened().map_or(Ok(()), Opened::sync)
    }

    /// Makes the file system report errors as when the file is closed.
    ///
    /// # Errors
    /// System errors: written bytes may be lost.
    fn flush(&mut self) -> Result<()> {
        self.opened().map_or(Ok(()), Opened::flush)
    }

    /// The memory of a place, if this process has it and no call is in flight there.
    fn memory(&mut self, place: usize) -> Option<&mut Buffer>;

    /// Whether the memory of a place, from byte `at` on, has the `len` bytes that `expected` has at
    /// `offset`. Nothing is in flight there.
    ///
    /// # Errors
    /// System and GPU errors.
    fn holds(
        &mut self,
        place: usize,
        at: u64,
        len: u64,
        expected: &Expected<'_>,
        offset: u64,
    ) -> Result<bool> {
        let memory = self.memory(place);
        let memory = memory.ok_or_else(|| Failure::new("a failed call still holds its memory"))?;
        expected.is_in(memory, at, len, offset)
    }

    /// The read and written bytes, `moved`, by route and reason as far as the method reports them.
    fn routes(&self, moved: [u64; 2]) -> Vec<Taken> {
        self.opened().map_or_else(Vec::new, |file| file.routes(moved))
    }

    /// Processor time of another process that does the work, so far.
    fn cpu(&self) -> Duration {
        Duration::ZERO
    }

    /// cuFile's counters, if another process has them.
    fn counters(&mut self) -> Option<Seen<Counters>> {
        None
    }
}

/// Bytes that took one route.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Taken {
    /// From or to the file.
    pub direction: Direction,
    /// The route, or the closest equivalent.
    pub route: Route,
    /// Whether the engine reported it.
    pub is_engines: bool,
    /// The reason for the route.
    pub reason: Cow<'static, str>,
    /// Number of bytes.
    pub bytes: u64,
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
