//! The ceilings of machines whose parts are known: each is compared with a calculation by hand.
//!
//! A link carries its rate after line code, less packets: 256 bytes of payload need 280 to the host
//! and 276 from it. Of that, practice reaches 92 % for drives, 95 % for GPUs, 96 % for networks.

use std::fmt::Write as _;

use serde_json::Value;

use crate::map::good;
use crate::tree::Tree;

/// A drive's PCIe 1.0 lane: 2.5 GT/s with 8 of 10 bits are 0.25 GB/s. Reads 0.2103, writes 0.2133.
const LANE: (u32, &str) = (1, "2.5 GT/s PCIe");
const GEN4: &str = "16.0 GT/s PCIe";
const GEN5: &str = "32.0 GT/s PCIe";
/// The root port of most drives here.
const SLOT: &str = "pci0000:00/0000:00:01.0";

struct Machine(Tree);

impl Machine {
    fn new() -> Self {
        Self(Tree::new())
    }

    /// A PCI function at `folder` below `sys/devices` with this link.
    fn pci(&self, folder: &str, (lanes, speed): (u32, &str), event: &str) {
        let tree = &self.0;
        for when in ["current", "max"] {
            tree.write(&format!("sys/devices/{folder}/{when}_link_width"), format!("{lanes}\n"));
            tree.write(&format!("sys/devices/{folder}/{when}_link_speed"), format!("{speed}\n"));
        }
        tree.write(&format!("sys/devices/{folder}/uevent"), event);
        let address = folder.rsplit('/').next().unwrap();
        let link = format!("sys/bus/pci/devices/{address}");
        tree.link(&link, &format!("../../../devices/{folder}"));
    }

    /// The configuration space of a function as root reads it: power management, then PCI Express
    /// with a maximum payload of 128 bytes, doubled `doublings` times.
    fn configured(&self, folder: &str, doublings: u8) {
        let mut space = [0_u8; 256];
        (space[0x34], space[0x40], space[0x41], space[0x60]) = (0x40, 0x01, 0x60, 0x10);
        space[0x68] = doublings << 5 | 0x0f;
        self.0.write(&format!("sys/devices/{folder}/config"), space);
    }

    /// An NVMe controller at `folder` with `namespaces`, whose numbers begin with `259:NUMBER0`.
    fn nvme(&self, number: u32, folder: &str, link: (u32, &str), namespaces: u32) {
        self.pci(folder, link, "DRIVER=nvme\nPCI_CLASS=10802\nPCI_ID=144D:A80A\n");
        let (tree, controller) = (&self.0, format!("{folder}/nvme/nvme{number}"));
        for (file, text) in [("transport", "pcie"), ("state", "live"), ("model", "Fast")] {
            tree.write(&format!("sys/devices/{controller}/{file}"), format!("{text}\n"));
        }
        let nqn = format!("nqn.2014-08.test:{number}\n");
        tree.write(&format!("sys/devices/{controller}/subsysnqn"), nqn);
        for id in 1..=namespaces {
            let block = format!("{controller}/nvme{number}n{id}");
            tree.device(&format!("259:{}", 10 * number + id - 1), &block);
            tree.link(&format!("sys/devices/{block}/device"), "../");
            tree.write(&format!("sys/devices/{block}/nsid"), format!("{id}\n"));
        }
    }

    /// `count` drives with slots of their own; returns their folders as block devices.
    fn drives(&self, count: u32, link: (u32, &str)) -> Vec<String> {
        let add = |number: u32| {
            let folder =
                format!("pci0000:00/0000:00:{:02x}.0/0000:{:02x}:00.0", number + 1, number + 1);
            self.pci(folder.rsplit_once('/').unwrap().0, (16, GEN5), "PCI_CLASS=60400\n");
            self.nvme(number, &folder, link, 1);
            format!("{folder}/nvme/nvme{number}/nvme{number}n1")
        };
        (0..count).map(add).collect()
    }

