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
    // The keys of a drive are next to its type.
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
fn what_is_not_known_is_not_named() {
    let mut facts = crate::facts::environment();
    let place = |facts: &Environment| place(facts, false);
    let link = "ext4 on nvme0n1 (Fast One, x4 at 16 GT/s)";
    assert_eq!(place(&facts).as_deref(), Some(link));
    facts.drives.resize_with(6, || DriveFacts { name: "d".into(), ..DriveFacts::default() });
    let several = format!("{link} + d + d + d + 2 more");
    assert_eq!(place(&facts), Some(several));
    facts.drives.clear();
    assert_eq!(place(&facts).as_deref(), Some("ext4"));
    facts.file_system = None;
    assert_eq!(place(&facts), None);
}
