//! Every verdict, reached from evidence alone.

mod direct;
mod host;

use forebay_base::units::GIB;
use forebay_cufile::{Counters, GpuCounters, Paths};
use proptest::prelude::*;

use super::*;
use crate::drives::DriveBytes;
use crate::evidence::PageCache;
use crate::nvidia_fs::NvidiaFs;
use crate::pcie::{How, PcieBytes};
use crate::process::ProcessBytes;

/// Evidence of a span over 1 GiB on a block device: `fetched` by this process, `others` by other
/// processes, with these resident bytes before and after.
fn evidence(fetched: u64, others: u64, before: u64, after: u64) -> Evidence {
    let mut evidence = Evidence { storage: Storage::Block, ..Evidence::default() };
    evidence.process = Seen::Value(ProcessBytes { read: fetched, written: fetched });
    let bytes = fetched + others;
    evidence.drives = Seen::Value(vec![drive(true, bytes), drive(false, bytes)]);
    evidence.page_cache =
        Seen::Value(PageCache { len: GIB, looked: GIB, before, after, ..PageCache::default() });
    evidence
}

fn drive(front: bool, bytes: u64) -> DriveBytes {
    DriveBytes { name: "d".into(), front, drive: !front, read: bytes, written: bytes }
}

fn counters(p2pdma: u64, nvidia_fs: u64, posix: u64, bytes: u64) -> Seen<Counters> {
    let mut gpu = GpuCounters::default();
    gpu.reads.by = Paths { p2pdma, nvidia_fs, posix };
    (gpu.reads.operations, gpu.reads.bytes) = (gpu.reads.by.total(), bytes);
    gpu.writes = gpu.reads;
    Seen::Value(Counters { level: 3, gpus: vec![gpu], ..Counters::default() })
}

fn link(bytes: u64) -> Seen<PcieBytes> {
    Seen::Value(PcieBytes {
        gpu: "0000:1b:00.0".into(),
        received: bytes,
        sent: bytes,
        how: How::Edges,
        samples: 2,
        may_have_wrapped: false,
    })
}

fn claim(routes: &[(Route, u64)]) -> Claim {
    let bytes = routes.iter().map(|(_, bytes)| bytes).sum();
    Claim { routes: routes.into(), ..Claim::silent(Direction::Read, bytes, Memory::Gpu) }
}

fn whole(route: Route) -> Claim {
    claim(&[(route, GIB)])
}

fn text(evidence: &Evidence, claim: &Claim) -> String {
    verdict(evidence, claim).to_string()
}

fn contradiction(evidence: &Evidence, claim: &Claim) -> String {
    let verdict = verdict(evidence, claim);
    assert_eq!(verdict.word(), "contradictory", "{verdict:?}");
    assert!(verdict.shares.is_empty());
    verdict.contradictions.join("; ")
}

fn missing(evidence: &Evidence, claim: &Claim) -> String {
    let verdict = verdict(evidence, claim);
    assert_eq!(verdict.word(), "unproven", "{verdict:?}");
    assert!(verdict.missing.iter().all(|missing| !missing.remedy.is_empty()));
    verdict.missing.iter().map(|missing| missing.why.clone()).collect::<Vec<_>>().join("; ")
}

#[test]
fn reads_past_through_and_out_of_the_page_cache() {
    let (staged, cached) = (whole(Route::Staged), whole(Route::Cached));
    assert_eq!(text(&evidence(GIB, 0, 0, 0), &staged), "staged");
    // First from the page cache, then through it: the drive was read, and the bytes stayed.
    assert_eq!(text(&evidence(0, 0, GIB, GIB), &cached), "cached");
    assert_eq!(text(&evidence(GIB, 0, 0, GIB), &cached), "cached");
    let both = claim(&[(Route::Staged, GIB / 100 * 93), (Route::Cached, GIB / 100 * 7)]);
    let seen = evidence(GIB / 100 * 93, 0, GIB / 100 * 7, GIB / 100 * 7);
    assert_eq!(text(&seen, &both), "mixed 93 % staged / 7 % cached");
    // Staged reads go to the drive even if the bytes are in memory.
    assert_eq!(text(&evidence(GIB, 0, GIB, GIB), &staged), "staged");
}

