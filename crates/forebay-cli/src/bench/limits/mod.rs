//! The limits of the parts of the machine: the theoretical ones from [`parts`], added up by
//! [`mod@reach`], and those that `measure` measures once before a run. `bound` decides which of
//! them binds a point.

mod bound;
pub(crate) mod fio;
pub mod link;
mod measure;
pub mod parts;
pub mod reach;

use std::sync::Arc;

use forebay::Engine;
use forebay::gpu::{Device, DeviceInfo};
use forebay_topology::{Drive, Link, PciDevice, Resolver, gpu_at, nics};

pub(super) use self::bound::bound;
pub(super) use self::measure::{raise, storage};
use self::parts::{GpuAt, Part, line};
use self::reach::{Reach, line_rate, reach};
use super::targets::Together;
use crate::failure::Failure;
use crate::report::json::Direction;
use crate::report::numbers::rate_text;
use crate::results::Ceiling;

/// From this share of the sum of single links on, a shared part does not limit them.
const ALONE: f64 = 0.85;
/// From this share of an uplink's theoretical rate on, it is what binds.
const FULL: f64 = 0.95;
/// Hidden resources that GPUs may share.
const HIDDEN: &str = "memory, the link between sockets, or an uplink that is not shown";

/// The limits found, and those that could not be measured.
#[derive(Debug, Default)]
pub(super) struct Found {
    pub(super) ceilings: Vec<Ceiling>,
    pub(super) failed: Vec<Failure>,
    /// The GPUs, with their links as they were right after they were busy.
    pub(super) gpus: Vec<GpuAt>,
}

/// Measures the links of all targets, one by one and together. `begins` gets the number of each
/// measurement and their total before each begins.
pub(super) fn links(
    engine: &Engine,
    resolver: &Resolver,
    targets: &[Together],
    directions: &[Direction],
    begins: &mut dyn FnMut(usize, usize),
) -> Found {
    let mut found = Found::default();
    let mut devices: Together = Vec::new();
    for target in targets.iter().flatten() {
        if devices.iter().all(|known| name(known.as_ref()) != name(target.as_ref())) {
            devices.push(target.clone());
        }
    }
    let groups = targets.iter().filter(|several| several.len() > 1).count();
    let (all, mut number) = ((devices.len() + groups) * directions.len(), 0);
    let mut next = || {
        number += 1;
        begins(number, all);
    };
    for device in &devices {
        for direction in directions {
            next();
            match measure::link(engine, device.as_ref(), *direction) {
                Ok(ceiling) => found.ceilings.push(ceiling),
                Err(failure) => found.failed.push(failure),
            }
        }
        // An idle GPU slows its link down, so the link is read now.
        let place = device.as_ref().and_then(|device| place(resolver, device.info()));
        if let Some(mut gpu) = place {
            let own = found.ceilings.iter().filter(|ceiling| ceiling.of == gpu.name);
            let most = own.map(|ceiling| ceiling.bytes_per_second).fold(0.0, f64::max);
            believe(&mut gpu.pci, most);
            found.gpus.push(gpu);
        }
    }
    for ceiling in &mut found.ceilings {
        if let Some(gpu) = found.gpus.iter().find(|gpu| gpu.name == ceiling.of) {
            in_theory(ceiling, reach(&[&gpu.pci]), &gpu.pci);
        }
    }
    // Staged bytes pass host memory; a simulated GPU is that memory.
    if devices.iter().flatten().any(|device| !device.info().simulated) {
        match measure::memory(measure::LINK_LEN) {
            Ok(ceiling) => found.ceilings.push(ceiling),
            Err(failure) => found.failed.push(failure),
        }
    }
    for several in targets.iter().filter(|several| several.len() > 1) {
        let several: Option<Vec<Arc<dyn Device>>> = several.iter().cloned().collect();
        for direction in directions {
            next();
            let Some(several) = &several else { continue };
            match together(engine, several, *direction, &found) {
                Ok(ceiling) => found.ceilings.extend(ceiling),
                Err(failure) => found.failed.push(failure),
            }
        }
    }
    found
}

/// The name of a target in results.
fn name(device: Option<&Arc<dyn Device>>) -> String {
    device.map_or_else(|| "host".into(), |device| device.id().to_string())
}

