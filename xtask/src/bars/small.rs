//! Small reads: the latency of one to the GPU, and the rate of many to host memory.

use std::fs::File;

use forebay::Target;
use forebay::units::{GIB, KIB, MIB, format_size};

use crate::bar::{Measured, Stop};
use crate::data;
use crate::fio::Fio;
use crate::flight::Flight;
use crate::lab::{Lab, engine, evict, routes};
use crate::plain::Link;
use crate::sample::{float, interleave, median, timed};

/// Bytes of a small read to the GPU.
const SMALL_LEN: u64 = 4 * KIB;

/// Bytes of small reads from the drive, and how many are in flight.
const SIZES: [u64; 2] = [4 * KIB, 64 * KIB];
const DEPTHS: [u32; 3] = [1, 8, 32];

/// One warm 4 KiB read to the GPU, compared with `pread`, one copy and one synchronisation.
pub(crate) fn latency(lab: &Lab) -> Result<Measured, Stop> {
    let gpu = lab.gpu()?;
    let len = lab.len(256 * MIB);
    let path = lab.file(len)?;
    let (plain_file, file) = (File::open(&path)?, gpu.engine.open(&path)?);
    let mut link = Link::new(&gpu, SMALL_LEN)?;
    let mut target = gpu.allocate(SMALL_LEN)?;
    let outcome = file.read_exact(SMALL_LEN, Target::Buffer(&mut target, 0..SMALL_LEN))?;
    let mut bytes = vec![0; 4096];
    target.download(0, &mut bytes)?;
    data::check(&bytes, SMALL_LEN)?;

    let mut index = 0;
    let rounds = usize::try_from(lab.count(3200)).unwrap_or(1);
    let series = interleave(rounds, &["plain", "forebay"], |side| {
        index += 1;
        let offset = data::number(index, len / SMALL_LEN) * SMALL_LEN;
        timed(SMALL_LEN, || match side {
            0 => link.read(&plain_file, offset, &mut target, SMALL_LEN),
            _ => {
                let part = Target::Buffer(&mut target, 0..SMALL_LEN);
                Ok(file.read_exact(offset, part).map(drop)?)
            }
        })
    })?;
    let ratio = series[1].seconds() / series[0].seconds();
    let times: Vec<String> =
        series.iter().map(|s| format!("{} {:.1} µs", s.name, s.seconds() * 1e6)).collect();
    Ok(Measured::of(series)
        .at_most("time of the plain way", ratio, 1.1)
        .note(routes(&outcome.routes))
        .note(format!("median: {}", times.join(", "))))
}

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
