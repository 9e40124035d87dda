//! Recorded systems, drawn.

use std::fs;
use std::io::Write as _;
use std::path::PathBuf;
use std::process::{Command, Stdio};

use serde_json::{Value, json};
use tempfile::TempDir;

use crate::map::{bad, good};
use crate::report::made;

/// The library's own records of two kernels; part of the test, so that it runs anywhere.
const ARCHIVE: &[u8] =
    include_bytes!("../../../../forebay-topology/tests/topology/linux-6.12-iommu.tar.gz");

/// Where one of its drives hangs.
const SLOT: &str = "sys/devices/pci0000:40/0000:40:02.0/0000:42:00.0/0000:43:00.0/0000:44:00.0";

/// A recorded system in a folder of its own.
pub(crate) struct Recorded {
    folder: TempDir,
}

impl Recorded {
    /// `None` where there is no `tar`.
    #[allow(clippy::print_stdout, reason = "what a test skips is printed")]
    fn open() -> Option<Self> {
        let folder = tempfile::tempdir().unwrap();
        let mut tar = Command::new("tar");
        tar.args(["-xzf", "-", "--strip-components=1", "-C"]).arg(folder.path());
        let Ok(mut child) = tar.stdin(Stdio::piped()).spawn() else {
            println!("skipped: recorded systems: there is no `tar`");
            return None;
        };
        child.stdin.take().unwrap().write_all(ARCHIVE).unwrap();
        assert!(child.wait().unwrap().success());
        Some(Self { folder })
    }

    /// The same with its two display adapters made GPUs, at rest.
    pub(crate) fn with_gpus() -> Option<Self> {
        let recorded = Self::open()?;
        for path in [
            "pci0000:40/0000:40:02.0/0000:42:00.0/0000:43:02.0/0000:46:00.0",
            "pci0000:a0/0000:a0:01.0/0000:a1:00.0/0000:a2:02.0/0000:a5:00.0",
        ] {
            let path = format!("sys/devices/{path}");
            let event = fs::read_to_string(recorded.file(&format!("{path}/uevent"))).unwrap();
            recorded.write(&format!("{path}/uevent"), &event.replace("1234:1111", "10DE:2335"));
            for name in ["current_link_width", "max_link_width"] {
                recorded.write(&format!("{path}/{name}"), "16\n");
            }
            recorded.write(&format!("{path}/max_link_speed"), "32.0 GT/s PCIe\n");
        }
        Some(recorded)
    }

    fn file(&self, path: &str) -> PathBuf {
        self.folder.path().join("root").join(path)
    }

    fn write(&self, path: &str, text: &str) {
        fs::write(self.file(path), text).unwrap();
    }

    /// What is drawn, without the line that says where the record is; and the warnings.
    #[track_caller]
    fn drawn(&self, arguments: &[&str]) -> (String, String) {
        let mut all = vec!["--fixture", "."];
        all.extend(arguments);
        // Lines that fit into this file.
        let mut command = assert_cmd::Command::new(crate::program::program());
        command.current_dir(self.folder.path()).env("LC_ALL", "C.UTF-8").env("COLUMNS", "90");
        let output = command.args(["doctor", "--tree"]).args(all).output().unwrap();
        assert!(output.status.success(), "{output:?}");
        let text = String::from_utf8(output.stdout).unwrap();
        let talk = String::from_utf8(output.stderr).unwrap().replace(": ", ":\n  ");
        let talk = talk.replace("; ", ";\n  ").replace(", ", ",\n  ");
        let (head, text) = text.split_once("\n\n").unwrap();
        assert_eq!(head, "replay of the record in ., not of this machine");
        let text = text.split_once("\n\nGB/s ").map_or(text, |(tree, _)| tree);
        let text = text.split_once("\n\nceilings ").map_or(text, |(tree, _)| tree);
        (text.trim_end().to_owned() + "\n", talk)
    }

    fn json(&self, arguments: &[&str]) -> Value {
        let mut all = vec!["--fixture", ".", "--format=json"];
        all.extend(arguments);
        serde_json::from_str(&good(self.folder.path(), &all).0).unwrap()
    }
}

