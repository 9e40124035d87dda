//! Results files that were not measured, for tests: sweeps over several axes, of several runs, with
//! failures, with several GPUs, and with what a person who means harm would write.

#![allow(
    clippy::cast_possible_truncation,
    clippy::cast_precision_loss,
    clippy::cast_sign_loss,
    reason = "the numbers are made up"
)]
#![allow(dead_code, reason = "each of those who have this uses a part")]

use serde_json::{Value, json};

/// What there is to vary.
#[derive(Debug, Clone)]
pub(crate) struct Sweep {
    pub(crate) label: Option<&'static str>,
    pub(crate) methods: Vec<&'static str>,
    pub(crate) read_percents: Vec<u8>,
    pub(crate) request_sizes: Vec<u64>,
    pub(crate) depths: Vec<u64>,
    pub(crate) targets: Vec<&'static str>,
    pub(crate) path: String,
    pub(crate) repeats: u32,
    /// Every so many points fail; 0 for none.
    pub(crate) fails: usize,
}

impl Default for Sweep {
    fn default() -> Self {
        Self {
            label: None,
            methods: vec!["forebay"],
            read_percents: vec![100],
            request_sizes: [64, 128, 512, 1024, 4096].map(|kib| kib << 10).into(),
            depths: vec![1, 8, 32],
            targets: vec!["cuda:0"],
            path: "/data/model.safetensors".into(),
            repeats: 3,
            fails: 0,
        }
    }
}

/// The environment of all these.
pub(crate) fn environment(command: &str) -> Value {
    json!({
        "kernel": "Linux 6.18.0",
        "cpu": {"model": "Some CPU", "cores": 16},
        "memory": {"total": 137_438_953_472_u64, "available": 107_374_182_400_u64},
        "gpu": gpu("cuda:0"),
        "driver": "580.159",
        "file_system": {"type": "ext4", "mount_point": "/data", "source": "/dev/nvme0n1p1"},
        "drives": [{"id": "nvme0n1", "hardware": "nvme0n1", "kind": "block", "name": "nvme0n1",
            "model": "Fast One", "size": 1_099_511_627_776_u64, "rotational": false,
            "paths": []}],
        "versions": {"forebay": "0.1.0", "fio": null},
        "command": command,
        "unix_time": 1_700_000_000
    })
}

fn gpu(id: &str) -> Value {
    json!({"id": id, "name": "NVIDIA H200", "uuid": "GPU-1234", "pci_address": "0000:1b:00.0",
        "memory": 150_323_855_360_u64, "simulated": false})
}

/// A run's record.
pub(crate) fn run(sweep: &Sweep) -> Value {
    json!({
        "record": "run", "schema": 1, "verb": "bench", "label": sweep.label,
        "environment": environment("forebay bench /data/model.safetensors --depth 1,8,32"),
        "gpus": sweep.targets.iter().map(|id| gpu(id)).collect::<Vec<_>>(),
        "request": {"depths": sweep.depths, "seconds": 2, "repeats": sweep.repeats}
    })
}

/// A limit's record.
pub(crate) fn limit(name: &str, of: &str, rate: f64) -> Value {
    json!({"record": "limit", "name": name, "of": of, "direction": "read",
        "bytes_per_second": rate, "how": "by hand", "simulated": false})
}

/// A sample's point.
fn point(sweep: &Sweep, method: &str, reads: u8, request_size: u64, depth: u64) -> Value {
    json!({"path": sweep.path, "targets": sweep.targets, "method": method, "route": null,
        "read_percent": reads, "pattern": "random", "request_size": request_size, "depth": depth,
        "batch": 1, "threads": 1, "files": 1, "cache": "cold"})
}

/// What a sample shows: faster with larger requests and more of them, up to a limit.
fn measured(sweep: &Sweep, method: &str, request_size: u64, depth: u64, repeat: u32) -> Value {
    let in_flight = (request_size * depth) as f64;
    let slower = if method == "forebay" { 1.0 } else { 0.6 };
    let noise = 1.0 + f64::from(repeat) * 0.01;
    let rate = slower * noise * 6.8e9 * in_flight / (in_flight + 2e6);
    let bytes = (rate * 2.0) as u64;
    let p50 = (in_flight / rate * 1e9) as u64;
    let count = sweep.targets.len() as u64;
    let shares = sweep.targets.iter().enumerate().map(|(index, target)| {
        json!({"target": target, "bytes": bytes / count, "bytes_per_second": rate / count as f64,
            "first_done_s": 1.9, "last_done_s": 2.0 + index as f64 * 0.1})
    });
    let shares: Vec<Value> = if count > 1 { shares.collect() } else { Vec::new() };
    json!({
        "bytes": bytes, "requests": bytes / request_size, "seconds": 2.0,
        "bytes_per_second": rate, "requests_per_second": rate / request_size as f64,
        "latency": {"count": bytes / request_size, "mean_ns": p50 as f64, "p50_ns": p50,
            "p90_ns": p50 * 2, "p99_ns": p50 * 3, "p99_9_ns": p50 * 4, "max_ns": p50 * 9,
            "since_due": false},
        "cpu": {"user_s": 0.1, "system_s": 0.2, "cores": 0.15, "s_per_gb": 3e8 / bytes as f64},
        "page_cache": {"before": 0.0, "after": 0.0},
        "drive_bytes": {"read": bytes, "written": 0},
        "route": "staged", "reason": "no direct path", "verdict": verdict(), "evidence": null,
        "bound": {"name": "in-flight", "bytes_per_second": 7e9, "share": rate / 7e9,
            "advice": "add depth"},
        "steady": {"rates": [rate], "part_s": 0.5, "slope": 0.0, "deviation": 0.0,
            "reached": true},
        "power": {
            "seconds": 2.0,
            "sources": [{"part": "gpu", "joules": 20.5 * bytes as f64 / 1e9}],
        },
        "verified": true, "shares": shares, "simulated": false
    })
}

