//! fio's report of a job: its options, and the bytes moved per direction.

use std::collections::BTreeMap;
use std::fmt;

use forebay::units::parse_size;
use forebay_measure::failure::lower;
use forebay_measure::results::CpuCost;
use serde::Deserialize;
use serde::de::{Deserializer, MapAccess, Visitor};
use serde_json::Value;

use super::super::row::{Row, count, short};
use super::super::units::number;

/// Engines with a single request in flight per thread, whatever depth was set.
const SYNCHRONOUS: [&str; 7] = ["sync", "psync", "vsync", "pvsync", "pvsync2", "mmap", "libcufile"];
/// Options that have an axis, or that only set the duration and the order of jobs, or what fio
/// records. Points that differ only in these are the same.
const KNOWN: &str = "description filename directory rw readwrite rwmixread rwmixwrite ioengine \
                     cuda_io gpu_dev_ids bs blocksize iodepth numjobs nrfiles direct buffered \
                     kb_base runtime timeout time_based stonewall wait_for group_reporting \
                     new_group randseed log_avg_msec write_bw_log write_lat_log write_iops_log \
                     write_hist_log percentile_list lat_percentiles clat_percentiles \
                     slat_percentiles unified_rw_reporting unlink";
/// The percentiles of a row, with fio's names.
const PERCENTILES: [(&str, &str); 4] =
    [("p50", "50.000000"), ("p90", "90.000000"), ("p99", "99.000000"), ("p99.9", "99.900000")];
/// Most options of a job without an axis that are kept.
const OPTIONS_MAX: usize = 32;

/// Options in fio's order, with repeats. The last value of a name counts; of files all count.
#[derive(Debug, Default, Clone, PartialEq)]
pub(super) struct Options(Vec<(String, String)>);

impl<'de> Deserialize<'de> for Options {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(InOrder)
    }
}

struct InOrder;

impl<'de> Visitor<'de> for InOrder {
    type Value = Options;

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("options")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut access: A) -> Result<Options, A::Error> {
        let mut options = Vec::new();
        while let Some((name, value)) = access.next_entry::<String, Value>()? {
            options.push((name, value.as_str().map_or_else(|| value.to_string(), str::to_owned)));
        }
        Ok(Options(options))
    }
}

/// A job, or several clones of a job.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub(super) struct Job {
    #[serde(rename = "jobname", deserialize_with = "or_default")]
    pub(super) name: String,
    #[serde(deserialize_with = "or_default")]
    hostname: String,
    #[serde(rename = "groupid", deserialize_with = "or_default")]
    pub(super) group: u64,
    /// The global options, and its own.
    #[serde(rename = "job options", deserialize_with = "or_default")]
    options: Options,
    #[serde(deserialize_with = "or_default")]
    error: i64,
    /// The sum of its threads' milliseconds.
    #[serde(rename = "job_runtime", deserialize_with = "above_zero")]
    thread_ms: f64,
    /// Percent of a thread.
    usr_cpu: Option<f64>,
    sys_cpu: Option<f64>,
    #[serde(deserialize_with = "or_default")]
    read: Moved,
    #[serde(deserialize_with = "or_default")]
    write: Moved,
    #[serde(deserialize_with = "or_default")]
    trim: Moved,
    /// Both directions together, with `unified_rw_reporting`.
    #[serde(deserialize_with = "or_default")]
    mixed: Moved,
    /// Processor seconds of its threads, in the program and in the kernel.
    #[serde(skip)]
    cpu_s: Option<(f64, f64)>,
    /// Number of merged entries.
    #[serde(skip)]
    entries: u32,
    /// Whether the report includes options: only then fio's defaults apply.
    #[serde(skip)]
    has_options: bool,
}

/// The bytes moved in a direction, with latencies from submission to completion (`clat`) or, with
/// `lat_percentiles=1`, including the submission. 0 is unknown.
#[derive(Debug, Default, Clone, Deserialize)]
#[serde(default)]
struct Moved {
    #[serde(rename = "io_bytes", deserialize_with = "above_zero")]
    bytes: f64,
    #[serde(rename = "total_ios", deserialize_with = "above_zero")]
    requests: f64,
    #[serde(rename = "runtime", deserialize_with = "above_zero")]
    ms: f64,
    #[serde(rename = "bw_bytes", deserialize_with = "above_zero")]
    rate: f64,
    #[serde(deserialize_with = "or_default")]
    lat_ns: Times,
    #[serde(deserialize_with = "or_default")]
    clat_ns: Times,
    /// Whether percentiles were known, but of parts.
    #[serde(skip)]
    lacks_percentiles: bool,
}

