//! NFS mounts: version, transport, connections and servers, from the options of the mount and
//! from `/proc/self/mountstats` (`nfsstat(8)`, `nfs(5)`).

use std::collections::BTreeSet;
use std::path::Path;

use super::map::Layer;
use super::mount::Mount;
use super::system::Absent;
use super::text::clean;

/// Mount options that become facts: the option's name and the fact's name.
const TEXTS: [(&str, &str); 6] = [
    ("vers", "version"),
    ("proto", "protocol"),
    ("addr", "server"),
    ("mountaddr", "mount_server"),
    ("sec", "security"),
    ("remoteports", "servers"),
];
const NUMBERS: [(&str, &str); 5] = [
    ("nconnect", "connections_wanted"),
    ("max_connect", "servers_max"),
    ("port", "port"),
    ("rsize", "read_bytes_max"),
    ("wsize", "write_bytes_max"),
];

/// Adds the facts about an NFS mount.
pub(super) fn describe(layer: &mut Layer, mount: &Mount, stats: Result<Vec<u8>, Absent>) {
    for (option, fact) in TEXTS {
        layer.say_if(fact, mount.option(option).map(clean));
    }
    for (option, fact) in NUMBERS {
        layer.say_if(fact, mount.option(option).and_then(|value| value.parse::<u64>().ok()));
    }
    layer.say("rdma", mount.option("proto").is_some_and(|proto| proto.starts_with("rdma")));
    let stats = match stats {
        Ok(stats) => stats,
        Err(absent) => {
            layer.unknown("connections", format!("`/proc/self/mountstats`: {absent}"));
            return;
        }
    };
    let text = String::from_utf8_lossy(&stats);
    let Some(entries) = nfs_entries(&text, &mount.point) else {
        layer.unknown("connections", "`/proc/self/mountstats` does not have this mount");
        return;
    };
    let of = |name: &'static str| {
        let own = entries.iter().filter(move |(own, _)| *own == name);
        own.map(|(_, words)| words.split_whitespace())
    };
    layer.say("connections", of("xprt").count() as u64);
    let kinds: BTreeSet<String> =
        of("xprt").filter_map(|mut words| words.next().map(clean)).collect();
    layer.say("carried_by", kinds.into_iter().collect::<Vec<_>>());
    if let Some(bytes) = of("bytes").next() {
        // The fields: bytes through the page cache, bytes by O_DIRECT, bytes from and to the
        // server.
        let counts = bytes.map_while(|n| n.parse::<u64>().ok());
        let names = [
            "cached_read_bytes",
            "cached_written_bytes",
            "direct_read_bytes",
            "direct_written_bytes",
            "server_read_bytes",
            "server_written_bytes",
        ];
        for (name, count) in names.into_iter().zip(counts) {
            layer.say(name, count);
        }
    }
}

/// The lines of `mountstats` about the mount at `point`, as names and the words after the colon.
pub fn nfs_entries<'a>(stats: &'a str, point: &Path) -> Option<Vec<(&'a str, &'a str)>> {
    let lines = part_of(stats, point)?.lines();
    Some(lines.filter_map(|line| line.trim().split_once(':')).collect())
}

/// The part of `mountstats` about the mount at `point`; the last if there are several.
fn part_of<'a>(stats: &'a str, point: &Path) -> Option<&'a str> {
    let wanted = format!(" mounted on {} with fstype nfs", escaped(point));
    let mut found = None;
    let mut rest = stats;
    while let Some(at) = rest.find(&wanted) {
        let part = &rest[at + 1..];
        let end = part.find("\ndevice ").unwrap_or(part.len());
        found = Some(&part[..end]);
        rest = &part[end..];
    }
    found
}

/// Escapes a path as the kernel's tables do.
fn escaped(path: &Path) -> String {
    let text = path.to_string_lossy().replace('\\', "\\134").replace(' ', "\\040");
    text.replace('\t', "\\011").replace('\n', "\\012")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::map::LayerKind;

    const STATS: &str = "device proc mounted on /proc with fstype proc
device s:/e mounted on /mnt/a\\040b with fstype nfs4 statvers=1.1
\topts:\trw,vers=4.2
\tbytes:\t1 2 3 4 5 6 7 8
\txprt:\trdma 0 0 1 0
\txprt:\trdma 0 0 1 0
\tper-op statistics
device s:/f mounted on /mnt/a\\040b/c with fstype nfs4 statvers=1.1
\txprt:\ttcp 0
";

    fn described(point: &str, options: &str) -> Layer {
        let line = format!("58 25 0:39 / {point} rw - nfs4 s:/e {options}");
        let mount = super::super::mount::find(line.as_bytes(), 58).expect("a line");
        let mut layer = Layer::new(LayerKind::Network, "s:/e");
        describe(&mut layer, &mount, Ok(STATS.as_bytes().to_vec()));
        layer
    }

    #[test]
    fn connections_are_counted_for_the_mount_itself() {
        let layer = described("/mnt/a\\040b", "rw,vers=4.2,proto=rdma,nconnect=2,addr=10.0.0.1");
        assert_eq!((layer.number("connections"), layer.flag("rdma")), (Some(2), true));
        assert_eq!(layer.number("direct_read_bytes"), Some(3));
        assert_eq!((layer.text("version"), layer.text("server")), (Some("4.2"), Some("10.0.0.1")));
        assert_eq!(layer.number("connections_wanted"), Some(2));
        let other = described("/mnt/a\\040b/c", "rw,nconnect=many");
        assert_eq!((other.number("connections"), other.flag("rdma")), (Some(1), false));
        assert_eq!(other.fact("connections_wanted"), None);
    }
}
