//! Small reads: the latency of one to the GPU, and the rate of many to host memory.

use forebay::units::{GIB, KIB, MIB};
use forebay::{Engine, Target};

use crate::bar::{Bound, Check, Measured, Stop};
use crate::data;
use crate::device::Plain;
use crate::fio::Fio;
use crate::flight::Flight;
use crate::host::evict;
use crate::lab::{Lab, Place, routes};
use crate::sample::{float, interleave, timed};

/// Bytes of a small read.
const SMALL_LEN: u64 = 4 * KIB;
/// Small reads in flight on the drive.
const DEPTH: u32 = 32;
/// Small reads asked for: enough that the drive has its depth while the caller is being woken.
const ASKED: u64 = 128;
/// Small reads that are awaited together: waking the caller for each takes as long as the read (8
/// µs on an idle virtual machine), and `fio` wakes no thread.
const GROUP: usize = 64;

/// One warm 4 KiB read to the GPU, compared with `pread`, one copy and one synchronisation.
pub(crate) fn latency(lab: &Lab) -> Result<Measured, Stop> {
    let gpu = lab.gpu()?;
    let len = lab.len(256 * MIB);
    let path = lab.file(Place::Disk, len)?;
    let plain_file = std::fs::File::open(&path)?;
    let file = gpu.engine.open(&path)?;
    let mut plain = Plain::new(&gpu, SMALL_LEN)?;
    let mut target = gpu.allocate(SMALL_LEN)?;
    let outcome = file.read_exact(SMALL_LEN, Target::Buffer(&mut target, 0..SMALL_LEN))?;
    let mut bytes = vec![0; 4096];
    target.download(0, &mut bytes)?;
    data::check(&bytes, SMALL_LEN)
        .map_err(|at| Stop::Fail(format!("wrong bytes in the target at {at}")))?;

    let mut index = 0;
    let mut offset = || {
        index += 1;
        data::number(index, len / SMALL_LEN) * SMALL_LEN
    };
    let sides = ["plain", "forebay"].map(str::to_owned);
    let rounds = usize::try_from(lab.count(3200)).unwrap_or(1);
    let series = interleave(rounds, &sides, |side| {
        let offset = offset();
        match side {
            0 => timed(SMALL_LEN, || plain.small(&plain_file, offset, &mut target, SMALL_LEN)),
            _ => timed(SMALL_LEN, || {
                let part = Target::Buffer(&mut target, 0..SMALL_LEN);
                Ok(file.read_exact(offset, part).map(drop)?)
            }),
        }
    })?;
    let ratio = series[1].seconds() / series[0].seconds();
    let times: Vec<String> =
        series.iter().map(|s| format!("{} {:.1} µs", s.name, s.seconds() * 1e6)).collect();
    Ok(Measured {
        checks: vec![Check::new("time of the plain way", ratio, Bound::AtMost(1.1))],
        notes: vec![routes(&outcome), format!("median: {}", times.join(", "))],
        series,
    })
}

/// Random 4 KiB reads with O_DIRECT, 32 in flight, compared with `fio`.
pub(crate) fn random(lab: &Lab) -> Result<Measured, Stop> {
    let fio = Fio::find()?;
    let len = lab.len(GIB);
    let count = lab.count(40_000);
    let path = lab.file(Place::Disk, len)?;
    let mut options = forebay::Options::from_env()?;
    options.depth.get_or_insert(32); // as `fio`
    let engine = Engine::new(options)?;
    let file = engine.open(&path)?;
    let mut flight = Flight::new(&engine, &file, SMALL_LEN, ASKED, GROUP)?;
    evict(&file)?;
    let mut seed = 0;
    let sides = ["forebay".to_owned(), format!("fio, depth {DEPTH}")];
    let series = interleave(lab.rounds(9), &sides, |side| {
        evict(&file)?;
        if side == 1 {
            return fio.random(&path, count, DEPTH);
        }
        seed += count;
        let place = |index: u64| data::number(seed + index, len / SMALL_LEN) * SMALL_LEN;
        let sample = timed(count * SMALL_LEN, || flight.read(count, place))?;
        flight.check().map(|()| sample)
    })?;
    let ratio = series[0].rate() / series[1].rate();
    let rates: Vec<String> =
        series.iter().map(|s| format!("{} {:.0}", s.name, s.rate() / float(SMALL_LEN))).collect();
    Ok(Measured {
        checks: vec![Check::new("requests per second of `fio`", ratio, Bound::AtLeast(0.95))],
        notes: vec![format!("requests per second: {}", rates.join(", "))],
        series,
    })
}