fn place(resolver: &Resolver, info: &DeviceInfo) -> Option<GpuAt> {
    let found = || gpu_at(resolver.system(), &info.pci_address).map(|gpu| gpu.pci);
    let pci = forebay::gpu::sim::place(info).or_else(found)?;
    Some(GpuAt { name: info.id.to_string(), pci, simulated: info.simulated })
}

/// Drops the rates of links that carried more than they report, headers included: bridges of
/// virtual machines report arbitrary rates. Packet overhead is assumed, so it refutes no rate.
fn believe(pci: &mut PciDevice, measured: f64) {
    let refuted = |link| is_refuted(link, measured);
    for bridge in &mut pci.bridges {
        if refuted(bridge.link) {
            bridge.link = Default::default();
        }
    }
    if pci.link.simulated_bytes_per_s.is_none() && refuted(pci.link) {
        pci.link = Default::default();
    }
}

fn is_refuted(link: Link, measured: f64) -> bool {
    line(link).is_some_and(|rate| rate < 0.98 * measured)
}

/// Adds the theoretical rate to a measured limit.
fn in_theory(ceiling: &mut Ceiling, reach: Option<Reach>, pci: &PciDevice) {
    let Some(Reach { rate, uplink }) = reach else { return };
    ceiling.theory_bytes_per_second = Some(rate);
    ceiling.limits = parts::limits(pci).or(uplink.map(|up| format!("behind the uplink {up}")));
    let on_pci = pci.link.simulated_bytes_per_s.is_none();
    ceiling.source = on_pci.then(|| format!("/sys/bus/pci/devices/{}", pci.address));
}

/// The rate of GPUs at the same time, if each of their links could be measured, and what reduces
/// it.
fn together(
    engine: &Engine,
    devices: &[Arc<dyn Device>],
    direction: Direction,
    found: &Found,
) -> Result<Option<Ceiling>, Failure> {
    let names: Vec<String> = devices.iter().map(|device| device.id().to_string()).collect();
    let own = |name: &String| {
        let links = found.ceilings.iter().filter(|c| c.name == "link" && c.of == *name);
        let mut links = links.filter(|c| c.direction == Some(direction));
        links.next().map(|ceiling| ceiling.bytes_per_second)
    };
    let Some(alone) = names.iter().map(own).collect::<Option<Vec<f64>>>() else { return Ok(None) };
    let rate = measure::together(engine, devices, direction, &alone)?;
    let places = names.iter().map(|name| found.gpus.iter().find(|gpu| gpu.name == *name));
    let places: Option<Vec<&PciDevice>> = places.map(|gpu| Some(&gpu?.pci)).collect();
    let reach = places.and_then(|places| reach(&places));
    let sum: f64 = alone.iter().sum();
    let simulated = devices.iter().any(|device| device.info().simulated);
    let (name, limits) = binding(rate, sum, reach.as_ref(), simulated);
    Ok(Some(Ceiling {
        name: name.into(),
        of: names.join("+"),
        direction: Some(direction),
        bytes_per_second: rate,
        how: "copies of pinned memory, all GPUs at once".into(),
        simulated,
        theory_bytes_per_second: reach.map(|reach| reach.rate),
        limits,
        shared_by: names,
        ..Ceiling::default()
    }))
}

/// The limit of GPUs that reach `rate` together, and `sum` one by one.
fn binding(
    rate: f64,
    sum: f64,
    reach: Option<&Reach>,
    simulated: bool,
) -> (&'static str, Option<String>) {
    let uplink = reach.and_then(|reach| Some((reach.rate, reach.uplink.as_ref()?)));
    match uplink {
        // A full uplink binds even if it reduces the links' rates only little.
        Some((most, _)) if rate < FULL * most && rate >= ALONE * sum => ("links", None),
        None if rate >= ALONE * sum => ("links", None),
        Some((most, uplink)) => {
            ("uplink", Some(format!("the uplink {uplink}; in theory {} remain", rate_text(most))))
        }
        _ if simulated => ("shared", Some("processors and memory, which simulate the GPUs".into())),
        _ => ("shared", Some(HIDDEN.into())),
    }
}

