//! A made-up machine and drive, for tests of several packages.

#![allow(dead_code, reason = "each package uses a part")]

use forebay_measure::results::machine::{
    Cpu, Environment, FileSystem, Gpu, HostMemoryFacts, Versions,
};
use forebay_topology::{Drive, DriveId, DriveKind, DrivePath, Link, PciDevice, Transport};

/// A drive of fixed data.
pub(crate) fn drive() -> Drive {
    let link = Link::new(Some(4), Some(16_000));
    let pci = PciDevice {
        address: "0000:41:00.0".into(),
        link,
        link_max: link,
        numa_node: Some(0),
        ..PciDevice::default()
    };
    let path = DrivePath {
        name: "nvme0".into(),
        transport: Transport::Pcie,
        live: true,
        pci: Some(pci),
        numa_node: Some(0),
        ..DrivePath::default()
    };
    Drive {
        id: DriveId("nvme:nqn/1".into()),
        hardware: DriveId("nvme:nqn".into()),
        kind: DriveKind::Block,
        name: "nvme0n1".into(),
        model: Some("Fast One".into()),
        firmware: Some("1.0".into()),
        paths: vec![path],
        ..Drive::default()
    }
}

/// A machine of fixed data.
pub(crate) fn environment() -> Environment {
    Environment {
        kernel: "Linux 6.18.0".into(),
        cpu: Cpu { model: "Some CPU".into(), cores: 16 },
        memory: HostMemoryFacts { total: 128 << 30, available: 100 << 30 },
        gpu: Some(Gpu {
            id: "cuda:0".into(),
            name: "NVIDIA H200".into(),
            uuid: Some("GPU-1234".into()),
            pci_address: Some("0000:1b:00.0".into()),
            memory: 140 << 30,
            simulated: false,
        }),
        driver: Some("580.159".into()),
        file_system: Some(FileSystem {
            kind: "ext4".into(),
            mount_point: "/data".into(),
            source: "/dev/nvme0n1p1".into(),
        }),
        drives: vec![drive()],
        versions: Versions { forebay: "0.1.0".into(), fio: Some("fio-3.33".into()) },
        variables: [("FOREBAY_DEPTH".to_owned(), "8".to_owned())].into(),
        command: "forebay bench model.safetensors".into(),
        unix_time: 1_700_000_000,
    }
}
