//! Derives a verdict from evidence and a claim. Pure.
//!
//! A claim alone proves nothing. Every path needs a counter as evidence, and all other counters
//! must agree. Bytes from drives must show in the drives' counters, bytes from the page cache must
//! not, and all bytes must show on the GPU's link. `direct` needs the counters of cuFile or
//! nvidia-fs, and a second counter that saw as many bytes. An amount too small for any other
//! counter is not proven.

use forebay::{Direction, Route};
use forebay_base::units::{KIB, MIB, format_size as size};

use super::claim::{Claim, Memory};
use super::evidence::{Evidence, PageCache, Storage};
use super::seen::{Missing, Seen};
use super::verdict::{DataPath, Finding, Verdict};

/// Smaller amounts are lost in the reads of the file system itself.
const LEN_MIN: u64 = MIB;
/// Constant part of the tolerance: the reads for a file's block map. The full tolerance adds 1/50
/// of the bytes, or 1/8 if pages were only sampled.
const SLACK: u64 = 64 * KIB;
/// Judges a span of work: confirms or refutes `claim`, or reports why nothing is proven.
pub fn verdict(evidence: &Evidence, claim: &Claim) -> Verdict {
    let mut judge = Judge::new(evidence, claim);
    judge.weigh();
    judge.finish()
}

struct Judge<'a> {
    evidence: &'a Evidence,
    claim: &'a Claim,
    slack: u64,
    ways: Vec<(DataPath, u64)>,
    grounds: Vec<String>,
    missing: Vec<Missing>,
    contradictions: Vec<String>,
    doubts: Vec<String>,
}

impl<'a> Judge<'a> {
    fn new(evidence: &'a Evidence, claim: &'a Claim) -> Self {
        let is_estimate = evidence.page_cache.value().is_some_and(PageCache::is_estimate);
        Self {
            evidence,
            claim,
            slack: claim.bytes / if is_estimate { 8 } else { 50 } + SLACK,
            ways: Vec::new(),
            grounds: Vec::new(),
            missing: Vec::new(),
            contradictions: Vec::new(),
            doubts: Vec::new(),
        }
    }

    fn weigh(&mut self) {
        let (bytes, routed) = (self.claim.bytes, self.claim.reported());
        if bytes == 0 {
            return self.lacks("nothing was moved", "move bytes while the span is open");
        }
        if routed != 0 && routed != bytes {
            let (routed, bytes) = (size(routed), size(bytes));
            self.contradict(format!("the routes of {bytes} that were moved add up to {routed}"));
            return;
        }
        let direct = self.claim.by(Route::Direct);
        if direct > 0 {
            self.direct(direct);
            self.confirm_direct();
        }
        if bytes > direct {
            match self.claim.direction {
                Direction::Read => self.read(bytes - direct),
                Direction::Write => self.written(bytes - direct),
            }
        }
        if self.claim.memory == Memory::Gpu {
            self.link();
        }
    }

    fn finish(self) -> Verdict {
        let (mut finding, mut shares) = Verdict::of_ways(&self.ways);
        if !self.contradictions.is_empty() {
            (finding, shares) = (Finding::Contradictory, Vec::new());
        } else if !self.missing.is_empty() {
            (finding, shares) = (Finding::Unproven, Vec::new());
        }
        Verdict {
            finding,
            shares,
            simulated: self.claim.memory == Memory::SimulatedGpu,
            grounds: self.grounds,
            missing: self.missing,
            contradictions: self.contradictions,
            doubts: self.doubts,
        }
    }

    fn lacks(&mut self, why: impl Into<String>, remedy: impl Into<String>) {
        self.missing.push(Missing { why: why.into(), remedy: remedy.into() });
    }

    fn contradict(&mut self, text: String) {
        self.contradictions.push(text);
    }

    /// Bytes that storage moved in the claim's direction, for this process and for all processes.
    fn storage_bytes(&self) -> (Option<u64>, Option<u64>) {
        let evidence = self.evidence;
        let pick = |(read, written)| self.claim.pick(read, written);
        let own = evidence.process.value().map(|bytes| pick((bytes.read, bytes.written)));
        let mounts = evidence.nfs.value().map(|mounts| {
            let sum = |of: fn(&super::nfs::NfsMount) -> u64| {
                mounts.iter().map(of).fold(0, u64::saturating_add)
            };
            pick((sum(|mount| mount.server_read), sum(|mount| mount.server_written)))
        });
        match evidence.storage {
            Storage::Memory => (Some(0), Some(0)),
            Storage::Block => (own, evidence.front_bytes().map(pick)),
            Storage::Nfs => (own, mounts),
            Storage::Other => (None, None),
        }
    }

    /// Checks the GPU's link: all bytes from or to the GPU must have crossed it, whatever their
    /// path.
    fn link(&mut self) {
        let Seen::Value(link) = &self.evidence.gpu else { return };
        let bytes = self.claim.bytes;
        let (moved, verb) = self.claim.pick((link.received, "received"), (link.sent, "sent"));
        let text = format!("the GPU {verb} {} over PCIe", size(moved));
        if link.may_have_wrapped && moved.saturating_add(self.slack) < bytes {
            self.doubts.push(format!("{text}, or more: its counter may have begun anew"));
        } else if moved < bytes / 2 {
            let whole = size(bytes);
            self.contradict(format!("{whole} were reported as moved, but {text}"));
        } else if moved.saturating_add(self.slack) < bytes {
            self.doubts.push(format!("{text}: less than {}", size(bytes)));
        } else if moved > bytes.saturating_add(bytes / 2).saturating_add(16 * MIB) {
            self.doubts.push(format!("{text}: others used it as well"));
        } else {
            self.grounds.push(text);
        }
    }
}

mod direct;
mod host;
#[cfg(test)]
mod tests;