#[derive(Debug, Default, Clone, PartialEq, Deserialize)]
#[serde(default)]
struct Times {
    #[serde(deserialize_with = "above_zero")]
    mean: f64,
    #[serde(deserialize_with = "above_zero")]
    max: f64,
    #[serde(deserialize_with = "or_default")]
    percentile: BTreeMap<String, Option<f64>>,
}

/// A value; its default for `null`.
fn or_default<'de, T, D>(deserializer: D) -> Result<T, D::Error>
where
    T: Default + Deserialize<'de>,
    D: Deserializer<'de>,
{
    Option::deserialize(deserializer).map(Option::unwrap_or_default)
}

/// A number; 0 if fio could not compute it.
fn above_zero<'de, D: Deserializer<'de>>(deserializer: D) -> Result<f64, D::Error> {
    Option::<f64>::deserialize(deserializer).map(|number| number.unwrap_or_default().max(0.0))
}

impl Moved {
    /// The latency with percentiles, else with a mean: fio prints unmeasured values as zeros.
    fn times(&self) -> &Times {
        let kinds = [&self.lat_ns, &self.clat_ns];
        let known = kinds.iter().find(|times| !times.percentile.is_empty());
        known.or(kinds.iter().find(|times| times.mean > 0.0)).unwrap_or(&kinds[1])
    }

    /// The sum of both, which ran together: as for a group of fio, over the time of the longer.
    fn with(self, other: Self) -> Self {
        if self.requests == 0.0 || other.requests == 0.0 {
            return if self.requests == 0.0 { other } else { self };
        }
        let (bytes, ms) = (self.bytes + other.bytes, self.ms.max(other.ms));
        let requests = self.requests + other.requests;
        let (one, two) = (self.times(), other.times());
        let known = |a: f64, b: f64, both: f64| if a > 0.0 && b > 0.0 { both } else { 0.0 };
        let mean = (one.mean * self.requests + two.mean * other.requests) / requests;
        let times = Times {
            mean: known(one.mean, two.mean, mean),
            max: known(one.max, two.max, one.max.max(two.max)),
            ..Times::default()
        };
        let lacks = |moved: &Self| moved.lacks_percentiles || !moved.times().percentile.is_empty();
        Self {
            bytes,
            requests,
            ms,
            rate: if ms > 0.0 { bytes / ms * 1e3 } else { self.rate + other.rate },
            lacks_percentiles: lacks(&self) || lacks(&other),
            lat_ns: times,
            ..Self::default()
        }
    }
}

impl Job {
    /// The job with the options of all jobs.
    pub(super) fn completed(mut self, global: &Options) -> Self {
        let mut options = [global.0.as_slice(), &self.options.0].concat();
        self.has_options = !options.is_empty();
        options.retain(|(name, _)| !["name", "hostname"].contains(&name.as_str()));
        // Jobs of different names or servers are no repeats.
        self.name = short(&self.name);
        let own = [("name", self.name.clone()), ("hostname", short(&self.hostname))];
        let own = own.into_iter().filter(|(_, text)| !text.is_empty());
        options.extend(own.map(|(name, text)| (name.to_owned(), text)));
        self.options = Options(options);
        let cpu = self.usr_cpu.zip(self.sys_cpu).filter(|(user, system)| user.min(*system) >= 0.0);
        let seconds = Some(self.thread_ms / 1e5).filter(|seconds| *seconds > 0.0);
        self.cpu_s = cpu.zip(seconds).map(|((user, system), s)| (user * s, system * s));
        // Some values of `unified_rw_reporting` also report the directions.
        if self.mixed.requests > 0.0 {
            (self.read, self.write) = (std::mem::take(&mut self.mixed), Moved::default());
        }
        self.entries = 1;
        self
    }

    fn is_like(&self, other: &Self) -> bool {
        (self.group, &self.options) == (other.group, &other.options)
    }

    /// Whether both are clones of the same job (`numjobs`), which ran together.
    pub(super) fn is_clone_of(&self, other: &Self) -> bool {
        let clones = self.number_or("numjobs", 1.0).unwrap_or(1.0);
        self.is_like(other) && clones > f64::from(other.entries)
    }

    /// Whether this may be the same job at a later time.
    pub(super) fn is_later_report_of(&self, other: &Self) -> bool {
        let has_more = self.requests() >= other.requests() && self.seconds() >= other.seconds();
        self.is_like(other) && has_more
    }

