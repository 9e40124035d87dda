//! The findings of a comparison besides the rates of its methods: the GPU's own work, and the
//! sockets of the GPU and the file's drives. Plain data, in the form of the JSON.

use serde::{Deserialize, Serialize};

use super::runs::Runs;

/// A kernel on the GPU's memory, alone and during a read by the engine. Rates are bytes per second.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ComputeFacts {
    /// `xor`: each word of its memory is read, changed and written.
    pub kernel: String,
    /// Bytes of that memory.
    pub bytes: u64,
    /// The limit of that memory, reads and writes together.
    pub limit: f64,
    /// The source of the limit: `clock_and_width`, as reported by the driver, or `filling`, the
    /// best of some fills, if the driver reports nothing.
    pub limit_by: String,
    /// The kernel's rate alone.
    pub alone: Runs,
    /// The median of that as a share of the limit.
    pub share_of_limit: f64,
    /// Its rate while a file is read.
    pub beside: Runs,
    /// The rate of that read.
    pub read: Runs,
    /// The median of that read as a share of the engine's reads without a kernel; null if either
    /// moved wrong data.
    pub share_of_read: Option<f64>,
    /// Whether every byte that the kernel changed, and every byte of the reads, was correct.
    pub verified: bool,
    /// True if host memory simulated the GPU.
    pub simulated: bool,
}

/// A GPU and the drives of a file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Sockets {
    /// The GPU's PCI address.
    pub gpu: String,
    /// Its NUMA node.
    pub numa_node: Option<u32>,
    /// The distance of each drive.
    pub drives: Vec<Away>,
}

/// A drive, as seen from the GPU.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Away {
    /// The drive's id, as in the environment.
    pub drive: String,
    /// Its name in the kernel.
    pub name: String,
    /// The NUMA node of the path that serves it.
    pub numa_node: Option<u32>,
    /// `same_switch`, `same_root_port`, `same_socket`, `across_sockets`, `network`, `unknown`.
    pub distance: String,
    /// The facts in words.
    pub text: String,
    /// The distance between the nodes, where 10 is a node's own memory.
    pub node_distance: Option<u32>,
}

impl Sockets {
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
}
