//! Measures the limits of links, memory and storage.

use std::path::Path;
use std::sync::{Arc, Barrier};
use std::thread;
use std::time::{Duration, Instant};

use forebay::Engine;
use forebay::gpu::Device;
use forebay::units::{KIB, MIB};

use super::fio;
use super::link::Link;
use crate::bench::demand::fitting;
use crate::bench::memory::{GpuMemory, HostMemory, Memory, whole};
use crate::bench::parallel::{cores, each_range};
use crate::bench::stats::rate;
use crate::failure::{Failure, Result};
use crate::report::json::Direction;
use crate::results::Ceiling;
use crate::steps;
use crate::workload::backend::{Plain, Pool, Way};
use crate::workload::pattern::Region;
use crate::workload::run::Ready;
use crate::workload::{End, Lane, Load};

/// From this size on the link reaches its full speed.
pub(super) const LINK_LEN: u64 = 256 * MIB;
/// Target time of a copy, within the bounds of its length.
const LINK_TIME: f64 = 0.05;
/// The first copy, from which the length of later ones is chosen.
const LINK_FIRST: u64 = MIB;
/// Most bytes of a copy of one GPU of several.
const PART_LEN: u64 = 64 * MIB;
const PART_MIN: u64 = 64 * KIB;
/// Intended time of such a copy, and of all of them.
const PART_TIME: f64 = 0.003;
const TOGETHER: Duration = Duration::from_millis(60);
/// Block size of the storage's limit, and the queue depths that are tried.
const STORAGE_BLOCK: u64 = MIB;
const STORAGE_DEPTHS: [u32; 2] = [8, 32];
/// Time of a sample of the storage, and before it.
const STORAGE_TIME: Duration = Duration::from_millis(250);
const STORAGE_WARM_UP: Duration = Duration::from_millis(50);
/// The block that a thread copies at once when it measures memory: it fits in a core's own cache.
const SLOT: u64 = 256 * KIB;
/// A limit is the best of this many samples.
const SAMPLES: usize = 3;

/// Measures the link of a GPU, or copies in host memory.
///
/// # Errors
/// GPU errors, and system errors for lack of memory.
pub(super) fn link(
    engine: &Engine,
    device: Option<&Arc<dyn Device>>,
    direction: Direction,
) -> Result<Ceiling> {
    // Both ends of a copy may be host memory.
    let most = fitting(LINK_LEN, 2);
    let mut memory = match device {
        None => Memory::Host(HostMemory::allocate(most)?),
        Some(device) => {
            let buffer = engine.allocate(device.id(), most)?;
            Memory::Gpu(GpuMemory { buffer, device: Arc::clone(device) })
        }
    };
    let len = match device {
        None => most,
        // A slow link gets shorter copies.
        Some(_) => {
            let first = seconds_of(LINK_FIRST, &mut memory, engine, direction)?;
            len_of(rate(LINK_FIRST, first), LINK_TIME, (LINK_FIRST, most))
        }
    };
    let mut link = Link::new(engine, &memory, len)?;
    let mut best = 0.0_f64;
    for _ in 0..SAMPLES {
        best = best.max(rate(link.bytes(), link.sample(direction, &mut memory)?.seconds));
    }
    Ok(Ceiling {
        name: "link".into(),
        of: memory.name(),
        direction: Some(direction),
        bytes_per_second: best,
        how: link.how(direction),
        simulated: device.is_some_and(|device| device.info().simulated),
        ..Ceiling::default()
    })
}

/// Measures how fast processors copy memory into buffers that stay in their caches, with as many
/// threads as help. Staged bytes cross memory once like this, not twice as in a copy from memory to
/// memory; two GPUs were found to exceed the latter by half.
///
/// # Errors
/// System errors, for lack of memory.
pub(super) fn memory(len: u64) -> Result<Ceiling> {
    let len = fitting(len, 1);
    let mut memory = HostMemory::allocate(len)?;
    // Memory that was never written is mapped to one page of zeros, which is in the caches.
    memory.bytes_mut().fill(1);
    let bytes = memory.bytes();
    let powers = (0..).map(|shift| 1_usize << shift).take_while(|count| *count < cores());
    let timed = powers.chain([cores()]).flat_map(|threads| {
        (0..SAMPLES).map(move |_| (rate(len, seconds_through_caches(bytes, threads)), threads))
    });
    let best = timed.max_by(|one, two| one.0.total_cmp(&two.0));
    let (bytes_per_second, threads) = best.unwrap_or((0.0, 1));
    let s = if threads == 1 { "" } else { "s" };
    Ok(Ceiling {
        name: "memory".into(),
        of: "host".into(),
        bytes_per_second,
        how: format!("copies of memory into processors' caches by {threads} thread{s}"),
        ..Ceiling::default()
    })
}

