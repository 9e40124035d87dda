//! The claim about a span of work, reported by its mover, for a verdict to confirm or refute.

use forebay::gpu::DeviceInfo;
use forebay::{Direction, Outcome, Route};
use serde::Serialize;
use serde_json::{Value, json};

/// The claim about a span of work.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Claim {
    /// From files (read) or to files (write).
    pub direction: Direction,
    /// Bytes moved.
    pub bytes: u64,
    /// The memory at the other end.
    pub memory: Memory,
    /// The UUID of the GPU, if known: a library keeps counts per GPU of the process.
    pub gpu: Option<String>,
    /// Bytes by route, as the mover reports them; empty if it reports nothing. `Direct` means
    /// handed to a library such as cuFile, whichever path the bytes took there.
    pub routes: Vec<(Route, u64)>,
    /// Bytes that the same span moved in the opposite direction within the same range, and how many
    /// of them are reported to have bypassed the page cache. Both directions share the page cache,
    /// so either may have changed it.
    pub concurrent: (u64, u64),
    /// Request size in bytes: of all requests if they are equal, or of the smallest; 0 if unknown.
    /// A request smaller than a storage block fetches the whole block.
    pub request: u64,
}

/// The memory at the other end.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Memory {
    /// Memory of a GPU.
    Gpu,
    /// Host memory that simulates a GPU's.
    SimulatedGpu,
    /// Host memory.
    Host,
}

impl Claim {
    /// A claim without routes: the mover does not report the path.
    pub const fn silent(direction: Direction, bytes: u64, memory: Memory) -> Self {
        Self {
            direction,
            bytes,
            memory,
            gpu: None,
            routes: Vec::new(),
            concurrent: (0, 0),
            request: 0,
        }
    }

    /// The engine's claim about a transfer.
    pub fn of(outcome: &Outcome, direction: Direction, memory: Memory) -> Self {
        let routes = outcome.routes.iter().map(|share| (share.route, share.bytes)).collect();
        Self { routes, ..Self::silent(direction, outcome.bytes, memory) }
    }

    /// Sets the GPU whose memory was used. Without it, nothing is proven direct if a library
    /// counts for several GPUs.
    pub fn on(mut self, gpu: &DeviceInfo) -> Self {
        self.gpu = (!gpu.uuid.is_empty()).then(|| gpu.uuid.clone());
        self
    }

    /// Bytes reported on `route`.
    pub fn by(&self, route: Route) -> u64 {
        let shares = self.routes.iter().filter(|(name, _)| *name == route);
        shares.fold(0, |sum, (_, bytes)| sum.saturating_add(*bytes))
    }

    /// Bytes moved in the opposite direction that are not reported to have bypassed the page cache.
    pub(super) fn concurrent_through(&self) -> u64 {
        self.concurrent.0.saturating_sub(self.concurrent.1)
    }

    /// Sum of the bytes of all routes.
    pub(super) fn reported(&self) -> u64 {
        self.routes.iter().fold(0, |sum, (_, bytes)| sum.saturating_add(*bytes))
    }

    /// The value for the claim's direction.
    pub(super) fn pick<T>(&self, read: T, written: T) -> T {
        match self.direction {
            Direction::Read => read,
            Direction::Write => written,
        }
    }

    /// The claim as a JSON object; docs/json-schema.md describes it.
    pub fn to_json(&self) -> Value {
        let route = |(route, bytes): &(Route, u64)| json!({"route": route.name(), "bytes": bytes});
        let mut claim = json!({
            "direction": self.direction.name(),
            "bytes": self.bytes,
            "memory": self.memory,
            "gpu": self.gpu,
            "routes": self.routes.iter().map(route).collect::<Vec<_>>(),
        });
        if let (bytes @ 1.., past) = self.concurrent {
            claim["concurrent"] = json!({"bytes": bytes, "past": past});
        }
        if self.request > 0 {
            claim["request"] = self.request.into();
        }
        claim
    }
}
