//! Concurrent work on one GPU: many pieces in one call, many threads, small reads during a large
//! transfer, and many files written.

use std::fs::{self, OpenOptions};
use std::sync::Barrier;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use forebay::units::{GIB, KIB, MIB, format_size};
use forebay::{Buffer, File, Piece, RequestOptions, Target};

use crate::bar::{Bound, Check, Measured, Stop};
use crate::data;
use crate::device::Plain;
use crate::lab::{Gpu, Lab, Place, routes, verify};
use crate::sample::{Sample, Series, interleave, timed};
use crate::write::{plain, source};

/// Bytes of a piece.
const PIECE_LEN: u64 = 64 * KIB;
/// Slots whose copies a small read may have to wait for.
const SLOTS_BEFORE: f64 = 3.0;

/// 100,000 pieces of 64 KiB of a warm file to scattered places on the GPU, in one call.
pub(crate) fn pieces(lab: &Lab) -> Result<Measured, Stop> {
    let gpu = lab.gpu()?;
    let count = lab.count(100_000);
    let len = count * PIECE_LEN;
    let path = lab.file(Place::Disk, len)?;
    let file = gpu.engine.open(&path)?;
    let mut target = gpu.allocate(len)?;
    let link_len = len.min(GIB);
    let mut link = Plain::new(&gpu, link_len)?;
    let (from, to) = (shuffled(count, 1), shuffled(count, 2));
    let piece =
        |(from, to): (&u64, &u64)| Piece::new(&file, from * PIECE_LEN, PIECE_LEN, to * PIECE_LEN);
    let pieces: Vec<Piece<'_>> = from.iter().zip(&to).map(piece).collect();
    let options = RequestOptions::exactly();
    target.fill(0x5A)?;
    let read =
        |target: &mut Buffer| gpu.engine.read_many(&pieces, &mut [Target::from(target)], &options);
    let outcome = read(&mut target)?;
    verify_pieces(&target, &pieces)?;
    // The same reads call by call: shows the gain from batches.
    let single = count.min(20_000);
    let sides = ["link", "forebay", "forebay, a call for each"].map(str::to_owned);
    let series = interleave(lab.rounds(9), &sides, |side| match side {
        0 => timed(link_len, || link.copy(&mut target, link_len)),
        1 => timed(len, || Ok(read(&mut target).map(drop)?)),
        _ => timed(single * PIECE_LEN, || {
            pieces[..usize::try_from(single).unwrap_or(0)].iter().try_for_each(|piece| {
                let part = piece.at..piece.at + PIECE_LEN;
                let read = piece.file.read_exact(piece.offset, Target::Buffer(&mut target, part));
                Ok(read.map(drop)?)
            })
        }),
    })?;
    let share = series[1].rate() / series[0].best_rate();
    Ok(Measured {
        checks: vec![Check::new("share of the link", share, Bound::AtLeast(0.85))],
        notes: vec![format!("{count} pieces, {}", routes(&outcome.whole))],
        series,
    })
}

/// The numbers below `count` in an order that depends on `seed` alone.
fn shuffled(count: u64, seed: u64) -> Vec<u64> {
    let mut all: Vec<u64> = (0..count).collect();
    for index in (1..all.len()).rev() {
        let other = data::number((seed << 40) + index as u64, index as u64 + 1);
        all.swap(index, usize::try_from(other).unwrap_or(0));
    }
    all
}

