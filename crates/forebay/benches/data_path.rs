//! Our own cost for each segment that is planned, each op of a ring and each slot that goes from
//! its reader to the copy engine and back.

#![allow(missing_docs, reason = "the macros make functions without documentation")]

use std::hint::black_box;
use std::path::Path;

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use forebay::micro::{DataPath, Resident, plan};

const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;

/// Any file will do: none of its bytes is read.
const FILE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/Cargo.toml");

fn planner(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("planner, one window of 16 MiB");
    for (name, resident) in [
        ("resident", Resident::Whole),
        ("cold", Resident::Nothing),
        ("every other 64 KiB resident", Resident::Every(64 * KIB)),
    ] {
        let segments = plan(16 * MIB, MIB, resident);
        group.throughput(Throughput::Elements(segments as u64));
        group.bench_function(name, |bencher| {
            bencher.iter(|| plan(black_box(16 * MIB), MIB, black_box(resident)));
        });
    }
    group.finish();
}

fn ring_loop(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("ring loop, ops that are done at once");
    for (name, slot, segment) in
        [("4 KiB", 256 * KIB, 4 * KIB), ("1 MiB", 16 * MIB, MIB), ("alone", 4 * KIB, 4 * KIB)]
    {
        let ops = if name == "alone" { 1 } else { 1024 };
        let len = ops * segment;
        let mut path = DataPath::new(Path::new(FILE), len, slot, segment).expect("a data path");
        group.throughput(Throughput::Elements(ops));
        group.bench_function(name, |bencher| {
            bencher.iter(|| path.read_to_host(black_box(len)).expect("a whole read"));
        });
    }
    group.finish();
}

fn slot_hand_over(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("slot hand-over, copies of a simulated GPU");
    let (slots, slot) = (256, 4 * KIB);
    for (name, segment) in [("one segment each", 4 * KIB), ("four segments each", KIB)] {
        let len = slots * slot;
        let mut path = DataPath::new(Path::new(FILE), len, slot, segment).expect("a data path");
        group.throughput(Throughput::Elements(slots));
        group.bench_function(name, |bencher| {
            bencher.iter(|| path.read_to_gpu(black_box(len)).expect("a whole read"));
        });
    }
    group.finish();
}

criterion_group!(benches, planner, ring_loop, slot_hand_over);
criterion_main!(benches);
