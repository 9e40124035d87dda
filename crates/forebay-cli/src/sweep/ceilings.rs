//! What the parts of the machine can do at most, measured once before a sweep, and which of them
//! binds a point.

use std::sync::Arc;

use forebay::gpu::Device;
use forebay::units::MIB;
use forebay::{Engine, Route};

use super::files::Place;
use super::plan::Planned;
use crate::bench::ceilings::link::Link;
use crate::bench::ceilings::storage::Storage;
use crate::bench::memory::{GpuMemory, HostMemory, Memory};
use crate::bench::parallel::cores;
use crate::bench::stats::rate;
use crate::failure::Result;
use crate::report::json::{Cache, Direction};
use crate::results::{Bound, Ceiling, Measured};
use crate::steps;
use crate::workload::issuer::{Plain, Way};

/// From here on the link is as fast as it gets.
const LINK_LEN: u64 = 256 * MIB;
/// Bytes of one sample of the storage at most.
const STORAGE_LEN: u64 = 512 * MIB;
/// A ceiling is the best of so many.
const SAMPLES: usize = 3;
/// From this share of a ceiling on it is what binds.
const NEAR: f64 = 0.85;

/// The directions of a load.
fn directions(read_percent: u8) -> impl Iterator<Item = Direction> {
    let read = (read_percent > 0).then_some(Direction::Read);
    let write = (read_percent < 100).then_some(Direction::Write);
    read.into_iter().chain(write)
}

/// Measures the link of a GPU, or copies in host memory.
///
/// # Errors
/// The GPU's, and the system's for want of memory.
pub(super) fn link(
    engine: &Engine,
    device: Option<&Arc<dyn Device>>,
    direction: Direction,
) -> Result<Ceiling> {
    let mut memory = match device {
        None => Memory::Host(HostMemory::allocate(LINK_LEN)?),
        Some(device) => {
            let buffer = engine.allocate(device.id(), LINK_LEN)?;
            Memory::Gpu(GpuMemory { buffer, device: Arc::clone(device) })
        }
    };
    let mut link = Link::new(engine, &memory, LINK_LEN)?;
    let mut best = 0.0_f64;
    for _ in 0..SAMPLES {
        best = best.max(rate(link.len(), link.sample(direction, &mut memory)?.seconds));
    }
    Ok(Ceiling {
        name: "link".into(),
        of: memory.name(),
        direction: Some(direction),
        theory: false,
        bytes_per_second: best,
        how: link.how(direction),
        simulated: device.is_some_and(|device| device.info().simulated),
    })
}

/// Measures the storage below a place past the page cache; `None` where it cannot be had so.
///
/// # Errors
/// The system's.
pub(super) fn storage(
    engine: &Engine,
    place: &Place,
    path: &str,
    direction: Direction,
) -> Result<Option<Ceiling>> {
    // What writes leave there no check knows, so they end with what was there.
    let Some(file) = place.files.first() else { return Ok(None) };
    let Ok(mut storage) = Storage::open(file, direction, place.len.min(STORAGE_LEN))? else {
        return Ok(None);
    };
    let mut best = 0.0_f64;
    for _ in 0..SAMPLES {
        steps::open(engine, file)?.evict()?;
        best = best.max(rate(storage.bytes(), storage.sample()?.seconds));
    }
    Ok(Some(Ceiling {
        name: "storage".into(),
        of: path.into(),
        direction: Some(direction),
        theory: false,
        bytes_per_second: best,
        how: storage.how(),
        simulated: false,
    }))
}

/// What a point is bound by: the lowest ceiling on its way where it comes near that, else the
/// processors where they are all busy, else what is in flight.
#[must_use]
pub(super) fn bound(planned: &Planned, measured: &Measured, ceilings: &[Ceiling]) -> Option<Bound> {
    let (point, way) = (&planned.point, planned.load.way);
    let direction = directions(point.read_percent).next()?;
    let past = match way {
        Way::Forebay(route) => matches!(route, Some(Route::Staged | Route::Direct)),
        Way::Plain(plain) => plain.is_direct(),
    };
    let drive = point.cache == Cache::Cold || past;
    let of = |name: &str, of: &str| {
        let same = |c: &&Ceiling| c.name == name && c.of == of && c.direction == Some(direction);
        ceilings.iter().find(same).map(|ceiling| ceiling.bytes_per_second)
    };
    // Links of several GPUs add up, as long as nothing above them binds.
    let links: Option<f64> = point.targets.iter().map(|target| of("link", target)).sum();
    let links = links.filter(|_| way != Way::Plain(Plain::Cpu));
    // What was measured by reading says nothing of writes.
    let storage = of("storage", &point.path).filter(|_| drive && point.read_percent == 100);
    let lowest = [("link", links), ("storage", storage)]
        .into_iter()
        .filter_map(|(name, rate)| Some((name, rate?)))
        .min_by(|a, b| a.1.total_cmp(&b.1));
    let share = lowest.map(|(_, ceiling)| measured.bytes_per_second / ceiling.max(1.0));
    let busy = measured.cpu.is_some_and(|cpu| cpu.cores >= 0.9 * core_count());
    let (name, advice) = match (lowest, share) {
        (Some((name, _)), Some(share)) if share >= NEAR => (name, None),
        _ if busy => ("processors", Some("all cores were busy: larger requests cost less")),
        // The drive may be at its limit, which nobody knows.
        _ if drive && storage.is_none() => return None,
        _ => ("in-flight", Some("larger requests, more depth or more threads may gain")),
    };
    Some(Bound {
        name: name.into(),
        bytes_per_second: lowest.map(|(_, ceiling)| ceiling),
        share,
        advice: advice.map(Into::into),
    })
}

#[expect(clippy::cast_precision_loss, reason = "a number of cores")]
fn core_count() -> f64 {
    cores() as f64
}

/// The directions in which any of `planned` moves bytes.
pub(super) fn all_directions(planned: &[Planned]) -> Vec<Direction> {
    let mut all = Vec::new();
    for direction in planned.iter().flat_map(|planned| directions(planned.point.read_percent)) {
        if !all.contains(&direction) {
            all.push(direction);
        }
    }
    all
}
