//! From axes to points: pure.

use std::collections::HashSet;
use std::path::Path;
use std::time::Duration;
use std::{iter, slice};

use forebay::units::{align_down, format_size};
use forebay_measure::failure::{Failure, Result};
use forebay_measure::host_memory::check_requests;
use forebay_measure::kv::Model;
use forebay_measure::results::{Cache, Direction, Field, Point};
use forebay_measure::variables;
use forebay_measure::workload::backend::{Method, Plain};
use forebay_measure::workload::pattern::Pattern;
use forebay_measure::workload::{End, Load};
use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::{Value, json};

use super::targets::Together;
use crate::bench::args::{BenchArgs, RouteChoice};
use crate::report::bars;
use crate::values::Format;

/// Maximum points of a run: with three samples of 2 s, a week.
const POINTS_MAX: usize = 100_000;
/// Time of a sample of requests, and of whole files.
const TIME: Duration = Duration::from_secs(1);
const WHOLE_TIME: Duration = Duration::from_millis(100);
const REPEATS: u32 = 5;
/// Time limit of a default run per path and target.
const BUDGET: Duration = Duration::from_secs(29);
/// Rounds of a default run at most, and from which on it may end early.
const BUDGET_ROUNDS: u32 = 20;
pub(super) const PRECISE_ROUNDS: u32 = 10;
const BLOCK_SIZE: u64 = 1 << 20;
const DEPTH: u32 = 32;
/// Calls in flight, blocks of a call, and threads that serve turns from a block store.
const KV: (u32, u32, u32) = (2, 16, 4);
const KV_TIME: Duration = Duration::from_secs(3);

/// A point, with the parameters that its name omits.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Planned {
    pub(super) point: Point,
    /// The numbers of its paths; several are used together.
    pub(super) paths: Vec<usize>,
    /// The bytes of whole files per thread, moved by a single request or in pieces; `None` if a
    /// flag speaks of smaller requests.
    pub(super) whole: Option<u64>,
    /// The number of its targets.
    pub(super) targets: usize,
    pub(super) load: Load,
    /// The model whose blocks a store serves, instead of requests to files.
    pub(super) kv: Option<Model>,
}

impl Planned {
    /// Minimum size of its files: a thread keeps `depth` calls in flight, in its own part.
    pub(super) fn needs(&self) -> u64 {
        if self.kv.is_some() {
            return 0;
        }
        let threads = u64::from(self.point.threads) * self.point.targets.len() as u64;
        let calls = u64::from(self.load.depth).saturating_mul(self.load.call_len());
        threads.saturating_mul(self.whole.unwrap_or(0).max(calls))
    }

    /// Sets what follows from the values of the axes.
    fn complete(&mut self, args: &BenchArgs, axes: &Axes) {
        let (point, load, targets) = (&mut self.point, &mut self.load, &axes.targets[self.targets]);
        self.whole = axes.whole_len(&self.paths, targets.len());
        if let Some(len) = self.whole {
            load.request_size = piece(len, axes.found.piece_max);
        }
        point.depth = load.method.depth().unwrap_or(point.depth);
        load.depth = load.method.places().unwrap_or(point.depth);
        load.batch = point.batch;
        // Pages of a warm-up would be written back, or hit, in the measured span.
        let passes = load.writes() || load.method.is_cached() || self.whole.is_some();
        load.once = load.cache == Cache::Cold && passes && self.kv.is_none();
        if !load.once && self.whole.is_none() {
            load.warm_up = warm_up(args);
        }
        let names: Vec<&str> = self.paths.iter().map(|path| axes.paths[*path].as_str()).collect();
        point.path = names.join(" + ");
        point.targets.clone_from(targets);
        point.method = load.method.name().into();
        point.route = load.method.route().map(|route| route.name().into());
        point.read_percent = load.read_percent;
        point.request_size = load.request_size;
        point.cache = Some(load.cache);
    }

    /// Its point in a few words.
    pub(super) fn name(&self) -> String {
        if self.whole.is_some() { bars::name(&self.point) } else { name(&self.point) }
    }

    /// The planned time of a sample.
    pub(super) fn time(&self) -> Duration {
        self.load.time().unwrap_or_default().saturating_add(self.load.warm_up)
    }
}

/// What the points are made from, besides the arguments.
#[derive(Debug, Clone)]
pub(super) struct Axes {
    /// The paths, as given.
    pub(super) paths: Vec<String>,
    /// The names of the targets that work at the same time, by value of that axis.
    pub(super) targets: Vec<Vec<String>>,
    pub(super) directions: Vec<u8>,
    pub(super) found: Found,
}

