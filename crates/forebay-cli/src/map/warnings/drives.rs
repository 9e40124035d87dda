//! Rules about drives, their links, and their distance from the GPUs.

use std::collections::BTreeMap;
use std::path::PathBuf;

use forebay_topology::{Distance, Drive, DrivePath, Link, PciDevice, Resolver};

use super::{Found, some};
use crate::map::draw::drive_name;
use crate::map::gather::gather;
use crate::map::json::MapReport;
use crate::map::words::{named, spins};

/// All paths to drives.
fn paths(report: &MapReport) -> impl Iterator<Item = (&Drive, &DrivePath)> {
    report.drives.iter().flat_map(|drive| drive.paths.iter().map(move |path| (drive, path)))
}

/// The link of an NVMe drive, which does not slow down when idle, is below its maximum.
pub(super) fn link(report: &MapReport) -> Vec<Found> {
    let mut found = BTreeMap::new(); // two namespaces share a link
    for (_, path) in paths(report).filter(|(drive, _)| drive.name.starts_with("nvme")) {
        if let Some(PciDevice { address, link: Some(link), link_max: Some(max), .. }) = &path.pci
            && link.is_below(max)
        {
            let (name, text) = (&path.name, link.text(Some(max)));
            let text = format!(
                "the link of `{name}` runs at {text}: reseat the drive or try another slot; `lspci \
                 -vv -s {address}` shows what each end can do"
            );
            found.insert(name, Found::new(name, text));
        }
    }
    found.into_values().collect()
}

/// A bridge above a drive carries less than the drive's own link.
pub(super) fn bridge(report: &MapReport) -> Vec<Found> {
    let mut found: BTreeMap<&str, (Vec<String>, Link)> = BTreeMap::new();
    for (_, path) in paths(report) {
        let Some(pci) = &path.pci else { continue };
        let own = pci.link.and_then(|link| link.bytes_per_second);
        for bridge in &pci.bridges {
            let Some(link) = bridge.link else { continue };
            if link.bytes_per_second.zip(own).is_some_and(|(bridge, own)| bridge < own) {
                let (names, _) = found.entry(&bridge.address).or_insert_with(|| (Vec::new(), link));
                if !names.contains(&path.name) {
                    names.push(path.name.clone());
                }
            }
        }
    }
    let found = found.into_iter().map(|(address, (about, link))| {
        let text = format!(
            "the bridge {address} above {} carries less than the drive, {}: use a slot nearer to \
             the processor; `lspci -tv` shows the path",
            some(&about),
            link.text(None)
        );
        Found { about, text }
    });
    found.collect()
}

/// The warnings on GPUs, given by PCI address, and the drives under `paths` that are on different
/// sockets.
#[must_use]
pub fn between_sockets(resolver: &Resolver, paths: &[PathBuf], gpus: &[&str]) -> Vec<String> {
    let report = gather(resolver, paths, None, false);
    let address = |gpu: &usize| report.gpus[*gpu].pci.address.as_str();
    // Programs number GPUs in their own order.
    let name =
        |all: &[usize]| format!("GPU {}", all.iter().map(address).collect::<Vec<_>>().join(", "));
    let found = across(&report, |gpu| gpus.contains(&address(gpu)), name);
    found.into_iter().map(|found| found.text).collect()
}

/// Drives and GPUs on different sockets.
pub(super) fn across_sockets(report: &MapReport) -> Vec<Found> {
    across(report, |_| true, named)
}

/// Drives on a different socket than GPUs that are used. `name` names GPUs.
fn across(
    report: &MapReport,
    is_used: impl Fn(&usize) -> bool,
    name: impl Fn(&[usize]) -> String,
) -> Vec<Found> {
    let mut groups: BTreeMap<Vec<usize>, Vec<String>> = BTreeMap::new();
    for drive in &report.drives {
        let pairs = report.distances.iter().filter(|pair| pair.drive == drive.id);
        let far =
            pairs.filter(|pair| pair.distance == Distance::AcrossSockets).map(|pair| pair.gpu);
        groups.entry(far.collect()).or_default().push(drive.name.clone());
    }
    let all = report.gpus.len();
    let found = groups.into_iter().filter_map(|(far, about)| {
        let near: Vec<usize> = (0..all).filter(|gpu| !far.contains(gpu)).collect();
        let far: Vec<usize> = far.into_iter().filter(&is_used).collect();
        let remedy = if near.is_empty() {
            "put the data on a drive of the GPU's socket".to_owned()
        } else {
            format!("use {}, or a drive of that socket", name(&near))
        };
        let are = if about.len() == 1 { "is" } else { "are" };
        let text = format!(
            "{} {are} on another socket than {}, so bytes cross the link between sockets: {remedy}",
            some(&about),
            name(&far)
        );
        (!far.is_empty()).then_some(Found { about, text })
    });
    found.collect()
}

/// Some of several paths to a drive are down.
pub(super) fn path_down(report: &MapReport) -> Vec<Found> {
    let found = report.drives.iter().filter_map(|drive| {
        let down = || drive.paths.iter().filter(|path| !path.live);
        let about: Vec<String> = down().map(|path| path.name.clone()).collect();
        let state = down().find_map(|path| path.state.as_deref());
        let state = state.map_or_else(String::new, |state| format!(" ({state})"));
        let (name, count) = (&drive.name, drive.paths.len());
        let remedy = if name.starts_with("nvme") { "nvme list-subsys" } else { "multipath -ll" };
        let text = format!(
            "{} of {count} paths to `{name}` down: {}{state}; check the cable, the switch and the \
             controller: `{remedy}` shows them",
            about.len(),
            some(&about)
        );
        (!about.is_empty()).then_some(Found { about, text })
    });
    found.collect()
}

/// A volume striped over members on the same hardware.
pub(super) fn shared_hardware(report: &MapReport) -> Vec<Found> {
    let found = report.maps.iter().filter_map(|map| {
        let (members, hardware) = (&map.queue.members, map.queue.hardware.len());
        let about: Vec<String> = members.iter().map(|id| drive_name(report, id.as_str())).collect();
        let s = if hardware == 1 { "" } else { "s" };
        let text = format!(
            "{} are {hardware} physical drive{s}, so striping over them gains less: use separate \
             drives",
            some(&about)
        );
        (about.len() > 1 && hardware < about.len()).then_some(Found { about, text })
    });
    found.collect()
}

/// A spinning disk.
pub(super) fn spinning(report: &MapReport) -> Vec<Found> {
    let spinning = report.drives.iter().filter(|drive| spins(drive));
    let about: Vec<String> = spinning.map(|drive| drive.name.clone()).collect();
    if about.is_empty() {
        return Vec::new();
    }
    let are = if about.len() == 1 { "is a spinning disk" } else { "are spinning disks" };
    let text = format!(
        "{} {are}, far slower than any link: keep frequently read files on flash, or in the page \
         cache",
        some(&about)
    );
    vec![Found { about, text }]
}
