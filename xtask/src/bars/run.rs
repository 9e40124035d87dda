//! Runs the sides of a bar in turn, in separate processes.

use std::path::{Path, PathBuf};
use std::process::Command;

use forebay::units::MIB;
use forebay_measure::data::Pattern;
use forebay_measure::results::file::{self, samples};
use forebay_measure::stats::float;
use forebay_measure::{fio, make};
use serde_json::Value;

use super::judge::{Sample, Series};
use super::plans::{Bar, Load, On, Side};
use crate::{folders, process};

/// Why a bar ended without a result.
#[derive(Debug)]
pub(super) enum Stop {
    /// The machine lacks something.
    Skip(String),
    /// Something broke.
    Fail(String),
}

impl Stop {
    pub(super) fn words(&self) -> (&'static str, &str) {
        match self {
            Self::Skip(reason) => ("skipped", reason),
            Self::Fail(reason) => ("fail", reason),
        }
    }
}

impl From<String> for Stop {
    fn from(reason: String) -> Self {
        Self::Fail(reason)
    }
}

/// The command that is measured, and how.
#[derive(Debug)]
pub(super) struct Tools {
    pub(super) program: PathBuf,
    /// Small files, a single round and short samples.
    pub(super) tiny: bool,
}

/// The files of a bar, and the drives below them, which are removed with this.
#[derive(Debug)]
pub(super) struct Drives {
    folder: PathBuf,
    /// The control group whose reads are capped.
    group: Option<PathBuf>,
    files: Vec<PathBuf>,
}

/// Makes and removes drives: `drives.sh` explains the words.
fn drives(words: &[&str]) -> Result<(), Stop> {
    let mut bash = Command::new("bash");
    bash.args(["-c", include_str!("drives.sh"), "drives.sh"]).args(words);
    bash.env("LC_ALL", "C").env("PATH", process::full_path());
    let output = bash.output().map_err(|error| Stop::Skip(format!("no `bash`: {error}")))?;
    if output.status.success() {
        return Ok(());
    }
    let complaint = String::from_utf8_lossy(&output.stderr);
    let line = complaint.lines().find(|line| !line.trim().is_empty());
    Err(Stop::Skip(format!("no drives: {}", line.unwrap_or("`drives.sh` failed"))))
}

impl Drives {
    /// Makes what `on` names below `folder`.
    pub(super) fn new(
        on: On,
        folder: &Path,
        is_private: bool,
        tools: &Tools,
    ) -> Result<Self, Stop> {
        let (len, kind, rates) = match on {
            On::Scratch(len) => (len, "", &[][..]),
            On::Drives(len, rates) => (len, "each", rates),
            On::Striped(len, rates) => (len, "striped", rates),
        };
        let len = if tools.tiny { len / if rates.is_empty() { 4 } else { 32 } } else { len };
        let mut made = Self { folder: folder.into(), group: None, files: Vec::new() };
        if !rates.is_empty() {
            if !is_private || !process::is_root() {
                return Err(Stop::Skip("making drives needs root and a mount namespace".into()));
            }
            let groups = Command::new("findmnt")
                .args(["-nft", "cgroup", "-O", "blkio", "-o", "TARGET"])
                .output()
                .map_err(|error| Stop::Skip(format!("no `findmnt`: {error}")))?;
            let groups = String::from_utf8_lossy(&groups.stdout).trim().to_owned();
            if groups.is_empty() {
                return Err(Stop::Skip("no control groups of version 1 with `blkio`".into()));
            }
            let group = Path::new(&groups).join(format!("forebay-bars-{}", std::process::id()));
            made.group = Some(group.clone());
            // Files need room that stays free; btrfs stripes narrower if a member is full.
            let share = if kind == "striped" { len / rates.len() as u64 + 1024 * MIB } else { len };
            let mib = ((share + share / 4) / MIB + 256).to_string();
            let rates: Vec<String> = rates.iter().map(u64::to_string).collect();
            let (folder, group) = (folder.to_string_lossy(), group.to_string_lossy());
            let mut words = vec!["make", &folder, &group, kind, &mib];
            words.extend(rates.iter().map(String::as_str));
            drives(&words)?;
            // Its children are in it, too.
            let procs = made.group.iter().map(|group| group.join("cgroup.procs"));
            for procs in procs {
                std::fs::write(&procs, std::process::id().to_string())
                    .map_err(folders::failed(&procs))?;
            }
        }
        let count = if kind == "each" { rates.len() } else { 1 };
        for number in 0..count {
            let parent = folder.join(number.to_string());
            folders::make(&parent)?;
            let path = parent.join("file");
            std::fs::write(&path, "").map_err(folders::failed(&path))?;
            make::fill(&path, Pattern::new(1), len).map_err(|failure| failure.in_one_line())?;
            made.files.push(path);
        }
        Ok(made)
    }
}