/// What a plan follows from beyond the arguments. A continued run reads it from its file: measured
/// again, it may differ.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub(super) struct Found {
    #[serde(serialize_with = "names", deserialize_with = "named")]
    pub(super) methods: Vec<Method>,
    /// The possible states of the page cache, by path.
    pub(super) caches: Vec<Caches>,
    /// Whether the storage has a limit, by path.
    pub(super) is_limited: Vec<bool>,
    /// Bytes of whole files by path, if requests move these; the smallest for all paths together.
    pub(super) whole: Option<Vec<u64>>,
    /// Maximum bytes of a request for a whole file: larger files are moved in pieces.
    pub(super) piece_max: u64,
    /// The capacity of the roots of a block store.
    pub(super) kv_capacity: Option<u64>,
    /// The bytes used of the user's file, by path.
    #[serde(default)]
    pub(super) lens: Vec<u64>,
}

fn names<S: Serializer>(methods: &[Method], serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_seq(methods.iter().map(|method| method.name()))
}

fn named<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<Method>, D::Error> {
    let names = Vec::<String>::deserialize(deserializer)?;
    names.iter().map(|name| name.parse().map_err(D::Error::custom)).collect()
}

impl Found {
    /// The findings in a recorded request for so many paths, if it holds some.
    pub(super) fn of(request: &Value, paths: usize) -> Option<Self> {
        let fits = |found: &Self| {
            let lens = [found.caches.len(), found.is_limited.len()];
            lens == [paths; 2] && found.whole.as_ref().is_none_or(|whole| whole.len() == paths)
        };
        Self::deserialize(request.get("found")?).ok().filter(fits)
    }

    /// What is possible with `other` as well.
    pub(super) fn common(mut self, other: &Self) -> Self {
        self.methods.retain(|method| other.methods.contains(method));
        for (own, other) in self.caches.iter_mut().zip(&other.caches) {
            own.cold &= other.cold;
            own.warm &= other.warm;
            own.synced &= other.synced;
        }
        self.is_limited.iter_mut().zip(&other.is_limited).for_each(|(own, other)| *own &= other);
        self
    }
}

/// Whether the page cache can be without a path's files, and have them, and whether a sync writes
/// to the drive, so that there are cold writes.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub(super) struct Caches {
    pub(super) cold: bool,
    pub(super) warm: bool,
    pub(super) synced: bool,
}

/// The bytes of equal pieces of a file, `most` at most. At its end, up to 4 KiB per piece are not
/// part of any.
pub(super) fn piece(len: u64, most: u64) -> u64 {
    let pieces = len.div_ceil(most.max(4096));
    if pieces <= 1 { len } else { align_down(len / pieces, 4096) }
}

impl Axes {
    /// The direction that is measured first.
    pub(super) fn first_direction(&self) -> Direction {
        let any_read = self.directions.iter().any(|percent| *percent > 0);
        if any_read { Direction::Read } else { Direction::Write }
    }

    /// The bytes of whole files of these paths per target.
    fn whole_len(&self, paths: &[usize], targets: usize) -> Option<u64> {
        let lens = self.found.whole.as_ref()?;
        let part = paths.iter().map(|path| lens[*path]).min().unwrap_or(0) / targets as u64;
        Some(if targets > 1 { align_down(part, 4096).max(1) } else { part })
    }
}

/// All points: every combination of the axes' values, the first axis outermost.
///
/// # Errors
/// There are too many, or none.
pub(super) fn points(args: &BenchArgs, axes: &Axes) -> Result<Vec<Planned>> {
    let is_whole = axes.found.whole.is_some();
    let load = Load {
        rate: args.rate,
        seed: args.seed.unwrap_or(1),
        ..Load::reads(Method::Forebay(None), BLOCK_SIZE, end(args, is_whole))
    };
    let first = Planned {
        point: Point::default(),
        paths: Vec::new(),
        whole: None,
        targets: 0,
        load,
        kv: None,
    };
    let targets: Vec<usize> = (0..axes.targets.len()).collect();
    let (depth, batch, threads) = match (is_whole, args.kv.is_empty()) {
        (true, _) => (1, 1, 1),
        (false, true) => (DEPTH, 1, 1),
        (false, false) => KV,
    };
    let all =
        each(&[first], &paths(args, axes.paths.len()), |one, value| one.paths.clone_from(value))?;
    let all = each(&all, &targets, |one, value| one.targets = *value)?;
    let with_states = |one: Planned| {
        each(slice::from_ref(&one), &states(args, axes, &one.paths), |one, value| {
            (one.load.read_percent, one.load.cache) = *value;
        })
    };
    let all = all.into_iter().map(with_states).collect::<Result<Vec<_>>>()?.concat();
    let all =
        each(&all, &by_route(args, &axes.found.methods), |one, value| one.load.method = *value)?;
    let all = each(&all, &requests(args), |one, (pattern, size, kv)| {
        (one.load.pattern, one.load.request_size, one.kv) = (*pattern, *size, *kv);
        one.point.pattern = kv.map_or_else(|| pattern.to_string(), |model| model.to_string());
    })?;
    let all = each(&all, &given_or(&args.depth, depth), |one, value| one.point.depth = *value)?;
    let all = each(&all, &given_or(&args.batch, batch), |one, value| one.point.batch = *value)?;
    let threads = given_or(&args.threads, threads);
    let all = each(&all, &threads, |one, value| one.point.threads = *value)?;
    let all = each(&all, &given_or(&args.files, 1), |one, value| one.point.files = *value)?;
    let (mut planned, mut known) = (Vec::new(), HashSet::new());
    for mut one in all {
        let threads = one.point.threads as usize * axes.targets[one.targets].len();
        if is_impossible(&one.load, threads * one.paths.len()) || is_dull(args, &one.load) {
            continue;
        }
        one.complete(args, axes);
        check(&one.load)?;
        if known.insert(one.point.clone()) {
            planned.push(one);
        }
    }
    if planned.is_empty() {
        return Err(Failure::usage("no method can measure these values")
            .hint("`mmap` uses one thread: add `forebay`"));
    }
    Ok(planned)
}