    /// The sum of both.
    pub(super) fn with(self, other: Self) -> Self {
        Self {
            error: if self.error == 0 { other.error } else { self.error },
            thread_ms: self.thread_ms + other.thread_ms,
            cpu_s: self.cpu_s.zip(other.cpu_s).map(|(a, b)| (a.0 + b.0, a.1 + b.1)),
            read: self.read.with(other.read),
            write: self.write.with(other.write),
            trim: self.trim.with(other.trim),
            entries: self.entries.saturating_add(other.entries),
            ..self
        }
    }

    fn requests(&self) -> f64 {
        self.read.requests + self.write.requests
    }

    /// How long it moved bytes.
    pub(super) fn seconds(&self) -> f64 {
        self.read.ms.max(self.write.ms) / 1e3
    }

    fn threads(&self) -> Option<f64> {
        let entries = f64::from(self.entries);
        let known = self.number_or("numjobs", 1.0).map(|jobs| jobs.max(entries));
        known.or((self.entries > 1).then_some(entries))
    }

    /// The last value of any of these options.
    fn option(&self, names: &[&str]) -> Option<&str> {
        let found = self.options.0.iter().rev().find(|(name, _)| names.contains(&name.as_str()));
        found.map(|(_, value)| value.as_str())
    }

    fn number_of(&self, name: &str) -> Option<f64> {
        self.option(&[name]).and_then(fio_number)
    }

    /// The last value of any of these options, or fio's default; `None` if that is unknown.
    fn option_or<'a>(&'a self, names: &[&str], default: &'a str) -> Option<&'a str> {
        self.option(names).or(self.has_options.then_some(default))
    }

    /// A number, or fio's default; `None` if it is unknown or cannot be read.
    fn number_or(&self, name: &str, default: f64) -> Option<f64> {
        match self.option(&[name]) {
            Some(text) => fio_number(text),
            None => self.has_options.then_some(default),
        }
    }

    /// The order of its requests, as `randread`; empty if it is unknown.
    fn order(&self) -> &str {
        let order = self.option_or(&["rw", "readwrite"], "read").unwrap_or_default();
        order.split(':').next().unwrap_or_default()
    }

    /// Whether it reads back and compares what it wrote.
    fn verifies(&self) -> bool {
        self.option(&["verify"]).is_some_and(|kind| !["0", "none", "null"].contains(&kind))
    }

