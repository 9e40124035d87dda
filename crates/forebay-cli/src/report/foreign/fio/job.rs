//! fio's report of a job: its options, and the bytes moved in each direction.

use std::collections::BTreeMap;
use std::rc::Rc;

use serde_json::Value;

use super::latency::Times;
use crate::report::foreign::found::{self, Beside, axis, cause, count, number, short};
use crate::report::json::Cache;
use crate::results::{CpuCost, Measured, Point};

/// Engines with one request in flight per thread, whatever depth was set.
const SYNCHRONOUS: [&str; 7] = ["sync", "psync", "vsync", "pvsync", "pvsync2", "mmap", "libcufile"];
/// fio's default engine.
const ENGINE: &str = "psync";
/// fio's default block size.
const BLOCK: u64 = 4096;

/// Options that have an axis, or that only set the duration and the order of jobs, their names, or
/// what fio records. Points that differ only in these are the same.
const KNOWN: [&str; 38] = [
    "name",
    "description",
    "filename",
    "directory",
    "rw",
    "readwrite",
    "rwmixread",
    "rwmixwrite",
    "ioengine",
    "cuda_io",
    "gpu_dev_ids",
    "bs",
    "blocksize",
    "iodepth",
    "numjobs",
    "nrfiles",
    "direct",
    "buffered",
    "kb_base",
    "runtime",
    "timeout",
    "time_based",
    "stonewall",
    "wait_for",
    "group_reporting",
    "new_group",
    "randseed",
    "log_avg_msec",
    "write_bw_log",
    "write_lat_log",
    "write_iops_log",
    "write_hist_log",
    "percentile_list",
    "lat_percentiles",
    "clat_percentiles",
    "slat_percentiles",
    "unified_rw_reporting",
    "unlink",
];

/// Most options of one job without an axis that are kept.
const OPTIONS_MAX: usize = 64;

/// Options in fio's order. The last value of a name counts; of files all count.
pub(super) type Options = Vec<(String, String)>;

/// The options of an object under `key`; `None` if it has none.
pub(super) fn options(object: &Value, key: &str) -> Option<Options> {
    let text = |value: &Value| value.as_str().map_or_else(|| value.to_string(), str::to_owned);
    let pair = |pair: &Value| Some((pair.get(0)?.as_str()?.to_owned(), text(pair.get(1)?)));
    Some(object.get(key)?.as_array()?.iter().filter_map(pair).collect())
}

/// A job, or several that are clones of one another.
#[derive(Debug, Clone)]
pub(super) struct Job {
    pub(super) line: u64,
    pub(super) name: String,
    pub(super) group: u64,
    pub(super) host: Option<String>,
    /// Its own options, and the global ones.
    own: Options,
    global: Rc<Options>,
    /// Whether options are reported, so that a missing option has fio's default.
    told: bool,
    error: u64,
    /// The sum of its threads' seconds.
    thread_s: Option<f64>,
    cpu_s: Option<(f64, f64)>,
    read: Moved,
    write: Moved,
    pub(super) trims: bool,
    /// Whether both directions are counted as one.
    unified: bool,
    /// When it began, if the version of fio reports that.
    pub(super) start_ms: Option<u64>,
    /// Number of merged entries.
    entries: u32,
}

/// The bytes moved in one direction, with times.
#[derive(Debug, Default, Clone)]
struct Moved {
    bytes: u64,
    requests: u64,
    seconds: f64,
    rate: f64,
    times: Times,
}

impl Moved {
    /// Versions before 3 (`old`) report KiB.
    fn of(value: &Value, old: bool) -> Self {
        let number = |key: &str| value.get(key).and_then(Value::as_f64);
        let told = ["bw_bytes", "io_kbytes"].iter().any(|key| value.get(key).is_some());
        let unit = if old && !told { 1024.0 } else { 1.0 };
        let bytes = number("io_bytes").and_then(|bytes| count(bytes * unit)).unwrap_or_default();
        let requests = number("total_ios").and_then(count).unwrap_or_default();
        let rate = number("bw_bytes").or_else(|| number("bw").map(|kib| kib * 1024.0));
        Self {
            bytes,
            requests,
            seconds: number("runtime").filter(|ms| *ms > 0.0).map_or(0.0, |ms| ms / 1e3),
            rate: rate.and_then(found::rate).unwrap_or_default(),
            times: Times::of(value, requests),
        }
    }

