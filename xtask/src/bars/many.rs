//! Concurrent work on one GPU: many pieces in one call, many threads, and small reads during a
//! large transfer.

use std::sync::Barrier;
use std::thread;
use std::time::{Duration, Instant};

use forebay::units::{GIB, KIB, MIB, format_size};
use forebay::{Buffer, File, Piece, RequestOptions, Target};

use crate::bar::{Measured, Stop};
use crate::data;
use crate::lab::{Lab, routes, verify};
use crate::plain::Link;
use crate::sample::{Sample, Series, interleave, median, timed};

/// Bytes of a piece.
const PIECE_LEN: u64 = 64 * KIB;
/// Slots whose copies a small read may have to wait for.
const SLOTS_BEFORE: f64 = 3.0;

/// 100,000 pieces of 64 KiB of a warm file to scattered places on the GPU, in one call.
pub(crate) fn pieces(lab: &Lab) -> Result<Measured, Stop> {
    let gpu = lab.gpu()?;
    let count = lab.count(100_000);
    let len = count * PIECE_LEN;
    let path = lab.file(len)?;
    let file = gpu.engine.open(&path)?;
    let mut target = gpu.allocate(len)?;
    let link_len = len.min(GIB);
    let mut link = Link::new(&gpu, link_len)?;
    let (mut from, mut to): (Vec<u64>, Vec<u64>) = ((0..count).collect(), (0..count).collect());
    data::shuffle(&mut from, 1);
    data::shuffle(&mut to, 2);
    let piece =
        |(from, to): (&u64, &u64)| Piece::new(&file, from * PIECE_LEN, PIECE_LEN, to * PIECE_LEN);
    let pieces: Vec<Piece<'_>> = from.iter().zip(&to).map(piece).collect();
    let options = RequestOptions::exactly();
    target.fill(0x5A)?;
    let read =
        |target: &mut Buffer| gpu.engine.read_many(&pieces, &mut [Target::from(target)], &options);
    let outcome = read(&mut target)?;
    verify_pieces(&target, &pieces)?;
    let series = interleave(lab.rounds(9), &["link", "forebay"], |side| match side {
        0 => timed(link_len, || link.copy(&mut target, link_len)),
        _ => timed(len, || Ok(read(&mut target).map(drop)?)),
    })?;
    let share = series[1].rate() / series[0].best_rate();
    let measured = Measured::of(series).at_least("share of the link", share, 0.85);
    Ok(measured.note(format!("{count} pieces, {}", routes(&outcome.whole.routes))))
}

