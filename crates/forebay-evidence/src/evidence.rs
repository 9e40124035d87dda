//! The evidence of a span of work, from every counter that could be read. Plain data.

use std::time::Duration;

use forebay_cufile::Counters;
use serde::Serialize;
use serde_json::{Value, json};

use super::cufile;
use super::drives::DriveBytes;
use super::nfs::NfsMount;
use super::nvidia_fs::NvidiaFs;
use super::pcie::PcieBytes;
use super::process::ProcessBytes;
use super::rdma::PortBytes;
use super::seen::Seen;

/// The evidence of a span of work: the value of each source, or the reason why it is missing. By
/// default that of a span without any sources.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Evidence {
    /// The storage below the files; it decides which bytes the process's counter covers.
    pub storage: Storage,
    /// cuFile's counters, for this process.
    pub cufile: Seen<Counters>,
    /// Counters of nvidia-fs, for all processes.
    pub nvidia_fs: Seen<NvidiaFs>,
    /// Bytes that this process read from and wrote to storage.
    pub process: Seen<ProcessBytes>,
    /// Bytes that the block devices moved, for all processes.
    pub drives: Seen<Vec<DriveBytes>>,
    /// Resident bytes of the range at both edges.
    pub page_cache: Seen<PageCache>,
    /// Bytes that crossed the GPU's PCIe link, for all processes.
    pub gpu: Seen<PcieBytes>,
    /// Counters of the NFS mounts below the files, for all processes.
    pub nfs: Seen<Vec<NfsMount>>,
    /// The text of VAST's counters at both edges.
    pub vast: Seen<(String, String)>,
    /// Bytes that RDMA ports moved, for all processes.
    pub rdma: Seen<Vec<PortBytes>>,
    /// Bytes that the memory controllers moved, for all processes.
    pub dram: Seen<u64>,
    /// CPU time of this process.
    pub processor: Duration,
    /// Time between the edges.
    pub elapsed: Duration,
    /// Time spent on reading the counters at both edges.
    pub read_in: Duration,
}

/// The storage below files.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
#[non_exhaustive]
pub enum Storage {
    /// Block devices; the kernel counts bytes per process.
    Block,
    /// NFS; the kernel counts bytes per process.
    Nfs,
    /// Host memory; there is no storage to read from.
    Memory,
    /// Other storage, such as FUSE; the kernel does not count bytes per process.
    #[default]
    Other,
}

/// The state of a range in the page cache.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct PageCache {
    /// Length of the range in bytes.
    pub len: u64,
    /// Bytes of it that were sampled, evenly spaced; the rest is extrapolated.
    pub looked: u64,
    /// Bytes resident at the beginning of the span.
    pub before: u64,
    /// Bytes resident at its end.
    pub after: u64,
    /// Bytes that became resident just behind the range, by the kernel's read-ahead.
    pub ahead: u64,
    /// Upper bound on the bytes in holes of the files; no drive is read for these.
    pub holes: u64,
    /// Upper bound on the bytes of the range that the file system stores in a different form, such
    /// as compressed. It decodes them in the page cache even for O_DIRECT reads.
    pub encoded: u64,
    /// Smallest unit of an O_DIRECT read, for the file with the largest blocks; 0 if no file can be
    /// read with O_DIRECT.
    pub block: u64,
}

impl PageCache {
    /// Bytes that became resident, read-ahead included.
    pub const fn grown(&self) -> u64 {
        self.after.saturating_sub(self.before).saturating_add(self.ahead)
    }

    /// Whether the counts are estimates: the range was only sampled, and was partly resident.
    pub fn is_estimate(&self) -> bool {
        let is_mixed = |resident: u64| resident != 0 && resident != self.len;
        self.looked < self.len && (is_mixed(self.before) || is_mixed(self.after))
    }
}

impl Evidence {
    /// Bytes read and written by the devices below the file systems, for all processes; `None` if
    /// any of them is missing.
    pub fn front_bytes(&self) -> Option<(u64, u64)> {
        let front = || self.drives.value().into_iter().flatten().filter(|drive| drive.front);
        front().next()?;
        let sum = |of: fn(&DriveBytes) -> u64| front().map(of).fold(0, u64::saturating_add);
        Some((sum(|drive| drive.read), sum(|drive| drive.written)))
    }

    /// The evidence as a JSON object with a key per source; docs/json-schema.md describes it.
    pub fn to_json(&self) -> Value {
        json!({
            "storage": self.storage,
            "cufile": self.cufile.json(cufile::json),
            "nvidia_fs": self.nvidia_fs.json(|counts| json!(counts)),
            "process": self.process.json(|bytes| json!(bytes)),
            "drives": self.drives.json(|drives| json!({"devices": drives})),
            "page_cache": self.page_cache.json(|cache| json!(cache)),
            "gpu": self.gpu.json(|bytes| json!(bytes)),
            "nfs": self.nfs.json(|mounts| json!({"mounts": mounts})),
            "vast": self.vast.json(|(before, after)| json!({"before": before, "after": after})),
            "rdma": self.rdma.json(|ports| json!({"ports": ports})),
            "dram": self.dram.json(|bytes| json!({"bytes": bytes})),
            "processor_seconds": self.processor.as_secs_f64(),
            "elapsed_seconds": self.elapsed.as_secs_f64(),
            "read_in_seconds": self.read_in.as_secs_f64(),
        })
    }
}
