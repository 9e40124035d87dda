//! Bytes that block devices have moved, from their own counters (`/sys/dev/block/*/stat`).
//!
//! The device under a file system counts the file system's requests. The drives at the bottom count
//! the I/O that arrives there: more with mirrors and parity, and nothing if a loop device's file is
//! in memory. All of these count for all processes.

use std::path::Path;

use forebay_base::counts::Counts;
use forebay_topology::{Layer, StorageMap, System, is_number};

use serde::Serialize;

use super::seen::Seen;

/// Bytes of a sector in these counters, whatever the device's block size
/// (Documentation/block/stat.rst).
const SECTOR: u64 = 512;
/// Maximum number of devices read at an edge; 128 devices of a larger volume are evidence enough.
pub(super) const DEVICES_MAX: usize = 128;

/// A block device whose counters are read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Device {
    number: String,
    /// Its roles, without counts.
    roles: DriveBytes,
}

/// Bytes moved by a block device.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct DriveBytes {
    /// The kernel's name for it.
    pub name: String,
    /// Whether the file system is on it. If so, its bytes are those that the file system requested.
    pub front: bool,
    /// Whether it is a drive, with no device below.
    pub drive: bool,
    /// Bytes read, by all processes.
    pub read: u64,
    /// Bytes written, by all processes.
    pub written: u64,
}

/// Collects the block devices of a file: those that its file system is on, and the drives.
pub(super) fn devices(map: &StorageMap, into: &mut Vec<Device>) {
    front(&map.root, into);
    for drive in &map.drives {
        let Some(number) = drive.device else { continue };
        let number = format!("{}:{}", rustix::fs::major(number), rustix::fs::minor(number));
        add(into, Device::new(&drive.name, &number, [false, true]));
    }
}

/// The walk stops at the first block device: it counts the requests of the file system.
fn front(layer: &Layer, into: &mut Vec<Device>) {
    let number = layer.text("device").filter(|_| layer.kind.is_block());
    if let Some(number) = number.filter(|number| is_device_number(number)) {
        return add(into, Device::new(&layer.name, number, [true, false]));
    }
    layer.children.iter().for_each(|child| front(child, into));
}

fn add(into: &mut Vec<Device>, device: Device) {
    if let Some(known) = into.iter_mut().find(|known| known.number == device.number) {
        known.roles.front |= device.roles.front;
        known.roles.drive |= device.roles.drive;
    } else if into.len() < DEVICES_MAX {
        into.push(device);
    }
}

/// Whether `text` is a device number, and thus safe in a path.
fn is_device_number(text: &str) -> bool {
    text.split_once(':').is_some_and(|(major, minor)| is_number(major) && is_number(minor))
}

impl Device {
    fn new(name: &str, number: &str, [front, drive]: [bool; 2]) -> Self {
        let roles = DriveBytes { name: name.into(), front, drive, read: 0, written: 0 };
        Self { number: number.into(), roles }
    }

    /// Whether a file system is on it, or the file is the device itself.
    pub(super) fn is_front(&self) -> bool {
        self.roles.front
    }

    /// The bytes moved so far.
    pub(super) fn read(&self, system: &System) -> Seen<DriveBytes> {
        let path = format!("sys/dev/block/{}/stat", self.number);
        Seen::read(&path, system.table(&path), || self.missing()).and_then(|text| {
            let remedy = "read `/proc/diskstats` to see what this kernel counts";
            let bytes = parse(&text);
            let bytes =
                bytes.map(|[read, written]| DriveBytes { read, written, ..self.roles.clone() });
            Seen::of(bytes, format!("`/{path}` holds no counters"), remedy)
        })
    }

    /// Whether the device's counters are switched off. Read once, because this rarely changes
    /// within a span.
    pub(super) fn counts_nothing(&self, system: &System) -> bool {
        let folder = Path::new("sys/dev/block").join(&self.number);
        let flag = |file: &str| system.text(folder.join(file)).ok();
        // A partition uses the queue of its drive.
        let flag = flag("queue/iostats").or_else(|| flag("../queue/iostats"));
        flag.as_deref() == Some("0")
    }

    pub(super) fn silent(&self) -> Seen<DriveBytes> {
        let name = &self.roles.name;
        Seen::missing(
            format!("`{name}` counts nothing: its `queue/iostats` is 0"),
            format!("`echo 1 > /sys/block/{name}/queue/iostats` as root"),
        )
    }

    fn missing<T>(&self) -> Seen<T> {
        let why =
            format!("there is no block device `{}` ({}) in `/sys`", self.roles.name, self.number);
        Seen::missing(why, "mount `/sys`, and repeat while the drive is attached")
    }

