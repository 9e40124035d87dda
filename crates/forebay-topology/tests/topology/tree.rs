//! Small systems made by hand: folders in place of `/sys` and `/proc`, and a record in place of the
//! kernel.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use forebay_topology::{Resolver, StorageMap, System};
use tempfile::TempDir;

/// A system in a temporary folder.
pub(crate) struct Tree {
    folder: TempDir,
    probe: String,
    mounts: String,
}

impl Tree {
    pub(crate) fn new() -> Self {
        let folder = crate::scratch();
        fs::create_dir_all(folder.path().join("root/sys/dev/block")).expect("a folder");
        fs::create_dir_all(folder.path().join("expected")).expect("a folder");
        Self { folder, probe: String::new(), mounts: String::new() }
    }

    pub(crate) fn root(&self) -> PathBuf {
        self.folder.path().join("root")
    }

    /// Writes a file below the root.
    pub(crate) fn write(&self, path: &str, bytes: impl AsRef<[u8]>) {
        let path = self.root().join(path);
        fs::create_dir_all(path.parent().expect("a file is in a folder")).expect("a folder");
        fs::write(path, bytes).expect("a file");
    }

    /// Makes a link below the root.
    pub(crate) fn link(&self, path: &str, target: &str) {
        let path = self.root().join(path);
        fs::create_dir_all(path.parent().expect("a link is in a folder")).expect("a folder");
        symlink(target, path).expect("a link");
    }

    /// Adds a block device in `folder`, which is below `sys/devices`.
    pub(crate) fn device(&self, number: &str, folder: &str) {
        self.write(&format!("sys/devices/{folder}/dev"), format!("{number}\n"));
        self.write(&format!("sys/devices/{folder}/size"), "2097152\n");
        let target = format!("../../devices/{folder}");
        self.link(&format!("sys/dev/block/{number}"), &target);
    }

    /// Adds an NVMe drive on PCI, whose number is `259:INDEX`.
    pub(crate) fn drive(&self, index: u32) {
        let pci = format!("pci0000:00/0000:{index:02x}:00.0");
        let controller = format!("{pci}/nvme/nvme{index}");
        let block = format!("{controller}/nvme{index}n1");
        self.device(&format!("259:{index}"), &block);
        self.link(&format!("sys/devices/{block}/device"), "../");
        self.write(&format!("sys/devices/{block}/nsid"), "1\n");
        self.write(&format!("sys/devices/{block}/queue/logical_block_size"), "512\n");
        self.write(&format!("sys/devices/{controller}/serial"), format!("S{index}\n"));
        self.write(&format!("sys/devices/{controller}/model"), "Fast\n");
        self.write(&format!("sys/devices/{controller}/transport"), "pcie\n");
        self.write(&format!("sys/devices/{controller}/state"), "live\n");
        let nqn = format!("nqn.2014-08.test:{index}\n");
        self.write(&format!("sys/devices/{controller}/subsysnqn"), nqn);
        self.write(&format!("sys/devices/{pci}/numa_node"), "0\n");
        self.write(&format!("sys/devices/{pci}/current_link_width"), "4\n");
        self.write(&format!("sys/devices/{pci}/current_link_speed"), "32.0 GT/s PCIe\n");
        self.write(&format!("sys/devices/{pci}/uevent"), "DRIVER=nvme\nPCI_ID=144D:A80A\n");
    }

    /// Adds a mount of the device `number`, and a file on it.
    pub(crate) fn mount(&mut self, id: u64, number: &str, point: &str, rest: &str) {
        self.mounts += &format!("{id} 1 {number} / {point} rw - {rest}\n");
        self.file(&format!("{point}/f"), id, number);
    }

    /// Adds a file that the kernel knows.
    pub(crate) fn file(&mut self, path: &str, mount: u64, number: &str) {
        self.probe += &format!(
            "{{\"path\":\"{path}\",\"realpath\":\"{path}\",\"dev\":\"{number}\",\"rdev\":\"0:0\",\
             \"mode\":\"100644\",\"ino\":12,\"size\":9,\"blksize\":4096,\"mnt_id\":{mount}}}\n"
        );
    }

    /// Adds a line to the kernel's answers.
    pub(crate) fn answer(&mut self, line: &str) {
        self.probe += line;
        self.probe.push('\n');
    }

    /// Puts the table of mounts and the kernel's answers in their places.
    pub(crate) fn settle(&self) {
        self.write("proc/self/mountinfo", &self.mounts);
        fs::write(self.folder.path().join("expected/probe.jsonl"), &self.probe).expect("a file");
    }

    pub(crate) fn resolver(&self) -> Resolver {
        Resolver::new(System::fixture(self.folder.path()).expect("a system"))
    }

    pub(crate) fn map(&self, path: &str) -> StorageMap {
        self.settle();
        self.resolver().resolve(Path::new(path))
    }
}
