//! The virtual machine: the location of its drives, the emulator's command line for it, and its
//! run.
//!
//! `cargo xtask lab` compares a map with this table, not with the output of some program in the
//! guest.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Instant;

use crate::folders::failed;
use crate::process::{self, Result, say};

/// Seconds after which the guest ends by itself, and the emulator at the latest.
const GUEST_S: u64 = 1500;
const EMULATOR_S: &str = "1560";

/// How the guest begins the lines that are meant for a person.
const SPOKEN: &str = "lab: ";

/// Lines of the console that are shown when the machine did not end as it should.
const TAIL: usize = 30;

/// The option that caps a slow drive, so that something can happen in the middle of a read.
const SLOW: &str = ",throttling.bps-total=16000000";

/// MiB of memory of each of the two NUMA nodes.
const NODE_MIB: u32 = 1536;

/// How a drive hangs on its NUMA node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Seat {
    /// On a separate root port.
    Port,
    /// The same, and slow.
    SlowPort,
    /// On the node's switch, with other drives.
    Switch,
}
use Seat::{Port, SlowPort, Switch};

/// The NVMe drives with one namespace: serial number, MiB, NUMA node.
const DRIVES: [(&str, u32, u8, Seat); 22] = [
    ("PLAIN", 512, 0, Port),
    ("PULLED", 256, 1, SlowPort),
    ("STRIPEA", 256, 0, Switch),
    ("STRIPEB", 256, 0, Switch),
    ("STRIPEC", 256, 1, Switch),
    ("STRIPED", 256, 1, Switch),
    ("MIRRORA", 256, 0, SlowPort),
    ("MIRRORB", 256, 1, SlowPort),
    ("PARITYA", 256, 0, SlowPort),
    ("PARITYB", 256, 0, SlowPort),
    ("PARITYC", 256, 1, SlowPort),
    ("ROWA", 128, 0, SlowPort),
    ("ROWB", 128, 1, SlowPort),
    ("LVMA", 512, 0, Port),
    ("LVMB", 512, 1, Port),
    ("BTRFSA", 256, 0, Port),
    ("BTRFSB", 256, 1, Port),
    ("BTRFSC", 256, 1, Port),
    ("CRYPT", 256, 1, Port),
    ("NESTA", 256, 0, Port),
    ("NESTB", 256, 1, Port),
    ("FABRIC", 256, 1, SlowPort),
];

/// The NUMA nodes of the paths to a drive, sorted; `None` if the machine has no such drive, or it
/// is not on its own PCI device.
pub(crate) fn nodes(serial: &str) -> Option<Vec<u64>> {
    match serial {
        "PATHS" => Some(vec![0, 1]),
        "TWO" => Some(vec![1]),
        _ => DRIVES.iter().find(|drive| drive.0 == serial).map(|drive| vec![drive.2.into()]),
    }
}

/// The parameters of one start of the machine.
#[derive(Debug)]
pub(crate) struct Start<'a> {
    /// The folder with what `prepare.sh` made.
    pub(crate) cache: &'a Path,
    /// The folder that the guest sees as `/lab`.
    pub(crate) share: &'a Path,
    /// The folder of the drives' contents.
    pub(crate) drives: &'a Path,
    /// The guest's script, without `.sh`.
    pub(crate) script: &'a str,
    /// Whether the processor's own virtualisation is used.
    pub(crate) kvm: bool,
}

impl Start<'_> {
    /// Runs the machine until it ends; its console is also kept in a file.
    pub(crate) fn run(&self) -> Result<()> {
        // It ends with this process and after a time, whatever the guest does.
        let bound = ["--pdeathsig", "KILL"];
        let mut bounded = Command::new("setpriv");
        bounded.args(bound).args(["timeout", "--foreground", EMULATOR_S, "setpriv"]).args(bound);
        bounded.arg(self.cache.join("qemu")).args(self.words()?).stdin(Stdio::null());

        let begun = Instant::now();
        let mut console: Vec<String> = Vec::new();
        let ended = process::each_line(&mut bounded, |_, line| {
            if line.starts_with(SPOKEN) {
                say!("{line}");
            }
            console.push(line.to_owned());
        })?;
        let log = self.cache.join("console.txt");
        fs::write(&log, console.join("\n")).map_err(failed(&log))?;
        if ended {
            say!("lab: the machine ran for {} s", begun.elapsed().as_secs());
            return Ok(());
        }
        say!(err, "lab: the last lines of the virtual machine:");
        console[console.len().saturating_sub(TAIL)..].iter().for_each(|line| say!(err, "  {line}"));
        Err(format!("the virtual machine failed; its console is in `{}`", log.display()))
    }

    /// The emulator's command line.
    fn words(&self) -> Result<Vec<String>> {
        let mut wiring = Wiring { words: Vec::new(), folder: self.drives, ports: 0, slots: [0; 2] };
        self.board(&mut wiring);
        wiring.bridges();
        for (serial, mib, node, seat) in DRIVES {
            let bus = if seat == Switch { wiring.below_switch(node) } else { wiring.port(node) };
            wiring.medium(serial, mib, if seat == SlowPort { SLOW } else { "" })?;
            let device = format!("nvme,id=nvme-{serial},serial={serial},drive={serial},bus={bus}");
            wiring.word(&format!("-device {device}"));
        }
        wiring.two_paths()?;
        wiring.two_namespaces()?;
        wiring.scsi_paths()?;
        Ok(wiring.words)
    }

    /// All but the drives.
    fn board(&self, wiring: &mut Wiring<'_>) {
        wiring.word("-nodefaults -no-reboot -display none -monitor none -serial stdio");
        let tcg = "-accel tcg,thread=multi -cpu Nehalem";
        wiring.word(if self.kvm { "-accel kvm -cpu host" } else { tcg });
        wiring.word(&format!("-machine q35 -smp 2 -m {}", 2 * NODE_MIB));
        for node in 0..2 {
            wiring.word(&format!("-object memory-backend-ram,id=ram{node},size={NODE_MIB}M"));
            wiring.word(&format!("-numa node,nodeid={node},cpus={node},memdev=ram{node}"));
        }
        wiring.word("-numa dist,src=0,dst=1,val=20");
        let cache = self.cache.display();
        wiring.option("-kernel", format!("{cache}/kernel"));
        wiring.option("-initrd", format!("{cache}/first.cpio"));
        let script = self.script;
        let append = "console=ttyS0 quiet panic=-1 mitigations=off rdinit=/init";
        let append = format!("{append} lab.script={script} lab.seconds={GUEST_S}");
        wiring.option("-append", append);
        let disk = format!("if=none,id=system,file={cache}/system.img,format=raw");
        wiring.option("-drive", format!("{disk},snapshot=on,cache=unsafe"));
        wiring.word("-device virtio-blk-pci,drive=system,serial=SYSTEM");
        let share = format!("local,id=share,path={},security_model=none", self.share.display());
        wiring.option("-fsdev", share);
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
        self.medium("PATHS", 256, SLOW)?;
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
        let more = format!(",file.locking=off{SLOW}");
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
