//! From evidence and a claim to a verdict: pure.
//!
//! A claim is never believed by itself. Each way needs a counter that says so, and every other one
//! that was read has to agree: bytes from drives came from the drives, bytes from the page cache
//! did not, and the GPU's link has seen them. `direct` needs cuFile's or nvidia-fs's counters.

use super::claim::{Claim, Memory};
use super::cufile::{Counters, Moves, Paths};
use super::evidence::{Evidence, PageCache, Storage};
use super::pcie::How;
use super::seen::{Missing, Seen};
use super::verdict::{Finding, Verdict, Way};
use crate::plan::Route;
use crate::queue::Direction;
use crate::units::{KIB, MIB, format_size as size};

/// Fewer bytes than this are lost among what a file system reads for itself.
const LEN_MIN: u64 = MIB;
/// What counters may differ by: a fiftieth, an eighth where pages were only looked at here and
/// there, and what finding a file's blocks takes.
const SLACK: u64 = 64 * KIB;
/// How to have cuFile count.
const CUFILE: &str =
    "use cuFile 1.15 or later with its statistics at level 3 (`cuFileSetStatsLevel`)";

/// What is proven of a span of work: that `claim` is so, or what else, or why that is not known.
#[must_use]
pub fn verdict(evidence: &Evidence, claim: &Claim) -> Verdict {
    let mut judge = Judge::new(evidence, claim);
    judge.weigh();
    judge.finish()
}

struct Judge<'a> {
    evidence: &'a Evidence,
    claim: &'a Claim,
    slack: u64,
    ways: Vec<(Way, u64)>,
    grounds: Vec<String>,
    missing: Vec<Missing>,
    contradictions: Vec<String>,
    doubts: Vec<String>,
}

