//! Machines with one fault each: it is named, with a step, and closes the ways that it closes.

use forebay_doctor::{DirectPath, GpuWish, Report, State};

use crate::check;
use crate::machine::{
    GPU, KEYS, Machine, bar1_of, bridge_with, driver, gpu_folder, kernel, nvme, port, udev,
};

pub(crate) const P2PDMA: &[DirectPath] = &[DirectPath::P2pdma];
pub(crate) const BOTH: &[DirectPath] = &[DirectPath::P2pdma, DirectPath::NvidiaFs];
const NVME: &str = "sys/devices/pci0000:40/0000:40:01.0/0000:42:00.0/0000:43:01.0/0000:44:00.0";

/// What a machine with P2PDMA says after `change`.
pub(crate) fn after(change: impl FnOnce(&mut Machine)) -> Report {
    let mut machine = Machine::p2pdma();
    change(&mut machine);
    machine.examine("/data/f")
}

/// The same of a path on another file system.
pub(crate) fn other(number: &str, rest: &str, change: impl FnOnce(&Machine)) -> Report {
    on(Machine::p2pdma(), number, rest, change)
}

fn on(mut machine: Machine, number: &str, rest: &str, change: impl FnOnce(&Machine)) -> Report {
    machine.mount(number, rest);
    change(&machine);
    machine.examine("/other/f")
}

/// A fault is reported as a problem that closes these data paths, with its remedy.
#[track_caller]
pub(crate) fn closes(report: &Report, name: &str, ways: &[DirectPath], seen: &str) {
    let check = check(report, name);
    assert_eq!((check.state, check.blocks.as_slice()), (State::Problem, ways), "{check:?}");
    assert!(check.seen.contains(seen), "{check:?}");
    assert!(check.step.is_some() || check.is_final, "no step: {check:?}");
    assert!(!report.ways[0].is_open, "{report:#?}");
    assert!(report.change().is_some());
}

#[track_caller]
pub(crate) fn warns(report: &Report, name: &str, seen: &str) {
    let check = check(report, name);
    assert_eq!(check.state, State::Warning, "{check:?}");
    assert!(check.seen.contains(seen), "{check:?}");
    assert!(report.ways[0].is_open, "a warning closes nothing");
}

#[test]
fn kernels() {
    let report = after(|m| kernel(&m.tree, "6.14.0", "CONFIG_ZONE_DEVICE=y\n"));
    closes(&report, "kernel_p2pdma", P2PDMA, "CONFIG_PCI_P2PDMA");
    let report = after(|m| kernel(&m.tree, "6.14.0", "CONFIG_PCI_P2PDMA=y\n"));
    closes(&report, "kernel_p2pdma", P2PDMA, "CONFIG_ZONE_DEVICE");
    let report = after(|m| m.remove("boot"));
    assert_eq!(check(&report, "kernel_p2pdma").state, State::Unknown);
    let report = after(|m| {
        m.remove("boot");
        m.tree.write("proc/kallsyms", "0 T pci_p2pdma_add_resource\n0 T vmalloc\n");
    });
    assert_eq!(check(&report, "kernel_p2pdma").seen, "/proc/kallsyms: `CONFIG_PCI_P2PDMA` is set");
    let report = after(|m| {
        m.remove("boot");
        m.tree.write("proc/kallsyms", "0 T vmalloc\n");
    });
    closes(&report, "kernel_p2pdma", P2PDMA, "/proc/kallsyms");
    let report = after(|m| {
        kernel(&m.tree, "6.17.2", "CONFIG_PCI_P2PDMA=y\nCONFIG_ZONE_DEVICE=y\n");
        driver(&m.tree, "Open Kernel Module for x86_64  580.159.04", KEYS);
    });
    warns(&report, "kernel_version", "6.17.2 with driver 580.159");
}

