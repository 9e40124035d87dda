//! A cold file to the GPU, compared with `fio`, which only reads it, and with the plain ring, which
//! shows what the copies to the GPU cost the drive.

use forebay::units::{GIB, format_size};

use crate::bar::{Bound, Check, Measured, Stop};
use crate::fio::Fio;
use crate::host::{best_depth, evict};
use crate::lab::{Lab, Place, routes, verify};
use crate::ring::{self, PlainRing};
use crate::sample::{interleave, timed};

/// 4 GiB with O_DIRECT, nine pairs.
pub(crate) fn run(lab: &Lab) -> Result<Measured, Stop> {
    let fio = Fio::find()?;
    let gpu = lab.gpu()?;
    let len = lab.len(4 * GIB);
    let path = lab.file(Place::Disk, len)?;
    let file = gpu.engine.open(&path)?;
    let mut target = gpu.allocate(len)?;
    target.fill(0x5A)?;
    evict(&file)?;
    let outcome = file.read_exact(0, &mut target)?;
    verify(&target, len)?;
    let depth = best_depth(&fio, &path, len, &file)?;
    let plain = ring::open(&path)?;
    let mut ring = PlainRing::new(&gpu, depth)?;
    let sides = [
        "forebay".to_owned(),
        format!("fio, depth {depth}"),
        "plain ring to the GPU, as deep".to_owned(),
        "the same without the copies".to_owned(),
    ];
    let series = interleave(lab.rounds(9), &sides, |side| {
        evict(&file)?;
        match side {
            0 => timed(len, || Ok(file.read_exact(0, &mut target).map(drop)?)),
            1 => fio.sequential(&path, len, depth),
            2 => timed(len, || ring.read(&plain, len, Some(&mut target))),
            _ => timed(len, || ring.read(&plain, len, None)),
        }
    })?;
    let ratio = series[0].rate() / series[1].rate();
    let cpu_max = 1.3 * series[1].cpu_s_per_gb() + 0.02;
    Ok(Measured {
        checks: vec![
            Check::new("rate of `fio`", ratio, Bound::AtLeast(0.97)),
            Check::new("CPU s per GB", series[0].cpu_s_per_gb(), Bound::AtMost(cpu_max)),
        ],
        notes: vec![
            format!("{}, {}", format_size(len), routes(&outcome)),
            format!(
                "{:.3} of the plain ring to the GPU, which has {:.3} of `fio`",
                series[0].rate() / series[2].rate(),
                series[2].rate() / series[1].rate()
            ),
            format!("`fio` on {}", fio.memory()),
        ],
        series,
    })
}
