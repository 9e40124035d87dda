//! Verdicts on transfers that a library reports as direct.

use forebay_cufile::Moves;

use super::*;

#[test]
fn counters_of_cufile_name_the_direct_path() {
    let by = |p2pdma, nvidia_fs, posix| {
        let mut seen = evidence(GIB, 0, 0, 0);
        seen.cufile = counters(p2pdma, nvidia_fs, posix, GIB);
        seen.nvidia_fs = Seen::Value(NvidiaFs { reads: nvidia_fs, ..NvidiaFs::default() });
        seen.gpu = link(GIB + GIB / 13);
        seen
    };
    let direct = whole(Route::Direct);
    assert_eq!(text(&by(64, 0, 0), &direct), "direct (p2pdma)");
    assert_eq!(text(&by(0, 64, 0), &direct), "direct (nvidia-fs)");
    assert_eq!(text(&by(0, 0, 64), &direct), "compat");
    assert_eq!(text(&by(63, 0, 1), &direct), "mixed 98 % direct (p2pdma) / 2 % compat");
    let mixed = claim(&[(Route::Direct, GIB / 2), (Route::Staged, GIB / 2)]);
    let shared = Evidence { cufile: counters(64, 0, 0, 2 * GIB), ..by(64, 0, 0) };
    assert!(verdict(&shared, &direct).doubts[0].contains("other work"));
    let edges = claim(&[(Route::Direct, GIB - 8192), (Route::Staged, 8192)]);
    let found = text(&by(64, 0, 0), &edges);
    assert_eq!(found, "mixed >99 % direct (p2pdma) / <1 % staged");
    let half = Evidence { cufile: counters(8, 0, 0, GIB / 2), ..by(8, 0, 0) };
    assert_eq!(text(&half, &mixed), "mixed 50 % direct (p2pdma) / 50 % staged");
}

#[test]
fn false_counters_are_contradicted() {
    let direct = whole(Route::Direct);
    let says = |cufile, fetched, after| Evidence { cufile, ..evidence(fetched, 0, 0, after) };
    let p2pdma = || counters(64, 0, 0, GIB);
    let text = contradiction(&says(p2pdma(), 0, 0), &direct);
    assert!(text.ends_with("but the drives have read 0 B"), "{text}");
    let text = contradiction(&says(p2pdma(), GIB, GIB), &direct);
    assert!(text.contains("but 1 GiB came into the page cache"), "{text}");
    let text = contradiction(&Evidence { gpu: link(100_000), ..says(p2pdma(), GIB, 0) }, &direct);
    assert!(text.contains("the GPU received 97.6 KiB over PCIe"), "{text}");
    let text = contradiction(&says(counters(0, 0, 0, 0), GIB, 0), &direct);
    assert!(text.contains("which counted none"), "{text}");
    let text = contradiction(&says(counters(5, 0, 0, GIB / 2), GIB, 0), &direct);
    assert!(text.contains("which counted 512 MiB"), "{text}");
    let mut unloaded = says(counters(0, 64, 0, GIB), GIB, 0);
    unloaded.nvidia_fs = Seen::Nothing("nvidia-fs is not loaded".into());
    assert!(contradiction(&unloaded, &direct).contains("nvidia-fs is not loaded"));
    unloaded.nvidia_fs = Seen::Value(NvidiaFs::default());
    assert!(contradiction(&unloaded, &direct).contains("counted no request"));
    let memory = Evidence { storage: Storage::Memory, ..says(p2pdma(), GIB, 0) };
    assert!(contradiction(&memory, &direct).contains("the drives have read 0 B"));
    let busy = Evidence { dram: Seen::Value(3 * GIB), ..says(p2pdma(), GIB, 0) };
    assert!(verdict(&busy, &direct).doubts[0].contains("memory moved 3 GiB"));
}

