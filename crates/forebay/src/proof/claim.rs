//! What is said of a span of work by those who did it: what a verdict has to confirm or refute.

use super::json::{Json, list};
use crate::gpu::DeviceInfo;
use crate::plan::Route;
use crate::queue::Direction;
use crate::transfer::Outcome;

/// What is said of a span of work.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Claim {
    /// From files, or to them.
    pub direction: Direction,
    /// Bytes that were moved.
    pub bytes: u64,
    /// Which memory they went to or came from.
    pub memory: Memory,
    /// The UUID of the GPU, where it has one: a library counts for each GPU of the process.
    pub gpu: Option<String>,
    /// Bytes by route, as whoever moved them says; none where nobody says anything. `Direct` is
    /// what was handed to a library such as cuFile, whichever way it went there.
    pub routes: Vec<(Route, u64)>,
    /// Bytes that the same span moved the other way within the same range, and how many of them are
    /// said to have gone past the page cache: both ways share one page cache, and what it gained or
    /// lost may be either's.
    pub beside: (u64, u64),
    /// Bytes of a request, where all have the same; else of the smallest, and 0 where it is not
    /// known. What is smaller than a block of the storage fetches the whole block.
    pub request: u64,
}

/// The memory at the other end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Memory {
    /// A GPU's.
    Gpu,
    /// Host memory that plays a GPU's.
    SimulatedGpu,
    /// The host's.
    Host,
}

impl Memory {
    /// Its name, in lower case.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Gpu => "gpu",
            Self::SimulatedGpu => "simulated_gpu",
            Self::Host => "host",
        }
    }
}

impl Claim {
    /// A claim without routes: nobody says which way the bytes went.
    #[must_use]
    pub const fn silent(direction: Direction, bytes: u64, memory: Memory) -> Self {
        Self { direction, bytes, memory, gpu: None, routes: Vec::new(), beside: (0, 0), request: 0 }
    }

    /// What the engine says of a transfer.
    #[must_use]
    pub fn of(outcome: &Outcome, direction: Direction, memory: Memory) -> Self {
        let routes = outcome.routes.iter().map(|share| (share.route, share.bytes)).collect();
        Self { routes, ..Self::silent(direction, outcome.bytes, memory) }
    }

    /// The same, of this GPU's memory. Without it nothing is proven to be direct where a library
    /// counted for several GPUs.
    #[must_use]
    pub fn on(mut self, gpu: &DeviceInfo) -> Self {
        self.gpu = (!gpu.uuid.is_empty()).then(|| gpu.uuid.clone());
        self
    }

    /// Bytes that are said to have taken `route`.
    #[must_use]
    pub fn by(&self, route: Route) -> u64 {
        let shares = self.routes.iter().filter(|(name, _)| *name == route);
        shares.fold(0, |sum, (_, bytes)| sum.saturating_add(*bytes))
    }

    /// Bytes that the span moved the other way without being said to have passed the page cache.
    pub(super) fn beside_through(&self) -> u64 {
        self.beside.0.saturating_sub(self.beside.1)
    }

    /// Bytes of all routes.
    pub(super) fn told(&self) -> u64 {
        self.routes.iter().fold(0, |sum, (_, bytes)| sum.saturating_add(*bytes))
    }

    /// What a line for people and an error call the direction's end.
    pub(super) const fn moved(&self) -> &'static str {
        match self.direction {
            Direction::Read => "read",
            Direction::Write => "written",
        }
    }

    pub(super) fn json(&self) -> Json {
        let route = |(route, bytes): &(Route, u64)| {
            Json::Object(vec![("route", route.name().into()), ("bytes", (*bytes).into())])
        };
        let mut fields = vec![
            ("direction", self.direction.name().into()),
            ("bytes", self.bytes.into()),
            ("memory", self.memory.name().into()),
            ("gpu", self.gpu.as_ref().map_or(Json::Null, Into::into)),
            ("routes", list(self.routes.iter().map(route))),
        ];
        if self.beside.0 > 0 {
            let (bytes, past) = (self.beside.0.into(), self.beside.1.into());
            fields.push(("beside", Json::Object(vec![("bytes", bytes), ("past", past)])));
        }
        if self.request > 0 {
            fields.push(("request", self.request.into()));
        }
        Json::Object(fields)
    }
}
