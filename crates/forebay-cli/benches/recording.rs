//! The cost of a load's own work for each request: it stamps the bytes to write, and keeps how long
//! the request took. More than [`NS_MAX`] is a failure, where it is measured.

#![allow(missing_docs, reason = "the macros make functions without documentation")]

use std::hint::black_box;
use std::io::Write as _;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use criterion::{Criterion, criterion_group};
use forebay_measure::data::Pattern;
use forebay_measure::workload::latency::Latencies;

/// What one request may cost: its stamp, both looks at the clock, and the histogram.
const NS_MAX: f64 = 150.0;
/// Requests of a turn, and turns, of which the median counts: other work disturbs some.
const REQUESTS: u32 = 20_000;
const TURNS: usize = 101;
/// Bytes of a request, and requests in flight.
const BLOCK: usize = 4096;
const DEPTH: usize = 32;
const DATA: Pattern = Pattern::new(1);

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
    group.bench_function("the stamp, both looks at the clock and the histogram", |bencher| {
        let (mut memory, mut number) = (vec![1; DEPTH * BLOCK], 0);
        bencher.iter(|| {
            request(&mut latencies, &mut memory, number);
            number += 1;
        });
    });
    group.finish();
    assert!(latencies.summary(false).is_some(), "nothing was recorded");
}

/// The work for each request of 4 KiB; `memory` is that of all requests in flight.
fn request(latencies: &mut Latencies, memory: &mut [u8], number: usize) {
    let place = number % (memory.len() / BLOCK) * BLOCK;
    DATA.stamp(number as u64 * BLOCK as u64, 0, &mut memory[place..][..BLOCK]);
    let began = black_box(Instant::now());
    latencies.add(black_box(Instant::now()).saturating_duration_since(began), 1);
}

/// Nanoseconds that a request costs.
fn cost() -> f64 {
    let (mut latencies, mut memory) = (Latencies::default(), vec![1; DEPTH * BLOCK]);
    let mut turns: Vec<f64> = (0..TURNS)
        .map(|_| {
            let began = Instant::now();
            (0..REQUESTS).for_each(|number| request(&mut latencies, &mut memory, number as usize));
            began.elapsed().as_secs_f64() * 1e9 / f64::from(REQUESTS)
        })
        .collect();
    turns.sort_by(f64::total_cmp);
    turns[TURNS / 2]
}

criterion_group!(benches, recording);

fn main() -> ExitCode {
    benches();
    Criterion::default().configure_from_args().final_summary();
    // `cargo bench` gives the first word; with the other one each case runs once, and is not timed.
    let has = |word: &str| std::env::args().any(|argument| argument == word);
    if !has("--bench") || has("--test") {
        return ExitCode::SUCCESS;
    }
    let cost = cost();
    let (word, code) =
        if cost <= NS_MAX { ("pass", ExitCode::SUCCESS) } else { ("fail", ExitCode::FAILURE) };
    let text = format!("recording, one request: {cost:.1} ns, must be <= {NS_MAX:.1}: {word}");
    let _ = writeln!(std::io::stdout(), "{text}");
    code
}
