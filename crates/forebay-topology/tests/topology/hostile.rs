//! Systems that are missing, damaged, tangled or hostile: no panic, nothing from outside the
//! system's folder, and an end in bounded time.

use std::fmt::Write as _;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::symlink;
use std::path::Path;

use forebay_topology::{Distance, DriveId, DriveKind, LayerKind, Layout, StorageMap, gpus};
use proptest::prelude::*;
use proptest::sample::select;

use crate::damage::DAMAGES;
use crate::lab::watchdog::Watchdog;
use crate::tree::Tree;
use crate::{reason, step};

/// A tree with one of each kind of thing: mounts `/a` (partition), `/b` (md), `/c` (dm on md),
/// `/d` (loop on `/a`), `/e` (btrfs), `/o` (overlay over `/a` and `/b`), `/n` (NFS).
fn one_of_each() -> Tree {
    let mut tree = Tree::new();
    (1..=4).for_each(|index| tree.drive(index));
    let part = "pci0000:00/0000:01:00.0/nvme/nvme1/nvme1n1/nvme1n1p1";
    tree.device("259:11", part);
    tree.write(&format!("sys/devices/{part}/partition"), "1\n");
    tree.device("9:0", "virtual/block/md0");
    let facts =
        [("level", "raid0"), ("chunk_size", "65536"), ("raid_disks", "2"), ("layout", "65535")];
    for (file, text) in facts {
        tree.write(&format!("sys/devices/virtual/block/md0/md/{file}"), text);
    }
    for (slot, index) in [(0, 2), (1, 3)] {
        let member = format!("sys/devices/virtual/block/md0/md/dev-nvme{index}n1");
        tree.write(&format!("{member}/slot"), slot.to_string());
        tree.write(&format!("{member}/state"), "in_sync");
        let target =
            format!("../../../../../pci0000:00/0000:0{index}:00.0/nvme/nvme{index}/nvme{index}n1");
        tree.link(&format!("{member}/block"), &target);
    }
    tree.device("253:0", "virtual/block/dm-0");
    tree.write("sys/devices/virtual/block/dm-0/dm/uuid", format!("LVM-{}", "x".repeat(64)));
    tree.link("sys/devices/virtual/block/dm-0/slaves/md0", "../../md0");
    tree.device("7:0", "virtual/block/loop0");
    tree.write("sys/devices/virtual/block/loop0/loop/backing_file", "/a/image\n");
    let drive = "../../../../devices/pci0000:00/0000:04:00.0/nvme/nvme4/nvme4n1";
    tree.link("sys/fs/btrfs/uuid/devices/nvme4n1", drive);
    tree.write("sys/fs/btrfs/uuid/allocation/data/single/total_bytes", "1\n");
    tree.write("sys/bus/pci/devices/keep", "");
    tree.write("proc/self/mountstats", "device s:/e mounted on /n with fstype nfs4\n\txprt: tcp\n");
    tree.mount(10, "259:11", "/a", "ext4 /dev/nvme1n1p1 rw");
    tree.mount(11, "9:0", "/b", "xfs /dev/md0 rw");
    tree.mount(12, "253:0", "/c", "ext4 /dev/mapper/v rw");
    tree.mount(13, "7:0", "/d", "ext4 /dev/loop0 rw");
    tree.mount(14, "0:40", "/e", "btrfs /dev/nvme4n1 rw,subvol=/");
    tree.mount(15, "0:41", "/o", "overlay overlay rw,lowerdir=/b,upperdir=/a,workdir=/w");
    tree.mount(16, "0:42", "/n", "nfs4 s:/e rw,vers=4.2,proto=rdma,nconnect=8");
    tree.answer(r#"{"path":"/a/image","dev":"259:11","mode":"100644","ino":13,"mnt_id":10}"#);
    tree
}

const PATHS: [&str; 9] = ["/a/f", "/b/f", "/c/f", "/d/f", "/e/f", "/o/f", "/n/f", "/none", "/"];

#[test]
fn a_relative_folder_of_an_overlay_is_unknown() {
    let mut tree = one_of_each();
    tree.mount(17, "0:43", "/r", "overlay overlay ro,lowerdir=b:/a");
    tree.answer(r#"{"path":"/r/f","dev":"0:43","mode":"100644","ino":14,"mnt_id":17}"#);
    tree.answer(r#"{"path":"b/f","dev":"9:0","mode":"100644","ino":14,"mnt_id":11}"#);
    tree.answer(r#"{"path":"/a/f","dev":"259:11","mode":"100644","ino":14,"mnt_id":10}"#);
    let map = tree.map("/r/f");
    assert!(map.drives.iter().all(|drive| drive.serial.is_none()), "{:?}", map.drives);
}

#[test]
fn a_small_tree_is_whole() {
    let tree = one_of_each();
    let drives = |path: &str| {
        let map = tree.map(path);
        let serials = map.drives.iter().map(|drive| drive.serial.clone().unwrap_or_default());
        (serials.collect::<Vec<_>>().join(" "), map.queue.layout)
    };
    assert_eq!(drives("/a/f"), ("S1".into(), Layout::Single));
    assert_eq!(drives("/b/f"), ("S2 S3".into(), Layout::Striped));
    assert_eq!(drives("/c/f"), ("S2 S3".into(), Layout::Striped));
    assert_eq!(drives("/d/f"), ("S1".into(), Layout::Single));
    assert_eq!(drives("/e/f"), ("S4".into(), Layout::Single));
    assert_eq!(drives("/o/f"), ("S1".into(), Layout::Single));
    let map = tree.map("/n/f");
    assert!(step(&map, LayerKind::Network).flag("rdma"));
}

/// All files, links and folders below `folder`.
fn entries(folder: &Path, found: &mut Vec<std::path::PathBuf>) {
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        found.push(entry.path());
        if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            entries(&entry.path(), found);
        }
    }
}

/// Nothing in a map moves a terminal's cursor, and it adds up.
fn assert_sound(map: &StorageMap) {
    for (_, layer) in map.root.walk() {
        let texts = layer.facts.iter().map(|fact| fact.value.to_string());
        for text in texts.chain([layer.name.clone()]) {
            assert!(!text.contains(|c: char| c.is_control()), "{text:?}");
        }
    }
    assert!(map.queue.members.len() <= map.drives.len());
    let known = |id: &DriveId| map.drives.iter().any(|drive| drive.id == *id);
    assert!(map.queue.members.iter().all(known));
    assert!(!map.queue.id.as_str().is_empty());
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 96, ..ProptestConfig::default() })]

    #[test]
    fn damaged_systems_are_resolved_as_far_as_they_go(
        places in prop::collection::vec((any::<prop::sample::Index>(), select(&DAMAGES[..])), 1..6),
    ) {
        let tree = one_of_each();
        tree.settle();
        let mut all = Vec::new();
        entries(&tree.root(), &mut all);
        all.sort();
        for (index, damage) in places {
            damage.put(&tree.root(), &all[index.index(all.len())]);
        }
        if tree.root().join("proc").is_dir() {
            let resolver = tree.resolver();
            for path in PATHS {
                assert_sound(&resolver.resolve(path.as_ref()));
            }
            let _ = gpus(resolver.system());
        }
    }

    #[test]
    fn any_table_of_mounts_is_searched(table in "[ -~\\n]{0,400}", id in 0_u64..20) {
        let mut tree = one_of_each();
        tree.file("/x", id, "8:1");
        tree.settle();
        tree.write("proc/self/mountinfo", format!("{id} {table}\n{table}"));
        for path in ["/x", "/o/f"] {
            assert_sound(&tree.resolver().resolve(path.as_ref()));
        }
    }

    #[test]
    fn any_record_is_read(line in "[\\[\\]{}:,\"a-z0-9/._ -]{0,120}", cut in 0_usize..400) {
        let mut tree = one_of_each();
        tree.answer(&line);
        let known = r#"{"path":"/a/f","dev":"259:11","mode":"100644","ino":1,"mnt_id":10}"#;
        tree.answer(&known[..cut.min(known.len())]);
        assert_sound(&tree.map("/a/f"));
    }
}

