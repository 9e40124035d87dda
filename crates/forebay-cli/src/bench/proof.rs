//! The route of a sample's bytes, proven by independent counters.
//!
//! The counters are read before and after the timed part, never within.

use std::sync::Arc;

use forebay::gpu::DeviceInfo;
use forebay::{Engine, File, Route};
use forebay_evidence::{Claim, Evidence, GpuLink, Memory, Sources, Verdict, verdict};
use forebay_topology::Resolver;

use super::route::Moved;
use crate::report::json::Direction;

/// The note for moves with several targets.
const DIVIDED: &str = "drives and page cache were counted for all targets together; the counts \
                       are divided in proportion to the bytes of each target";

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

    /// The counters for moves of the first bytes of each of `files`, which belong to `engine`.
    #[must_use]
    pub fn sources(&self, engine: &Engine, files: &[(File, u64)]) -> Sources {
        let sources = Sources::new(self.resolver.system()).gpu(&self.link).engine(engine);
        files.iter().fold(sources, |sources, (file, len)| {
            sources.file(file, 0, *len, &self.resolver.resolve(file.path()))
        })
    }

    /// Like `sources`, with the links of further GPUs that work concurrently.
    #[must_use]
    pub fn sources_with(
        &self,
        engine: &Engine,
        files: &[(File, u64)],
        others: &[Arc<Self>],
    ) -> Sources {
        let sources = self.sources(engine, files);
        others.iter().fold(sources, |sources, other| sources.gpu(&other.link))
    }

    /// The proof of a move.
    #[must_use]
    pub fn proof(&self, evidence: Evidence, moved: &Moved, direction: Direction) -> Proof {
        self.proof_beside(evidence, moved, direction, ((0, 0), 0))
    }

    /// Like `proof`, when the opposite direction moved bytes concurrently. `beside` has those bytes
    /// and the part of them that was reported as bypassing the page cache. `request` is their block
    /// size (0 if unknown).
    #[must_use]
    pub fn proof_beside(
        &self,
        evidence: Evidence,
        moved: &Moved,
        direction: Direction,
        (beside, request): ((u64, u64), u64),
    ) -> Proof {
        let direction = match direction {
            Direction::Read => forebay::Direction::Read,
            Direction::Write => forebay::Direction::Write,
        };
        let mut claim = Claim::silent(direction, moved.bytes, self.memory);
        claim.routes.clone_from(&moved.said);
        (claim.beside, claim.request) = (beside, request);
        let claim = match &self.gpu {
            Some(gpu) => claim.on(gpu),
            None => claim,
        };
        Proof { verdict: verdict(&evidence, &claim), evidence, claim }
    }

    /// The proof of one target's part in a move of `all` bytes, which include the bytes reported as
    /// bypassing the page cache. `own_beside` is the target's own share, with its block size.
    #[must_use]
    pub fn proof_of_part(
        &self,
        evidence: &Evidence,
        moved: &Moved,
        direction: Direction,
        (all, own_beside): ((u64, u64), ((u64, u64), u64)),
    ) -> Proof {
        let own = (moved.bytes, past(moved.said.iter().copied()));
        let mut proof = self.proof_beside(evidence.of_part(own, all), moved, direction, own_beside);
        proof.verdict.doubts.push(DIVIDED.into());
        proof
    }
}

/// Bytes that are reported as bypassing the page cache.
pub fn past(said: impl Iterator<Item = (Route, u64)>) -> u64 {
    let past = said.filter(|(route, _)| matches!(route, Route::Staged | Route::Direct));
    past.map(|(_, bytes)| bytes).sum()
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
        let moved = Moved { bytes: 1, route: None, reason: None, said: Vec::new() };
        let claim = |info: Option<&DeviceInfo>| {
            Prover::new(info).proof(Evidence::default(), &moved, Direction::Write).claim
        };
        let named = claim(Some(&info));
        assert_eq!((named.gpu.as_deref(), named.memory), (Some("GPU-1"), Memory::SimulatedGpu));
        assert_eq!((named.bytes, named.direction), (1, forebay::Direction::Write));
        info.uuid.clear();
        assert_eq!(claim(Some(&info)).gpu, None);
        assert_eq!((claim(None).gpu, claim(None).memory), (None, Memory::Host));
    }
}
