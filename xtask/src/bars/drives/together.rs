//! Four capped drives, each alone and all together.

use forebay::units::MIB;
use forebay::{Engine, Options};

use super::ground::{Drive, Ground, spend_bursts};
use super::reads::{self, Read, mb_per_s};
use crate::bar::{Bound, Check, Measured, Stop};
use crate::data;
use crate::sample::{Sample, Series, interleave};

/// Bytes per second of a drive.
pub(super) const RATE: u64 = 200_000_000;

/// Bytes on each drive: two seconds.
const LEN: u64 = 384 * MIB;

const DRIVES: usize = 4;

/// One file on each, read in sequence.
pub(super) fn four(ground: &Ground) -> Result<Measured, Stop> {
    sum(ground, 1)
}

/// Sixteen files on each, read in an order independent of the drives.
pub(super) fn shuffled(ground: &Ground) -> Result<Measured, Stop> {
    sum(ground, 16)
}

/// Drives with `files` files on each of `len` bytes in all, none of them in the page cache.
pub(super) fn filled(
    ground: &Ground,
    engine: &Engine,
    lens: &[u64],
    files: u64,
) -> Result<(Vec<Drive>, Vec<Read>), Stop> {
    let (mut drives, mut reads) = (Vec::new(), Vec::new());
    for (index, len) in lens.iter().enumerate() {
        let drive = ground.drive(&format!("drive-{index}"), *len)?;
        for number in 0..files {
            let path = drive.file(&format!("file-{number}"), len / files / MIB * MIB)?;
            reads.push(Read::to_host(engine, index, path)?);
        }
        drives.push(drive);
    }
    shuffle(&mut reads);
    reads::evict(&reads)?;
    Ok((drives, reads))
}

/// Shuffles files: the order is the same in every run, with drives mixed.
fn shuffle(reads: &mut [Read]) {
    // With one file on each drive they stay in sequence.
    if reads.len() <= DRIVES {
        return;
    }
    for index in (1..reads.len()).rev() {
        let other = data::number(index as u64, index as u64 + 1);
        reads.swap(index, usize::try_from(other).unwrap_or_default());
    }
}

/// The drives that a side reads from: one, or all. Only these must have used up their burst right
/// before: an idle one regains it.
fn used(drives: &[Drive], side: usize) -> &[Drive] {
    drives.get(side..=side).unwrap_or(drives)
}

fn sum(ground: &Ground, files: u64) -> Result<Measured, Stop> {
    let engine = Engine::new(Options::from_env()?)?;
    let lens = [ground.len(LEN); DRIVES].map(|len| len.max(files * MIB));
    let (mut drives, mut reads) = filled(ground, &engine, &lens, files)?;
    for drive in &mut drives {
        ground.cap(drive, RATE)?;
    }
    let mut sides: Vec<String> = drives.iter().map(|d| format!("{} alone", d.name)).collect();
    sides.push("all together".into());
    let mut route = String::new();
    let series = interleave(ground.rounds(3), &sides, |side| {
        spend_bursts(used(&drives, side))?;
        let round = reads::run(&mut reads, |drive| side == DRIVES || drive == side)?;
        route = round.route();
        Ok(round.all)
    })?;
    reads.iter().try_for_each(Read::check)?;
    let alone: f64 = series[..DRIVES].iter().map(Series::rate).sum();
    let ratio = series[DRIVES].rate() / alone;
    let note = format!("sum of the drives alone {}", mb_per_s(alone));
    let together = format!("all together {}", mb_per_s(series[DRIVES].rate()));
    Ok(Measured {
        checks: vec![Check::new("rate of the sum of the drives", ratio, Bound::AtLeast(0.97))],
        notes: vec![route, format!("{note}, {together}; {} files", reads.len())],
        series,
    })
}

/// Two fast drives and two slow ones: each keeps its own speed while it has work.
pub(super) fn unequal(ground: &Ground) -> Result<Measured, Stop> {
    const RATES: [u64; DRIVES] = [RATE, RATE / 4, RATE, RATE / 4];
    let engine = Engine::new(Options::from_env()?)?;
    let (fast, slow) = (ground.len(LEN), ground.len(LEN / 4));
    let lens = [fast, slow * 3 / 2, fast, slow * 3 / 2].map(|len| len.max(4 * MIB));
    let (mut drives, mut reads) = filled(ground, &engine, &lens, 4)?;
    for (drive, rate) in drives.iter_mut().zip(RATES) {
        ground.cap(drive, rate)?;
    }
    let mut sides: Vec<String> = drives.iter().map(|d| format!("{} alone", d.name)).collect();
    sides.push("all together".into());
    let mut route = String::new();
    let mut beside: Vec<Vec<Sample>> = vec![Vec::new(); DRIVES];
    let mut series = interleave(ground.rounds(3), &sides, |side| {
        spend_bursts(used(&drives, side))?;
        let round = reads::run(&mut reads, |drive| side == DRIVES || drive == side)?;
        if side == DRIVES {
            route = round.route();
            for (samples, sample) in beside.iter_mut().zip(&round.drives) {
                samples.push(*sample);
            }
        }
        Ok(round.all)
    })?;
    reads.iter().try_for_each(Read::check)?;
    let mut measured = Measured { notes: vec![route], ..Measured::default() };
    for (index, mut samples) in beside.into_iter().enumerate() {
        // The first round is discarded, as on the other side.
        samples.remove(0);
        let together =
            Series { name: format!("{} beside the others", drives[index].name), samples };
        let ratio = together.rate() / series[index].rate();
        let (beside, alone) = (mb_per_s(together.rate()), mb_per_s(series[index].rate()));
        measured.notes.push(format!("{}: alone {alone}, beside {beside}", drives[index].name));
        let speed = if index % 2 == 0 { "fast" } else { "slow" };
        let what = format!("{speed} {}: rate of it alone", drives[index].name);
        measured.checks.push(Check::new(what, ratio, Bound::AtLeast(0.95)));
        series.push(together);
    }
    measured.series = series;
    Ok(measured)
}
