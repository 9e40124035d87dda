//! Bytes moved by the ports of RDMA network cards (`/sys/class/infiniband`), for all processes.

use forebay_base::counts::Counts;
use forebay_topology::{RdmaPort, System};

use serde::Serialize;

use super::seen::Seen;

/// Bytes per count (IBTA, PortCounters): the counters count 4-byte words.
const WORD: u64 = 4;

/// Bytes moved by a port.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct PortBytes {
    /// Card and port, `mlx5_0/1`.
    pub name: String,
    /// Bytes received, headers included.
    pub received: u64,
    /// Bytes sent, headers included.
    pub sent: u64,
}

/// The bytes of the ports so far.
pub(super) fn look(system: &System, ports: &[RdmaPort]) -> Seen<Vec<PortBytes>> {
    if ports.is_empty() {
        return Seen::Nothing("no RDMA network card".into());
    }
    let look = |port: &RdmaPort| {
        let count = |file: &str| count(system, &format!("{}/counters/{file}", port.folder));
        count("port_rcv_data").and_then(|received| {
            let name = port.name.clone();
            count("port_xmit_data").map(|sent| PortBytes { name, received, sent })
        })
    };
    ports.iter().map(look).collect()
}

/// A counter in bytes.
fn count(system: &System, path: &str) -> Seen<u64> {
    let none = || Seen::missing(format!("there is no `/{path}`"), "look at its driver");
    Seen::read(path, system.text(path), none).and_then(|text| match text.parse::<u64>() {
        // Old cards stop at this value instead of wrapping.
        Ok(count) if count == u64::from(u32::MAX) => {
            let why = format!("`/{path}` is at its end and counts no more");
            Seen::missing(why, "reset it: `perfquery -R` as root")
        }
        Ok(words) => Seen::Value(words.saturating_mul(WORD)),
        Err(_) => Seen::missing(format!("`/{path}` holds no number"), "look at its driver"),
    })
}

impl Counts for PortBytes {
    fn counts(&mut self) -> Vec<&mut u64> {
        vec![&mut self.received, &mut self.sent]
    }

    fn name(&self) -> String {
        format!("the counter of `{}`", self.name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use forebay_base::counts::all_since;
    use std::fs;
    use std::path::Path;

    const FOLDER: &str = "sys/class/infiniband";

    fn ports(system: &System) -> Vec<RdmaPort> {
        system.rdma_ports().unwrap_or_default()
    }

    fn put(root: &Path, port: &str, received: &str, sent: &str) {
        let folder = root.join(FOLDER).join("mlx5_0/ports").join(port).join("counters");
        fs::create_dir_all(&folder).unwrap();
        fs::write(folder.join("port_rcv_data"), received).unwrap();
        fs::write(folder.join("port_xmit_data"), sent).unwrap();
    }

    #[test]
    fn words_become_bytes_from_edge_to_edge() {
        let root = tempfile::tempdir().unwrap();
        let system = System::at(root.path());
        assert_eq!(look(&system, &ports(&system)), Seen::Nothing("no RDMA network card".into()));
        put(root.path(), "1", "100\n", "200\n");
        put(root.path(), "2", "5\n", "6\n");
        let found = ports(&system);
        let names: Vec<&str> = found.iter().map(|port| port.name.as_str()).collect();
        assert_eq!(names, ["mlx5_0/1", "mlx5_0/2"]);
        let earlier = look(&system, &found).value().cloned().unwrap();
        put(root.path(), "1", "110\n", "201\n");
        let later = look(&system, &found).value().cloned().unwrap();
        let moved = all_since(later.clone(), earlier.clone()).unwrap();
        assert_eq!((moved[0].received, moved[0].sent, moved[1].received), (40, 4, 0));
        assert!(all_since(earlier, later).unwrap_err().contains("went back"));
    }

    #[test]
    fn a_counter_at_its_end_or_without_a_number_is_missing() {
        let root = tempfile::tempdir().unwrap();
        let system = System::at(root.path());
        for (text, reason) in
            [("4294967295", "counts no more"), ("many", "no number"), ("", "no readable text")]
        {
            put(root.path(), "1", text, "1");
            let absence = look(&system, &ports(&system)).absence().unwrap();
            assert!(absence.contains(reason), "{absence}");
        }
        let found = ports(&system);
        fs::remove_dir_all(root.path().join(FOLDER)).unwrap();
        assert!(look(&system, &found).absence().unwrap().contains("there is no"));
    }
}