#[test]
fn links_out_of_the_system_lead_nowhere() {
    let mut tree = Tree::new();
    tree.drive(1);
    tree.mount(10, "259:1", "/a", "ext4 /dev/x rw");
    let controller = "sys/devices/pci0000:00/0000:01:00.0/nvme/nvme1";
    let outside = tree.root().parent().expect("a folder").join("secret");
    fs::write(&outside, "secret\n").expect("a file");
    let up = "../".repeat(30);
    let absolute = outside.to_str().expect("text").to_owned();
    for target in
        [absolute.clone(), format!("{up}{absolute}"), format!("{}/secret", "../".repeat(8))]
    {
        for file in ["model", "serial"] {
            let path = tree.root().join(controller).join(file);
            fs::remove_file(&path).expect("it was there");
            symlink(&target, &path).expect("a link");
        }
        let map = tree.map("/a/f");
        assert_eq!(map.drives[0].model, None, "{target}");
        assert_eq!(map.drives[0].serial, None, "{target}");
    }
    // A whole folder outside is none of the system either.
    fs::remove_file(tree.root().join("sys/dev/block/259:1")).expect("a link");
    for target in ["/etc", "/", "../../../../../../../../tmp", "../../class"] {
        let link = tree.root().join("sys/dev/block/259:1");
        symlink(target, &link).expect("a link");
        let map = tree.map("/a/f");
        assert_eq!((map.drives.len(), map.drives[0].kind), (1, DriveKind::Unknown), "{target}");
        fs::remove_file(&link).expect("a link");
    }
}

