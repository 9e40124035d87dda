//! What it costs a load to keep how long its requests took: what `forebay sweep` adds to each
//! request beside making it. 150 ns at most are allowed for.

#![allow(missing_docs, reason = "the macros make functions without documentation")]

use std::hint::black_box;
use std::time::{Duration, Instant};

use criterion::{Criterion, criterion_group, criterion_main};
use forebay_cli::workload::latency::Latencies;

/// Latencies as different as those of a drive: 10 µs to 10 ms.
fn spread() -> impl Iterator<Item = Duration> {
    let steps = (0_u64..).map(|step| step.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 40);
    steps.map(|step| Duration::from_nanos(10_000 + step % 10_000_000))
}

fn recording(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("recording, one request");
    let (mut latencies, mut times) = (Latencies::default(), spread());
    group.bench_function("the histogram alone", |bencher| {
        bencher.iter(|| latencies.add(black_box(times.next().expect("it never ends")), 1));
    });
    group.bench_function("both looks at the clock and the histogram", |bencher| {
        bencher.iter(|| {
            let began = black_box(Instant::now());
            latencies.add(black_box(Instant::now()).saturating_duration_since(began), 1);
        });
    });
    group.finish();
    assert!(latencies.summary(false).is_some(), "nothing was recorded");
}

criterion_group!(benches, recording);
criterion_main!(benches);