    /// An md array over these block devices; returns its folder.
    fn md(&self, number: u32, level: &str, slots: usize, members: &[String]) -> String {
        let (tree, folder) = (&self.0, format!("virtual/block/md{number}"));
        tree.device(&format!("9:{number}"), &folder);
        tree.write(&format!("sys/devices/{folder}/uevent"), "DEVTYPE=disk\n");
        let degraded = slots - members.len();
        for (file, text) in [
            ("level", level),
            ("raid_disks", &slots.to_string()),
            ("degraded", &degraded.to_string()),
            ("chunk_size", "524288"),
            ("layout", "258"),
        ] {
            tree.write(&format!("sys/devices/{folder}/md/{file}"), format!("{text}\n"));
        }
        for (slot, member) in members.iter().enumerate() {
            let own = format!("sys/devices/{folder}/md/dev-{}", member.rsplit('/').next().unwrap());
            tree.write(&format!("{own}/slot"), format!("{slot}\n"));
            tree.write(&format!("{own}/state"), "in_sync\n");
            tree.link(&format!("{own}/block"), &format!("../../../../../{member}"));
        }
        folder
    }

    /// A GPU at `folder`.
    fn gpu(&self, folder: &str, link: (u32, &str)) {
        self.pci(folder, link, "DRIVER=nvidia\nPCI_CLASS=30200\nPCI_ID=10DE:2335\n");
        self.0.write(&format!("sys/devices/{folder}/class"), "0x030200\n");
    }

    fn mount(&mut self, id: u64, number: &str, point: &str) {
        self.0.mount(id, number, point, "xfs /dev/x rw");
    }

    /// A mount of a server.
    fn nfs(&mut self, id: u64, point: &str, address: &str, options: &str) {
        let rest = format!("nfs4 {address}:/x rw,vers=4.2,{options},addr={address}");
        self.0.mount(id, &format!("0:{id}"), point, &rest);
    }

    /// A network interface on the function at `folder`.
    fn interface(&self, name: &str, folder: &str, kind: u32, mtu: u32, megabits: u32) {
        let (tree, own) = (&self.0, format!("{folder}/net/{name}"));
        let files = [("type", kind), ("mtu", mtu), ("speed", megabits), ("dev_port", 0)];
        for (file, number) in files {
            tree.write(&format!("sys/devices/{own}/{file}"), format!("{number}\n"));
        }
        tree.link(&format!("sys/devices/{own}/device"), "../../");
        tree.link(&format!("sys/class/net/{name}"), &format!("../../devices/{own}"));
    }

    /// The RDMA side of the function at `folder`.
    fn rdma(&self, name: &str, folder: &str, layer: &str, rate: &str) {
        let port = format!("sys/devices/{folder}/infiniband/{name}/ports/1");
        for (file, text) in [("state", "4: ACTIVE"), ("link_layer", layer), ("rate", rate)] {
            self.0.write(&format!("{port}/{file}"), format!("{text}\n"));
        }
        let link = format!("sys/class/infiniband/{name}");
        self.0.link(&link, &format!("../../devices/{folder}/infiniband/{name}"));
    }

    /// The ceilings below `paths`.
    fn ceilings(&self, paths: &[&str]) -> Ceilings {
        self.0.settle();
        let root = self.0.root();
        let folder = root.parent().unwrap();
        let arguments = [&["--fixture", ".", "--format=json"], paths].concat();
        let report: Value = serde_json::from_str(&good(folder, &arguments).0).unwrap();
        Ceilings(report["ceilings"].as_array().unwrap().clone())
    }
}

struct Ceilings(Vec<Value>);

impl Ceilings {
    #[track_caller]
    fn row(&self, of: &str) -> &Value {
        let row = self.0.iter().find(|row| row["of"] == of);
        row.unwrap_or_else(|| panic!("no {of}: {:#?}", self.0))
    }