    /// The bytes that it moved, without those that it read back to compare them.
    fn moved(&self) -> Result<Moved, &'static str> {
        let (reads, writes) = (self.read.requests > 0.0, self.write.requests > 0.0);
        if self.order().contains("trim") || self.trim.requests > 0.0 {
            return Err("it trims, which is no read and no write");
        }
        if !reads && !writes {
            return Err("it moved nothing");
        }
        if self.verifies() && reads && self.order() != "read" && self.order() != "randread" {
            return match (self.read_percent(), writes) {
                (0, true) => Ok(self.write.clone()),
                (0, false) => Ok(self.read.clone()),
                _ => Err("its reads and those that verify what it wrote are counted together"),
            };
        }
        Ok(self.read.clone().with(self.write.clone()))
    }

    /// The measurement, or why it is skipped.
    pub(super) fn row(&self) -> Result<Row, &'static str> {
        let mut row = Row::default();
        self.set_axes(&mut row);
        let known = |name: &&(String, String)| KNOWN.split(' ').any(|known| known == name.0);
        let others = self.options.0.iter().filter(|option| !known(option)).take(OPTIONS_MAX);
        row.settings = others.map(|(name, value)| (short(name), short(value))).collect();
        if self.error != 0 {
            let code = i32::try_from(self.error).unwrap_or(i32::MAX);
            let error = lower(&std::io::Error::from_raw_os_error(code).to_string());
            row.error = Some(format!("fio ended the job with an error: {error}"));
            return match self.order().contains("trim") {
                true => self.moved().map(|_| row),
                false => Ok(row),
            };
        }
        let all = self.moved()?;
        if all.rate == 0.0 {
            return Err("it moved nothing");
        }
        row.number("throughput", Some(all.rate));
        row.number("bytes", Some(all.bytes));
        row.number("requests", Some(all.requests));
        row.number("seconds", Some(all.ms * 1e6));
        let times = all.times();
        row.number("mean", Some(times.mean));
        row.number("max", Some(times.max));
        for (name, key) in PERCENTILES {
            row.number(name, times.percentile.get(key).copied().flatten());
        }
        // Zeros mean that it ended before the kernel had counted any time.
        // The time of a job that verifies is that of both.
        let cpu = self.cpu_s.filter(|(user, system)| user + system > 0.0 && all.ms > 0.0);
        let cpu = cpu.filter(|_| all.bytes >= self.read.bytes + self.write.bytes);
        let bytes = count(all.bytes).unwrap_or_default();
        row.cpu = cpu.map(|(user, system)| CpuCost::new(user, system, all.ms / 1e3, bytes));
        Ok(row)
    }

    fn set_axes(&self, row: &mut Row) {
        let engine = self.option_or(&["ioengine"], "psync").unwrap_or_default();
        let engine = engine.split(':').next().unwrap_or_default();
        let is_cufile = engine == "libcufile";
        let through_host = is_cufile && self.option(&["cuda_io"]) == Some("posix");
        let dash = if engine.is_empty() { "" } else { "-" };
        let posix = if through_host { "-posix" } else { "" };
        row.set("method", &format!("fio{dash}{engine}{posix}"));
        // A job that only verifies reads.
        let is_verify = self.verifies() && self.write.requests == 0.0;
        let percent = if is_verify { self.share_of_reads() } else { self.read_percent() };
        row.set("direction", &format!("mixed:{percent}"));
        match self.order() {
            "" => {}
            order if order.starts_with("rand") => row.set("pattern", "random"),
            _ => row.set("pattern", "sequential"),
        }
        // fio adds up the files of each `filename`, which colons separate unless escaped.
        let names = self.options.0.iter().filter(|(name, _)| name == "filename");
        let names: Vec<&str> = names.map(|(_, files)| files.as_str()).collect();
        let named = names.join(":");
        let directory = self.option(&["directory"]).unwrap_or_default();
        row.set("path", if names.is_empty() { directory } else { &named });
        let ids = self.option(&["gpu_dev_ids"]).unwrap_or_default().split(':');
        let gpus: Vec<String> =
            ids.filter_map(|id| Some(format!("cuda:{}", id.trim().parse::<u32>().ok()?))).collect();
        let gpus = if gpus.is_empty() { "gpu".into() } else { gpus.join("+") };
        row.set("gpu", if is_cufile { &gpus } else { "host" });
        row.count("block-size", self.block_size());
        let is_sync = SYNCHRONOUS.contains(&engine);
        let depth = if is_sync { Some(1.0) } else { self.number_or("iodepth", 1.0) };
        row.count("depth", depth.filter(|_| !engine.is_empty()));
        row.count("batch", self.has_options.then_some(1.0));
        row.count("threads", self.threads());
        let files = u32::try_from(named.replace("\\:", "").split(':').count()).unwrap_or(u32::MAX);
        let each = self.number_or("nrfiles", 1.0);
        row.count("files", each.map(|each| each.max(f64::from(files))));
        // With O_DIRECT; otherwise fio's page cache settings decide, which it does not report.
        let is_named = |(name, _): &&(String, String)| name == "direct" || name == "buffered";
        let last = self.options.0.iter().rfind(is_named);
        let last = last.map(|(name, value)| (name.as_str(), value.as_str()));
        if matches!(last, Some(("direct", "1") | ("buffered", "0"))) {
            row.set("cache", "cold");
        }
    }

    /// The percentage of reads among its requests, by its options if they say it.
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "from 0 to 100")]
    fn read_percent(&self) -> u8 {
        match self.order() {
            "read" | "randread" => 100,
            "write" | "randwrite" => 0,
            "rw" | "readwrite" | "randrw" => {
                let is_set = self.option(&["rwmixread", "rwmixwrite"]).is_some();
                let writes = self.number_of("rwmixwrite").map(|percent| 100.0 - percent);
                let reads = self.number_of("rwmixread").or(writes);
                match reads.or((!is_set).then_some(50.0)) {
                    Some(reads) => reads.clamp(0.0, 100.0).round() as u8,
                    None => self.share_of_reads(),
                }
            }
            _ => self.share_of_reads(),
        }
    }

    /// The percentage of reads among the requests that it made.
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "from 0 to 100")]
    pub(super) fn share_of_reads(&self) -> u8 {
        (self.read.requests / self.requests().max(1.0) * 100.0).round() as u8
    }

    /// Whether it moved something that its options exclude: with `group_reporting` several jobs are
    /// reported as one, with the options of the first.
    pub(super) fn is_several(&self) -> bool {
        // Written bytes are read back for the comparison.
        let checks = self.verifies();
        let other_way = match self.order() {
            "read" | "randread" => self.write.requests > 0.0,
            "write" | "randwrite" => self.read.requests > 0.0 && self.write.requests > 0.0,
            _ => false,
        };
        let bytes = self.read.bytes + self.write.bytes;
        let threads = self.threads().unwrap_or(1.0);
        // The last request of a thread may be short.
        let other_size = self.block_size().is_some_and(|size| {
            (bytes - self.requests() * size).abs() > bytes * 0.02 + threads * size * 2.0
        });
        let thread_s = self.thread_ms / 1e3;
        let longer = self.seconds() > 0.0 && thread_s > 1.5 * threads * self.seconds() + 1.0;
        self.error == 0 && (other_size || !checks && (other_way || longer))
    }

    /// Whether percentiles are missing because they cannot be merged.
    pub(super) fn lacks_percentiles(&self) -> bool {
        self.moved().is_ok_and(|moved| moved.lacks_percentiles)
    }

    /// The size of its requests, if all have the same. With `kb_base`, or as `KiB`, fio's units
    /// have another meaning.
    pub(super) fn block_size(&self) -> Option<f64> {
        if self.option(&["bsrange", "blocksize_range", "bssplit", "kb_base"]).is_some() {
            return None;
        }
        block_size(self.option_or(&["bs", "blocksize"], "4k")?)
    }

    /// Whether the report includes the job's options.
    pub(super) fn has_options(&self) -> bool {
        self.has_options
    }
}

