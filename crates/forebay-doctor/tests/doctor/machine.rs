//! Machines made by hand: one where no direct path can be, and two where one is open.

use forebay_doctor::{GpuWish, Report, Wish, examine, recorded_answer};
use forebay_topology::System;

use crate::tree::Tree;

/// `RegistryDwords` that P2PDMA requires.
pub(crate) const KEYS: &str = "RMForceStaticBar1=1;RmForceDisableIomapWC=1;";
/// cuFile's settings where P2PDMA is wanted.
pub(crate) const SETTINGS: &str = r#"{
    // of the site
    "properties": { "use_pci_p2pdma": true, "allow_compat_mode": true },
    "block": { "nvme": { "use_pci_p2pdma": true }, "raid": { "use_pci_p2pdma": true } },
    "denylist": { "drivers": [], "devices": [], "mounts": [], "filesystems": [] }
}
"#;
pub(crate) const GPU: &str = "0000:41:00.0";
const PORT: &str = "sys/devices/pci0000:40/0000:40:01.0";
const SWITCH: &str = "sys/devices/pci0000:40/0000:40:01.0/0000:42:00.0";

/// A machine, and what cuFile says on it.
pub(crate) struct Machine {
    pub(crate) tree: Tree,
    pub(crate) cufile: Option<String>,
}

impl Machine {
    /// A machine that shows nothing.
    pub(crate) fn empty() -> Self {
        Self { tree: Tree::new(), cufile: None }
    }

