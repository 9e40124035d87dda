//! Files in the page cache to host memory.

use std::fs::File;

use forebay::units::GIB;

use crate::bar::{Measured, Stop};
use crate::lab::{Lab, engine, read_once};
use crate::plain;
use crate::sample::{fastest, interleave, timed};

/// Bytes that the host bars move.
const LEN: u64 = GIB;

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
