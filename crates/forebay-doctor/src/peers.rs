//! Checks nvidia-fs's own distance between a GPU and the drives or network cards.

use forebay_topology::{PciDevice, System, is_address};

use super::facts::{Facts, number};
use super::report::Check;
use super::topics::*;

/// From this distance on, two devices have no common root port; twice this distance means different
/// sockets (`BASE_PCI_DISTANCE_CROSSRP`).
const ACROSS: u64 = 127;
/// The distance reported for devices without a known place.
const NOWHERE: u64 = 0xffff;

/// Checks the distance between the GPU and the drives; for remote storage, the network cards.
pub(super) fn check<'a>(
    facts: &Facts,
    drives: impl Iterator<Item = &'a PciDevice>,
) -> Option<Check> {
    let [rows, went] = ["peer_distance", "peer_affinity"].map(|name| table(&facts.system, name));
    let all = distances(&rows.unwrap_or_default());
    let went = affinity(&went.unwrap_or_default());
    facts.driver.nvidia_fs.as_ref()?;
    let gpu = facts.gpu.as_ref().ok()?.pci.address.as_str();
    let drives: Vec<&str> = drives.map(|pci| pci.address.as_str()).collect();
    let is_ours = |row: &&PeerRow| match facts.storage.is_remote() {
        true => row.kind == "network",
        false => drives.contains(&row.peer.as_str()),
    };
    let rows = all.iter().filter(|row| row.gpu == gpu && row.distance != NOWHERE);
    // Of several cards the nearest is used; of several drives all are, so the farthest counts.
    let rows = rows.filter(is_ours);
    let row = match facts.storage.is_remote() {
        true => rows.min_by_key(|row| row.distance),
        false => rows.max_by_key(|row| row.distance),
    };
    let Some(row) = row else {
        // A version that does not report distances is no problem.
        let is_known = all.iter().any(|row| row.gpu == gpu);
        let seen = "/proc/driver/nvidia-fs/peer_distance has no row for this path";
        return is_known
            .then(|| NVIDIA_FS_PEERS.unknown(seen).step("`distance` shows the path in `/sys`"));
    };
    let mut seen = format!("{}: {}", row.peer, words(row.distance));
    let went = went.iter().find(|(address, ..)| address == gpu);
    if let Some((_, below, past)) = went
        && below + past > 0
    {
        seen += &format!("; so far {past} of {} requests went past one", below + past);
    } else if row.moved > 0 {
        seen += &format!("; {} requests so far", row.moved);
    }
    Some(match row.distance >= ACROSS {
        true => NVIDIA_FS_PEERS
            .warning(seen)
            .step("use a drive or card below the GPU's own switch (`forebay doctor --tree`)"),
        false => NVIDIA_FS_PEERS.ok(seen),
    })
}

fn table(system: &System, name: &str) -> Option<String> {
    system.table(format!("proc/driver/nvidia-fs/{name}")).ok()
}

/// The bridges with any ACS feature on; `None` if nvidia-fs is not loaded.
pub(super) fn bridges(system: &System) -> Option<Vec<String>> {
    Some(addresses(&table(system, "bridges")?))
}

const ROWS_MAX: usize = 4096;

/// A row of nvidia-fs's `peer_distance`. The formats of its tables are those of its source
/// (`nvfs-proc.c`, `nvfs-pci.c`). Malformed lines are skipped, because the tables grow with its
/// versions.
#[derive(Debug, Clone, PartialEq, Eq)]
struct PeerRow {
    gpu: String,
    peer: String,
    distance: u64,
    /// Number of requests between the two.
    moved: u64,
    /// The kind of peer: `nvme` or `network`.
    kind: String,
}

/// Parses a PCI address as the kernel writes it: `0000:40:01.0`.
fn address(word: &str) -> Option<String> {
    let word = word.trim_end_matches(':');
    is_address(word).then(|| word.to_ascii_lowercase())
}

/// Parses an address per line.
fn addresses(text: &str) -> Vec<String> {
    let lines = text.lines().take(ROWS_MAX);
    lines.filter_map(|line| address(line.trim())).collect()
}