fn verify_pieces(target: &Buffer, pieces: &[Piece<'_>]) -> Result<(), Stop> {
    let mut all = vec![0; usize::try_from(target.len()).unwrap_or(usize::MAX)];
    target.download(0, &mut all)?;
    for piece in pieces {
        let at = usize::try_from(piece.at).unwrap_or(usize::MAX);
        let len = usize::try_from(piece.len).unwrap_or(usize::MAX);
        data::check(&all[at..at + len], piece.offset)?;
    }
    Ok(())
}

/// 16 threads that each read 64 MiB of a warm file concurrently.
pub(crate) fn threads(lab: &Lab) -> Result<Measured, Stop> {
    const THREADS: u64 = 16;
    let gpu = lab.gpu()?;
    let each = lab.len(64 * MIB);
    let path = lab.file(THREADS * each)?;
    let file = gpu.engine.open(&path)?;
    let mut whole = gpu.allocate(THREADS * each)?;
    let mut link = Link::new(&gpu, each)?;
    let mut parts: Vec<Buffer> =
        (0..THREADS).map(|_| gpu.allocate(each)).collect::<Result<_, _>>()?;
    for (at, part) in (0..).step_by(usize::try_from(each).unwrap_or(1)).zip(&mut parts) {
        file.read_exact(at, &mut *part)?;
    }
    let outcome = file.read_exact(0, &mut whole)?;
    verify(&whole, THREADS * each)?;
    let sides = ["link", "forebay, 16 threads", "forebay, one call"];
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
    let measured = Measured::of(series).at_least("share of the link in sum", share, 0.95);
    Ok(measured.note(format!("16 × {}, {}", format_size(each), routes(&outcome.routes))))
}

/// Reads all parts concurrently, each on its own thread, some times. The time runs from the first
/// thread's start to the last one's end: starting the threads is not part of it.
fn read_at_once(file: &File, parts: &mut [Buffer], each: u64, rounds: u64) -> Result<Sample, Stop> {
    let bytes = rounds * parts.len() as u64 * each;
    let ready = Barrier::new(parts.len());
    let run = |(number, part): (u64, &mut Buffer)| {
        ready.wait();
        let start = Instant::now();
        let read = |_| file.read_exact(number * each, &mut *part).map(drop);
        (0..rounds).try_for_each(read).map(|()| (start, Instant::now()))
    };
    let mut spans = Vec::new();
    let sample = timed(bytes, || {
        thread::scope(|scope| {
            let run = &run;
            let started: Vec<_> =
                (0..).zip(parts).map(|part| scope.spawn(move || run(part))).collect();
            for thread in started {
                spans.push(thread.join().map_err(|_| Stop::Fail("a thread panicked".into()))??);
            }
            Ok(())
        })
    })?;
    let (first, last) =
        (spans.iter().map(|span| span.0).min(), spans.iter().map(|span| span.1).max());
    let time = first.zip(last).map_or(Duration::ZERO, |(first, last)| last - first);
    Ok(Sample { seconds: time.as_secs_f64(), ..sample })
}

/// 64 KiB reads during a transfer of 8 GiB, both of warm files.
pub(crate) fn small_with_large(lab: &Lab) -> Result<Measured, Stop> {
    let gpu = lab.gpu()?;
    let len = lab.len(8 * GIB);
    let large = gpu.engine.open(lab.file(len)?)?;
    let small = gpu.engine.open(lab.file(lab.len(256 * MIB))?)?;
    let mut target = gpu.allocate(len)?;
    let mut link = Link::new(&gpu, 64 * MIB.min(len))?;
    let mut part = gpu.allocate(PIECE_LEN)?;
    let outcome = large.read_exact(0, &mut target)?;
    let mut ratios = Vec::new();
    let (mut alone, mut busy) = (Vec::new(), Vec::new());
    let slot_len = gpu.engine.options().slot_size.min(len);
    let mut slot = f64::INFINITY;
    for _ in 0..lab.rounds(5) {
        let copied = timed(slot_len, || link.copy(&mut target, slot_len))?;
        slot = slot.min(copied.seconds);
        latencies(&small, &mut part, &mut alone, Duration::from_millis(160))?;
        let start = Instant::now();
        large.read_exact(0, &mut target)?;
        let by_itself = start.elapsed();
        let large_s = thread::scope(|scope| {
            let run = scope.spawn(|| {
                let start = Instant::now();
                large.read_exact(0, &mut target).map(|_| start.elapsed())
            });
            // It is in progress, and still is when these end.
            thread::sleep(by_itself / 10);
            let ended = latencies(&small, &mut part, &mut busy, by_itself * 7 / 10);
            let large_s = run.join().map_err(|_| Stop::Fail("a thread panicked".into()))?;
            ended.and(Ok(large_s?))
        })?;
        ratios.push(by_itself.as_secs_f64() / large_s.as_secs_f64());
    }
    let series = vec![Series::new("alone", alone), Series::new("busy", busy)];
    let [alone, busy] = [0, 1].map(|side: usize| series[side].percentile(0.99));
    let longer = (busy - alone) / slot;
    let kept = median(ratios.into_iter());
    Ok(Measured::of(series)
        .at_most("full slots' time that p99 is longer", longer, SLOTS_BEFORE)
        .at_least("rate of the transfer alone", kept, 0.95)
        .note(routes(&outcome.routes))
        .note(format!(
            "p99 alone {:.0} µs, busy {:.0} µs; a full slot takes {:.0} µs to copy",
            alone * 1e6,
            busy * 1e6,
            slot * 1e6
        )))
}

/// Reads small parts one after the other for a time, and records the duration of each.
fn latencies(
    file: &File,
    part: &mut Buffer,
    taken: &mut Vec<Sample>,
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
        let seconds = start.elapsed().as_secs_f64();
        taken.push(Sample { seconds, bytes: PIECE_LEN, cpu_s: 0.0 });
        // Without the pause it would add load, and be another measurement.
        thread::sleep(Duration::from_micros(100));
    }
    Ok(())
}
