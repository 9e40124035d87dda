//! The sockets of the GPU and the file's drives, and their distance, for the warnings of
//! measurements.

use std::path::{Path, PathBuf};

use forebay_topology::{Distance, Drive, PciDevice, Resolver, gpu_at};

/// A GPU and the drives of a file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Sockets {
    /// The GPU's PCI address.
    pub gpu: String,
    /// Its NUMA node.
    pub numa_node: Option<u32>,
    /// The distance of each drive.
    pub drives: Vec<Away>,
}

/// A drive, as seen from the GPU.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Away {
    /// Its name in the kernel.
    pub name: String,
    /// The NUMA node of the path that serves it.
    pub numa_node: Option<u32>,
    /// `same_switch`, `same_root_port`, `same_socket`, `across_sockets`, `network`, `unknown`.
    pub distance: String,
    /// The distance in words.
    pub text: String,
    /// The distance between the nodes, where 10 is a node's own memory.
    pub node_distance: Option<u32>,
}

impl Sockets {
    /// Finds the drives under `path`, relative to the GPU at a PCI address; `None` if there is no
    /// such device.
    #[must_use]
    pub fn look(resolver: &Resolver, path: &Path, gpu: &str) -> Option<Self> {
        let gpu = gpu_at(resolver.system(), gpu)?.pci;
        let map = resolver.resolve(path);
        let drives = map.drives.iter().map(|drive| away(&gpu, drive)).collect();
        Some(Self { numa_node: gpu.numa_node, gpu: gpu.address, drives })
    }

    /// How far each drive is from the GPU, in a line.
    pub fn lines(&self) -> impl Iterator<Item = String> {
        self.drives.iter().map(|drive| {
            let Away { name, text, .. } = drive;
            let nodes = self.numa_node.zip(drive.numa_node).filter(|(one, other)| one != other);
            match nodes.zip(drive.node_distance) {
                Some(((one, other), far)) => {
                    format!("{name}: {text}, NUMA nodes {one} and {other}, distance {far}")
                }
                None => format!("{name}: {text}"),
            }
        })
    }

    /// A sentence on the drives on another socket than the GPU, with what to do; none if there are
    /// none.
    #[must_use]
    pub fn warning(&self) -> Option<String> {
        let far = self.drives.iter().filter(|drive| drive.distance == "across_sockets");
        let far: Vec<String> = far.map(Away::named).collect();
        let are = match far.len() {
            0 => return None,
            1 => "is",
            _ => "are",
        };
        let node = self.numa_node.map_or_else(String::new, |node| format!(" on NUMA node {node}"));
        Some(format!(
            "{} {are} on another socket than the GPU{node}, so bytes cross the link between \
             sockets: use a drive or a GPU on the same socket; `forebay doctor --map` shows where \
             they are",
            far.join(", ")
        ))
    }
}

impl Away {
    /// Its name, with its location.
    fn named(&self) -> String {
        let node = self.numa_node.map(|node| format!("NUMA node {node}"));
        let apart = self.node_distance.map(|far| format!("distance {far}, local is 10"));
        let parts: Vec<String> = node.into_iter().chain(apart).collect();
        match parts.as_slice() {
            [] => format!("`{}`", self.name),
            parts => format!("`{}` ({})", self.name, parts.join(", ")),
        }
    }
}

/// The warnings on GPUs, given by PCI address, and the drives under each of `paths` that are on
/// different sockets. Each sentence once.
#[must_use]
pub fn warnings(resolver: &Resolver, paths: &[PathBuf], gpus: &[&str]) -> Vec<String> {
    let mut all = Vec::new();
    for path in paths {
        for gpu in gpus {
            let warning = Sockets::look(resolver, path, gpu).and_then(|found| found.warning());
            all.extend(warning.filter(|text| !all.contains(text)));
        }
    }
    all
}

fn away(gpu: &PciDevice, drive: &Drive) -> Away {
    let distance = Distance::to_drive(gpu, drive);
    let node = drive.numa_node();
    let far = node.and_then(|node| gpu.node_distances.get(node as usize));
    Away {
        name: drive.name.clone(),
        numa_node: node,
        distance: distance.name().into(),
        text: distance.to_string(),
        node_distance: far.copied(),
    }
}