#[test]
fn the_librarys_own_word_alone_proves_no_direct_way() {
    let direct = whole(Route::Direct);
    for storage in [Storage::Other, Storage::Block] {
        // The file was not added to the sources, or its storage has no counters.
        let mut seen = Evidence { storage, cufile: counters(4, 0, 0, GIB), ..Evidence::default() };
        assert!(missing(&seen, &direct).starts_with("no counter but the library's own"));
        // The link, if its count is complete, confirms or refutes the bytes.
        seen.gpu = link(GIB);
        let found = verdict(&seen, &direct);
        assert_eq!(found.to_string(), "direct (p2pdma)");
        assert!(found.doubts[0].contains("no counter of the drives"), "{found:?}");
        let simulated = Claim { memory: Memory::SimulatedGpu, ..whole(Route::Direct) };
        assert_eq!(verdict(&seen, &simulated).finding, Finding::Unproven, "it has no link");
        seen.gpu = link(0);
        assert_eq!(verdict(&seen, &direct).finding, Finding::Contradictory);
        // nvidia-fs also counts, for all processes.
        seen.gpu = Seen::NotQueried;
        seen.cufile = counters(0, 4, 0, GIB);
        let counts = |read| Seen::Value(NvidiaFs { reads: 1024, read, ..NvidiaFs::default() });
        seen.nvidia_fs = counts(GIB / 2);
        assert!(missing(&seen, &direct).starts_with("no counter but the library's own"));
        seen.nvidia_fs = counts(GIB);
        assert_eq!(text(&seen, &direct), "direct (nvidia-fs)");
    }
}

#[test]
fn direct_needs_counters_that_say_so() {
    let direct = whole(Route::Direct);
    let mut seen = evidence(GIB, 0, 0, 0);
    assert!(missing(&seen, &direct).starts_with("cuFile's own counters: not queried"));
    seen.cufile = Seen::Value(Counters::default());
    assert!(missing(&seen, &direct).contains("statistics are off"));
    let mut batches = counters(0, 0, 0, 0);
    if let Seen::Value(counters) = &mut batches {
        (counters.batches, counters.batch_bytes) = (4, Some(GIB));
    }
    seen.cufile = batches.clone();
    assert!(missing(&seen, &direct).contains("4 batches, and not by which path"));
    if let Seen::Value(counters) = &mut batches {
        counters.batches_by.p2pdma = 4;
    }
    seen.cufile = batches;
    assert_eq!(text(&seen, &direct), "direct (p2pdma)");
    let mut untold = counters(2, 0, 0, GIB);
    if let Seen::Value(counters) = &mut untold {
        counters.gpus[0].reads.operations = 5;
    }
    seen.cufile = untold;
    assert!(missing(&seen, &direct).contains("of 5 operations cuFile counted only 2"));
    // Only nvidia-fs, which counts for all processes.
    seen.cufile = Seen::missing("1.14 has none", "take 1.15");
    let counts = NvidiaFs { reads: 1024, read: GIB, ..NvidiaFs::default() };
    seen.nvidia_fs = Seen::Value(counts.clone());
    let found = verdict(&seen, &direct);
    assert_eq!(found.to_string(), "direct (nvidia-fs)");
    assert!(found.doubts[0].contains("all processes"), "{found:?}");
    seen.nvidia_fs = Seen::Value(NvidiaFs { read: GIB / 2, ..counts });
    assert!(missing(&seen, &direct).contains("1.14 has none"));
}

/// Counters in which each of these GPUs, named by number, has this many reads and bytes, all by
/// p2pdma.
fn by_gpus(gpus: &[(u8, u64, u64)]) -> Counters {
    let records = gpus.iter().map(|(name, operations, bytes)| {
        let by = Paths { p2pdma: *operations, ..Paths::default() };
        let moves = Moves { bytes: *bytes, operations: *operations, by };
        GpuCounters { uuid: [*name; 16], reads: moves, writes: moves, unaligned_reads: 0 }
    });
    Counters { level: 3, gpus: records.collect(), ..Counters::default() }
}

fn uuid(name: u8) -> String {
    GpuCounters { uuid: [name; 16], ..GpuCounters::default() }.uuid_text()
}

fn on(name: u8, claim: Claim) -> Claim {
    Claim { gpu: Some(uuid(name)), ..claim }
}

/// Counters of a version that counts batches but not their bytes.
fn batches(by: Paths, gpus: &[(u8, u64, u64)]) -> Counters {
    Counters { batches: by.total(), batches_by: by, batch_bytes: None, ..by_gpus(gpus) }
}

const ONE: Paths = Paths { p2pdma: 1, nvidia_fs: 0, posix: 0 };