    /// Reads and writes, in GB/s within 1 %, and what binds reads.
    #[track_caller]
    fn are(&self, of: &str, read: f64, write: f64, binds: &str) {
        let row = self.row(of);
        for (way, wanted) in [("read", read), ("write", write)] {
            let found = row[way]["expected"].as_f64().unwrap() * 1e-9;
            assert!((found / wanted - 1.0).abs() < 0.01, "{of}, {way}: {found}, not {wanted}");
        }
        assert_eq!(row["read"]["binds"], binds, "{of}");
    }
}

#[test]
fn namespaces_share_the_link_of_their_controller() {
    let mut machine = Machine::new();
    machine.nvme(0, &format!("{SLOT}/0000:01:00.0"), LANE, 2);
    machine.pci(SLOT, (4, GEN4), "PCI_CLASS=60400\n");
    machine.mount(20, "259:0", "/one");
    machine.mount(21, "259:1", "/two");
    let found = machine.ceilings(&["/one/f", "/two/f"]);
    // 0.25 × 256/280 × 0.92, 0.25 × 256/276 × 0.92.
    found.are("nvme0n1", 0.2103, 0.2133, "link of nvme0n1");
    found.are("2 drives", 0.2103, 0.2133, "uplink 0000:01:00.0");
    let remedy = found.row("2 drives")["read"]["remedy"].as_str().unwrap();
    assert!(remedy.starts_with("nvme0n1 and nvme0n2 share the link of 0000:01:00.0"), "{remedy}");
}

#[test]
fn arrays_write_each_byte_as_often_as_their_level_says() {
    let (read, write) = (0.2103, 0.2133);
    for (level, slots, members, of, reads, writes) in [
        ("raid0", 4, 4, "4 drives", 4.0, 4.0),
        // Each byte goes to both members, and each can serve reads.
        ("raid1", 2, 2, "2 mirrored drives", 2.0, 1.0),
        // Two copies of each chunk on four members.
        ("raid10", 4, 4, "4 drives in mirrors", 4.0, 2.0),
        // The partner of the missing member has all reads of both: half of all bytes.
        ("raid10", 4, 3, "3 drives in mirrors", 2.0, 2.0),
        // Of three chunks of a stripe two are data, of four two.
        ("raid5", 3, 3, "3 drives with parity", 3.0, 2.0),
        ("raid6", 4, 4, "4 drives with parity", 4.0, 2.0),
        // Two of three chunks are left, and both are read for the two of data.
        ("raid5", 3, 2, "2 drives with parity", 2.0, 2.0),
        ("linear", 2, 2, "2 drives", 2.0, 2.0),
    ] {
        let mut machine = Machine::new();
        let drives = machine.drives(members, LANE);
        machine.md(0, level, slots, &drives);
        machine.mount(20, "9:0", "/data");
        let found = machine.ceilings(&["/data/f"]);
        found.are(of, reads * read, writes * write, &format!("links of {of}"));
    }
}

#[test]
fn arrays_of_arrays_multiply() {
    let mut machine = Machine::new();
    let drives = machine.drives(4, LANE);
    let mirrors =
        [machine.md(0, "raid1", 2, &drives[..2]), machine.md(1, "raid1", 2, &drives[2..])];
    machine.md(2, "raid0", 2, &mirrors);
    machine.mount(20, "9:2", "/data");
    // Half of the bytes on each mirror, whole on both of its members.
    machine.ceilings(&["/data/f"]).are("4 drives", 4.0 * 0.2103, 2.0 * 0.2133, "links of 4 drives");
}

