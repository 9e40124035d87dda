//! The evidence of one span of work, from every counter that could be read. Plain data.

use std::fmt::Write as _;
use std::time::Duration;

use forebay::direct::Counters;
use forebay_base::units::format_size;
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

/// The evidence of one span of work: the value of each source, or the reason why it is missing.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
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
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Storage {
    /// Block devices; the kernel counts bytes per process.
    Block,
    /// NFS; the kernel counts bytes per process.
    Nfs,
    /// Host memory; there is no storage to read from.
    Memory,
    /// Other storage, such as FUSE; the kernel does not count bytes per process.
    Other,
}

impl Storage {
    /// Its name, in lower case.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Block => "block",
            Self::Nfs => "nfs",
            Self::Memory => "memory",
            Self::Other => "other",
        }
    }
}

/// The state of a range in the page cache.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
#[non_exhaustive]
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
    /// Upper bound on the bytes of the range that the file system stores in another form, such as
    /// compressed. It decodes them in the page cache even for O_DIRECT reads.
    pub encoded: u64,
    /// Smallest unit of an O_DIRECT read, for the file with the largest blocks; 0 if no file can be
    /// read with O_DIRECT.
    pub block: u64,
}

impl PageCache {
    /// Bytes that became resident, read-ahead included.
    #[must_use]
    pub const fn grown(&self) -> u64 {
        self.after.saturating_sub(self.before).saturating_add(self.ahead)
    }

    /// Whether the counts are estimates: the range was only sampled, and was partly resident.
    #[must_use]
    pub fn is_estimate(&self) -> bool {
        let is_mixed = |resident: u64| resident != 0 && resident != self.len;
        self.looked < self.len && (is_mixed(self.before) || is_mixed(self.after))
    }
}

impl Default for Evidence {
    /// The evidence of a span without any sources.
    fn default() -> Self {
        Self {
            storage: Storage::Other,
            cufile: Seen::NotQueried,
            nvidia_fs: Seen::NotQueried,
            process: Seen::NotQueried,
            drives: Seen::NotQueried,
            page_cache: Seen::NotQueried,
            gpu: Seen::NotQueried,
            nfs: Seen::NotQueried,
            vast: Seen::NotQueried,
            rdma: Seen::NotQueried,
            dram: Seen::NotQueried,
            processor: Duration::ZERO,
            elapsed: Duration::ZERO,
            read_in: Duration::ZERO,
        }
    }
}

impl Evidence {
    /// Bytes read and written by the devices below the file systems, for all processes; `None` if
    /// any of them is missing.
    #[must_use]
    pub fn front_bytes(&self) -> Option<(u64, u64)> {
        let front = || self.drives.value().into_iter().flatten().filter(|drive| drive.front);
        front().next()?;
        let sum = |of: fn(&DriveBytes) -> u64| front().map(of).fold(0, u64::saturating_add);
        Some((sum(|drive| drive.read), sum(|drive| drive.written)))
    }

    /// The evidence as a JSON object with a key for each source; docs/json-schema.md describes it.
    #[must_use]
    pub fn to_json(&self) -> Value {
        json!({
            "storage": self.storage.name(),
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

    /// One line for each source that has a value or should have one.
    #[must_use]
    pub fn lines(&self) -> Vec<String> {
        let mut lines = Vec::new();
        let size = |bytes: u64| format_size(bytes);
        line(&mut lines, "cuFile", &self.cufile, |counters| {
            let by = |by: forebay::direct::Paths| {
                format!("{} p2pdma, {} nvidia-fs, {} POSIX", by.p2pdma, by.nvidia_fs, by.posix)
            };
            let (reads, writes) = (by(counters.reads().by), by(counters.writes().by));
            format!("reads {reads}; writes {writes}; {} batches", counters.batches)
        });
        line(&mut lines, "nvidia-fs", &self.nvidia_fs, |counts| {
            format!("{} reads, {} writes, {} batches", counts.reads, counts.writes, counts.batches)
        });
        line(&mut lines, "this process", &self.process, |bytes| {
            format!("{} from storage, {} to storage", size(bytes.read), size(bytes.written))
        });
        line(&mut lines, "drives", &self.drives, |drives| {
            let each = drives.iter().map(|drive| {
                format!("{} {} read, {} written", drive.name, size(drive.read), size(drive.written))
            });
            each.collect::<Vec<_>>().join("; ")
        });
        line(&mut lines, "page cache", &self.page_cache, |cache| {
            format!("{} before, {} after", size(cache.before), size(cache.after))
        });
        line(&mut lines, "GPU's PCIe", &self.gpu, PcieBytes::line);
        line(&mut lines, "NFS", &self.nfs, |mounts| {
            let each = mounts.iter().map(|mount| {
                let (from, to) = (size(mount.server_read), size(mount.server_written));
                format!("{} {from} from the server, {to} to it", mount.point)
            });
            each.collect::<Vec<_>>().join("; ")
        });
        line(&mut lines, "RDMA ports", &self.rdma, |ports| {
            let each = ports.iter().map(|port| {
                format!("{} {} in, {} out", port.name, size(port.received), size(port.sent))
            });
            each.collect::<Vec<_>>().join("; ")
        });
        line(&mut lines, "memory", &self.dram, |bytes| format!("{} moved", size(*bytes)));
        lines
    }
}

fn line<T>(lines: &mut Vec<String>, name: &str, seen: &Seen<T>, told: impl FnOnce(&T) -> String) {
    let mut text = format!("{name}: ");
    match seen {
        Seen::Value(value) => text.push_str(&told(value)),
        Seen::Nothing(_) | Seen::NotQueried => return,
        Seen::Missing(missing) => {
            let _ = write!(text, "unknown: {missing}");
        }
    }
    lines.push(text);
}
