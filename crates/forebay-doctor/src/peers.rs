//! Checks nvidia-fs's own distance between a GPU and the drives or network cards.

use forebay_topology::PciDevice;

use super::facts::{Facts, PeerRow, Peers};
use super::report::Check;
use super::topics::*;

/// From this distance on, two devices have no common root port; twice this distance means different
/// sockets (`BASE_PCI_DISTANCE_CROSSRP`).
const ACROSS: u64 = 127;
/// The distance reported for devices without a known place.
const NOWHERE: u64 = 0xffff;

impl Peers {
    /// Checks the distance between the GPU and the drives; for remote storage, the network cards.
    pub(super) fn check<'a>(
        &self,
        facts: &Facts,
        drives: impl Iterator<Item = &'a PciDevice>,
    ) -> Option<Check> {
        facts.driver.nvidia_fs.as_ref()?;
        let gpu = facts.gpu.as_ref().ok()?.pci.address.as_str();
        let drives: Vec<&str> = drives.map(|pci| pci.address.as_str()).collect();
        let is_ours = |row: &&PeerRow| match facts.storage.is_remote() {
            true => row.kind == "network",
            false => drives.contains(&row.peer.as_str()),
        };
        let rows = self.distances.iter().filter(|row| row.gpu == gpu && row.distance != NOWHERE);
        // Of several cards the nearest is used; of several drives all are, so the farthest counts.
        let rows = rows.filter(is_ours);
        let row = match facts.storage.is_remote() {
            true => rows.min_by_key(|row| row.distance),
            false => rows.max_by_key(|row| row.distance),
        };
        let Some(row) = row else {
            // A version that does not report distances is no problem.
            let is_known = self.distances.iter().any(|row| row.gpu == gpu);
            let seen = "/proc/driver/nvidia-fs/peer_distance has no row for this path";
            return is_known.then(|| {
                NVIDIA_FS_PEERS.unknown(seen).step("`distance` shows the path in `/sys`")
            });
        };
        let mut seen = format!("{}: {}", row.peer, words(row.distance));
        let went = self.affinity.iter().find(|(address, ..)| address == gpu);
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
}