#[test]
fn drivers_and_cards() {
    let report = after(|m| driver(&m.tree, "Kernel Module  595.45.01", KEYS));
    closes(&report, "gpu_driver", P2PDMA, "not the open kernel module");
    let report = after(|m| driver(&m.tree, "Open Kernel Module for x86_64  550.54.14", KEYS));
    closes(&report, "gpu_driver", P2PDMA, "550.54.14");
    let report = after(|m| driver(&m.tree, "Open Kernel Module for x86_64  595.45.01", ""));
    closes(&report, "gpu_driver_keys", P2PDMA, "`RMForceStaticBar1=1`");
    assert!(!check(&report, "gpu_driver_keys").is_broken, "nothing was begun");
    let half = "RmForceStaticBar1=1";
    let report = after(|m| driver(&m.tree, "Open Kernel Module for x86_64  595.45.01", half));
    closes(&report, "gpu_driver_keys", P2PDMA, "no `RmForceDisableIomapWC=1`");
    assert!(report.is_broken(), "half of it was set up");
    let hex = "rmforcestaticbar1=0x1; RmForceDisableIomapWC=0x00000001";
    let report = after(|m| driver(&m.tree, "Open Kernel Module for x86_64  595.45.01", hex));
    assert_eq!(check(&report, "gpu_driver_keys").state, State::Ok);
    let report = after(|m| driver(&m.tree, "Open Kernel Module for aarch64  595.45.01", ""));
    assert!(report.check("gpu_driver_keys").is_none() && report.ways[0].is_open, "not on ARM");
    let report = after(|m| m.tree.write(&format!("{}/p2pmem/size", gpu_folder()), "0\n"));
    closes(&report, "gpu_p2p_memory", P2PDMA, "size is 0");
    assert!(report.is_broken());
    let model = |model: &'static str| {
        let file = format!("proc/driver/nvidia/gpus/{GPU}/information");
        after(move |m| m.tree.write(&file, format!("Model: \t {model}\n")))
    };
    closes(&model("NVIDIA GeForce RTX 4090"), "gpu_class", BOTH, "GeForce");
    closes(&model("Tesla V100-SXM2-32GB"), "gpu_class", BOTH, "1.14");
    closes(&model("NVIDIA GB10"), "gpu_class", BOTH, "GB10");
    let ada = model("NVIDIA RTX 6000 Ada Generation");
    assert_eq!(check(&ada, "gpu_class").state, State::Warning);
    assert!(check(&ada, "gpu_class").seen.contains("not among those"));
    let ampere = model("NVIDIA A100-SXM4-80GB");
    assert_eq!(check(&ampere, "gpu_class").state, State::Ok);
    closes(&ampere, "gpu_driver_keys", P2PDMA, "has no `ForceP2P=0`");
}

#[test]
fn nvidia_fs() {
    let after = |change: &dyn Fn(&Machine)| {
        let machine = Machine::nvidia_fs();
        change(&machine);
        machine.examine("/data/f")
    };
    let fs: &[DirectPath] = &[DirectPath::NvidiaFs];
    let report = after(&|m| m.tree.write("proc/driver/nvidia-fs/modules", "rpcrdma\n"));
    closes(&report, "nvidia_fs_modules", fs, "has no `nvme`: rpcrdma");
    assert!(report.is_broken(), "it was set up");
    let report = after(&|m| m.remove("sys/module/nvidia_fs"));
    closes(&report, "nvidia_fs", fs, "not loaded");
    let report = after(&|m| {
        m.remove("sys/module/nvidia_fs");
        m.tree.write("sys/kernel/security/lockdown", "none [integrity] confidentiality\n");
    });
    closes(&report, "nvidia_fs", fs, "lockdown: integrity");
    assert!(check(&report, "nvidia_fs").step.as_ref().unwrap().contains("sign the module"));
    let report = after(&|m| {
        m.tree.write(".dockerenv", "");
        m.remove("dev/nvidia-fs0");
    });
    closes(&report, "nvidia_fs", fs, "not in this container");
    let settings = "CONFIG_PCI_P2PDMA=y\nCONFIG_ZONE_DEVICE=y\n";
    let report = after(&|m| kernel(&m.tree, "6.18.0", settings));
    warns(&report, "kernel_version", "nvidia-fs is loaded");
}

