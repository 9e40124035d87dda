//! Measures the limits of links and storage.

use std::path::Path;
use std::sync::{Arc, Barrier};
use std::thread;
use std::time::{Duration, Instant};

use forebay::Engine;
use forebay::gpu::Device;
use forebay::units::{KIB, MIB};
use forebay_measure::demand::fitting;
use forebay_measure::failure::{Failure, Result};
use forebay_measure::results::Direction;
use forebay_measure::results::Limit;
use forebay_measure::stats::rate;
use forebay_measure::steps;
use forebay_measure::workload::backend::{Method, Plain, Pool};
use forebay_measure::workload::pattern::Region;
use forebay_measure::workload::run::Ready;
use forebay_measure::workload::{End, Lane, Load};

use super::limit;
use super::link::Link;

/// From this size on the link reaches its full speed.
const LINK_LEN: u64 = 256 * MIB;
/// Target time of a copy, within the bounds of its length.
const LINK_TIME: f64 = 0.05;
/// The first copy, from which the length of later ones is chosen.
const LINK_FIRST: u64 = MIB;
/// Most bytes of a copy of one GPU of several.
const PART_LEN: u64 = 64 * MIB;
/// Target time of such a copy.
const PART_TIME: f64 = 0.003;
/// Fewest bytes of a copy.
const LINK_MIN: u64 = 64 * KIB;
/// Time of a sample: copies follow each other for so long.
const SAMPLE_TIME: Duration = Duration::from_millis(60);
/// Block size of the storage's limit, and the queue depths that are tried.
const STORAGE_BLOCK: u64 = MIB;
const STORAGE_DEPTHS: [u32; 2] = [8, 32];
/// Time of a sample of the storage, and before it.
const STORAGE_TIME: Duration = Duration::from_millis(250);
const STORAGE_WARM_UP: Duration = Duration::from_millis(50);
/// A limit is the best of this many samples.
const SAMPLES: usize = 3;

/// Measures the links of GPUs that work concurrently, or copies in host memory; returns the rate of
/// all, and how it was measured.
///
/// # Errors
/// GPU errors, and system errors for lack of memory.
pub(super) fn links(
    engine: &Engine,
    devices: &[Option<Arc<dyn Device>>],
    direction: Direction,
) -> Result<(f64, String)> {
    let (most, time) =
        if devices.len() == 1 { (LINK_LEN, LINK_TIME) } else { (PART_LEN, PART_TIME) };
    // Both ends of a copy may be host memory.
    let most = fitting(most, 2 * devices.len() as u64);
    let ready = devices.iter().map(|device| {
        let mut link = Link::new(engine, device.as_ref(), most)?;
        if device.is_some() {
            // A slow link gets shorter copies.
            link.shorten(LINK_FIRST);
        }
        // The first copy is slower; in host memory it also finds the number of threads.
        link.sample(direction)?;
        if device.is_some() {
            let first = link.sample(direction)?;
            link.shorten(len_of(rate(LINK_FIRST, first), time, (LINK_MIN, most)));
        }
        Ok(link)
    });
    let mut ready = ready.collect::<Result<Vec<_>>>()?;
    let mut best = 0.0_f64;
    for _ in 0..SAMPLES {
        best = best.max(at_once(&mut ready, direction)?);
    }
    Ok((best, ready[0].how()))
}

/// Bytes that take `seconds` at a rate, within bounds.
#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "it is bounded")]
fn len_of(rate: f64, seconds: f64, (min, max): (u64, u64)) -> u64 {
    ((rate * seconds) as u64).clamp(min, max)
}

/// One sample of all: the sum of their rates from a common start on.
fn at_once(links: &mut [Link], direction: Direction) -> Result<f64> {
    let barrier = Barrier::new(links.len());
    thread::scope(|scope| {
        let spawned = links.iter_mut().map(|link| {
            let barrier = &barrier;
            scope.spawn(move || -> Result<f64> {
                barrier.wait();
                let (start, mut bytes) = (Instant::now(), 0);
                while start.elapsed() < SAMPLE_TIME {
                    link.sample(direction)?;
                    bytes += link.bytes();
                }
                Ok(rate(bytes, start.elapsed().as_secs_f64()))
            })
        });
        let spawned: Vec<_> = spawned.collect();
        let rates = spawned
            .into_iter()
            .map(|thread| thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)));
        rates.sum()
    })
}

/// Measures the storage below a file, with requests of 1 MiB by O_DIRECT at the best queue depth.
/// Written bytes are on the drive at the end.
///
/// # Errors
/// System errors; a file system without O_DIRECT; a file smaller than a request.
pub(super) fn storage(
    engine: &Engine,
    pool: &Arc<Pool>,
    (file, len): (&Path, u64),
    path: &str,
    direction: Direction,
) -> Result<Limit> {
    let mut best: Option<(f64, String)> = None;
    let mut refused = Failure::new("no queue depth");
    for depth in STORAGE_DEPTHS {
        // Without a ring, each thread has one request in flight.
        let by = |shape| sample(engine, pool, (file, len), direction, shape);
        let ring = by((Plain::Uring, depth, 1)).map(|rate| (rate, "io_uring"));
        let found = ring.or_else(|_| Ok((by((Plain::Cpu, 1, depth))?, "one thread each")));
        match found {
            Ok((rate, how)) if best.as_ref().is_none_or(|(most, _)| rate > *most) => {
                best = Some((rate, format!("O_DIRECT, 1 MiB, depth {depth}, {how}")));
            }
            Ok(_) => {}
            Err(failure) => refused = failure,
        }
    }
    let (rate, how) = best.ok_or(refused)?;
    Ok(limit("storage", path.into(), direction, rate, how))
}

/// The rate of one sample, by a plain method with this depth and number of threads.
fn sample(
    engine: &Engine,
    pool: &Arc<Pool>,
    (file, len): (&Path, u64),
    direction: Direction,
    (plain, depth, threads): (Plain, u32, u32),
) -> Result<f64> {
    steps::open(engine, file)?.evict()?;
    let is_read = direction == Direction::Read;
    let load = Load {
        read_percent: if is_read { 100 } else { 0 },
        depth,
        warm_up: STORAGE_WARM_UP,
        ..Load::reads(Method::Plain(plain), STORAGE_BLOCK, End::Time(STORAGE_TIME))
    };
    let part = len / u64::from(threads) / STORAGE_BLOCK * STORAGE_BLOCK;
    let lane = |index: u32| Lane {
        target: 0,
        device: None,
        path: file.to_owned(),
        region: Region { start: u64::from(index) * part, len: part },
        content: None,
    };
    let lanes: Vec<Lane> = (0..threads).map(lane).collect();
    let (ran, _) = Ready::with(engine, &load, &lanes, pool)?.run(&["host".into()])?;
    if ran.requests == 0 {
        let file = file.display();
        return Err(Failure::new(format!("no request to `{file}` ended within {STORAGE_TIME:?}")));
    }
    Ok(rate(ran.bytes, ran.span.as_secs_f64()))
}
