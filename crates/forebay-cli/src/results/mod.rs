//! What measuring verbs write down: a file of JSON, one record to a line.
//!
//! A line is appended whole when something has been measured and is never changed again, so a run
//! that is killed loses at most the sample that was being taken, and goes on where it stopped. What
//! was measured stands under the nearest [`Run`] before it. docs/json-schema.md describes every
//! key; what does not apply is null.

pub mod file;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::power::result::{Absent, Part, Power};
use crate::report::json::{Cache, Direction, Environment, Gpu};
use crate::report::proof::VerdictFacts;

/// The version of the schema: it grows when a key changes its meaning or goes away.
pub const SCHEMA: u32 = 1;

/// One line of a results file.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "record", rename_all = "kebab-case")]
pub enum Record {
    /// Who measured what follows, on what, and how it was asked for.
    Run(Box<Run>),
    /// What a part of the machine can do at most.
    Ceiling(Ceiling),
    /// One measurement of one point, or why there is none.
    Sample(Box<Sample>),
    /// What a reader of the numbers should know, as a sentence.
    Warning {
        /// The sentence.
        text: String,
    },
}

/// A run of the command.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Run {
    /// [`SCHEMA`].
    pub schema: u32,
    /// The verb, as `sweep`, or of what was imported the tool, as `fio`.
    pub verb: String,
    /// What the user calls it.
    pub label: Option<String>,
    /// The machine and the command.
    pub environment: Environment,
    /// All GPUs that take part; none where the target is host memory.
    pub gpus: Vec<Gpu>,
    /// Sources of power and heat that do not tell anything here, and why.
    #[serde(default)]
    pub unmetered: Vec<Absent>,
    /// What is to be measured: a file may be continued where this is the same.
    pub asked: Value,
}

/// What a part of the machine can do at most.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Ceiling {
    /// `link`, `storage`, `fio`, `pcie`, `network`, `memory`.
    pub name: String,
    /// What has it: a GPU, a drive, a path.
    pub of: String,
    /// From the file to memory or back; null where both are the same.
    pub direction: Option<Direction>,
    /// Whether it follows from what the hardware says of itself, and was not measured.
    pub theory: bool,
    /// The ceiling.
    pub bytes_per_second: f64,
    /// How it was found.
    pub how: String,
    /// Whether it is that of a simulated GPU.
    pub simulated: bool,
}

/// What is measured at once: one value of each axis.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Point {
    /// The file or the folder, as it was given.
    pub path: String,
    /// The memory: `host`, `cuda:0`, `sim:0`; several take part at once.
    pub targets: Vec<String>,
    /// What moves the bytes: `forebay`, or one of the plain ways.
    pub way: String,
    /// The route that is demanded of the engine; null where it chooses.
    pub route: Option<String>,
    /// Of 100 requests, how many are reads.
    pub read_percent: u8,
    /// Where requests lie, as `sequential`, `random`, `strided:1M`, `kv`.
    pub pattern: String,
    /// Bytes of one request.
    pub request_size: u64,
    /// Calls in flight of each thread.
    pub depth: u32,
    /// Requests in one call.
    pub batch: u32,
    /// Threads for each of the targets.
    pub threads: u32,
    /// Files that these share.
    pub files: u32,
    /// Where the pages of the files are at first.
    pub cache: Cache,
}

/// One measurement of one point, or why there is none.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Sample {
    /// The point.
    pub point: Point,
    /// Which of the repeats, from 0 on.
    pub repeat: u32,
    /// When it began, in seconds since 1970.
    pub unix_time: f64,
    /// What was measured.
    pub measured: Option<Measured>,
    /// Why nothing was.
    pub error: Option<String>,
}

