//! Block devices: finds the kind of a device from its folder in `/sys`, and describes whole disks.

use std::ffi::OsStr;
use std::path::Path;

use super::drive::{Drive, DriveId, DriveKind, DrivePath, Transport};
use super::map::{Layer, LayerKind};
use super::pci;
use super::resolve::Resolve;
use super::system::Folder;
use super::text::{clean, device_number, device_text, entry};
use super::volume::{Layout, Span, Spread};

/// Bytes of the kernel's sector. Sizes in `/sys` use this unit whatever the device's block size.
const SECTOR: u64 = 512;

/// Name prefixes of virtual devices, and their kinds.
const VIRTUAL: [(&str, &str); 9] = [
    ("zram", "zram"),
    ("ram", "ram disk"),
    ("nullb", "null_blk"),
    ("nbd", "nbd"),
    ("rbd", "rbd"),
    ("drbd", "drbd"),
    ("ublkb", "ublk"),
    ("zd", "zfs volume"),
    ("pmem", "persistent memory"),
];

impl Resolve<'_> {
    /// Describes the block device in `folder` and everything below it.
    pub(super) fn device(&mut self, folder: &Folder, layer: &mut Layer) -> Span {
        let event = folder.table("uevent");
        let number = number_in(&event).unwrap_or_else(|| folder.device_number());
        let is_partition = match entry(&event, "DEVTYPE=") {
            Some(kind) => kind == "partition",
            None => folder.has("partition"),
        };
        layer.say_if("device", Some(number).filter(|&number| number != 0).map(device_text));
        layer.say_if("size_bytes", sectors(folder, "size"));
        if is_partition {
            return self.partition(folder, number, layer);
        }
        let name = folder.name();
        // The name is checked first because a probe costs a system call.
        if name.starts_with("md") && folder.has("md") {
            return self.md(folder, layer);
        }
        if name.starts_with("dm-") && folder.has("dm") {
            return self.dm(folder, layer);
        }
        if name.starts_with("loop") {
            return self.loop_device(folder, layer);
        }
        let device = folder.folder("device").ok();
        if let Some(device) = &device
            && name.starts_with("nvme")
        {
            return self.nvme(folder, device, number, layer);
        }
        if device.is_none()
            && let Some(span) = self.stacked(folder, layer)
        {
            return span;
        }
        self.disk(folder, device.as_ref(), number, layer)
    }

    fn partition(&mut self, folder: &Folder, number: u64, layer: &mut Layer) -> Span {
        layer.kind = LayerKind::Partition;
        layer.say_if("number", folder.number("partition"));
        let start = sectors(folder, "start");
        layer.say_if("start_bytes", start);
        layer.spread = start.map_or(Spread::Untold, Spread::Shifted);
        match folder.parent().filter(|parent| parent.has("dev")) {
            Some(parent) => self.block_at(layer, &parent),
            None => self.unknown_drive(layer, number, "the folder above the partition is no drive"),
        }
    }

    /// Describes any other stacked device, such as a cache, from its `slaves` folder.
    fn stacked(&mut self, folder: &Folder, layer: &mut Layer) -> Option<Span> {
        let members = folder.folders("slaves");
        if members.is_empty() {
            return None;
        }
        layer.kind = LayerKind::Stacked;
        let spans = self.members(layer, &members);
        let key = || folder.name();
        Some(Span::joined(spans, key, Layout::Unknown))
    }

    /// Describes a device with no other block device below it.
    fn disk(
        &mut self,
        folder: &Folder,
        device: Option<&Folder>,
        number: u64,
        layer: &mut Layer,
    ) -> Span {
        let name = folder.name();
        let at = device.unwrap_or(folder);
        let (kind, transport) = transport(&name, at.path(), device.is_some());
        layer.kind = kind;
        let mut drive = Drive::new(DriveId(String::new()), DriveKind::Block, name.as_str());
        let mut state = None;
        let mut wwid = None;
        match kind {
            LayerKind::VirtioDisk => {
                drive.serial = folder.serial();
            }
            LayerKind::ScsiDisk => {
                let text = |file: &str| at.text(file).ok();
                wwid = text("wwid");
                state = text("state");
                drive.serial = at.bytes("vpd_pg80").ok().and_then(|page| page_80(&page));
                drive.firmware = text("rev");
                // For SATA disks the kernel reports `ATA` as the vendor.
                let vendor = text("vendor").filter(|vendor| vendor != "ATA");
                let words: Vec<String> = vendor.into_iter().chain(text("model")).collect();
                drive.model = (!words.is_empty()).then(|| words.join(" "));
            }
            _ => {
                wwid = folder.text("wwid").ok();
                drive.serial = at.text("serial").or_else(|_| folder.text("serial")).ok();
                drive.model = device.and_then(|device| device.text("model").ok());
            }
        }
        drive.id = DriveId(match (&wwid, &drive.serial) {
            (Some(wwid), _) => format!("wwid:{wwid}"),
            (None, Some(serial)) => format!("serial:{}:{serial}", transport_name(&transport)),
            (None, None) => format!("device:{}", device_text(number)),
        });
        drive.hardware = drive.id.clone();
        let pci = pci::above(at);
        let bits_per_second = line(at, transport_name(&transport));
        drive.paths.push(DrivePath {
            name,
            transport,
            bits_per_second,
            live: state.as_deref().is_none_or(|state| state == "running"),
            state,
            numa_node: pci.as_ref().and_then(|pci| pci.numa_node),
            pci: pci.clone(),
        });
        fill(&mut drive, folder, layer, number);
        let span = self.found(layer, drive);
        self.pci(layer, pci.as_ref(), at.path());
        span
    }

    /// Adds the PCI device below the step that is attached to it, or records why it is unknown.
    pub(super) fn pci(&mut self, layer: &mut Layer, pci: Option<&pci::PciDevice>, path: &Path) {
        let Some(pci) = pci else {
            if pci::is_below(path) {
                layer.unknown("pci", "the folder of its PCI device cannot be read");
            }
            return;
        };
        let mut child = Layer::new(LayerKind::PciDevice, pci.address.as_str());
        child.say_if("vendor", pci.vendor.map(|id| format!("{id:#06x}")));
        child.say_if("device", pci.device.map(|id| format!("{id:#06x}")));
        child.say_if("class", pci.class.map(|class| format!("{class:#08x}")));
        child.say_if("driver", pci.driver.clone());
        child.say_if("link", pci.link.map(|link| link.text(pci.link_max.as_ref())));
        child.say_if("link_max", pci.link_max.map(|link| link.text(None)));
        let bridges: Vec<String> = pci.bridges.iter().map(|b| b.address.clone()).collect();
        child.say("bridges", bridges);
        child.say("host_bridge", pci.host_bridge.as_str());
        match pci.numa_node {
            Some(node) => child.say("numa_node", node),
            None => child.unknown("numa_node", "the kernel names none"),
        }
        child.say_if("socket", pci.package);
        child.say_if("iommu_group", pci.iommu_group.clone());
        layer.children.push(child);
    }
}

