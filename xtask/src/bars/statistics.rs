//! The cost of keeping statistics: the same reads with and without, interleaved.

use forebay::Engine;
use forebay::units::{GIB, KIB, MIB};

use crate::bar::{Bound, Check, Measured, Stop};
use crate::data;
use crate::flight::Flight;
use crate::host::evict;
use crate::lab::{Lab, Place};
use crate::sample::{Sample, Series, interleave, timed};

/// Samples of each side: the difference of both is smaller than that between two samples.
const ROUNDS: usize = 61;

/// Bytes of a small read, the number in flight, and the number awaited together.
const SMALL_LEN: u64 = 4 * KIB;
const ASKED: u64 = 128;
const GROUP: usize = 64;

/// A warm file to host memory.
pub(crate) fn resident(lab: &Lab) -> Result<Measured, Stop> {
    let len = lab.len(256 * MIB);
    let path = lab.file(Place::Disk, len)?;
    let engine = Engine::new(forebay::Options::from_env()?)?;
    let file = engine.open(&path)?;
    let mut target = engine.allocate_pinned(len)?;
    compare(lab, &engine, || timed(len, || Ok(file.read_exact(0, &mut target).map(drop)?)))
}

/// Random reads of 4 KiB with O_DIRECT, each of which is counted.
pub(crate) fn random(lab: &Lab) -> Result<Measured, Stop> {
    let (len, count) = (lab.len(GIB), lab.count(8_000));
    let path = lab.file(Place::Disk, len)?;
    let mut options = forebay::Options::from_env()?;
    options.depth.get_or_insert(32);
    let engine = Engine::new(options)?;
    let file = engine.open(&path)?;
    let mut flight = Flight::new(&engine, &file, SMALL_LEN, ASKED, GROUP)?;
    let mut seed = 0;
    evict(&file)?;
    let measured = compare(lab, &engine, || {
        seed += count;
        let place = |index: u64| data::number(seed + index, len / SMALL_LEN) * SMALL_LEN;
        timed(count * SMALL_LEN, || flight.read(count, place))
    })?;
    flight.check().map(|()| measured)
}

fn compare(
    lab: &Lab,
    engine: &Engine,
    mut read: impl FnMut() -> Result<Sample, Stop>,
) -> Result<Measured, Stop> {
    let sides = ["kept", "not kept"].map(str::to_owned);
    let series: Vec<Series> = interleave(lab.rounds(ROUNDS), &sides, |side| {
        engine.keep_statistics(side == 0);
        read()
    })?;
    let ratio = series[0].rate() / series[1].rate();
    Ok(Measured {
        checks: vec![Check::new("rate without statistics", ratio, Bound::AtLeast(0.99))],
        notes: Vec::new(),
        series,
    })
}
