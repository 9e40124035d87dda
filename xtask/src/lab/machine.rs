//! The virtual machine: the location of its drives, and the emulator's command line for it.
//!
//! `cargo xtask lab` compares a map with this table, not with the output of some program in the
//! guest.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::image::Image;
use crate::folders::failed;
use crate::packages::Tree;
use crate::process::{Result, find};

/// The packages of the emulator.
pub(crate) const PACKAGES: [&str; 1] = ["qemu-system-x86"];

/// Bytes that a slow drive moves in a second.
const SLOW: u64 = 16_000_000;

/// MiB of memory of each of the two NUMA nodes.
const NODE_MIB: u32 = 1536;

/// How a drive hangs on its NUMA node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Seat {
    /// On a separate root port.
    Port,
    /// On the node's switch, with other drives.
    Switch,
}

/// One NVMe drive with one namespace.
#[derive(Debug, Clone, Copy)]
struct Drive {
    serial: &'static str,
    mib: u32,
    node: u8,
    seat: Seat,
    /// Whether it is slow enough for something to happen in the middle of a read.
    is_slow: bool,
}

const fn drive(serial: &'static str, mib: u32, node: u8, seat: Seat) -> Drive {
    Drive { serial, mib, node, seat, is_slow: false }
}

const fn slow(drive: Drive) -> Drive {
    Drive { is_slow: true, ..drive }
}

/// The drives of the machine that has every situation.
const EVERY: [Drive; 22] = [
    drive("PLAIN", 512, 0, Seat::Port),
    slow(drive("PULLED", 256, 1, Seat::Port)),
    drive("STRIPEA", 256, 0, Seat::Switch),
    drive("STRIPEB", 256, 0, Seat::Switch),
    drive("STRIPEC", 256, 1, Seat::Switch),
    drive("STRIPED", 256, 1, Seat::Switch),
    slow(drive("MIRRORA", 256, 0, Seat::Port)),
    slow(drive("MIRRORB", 256, 1, Seat::Port)),
    slow(drive("PARITYA", 256, 0, Seat::Port)),
    slow(drive("PARITYB", 256, 0, Seat::Port)),
    slow(drive("PARITYC", 256, 1, Seat::Port)),
    slow(drive("ROWA", 128, 0, Seat::Port)),
    slow(drive("ROWB", 128, 1, Seat::Port)),
    drive("LVMA", 512, 0, Seat::Port),
    drive("LVMB", 512, 1, Seat::Port),
    drive("BTRFSA", 256, 0, Seat::Port),
    drive("BTRFSB", 256, 1, Seat::Port),
    drive("BTRFSC", 256, 1, Seat::Port),
    drive("CRYPT", 256, 1, Seat::Port),
    drive("NESTA", 256, 0, Seat::Port),
    drive("NESTB", 256, 1, Seat::Port),
    slow(drive("FABRIC", 256, 1, Seat::Port)),
];

/// The drives of the machine that is measured.
const CAPPED: [Drive; 4] = [
    drive("STRIPEA", 1024, 0, Seat::Port),
    drive("STRIPEB", 1024, 0, Seat::Port),
    drive("STRIPEC", 1024, 1, Seat::Port),
    drive("STRIPED", 1024, 1, Seat::Port),
];

/// Which machine is built.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    /// With every situation.
    Every,
    /// Four drives, each of which moves this many bytes a second.
    Capped(u64),
}

impl Kind {
    const fn drives(self) -> &'static [Drive] {
        match self {
            Self::Every => &EVERY,
            Self::Capped(_) => &CAPPED,
        }
    }
}

/// The NUMA nodes of the paths to a drive, sorted; `None` if the machine has no such drive, or it
/// is not on its own PCI device.
pub(crate) fn nodes(serial: &str) -> Option<Vec<u64>> {
    match serial {
        "PATHS" => Some(vec![0, 1]),
        "TWO" => Some(vec![1]),
        _ => {
            let drive = EVERY.iter().find(|drive| drive.serial == serial)?;
            Some(vec![drive.node.into()])
        }
    }
}

/// The parameters of one start of the machine.
#[derive(Debug)]
pub(crate) struct Start<'a> {
    pub(crate) kind: Kind,
    pub(crate) image: &'a Image,
    /// The folder that the guest sees as `/lab`.
    pub(crate) share: &'a Path,
    /// The folder of the drives' contents.
    pub(crate) drives: &'a Path,
    /// The guest's script, without `.sh`.
    pub(crate) script: &'a str,
    /// Seconds after which the guest ends by itself.
    pub(crate) seconds: u64,
    /// Whether the processor's own virtualisation is used.
    pub(crate) kvm: bool,
}

