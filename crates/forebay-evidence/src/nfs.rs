//! Counters of an NFS mount (`/proc/self/mountstats`, `nfsstat(8)`): bytes through the page cache
//! and with O_DIRECT, operations, and bytes copied for connections over RDMA.
//!
//! The counters are the mount's, for all processes. VAST's client also keeps counters in
//! `/proc/fs/nfsfs/cbstats`. Their format is not public, so the text is kept as it is.

use std::path::Path;

use forebay_base::counts::{Counts, all_since};
use forebay_topology::{LayerKind, StorageMap, System, clean, nfs_entries};

use serde::Serialize;

use super::seen::Seen;

const TABLE: &str = "proc/self/mountstats";
const VAST: &str = "proc/fs/nfsfs/cbstats";
/// Maximum length of VAST's text.
const VAST_LEN_MAX: usize = 8 << 10;
/// Maximum number of mounts read, and of operations kept per mount.
pub(super) const MOUNTS_MAX: usize = 16;
const OPERATIONS_MAX: usize = 128;

/// The counters of a mount.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct NfsMount {
    /// Its mount point.
    pub point: String,
    /// Bytes that programs read through the page cache.
    pub cached_read: u64,
    /// Bytes that programs read with O_DIRECT.
    pub direct_read: u64,
    /// Bytes that programs wrote through the page cache.
    pub cached_written: u64,
    /// Bytes that programs wrote with O_DIRECT.
    pub direct_written: u64,
    /// Bytes received from the server.
    pub server_read: u64,
    /// Bytes sent to the server.
    pub server_written: u64,
    /// Operations; those without a request are dropped from the result of a span.
    pub operations: Vec<Operation>,
    /// Totals of its connections over RDMA; `None` without any.
    pub rdma: Option<RdmaConnections>,
}

/// The counts of an NFS operation.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Operation {
    /// Its name in the kernel, such as `READ`.
    pub name: String,
    /// Requests.
    pub count: u64,
    /// Bytes sent, headers included.
    pub sent: u64,
    /// Bytes received, headers included.
    pub received: u64,
}

/// Totals over all connections over RDMA.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct RdmaConnections {
    /// Number of connections.
    pub connections: u64,
    /// Bytes of requests that the network card moved by itself.
    pub requested: u64,
    /// Bytes of replies that the network card moved by itself.
    pub replied: u64,
    /// Bytes of requests that the CPU had to copy into a single buffer.
    pub pulled_up: u64,
    /// Bytes of replies that the CPU had to copy to their destination.
    pub fixed_up: u64,
}

/// Collects the mount points of the NFS mounts below a path.
pub(super) fn points(map: &StorageMap, into: &mut Vec<String>) {
    let mut mount = None;
    for (_, layer) in map.root.walk() {
        match layer.kind {
            LayerKind::Mount => mount = Some(&layer.name),
            LayerKind::FileSystem if layer.name.starts_with("nfs") => {
                let new = mount.filter(|point| !into.contains(point));
                into.extend(new.filter(|_| into.len() < MOUNTS_MAX).cloned());
            }
            _ => {}
        }
    }
}

/// Reads the counters of the mounts at `points`.
pub(super) fn look(system: &System, points: &[String]) -> Seen<Vec<NfsMount>> {
    if points.is_empty() {
        return Seen::Nothing("no NFS".into());
    }
    let none = || Seen::missing(format!("there is no `/{TABLE}`"), "mount `/proc`");
    let table = system.own_table("mountstats");
    let table = table.map(|table| String::from_utf8_lossy(&table).into_owned());
    Seen::read(TABLE, table, none).and_then(|text| {
        let mounts = points.iter().map(|point| {
            let counts = parse(&nfs_entries(&text, Path::new(point))?)?;
            Some(NfsMount { point: point.clone(), ..counts })
        });
        let why = format!("`/{TABLE}` has no counters of `{}`", points.join("`, `"));
        Seen::of(mounts.collect(), why, "look from the mount namespace that the mount is in")
    })
}