    /// The sum of both, which ran together: as for a group of fio, over the time of the longer.
    fn with(self, other: Self) -> Self {
        if self.requests == 0 || other.requests == 0 {
            return if self.requests == 0 { other } else { self };
        }
        let bytes = self.bytes.saturating_add(other.bytes);
        let seconds = self.seconds.max(other.seconds);
        let over = (seconds > 0.0).then(|| float(bytes) / seconds).and_then(found::rate);
        Self {
            bytes,
            requests: self.requests.saturating_add(other.requests),
            seconds,
            rate: over.unwrap_or(self.rate + other.rate),
            times: self.times.with(other.times),
        }
    }
}

impl Job {
    /// Parses an entry; its options are those of all jobs, and its own.
    pub(super) fn of(value: &Value, global: &Rc<Options>, line: u64, old: bool) -> Self {
        let own = options(value, "job options");
        let told = own.is_some() || !global.is_empty();
        let number = |key: &str| value.get(key).and_then(Value::as_f64);
        let text = |key: &str| value.get(key).and_then(Value::as_str).map(short);
        let thread_s = number("job_runtime").filter(|ms| *ms > 0.0).map(|ms| ms / 1e3);
        let share = |key: &str| number(key).filter(|percent| (0.0..=1e6).contains(percent));
        let cpu_s = share("usr_cpu").zip(share("sys_cpu")).zip(thread_s);
        let cpu_s = cpu_s.map(|((user, system), s)| (user / 100.0 * s, system / 100.0 * s));
        let both = Moved::of(&value["mixed"], old);
        let unified = both.requests > 0;
        let write = Moved::of(&value["write"], old);
        Self {
            line,
            name: text("jobname").unwrap_or_default(),
            group: number("groupid").and_then(count).unwrap_or_default(),
            host: text("hostname"),
            own: own.unwrap_or_default(),
            global: Rc::clone(global),
            told,
            error: number("error").and_then(count).unwrap_or_default(),
            thread_s,
            cpu_s,
            // With `unified_rw_reporting` both directions are one, which only the options show;
            // some of its values are also reported for each direction.
            read: if unified { both } else { Moved::of(&value["read"], old) },
            write: if unified { Moved::default() } else { write },
            unified,
            start_ms: value.get("job_start").and_then(Value::as_u64).filter(|ms| *ms > 0),
            trims: value["trim"]["total_ios"].as_f64().is_some_and(|count| count > 0.0),
            entries: 1,
        }
    }

    /// Whether both are clones of one job (`numjobs`), which ran together.
    pub(super) fn is_clone_of(&self, other: &Self) -> bool {
        let clones = number(&self.option("numjobs").unwrap_or_default()).unwrap_or(1.0);
        (&self.name, self.group, &self.host) == (&other.name, other.group, &other.host)
            && clones > f64::from(other.entries)
            && self.options_are_those_of(other)
    }

    fn options_are_those_of(&self, other: &Self) -> bool {
        let same = Rc::ptr_eq(&self.global, &other.global) || self.global == other.global;
        same && self.own == other.own
    }

    /// Whether both are the same job at two times.
    pub(super) fn is_same_as(&self, other: &Self) -> bool {
        (&self.name, self.group, &self.host, self.entries)
            == (&other.name, other.group, &other.host, other.entries)
            && self.options_are_those_of(other)
    }

    pub(super) fn requests(&self) -> u64 {
        self.read.requests.saturating_add(self.write.requests)
    }

    /// How long it moved bytes.
    pub(super) fn seconds(&self) -> f64 {
        self.read.seconds.max(self.write.seconds)
    }