impl Folder {
    /// The device number in a block device's folder, or 0 if it is missing.
    pub(super) fn device_number(&self) -> u64 {
        self.text("dev").ok().and_then(|text| device_number(&text)).unwrap_or(0)
    }

    /// The smallest unit in bytes that the block device reads or writes.
    pub(super) fn logical_block_size(&self) -> Option<u32> {
        let size = self.number("queue/logical_block_size")?;
        u32::try_from(size).ok().filter(|size| size.is_power_of_two())
    }

    /// Reads the serial number from a disk's folder. The driver may block on the disk to answer.
    pub(super) fn serial(&self) -> Option<String> {
        let Some(patience) = self.system().patience() else {
            return self.text("serial").ok();
        };
        let (own, path) = (self.clone(), self.system().root().join(self.path()).join("serial"));
        patience.look(&path, move || own.text("serial").ok()).ok().flatten()
    }
}

/// Fills in the facts about the drive from a block device's own folder.
pub(super) fn fill(drive: &mut Drive, folder: &Folder, layer: &Layer, number: u64) {
    drive.device = Some(number).filter(|&number| number != 0);
    drive.size = layer.number("size_bytes");
    drive.logical_block_size = folder.logical_block_size();
    drive.rotational = folder.flag("queue/rotational");
}

