//! The results file of measuring verbs: JSON, one record per line.
//!
//! A complete line is appended after each measurement and never changed again. So a killed run
//! loses at most the current sample, and continues where it stopped. Measurements belong to the
//! nearest [`Run`] before them. docs/results.schema.json describes every key; values that do not
//! apply are null.

mod field;
pub mod file;
pub mod machine;
mod names;
pub mod verdict;

use std::sync::Arc;

use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::Value;

pub use self::field::Field;
pub use self::names::{Cache, Direction};
use crate::power::result::{Absent, Power};
use crate::results::machine::{Environment, Gpu};
use crate::results::verdict::VerdictFacts;
use crate::stats::rate;

/// The version of the schema: from the first release on, it grows when a key changes its meaning or
/// is removed. Archived runs from before that release are read too: keys were added, or dropped
/// where nothing needs them (`forebay-cli/tests/cli/pages/archived.rs`).
pub const SCHEMA: u32 = 1;

/// One line of a results file.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(tag = "record", rename_all = "kebab-case")]
pub enum Record {
    /// The tool, machine and request of the records that follow.
    Run(Box<Run>),
    /// The limit of a part of the machine.
    Limit(Limit),
    /// One measurement of one point, or why there is none.
    Sample(Box<Sample>),
    /// Why rows are missing, or are not what their titles say.
    Doubt {
        /// A sentence.
        text: String,
    },
    /// A note for the reader of the numbers, as a sentence.
    Warning {
        /// The sentence.
        text: String,
    },
}

impl Record {
    /// The sentence of a warning or a doubt.
    #[must_use]
    pub fn text(&self) -> Option<&str> {
        match self {
            Self::Warning { text } | Self::Doubt { text } => Some(text),
            _ => None,
        }
    }
}

/// A run of the command.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct Run {
    /// [`SCHEMA`].
    pub schema: u32,
    /// The verb, such as `bench`, or another tool, such as `fio`.
    pub verb: String,
    /// The user's label.
    pub label: Option<String>,
    /// The machine and the command.
    pub environment: Environment,
    /// All GPUs that take part, of all ranks; empty if the target is host memory.
    pub gpus: Vec<Gpu>,
    /// Sources of power and heat that report nothing here, and why.
    #[serde(default)]
    pub unmetered: Vec<Absent>,
    /// The hosts of several ranks, in their order: samples and limits are then of all.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub ranks: Vec<String>,
    /// The request: a file may be continued if this is the same.
    #[serde(serialize_with = "of_shared", deserialize_with = "shared")]
    #[cfg_attr(test, schemars(with = "Value"))]
    pub request: Arc<Value>,
    /// The tool that measured, if another one did: then nothing is known about the machine, nor
    /// about any value that is null.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub imported: Option<Imported>,
}

fn of_shared<S: Serializer>(value: &Arc<Value>, serializer: S) -> Result<S::Ok, S::Error> {
    value.as_ref().serialize(serializer)
}

fn shared<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Arc<Value>, D::Error> {
    Value::deserialize(deserializer).map(Arc::new)
}

impl Run {
    /// The identity of a run: the same for a continued file.
    #[must_use]
    pub fn identity(&self) -> String {
        serde_json::to_string(&(&self.label, &self.verb, &*self.request)).unwrap_or_default()
    }
}

/// Another tool.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct Imported {
    /// `gdsio`, `fio`, `nixlbench`, `elbencho` or `csv`.
    pub tool: String,
    /// Its version, if the file reports it.
    pub version: Option<String>,
}

/// The limit of a part of the machine.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct Limit {
    /// `link`, `storage`; for several GPUs at once `links`, or `uplink` if they share a
    /// link that binds, or `shared` if something else does.
    pub name: String,
    /// The part that has it: a GPU, several joined by `+`, a path.
    pub of: String,
    /// From the file to memory or back; null if both are equal.
    pub direction: Option<Direction>,
    /// The limit.
    pub bytes_per_second: f64,
    /// How it was found.
    pub how: String,
    /// Whether it is that of a simulated GPU.
    pub simulated: bool,
    /// Of several GPUs: what was predicted from the link of each alone, and the PCIe links above;
    /// of several paths, from the drives of each alone.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub predicted: Option<f64>,
}

impl Limit {
    /// Whether this is a limit of the same part as one with this name. The name of the links of
    /// several GPUs depends on the rate that they reached, so all names of links are the same.
    #[must_use]
    pub fn is_of(&self, name: &str, of: &str, direction: Option<Direction>) -> bool {
        let is_storage = |name: &str| name == "storage";
        is_storage(&self.name) == is_storage(name)
            && self.of == of
            && direction.map_or(self.direction.is_none(), |direction| self.holds(direction))
    }

