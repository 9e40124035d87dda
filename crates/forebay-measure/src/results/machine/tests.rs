//! The keys of a machine and a verdict.

use super::*;
use crate::facts::{drive, environment};
use crate::results::Cache;

/// The text as in a report.
fn text(part: impl Serialize) -> String {
    serde_json::to_string_pretty(&part).unwrap()
}

#[test]
fn keys_of_the_environment_are_those_of_the_schema() {
    let mut environment = environment();
    assert_eq!(environment.drives, [drive()]);
    // The keys of a drive have a test of their own.
    environment.drives.clear();
    insta::assert_snapshot!(text(environment), @r#"
    {
      "kernel": "Linux 6.18.0",
      "cpu": {
        "model": "Some CPU",
        "cores": 16
      },
      "memory": {
        "total": 137438953472,
        "available": 107374182400
      },
      "gpu": {
        "id": "cuda:0",
        "name": "NVIDIA H200",
        "uuid": "GPU-1234",
        "pci_address": "0000:1b:00.0",
        "memory": 150323855360,
        "simulated": false
      },
      "driver": "580.159",
      "file_system": {
        "type": "ext4",
        "mount_point": "/data",
        "source": "/dev/nvme0n1p1"
      },
      "drives": [],
      "versions": {
        "forebay": "0.1.0",
        "fio": "fio-3.33"
      },
      "variables": {
        "FOREBAY_DEPTH": "8"
      },
      "command": "forebay bench model.safetensors",
      "unix_time": 1700000000
    }
    "#);
}

#[test]
fn keys_of_a_verdict_are_those_of_the_schema() {
    insta::assert_snapshot!(text(crate::results::verdict::tests::verdict(Cache::Cold)), @r#"
    {
      "word": "staged",
      "text": "staged",
      "shares": [
        {
          "route": "staged",
          "share": 1.0
        }
      ],
      "simulated": false,
      "grounds": [
        "0 B came from storage"
      ],
      "missing": [],
      "contradictions": [],
      "doubts": [
        "others used it as well"
      ],
      "claim": null
    }
    "#);
}

#[test]
fn unknown_facts_are_left_out() {
    let mut facts = crate::facts::environment();
    let place = |facts: &Environment| place(facts, false);
    let link = "ext4 on nvme0n1 (Fast One, x4 at 16 GT/s)";
    assert_eq!(place(&facts).as_deref(), Some(link));
    facts.drives.resize_with(6, || Drive { name: "d".into(), ..Drive::default() });
    let several = format!("{link} + d + d + d + 2 more");
    assert_eq!(place(&facts), Some(several));
    facts.drives.clear();
    assert_eq!(place(&facts).as_deref(), Some("ext4"));
    facts.file_system = None;
    assert_eq!(place(&facts), None);
}

#[test]
fn keys_of_a_drive_are_those_of_the_schema() {
    let text = serde_json::to_string_pretty(&drive()).unwrap();
    insta::assert_snapshot!(text, @r#"
    {
      "id": "nvme:nqn/1",
      "hardware": "nvme:nqn",
      "kind": "block",
      "name": "nvme0n1",
      "model": "Fast One",
      "firmware": "1.0",
      "serial": null,
      "size": null,
      "logical_block_size": null,
      "rotational": null,
      "paths": [
        {
          "name": "nvme0",
          "transport": "pcie",
          "live": true,
          "state": null,
          "pci": {
            "address": "0000:41:00.0",
            "vendor": null,
            "device": null,
            "class": null,
            "driver": null,
            "link": {
              "width": 4,
              "megatransfers_per_s": 16000,
              "bytes_per_second": 7876923072
            },
            "link_max": {
              "width": 4,
              "megatransfers_per_s": 16000,
              "bytes_per_second": 7876923072
            },
            "bridges": [],
            "host_bridge": "",
            "numa_node": 0,
            "socket": null,
            "node_distances": [],
            "iommu_group": null
          },
          "numa_node": 0
        }
      ]
    }
    "#);
}

/// As versions wrote it that had the facts of the path in use next to the drive.
#[test]
fn a_drive_of_an_archived_run_is_read() {
    let old = r#"{"id": "x", "kind": "block", "name": "sda", "transport": "sata", "network": false,
        "link": null, "queues": ["x"], "paths": [{"name": "sda", "transport": "sata", "live": true,
        "state": null, "numa_node": 0, "pci": {"address": "0000:00:17.0", "id": "8086:a352",
        "link": null, "link_max": null, "bridges": [], "socket": 0}}]}"#;
    let drive: Drive = serde_json::from_str(old).unwrap();
    assert_eq!((drive.name.as_str(), drive.transport().to_string()), ("sda", "sata".into()));
    assert_eq!(drive.pci().unwrap().package, Some(0));
}