impl Start<'_> {
    /// The emulator with its whole command line; `tools` holds it if this machine has none.
    pub(crate) fn command(&self, tools: Option<&Tree>) -> Result<Command> {
        let mut wiring = Wiring { words: Vec::new(), folder: self.drives, ports: 0, slots: [0; 2] };
        self.board(&mut wiring);
        wiring.bridges();
        for drive in self.kind.drives() {
            wiring.nvme(drive, self.kind)?;
        }
        if self.kind == Kind::Every {
            wiring.two_paths()?;
            wiring.two_namespaces()?;
            wiring.scsi_paths()?;
        }
        let mut command = match tools {
            Some(tree) => {
                let share = |name: &str| tree.folder.join("usr/share").join(name);
                let mut command = tree.command("qemu-system-x86_64");
                let modules = tree.folder.join("usr/lib/x86_64-linux-gnu/qemu");
                command.env("QEMU_MODULE_DIR", modules);
                command.arg("-L").arg(share("qemu")).arg("-L").arg(share("seabios"));
                command
            }
            None => Command::new(find("qemu-system-x86_64").ok_or("no `qemu-system-x86_64`")?),
        };
        command.args(&wiring.words);
        Ok(command)
    }

    /// All but the drives.
    fn board(&self, wiring: &mut Wiring<'_>) {
        let path = |path: &Path| path.display().to_string();
        wiring.word("-nodefaults -no-reboot -display none -monitor none -serial stdio");
        wiring.word(if self.kvm { "-accel kvm -cpu host" } else { "-accel tcg,thread=multi" });
        if !self.kvm {
            wiring.word("-cpu Nehalem");
        }
        wiring.word(&format!("-machine q35 -smp 2 -m {}", 2 * NODE_MIB));
        for node in 0..2 {
            wiring.word(&format!("-object memory-backend-ram,id=ram{node},size={NODE_MIB}M"));
            wiring.word(&format!("-numa node,nodeid={node},cpus={node},memdev=ram{node}"));
        }
        wiring.word("-numa dist,src=0,dst=1,val=20");
        wiring.option("-kernel", path(&self.image.kernel));
        wiring.option("-initrd", path(&self.image.first));
        wiring.option(
            "-append",
            format!(
                "console=ttyS0 quiet panic=-1 mitigations=off rdinit=/init lab.script={} \
                 lab.seconds={}",
                self.script, self.seconds
            ),
        );
        let disk = path(&self.image.disk);
        wiring.option(
            "-drive",
            format!("if=none,id=system,file={disk},format=raw,snapshot=on,cache=unsafe"),
        );
        wiring.word("-device virtio-blk-pci,drive=system,serial=SYSTEM");
        wiring.option(
            "-fsdev",
            format!("local,id=share,path={},security_model=none", path(self.share)),
        );
        wiring.word("-device virtio-9p-pci,fsdev=share,mount_tag=lab");
    }
}

/// The words of the command line, and the occupied bus slots.
struct Wiring<'a> {
    words: Vec<String>,
    folder: &'a Path,
    ports: u32,
    slots: [u32; 2],
}