fn number_in(event: &str) -> Option<u64> {
    let number = |name: &str| entry(event, name)?.parse().ok();
    Some(rustix::fs::makedev(number("MAJOR=")?, number("MINOR=")?))
}

fn sectors(folder: &Folder, name: &str) -> Option<u64> {
    folder.number(name)?.checked_mul(SECTOR)
}

/// Derives the kind of disk and its transport from the folders above its device.
fn transport(name: &str, path: &Path, has_device: bool) -> (LayerKind, Transport) {
    let called = VIRTUAL.iter().find(|(prefix, _)| {
        let number = name.strip_prefix(prefix);
        number.is_some_and(|rest| rest.starts_with(|c: char| c.is_ascii_digit()))
    });
    if let Some((_, called)) = called {
        let transport = match *called {
            "nbd" | "rbd" | "drbd" => Transport::Network((*called).to_owned()),
            // A RAM-backed device keeps its name, because it is a request queue of its own.
            called => Transport::Other(called.to_owned()),
        };
        return (LayerKind::Disk, transport);
    }
    if !has_device {
        return (LayerKind::Disk, Transport::Unknown);
    }
    let has = |prefix: &str| path.iter().any(|name| is_numbered(name, prefix));
    // A SCSI device's folder is named HOST:CHANNEL:TARGET:LUN.
    let last = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
    if last.split(':').count() == 4 {
        let link = [
            ("session", "iscsi"),
            ("rport-", "fc"),
            ("end_device-", "sas"),
            ("ata", "sata"),
            ("usb", "usb"),
            ("virtio", "virtio-scsi"),
        ];
        let link = link.iter().find(|(prefix, _)| has(prefix)).map_or("scsi", |(_, link)| link);
        return (LayerKind::ScsiDisk, Transport::Scsi(link.to_owned()));
    }
    if last.starts_with("virtio") {
        return (LayerKind::VirtioDisk, Transport::Virtio);
    }
    let other = [("mmc", "mmc"), ("vbd-", "xen"), ("nd_", "persistent memory")];
    let other = other.iter().find(|(prefix, _)| last.starts_with(prefix));
    let transport =
        other.map_or(Transport::Unknown, |(_, kind)| Transport::Other((*kind).to_owned()));
    (LayerKind::Disk, transport)
}

/// Whether a name is this prefix and a number.
fn is_numbered(name: &OsStr, prefix: &str) -> bool {
    let rest = name.to_str().and_then(|name| name.strip_prefix(prefix));
    rest.is_some_and(|rest| rest.starts_with(|c: char| c.is_ascii_digit()))
}

/// The rate of a disk's SATA or SAS link, as it was negotiated, in bits per second. Of SAS it is
/// that of all lanes of the port.
fn line(disk: &Folder, link: &str) -> Option<u64> {
    let system = disk.system();
    let rate = |file: String| {
        // `6.0 Gbps` and `12.0 Gbit`.
        let text = system.text(file).ok()?;
        let (number, unit) = text.split_once(' ')?;
        let number: f64 = number.parse().ok().filter(|rate| (0.1..1000.0).contains(rate))?;
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "bounded")]
        unit.starts_with("Gb").then_some((number * 10.0) as u64 * 100_000_000)
    };
    let above = |prefix: &str| {
        let is_named =
            |path: &&Path| path.file_name().is_some_and(|name| is_numbered(name, prefix));
        disk.path().ancestors().find(is_named)
    };
    match link {
        "sata" => {
            let port = above("ata")?.file_name()?.to_str()?.strip_prefix("ata")?;
            rate(format!("sys/class/ata_link/link{port}/sata_spd"))
        }
        "sas" => {
            let lanes = system.list(above("port-")?).ok()?;
            let lanes = lanes.iter().filter(|name| name.starts_with("phy-"));
            let file = |lane| format!("sys/class/sas_phy/{lane}/negotiated_linkrate");
            lanes.map(|lane| rate(file(lane))).sum::<Option<u64>>().filter(|sum| *sum > 0)
        }
        _ => None,
    }
}