fn verdict() -> Value {
    json!({"word": "staged", "text": "mixed 75 % staged / 25 % cached", "shares":
        [{"route": "staged", "share": 0.75}, {"route": "cached", "share": 0.25}],
        "simulated": false, "grounds": ["the drives moved as much"], "missing": [],
        "contradictions": [], "doubts": [], "claim": null})
}

/// All samples of a sweep, one repeat of all points after the other.
pub(crate) fn samples(sweep: &Sweep) -> Vec<Value> {
    let mut samples = Vec::new();
    for repeat in 0..sweep.repeats {
        let mut number = 0;
        for method in &sweep.methods {
            for reads in &sweep.read_percents {
                for size in &sweep.request_sizes {
                    for depth in &sweep.depths {
                        number += 1;
                        let fails = sweep.fails > 0 && number % sweep.fails == 0;
                        let error = fails.then_some("cannot read: input/output error");
                        let shown = measured(sweep, method, *size, *depth, repeat);
                        samples.push(json!({"record": "sample", "repeat": repeat, "error": error,
                            "point": point(sweep, method, *reads, *size, *depth),
                            "unix_time": 1_700_000_000.5 + f64::from(repeat),
                            "measured": if fails { Value::Null } else { shown }}));
                    }
                }
            }
        }
    }
    samples
}

/// Has the run that stands first name the points of all samples, as that of a sweep does.
pub(crate) fn name_points(records: &mut [Value]) {
    let mut points: Vec<Value> = Vec::new();
    for record in records.iter().filter(|record| record["record"] == "sample") {
        if !points.contains(&record["point"]) {
            points.push(record["point"].clone());
        }
    }
    records[0]["request"]["points"] = points.into();
}

/// The text of a results file.
pub(crate) fn text(records: &[Value]) -> String {
    records.iter().map(|record| format!("{record}\n")).collect()
}

/// A sweep with its limits, as a file.
pub(crate) fn file(sweep: &Sweep) -> String {
    let mut records = vec![run(sweep)];
    records.extend(sweep.targets.iter().map(|id| limit("link", id, 25e9)));
    records.push(limit("storage", &sweep.path, 7e9));
    records.extend(samples(sweep));
    text(&records)
}

/// Words that would do harm where they were not escaped.
pub(crate) const HARM: &str =
    "</script><script>alert(1)</script>\"'><img src=x onerror=alert(2)>&amp;\u{1b}[2J\0|`=1+1`\n";

/// A file of an attacker: the words are everywhere, the numbers are absurd.
pub(crate) fn hostile() -> String {
    let mut sweep = Sweep { path: HARM.into(), repeats: 1, fails: 4, ..Sweep::default() };
    sweep.methods = vec![HARM, "forebay"];
    sweep.label = Some(HARM);
    sweep.targets = vec![HARM, "-1"];
    let mut first = run(&sweep);
    first["verb"] = HARM.into();
    first["environment"] = environment(HARM);
    first["environment"]["kernel"] = HARM.into();
    first["request"] =
        json!({HARM: [HARM, {HARM: null}], "deep": (0..40).fold(json!(1), |at, _| json!([at]))});
    let mut records = vec![first, json!({"record": "warning", "text": HARM})];
    for rate in [1.7e308, 0.0, 5e-324] {
        let mut limit = limit(HARM, HARM, rate);
        limit["how"] = HARM.into();
        records.push(limit);
    }
    let mut samples = samples(&sweep);
    for (index, sample) in samples.iter_mut().enumerate() {
        if sample["error"].is_string() {
            sample["error"] = HARM.into();
            continue;
        }
        sample["point"]["request_size"] = [0, 1, u64::MAX][index % 3].into();
        let measured = &mut sample["measured"];
        measured["bytes_per_second"] = [1.7e308, 1e308, 0.0, 1e-300, -0.0][index % 5].into();
        measured["bytes"] = u64::MAX.into();
        measured["latency"]["p99_ns"] = u64::MAX.into();
        measured["cpu"]["s_per_gb"] = 1e308.into();
        measured["route"] = HARM.into();
        measured["verdict"]["text"] = HARM.into();
        measured["verdict"]["shares"] = json!([{"route": HARM, "share": 1e308},
            {"route": "staged", "share": 3}]);
        measured["verdict"]["missing"] = json!([{"why": HARM, "remedy": HARM}]);
    }
    records.extend(samples);
    text(&records)
}