    /// Whether this is a limit of this direction.
    #[must_use]
    pub fn holds(&self, direction: Direction) -> bool {
        self.direction.is_none_or(|own| own == direction)
    }
}

/// The settings of one measurement: one value of each axis.
///
/// No axis has the value 0 or an empty text: those mean that an external tool does not report it.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct Point {
    /// The file or the folder, as given.
    pub path: String,
    /// The memory: `host`, `cuda:0`, `sim:0`; several if they take part at the same time.
    pub targets: Vec<String>,
    /// The method: `forebay`, or one of the plain ones.
    pub method: String,
    /// The route required of the engine; null if it chooses.
    pub route: Option<String>,
    /// How many of 100 requests are reads.
    pub read_percent: u8,
    /// The order of requests, as `sequential`, `random`, `strided:1M`, `kv`.
    pub pattern: String,
    /// Bytes of one request.
    pub request_size: u64,
    /// Concurrent calls of each thread.
    pub depth: u32,
    /// Requests in one call.
    pub batch: u32,
    /// Threads for each of the targets.
    pub threads: u32,
    /// Files that the threads share.
    pub files: u32,
    /// The initial page cache state of the files; null if unknown.
    pub cache: Option<Cache>,
}

/// One measurement of one point, or why there is none.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct Sample {
    /// The point.
    pub point: Point,
    /// Which of the repeats, from 0 on.
    pub repeat: u32,
    /// When it began, in seconds since 1970; 0 if unknown.
    pub unix_time: f64,
    /// The measurement.
    pub measured: Option<Measured>,
    /// Why there is no measurement.
    pub error: Option<String>,
}

impl Sample {
    /// Whether a continued run keeps it: failed samples and those with wrong data are repeated.
    #[must_use]
    pub fn is_good(&self) -> bool {
        self.measured.as_ref().is_some_and(|measured| measured.verified != Some(false))
    }
}

/// Shorter samples, in seconds, measure mostly their start and their end.
const SECONDS_MIN: f64 = 0.1;

/// The results of one measurement; null marks a value that an external tool did not report.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct Measured {
    /// Bytes that were moved in the span that counts.
    pub bytes: Option<u64>,
    /// Requests that ended in it.
    pub requests: Option<u64>,
    /// The span, without the warm-up.
    pub seconds: Option<f64>,
    /// Bytes over seconds.
    pub bytes_per_second: f64,
    /// Requests over seconds.
    pub requests_per_second: Option<f64>,
    /// How long requests took.
    pub latency: Option<Latency>,
    /// Its processor time.
    pub cpu: Option<CpuCost>,
    /// How much of the files was in the page cache.
    pub page_cache: Option<PageCacheShare>,
    /// Bytes that the drives report as moved.
    pub drive_bytes: Option<DriveBytes>,
    /// The engine's routes, joined by `+`, or the route of the bytes.
    pub route: Option<String>,
    /// Why.
    pub reason: Option<String>,
    /// The route, proven by independent counters.
    pub verdict: Option<VerdictFacts>,
    /// Those counters.
    pub evidence: Option<Value>,
    /// The limit that binds.
    pub bound: Option<Bound>,
    /// Whether the rate was steady.
    pub steady: Option<Steady>,
    /// The power of GPUs, processors and the server.
    pub power: Option<Power>,
    /// Whether the bytes that were compared afterwards were correct.
    pub verified: Option<bool>,
    /// How many bytes were compared, each once: of writes all, or an evenly spread share.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub verified_bytes: Option<u64>,
    /// The reference of the comparison: `what was written`, or, for a file with unknown contents,
    /// `a second read`, or, for a block store, `checksums, and names of blocks`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub compared_with: Option<String>,
    /// The share of each target, in order, if there are several.
    pub shares: Vec<Share>,
    /// What a block store did, if it moved the bytes. Latencies are then those of loaded blocks.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kv: Option<KvFacts>,
    /// Whether the target was a simulated GPU.
    pub simulated: bool,
}

impl Measured {
    /// Whether it is long enough for a rate. Clocks may differ by a hundredth.
    #[must_use]
    pub fn is_long_enough(&self) -> bool {
        self.seconds.is_none_or(|seconds| seconds >= 0.99 * SECONDS_MIN)
    }
}

/// How long requests took, in nanoseconds.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct Latency {
    /// How many were measured.
    pub count: Option<u64>,
    /// The mean.
    pub mean_ns: Option<f64>,
    /// Half of the requests took no longer.
    pub p50_ns: Option<u64>,
    /// 90 of 100 took no longer.
    pub p90_ns: Option<u64>,
    /// 99 of 100 took no longer.
    pub p99_ns: Option<u64>,
    /// 999 of 1,000 took no longer.
    pub p99_9_ns: Option<u64>,
    /// The longest.
    pub max_ns: Option<u64>,
    /// Whether latencies are measured from when requests were due, as with a fixed rate, not from
    /// when they were sent.
    pub since_due: bool,
}

