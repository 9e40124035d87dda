//! Bars for one drive: urgent reads during a transfer, and a load compared with `fio`'s on a drive
//! with a rate cap and on one with latency.

use std::time::{Duration, Instant};

use forebay::RequestOptions;
use forebay::units::{GIB, KIB, MIB};

use super::RATE;
use super::ground::{Drive, Ground};
use super::reads::{self, Read, mb_per_s};
use super::slow::Pace;
use crate::bar::{Measured, Stop};
use crate::data;
use crate::fio::{Fio, Load};
use crate::lab::engine;
use crate::sample::{Sample, Series};
use crate::sweep::{Criterion, compare};

/// Bytes of the transfer.
const LEN: u64 = 4 * GIB;

/// Bytes of a small read, and of its file.
const SMALL_LEN: u64 = 4 * KIB;
const FILE_LEN: u64 = 64 * MIB;
/// Small reads on the idle drive.
const COUNT: usize = 1000;

/// Bytes of the file that is compared with `fio`.
const AGREE_LEN: u64 = 256 * MIB;

/// Request sizes, requests in flight, and whether they are random.
const CAPPED: [(u64, u32, bool); 3] = [(MIB, 4, false), (128 * KIB, 16, false), (4 * KIB, 8, true)];
const DELAYED: [(u64, u32, bool); 4] =
    [(4 * KIB, 1, true), (4 * KIB, 16, true), (128 * KIB, 1, false), (128 * KIB, 8, false)];

/// A drive that needs more than one request in flight for its full rate.
fn slow(ground: &Ground, len: u64) -> Result<Drive, Stop> {
    ground.slow_drive("slow", len, Pace { latency_us: 1000, rate: RATE })
}

/// Small urgent reads during a large transfer on the same drive.
pub(super) fn urgent(ground: &Ground) -> Result<Measured, Stop> {
    let len = ground.len(LEN);
    let drive = slow(ground, len + FILE_LEN)?;
    let engine = engine()?;
    let small = engine.open(drive.file("small", ground.len(FILE_LEN))?)?;
    small.evict()?;
    let mut reads = [Read::to_host(&engine, 0, drive.file("large", len)?)?];
    reads::evict(&reads)?;
    let (mut number, mut target) = (0, vec![0; 4096]);
    let pieces = small.len()? / SMALL_LEN;
    let mut read = || {
        number += 1;
        let offset = data::number(number, pieces) * SMALL_LEN;
        let start = Instant::now();
        small.read_with(offset, &mut target[..], &RequestOptions::default().urgent())?;
        let seconds = start.elapsed().as_secs_f64();
        data::check(&target, offset)?;
        Ok::<_, Stop>(Sample { seconds, bytes: SMALL_LEN, cpu_s: 0.0 })
    };

    let count = COUNT / if ground.is_tiny() { 16 } else { 1 };
    let mut idle = (0..count).map(|_| read()).collect::<Result<Vec<_>, _>>()?;
    let alone = reads::run(&mut reads, |_| true)?;
    idle.extend((0..count).map(|_| read()).collect::<Result<Vec<_>, _>>()?);
    let mut busy = Vec::new();
    let transfer = reads[0].start()?;
    while !transfer.is_done() {
        busy.push(read()?);
    }
    let (outcome, target) = transfer.wait();
    reads[0].give_back(target);
    let outcome = outcome?;
    reads[0].check()?;

    let both = Sample { seconds: outcome.elapsed.as_secs_f64(), bytes: outcome.bytes, cpu_s: 0.0 };
    let measured = Measured::of(vec![
        Series::new("transfer alone", vec![alone.all]),
        Series::new("transfer during small reads", vec![both]),
        Series::new("small reads, idle drive", idle),
        Series::new("small reads during the transfer", busy),
    ]);
    let series = &measured.series;
    let ms = |side: usize, share| format!("{:.2} ms", series[side].percentile(share) * 1e3);
    let notes = vec![
        alone.route(),
        format!("idle: median {}, p99 {}", ms(2, 0.5), ms(2, 0.99)),
        format!("busy: median {}, p99 {}", ms(3, 0.5), ms(3, 0.99)),
        format!("{} small reads during the transfer", series[3].samples.len()),
        format!("alone {}, busy {}", mb_per_s(series[0].rate()), mb_per_s(series[1].rate())),
    ];
    let late = series[3].percentile(0.99) / series[2].percentile(0.99);
    let kept = measured.ratio(1, 0);
    Ok(Measured { notes, ..measured }.at_most("p99 of the idle drive", late, 6.0).at_least(
        "rate of the transfer alone",
        kept,
        0.9,
    ))
}

/// A load and `fio` on a drive that a cap binds.
pub(super) fn agree_capped(ground: &Ground) -> Result<Measured, Stop> {
    let mut drive = ground.drive("capped", ground.len(AGREE_LEN))?;
    let path = drive.file("file", ground.len(AGREE_LEN))?;
    ground.cap(&mut drive, RATE)?;
    agree(ground, &drive, &path, &CAPPED, Criterion::Rate)
}

/// A load and `fio` on a drive that answers late.
pub(super) fn agree_delayed(ground: &Ground) -> Result<Measured, Stop> {
    let drive = slow(ground, ground.len(AGREE_LEN))?;
    let path = drive.file("file", ground.len(AGREE_LEN))?;
    agree(ground, &drive, &path, &DELAYED, Criterion::Latencies)
}

fn agree(
    ground: &Ground,
    drive: &Drive,
    path: &std::path::Path,
    points: &[(u64, u32, bool)],
    criterion: Criterion,
) -> Result<Measured, Stop> {
    let fio = Fio::find()?;
    let points = &points[..if ground.is_tiny() { 1 } else { points.len() }];
    points.iter().try_fold(Measured::default(), |measured, &(size, depth, random)| {
        drive.spend_burst()?;
        let time = Duration::from_millis(if ground.is_tiny() { 200 } else { 4000 });
        let load = Load { size, depth, random, time };
        compare(&fio, path, (&load, criterion), ground.is_tiny(), measured)
    })
}
