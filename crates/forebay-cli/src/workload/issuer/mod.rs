//! The methods by which one thread makes its requests. Each has a place for every call in flight,
//! starts calls in places, and reports the place of a call that has ended.

mod engine;
mod plain;
mod uring;

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Instant;

use forebay::gpu::Device;
use forebay::{Buffer, Engine, Route};

pub use self::engine::EngineIssuer;
pub(crate) use self::plain::{ACCEPTS_ANY_SIZE, WITHOUT_O_DIRECT};
pub use self::plain::{Plain, PlainIssuer};
pub use self::uring::UringIssuer;
use crate::bench::data::Pattern;
use crate::bench::memory::whole;
use crate::failure::Result;
use crate::report::json::Direction;

/// The method that moves bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Way {
    /// The engine, by the required route, if any.
    Forebay(Option<Route>),
    /// One of the methods without an engine.
    Plain(Plain),
}

impl Way {
    /// Its name in results.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Forebay(_) => "forebay",
            Self::Plain(plain) => plain.name(),
        }
    }

    /// The queue depth of a thread, if the method fixes it.
    #[must_use]
    pub const fn depth(self) -> Option<u32> {
        match self {
            Self::Forebay(_) => None,
            Self::Plain(plain) => plain.depth(),
        }
    }

    /// The number of calls of a thread that have memory, if the method fixes it.
    #[must_use]
    pub const fn places(self) -> Option<u32> {
        match self {
            Self::Forebay(_) => None,
            Self::Plain(plain) => plain.places(),
        }
    }

    /// The required route.
    #[must_use]
    pub const fn route(self) -> Option<Route> {
        match self {
            Self::Forebay(route) => route,
            Self::Plain(_) => None,
        }
    }
}

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

/// The parameters of an issuer.
#[derive(Debug, Clone, Copy)]
pub struct Means<'a> {
    /// The engine: a plain method only uses its pinned memory.
    pub engine: &'a Engine,
    /// The GPU; `None` for host memory.
    pub device: Option<&'a Arc<dyn Device>>,
    /// The file.
    pub path: &'a Path,
    /// Whether the file is written.
    pub writes: bool,
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

impl Means<'_> {
    /// The initial contents of a place's memory.
    fn held(&self, place: usize) -> Pattern {
        held(self.key, place)
    }
}

/// The contents of a place's memory until something is read into it.
pub(super) fn held(key: u64, place: usize) -> Pattern {
    Pattern::new(key.wrapping_add(place as u64)).inverse()
}

/// Makes the requests of one thread.
pub trait Issuer: Send {
    /// Starts a call in a free place.
    ///
    /// # Errors
    /// If the call cannot be started; the place remains free.
    fn start(&mut self, place: usize, call: Call<'_>) -> Result<()>;

    /// Waits for any call to end.
    ///
    /// # Errors
    /// If a call failed or moved too few bytes; its place is free then.
    ///
    /// # Panics
    /// If none is in flight.
    fn wait(&mut self) -> Result<Done>;

    /// Waits for any call to end, until `until` at most; one is in flight.
    ///
    /// # Errors
    /// As [`wait`](Self::wait).
    fn wait_until(&mut self, until: Instant) -> Result<Option<Done>>;

    /// Syncs the written bytes.
    ///
    /// # Errors
    /// System errors.
    fn sync(&mut self) -> Result<()>;

    /// Makes the file system report errors as when the file is closed.
    ///
    /// # Errors
    /// System errors: written bytes may be lost.
    fn flush(&mut self) -> Result<()>;

    /// The bytes of a place's memory, as the GPU or the host has them. Nothing is in flight there.
    ///
    /// # Errors
    /// GPU errors.
    fn memory(&mut self, place: usize) -> Result<Vec<u8>>;

    /// Bytes by route and reason, as far as the method reports them.
    fn routes(&self) -> Vec<Taken>;
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
    pub reason: String,
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

/// The contents of a buffer.
fn bytes_of(buffer: &Buffer) -> Result<Vec<u8>> {
    let mut bytes = vec![0; whole(buffer.len())];
    buffer.download(0, &mut bytes)?;
    Ok(bytes)
}

/// Prepares a method to make requests.
///
/// # Errors
/// The file or memory is unavailable.
pub fn make(way: Way, means: &Means<'_>) -> Result<Box<dyn Issuer>> {
    Ok(match way {
        Way::Forebay(route) => Box::new(EngineIssuer::new(route, means)?),
        Way::Plain(Plain::Uring) => Box::new(UringIssuer::new(means)?),
        Way::Plain(plain) => Box::new(PlainIssuer::new(plain, means)?),
    })
}