#[test]
fn an_account_that_counters_refute_is_found_out() {
    let text = contradiction(&evidence(0, 0, GIB, GIB), &whole(Route::Staged));
    assert_eq!(text, "1 GiB were reported as read with O_DIRECT, but only 0 B were");
    let text = contradiction(&evidence(GIB, 0, 0, GIB), &whole(Route::Staged));
    assert!(text.contains("only 0 B were"), "{text}");
    let text = contradiction(&evidence(GIB, 0, 0, 0), &whole(Route::Cached));
    assert!(text.starts_with("only 0 B were reported"), "{text}");
    let text =
        contradiction(&evidence(GIB, 0, 0, 0), &Claim { bytes: 2 * GIB, ..whole(Route::Staged) });
    assert_eq!(text, "the routes of 2 GiB that were moved add up to 1 GiB");
}

#[test]
fn other_processes_bytes_are_separated_or_named_as_a_doubt() {
    let mut seen = evidence(0, 5 * GIB, GIB, GIB);
    let found = verdict(&seen, &whole(Route::Cached));
    assert_eq!(found.to_string(), "cached");
    assert!(found.grounds.iter().any(|text| text.contains("others read 5 GiB")), "{found:?}");
    // The process also read from other drives.
    seen.process = Seen::Value(ProcessBytes { read: 9 * GIB, written: 0 });
    seen.drives = Seen::Value(vec![drive(true, 0)]);
    assert_eq!(text(&seen, &whole(Route::Cached)), "cached");
    // Without the process's counter, other processes' bytes cannot be separated.
    let mut seen = evidence(0, 5 * GIB, 0, 0);
    seen.process = Seen::missing("no counter", "have one");
    let found = verdict(&seen, &whole(Route::Staged));
    assert_eq!(found.to_string(), "staged");
    assert!(found.doubts[0].contains("for all processes together"), "{found:?}");
    let text = missing(&seen, &whole(Route::Cached));
    assert!(text.starts_with("what went through the page cache"), "{text}");
    let cache = PageCache { len: GIB, looked: GIB, after: GIB, ..PageCache::default() };
    seen.page_cache = Seen::Value(cache);
    let found = verdict(&seen, &whole(Route::Cached));
    assert_eq!((found.word(), found.doubts.len()), ("cached", 2), "others' bytes: {found:?}");
}

#[test]
fn without_counters_nothing_is_proven_and_what_is_missing_is_named() {
    let mut seen = evidence(GIB, 0, 0, 0);
    seen.page_cache = Seen::missing("not the owner", "be it");
    let text = missing(&seen, &whole(Route::Staged));
    assert_eq!(text, "what is in the page cache: not the owner");
    // If nothing was fetched, no page-cache state is needed.
    let mut seen = evidence(0, 0, 0, 0);
    seen.page_cache = Seen::missing("not the owner", "be it");
    assert_eq!(self::text(&seen, &whole(Route::Cached)), "cached");
    seen.process = Seen::missing("no counter", "have one");
    seen.drives = Seen::missing("no iostats", "set it");
    let text = missing(&seen, &whole(Route::Cached));
    assert!(text.contains("no counter; bytes from storage: no iostats"), "{text}");
    let text = missing(&Evidence::default(), &Claim::silent(Direction::Read, 0, Memory::Gpu));
    assert_eq!(text, "nothing was moved");
    let few = claim(&[(Route::Staged, 4096)]);
    assert!(missing(&evidence(4096, 0, 0, 0), &few).contains("show nothing of 4 KiB"));
    let silent = Claim::silent(Direction::Read, GIB, Memory::Gpu);
    assert!(missing(&evidence(GIB, 0, 0, 0), &silent).contains("nothing says by which way"));
    assert_eq!(self::text(&evidence(GIB, 0, 0, GIB), &silent), "cached");
}

#[test]
fn storage_that_counts_nothing_for_processes_is_judged_by_the_page_cache() {
    let other =
        |before, after| Evidence { storage: Storage::Other, ..evidence(0, 0, before, after) };
    let found = verdict(&other(0, 0), &whole(Route::Staged));
    assert_eq!(found.to_string(), "staged");
    assert!(found.doubts[0].contains("no counter of this storage"), "{found:?}");
    let text = missing(&other(GIB, GIB), &whole(Route::Staged));
    assert!(text.contains("counts none of this file system"), "{text}");
    let memory = Evidence { storage: Storage::Memory, ..evidence(7 * GIB, 0, GIB, GIB) };
    assert_eq!(self::text(&memory, &whole(Route::Cached)), "cached");
    let small = claim(&[(Route::Cached, 4096)]);
    assert_eq!(self::text(&memory, &small), "cached");
}

