//! Divides counts for several targets among the targets. Pure.
//!
//! Most counters do not distinguish targets. Their counts are divided in proportion to the targets'
//! reported bytes, so that a target proves nothing that all targets together do not prove. Drive
//! bytes are assigned first to the bytes reported to have bypassed the page cache, then to the
//! other bytes. Counts of a GPU's own link or of cuFile for that GPU are not divided.

use super::evidence::{Evidence, PageCache};
use super::nfs::NfsMount;
use super::seen::Seen;

impl Evidence {
    /// The evidence for a single target. `own` and `all` hold the bytes moved, and how
    /// many of them are reported to have bypassed the page cache.
    pub fn of_part(&self, own: (u64, u64), all: (u64, u64)) -> Self {
        let by_bytes = |counted: &mut u64| *counted = share(*counted, own.0, all.0);
        let part = |counted: &mut u64| *counted = of_drives(*counted, own, all);
        let mut own = self.clone();
        if let Seen::Value(process) = &mut own.process {
            part(&mut process.read);
            part(&mut process.written);
        }
        if let Seen::Value(drives) = &mut own.drives {
            for drive in drives {
                part(&mut drive.read);
                part(&mut drive.written);
            }
        }
        if let Seen::Value(cache) = &mut own.page_cache {
            let PageCache { len, looked, before, after, ahead, holes, encoded, .. } = cache;
            [len, looked, before, after, ahead, holes, encoded].into_iter().for_each(by_bytes);
        }
        if let Seen::Value(mounts) = &mut own.nfs {
            mounts.iter_mut().flat_map(NfsMount::bytes).for_each(part);
        }
        if let Seen::Value(counts) = &mut own.nvidia_fs {
            part(&mut counts.read);
            part(&mut counts.written);
        }
        if let Seen::Value(memory) = &mut own.dram {
            by_bytes(memory);
        }
        own
    }
}

/// The share of drive bytes of a target with `bytes` in all, `past` of which bypassed the page
/// cache.
fn of_drives(counted: u64, (bytes, past): (u64, u64), (all, all_past): (u64, u64)) -> u64 {
    let first = counted.min(all_past);
    let own = if all_past > 0 { share(first, past, all_past) } else { 0 };
    let more = match all.saturating_sub(all_past) {
        0 => share(counted - first, bytes, all),
        others => share(counted - first, bytes.saturating_sub(past), others),
    };
    own.saturating_add(more)
}

fn share(counted: u64, bytes: u64, all: u64) -> u64 {
    if bytes >= all {
        return counted;
    }
    let part = u128::from(counted) * u128::from(bytes) / u128::from(all);
    u64::try_from(part).unwrap_or(counted)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Claim, DataPath, Finding, Memory, ProcessBytes, Storage, verdict};
    use forebay::{Direction, Route};
    use proptest::prelude::*;

    const MIB: u64 = 1 << 20;

    /// Evidence where `drive` bytes came from a drive, and `all` bytes were read.
    fn evidence(drive: u64, all: u64) -> Evidence {
        let mut evidence = Evidence { storage: Storage::Block, ..Evidence::default() };
        evidence.process = Seen::Value(ProcessBytes { read: drive, written: 0 });
        let name = "nvme0n1".into();
        let of_drive =
            crate::DriveBytes { name, front: true, drive: true, read: drive, written: 0 };
        evidence.drives = Seen::Value(vec![of_drive]);
        let cache = PageCache { len: all, looked: all, ..PageCache::default() };
        evidence.page_cache = Seen::Value(cache);
        evidence
    }

    fn claim(bytes: u64) -> Claim {
        let mut claim = Claim::silent(Direction::Read, bytes, Memory::Gpu);
        claim.routes.push((Route::Staged, bytes));
        claim
    }

    #[test]
    fn each_target_has_its_part_of_what_was_counted_for_all() {
        let whole = evidence(400 * MIB, 400 * MIB);
        for bytes in [100 * MIB, 300 * MIB] {
            let one =
                verdict(&whole.of_part((bytes, bytes), (400 * MIB, 400 * MIB)), &claim(bytes));
            assert_eq!(one.finding, Finding::One(DataPath::Staged), "{one:?}");
        }
        // Half of the bytes have no source; no target gets all of the drive's half.
        let half = evidence(200 * MIB, 400 * MIB);
        let one = verdict(
            &half.of_part((200 * MIB, 200 * MIB), (400 * MIB, 400 * MIB)),
            &claim(200 * MIB),
        );
        assert_ne!(one.finding, Finding::One(DataPath::Staged), "{one:?}");
        let undivided = verdict(&half, &claim(200 * MIB));
        assert_eq!(undivided.finding, Finding::One(DataPath::Staged), "what dividing is for");
    }

    #[test]
    fn bytes_past_the_page_cache_go_to_targets_that_report_o_direct() {
        // Of two targets with 100 bytes each, one reports 60 with O_DIRECT, and the drives moved
        // 60.
        let all = (200, 60);
        assert_eq!((of_drives(60, (100, 60), all), of_drives(60, (100, 0), all)), (60, 0));
        assert_eq!(of_drives(30, (100, 60), all), 30, "what is missing is missing there");
        // Drive bytes beyond that go to the bytes without a report.
        assert_eq!((of_drives(200, (100, 60), all), of_drives(200, (100, 0), all)), (100, 100));
        assert_eq!(of_drives(50, (100, 0), (200, 0)), 25);
    }

    proptest! {
        #[test]
        fn parts_are_never_more_than_the_whole(counted: u64, bytes: u64, all: u64) {
            prop_assert!(share(counted, bytes, all) <= counted);
            prop_assert_eq!(share(counted, all, all), counted);
            let rest = all.saturating_sub(bytes);
            let sum = u128::from(share(counted, bytes.min(all), all));
            let sum = sum + u128::from(if rest > 0 { share(counted, rest, all) } else { 0 });
            prop_assert!(sum <= u128::from(counted));
            let _ = of_drives(counted, (bytes, rest), (all, bytes));
        }
    }
}