/// Every point with every one of these values.
///
/// # Errors
/// There are too many.
fn each<T>(all: &[Planned], values: &[T], set: impl Fn(&mut Planned, &T)) -> Result<Vec<Planned>> {
    let count = all.len().saturating_mul(values.len());
    if count > POINTS_MAX {
        return Err(Failure::usage(format!("{count} points are too many for one run"))
            .hint(format!("give fewer values: the limit is {POINTS_MAX} points")));
    }
    let pairs = all.iter().flat_map(|one| values.iter().map(move |value| (one.clone(), value)));
    let with_value = |(mut one, value): (Planned, &T)| {
        set(&mut one, value);
        one
    };
    Ok(pairs.map(with_value).collect())
}

/// The given values of an axis, or the default.
fn given_or<T: Copy>(given: &[T], usual: T) -> Vec<T> {
    if given.is_empty() { vec![usual] } else { given.to_vec() }
}

/// Whether a method cannot do that: the signal handler of this process knows a single mapping.
fn is_impossible(load: &Load, threads: usize) -> bool {
    load.method == Method::Plain(Plain::Mmap) && threads > 1
}

/// Whether a point costs much time of a default run, and says little: stores to a mapping took 3 s
/// a sample on two cores, a third of `write()`'s rate.
fn is_dull(args: &BenchArgs, load: &Load) -> bool {
    let is_mmap = load.method == Method::Plain(Plain::Mmap);
    let is_default = args.moves_whole_files() && args.method.is_empty() && args.repeats.is_none();
    is_default && load.writes() && is_mmap
}

/// The numbers of the paths by value of that axis: every path alone, and all together.
fn paths(args: &BenchArgs, count: usize) -> Vec<Vec<usize>> {
    let mut paths: Vec<Vec<usize>> = (0..count).map(|number| vec![number]).collect();
    if count > 1 && args.vs.is_none() {
        paths.push((0..count).collect());
    }
    paths
}

/// The shares of reads, with the states of the page cache that are possible on all `paths`.
fn states(args: &BenchArgs, axes: &Axes, paths: &[usize]) -> Vec<(u8, Cache)> {
    let is_whole = axes.found.whole.is_some();
    // Rows that are compared have the same state.
    let counts = |path: &usize| args.vs.is_some() || paths.contains(path);
    let caches = (0..).zip(&axes.found.caches).filter(|(path, _)| counts(path));
    let caches: Vec<&Caches> = caches.map(|(_, path)| path).collect();
    let all = |can: fn(&Caches) -> bool| caches.iter().all(|path| can(path));
    let of = |percent: u8| -> Vec<Cache> {
        if !args.cache.is_empty() {
            return args.cache.clone();
        }
        let cold = if percent == 0 { all(|path| path.synced) } else { all(|path| path.cold) };
        match (cold, is_whole && percent == 100 && all(|path| path.warm)) {
            (false, _) => vec![Cache::Warm],
            (true, true) => vec![Cache::Warm, Cache::Cold],
            (true, false) => vec![Cache::Cold],
        }
    };
    let all = axes.directions.iter().flat_map(|percent| {
        of(*percent).into_iter().map(|cache| (*percent, cache)).collect::<Vec<_>>()
    });
    all.collect()
}

/// When a run ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Rounds {
    /// After this many rounds.
    Count(u32),
    /// After this time, or earlier if all rows are precise.
    Within(Duration),
}

impl Rounds {
    /// Rounds at most.
    pub(super) const fn most(self) -> u32 {
        match self {
            Self::Count(count) => count,
            Self::Within(_) => BUDGET_ROUNDS,
        }
    }

    /// The remaining time at `elapsed`, or `estimate` without a time limit; `None` if it is too
    /// short for a turn of duration `needs`.
    pub(super) fn left(
        self,
        (elapsed, needs): (Duration, Duration),
        estimate: Duration,
    ) -> Option<Duration> {
        match self {
            Self::Count(_) => Some(estimate),
            Self::Within(time) => time.checked_sub(elapsed).filter(|left| *left > needs),
        }
    }
}