#[test]
fn encoded_bytes_pass_the_page_cache_for_every_caller() {
    let with = |fetched: u64, after: u64, encoded: u64| {
        let mut evidence = evidence(fetched, 0, 0, after);
        evidence.page_cache = evidence.page_cache.map(|cache| PageCache { encoded, ..cache });
        evidence
    };
    // Stored in a tenth of the space, read from there, and decoded in the page cache.
    let whole_file = verdict(&with(GIB / 10, GIB, GIB), &whole(Route::Staged));
    assert_eq!(whole_file.to_string(), "cached", "{whole_file:?}");
    let ground_text = "1 GiB were requested with O_DIRECT, but the file system stores 1 GiB of the";
    assert!(
        whole_file.grounds.iter().any(|ground| ground.starts_with(ground_text)),
        "{whole_file:?}"
    );
    let half = with(GIB / 2 + GIB / 20 + GIB / 2, GIB / 2, GIB / 2);
    assert_eq!(text(&half, &whole(Route::Staged)), "mixed 55 % staged / 45 % cached");
    let few = with(GIB / 10, GIB, GIB / 2);
    assert!(contradiction(&few, &whole(Route::Staged)).contains("with O_DIRECT"));
    let resident = with(0, GIB, GIB);
    assert_eq!(text(&resident, &whole(Route::Staged)), "cached");
    assert_eq!(text(&with(GIB, 0, GIB), &whole(Route::Staged)), "staged", "it was passed");
}

#[test]
fn holes_are_read_from_nowhere() {
    let mut seen = evidence(GIB / 4, 0, 0, 0);
    let text = contradiction(&seen, &whole(Route::Staged));
    assert!(text.contains("only 256 MiB were"), "{text}");
    let holes = GIB - GIB / 4;
    let cache = PageCache { len: GIB, looked: GIB, holes, ..PageCache::default() };
    seen.page_cache = Seen::Value(cache);
    assert_eq!(self::text(&seen, &whole(Route::Staged)), "staged");
}

#[test]
fn read_ahead_does_not_bypass_the_page_cache() {
    let mut seen = evidence(2 * MIB + 8 * MIB, 0, 0, 2 * MIB);
    let cached = claim(&[(Route::Cached, 2 * MIB)]);
    contradiction(&seen, &cached);
    let cache = PageCache { after: 2 * MIB, ahead: 8 * MIB, ..PageCache::default() };
    seen.page_cache = Seen::Value(cache);
    assert_eq!(text(&seen, &cached), "cached");
}

#[test]
fn an_estimate_of_the_page_cache_needs_more_to_refute_it() {
    let both = claim(&[(Route::Staged, GIB / 2), (Route::Cached, GIB / 2)]);
    let mut seen = evidence(GIB / 2 + GIB / 16, 0, GIB / 2 - GIB / 16, GIB / 2 - GIB / 16);
    contradiction(&seen, &both);
    if let Seen::Value(cache) = &mut seen.page_cache {
        cache.looked = GIB / 2;
    }
    assert_eq!(text(&seen, &both), "mixed 50 % staged / 50 % cached");
}

#[test]
fn reclaimed_pages_refute_no_path() {
    let cached = whole(Route::Cached);
    for (fetched, before, after) in
        [(GIB, 0, GIB / 4 * 3), (GIB / 4, GIB, GIB / 2), (GIB / 2, GIB / 2, GIB / 4)]
    {
        let text = missing(&evidence(fetched, 0, before, after), &cached);
        assert!(text.contains("the kernel took pages back"), "{text}");
    }
    // First more than was dropped, then bytes that came although nothing was dropped.
    contradiction(&evidence(GIB, 0, GIB / 2, GIB / 4 * 3), &cached);
    contradiction(&evidence(GIB / 4, 0, GIB, GIB), &cached);
}

#[test]
fn host_memory_is_its_own_end() {
    let host = |claim: Claim| Claim { memory: Memory::Host, ..claim };
    assert_eq!(text(&evidence(GIB, 0, 0, 0), &host(whole(Route::Host))), "host (drive)");
    assert_eq!(text(&evidence(0, 0, GIB, GIB), &host(whole(Route::Host))), "host (page cache)");
    assert_eq!(text(&evidence(0, 0, GIB, GIB), &host(whole(Route::Cached))), "host (page cache)");
    let silent = Claim::silent(Direction::Read, GIB, Memory::Host);
    let half = evidence(GIB / 2, 0, GIB / 2, GIB / 2);
    assert_eq!(text(&half, &silent), "mixed 50 % host (drive) / 50 % host (page cache)");
    let simulated = Claim { memory: Memory::SimulatedGpu, ..whole(Route::Staged) };
    assert!(verdict(&evidence(GIB, 0, 0, 0), &simulated).simulated);
}