impl<'a> Judge<'a> {
    fn new(evidence: &'a Evidence, claim: &'a Claim) -> Self {
        let is_estimate = evidence.page_cache.told().is_some_and(PageCache::is_estimate);
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
        let (bytes, told) = (self.claim.bytes, self.claim.told());
        if bytes == 0 {
            return self.lacks("nothing was moved", "move bytes while the span is open");
        }
        if told != 0 && told != bytes {
            let (told, bytes) = (size(told), size(bytes));
            self.contradict(format!("the routes of {bytes} that were moved add up to {told}"));
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

    /// Adds what a library's counters say of `bytes` that went through it.
    fn direct(&mut self, bytes: u64) {
        match &self.evidence.cufile {
            Seen::Told(counters) => self.by_cufile(counters, bytes),
            Seen::Nothing(_) | Seen::Missing(_) => self.by_nvidia_fs(bytes),
        }
    }

    fn by_cufile(&mut self, counters: &Counters, bytes: u64) {
        if counters.gpus.is_empty() && counters.batches == 0 {
            return self.lacks("cuFile counted no GPU: its statistics are off", CUFILE);
        }
        let moves = match self.claim.direction {
            Direction::Read => counters.reads(),
            Direction::Write => counters.writes(),
        };
        let mut batched = 0;
        if counters.batches > 0 {
            let rest = bytes.saturating_sub(moves.bytes);
            batched = counters.batch_bytes.unwrap_or(rest).min(bytes);
            if counters.batches_by.total() == 0 {
                let why = format!(
                    "cuFile counted {} batches, and not by which path they went",
                    counters.batches
                );
                self.lacks(why, "move the same bytes by calls that are no batches");
            }
            self.divide(batched, counters.batches_by);
        }
        self.by_calls(bytes - batched, moves);
        let counted = moves.bytes.saturating_add(batched);
        if counted.saturating_add(self.slack) < bytes {
            let (bytes, counted) = (size(bytes), size(counted));
            let text = format!("{bytes} are said to have gone by cuFile, which counted {counted}");
            self.contradict(text);
        }
        if counted > bytes.saturating_add(bytes / 2).saturating_add(self.slack) {
            let counted = size(counted);
            self.doubts.push(format!("cuFile counted {counted}: it served others in this process"));
        }
        let Paths { p2pdma, nvidia_fs, posix, .. } = moves.by;
        self.grounds.push(format!(
            "cuFile counted {p2pdma} operations by p2pdma, {nvidia_fs} by nvidia-fs and {posix} by \
             POSIX"
        ));
    }

    /// Divides what went by single calls.
    fn by_calls(&mut self, bytes: u64, moves: Moves) {
        if bytes == 0 {
            return;
        }
        let (known, all) = (moves.by.total(), moves.operations);
        if known == 0 && all == 0 && bytes > self.slack {
            let bytes = size(bytes);
            self.contradict(format!("{bytes} are said to have gone by cuFile, which counted none"));
        } else if known < all || known == 0 {
            let why = format!("of {all} operations cuFile counted only {known} by their path");
            self.lacks(why, "move whole aligned blocks, or take another version of cuFile");
        }
        self.divide(bytes, moves.by);
    }

    /// Adds `bytes` by way, as operations were counted.
    fn divide(&mut self, bytes: u64, by: Paths) {
        let ways =
            [(Way::P2pdma, by.p2pdma), (Way::NvidiaFs, by.nvidia_fs), (Way::Compat, by.posix)];
        let total: u128 = ways.iter().map(|(_, count)| u128::from(*count)).sum();
        for (way, count) in ways.into_iter().filter(|(_, count)| *count > 0) {
            let part = u128::from(bytes) * u128::from(count) / total;
            // A way that was counted is never nothing.
            self.ways.push((way, u64::try_from(part).unwrap_or(bytes).max(1)));
        }
    }

    /// Without cuFile's counters only nvidia-fs's, which are everybody's, can show a direct path.
    fn by_nvidia_fs(&mut self, bytes: u64) {
        let counted = self.evidence.nvidia_fs.told().map(|counts| match self.claim.direction {
            Direction::Read => (counts.reads, counts.read),
            Direction::Write => (counts.writes, counts.written),
        });
        // Whole MiB are counted.
        let enough = |counted: u64| counted.saturating_add(self.slack.max(MIB)) >= bytes;
        match counted {
            Some((requests, counted)) if requests > 0 && enough(counted) => {
                self.ways.push((Way::NvidiaFs, bytes));
                self.grounds.push(format!("nvidia-fs counted {requests} requests"));
                self.doubts.push("nvidia-fs counts for all processes together".into());
            }
            _ => self.missing.extend(self.evidence.cufile.lack("cuFile's own counters", CUFILE)),
        }
    }

    /// Bytes that took a direct path, as far as it is said by now.
    fn direct_bytes(&self, which: impl Fn(Way) -> bool) -> u64 {
        let found = self.ways.iter().filter(|(way, _)| which(*way));
        found.fold(0, |sum, (_, bytes)| sum.saturating_add(*bytes))
    }

    /// Holds a direct path against what all other counters say: a library may be wrong about it.
    fn confirm_direct(&mut self) {
        let direct = self.direct_bytes(Way::is_direct);
        if direct <= self.slack {
            return;
        }
        let (own, all) = self.storage_bytes();
        let holes = self.evidence.page_cache.told().map_or(0, |cache| cache.holes);
        match own.max(all) {
            Some(most) if most.saturating_add(holes).saturating_add(self.slack) < direct => {
                let (bytes, most, verb) = (size(direct), size(most), self.claim.moved());
                self.contradict(format!(
                    "{bytes} are said to have gone directly between drive and GPU, but the drives \
                     have {verb} {most}"
                ));
            }
            Some(most) => {
                let (most, verb) = (size(most), self.claim.moved());
                self.grounds.push(format!("the drives have {verb} {most}"));
            }
            None if self.is_counted_elsewhere(direct) => {
                self.doubts.push("no counter of the drives confirms it".into());
            }
            None => self.lacks(
                "no counter but the library's own shows that these bytes were moved",
                "name the file to the sources, on storage whose drives or servers count",
            ),
        }
        if let Some(cache) = self.evidence.page_cache.told() {
            let others = self.claim.bytes - direct.min(self.claim.bytes);
            if cache.grown() > others.saturating_add(self.slack) {
                let (direct, grown) = (size(direct), size(cache.grown()));
                self.contradict(format!(
                    "{direct} are said to have gone directly, but {grown} came into the page cache"
                ));
            }
        }
        self.confirm_nvidia_fs();
        if let Some(moved) = self.evidence.dram.told()
            && *moved > direct.saturating_add(direct / 2)
        {
            let moved = size(*moved);
            self.doubts.push(format!(
                "the host's memory moved {moved} meanwhile, which a direct path leaves alone"
            ));
        }
    }

    /// Whether nvidia-fs or the GPU's link has seen bytes that a library says it has moved.
    fn is_counted_elsewhere(&self, direct: u64) -> bool {
        let by_nvidia_fs = self.evidence.nvidia_fs.told().is_some_and(|counts| {
            let counted = match self.claim.direction {
                Direction::Read => counts.read,
                Direction::Write => counts.written,
            };
            counted.saturating_add(self.slack.max(MIB)) >= direct
        });
        let is_link = self.claim.memory == Memory::Gpu;
        let by_link = self.evidence.gpu.told().filter(|_| is_link).is_some_and(|link| {
            let moved = match self.claim.direction {
                Direction::Read => link.received,
                Direction::Write => link.sent,
            };
            link.how != How::Windows && moved.saturating_add(self.slack) >= direct
        });
        by_nvidia_fs || by_link
    }

    fn confirm_nvidia_fs(&mut self) {
        let bytes = self.direct_bytes(|way| way == Way::NvidiaFs);
        if bytes <= self.slack {
            return;
        }
        let bytes = size(bytes);
        match &self.evidence.nvidia_fs {
            Seen::Told(counts) if counts.reads.max(counts.writes).max(counts.batches) == 0 => {
                self.contradict(format!(
                    "{bytes} are said to have gone by nvidia-fs, which counted no request"
                ));
            }
            Seen::Nothing(why) if why != "nobody asked" => {
                self.contradict(format!("{bytes} are said to have gone by nvidia-fs, but {why}"));
            }
            _ => {}
        }
    }

    /// Bytes that storage moved in the claim's direction: for this process, and for everybody.
    fn storage_bytes(&self) -> (Option<u64>, Option<u64>) {
        let evidence = self.evidence;
        let pick = |(read, written)| match self.claim.direction {
            Direction::Read => read,
            Direction::Write => written,
        };
        let own = evidence.process.told().map(|bytes| pick((bytes.read, bytes.written)));
        let mounts = evidence.nfs.told().map(|mounts| {
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

    /// The GPU's link has to have seen what went to the GPU or came from it, whichever the way.
    fn link(&mut self) {
        let Seen::Told(link) = &self.evidence.gpu else { return };
        let bytes = self.claim.bytes;
        let (moved, verb) = match self.claim.direction {
            Direction::Read => (link.received, "received"),
            Direction::Write => (link.sent, "sent"),
        };
        let text = format!("the GPU {verb} {} over PCIe", size(moved));
        if link.how == How::Windows {
            if moved < bytes / 4 {
                self.doubts.push(format!("{text}, by samples of its rate"));
            }
        } else if link.may_have_wrapped {
            self.doubts.push(format!("{text}, or more: its counter may have begun anew"));
        } else if moved < bytes / 2 {
            let whole = size(bytes);
            self.contradict(format!("{whole} are said to have been moved, but {text}"));
        } else if moved > bytes.saturating_add(bytes / 2).saturating_add(16 * MIB) {
            self.doubts.push(format!("{text}: others used it as well"));
        } else {
            self.grounds.push(text);
        }
    }
}

mod host;
#[cfg(test)]
mod tests;