fn list(value: &Value) -> &[Value] {
    value.as_array().unwrap()
}

#[test]
fn a_stripe_over_two_sockets() {
    let Some(recorded) = Recorded::with_gpus() else { return };
    // One of its drives sits in a slot with half the lanes.
    recorded.write(&format!("{SLOT}/max_link_width"), "4\n");
    let (text, talk) = recorded.drawn(&["/mnt/md0/data.bin"]);
    insta::assert_snapshot!(text, @"
    /mnt/md0/data.bin  64 MiB
    └─ /mnt/md0  xfs
       └─ md0  array, raid0 · 4 members · stripes of 512 KiB · 1016 MiB
          ├─ ● nvme3n1  QEMU NVMe Ctrl · 256 MiB · same switch as GPU 0 ·
          │  │  across sockets from GPU 1
          │  └─ nvme3  pcie · 0000:44:00.0 · x1 of x4 at 2.5 GT/s · NUMA node 0 · (!)
          ├─ ● nvme4n1  QEMU NVMe Ctrl · 256 MiB · same switch as GPU 0 ·
          │  │  across sockets from GPU 1
          │  └─ nvme4  pcie · 0000:45:00.0 · x1 at 2.5 GT/s · NUMA node 0
          ├─ ● nvme14n1  QEMU NVMe Ctrl · 256 MiB · same switch as GPU 1 ·
          │  │  across sockets from GPU 0
          │  └─ nvme14  pcie · 0000:a3:00.0 · x1 at 2.5 GT/s · NUMA node 1
          └─ ● nvme1n1  QEMU NVMe Ctrl · 256 MiB · same switch as GPU 1 ·
             │  across sockets from GPU 0
             └─ nvme1  pcie · 0000:a4:00.0 · x1 at 2.5 GT/s · NUMA node 1
    I/O queue  one for 4 drives, striped

    GPU 0  device 10de:2335 · 0000:46:00.0 · x16 at 2.5 of 32 GT/s, at rest · NUMA node 0 ·
           BAR1 4 KiB
    GPU 1  device 10de:2335 · 0000:a5:00.0 · x16 at 2.5 of 32 GT/s, at rest · NUMA node 1 ·
           BAR1 4 KiB
    ");
    insta::assert_snapshot!(talk, @"
    warning:
      the link of `nvme3` runs at x1 of x4 at 2.5 GT/s:
      reseat the drive or try another slot;
      `lspci -vv -s 0000:44:00.0` shows what each end can do
    warning:
      `nvme14n1`,
      `nvme1n1` are on another socket than GPU 0,
      so bytes cross the link between sockets:
      use GPU 1,
      or a drive of that socket
    warning:
      `nvme3n1`,
      `nvme4n1` are on another socket than GPU 1,
      so bytes cross the link between sockets:
      use GPU 0,
      or a drive of that socket
    ");
}

#[test]
fn a_drive_with_two_paths_and_a_link_on_the_way() {
    let Some(recorded) = Recorded::with_gpus() else { return };
    let (text, _) = recorded.drawn(&["/mnt/plain/to-dir/inner.bin", "/mnt/mpath/data.bin"]);
    insta::assert_snapshot!(text, @"
    /mnt/plain/to-dir/inner.bin  1 MiB
    └─ /mnt/plain/to-dir/inner.bin  link → /mnt/md0/dir/inner.bin
       └─ /mnt/md0  xfs
          └─ md0  array, raid0 · 4 members · stripes of 512 KiB · 1016 MiB
             ├─ ● nvme3n1  QEMU NVMe Ctrl · 256 MiB · same switch as GPU 0 ·
             │  │  across sockets from GPU 1
             │  └─ nvme3  pcie · 0000:44:00.0 · x1 at 2.5 GT/s · NUMA node 0
             ├─ ● nvme4n1  QEMU NVMe Ctrl · 256 MiB · same switch as GPU 0 ·
             │  │  across sockets from GPU 1
             │  └─ nvme4  pcie · 0000:45:00.0 · x1 at 2.5 GT/s · NUMA node 0
             ├─ ● nvme14n1  QEMU NVMe Ctrl · 256 MiB · same switch as GPU 1 ·
             │  │  across sockets from GPU 0
             │  └─ nvme14  pcie · 0000:a3:00.0 · x1 at 2.5 GT/s · NUMA node 1
             └─ ● nvme1n1  QEMU NVMe Ctrl · 256 MiB · same switch as GPU 1 ·
                │  across sockets from GPU 0
                └─ nvme1  pcie · 0000:a4:00.0 · x1 at 2.5 GT/s · NUMA node 1
    I/O queue  one for 4 drives, striped

    /mnt/mpath/data.bin  64 MiB
    └─ /mnt/mpath  ext4
       └─ ● nvme7n1  QEMU NVMe Ctrl · 256 MiB · 2 of 2 paths live · policy numa ·
          │  same socket as GPU 0 · across sockets from GPU 1
          ├─ nvme7  pcie · 0000:49:00.0 · x1 at 2.5 GT/s · NUMA node 0
          └─ nvme16  pcie · 0000:aa:00.0 · x1 at 2.5 GT/s · NUMA node 1
    I/O queue  nvme7n1

    GPU 0  device 10de:2335 · 0000:46:00.0 · x16 at 2.5 of 32 GT/s, at rest · NUMA node 0 ·
           BAR1 4 KiB
    GPU 1  device 10de:2335 · 0000:a5:00.0 · x16 at 2.5 of 32 GT/s, at rest · NUMA node 1 ·
           BAR1 4 KiB
    ");
}

#[test]
fn volumes_and_what_they_cost() {
    let Some(recorded) = Recorded::open() else { return };
    let paths = ["/mnt/crypt/data.bin", "/mnt/loop/data.bin", "/mnt/raid10/data.bin"];
    let (text, talk) = recorded.drawn(&paths);
    insta::assert_snapshot!(text, @"
    /mnt/crypt/data.bin  64 MiB
    └─ /mnt/crypt  ext4
       └─ secret  dm-2 · encrypted volume · 238 MiB · (!)
          └─ nvme15n1p1  partition 1 · 254 MiB · from 1 MiB
             └─ ● nvme15n1  QEMU NVMe Ctrl · 256 MiB
                └─ nvme15  pcie · 0000:a9:00.0 · x1 at 2.5 GT/s · NUMA node 1
    I/O queue  nvme15n1

    /mnt/loop/data.bin  16 MiB
    └─ /mnt/loop  ext4
       └─ loop0  loop device · 96 MiB · no direct I/O · (!)
          └─ /mnt/plain/image  file
             └─ /mnt/plain  ext4
                └─ nvme0n1p1  partition 1 · 510 MiB · from 1 MiB
                   └─ ● nvme0n1  QEMU NVMe Ctrl · 512 MiB
                      └─ nvme0  pcie · 0000:41:00.0 · x1 at 2.5 GT/s · NUMA node 0
    I/O queue  its own, above nvme0n1

    /mnt/raid10/data.bin  64 MiB
    └─ /mnt/raid10  ext4
       └─ md127  array, raid10 · 4 members · stripes of 128 KiB · 250 MiB
          ├─ nvme9n1p1  partition 1 · 126 MiB · from 1 MiB
          │  └─ ● nvme9n1  QEMU NVMe Ctrl · 128 MiB
          │     └─ nvme9  pcie · 0000:4b:00.0 · x1 at 2.5 GT/s · NUMA node 0
          ├─ nvme10n1p1  partition 1 · 126 MiB · from 1 MiB
          │  └─ ● nvme10n1  QEMU NVMe Ctrl · 128 MiB
          │     └─ nvme10  pcie · 0000:4c:00.0 · x1 at 2.5 GT/s · NUMA node 0
          ├─ nvme18n1p1  partition 1 · 126 MiB · from 1 MiB
          │  └─ ● nvme18n1  QEMU NVMe Ctrl · 128 MiB
          │     └─ nvme18  pcie · 0000:ac:00.0 · x1 at 2.5 GT/s · NUMA node 1
          └─ nvme19n1p1  partition 1 · 126 MiB · from 1 MiB
             └─ ● nvme19n1  QEMU NVMe Ctrl · 128 MiB
                └─ nvme19  pcie · 0000:ad:00.0 · x1 at 2.5 GT/s · NUMA node 1
    I/O queue  one for 4 drives, striped mirrors

    GPUs  none on PCI, so there are no distances
    ");
    insta::assert_snapshot!(talk, @"
    warning:
      /mnt/crypt/data.bin:
      `secret` is decrypted by the processor,
      so its bytes cannot go directly to a GPU:
      use a self-encrypting drive,
      or try `cryptsetup refresh --perf-no_read_workqueue --perf-no_write_workqueue secret`
    warning:
      /mnt/loop/data.bin:
      `loop0` has no direct I/O,
      so each byte also goes through the page cache of its image:
      `losetup --direct-io=on /dev/loop0`
    ");
}

#[test]
fn file_systems_of_every_kind() {
    let Some(recorded) = Recorded::open() else { return };
    let paths = ["/mnt/subvol/data.bin", "/mnt/ovl/upper.bin", "/mnt/nfs/data.bin", "/mnt/tmp"];
    let paths = [&paths[..3], &["/mnt/tmp/data.bin", "/lab-root.bin"]].concat();
    let (text, _) = recorded.drawn(&paths);
    insta::assert_snapshot!(text, @"
    /mnt/subvol/data.bin  16 MiB
    └─ /mnt/subvol  btrfs · subvolume /sv · data raid0 · 2 members
       ├─ ● nvme13n1  QEMU NVMe Ctrl · 256 MiB
       │  └─ nvme13  pcie · 0000:a8:00.0 · x1 at 2.5 GT/s · NUMA node 1
       └─ ● nvme6n1  QEMU NVMe Ctrl · 256 MiB
          └─ nvme6  pcie · 0000:48:00.0 · x1 at 2.5 GT/s · NUMA node 0
    I/O queue  one for 2 drives, striped

    /mnt/ovl/upper.bin  8 MiB
    └─ /mnt/ovl  overlay · from its upper layer · (!)
       └─ /mnt/plain/up/upper.bin  file
          └─ /mnt/plain  ext4
             └─ nvme0n1p1  partition 1 · 510 MiB · from 1 MiB
                └─ ● nvme0n1  QEMU NVMe Ctrl · 512 MiB
                   └─ nvme0  pcie · 0000:41:00.0 · x1 at 2.5 GT/s · NUMA node 0
    I/O queue  nvme0n1

    /mnt/nfs/data.bin  16 MiB
    └─ /mnt/nfs  NFS
       └─ ● 127.0.0.1:/mnt/plain/export  version 4.2 · over tcp · server 127.0.0.1 ·
             1 connection · (!)
    I/O queue  127.0.0.1:/mnt/plain/export

    /mnt/tmp/data.bin  8 MiB
    └─ /mnt/tmp  tmpfs
       └─ ● memory  files in host memory, without a drive
    I/O queue  memory

    /lab-root.bin  8 MiB
    └─ /  ext4
       └─ ● vda  1 GiB · virtio
          └─ 0000:00:01.0
    I/O queue  vda

    GPUs  none on PCI, so there are no distances
    ");
}

#[test]
fn where_the_bytes_lie() {
    let Some(recorded) = Recorded::open() else { return };
    let (text, _) = recorded.drawn(&["/mnt/bind/inner.bin", "/mnt/btrfs/data.bin", "--extents"]);
    insta::assert_snapshot!(text, @"
    /mnt/bind/inner.bin  1 MiB
    └─ /mnt/bind  bound from /dir · xfs
       └─ md0  array, raid0 · 4 members · stripes of 512 KiB · 1016 MiB
          ├─ ● nvme3n1  QEMU NVMe Ctrl · 256 MiB
          │  └─ nvme3  pcie · 0000:44:00.0 · x1 at 2.5 GT/s · NUMA node 0
          ├─ ● nvme4n1  QEMU NVMe Ctrl · 256 MiB
          │  └─ nvme4  pcie · 0000:45:00.0 · x1 at 2.5 GT/s · NUMA node 0
          ├─ ● nvme14n1  QEMU NVMe Ctrl · 256 MiB
          │  └─ nvme14  pcie · 0000:a3:00.0 · x1 at 2.5 GT/s · NUMA node 1
          └─ ● nvme1n1  QEMU NVMe Ctrl · 256 MiB
             └─ nvme1  pcie · 0000:a4:00.0 · x1 at 2.5 GT/s · NUMA node 1
    I/O queue  one for 4 drives, striped
    bytes  1 MiB in 1 extent
           nvme3n1  416 KiB · 40.6 % · 1 run
           nvme4n1  512 KiB · 50.0 % · 1 run
           nvme14n1  96 KiB · 9.4 % · 1 run

    /mnt/btrfs/data.bin  64 MiB
    └─ /mnt/btrfs  btrfs · data raid0 · 2 members
       ├─ ● nvme13n1  QEMU NVMe Ctrl · 256 MiB
       │  └─ nvme13  pcie · 0000:a8:00.0 · x1 at 2.5 GT/s · NUMA node 1
       └─ ● nvme6n1  QEMU NVMe Ctrl · 256 MiB
          └─ nvme6  pcie · 0000:48:00.0 · x1 at 2.5 GT/s · NUMA node 0
    I/O queue  one for 2 drives, striped
    bytes  64 MiB in 1 extent
           (unknown)  64 MiB · 100.0 % ·
           btrfs reports its own addresses, not those of its drives

    GPUs  none on PCI, so there are no distances
    ");
    let report = recorded.json(&["/mnt/md0/data.bin", "--extents"]);
    let extents = &report["maps"][0]["extents"];
    // Every byte once: 64 MiB over four drives, in stripes of which the first ones are listed.
    let sum = |key: &str| list(&extents["drives"]).iter().filter_map(|on| on[key].as_u64()).sum();
    assert_eq!(sum("bytes"), 64 << 20);
    assert_eq!((list(&extents["drives"]).len(), list(&extents["first"]).len()), (4, 16));
    assert_eq!(extents["runs"].as_u64(), Some(sum("runs")));
}

#[test]
fn all_recorded_paths_are_shown_where_none_is_named() {
    let Some(recorded) = Recorded::with_gpus() else { return };
    let report = recorded.json(&[]);
    let len = |key: &str| list(&report[key]).len();
    assert_eq!((len("maps"), len("failures"), len("gpus")), (24, 0, 2));
    assert!(report["schema"] == 1 && report["replay"] == "." && report["environment"].is_null());
    assert!(report["rdma_devices"].is_null());
    assert_eq!(len("distances"), 2 * len("drives"));
    let drive = |id: &Value| list(&report["drives"]).iter().find(|one| one["id"] == *id).unwrap();
    for map in list(&report["maps"]) {
        assert_eq!(map["exists"], true);
        let drives = list(&map["drives"]);
        assert!(list(&map["queue"]["members"]).iter().all(|id| drives.contains(id)));
        assert!(drives.iter().all(|id| drive(id)["paths"].is_array()), "{}", map["path"]);
    }
    // The links of its drives, and all bridges above them, are as good as they can be.
    let rules = list(&report["warnings"]).iter().map(|warning| &warning["rule"]);
    assert!(rules.clone().all(|rule| rule != "drive_link" && rule != "bridge"));
}

#[test]
fn a_path_that_is_not_in_the_record_fails_alone() {
    let Some(recorded) = Recorded::open() else { return };
    let arguments = ["--fixture", ".", "/elsewhere", "/mnt/plain/data.bin", "/nor/here"];
    let (code, text, talk) = bad(recorded.folder.path(), &arguments);
    assert_eq!(code, 1);
    assert!(text.contains("/mnt/plain/data.bin  64 MiB\n") && !text.contains("elsewhere"));
    insta::assert_snapshot!(talk, @"
    error: cannot map `/elsewhere`
      caused by: not recorded
    hint: `forebay doctor --tree --fixture .` shows what is recorded
    error: cannot map `/nor/here`
      caused by: not recorded
    hint: `forebay doctor --tree --fixture .` shows what is recorded
    ");
}

#[test]
fn lines_have_80_columns_without_a_terminal() {
    let Some(recorded) = Recorded::open() else { return };
    let mut command = assert_cmd::Command::new(crate::program::program());
    command.current_dir(recorded.folder.path()).env_remove("COLUMNS");
    command.args([
        "doctor",
        "--tree",
        "--fixture",
        ".",
        "/mnt/plain/to-md0",
        "/mnt/mpath/data.bin",
    ]);
    let text = String::from_utf8(command.output().unwrap().stdout).unwrap();
    assert!(text.lines().all(|line| line.chars().count() <= 80), "{text}");
    let (text, _) = text.split_once("\n\nGB/s").unwrap();
    insta::assert_snapshot!(text, @"
    replay of the record in ., not of this machine

    /mnt/plain/to-md0  64 MiB
    └─ /mnt/plain/to-md0  link → /mnt/md0/data.bin
       └─ /mnt/md0  xfs
          └─ md0  array, raid0 · 4 members · stripes of 512 KiB · 1016 MiB
             ├─ ● nvme3n1  QEMU NVMe Ctrl · 256 MiB
             │  └─ nvme3  pcie · 0000:44:00.0 · x1 at 2.5 GT/s · NUMA node 0
             ├─ ● nvme4n1  QEMU NVMe Ctrl · 256 MiB
             │  └─ nvme4  pcie · 0000:45:00.0 · x1 at 2.5 GT/s · NUMA node 0
             ├─ ● nvme14n1  QEMU NVMe Ctrl · 256 MiB
             │  └─ nvme14  pcie · 0000:a3:00.0 · x1 at 2.5 GT/s · NUMA node 1
             └─ ● nvme1n1  QEMU NVMe Ctrl · 256 MiB
                └─ nvme1  pcie · 0000:a4:00.0 · x1 at 2.5 GT/s · NUMA node 1
    I/O queue  one for 4 drives, striped

    /mnt/mpath/data.bin  64 MiB
    └─ /mnt/mpath  ext4
       └─ ● nvme7n1  QEMU NVMe Ctrl · 256 MiB · 2 of 2 paths live · policy numa
          ├─ nvme7  pcie · 0000:49:00.0 · x1 at 2.5 GT/s · NUMA node 0
          └─ nvme16  pcie · 0000:aa:00.0 · x1 at 2.5 GT/s · NUMA node 1
    I/O queue  nvme7n1

    GPUs  none on PCI, so there are no distances
    ");
}

/// Slots and drives of PCIe 5.0, below the same bridges.
fn fast(recorded: &Recorded) {
    let is_drive = |path: &str| {
        ["44", "45", "a3", "a4"].iter().any(|bus| path.ends_with(&format!(":{bus}:00.0")))
    };
    let mut folders = vec![recorded.file("sys/devices")];
    while let Some(folder) = folders.pop() {
        let entries = fs::read_dir(&folder).unwrap().map(|entry| entry.unwrap());
        folders.extend(
            entries.filter(|entry| entry.file_type().unwrap().is_dir()).map(|entry| entry.path()),
        );
        if folder.join("max_link_width").exists() {
            let width = if is_drive(&folder.to_string_lossy()) { "4" } else { "16" };
            for name in ["current_link_width", "max_link_width"] {
                fs::write(folder.join(name), width).unwrap();
            }
            for name in ["current_link_speed", "max_link_speed"] {
                fs::write(folder.join(name), "32.0 GT/s PCIe").unwrap();
            }
        }
    }
}

#[test]
fn the_tree_ends_with_the_ceilings() {
    let Some(recorded) = Recorded::with_gpus() else { return };
    fast(&recorded);
    let (text, _) = good(recorded.folder.path(), &["--fixture", ".", "/mnt/md0/data.bin"]);
    let (_, table) = text.split_once("\n\nGB/s").unwrap();
    insta::assert_snapshot!(format!("GB/s{table}"), @"
    GB/s                reads  in theory  writes  in theory  reads bound by
    each of 4 drives     13.3       14.4    13.4       14.6  link of each
    4 drives             53.0       57.6    53.8       58.4  links of 4 drives
    1 GPU                55.5       58.4    54.7       57.6  link of GPU 0
    2 GPUs                111        117     109        115  links of 2 GPUs
    4 drives to 1 GPU    53.0       57.6    53.8       57.6  links of 4 drives
    4 drives to 2 GPUs   53.0       57.6    53.8       58.4  links of 4 drives
    → 4 drives give 53.0 GB/s, and 2 GPUs take 111: 5 more such drives would fill
      them
    In theory: width and speed of links in /sys/bus/pci/devices, line rates of SATA,
    SAS and network ports, without the overhead of packets of 256 bytes, or of the
    size that root reads. Reads and writes: the share that practice reaches, 95 %
    for GPUs, 92 % for drives, 96 % for networks. Memory, links between sockets and
    the drives' own chips are not known here and may bind before.
    ");
    let report = recorded.json(&["/mnt/md0/data.bin"]);
    let last = list(&report["ceilings"]).last().unwrap();
    assert_eq!(last["of"], "4 drives to 2 GPUs");
    assert_eq!(last["read"]["binds"], "links of 4 drives");
    // Both drives of a switch behind one slow port.
    recorded.write("sys/devices/pci0000:40/0000:40:02.0/max_link_speed", "8.0 GT/s PCIe");
    recorded.write("sys/devices/pci0000:40/0000:40:02.0/max_link_width", "4");
    let report = recorded.json(&["/mnt/md0/data.bin"]);
    let of = |name: &str| {
        let row = list(&report["ceilings"]).iter().find(|row| row["of"] == name).unwrap();
        row["read"]["binds"].as_str().unwrap().to_owned()
    };
    assert_eq!([of("4 drives"), of("1 GPU")], ["uplink 0000:40:02.0", "uplink 0000:40:02.0"]);
}

#[test]
fn memory_channels_are_a_ceiling_where_the_firmware_names_them() {
    let Some(recorded) = Recorded::with_gpus() else { return };
    fast(&recorded);
    fs::create_dir_all(recorded.file("run/udev/data")).unwrap();
    let database = |speed: u32, empty: bool| {
        let module = |number: u32, channel: &str| {
            let slot = if number == 1 && empty {
                "PRESENT=0".into()
            } else {
                format!("CONFIGURED_SPEED_MTS={speed}")
            };
            let keys = [slot, "DATA_WIDTH=64".into(), format!("BANK_LOCATOR=P0 CHANNEL {channel}")];
            keys.map(|key| format!("E:MEMORY_DEVICE_{number}_{key}\n")).concat()
        };
        let modules = [module(0, "A"), module(1, "B"), module(2, "C")];
        recorded.write("run/udev/data/+dmi:id", &modules.concat());
    };
    let of = |name: &str| {
        let report = recorded.json(&["/mnt/md0/data.bin"]);
        let row = list(&report["ceilings"]).iter().find(|row| row["of"] == name).unwrap().clone();
        row["read"].clone()
    };
    database(4800, true);
    let memory = of("2 memory channels");
    assert_eq!(
        (memory["theory"].as_f64(), memory["expected"].as_f64()),
        (Some(76.8e9), Some(61.44e9))
    );
    assert_eq!(memory["remedy"], "1 of 3 memory channels have no module: add one to each of these");
    let path = of("4 drives to 2 GPUs");
    assert_eq!((&path["binds"], path["expected"].as_f64()), (&json!("memory"), Some(30.72e9)));
    database(4800, false);
    assert_eq!(of("3 memory channels")["remedy"], json!(null));
    let (text, _) = good(recorded.folder.path(), &["--fixture", ".", "/mnt/md0/data.bin"]);
    let (_, table) = text.split_once("\n\nGB/s").unwrap();
    insta::assert_snapshot!(format!("GB/s{table}"), @"
    GB/s                reads  in theory  writes  in theory  reads bound by
    each of 4 drives     13.3       14.4    13.4       14.6  link of each
    4 drives             53.0       57.6    53.8       58.4  links of 4 drives
    1 GPU                55.5       58.4    54.7       57.6  link of GPU 0
    2 GPUs                111        117     109        115  links of 2 GPUs
    3 memory channels    92.2        115    92.2        115  memory
    4 drives to 1 GPU    46.1       57.6    46.1       57.6  memory
    4 drives to 2 GPUs   46.1       57.6    46.1       57.6  memory
    → the memory binds: each byte passes it twice, unless transfers are direct
    In theory: width and speed of links in /sys/bus/pci/devices, line rates of SATA,
    SAS and network ports, memory modules in /run/udev/data/+dmi:id (udev), without
    the overhead of packets of 256 bytes, or of the size that root reads. Reads and
    writes: the share that practice reaches, 95 % for GPUs, 92 % for drives, 96 %
    for networks, 80 % for memory. Links between sockets and the drives' own chips
    are not known here and may bind before.
    ");
    database(9600, false);
    assert_eq!(of("4 drives to 2 GPUs")["binds"], "links of 4 drives");
}

#[test]
fn measured_rates_refine_the_ceilings() {
    let Some(recorded) = Recorded::with_gpus() else { return };
    fast(&recorded);
    let path = "/mnt/md0/data.bin";
    let report = recorded.json(&[path]);
    let mut run: Value =
        serde_json::from_str(made::file(&made::Sweep::default()).lines().next().unwrap()).unwrap();
    run["environment"]["drives"] = json!([report["drives"][0]]);
    let address = &report["gpus"][1]["pci"]["address"];
    run["gpus"] = json!([{
        "id": "cuda:0", "name": "a GPU", "uuid": null, "pci_address": address, "memory": 1,
        "simulated": false
    }]);
    let limit = |name: &str, of: &str, direction: Option<&str>, rate: f64| {
        json!({
            "record": "limit", "name": name, "of": of, "direction": direction,
            "bytes_per_second": rate, "how": "measured", "simulated": false
        })
    };
    let records = [
        run,
        limit("storage", "/mnt", Some("read"), 9e9),
        limit("storage", "/mnt", Some("read"), 10e9),
        limit("link", "cuda:0", None, 50e9),
        limit("link", "cuda:7", None, 1e9),
    ];
    let write = |records: &[Value]| {
        let lines: String = records.iter().map(|record| format!("{record}\n")).collect();
        fs::write(recorded.folder.path().join("run.jsonl"), lines).unwrap();
    };
    write(&records);
    let refined = recorded.json(&["--measured", "run.jsonl", path]);
    let of_report = |report: &Value, of: &str, way: &str| {
        let row = list(&report["ceilings"]).iter().find(|row| row["of"] == of).unwrap();
        row[way]["expected"].as_f64().unwrap() / 1e9
    };
    let expected = |of: &str, way: &str| of_report(&refined, of, way);
    let is_near = |rate: f64, wanted: f64| (rate / wanted - 1.0).abs() < 1e-6;
    assert!(is_near(expected("4 drives", "read"), 40.0), "{}", refined["ceilings"]);
    assert!(
        is_near(expected("2 GPUs", "read"), 100.0) && is_near(expected("2 GPUs", "write"), 100.0)
    );
    // Nothing was measured of writes to drives.
    assert!(is_near(expected("4 drives", "write"), of_report(&report, "4 drives", "write")));
    assert_eq!(list(&refined["measured"]).len(), 3);
    let (text, _) =
        good(recorded.folder.path(), &["--fixture", ".", "--measured", "run.jsonl", path]);
    let text = text.replace('\n', " ");
    let shares = "86 % and 87 % for GPUs (measured), 69 % for drives (measured), 96 % for networks";
    assert!(text.contains(shares), "{text}");
    write(&records[..1]);
    let arguments = ["--fixture", ".", "--measured", "run.jsonl", path];
    let (code, _, talk) = bad(recorded.folder.path(), &arguments);
    assert!(code == 2 && talk.contains("has no limit of one drive"), "{talk}");
}