/// When the run of these points ends: whole files have a time limit unless an argument sets the
/// time or the number of samples.
pub(super) fn rounds(args: &BenchArgs, planned: &[Planned]) -> Rounds {
    let is_limited = args.repeats.is_none() && args.time.is_none();
    if !is_limited || planned.iter().any(|one| one.whole.is_none()) {
        return Rounds::Count(args.repeats.unwrap_or(REPEATS));
    }
    let groups: HashSet<_> = planned.iter().map(|one| (&one.paths, one.targets)).collect();
    Rounds::Within(BUDGET * u32::try_from(groups.len()).expect("a small number"))
}

/// A part of a round.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum Turn {
    /// A sample of the point with this number.
    Row(usize),
    /// The links of all targets.
    Links(Direction),
    /// The storage of all paths.
    Storage(Direction),
}

impl Turn {
    /// The number of its point.
    pub(super) const fn row(&self) -> Option<usize> {
        match self {
            Self::Row(index) => Some(*index),
            Self::Links(_) | Self::Storage(_) => None,
        }
    }
}

/// A round: a sample of every point, and every limit next to the first point below it. Points of a
/// second path follow those of the first, and every second round runs backwards, so that a machine
/// that slows down favours no point.
pub(super) fn round(args: &BenchArgs, planned: &[Planned], repeat: u32) -> Vec<Turn> {
    let half = planned.len() / 2;
    let order: Vec<usize> = match &args.vs {
        Some(_) => (0..half).flat_map(|point| [point, half + point]).collect(),
        None => (0..planned.len()).collect(),
    };
    let (mut turns, mut known) = (Vec::new(), HashSet::new());
    for index in order {
        let load = &planned[index].load;
        let reads = (load.read_percent > 0).then_some(Direction::Read);
        // Other ranks may be comparing what they wrote to the same file.
        let writes = (load.writes() && args.one_file.is_none()).then_some(Direction::Write);
        for direction in reads.into_iter().chain(writes) {
            let storage = (load.cache == Cache::Cold).then_some(Turn::Storage(direction));
            let limits = iter::once(Turn::Links(direction)).chain(storage);
            turns.extend(limits.filter(|limit| known.insert(*limit)));
        }
        turns.push(Turn::Row(index));
    }
    if repeat % 2 == 1 {
        turns.reverse();
    }
    turns
}

/// The arguments with the default path, the second path of `--vs`, and `-o -` as `--format json`.
///
/// # Errors
/// There are more paths.
pub(super) fn with_paths(args: &BenchArgs) -> Result<BenchArgs> {
    let mut args = args.clone();
    if args.vs.is_some() && args.paths.len() > 1 {
        let text = format!("`--vs` compares with one path, but there are {}", args.paths.len());
        return Err(Failure::usage(text).hint("name all paths without `--vs`"));
    }
    if args.paths.is_empty() {
        args.paths.push(".".into());
    }
    // As in most programs, that is stdout, which is in a single form.
    if args.output.as_deref() == Some(Path::new("-")) {
        args.output = None;
        args.format = args.format.or(Some(Format::Json));
    }
    args.paths.extend(args.vs.clone());
    Ok(args)
}

/// The seed of a repeat: repeats read at different offsets, and the same run reads at the same
/// ones again.
pub(super) const fn seed_of(seed: u64, repeat: u32) -> u64 {
    seed.wrapping_add((repeat as u64).wrapping_mul(0xD1B5_4A32_D192_ED03))
}

/// Refuses points whose requests do not fit in memory, including the staging memory of GPU
/// transfers.
///
/// # Errors
/// They need too much; the hint says which setting to lower.
pub(super) fn check_memory(planned: &[Planned], targets: &[Together]) -> Result<()> {
    for planned in planned {
        let Planned { point, load, targets: target, .. } = planned;
        let devices = &targets[*target];
        let copies: u64 = devices.iter().map(|device| 1 + u64::from(device.is_some())).sum();
        let threads = point.threads as usize * planned.paths.len();
        let calls = u64::from(load.depth).saturating_mul(threads as u64);
        let bytes = load.call_len().saturating_mul(calls).saturating_mul(copies);
        let parts = [Field::Depth, Field::Threads, Field::Batch].into_iter();
        let parts = parts.filter_map(|field| Some((field.key(), field.number(point)?)));
        let parts = parts.filter(|(_, count)| *count > 1);
        let parts: String =
            parts.map(|(key, count)| format!(", `--{key}` (here {count})")).collect();
        let size = format_size(point.request_size);
        let flag = if planned.whole.is_some() { "--size" } else { "--block-size" };
        check_requests(bytes, &format!("lower `{flag}` (here {size}){parts}"))?;
    }
    Ok(())
}

/// Maximum bytes of a call.
const CALL_MAX: u64 = 1 << 40;

fn check(load: &Load) -> Result<()> {
    if load.call_len() <= CALL_MAX {
        return Ok(());
    }
    let (size, batch) = (format_size(load.request_size), load.batch);
    Err(Failure::usage(format!("a call of {batch} × {size} is too large"))
        .hint(format!("the limit is {}", format_size(CALL_MAX))))
}