#[test]
fn the_slowest_drive_binds_a_stripe() {
    let mut machine = Machine::new();
    let mut drives = machine.drives(1, LANE);
    machine.nvme(7, "pci0000:00/0000:00:08.0/0000:08:00.0", (4, LANE.1), 1);
    drives.push("pci0000:00/0000:00:08.0/0000:08:00.0/nvme/nvme7/nvme7n1".into());
    machine.md(0, "raid0", 2, &drives);
    machine.mount(20, "9:0", "/data");
    machine.mount(21, "259:70", "/apart");
    machine.ceilings(&["/data/f"]).are("2 drives", 0.4206, 0.4266, "link of nvme0n1");
    // With a file on the wide drive alone, both its link and the lane are full: 0.21 + 0.84.
    let found = machine.ceilings(&["/data/f", "/apart/f"]);
    let read = found.row("2 drives")["read"]["expected"].as_f64().unwrap() * 1e-9;
    assert!((1.0..1.06).contains(&read), "{read}");
}

#[test]
fn profiles_of_btrfs_copy_to_their_members() {
    for (profile, reads, writes) in [("raid1", 3.0, 1.5), ("raid1c3", 3.0, 1.0), ("dup", 3.0, 1.5)]
    {
        let mut machine = Machine::new();
        for drive in machine.drives(3, LANE) {
            let name = drive.rsplit('/').next().unwrap();
            let link = format!("sys/fs/btrfs/6f9f/devices/{name}");
            machine.0.link(&link, &format!("../../../../devices/{drive}"));
        }
        let total = format!("sys/fs/btrfs/6f9f/allocation/data/{profile}/total_bytes");
        machine.0.write(&total, "1073741824\n");
        machine.0.mount(20, "0:44", "/data", "btrfs /dev/nvme0n1 rw");
        let found = machine.ceilings(&["/data/f"]);
        let row = found.0.iter().find(|row| row["of"].as_str().unwrap().starts_with("3 ")).unwrap();
        let of = row["of"].as_str().unwrap();
        found.are(of, reads * 0.2103, writes * 0.2133, &format!("links of {of}"));
    }
}

#[test]
fn volumes_of_lvm_leave_out_their_metadata() {
    let mut machine = Machine::new();
    let drives = machine.drives(2, LANE);
    let tree = &machine.0;
    let volumes = [(1, "vg-lv_rmeta_0", 0), (2, "vg-lv_rimage_0", 0), (3, "vg-lv_rmeta_1", 1)];
    for (minor, name, on) in volumes.into_iter().chain([(4, "vg-lv_rimage_1", 1)]) {
        let folder = format!("virtual/block/dm-{minor}");
        tree.device(&format!("253:{minor}"), &folder);
        tree.write(&format!("sys/devices/{folder}/dm/name"), format!("{name}\n"));
        let drive: &String = &drives[on];
        let slave = format!("sys/devices/{folder}/slaves/nvme{on}n1");
        tree.link(&slave, &format!("../../../../{drive}"));
        tree.link(
            &format!("sys/devices/virtual/block/dm-0/slaves/dm-{minor}"),
            &format!("../../dm-{minor}"),
        );
    }
    tree.device("253:0", "virtual/block/dm-0");
    tree.write("sys/devices/virtual/block/dm-0/dm/name", "vg-lv\n");
    let table = "0 204800 raid raid1 3 0 region_size 1024 2 253:1 253:2 253:3 253:4";
    machine.0.answer(&format!("{{\"dm\":\"253:0\",\"table\":\"{table}\"}}"));
    machine.mount(20, "253:0", "/data");
    let of = "2 mirrored drives";
    machine.ceilings(&["/data/f"]).are(of, 0.4206, 0.2133, &format!("links of {of}"));
}