#[test]
fn so_few_bytes_that_only_the_library_counts_them_prove_nothing() {
    for len in [1, 4096, 64 * KIB, MIB - 1] {
        for (p2pdma, nvidia_fs) in [(1, 0), (0, 1), (1, 1)] {
            // As if the library had taken the bytes from the page cache.
            let lie = Evidence {
                cufile: counters(p2pdma, nvidia_fs, 0, len),
                nvidia_fs: Seen::Value(NvidiaFs { reads: 1, ..NvidiaFs::default() }),
                ..evidence(0, 0, GIB, GIB)
            };
            let found = verdict(&lie, &claim(&[(Route::Direct, len)]));
            assert!(found.finding >= Finding::Unproven, "{len}: {found:?}");
            // Matching drive counts do not prove it either: another process may have moved as much.
            let seen = Evidence { gpu: link(len), process: evidence(len, 0, 0, 0).process, ..lie };
            let found = verdict(&seen, &claim(&[(Route::Direct, len)]));
            assert!(found.finding >= Finding::Unproven, "{len}: {found:?}");
        }
    }
    let mut seen = evidence(64 * KIB, 0, 0, 0);
    seen.cufile = counters(1, 0, 0, 64 * KIB);
    let found = verdict(&seen, &claim(&[(Route::Direct, 64 * KIB)]));
    assert_eq!(
        found.missing[0].why,
        "no counter but the library's own shows that 64 KiB went directly"
    );
    assert_eq!(found.missing[0].remedy, "move at least 1 MiB directly in one span");
    // Unaligned edges are no evidence either, nor are the library's own compatibility reads.
    let edges = claim(&[(Route::Direct, 56 * KIB), (Route::Staged, 8 * KIB)]);
    assert_eq!(verdict(&seen, &edges).finding, Finding::Unproven);
    seen.cufile = counters(1, 0, 1, 64 * KIB);
    let small = claim(&[(Route::Direct, 64 * KIB)]);
    assert_eq!(verdict(&seen, &small).finding, Finding::Unproven);
    seen.cufile = counters(0, 0, 2, 64 * KIB);
    assert_eq!(text(&seen, &small), "compat", "nothing is reported as direct");
    let mut seen = evidence(MIB, 0, 0, 0);
    seen.cufile = counters(1, 0, 0, MIB);
    assert_eq!(text(&seen, &claim(&[(Route::Direct, MIB)])), "direct (p2pdma)");
}

#[test]
fn few_bytes_next_to_many_are_a_doubt() {
    let mut seen = evidence(0, 0, GIB, GIB);
    seen.cufile = counters(2, 0, 0, 8 * MIB);
    let both = claim(&[(Route::Direct, 8 * MIB), (Route::Cached, GIB - 8 * MIB)]);
    let found = verdict(&seen, &both);
    assert_eq!(found.to_string(), "mixed >99 % cached / <1 % direct (p2pdma)", "{found:?}");
    assert!(found.doubts[0].starts_with("that 8 MiB went directly is the library's word alone"));
    let mut seen = evidence(GIB, 0, 0, 0);
    seen.cufile = counters(1, 0, 99, GIB);
    let found = verdict(&seen, &whole(Route::Direct));
    assert_eq!(found.to_string(), "mixed >99 % compat / <1 % direct (p2pdma)");
    assert_eq!(found.doubts.len(), 1, "{found:?}");
    // Without the module the path does not exist, however few bytes are claimed.
    seen.cufile = counters(0, 1, 99, GIB);
    seen.nvidia_fs = Seen::Nothing("nvidia-fs is not loaded".into());
    assert!(contradiction(&seen, &whole(Route::Direct)).contains("nvidia-fs is not loaded"));
}

#[test]
fn bytes_in_memory_need_no_drive() {
    for (len, holes) in [(64 * KIB, 0), (GIB, 0), (GIB, GIB)] {
        let mut seen =
            Evidence { storage: Storage::Memory, gpu: link(len), ..evidence(0, 0, 0, 0) };
        seen.page_cache = seen.page_cache.map(|cache| PageCache { holes, ..cache });
        seen.cufile = counters(1, 0, 0, len);
        let text = contradiction(&seen, &claim(&[(Route::Direct, len)]));
        assert!(text.ends_with("but the drives have read 0 B"), "{text}");
    }
}

