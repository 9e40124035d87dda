//! Measures the limits of links and storage.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use forebay::Engine;
use forebay::units::{KIB, MIB, format_size};
use forebay_measure::failure::{Failure, Result};
use forebay_measure::host_memory::fitting;
use forebay_measure::results::{Cache, Direction};
use forebay_measure::stats::rate;
use forebay_measure::steps;
use forebay_measure::workload::backend::{Method, Plain, Pool};
use forebay_measure::workload::measure::run_together;
use forebay_measure::workload::pattern::Region;
use forebay_measure::workload::run::{Ran, Ready};
use forebay_measure::workload::{End, Lane, Load};

use crate::bench::ranks::Joined;
use crate::bench::targets::Together;

/// From this size on the link of a GPU reaches its full speed.
const LINK_LEN: u64 = 256 * MIB;
/// Target time of a copy, within the bounds of its length.
const LINK_TIME_NS: u64 = 5_000_000;
/// The first copies, from which the length of later ones is chosen.
const LINK_FIRST: u64 = MIB;
/// Maximum bytes of a copy, per GPU of several.
const PART_LEN: u64 = 64 * MIB;
/// Target time of such a copy.
const PART_TIME_NS: u64 = 3_000_000;
/// Fewest bytes of a copy.
const LINK_MIN: u64 = 64 * KIB;
/// Time of a sample of copies in sequence.
const SAMPLE_TIME: Duration = Duration::from_millis(50);
/// Block size of the storage's limit, and the queue depths that are tried.
const STORAGE_BLOCK: u64 = MIB;
const STORAGE_DEPTHS: [u32; 2] = [8, 32];
/// Time of a sample of the storage, and before it.
const STORAGE_TIME: Duration = Duration::from_millis(100);
const STORAGE_WARM_UP: Duration = Duration::from_millis(25);
/// A limit is the best of this many samples in a round: the first also touches new memory.
const SAMPLES: usize = 2;

/// What limits are measured with: all ranks measure a sample together.
pub(super) type Means<'a> = (&'a Engine, &'a Arc<Pool>, &'a Joined);

/// The rate of a load: of several ranks, all bytes over the time from the first start to the last
/// end. `alone` is the rate of a single process.
fn rate_of(
    ready: Result<&mut Ready<'_>>,
    names: &[String],
    joined: &Joined,
    alone: impl FnOnce(&Ran) -> f64,
) -> Result<(f64, Option<String>)> {
    let ran = run_together(ready, names, joined.peers());
    let how = |ran: &Ran| ran.taken().pop().map(|taken| taken.reason.into_owned());
    if joined.is_alone() {
        return ran.map(|ran| (alone(&ran), how(&ran)));
    }
    let how = ran.as_ref().ok().and_then(how);
    joined.rate(ran).map(|rate| (rate, how))
}

/// Measures the links of GPUs that work concurrently, or copies in host memory; returns the rate of
/// all, and how it was measured. Copies in host memory have at most `host_len` bytes, as those of
/// the rows have: shorter ones are faster, since they stay in the processor's cache.
///
/// # Errors
/// GPU errors, and system errors for lack of memory.
pub(super) fn links(
    (engine, _, joined): Means<'_>,
    devices: &Together,
    direction: Direction,
    host_len: u64,
) -> Result<(f64, String)> {
    let is_alone = devices.len() == 1;
    let (most, time_ns) =
        if is_alone { (LINK_LEN, LINK_TIME_NS) } else { (PART_LEN, PART_TIME_NS) };
    let on_host = devices.iter().all(Option::is_none);
    let most = if on_host { most.min(host_len) } else { most };
    let (pool, names) = (&Arc::default(), vec![String::new(); devices.len()]);
    let prepared = |len: u64, end: End| {
        let load = Load::reads(Method::Link, len, end).in_direction(direction);
        let region = Region { start: 0, len };
        let lanes = devices.iter().enumerate().map(|(target, device)| Lane {
            target,
            device: device.clone(),
            region,
            ..Lane::default()
        });
        (Load { cache: Cache::Warm, ..load }, lanes.collect::<Vec<_>>())
    };
    // Both ends of a copy may be host memory.
    let most = fitting(most, 2 * devices.len() as u64);
    let timely = || {
        let (load, lanes) = prepared(LINK_FIRST, End::Bytes(LINK_FIRST));
        let mut ready = Ready::with(engine, &load, &lanes, pool)?;
        // The slowest link decides. Its first copy is slower than the second.
        ready.run(&names)?;
        let took = ready.run(&names)?.latencies.summary(false).and_then(|latency| latency.max_ns);
        Ok((LINK_FIRST * time_ns / took.unwrap_or(1).max(1)).clamp(LINK_MIN, most))
    };
    let len = if on_host { Ok(most) } else { timely() };
    let (load, lanes) = prepared(*len.as_ref().unwrap_or(&LINK_MIN), End::AtLeast(SAMPLE_TIME));
    let mut ready = len.and_then(|_| Ready::with(engine, &load, &lanes, pool));
    // A link counts until its own end, whenever the rest starts or ends.
    let alone = |ran: &Ran| match ran.shares.as_slice() {
        [] => {
            let mean = ran.latencies.summary(false).and_then(|latency| latency.mean_ns);
            mean.map_or(0.0, |mean| rate(load.request_size, mean / 1e9))
        }
        shares => shares.iter().map(|share| rate(share.bytes, share.last_done_s)).sum(),
    };
    let sample = |_| rate_of(ready.as_mut().map_err(|why| why.clone()), &names, joined, alone);
    let samples = (0..SAMPLES).map(sample).collect::<Result<Vec<_>>>()?;
    let best = samples.into_iter().max_by(|one, other| one.0.total_cmp(&other.0));
    let (rate, how) = best.unwrap_or_default();
    Ok((rate, how.unwrap_or_else(|| "copies of pinned memory, one after the other".into())))
}