#[test]
fn devices_in_a_circle_end() {
    let mut tree = Tree::new();
    for index in 0..3 {
        let folder = format!("virtual/block/dm-{index}");
        tree.device(&format!("253:{index}"), &folder);
        tree.write(&format!("sys/devices/{folder}/dm/uuid"), "LVM-x");
        let next = (index + 1) % 3;
        tree.link(&format!("sys/devices/{folder}/slaves/dm-{next}"), &format!("../../dm-{next}"));
    }
    tree.mount(10, "253:0", "/a", "ext4 /dev/x rw");
    let map = tree.map("/a/f");
    let last = map.root.walk().last().expect("a step").1;
    assert_eq!(reason(last, "device"), "it stands on itself");
    assert_eq!((map.drives.len(), map.queue.id.as_str()), (0, "unknown:253:0"));
}

#[test]
fn tangled_devices_are_each_read_once() {
    let _dog = Watchdog::start();
    // Every device stands on both of the next pair: 2 to the power of 24 ways down.
    let mut tree = Tree::new();
    tree.drive(1);
    for index in 0..48 {
        let folder = format!("virtual/block/dm-{index}");
        tree.device(&format!("253:{index}"), &folder);
        tree.write(&format!("sys/devices/{folder}/dm/uuid"), "LVM-x");
        let next = index / 2 * 2 + 2;
        if next == 48 {
            let drive = "../../../../pci0000:00/0000:01:00.0/nvme/nvme1/nvme1n1";
            tree.link(&format!("sys/devices/{folder}/slaves/nvme1n1"), drive);
        } else {
            for next in [next, next + 1] {
                let path = format!("sys/devices/{folder}/slaves/dm-{next}");
                tree.link(&path, &format!("../../dm-{next}"));
            }
        }
    }
    tree.mount(10, "253:0", "/a", "ext4 /dev/x rw");
    let map = tree.map("/a/f");
    assert_eq!(map.drives[0].serial.as_deref(), Some("S1"));
    assert_eq!(map.queue.id.as_str(), map.drives[0].id.as_str());
    assert!(map.root.walk().count() < 200);
}

#[test]
fn a_chain_without_end_is_cut() {
    let mut tree = Tree::new();
    for index in 0..100 {
        let folder = format!("virtual/block/dm-{index}");
        tree.device(&format!("253:{index}"), &folder);
        tree.write(&format!("sys/devices/{folder}/dm/uuid"), "LVM-x");
        let next = index + 1;
        tree.link(&format!("sys/devices/{folder}/slaves/dm-{next}"), &format!("../../dm-{next}"));
    }
    // Loop devices whose files lie on each other end as well.
    for index in 0..50 {
        tree.device(&format!("7:{index}"), &format!("virtual/block/loop{index}"));
        let file = format!("sys/devices/virtual/block/loop{index}/loop/backing_file");
        tree.write(&file, format!("/l{}/f\n", index + 1));
        tree.mount(100 + index, &format!("7:{index}"), &format!("/l{index}"), "ext4 x rw");
    }
    tree.mount(10, "253:0", "/a", "ext4 /dev/x rw");
    let map = tree.map("/a/f");
    let last = map.root.walk().last().expect("a step").1;
    assert_eq!(reason(last, "device"), "too many nested devices");
    let map = tree.map("/l0/f");
    let last = map.root.walk().last().expect("a step").1;
    assert_eq!(reason(last, "file"), "more than 8 files are nested");
}

#[test]
fn ten_thousand_members_are_all_found() {
    let _dog = Watchdog::start();
    let mut tree = Tree::new();
    tree.device("9:0", "virtual/block/md0");
    tree.write("sys/devices/virtual/block/md0/md/level", "raid0\n");
    for index in 0..10_000 {
        let folder = format!("virtual/block/sd{index}");
        tree.write(&format!("sys/devices/{folder}/dev"), format!("8:{index}\n"));
        let link = format!("sys/devices/virtual/block/md0/slaves/sd{index}");
        tree.link(&link, &format!("../../sd{index}"));
    }
    tree.mount(10, "9:0", "/a", "ext4 /dev/md0 rw");
    let map = tree.map("/a/f");
    assert_eq!((map.drives.len(), map.queue.members.len()), (10_000, 10_000));
    assert_eq!((map.queue.layout, map.queue.id.as_str()), (Layout::Striped, "volume:md0"));
}