/// Seconds to copy `bytes` in pieces, each thread into its own buffer.
fn seconds_through_caches(bytes: &[u8], threads: usize) -> f64 {
    let start = Instant::now();
    let slot = || vec![0_u8; whole(SLOT)];
    let copied = each_range(bytes.len() as u64, SLOT, threads, slot, |slot, range| {
        let piece = &bytes[whole(range.start)..whole(range.end)];
        slot[..piece.len()].copy_from_slice(piece);
        std::hint::black_box(slot);
        Ok::<(), std::convert::Infallible>(())
    });
    match copied {
        Ok(()) => start.elapsed().as_secs_f64(),
        Err(never) => match never {},
    }
}

/// Seconds of one copy of `len` bytes.
fn seconds_of(len: u64, memory: &mut Memory, engine: &Engine, direction: Direction) -> Result<f64> {
    let mut link = Link::new(engine, memory, len)?;
    link.sample(direction, memory)?;
    Ok(link.sample(direction, memory)?.seconds)
}

/// Bytes that take `seconds` at a rate, within bounds.
#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "it is bounded")]
fn len_of(rate: f64, seconds: f64, (min, max): (u64, u64)) -> u64 {
    ((rate * seconds) as u64).clamp(min, max)
}

/// Copies to or from all of these GPUs at once; `alone` are the rates of their links one by one.
///
/// # Errors
/// GPU errors, and system errors for lack of memory.
pub(super) fn together(
    engine: &Engine,
    devices: &[Arc<dyn Device>],
    direction: Direction,
    alone: &[f64],
) -> Result<f64> {
    let ready = devices.iter().zip(alone).map(|(device, alone)| {
        let most = fitting(PART_LEN, 2 * devices.len() as u64);
        let len = len_of(*alone, PART_TIME, (PART_MIN, most));
        let buffer = engine.allocate(device.id(), len)?;
        let mut memory = Memory::Gpu(GpuMemory { buffer, device: Arc::clone(device) });
        let mut link = Link::new(engine, &memory, len)?;
        link.sample(direction, &mut memory)?;
        Ok((link, memory))
    });
    let mut ready = ready.collect::<Result<Vec<_>>>()?;
    let mut best = 0.0_f64;
    for _ in 0..SAMPLES {
        best = best.max(at_once(&mut ready, direction)?);
    }
    Ok(best)
}

/// Progress of one since its start: times and bytes.
type Steps = Vec<(Instant, u64)>;

/// One sample of all: the bytes moved from the common start until the first of them ended.
fn at_once(ready: &mut [(Link, Memory)], direction: Direction) -> Result<f64> {
    let barrier = Barrier::new(ready.len());
    thread::scope(|scope| {
        let spawned = ready.iter_mut().map(|(link, memory)| {
            let barrier = &barrier;
            scope.spawn(move || {
                barrier.wait();
                let (start, mut bytes) = (Instant::now(), 0);
                let mut steps = vec![(start, 0)];
                while start.elapsed() < TOGETHER {
                    link.sample(direction, memory)?;
                    bytes += link.bytes();
                    steps.push((Instant::now(), bytes));
                }
                Ok(steps)
            })
        });
        let spawned: Vec<_> = spawned.collect();
        let all = spawned
            .into_iter()
            .map(|thread| thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)));
        Ok(in_common(&all.collect::<Result<Vec<Steps>, Failure>>()?))
    })
}

/// Bytes per second of all, from the last start to the first end. A copy that is only partly within
/// this span counts in part.
fn in_common(all: &[Steps]) -> f64 {
    let start = all.iter().filter_map(|steps| Some(steps.first()?.0)).max();
    let end = all.iter().filter_map(|steps| Some(steps.last()?.0)).min();
    let Some((start, end)) = start.zip(end).filter(|(start, end)| start < end) else { return 0.0 };
    let bytes = all.iter().flat_map(|steps| steps.windows(2)).map(|step| {
        let (from, to) = (step[0].0, step[1].0);
        let within = to.min(end).saturating_duration_since(from.max(start));
        let part =
            within.as_secs_f64() / to.saturating_duration_since(from).as_secs_f64().max(1e-9);
        rate(step[1].1 - step[0].1, 1.0) * part.min(1.0)
    });
    bytes.sum::<f64>() / (end - start).as_secs_f64()
}