#[test]
fn disks_of_sata_have_their_line_and_share_a_card() {
    let mut machine = Machine::new();
    // A card on a lane of PCIe 2.0: 5 GT/s with 8 of 10 bits are 0.5 GB/s.
    let card = format!("{SLOT}/0000:01:00.0");
    for (folder, first) in [("pci0000:00/0000:00:17.0", 1_u32), (card.as_str(), 5)] {
        let tree = &machine.0;
        tree.write(&format!("sys/devices/{folder}/uevent"), "DRIVER=ahci\nPCI_CLASS=10601\n");
        for port in first..first + 4 {
            let host = port - 1;
            let disk = format!("{folder}/ata{port}/host{host}/target{host}:0:0/{host}:0:0:0");
            let name = format!("sd{}", char::from(b'a' + u8::try_from(host).unwrap()));
            tree.device(&format!("8:{}", 16 * host), &format!("{disk}/block/{name}"));
            tree.link(&format!("sys/devices/{disk}/block/{name}/device"), "../../");
            let link = format!("sys/devices/{folder}/ata{port}/link{port}/ata_link/link{port}");
            tree.write(&format!("{link}/sata_spd"), "6.0 Gbps\n");
            let target = link.replacen("sys/devices", "../../devices", 1);
            tree.link(&format!("sys/class/ata_link/link{port}"), &target);
        }
    }
    machine.pci(&card, (1, "5.0 GT/s PCIe"), "DRIVER=ahci\nPCI_CLASS=10601\n");
    for host in 0..8 {
        machine.mount(20 + host, &format!("8:{}", 16 * host), &format!("/d{host}"));
    }
    // Ports of the chipset have no link: 6 Gbit/s with 8 of 10 bits are 0.6 GB/s, × 0.92.
    let own = machine.ceilings(&["/d0/f", "/d1/f", "/d2/f", "/d3/f"]);
    own.are("each of 4 drives", 0.552, 0.552, "line of each");
    own.are("4 drives", 2.208, 2.208, "links of 4 drives");
    // 0.5 × 256/280 × 0.92, less than the line of one.
    let card = machine.ceilings(&["/d4/f", "/d5/f"]);
    card.are("sde", 0.4206, 0.4267, "link of sde");
    card.are("2 drives", 0.4206, 0.4267, "uplink 0000:01:00.0");
    machine.ceilings(&["/d0/f", "/d5/f"]).are("2 drives", 0.9726, 0.9787, "links of 2 drives");
}

/// Two sockets with two switches each; below each switch two GPUs and two drives, all of PCIe 5.0.
fn eight_gpus() -> Machine {
    let mut machine = Machine::new();
    for (index, bus) in [0x10_u32, 0x40, 0x80, 0xc0].into_iter().enumerate() {
        let port = format!("pci0000:{bus:02x}/0000:{bus:02x}:01.0");
        let switch = format!("{port}/0000:{:02x}:00.0", bus + 1);
        machine.pci(&port, (16, GEN5), "PCI_CLASS=60400\n");
        machine.pci(&switch, (16, GEN5), "PCI_CLASS=60400\n");
        for slot in 0..4 {
            let down = format!("{switch}/0000:{:02x}:{slot:02x}.0", bus + 2);
            machine.pci(&down, (16, GEN5), "PCI_CLASS=60400\n");
            let device = format!("{down}/0000:{:02x}:00.0", bus + 3 + slot);
            let numa_node = format!("sys/devices/{device}/numa_node");
            machine.0.write(&numa_node, format!("{}\n", index / 2));
            if slot < 2 {
                machine.gpu(&device, (16, GEN5));
            } else {
                let number = u32::try_from(index).unwrap() * 2 + slot - 2;
                machine.nvme(number, &device, (4, GEN5), 1);
                let (id, number) = (u64::from(20 + number), format!("259:{}", 10 * number));
                machine.mount(id, &number, &format!("/d{}", id - 20));
            }
        }
    }
    machine
}

