//! Finds the drives under a path, and their distance from the GPUs.
//!
//! [`Resolver`] returns a [`StorageMap`]: the steps from the path to the devices, the drives, and
//! the queue that serves the file. The steps lead through mounts, file systems, partitions, arrays,
//! volumes and loop devices to controllers and PCI devices. Everything is read below the root of a
//! [`System`], and nothing read there is trusted. A missing fact is recorded with its reason and is
//! never an error: no transfer depends on this module for correctness.
//!
//! A [`System`] is the only reader: of the running machine, of the same with a record, or of a
//! record. `probe` queries the kernel, and `answers` holds what it answered, as records have it.
//!
//! The modules describe parts of a machine: `mount`, `block`, `md`, `dm`, `btrfs`, `overlay`,
//! `loop_device`, `nvme`, `network` and `nfs`, `pci`, `numa`; `resolve` orders the steps, and
//! `volume` lays bytes over members. `quota` and `memory_limit` read the limits of the process's
//! control groups (`groups`). `look` serves the doctor, `stored` reports holes, and `simulated`
//! gives simulated GPUs a place on PCI. `ceiling` predicts what drives, GPUs, network ports (`nic`)
//! and `memory` carry, `streams` how many bytes a drive moves for those of a file.

mod answers;
mod block;
mod btrfs;
mod cache;
mod calls;
mod ceiling;
mod device;
mod distance;
mod dm;
mod drive;
mod file_systems;
mod gpu;
mod groups;
mod links;
mod look;
mod loop_device;
mod magic;
mod map;
mod md;
mod memory;
mod memory_limit;
mod mount;
mod neighbours;
mod network;
mod nfs;
mod nic;
mod numa;
mod nvidia_fs;
mod nvme;
mod overlay;
mod path;
mod patience;
mod pci;
mod placement;
mod probe;
mod quota;
mod record;
mod resolve;
mod simulated;
mod stored;
mod streams;
mod system;
#[cfg(test)]
mod tests;
mod text;
mod volume;

pub use answers::Extent;
pub use cache::Resolver;
pub use ceiling::{Binds, Ceiling, Leaf, Part, SHARE, carried, together};
pub use device::BlockDevice;
pub use distance::Distance;
pub use drive::{Drive, DriveId, DriveKind, DrivePath, Transport};
pub use gpu::{Gpu, gpu_at, gpus};
pub use magic::FileSystem;
pub use map::{Fact, Layer, LayerKind, Queue, QueueId, StorageMap, Value};
pub use memory::Channels;
pub use memory_limit::{MemoryLeft, MemoryLimit};
pub use neighbours::Neighbours;
pub use nfs::nfs_entries;
pub use nic::{Nic, RdmaPort, ports};
pub use nvidia_fs::NvidiaFsModule;
pub use pci::{Bridge, Link, PciDevice, is_address, payload};
pub use placement::Piece;
pub use record::{read_record, record, record_with};
pub use resolve::Below;
pub use simulated::simulated_gpu;
pub use stored::Stored;
pub use streams::{Stream, streams};
pub use system::{Absent, System};
pub use text::{clean, entry, is_number, moves_cursor, quoted, shown};
pub use volume::{Layout, Way};