/// VAST's text, truncated to the maximum length.
pub(super) fn vast(system: &System) -> Seen<String> {
    let none = || Seen::Nothing("no client of VAST".into());
    let text = system.bytes(VAST, VAST_LEN_MAX);
    let text = text.map(|bytes| String::from_utf8_lossy(&bytes).into_owned());
    Seen::read(VAST, text, none).map(|text| text.lines().map(clean).collect::<Vec<_>>().join("\n"))
}

fn parse(entries: &[(&str, &str)]) -> Option<NfsMount> {
    let mut mount = NfsMount::default();
    let mut bytes = None;
    for &(name, rest) in entries {
        let numbers = |skipped: usize| {
            let words = rest.split_ascii_whitespace().skip(skipped);
            words.map_while(|word| word.parse::<u64>().ok()).collect::<Vec<_>>()
        };
        match name {
            "bytes" => bytes = bytes.or(Some(numbers(0))),
            "xprt" if rest.trim_start().starts_with("rdma ") => {
                let sum = mount.rdma.get_or_insert_default();
                sum.connections += 1;
                for (sum, count) in sum.bytes().into_iter().zip(numbers(14)) {
                    *sum = sum.saturating_add(count);
                }
            }
            name if is_operation(name) && mount.operations.len() < OPERATIONS_MAX => {
                if let [count, _, _, sent, received, ..] = numbers(0)[..] {
                    let name = name.to_owned();
                    mount.operations.push(Operation { name, count, sent, received });
                }
            }
            _ => {}
        }
    }
    let bytes = bytes?;
    mount.bytes().into_iter().zip(&bytes).for_each(|(count, found)| *count = *found);
    (bytes.len() >= 6).then_some(mount)
}

/// The growth of the counters since an earlier reading.
pub(super) fn since(
    later: Seen<Vec<NfsMount>>,
    earlier: Seen<Vec<NfsMount>>,
) -> Seen<Vec<NfsMount>> {
    later.since(earlier, |earlier, later| all_since(later, earlier)).map(|mut mounts| {
        for mount in &mut mounts {
            mount.operations.retain(|operation| operation.count > 0);
        }
        mounts
    })
}

fn is_operation(name: &str) -> bool {
    name.len() < 32 && name.bytes().all(|byte| byte.is_ascii_uppercase() || byte == b'_')
}

impl NfsMount {
    /// All counts of bytes.
    pub(super) fn bytes(&mut self) -> [&mut u64; 6] {
        [
            &mut self.cached_read,
            &mut self.cached_written,
            &mut self.direct_read,
            &mut self.direct_written,
            &mut self.server_read,
            &mut self.server_written,
        ]
    }
}

impl RdmaConnections {
    fn bytes(&mut self) -> [&mut u64; 4] {
        [&mut self.requested, &mut self.replied, &mut self.pulled_up, &mut self.fixed_up]
    }
}

impl Counts for NfsMount {
    fn counts(&mut self) -> Vec<&mut u64> {
        let Self {
            cached_read,
            direct_read,
            cached_written,
            direct_written,
            server_read,
            server_written,
            operations,
            rdma,
            ..
        } = self;
        let bytes =
            [cached_read, direct_read, cached_written, direct_written, server_read, server_written];
        let rdma = rdma.iter_mut().flat_map(RdmaConnections::bytes);
        let operations = operations.iter_mut();
        let operations =
            operations.flat_map(|own| [&mut own.count, &mut own.sent, &mut own.received]);
        bytes.into_iter().chain(rdma).chain(operations).collect()
    }

