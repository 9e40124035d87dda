//! The keys of reports, and a report of fixed data for other tests.

use super::*;
use crate::report::drives::tests::drive;

fn row(method: MethodName, cache: Option<Cache>, seconds: [f64; 3]) -> Row {
    let bytes = 1 << 30;
    let limit = cache.map(|cache| match cache {
        Cache::Cold => Limit { name: MethodName::Storage, bytes_per_second: 3.3e9 },
        Cache::Resident => Limit { name: MethodName::Link, bytes_per_second: 55.5e9 },
    });
    let bytes_per_second = Spread::of_rates(bytes, &seconds).unwrap();
    let ours = method == MethodName::Forebay;
    Row {
        method,
        route: ours.then(|| "cached".into()),
        demanded: None,
        reason: ours.then(|| "resident in the page cache".into()),
        direction: Direction::Read,
        cache,
        target: "cuda:0".into(),
        paths: (method != MethodName::Link).then(|| vec!["model.safetensors".into()]),
        drives: (method != MethodName::Link).then(|| vec!["nvme:nqn/1".into()]),
        settings: None,
        bytes,
        seconds: seconds.into(),
        bytes_per_second,
        limit,
        share_of_limit: limit.map(|limit| bytes_per_second.median / limit.bytes_per_second),
        speed_up: cache.map(|_| 12.25),
        cpu_s_per_gb: Some(0.125),
        verified: cache.map(|_| true),
        verdict: cache.map(crate::report::proof::tests::verdict),
        evidence: cache.map(|_| vec![serde_json::json!({"storage": "block"})]),
        simulated: false,
        size: bytes,
    }
}

/// A report of fixed data.
pub(crate) fn report() -> Report {
    Report {
        schema: SCHEMA,
        environment: Environment {
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
            drive: Some(Drive {
                name: "nvme0n1".into(),
                model: Some("Fast One".into()),
                size: Some(1 << 40),
                rotational: Some(false),
            }),
            drives: vec![drive()],
            versions: Versions {
                forebay: "0.1.0".into(),
                fio: Some("fio-3.33".into()),
                kvikio: None,
                cufile: None,
            },
            variables: [("FOREBAY_DEPTH".to_owned(), "8".to_owned())].into(),
            command: "forebay bench model.safetensors".into(),
            unix_time: 1_700_000_000,
        },
        results: vec![
            row(MethodName::Link, None, [0.0195, 0.0194, 0.0193]),
            row(MethodName::Standard, Some(Cache::Cold), [0.5, 0.51, 0.49]),
            row(MethodName::Forebay, Some(Cache::Resident), [0.0197, 0.0196, 0.0198]),
        ],
        warnings: Vec::new(),
    }
}

/// The text as in a report.
fn text(part: impl Serialize) -> String {
    serde_json::to_string_pretty(&part).unwrap()
}

#[test]
fn keys_of_the_environment_are_those_of_the_schema() {
    let mut environment = report().environment;
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
      "drive": {
        "name": "nvme0n1",
        "model": "Fast One",
        "size": 1099511627776,
        "rotational": false
      },
      "drives": [],
      "versions": {
        "forebay": "0.1.0",
        "fio": "fio-3.33",
        "kvikio": null,
        "cufile": null
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
fn keys_of_a_row_are_those_of_the_schema() {
    let mut row = report().results.remove(2);
    // They have a test of their own.
    (row.verdict, row.evidence) = (None, None);
    insta::assert_snapshot!(text(&row), @r#"
    {
      "method": "forebay",
      "route": "cached",
      "demanded": null,
      "reason": "resident in the page cache",
      "direction": "read",
      "cache": "resident",
      "target": "cuda:0",
      "paths": [
        "model.safetensors"
      ],
      "drives": [
        "nvme:nqn/1"
      ],
      "settings": null,
      "bytes": 1073741824,
      "seconds": [
        0.0197,
        0.0196,
        0.0198
      ],
      "bytes_per_second": {
        "median": 54504661116.751274,
        "min": 54229385050.50504,
        "max": 54782746122.44898
      },
      "limit": {
        "name": "link",
        "bytes_per_second": 55500000000.0
      },
      "share_of_limit": 0.9820659660675906,
      "speed_up": 12.25,
      "cpu_s_per_gb": 0.125,
      "verified": true,
      "verdict": null,
      "evidence": null,
      "simulated": false
    }
    "#);
    let ceiling = text(&report().results[0]);
    for key in [
        "route",
        "reason",
        "cache",
        "paths",
        "drives",
        "limit",
        "share_of_limit",
        "verified",
        "verdict",
        "evidence",
    ] {
        assert!(ceiling.contains(&format!("\"{key}\": null")), "{key}: {ceiling}");
    }
}

#[test]
fn keys_of_a_verdict_are_those_of_the_schema() {
    insta::assert_snapshot!(text(&report().results[1].verdict), @r#"
    {
      "word": "staged",
      "text": "staged",
      "shares": [
        {
          "way": "staged",
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
fn keys_of_a_report_are_those_of_the_schema() {
    let value: serde_json::Value = serde_json::from_str(&report().to_text().unwrap()).unwrap();
    let keys: Vec<_> = value.as_object().unwrap().keys().collect();
    assert_eq!(keys, ["environment", "results", "schema", "warnings"]);
}

#[test]
fn a_report_is_read_back() {
    let mut report = report();
    let text = report.to_text().unwrap();
    // The table's grouping is not part of the schema.
    report.results.iter_mut().for_each(|row| row.size = 0);
    assert_eq!(serde_json::from_str::<Report>(&text).unwrap(), report);
}