    /// The options without an axis: jobs that differ in them are not repeats of each other.
    ///
    /// `shared` are the global ones of its object.
    pub(super) fn beside(&self, shared: &Rc<BTreeMap<String, String>>) -> Beside {
        Beside { own: without_axis(&self.own), shared: Some(Rc::clone(shared)) }
    }

    /// Such options among the global ones.
    pub(super) fn beside_of_all(&self) -> BTreeMap<String, String> {
        without_axis(&self.global)
    }

    /// Both as one.
    pub(super) fn with(self, other: Self) -> Self {
        let sum = |a: Option<f64>, b: Option<f64>| Some(a? + b?);
        let cpu_s = self.cpu_s.zip(other.cpu_s);
        Self {
            error: self.error.max(other.error),
            thread_s: sum(self.thread_s, other.thread_s),
            cpu_s: cpu_s.map(|(a, b)| (a.0 + b.0, a.1 + b.1)),
            read: self.read.with(other.read),
            write: self.write.with(other.write),
            trims: self.trims || other.trims,
            entries: self.entries.saturating_add(other.entries),
            ..self
        }
    }

    /// All options, later ones replacing earlier ones.
    fn options(&self) -> impl DoubleEndedIterator<Item = (&str, &str)> {
        let all = self.global.iter().chain(&self.own);
        all.map(|(key, value)| (key.as_str(), value.as_str()))
    }

    /// The value of an option by any of its names.
    fn option_of(&self, names: &[&str]) -> Option<String> {
        let found = self.options().rfind(|(key, _)| names.contains(key));
        found.map(|(_, value)| value.to_owned())
    }

    fn option(&self, name: &str) -> Option<String> {
        self.option_of(&[name])
    }

    /// The files that it names, separated by colons: fio appends those of each `filename`.
    fn file_names(&self) -> Option<String> {
        let names = self.options().filter_map(|(key, name)| (key == "filename").then_some(name));
        names.map(str::to_owned).reduce(|all, more| format!("{all}:{more}"))
    }

    /// Its value on each axis that fio reports.
    pub(super) fn point(&self, hosts: bool) -> Point {
        if !self.told {
            return found::point("fio", self.read_percent());
        }
        let order = self.option_of(&["rw", "readwrite"]).unwrap_or_else(|| "read".into());
        let engine = self.option("ioengine").unwrap_or_else(|| ENGINE.into());
        let kind = short(engine.split(':').next().unwrap_or_default());
        let through_host = self.option("cuda_io").as_deref() == Some("posix");
        let mut way = format!("fio-{kind}");
        if kind == "libcufile" && through_host {
            way.push_str("-posix");
        }
        let mut point = found::point(way, self.read_percent());
        point.pattern = if order.starts_with("rand") { "random" } else { "sequential" }.into();
        let path = self.file_names().or_else(|| self.option("directory"));
        point.path = path.as_deref().map(short).unwrap_or_default();
        if let Some(host) = self.host.as_ref().filter(|_| hosts) {
            point.path = format!("{host}:{}", point.path);
        }
        point.targets = self.targets(&kind);
        point.request_size = self.request_size().unwrap_or_default();
        let depth = self.option("iodepth").map_or(Some(1.0), |depth| number(&depth));
        point.depth = if SYNCHRONOUS.contains(&kind.as_str()) { 1 } else { axis(depth) };
        point.batch = 1;
        let threads = self.option("numjobs").map_or(Some(1.0), |count| number(&count));
        point.threads = axis(threads).max(self.entries);
        let files = axis(self.option("nrfiles").map_or(Some(1.0), |count| number(&count)));
        let named = self.file_names().map_or(1, |names| files_named(&names));
        point.files = if files == 0 { 0 } else { files.max(named) };
        // With O_DIRECT; otherwise fio's page cache settings decide, which it does not report.
        let told = self.options().rfind(|(key, _)| ["direct", "buffered"].contains(key));
        let direct = told.is_some_and(|told| [("direct", "1"), ("buffered", "0")].contains(&told));
        point.cache = direct.then_some(Cache::Cold);
        point
    }