#[test]
fn writes_are_judged_by_what_stays_in_the_page_cache() {
    let write = |route| Claim { direction: Direction::Write, ..whole(route) };
    assert_eq!(text(&evidence(GIB, 0, 0, GIB), &write(Route::Cached)), "cached");
    assert_eq!(text(&evidence(GIB, 0, 0, 0), &write(Route::Staged)), "staged");
    let text = contradiction(&evidence(0, 0, 0, 0), &write(Route::Staged));
    assert!(text.contains("but the drives have written 0 B"), "{text}");
    let text = contradiction(&evidence(GIB, 0, 0, GIB), &write(Route::Staged));
    assert!(text.contains("only 0 B were"), "{text}");
    let text = missing(&evidence(GIB, 0, 0, GIB / 2), &write(Route::Cached));
    assert!(text.contains("are in the page cache no longer"), "{text}");
    let memory = Evidence { storage: Storage::Memory, ..evidence(0, 0, 0, GIB) };
    assert_eq!(self::text(&memory, &write(Route::Cached)), "cached");
    let mut blind = evidence(GIB, 0, 0, 0);
    blind.page_cache = Seen::missing("not the owner", "be it");
    assert!(missing(&blind, &write(Route::Staged)).contains("not the owner"));
}

#[test]
fn a_range_that_is_written_many_times_is_as_long_as_it_is() {
    let write = |route, memory| {
        let mut claim = Claim { routes: vec![(route, 8 * GIB)], ..whole(route) };
        (claim.direction, claim.bytes, claim.memory) = (Direction::Write, 8 * GIB, memory);
        claim
    };
    // All of it is in the page cache, and no drive has written anything.
    let seen = evidence(0, 0, GIB, GIB);
    assert_eq!(text(&seen, &write(Route::Cached, Memory::Gpu)), "cached");
    assert_eq!(text(&seen, &write(Route::Host, Memory::Host)), "host (page cache)");
    let found = contradiction(&seen, &write(Route::Staged, Memory::Gpu));
    assert!(found.contains("only 0 B were"), "{found}");
    // None of it is resident, and the drives have written all of it.
    let seen = evidence(8 * GIB, 0, GIB, 0);
    assert_eq!(text(&seen, &write(Route::Staged, Memory::Gpu)), "staged");
    assert_eq!(text(&seen, &write(Route::Host, Memory::Host)), "host (drive)");
    assert!(missing(&seen, &write(Route::Cached, Memory::Gpu)).contains("no longer"));
    // Bytes that no drive has written did not bypass the page cache, whatever it holds.
    let seen = evidence(0, 0, 0, 0);
    assert_eq!(text(&seen, &write(Route::Host, Memory::Host)), "host (page cache)");
    // A part of the range is written repeatedly with O_DIRECT, which only bounds can show.
    let found = verdict(&evidence(8 * GIB, 0, GIB, GIB / 4), &write(Route::Staged, Memory::Gpu));
    assert_eq!(found.word(), "staged", "{found:?}");
    assert!(found.doubts[0].contains("written again"), "{found:?}");
    // A small part of the range is written once.
    let once = claim(&[(Route::Staged, GIB / 8)]);
    let once = Claim { direction: Direction::Write, ..once };
    assert_eq!(text(&evidence(GIB / 8, 0, GIB, GIB / 8 * 7), &once), "staged");
}