#[test]
fn eight_gpus_share_four_uplinks() {
    let machine = eight_gpus();
    // 16 channels of DDR5-4800 and 8 bytes: 614 GB/s.
    let mut database = String::new();
    for module in 0..16 {
        let (socket, channel) = (module / 8, char::from(b'A' + module % 8));
        let place = format!("P{socket} CHANNEL {channel}");
        for (key, text) in [
            ("LOCATOR", "DIMM 0"),
            ("BANK_LOCATOR", &place),
            ("DATA_WIDTH", "64"),
            ("CONFIGURED_SPEED_MTS", "4800"),
        ] {
            writeln!(database, "E:MEMORY_DEVICE_{module}_{key}={text}").unwrap();
        }
    }
    machine.0.write("run/udev/data/+dmi:id", database);
    let paths: Vec<String> = (0..8).map(|drive| format!("/d{drive}/f")).collect();
    let paths: Vec<&str> = paths.iter().map(String::as_str).collect();
    let found = machine.ceilings(&paths);
    // 16 lanes of 32 GT/s: 63.02; × 256/276 × 0.95 from the host, × 256/280 × 0.95 to it.
    found.are("1 GPU", 55.53, 54.73, "link of GPU 0");
    found.are("2 GPUs", 55.53, 54.73, "uplink 0000:11:00.0");
    found.are("4 GPUs", 111.1, 109.5, "2 uplinks");
    found.are("8 GPUs", 222.1, 218.9, "4 uplinks");
    // A quarter of the lanes: 15.75 × 256/280 × 0.92.
    found.are("each of 8 drives", 13.25, 13.44, "link of each");
    found.are("8 drives", 106.0, 107.5, "links of 8 drives");
    found.are("16 memory channels", 491.5, 491.5, "memory");
    found.are("8 drives to 1 GPU", 55.53, 54.73, "link of GPU 0");
    found.are("8 drives to 8 GPUs", 106.0, 107.5, "links of 8 drives");
}

#[test]
fn the_payload_that_root_reads_counts() {
    let machine = eight_gpus();
    // The whole path to the first GPU has 512 bytes; that to the second has a bridge with 128.
    let port = "pci0000:10/0000:10:01.0";
    let switch = format!("{port}/0000:11:00.0");
    for (folder, doublings) in [
        (port.to_owned(), 2),
        (switch.clone(), 2),
        (format!("{switch}/0000:12:00.0"), 2),
        (format!("{switch}/0000:12:00.0/0000:13:00.0"), 2),
        (format!("{switch}/0000:12:01.0"), 0),
        (format!("{switch}/0000:12:01.0/0000:14:00.0"), 2),
        (format!("{switch}/0000:12:02.0/0000:15:00.0"), 2),
    ] {
        machine.configured(&folder, doublings);
    }
    let found = machine.ceilings(&["/d0/f"]);
    // 63.02 × 512/532 × 0.95, 63.02 × 512/536 × 0.95.
    found.are("1 GPU", 57.61, 57.18, "link of GPU 0");
    // The uplink carries packets of both: at least what those of 128 bytes leave, × 128/148 × 0.95.
    found.are("2 GPUs", 51.77, 50.41, "uplink 0000:11:00.0");
    // 15.75 × 512/536 × 0.92.
    found.are("nvme0n1", 13.84, 13.94, "link of nvme0n1");
}

