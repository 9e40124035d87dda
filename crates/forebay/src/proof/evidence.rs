//! What one span of work left behind in every counter that could be read: plain data.

use std::fmt::Write as _;
use std::time::Duration;

use super::cufile::Counters;
use super::drives::DriveBytes;
use super::json::{Json, list};
use super::nfs::NfsMount;
use super::nvidia_fs::NvidiaFs;
use super::pcie::PcieBytes;
use super::process::ProcessBytes;
use super::rdma::PortBytes;
use super::seen::Seen;
use crate::units::format_size;

/// What one span of work left behind: each source with what it told, or why it did not.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct Evidence {
    /// What is below the files, which decides what the process's own counter covers.
    pub storage: Storage,
    /// cuFile's own counters, of this process.
    pub cufile: Seen<Counters>,
    /// Those of nvidia-fs, of everybody.
    pub nvidia_fs: Seen<NvidiaFs>,
    /// Bytes that this process fetched from and sent to storage.
    pub process: Seen<ProcessBytes>,
    /// Bytes that the block devices moved, for everybody.
    pub drives: Seen<Vec<DriveBytes>>,
    /// What of the range was in the page cache, at either edge.
    pub page_cache: Seen<PageCache>,
    /// Bytes that crossed the GPU's PCIe link, for everybody.
    pub gpu: Seen<PcieBytes>,
    /// What the NFS mounts below the files did, for everybody.
    pub nfs: Seen<Vec<NfsMount>>,
    /// The text of VAST's own counters at both edges.
    pub vast: Seen<(String, String)>,
    /// Bytes that RDMA ports moved, for everybody.
    pub rdma: Seen<Vec<PortBytes>>,
    /// Bytes that went over the memory controllers, for everybody.
    pub dram: Seen<u64>,
    /// Processor time of this process.
    pub processor: Duration,
    /// Between the edges.
    pub elapsed: Duration,
    /// What reading both edges took.
    pub read_in: Duration,
}

/// What is below files.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Storage {
    /// Block devices: the kernel counts each process's bytes.
    Block,
    /// NFS: the kernel counts each process's bytes.
    Nfs,
    /// The host's memory: there is nothing to read from.
    Memory,
    /// Something else, such as FUSE, whose bytes the kernel does not count for each process.
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

/// What of a range was in the page cache.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct PageCache {
    /// Bytes of the range.
    pub len: u64,
    /// Bytes of it that were looked at, evenly; the rest is taken to be like them.
    pub looked: u64,
    /// Resident when the span began.
    pub before: u64,
    /// Resident when it ended.
    pub after: u64,
    /// Bytes that came into it right behind the range: the kernel reads ahead.
    pub ahead: u64,
    /// Bytes of the files that are stored nowhere, at most: holes, which no drive is read for.
    pub holes: u64,
    /// Bytes of the range that the file system stores in another form, compressed say, at most:
    /// it makes them whole in the page cache, also for who asks to pass that.
    pub encoded: u64,
    /// What a read past the page cache fetches at least, of the file with the largest blocks; 0
    /// where no file can be read so.
    pub block: u64,
}

impl PageCache {
    /// Bytes that came into the page cache, those that were read ahead among them.
    #[must_use]
    pub const fn grown(&self) -> u64 {
        self.after.saturating_sub(self.before).saturating_add(self.ahead)
    }

    /// Whether the counts are estimates: only a part was looked at, and it was in the cache here
    /// and not there.
    #[must_use]
    pub fn is_estimate(&self) -> bool {
        let is_mixed = |resident: u64| resident != 0 && resident != self.len;
        self.looked < self.len && (is_mixed(self.before) || is_mixed(self.after))
    }
}

impl Default for Evidence {
    /// That of a span in which nothing was looked at.
    fn default() -> Self {
        fn unasked<T>() -> Seen<T> {
            Seen::Nothing("nobody asked".into())
        }
        Self {
            storage: Storage::Other,
            cufile: unasked(),
            nvidia_fs: unasked(),
            process: unasked(),
            drives: unasked(),
            page_cache: unasked(),
            gpu: unasked(),
            nfs: unasked(),
            vast: unasked(),
            rdma: unasked(),
            dram: unasked(),
            processor: Duration::ZERO,
            elapsed: Duration::ZERO,
            read_in: Duration::ZERO,
        }
    }
}

impl Evidence {
    /// Bytes that the devices below the file systems moved, read and written, for everybody;
    /// `None` where not all of them told.
    #[must_use]
    pub fn front_bytes(&self) -> Option<(u64, u64)> {
        let front = || self.drives.told().into_iter().flatten().filter(|drive| drive.front);
        front().next()?;
        let sum = |of: fn(&DriveBytes) -> u64| front().map(of).fold(0, u64::saturating_add);
        Some((sum(|drive| drive.read), sum(|drive| drive.written)))
    }

    /// One object with a key for each source, as text; docs/json-schema.md describes it.
    #[must_use]
    pub fn to_json(&self) -> String {
        let cache = |cache: &PageCache| {
            vec![
                ("len", cache.len.into()),
                ("looked", cache.looked.into()),
                ("before", cache.before.into()),
                ("after", cache.after.into()),
                ("ahead", cache.ahead.into()),
                ("holes", cache.holes.into()),
                ("encoded", cache.encoded.into()),
                ("block", cache.block.into()),
            ]
        };
        let vast = |(before, after): &(String, String)| {
            vec![("before", before.into()), ("after", after.into())]
        };
        Json::Object(vec![
            ("storage", self.storage.name().into()),
            ("cufile", self.cufile.json(Counters::fields)),
            ("nvidia_fs", self.nvidia_fs.json(NvidiaFs::fields)),
            ("process", self.process.json(ProcessBytes::fields)),
            ("drives", each("devices", &self.drives, DriveBytes::json)),
            ("page_cache", self.page_cache.json(cache)),
            ("gpu", self.gpu.json(PcieBytes::fields)),
            ("nfs", each("mounts", &self.nfs, NfsMount::json)),
            ("vast", self.vast.json(vast)),
            ("rdma", each("ports", &self.rdma, PortBytes::json)),
            ("dram", self.dram.json(|bytes| vec![("bytes", (*bytes).into())])),
            ("processor_seconds", self.processor.as_secs_f64().into()),
            ("elapsed_seconds", self.elapsed.as_secs_f64().into()),
            ("read_in_seconds", self.read_in.as_secs_f64().into()),
        ])
        .to_string()
    }

    /// One line for each source that told something or should have.
    #[must_use]
    pub fn lines(&self) -> Vec<String> {
        let mut lines = Vec::new();
        let size = |bytes: u64| format_size(bytes);
        line(&mut lines, "cuFile", &self.cufile, |counters| {
            let by = |by: super::cufile::Paths| {
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

fn each<T>(name: &'static str, seen: &Seen<Vec<T>>, json: impl Fn(&T) -> Json) -> Json {
    seen.json(|all| vec![(name, list(all.iter().map(json)))])
}

fn line<T>(lines: &mut Vec<String>, name: &str, seen: &Seen<T>, told: impl FnOnce(&T) -> String) {
    let mut text = format!("{name}: ");
    match seen {
        Seen::Told(value) => text.push_str(&told(value)),
        Seen::Nothing(_) => return,
        Seen::Missing(missing) => {
            let _ = write!(text, "unknown: {missing}");
        }
    }
    lines.push(text);
}