#[test]
fn the_way_on_pci() {
    let report = after(|m| bar1_of(&m.tree, &gpu_folder(), 256 << 20));
    closes(&report, "bar1", P2PDMA, "256");
    let group = |kind: &'static str| {
        after(move |m| {
            m.tree.link(&format!("{NVME}/iommu_group"), "../../../../../../kernel/iommu_groups/7");
            m.tree.write("sys/kernel/iommu_groups/7/type", format!("{kind}\n"));
            m.tree.write("sys/class/iommu/dmar0", "");
        })
    };
    closes(&group("DMA-FQ"), "iommu", BOTH, "0000:44:00.0 (DMA-FQ)");
    assert_eq!(check(&group("identity"), "iommu").seen, "it passes through");
    let report = after(|m| bridge_with(&m.tree, &port(), 0x1d));
    warns(&report, "acs", "0000:40:01.0 redirect");
    let report = after(|m| m.tree.write(&format!("{}/config", port()), [0; 64]));
    assert_eq!(check(&report, "acs").state, State::Unknown);
    assert!(check(&report, "acs").step.as_ref().unwrap().contains("root"));
    let link = |file: &'static str, text: &'static str| {
        after(move |m| m.tree.write(&format!("{}/{file}", gpu_folder()), text))
    };
    warns(&link("current_link_width", "8\n"), "link", "x8 of x16 at 32 GT/s");
    assert!(check(&link("current_link_speed", "2.5 GT/s PCIe\n"), "link").seen.contains("at rest"));
    let report = after(|m| m.tree.write(&format!("{NVME}/current_link_speed"), "8.0 GT/s PCIe\n"));
    let drive = report.checks.iter().find(|c| c.name == "link" && c.seen.contains("nvme1n1"));
    assert_eq!(drive.unwrap().state, State::Warning);
}

#[test]
fn file_systems_and_mounts() {
    for (number, rest, seen) in [
        ("0:50", "tmpfs tmpfs rw", "tmpfs"),
        ("0:51", "zfs tank/a rw", "zfs"),
        ("0:52", "btrfs /dev/nvme1n1 rw", "btrfs"),
        ("0:53", "overlay overlay rw,lowerdir=/data,upperdir=/data,workdir=/w", "overlay"),
        ("0:54", "fuse.sshfs host:/ rw", "fuse.sshfs"),
    ] {
        closes(&other(number, rest, |_| ()), "file_system", BOTH, seen);
    }
    let xfs = other("259:1", "xfs /dev/nvme1n1 rw", |_| ());
    assert_eq!(check(&xfs, "file_system").state, State::Ok);
    assert!(xfs.check("mount_options").is_none() && xfs.ways[0].is_open);
    let virtiofs = other("0:56", "virtiofs shared rw", |_| ());
    assert_eq!(check(&virtiofs, "file_system").state, State::Unknown);
    let key = &check(&virtiofs, "cufile_p2pdma").seen;
    assert!(key.contains("fs.virtiofs.use_pci_p2pdma"), "{key}");
    let lustre = other("0:55", "lustre a@tcp:/x rw", |_| ());
    assert_eq!(check(&lustre, "file_system").state, State::Unknown);
    let mode = |options: &str| other("259:1", &format!("ext4 /dev/nvme1n1 {options}"), |_| ());
    closes(&mode("rw,data=writeback"), "mount_options", BOTH, "data=writeback");
    closes(&mode("rw,data=journal"), "mount_options", BOTH, "data=journal");
    warns(&mode("rw,discard"), "mount_options", "no `data=`");
}

