//! Reads the output of `forebay.stream_bench --out`, including versions that did not record their
//! version.
//!
//! Nothing in a file is trusted: every number has a range, every list a maximum length, and text is
//! cut. Samples of single passes are skipped, so that they take no memory.

use std::collections::HashSet;
use std::fmt;
use std::marker::PhantomData;

use forebay::units::format_size;
use serde::de::{Error, IgnoredAny, MapAccess, Visitor};
use serde::{Deserialize, Deserializer};
use serde_json::Number;

use super::{Layers, Machine, Point, SCHEMA, Way};
use crate::report::digest::grouped;
use crate::report::plain::cut;
use crate::shell_word;

/// Most bytes of a file: a thousand times a typical one.
const JSON_MAX: usize = 32 << 20;
/// Most numbers of tokens.
const POINTS_MAX: usize = 4096;
/// Most methods.
const WAYS_MAX: usize = 64;
/// Most letters of a method's name.
const NAME_MAX: usize = 200;
/// Most letters of a text that are kept.
const TEXT_MAX: usize = 1000;
/// Most letters of a command that are kept.
const COMMAND_MAX: usize = 4096;
/// The valid range of seconds: nothing is shorter than a tick or longer than 30 years.
const SECONDS: (f64, f64) = (1e-12, 1e9);
/// The valid range of a ratio.
const RATIO: (f64, f64) = (1e-18, 1e18);
/// The valid range of a count, or of a part of a whole.
const COUNT: (f64, f64) = (0.0, 1e18);

/// The keys that distinguish the kinds of objects.
#[derive(Debug, Deserialize)]
struct Marks {
    layers_schema: Option<IgnoredAny>,
    results: Option<IgnoredAny>,
    layer_bytes: Option<IgnoredAny>,
    from: Option<IgnoredAny>,
    points: Option<IgnoredAny>,
}

/// Whether an object is of this kind: it names its schema, or has the keys that all files had
/// before that.
///
/// # Errors
/// It is no JSON object; the text says where it is invalid.
pub fn is_layers(json: &[u8]) -> Result<bool, String> {
    let marks: Marks = serde_json::from_slice(json).map_err(|error| error.to_string())?;
    let had = marks.layer_bytes.is_some() && marks.from.is_some() && marks.points.is_some();
    Ok(marks.layers_schema.is_some() || (had && marks.results.is_none()))
}

/// Parses an object of this kind.
///
/// # Errors
/// It is of another version, or something in it is missing or invalid; the text says what.
pub fn layers(json: &[u8]) -> Result<Layers, String> {
    if json.len() > JSON_MAX {
        let (len, most) = (format_size(json.len() as u64), format_size(JSON_MAX as u64));
        return Err(format!("it has {len}, and a measurement of layers has at most {most}"));
    }
    let told: Version = serde_json::from_slice(json).map_err(|error| error.to_string())?;
    let is_known = |version: &Number| matches!(version.as_u64(), Some(1..=SCHEMA));
    if let Some(version) = told.layers_schema.filter(|version| !is_known(version)) {
        return Err(format!("it has version {version}, and this program reads 1 to {SCHEMA}"));
    }
    let told: Told = serde_json::from_slice(json).map_err(|error| error.to_string())?;
    told.checked()
}

/// Read first: another version may have other keys.
#[derive(Debug, Deserialize)]
struct Version {
    layers_schema: Option<Number>,
}

#[derive(Debug, Deserialize)]
struct Told {
    #[serde(default)]
    command: Vec<String>,
    #[serde(default)]
    flags: Flags,
    #[serde(default)]
    environment: About,
    layer_bytes: u64,
    layers: u64,
    order: String,
    from: String,
    #[serde(default)]
    simulated: bool,
    #[serde(default)]
    absent: Named<String>,
    failed: Option<String>,
    points: Vec<ToldPoint>,
}

/// Optional parts of the request, as far as the file reports them.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Flags {
    buffers: Option<u64>,
    rounds: Option<u64>,
    passes: Option<u64>,
    file: Option<String>,
}

