//! Files in the page cache: to the GPU by a warm engine and by a new one, and to host memory.

use std::fs::File;

use forebay::units::{GIB, format_size};

use crate::bar::{Measured, Stop};
use crate::lab::{Lab, engine, read_once, routes, verify};
use crate::plain::{self, Link};
use crate::sample::{fastest, interleave, timed};

/// Bytes that the host bars move.
const LEN: u64 = GIB;

/// Threads that read into pinned memory at the speed of a link.
const READERS: usize = 8;

/// A file to the GPU, compared with the link and with threads that only read it. `share` is the
/// least share of the link. More CPU seconds per GB than `cpu` are allowed up to 1.1 times what
/// the threads take.
pub(crate) fn gpu(lab: &Lab, len: u64, share: f64, cpu: Option<f64>) -> Result<Measured, Stop> {
    let gpu = lab.gpu()?;
    let len = lab.len(len);
    let path = lab.file(len)?;
    let (plain_file, file) = (File::open(&path)?, gpu.engine.open(&path)?);
    let mut target = gpu.allocate(len)?;
    let link_len = len.min(GIB);
    let mut link = Link::new(&gpu, link_len)?;
    target.fill(0x5A)?;
    let outcome = file.read_exact(0, &mut target)?;
    verify(&target, len)?;
    let sides = ["link", "forebay", "8 plain threads to pinned memory"];
    let series = interleave(lab.rounds(9), &sides, |side| match side {
        0 => timed(link_len, || link.copy(&mut target, link_len)),
        1 => timed(len, || Ok(file.read_exact(0, &mut target).map(drop)?)),
        _ => timed(link_len, || Ok(plain::read(&plain_file, link.bytes(), READERS)?)),
    })?;
    let best = series[0].best_rate();
    let [own, plain] = [1, 2].map(|side: usize| series[side].cpu_s_per_gb());
    let measured =
        Measured::of(series).note(format!("{}, {}", format_size(len), routes(&outcome.routes)));
    let reached = measured.series[1].rate() / best;
    let measured = measured.at_least("share of the link", reached, share);
    Ok(match cpu {
        Some(most) => measured.at_most("CPU s per GB", own, most.max(1.1 * plain)),
        None => measured,
    })
}

/// 8 GiB by a new engine each time, whose threads, arena and registration are part of the time.
pub(crate) fn first(lab: &Lab) -> Result<Measured, Stop> {
    let keeper = lab.gpu()?;
    let len = lab.len(8 * GIB);
    let path = lab.file(len)?;
    let link_len = len.min(GIB);
    let mut link = Link::new(&keeper, link_len)?;
    // One target for all: the copy engine also clears freed memory, and the link was measured at
    // half its speed during that.
    let mut target = keeper.allocate(len)?;
    let mut route = String::new();
    let series = interleave(lab.rounds(7), &["link", "forebay, first transfer"], |side| {
        if side == 0 {
            return timed(link_len, || link.copy(&mut target, link_len));
        }
        target.fill(0x5A)?;
        let file = engine()?.open(&path)?;
        let sample = timed(len, || {
            route = routes(&file.read_exact(0, &mut target)?.routes);
            Ok(())
        })?;
        // Each time: every engine fills its own slots for the first time.
        verify(&target, len)?;
        Ok(sample)
    })?;
    let share = series[1].rate() / series[0].best_rate();
    let measured = Measured::of(series).at_least("share of the link", share, 0.90);
    Ok(measured.note(format!("{}, {route}", format_size(len))))
}

/// To host memory, compared with the best number of plain threads.
pub(crate) fn host(lab: &Lab) -> Result<Measured, Stop> {
    let len = lab.len(LEN);
    let path = lab.file(len)?;
    let (file, plain_file) = (engine()?.open(&path)?, File::open(&path)?);
    let mut target = vec![0x5A; usize::try_from(len).unwrap_or_default()];
    let note = read_once(&file, &mut target)?;
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    // Every number of threads on a small machine, steps on a large one.
    let step = (cores / 4).max(1);
    let threads: Vec<usize> =
        (1..=2 * cores).filter(|n| *n == 1 || n.is_multiple_of(step)).collect();
    let mut sides = vec!["forebay".to_owned()];
    sides.extend(threads.iter().map(|n| format!("plain, {n} threads")));
    let series = interleave(lab.rounds(9), &sides, |side| match side {
        0 => timed(len, || Ok(file.read_exact(0, &mut target[..]).map(drop)?)),
        _ => timed(len, || Ok(plain::read(&plain_file, &mut target, threads[side - 1])?)),
    })?;
    let best = fastest(&series[1..])?;
    let (ratio, best) = (series[0].rate() / best.rate(), format!("best: {}", best.name));
    let measured = Measured::of(series).note(note).note(best);
    Ok(measured.at_least("rate of the best plain threads", ratio, 0.97))
}
