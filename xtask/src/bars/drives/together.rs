//! Bars for four drives: each alone and all together, one striped file, and an idle engine.

use std::thread::sleep;
use std::time::Duration;

use forebay::Engine;
use forebay::units::MIB;
use forebay_measure::stats::float;

use super::RATE;
use super::ground::{Drive, Ground, spend_burst, spend_bursts};
use super::reads::{self, Read, mb_per_s};
use crate::bar::{Measured, Stop};
use crate::data;
use crate::fio::Fio;
use crate::lab::engine;
use crate::sample::{Sample, Series, fastest, interleave, timed};

const DRIVES: usize = 4;

/// Bytes on each drive: two seconds.
const LEN: u64 = 384 * MIB;

/// Bytes of the striped file: two seconds.
const STRIPED_LEN: u64 = 1536 * MIB;

/// Bytes on each drive of an idle engine.
const IDLE_LEN: u64 = 64 * MIB;

/// Depths among which `fio` has its best.
const DEPTHS: [u32; 4] = [4, 8, 16, 32];

/// Sixteen files on each drive, read in an order independent of the drives.
pub(super) fn shuffled(ground: &Ground) -> Result<Measured, Stop> {
    let lens = [ground.len(LEN).max(16 * MIB); DRIVES];
    let (measured, _) = alone_and_together(ground, &lens, [RATE; DRIVES], 16)?;
    let alone: f64 = measured.series[..DRIVES].iter().map(Series::rate).sum();
    let together = measured.series[DRIVES].rate();
    let (sum, all) = (mb_per_s(alone), mb_per_s(together));
    Ok(measured
        .at_least("rate of the sum of the drives", together / alone, 0.97)
        .note(format!("sum of the drives alone {sum}, all together {all}")))
}

/// Two fast drives and two slow ones: each keeps its own speed while it has work.
pub(super) fn unequal(ground: &Ground) -> Result<Measured, Stop> {
    let (fast, slow) = (ground.len(LEN), ground.len(LEN / 4));
    let lens = [fast, slow * 3 / 2, fast, slow * 3 / 2].map(|len| len.max(4 * MIB));
    let rates = [RATE, RATE / 4, RATE, RATE / 4];
    let (mut measured, each) = alone_and_together(ground, &lens, rates, 4)?;
    for (index, samples) in each.into_iter().enumerate() {
        let name = format!("drive-{index}");
        let together = Series::new(format!("{name} with the others"), samples);
        let (busy, alone) = (together.rate(), measured.series[index].rate());
        let speed = if index % 2 == 0 { "fast" } else { "slow" };
        measured = measured
            .note(format!("{name}: alone {}, together {}", mb_per_s(alone), mb_per_s(busy)))
            .at_least(format!("{speed} {name}: rate of it alone"), busy / alone, 0.95);
        measured.series.push(together);
    }
    Ok(measured)
}

/// Reads from each drive alone, then from all; also returns the samples of each among the others.
fn alone_and_together(
    ground: &Ground,
    lens: &[u64; DRIVES],
    rates: [u64; DRIVES],
    files: u64,
) -> Result<(Measured, Vec<Vec<Sample>>), Stop> {
    let (mut drives, mut reads) = filled(ground, &engine()?, lens, files)?;
    for (drive, rate) in drives.iter_mut().zip(rates) {
        ground.cap(drive, rate)?;
    }
    let mut sides: Vec<String> = drives.iter().map(|d| format!("{} alone", d.name)).collect();
    sides.push("all together".into());
    let mut route = String::new();
    let mut each: Vec<Vec<Sample>> = vec![Vec::new(); DRIVES];
    let series = interleave(ground.rounds(3), &sides, |side| {
        // Only the drives that are read must have used up their burst right before: an idle one
        // regains it.
        spend_bursts(drives.get(side..=side).unwrap_or(&drives))?;
        let round = reads::run(&mut reads, |drive| side == DRIVES || drive == side)?;
        if side == DRIVES {
            route = round.route();
            for (samples, sample) in each.iter_mut().zip(&round.drives) {
                samples.push(*sample);
            }
        }
        Ok(round.all)
    })?;
    reads.iter().try_for_each(Read::check)?;
    // The first round is discarded, as in the series.
    for samples in &mut each {
        samples.remove(0);
    }
    Ok((Measured::of(series).note(route), each))
}

/// Drives with `files` files on each of `lens` bytes in all, none of them in the page cache.
fn filled(
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
    data::shuffle(&mut reads, 0);
    reads::evict(&reads)?;
    Ok((drives, reads))
}

/// One file that btrfs stripes over four capped drives.
///
/// The reference is the sum of the caps. `fio` on a member below the file system is none: it had
/// half of the cap in four of six samples. `fio` on the file, at its best depth, shows how much the
/// file system delivers.
pub(super) fn striped(ground: &Ground) -> Result<Measured, Stop> {
    let fio = Fio::find()?;
    let len = ground.len(STRIPED_LEN);
    let (folder, mut drives) = ground.stripes(DRIVES, len)?;
    let path = folder.join("file");
    data::write(&path, len)?;
    for drive in &mut drives {
        ground.cap(drive, RATE)?;
    }
    let mut reads = [Read::to_host(&engine()?, 0, path.clone())?];
    reads::evict(&reads)?;
    let mut sides = vec!["forebay".to_owned()];
    sides.extend(DEPTHS.iter().map(|depth| format!("fio on the file, depth {depth}")));
    let mut route = String::new();
    let series = interleave(ground.rounds(3), &sides, |side| {
        // The kernel reads through the page cache if memory was not touched before: `fio`'s.
        reads::evict(&reads)?;
        spend_burst(&folder, DRIVES as u64 * RATE)?;
        if side == 0 {
            let round = reads::run(&mut reads, |_| true)?;
            route = round.route();
            return Ok(round.all);
        }
        fio.sequential(&path, len, DEPTHS[side - 1])
    })?;
    reads[0].check()?;
    let caps = float(DRIVES as u64 * RATE);
    let best = fastest(&series[1..])?;
    let (own, other, name) = (series[0].rate(), best.rate(), best.name.clone());
    Ok(Measured::of(series)
        .at_least("rate of the four caps", own / caps, 0.97)
        .note(route)
        .note(format!("forebay {}, {name} {}", mb_per_s(own), mb_per_s(other)))
        .note(format!("ratio to `fio` {:.3}", own / other)))
}

/// An engine with four idle drives takes no CPU time.
pub(super) fn idle(ground: &Ground) -> Result<Measured, Stop> {
    let engine = engine()?;
    let (_drives, mut reads) = filled(ground, &engine, &[ground.len(IDLE_LEN); DRIVES], 1)?;
    let quiet = Duration::from_millis(if ground.is_tiny() { 100 } else { 2000 });
    let (mut each, mut route) = (Vec::new(), String::new());
    for _ in 0..ground.rounds(3) {
        route = reads::run(&mut reads, |_| true)?.route();
        // Let the threads that worked go to sleep first.
        sleep(Duration::from_millis(100));
        let sample = timed(1, || {
            sleep(quiet);
            Ok(())
        })?;
        each.push(sample.cpu_s * 1e3);
    }
    reads.iter().try_for_each(Read::check)?;
    let most = each.iter().copied().fold(0.0, f64::max);
    let each: Vec<String> = each.iter().map(|ms| format!("{ms:.3}")).collect();
    let threads = std::fs::read_dir("/proc/self/task")?.count();
    Ok(Measured::default()
        .at_most("ms of CPU time in 2 s", most, 1.0)
        .note(route)
        .note(format!("{threads} threads; each ms: {}", each.join(", "))))
}
