//! Two recorded kernels (Linux 6.1, and 6.12 with an IOMMU) with 24 paths each.
//!
//! `expected/paths.tsv` says which drives and controllers are right; it comes from how those
//! machines were put together, not from a resolver. The archives hold what the readers touch.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;

use forebay_topology::{
    Distance, Drive, DriveKind, LayerKind, Layout, Resolver, StorageMap, System, Transport, gpu_at,
    gpus,
};
use tempfile::TempDir;

use crate::lab::{Offer, or_skip};
use crate::{kinds, reason, step};

const NAMES: [&str; 2] = ["linux-6.1", "linux-6.12-iommu"];

/// A recorded machine, unpacked.
pub(crate) struct Recorded {
    pub(crate) dir: PathBuf,
    pub(crate) resolver: Resolver,
    _folder: TempDir,
}

impl Recorded {
    pub(crate) fn open(name: &str) -> Offer<Self> {
        let folder = crate::scratch();
        // Part of the test, which may run on a machine without these sources.
        let bytes: &[u8] = match name {
            "linux-6.1" => include_bytes!("linux-6.1.tar.gz"),
            _ => include_bytes!("linux-6.12-iommu.tar.gz"),
        };
        let archive = folder.path().join("record.tar.gz");
        std::fs::write(&archive, bytes).expect("a small file");
        let unpacked = Command::new("tar")
            .arg("-xzf")
            .arg(&archive)
            .arg("-C")
            .arg(folder.path())
            .output()
            .map_err(|e| format!("recorded kernels: no `tar`: {e}"))?;
        assert!(unpacked.status.success(), "{}", String::from_utf8_lossy(&unpacked.stderr));
        let dir = folder.path().join(name);
        let system = System::fixture(&dir).expect("a recorded system");
        Ok(Self { dir, resolver: Resolver::new(system), _folder: folder })
    }

    fn all() -> Vec<Self> {
        NAMES.iter().filter_map(|name| or_skip(Self::open(name))).collect()
    }

    fn map(&self, path: &str) -> StorageMap {
        self.resolver.resolve(path.as_ref())
    }
}

/// The controllers of a drive as `paths.tsv` writes them.
fn controllers(drive: &Drive) -> impl Iterator<Item = String> {
    drive.paths.iter().filter_map(|path| match &path.transport {
        Transport::Fabric { kind, address } => Some(format!("{}={kind}:{address}", path.name)),
        Transport::Pcie => {
            let address = &path.pci.as_ref()?.address;
            Some(format!("{}={address}@node{}", path.name, path.numa_node?))
        }
        _ => None,
    })
}

#[test]
fn every_path_leads_to_the_right_drives() {
    for recorded in Recorded::all() {
        let answers = std::fs::read_to_string(recorded.dir.join("expected/paths.tsv"));
        let answers = answers.expect("the right answers");
        let mut count = 0;
        for line in answers.lines().skip(1) {
            let mut fields = line.split('\t');
            let mut next = || fields.next().unwrap_or_default();
            let (path, _, serials, expected) = (next(), next(), next(), next());
            let map = recorded.map(path);
            let found: BTreeSet<&str> = map
                .drives
                .iter()
                .filter_map(|drive| match (drive.kind, drive.transport()) {
                    (DriveKind::Block, Transport::Virtio) => Some("virtio:vda"),
                    (DriveKind::Block, _) => drive.serial.as_deref(),
                    (DriveKind::Network, _) => Some("network"),
                    _ => None,
                })
                .collect();
            let wanted: BTreeSet<&str> = serials.split_whitespace().collect();
            assert_eq!(found, wanted, "{path}");
            let found: BTreeSet<String> = map.drives.iter().flat_map(controllers).collect();
            let wanted: BTreeSet<String> = expected.split_whitespace().map(str::to_owned).collect();
            assert_eq!(found, wanted, "{path}");
            assert!(map.exists, "{path}");
            count += 1;
        }
        assert_eq!(count, 24);
        assert_eq!(recorded.resolver.system().recorded_paths().len(), count);
    }
}