#[test]
fn files_on_a_hundred_drives_have_a_hundred_queues() {
    let mut tree = Tree::new();
    for drive in 0..100 {
        tree.drive(drive);
        let (id, number) = (u64::from(drive) + 10, format!("259:{drive}"));
        tree.mount(id, &number, &format!("/{drive}"), "ext4 /dev/x rw");
        (0..20).for_each(|file| tree.file(&format!("/{drive}/{file}"), id, &number));
    }
    tree.settle();
    let resolver = tree.resolver();
    let mut queues = std::collections::BTreeMap::<_, usize>::new();
    for file in 0..20 {
        for drive in 0..100 {
            let map = resolver.resolve(format!("/{drive}/{file}").as_ref());
            *queues.entry(map.queue.id).or_default() += 1;
        }
    }
    assert_eq!(queues.len(), 100);
    assert!(queues.values().all(|count| *count == 20));
}

#[test]
fn the_right_one_of_ten_thousand_mounts_is_found() {
    let mut tree = Tree::new();
    tree.drive(1);
    tree.settle();
    let mut table = String::new();
    for id in 1..=10_000 {
        writeln!(table, "{id} 1 0:{id} / /m{id} rw - tmpfs none rw").expect("text");
    }
    writeln!(table, "10001 1 259:1 / /a rw - ext4 /dev/nvme1n1 rw").expect("text");
    tree.file("/a/f", 10_001, "259:1");
    tree.settle();
    tree.write("proc/self/mountinfo", table);
    let map = tree.resolver().resolve("/a/f".as_ref());
    assert_eq!(map.drives[0].serial.as_deref(), Some("S1"));
}

#[test]
fn odd_names_are_found_and_shown_without_harm() {
    let mut tree = Tree::new();
    tree.drive(1);
    tree.settle();
    let table: &[u8] =
        b"10 1 259:1 / /a\\040b\\134\\012\\033[2J\xff rw - ext4 /dev/\x1b[1m rw,x=\xff\n";
    tree.file("/odd", 10, "259:1");
    tree.settle();
    tree.write("proc/self/mountinfo", table);
    let map = tree.resolver().resolve("/odd".as_ref());
    assert_eq!(map.drives[0].serial.as_deref(), Some("S1"));
    assert_eq!(step(&map, LayerKind::Mount).name, "/a b\\\u{fffd}\u{fffd}[2J\u{fffd}");
    assert_sound(&map);
    // A path that is no text.
    let path = Path::new(std::ffi::OsStr::from_bytes(b"/\xff\x1b"));
    assert_sound(&tree.resolver().resolve(path));
    // Kernel device names hold a `!` where others have a folder.
    tree.device("104:0", "pci0000:00/0000:09:00.0/host0/block/cciss!c0d0");
    tree.mount(11, "104:0", "/c", "ext4 /dev/cciss/c0d0 rw");
    assert_eq!(tree.map("/c/f").drives[0].name, "cciss!c0d0");
}

#[test]
fn degraded_arrays_and_dead_paths_are_reported() {
    let tree = one_of_each();
    let md = "sys/devices/virtual/block/md0/md";
    tree.write(&format!("{md}/level"), "raid1\n");
    tree.write(&format!("{md}/degraded"), "1\n");
    tree.write(&format!("{md}/dev-nvme3n1/state"), "faulty\n");
    tree.write(&format!("{md}/dev-nvme3n1/slot"), "none\n");
    let map = tree.map("/b/f");
    let array = step(&map, LayerKind::Md);
    assert!(array.flag("degraded"));
    assert_eq!(array.number("missing_members"), Some(1));
    assert_eq!(array.fact("faulty").expect("a list").to_string(), "nvme3n1");
    // What is left is one drive, so its queue serves.
    assert_eq!(map.queue.id.as_str(), "nvme:nqn.2014-08.test:2/1");
    tree.write("sys/devices/pci0000:00/0000:01:00.0/nvme/nvme1/state", "connecting\n");
    let map = tree.map("/a/f");
    let namespace = step(&map, LayerKind::NvmeNamespace);
    assert_eq!(namespace.fact("paths_down").expect("a list").to_string(), "nvme1");
}

