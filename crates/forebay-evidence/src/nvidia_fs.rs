//! Counters of the nvidia-fs kernel module (`/proc/driver/nvidia-fs/stats`), for all processes.
//!
//! The module counts requests and bytes only while its `rw_stats_enabled` is 1. The line `Ops`
//! holds the requests in flight (the module decrements it as they end), so it shows nothing at the
//! edges of a span and is not read.

use forebay_base::counts::Counts;
use forebay_base::units::MIB;
use forebay_topology::{NvidiaFsModule, System};

use serde::Serialize;

use super::seen::Seen;

const FOLDER: &str = "proc/driver/nvidia-fs";

/// Requests and bytes of nvidia-fs.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct NvidiaFs {
    /// Version of the module.
    pub version: Option<String>,
    /// Storage drivers registered with it.
    pub modules: Vec<String>,
    /// Reads started.
    pub reads: u64,
    /// Bytes read, in whole MiB.
    pub read: u64,
    /// Writes started.
    pub writes: u64,
    /// Bytes written, in whole MiB.
    pub written: u64,
    /// Batches started.
    pub batches: u64,
}

impl NvidiaFs {
    /// Reads the counters.
    pub(super) fn look(system: &System) -> Seen<Self> {
        let path = format!("{FOLDER}/stats");
        let none = || Seen::Nothing("nvidia-fs is not loaded".into());
        Seen::read(&path, system.table(&path), none).and_then(|text| Self::parse(&text))
    }

    /// Adds the facts that do not change while the module is loaded.
    pub(super) fn describe(&mut self, system: &System) {
        let module = NvidiaFsModule::read(system);
        self.version = module.version;
        self.modules = module.users.unwrap_or_default();
    }

    fn parse(text: &str) -> Seen<Self> {
        let number = |line: &str, field: &str| {
            // Of the two lines `Reads`, only the first holds the counts.
            let fields = text.lines().filter_map(|found| {
                let (name, fields) = found.split_once(':')?;
                (name.trim() == line).then_some(fields)
            });
            let mut words = fields.flat_map(str::split_ascii_whitespace);
            words.find_map(|word| word.strip_prefix(field)?.strip_prefix('=')?.parse::<u64>().ok())
        };
        let counted = || {
            Some(Self {
                reads: number("Reads", "n")?,
                read: number("Reads", "readMiB")?.saturating_mul(MIB),
                writes: number("Writes", "n")?,
                written: number("Writes", "writeMiB")?.saturating_mul(MIB),
                batches: number("Batches", "n").unwrap_or(0),
                ..Self::default()
            })
        };
        let remedy = "`echo 1 > /sys/module/nvidia_fs/parameters/rw_stats_enabled` as root";
        Seen::of(counted(), "nvidia-fs counts no requests", remedy)
    }
}

impl Counts for NvidiaFs {
    fn counts(&mut self) -> Vec<&mut u64> {
        let Self { reads, read, writes, written, batches, .. } = self;
        vec![reads, read, writes, written, batches]
    }

    fn name(&self) -> String {
        "a counter of nvidia-fs".into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::fs;

    const COUNTING: &str = "NVFS Driver(version: 2.28.4)\n\
        Batches\t\t\t: n=3 ok=3 err=0 Avg-Submit-Latency(usec)=1\n\
        Reads\t\t\t: n=40 ok=40 err=0 readMiB=160 io_state_err=0\n\
        Reads\t\t\t: Bandwidth(MiB/s)=0 Avg-Latency(usec)=0\n\
        Writes\t\t\t: n=7 ok=7 err=0 writeMiB=28 io_state_err=0 pg-cache=0\n\
        Ops\t\t\t: Read=0 Write=0 BatchIO=0\n";
    const SILENT: &str = "Reads\t\t: err=0 io_state_err=0\nWrites\t\t: err=0 pg-cache=0\n\
        Ops\t\t: Read=5 Write=0 BatchIO=0\n";

    fn system(stats: &str) -> (tempfile::TempDir, System) {
        let root = tempfile::tempdir().unwrap();
        let folder = root.path().join(FOLDER);
        fs::create_dir_all(&folder).unwrap();
        fs::write(folder.join("stats"), stats).unwrap();
        fs::write(folder.join("version"), "version: 2.28\n").unwrap();
        fs::write(folder.join("modules"), "nvme, nvme_rdma\nrpcrdma\n").unwrap();
        let system = System::at(root.path());
        (root, system)
    }

    #[test]
    fn requests_are_counted_where_the_module_counts() {
        let (root, system) = system(COUNTING);
        let mut seen = NvidiaFs::look(&system).value().cloned().unwrap();
        seen.describe(&system);
        assert_eq!((seen.reads, seen.read, seen.batches), (40, 160 * MIB, 3));
        assert_eq!((seen.writes, seen.written), (7, 28 * MIB));
        assert_eq!(seen.version.as_deref(), Some("2.28"));
        assert_eq!(seen.modules, ["nvme", "nvme_rdma", "rpcrdma"]);
        let more = COUNTING.replace("n=40", "n=50").replace("readMiB=160", "readMiB=170");
        fs::write(root.path().join(FOLDER).join("stats"), more).unwrap();
        let later = NvidiaFs::look(&system).value().cloned().unwrap();
        let grown = later.clone().since(seen.clone()).unwrap();
        assert_eq!((grown.reads, grown.read, grown.writes), (10, 10 * MIB, 0));
        assert!(seen.since(later).unwrap_err().contains("went back"));
    }

    #[test]
    fn requests_in_flight_are_not_taken_for_counts() {
        let silent = NvidiaFs::look(&system(SILENT).1).absence().unwrap();
        assert!(silent.contains("rw_stats_enabled"), "{silent}");
        let root = tempfile::tempdir().unwrap();
        let none = NvidiaFs::look(&System::at(root.path()));
        assert_eq!(none, Seen::Nothing("nvidia-fs is not loaded".into()));
    }

    proptest! {
        #[test]
        fn no_text_is_too_strange(
            text in "(Reads|Writes|Batches|n=|readMiB=|writeMiB=|:|[0-9]|\t| |\n){0,60}",
        ) {
            let _ = NvidiaFs::parse(&text);
        }
    }
}