/// A server with one port of NDR, a pair of bonded ports of 100 GbE on one card, and one of 25 GbE.
fn networked() -> Machine {
    let machine = Machine::new();
    let card = |bus: &str, link| {
        let slot = format!("pci0000:{bus}/0000:{bus}:01.0");
        machine.pci(&slot, (16, GEN5), "PCI_CLASS=60400\n");
        let folder = format!("{slot}/0000:{}1:00.0", &bus[..1]);
        machine.pci(&folder, link, "DRIVER=mlx5_core\nPCI_CLASS=20700\nPCI_ID=15B3:1021\n");
        folder
    };
    let ndr = card("10", (16, GEN5));
    machine.interface("ibs1", &ndr, 32, 2044, 400_000);
    machine.rdma("mlx5_0", &ndr, "InfiniBand", "400 Gb/sec (4X NDR)");
    // Eight lanes of 16 GT/s for both ports: 15.75 × 256/280 = 14.4 GB/s.
    let first = card("20", (8, GEN4));
    let second = first.replace("00.0", "00.1");
    machine.pci(&second, (8, GEN4), "DRIVER=mlx5_core\nPCI_CLASS=20000\nPCI_ID=15B3:1017\n");
    machine.interface("eth1", &first, 1, 9000, 100_000);
    machine.interface("eth2", &second, 1, 9000, 100_000);
    let bond = "virtual/net/bond0";
    for (file, text) in [
        ("bonding/mode", "802.3ad 4"),
        ("bonding/xmit_hash_policy", "layer3+4 1"),
        ("bonding/slaves", "eth1 eth2"),
    ] {
        machine.0.write(&format!("sys/devices/{bond}/{file}"), format!("{text}\n"));
    }
    machine.0.link("sys/class/net/bond0", &format!("../../devices/{bond}"));
    for (name, folder) in [("eth1", &first), ("eth2", &second)] {
        let target = format!("../../../{folder}/net/{name}");
        machine.0.link(&format!("sys/devices/{bond}/lower_{name}"), &target);
    }
    // A VLAN on the bond.
    machine.0.write("sys/devices/virtual/net/bond0.7/mtu", "9000\n");
    machine.0.link("sys/class/net/bond0.7", "../../devices/virtual/net/bond0.7");
    machine.0.link("sys/devices/virtual/net/bond0.7/lower_bond0", "../bond0");
    let slow = card("30", (8, "8.0 GT/s PCIe"));
    machine.interface("eth0", &slow, 1, 1500, 25_000);
    machine.rdma("mlx5_3", &slow, "Ethernet", "25 Gb/sec (1X EDR)");
    let line = |name: &str, target: &str, mask: &str, metric: u32| {
        format!("{name}\t{target}\t00000000\t0001\t0\t0\t{metric}\t{mask}\t0\t0\t0\n")
    };
    let routes = [
        line("eth0", "00000000", "00000000", 100),
        // A second default route with a higher metric, and one to a part of the network of `ibs1`.
        line("ibs1", "00000000", "00000000", 400),
        line("ibs1", "0000010A", "0000FFFF", 0),
        line("eth0", "0009010A", "00FFFFFF", 0),
        line("bond0", "0000020A", "0000FFFF", 0),
        line("bond0.7", "0000030A", "0000FFFF", 0),
    ];
    let heading =
        "Iface\tDestination\tGateway \tFlags\tRefCnt\tUse\tMetric\tMask\t\tMTU\tWindow\tIRTT\n";
    machine.0.write("proc/self/net/route", format!("{heading}{}", routes.concat()));
    let six = format!(
        "fd000001{} 20 {zero} 00 {zero} 00000100 00000001 00000000 00000001     ibs1\n",
        "0".repeat(24),
        zero = "0".repeat(32)
    );
    machine.0.write("proc/self/net/ipv6_route", six);
    machine
}

#[test]
fn a_mount_uses_the_port_of_the_route_to_its_server() {
    let mut machine = networked();
    for (at, (address, options)) in [
        ("192.0.2.1", "proto=tcp"),
        ("10.1.0.1", "proto=rdma"),
        ("10.1.0.1", "proto=tcp,nconnect=8"),
        ("10.1.9.1", "proto=tcp"),
        ("192.0.2.1", "proto=rdma"),
        ("fd00:1::7", "proto=rdma6"),
        ("127.0.0.1", "proto=tcp"),
    ]
    .into_iter()
    .enumerate()
    {
        machine.nfs(20 + at as u64, &format!("/n{at}"), address, options);
    }
    let of = |path: &str| machine.ceilings(&[path]);
    // Frames of 1,500 bytes hold 1,448 and take 1,538: 3.125 × 0.9415 × 0.96.
    of("/n0/f").are("eth0", 2.825, 2.825, "line of eth0");
    // Packets of 4,096 take 4,122: 50 × 0.9937 × 0.96.
    of("/n1/f").are("mlx5_0/1", 47.7, 47.7, "line of mlx5_0/1");
    of("/n5/f").are("mlx5_0/1", 47.7, 47.7, "line of mlx5_0/1");
    // Datagrams of 2,044 hold 1,992 and take 2,082: 50 × 0.9568 × 0.96.
    of("/n2/f").are("ibs1", 45.9, 45.9, "line of ibs1");
    // The longer prefix wins.
    of("/n3/f").are("eth0", 2.825, 2.825, "line of eth0");
    // Packets of 1,024 fit into frames of 1,500 and take 1,106: 3.125 × 0.9259 × 0.96.
    of("/n4/f").are("mlx5_3/1", 2.778, 2.778, "line of mlx5_3/1");
    assert!(of("/n6/f").row("network")["read"].is_null(), "the server is this machine");
    // Two kinds of mounts use both ports.
    machine.ceilings(&["/n0/f", "/n1/f"]).are("2 ports", 50.5, 50.5, "links of 2 ports");
}