fn end(args: &BenchArgs, is_whole: bool) -> End {
    match args.bytes {
        Some(bytes) => End::Bytes(bytes),
        None if is_whole => End::AtLeast(args.time.unwrap_or(WHOLE_TIME)),
        None if !args.kv.is_empty() => End::Time(args.time.unwrap_or(KV_TIME)),
        None => End::Time(args.time.unwrap_or(TIME)),
    }
}

/// The warm-up of points that allow it.
fn warm_up(args: &BenchArgs) -> Duration {
    args.warm_up.unwrap_or(match end(args, false) {
        End::Time(time) | End::AtLeast(time) => time / 10,
        End::Bytes(_) => Duration::ZERO,
    })
}

/// The orders of requests, with their sizes, and the models whose blocks are served.
fn requests(args: &BenchArgs) -> Vec<(Pattern, u64, Option<Model>)> {
    if !args.kv.is_empty() {
        let kv = args.kv.iter().map(|kv| (Pattern::Random, kv.block_len(), Some(*kv)));
        return kv.collect();
    }
    let patterns = given_or(&args.pattern, Pattern::Sequential);
    let sizes = given_or(&args.block_size, BLOCK_SIZE);
    let each = |pattern| sizes.iter().map(move |&size| (pattern, size, None));
    patterns.into_iter().flat_map(each).collect()
}

/// The methods; the engine once per required route.
fn by_route(args: &BenchArgs, methods: &[Method]) -> Vec<Method> {
    let routes = given_or(&args.route, RouteChoice(None));
    let of = |method: &Method| match method {
        Method::Forebay(_) => routes.iter().map(|route| Method::Forebay(route.0)).collect(),
        other => vec![*other],
    };
    methods.iter().flat_map(of).collect()
}

/// The arguments, by which parts of the same run are recognized. `places` are canonical paths,
/// `targets` identify the GPUs.
pub(super) fn request(
    args: &BenchArgs,
    (planned, rounds): (&[Planned], Rounds),
    places: &[String],
    targets: &[String],
) -> Value {
    let host = rustix::system::uname().nodename().to_string_lossy().into_owned();
    let points: Vec<&Point> = planned.iter().map(|planned| &planned.point).collect();
    let is_whole = planned.iter().any(|planned| planned.whole.is_some());
    let largest = planned.iter().filter_map(|planned| planned.whole).max();
    let seconds = |time: Duration| time.as_secs_f64();
    let end = end(args, is_whole);
    json!({
        "points": points,
        "host": host,
        "places": places,
        "targets": targets,
        "label": args.label,
        // Null if time ends the run.
        "repeats": match rounds {
            Rounds::Count(count) => Some(count),
            Rounds::Within(_) => None,
        },
        "methods": args.method.iter().map(|method| method.name()).collect::<Vec<_>>(),
        // A different version, or different limits, would measure something else.
        "version": env!("CARGO_PKG_VERSION"),
        "variables": variables::set(),
        "power_command": args.power_command,
        "time_s": match end {
            End::Time(time) | End::AtLeast(time) => Some(seconds(time)),
            End::Bytes(_) => None,
        },
        "bytes": args.bytes,
        "warm_up_s": seconds(warm_up(args)),
        "size": args.size,
        "rate": args.rate,
        "seed": args.seed.unwrap_or(1),
        "whole_files": is_whole,
        "largest_file": largest,
    })
}