    fn name(&self) -> String {
        format!("a counter of `{}`", self.point)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::fs;

    const STATS: &str = "device proc mounted on /proc with fstype proc
device s:/e mounted on /mnt/a with fstype nfs4 statvers=1.1
\topts:\trw,vers=4.2
\tbytes:\t1 2 3 4 5 6 7 8
\txprt:\trdma 0 0 1 0 0 10 10 0 0 0 11 12 13 1400 1500 16 17 18 19 20 21
\txprt:\trdma 0 0 1 0 0 10 10 0 0 0 11 12 13 100 200 3 4 18 19 20 21
\tper-op statistics
\t        NULL: 0 0 0 0 0 0 0 0 0
\t        READ: 10 10 0 2000 4096000 1 2 3 0
";

    fn system(stats: &str) -> (tempfile::TempDir, System) {
        let root = tempfile::tempdir().unwrap();
        fs::create_dir_all(root.path().join("proc/self")).unwrap();
        fs::write(root.path().join("proc/self/mountstats"), stats).unwrap();
        let system = System::at(root.path());
        (root, system)
    }

    fn counters(seen: Seen<Vec<NfsMount>>) -> Vec<NfsMount> {
        seen.value().cloned().expect("counters")
    }

    #[test]
    fn bytes_operations_and_copies_of_a_mount_are_counted() {
        let (root, system) = system(STATS);
        let points = ["/mnt/a".to_owned()];
        let earlier = look(&system, &points);
        let mount = &counters(earlier.clone())[0];
        assert_eq!((mount.cached_read, mount.direct_read, mount.server_read), (1, 3, 5));
        assert_eq!((mount.cached_written, mount.direct_written, mount.server_written), (2, 4, 6));
        let rdma = mount.rdma.unwrap();
        assert_eq!((rdma.connections, rdma.requested, rdma.replied), (2, 1500, 1700));
        assert_eq!((rdma.pulled_up, rdma.fixed_up), (19, 21));
        let more = STATS
            .replace("1 2 3 4 5", "1 2 8 4 9")
            .replace("READ: 10 10 0 2000 4096000", "READ: 11 11 0 2200 8192000")
            .replace("100 200 3", "100 200 9");
        fs::write(root.path().join("proc/self/mountstats"), more).unwrap();
        let later = look(&system, &points);
        let grown = counters(since(later.clone(), earlier.clone()));
        assert_eq!((grown[0].direct_read, grown[0].server_read, grown[0].cached_read), (5, 4, 0));
        let [read] = grown[0].operations.as_slice() else { panic!("{grown:?}") };
        assert_eq!((read.name.as_str(), read.count, read.sent), ("READ", 1, 200));
        assert_eq!(grown[0].rdma.unwrap().pulled_up, 6);
        assert!(since(earlier.clone(), later).absence().unwrap().contains("went back"));
        let none = since(Seen::Value(Vec::new()), earlier).absence().unwrap();
        assert!(none.contains("came or went"), "{none}");
    }

    #[test]
    fn missing_counters_of_a_mount_are_reported() {
        let (_root, system) = system(STATS);
        let none = look(&system, &["/mnt/b".to_owned()]).absence().unwrap();
        assert!(none.contains("no counters of `/mnt/b`"), "{none}");
        assert_eq!(look(&system, &[]), Seen::Nothing("no NFS".into()));
        let empty = tempfile::tempdir().unwrap();
        let gone = look(&System::at(empty.path()), &["/mnt/b".to_owned()]).absence().unwrap();
        assert!(gone.contains("there is no"), "{gone}");
    }

    #[test]
    fn the_text_of_vast_is_kept_within_bounds_and_without_control_characters() {
        let (root, system) = system("");
        assert_eq!(vast(&system), Seen::Nothing("no client of VAST".into()));
        fs::create_dir_all(root.path().join("proc/fs/nfsfs")).unwrap();
        fs::write(root.path().join(VAST), format!("a 1\nb\u{1b}[2J{}", "x".repeat(100_000)))
            .unwrap();
        let text = vast(&system).value().cloned().unwrap();
        assert!(text.starts_with("a 1\nb\u{fffd}[2J") && text.len() <= VAST_LEN_MAX, "{text}");
    }

    proptest! {
        #[test]
        fn no_table_is_too_strange(
            text in "(bytes:|xprt:|rdma|READ:|device | mounted on /mnt/a|[0-9]| |\n){0,60}",
        ) {
            let _ = nfs_entries(&text, Path::new("/mnt/a")).and_then(|entries| parse(&entries));
        }
    }
}
