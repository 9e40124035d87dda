//! Bytes moved by the ports of RDMA network cards (`/sys/class/infiniband`), for all processes.

use std::path::Path;

use forebay_base::units::grown;
use forebay_topology::System;

use serde::Serialize;

use super::seen::Seen;

const FOLDER: &str = "sys/class/infiniband";
/// Bytes per count (IBTA, PortCounters): the counters count 4-byte words.
const WORD: u64 = 4;
/// Maximum number of ports read.
pub(super) const PORTS_MAX: usize = 64;

/// Bytes moved by one port.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct PortBytes {
    /// Card and port, `mlx5_0/1`.
    pub name: String,
    /// Bytes received, headers included.
    pub received: u64,
    /// Bytes sent, headers included.
    pub sent: u64,
}

/// Lists the ports of all cards.
pub(super) fn ports(system: &System) -> Vec<String> {
    let cards = system.list(Path::new(FOLDER)).unwrap_or_default();
    let ports = cards.iter().flat_map(|card| {
        let ports = system.list(&Path::new(FOLDER).join(card).join("ports")).unwrap_or_default();
        ports.into_iter().map(move |port| format!("{card}/{port}"))
    });
    ports.take(PORTS_MAX).collect()
}

/// The counts of the ports so far, in words.
pub(super) fn look(system: &System, ports: &[String]) -> Seen<Vec<PortBytes>> {
    if ports.is_empty() {
        return Seen::Nothing("no RDMA network card".into());
    }
    ports
        .iter()
        .map(|name| {
            let (card, port) = name.split_once('/').unwrap_or((name, ""));
            let folder = format!("{FOLDER}/{card}/ports/{port}/counters");
            let count = |file: &str| count(system, &format!("{folder}/{file}"));
            count("port_rcv_data").and_then(|received| {
                let bytes = |sent| PortBytes { name: name.clone(), received, sent };
                count("port_xmit_data").map(bytes)
            })
        })
        .collect()
}

fn count(system: &System, path: &str) -> Seen<u64> {
    let shown = format!("/{path}");
    let none = || Seen::missing(format!("there is no `{shown}`"), "look at its driver");
    let text = Seen::read(&shown, system.text(Path::new(path)), none);
    text.and_then(|text| match text.parse::<u64>() {
        // Old cards stop at this value instead of wrapping.
        Ok(count) if count == u64::from(u32::MAX) => {
            let why = format!("`{shown}` is at its end and counts no more");
            Seen::missing(why, "reset it: `perfquery -R` as root")
        }
        count => Seen::of(count.ok(), format!("`{shown}` holds no number"), "look at its driver"),
    })
}

/// The bytes that the ports moved between two readings.
pub(super) fn since(earlier: &[PortBytes], later: &[PortBytes]) -> Result<Vec<PortBytes>, String> {
    let pairs = earlier.iter().zip(later);
    let moved = pairs.map(|(earlier, later)| {
        let what = format!("the counter of `{}`", later.name);
        let bytes =
            |earlier, later| grown(&what, earlier, later).map(|words| words.saturating_mul(WORD));
        Ok(PortBytes {
            name: later.name.clone(),
            received: bytes(earlier.received, later.received)?,
            sent: bytes(earlier.sent, later.sent)?,
        })
    });
    moved.collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

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
        assert_eq!(found, ["mlx5_0/1", "mlx5_0/2"]);
        let earlier = look(&system, &found).value().cloned().unwrap();
        put(root.path(), "1", "110\n", "201\n");
        let later = look(&system, &found).value().cloned().unwrap();
        let moved = since(&earlier, &later).unwrap();
        assert_eq!((moved[0].received, moved[0].sent, moved[1].received), (40, 4, 0));
        assert!(since(&later, &earlier).unwrap_err().contains("went back"));
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