#[test]
fn files_on_the_same_drives_share_a_queue() {
    for recorded in Recorded::all() {
        let queue = |path: &str| recorded.map(path).queue;
        let same = [
            ["/mnt/md0/data.bin", "/mnt/bind/inner.bin"],
            ["/mnt/md0/data.bin", "/mnt/plain/to-dir/inner.bin"],
            ["/mnt/md0/data.bin", "/mnt/ovl/inner.bin"],
            ["/mnt/plain/data.bin", "/mnt/ovl/upper.bin"],
            ["/mnt/btrfs/data.bin", "/mnt/subvol/data.bin"],
        ];
        for [one, other] in same {
            assert_eq!(queue(one), queue(other), "{one} {other}");
        }
        let (on_loop, plain) = (queue("/mnt/loop/data.bin"), queue("/mnt/plain/data.bin"));
        assert_ne!(on_loop.id, plain.id, "a loop device has a request queue of its own");
        assert_eq!(on_loop.hardware, plain.hardware);
        let layouts = [
            ("/mnt/plain/data.bin", Layout::Single, 1),
            ("/mnt/md0/data.bin", Layout::Striped, 4),
            ("/mnt/lvm/data.bin", Layout::Striped, 2),
            ("/mnt/lvlinear/data.bin", Layout::Single, 1),
            ("/mnt/btrfs/data.bin", Layout::Striped, 2),
            ("/mnt/crypt/data.bin", Layout::Single, 1),
            ("/mnt/mpath/data.bin", Layout::Single, 1),
            ("/mnt/raid1/data.bin", Layout::Mirrored, 2),
            ("/mnt/raid10/data.bin", Layout::StripedMirrors, 4),
            ("/mnt/nested/data.bin", Layout::Striped, 2),
            ("/mnt/nfs/data.bin", Layout::Single, 1),
            ("/mnt/tmp/data.bin", Layout::Single, 1),
        ];
        let mut ids = BTreeSet::new();
        for (path, layout, members) in layouts {
            let queue = queue(path);
            assert_eq!((queue.layout, queue.members.len()), (layout, members), "{path}");
            assert!(ids.insert(queue.id), "{path} has the queue of another one");
        }
        // Two volumes on one drive share its queue.
        let linear = queue("/mnt/lvlinear/data.bin").members.remove(0);
        assert!(queue("/mnt/lvm/data.bin").members.contains(&linear));
        // Two namespaces are two drives to the kernel, and one piece of hardware.
        let one = recorded.map("/mnt/two1/data.bin").drives.remove(0);
        let two = recorded.map("/mnt/two2/data.bin").drives.remove(0);
        assert_ne!(one.id, two.id);
        assert_eq!(one.hardware, two.hardware);
        assert_eq!((one.logical_block_size, two.logical_block_size), (Some(512), Some(4096)));
    }
}

#[test]
fn each_step_is_kept() {
    use LayerKind as K;
    for recorded in Recorded::all() {
        let drive = [K::NvmeNamespace, K::NvmeController, K::PciDevice];
        let cases: [(&str, &[LayerKind]); 7] = [
            ("/mnt/plain/data.bin", &[K::Mount, K::FileSystem, K::Partition]),
            ("/mnt/plain/to-md0", &[K::Symlink, K::Mount, K::FileSystem, K::Md]),
            ("/mnt/crypt/data.bin", &[K::Mount, K::FileSystem, K::DeviceMapper, K::Partition]),
            ("/mnt/nested/data.bin", &[K::Mount, K::FileSystem, K::DeviceMapper, K::Md]),
            ("/mnt/raid10/data.bin", &[K::Mount, K::FileSystem, K::Md, K::Partition]),
            ("/mnt/mpath/data.bin", &[K::Mount, K::FileSystem]),
            (
                "/mnt/loop/data.bin",
                &[
                    K::Mount,
                    K::FileSystem,
                    K::Loop,
                    K::BackingFile,
                    K::Mount,
                    K::FileSystem,
                    K::Partition,
                ],
            ),
        ];
        for (path, above) in cases {
            assert_eq!(kinds(&recorded.map(path)), [above, &drive[..]].concat(), "{path}");
        }
        let map = recorded.map("/mnt/tmp/data.bin");
        assert_eq!(kinds(&map), [K::Mount, K::FileSystem, K::Memory]);
        assert_eq!(map.queue.id.as_str(), "memory");
    }
}

