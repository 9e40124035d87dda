//! Small reads: the latency of one to the GPU, and the rate of many to host memory.

use std::fs::File;

use forebay::units::{GIB, MIB};
use forebay::{Engine, Target};

use crate::bar::{Measured, Stop};
use crate::data;
use crate::fio::Fio;
use crate::flight::{Flight, SMALL_LEN};
use crate::lab::{Lab, evict, options, routes};
use crate::plain::Link;
use crate::sample::{float, interleave, timed};

/// Small reads in flight on the drive.
const DEPTH: u32 = 32;

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

/// Random 4 KiB reads with O_DIRECT, 32 in flight, compared with `fio`.
pub(crate) fn random(lab: &Lab) -> Result<Measured, Stop> {
    let fio = Fio::find()?;
    let (len, count) = (lab.len(GIB), lab.count(40_000));
    let path = lab.file(len)?;
    let mut options = options()?;
    options.depth.get_or_insert(32); // as `fio`
    let engine = Engine::new(options)?;
    let file = engine.open(&path)?;
    let mut flight = Flight::small(&engine, &file)?;
    let mut seed = 0;
    let series =
        interleave(lab.rounds(9), &["forebay".into(), format!("fio, depth {DEPTH}")], |side| {
            evict(&file)?;
            if side == 1 {
                return fio.random(&path, count, DEPTH);
            }
            seed += count;
            flight.timed(count, |index| data::number(seed + index, len / SMALL_LEN) * SMALL_LEN)
        })?;
    let rates: Vec<String> =
        series.iter().map(|s| format!("{} {:.0}", s.name, s.rate() / float(SMALL_LEN))).collect();
    let measured = Measured::of(series);
    let ratio = measured.ratio(0, 1);
    Ok(measured
        .at_least("requests per second of `fio`", ratio, 0.95)
        .note(format!("requests per second: {}", rates.join(", "))))
}
