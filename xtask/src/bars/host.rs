//! Files to host memory: warm files compared with plain threads, cold ones with `fio`, and the
//! `pread` ring with the io_uring ring.

use std::path::Path;

use forebay::units::{GIB, MIB, format_size};
use forebay::{Engine, File, Residency, RingChoice};

use crate::bar::{Bound, Check, Measured, Stop};
use crate::data;
use crate::fio::Fio;
use crate::flight::Flight;
use crate::lab::{Lab, Place, routes};
use crate::plain;
use crate::sample::{fastest, interleave, timed};

/// Bytes that the host bars move.
const LEN: u64 = GIB;

/// Warm, compared with the best number of plain threads.
pub(crate) fn resident(lab: &Lab) -> Result<Measured, Stop> {
    let len = lab.len(LEN);
    let path = lab.file(Place::Disk, len)?;
    let engine = Engine::new(forebay::Options::from_env()?)?;
    let file = engine.open(&path)?;
    let plain_file = std::fs::File::open(&path)?;
    let mut target = touched(len);
    let note = checked(&file, &mut target)?;
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
    let best = fastest(&series[1..]).ok_or_else(|| Stop::Fail("no plain side".into()))?;
    let ratio = series[0].rate() / best.rate();
    Ok(Measured {
        checks: vec![Check::new("rate of the best plain threads", ratio, Bound::AtLeast(0.97))],
        notes: vec![note, format!("best: {}", best.name)],
        series,
    })
}

/// Cold, compared with `fio` at its best depth.
pub(crate) fn direct(lab: &Lab) -> Result<Measured, Stop> {
    let fio = Fio::find()?;
    let len = lab.len(LEN);
    let path = lab.file(Place::Disk, len)?;
    let engine = Engine::new(forebay::Options::from_env()?)?;
    let file = engine.open(&path)?;
    // On huge pages where possible, like `fio`'s memory; ordinary pages are slower for both.
    let mut target = engine.allocate_pinned(len)?;
    let target = target.as_mut_slice().unwrap_or_default();
    evict(&file)?;
    let note = checked(&file, target)?;
    let depth = best_depth(&fio, &path, len, &file)?;
    // Into as much memory as `fio` uses: memory that is reused stays in a processor cache.
    let mut flight = Flight::new(&engine, &file, MIB, depth.into(), 1)?;
    let sides = [
        "forebay".to_owned(),
        "forebay, one read of the whole file".to_owned(),
        format!("fio, depth {depth}"),
    ];
    let series = interleave(lab.rounds(9), &sides, |side| {
        evict(&file)?;
        match side {
            0 => {
                let sample = timed(len, || flight.read(len / MIB, |index| index * MIB))?;
                flight.check().map(|()| sample)
            }
            1 => timed(len, || Ok(file.read_exact(0, &mut target[..]).map(drop)?)),
            _ => fio.sequential(&path, len, depth),
        }
    })?;
    let ratio = |side: usize| series[side].rate() / series[2].rate();
    let whole = format!("one read of the whole file, into as much memory: {:.3}", ratio(1));
    Ok(Measured {
        checks: vec![Check::new("rate of `fio`", ratio(0), Bound::AtLeast(0.97))],
        notes: vec![note, whole, format!("`fio` on {}", fio.memory())],
        series,
    })
}

/// Cold, with io_uring refused.
pub(crate) fn pread_direct(lab: &Lab) -> Result<Measured, Stop> {
    rings(lab, true, 0.95)
}

/// Warm, with io_uring refused: unchanged, within the resolution of nine medians.
pub(crate) fn pread_resident(lab: &Lab) -> Result<Measured, Stop> {
    rings(lab, false, 0.97)
}

fn rings(lab: &Lab, cold: bool, least: f64) -> Result<Measured, Stop> {
    let len = lab.len(LEN);
    let path = lab.file(Place::Disk, len)?;
    let mut target = Engine::new(forebay::Options::from_env()?)?.allocate_pinned(len)?;
    let target = target.as_mut_slice().unwrap_or_default();
    let mut notes = Vec::new();
    let mut files = Vec::new();
    for ring in [RingChoice::Pread, RingChoice::Uring] {
        let mut options = forebay::Options::from_env()?;
        options.ring = ring;
        let file = Engine::new(options)
            .and_then(|engine| engine.open(&path))
            .map_err(|error| Stop::Skip(format!("no ring `{ring:?}`: {error}")))?;
        if cold {
            evict(&file)?;
        }
        let note = checked(&file, target)?;
        notes.push(format!("{ring:?}: {note}"));
        files.push(file);
    }
    let sides = ["pread ring", "io_uring ring"].map(str::to_owned);
    let series = interleave(lab.rounds(9), &sides, |side| {
        if cold {
            evict(&files[side])?;
        }
        timed(len, || Ok(files[side].read_exact(0, &mut target[..]).map(drop)?))
    })?;
    let ratio = series[0].rate() / series[1].rate();
    Ok(Measured {
        checks: vec![Check::new("rate of the io_uring ring", ratio, Bound::AtLeast(least))],
        notes,
        series,
    })
}

/// Host memory whose pages are there before the clock starts.
fn touched(len: u64) -> Vec<u8> {
    vec![0x5A; usize::try_from(len).unwrap_or_default()]
}

/// Reads the whole target once and compares it; returns which routes the bytes took.
fn checked(file: &File, target: &mut [u8]) -> Result<String, Stop> {
    target.fill(0x5A);
    let outcome = file.read_exact(0, &mut *target)?;
    data::check(target, 0)
        .map_err(|at| Stop::Fail(format!("wrong bytes in the target at {at}")))?;
    Ok(format!("{}, {}", format_size(target.len() as u64), routes(&outcome)))
}

/// Drops a file's pages from the page cache, and skips the bar if some stay: they would be read
/// from memory.
pub(crate) fn evict(file: &File) -> Result<(), Stop> {
    match file.evict()? {
        Residency::Known { resident: 0, .. } => Ok(()),
        Residency::Known { resident, .. } => {
            let size = format_size(resident);
            Err(Stop::Skip(format!("{size} of the file cannot be dropped from the page cache")))
        }
        Residency::Unknown(reason) => {
            Err(Stop::Skip(format!("the page cache cannot be checked: {reason}")))
        }
    }
}

/// The depth at which `fio` reads a file fastest, by the median of three runs of each.
pub(crate) fn best_depth(fio: &Fio, path: &Path, len: u64, file: &File) -> Result<u32, Stop> {
    const DEPTHS: [u32; 4] = [8, 16, 32, 64];
    let series = interleave(3, &DEPTHS.map(|depth| depth.to_string()), |side| {
        evict(file)?;
        fio.sequential(path, len, DEPTHS[side])
    })?;
    let fastest = fastest(&series).and_then(|series| series.name.parse().ok());
    fastest.ok_or_else(|| Stop::Fail("no depth of `fio` was measured".into()))
}