#[derive(Debug, Deserialize)]
struct ToldPoint {
    tokens: u64,
    turns: u64,
    compute_s: f64,
    transfer_layer_s: Option<f64>,
    /// Of all turns, in files that lack the time of a layer.
    transfer_s: Option<f64>,
    forward_layer_s: Option<f64>,
    backward_layer_s: Option<f64>,
    operations: Option<f64>,
    ways: Named<Way>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct About {
    gpu: Option<Gpu>,
    driver: Option<String>,
    cpu: Option<String>,
    #[serde(alias = "cores")]
    cpus: Option<u64>,
    memory: Option<u64>,
    kernel: Option<String>,
    file_system: FileSystem,
    python: Option<String>,
    torch: Option<String>,
    packages: Packages,
}

#[derive(Debug, Deserialize)]
#[serde(untagged)]
enum Gpu {
    Name(String),
    Facts { name: String, memory: Option<u64> },
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct FileSystem {
    file_system: Option<String>,
    drive: Option<String>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Packages {
    forebay: Option<String>,
    torch: Option<String>,
    #[serde(rename = "kvikio-cu13")]
    kvikio_13: Option<String>,
    #[serde(rename = "kvikio-cu12")]
    kvikio_12: Option<String>,
}

/// An object's entries in order, without duplicates.
#[derive(Debug)]
struct Named<T>(Vec<(String, T)>);

impl<T> Default for Named<T> {
    fn default() -> Self {
        Self(Vec::new())
    }
}

impl<'de, T: Deserialize<'de>> Deserialize<'de> for Named<T> {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        from.deserialize_map(Entries(PhantomData))
    }
}

struct Entries<T>(PhantomData<T>);

impl<'de, T: Deserialize<'de>> Visitor<'de> for Entries<T> {
    type Value = Named<T>;

