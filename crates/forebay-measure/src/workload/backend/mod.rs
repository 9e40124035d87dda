//! The methods by which one thread makes its requests. Each has a place for every call in flight,
//! starts calls in places, and reports the place of a call that has ended.

mod copies;
mod engine;
pub mod library;
mod mapping;
mod plain;
mod pool;
mod uring;

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::{Duration, Instant};

use forebay::direct::Counters;
use forebay::gpu::Device;
use forebay::{Buffer, Engine, Route};
use forebay_evidence::Seen;

use self::copies::Copies;
use self::engine::EngineBackend;
use self::library::LibraryBackend;
pub use self::library::{Library, Tuning};
pub use self::plain::Plain;
use self::plain::PlainBackend;
pub use self::plain::{ACCEPTS_ANY_SIZE, WITHOUT_O_DIRECT};
pub use self::pool::Pool;
use self::uring::UringBackend;
use super::check::Expected;
use crate::data::Pattern;
use crate::failure::{Failure, Result};
use crate::memory::{put_into, whole};
use crate::results::{Cache, Direction};

/// The method that moves bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Method {
    /// The engine, by the required route, if any.
    Forebay(Option<Route>),
    /// One of the methods without an engine.
    Plain(Plain),
    /// Another library, in its own process.
    Library(Library, Tuning),
}

impl Method {
    /// All methods; the engine chooses its route.
    pub fn all() -> impl Iterator<Item = Self> {
        let plain = Plain::ALL.into_iter().map(Self::Plain);
        let libraries = [Library::Cufile, Library::Kvikio].into_iter().flat_map(Self::library);
        std::iter::once(Self::Forebay(None)).chain(plain).chain(libraries)
    }

    /// A library with each of its settings.
    pub fn library(library: Library) -> [Self; 2] {
        [Tuning::Defaults, Tuning::Tuned].map(|tuning| Self::Library(library, tuning))
    }

    /// Its name in results.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Forebay(_) => "forebay",
            Self::Plain(plain) => plain.name(),
            Self::Library(Library::Cufile, Tuning::Defaults) => "cufile-compat",
            Self::Library(Library::Cufile, Tuning::Tuned) => "cufile-compat-tuned",
            Self::Library(Library::Kvikio, Tuning::Defaults) => "kvikio",
            Self::Library(Library::Kvikio, Tuning::Tuned) => "kvikio-tuned",
        }
    }

    /// The queue depth of a thread, if the method fixes it.
    #[must_use]
    pub const fn depth(self) -> Option<u32> {
        match self {
            Self::Forebay(_) => None,
            Self::Plain(plain) => plain.depth(),
            Self::Library(..) => Some(1),
        }
    }

    /// The number of calls of a thread that have memory, if the method fixes it.
    #[must_use]
    pub const fn places(self) -> Option<u32> {
        match self {
            Self::Plain(plain) => plain.places(),
            _ => self.depth(),
        }
    }

    /// The required route.
    #[must_use]
    pub const fn route(self) -> Option<Route> {
        match self {
            Self::Forebay(route) => route,
            _ => None,
        }
    }

    /// Whether bytes of a cold file may stay in the page cache after a read.
    #[must_use]
    pub const fn is_cached(self) -> bool {
        match self {
            Self::Forebay(route) => matches!(route, Some(Route::Cached)),
            Self::Plain(plain) => !plain.is_direct(),
            Self::Library(..) => true,
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
    pub(super) fn written(&self) -> Pattern {
        Pattern::new(self.key).inverse()
    }

    /// Bytes of one call.
    fn call_len(&self) -> u64 {
        self.request_size * self.batch as u64
    }

    /// Memory of one call on `device`, or of the host: with the bytes to write, or with other
    /// contents than any test data.
    fn memory(&self, device: Option<&Arc<dyn Device>>) -> Result<Buffer> {
        self.memory_of(1, device)
    }

    /// Memory of several calls in one piece.
    fn memory_of(&self, calls: usize, device: Option<&Arc<dyn Device>>) -> Result<Buffer> {
        let len = self.call_len() * calls as u64;
        let mut buffer = self.pool.take(self.engine, device, len)?;
        if self.writes {
            for at in (0..len).step_by(whole(self.request_size)) {
                put_into(&mut buffer, at, self.written(), self.request_size)?;
            }
        } else {
            buffer.fill(self.other_byte())?;
        }
        Ok(buffer)
    }

    /// A byte that differs from every byte of test data, and mostly from that of other runs.
    fn other_byte(&self) -> u8 {
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
    ) -> Result<bool>;

    /// Bytes by route and reason, as far as the method reports them.
    fn routes(&self) -> Vec<Taken>;

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

/// The read and written bytes of a method without an engine.
fn taken(moved: [u64; 2], route: Route, reason: &str) -> Vec<Taken> {
    let moved = [Direction::Read, Direction::Write].into_iter().zip(moved);
    let moved = moved.filter(|(_, bytes)| *bytes > 0);
    let taken = |(direction, bytes)| {
        let reason = reason.to_owned();
        Taken { direction, route, is_engines: false, reason, bytes }
    };
    moved.map(taken).collect()
}

/// Prepares a method to make requests.
///
/// # Errors
/// The file or memory is unavailable.
pub fn make(method: Method, context: &Context<'_>) -> Result<Box<dyn Backend>> {
    Ok(match method {
        Method::Forebay(route) => Box::new(EngineBackend::new(route, context)?),
        Method::Plain(Plain::Uring) => Box::new(UringBackend::new(context)?),
        Method::Plain(plain @ (Plain::Standard | Plain::Mmap)) => {
            Box::new(Copies::new(plain, context)?)
        }
        Method::Library(library, tuning) => {
            Box::new(LibraryBackend::new(library, tuning, context)?)
        }
        Method::Plain(plain) => Box::new(PlainBackend::new(plain, context)?),
    })
}
