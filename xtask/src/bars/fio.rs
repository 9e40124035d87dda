//! `fio` as the reference: the storage's rate for a well-tuned program that only reads.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use serde_json::Value;

use crate::bar::Stop;
use crate::sample::{Sample, float};
use crate::sweep::Told;

/// Reads that run for a given time.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Load {
    /// Bytes of a request.
    pub(crate) size: u64,
    /// Requests in flight.
    pub(crate) depth: u32,
    pub(crate) random: bool,
    pub(crate) time: Duration,
}

impl Load {
    /// The duration of one run: on a capped drive the burst after a pause, a tenth of a second's
    /// worth, must not count for much.
    pub(crate) fn time(tiny: bool) -> Duration {
        Duration::from_millis(if tiny { 200 } else { 4000 })
    }
}

/// The installed `fio`.
#[derive(Debug)]
pub(crate) struct Fio {
    program: PathBuf,
    /// Whether huge pages are reserved for its memory.
    huge: bool,
}

impl Fio {
    /// Finds it in `PATH`.
    pub(crate) fn find() -> Result<Self, Stop> {
        match version() {
            Some(_) => Ok(Self { program: "fio".into(), huge: huge_pages_free() }),
            None => Err(Stop::Skip("no `fio` on this machine".into())),
        }
    }

    /// The type of memory of its requests; on some drives it decides their speed.
    pub(crate) fn memory(&self) -> &'static str {
        if self.huge { "huge pages" } else { "ordinary pages: none are reserved that are huge" }
    }

    /// Reads `len` bytes of `file` from its start, with O_DIRECT, in requests of 1 MiB.
    pub(crate) fn sequential(&self, file: &Path, len: u64, depth: u32) -> Result<Sample, Stop> {
        let size = format!("--size={len}");
        let mut job = vec!["--rw=read", "--bs=1M", &size];
        if self.huge {
            job.push("--iomem=mmaphuge");
        }
        self.run(file, depth, &job)
    }

    /// Reads `count` random pieces of 4 KiB, with O_DIRECT.
    pub(crate) fn random(&self, file: &Path, count: u64, depth: u32) -> Result<Sample, Stop> {
        let total = format!("--io_size={}", count * 4096);
        self.run(file, depth, &["--rw=randread", "--bs=4k", "--norandommap", &total])
    }

    /// Reads as `load` says, with O_DIRECT, and reports the latencies as well: from a request's
    /// submission until its completion is seen.
    pub(crate) fn timed(&self, file: &Path, load: &Load) -> Result<Told, Stop> {
        let order = if load.random { "randread" } else { "read" };
        let ms = load.time.as_millis();
        let text = self.report(
            file,
            load.depth,
            &[
                &format!("--rw={order}"),
                &format!("--bs={}", load.size),
                "--norandommap",
                "--time_based",
                &format!("--runtime={ms}ms"),
                &format!("--ramp_time={}ms", ms / 10),
                "--lat_percentiles=1",
                "--percentile_list=50:90:99",
            ],
        )?;
        told(&text).ok_or_else(|| Stop::Fail(format!("`fio` reported nothing: {}", text.trim())))
    }

    fn run(&self, file: &Path, depth: u32, job: &[&str]) -> Result<Sample, Stop> {
        let text = self.report(file, depth, job)?;
        parse(&text).ok_or_else(|| Stop::Fail(format!("`fio` reported nothing: {}", text.trim())))
    }

    fn report(&self, file: &Path, depth: u32, job: &[&str]) -> Result<String, Stop> {
        let output = Command::new(&self.program)
            .args(["--name=bar", "--readonly", "--direct=1", "--ioengine=io_uring", "--thread"])
            .args(["--output-format=json", &format!("--iodepth={depth}")])
            .arg(format!("--filename={}", file.display()))
            .args(job)
            .output()?;
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        if !output.status.success() {
            let cause = String::from_utf8_lossy(&output.stderr);
            return Err(Stop::Fail(format!("`fio` failed: {}{}", cause.trim(), text.trim())));
        }
        Ok(text)
    }
}

/// Whether enough huge pages are reserved and free for the deepest queue.
fn huge_pages_free() -> bool {
    let text = std::fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let number = |name: &str| -> u64 {
        let line = text.lines().find_map(|line| line.strip_prefix(name)).unwrap_or_default();
        line.trim().trim_end_matches("kB").trim().parse().unwrap_or(0)
    };
    number("HugePages_Free:") * number("Hugepagesize:") >= 128 * 1024
}

/// The version of the `fio` in `PATH`; `None` if there is none.
pub(crate) fn version() -> Option<String> {
    let output = Command::new("fio").arg("--version").output().ok()?;
    output.status.success().then(|| String::from_utf8_lossy(&output.stdout).trim().to_owned())
}

/// The one job of a report. Its CPU use is given in per cent of its run time.
fn parse(report: &str) -> Option<Sample> {
    // Warnings may precede the report.
    let report: Value = serde_json::from_str(&report[report.find('{')?..]).ok()?;
    let job = &report["jobs"][0];
    let bytes = job["read"]["io_bytes"].as_u64()?;
    let rate = job["read"]["bw_bytes"].as_u64().filter(|rate| *rate > 0)?;
    let run_s = float(job["job_runtime"].as_u64()?) / 1e3;
    let percent = job["usr_cpu"].as_f64()? + job["sys_cpu"].as_f64()?;
    Some(Sample { seconds: float(bytes) / float(rate), bytes, cpu_s: percent / 100.0 * run_s })
}

/// A report with latencies; which of its two kinds a report holds depends on `--lat_percentiles`.
fn told(report: &str) -> Option<Told> {
    let sample = parse(report)?;
    let report: Value = serde_json::from_str(&report[report.find('{')?..]).ok()?;
    let quantiles = &report["jobs"][0]["read"]["lat_ns"]["percentile"];
    let at = |share: &str| quantiles[share].as_f64();
    Some(Told { sample, quantiles: [at("50.000000")?, at("90.000000")?, at("99.000000")?] })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_report_is_read_also_behind_warnings() {
        let report = r#"fio: a warning
            {"jobs": [{"read": {"io_bytes": 2000, "bw_bytes": 1000}, "job_runtime": 2000,
            "usr_cpu": 5.0, "sys_cpu": 20.0}]}"#;
        let sample = parse(report).unwrap();
        assert_eq!(sample.bytes, 2000);
        assert!((sample.seconds - 2.0).abs() < 1e-9 && (sample.cpu_s - 0.5).abs() < 1e-9);
        assert!(parse("nothing").is_none() && told(report).is_none());
        let percentiles = r#""lat_ns": {"percentile":
            {"50.000000": 5, "90.000000": 9, "99.000000": 10}}, "io_bytes""#;
        let told = told(&report.replacen(r#""io_bytes""#, percentiles, 1)).unwrap();
        assert_eq!((told.sample.bytes, told.quantiles), (2000, [5.0, 9.0, 10.0]));
    }
}