/// Measures the storage below files that are read or written concurrently, with requests of 1 MiB
/// by O_DIRECT at the best queue depth, or at the best depth so far. Returns the rate,
/// the depth, and how it was measured. Written bytes are on the drive at the end.
///
/// # Errors
/// System errors; a file system without O_DIRECT; a file smaller than a request.
pub(super) fn storage(
    means: Means<'_>,
    files: &[(&Path, u64)],
    direction: Direction,
    known: Option<u32>,
) -> Result<(f64, u32, String)> {
    let depths = known.map_or_else(|| STORAGE_DEPTHS.to_vec(), |depth| vec![depth]);
    let tried = depths.into_iter().map(|depth| {
        let by = |shape| sample(means, files, direction, shape);
        let ring = by((Plain::Uring, depth, 1)).map(|rate| (rate, "io_uring"));
        // Without a ring, a thread keeps a single request in flight.
        let found = ring.or_else(|refused| match by((Plain::Cpu, 1, depth)) {
            Ok(rate) => Ok((rate, "one thread each")),
            // Threads may also fail because they need parts of the file.
            Err(_) => Err(refused),
        });
        found.map(|(rate, how)| (rate, depth, format!("O_DIRECT, 1 MiB, depth {depth}, {how}")))
    });
    let rate = |one: &Result<(f64, u32, String)>| one.as_ref().map_or(0.0, |(rate, ..)| *rate);
    let best = tried.max_by(|one, other| rate(one).total_cmp(&rate(other)));
    best.expect("a depth is tried")
}

/// The rate of a sample, by a plain method with this depth and number of threads per file.
fn sample(
    (engine, pool, joined): Means<'_>,
    files: &[(&Path, u64)],
    direction: Direction,
    (plain, depth, threads): (Plain, u32, u32),
) -> Result<f64> {
    let load = Load::reads(Method::Plain(plain), STORAGE_BLOCK, End::Time(STORAGE_TIME));
    let load = Load { depth, warm_up: STORAGE_WARM_UP, ..load.in_direction(direction) };
    let lanes = files.iter().flat_map(|(file, len)| {
        let part = len / u64::from(threads) / STORAGE_BLOCK * STORAGE_BLOCK;
        (0..threads).map(move |index| {
            let region = Region { start: u64::from(index) * part, len: part };
            Lane { path: file.to_path_buf(), region, ..Lane::default() }
        })
    });
    let lanes: Vec<Lane> = lanes.collect();
    let cold = |(file, len): &(&Path, u64)| match *len < STORAGE_BLOCK {
        true => Err(Failure::new("the storage is measured by requests of 1 MiB")
            .because(format!("the file has {}", format_size(*len)))),
        false => Ok(steps::open(engine, file)?.evict().map(|_| ())?),
    };
    let cold = files.iter().try_for_each(cold);
    let mut ready = cold.and_then(|()| Ready::with(engine, &load, &lanes, pool));
    let ready = ready.as_mut().map_err(|why| why.clone());
    match rate_of(ready, &[String::new()], joined, Ran::rate)?.0 {
        0.0 => Err(Failure::new(format!("no request of 1 MiB ended within {STORAGE_TIME:?}"))),
        rate => Ok(rate),
    }
}