/// Adds the theoretical rate of the storage below a path, from its drives. A link's reported rate
/// is dropped if it carried more.
pub(super) fn with_drives(ceiling: &mut Ceiling, drives: &mut [Drive]) {
    let places = |drives: &[Drive]| {
        let on_pci = drives.iter().map(|drive| parts::on_pci(drive).cloned());
        on_pci.collect::<Option<Vec<PciDevice>>>()
    };
    let all = |places: &[PciDevice]| reach(&places.iter().collect::<Vec<_>>());
    let first = places(drives).and_then(|places| line_rate(&places.iter().collect::<Vec<_>>()));
    if first.is_some_and(|rate| rate < 0.98 * ceiling.bytes_per_second) {
        let paths = drives.iter_mut().flat_map(|drive| &mut drive.paths);
        paths.filter_map(|path| path.pci.as_mut()).for_each(|pci| believe(pci, f64::INFINITY));
    }
    let reach = places(drives).and_then(|places| all(&places));
    let untold: Vec<&str> =
        drives.iter().filter(|drive| parts::on_pci(drive).is_none()).map(|d| &*d.name).collect();
    ceiling.theory_bytes_per_second = reach.as_ref().map(|reach| reach.rate);
    let below = drives.iter().filter_map(parts::on_pci).find_map(parts::limits);
    ceiling.limits = match reach.and_then(|reach| reach.uplink) {
        _ if below.is_some() => below,
        Some(uplink) => Some(format!("behind the uplink {uplink}")),
        None if untold.is_empty() => None,
        None => Some(format!("no rate is reported for the link of {}", untold.join(", "))),
    };
}

/// The parts between all of these drives and GPUs.
pub(super) fn theory(resolver: &Resolver, gpus: &[GpuAt], drives: &[Drive]) -> Vec<Part> {
    let network = drives.iter().any(|drive| drive.transport().is_network());
    let nics = if network { nics(resolver.system()) } else { Vec::new() };
    let mut parts = parts::parts(gpus, drives, &nics);
    // The measured limits of the GPUs' links already include this theoretical rate.
    parts.retain(|part| part.name != "pcie" || gpus.iter().all(|gpu| gpu.name != part.of));
    parts
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packets_leave_their_share_of_a_link_which_refutes_nothing() {
        let link = |rate: u32| {
            let mut link = Link::default();
            (link.width, link.megatransfers_per_s) = (Some(16), Some(rate));
            link
        };
        let [four, six] = [16_000, 64_000].map(link);
        let share = |link: Link| parts::payload(link).unwrap() / line(link).unwrap();
        assert!((share(four) - 256.0 / 280.0).abs() < 1e-9);
        assert!((share(six) - 236.0 / 272.0).abs() < 1e-9, "{}", share(six));
        // A rate above that of 256-byte packets is possible: packets may have 512 bytes.
        for (of_line, refuted) in [(0.9, false), (0.96, false), (1.0, false), (1.1, true)] {
            for link in [four, six] {
                let measured = of_line * line(link).unwrap();
                assert_eq!(is_refuted(link, measured), refuted, "{of_line} of {link:?}");
            }
        }
        assert!(!is_refuted(Link::default(), 1e12), "an unknown rate is not refuted");
    }

    #[test]
    fn a_full_uplink_binds_though_the_links_are_nearly_full() {
        let reach = |uplink: Option<&str>| Reach { rate: 500e6, uplink: uplink.map(Into::into) };
        let name = |rate, sum, reach: Option<&Reach>| binding(rate, sum, reach, false).0;
        let (up, none) = (reach(Some("up")), reach(None));
        // Two links of 300 MB/s reach 86 % of their sum one by one, the uplink 99.8 %.
        assert_eq!(name(499e6, 580e6, Some(&up)), "uplink");
        assert_eq!(name(499e6, 580e6, Some(&none)), "links");
        assert_eq!(name(499e6, 580e6, None), "links");
        // Links slower than they report do not fill an uplink.
        assert_eq!(name(400e6, 420e6, Some(&up)), "links");
        assert_eq!(name(300e6, 580e6, Some(&up)), "uplink");
        assert_eq!(name(300e6, 580e6, None), "shared");
    }
}