impl Drop for Drives {
    fn drop(&mut self) {
        if let Some(group) = &self.group {
            let procs = group.with_file_name("cgroup.procs");
            let _ = std::fs::write(procs, std::process::id().to_string());
            let _ = drives(&["remove", &self.folder.to_string_lossy(), &group.to_string_lossy()]);
        } else {
            let _ = folders::remove(&self.folder);
        }
    }
}

/// A row of a run: its name, whether it is of several files, and its sample.
type Row = (String, bool, Sample);

/// A bar on its drives.
#[derive(Debug)]
pub(super) struct Run<'a> {
    pub(super) bar: &'a Bar,
    pub(super) drives: Drives,
    pub(super) tools: &'a Tools,
}

impl Run<'_> {
    /// The series of all sides and loads. The first round is discarded.
    pub(super) fn series(&self) -> Result<Vec<Series>, Stop> {
        let (bar, tiny) = (self.bar, self.tools.tiny);
        let loads = bar.loads.iter().map(Some).take(if tiny { 1 } else { usize::MAX });
        let loads: Vec<_> = if bar.loads.is_empty() { vec![None] } else { loads.collect() };
        let mut all: Vec<Series> = Vec::new();
        for round in 0..if tiny { 1 } else { bar.rounds + 1 } {
            for (load, wanted) in loads.iter().enumerate() {
                for (side, by) in bar.sides.iter().enumerate() {
                    let rows = match (by, wanted) {
                        (Side::Bench(name, words), _) => self.bench(name, words, *wanted)?,
                        (Side::Fio, Some(load)) => vec![self.fio(load)?],
                        (Side::Fio, None) => return Err(Stop::Fail("`fio` without loads".into())),
                    };
                    for (name, of_several, sample) in rows {
                        if round == 0 && !tiny {
                            continue;
                        }
                        match all.iter_mut().find(|known| known.name == name) {
                            Some(known) => known.samples.push(sample),
                            None => {
                                let samples = vec![sample];
                                all.push(Series { name, side, load, of_several, samples });
                            }
                        }
                    }
                }
            }
        }
        Ok(all)
    }

    /// Milliseconds of a sample.
    fn time_ms(&self) -> u32 {
        if self.tools.tiny { 100 } else { self.bar.time_ms }
    }

    fn bench(&self, side: &str, words: &str, load: Option<&Load>) -> Result<Vec<Row>, Stop> {
        let Drives { folder, files, .. } = &self.drives;
        let results = folder.join("results.jsonl");
        let _ = std::fs::remove_file(&results);
        let mut command = Command::new(&self.tools.program);
        command.arg("bench").args(files).args(["--gpu", "none", "--repeats", "1", "--quiet"]);
        command.args(["--time", &format!("{}ms", self.time_ms()), "-o"]).arg(&results);
        for word in words.split(' ') {
            match word.split_once('=') {
                Some((variable, value)) => command.env(variable, value),
                None => command.arg(word),
            };
        }
        if let Some(Load { size, depth, order }) = load {
            command.args(["--block-size", size, "--depth", &depth.to_string()]);
            command.args(["--pattern", order, "--cache", "cold"]);
        }
        let output = command.output().map_err(|error| format!("no `forebay`: {error}"))?;
        if !output.status.success() {
            let cause = String::from_utf8_lossy(&output.stderr);
            return Err(Stop::Fail(format!("`forebay bench` failed: {}", cause.trim())));
        }
        let records = file::read(&results).map_err(|failure| failure.in_one_line())?;
        let prefix = format!("{}/", folder.display());
        let rows = samples(&records).filter_map(|(_, sample)| {
            let (measured, point) = (sample.measured.as_ref()?, &sample.point);
            let latency = measured.latency.unwrap_or_default();
            let quantiles = [latency.p50_ns, latency.p90_ns, latency.p99_ns];
            let sample = Sample {
                rate: measured.bytes_per_second,
                quantiles: quantiles.map(|ns| ns.map_or(f64::NAN, float)),
                cores: measured.cpu.as_ref().map_or(f64::NAN, |cpu| cpu.cores),
            };
            let path = point.path.replace(&prefix, "drive ").replace("/file", "");
            let (depth, threads) = (point.depth, point.threads);
            let row = || format!("{side}, depth {depth}, {threads} threads, {path}");
            let name = load.map_or_else(row, |load| load.name(side));
            Some((name, path.contains('+'), sample))
        });
        let rows: Vec<_> = rows.collect();
        if rows.is_empty() {
            return Err(Stop::Fail(format!("`forebay bench` reported no sample: {records:?}")));
        }
        Ok(rows)
    }

    fn fio(&self, load: &Load) -> Result<Row, Stop> {
        if fio::version().is_none() {
            return Err(Stop::Skip("no `fio` on this machine".into()));
        }
        let Load { size, depth, order } = load;
        let (rw, ms) = (if *order == "random" { "randread" } else { "read" }, self.time_ms());
        // On some drives the pages of `fio`'s memory decide its rate.
        let facts = std::fs::read_to_string("/proc/meminfo").unwrap_or_default();
        let free = facts.lines().find(|line| line.starts_with("HugePages_Free:"));
        let memory =
            if free.is_none_or(|line| line.ends_with(" 0")) { "malloc" } else { "mmaphuge" };
        let words = format!(
            "--direct=1 --ioengine=io_uring --lat_percentiles=1 --percentile_list=50:90:99 \
             --rw={rw} --bs={size} --iodepth={depth} --norandommap --time_based \
             --runtime={ms}ms --ramp_time={}ms --iomem={memory}",
            ms / 10
        );
        let file = format!("--filename={}", self.drives.files[0].display());
        let job = fio::job(words.split(' ').map(str::to_owned).chain([file]));
        let job = job.map_err(|why| format!("`fio` failed: {why}"))?;
        let sample = parse(&job).ok_or_else(|| format!("`fio` reported nothing: {job}"))?;
        Ok((load.name("fio"), false, sample))
    }
}

impl Load {
    fn name(&self, side: &str) -> String {
        let Self { size, depth, order } = self;
        format!("{side} {size} x {depth} {order}")
    }
}

/// The results of a job of `fio`. Its CPU use is given in per cent of its run time.
fn parse(job: &Value) -> Option<Sample> {
    let read = &job["read"];
    let at = |share: &str| read["lat_ns"]["percentile"][share].as_f64();
    Some(Sample {
        rate: read["bw_bytes"].as_f64().filter(|rate| *rate > 0.0)?,
        quantiles: [at("50.000000")?, at("90.000000")?, at("99.000000")?],
        cores: (job["usr_cpu"].as_f64()? + job["sys_cpu"].as_f64()?) / 100.0,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_jobs_results_are_read() {
        let job = serde_json::json!({
            "read": {
                "bw_bytes": 1000,
                "lat_ns": {"percentile": {"50.000000": 5, "90.000000": 9, "99.000000": 10}},
            },
            "usr_cpu": 5.0, "sys_cpu": 20.0,
        });
        let expected = Sample { rate: 1000.0, quantiles: [5.0, 9.0, 10.0], cores: 0.25 };
        assert_eq!(parse(&job), Some(expected));
        assert_eq!(parse(&Value::Null), None);
    }
}
