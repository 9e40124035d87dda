//! The methods by which one thread makes its requests. Each has a place for every call in flight,
//! starts calls in places, and reports the place of a call that has ended.

mod call;
mod copies;
pub mod cufile;
mod engine;
mod link;
mod mapping;
mod pinned;
mod plain;
mod pool;
mod submit;
mod uring;

use std::str::FromStr;

use forebay::Route;

pub use self::call::{Call, Context, Done, Taken, add, by_name};
use self::copies::Copies;
use self::cufile::CuFileBackend;
pub use self::cufile::Tuning;
use self::engine::EngineBackend;
use self::link::Link;
use self::pinned::Pinned;
pub use self::plain::Plain;
pub use self::plain::{ACCEPTS_ANY_SIZE, WITHOUT_O_DIRECT};
pub use self::pool::Pool;
pub use self::submit::Backend;
use self::uring::UringBackend;
use crate::failure::Result;

/// The method that moves bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Method {
    /// The engine, by the required route, if any.
    Forebay(Option<Route>),
    /// One of the methods without an engine.
    Plain(Plain),
    /// cuFile in its compat mode, in its own process.
    CuFile(Tuning),
    /// Copies between pinned memory and the target, without a file: the limit of a link. No command
    /// line can name it.
    Link,
}

impl Method {
    /// All methods; the engine chooses its route.
    pub fn all() -> impl Iterator<Item = Self> {
        let plain = Plain::ALL.into_iter().map(Self::Plain);
        std::iter::once(Self::Forebay(None)).chain(plain).chain(Self::CUFILE)
    }

    /// cuFile, called in each way.
    pub const CUFILE: [Self; 2] = [Self::CuFile(Tuning::Defaults), Self::CuFile(Tuning::Tuned)];

    /// Its name in results.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Forebay(_) => "forebay",
            Self::Plain(plain) => plain.name(),
            Self::CuFile(Tuning::Defaults) => "cufile-compat",
            Self::CuFile(Tuning::Tuned) => "cufile-compat-tuned",
            Self::Link => "link",
        }
    }

    /// The queue depth of a thread, if the method fixes it.
    #[must_use]
    pub const fn depth(self) -> Option<u32> {
        match self {
            Self::Forebay(_) => None,
            Self::Plain(plain) => plain.depth(),
            Self::CuFile(_) | Self::Link => Some(1),
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
            Self::CuFile(_) => true,
            Self::Link => false,
        }
    }
}

impl FromStr for Method {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        Self::all().find(|method| method.name() == text).ok_or_else(|| {
            let names: Vec<String> = Self::all().map(|one| format!("`{}`", one.name())).collect();
            format!("it takes {}", names.join(", "))
        })
    }
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
        Method::CuFile(tuning) => Box::new(CuFileBackend::new(tuning, context)?),
        Method::Plain(plain) => Box::new(Pinned::new(Some(plain), context)?),
        Method::Link if context.device.is_some() => Box::new(Pinned::new(None, context)?),
        Method::Link => Box::new(Link::new(context)?),
    })
}