    fn targets(&self, kind: &str) -> Vec<String> {
        if kind != "libcufile" {
            return vec!["host".into()];
        }
        let ids = self.option("gpu_dev_ids").unwrap_or_default();
        let ids: Vec<u32> = ids.split(':').filter_map(|id| id.trim().parse().ok()).collect();
        if ids.is_empty() { vec!["gpu".into()] } else { ids.iter().map(cuda).collect() }
    }

    /// The percentage of reads among its requests.
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "from 0 to 100")]
    fn read_percent(&self) -> u8 {
        let order = self.option_of(&["rw", "readwrite"]).unwrap_or_else(|| "read".into());
        let order = order.split(':').next().unwrap_or_default();
        let wants = |words: &[&str]| words.contains(&order);
        if self.told && wants(&["rw", "readwrite", "randrw"]) {
            let told = self.option("rwmixread").and_then(|percent| number(&percent));
            let writes = self.option("rwmixwrite").and_then(|percent| number(&percent));
            let told = told.or_else(|| Some(100.0 - writes?)).unwrap_or(50.0);
            return told.clamp(0.0, 100.0).round() as u8;
        }
        if self.told && wants(&["read", "randread", "write", "randwrite"]) {
            return if order.ends_with("read") { 100 } else { 0 };
        }
        self.share_of_reads()
    }

    /// The percentage of reads among the requests that it made.
    #[expect(
        clippy::cast_precision_loss,
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "from 0 to 100"
    )]
    pub(super) fn share_of_reads(&self) -> u8 {
        let all = self.requests().max(1);
        (self.read.requests as f64 / all as f64 * 100.0).round() as u8
    }

    /// Whether it moved something that its options exclude: with `group_reporting` several jobs are
    /// reported as one, with the options of the first.
    pub(super) fn is_several(&self) -> bool {
        if !self.told || self.error != 0 {
            return false;
        }
        let order = self.option_of(&["rw", "readwrite"]).unwrap_or_else(|| "read".into());
        let order = order.split(':').next().unwrap_or_default();
        // Written bytes are read back for the comparison.
        let checks = self.option("verify").is_some();
        let other_way = match order {
            _ if checks => false,
            "read" | "randread" => self.write.requests > 0 && !self.unified,
            "write" | "randwrite" => self.read.requests > 0 && !self.unified,
            _ => false,
        };
        let bytes = float(self.read.bytes) + float(self.write.bytes);
        let threads = self.option("numjobs").map_or(Some(1.0), |count| number(&count));
        let threads = threads.unwrap_or(1.0).max(f64::from(self.entries));
        // The last request of a thread may be short, and old versions round to KiB.
        let other_size = self.request_size().is_some_and(|size| {
            let off = (bytes - float(self.requests()) * float(size)).abs();
            off > bytes * 0.02 + threads * float(size) * 2.0 + 2048.0
        });
        let longer = !checks
            && self.seconds() > 0.0
            && self.thread_s.is_some_and(|s| s > 1.5 * threads * self.seconds() + 1.0);
        other_way || other_size || longer
    }

    /// The size of its requests, if all have the same.
    fn request_size(&self) -> Option<u64> {
        if self.option_of(&["bsrange", "blocksize_range", "bssplit"]).is_some() {
            return None;
        }
        let (mut size, mut base_1000) = (Some(BLOCK), false);
        for (key, value) in self.options() {
            match key {
                "kb_base" => base_1000 = value == "1000",
                // fio parses a size by the base that was set before it.
                "bs" | "blocksize" => size = block_size(value, base_1000),
                _ => {}
            }
        }
        size
    }

    /// Its measurement, or why it failed; `None` if it moved nothing and did not fail.
    pub(super) fn measured(&self) -> Option<Result<Measured, String>> {
        if self.error != 0 {
            let errno = i32::try_from(self.error).unwrap_or_default();
            let text = cause(&std::io::Error::from_raw_os_error(errno).to_string());
            return Some(Err(format!("fio ended the job with an error: {text}")));
        }
        let all = self.read.clone().with(self.write.clone());
        if all.requests == 0 || all.rate <= 0.0 {
            return None;
        }
        let seconds = Some(all.seconds).filter(|seconds| *seconds > 0.0);
        let times = if all.times.completion_only {
            "latencies from submission to completion"
        } else {
            "latencies including the submission"
        };
        Some(Ok(Measured {
            bytes: Some(all.bytes),
            requests: Some(all.requests),
            seconds,
            bytes_per_second: all.rate,
            requests_per_second: seconds.map(|seconds| float(all.requests) / seconds),
            latency: all.times.summary(),
            cpu: seconds.and_then(|seconds| self.cpu(seconds, all.bytes)),
            reason: Some(format!("fio's job `{}`: {times}", self.name)),
            ..Measured::default()
        }))
    }

    fn cpu(&self, seconds: f64, bytes: u64) -> Option<CpuCost> {
        let (user_s, system_s) = self.cpu_s?;
        // Zeros mean that it ended before the kernel had counted any time.
        let both = Some(user_s + system_s).filter(|both| *both > 0.0)?;
        let per_gb = (bytes > 0).then(|| both / (float(bytes) * 1e-9));
        Some(CpuCost { user_s, system_s, cores: both / seconds, s_per_gb: per_gb })
    }
}