#[test]
fn reads_and_writes_of_one_span_share_its_page_cache() {
    let mixed = |route, direction, memory| Claim {
        direction,
        memory,
        concurrent: (GIB, if route == Route::Staged { GIB } else { 0 }),
        ..whole(route)
    };
    let both = |seen: &Evidence, route, memory| {
        [Direction::Read, Direction::Write].map(|way| text(seen, &mixed(route, way, memory)))
    };
    // The page cache was empty, and now holds the bytes that were read and written.
    let mut seen = evidence(GIB / 2, 0, 0, GIB);
    let gpu = Memory::Gpu;
    assert_eq!(both(&seen, Route::Cached, gpu), ["cached", "cached"]);
    assert_eq!(both(&seen, Route::Host, Memory::Host), ["host (page cache)"; 2]);
    // Nothing was added, and the writes dropped some of its pages.
    for after in [GIB, GIB / 2, 0] {
        seen = evidence(GIB, 0, GIB, after);
        assert_eq!(both(&seen, Route::Staged, gpu), ["staged", "staged"], "{after}");
    }
    seen = evidence(GIB, 0, GIB, GIB);
    let found = verdict(&seen, &mixed(Route::Staged, Direction::Write, gpu));
    assert!(found.doubts.iter().any(|doubt| doubt.contains("both read and written")), "{found:?}");
    // Bytes that no drive has moved did not bypass the page cache.
    seen = evidence(0, 0, GIB, GIB);
    for direction in [Direction::Read, Direction::Write] {
        let found = contradiction(&seen, &mixed(Route::Staged, direction, gpu));
        assert!(found.contains("with O_DIRECT, but"), "{found}");
    }
    // Reads alone that left their bytes in the page cache went through it.
    let alone = Claim { concurrent: (0, 0), ..mixed(Route::Staged, Direction::Read, gpu) };
    assert!(contradiction(&evidence(GIB, 0, 0, GIB), &alone).contains("only 0 B were"));
    let concurrent = mixed(Route::Staged, Direction::Read, gpu).to_json();
    assert_eq!(concurrent["concurrent"], serde_json::json!({"bytes": GIB, "past": GIB}));
}

#[test]
fn the_links_counters_are_held_against_every_way() {
    let staged = whole(Route::Staged);
    let seen = |gpu| Evidence { gpu, ..evidence(GIB, 0, 0, 0) };
    assert!(contradiction(&seen(link(0)), &staged).contains("the GPU received 0 B"));
    let found = verdict(&seen(link(GIB + GIB / 13)), &staged);
    assert!(found.grounds.iter().any(|text| text.contains("over PCIe")), "{found:?}");
    let doubt = |gpu| {
        let found = verdict(&seen(gpu), &staged);
        assert_eq!(found.word(), "staged");
        found.doubts.concat()
    };
    assert!(doubt(link(4 * GIB)).contains("others used it as well"));
    let changed = |change: fn(&mut PcieBytes)| {
        let mut gpu = link(1000);
        if let Seen::Value(bytes) = &mut gpu {
            change(bytes);
        }
        gpu
    };
    assert!(doubt(changed(|gpu| gpu.may_have_wrapped = true)).contains("begun anew"));
    // It saw enough; any more can only be other transfers.
    let enough = changed(|gpu| (gpu.may_have_wrapped, gpu.received) = (true, GIB));
    let found = verdict(&seen(enough), &staged);
    assert!(found.doubts.is_empty(), "{found:?}");
    assert!(found.grounds.iter().any(|text| text.contains("over PCIe")), "{found:?}");
    // A simulated GPU has no link.
    let simulated = Claim { memory: Memory::SimulatedGpu, ..staged.clone() };
    assert_eq!(text(&seen(link(0)), &simulated), "staged");
}

fn any_seen<T: Clone + std::fmt::Debug + 'static>(
    found: impl Strategy<Value = T> + 'static,
) -> impl Strategy<Value = Seen<T>> {
    prop_oneof![
        4 => found.prop_map(Seen::Value),
        1 => Just(Seen::Nothing("nothing".into())),
        1 => Just(Seen::missing("missing", "remedy")),
    ]
}

fn amount() -> impl Strategy<Value = u64> {
    prop_oneof![Just(0), Just(GIB), 0..2 * GIB, any::<u64>()]
}

fn any_counters() -> impl Strategy<Value = Counters> {
    let paths = || {
        [0_u64..5, 0..5, 0..5].prop_map(|[p2pdma, nvidia_fs, posix]| Paths {
            p2pdma,
            nvidia_fs,
            posix,
        })
    };
    let gpus = (paths(), amount(), 0_u64..20).prop_map(|(by, bytes, operations)| {
        let mut gpu = GpuCounters::default();
        (gpu.reads.by, gpu.reads.bytes, gpu.reads.operations) = (by, bytes, operations);
        gpu.writes = gpu.reads;
        gpu
    });
    let gpus = proptest::collection::vec(gpus, 0..3);
    (gpus, 0_u64..3, paths(), proptest::option::of(amount())).prop_map(
        |(gpus, batches, batches_by, batch_bytes)| {
            let mut counters = Counters { gpus, batches, batches_by, ..Counters::default() };
            counters.batch_bytes = batch_bytes;
            counters
        },
    )
}

