//! Counters of an NFS mount (`/proc/self/mountstats`, `nfsstat(8)`): bytes through the page cache
//! and with O_DIRECT, operations, and bytes copied for connections over RDMA.
//!
//! The counters are the mount's, for all processes. VAST's client also has counters in
//! `/proc/fs/nfsfs/cbstats`. Their format is not public, so the text is kept as it is.

use std::path::Path;

use forebay_base::units::grown;
use forebay_topology::{LayerKind, StorageMap, System, clean, part_of};

use serde::Serialize;

use super::seen::Seen;

const TABLE: &str = "mountstats";
const VAST: &str = "proc/fs/nfsfs/cbstats";
/// Maximum length of VAST's text.
const VAST_LEN_MAX: usize = 8 << 10;
/// Maximum number of mounts read, and of operations and connections kept for each.
pub(super) const MOUNTS_MAX: usize = 16;
const OPERATIONS_MAX: usize = 128;
const CONNECTIONS_MAX: usize = 512;

/// The counters of one mount.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
#[non_exhaustive]
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
    /// Operations with at least one request.
    pub operations: Vec<Operation>,
    /// Totals of its connections over RDMA; `None` without any.
    pub rdma: Option<RdmaConnections>,
}

/// The counts of one NFS operation.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[non_exhaustive]
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
#[non_exhaustive]
pub struct RdmaConnections {
    /// Number of connections.
    pub connections: u64,
    /// Bytes of requests that the network card moved by itself.
    pub requested: u64,
    /// Bytes of replies that the network card moved by itself.
    pub replied: u64,
    /// Bytes of requests that the CPU had to copy into one buffer.
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
    let shown = format!("/proc/self/{TABLE}");
    let none = || Seen::missing(format!("there is no `{shown}`"), "mount `/proc`");
    Seen::read(&shown, system.own_table(TABLE), none).and_then(|text| {
        let mounts = points.iter().map(|point| {
            let counts = parse(part_of(&text, Path::new(point))?)?;
            Some(NfsMount { point: point.clone(), ..counts })
        });
        let why = format!("`{shown}` has no counters of `{}`", points.join("`, `"));
        Seen::of(mounts.collect(), why, "look from the mount namespace that the mount is in")
    })
}

/// VAST's text, truncated to the maximum length.
pub(super) fn vast(system: &System) -> Seen<String> {
    let none = || Seen::Nothing("no client of VAST".into());
    Seen::read(&format!("/{VAST}"), system.bytes(Path::new(VAST), VAST_LEN_MAX), none)
        .map(|text| text.lines().map(clean).collect::<Vec<_>>().join("\n"))
}

fn parse(part: &str) -> Option<NfsMount> {
    let mut mount = NfsMount::default();
    let mut bytes = None;
    let mut rdma: Option<RdmaConnections> = None;
    let mut connections = 0;
    for line in part.lines() {
        let Some((name, rest)) = line.trim().split_once(':') else { continue };
        let words = || rest.split_ascii_whitespace();
        let numbers = || words().map_while(|word| word.parse::<u64>().ok()).collect::<Vec<_>>();
        match name {
            "bytes" => bytes = bytes.or(Some(numbers())),
            "xprt" if words().next() == Some("rdma") && connections < CONNECTIONS_MAX => {
                connections += 1;
                let sum = rdma.get_or_insert_default();
                sum.connections += 1;
                let RdmaConnections { requested, replied, pulled_up, fixed_up, .. } = sum;
                let counts = words().skip(14).map_while(|word| word.parse().ok());
                for (sum, count) in
                    [requested, replied, pulled_up, fixed_up].into_iter().zip(counts)
                {
                    *sum = sum.saturating_add(count);
                }
            }
            name if is_operation(name) && mount.operations.len() < OPERATIONS_MAX => {
                if let [count, _, _, sent, received, ..] = numbers()[..] {
                    let name = name.to_owned();
                    mount.operations.push(Operation { name, count, sent, received });
                }
            }
            _ => {}
        }
    }
    mount.rdma = rdma;
    let bytes = bytes?;
    mount.bytes().into_iter().zip(&bytes).for_each(|(count, found)| *count = *found);
    (bytes.len() >= 6).then_some(mount)
}

fn is_operation(name: &str) -> bool {
    name.len() < 32 && name.bytes().all(|byte| byte.is_ascii_uppercase() || byte == b'_')
}

/// The counts of the mounts between two readings.
pub(super) fn since(earlier: Vec<NfsMount>, later: Vec<NfsMount>) -> Result<Vec<NfsMount>, String> {
    if earlier.len() != later.len() {
        return Err("an NFS mount came or went".into());
    }
    earlier.into_iter().zip(later).map(|(earlier, later)| later.since(earlier)).collect()
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

    fn since(mut self, mut earlier: Self) -> Result<Self, String> {
        let point = self.point.clone();
        let grow = |what: &str, earlier: u64, later: &mut u64| {
            *later = grown(&format!("the {what} of `{point}`"), earlier, *later)?;
            Ok::<_, String>(())
        };
        for (earlier, later) in earlier.bytes().into_iter().zip(self.bytes()) {
            grow("bytes", *earlier, later)?;
        }
        match (&mut self.rdma, earlier.rdma) {
            (Some(now), Some(before)) => {
                grow("RDMA requests", before.requested, &mut now.requested)?;
                grow("RDMA replies", before.replied, &mut now.replied)?;
                grow("RDMA copies", before.pulled_up, &mut now.pulled_up)?;
                grow("RDMA copies", before.fixed_up, &mut now.fixed_up)?;
            }
            (rdma, _) => *rdma = None,
        }
        for now in &mut self.operations {
            let before = earlier.operations.iter().find(|before| before.name == now.name);
            let Some(before) = before else { continue };
            grow("operations", before.count, &mut now.count)?;
            grow("bytes sent", before.sent, &mut now.sent)?;
            grow("bytes received", before.received, &mut now.received)?;
        }
        self.operations.retain(|operation| operation.count > 0);
        Ok(self)
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
        let earlier = counters(look(&system, &points));
        let mount = &earlier[0];
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
        let later = counters(look(&system, &points));
        let grown = since(earlier.clone(), later.clone()).unwrap();
        assert_eq!((grown[0].direct_read, grown[0].server_read, grown[0].cached_read), (5, 4, 0));
        let [read] = grown[0].operations.as_slice() else { panic!("{grown:?}") };
        assert_eq!((read.name.as_str(), read.count, read.sent), ("READ", 1, 200));
        assert_eq!(grown[0].rdma.unwrap().pulled_up, 6);
        assert!(since(later, earlier.clone()).unwrap_err().contains("went back"));
        assert!(since(earlier, Vec::new()).unwrap_err().contains("came or went"));
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
            let _ = (parse(&text), part_of(&text, Path::new("/mnt/a")));
        }
    }
}