    /// The bytes it moved between two readings.
    pub(super) fn between(
        &self,
        earlier: Seen<DriveBytes>,
        later: Seen<DriveBytes>,
    ) -> Seen<DriveBytes> {
        // Mounting alone causes reads, so 0 means no counting. On older kernels the head of a
        // multipath namespace does not count.
        if later.value().is_some_and(|bytes| (bytes.read, bytes.written) == (0, 0)) {
            let why = format!("`{}` has counted nothing since it is there", self.roles.name);
            return Seen::missing(why, "a newer kernel counts for drives with several paths");
        }
        later.since(earlier, |earlier, later| later.since(earlier))
    }
}

impl Counts for DriveBytes {
    fn counts(&mut self) -> Vec<&mut u64> {
        vec![&mut self.read, &mut self.written]
    }

    fn name(&self) -> String {
        format!("the counter of `{}`", self.name)
    }
}

/// Bytes read and written: the third and seventh number of a line of counters, in sectors.
fn parse(line: &str) -> Option<[u64; 2]> {
    let mut numbers = line.split_ascii_whitespace().map(|number| number.parse::<u64>().ok());
    let sectors = [numbers.nth(2)??, numbers.nth(3)??];
    Some(sectors.map(|sectors| sectors.saturating_mul(SECTOR)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::fs;

    const LINE: &str = "  100 2 2048 30 40 5 4096 70 0 80 90 0 0 0 0 6 7\n";

    fn device() -> Device {
        Device::new("d", "8:1", [true, false])
    }

    fn system(line: &str) -> (tempfile::TempDir, System) {
        let root = tempfile::tempdir().unwrap();
        let folder = root.path().join("sys/dev/block/8:1");
        fs::create_dir_all(folder.join("queue")).unwrap();
        fs::write(folder.join("stat"), line).unwrap();
        let system = System::at(root.path());
        (root, system)
    }

    #[test]
    fn sectors_are_read_and_counted_from_edge_to_edge() {
        let (root, system) = system(LINE);
        let device = device();
        let earlier = device.read(&system);
        let bytes = earlier.value().unwrap();
        assert_eq!((bytes.read, bytes.written), (2048 * SECTOR, 4096 * SECTOR));
        let more = LINE.replace("2048", "2050").replace("4096", "4099");
        fs::write(root.path().join("sys/dev/block/8:1/stat"), more).unwrap();
        let between = device.between(earlier.clone(), device.read(&system));
        let moved = between.value().unwrap();
        assert_eq!((moved.read, moved.written, moved.front), (1024, 1536, true));
        let back = device.between(device.read(&system), earlier.clone()).absence().unwrap();
        assert!(back.contains("went back"), "{back}");
        let zero = earlier.map(|bytes| DriveBytes { read: 0, written: 0, ..bytes });
        let none = device.between(zero.clone(), zero).absence().unwrap();
        assert!(none.contains("has counted nothing since it is there"), "{none}");
    }

    #[test]
    fn a_device_without_counters_has_a_reason() {
        let (root, system) = system("nonsense\n");
        let device = device();
        let text = device.read(&system).absence().unwrap();
        assert!(text.contains("holds no counters"), "{text}");
        assert!(!device.counts_nothing(&system));
        fs::write(root.path().join("sys/dev/block/8:1/queue/iostats"), "0\n").unwrap();
        assert!(device.counts_nothing(&system));
        assert!(device.silent().absence().unwrap().contains("echo 1 >"));
        fs::remove_dir_all(root.path().join("sys/dev/block/8:1")).unwrap();
        let gone = device.read(&system).absence().unwrap();
        assert!(gone.contains("no block device `d` (8:1)"), "{gone}");
    }

    #[test]
    fn a_device_is_read_once_in_both_roles() {
        let mut all = vec![device()];
        add(&mut all, Device::new("d", "8:1", [false, true]));
        assert_eq!(all, [Device::new("d", "8:1", [true, true])]);
        for number in 0..1000 {
            add(&mut all, Device { number: format!("9:{number}"), ..device() });
        }
        assert_eq!(all.len(), DEVICES_MAX);
        for bad in ["", "8", "8:", "../x:1", "8:1/..", ":1"] {
            assert!(!is_device_number(bad), "{bad}");
        }
    }

    proptest! {
        #[test]
        fn no_line_is_too_strange(line in "[0-9 \\t\\n.x-]{0,120}", text in ".{0,60}") {
            let _ = (parse(&line), parse(&text));
        }
    }
}
