//! Small reads: the rate of many to host memory.

use forebay::units::{GIB, KIB, format_size};

use crate::bar::{Measured, Stop};
use crate::data;
use crate::fio::Fio;
use crate::flight::Flight;
use crate::lab::{Lab, engine, evict};
use crate::sample::{float, interleave, median};

/// Bytes of small reads from the drive, and how many are in flight.
const SIZES: [u64; 2] = [4 * KIB, 64 * KIB];
const DEPTHS: [u32; 3] = [1, 8, 32];

/// Cold random reads of 4 and 64 KiB to host memory, 1, 8 and 32 in flight, compared with `fio`.
pub(crate) fn random(lab: &Lab) -> Result<Measured, Stop> {
    let fio = Fio::find()?;
    let (len, each) = (lab.len(GIB), lab.count(2000));
    let path = lab.file(len)?;
    let engine = engine()?;
    let file = engine.open(&path)?;
    let (mut all, mut seed) = (Measured::default(), 0);
    for (size, depth) in SIZES.into_iter().flat_map(|size| DEPTHS.map(|depth| (size, depth))) {
        let mut flight = Flight::new(&engine, &file, size, depth.into())?;
        let (case, count) = (format!("{} x {depth}", format_size(size)), each * u64::from(depth));
        let sides = ["forebay", "fio"].map(|side| format!("{side}, {case}"));
        let mut late = [Vec::new(), Vec::new()];
        let series = interleave(lab.rounds(9), &sides, |side| {
            evict(&file)?;
            if side == 1 {
                let outcome = fio.random(&path, (size, count), depth)?;
                late[side].push(outcome.quantiles[2] / 1e9);
                return Ok(outcome.sample);
            }
            seed += count;
            let place = |index| data::number(seed + index, len / size) * size;
            let sample = flight.timed(count, place)?;
            late[side].push(flight.p99());
            Ok(sample)
        })?;
        let [own, theirs] = [0, 1].map(|side: usize| series[side].rate() / float(size));
        let late = late.map(|all| median(all.into_iter()) * 1e6);
        all.series.extend(series);
        all = all
            .at_least(format!("IOPS of `fio`, {case}"), own / theirs, 0.97)
            .at_most(format!("p99 of `fio`, {case}"), late[0] / late[1], 1.2)
            .note(format!(
                "{case}: {own:.0} reads/s, p99 {:.0} µs; fio {theirs:.0}, {:.0} µs",
                late[0], late[1]
            ));
    }
    Ok(all)
}
