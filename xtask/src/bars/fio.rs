//! `fio` as the reference: the storage's rate for a well-tuned program that only reads.

use std::fs;
use std::path::Path;
use std::time::Duration;

use forebay_measure::fio;
use serde_json::Value;

use crate::bar::Stop;
use crate::sample::{Sample, float};

/// Reads that run for a given time.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Load {
    /// Bytes of a request.
    pub(crate) size: u64,
    /// Requests in flight.
    pub(crate) depth: u32,
    pub(crate) random: bool,
    /// On a capped drive the burst after a pause, a tenth of a second's worth, must not count for
    /// much.
    pub(crate) time: Duration,
}

/// The result of one run.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Outcome {
    pub(crate) sample: Sample,
    /// The 50th, 90th and 99th percentile of the latency in nanoseconds.
    pub(crate) quantiles: [f64; 3],
}

/// The installed `fio`.
#[derive(Debug)]
pub(crate) struct Fio {
    /// Whether huge pages are reserved for its memory.
    huge: bool,
}

impl Fio {
    /// Finds it in `PATH`.
    pub(crate) fn find() -> Result<Self, Stop> {
        match fio::version() {
            Some(_) => Ok(Self { huge: huge_pages_free() }),
            None => Err(Stop::Skip("no `fio` on this machine".into())),
        }
    }

    /// The type of memory of its requests; on some drives it decides their speed.
    pub(crate) fn memory(&self) -> &'static str {
        if self.huge { "huge pages" } else { "ordinary pages: none are reserved that are huge" }
    }

    /// Reads `len` bytes of `file` from its start, with O_DIRECT, in requests of 1 MiB.
    pub(crate) fn sequential(&self, file: &Path, len: u64, depth: u32) -> Result<Sample, Stop> {
        let memory = if self.huge { "mmaphuge" } else { "malloc" };
        let job = format!("--rw=read --bs=1M --size={len} --iomem={memory}");
        Ok(run(file, depth, &job)?.sample)
    }

    /// Reads `count` random pieces of `size` bytes, with O_DIRECT.
    pub(crate) fn random(
        &self,
        file: &Path,
        (size, count): (u64, u64),
        depth: u32,
    ) -> Result<Outcome, Stop> {
        let job = format!("--rw=randread --bs={size} --norandommap --io_size={}", count * size);
        run(file, depth, &job)
    }

    /// Reads as `load` says, with O_DIRECT.
    pub(crate) fn timed(&self, file: &Path, load: &Load) -> Result<Outcome, Stop> {
        let order = if load.random { "randread" } else { "read" };
        let (size, ms) = (load.size, load.time.as_millis());
        let time = format!("--time_based --runtime={ms}ms --ramp_time={}ms", ms / 10);
        run(file, load.depth, &format!("--rw={order} --bs={size} --norandommap {time}"))
    }
}

/// Runs one job, and reads latencies from a request's submission until its completion is seen.
fn run(file: &Path, depth: u32, job: &str) -> Result<Outcome, Stop> {
    let common = "--direct=1 --ioengine=io_uring --lat_percentiles=1 --percentile_list=50:90:99";
    let file = [format!("--iodepth={depth}"), format!("--filename={}", file.display())];
    let words = common.split(' ').chain(job.split(' ')).map(str::to_owned).chain(file);
    let job = fio::job(words).map_err(|why| Stop::Fail(format!("`fio` failed: {why}")))?;
    parse(&job).ok_or_else(|| Stop::Fail(format!("`fio` reported nothing: {job}")))
}

/// Whether enough huge pages are reserved and free for the deepest queue.
fn huge_pages_free() -> bool {
    let facts = fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let number = |name: &str| -> u64 {
        let fact = facts.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
        fact.and_then(|fact| fact.trim().trim_end_matches(" kB").parse().ok()).unwrap_or(0)
    };
    number("HugePages_Free") * number("Hugepagesize") >= 128 * 1024
}

/// The results of a job. Its CPU use is given in per cent of its run time.
fn parse(job: &Value) -> Option<Outcome> {
    let read = &job["read"];
    let bytes = read["io_bytes"].as_u64()?;
    let rate = read["bw_bytes"].as_u64().filter(|rate| *rate > 0)?;
    let run_s = float(job["job_runtime"].as_u64()?) / 1e3;
    let percent = job["usr_cpu"].as_f64()? + job["sys_cpu"].as_f64()?;
    let seconds = float(bytes) / float(rate);
    let at = |share: &str| read["lat_ns"]["percentile"][share].as_f64();
    Some(Outcome {
        sample: Sample { seconds, bytes, cpu_s: percent / 100.0 * run_s },
        quantiles: [at("50.000000")?, at("90.000000")?, at("99.000000")?],
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_jobs_results_are_read() {
        let job = serde_json::json!({
            "read": {
                "io_bytes": 2000, "bw_bytes": 1000,
                "lat_ns": {"percentile": {"50.000000": 5, "90.000000": 9, "99.000000": 10}},
            },
            "job_runtime": 2000, "usr_cpu": 5.0, "sys_cpu": 20.0,
        });
        let Outcome { sample, quantiles } = parse(&job).unwrap();
        assert_eq!((sample.bytes, quantiles), (2000, [5.0, 9.0, 10.0]));
        assert!((sample.seconds - 2.0).abs() < 1e-9 && (sample.cpu_s - 0.5).abs() < 1e-9);
        assert!(parse(&Value::Null).is_none());
    }
}