/// What a block store did for the turns of conversations.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct KvFacts {
    /// Turns that were served.
    pub turns: u64,
    /// Blocks of their prompts.
    pub wanted: u64,
    /// How many of these were loaded.
    pub hits: u64,
    /// Blocks that were not stored, because the drive was behind or had no room.
    pub dropped: u64,
    /// Loaded bytes over seconds.
    pub loaded_bytes_per_second: f64,
    /// The time from the start of a turn until its first blocks were in memory, for turns that had
    /// some; its count is the number of these turns.
    pub first: Option<Latency>,
}

/// The processor time of a span.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct CpuCost {
    /// Seconds in the program.
    pub user_s: f64,
    /// Seconds in the kernel.
    pub system_s: f64,
    /// Both over the span: how many cores were busy.
    pub cores: f64,
    /// User and system time for 1e9 bytes; null if no bytes were moved.
    pub s_per_gb: Option<f64>,
}

impl CpuCost {
    /// The cost of moving `bytes` in `seconds`.
    #[must_use]
    pub fn new(user_s: f64, system_s: f64, seconds: f64, bytes: u64) -> Self {
        let both = user_s + system_s;
        let s_per_gb = (bytes > 0).then(|| both * 1e9 / rate(bytes, 1.0));
        Self { user_s, system_s, cores: both / seconds, s_per_gb }
    }
}

/// Shares of the files that were in the page cache, from 0 to 1; null if the kernel does not report
/// them.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct PageCacheShare {
    /// Before the span.
    pub before: Option<f64>,
    /// After it.
    pub after: Option<f64>,
}

/// Bytes that drives moved, for any process.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct DriveBytes {
    /// Bytes that were read.
    pub read: u64,
    /// Bytes that were written.
    pub written: u64,
}

/// The limit of a measurement.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct Bound {
    /// `rate` if the requested rate was reached; `link`, `uplink`, `shared` or `storage`
    /// if the rate is near the lowest limit on its path; `processors` if all of them were busy;
    /// `unknown` if a drive takes part and reads and writes are mixed, or if the rate is above that
    /// limit; else `in-flight`: too few requests to fill any of these.
    pub name: String,
    /// The lowest limit on its path. For one direction of a mixed load it is scaled up from that
    /// direction's part to all bytes.
    pub bytes_per_second: Option<f64>,
    /// The rate as a share of that; above 1, the limit was measured too low.
    pub share: Option<f64>,
    /// How to raise it.
    pub advice: Option<String>,
}

impl Bound {
    /// From this share on, a limit binds.
    pub const NEAR: f64 = 0.85;
    /// From this share on, a rate is above a limit; less is noise.
    pub const ABOVE: f64 = 1.02;
}

impl Point {
    /// The share of its bytes in one direction, from 0 to 1.
    #[must_use]
    pub fn part(&self, direction: Direction) -> f64 {
        let read = f64::from(self.read_percent.min(100)) / 100.0;
        match direction {
            Direction::Read => read,
            Direction::Write => 1.0 - read,
        }
    }
}

/// Whether a rate was steady, by the bytes of equal parts of the span.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct Steady {
    /// Bytes per second in each part.
    pub rates: Vec<f64>,
    /// Seconds of a part.
    pub part_s: f64,
    /// The rise of the fitted line over the whole span, as a share of the mean.
    pub slope: f64,
    /// The largest deviation from the mean, as a share of it.
    pub deviation: f64,
    /// Whether the slope is small enough to speak of one rate.
    pub reached: bool,
}

/// The share of one of several targets.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct Share {
    /// The target.
    pub target: String,
    /// Its bytes.
    pub bytes: u64,
    /// Its rate.
    pub bytes_per_second: f64,
    /// When the first of its threads had finished, in seconds since the common start.
    pub first_done_s: f64,
    /// When the last one had finished.
    pub last_done_s: f64,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_schema_in_the_documentation_is_that_of_the_types() {
        let schema = serde_json::to_string_pretty(&schemars::schema_for!(Record)).unwrap() + "\n";
        if let Some(path) = std::env::var_os("FOREBAY_WRITE_SCHEMA") {
            std::fs::write(path, &schema).unwrap();
        }
        let kept = include_str!("../../../../docs/results.schema.json");
        assert!(kept == schema, "write it with `FOREBAY_WRITE_SCHEMA=PATH cargo test the_schema`");
    }
}