#[test]
fn arrays_and_volumes_say_what_they_are() {
    for recorded in Recorded::all() {
        let map = recorded.map("/mnt/md0/data.bin");
        let md = step(&map, LayerKind::Md);
        assert_eq!((md.text("level"), md.number("chunk_bytes")), (Some("raid0"), Some(524_288)));
        assert_eq!((md.number("raid_disks"), md.children.len()), (Some(4), 4));
        // In the array's own order, which is not that of the names.
        let serials: Vec<_> =
            map.drives.iter().filter_map(|drive| drive.serial.as_deref()).collect();
        assert_eq!(serials, ["RAID0A", "RAID0B", "RAID0C", "RAID0D"]);
        let map = recorded.map("/mnt/raid1/data.bin");
        assert!(!step(&map, LayerKind::Md).flag("degraded"));

        // Without the table, the limits of its queue prove that one volume is striped; nothing
        // proves that the other one is linear, and it is not reported.
        let map = recorded.map("/mnt/lvm/data.bin");
        let dm = step(&map, LayerKind::DeviceMapper);
        assert_eq!((dm.text("made_by"), dm.text("target")), (Some("LVM"), Some("striped")));
        assert_eq!((dm.number("stripes"), dm.number("chunk_bytes")), (Some(2), Some(65_536)));
        let map = recorded.map("/mnt/lvlinear/data.bin");
        let dm = step(&map, LayerKind::DeviceMapper);
        assert_eq!(reason(dm, "target"), "the table was not recorded");
        let map = recorded.map("/mnt/crypt/data.bin");
        assert_eq!(step(&map, LayerKind::DeviceMapper).text("target"), Some("crypt"));

        let map = recorded.map("/mnt/subvol/data.bin");
        let btrfs = step(&map, LayerKind::FileSystem);
        assert_eq!(
            (btrfs.text("subvolume"), btrfs.text("data_profile")),
            (Some("/sv"), Some("raid0"))
        );
        let map = recorded.map("/mnt/bind/inner.bin");
        assert_eq!(step(&map, LayerKind::Mount).text("bind_of"), Some("/dir"));
        let map = recorded.map("/mnt/loop/data.bin");
        let device = step(&map, LayerKind::Loop);
        assert_eq!(device.text("backing_file"), Some("/mnt/plain/image"));
        assert!(!device.flag("direct_io") && device.fact("direct_io").is_some());
    }
}

#[test]
fn an_overlay_names_the_layer_and_how_it_is_known() {
    for recorded in Recorded::all() {
        for (path, layer, how) in [
            ("/mnt/ovl/inner.bin", "lower", "its bytes are there"),
            ("/mnt/ovl/upper.bin", "upper", "only its files answer alike"),
        ] {
            let map = recorded.map(path);
            let overlay = step(&map, LayerKind::FileSystem);
            assert_eq!(overlay.text("layer"), Some(layer), "{path}");
            assert_eq!(overlay.text("layer_found_by"), Some(how), "{path}");
        }
    }
}

#[test]
fn two_paths_are_one_drive() {
    for recorded in Recorded::all() {
        let map = recorded.map("/mnt/mpath/data.bin");
        let [drive] = map.drives.as_slice() else { panic!("{:?}", map.drives) };
        assert_eq!(drive.paths.len(), 2);
        assert!(drive.paths.iter().all(|path| path.live && path.state.as_deref() == Some("live")));
        let nodes: BTreeSet<_> = drive.paths.iter().map(|path| path.numa_node).collect();
        assert_eq!(nodes, [Some(0), Some(1)].into());
        assert_eq!(step(&map, LayerKind::NvmeNamespace).text("path_policy"), Some("numa"));
    }
}

