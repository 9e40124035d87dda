//! The virtual machine of `cargo xtask lab`, recorded twice (Linux 6.1): whole, and after drives
//! were pulled and paths closed. What `linux-6.1` has is not looked at again.
//!
//! The right answers are those of `xtask/lab/guest`, which built and broke it.

use std::path::Path;
use std::process::Command;

use forebay_topology::{DriveKind, LayerKind, Layout, Resolver, StorageMap, System};
use tempfile::TempDir;

use crate::lab::{Offer, or_skip};
use crate::{reason, step};

/// A recorded machine, unpacked.
struct Machine {
    resolver: Resolver,
    _folder: TempDir,
}

impl Machine {
    fn open(name: &str, bytes: &[u8]) -> Offer<Self> {
        let folder = crate::scratch();
        let archive = folder.path().join("record.tar.gz");
        std::fs::write(&archive, bytes).expect("a small file");
        let mut tar = Command::new("tar");
        tar.arg("-xzf").arg(&archive).arg("-C").arg(folder.path());
        let unpacked = tar.output().map_err(|e| format!("recorded machine: no `tar`: {e}"))?;
        assert!(unpacked.status.success(), "{}", String::from_utf8_lossy(&unpacked.stderr));
        let system = System::fixture(&folder.path().join(name)).expect("a recorded system");
        Ok(Self { resolver: Resolver::new(system), _folder: folder })
    }

    fn whole() -> Offer<Self> {
        Self::open("record-whole", include_bytes!("lab-whole.tar.gz"))
    }

    fn broken() -> Offer<Self> {
        Self::open("record-broken", include_bytes!("lab-broken.tar.gz"))
    }

    fn map(&self, path: &str) -> StorageMap {
        self.resolver.resolve(Path::new(path))
    }
}

/// The serial numbers of the drives, sorted.
fn serials(map: &StorageMap) -> Vec<&str> {
    let mut serials: Vec<&str> =
        map.drives.iter().filter_map(|drive| drive.serial.as_deref()).collect();
    serials.sort_unstable();
    serials
}

/// How many of a drive's paths are live, and how many there are.
fn live(map: &StorageMap) -> (usize, usize) {
    let paths = &map.drives[0].paths;
    (paths.iter().filter(|path| path.live).count(), paths.len())
}

#[test]
fn every_volume_leads_to_the_right_drives() {
    let Some(machine) = or_skip(Machine::whole()) else { return };
    let parity = ["PARITYA", "PARITYB", "PARITYC"];
    let ten = ["MIRRORA", "PARITYA", "PARITYB", "PARITYC"];
    let cases: [(&str, &[&str], Layout); 10] = [
        ("/mnt/parity/file", &parity, Layout::Parity),
        ("/mnt/ten/file", &ten, Layout::StripedMirrors),
        ("/mnt/row/file", &["ROWA", "ROWB"], Layout::Concatenated),
        ("/mnt/thin/file", &["LVMB"], Layout::Single),
        ("/mnt/past/file", &["LVMA", "LVMB"], Layout::Unknown),
        ("/mnt/origin/file", &["LVMA"], Layout::Single),
        ("/mnt/members/file", &["BTRFSA", "BTRFSB", "BTRFSC"], Layout::Striped),
        ("/mnt/multipath/file", &["SCSI"], Layout::Single),
        ("/mnt/fabric/file", &["REMOTE"], Layout::Single),
        ("/mnt/odd name\\040é/odd file", &["LVMA"], Layout::Single),
    ];
    for (path, expected, layout) in cases {
        let map = machine.map(path);
        assert_eq!((serials(&map).as_slice(), map.queue.layout), (expected, layout), "{path}");
    }
    for path in ["/mnt/multipath/file", "/mnt/fabric/file", "/mnt/paths/file"] {
        assert_eq!(live(&machine.map(path)), (2, 2), "{path}");
    }
}

#[test]
fn the_places_of_a_row_of_members_are_reported() {
    let Some(machine) = or_skip(Machine::whole()) else { return };
    let path = Path::new("/mnt/row/file");
    let map = machine.map("/mnt/row/file");
    // The file was compared with these places of the drives when they were recorded.
    let extents = machine.resolver.extents(path, 64).expect("ext4 reports them");
    let pieces: Vec<_> = extents
        .iter()
        .flat_map(|extent| map.locate(extent).expect("the file system reports it"))
        .collect();
    assert_eq!(pieces.iter().map(|piece| piece.len).sum::<u64>(), 64 << 20);
    assert!(pieces.iter().all(|piece| map.drives.iter().any(|drive| drive.id == piece.drive)));
}

#[test]
fn arrays_that_lost_a_member_have_the_others() {
    let Some(machine) = or_skip(Machine::broken()) else { return };
    let cases: [(&str, &[&str]); 3] = [
        ("/mnt/mirror/file", &["MIRRORA"]),
        ("/mnt/parity/file", &["PARITYA", "PARITYB"]),
        ("/mnt/ten/file", &["MIRRORA", "PARITYA", "PARITYB"]),
    ];
    for (path, expected) in cases {
        let map = machine.map(path);
        assert_eq!(serials(&map), expected, "{path}");
        assert!(step(&map, LayerKind::Md).flag("degraded"), "{path}");
    }
}

#[test]
fn closed_paths_are_not_live() {
    let Some(machine) = or_skip(Machine::broken()) else { return };
    assert_eq!(live(&machine.map("/mnt/multipath/file")), (1, 2));
    assert_eq!(live(&machine.map("/mnt/fabric/file")), (1, 2));
    // Of a controller that was taken away nothing is left.
    let map = machine.map("/mnt/paths/file");
    assert_eq!((live(&map), map.drives[0].paths[0].numa_node), ((1, 1), Some(1)));
}

#[test]
fn a_drive_that_was_pulled_is_unknown_with_the_reason() {
    let Some(machine) = or_skip(Machine::broken()) else { return };
    // Its file system answers for no file any more, so only the table of mounts is left.
    let map = machine.map("/mnt/pulled/file");
    assert!(!map.exists && reason(&map.root, "exists").contains("os error 5"));
    assert_eq!(step(&map, LayerKind::Mount).name, "/mnt/pulled");
    assert_eq!((map.drives.len(), map.drives[0].kind), (1, DriveKind::Unknown));
    assert!(reason(step(&map, LayerKind::Unknown), "device").contains("no such file"));
}