fn without_axis(options: &Options) -> BTreeMap<String, String> {
    let others = options.iter().filter(|(key, _)| !KNOWN.contains(&key.as_str()));
    others.take(OPTIONS_MAX).map(|(key, value)| (short(key), short(value))).collect()
}

fn cuda(id: &u32) -> String {
    format!("cuda:{id}")
}

#[expect(clippy::cast_precision_loss, reason = "a rate")]
fn float(count: u64) -> f64 {
    count as f64
}

/// The number of files in `filename`: colons separate them, unless escaped by a backslash.
fn files_named(names: &str) -> u32 {
    let (mut files, mut escaped) = (1_u32, false);
    for letter in names.chars() {
        files = files.saturating_add(u32::from(letter == ':' && !escaped));
        escaped = letter == '\\' && !escaped;
    }
    files
}

/// The bytes of fio's `bs`: one size, or the same for each direction. Its letters are powers of two
/// and its `KiB`, `MiB`, … powers of ten, unless `kb_base` is 1000, with which each has its usual
/// meaning.
fn block_size(text: &str, base_1000: bool) -> Option<u64> {
    let mut sizes = text.split(',').map(|size| one_size(size.trim(), base_1000));
    let first = sizes.next()??;
    sizes.all(|size| size == Some(first)).then_some(first)
}

fn one_size(text: &str, base_1000: bool) -> Option<u64> {
    let split = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let (digits, unit) = text.split_at(split);
    let unit = unit.to_lowercase();
    // fio only looks at the first letter, except for units with all three.
    let (letter, other) = match unit.strip_suffix("ib") {
        Some(letter) if !letter.is_empty() => (letter, true),
        _ => (unit.trim_end_matches('b').trim_end_matches('i'), false),
    };
    if unit.starts_with(['i', 'b']) && unit != "b" {
        return None;
    }
    let power = match letter {
        "" if !other => 0,
        "k" => 1,
        "m" => 2,
        "g" => 3,
        _ => return None,
    };
    let step: u64 = if other == base_1000 { 1024 } else { 1000 };
    let bytes = digits.parse::<u64>().ok()?.checked_mul(step.pow(power))?;
    (bytes > 0).then_some(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_size_is_what_fio_takes_it_for() {
        let usual = |text| block_size(text, false);
        assert_eq!(
            ["4k", "4K", "1m", "512", "64kb", "4Ki", "4kiB"].map(usual),
            [Some(4096), Some(4096), Some(1 << 20), Some(512), Some(65536), Some(4096), Some(4000)]
        );
        assert_eq!(["4k", "4kib"].map(|text| block_size(text, true)), [Some(4000), Some(4096)]);
        assert_eq!(
            ["4k,4k", "4k,8k", "", "k", "0", "i"].map(usual),
            [Some(4096), None, None, None, None, None]
        );
        assert_eq!(usual("99999999999999999999g"), None);
    }
}