prop_compose! {
    fn any_evidence()(
        storage in prop_oneof![Just(Storage::Block), Just(Storage::Nfs), Just(Storage::Memory),
            Just(Storage::Other)],
        cufile in any_seen(any_counters()),
        nvidia_fs in any_seen((0_u64..5, amount())),
        process in any_seen(amount()),
        drives in any_seen(proptest::collection::vec((any::<bool>(), amount()), 0..3)),
        page_cache in any_seen([amount(), amount(), amount(), amount(), amount()]),
        gpu in any_seen((amount(), any::<bool>())),
        dram in any_seen(amount()),
    ) -> Evidence {
        let mut evidence = Evidence { storage, cufile, dram, ..Evidence::default() };
        evidence.nvidia_fs = nvidia_fs.map(|(n, bytes)| NvidiaFs {
            reads: n, read: bytes, writes: n, written: bytes, ..NvidiaFs::default()
        });
        evidence.process = process.map(|bytes| ProcessBytes { read: bytes, written: bytes });
        evidence.drives = drives.map(|all| {
            all.into_iter().map(|(front, bytes)| drive(front, bytes)).collect()
        });
        evidence.page_cache = page_cache.map(|[len, before, after, ahead, holes]| {
            let encoded = ahead ^ holes;
            PageCache { len, looked: len / 2, before, after, ahead, holes, encoded, block: 4096 }
        });
        evidence.gpu = gpu.map(|(bytes, wrapped)| {
            let Seen::Value(mut link) = link(bytes) else { unreachable!() };
            link.may_have_wrapped = wrapped;
            link
        });
        evidence
    }
}

prop_compose! {
    fn any_claim()(
        read in any::<bool>(),
        bytes in amount(),
        exact in any::<bool>(),
        named in any::<bool>(),
        memory in prop_oneof![Just(Memory::Gpu), Just(Memory::SimulatedGpu), Just(Memory::Host)],
        routes in proptest::collection::vec((0_usize..4, amount()), 0..4),
        concurrent in (amount(), amount()),
    ) -> Claim {
        let direction = if read { Direction::Read } else { Direction::Write };
        let mut claim = Claim::silent(direction, bytes, memory);
        claim.gpu = named.then(|| GpuCounters::default().uuid_text());
        claim.routes = routes.into_iter().map(|(index, n)| (Route::ALL[index], n)).collect();
        claim.concurrent = concurrent;
        if exact {
            claim.bytes = claim.reported();
        }
        claim
    }
}

proptest! {
    #[test]
    fn a_verdict_is_whole_and_direct_only_by_counters(
        evidence in any_evidence(),
        claim in any_claim(),
    ) {
        let verdict = verdict(&evidence, &claim);
        let sum: f64 = verdict.shares.iter().map(|share| share.share).sum();
        match verdict.finding {
            Finding::One(_) | Finding::Mixed => prop_assert!((sum - 1.0).abs() < 1e-9),
            Finding::Unproven | Finding::Contradictory => prop_assert!(verdict.shares.is_empty()),
        }
        prop_assert_eq!(verdict.finding == Finding::Unproven, !verdict.missing.is_empty()
            && verdict.contradictions.is_empty());
        let counted = evidence.cufile.value().map(|counters| {
            let by = counters.reads().by;
            (by.p2pdma + counters.batches_by.p2pdma, by.nvidia_fs + counters.batches_by.nvidia_fs)
        });
        let by_module = evidence.nvidia_fs.value().is_some_and(|counts| counts.reads > 0);
        for share in &verdict.shares {
            let is_reported = match share.way {
                DataPath::P2pdma => counted.is_some_and(|(p2pdma, _)| p2pdma > 0),
                DataPath::NvidiaFs => match counted {
                    Some((_, nvidia_fs)) => nvidia_fs > 0,
                    None => by_module,
                },
                _ => true,
            };
            prop_assert!(is_reported, "{:?} of {:?}", share, evidence);
            prop_assert!(claim.by(Route::Direct) > 0 || !share.way.is_direct());
        }
        if matches!(verdict.finding, Finding::One(way) if way.is_direct()) {
            prop_assert!(claim.bytes >= LEN_MIN, "{:?} of {:?}", claim, evidence);
            prop_assert!(evidence.storage != Storage::Memory);
        }
        let _ = (claim.to_json(), verdict.to_string(), evidence.to_json());
    }
}