    /// A virtual machine with an H200, and neither of both ways.
    pub(crate) fn virtual_h200() -> Self {
        let mut tree = Tree::new();
        let gpu = "sys/devices/pci0000:00/0000:41:00.0";
        card(&tree, gpu, "H200", 256 << 30);
        tree.device("254:0", "pci0000:00/0000:00:03.0/virtio0/block/vda");
        tree.link(
            "sys/devices/pci0000:00/0000:00:03.0/virtio0/block/vda/device",
            "../../../virtio0",
        );
        tree.link(
            "sys/devices/pci0000:00/0000:00:03.0/virtio0/subsystem",
            "../../../../bus/virtio",
        );
        tree.write("sys/bus/virtio/keep", "");
        tree.write(
            "sys/devices/pci0000:00/0000:00:03.0/uevent",
            "DRIVER=virtio-pci\nPCI_ID=1AF4:1042\n",
        );
        tree.mount(25, "254:0", "/data", "ext4 /dev/root rw,discard,errors=remount-ro");
        // The file itself says what exists.
        tree.answer(concat!(
            r#"{"path":"/data/f","dev":"254:0","mode":"100644","ino":12,"size":9,"mnt_id":25,"#,
            r#""fiemap":{"extents":[[0,4096,4096,"0x1"]]}}"#
        ));
        kernel(&tree, "6.18.5", "CONFIG_ZONE_DEVICE=y\n# CONFIG_PCI_P2PDMA is not set\n");
        driver(&tree, "Open Kernel Module for x86_64  580.159.04", "");
        common(&tree);
        let cufile = "library /usr/lib/libcufile.so.0\nversion 1.15\nopened\n\
                      setting use_pci_p2pdma false\nlimits 16384 128\nend exited 0\n";
        tree.write("etc/cufile.json", r#"{ "properties": { "allow_compat_mode": true } }"#);
        Self { tree, cufile: Some(cufile.into()) }
    }

    /// A machine with everything that P2PDMA requires: an H100 and a drive below one switch.
    pub(crate) fn p2pdma() -> Self {
        let mut tree = Tree::new();
        let gpu = format!("{SWITCH}/0000:43:00.0/{GPU}");
        card(&tree, &gpu, "H100 80GB HBM3", 128 << 30);
        for file in ["size", "available"] {
            tree.write(&format!("{gpu}/p2pmem/{file}"), "85899345920\n");
        }
        tree.write(&format!("{gpu}/p2pmem/published"), "1\n");
        for bridge in [PORT.into(), SWITCH.into(), format!("{SWITCH}/0000:43:00.0")] {
            bridge_with(&tree, &bridge, 0);
        }
        bridge_with(&tree, &format!("{SWITCH}/0000:43:01.0"), 0);
        let folder = "pci0000:40/0000:40:01.0/0000:42:00.0/0000:43:01.0/0000:44:00.0";
        nvme(&tree, folder, "259:1", 1);
        tree.mount(25, "259:1", "/data", "ext4 /dev/nvme1n1 rw,data=ordered");
        tree.answer(r#"{"path":"/data","dev":"259:1","mode":"40755","ino":2,"mnt_id":25}"#);
        kernel(&tree, "6.14.0", "CONFIG_ZONE_DEVICE=y\nCONFIG_PCI_P2PDMA=y\n");
        driver(&tree, "Open Kernel Module for x86_64  595.45.01", KEYS);
        common(&tree);
        udev(&tree, "259:1", "ext4");
        tree.write("etc/cufile.json", SETTINGS);
        let cufile = "library /usr/lib/libcufile.so.0\nversion 1.19\nopened\n\
                      storage nvme p2pdma\nend exited 0\n";
        Self { tree, cufile: Some(cufile.into()) }
    }

    /// A machine with everything that nvidia-fs takes, and without P2PDMA in its kernel.
    pub(crate) fn nvidia_fs() -> Self {
        let mut machine = Self::p2pdma();
        kernel(&machine.tree, "6.8.0", "CONFIG_ZONE_DEVICE=y\n# CONFIG_PCI_P2PDMA is not set\n");
        driver(&machine.tree, "Open Kernel Module for x86_64  570.86.10", "");
        machine.remove(&format!("{SWITCH}/0000:43:00.0/{GPU}/p2pmem"));
        machine.tree.write("sys/module/nvidia_fs/version", "2.28.4\n");
        machine.tree.write("proc/driver/nvidia-fs/modules", "nvme\nrpcrdma\n");
        machine.tree.write("dev/nvidia-fs0", "");
        machine.tree.write("etc/cufile.json", "{ \"properties\": {} }");
        machine.cufile = Some(
            "library /l.so\nversion 1.19\nopened\nstorage nvme nvidia-fs\nend exited 0\n".into(),
        );
        machine
    }

    pub(crate) fn remove(&self, path: &str) {
        let path = self.tree.root().join(path);
        let removed =
            if path.is_dir() { std::fs::remove_dir_all(path) } else { std::fs::remove_file(path) };
        removed.expect("it was there");
    }

    /// Mounts another file system at `/other`.
    pub(crate) fn mount(&mut self, number: &str, rest: &str) {
        self.tree.mount(90, number, "/other", rest);
    }

    /// Writes all of it down as a record; the folder goes away with the machine.
    pub(crate) fn settle(&self) -> std::path::PathBuf {
        self.tree.settle();
        let dir = self.tree.root().parent().expect("a folder").to_owned();
        if let Some(text) = &self.cufile {
            std::fs::write(dir.join("expected/cufile.txt"), text).expect("a file");
        }
        dir
    }

    pub(crate) fn examine(&self, path: &str) -> Report {
        self.examine_gpu(path, GpuWish::First)
    }

    pub(crate) fn examine_gpu(&self, path: &str, gpu: GpuWish) -> Report {
        self.settle();
        self.examine_now(path, gpu)
    }

    /// The same without putting the table of mounts in its place again.
    pub(crate) fn examine_settled(&self, path: &str) -> Report {
        self.examine_now(path, GpuWish::First)
    }

    fn examine_now(&self, path: &str, gpu: GpuWish) -> Report {
        let dir = self.tree.root().parent().expect("a folder").to_owned();
        let system = System::fixture(&dir).expect("a system");
        let answer = recorded_answer(&dir).expect("a file, or none");
        examine(&system, &Wish { path: path.into(), gpu }, answer)
    }
}

fn card(tree: &Tree, folder: &str, model: &str, bar1: u64) {
    tree.write(&format!("{folder}/class"), "0x030200\n");
    tree.write(&format!("{folder}/uevent"), "DRIVER=nvidia\nPCI_CLASS=30200\nPCI_ID=10DE:2335\n");
    tree.write(&format!("{folder}/numa_node"), "0\n");
    for when in ["current", "max"] {
        tree.write(&format!("{folder}/{when}_link_width"), "16\n");
        tree.write(&format!("{folder}/{when}_link_speed"), "32.0 GT/s PCIe\n");
    }
    bar1_of(tree, folder, bar1);
    let below = folder.strip_prefix("sys/devices/").expect("a device");
    tree.link(&format!("sys/bus/pci/devices/{GPU}"), &format!("../../../devices/{below}"));
    let information = format!("Model: \t\t NVIDIA {model}\nGPU UUID: \t GPU-1-2-3\n");
    tree.write(&format!("proc/driver/nvidia/gpus/{GPU}/information"), information);
}

/// The memory ranges of a card, the second of `size` bytes.
pub(crate) fn bar1_of(tree: &Tree, folder: &str, size: u64) {
    let ranges = format!(
        "0x0000000090000000 0x0000000090ffffff 0x0000000000040200\n\
         0x0000004000000000 {:#018x} 0x000000000014220c\n",
        0x40_0000_0000_u64 + size - 1
    );
    tree.write(&format!("{folder}/resource"), ranges);
}

/// Where the card of the machine with P2PDMA is.
pub(crate) fn gpu_folder() -> String {
    format!("{SWITCH}/0000:43:00.0/{GPU}")
}

/// A bridge whose register of Access Control Services is `control`.
pub(crate) fn bridge_with(tree: &Tree, folder: &str, control: u16) {
    let mut bytes = vec![0_u8; 4096];
    bytes[0x100..0x104].copy_from_slice(&[0x0d, 0, 1, 0]);
    bytes[0x106..0x108].copy_from_slice(&control.to_le_bytes());
    tree.write(&format!("{folder}/config"), bytes);
    for when in ["current", "max"] {
        tree.write(&format!("{folder}/{when}_link_width"), "16\n");
        tree.write(&format!("{folder}/{when}_link_speed"), "32.0 GT/s PCIe\n");
    }
    let (below, name) = (folder.strip_prefix("sys/devices/").unwrap(), folder.rsplit('/').next());
    let link = format!("sys/bus/pci/devices/{}", name.unwrap());
    if !tree.root().join(&link).exists() {
        tree.link(&link, &format!("../../../devices/{below}"));
    }
}

/// The first bridge of the machine with P2PDMA.
pub(crate) fn port() -> String {
    PORT.to_owned()
}

/// An NVMe drive at `folder`, below `sys/devices`.
pub(crate) fn nvme(tree: &Tree, folder: &str, number: &str, index: u32) {
    let controller = format!("{folder}/nvme/nvme{index}");
    let block = format!("{controller}/nvme{index}n1");
    tree.device(number, &block);
    tree.link(&format!("sys/devices/{block}/device"), "../");
    tree.link(&format!("sys/block/nvme{index}n1"), &format!("../devices/{block}"));
    let files = [("transport", "pcie"), ("state", "live"), ("model", "PM1743"), ("serial", "S1")];
    for (file, text) in files {
        tree.write(&format!("sys/devices/{controller}/{file}"), format!("{text}\n"));
    }
    tree.write(&format!("sys/devices/{controller}/subsysnqn"), format!("nqn.test:{index}\n"));
    tree.write(&format!("sys/devices/{block}/nsid"), "1\n");
    tree.write(&format!("sys/devices/{folder}/uevent"), "DRIVER=nvme\nPCI_ID=144D:A826\n");
    tree.write(&format!("sys/devices/{folder}/numa_node"), "0\n");
    for when in ["current", "max"] {
        tree.write(&format!("sys/devices/{folder}/{when}_link_width"), "4\n");
        tree.write(&format!("sys/devices/{folder}/{when}_link_speed"), "32.0 GT/s PCIe\n");
    }
}

pub(crate) fn kernel(tree: &Tree, release: &str, settings: &str) {
    tree.write("proc/sys/kernel/osrelease", format!("{release}\n"));
    tree.write(&format!("boot/config-{release}"), settings);
}

pub(crate) fn driver(tree: &Tree, words: &str, keys: &str) {
    let line = format!("NVRM version: NVIDIA UNIX {words}  Release Build  (x)\nGCC version: 13\n");
    tree.write("proc/driver/nvidia/version", line);
    let params = format!("ResmanDebugLevel: 4294967295\nRegistryDwords: \"{keys}\"\n");
    tree.write("proc/driver/nvidia/params", params);
}

pub(crate) fn udev(tree: &Tree, number: &str, kind: &str) {
    let lines = format!("E:ID_FS_USAGE=filesystem\nE:ID_FS_TYPE={kind}\nE:ID_FS_UUID=secret\n");
    tree.write(&format!("run/udev/data/b{number}"), lines);
}

fn common(tree: &Tree) {
    tree.write("sys/class/keep", "");
    tree.write("sys/class/iommu/.keep", "");
    std::fs::remove_file(tree.root().join("sys/class/iommu/.keep")).expect("it is there");
    tree.write("proc/modules", "");
    tree.write("proc/self/limits", "Max locked memory  unlimited  unlimited  bytes\n");
    tree.write("proc/self/status", "CapEff:\t000001ffffffffff\n");
}