#[test]
fn attributes_of_the_file() {
    let file = |rest: &str| {
        let mut machine = Machine::p2pdma();
        machine.tree.answer(&format!(
            "{{\"path\":\"/data/x\",\"dev\":\"259:1\",\"mode\":\"100644\",\"ino\":13,\"size\":9,\
             \"mnt_id\":25,{rest}}}"
        ));
        machine.examine("/data/x")
    };
    let plain = r#""fiemap":{"extents":[[0,4096,4096,"0x1"]]}"#;
    assert_eq!(check(&file(plain), "file_attributes").state, State::Ok);
    let inline = r#""fiemap":{"extents":[[0,0,4096,"0x301"]]}"#;
    closes(&file(inline), "file_attributes", BOTH, "in the inode");
    let encrypted = format!(r#""attributes":"0x800",{plain}"#);
    closes(&file(&encrypted), "file_attributes", BOTH, "encrypted");
    let none = r#""fiemap":{"errno":95}"#;
    assert_eq!(check(&file(none), "file_attributes").state, State::Ok);
}

/// A device of `folder` that stands on the machine's drive, mounted at `/other`.
pub(crate) fn stacked(
    machine: Machine,
    number: &str,
    name: &str,
    files: &[(&str, &str)],
) -> Report {
    on(machine, number, &format!("xfs /dev/{name} rw"), |machine| {
        let tree = &machine.tree;
        tree.device(number, &format!("virtual/block/{name}"));
        for (file, text) in files {
            tree.write(&format!("sys/devices/virtual/block/{name}/{file}"), text);
        }
        let drive = format!("../../../../../{}", NVME.strip_prefix("sys/devices/").unwrap());
        let link = format!("sys/devices/virtual/block/{name}/slaves/nvme1n1");
        tree.link(&link, &format!("{drive}/nvme/nvme1/nvme1n1"));
        udev(tree, number, "xfs");
    })
}

#[test]
fn arrays_and_volumes() {
    let array = |level: &str| {
        stacked(Machine::p2pdma(), "9:0", "md0", &[("md/level", level), ("md/raid_disks", "1")])
    };
    let raid0 = array("raid0");
    assert_eq!(check(&raid0, "raid").state, State::Warning);
    closes(&raid0, "udev_raid", BOTH, "MD_LEVEL");
    closes(&array("raid5"), "raid", BOTH, "md0: raid5");
    closes(&array("linear"), "raid", BOTH, "md0: linear");
    let key = check(&array("raid1"), "cufile_p2pdma").seen.clone();
    assert!(key.contains("block.raid1.use_pci_p2pdma"), "{key}");
    for (uuid, kind) in [("CRYPT-LUKS2-1", "crypt"), ("LVM-1", "LVM"), ("mpath-1", "multipath")] {
        let report = stacked(
            Machine::p2pdma(),
            "253:0",
            "dm-0",
            &[("dm/uuid", uuid), ("dm/name", "volume")],
        );
        closes(&report, "volume", BOTH, kind);
    }
    let report = stacked(Machine::p2pdma(), "7:0", "loop0", &[("loop/backing_file", "/data/f\n")]);
    closes(&report, "drive", BOTH, "loop device");
}

#[test]
fn drives() {
    let report = after(|m| {
        m.tree.write("sys/block/nvme1c0n1", "");
    });
    closes(&report, "multipath", P2PDMA, "nvme1n1 has 1 paths");
    let report = after(|m| {
        m.tree.write("sys/block/nvme1c0n1", "");
        kernel(&m.tree, "7.2.0", "CONFIG_PCI_P2PDMA=y\nCONFIG_ZONE_DEVICE=y\n");
    });
    warns(&report, "multipath", "nvme1n1");
    let report = after(|m| {
        let folder = format!("{NVME}/nvme/nvme1/nvme1n1/integrity");
        m.tree.write(&format!("{folder}/device_is_integrity_capable"), "1\n");
        m.tree.write(&format!("{folder}/format"), "T10-DIF-TYPE1-CRC\n");
    });
    closes(&report, "protection_information", BOTH, "T10-DIF-TYPE1-CRC");
    let carried = |kind: &'static str| {
        after(move |m| m.tree.write(&format!("{NVME}/nvme/nvme1/transport"), format!("{kind}\n")))
    };
    closes(&carried("tcp"), "nvme_over_fabrics", BOTH, "tcp");
    assert_eq!(check(&carried("rdma"), "nvme_over_fabrics").state, State::Warning);
    let report = after(|m| m.tree.write(&format!("{NVME}/nvme/nvme1/model"), "NVMe SNAP\n"));
    assert!(report.check("dpu").is_none(), "a word alone is no sign");
    let report = after(|m| {
        m.tree.write(&format!("{NVME}/uevent"), "DRIVER=nvme\nPCI_ID=15B3:6001\n");
    });
    warns(&report, "dpu", "nvme1n1 is likely emulated by a DPU");
    let mut two = Machine::p2pdma();
    nvme(&two.tree, "pci0000:80/0000:81:00.0", "259:2", 2);
    two.mount("259:2", "xfs /dev/nvme2n1 rw");
    two.tree.write("sys/devices/pci0000:80/0000:81:00.0/numa_node", "1\n");
    two.tree.write("sys/devices/system/node/node0/distance", "10 21\n");
    two.tree.write("sys/devices/system/node/node1/distance", "21 10\n");
    let report = two.examine("/other/f");
    assert_eq!(check(&report, "distance").state, State::Warning, "{report:#?}");
}

