//! Warnings of measurements on drives and GPUs that are on different sockets.

use std::path::{Path, PathBuf};

use forebay_topology::{Distance, Drive, PciDevice, Resolver, gpu_at};

/// The warnings on GPUs, given by PCI address, and the drives under each of `paths` that are on
/// different sockets. Each sentence once.
#[must_use]
pub fn warnings(resolver: &Resolver, paths: &[PathBuf], gpus: &[&str]) -> Vec<String> {
    let mut all = Vec::new();
    for path in paths {
        for gpu in gpus {
            let warning = warning(resolver, path, gpu);
            all.extend(warning.filter(|text| !all.contains(text)));
        }
    }
    all
}

/// A sentence on the drives under `path` on another socket than the GPU, with what to do; `None` if
/// there are none, or no such GPU.
fn warning(resolver: &Resolver, path: &Path, gpu: &str) -> Option<String> {
    let gpu = gpu_at(resolver.system(), gpu)?.pci;
    let map = resolver.resolve(path);
    let is_far = |drive: &&Drive| Distance::to_drive(&gpu, drive) == Distance::AcrossSockets;
    let far: Vec<String> =
        map.drives.iter().filter(is_far).map(|drive| named(&gpu, drive)).collect();
    let are = match far.len() {
        0 => return None,
        1 => "is",
        _ => "are",
    };
    let node = gpu.numa_node.map_or_else(String::new, |node| format!(" on NUMA node {node}"));
    Some(format!(
        "{} {are} on another socket than the GPU{node}, so bytes cross the link between sockets: \
         use a drive or a GPU on the same socket; `forebay doctor --map` shows where they are",
        far.join(", ")
    ))
}

/// A drive's name, with its location.
fn named(gpu: &PciDevice, drive: &Drive) -> String {
    let name = &drive.name;
    let Some(node) = drive.numa_node() else { return format!("`{name}`") };
    match gpu.node_distances.get(node as usize) {
        Some(far) => format!("`{name}` (NUMA node {node}, distance {far}, local is 10)"),
        None => format!("`{name}` (NUMA node {node})"),
    }
}