#[test]
fn a_network_mount_is_a_drive_of_its_own() {
    for recorded in Recorded::all() {
        let map = recorded.map("/mnt/nfs/data.bin");
        let [drive] = map.drives.as_slice() else { panic!("{:?}", map.drives) };
        assert_eq!(drive.id.as_str(), "mount:nfs4:127.0.0.1:/mnt/plain/export");
        assert!(drive.transport().is_network());
        let server = step(&map, LayerKind::Network);
        assert_eq!((server.text("version"), server.text("protocol")), (Some("4.2"), Some("tcp")));
        assert_eq!(
            (server.text("server"), server.number("connections")),
            (Some("127.0.0.1"), Some(1))
        );
        assert!(!server.flag("rdma"));
        let map = recorded.map("/mnt/nvmeof/data.bin");
        let drive = &map.drives[0];
        assert!(drive.transport().is_network() && drive.pci().is_none());
        assert_eq!(drive.id.as_str(), "nvme:lab-tcp/1");
    }
}

#[test]
fn distances_from_a_gpu_follow_the_bridges_and_the_nodes() {
    for recorded in Recorded::all() {
        let system = recorded.resolver.system();
        // Its display adapters are of another maker, so they do not count as GPUs.
        assert_eq!(gpus(system), []);
        let gpu = gpu_at(system, "0000:46:00.0").expect("a display adapter");
        assert_eq!((gpu.pci.numa_node, gpu.pci.class), (Some(0), Some(0x03_8000)));
        assert_eq!(gpu.bar1_size, Some(4096));
        assert_eq!(gpu.pci.bridges.len(), 3);
        let distance = |path: &str, serial: &str| {
            let map = recorded.map(path);
            let found = map.drives.iter().find(|drive| drive.serial.as_deref() == Some(serial));
            Distance::to_drive(&gpu.pci, found.expect(serial))
        };
        assert_eq!(distance("/mnt/md0/data.bin", "RAID0A"), Distance::SameSwitch);
        assert_eq!(distance("/mnt/md0/data.bin", "RAID0B"), Distance::SameSwitch);
        assert_eq!(distance("/mnt/md0/data.bin", "RAID0C"), Distance::AcrossSockets);
        assert_eq!(distance("/mnt/plain/data.bin", "PLAIN"), Distance::SameSocket);
        assert_eq!(distance("/mnt/crypt/data.bin", "CRYPT"), Distance::AcrossSockets);
        assert_eq!(distance("/mnt/nvmeof/data.bin", "LABTCP"), Distance::Network);
        let disk = recorded.map("/lab-root.bin").drives.remove(0);
        let Distance::Unknown(why) = Distance::to_drive(&gpu.pci, &disk) else {
            panic!("{disk:?}")
        };
        assert_eq!(why, "0000:00:01.0 has no NUMA node");
    }
}

#[test]
fn an_iommu_group_is_named_on_a_machine_with_an_iommu() {
    for (recorded, has) in Recorded::all().iter().zip([false, true]) {
        let map = recorded.map("/mnt/plain/data.bin");
        let pci = map.drives[0].pci().expect("a PCI device").clone();
        assert_eq!(pci.iommu_group.is_some(), has);
        assert_eq!((pci.vendor, pci.driver.as_deref()), (Some(0x1b36), Some("nvme")));
        assert_eq!(pci.link.unwrap().text(None), "x1 at 2.5 GT/s");
        // The port above could do more.
        let port = pci.bridges.last().expect("a root port");
        assert_eq!(port.link_max.unwrap().text(None), "x4 at 16 GT/s");
    }
}

#[test]
fn facts_that_were_not_recorded_are_unknown() {
    for recorded in Recorded::all() {
        let map = recorded.map("/mnt/md0/other.bin");
        // The place in the tree of mounts still is.
        assert_eq!(map.drives.len(), 4);
        assert_eq!(reason(&map.root, "file"), "not recorded");
        let map = recorded.resolver.resolve(Path::new("relative"));
        assert!(!map.exists);
    }
}