#[test]
fn networks() {
    let nfs = |options: &str, ports: &[(&str, &str)]| {
        let ports: Vec<_> = ports.to_vec();
        let rest = format!("nfs4 host:/x rw,vers=4.2,{options}");
        other("0:60", &rest, move |m| {
            for (port, state) in ports {
                let file = format!("sys/class/infiniband/{port}/state");
                m.tree.write(&file, format!("{state}\n"));
            }
            m.tree.write("sys/module/rpcrdma/refcnt", "1\n");
            m.tree.write("sys/module/sunrpc/parameters/nfs_bundle_version", "4.5.1\n");
            m.tree.write("sys/module/nvidia_fs/version", "2.28\n");
            m.tree.write("proc/driver/nvidia-fs/modules", "rpcrdma\n");
        })
    };
    let up = [("mlx5_0/ports/1", "4: ACTIVE")];
    let tcp = nfs("proto=tcp", &up);
    closes(&tcp, "nfs_transport", BOTH, "over tcp");
    let rdma = nfs("proto=rdma,port=20049", &up);
    assert_eq!(check(&rdma, "nfs_transport").state, State::Ok, "{rdma:#?}");
    assert!(check(&rdma, "nfs_transport").seen.contains("over rdma, by VAST's client 4.5.1"));
    assert_eq!(check(&rdma, "rdma_devices").seen, "mlx5_0/1 up");
    assert_eq!(check(&rdma, "peermem").state, State::Warning);
    assert!(check(&rdma, "nfs_transport").blocks == P2PDMA, "P2PDMA is for drives");
    let down = nfs("proto=rdma", &[("mlx5_0/ports/1", "1: DOWN")]);
    closes(&down, "rdma_devices", &[DirectPath::NvidiaFs], "mlx5_0/1 is `1: DOWN`");
    let none = nfs("proto=rdma", &[]);
    closes(&none, "rdma_devices", &[DirectPath::NvidiaFs], "is empty");
}

