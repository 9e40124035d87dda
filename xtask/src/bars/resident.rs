//! A file in the page cache to the GPU by a warm engine, compared with the link and the measured
//! recipe.

use std::fs::File;

use forebay::units::{GIB, MIB, format_size};

use crate::bar::{Bound, Check, Measured, Stop};
use crate::device::Plain;
use crate::lab::{Lab, Place, routes, verify};
use crate::sample::{interleave, timed};

/// The requirement of one of these bars.
struct Demand {
    place: Place,
    len: u64,
    /// Minimum share of the link's limit.
    share: f64,
    /// Maximum CPU seconds per GB.
    cpu_s_per_gb: Option<f64>,
    /// More CPU is allowed up to this multiple of the recipe's.
    cpu_of_recipe: Option<f64>,
}

/// 8 GiB on the scratch folder's file system.
pub(crate) fn disk(lab: &Lab) -> Result<Measured, Stop> {
    let demand = Demand {
        place: Place::Disk,
        len: 8 * GIB,
        share: 0.97,
        cpu_s_per_gb: Some(0.13),
        cpu_of_recipe: Some(1.1),
    };
    measure(lab, &demand)
}

/// 8 GiB on tmpfs.
pub(crate) fn tmpfs(lab: &Lab) -> Result<Measured, Stop> {
    let demand = Demand {
        place: Place::Tmpfs,
        len: 8 * GIB,
        share: 0.97,
        cpu_s_per_gb: Some(0.17),
        cpu_of_recipe: None,
    };
    measure(lab, &demand)
}

/// 256 MiB, which leave little time to start.
pub(crate) fn short(lab: &Lab) -> Result<Measured, Stop> {
    let demand = Demand {
        place: Place::Disk,
        len: 256 * MIB,
        share: 0.90,
        cpu_s_per_gb: None,
        cpu_of_recipe: None,
    };
    measure(lab, &demand)
}

fn measure(lab: &Lab, demand: &Demand) -> Result<Measured, Stop> {
    let gpu = lab.gpu()?;
    let len = lab.len(demand.len);
    let path = lab.file(demand.place, len)?;
    let plain_file = File::open(&path)?;
    let file = gpu.engine.open(&path)?;
    let mut target = gpu.allocate(len)?;
    let link_len = len.min(GIB);
    let mut link = Plain::new(&gpu, link_len)?;
    let mut recipe = Plain::for_recipe(&gpu)?;

    let mut measured = Measured::default();
    target.fill(0x5A)?;
    let outcome = file.read_exact(0, &mut target)?;
    verify(&target, len)?;
    measured.notes.push(format!("{}, {}", format_size(len), routes(&outcome)));
    target.fill(0x5A)?;
    recipe.recipe(&plain_file, &mut target, len)?;
    verify(&target, len)?;

    let sides = ["link", "forebay", "recipe"].map(str::to_owned);
    let series = interleave(lab.rounds(9), &sides, |side| match side {
        0 => timed(link_len, || link.copy(&mut target, link_len)),
        1 => timed(len, || Ok(file.read_exact(0, &mut target).map(drop)?)),
        _ => timed(len, || recipe.recipe(&plain_file, &mut target, len)),
    })?;
    let (link, forebay, recipe) = (&series[0], &series[1], &series[2]);
    let share = forebay.rate() / link.best_rate();
    measured.checks.push(Check::new("share of the link", share, Bound::AtLeast(demand.share)));
    if let Some(most) = demand.cpu_s_per_gb {
        let by_recipe = demand.cpu_of_recipe.map_or(0.0, |times| times * recipe.cpu_s_per_gb());
        let bound = Bound::AtMost(most.max(by_recipe));
        measured.checks.push(Check::new("CPU s per GB", forebay.cpu_s_per_gb(), bound));
    }
    let by_recipe = recipe.rate() / link.best_rate();
    measured.notes.push(format!("the recipe reaches {by_recipe:.3} of the link"));
    measured.series = series;
    Ok(measured)
}
