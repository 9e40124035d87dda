//! Reads smaller than a block, which fetch whole blocks.

use super::*;

/// 2 MiB by requests of 512 bytes, half of them with O_DIRECT, which fetch blocks of 4 KiB.
fn small(fetched: u64, staged: u64) -> (Evidence, Claim) {
    let cache = PageCache {
        len: 2 * MIB,
        looked: 2 * MIB,
        before: MIB,
        after: MIB,
        ..PageCache::default()
    };
    let mut seen = evidence(fetched, 0, 0, 0);
    seen.page_cache = Seen::Value(PageCache { block: 4096, ..cache });
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
    // With unknown request sizes or whole blocks, every fetched byte was requested.
    for request in [0, 4096, 65_536] {
        contradiction(&seen, &Claim { request, ..claim.clone() });
    }
    // More than whole blocks can explain.
    let (seen, claim) = small(16 * MIB, MIB / 2);
    contradiction(&seen, &claim);
    // Too few bytes for the claim.
    let (seen, claim) = small(MIB, 2 * MIB);
    contradiction(&seen, &claim);
}
