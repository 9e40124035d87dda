//! A made-up machine and drive, for tests of several packages.

#![allow(dead_code, reason = "each package uses a part")]

use forebay_measure::results::drives::{DriveFacts, LinkFacts};
use forebay_measure::results::machine::{
    Cpu, Environment, FileSystem, Gpu, HostMemoryFacts, Versions,
};

/// A drive of fixed data.
pub(crate) fn drive() -> DriveFacts {
    let link = |rate, bytes_per_second| LinkFacts {
        width: Some(4),
        megatransfers_per_s: Some(rate),
        bytes_per_second: Some(bytes_per_second),
    };
    DriveFacts {
        id: "nvme:nqn/1".into(),
        hardware: "nvme:nqn".into(),
        kind: "block".into(),
        name: "nvme0n1".into(),
        model: Some("Fast One".into()),
        firmware: Some("1.0".into()),
        transport: "pcie".into(),
        pci_address: Some("0000:41:00.0".into()),
        link: Some(link(16_000, 7_876_923_072)),
        link_max: Some(link(16_000, 7_876_923_072)),
        numa_node: Some(0),
        queues: vec!["nvme:nqn/1".into()],
        ..DriveFacts::default()
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
