//! Judges bytes that went through a library: their path by its counters, checked against the rest.
//!
//! The library's counters show the path, but alone they never prove that bytes were moved.

use forebay_cufile::{Counters, Moves, Paths};

use super::{
    DataPath, Direction, Judge, LEN_MIN, MIB, Memory, PageCache, Route, Seen, Storage, size,
};
use crate::nvidia_fs::NvidiaFs;

/// Remedy if cuFile's counters are missing.
const CUFILE: &str =
    "use cuFile 1.15 or later with its statistics at level 3 (`cuFileSetStatsLevel`)";
/// Remedy if the counts of several GPUs cannot be separated.
const NAMED: &str =
    "name the GPU in the claim (`Claim::on`), or restrict the process to a single GPU";

impl Judge<'_> {
    /// Adds the paths of `bytes` that went through a library, by its counters.
    pub(super) fn direct(&mut self, bytes: u64) {
        match &self.evidence.cufile {
            Seen::Value(counters) => self.by_cufile(counters, bytes),
            Seen::Nothing(_) | Seen::NotQueried | Seen::Missing(_) => self.by_nvidia_fs(bytes),
        }
    }

    fn by_cufile(&mut self, counters: &Counters, bytes: u64) {
        if counters.gpus.is_empty() && counters.batches == 0 {
            return self.lacks("cuFile counted no GPU: its statistics are off", CUFILE);
        }
        let Some(moves) = self.calls(counters) else { return };
        let batched = self.by_batches(counters, bytes, moves.bytes);
        self.by_calls(bytes - batched, moves);
        let by_batches = counters.batch_bytes.unwrap_or(batched);
        let counted = moves.bytes.saturating_add(by_batches);
        if counted.saturating_add(self.slack) < bytes {
            let (bytes, counted) = (size(bytes), size(counted));
            let text = format!("{bytes} were reported as moved by cuFile, which counted {counted}");
            self.contradict(text);
        }
        if counted > bytes.saturating_add(bytes / 2).saturating_add(self.slack) {
            let counted = size(counted);
            self.doubts.push(format!(
                "cuFile counted {counted}: it also served other work in this process"
            ));
        }
        let Paths { p2pdma, nvidia_fs, posix, .. } = moves.by;
        self.grounds.push(format!(
            "cuFile counted {p2pdma} operations by p2pdma, {nvidia_fs} by nvidia-fs and {posix} by \
             POSIX"
        ));
    }

    /// Counts of single calls for the claim's GPU, if they can be separated from other GPUs'.
    fn calls(&mut self, counters: &Counters) -> Option<Moves> {
        let all = self.claim.pick(counters.reads(), counters.writes());
        let Some(uuid) = self.claim.gpu.as_deref() else {
            match counters.busy(|gpu| self.claim.pick(gpu.reads, gpu.writes)) {
                0 => {}
                // A simulated GPU lacks a UUID, and is the only GPU then.
                1 if self.claim.memory == Memory::Gpu && counters.gpus.len() > 1 => {
                    self.doubts
                        .push("cuFile knows several GPUs, of which a single GPU was used".into());
                }
                1 => {}
                many => self.lacks(
                    format!("cuFile counted for {many} GPUs, and the claim does not name its GPU"),
                    NAMED,
                ),
            }
            return Some(all);
        };
        let own = counters.of_gpu(uuid);
        // Batches are not counted per GPU, so a GPU used only by batches may have no record.
        if own.is_none() && counters.batches == 0 {
            let why = format!("cuFile counted nothing for `{uuid}`, only for other GPUs");
            self.lacks(why, NAMED);
            return None;
        }
        let own = own.unwrap_or_default();
        Some(self.claim.pick(own.reads, own.writes))
    }

    /// Adds the paths of batches and returns how many of `bytes` they moved. Single calls moved
    /// `called` of them.
    fn by_batches(&mut self, counters: &Counters, bytes: u64, called: u64) -> u64 {
        let batches = counters.batches;
        if batches == 0 {
            return 0;
        }
        let rest = bytes.saturating_sub(called);
        let counted = counters.batch_bytes.unwrap_or(rest);
        // If more was counted than claimed, it is unknown which part belongs to other transfers.
        let all = u128::from(called) + u128::from(counted);
        let batched = if all > u128::from(bytes) {
            u64::try_from(u128::from(bytes) * u128::from(counted) / all).unwrap_or(bytes)
        } else {
            counted
        };
        if counters.batches_by.total() == 0 {
            let why = format!("cuFile counted {batches} batches, and not by which path they went");
            self.lacks(why, "move the same bytes by calls that are no batches");
        }
        if rest > 0 && counters.batch_bytes.is_none() {
            self.doubts.push(format!(
                "cuFile counted {batches} batches, of unknown bytes: that they moved {} is \
                 inferred",
                size(rest)
            ));
        }
        if rest > 0 && counters.gpus.len() > 1 {
            if self.link_has_seen() {
                self.doubts.push("cuFile counts batches for all GPUs together".into());
            } else {
                self.lacks(
                    "cuFile counts batches for all GPUs together, and this one's link does not \
                     show that they were its",
                    "add the GPU's link to the sources, or restrict the process to a single GPU",
                );
            }
        }
        self.divide(batched, counters.batches_by);
        batched
    }

    /// Adds the paths of single calls.
    fn by_calls(&mut self, bytes: u64, moves: Moves) {
        if bytes == 0 {
            return;
        }
        let (known, all) = (moves.by.total(), moves.operations);
        if known == 0 && all == 0 && bytes > self.slack {
            let bytes = size(bytes);
            self.contradict(format!(
                "{bytes} were reported as moved by cuFile, which counted none"
            ));
        } else if known < all || known == 0 {
            let why = format!("of {all} operations cuFile counted only {known} by their path");
            self.lacks(why, "move whole aligned blocks, or use a different version of cuFile");
        }
        self.divide(bytes, moves.by);
    }

    /// Divides `bytes` among the paths in proportion to their operations.
    fn divide(&mut self, bytes: u64, by: Paths) {
        let ways = [
            (DataPath::P2pdma, by.p2pdma),
            (DataPath::NvidiaFs, by.nvidia_fs),
            (DataPath::Compat, by.posix),
        ];
        let total: u128 = ways.iter().map(|(_, count)| u128::from(*count)).sum();
        for (way, count) in ways.into_iter().filter(|(_, count)| *count > 0) {
            let part = u128::from(bytes) * u128::from(count) / total;
            // A path with operations gets at least a byte.
            self.ways.push((way, u64::try_from(part).unwrap_or(bytes).max(1)));
        }
    }

    /// Without cuFile's counters only nvidia-fs's, which are for all processes, can prove a direct
    /// path.
    fn by_nvidia_fs(&mut self, bytes: u64) {
        let counted = self.evidence.nvidia_fs.value().map(|counts| {
            self.claim.pick((counts.reads, counts.read), (counts.writes, counts.written))
        });
        // The module counts whole MiB.
        let enough = |counted: u64| counted.saturating_add(self.slack.max(MIB)) >= bytes;
        match counted {
            Some((requests, counted)) if requests > 0 && counted > 0 && enough(counted) => {
                self.ways.push((DataPath::NvidiaFs, bytes));
                self.grounds.push(format!("nvidia-fs counted {requests} requests"));
                self.doubts.push("nvidia-fs counts for all processes together".into());
            }
            _ => self.missing.extend(self.evidence.cufile.lack("cuFile's own counters", CUFILE)),
        }
    }

    /// Sum of the bytes on the selected paths so far.
    fn direct_bytes(&self, which: impl Fn(DataPath) -> bool) -> u64 {
        let found = self.ways.iter().filter(|(way, _)| which(*way));
        found.fold(0, |sum, (_, bytes)| sum.saturating_add(*bytes))
    }

    /// Checks a direct path against all other counters, because a library may be wrong about it.
    pub(super) fn confirm_direct(&mut self) {
        let direct = self.direct_bytes(DataPath::is_direct);
        if direct == 0 {
            return;
        }
        self.confirm_nvidia_fs();
        if self.are_too_few(direct) {
            return;
        }
        self.confirm_drives(direct);
        if let Some(cache) = self.evidence.page_cache.value().copied() {
            self.confirm_cache(direct, cache);
        }
        if let Some(moved) = self.evidence.dram.value()
            && *moved > direct.saturating_add(direct / 2)
        {
            let moved = size(*moved);
            self.doubts.push(format!(
                "the host's memory moved {moved} during the span, which a direct path does not use"
            ));
        }
    }

    /// Checks `direct` bytes against the page cache.
    fn confirm_cache(&mut self, direct: u64, cache: PageCache) {
        let others = self.claim.bytes - direct.min(self.claim.bytes);
        let others = others.saturating_add(self.claim.concurrent_through());
        if cache.grown() > others.saturating_add(self.slack) {
            let (direct, grown) = (size(direct), size(cache.grown()));
            self.contradict(format!(
                "{direct} were reported as direct, but {grown} came into the page cache"
            ));
        }
        // O_DIRECT writes drop the same bytes from the page cache.
        let left = cache.len.saturating_sub(direct).saturating_add(self.slack);
        if self.claim.direction == Direction::Write && cache.after > left {
            let (direct, after) = (size(direct), size(cache.after));
            self.lacks(
                format!(
                    "{direct} were reported as written directly, but {after} of the range \
                     are in the page cache, from where the drives may have them"
                ),
                "drop the file's pages before the span",
            );
        }
    }

    /// Whether `direct` bytes are too few for other counters to refute the library. Among many
    /// other bytes this is a doubt; alone it proves nothing.
    fn are_too_few(&mut self, direct: u64) -> bool {
        if self.evidence.storage == Storage::Memory {
            return false; // without a drive, even one byte is wrong
        }
        let within = direct <= self.slack;
        let text = size(direct);
        if within && self.claim.bytes.saturating_sub(direct) >= LEN_MIN {
            self.doubts.push(format!(
                "that {text} went directly is the library's word alone: other counters do not \
                 show so few among the others"
            ));
        } else if within || direct < LEN_MIN {
            let least = size(LEN_MIN);
            self.lacks(
                format!("no counter but the library's own shows that {text} went directly"),
                format!("move at least {least} directly in one span"),
            );
        }
        within
    }

    /// Checks `direct` bytes against the storage counters.
    fn confirm_drives(&mut self, direct: u64) {
        let (own, all) = self.storage_bytes();
        let is_memory = self.evidence.storage == Storage::Memory;
        let (holes, slack) = match self.evidence.page_cache.value() {
            _ if is_memory => (0, 0),
            Some(cache) => (cache.holes, self.slack),
            None => (0, self.slack),
        };
        let Some(most) = own.max(all) else {
            if self.is_counted_elsewhere(direct) {
                self.doubts.push("no counter of the drives confirms it".into());
            } else {
                self.lacks(
                    "no counter but the library's own shows that these bytes were moved",
                    "name the file to the sources, on storage whose drives or servers count",
                );
            }
            return;
        };
        // Bytes that came into the page cache were read from the drives too.
        let needed = direct.saturating_add(self.filled());
        let enough = |bytes: u64| bytes.saturating_add(holes).saturating_add(slack) >= needed;
        let (bytes, text, verb) = (size(direct), size(most), self.claim.pick("read", "written"));
        if !enough(most) {
            return self.contradict(format!(
                "{bytes} were reported as direct between drive and GPU, but the drives have \
                 {verb} {text}"
            ));
        }
        self.grounds.push(format!("the drives have {verb} {text}"));
        self.confirm_holes(needed, most);
        let compat = self.direct_bytes(|way| way == DataPath::Compat);
        if compat > slack && !enough(most.saturating_sub(compat)) {
            self.doubts.push(format!(
                "the {text} may be those of the {} that the library moved through host memory",
                size(compat)
            ));
        }
        match (own, all) {
            (Some(own), Some(all)) if !enough(all) => {
                let (own, all) = (size(own), size(all));
                self.lacks(
                    format!(
                        "the drives below the files have {verb} {all}: the {own} of this process \
                         may be those of other files"
                    ),
                    "repeat it while the process moves nothing else",
                );
            }
            (Some(own), Some(_)) if !enough(own) => self.doubts.push(format!(
                "the drives have {verb} {text} for all processes together, and this process {}",
                size(own)
            )),
            (Some(_), Some(_)) => {}
            (own, _) if most > self.claim.bytes.saturating_mul(2) => {
                let whose = if own.is_some() { "this process" } else { "all processes together" };
                self.doubts.push(format!("{text} were {verb} for {whose}: more than this span's"));
            }
            _ => {}
        }
    }

    /// Bytes read from the drives into the page cache; only for reads.
    fn filled(&self) -> u64 {
        let cache = self.evidence.page_cache.value();
        cache.filter(|_| self.claim.direction == Direction::Read).map_or(0, |cache| {
            let others = self.claim.bytes - self.claim.by(Route::Direct).min(self.claim.bytes);
            cache.grown().saturating_sub(cache.encoded).min(others)
        })
    }

    /// Holes are not read from a drive, so a second counter must show these bytes.
    fn confirm_holes(&mut self, direct: u64, most: u64) {
        let unseen = direct.saturating_sub(most);
        if unseen <= self.slack || self.link_has_seen() {
            return;
        }
        let text = format!(
            "{} may be holes, which no drive reads, so that nothing but the library shows \
             that they were moved",
            size(unseen)
        );
        if most <= self.slack {
            self.lacks(text, "use a file that is stored as a whole, or add the GPU's link");
        } else {
            self.doubts.push(text);
        }
    }

    /// Whether nvidia-fs or the GPU's link saw the bytes that the library claims.
    fn is_counted_elsewhere(&self, direct: u64) -> bool {
        // nvidia-fs does not see p2pdma: its counts are then other transfers'.
        let is_all = self.direct_bytes(|way| way == DataPath::NvidiaFs) == direct;
        let by_nvidia_fs =
            self.evidence.nvidia_fs.value().filter(|_| is_all).is_some_and(|counts| {
                let counted = self.claim.pick(counts.read, counts.written);
                counted > 0 && counted.saturating_add(self.slack.max(MIB)) >= direct
            });
        by_nvidia_fs || self.link_has_seen()
    }

    /// Whether the GPU's link saw all bytes; staged bytes cross it too.
    fn link_has_seen(&self) -> bool {
        let is_link = self.claim.memory == Memory::Gpu;
        self.evidence.gpu.value().filter(|_| is_link).is_some_and(|link| {
            let moved = self.claim.pick(link.received, link.sent);
            moved.saturating_add(self.slack) >= self.claim.bytes
        })
    }

    fn confirm_nvidia_fs(&mut self) {
        let bytes = self.direct_bytes(|way| way == DataPath::NvidiaFs);
        if bytes == 0 {
            return;
        }
        let bytes = size(bytes);
        let requests =
            |counts: &NvidiaFs| self.claim.pick(counts.reads, counts.writes).max(counts.batches);
        match &self.evidence.nvidia_fs {
            Seen::Value(counts) if requests(counts) == 0 => {
                self.contradict(format!(
                    "{bytes} were reported as moved by nvidia-fs, which counted no request"
                ));
            }
            Seen::Nothing(why) => {
                self.contradict(format!("{bytes} were reported as moved by nvidia-fs, but {why}"));
            }
            _ => {}
        }
    }
}