#[test]
fn uncounted_bytes_of_batches_are_inferred_with_a_doubt() {
    let direct = whole(Route::Direct);
    let seen = |fetched, gpus: &[_]| {
        let cufile = Seen::Value(batches(ONE, gpus));
        Evidence { cufile, ..evidence(fetched, 0, 0, 0) }
    };
    for gpus in [&[][..], &[(0, 0, 0)]] {
        let found = verdict(&seen(GIB, gpus), &direct);
        assert_eq!(found.to_string(), "direct (p2pdma)", "the drives have counted them: {found:?}");
        assert_eq!(
            found.doubts,
            ["cuFile counted 1 batches, of unknown bytes: that they moved 1 GiB is inferred"]
        );
    }
    assert!(contradiction(&seen(0, &[]), &direct).contains("but the drives have read 0 B"));
    let mut blind = Evidence { storage: Storage::Other, ..seen(GIB, &[]) };
    assert!(missing(&blind, &direct).starts_with("no counter but the library's own"));
    blind.gpu = link(GIB);
    assert_eq!(verdict(&blind, &direct).doubts.len(), 2, "inferred, and by the link alone");
    // If calls cover all bytes, nothing is inferred; if they cover half, the rest is.
    let found = verdict(&seen(GIB, &[(0, 8, GIB)]), &direct);
    assert_eq!(
        (found.to_string().as_str(), found.doubts.len()),
        ("direct (p2pdma)", 0),
        "{found:?}"
    );
    let found = verdict(&seen(GIB, &[(0, 8, GIB / 2)]), &direct);
    assert!(found.doubts[0].contains("that they moved 512 MiB is inferred"), "{found:?}");
}

#[test]
fn batches_of_others_are_not_taken_for_these_calls() {
    let mut seen = evidence(GIB, 0, 0, 0);
    let mut counted = by_gpus(&[(0, 4, GIB)]);
    counted.gpus[0].reads.by = Paths { posix: 4, ..Paths::default() };
    (counted.batches, counted.batches_by, counted.batch_bytes) = (1, ONE, Some(GIB));
    seen.cufile = Seen::Value(counted);
    let found = verdict(&seen, &whole(Route::Direct));
    assert_eq!(found.to_string(), "mixed 50 % direct (p2pdma) / 50 % compat");
    assert!(
        found.doubts[0].contains("cuFile counted 2 GiB: it also served other work"),
        "{found:?}"
    );
}

#[test]
fn counts_of_another_gpu_say_nothing_of_this_one() {
    let with =
        |gpus: &[_]| Evidence { cufile: Seen::Value(by_gpus(gpus)), ..evidence(GIB, 0, 0, 0) };
    let direct = whole(Route::Direct);
    let other_alone = with(&[(1, 0, 0), (7, 9, GIB)]);
    let text = contradiction(&other_alone, &on(1, direct.clone()));
    assert!(text.contains("which counted none"), "{text}");
    assert_eq!(self::text(&other_alone, &on(7, direct.clone())), "direct (p2pdma)");
    let text = missing(&with(&[(7, 9, GIB)]), &on(1, direct.clone()));
    assert_eq!(text, format!("cuFile counted nothing for `{}`, only for other GPUs", uuid(1)));
    // Both GPUs were used: each is judged by its own counts.
    let both = with(&[(1, 1, GIB / 2), (7, 9, GIB)]);
    assert!(contradiction(&both, &on(1, direct.clone())).contains("which counted 512 MiB"));
    assert_eq!(self::text(&both, &on(7, direct.clone())), "direct (p2pdma)");
    let write = Claim { direction: Direction::Write, ..on(1, direct.clone()) };
    assert!(contradiction(&other_alone, &write).contains("which counted none"));
    // The claim does not name the GPU.
    let text = missing(&both, &direct);
    assert_eq!(text, "cuFile counted for 2 GPUs, and the claim does not name its GPU");
    let found = verdict(&other_alone, &direct);
    assert_eq!(
        found.doubts,
        ["cuFile knows several GPUs, of which a single GPU was used"],
        "{found:?}"
    );
    let simulated = Claim { memory: Memory::SimulatedGpu, ..direct.clone() };
    let found = verdict(&with(&[(0, 9, GIB)]), &simulated);
    assert_eq!((found.word(), found.doubts.len()), ("direct (p2pdma)", 0), "{found:?}");
    assert_eq!(verdict(&both, &simulated).finding, Finding::Unproven);
}