/// Measures the storage below a file, with requests of 1 MiB by O_DIRECT at the best queue depth.
/// Written bytes are on the drive at the end.
///
/// # Errors
/// System errors; a file system without O_DIRECT; a file smaller than a request.
pub(in crate::bench) fn storage(
    engine: &Engine,
    pool: &Arc<Pool>,
    (file, len): (&Path, u64),
    path: &str,
    direction: Direction,
) -> Result<Ceiling> {
    let mut best: Option<(f64, String)> = None;
    let mut refused = Failure::new("no queue depth");
    for depth in STORAGE_DEPTHS {
        // Without a ring, each thread has one request in flight.
        let ring = sample(engine, pool, (file, len), direction, (Plain::Uring, depth, 1));
        let found = ring.map(|rate| (rate, "io_uring")).or_else(|_| {
            let threads = sample(engine, pool, (file, len), direction, (Plain::Cpu, 1, depth));
            threads.map(|rate| (rate, "one thread each"))
        });
        match found {
            Ok((rate, how)) if best.as_ref().is_none_or(|(most, _)| rate > *most) => {
                best = Some((rate, format!("O_DIRECT, 1 MiB, depth {depth}, {how}")));
            }
            Ok(_) => {}
            Err(failure) => refused = failure,
        }
    }
    let (bytes_per_second, how) = best.ok_or(refused)?;
    Ok(Ceiling {
        name: "storage".into(),
        of: path.into(),
        direction: Some(direction),
        bytes_per_second,
        how,
        ..Ceiling::default()
    })
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
        ..Load::reads(Way::Plain(plain), STORAGE_BLOCK, End::Time(STORAGE_TIME))
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
    Ok(rate(ran.bytes, ran.span.as_secs_f64()))
}

/// Raises a storage limit to what `fio` reads, if that is faster; the text says what it found.
pub(in crate::bench) fn raise(ceiling: &mut Ceiling, file: &Path) -> Result<(), String> {
    let (rate, how) = fio::read_rate(file)?;
    if rate > ceiling.bytes_per_second {
        (ceiling.bytes_per_second, ceiling.how) = (rate, how);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_count_while_all_of_them_move_some() {
        let zero = Instant::now();
        let at = |ms: u64, bytes: u64| (zero + Duration::from_millis(ms), bytes);
        // Two share 100 bytes a millisecond, until one ends and the other has all of it.
        let first = vec![at(0, 0), at(10, 500), at(20, 1000)];
        let second = vec![at(0, 0), at(15, 750), at(25, 1500), at(30, 2000)];
        let seen = in_common(&[first.clone(), second]);
        // Half of the copy counts that took from 15 to 25 ms and had 750 bytes.
        assert!((seen - (1000.0 + 750.0 + 375.0) / 0.020).abs() < 1e-3, "{seen}");
        let late = vec![at(10, 0), at(20, 500)];
        assert!((in_common(&[first.clone(), late]) - 100_000.0).abs() < 1e-3);
        assert_eq!(in_common(&[first, vec![at(30, 0), at(40, 500)]]), 0.0, "never both");
        assert_eq!(in_common(&[]), 0.0);
    }

    #[test]
    fn memory_is_a_ceiling() {
        let ceiling = memory(4 * MIB).unwrap();
        assert_eq!((ceiling.name.as_str(), ceiling.of.as_str()), ("memory", "host"));
        assert!(ceiling.bytes_per_second > 0.0 && ceiling.direction.is_none(), "{ceiling:?}");
        assert!(
            ceiling.how.starts_with("copies of memory into processors' caches by "),
            "{ceiling:?}"
        );
    }

    proptest::proptest! {
        #[test]
        fn lengths_keep_to_their_bounds(rate: f64, seconds in 0.0..1.0_f64) {
            let len = len_of(rate, seconds, (PART_MIN, PART_LEN));
            proptest::prop_assert!((PART_MIN..=PART_LEN).contains(&len));
        }
    }
}