/// What one measurement showed.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Measured {
    /// Bytes that were moved in the span that counts.
    pub bytes: u64,
    /// Requests that ended in it.
    pub requests: u64,
    /// The span, without the warm-up.
    pub seconds: f64,
    /// Bytes over seconds.
    pub bytes_per_second: f64,
    /// Requests over seconds.
    pub requests_per_second: f64,
    /// How long requests took.
    pub latency: Option<Latency>,
    /// What it cost the processors.
    pub cpu: Option<CpuCost>,
    /// How much of the files was in the page cache.
    pub page_cache: Option<PageCacheShare>,
    /// What the drives below say to have moved.
    pub drive_bytes: Option<DriveBytes>,
    /// The engine's routes, joined by `+`, or which way bytes went.
    pub route: Option<String>,
    /// Why.
    pub reason: Option<String>,
    /// Which way the bytes took, proven by what others counted.
    pub verdict: Option<VerdictFacts>,
    /// What they counted.
    pub evidence: Option<Value>,
    /// What binds it.
    pub bound: Option<Bound>,
    /// Whether the rate held still.
    pub steady: Option<Steady>,
    /// What GPUs, processors and the server took, and how warm they were.
    pub power: Option<Power>,
    /// Joules for each 1e9 bytes, by the parts that can be added up.
    pub joules_per_gb: Vec<Joules>,
    /// What the bytes looked like afterwards: whether those that were compared were right.
    pub verified: Option<bool>,
    /// For each of several targets, in their order.
    pub shares: Vec<Share>,
    /// Whether the target was a simulated GPU.
    pub simulated: bool,
}

/// How long requests took, in nanoseconds.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct Latency {
    /// How many were measured.
    pub count: u64,
    /// The mean.
    pub mean_ns: f64,
    /// Half of them took no longer.
    pub p50_ns: u64,
    /// 90 of 100.
    pub p90_ns: u64,
    /// 99 of 100.
    pub p99_ns: u64,
    /// 999 of 1,000.
    pub p99_9_ns: u64,
    /// The longest.
    pub max_ns: u64,
    /// Whether they are counted from when they were due, which a rate says, and not from when they
    /// were made.
    pub since_due: bool,
}

/// What a span cost the processors.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct CpuCost {
    /// Seconds in the program.
    pub user_s: f64,
    /// Seconds in the kernel.
    pub system_s: f64,
    /// Both over the span: how many cores were busy.
    pub cores: f64,
    /// Both for 1e9 bytes; null where none were moved.
    pub s_per_gb: Option<f64>,
}

/// Shares of the files that were in the page cache, from 0 to 1; null where the kernel does not
/// tell.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct PageCacheShare {
    /// Before the span.
    pub before: Option<f64>,
    /// After it.
    pub after: Option<f64>,
}

/// Bytes that drives moved, whoever asked.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct DriveBytes {
    /// From them.
    pub read: u64,
    /// To them.
    pub written: u64,
}

/// What a part of the machine took for what was moved.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Joules {
    /// The part.
    pub part: Part,
    /// Joules for each 1e9 bytes.
    pub per_gb: f64,
}

/// What binds a measurement.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Bound {
    /// `link` or `storage` where the lowest ceiling on its way is near, `processors` where all of
    /// them were busy, else `in-flight`: there were too few requests to fill any of these.
    pub name: String,
    /// The lowest ceiling on its way.
    pub bytes_per_second: Option<f64>,
    /// The rate as a share of that.
    pub share: Option<f64>,
    /// What would lift it.
    pub advice: Option<String>,
}

/// Whether a rate held still, by the bytes of equal parts of the span.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Steady {
    /// Bytes per second in each part.
    pub rates: Vec<f64>,
    /// Seconds of a part.
    pub part_s: f64,
    /// How much the straight line through them rises over the whole span, as a share of the mean.
    pub slope: f64,
    /// The largest deviation from the mean, as a share of it.
    pub deviation: f64,
    /// Whether the slope is small enough to speak of one rate.
    pub reached: bool,
}

/// What one of several targets had.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Share {
    /// The target.
    pub target: String,
    /// Its bytes.
    pub bytes: u64,
    /// Its rate.
    pub bytes_per_second: f64,
    /// When the first of its threads had done its part, in seconds since the common start.
    pub first_done_s: f64,
    /// When the last had.
    pub last_done_s: f64,
}