#[test]
fn batches_are_counted_for_no_gpu_so_that_its_link_has_to_show_them() {
    let direct = on(1, whole(Route::Direct));
    let mut seen = evidence(GIB, 0, 0, 0);
    seen.cufile = Seen::Value(batches(ONE, &[(1, 0, 0), (7, 0, 0)]));
    let text = missing(&seen, &direct);
    assert!(text.starts_with("cuFile counts batches for all GPUs together"), "{text}");
    seen.gpu = link(GIB);
    let found = verdict(&seen, &direct);
    assert_eq!((found.word(), found.doubts.len()), ("direct (p2pdma)", 2), "{found:?}");
    seen.gpu = link(0);
    assert_eq!(verdict(&seen, &direct).finding, Finding::Contradictory);
    // A GPU used only by batches has no record, and needs none.
    seen.gpu = link(GIB);
    seen.cufile = Seen::Value(batches(ONE, &[(7, 9, GIB)]));
    assert_eq!(self::text(&seen, &direct), "direct (p2pdma)");
}

#[test]
fn bytes_of_other_files_and_of_others_are_no_evidence_of_these() {
    let direct = whole(Route::Direct);
    let p2pdma = |seen| Evidence { cufile: counters(64, 0, 0, GIB), ..seen };
    // The process read 1 GiB, but not from the drives below the file.
    let mut seen = p2pdma(evidence(GIB, 0, 0, 0));
    seen.drives = Seen::Value(vec![drive(true, 0)]);
    let text = missing(&seen, &direct);
    assert!(text.starts_with("the drives below the files have read 0 B: the 1 GiB of"), "{text}");
    // The drives were read, but not by this process.
    let found = verdict(&p2pdma(evidence(0, GIB, 0, 0)), &direct);
    assert_eq!(found.word(), "direct (p2pdma)");
    assert!(found.doubts[0].ends_with("for all processes together, and this process 0 B"));
    for (process, drives, whose) in [
        (Seen::missing("none", "x"), 5 * GIB, "all processes together"),
        (Seen::Value(ProcessBytes { read: 5 * GIB, written: 0 }), 0, "this process"),
    ] {
        let mut seen = p2pdma(evidence(0, 0, 0, 0));
        seen.process = process;
        seen.drives = match drives {
            0 => Seen::missing("no iostats", "set it"),
            bytes => Seen::Value(vec![drive(true, bytes)]),
        };
        let found = verdict(&seen, &direct);
        let reported = format!("5 GiB were read for {whose}: more than this span's");
        assert_eq!((found.word(), found.doubts), ("direct (p2pdma)", vec![reported]));
    }
}

#[test]
fn holes_excuse_drives_and_prove_nothing() {
    let direct = whole(Route::Direct);
    let seen = |fetched, gpu| {
        let mut seen = Evidence { gpu, ..evidence(fetched, 0, 0, 0) };
        seen.page_cache = seen.page_cache.map(|cache| PageCache { holes: GIB - fetched, ..cache });
        seen.cufile = counters(64, 0, 0, GIB);
        seen
    };
    let none = || Seen::Nothing("no GPU is part of it".into());
    let text = missing(&seen(0, none()), &direct);
    assert!(text.starts_with("1 GiB may be holes"), "{text}");
    let found = verdict(&seen(GIB / 2, none()), &direct);
    assert_eq!(found.word(), "direct (p2pdma)");
    assert!(found.doubts[0].starts_with("512 MiB may be holes"), "{found:?}");
    let found = verdict(&seen(GIB / 2, link(GIB)), &direct);
    assert_eq!((found.word(), found.doubts.len()), ("direct (p2pdma)", 0), "{found:?}");
}