#[test]
fn extents_are_followed_to_the_drives_as_far_as_known() {
    for recorded in Recorded::all() {
        let places = |path: &str| {
            let extents = recorded.resolver.extents(path.as_ref(), 2).expect("extents");
            let map = recorded.map(path);
            let extent = *extents.first().expect("one");
            (extent, map.locate(&extent), map)
        };
        // A partition lies 1 MiB behind the beginning of its drive.
        let (extent, found, map) = places("/mnt/plain/data.bin");
        let [piece] = &found.expect("a place")[..] else { panic!("one piece") };
        assert_eq!((piece.offset, piece.len), (extent.physical + (1 << 20), extent.len));
        assert_eq!((&piece.drive, piece.logical), (&map.drives[0].id, 0));
        // RAID-0 in pieces of 512 KiB: 64 MiB from behind the first 96 KiB, on each in turn.
        let (extent, found, map) = places("/mnt/md0/data.bin");
        let pieces = found.expect("places");
        assert_eq!(pieces.len(), 129);
        assert_eq!(pieces.iter().map(|piece| piece.len).sum::<u64>(), extent.len);
        let start = 4096 * 512;
        assert_eq!((pieces[0].offset, pieces[0].len), (start + 98_304, 524_288 - 98_304));
        for (index, piece) in pieces.iter().enumerate() {
            assert_eq!(piece.drive, map.drives[index % 4].id);
        }
        assert_eq!((pieces[5].offset, pieces[5].len), (start + 524_288, 524_288));
        // The overlay shows a file of that array.
        let (_, found, _) = places("/mnt/ovl/inner.bin");
        assert_eq!(found.expect("places").len(), 3);
        for (path, why) in [
            ("/mnt/lvm/data.bin", "`dm-0` does not report where its data is"),
            ("/mnt/loop/data.bin", "`loop0` does not report where its data is"),
            ("/mnt/raid1/data.bin", "`md1` does not report where its data is"),
            ("/mnt/btrfs/data.bin", "btrfs reports its own addresses, not those of its drives"),
        ] {
            assert_eq!(places(path).1.expect_err(path), why);
        }
        assert!(recorded.resolver.extents("/mnt/nfs/data.bin".as_ref(), 2).is_err());
    }
}

#[test]
fn a_recorded_table_has_a_volumes_layout() {
    for recorded in Recorded::all() {
        // Names and numbers of the two drives differ between the two kernels.
        let device = |serial: &str| {
            let map = recorded.map("/mnt/lvm/data.bin");
            let found = map.drives.iter().find(|drive| drive.serial.as_deref() == Some(serial));
            let number = found.and_then(|drive| drive.device).expect("a block device");
            format!("{}:{}", rustix::fs::major(number), rustix::fs::minor(number))
        };
        let (a, b) = (device("LVMA"), device("LVMB"));
        let probe = recorded.dir.join("expected/probe.jsonl");
        let mut text = std::fs::read_to_string(&probe).expect("the answers");
        text += &format!("{{\"dm\":\"253:1\",\"table\":\"0 131072 linear {a} 133120\"}}\n");
        text += &format!(
            "{{\"dm\":\"253:0\",\"table\":\"0 262144 striped 2 128 {b} 2048 {a} 4096\"}}\n"
        );
        std::fs::write(&probe, text).expect("a file of ours");
        let resolver = Resolver::new(System::fixture(&recorded.dir).expect("the system"));
        let first = |path: &str| {
            let map = resolver.resolve(path.as_ref());
            let extent = resolver.extents(path.as_ref(), 1).expect("extents")[0];
            (extent, map.locate(&extent).expect("places"), map)
        };
        let (extent, pieces, map) = first("/mnt/lvlinear/data.bin");
        assert_eq!(step(&map, LayerKind::DeviceMapper).text("target"), Some("linear"));
        assert_eq!(pieces[0].offset, extent.physical + 133_120 * 512);
        let (extent, pieces, map) = first("/mnt/lvm/data.bin");
        assert_eq!(step(&map, LayerKind::DeviceMapper).text("from"), Some("its table"));
        // Its table begins with the second of the two, in pieces of 64 KiB.
        let (index, inside) = (extent.physical / 65_536, extent.physical % 65_536);
        let (serial, start) = [("LVMB", 2048), ("LVMA", 4096)][usize::from(index % 2 == 1)];
        let drive = map.drives.iter().find(|drive| drive.id == pieces[0].drive).expect("a drive");
        assert_eq!(drive.serial.as_deref(), Some(serial));
        assert_eq!(pieces[0].offset, start * 512 + index / 2 * 65_536 + inside);
    }
}