fn verify_pieces(target: &Buffer, pieces: &[Piece<'_>]) -> Result<(), Stop> {
    let mut all = vec![0; usize::try_from(target.len()).unwrap_or(usize::MAX)];
    target.download(0, &mut all)?;
    for piece in pieces {
        let at = usize::try_from(piece.at).unwrap_or(usize::MAX);
        let len = usize::try_from(piece.len).unwrap_or(usize::MAX);
        data::check(&all[at..at + len], piece.offset)
            .map_err(|at| Stop::Fail(format!("wrong bytes in a piece at {at} of the file")))?;
    }
    Ok(())
}

/// 16 threads that each read 64 MiB of a warm file concurrently.
pub(crate) fn threads(lab: &Lab) -> Result<Measured, Stop> {
    const THREADS: u64 = 16;
    let gpu = lab.gpu()?;
    let each = lab.len(64 * MIB);
    let path = lab.file(Place::Disk, THREADS * each)?;
    let file = gpu.engine.open(&path)?;
    let mut whole = gpu.allocate(THREADS * each)?;
    let mut link = Plain::new(&gpu, each)?;
    let mut parts: Vec<Buffer> =
        (0..THREADS).map(|_| gpu.allocate(each)).collect::<Result<_, _>>()?;
    for (at, part) in (0..).step_by(usize::try_from(each).unwrap_or(1)).zip(&mut parts) {
        file.read_exact(at, &mut *part)?;
    }
    let outcome = file.read_exact(0, &mut whole)?;
    verify(&whole, THREADS * each)?;
    let sides = ["link", "forebay, 16 threads", "forebay, one call"].map(str::to_owned);
    let len = THREADS * each;
    // Several rounds in one sample: one takes 20 ms.
    let rounds = 8;
    let series = interleave(lab.rounds(9), &sides, |side| match side {
        0 => timed(len, || (0..THREADS).try_for_each(|_| link.copy(&mut whole, each))),
        1 => read_at_once(&file, &mut parts, each, rounds),
        _ => timed(rounds * len, || {
            (0..rounds).try_for_each(|_| Ok(file.read_exact(0, &mut whole).map(drop)?))
        }),
    })?;
    let share = series[1].rate() / series[0].best_rate();
    Ok(Measured {
        checks: vec![Check::new("share of the link in sum", share, Bound::AtLeast(0.95))],
        notes: vec![format!("16 × {}, {}", format_size(each), routes(&outcome))],
        series,
    })
}

/// Reads all parts concurrently, each on its own thread, in each round. A round's time runs from
/// the first thread's start to the last one's end: starting the threads is not part of it.
fn read_at_once(file: &File, parts: &mut [Buffer], each: u64, rounds: u64) -> Result<Sample, Stop> {
    let bytes = rounds * parts.len() as u64 * each;
    let (awake, threads) = (Barrier::new(parts.len()), parts.len() as u64);
    let ready = AtomicU64::new(0);
    let run = |(number, part): (u64, &mut Buffer)| {
        let (mut spans, mut ended) = (Vec::new(), Ok(()));
        for round in 1..=rounds {
            awake.wait();
            // Threads wake one after the other, so wait for all.
            ready.fetch_add(1, Ordering::AcqRel);
            while ready.load(Ordering::Acquire) < round * threads {
                thread::yield_now();
            }
            let start = Instant::now();
            let read = file.read_exact(number * each, &mut *part);
            spans.push((start, Instant::now()));
            ended = ended.and(read.map(drop));
        }
        ended.map(|()| spans)
    };
    let mut all: Vec<Vec<(Instant, Instant)>> = Vec::new();
    let sample = timed(bytes, || {
        thread::scope(|scope| {
            let run = &run;
            let started: Vec<_> =
                (0..).zip(parts).map(|part| scope.spawn(move || run(part))).collect();
            for thread in started {
                all.push(thread.join().map_err(|_| Stop::Fail("a thread panicked".into()))??);
            }
            Ok(())
        })
    })?;
    let took = |round: usize| {
        let first = all.iter().map(|spans| spans[round].0).min();
        let last = all.iter().map(|spans| spans[round].1).max();
        first.zip(last).map_or(Duration::ZERO, |(first, last)| last - first)
    };
    let rounds = usize::try_from(rounds).unwrap_or(0);
    let seconds = (0..rounds).map(took).sum::<Duration>().as_secs_f64();
    Ok(Sample { seconds, ..sample })
}

/// 64 KiB reads during a transfer of 8 GiB, both of warm files.
pub(crate) fn small_beside_large(lab: &Lab) -> Result<Measured, Stop> {
    let gpu = lab.gpu()?;
    let len = lab.len(8 * GIB);
    let large = gpu.engine.open(lab.file(Place::Disk, len)?)?;
    let small = gpu.engine.open(lab.file(Place::Disk, lab.len(256 * MIB))?)?;
    let mut target = gpu.allocate(len)?;
    let mut link = Plain::new(&gpu, 64 * MIB.min(len))?;
    let mut part = gpu.allocate(PIECE_LEN)?;
    let mut notes = Vec::new();
    let outcome = large.read_exact(0, &mut target)?;
    notes.push(routes(&outcome));
    let mut ratios = Vec::new();
    let (mut alone, mut beside) = (Vec::new(), Vec::new());
    let slot_len = gpu.engine.options().slot_size.min(len);
    let mut slot_s = Vec::new();
    for _ in 0..lab.rounds(5) {
        let start = Instant::now();
        link.copy(&mut target, slot_len)?;
        slot_s.push(start.elapsed().as_secs_f64());
        latencies(&small, &mut part, &mut alone, Duration::from_millis(160))?;
        let start = Instant::now();
        large.read_exact(0, &mut target)?;
        let by_itself = start.elapsed();
        let (busy, large_s) = thread::scope(|scope| {
            let run = scope.spawn(|| {
                let start = Instant::now();
                large.read_exact(0, &mut target).map(|_| start.elapsed())
            });
            // It is in progress, and still is when these end.
            thread::sleep(by_itself / 10);
            let mut taken = Vec::new();
            let ended = latencies(&small, &mut part, &mut taken, by_itself * 7 / 10);
            let large_s = run.join().map_err(|_| Stop::Fail("a thread panicked".into()))?;
            Ok::<_, Stop>((ended.map(|()| taken)?, large_s?))
        })?;
        beside.extend(busy);
        ratios.push(by_itself.as_secs_f64() / large_s.as_secs_f64());
    }
    let slot = slot_s.iter().copied().fold(f64::INFINITY, f64::min);
    let longer = p99(&mut beside) - p99(&mut alone);
    notes.push(format!(
        "p99 alone {:.0} µs, beside {:.0} µs; a full slot takes {:.0} µs to copy",
        p99(&mut alone) * 1e6,
        p99(&mut beside) * 1e6,
        slot * 1e6
    ));
    let kept = crate::sample::median(ratios.into_iter());
    Ok(Measured {
        checks: vec![
            Check::new(
                "full slots' time that p99 is longer",
                longer / slot,
                Bound::AtMost(SLOTS_BEFORE),
            ),
            Check::new("rate of the transfer alone", kept, Bound::AtLeast(0.95)),
        ],
        notes,
        series: vec![series("alone", &alone), series("beside", &beside)],
    })
}

fn series(name: &str, seconds: &[f64]) -> Series {
    let sample = |&seconds: &f64| Sample { seconds, bytes: PIECE_LEN, cpu_s: 0.0 };
    Series { name: name.into(), samples: seconds.iter().map(sample).collect() }
}

/// Reads small parts one after the other for a time, and records the duration of each.
fn latencies(
    file: &File,
    part: &mut Buffer,
    taken: &mut Vec<f64>,
    time: Duration,
) -> Result<(), Stop> {
    let places = file.len()? / PIECE_LEN;
    let until = Instant::now() + time;
    for index in 0.. {
        let start = Instant::now();
        if start >= until {
            break;
        }
        file.read_exact(data::number(index, places) * PIECE_LEN, &mut *part)?;
        taken.push(start.elapsed().as_secs_f64());
        // Without the pause it would add load, and be another measurement.
        thread::sleep(Duration::from_micros(100));
    }
    Ok(())
}

/// The 99th percentile.
fn p99(seconds: &mut [f64]) -> f64 {
    seconds.sort_by(f64::total_cmp);
    seconds.get(seconds.len() * 99 / 100).copied().unwrap_or(f64::NAN)
}

/// A GPU's memory to eight files concurrently through the page cache, compared with a plain writer
/// for each.
pub(crate) fn eight_files(lab: &Lab) -> Result<Measured, Stop> {
    const FILES: u64 = 8;
    let gpu = lab.gpu()?;
    let each = lab.len(GIB);
    lab.need_room(Place::Tmpfs, FILES * each)
        .or_else(|_| lab.need_room(Place::Disk, FILES * each))?;
    let place = Place::Disk;
    let paths: Vec<_> =
        (0..FILES).map(|n| lab.path(place, &format!("out-{n}"))).collect::<Result<_, _>>()?;
    let sources: Vec<Buffer> = (0..FILES).map(|_| source(&gpu, each)).collect::<Result<_, _>>()?;
    let pinned = gpu.engine.allocate_pinned(each.min(256 * MIB))?;
    let bytes = pinned.as_slice().unwrap_or_default();
    for path in &paths {
        let _ = fs::remove_file(path);
        data::write(path, each).map_err(Stop::Fail)?;
    }
    let sides = ["plain writers", "forebay"].map(str::to_owned);
    let series = interleave(lab.rounds(5), &sides, |side| {
        let sample = timed(FILES * each, || {
            thread::scope(|scope| {
                let write = |path, source| match side {
                    0 => plain(&OpenOptions::new().write(true).open(path)?, bytes, each),
                    _ => write_file(&gpu, path, source),
                };
                let started: Vec<_> = paths
                    .iter()
                    .zip(&sources)
                    .map(|(path, source)| scope.spawn(move || write(path, source)))
                    .collect();
                let mut joined = started.into_iter().map(|thread| thread.join());
                joined
                    .try_for_each(|end| end.map_err(|_| Stop::Fail("a thread panicked".into()))?)
            })
        })?;
        // Dirty pages must not burden the next sample.
        paths.iter().try_for_each(|path| Ok::<(), Stop>(fs::File::open(path)?.sync_all()?))?;
        Ok(sample)
    })?;
    for path in &paths {
        crate::write::check(path, each)?;
        fs::remove_file(path)?;
    }
    let ratio = series[1].rate() / series[0].rate();
    let cpu = series[1].cpu_s_per_gb() / series[0].cpu_s_per_gb();
    Ok(Measured {
        checks: vec![Check::new("rate of 8 plain writers", ratio, Bound::AtLeast(0.95))],
        notes: vec![format!("8 × {}, {cpu:.2} times their CPU", format_size(each))],
        series,
    })
}

fn write_file(gpu: &Gpu, path: &std::path::Path, source: &Buffer) -> Result<(), Stop> {
    let file = gpu.engine.open_with(path, &forebay::OpenOptions::writing())?;
    Ok(file.write(0, source).map(drop)?)
}