#[test]
fn connections_spread_over_the_ports_of_a_bond() {
    let mut machine = networked();
    machine.nfs(20, "/one", "10.2.0.1", "proto=tcp");
    machine.nfs(21, "/many", "10.2.0.1", "proto=tcp,nconnect=8");
    machine.nfs(22, "/vlan", "10.3.0.1", "proto=tcp,nconnect=8");
    // Frames of 9,000 bytes hold 8,948 and take 9,038: 12.5 × 0.99 × 0.96.
    machine.ceilings(&["/one/f"]).are("eth1", 11.88, 11.88, "line of eth1");
    // Both functions of the card share its lanes: 15.75 × 256/280 × 0.96.
    for path in ["/many/f", "/vlan/f"] {
        machine.ceilings(&[path]).are("2 ports", 13.83, 14.03, "uplink 0000:21:00.0");
    }
    let set = |file: &str, text: &str| {
        machine.0.write(&format!("sys/devices/virtual/net/bond0/bonding/{file}"), text);
    };
    // All connections to one server have one hash.
    set("xmit_hash_policy", "layer2+3 2\n");
    machine.ceilings(&["/many/f"]).are("eth1", 11.88, 11.88, "line of eth1");
    set("mode", "active-backup 1\n");
    set("active_slave", "eth2\n");
    machine.ceilings(&["/many/f"]).are("eth2", 11.88, 11.88, "line of eth2");
}

#[test]
fn older_infiniband_has_line_code_in_its_rate() {
    for (layer, rate, most) in [
        // 8 of 10 bits: 4 GB/s × 0.9937 × 0.96.
        ("InfiniBand", "40 Gb/sec (4X QDR)", 3.816),
        // 64 of 66 bits: 6.79 GB/s.
        ("InfiniBand", "56 Gb/sec (4X FDR)", 6.475),
        ("InfiniBand", "100 Gb/sec (4X EDR)", 11.92),
    ] {
        let mut machine = networked();
        let port = "sys/class/infiniband/mlx5_0/ports/1";
        machine.0.write(&format!("{port}/rate"), format!("{rate}\n"));
        machine.0.write(&format!("{port}/link_layer"), format!("{layer}\n"));
        machine.nfs(20, "/n", "10.1.0.1", "proto=rdma");
        machine.ceilings(&["/n/f"]).are("mlx5_0/1", most, most, "line of mlx5_0/1");
    }
}

#[test]
fn ports_of_an_unknown_server_are_unknown() {
    let mut machine = networked();
    machine.0.mount(20, "0:20", "/lustre", "lustre mgs:/scratch rw");
    machine.0.mount(21, "0:21", "/rails", "lustre 10.1.0.1@o2ib:/scratch rw");
    let found = machine.ceilings(&["/lustre/f"]);
    assert!(found.row("network")["read"].is_null(), "{:?}", found.0);
    machine.ceilings(&["/rails/f"]).are("mlx5_0/1", 47.7, 47.7, "line of mlx5_0/1");
}
