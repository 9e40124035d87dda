//! The route of a sample's bytes, proven by independent counters.
//!
//! The counters are read before and after the timed part, never within.

use std::sync::Arc;

use forebay::gpu::DeviceInfo;
use forebay::{Direction, Engine, File, Outcome, Route};
use forebay_evidence::{Claim, Evidence, GpuLink, Memory, Sources, Verdict, verdict};
use forebay_topology::Resolver;

/// The counters of this machine and of the target.
#[derive(Debug)]
pub struct Prover {
    resolver: Resolver,
    link: GpuLink,
    memory: Memory,
    gpu: Option<DeviceInfo>,
}

impl Prover {
    /// A prover of moves to and from a GPU, or host memory.
    #[must_use]
    pub fn new(device: Option<&DeviceInfo>) -> Self {
        let memory = match device {
            None => Memory::Host,
            Some(info) if info.simulated => Memory::SimulatedGpu,
            Some(_) => Memory::Gpu,
        };
        let link = device.map_or_else(GpuLink::none, GpuLink::find);
        Self { resolver: Resolver::default(), link, memory, gpu: device.cloned() }
    }

    /// The counters for moves of the first bytes of each of `files`, which belong to `engine`, with
    /// the links of further GPUs that work concurrently.
    #[must_use]
    pub fn sources(&self, engine: &Engine, files: &[(File, u64)], others: &[Arc<Self>]) -> Sources {
        let sources = Sources::new(self.resolver.system()).gpu(&self.link).engine(engine);
        let sources = files.iter().fold(sources, |sources, (file, len)| {
            sources.file(file, 0, *len, &self.resolver.resolve(file.path()))
        });
        others.iter().fold(sources, |sources, other| sources.gpu(&other.link))
    }

    /// The proof of a move. `other` has the concurrent bytes of the opposite direction, with their
    /// block size (0 if unknown).
    #[must_use]
    pub fn proof(
        &self,
        evidence: Evidence,
        moved: &Moved,
        direction: Direction,
        other: (&Moved, u64),
    ) -> Proof {
        let mut claim = Claim::silent(direction, moved.bytes, self.memory);
        claim.routes.clone_from(&moved.routes);
        (claim.concurrent, claim.request) = (other.0.counts(), other.1);
        let claim = match &self.gpu {
            Some(gpu) => claim.on(gpu),
            None => claim,
        };
        Proof { verdict: verdict(&evidence, &claim), evidence, claim }
    }
}

/// Bytes that were moved in one direction.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Moved {
    /// Their number.
    pub bytes: u64,
    /// Bytes by route, as the method itself reports them; empty if it does not.
    pub routes: Vec<(Route, u64)>,
}

impl Moved {
    /// The bytes of a transfer by the engine.
    #[must_use]
    pub fn of(outcome: &Outcome) -> Self {
        let routes = outcome.routes.iter().map(|share| (share.route, share.bytes)).collect();
        Self { bytes: outcome.bytes, routes }
    }

    /// The bytes, and those of them that are reported as bypassing the page cache.
    #[must_use]
    pub fn counts(&self) -> (u64, u64) {
        let past = self.routes.iter().filter(|(r, _)| matches!(r, Route::Staged | Route::Direct));
        (self.bytes, past.map(|(_, bytes)| bytes).sum::<u64>().min(self.bytes))
    }
}

/// The proof of one move, with its sources.
#[derive(Debug, Clone, PartialEq)]
pub struct Proof {
    /// The report of the method itself.
    pub claim: Claim,
    /// The independent counters.
    pub evidence: Evidence,
    /// The conclusion.
    pub verdict: Verdict,
}

#[cfg(test)]
mod tests {
    use forebay::gpu::{DeviceId, DeviceKind};

    use super::*;

    #[test]
    fn a_claim_names_its_gpu() {
        let mut info = DeviceInfo {
            id: DeviceId { kind: DeviceKind::Sim, index: 0 },
            name: String::new(),
            uuid: "GPU-1".into(),
            pci_address: String::new(),
            driver: String::new(),
            memory: 1,
            simulated: true,
        };
        let moved = Moved { bytes: 1, routes: Vec::new() };
        let none = Moved::default();
        let claim = |info: Option<&DeviceInfo>| {
            Prover::new(info).proof(Evidence::default(), &moved, Direction::Write, (&none, 0)).claim
        };
        let named = claim(Some(&info));
        assert_eq!((named.gpu.as_deref(), named.memory), (Some("GPU-1"), Memory::SimulatedGpu));
        assert_eq!((named.bytes, named.direction), (1, Direction::Write));
        info.uuid.clear();
        assert_eq!(claim(Some(&info)).gpu, None);
        assert_eq!((claim(None).gpu, claim(None).memory), (None, Memory::Host));
    }
}