#[test]
fn a_dpu_is_named_with_its_signs() {
    let mut tree = Tree::new();
    tree.drive(1);
    tree.mount(10, "259:1", "/a", "ext4 /dev/nvme1n1 rw");
    let pci = "sys/devices/pci0000:00/0000:01:00.0";
    tree.write(&format!("{pci}/uevent"), "DRIVER=nvme\nPCI_ID=15B3:6001\n");
    let transport = |tree: &Tree| tree.map("/a/f").drives[0].transport().to_string();
    assert_eq!(transport(&tree), "likely emulated by a DPU (NVIDIA SNAP)");
    tree.write(&format!("{pci}/nvme/nvme1/model"), "Mellanox NVMe SNAP Controller\n");
    assert_eq!(transport(&tree), "emulated by a DPU (NVIDIA SNAP)");
    let map = tree.map("/a/f");
    let signs = step(&map, LayerKind::NvmeController).fact("signs").expect("a list").to_string();
    assert_eq!(signs, "PCI vendor 0x15b3, model `Mellanox NVMe SNAP Controller`");
}

#[test]
fn network_and_other_file_systems_are_one_drive_each() {
    let mut tree = Tree::new();
    let mounts = [
        ("lustre", "10.0.0.1@tcp:/fs", DriveKind::Network),
        ("wekafs", "default", DriveKind::Network),
        ("beegfs", "beegfs_nodev", DriveKind::Network),
        ("gpfs", "gpfs0", DriveKind::Network),
        ("cifs", "//server/share", DriveKind::Network),
        ("virtiofs", "tag", DriveKind::Network),
        ("zfs", "tank/data", DriveKind::Unknown),
        ("bcachefs", "/dev/sda:/dev/sdb", DriveKind::Unknown),
        ("fuse.some", "some", DriveKind::Unknown),
    ];
    for (index, (kind, source, _)) in mounts.iter().enumerate() {
        let id = 50 + index as u64;
        let rest = format!("{kind} {source} rw,password=hunter2");
        tree.mount(id, &format!("0:{id}"), &format!("/{index}"), &rest);
    }
    let mut queues = std::collections::BTreeSet::new();
    for (index, (kind, source, expected)) in mounts.iter().enumerate() {
        let map = tree.map(&format!("/{index}/f"));
        let [drive] = map.drives.as_slice() else { panic!("{kind}: {:?}", map.drives) };
        assert_eq!((drive.kind, drive.name.as_str()), (*expected, *source), "{kind}");
        assert!(queues.insert(map.queue.id.clone()), "{kind} has another one's queue");
        let file_system = step(&map, LayerKind::FileSystem);
        assert_eq!(file_system.text("options"), Some("rw,password=***"), "{kind}");
    }
}

#[test]
fn gpus_are_found_among_other_devices() {
    let tree = Tree::new();
    for (address, class, id) in [
        ("0000:41:00.0", "0x030200", "10DE:2335"),
        ("0000:42:00.0", "0x030000", "1A03:2000"),
        ("0000:43:00.0", "0x020700", "15B3:1021"),
    ] {
        let folder = format!("sys/devices/pci0000:40/0000:40:01.0/{address}");
        tree.write(&format!("{folder}/class"), class);
        tree.write(
            &format!("{folder}/uevent"),
            format!("PCI_CLASS={}\nPCI_ID={id}\n", &class[2..]),
        );
        tree.link(
            &format!("sys/bus/pci/devices/{address}"),
            &format!("../../../devices/pci0000:40/0000:40:01.0/{address}"),
        );
    }
    let folder = "sys/devices/pci0000:40/0000:40:01.0/0000:41:00.0";
    // A register range of 64 bits, then the memory, then nothing in their upper halves' lines.
    let none = "0x0000000000000000 0x0000000000000000 0x0000000000000000\n";
    let resource = format!(
        "0x0000380060000000 0x0000380060ffffff 0x000000000014220c\n{none}\
         0x0000384000000000 0x00003847ffffffff 0x000000000014220c\n{none}"
    );
    tree.write(&format!("{folder}/resource"), resource);
    tree.settle();
    let found = gpus(tree.resolver().system());
    let [gpu] = found.as_slice() else { panic!("{found:?}") };
    assert_eq!((gpu.pci.address.as_str(), gpu.bar1_size), ("0000:41:00.0", Some(32 << 30)));
    assert_eq!(gpu.pci.bridges[0].address, "0000:40:01.0");
    let itself = Distance::between(&gpu.pci, &gpu.pci);
    assert_eq!(itself, Distance::SameRootPort);
}