fn transport_name(transport: &Transport) -> &str {
    match transport {
        Transport::Scsi(link) => link,
        Transport::Virtio => "virtio",
        Transport::Other(kind) => kind,
        _ => "disk",
    }
}

/// Parses the serial number in page 0x80 (SPC, "unit serial number"): two bytes, a two-byte length,
/// then the text.
fn page_80(page: &[u8]) -> Option<String> {
    let len = usize::from(u16::from_be_bytes([*page.get(2)?, *page.get(3)?]));
    let text = std::str::from_utf8(page.get(4..4 + len)?).ok()?;
    let text = clean(text.trim_matches(['\0', ' ']));
    (!text.is_empty()).then_some(text)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::System;

    #[test]
    fn the_folders_above_have_the_link() {
        let cases = [
            ("sys/devices/pci0000:00/0000:00:1f.2/ata1/host0/target0:0:0/0:0:0:0", "sata"),
            (
                "sys/devices/pci0000:00/0000:00:14.0/usb2/2-1/2-1:1.0/host6/target6:0:0/6:0:0:0",
                "usb",
            ),
            ("sys/devices/platform/host7/session1/target7:0:0/7:0:0:1", "iscsi"),
            (
                "sys/devices/pci0000:00/0000:00:05.0/virtio2/host2/target2:0:0/2:0:0:0",
                "virtio-scsi",
            ),
            ("sys/devices/pseudo/host8/target8:0:0/8:0:0:0", "scsi"),
        ];
        for (path, link) in cases {
            let reported = transport("sda", Path::new(path), true);
            assert_eq!(reported, (LayerKind::ScsiDisk, Transport::Scsi(link.to_owned())), "{path}");
        }
        let virtio =
            transport("vda", Path::new("sys/devices/pci0000:00/0000:00:02.0/virtio1"), true);
        assert_eq!(virtio, (LayerKind::VirtioDisk, Transport::Virtio));
        let zram = transport("zram0", Path::new("sys/devices/virtual/block/zram0"), false);
        assert_eq!(zram, (LayerKind::Disk, Transport::Other("zram".into())));
    }

    #[test]
    fn links_of_disks_have_the_rate_that_was_negotiated() {
        let root = tempfile::tempdir().unwrap();
        let file = |path: &str, text: &str| {
            let path = root.path().join(path);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        };
        let sata = "sys/devices/pci0000:00/0000:00:1f.2/ata3/host2/target2:0:0/2:0:0:0";
        let sas = "sys/devices/pci0000:00/0000:3b:00.0/host0/port-0:1/end_device-0:1/\
                   target0:0:1/0:0:1:0";
        for folder in [sata, sas] {
            file(&format!("{folder}/model"), "x");
        }
        file("sys/class/ata_link/link3/sata_spd", "6.0 Gbps\n");
        for lane in ["phy-0:2", "phy-0:3"] {
            let port = "sys/devices/pci0000:00/0000:3b:00.0/host0/port-0:1";
            file(&format!("{port}/{lane}/uevent"), "");
            file(&format!("sys/class/sas_phy/{lane}/negotiated_linkrate"), "12.0 Gbit\n");
        }
        let system = System::at(root.path());
        let of = |folder: &str, link| line(&system.folder(folder).unwrap(), link);
        assert_eq!(of(sata, "sata"), Some(6_000_000_000));
        assert_eq!(of(sas, "sas"), Some(24_000_000_000));
        assert_eq!((of(sata, "usb"), of(sata, "sas")), (None, None));
        file("sys/class/ata_link/link3/sata_spd", "<unknown>\n");
        assert_eq!(of(sata, "sata"), None);
    }

    #[test]
    fn a_damaged_page_holds_no_serial_number() {
        assert_eq!(page_80(b"\0\x80\0\x04S3R1").as_deref(), Some("S3R1"));
        for page in
            [&b""[..], b"\0\x80", b"\0\x80\0\x09S3R1", b"\0\x80\xff\xff", b"\0\x80\0\x02\xff\xfe"]
        {
            assert_eq!(page_80(page), None);
        }
    }
}