impl Wiring<'_> {
    /// Adds words without blanks in them.
    fn word(&mut self, words: &str) {
        self.words.extend(words.split(' ').map(str::to_owned));
    }

    /// Adds an option whose value may contain any characters.
    fn option(&mut self, name: &str, value: String) {
        self.words.extend([name.to_owned(), value]);
    }

    /// A host bridge for each NUMA node, with a switch.
    fn bridges(&mut self) {
        for (node, bus) in [(0, 32), (1, 160)] {
            let bridge = format!("pxb-pcie,id=root{node},bus_nr={bus},numa_node={node}");
            self.word(&format!("-device {bridge},bus=pcie.0"));
        }
        for node in 0..2 {
            let port = self.port(node);
            self.word(&format!("-device x3130-upstream,id=switch{node},bus={port}"));
        }
    }

    /// A fresh root port on a node.
    fn port(&mut self, node: u8) -> String {
        self.ports += 1;
        let slot = &mut self.slots[usize::from(node)];
        *slot += 1;
        let (port, address) = (self.ports, *slot);
        self.word(&format!(
            "-device pcie-root-port,id=port{port},bus=root{node},chassis={port},slot={port},\
             addr={address:#x},io-reserve=0,hotplug=off,x-speed=16,x-width=4"
        ));
        format!("port{port}")
    }

    /// A fresh port below a node's switch.
    fn below_switch(&mut self, node: u8) -> String {
        self.ports += 1;
        let port = self.ports;
        self.word(&format!(
            "-device xio3130-downstream,id=port{port},bus=switch{node},chassis={port},slot={port}"
        ));
        format!("port{port}")
    }

    fn nvme(&mut self, drive: &Drive, kind: Kind) -> Result<()> {
        let bus = match drive.seat {
            Seat::Port => self.port(drive.node),
            Seat::Switch => self.below_switch(drive.node),
        };
        let more = match kind {
            Kind::Every if drive.is_slow => capped(SLOW),
            Kind::Every => String::new(),
            Kind::Capped(rate) => capped(rate),
        };
        let serial = drive.serial;
        self.medium(serial, drive.mib, &more)?;
        self.word(&format!(
            "-device nvme,id=nvme-{serial},serial={serial},drive={serial},bus={bus}"
        ));
        Ok(())
    }

    /// The medium of a drive: a file, empty at first.
    fn medium(&mut self, name: &str, mib: u32, more: &str) -> Result<PathBuf> {
        let path = self.folder.join(format!("{name}.img"));
        let file = File::create(&path).map_err(failed(&path))?;
        file.set_len(u64::from(mib) << 20).map_err(failed(&path))?;
        self.backend(name, &path, more);
        Ok(path)
    }

    fn backend(&mut self, name: &str, path: &Path, more: &str) {
        let file = path.display();
        self.option(
            "-drive",
            format!("if=none,id={name},file={file},format=raw,cache=unsafe,discard=unmap{more}"),
        );
    }

    /// One namespace behind two controllers on two nodes.
    fn two_paths(&mut self) -> Result<()> {
        self.medium("PATHS", 256, &capped(SLOW))?;
        self.word("-device nvme-subsys,id=paths,nqn=paths");
        for node in 0..2 {
            let bus = self.port(node);
            self.word(&format!("-device nvme,id=path{node},serial=PATHS,subsys=paths,bus={bus}"));
        }
        self.word("-device nvme-ns,drive=PATHS,bus=path0,nsid=1,shared=on");
        Ok(())
    }

    /// One controller with two namespaces, the second with blocks of 4 KiB.
    fn two_namespaces(&mut self) -> Result<()> {
        self.medium("TWO1", 128, "")?;
        self.medium("TWO2", 128, "")?;
        let bus = self.port(1);
        self.word("-device nvme-subsys,id=two,nqn=two");
        self.word(&format!("-device nvme,id=two-spaces,serial=TWO,subsys=two,bus={bus}"));
        self.word("-device nvme-ns,drive=TWO1,bus=two-spaces,nsid=1");
        let blocks = "logical_block_size=4096,physical_block_size=4096";
        self.word(&format!("-device nvme-ns,drive=TWO2,bus=two-spaces,nsid=2,{blocks}"));
        Ok(())
    }

    /// One SCSI disk on two buses, for a multipath volume of device-mapper.
    fn scsi_paths(&mut self) -> Result<()> {
        let more = format!(",file.locking=off{}", capped(SLOW));
        let path = self.medium("SCSI0", 256, &more)?;
        self.backend("SCSI1", &path, &more);
        for bus in 0..2 {
            self.word(&format!("-device virtio-scsi-pci,id=scsi{bus},bus=pcie.0"));
            self.word(&format!(
                "-device scsi-hd,bus=scsi{bus}.0,drive=SCSI{bus},serial=SCSI,\
                 wwn=0x5000c50000000001,share-rw=on"
            ));
        }
        Ok(())
    }
}

/// The option that caps a drive at `rate` bytes per second.
fn capped(rate: u64) -> String {
    format!(",throttling.bps-total={rate}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_drive_has_a_serial_number_of_its_own() {
        for kind in [Kind::Every, Kind::Capped(1)] {
            let mut serials: Vec<&str> = kind.drives().iter().map(|drive| drive.serial).collect();
            serials.sort_unstable();
            serials.dedup();
            assert_eq!(serials.len(), kind.drives().len());
            assert!(serials.iter().all(|serial| nodes(serial).is_some()));
        }
        assert_eq!((nodes("PATHS"), nodes("SCSI")), (Some(vec![0, 1]), None));
    }
}
