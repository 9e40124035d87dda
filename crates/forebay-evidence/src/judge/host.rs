//! Judges bytes that went through host memory: from the page cache, through it, or with O_DIRECT.

use super::{DataPath, Direction, Judge, LEN_MIN, MIB, Memory, Route, Storage, size};
use crate::evidence::PageCache;

/// Remedy if page-cache state is missing.
const OWNER: &str = "run as the owner of the file, or as a user who may write it";
/// Remedy if storage counters are missing.
const COUNTED: &str = "use a file on a block device or NFS, where `/proc` and `/sys` are mounted";
/// Why pages of a range do not show which of its bytes bypassed the page cache.
const AGAIN: &str = "it does not show which bytes of a range were written again, or both read and \
                     written";
const CACHE: &str = "what is in the page cache";

impl Judge<'_> {
    /// Judges `bytes` that were read without a library.
    pub(super) fn read(&mut self, bytes: u64) {
        if self.is_an_edge(bytes) || self.is_too_small(bytes) {
            return;
        }
        let (own, all) = self.storage_bytes();
        // The lower count is right: they may include other files, or other processes.
        let known = [own, all].into_iter().flatten().min();
        let fetched = known.map(|bytes| bytes.saturating_sub(self.claim.by(Route::Direct)));
        let cache = self.evidence.page_cache.value().copied();
        if let Some(fetched) = fetched {
            let text = size(fetched);
            self.grounds.push(match cache {
                Some(cache) => {
                    let (before, after) = (size(cache.before), size(cache.after));
                    format!(
                        "{text} came from storage, and of the range {before} were in the page \
                         cache before and {after} after"
                    )
                }
                None => format!("{text} came from storage"),
            });
        }
        self.name_others(own, all);
        match self.read_past(bytes, fetched, cache) {
            Some(past) => self.compare(bytes, past, own.is_some()),
            None => self.lack_of_read(fetched.is_some(), cache.is_some()),
        }
    }

    /// How many of `bytes` came from storage with O_DIRECT, if this is known.
    fn read_past(
        &mut self,
        bytes: u64,
        fetched: Option<u64>,
        cache: Option<PageCache>,
    ) -> Option<u64> {
        match (fetched, cache) {
            (Some(fetched), _) if fetched <= self.slack => Some(0),
            (Some(fetched), Some(cache)) => {
                // Writes may have added pages that no read brought in, and dropped pages that a
                // read brought in.
                let grown = cache.grown();
                let own = grown.saturating_sub(self.claim.concurrent_through());
                let least = fetched.saturating_sub(grown.saturating_add(self.claim.concurrent.1));
                let most = fetched.saturating_sub(own);
                let direct = self.requested_as(least, cache.block);
                let why = match direct < least {
                    true => format!(
                        "reads of {} fetch whole blocks of {}",
                        size(self.claim.request),
                        size(cache.block)
                    ),
                    false => AGAIN.into(),
                };
                Some(self.within((direct.min(bytes), most.min(bytes)), direct.min(bytes), &why))
            }
            (None, Some(cache)) if cache.before.max(cache.after) <= self.slack => {
                self.doubts.push(
                    "no counter of this storage could be read: only that nothing came into the \
                     page cache says so"
                        .into(),
                );
                Some(bytes)
            }
            _ => None,
        }
    }

    /// Lower bound on the requested bytes for which `fetched` bytes were read with O_DIRECT:
    /// storage always returns whole blocks.
    fn requested_as(&self, fetched: u64, block: u64) -> u64 {
        let request = self.claim.request;
        if request == 0 || block <= 1 || request.is_multiple_of(block) {
            return fetched;
        }
        let blocks = match block.is_multiple_of(request) {
            true => 1,
            // The request may begin and end anywhere in a block.
            false => request.saturating_sub(1) / block + 2,
        };
        let whole = u128::from(block) * u128::from(blocks);
        let direct = u128::from(fetched) * u128::from(request) / whole;
        u64::try_from(direct).unwrap_or(fetched).min(fetched)
    }

    fn lack_of_read(&mut self, has_storage: bool, has_cache: bool) {
        let seen = self.evidence;
        if !has_cache {
            self.missing.extend(seen.page_cache.lack(CACHE, OWNER));
        }
        if has_storage {
            return;
        }
        let what = "bytes from storage";
        let counted = match seen.storage {
            Storage::Nfs => seen.nfs.lack(what, COUNTED),
            Storage::Block => seen.drives.lack(what, COUNTED),
            Storage::Memory | Storage::Other => {
                let why = format!("{what}: the kernel counts none of this file system");
                return self.lacks(why, "drop the file's pages before the span");
            }
        };
        self.missing.extend(seen.process.lack(what, COUNTED).into_iter().chain(counted));
        // Devices were counted, but none of them is under the file system.
        if self.missing.is_empty() {
            self.lacks(format!("{what}: no device of this file system is known"), COUNTED);
        }
    }

    /// Judges `bytes` that were written without a library.
    pub(super) fn written(&mut self, bytes: u64) {
        if self.is_an_edge(bytes) || self.is_too_small(bytes) {
            return;
        }
        let Some(cache) = self.evidence.page_cache.value().copied() else {
            return self.missing.extend(self.evidence.page_cache.lack(CACHE, OWNER));
        };
        let (before, after) = (size(cache.before), size(cache.after));
        self.grounds
            .push(format!("of the range {before} were in the page cache before and {after} after"));
        let past = match self.evidence.storage {
            Storage::Memory => 0,
            _ => self.written_past(bytes, cache),
        };
        let (staged, (_, all)) = (self.claim.by(Route::Staged), self.storage_bytes());
        if let Some(all) = all
            && all.saturating_add(self.slack) < staged
            && self.evidence.storage != Storage::Memory
        {
            let (staged, all) = (size(staged), size(all));
            self.contradict(format!(
                "{staged} were reported as written with O_DIRECT, but the drives have \
                 written {all}"
            ));
        }
        let cached = self.claim.by(Route::Cached);
        if cached > 0 && past > staged.saturating_add(self.slack) {
            let past = size(past);
            return self.lacks(
                format!("{past} that were written are in the page cache no longer"),
                "write less than the free memory, or end the span before pages are evicted",
            );
        }
        self.compare(bytes, past, true);
    }

    /// How many of the written `bytes` bypassed the page cache. If a range was written repeatedly
    /// or in part, its pages give only bounds.
    fn written_past(&mut self, bytes: u64, cache: PageCache) -> u64 {
        let len = cache.len.max(cache.before).max(cache.after);
        let absent = len - cache.after;
        let least = bytes.min(len).saturating_sub(cache.after);
        // O_DIRECT writes drop the same bytes from the page cache. If the span also read, reads may
        // have brought them back.
        let most = match self.claim.concurrent.0 {
            0 if bytes <= len || absent <= self.slack.min(len / 8) => absent.min(bytes),
            0 => bytes.saturating_sub(cache.after.saturating_sub(cache.before)),
            _ => bytes,
        };
        let evenly = u128::from(bytes) * u128::from(absent) / u128::from(len.max(1));
        let evenly = u64::try_from(evenly).unwrap_or(bytes).clamp(least, most.max(least));
        // Bytes written to storage are an upper bound on O_DIRECT writes.
        let (own, all) = self.storage_bytes();
        let all = [own, all].into_iter().flatten().min().unwrap_or(u64::MAX);
        self.within((least.min(all), most.max(least).min(all)), evenly.min(all), AGAIN)
    }

    /// Bytes that bypassed the page cache, between two bounds: the reported bytes, clamped to the
    /// bounds, or `guess` if nothing was reported.
    fn within(&mut self, (least, most): (u64, u64), guess: u64, why: &str) -> u64 {
        let staged = self.claim.by(Route::Staged);
        let is_noted = staged > 0 || self.claim.by(Route::Cached) > 0;
        if most - least > self.slack {
            let (least, most) = (size(least), size(most));
            self.doubts.push(format!("between {least} and {most} passed the page cache: {why}"));
        }
        if is_noted { staged.clamp(least, most) } else { guess }
    }

    /// Compares the claim about `bytes` with how many of them bypassed the page cache.
    fn compare(&mut self, bytes: u64, past: u64, is_own: bool) {
        let (staged, host) = (self.claim.by(Route::Staged), self.claim.by(Route::Host));
        let cached = self.claim.by(Route::Cached);
        // A small amount counts as none, and nearly all as all: counters are not that precise.
        let past = match past {
            little if little <= self.slack => 0,
            most if most.saturating_add(self.slack) >= bytes => bytes,
            some => some,
        };
        if host == bytes || (self.claim.memory == Memory::Host && (staged, cached) == (0, 0)) {
            return self.add([(DataPath::HostDrive, past), (DataPath::HostCache, bytes - past)]);
        }
        if (staged, cached, host) == (0, 0, 0) {
            if past > 0 {
                let past = size(past);
                return self.lacks(
                    format!("{past} passed the page cache, and nothing says by which way"),
                    "add the mover's routes to the claim, or read its counters",
                );
            }
            return self.add([(DataPath::Staged, 0), (DataPath::Cached, bytes)]);
        }
        let cache = self.evidence.page_cache.value().copied().unwrap_or_default();
        let most = past.saturating_add(cache.holes).saturating_add(self.slack);
        let (verb, moved, seen) = (self.claim.pick("read", "written"), size(staged), size(past));
        let (mut staged, mut cached) = (staged, cached);
        if staged > most && staged <= most.saturating_add(cache.encoded) {
            // Requested with O_DIRECT, but served through the page cache.
            let encoded = size(cache.encoded);
            self.grounds.push(format!(
                "{moved} were requested with O_DIRECT, but the file system stores {encoded} of the \
                 file in another form (compressed, say), which it makes whole in the page cache"
            ));
            (cached, staged) = (cached.saturating_add(staged.saturating_sub(past)), past);
        } else if staged > most {
            self.contradict(format!(
                "{moved} were reported as {verb} with O_DIRECT, but only {seen} were"
            ));
        } else if past > staged.saturating_add(host).saturating_add(self.slack) {
            let text =
                format!("only {moved} were reported as {verb} with O_DIRECT, but {seen} were");
            let held = cache.before.max(cache.after);
            let gone = past - staged - host;
            if is_own && self.were_taken_back(bytes, gone, cache) {
                return self.lacks_pages(gone);
            } else if is_own {
                self.contradict(text);
            } else if held.saturating_add(self.slack) < cached {
                // Some bytes may be other processes', but there is no evidence for the page cache.
                let remedy = "repeat it while the drives are otherwise idle";
                return self.lacks(format!("what went through the page cache: {text}"), remedy);
            } else {
                self.doubts.push(text);
            }
        }
        let ways = match self.claim.memory {
            Memory::Host => [(DataPath::HostDrive, staged), (DataPath::HostCache, cached)],
            _ => [(DataPath::Staged, staged), (DataPath::Cached, cached)],
        };
        self.add(ways);
        let drive = past.saturating_sub(staged).min(host);
        self.add([(DataPath::HostDrive, drive), (DataPath::HostCache, host - drive)]);
    }

    /// Whether `bytes` may have been read through the page cache although `gone` bytes from storage
    /// are not in it. This is so if other pages are or were resident, so that the kernel reclaimed
    /// some before they were counted. If the resident bytes did not change, nothing was reclaimed.
    fn were_taken_back(&self, bytes: u64, gone: u64, cache: PageCache) -> bool {
        let is_read = self.claim.direction == Direction::Read && self.claim.by(Route::Cached) > 0;
        let absent = bytes.min(cache.len).saturating_sub(cache.after);
        let moved = cache.after.abs_diff(cache.before);
        is_read && moved > self.slack && gone <= absent.saturating_add(self.slack)
    }

    fn lacks_pages(&mut self, gone: u64) {
        let why = format!(
            "{} that came from storage are not in the page cache, of which the kernel took pages \
             back meanwhile",
            size(gone)
        );
        self.lacks(why, "read less than the free memory, or repeat it");
    }

    fn add(&mut self, ways: [(DataPath, u64); 2]) {
        self.ways.extend(ways.into_iter().filter(|(_, bytes)| *bytes > 0));
    }

    /// Whether these are the unaligned edges of a transfer by a library. No counter shows so few
    /// bytes, so the mover's report is accepted, but not as direct.
    fn is_an_edge(&mut self, bytes: u64) -> bool {
        let edge = self.claim.by(Route::Direct) >= LEN_MIN && bytes <= self.slack;
        if edge {
            let (staged, text) = (self.claim.by(Route::Staged).min(bytes), size(bytes));
            self.add([(DataPath::Staged, staged), (DataPath::Cached, bytes - staged)]);
            self.grounds.push(format!("{text} at the same time are too little for the counters"));
        }
        edge
    }

    /// Whether the amount is too small to stand out from the file system's own reads.
    fn is_too_small(&mut self, bytes: u64) -> bool {
        let small = bytes < LEN_MIN && self.evidence.storage != Storage::Memory;
        if small {
            let (bytes, least) = (size(bytes), size(LEN_MIN));
            let why = format!("the counters of drives and page cache show nothing of {bytes}");
            self.lacks(why, format!("move at least {least} in one span"));
        }
        small
    }

    /// Adds a ground or a doubt if the drives' counters include other bytes than this span's.
    fn name_others(&mut self, own: Option<u64>, all: Option<u64>) {
        let most = self.claim.bytes.saturating_add(self.slack).saturating_add(16 * MIB);
        match (own, all) {
            (Some(own), Some(all)) if all > own.saturating_add(self.slack) => {
                let others = size(all - own);
                self.grounds.push(format!(
                    "others read {others} from the same drives, which is counted separately"
                ));
            }
            (None, Some(all)) if all > most => {
                let all = size(all);
                self.doubts.push(format!(
                    "{all} were read from the drives for all processes together: more than this \
                     span's"
                ));
            }
            (Some(own), None) if own > most => {
                let own = size(own);
                self.doubts.push(format!("the process read {own} in all: more than this span's"));
            }
            _ => {}
        }
    }
}