/// Parses rows of: GPU, peer, rank, distance, width, generation, node, requests, kind.
fn distances(text: &str) -> Vec<PeerRow> {
    let rows = text.lines().take(ROWS_MAX).filter_map(|line| {
        let mut words = line.split_whitespace();
        let (gpu, peer) = (address(words.next()?)?, address(words.next()?)?);
        let rest: Vec<&str> = words.collect();
        let [_, distance, .., moved, kind] = rest.as_slice() else { return None };
        let (distance, moved) = (number(distance)?, number(moved)?);
        let kind = kind.chars().filter(char::is_ascii_alphanumeric).take(16).collect();
        Some(PeerRow { gpu, peer, distance, moved, kind })
    });
    rows.collect()
}

/// Parses rows of `GPU :0000:17:00.0 :0 0 … 0`: requests by distance; the last counts those
/// across root ports.
fn affinity(text: &str) -> Vec<(String, u64, u64)> {
    let rows = text.lines().take(ROWS_MAX).filter_map(|line| {
        let rest = line.strip_prefix("GPU")?.trim_start().strip_prefix(':')?;
        let at = rest.find('.')? + 2;
        let gpu = address(rest.get(..at)?.trim())?;
        let counts = rest.get(at..)?.trim_start().strip_prefix(':')?;
        let counts: Option<Vec<u64>> = counts.split_whitespace().map(number).collect();
        let counts = counts?;
        let (past, below) = counts.split_last()?;
        let below = below.iter().fold(0_u64, |sum, count| sum.saturating_add(*count));
        Some((gpu, below.min(u64::MAX / 2), (*past).min(u64::MAX / 2)))
    });
    rows.collect()
}

fn words(distance: u64) -> String {
    match distance {
        ACROSS.. if distance >= 2 * ACROSS => "past root ports, on different nodes".to_owned(),
        ACROSS.. => "past a root port".to_owned(),
        near => format!("{near} below a common root port"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn distances_are_described() {
        assert_eq!(words(3), "3 below a common root port");
        assert_eq!(words(131), "past a root port");
        assert_eq!(words(258), "past root ports, on different nodes");
    }

    proptest! {
        #[test]
        fn any_distance_is_described(distance in any::<u64>()) {
            prop_assert!(!words(distance).is_empty());
        }
    }

    #[test]
    fn tables_are_read_as_the_module_writes_them() {
        assert_eq!(
            addresses("0000:40:01.0\n0000:C0:01.1\nx\n\n"),
            ["0000:40:01.0", "0000:c0:01.1"]
        );
        let table = "gpu\t\tpeer\t\tpeerrank\tp2pdist\tlink\tgen\tnuma\tnp2p\tclass\n\
                 0000:41:00.0 \t0000:44:00.0 \t0x0003005a\t0x0003\t0x04\t0x05\t0x00\t12\tnvme\n\
                 0000:41:00.0 \tdamaged\n";
        let found = distances(table);
        assert_eq!(found.len(), 1);
        let row = &found[0];
        assert_eq!((row.gpu.as_str(), row.peer.as_str()), ("0000:41:00.0", "0000:44:00.0"));
        assert_eq!((row.distance, row.moved, row.kind.as_str()), (3, 12, "nvme"));
        let table = "GPU P2P DMA distribution based on pci-distance\n\n\
                 (last column indicates p2p via root complex)\n\
                 GPU :0000:ca:00.0 :0 7 5 0 3\nGPU :0000:65:00.0:0 0\nGPU :x :1\nGPU\n";
        let rows = [("0000:ca:00.0".to_owned(), 12, 3), ("0000:65:00.0".to_owned(), 0, 0)];
        assert_eq!(affinity(table), rows);
    }

    proptest! {
        #[test]
        fn no_table_is_too_strange(
            text in "(?s).{0,200}",
            rows in proptest::collection::vec("(GPU ?:)?[0-9a-f:.x \t-]{0,60}", 0..20),
        ) {
            for text in [text, rows.join("\n")] {
                for address in addresses(&text) {
                    prop_assert!(address.is_ascii() && address.len() <= 16);
                }
                for row in distances(&text) {
                    prop_assert!(row.kind.len() <= 16);
                }
                for (_, below, past) in affinity(&text) {
                    prop_assert!(below.checked_add(past).is_some());
                }
            }
        }
    }
}