    fn expecting(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        to.write_str("an object with a key for each method")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Named<T>, A::Error> {
        let mut found: Vec<(String, T)> = Vec::new();
        while let Some(name) = map.next_key::<String>()? {
            if name.chars().nth(NAME_MAX).is_some() {
                return Err(A::Error::custom(format!(
                    "a method's name has more than {NAME_MAX} letters"
                )));
            }
            if found.iter().any(|(other, _)| *other == name) {
                return Err(A::Error::custom(format!("`{name}` occurs twice")));
            }
            if found.len() == WAYS_MAX {
                return Err(A::Error::custom(format!("there are more than {WAYS_MAX} methods")));
            }
            found.push((name, map.next_value()?));
        }
        Ok(Named(found))
    }
}

impl Told {
    fn checked(self) -> Result<Layers, String> {
        for (key, value) in [("layers", self.layers), ("layer_bytes", self.layer_bytes)] {
            at_least_one(key, value)?;
        }
        if self.points.len() > POINTS_MAX {
            let count = self.points.len();
            return Err(format!("it has {count} points, and at most {POINTS_MAX} are read"));
        }
        let mut known = HashSet::new();
        let mut points = Vec::new();
        for told in self.points {
            let tokens = grouped(told.tokens);
            if !known.insert(told.tokens) {
                return Err(format!("{tokens} tokens occur twice"));
            }
            points.push(told.checked().map_err(|why| format!("at {tokens} tokens, {why}"))?);
        }
        let words: Vec<String> = self.command.iter().map(|word| shell_word(word)).collect();
        let found = Layers {
            name: String::new(),
            command: cut(&words.join(" "), COMMAND_MAX),
            count: self.layers,
            layer_bytes: self.layer_bytes,
            order: cut(&self.order, NAME_MAX),
            from: cut(&self.from, NAME_MAX),
            buffers: self.flags.buffers,
            rounds: self.flags.rounds,
            passes: self.flags.passes,
            file: self.flags.file.map(|file| cut(&file, COMMAND_MAX)),
            machine: self.environment.machine(),
            simulated: self.simulated,
            absent: self
                .absent
                .0
                .into_iter()
                .map(|(way, why)| (way, cut(&why, TEXT_MAX)))
                .collect(),
            failed: self.failed.map(|why| cut(&why, TEXT_MAX)),
            points,
        };
        match found.ways().len() {
            0..=WAYS_MAX => Ok(found),
            count => Err(format!("it has {count} methods, and at most {WAYS_MAX} are read")),
        }
    }
}

impl ToldPoint {
    #[expect(clippy::cast_precision_loss, reason = "a count of turns")]
    fn checked(self) -> Result<Point, String> {
        at_least_one("tokens", self.tokens)?;
        at_least_one("turns", self.turns)?;
        seconds("compute_s", self.compute_s)?;
        let each = self.transfer_s.map(|all| all / self.turns as f64);
        let transfer = self.transfer_layer_s.or(each).ok_or("`transfer_layer_s` is missing")?;
        seconds("transfer_layer_s", transfer)?;
        within("forward_layer_s", self.forward_layer_s, (0.0, SECONDS.1))?;
        within("backward_layer_s", self.backward_layer_s, (0.0, SECONDS.1))?;
        within("operations", self.operations, (0.0, f64::MAX))?;
        for (name, way) in &self.ways.0 {
            check(way).map_err(|why| format!("of `{name}`, {why}"))?;
        }
        Ok(Point {
            tokens: self.tokens,
            turns: self.turns,
            compute_s: self.compute_s,
            transfer_layer_s: transfer,
            forward_layer_s: self.forward_layer_s,
            backward_layer_s: self.backward_layer_s,
            operations: self.operations,
            ways: self.ways.0,
        })
    }
}

fn check(way: &Way) -> Result<(), String> {
    seconds("pass_s", way.pass_s)?;
    seconds("line_s", way.line_s)?;
    within("transfer_layer_s", way.transfer_layer_s, SECONDS)?;
    within("over_line", way.over_own_line, RATIO)?;
    within("pass_low_s", way.pass_low_s, SECONDS)?;
    within("pass_high_s", way.pass_high_s, SECONDS)?;
    within("rested_s", way.rested_s, SECONDS)?;
    // A clock may report slightly less than zero for a difference of zero.
    within("line_stall_s", way.line_stall_s, (-SECONDS.1, SECONDS.1))?;
    within("stall_s", way.stall_s, (-SECONDS.1, SECONDS.1))?;
    within("line_reads", way.line_reads, COUNT)?;
    within("reads", way.reads, COUNT)?;
    within("compute_beside", way.compute_beside, COUNT)?;
    within("cpu_s_per_gb", Some(way.cpu_s_per_gb), COUNT)
}

fn at_least_one(key: &str, value: u64) -> Result<(), String> {
    if value == 0 { Err(format!("`{key}` has to be 1 or more, not `0`")) } else { Ok(()) }
}

fn seconds(key: &str, value: f64) -> Result<(), String> {
    within(key, Some(value), SECONDS)
}

fn within(key: &str, value: Option<f64>, (least, most): (f64, f64)) -> Result<(), String> {
    let shown = |end: f64| if end == 0.0 { "0".to_owned() } else { format!("{end:e}") };
    match value.filter(|value| !(least..=most).contains(value)) {
        Some(value) => {
            let (least, most) = (shown(least), shown(most));
            Err(format!("`{key}` has to be from {least} to {most}, not `{value:?}`"))
        }
        None => Ok(()),
    }
}

impl About {
    fn machine(self) -> Machine {
        let (gpu, memory) = match self.gpu {
            Some(Gpu::Name(name)) => (Some(name), None),
            Some(Gpu::Facts { name, memory }) => (Some(name), memory),
            None => (None, None),
        };
        let gpu = gpu.map(|name| cut(&name, NAME_MAX));
        let size = memory.map_or_else(String::new, |bytes| format!(", {}", format_size(bytes)));
        let processor = match (&self.cpu, self.cpus) {
            (Some(model), Some(cores)) => Some(format!("{cores} × {model}")),
            (None, Some(cores)) => Some(format!("{cores} cores")),
            (model, None) => model.clone(),
        };
        let drive = self.file_system.drive.map_or_else(String::new, |name| format!(" on {name}"));
        let packages = self.packages;
        let told = [
            ("GPU", gpu.as_ref().map(|name| format!("{name}{size}"))),
            ("GPU driver", self.driver),
            ("processor", processor),
            ("host memory", self.memory.map(format_size)),
            ("kernel", self.kernel),
            ("file system", self.file_system.file_system.map(|kind| format!("{kind}{drive}"))),
            ("Python", self.python),
            ("torch", packages.torch.or(self.torch)),
            ("KvikIO", packages.kvikio_13.or(packages.kvikio_12)),
            ("forebay", packages.forebay),
        ];
        let facts = told.into_iter().filter_map(|(name, text)| Some((name, cut(&text?, TEXT_MAX))));
        Machine { cores: self.cpus, facts: facts.collect(), gpu }
    }
}

#[cfg(test)]
mod tests;