/// A number as fio reads it: in hexadecimal digits, or with a power of 1024.
#[expect(clippy::cast_precision_loss, reason = "a count")]
fn fio_number(text: &str) -> Option<f64> {
    let text = text.trim();
    match text.strip_prefix("0x").or_else(|| text.strip_prefix("0X")) {
        Some(digits) => u32::from_str_radix(digits, 16).ok().map(f64::from),
        None => number(text).or_else(|| parse_size(&text.to_lowercase()).map(|size| size as f64)),
    }
}

/// The bytes of fio's `bs`: a single size, or the same for all directions.
#[expect(clippy::cast_precision_loss, reason = "a size")]
fn block_size(text: &str) -> Option<f64> {
    let lower = text.to_lowercase();
    let mut sizes = lower.split(',').map(|size| parse_size(size.trim().trim_end_matches('b')));
    let first = sizes.next()??;
    (first > 0 && sizes.all(|size| size == Some(first))).then_some(first as f64)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn percentiles_are_of_the_latency_that_has_them_and_are_not_merged() {
        let of = |count: u64, times: Value| {
            let text = json!({"total_ios": count, "clat_ns": times, "lat_ns": {"mean": 9.0}});
            Moved::deserialize(text).unwrap()
        };
        let one = of(3, json!({"mean": 2.5, "max": 4, "percentile": {"50.000000": 2}}));
        assert_eq!((one.times().mean, one.times().percentile["50.000000"]), (2.5, Some(2.0)));
        let both = one.clone().with(of(1, json!({"mean": 6.5, "max": 7, "percentile": {"x": 1}})));
        let merged = Times { mean: 3.5, max: 7.0, ..Times::default() };
        assert_eq!((both.times(), both.lacks_percentiles), (&merged, true));
        assert_eq!(one.clone().with(Moved::default()).times(), one.times());
        // Without percentiles the total latency counts.
        assert_eq!(of(3, json!({"mean": 2.5})).times().mean, 9.0);
    }

    #[test]
    fn numbers_are_read_as_fio_reads_them_or_unknown() {
        let numbers = ["16", "0x10", "1k", "1K", "2m"].map(fio_number);
        assert_eq!(numbers, [16.0, 16.0, 1024.0, 1024.0, 2_097_152.0].map(Some));
        assert_eq!(["", "x", "0x", "0xg", "-1", "many"].map(fio_number), [None; 6]);
    }

    #[test]
    fn a_size_has_the_unit_that_fio_takes() {
        assert_eq!(
            ["4k", "4K", "1m", "512", "64kb", "4k,4k"].map(block_size),
            [4096.0, 4096.0, 1_048_576.0, 512.0, 65536.0, 4096.0].map(Some)
        );
        assert_eq!(["4k,8k", "", "k", "0", "i", "-4k", "4kiB", "4Ki"].map(block_size), [None; 8]);
    }
}