#[test]
fn answers_of_cufile() {
    let says = |text: &str| {
        let text = text.to_owned();
        after(move |m| m.cufile = Some(text))
    };
    let failed = "library /l.so\nversion 1.19\nfailed cuFileDriverOpen: 5033\nhint look\n";
    closes(&says(failed), "cufile_library", BOTH, "cuFileDriverOpen: 5033");
    let missing = says("failed there is no `libcufile.so.0`\n");
    closes(&missing, "cufile_library", BOTH, "there is no `libcufile.so.0`");
    let late = "library /l.so\nversion 1.20\nend late 5000\n";
    let mut machine = Machine::p2pdma();
    machine.cufile = Some(late.into());
    let report = machine.examine("/data/f");
    closes(&report, "cufile_library", BOTH, "did not open in 5 s");
    assert!(report.is_broken(), "P2PDMA was set up");
    let mut machine = Machine::virtual_h200();
    machine.cufile = Some(late.replace("late 5000", "killed 11"));
    let report = machine.examine("/data/f");
    closes(&report, "cufile_library", BOTH, "signal 11 ended the helper");
    assert!(!report.is_broken(), "no direct path is set up");
    let compat = "library /l.so\nversion 1.19\nopened\nstorage nfs compat\n";
    let report = says(compat);
    let served = check(&report, "cufile_storage");
    assert_eq!((served.state, served.blocks.as_slice()), (State::Problem, BOTH));
    let mut machine = Machine::p2pdma();
    machine.cufile = None;
    assert_eq!(check(&machine.examine("/data/f"), "cufile_library").state, State::Unknown);
}

#[test]
fn processes_and_containers() {
    let udev = after(|m| m.remove("run"));
    closes(&udev, "udev", BOTH, "there is no /run/udev");
    assert!(udev.is_broken(), "P2PDMA was set up");
    let step = |report: &Report| check(report, "udev").step.clone().unwrap();
    assert!(step(&udev).contains("systemctl"));
    let contained = after(|m| {
        m.tree.write(".dockerenv", "");
        m.remove("run");
    });
    assert!(step(&contained).contains("-v /run/udev"));
    assert_eq!(check(&contained, "container").seen, "/.dockerenv is there");
    let limits = "Max locked memory  65536  65536  bytes\n";
    let small = after(|m| {
        m.tree.write("proc/self/limits", limits);
        m.tree.write("proc/self/status", "CapEff:\t0000000000000000\n");
    });
    warns(&small, "locked_memory", "64");
    assert_eq!(check(&small, "rights").state, State::Unknown);
    let root = after(|m| m.tree.write("proc/self/limits", limits));
    assert_eq!(check(&root, "locked_memory").state, State::Ok, "root may");
    let modules = after(|m| m.remove("proc/modules"));
    assert_eq!(check(&modules, "proc_modules").state, State::Warning, "the driver has opened");
    let modules = after(|m| {
        m.remove("proc/modules");
        m.cufile = Some("library /l.so\nversion 1.19\n".into());
    });
    closes(&modules, "proc_modules", BOTH, "/proc/modules");
}

#[test]
fn missing_gpus() {
    let machine = Machine::p2pdma();
    let report = machine.examine_gpu("/data/f", GpuWish::None("there is no driver".into()));
    closes_without_step(&report, "there is no driver");
    assert!(!report.is_broken() && report.gpu.is_none());
    let report = machine.examine_gpu("/data/f", GpuWish::At("0000:99:00.0".into()));
    closes_without_step(&report, "0000:99:00.0");
    assert!(report.is_broken(), "it was named");
    let report = machine.examine_gpu("/data/f", GpuWish::Index(1));
    closes_without_step(&report, "there is no GPU 1: /sys shows 1");
    let report = machine.examine_gpu("/data/f", GpuWish::At(GPU.into()));
    assert_eq!(report.gpu.unwrap().to_string(), "NVIDIA H100 80GB HBM3 at 0000:41:00.0");
}

#[track_caller]
fn closes_without_step(report: &Report, seen: &str) {
    let class = check(report, "gpu_class");
    assert_eq!((class.state, class.blocks.as_slice()), (State::Problem, BOTH), "{class:?}");
    assert!(class.seen.contains(seen), "{class:?}");
}