/// A point of requests in a few words.
fn name(point: &Point) -> String {
    let text = |field: Field| field.value(point).unwrap_or_default();
    let route = point.route.as_ref().map_or_else(String::new, |route| format!(" by `{route}`"));
    let mut words = vec![
        format!("{} {}{route}", text(Field::Method), text(Field::Direction)),
        text(Field::Cache),
        format!("{} {}", text(Field::Pattern), text(Field::BlockSize)),
        format!("depth {}", text(Field::Depth)),
    ];
    let more = [Field::Batch, Field::Threads, Field::Files].into_iter();
    let more = more.filter(|field| field.number(point) > Some(1));
    words.extend(more.map(|field| format!("{} {}", field.key(), text(field))));
    words.push(text(Field::Target));
    words.join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn axes(args: &BenchArgs, whole: Option<Vec<u64>>) -> Axes {
        let methods = match args.method.as_slice() {
            [] => vec![Method::Forebay(None)],
            methods => methods.to_vec(),
        };
        let directions = if args.direction.is_empty() { vec![100] } else { args.direction.clone() };
        Axes {
            paths: vec!["/data".into()],
            targets: vec![vec!["host".into()]],
            directions,
            found: Found {
                methods,
                whole,
                piece_max: u64::MAX,
                caches: vec![Caches { cold: true, warm: true, synced: true }],
                ..Found::default()
            },
        }
    }

    fn of(args: &BenchArgs) -> Vec<Planned> {
        points(args, &axes(args, None)).unwrap()
    }

    #[test]
    fn every_value_meets_every_other_once() {
        let args = BenchArgs {
            block_size: vec![4096, 65536],
            depth: vec![1, 2, 4],
            direction: vec![100, 0],
            ..BenchArgs::default()
        };
        let planned = of(&args);
        assert_eq!(planned.len(), 12);
        let depths: Vec<u32> = planned.iter().map(|planned| planned.point.depth).collect();
        assert_eq!(depths[..6], [1, 2, 4, 1, 2, 4], "the last axis is the fastest");
        assert_eq!(planned[0].point.read_percent, 100);
        assert_eq!(planned[11].point.read_percent, 0);
        let mut names: Vec<String> = planned.iter().map(|one| name(&one.point)).collect();
        names.sort();
        names.dedup();
        assert_eq!(names.len(), 12);
    }

    #[test]
    fn whole_files_are_read_warm_and_cold_and_written_cold() {
        let methods = [Plain::Standard, Plain::Mmap].map(Method::Plain);
        let args = BenchArgs {
            method: methods.into_iter().chain([Method::Forebay(None)]).collect(),
            direction: vec![100, 0],
            ..BenchArgs::default()
        };
        assert!(args.moves_whole_files());
        let planned = points(&args, &axes(&args, Some(vec![1 << 30]))).unwrap();
        let reported = planned.iter().map(|one| {
            let point = &one.point;
            (point.read_percent, point.cache.unwrap(), point.method.as_str(), one.load.once)
        });
        let reported: Vec<_> = reported.collect();
        let (warm, cold) = (Cache::Warm, Cache::Cold);
        let three = ["standard", "mmap", "forebay"];
        let expected: Vec<_> = [(100, warm, false), (100, cold, true), (0, cold, true)]
            .into_iter()
            .flat_map(|(percent, cache, once)| three.map(|method| (percent, cache, method, once)))
            .collect();
        assert_eq!(reported, expected);
        let load = &planned[0].load;
        assert_eq!((load.request_size, load.end), (1 << 30, End::AtLeast(WHOLE_TIME)));
    }

    #[test]
    fn each_round_measures_the_limits_of_its_rows() {
        let args = BenchArgs { direction: vec![100, 0], ..BenchArgs::default() };
        let planned = points(&args, &axes(&args, Some(vec![1 << 30]))).unwrap();
        let (read, write) = (Direction::Read, Direction::Write);
        let mut expected = vec![
            Turn::Links(read),
            Turn::Row(0),
            Turn::Storage(read),
            Turn::Row(1),
            Turn::Links(write),
            Turn::Storage(write),
            Turn::Row(2),
        ];
        for repeat in [0, 1, 2, 3] {
            assert_eq!(round(&args, &planned, repeat), expected, "{repeat}");
            expected.reverse();
        }
    }

    #[test]
    fn a_default_run_has_a_time_limit_for_each_path_and_target() {
        let of = |args: &BenchArgs, whole: Option<Vec<u64>>| {
            let paths = vec!["/a".to_owned(), "/b".to_owned()];
            let caches = vec![Caches { cold: true, warm: true, synced: true }; 2];
            let axes = axes(args, whole);
            let axes = Axes { paths, found: Found { caches, ..axes.found }, ..axes };
            rounds(args, &points(args, &axes).unwrap())
        };
        let (usual, whole) = (BenchArgs::default(), Some(vec![1 << 30; 2]));
        assert_eq!(of(&usual, whole.clone()), Rounds::Within(BUDGET * 3));
        assert_eq!(of(&usual, None), Rounds::Count(REPEATS));
        let args = BenchArgs { time: Some(TIME), ..usual.clone() };
        assert_eq!(of(&args, whole.clone()), Rounds::Count(REPEATS));
        let args = BenchArgs { repeats: Some(7), ..usual };
        assert_eq!(of(&args, whole), Rounds::Count(7));
        let [one, two, ten] = [1, 2, 10].map(Duration::from_secs);
        assert_eq!(Rounds::Within(ten).left((two, one), two), Some(ten - two));
        assert_eq!(Rounds::Within(ten).left((ten - one, two), two), None, "it would end too late");
        assert_eq!(Rounds::Within(two).left((ten, Duration::ZERO), two), None);
        assert_eq!(Rounds::Count(3).left((ten, ten), two), Some(two));
    }

    #[test]
    fn each_path_has_the_rows_that_its_file_system_can_have() {
        let drive = Caches { cold: true, warm: true, synced: true };
        let both = [drive, Caches { cold: false, warm: true, synced: false }];
        let states = |vs: Option<&str>| {
            let args = BenchArgs { vs: vs.map(Into::into), ..BenchArgs::default() };
            let paths = vec!["/drive".into(), "/memory".into()];
            let whole = Some(vec![1 << 30; 2]);
            let axes = axes(&args, whole);
            let axes = Axes { paths, found: Found { caches: both.to_vec(), ..axes.found }, ..axes };
            let planned = points(&args, &axes).unwrap();
            planned.into_iter().map(|one| (one.paths, one.load.cache)).collect::<Vec<_>>()
        };
        let (warm, cold) = (Cache::Warm, Cache::Cold);
        let apart = [(vec![0], warm), (vec![0], cold), (vec![1], warm), (vec![0, 1], warm)];
        assert_eq!(states(None), apart);
        assert_eq!(states(Some("/memory")), [(vec![0], warm), (vec![1], warm)]);
    }

    #[test]
    fn large_files_are_moved_in_equal_pieces_and_not_from_a_cache_without_room() {
        let args = BenchArgs::default();
        let (len, piece_max) = (10_u64.pow(12), 3 << 30);
        let caches = vec![Caches { cold: true, warm: false, synced: true }];
        let axes = axes(&args, Some(vec![len]));
        let large = Axes { found: Found { piece_max, caches, ..axes.found }, ..axes };
        let planned = points(&args, &large).unwrap();
        let states: Vec<_> = planned.iter().map(|one| one.point.cache).collect();
        assert_eq!(states, [Some(Cache::Cold)]);
        let one = &planned[0];
        assert_eq!((one.whole, one.needs()), (Some(len), len));
        let piece = one.load.request_size;
        assert!(piece <= piece_max && piece.is_multiple_of(4096), "{piece}");
        let pieces = len / piece;
        assert!(len - pieces * piece <= pieces * 4096, "{pieces} of {piece}");
        assert!(one.load.once, "each piece once");
        assert_eq!(super::piece(12345, 1 << 20), 12345);
    }

    #[test]
    fn several_paths_are_measured_alone_and_at_once() {
        let args = BenchArgs {
            method: vec![Method::Forebay(None), Method::Plain(Plain::Mmap)],
            cache: vec![Cache::Cold],
            ..BenchArgs::default()
        };
        let whole = Some(vec![3 << 30, 1 << 30]);
        let two = Axes { paths: vec!["/a".into(), "/b".into()], ..axes(&args, whole) };
        let planned = points(&args, &two).unwrap();
        let reported: Vec<_> = planned
            .iter()
            .map(|one| (one.point.path.as_str(), one.point.method.as_str()))
            .collect();
        let expected = [
            ("/a", "forebay"),
            ("/a", "mmap"),
            ("/b", "forebay"),
            ("/b", "mmap"),
            // A mapping is copied by one thread.
            ("/a + /b", "forebay"),
        ];
        assert_eq!(reported, expected);
        assert_eq!(planned[4].paths, [0, 1]);
        let vs = BenchArgs { vs: Some("/b".into()), ..args };
        assert!(points(&vs, &two).unwrap().iter().all(|one| one.paths.len() == 1));
        let rows = |args: &BenchArgs, repeat| {
            let planned: Vec<Planned> = iter::repeat_n(planned[0].clone(), 6).collect();
            let turns = round(args, &planned, repeat);
            turns.iter().filter_map(Turn::row).collect::<Vec<_>>()
        };
        assert_eq!(rows(&vs, 0), [0, 3, 1, 4, 2, 5]);
        assert_eq!(rows(&vs, 1), [5, 2, 4, 1, 3, 0]);
        assert_eq!(rows(&BenchArgs::default(), 1), [5, 4, 3, 2, 1, 0]);
    }

    #[test]
    fn points_that_a_method_cannot_run_are_left_out() {
        let args = BenchArgs {
            method: vec![Method::Plain(Plain::Mmap)],
            threads: vec![1, 2],
            block_size: vec![4096],
            ..BenchArgs::default()
        };
        assert!(of(&args).iter().all(|one| one.point.threads == 1));
        let args = BenchArgs { threads: vec![2], ..args };
        let failure = points(&args, &axes(&args, None)).unwrap_err();
        assert!(failure.usage && failure.hint.unwrap().contains("`mmap`"));
    }

    #[test]
    fn a_second_path_is_added_to_one_path() {
        let with = |paths: &[&str], vs: &str| {
            let paths = paths.iter().map(Into::into).collect();
            with_paths(&BenchArgs { paths, vs: Some(vs.into()), ..BenchArgs::default() })
        };
        assert_eq!(with(&[], "/").unwrap().paths, [".", "/"].map(std::path::PathBuf::from));
        assert!(with(&["/a", "/b"], "/c").unwrap_err().usage);
    }

    #[test]
    fn most_plain_ways_have_one_depth() {
        let args = BenchArgs {
            block_size: vec![4096],
            depth: vec![1, 8],
            method: [Plain::CpuGpu, Plain::Uring].map(Method::Plain).into(),
            ..BenchArgs::default()
        };
        let planned = of(&args);
        let reported: Vec<_> =
            planned.iter().map(|p| (p.point.method.as_str(), p.point.depth)).collect();
        assert_eq!(reported, [("cpu-gpu", 1), ("io-uring", 1), ("io-uring", 8)]);
    }

    /// A method that copies during the next request has memory for two requests, and is compared
    /// with the others at their depth.
    #[test]
    fn plain_ways_are_compared_at_one_depth() {
        use crate::report::compare::compare;
        use crate::report::made::{self, Sweep};
        use crate::report::model::Axis;
        use crate::report::model::gather::tests::model_of;
        let args = BenchArgs {
            block_size: vec![4096, 65536],
            depth: vec![1],
            method: [Plain::CpuGpu, Plain::CpuAsyncGpu].map(Method::Plain).into(),
            ..BenchArgs::default()
        };
        let planned = of(&args);
        let places: Vec<u32> = planned.iter().map(|one| one.load.depth).collect();
        assert_eq!(places, [1, 1, 2, 2]);
        let sweep = Sweep { request_sizes: vec![4096], depths: vec![1], ..Sweep::default() };
        let mut records = vec![made::run(&sweep)];
        for one in &planned {
            records.extend(made::samples(&sweep).into_iter().map(|mut sample| {
                sample["point"] = json!(one.point);
                sample
            }));
        }
        let model = model_of(&[("a", &made::text(&records))]);
        let found = compare(&model, &[], Some(Axis::Method), Some("cpu-gpu")).unwrap();
        assert_eq!((found[0].other.as_str(), found[0].pairs.len()), ("cpu-async-gpu", 2));
        assert!(found[0].alone.is_empty() && found[0].axes.is_empty(), "{found:?}");
    }

    #[test]
    fn cold_loads_through_the_page_cache_read_files_once() {
        let args = BenchArgs {
            block_size: vec![4096],
            depth: vec![1],
            method: vec![Method::Forebay(None), Method::Plain(Plain::CpuCachedGpu)],
            direction: vec![100, 0],
            cache: vec![Cache::Cold, Cache::Warm],
            ..BenchArgs::default()
        };
        for planned in of(&args) {
            let (point, load) = (&planned.point, &planned.load);
            let through = point.read_percent == 0 || point.method == "cpu-cached-gpu";
            assert_eq!(load.once, point.cache == Some(Cache::Cold) && through, "{point:?}");
            assert_eq!(load.warm_up.is_zero(), load.once, "{point:?}");
        }
    }

    #[test]
    fn absurd_runs_are_refused() {
        let many: Vec<u32> = (1..=400).collect();
        let args = BenchArgs { depth: many.clone(), threads: many, ..BenchArgs::default() };
        let failure = points(&args, &axes(&args, None)).unwrap_err();
        assert!(failure.usage && failure.message.starts_with("160000 points"), "{failure:?}");
        let args = BenchArgs { block_size: vec![u64::MAX], ..BenchArgs::default() };
        let failure = points(&args, &axes(&args, None)).unwrap_err();
        assert!(failure.usage && failure.message.contains("too large"), "{failure:?}");
    }

    #[test]
    fn requests_of_different_runs_differ() {
        let paths = ["/data".to_owned()];
        let request_of = |args: &BenchArgs| {
            let planned = of(args);
            request(args, (&planned, rounds(args, &planned)), &paths, &[])
        };
        let usual = request_of(&BenchArgs::default());
        assert_eq!(
            usual,
            request_of(&BenchArgs { format: Some(Format::Json), ..BenchArgs::default() })
        );
        for other in [
            BenchArgs { repeats: Some(3), ..BenchArgs::default() },
            BenchArgs { time: Some(Duration::from_secs(2)), ..BenchArgs::default() },
            BenchArgs { seed: Some(2), ..BenchArgs::default() },
            BenchArgs { batch: vec![4], ..BenchArgs::default() },
            BenchArgs { label: Some("after".into()), ..BenchArgs::default() },
            BenchArgs { warm_up: Some(Duration::ZERO), ..BenchArgs::default() },
            BenchArgs { power_command: Some("true".into()), ..BenchArgs::default() },
        ] {
            assert_ne!(usual, request_of(&other), "{other:?}");
        }
        let args = BenchArgs::default();
        let planned = of(&args);
        let points = (planned.as_slice(), rounds(&args, &planned));
        assert_ne!(usual, request(&args, points, &["/elsewhere".into()], &[]));
        assert_ne!(usual, request(&args, points, &paths, &["GPU-2".into()]));
    }

    /// A file is only recognized as part of the same run if all digits of a time are preserved.
    #[test]
    fn a_request_is_the_same_after_reading_it_back() {
        let paths = ["/data".to_owned()];
        for ms in (1..3000).chain([14_230, 86_399_999]) {
            let time = Some(Duration::from_millis(ms));
            let rate = time.map(|time| 1e3 / time.as_secs_f64());
            let args = BenchArgs { time, rate, block_size: vec![4096], ..BenchArgs::default() };
            let planned = of(&args);
            let first = request(&args, (&planned, Rounds::Count(3)), &paths, &[]);
            let back: Value = serde_json::from_str(&first.to_string()).unwrap();
            assert_eq!(back, first, "{ms} ms");
        }
    }
}