#[test]
fn nvidia_fs_confirms_what_it_has_moved_itself_in_that_direction() {
    let direct = whole(Route::Direct);
    let busy = NvidiaFs { reads: 9, read: GIB, ..NvidiaFs::default() };
    let mut seen = Evidence { cufile: counters(4, 0, 0, GIB), ..Evidence::default() };
    seen.nvidia_fs = Seen::Value(busy.clone());
    let text = missing(&seen, &direct);
    assert!(text.starts_with("no counter but the library's own"), "those are others': {text}");
    let mut seen = Evidence { cufile: counters(0, 4, 0, GIB), ..evidence(GIB, 0, 0, 0) };
    seen.nvidia_fs = Seen::Value(busy);
    let write = Claim { direction: Direction::Write, ..direct };
    assert!(contradiction(&seen, &write).contains("counted no request"));
    // Whole MiB are counted, so a transfer of 1 MiB must count as one.
    let mut seen = evidence(MIB, 0, 0, 0);
    seen.nvidia_fs = Seen::Value(NvidiaFs { reads: 1, ..NvidiaFs::default() });
    let one = claim(&[(Route::Direct, MIB)]);
    assert!(missing(&seen, &one).starts_with("cuFile's own counters"));
    seen.nvidia_fs = Seen::Value(NvidiaFs { reads: 1, read: MIB, ..NvidiaFs::default() });
    assert_eq!(self::text(&seen, &one), "direct (nvidia-fs)");
}

#[test]
fn bytes_of_other_routes_do_not_replace_direct_ones() {
    let half = GIB / 2;
    let both = |route| claim(&[(Route::Direct, half), (route, half)]);
    let seen = |fetched, after| Evidence {
        cufile: counters(32, 0, 0, half),
        ..evidence(fetched, 0, 0, after)
    };
    // Read from the drive into the page cache, and nothing else.
    assert!(contradiction(&seen(half, half), &both(Route::Cached)).contains("have read 512 MiB"));
    let found = text(&seen(GIB, half), &both(Route::Cached));
    assert_eq!(found, "mixed 50 % direct (p2pdma) / 50 % cached");
    contradiction(&seen(half, 0), &both(Route::Staged));
    // The link saw only the staged bytes.
    let mut blind = Evidence { storage: Storage::Other, gpu: link(half), ..seen(0, 0) };
    let lack = missing(&blind, &both(Route::Staged));
    assert!(lack.starts_with("no counter but the library's own"), "{lack}");
    blind.gpu = link(GIB);
    assert_eq!(verdict(&blind, &both(Route::Staged)).word(), "mixed");
    let mut short = Evidence { gpu: link(half + MIB), ..seen(GIB, 0) };
    short.cufile = counters(32, 0, 0, GIB);
    let found = verdict(&short, &whole(Route::Direct));
    assert_eq!(found.doubts, ["the GPU received 513 MiB over PCIe: less than 1 GiB"]);
    // The library's own compatibility reads may be all that the drives saw.
    let mut compat = seen(half, 0);
    compat.cufile = counters(16, 0, 16, GIB);
    let found = verdict(&compat, &whole(Route::Direct));
    assert!(found.doubts[0].starts_with("the 512 MiB may be those of the 512 MiB"), "{found:?}");
    let enough = Evidence { process: evidence(GIB, 0, 0, 0).process, ..compat };
    let enough = Evidence { drives: evidence(GIB, 0, 0, 0).drives, ..enough };
    assert_eq!(verdict(&enough, &whole(Route::Direct)).doubts.len(), 0);
}

#[test]
fn direct_writes_leave_nothing_in_the_page_cache() {
    let write = |claim| Claim { direction: Direction::Write, ..claim };
    let seen = |before, after| Evidence {
        cufile: counters(64, 0, 0, GIB),
        ..evidence(GIB, 0, before, after)
    };
    assert_eq!(text(&seen(GIB, 0), &write(whole(Route::Direct))), "direct (p2pdma)");
    // Written into pages that were resident before, and from there to the drive.
    let lack = missing(&seen(GIB, GIB), &write(whole(Route::Direct)));
    assert!(lack.contains("but 1 GiB of the range are in the page cache"), "{lack}");
    assert_eq!(text(&seen(GIB, GIB), &whole(Route::Direct)), "direct (p2pdma)", "reads leave them");
    // The rest of the range may be resident.
    let mut part = seen(GIB, GIB / 2);
    part.cufile = counters(64, 0, 0, GIB / 2);
    assert_eq!(text(&part, &write(claim(&[(Route::Direct, GIB / 2)]))), "direct (p2pdma)");
}
