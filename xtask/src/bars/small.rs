//! Small reads: the latency of one to the GPU, and the rate of many to host memory.

use std::time::Duration;

use forebay::units::{GIB, KIB, MIB};
use forebay::{Buffer, Engine, File, Options, RequestOptions, Target, Transfer};

use crate::bar::{Bound, Check, Measured, Stop};
use crate::data;
use crate::device::Plain;
use crate::fio::Fio;
use crate::host::evict;
use crate::lab::{Lab, Place, routes};
use crate::sample::{float, interleave, timed};

/// Bytes of a small read.
const SMALL_LEN: u64 = 4 * KIB;
/// More than any read takes.
const WAIT_BOUND: Duration = Duration::from_secs(30);
/// Small reads in flight on the drive, which is the engine's default as well.
const DEPTH: u32 = 32;
/// Transfers under way: enough that the drive has its depth while the caller is being woken.
const UNDER_WAY: u64 = 128;

/// One resident 4 KiB read to the GPU, beside `pread`, one copy and one synchronisation.
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

/// Random 4 KiB reads past the page cache, 32 in flight, beside `fio`.
pub(crate) fn random(lab: &Lab) -> Result<Measured, Stop> {
    let fio = Fio::find()?;
    let len = lab.len(GIB);
    let count = lab.count(40_000);
    let path = lab.file(Place::Disk, len)?;
    let engine = Engine::new(Options::from_env()?)?;
    let file = engine.open(&path)?;
    let mut buffers = split(engine.allocate_pinned(UNDER_WAY * SMALL_LEN)?);
    evict(&file)?;
    let mut seed = 0;
    let sides = ["forebay".to_owned(), format!("fio, depth {DEPTH}")];
    let series = interleave(lab.rounds(9), &sides, |side| {
        evict(&file)?;
        if side == 1 {
            return fio.random(&path, count, DEPTH);
        }
        seed += count;
        timed(count * SMALL_LEN, || {
            buffers = in_flight(&engine, &file, std::mem::take(&mut buffers), seed, count, len)?;
            Ok(())
        })
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

/// Cuts a buffer into pieces of one small read each.
fn split(mut rest: Buffer) -> Vec<Buffer> {
    let mut pieces = Vec::new();
    while rest.len() > SMALL_LEN {
        let (piece, more) = rest.split_at(SMALL_LEN);
        pieces.push(piece);
        rest = more;
    }
    pieces.push(rest);
    pieces
}

/// Reads in flight, and where each of them reads.
#[derive(Debug, Default)]
struct Flying {
    transfers: Vec<Transfer>,
    offsets: Vec<u64>,
}

/// Makes `count` random reads, as many in flight as there are `buffers`, and checks the last
/// bytes of each buffer. Finished transfers are replaced at once, in whatever order they finish.
fn in_flight(
    engine: &Engine,
    file: &File,
    buffers: Vec<Buffer>,
    seed: u64,
    count: u64,
    len: u64,
) -> Result<Vec<Buffer>, Stop> {
    let options = RequestOptions::default();
    let offset = |index: u64| data::number(seed + index, len / SMALL_LEN) * SMALL_LEN;
    let mut started = 0;
    let mut start = |flying: &mut Flying, buffer: Buffer| {
        let at = offset(started);
        started += 1;
        flying.offsets.push(at);
        flying.transfers.push(file.start_read(at, buffer, &options)?);
        Ok::<_, Stop>(())
    };
    let mut flying = Flying::default();
    buffers.into_iter().try_for_each(|buffer| start(&mut flying, buffer))?;
    let mut done = 0;
    let mut finished = Vec::new();
    while let Some(at) = engine.wait_any(&flying.transfers, WAIT_BOUND) {
        let offset = flying.offsets.swap_remove(at);
        let (outcome, buffer) = flying.transfers.swap_remove(at).wait();
        let outcome = outcome?;
        let buffer = buffer.ok_or_else(|| Stop::Fail("a transfer kept its buffer".into()))?;
        if outcome.bytes != SMALL_LEN {
            return Err(Stop::Fail(format!("{} bytes at {offset}", outcome.bytes)));
        }
        done += 1;
        if done + flying.offsets.len() as u64 >= count {
            finished.push((offset, buffer));
        } else {
            start(&mut flying, buffer)?;
        }
    }
    if !flying.offsets.is_empty() {
        return Err(Stop::Fail("no transfer ended in time".into()));
    }
    for (offset, buffer) in &finished {
        let bytes = buffer.as_slice().unwrap_or_default();
        data::check(bytes, *offset)
            .map_err(|at| Stop::Fail(format!("wrong bytes in a buffer at {at}")))?;
    }
    Ok(finished.into_iter().map(|(_, buffer)| buffer).collect())
}
