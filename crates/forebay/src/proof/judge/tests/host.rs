//! Reads of less than a block, which fetch whole ones.

use super::*;

/// 2 MiB by requests of 512 bytes, half of them past the page cache: those fetch blocks of 4 KiB.
fn small(fetched: u64, staged: u64) -> (Evidence, Claim) {
    let cache = PageCache {
        len: 2 * MIB,
        looked: 2 * MIB,
        before: MIB,
        after: MIB,
        ..PageCache::default()
    };
    let mut seen = evidence(fetched, 0, 0, 0);
    seen.page_cache = Seen::Told(PageCache { block: 4096, ..cache });
    let mut claim = claim(&[(Route::Staged, staged), (Route::Cached, 2 * MIB - staged)]);
    claim.request = 512;
    (seen, claim)
}

#[test]
fn whole_blocks_of_small_requests_contradict_nothing() {
    let (seen, claim) = small(8 * MIB, MIB);
    let judged = verdict(&seen, &claim);
    assert_eq!(judged.to_string(), "mixed 50 % staged / 50 % cached", "{judged:?}");
    assert!(judged.doubts[0].contains("reads of 512 B fetch whole blocks of 4 KiB"), "{judged:?}");
    // Of requests whose size is not known, and of whole blocks, each byte was asked for.
    for request in [0, 4096, 65_536] {
        contradiction(&seen, &Claim { request, ..claim.clone() });
    }
    // More than whole blocks explain.
    let (seen, claim) = small(16 * MIB, MIB / 2);
    contradiction(&seen, &claim);
    // Too little for what is said.
    let (seen, claim) = small(MIB, 2 * MIB);
    contradiction(&seen, &claim);
}
