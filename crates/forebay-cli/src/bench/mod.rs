//! `forebay bench`: methods, whole files or requests of any size, paths and GPUs, measured in turns
//! and verified.
//!
//! The values of every axis are arguments. `plan` turns them into points, `files` and `targets`
//! find the files and GPUs, `limits` measures the limits of the machine.
//! [`workload`](forebay_measure::workload) measures, and [`results`](forebay_measure::results)
//! stores every measurement immediately. `report` shows them.

pub mod args;
pub(crate) mod files;
pub mod limits;
mod plan;
mod print;
pub mod queues;
mod ranks;
mod state;
mod targets;

use std::collections::{HashMap, HashSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use anstream::adapter::strip_str;
use anstream::{AutoStream, ColorChoice};
use forebay::Engine;
use forebay::gpu::DeviceInfo;
use forebay::units::{MIB, align_down, format_size};
use forebay_measure::cache::{FileFrom, make_cold, make_resident};
use forebay_measure::cleanup::{self, Progress};
use forebay_measure::failure::{Failure, Result};
use forebay_measure::kv::{Served, Shape};
use forebay_measure::make::Room;
use forebay_measure::power::{Meter, Wanted};
use forebay_measure::program::Program;
use forebay_measure::ranks::total;
use forebay_measure::results::file::{Ledger, samples};
use forebay_measure::results::machine::Environment;
use forebay_measure::results::{Cache, Direction};
use forebay_measure::results::{Measured, Point, Record, Run, SCHEMA, Sample};
use forebay_measure::stats::{Spread, float};
use forebay_measure::stdio::message;
use forebay_measure::steps::{self, Step};
use forebay_measure::workload::backend::{Method, Plain, Pool};
use forebay_measure::workload::measure::Measurer;
use forebay_measure::workload::run::{Ran, Ready};
use forebay_measure::workload::{End, Lane, Load};
use forebay_measure::{drive, environment, held, subject};
use forebay_topology::{Resolver, StorageMap};
use indicatif::{ProgressBar, ProgressStyle};
use serde_json::{Value, json};

use self::args::BenchArgs;
use self::files::Place;
use self::plan::{Axes, Caches, Found, Planned, Rounds, Turn};
pub(crate) use self::print::show;
pub(crate) use self::ranks::Joined;
use self::state::Opened;
use self::targets::Together;
use crate::log;
use crate::map::look::Look;
use crate::map::{self, rows};
use crate::report::bars;
use crate::report::grid::WIDTH;
use crate::report::model::{Line, Metric, NO_TIME};
use crate::report::numbers::counted;
use crate::report::ratio::SAMPLES_MIN;

/// Bytes read to find out if a route is available.
pub(crate) const TRY_LEN: u64 = MIB;
/// Interval of the progress bar's steps.
const TICK: Duration = Duration::from_millis(100);
/// Interval of lines in a log, which is no terminal.
const LOG_TICK: Duration = Duration::from_secs(8);
/// The first part of scratch, which shows how fast the storage is.
const FIRST_LEN: u64 = 64 * MIB;
/// Minimum seconds to move a whole file from storage and over a link: calls start within about
/// 1 ms.
const STORAGE_SECONDS: f64 = 0.05;
const LINK_SECONDS: f64 = 0.008;
/// Maximum seconds at the slowest limit, so that there is time for many samples.
const SLOWEST_SECONDS: f64 = 0.2;
/// Bounds of the default size of whole files.
const WHOLE_LEN: (u64, u64) = (MIB, 1024 * MIB);
/// Time of warm-ups after which no further method is warmed up.
const WARM_UP_MAX: Duration = Duration::from_secs(5);
/// Half of a row's interval, as a share of its median, at which a default run may end.
const PRECISE: f64 = 0.02;
/// Maximum time from the time limit to the end: the last sample, and the removal of scratch.
const END_MAX: Duration = Duration::from_secs(6);
/// Records up to which the results so far are shown.
const SHOWN_MAX: usize = 300;
/// The share by which the span of all ranks may be longer than that of a rank.
const LONGER_MAX: f64 = 0.1;
/// The share of cold reads that storage delivers at least.
const FETCHED_MIN: f64 = 0.9;
/// Default capacity of a block store.
const KV_SIZE: u64 = 4 << 30;
/// Blocks of the served turns that were stored before, in hundredths: the mix of loads and stores
/// of a store that never forgets.
const KV_LOADS: u8 = 40;

/// Runs the verb.
pub(crate) fn command(args: &BenchArgs, command: &str, program: &Program) -> Result<()> {
    let mut args = plan::with_paths(args)?;
    state::check_name(args.output.as_deref())?;
    let joined = Joined::meet(&mut args)?;
    let measured = measure(&mut args, &joined, program, command);
    let records = measured.inspect_err(|failure| joined.fail(failure))?;
    // Rank 0 shows the results of all.
    if joined.is_first() { show(&args, &records) } else { Ok(()) }
}

fn measure(
    args: &mut BenchArgs,
    joined: &Joined,
    program: &Program,
    command: &str,
) -> Result<Vec<Record>> {
    let engine = Engine::new(program.engine_options()?)?;
    joined.set_gpu(args, &engine);
    let mut bench = Bench::new(args, engine, (None, joined), program, command)?;
    bench.share_files()?;
    bench.run()
}

/// A run in progress.
pub(crate) struct Bench<'a> {
    args: &'a BenchArgs,
    begun: Instant,
    engine: Engine,
    pool: Arc<Pool>,
    is_whole: bool,
    planned: Vec<Planned>,
    targets: Vec<Together>,
    /// The measurers, in the order of the axis of targets.
    measurers: Vec<Measurer>,
    places: Vec<Place>,
    /// `None` if results are only shown.
    ledger: Option<Ledger>,
    records: Vec<Record>,
    meter: Meter,
    resolver: Resolver,
    /// The storage maps of the paths.
    maps: Vec<StorageMap>,
    /// The queue depth at which the storage of a path was the fastest, by direction.
    storage_depths: HashMap<(usize, Direction), u32>,
    /// What the points are made from.
    axes: Axes,
    /// The block stores of points, by their number. They stay full between samples.
    served: HashMap<usize, Served>,
    /// The other ranks of this run.
    joined: &'a Joined,
    /// How long planning and preparing took.
    planned_after: Duration,
}

impl<'a> Bench<'a> {
    /// Finds the GPUs, and the files where they are not those of `place`, and plans the points,
    /// with other ranks if there are some.
    ///
    /// # Errors
    /// Contradictory arguments; system errors.
    pub(crate) fn new(
        args: &'a BenchArgs,
        engine: Engine,
        (place, joined): (Option<Place>, &'a Joined),
        program: &Program,
        command: &'a str,
    ) -> Result<Self> {
        let begun = Instant::now();
        let (targets, mut warnings) = targets::find(&engine, args)?;
        let paths = &args.paths;
        check_paths(args)?;
        let pool = Arc::new(Pool::new(program));
        let measurers = Measurer::all(&engine, &targets, &pool, args.compared);
        let is_whole = args.moves_whole_files();
        let methods = methods(args, &engine, &targets, &mut warnings);
        let directions = directions(args, paths, is_whole);
        let find = |path: &PathBuf| Place::find(&engine, path, args, &directions);
        let places =
            place.map_or_else(|| paths.iter().map(find).collect(), |place| Ok(vec![place]))?;
        let resolver = Resolver::default();
        let gpus = targets::gpus(&targets).map(|gpu| gpu.info().clone()).collect();
        let power = Wanted { command: args.power_command.clone(), gpus, ..Wanted::default() };
        let meter = Meter::begin(&power)?;
        let device = targets::gpus(&targets).next().map(|gpu| gpu.info());
        let environment = environment::collect(&paths[0], device, command);
        let maps = maps(&resolver, paths);
        let axes = Axes {
            paths: paths.iter().map(|path| path.display().to_string()).collect(),
            targets: measurers.iter().map(|one| one.targets().to_vec()).collect(),
            directions,
            found: Found {
                methods,
                is_limited: vec![true; paths.len()],
                piece_max: u64::MAX,
                kv_capacity: args.size,
                ..Found::default()
            },
        };
        let mut bench = Self {
            args,
            begun,
            engine,
            pool,
            is_whole,
            planned: Vec::new(),
            targets,
            measurers,
            places,
            ledger: None,
            records: Vec::new(),
            meter,
            resolver,
            maps,
            storage_depths: HashMap::new(),
            axes,
            served: HashMap::new(),
            joined,
            planned_after: Duration::ZERO,
        };
        let opened = joined.opened(args.output.as_deref().map(state::open).transpose()?)?;
        let recorded = opened.as_ref().and_then(|opened| opened.request.clone());
        let recorded = recorded.as_deref();
        let doubts = match recorded.and_then(|request| Found::of(request, paths.len())) {
            Some(found) => bench.plan_again(found)?,
            None => bench.find(&mut warnings)?,
        };
        bench.plan()?;
        bench.plan_stores(&mut warnings)?;
        warnings.extend(bench.apart());
        let request = bench.request(recorded);
        bench.begin_results(environment, request, opened)?;
        doubts.into_iter().try_for_each(|text| bench.note(Record::Doubt { text }))?;
        warnings.extend(bench.meter.warnings());
        warnings.into_iter().try_for_each(|text| bench.warn(text))?;
        Ok(bench)
    }

    /// Finds what the plan follows from; returns the doubts on rows.
    fn find(&mut self, warnings: &mut Vec<String>) -> Result<Vec<String>> {
        let mut doubts = self.judge_rows()?;
        self.joined.common(&mut self.axes, &self.args.paths)?;
        if !self.is_whole {
            return Ok(doubts);
        }
        if self.args.size.is_none() {
            let first = self.axes.first_direction();
            if self.axes.found.caches.iter().any(|it| it.cold) {
                self.storage(first)?;
            }
            self.links(first, &|_| ())?;
        }
        self.find_lens(warnings, &mut doubts).map(|()| doubts)
    }

    /// Plans the rest of an earlier run from its findings. Its file holds the doubts.
    ///
    /// # Errors
    /// A file is shorter now; the plan of a rank differs.
    fn plan_again(&mut self, found: Found) -> Result<Vec<String>> {
        self.joined.common(&mut self.axes, &self.args.paths)?;
        for (place, (had, path)) in self.places.iter().zip(found.lens.iter().zip(&self.axes.paths))
        {
            if place.own_len() < *had {
                let (len, had) = (format_size(place.len), format_size(*had));
                return Err(Failure::new(format!("cannot continue to read `{path}`"))
                    .because(format!("the samples so far are of {had}, and it has {len} now"))
                    .hint("restore the file, or name another results file with `-o`"));
            }
        }
        found.whole.iter().for_each(|lens| self.shorten(lens));
        self.axes.found = found;
        Ok(Vec::new())
    }

    /// Makes the points, and checks that there is space for their bytes.
    fn plan(&mut self) -> Result<()> {
        self.planned = plan::points(self.args, &self.axes)?;
        plan::check_memory(&self.planned, &self.targets)?;
        for (index, place) in self.places.iter_mut().enumerate() {
            let own = self.planned.iter().filter(|one| one.paths.contains(&index));
            place.fit(self.args, &own.collect::<Vec<_>>())?;
        }
        Ok(())
    }

    /// Finds the bytes of whole files by path: `--size`, or as many as the rates of storage and
    /// links require.
    fn find_lens(&mut self, warnings: &mut Vec<String>, doubts: &mut Vec<String>) -> Result<()> {
        let free = targets::gpus(&self.targets).filter_map(|gpu| gpu.memory().ok());
        let on_gpu = free.map(|(free, _)| free / 4).min().unwrap_or(u64::MAX);
        let memory = environment::memory();
        let fits = on_gpu.min(memory.available / 8) / self.places.len() as u64;
        let ranks = u64::from(self.joined.local_size());
        let [fits, available] = self.joined.least([fits / ranks, memory.available / ranks])?;
        let (mut lens, mut parts) = (Vec::new(), Vec::new());
        let stripes = self.args.stripe.map_or(1, |(_, of)| u64::from(of));
        for (place, path) in self.places.iter().zip(&self.axes.paths) {
            let (whole, room) = match place.is_scratch() {
                true => (u64::MAX, Room::of(&place.folder)?.usable() / 4 / self.ranks()),
                false => (place.len, u64::MAX),
            };
            let usual = self.timely(path).min(fits).min(room).max(64 << 10).min(whole);
            let usual = match self.joined.least([usual, whole])? {
                // Ranks read a file whole, in parts or in full.
                [_, whole] if whole < u64::MAX && !self.joined.is_alone() => whole,
                [usual, _] => usual.saturating_mul(stripes),
            };
            let len = self.args.size.unwrap_or(usual);
            let (shown, have) = (format_size(len), format_size(whole));
            if len > whole {
                return Err(Failure::new(format!("cannot read {shown} of `{path}`"))
                    .because(format!("it has {have}"))
                    .hint(format!("`--size {whole}` reads all of it")));
            }
            if self.args.size.is_none() && !place.is_scratch() && len < whole {
                parts.push(format!(
                    "only the first {shown} of `{path}` are read, to save time; `--size {whole}` \
                     reads all {have}"
                ));
            }
            // A rank moves its stripe.
            lens.push(match stripes {
                1 => len,
                of => align_down(len / of, files::ALIGN).max(1),
            });
        }
        if !parts.is_empty() && self.joined.is_alone() {
            // What was found so far was of more bytes.
            self.shorten(&lens);
            self.records.clear();
            self.axes.found.caches.clear();
            *doubts = self.judge_rows()?;
        }
        doubts.extend(parts);
        self.fit_memory((&lens, fits, available), warnings);
        self.axes.found.whole = Some(lens);
        Ok(())
    }

    /// Moves files in pieces that fit in memory, and omits warm rows of files that do not fit in
    /// the page cache.
    fn fit_memory(
        &mut self,
        (lens, fits, available): (&[u64], u64, u64),
        warnings: &mut Vec<String>,
    ) {
        let Axes { targets, found, .. } = &mut self.axes;
        let largest = lens.iter().copied().max().unwrap_or(0);
        let targets = targets.iter().map(Vec::len).max().unwrap_or(1).max(1) as u64;
        found.piece_max = fits / targets;
        let piece = plan::piece(largest / targets, found.piece_max);
        if piece < largest / targets {
            let (large, piece) = (format_size(largest), format_size(piece));
            warnings.push(format!("a file of {large} is moved in pieces of {piece}"));
        }
        let fits = largest <= available / 2;
        let may_be = found.caches.iter().any(|it| it.cold && it.warm);
        if may_be && !fits && self.args.cache.is_empty() {
            let (large, free) = (format_size(largest), format_size(available));
            warnings.push(format!(
                "no row is warm: the page cache has no room for {large} ({free} of memory are \
                 available)"
            ));
        }
        found.caches.iter_mut().for_each(|it| it.warm &= fits);
    }

    /// Limits the bytes used of the user's files.
    fn shorten(&mut self, lens: &[u64]) {
        let own = self.places.iter_mut().zip(lens).filter(|(place, _)| !place.is_scratch());
        own.filter(|_| self.args.stripe.is_none())
            .for_each(|(place, len)| place.len = place.len.min(*len));
    }

    /// The bytes of a file that storage and links move in time.
    fn timely(&self, path: &str) -> u64 {
        let rate = |name: &str, of: &str| self.own_rate(name, of, self.axes.first_direction());
        let links = self.axes.targets.iter().flatten().filter_map(|target| rate("link", target));
        whole_len(rate("storage", path), links)
    }

    /// Finds the rows and limits that are impossible on a path, and returns why.
    ///
    /// # Errors
    /// `--cache cold` requires such a row.
    fn judge_rows(&mut self) -> Result<Vec<String>> {
        let mut doubts = Vec::new();
        let cold = self.has_cold_rows();
        let any =
            |is: fn(u8) -> bool| cold && self.axes.directions.iter().any(|percent| is(*percent));
        let (reads, writes) = (any(|percent| percent > 0), any(|percent| percent < 100));
        // By default, whole files are no longer, but ranks read a file whole.
        let is_part = self.is_whole && self.joined.is_alone();
        let most = if is_part { WHOLE_LEN.1 } else { u64::MAX };
        // More ranks of a host would find the same, and see the pages that this rank reads.
        let probes = self.joined.is_first_of_host();
        for (index, (place, path)) in self.places.iter().zip(&self.axes.paths).enumerate() {
            let map = &self.maps[index];
            let _step = Step::begin("inspect", &map.path);
            let len = self.args.size.unwrap_or(most).min(place.len);
            let is_file = place.is_scratch() || map.root.number("size_bytes").is_some();
            let folder = Some(place.folder.as_path()).filter(|_| is_file && writes && probes);
            let rows = rows::judge(&self.resolver, map, 0..len, folder);
            let caches =
                Caches { cold: rows.no_cold.is_none(), warm: true, synced: rows.no_sync.is_none() };
            self.axes.found.is_limited[index] = caches.cold && rows.unstored.is_empty();
            self.axes.found.caches.push(caches);
            let absent = [
                (reads, rows.no_cold, "no cold rows and no storage limit for", "while it is cold"),
                (writes && caches.cold, rows.no_sync, "no synced writes to", "with synced writes"),
            ];
            for (_, why, without, how) in absent.into_iter().filter(|(is_wanted, ..)| *is_wanted) {
                let Some(why) = why else { continue };
                if !self.args.cache.is_empty() {
                    return Err(Failure::new(format!("cannot measure `{path}` {how}"))
                        .because(why)
                        .hint("name a path on a drive, or give `--cache warm`"));
                }
                doubts.push(format!("{without} `{path}`: {why}; give a path on a drive"));
            }
            let unstored = rows.unstored.iter().map(|text| format!("no storage limit: {text}"));
            doubts.extend(rows.cold.into_iter().chain(unstored).filter(|_| reads && caches.cold));
            doubts.extend(rows.synced.into_iter().filter(|_| writes && caches.synced));
        }
        if probes {
            self.try_caches(&mut doubts)?;
        }
        Ok(doubts)
    }

    /// Whether rows are cold unless their storage cannot be.
    fn has_cold_rows(&self) -> bool {
        let given = &self.args.cache;
        self.args.kv.is_empty() && (given.is_empty() || given.contains(&Cache::Cold))
    }

    /// Tries which states of the page cache are possible for the files of a path, unless a flag
    /// names the rows, and whether O_DIRECT reads the storage.
    fn try_caches(&mut self, doubts: &mut Vec<String>) -> Result<()> {
        let direction = self.axes.first_direction();
        let (is_default, has_cold) = (self.args.cache.is_empty(), self.has_cold_rows());
        let Found { caches, is_limited, .. } = &mut self.axes.found;
        for (index, (caches, is_limited)) in caches.iter_mut().zip(is_limited).enumerate() {
            let (place, name) = (&mut self.places[index], &self.axes.paths[index]);
            if !has_cold || !caches.cold {
                continue;
            }
            if place.is_scratch() {
                place.fill_first(MIB)?;
            }
            let len = place.len.min(MIB);
            let path = place.file_of(direction).expect("there is one");
            let file = steps::open(&self.engine, path)?;
            let pages = FileFrom(&file, 0);
            let cold = make_cold(&pages, len)?;
            if cold.is_ok() && drive::direct_is_cached(path, &pages) {
                *is_limited = false;
                doubts.push(format!(
                    "no storage limit for `{name}`: the kernel serves O_DIRECT from the page \
                     cache; rows of `cpu`, `cpu-gpu` and `io-uring` are not cold"
                ));
            }
            match cold {
                _ if !is_default => {}
                Err(reason) => {
                    doubts.push(format!("no row is cold on `{name}`: {reason}"));
                    (caches.cold, caches.synced, *is_limited) = (false, false, false);
                }
                Ok(()) => {
                    if let Err(reason) = make_resident(path, &pages, len)? {
                        doubts.push(format!("no row is warm on `{name}`: {reason}"));
                        caches.warm = false;
                    }
                }
            }
            if place.is_scratch() {
                place.len = 0;
            }
        }
        Ok(())
    }

    /// Appends the record of the run to the results file.
    fn begin_results(
        &mut self,
        environment: Environment,
        request: Value,
        opened: Option<Opened>,
    ) -> Result<()> {
        let gpus = targets::gpus(&self.targets).map(|gpu| environment::gpu(gpu.info())).collect();
        let (ranks, gpus) = self.joined.machines(gpus)?;
        if let Some(Opened { ledger: Some(ledger), request: Some(recorded), .. }) = &opened {
            state::check(ledger.path(), recorded, &request)?;
        }
        let run = Run {
            schema: SCHEMA,
            verb: "bench".into(),
            label: self.args.label.clone(),
            environment,
            gpus,
            unmetered: self.meter.absent().to_vec(),
            ranks,
            request: request.into(),
            imported: None,
        };
        let early = std::mem::take(&mut self.records);
        let run = Record::Run(Box::new(run));
        if let Some(mut opened) = opened {
            opened.ledger.iter_mut().try_for_each(|ledger| ledger.append(&run))?;
            (self.ledger, self.records) = (opened.ledger, opened.records);
        }
        self.records.push(run);
        early.into_iter().try_for_each(|record| self.note(record))
    }

    /// The arguments and findings, by which parts of the same run are recognized. A continued run
    /// keeps what was `recorded`.
    fn request(&self, recorded: Option<&Value>) -> Value {
        let rounds = plan::rounds(self.args, &self.planned);
        let identities: Vec<String> =
            targets::gpus(&self.targets).map(|gpu| identity(gpu.info())).collect();
        let mut request =
            plan::request(self.args, (&self.planned, rounds), &real(&self.args.paths), &identities);
        request["queues"] = queues::described(&self.maps).into();
        let lens = self.places.iter().map(Place::own_len).collect();
        let found = json!(Found { lens, ..self.axes.found.clone() });
        request["found"] =
            recorded.and_then(|recorded| recorded.get("found")).cloned().unwrap_or(found);
        request["ranks"] = self.joined.size().into();
        request
    }

    /// The warnings on GPUs and drives on different sockets.
    fn apart(&self) -> Vec<String> {
        let paths = &self.args.paths;
        let _step = Step::begin("inspect", &paths[0]);
        let gpus = targets::gpus(&self.targets).map(|gpu| gpu.info().pci_address.as_str());
        let gpus: Vec<&str> = gpus.filter(|address| !address.is_empty()).collect();
        map::between_sockets(&self.resolver, paths, &gpus)
    }

    /// Stores a record, first on the drive.
    fn note(&mut self, record: Record) -> Result<()> {
        if let Some(ledger) = &mut self.ledger {
            ledger.append(&record)?;
            ledger.sync()?;
        }
        self.records.push(record);
        Ok(())
    }

    /// Measures all points; returns the records.
    ///
    /// # Errors
    /// System errors, and those of a required route. A sample that fails is a record.
    pub(crate) fn run(&mut self) -> Result<Vec<Record>> {
        // The samples of a part of the same run.
        let kept = samples(&self.records).map(|(_, sample)| sample).filter(|one| one.is_good());
        let kept: HashSet<(Point, u32)> =
            kept.map(|sample| (sample.point.clone(), sample.repeat)).collect();
        let rounds = plan::rounds(self.args, &self.planned);
        let most = rounds.most();
        let all = self.planned.len() * most as usize;
        let mut done = kept.len();
        self.announce(done, rounds);
        if done >= all {
            return self.finish();
        }
        // Of several ranks only the first shows its progress.
        let bar = progress(all as u64, self.args.quiet || !self.joined.is_first());
        bar.set_position(done as u64);
        self.show_progress(done, rounds, &bar);
        self.make_scratch(&bar)?;
        let mut warmed = self.warm_required(&bar)?;
        self.planned_after = self.begun.elapsed();
        let (mut failed, mut rated, mut slowest) = (HashSet::new(), HashSet::new(), Duration::ZERO);
        samples(&self.records).for_each(|(_, sample)| _ = ends_row(sample, &mut rated));
        // The duration of every point with its preparation: at first a guess.
        let mut takes: Vec<Duration> = self.planned.iter().map(|one| one.time() * 3 / 2).collect();
        'rounds: for repeat in 0..most {
            let is_kept = |one: &Planned| kept.contains(&(one.point.clone(), repeat));
            if self.planned.iter().all(is_kept) {
                continue;
            }
            let may_end = matches!(rounds, Rounds::Within(_)) && repeat >= plan::PRECISE_ROUNDS;
            if may_end && self.is_precise() {
                break;
            }
            let turns = plan::round(self.args, &self.planned, repeat);
            for (position, turn) in turns.iter().enumerate() {
                let rest = turns[position..].iter().filter_map(Turn::row);
                let rest = rest.map(|index| takes[index]).sum::<Duration>()
                    + takes.iter().sum::<Duration>() * (most - repeat - 1);
                let round = repeat + 1;
                let say = |what: &str, left: Duration| {
                    let left = left.as_secs().max(1);
                    bar.set_message(format!("round {round} of {most}: {what}, {left} s left"));
                };
                let Some(index) = turn.row() else {
                    let left = rounds.left((self.begun.elapsed(), Duration::ZERO), rest);
                    self.limit(*turn, &|what| say(what, left.unwrap_or_default()))?;
                    continue;
                };
                // A row that failed, or was never long enough, stays so.
                let skips = self.is_whole && failed.contains(&index);
                if is_kept(&self.planned[index]) || skips {
                    continue;
                }
                // The first sample of a point also shows its duration.
                let needs = if repeat == 0 { slowest } else { takes[index] };
                let left = rounds.left((self.begun.elapsed(), needs), rest);
                let left = self.joined.decided("time", left)?;
                let Some(left) = left else { break 'rounds };
                self.warm(index, &mut warmed, &bar)?;
                say(&self.planned[index].name(), left);
                bar.tick();
                let begun = Instant::now();
                let sample = self.sample(index, repeat, &bar)?;
                takes[index] = begun.elapsed();
                slowest = slowest.max(takes[index]);
                done += usize::from(sample.is_good());
                if ends_row(&sample, &mut rated) {
                    failed.insert(index);
                }
                self.note(Record::Sample(Box::new(sample)))?;
                bar.inc(1);
                self.show_progress(done, rounds, &bar);
            }
        }
        bar.finish_and_clear();
        self.finish()
    }

    /// Measures the limits of a turn.
    fn limit(&mut self, turn: Turn, say: &dyn Fn(&str)) -> Result<()> {
        match turn {
            Turn::Row(_) => Ok(()),
            Turn::Links(direction) => self.links(direction, say),
            Turn::Storage(direction) => {
                say("measuring the storage");
                self.storage(direction)
            }
        }
    }

    /// Ends a run: notes what it lacks, and returns its records.
    fn finish(&mut self) -> Result<Vec<Record>> {
        cleanup::set_progress(None);
        self.notes()?.into_iter().try_for_each(|text| self.warn(text))?;
        self.ledger.take().map_or(Ok(()), Ledger::finish)?;
        Ok(std::mem::take(&mut self.records))
    }

    /// Whether every row is as precise as a default run needs.
    fn is_precise(&self) -> bool {
        let deviation = |line: &Line| line.estimate(Metric::Rate)?.deviation();
        let model = bars::model(&self.records);
        model.lines.iter().all(|line| deviation(line).is_none_or(|half| half <= PRECISE))
    }

    /// The rows without a sample.
    fn missing(&self) -> Option<String> {
        let known: HashSet<&Point> = samples(&self.records).map(|(_, one)| &one.point).collect();
        let missing = self.planned.iter().filter(|one| !known.contains(&one.point));
        let missing: Vec<String> = missing.map(Planned::name).collect();
        (!missing.is_empty()).then(|| missing.join("; "))
    }

    /// The rows for which the time was too short, in a sentence.
    fn unmeasured(&self) -> Option<String> {
        let text = |names: String| format!("{NO_TIME} {names}; `--repeats 3` measures every row");
        self.missing().map(text)
    }

    /// Why the time limit ended a run with fewer than three samples of a row, in a sentence.
    fn few(&self) -> Option<String> {
        let Rounds::Within(time) = plan::rounds(self.args, &self.planned) else { return None };
        if !self.joined.is_first() {
            return None;
        }
        let count = |one: &Planned| {
            samples(&self.records).filter(|(_, sample)| sample.point == one.point).count()
        };
        let is_few = self.planned.iter().any(|one| (1..SAMPLES_MIN).contains(&count(one)));
        let cores = thread::available_parallelism().map_or(1, usize::from);
        let ranks = self.joined.local_size() as usize;
        let shared = match ranks > cores {
            true => format!(", and {ranks} ranks share {}", counted(cores, "processor")),
            false => String::new(),
        };
        let (time, first) = (time.as_secs(), self.planned_after.as_secs_f64());
        is_few.then(|| {
            format!("fewer than three rounds in {time} s: planning took {first:.1} s{shared}")
        })
    }

    /// The rows in which ranks moved bytes for different times, in a sentence.
    fn uneven(&self) -> Option<String> {
        let is_uneven = |planned: &&Planned| {
            let own = samples(&self.records).filter(|(_, one)| one.point == planned.point);
            let longer = own.filter_map(|(_, one)| total::longer(one.measured.as_ref()?));
            Spread::of(longer).is_some_and(|all| !self.joined.is_alone() && all.median > LONGER_MAX)
        };
        let rows: Vec<String> = self.planned.iter().filter(is_uneven).map(Planned::name).collect();
        let text = |rows: String| {
            format!(
                "the spans of ranks differ by more than 10 % ({rows}): totals count from the first \
                 start to the last end"
            )
        };
        (!rows.is_empty()).then(|| text(rows.join("; ")))
    }

    /// The warnings at the end, of all ranks, which part here.
    fn notes(&self) -> Result<Vec<String>> {
        let notes = self.engine.notes().into_iter().map(|note| held::named(&note));
        let sentences = [self.unmeasured(), self.few(), self.uneven()];
        let notes = sentences.into_iter().flatten().chain(notes);
        let notes = notes.chain(self.wrong_predictions());
        let noted = self.records.iter().filter_map(Record::text).map(str::to_owned);
        self.joined.part(noted.chain(notes).collect())
    }

    /// Says how much will be measured, if there is a results file.
    fn announce(&self, kept: usize, rounds: Rounds) {
        let Some(ledger) = self.ledger.as_ref().filter(|_| !self.args.quiet) else { return };
        let (path, points) = (ledger.path().display(), counted(self.planned.len(), "point"));
        if kept >= self.planned.len() * rounds.most() as usize {
            message(&format!(
                "`{path}` has all samples of this run; name another file to measure again"
            ));
            return;
        }
        let of = match rounds {
            Rounds::Count(count) => format!("{points} × {count}"),
            Rounds::Within(time) => format!("{points} within {} s", (time + END_MAX).as_secs()),
        };
        let kept = match kept {
            0 => String::new(),
            kept => format!(", {} kept from an earlier run", counted(kept, "sample")),
        };
        message(&format!("{of}{kept}; results go to `{path}`"));
    }

    /// Shows the results so far: on a terminal now, and on stdout when a signal ends the run, which
    /// also says how to continue. Results of long runs are omitted, since rendering them costs
    /// time: these belong into a file.
    fn show_progress(&self, done: usize, rounds: Rounds, bar: &ProgressBar) {
        if !self.joined.is_first() {
            return;
        }
        let is_short = done > 0 && self.records.len() <= SHOWN_MAX;
        if is_short && !bar.is_hidden() {
            let Look(width) = Look::of(std::io::stderr()).unwrap_or(Look(WIDTH));
            let table = bars::render(&bars::model(&self.records), print::base(self.args), width);
            let table = match AutoStream::choice(&std::io::stderr()) {
                ColorChoice::Never => strip_str(&table).to_string(),
                _ => table,
            };
            bar.set_prefix(fitting(&table));
        }
        let results =
            if is_short { print::text(self.args, &self.records) } else { Ok(String::new()) };
        let is_kept = samples(&self.records).next().is_some();
        let samples = match rounds {
            Rounds::Count(count) => {
                format!("{done} of {} samples", self.planned.len() as u64 * u64::from(count))
            }
            Rounds::Within(_) => counted(done, "sample"),
        };
        let ledger = self.ledger.as_ref().filter(|_| is_kept);
        let message = match ledger.map(|ledger| ledger.path().display()) {
            Some(path) => {
                format!("stopped: `{path}` has {samples}; the same command continues from there")
            }
            None => format!("stopped after {samples}"),
        };
        let missing = self.missing().filter(|_| done > 0);
        let missing = missing.map(|names| format!("; not measured: {names}"));
        let message = message + &missing.unwrap_or_default();
        cleanup::set_progress(Some(Progress { results: results.unwrap_or_default(), message }));
    }

    /// Ranks that share a file get it from rank 0, which fills it first.
    fn share_files(&mut self) -> Result<()> {
        if self.args.one_file.is_none() {
            return Ok(());
        }
        if self.joined.is_first() {
            for place in &self.places {
                place.check_room()?;
                place.make(Direction::Read)?;
                place.make(Direction::Write)?;
            }
        }
        self.joined.share_files(&mut self.places)
    }

    fn make_scratch(&self, bar: &ProgressBar) -> Result<()> {
        let len: u64 = self.places.iter().map(Place::check_room).sum::<Result<_>>()?;
        bar.set_message(format!("making {} of scratch", format_size(len)));
        self.places.iter().try_for_each(|place| place.make(Direction::Read))
    }

    /// Notes a warning, once.
    fn warn(&mut self, text: String) -> Result<()> {
        self.note_once(Record::Warning { text })
    }

    /// Notes a sentence, once.
    fn note_once(&mut self, record: Record) -> Result<()> {
        let is_known =
            self.records.iter().filter_map(Record::text).any(|t| Some(t) == record.text());
        if is_known { Ok(()) } else { self.note(record) }
    }

    /// Warms the required routes up.
    ///
    /// # Errors
    /// A route is unavailable, which ends the run before its first sample.
    fn warm_required(&self, bar: &ProgressBar) -> Result<Warmed> {
        let mut warmed = Warmed::default();
        let required = self.planned.iter().enumerate().filter(|(_, it)| it.point.route.is_some());
        required.map(|(index, _)| index).try_for_each(|it| self.warm(it, &mut warmed, bar))?;
        Ok(warmed)
    }

    /// Lets the method of a point read once before its first sample, which then does not include
    /// the start of its threads.
    ///
    /// # Errors
    /// A required route is unavailable.
    fn warm(&self, index: usize, warmed: &mut Warmed, bar: &ProgressBar) -> Result<()> {
        let planned = &self.planned[index];
        if planned.whole.is_none() || planned.load.writes() {
            return Ok(());
        }
        let is_late = warmed.time > WARM_UP_MAX && planned.point.route.is_none();
        if is_late || !warmed.methods.insert((planned.load.method, planned.targets)) {
            return Ok(());
        }
        bar.set_message(format!("warming up {}", planned.point.method));
        let begun = Instant::now();
        let end = End::AtLeast(Duration::ZERO);
        let load = Load { cache: Cache::Warm, once: false, end, ..planned.load.clone() };
        let measurer = &self.measurers[planned.targets];
        let mut lanes = self.lanes(planned);
        // Of a file that is moved in pieces, the first is enough.
        lanes.iter_mut().for_each(|lane| lane.region.len = load.request_size);
        let ran = Ready::with(&self.engine, &load, &lanes, &self.pool)
            .and_then(|mut ready| ready.run(measurer.targets()));
        match ran {
            Ok(_) => warmed.time += begun.elapsed(),
            // Without a required route, what fails here fails again, and is reported then.
            Err(failure) if planned.point.route.is_some() => return Err(failure),
            Err(_) => {}
        }
        Ok(())
    }

    /// A path as given.
    fn path(&self, index: usize) -> String {
        self.args.paths[index].display().to_string()
    }

    fn lanes(&self, planned: &Planned) -> Vec<Lane> {
        let devices = &self.targets[planned.targets];
        let places = planned.paths.iter().map(|index| &self.places[*index]);
        places.flat_map(|place| place.lanes(planned, self.args.stripe, devices)).collect()
    }

    /// Reads whole files once more, as the engine's first row does, concurrently with other work.
    ///
    /// # Errors
    /// There is no such row; file and GPU errors.
    pub(crate) fn read_by_engine(&self) -> Result<(Measured, Ran)> {
        let is_read = |one: &&Planned| one.point.method == "forebay" && !one.load.writes();
        let planned = self.planned.iter().find(is_read);
        let planned = planned.ok_or_else(|| Failure::new("the engine reads nothing"))?;
        self.moved(planned, &self.measurers[planned.targets])
    }

    /// Moves the bytes of a point.
    fn moved(&self, planned: &Planned, measurer: &Measurer) -> Result<(Measured, Ran)> {
        let lanes = self.lanes(planned);
        let files: Vec<&Path> = lanes.iter().map(|lane| lane.path.as_path()).collect();
        let mut places = planned.paths.iter().map(|index| &self.places[*index]);
        let made = places.try_for_each(|place| match planned.load.writes() {
            true => place.prepare_writes(&files),
            false => place.make(Direction::Read),
        });
        self.meter.mark();
        measurer.measure(&planned.load, (&lanes, made), self.joined.peers())
    }

    /// Finds the capacity of the roots of block stores, and checks that there is space for all.
    /// Warns of models with short prompts.
    fn plan_stores(&mut self, warnings: &mut Vec<String>) -> Result<()> {
        if self.args.kv.is_empty() {
            return Ok(());
        }
        let mut rooms = Vec::new();
        for (index, place) in self.places.iter().enumerate() {
            let roots = self.planned.iter().filter(|one| one.paths.contains(&index)).count();
            rooms.push((Room::of(&place.folder)?, &place.folder, roots as u64));
        }
        let usual = rooms.iter().map(|(room, _, roots)| room.usable() / 4 / roots.max(&1)).min();
        let mut usual = (usual.unwrap_or(KV_SIZE) / self.ranks()).min(KV_SIZE);
        [usual] = self.joined.least([usual])?;
        let capacity = *self.axes.found.kv_capacity.get_or_insert(usual);
        for (room, folder, roots) in rooms {
            room.check(folder, capacity.saturating_mul(roots))?;
        }
        for shorter in self.args.kv.iter().map(|model| Served::shorter(*model, capacity)) {
            if shorter > 1 {
                let size = format_size(capacity);
                warnings.push(format!(
                    "prompts are {shorter} times as short as in the trace, so that the store has \
                     room for 16 of them; it has {size}, which `--size` sets"
                ));
            }
        }
        Ok(())
    }

    /// Opens and fills the block store of a point before its first sample.
    fn fill(&mut self, index: usize, bar: &ProgressBar) -> Result<()> {
        let planned = &self.planned[index];
        if !self.served.contains_key(&index) {
            let model = planned.kv.expect("it has a store");
            let capacity = self.axes.found.kv_capacity.expect("it is known");
            let count = |number: u32| usize::try_from(number).expect("a small number");
            let shape = Shape {
                device: self.targets[planned.targets][0].clone(),
                threads: count(planned.point.threads),
                depth: count(planned.point.depth),
                batch: count(planned.point.batch),
            };
            let places = planned.paths.iter().map(|path| self.places[*path].folder.as_path());
            let (places, size): (Vec<_>, _) = (places.collect(), (model, capacity));
            bar.set_message(format!("filling a block store of {}", format_size(capacity)));
            let mut served = Served::open(&self.engine, &places, size, &shape, planned.load.seed)?;
            served.fill()?;
            self.served.insert(index, served);
        }
        Ok(())
    }

    /// Lets the block store of a point serve turns.
    fn serve(&mut self, index: usize, bar: &ProgressBar) -> Result<(Measured, Ran)> {
        let filled = self.fill(index, bar);
        let planned = &self.planned[index];
        let served = filled.map(|()| self.served.get_mut(&index).expect("it is open"));
        self.meter.mark();
        self.measurers[planned.targets].serve(&planned.load, served, self.joined.peers())
    }

    /// The number of ranks.
    fn ranks(&self) -> u64 {
        self.joined.size().unwrap_or(1).into()
    }

    /// A rank's part of a limit.
    fn own_rate(&self, name: &str, of: &str, direction: Direction) -> Option<f64> {
        let all = limits::rate(&self.records, name, of, direction);
        all.map(|rate| rate / float(self.ranks()))
    }

    /// Measures a point once.
    ///
    /// # Errors
    /// The results file cannot be written. A sample that fails is a result.
    fn sample(&mut self, index: usize, repeat: u32, bar: &ProgressBar) -> Result<Sample> {
        let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let mut planned = self.planned[index].clone();
        // A drive may have cached what the last repeat read.
        planned.load.seed = plan::seed_of(planned.load.seed, repeat);
        let result = match planned.kv {
            Some(_) => self.serve(index, bar),
            None => self.moved(&planned, &self.measurers[planned.targets]),
        };
        let result = result.map(|(mut measured, ran)| {
            measured.power = Some(self.meter.between(ran.from, ran.from + ran.span));
            (measured, ran)
        });
        let mix = |ran: &Ran| read_percent(&planned, ran);
        let result = self.joined.total(result, mix)?;
        if let Ok((measured, _, fetched)) = &result {
            let is_cold_read =
                planned.load.cache == Cache::Cold && planned.load.read_percent == 100;
            let is_cached = is_cold_read && fetched.is_some_and(|share| share < FETCHED_MIN);
            self.raise_limits(&planned, measured, is_cached)?;
            // Of other bytes, such as holes, a doubt says that no drive is read for them.
            let is_stored = planned.paths.iter().all(|path| self.axes.found.is_limited[*path]);
            let why = match self.joined.shares_file {
                true => Some("ranks read pages that others of their host had cached"),
                false => is_stored.then_some(
                    "the page cache had more than a tenth of the bytes, as if another program \
                     reads the same file",
                ),
            };
            if let Some(why) = why.filter(|_| is_cached) {
                let text = format!("{}: {why}", planned.name());
                self.note_once(Record::Doubt { text })?;
            }
        }
        let result = result.map(|(mut measured, mix, _)| {
            measured.bound = limits::bound(&planned, (&measured, mix), &self.records);
            if let Some(bound) = &mut measured.bound {
                self.joined.name_bound(bound, measured.bytes_per_second, mix);
            }
            measured
        });
        let error = result.as_ref().err().map(Failure::with_remedy);
        Ok(Sample {
            point: planned.point,
            repeat,
            unix_time: since.as_secs_f64(),
            measured: result.ok(),
            error,
        })
    }
}

/// The methods that have been warmed up, and the time that this took.
#[derive(Default)]
struct Warmed {
    methods: HashSet<(Method, usize)>,
    time: Duration,
}

/// Whether whole files are measured no more after this sample: it failed, or they are too small for
/// a rate. On a busy machine a sample may be too short; that ends no row with rates.
fn ends_row(sample: &Sample, rated: &mut HashSet<Point>) -> bool {
    if sample.measured.as_ref().is_some_and(Measured::is_long_enough) {
        rated.insert(sample.point.clone());
    }
    !sample.is_good() || !rated.contains(&sample.point)
}

/// The methods to compare, without those that are unavailable here.
fn methods(
    args: &BenchArgs,
    engine: &Engine,
    targets: &[Together],
    warnings: &mut Vec<String>,
) -> Vec<Method> {
    if !args.method.is_empty() {
        return args.method.clone();
    }
    let forebay = Method::Forebay(None);
    if !args.moves_whole_files() {
        return vec![forebay];
    }
    let mut methods = vec![Method::Plain(Plain::Standard), Method::Plain(Plain::Mmap)];
    if targets::gpus(targets).next().is_some() {
        // If it does not open, its first sample says so: that may last many seconds.
        match engine.options().cufile {
            true => methods.extend(Method::CUFILE),
            false => warnings
                .push("cuFile's compat mode is not compared: `FOREBAY_CUFILE` is `off`".into()),
        }
    }
    methods.push(forebay);
    methods
}

/// The shares of reads: by default only reads, and writes of whole files into folders.
fn directions(args: &BenchArgs, paths: &[PathBuf], is_whole: bool) -> Vec<u8> {
    if !args.direction.is_empty() {
        return args.direction.clone();
    }
    if !args.kv.is_empty() {
        return vec![KV_LOADS];
    }
    let is_folder = paths.iter().all(|path| subject::is_folder(path));
    if is_whole && is_folder && paths.len() == 1 { vec![100, 0] } else { vec![100] }
}

/// Refuses a path that is named twice, and a block store in a file.
fn check_paths(args: &BenchArgs) -> Result<()> {
    let paths = &args.paths;
    let file = paths.iter().find(|path| !args.kv.is_empty() && !subject::is_folder(path));
    if let Some(file) = file {
        let text = format!("`{}` is not a folder", file.display());
        return Err(Failure::usage(text).hint("`--kv` makes a block store in a folder"));
    }
    let real = real(paths);
    for (index, path) in paths.iter().enumerate() {
        if let Some(first) = real[..index].iter().position(|other| *other == real[index]) {
            let (own, other) = (path.display(), paths[first].display());
            let text = match *path == paths[first] {
                true => format!("`{own}` is given twice"),
                false => format!("`{own}` is the same as `{other}`"),
            };
            return Err(Failure::usage(text).hint("name each file or folder once"));
        }
    }
    Ok(())
}

/// The share of reads of a sample: of a block store it is that of the loaded bytes.
fn read_percent(planned: &Planned, ran: &Ran) -> u8 {
    let [read, written] = ran.of_targets.first().map_or([0; 2], |own| own.moved);
    let loaded = u8::try_from(read * 100 / (read + written).max(1)).unwrap_or(100).clamp(1, 99);
    if planned.kv.is_some() { loaded } else { planned.point.read_percent }
}

/// A power of two of bytes: enough to reach the rates of the storage and the links, and few enough
/// for the slowest of them.
#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "it is bounded")]
fn whole_len(storage: Option<f64>, links: impl Iterator<Item = f64>) -> u64 {
    let links = links.map(|rate| (rate, LINK_SECONDS));
    let all = links.chain(storage.map(|rate| (rate, STORAGE_SECONDS)));
    let (enough, most) = all.fold((0.0, f64::INFINITY), |(enough, most), (rate, seconds)| {
        (f64::max(enough, rate * seconds), f64::min(most, rate * SLOWEST_SECONDS))
    });
    let len = (enough.min(most) as u64).clamp(WHOLE_LEN.0, WHOLE_LEN.1);
    1 << len.ilog2()
}

/// Canonical paths.
fn real(paths: &[PathBuf]) -> Vec<String> {
    let real = paths.iter().map(|path| {
        let _step = Step::begin("inspect", path);
        path.canonicalize().unwrap_or_else(|_| path.clone())
    });
    real.map(|path| path.display().to_string()).collect()
}

/// The identity of a GPU; of a simulated GPU, its settings.
fn identity(info: &DeviceInfo) -> String {
    match (info.simulated, info.uuid.as_str()) {
        (false, "") => info.pci_address.clone(),
        (false, uuid) => uuid.into(),
        (true, _) => info.driver.clone(),
    }
}

/// The storage maps of paths.
fn maps(resolver: &Resolver, paths: &[PathBuf]) -> Vec<StorageMap> {
    let map = |path: &PathBuf| {
        let _step = Step::begin("inspect", path);
        resolver.resolve(path)
    };
    paths.iter().map(map).collect()
}

/// The end of a table that fits above the progress bar on this terminal: lines that scroll off the
/// screen cannot be drawn again.
fn fitting(table: &str) -> String {
    let rows = rustix::termios::tcgetwinsize(std::io::stderr()).map_or(0, |size| size.ws_row);
    let rows = if rows == 0 { 24 } else { usize::from(rows) };
    let lines: Vec<&str> = table.lines().collect();
    lines[lines.len().saturating_sub(rows.saturating_sub(2))..].join("\n") + "\n"
}

/// A progress bar over samples, below their results. It is hidden if stderr is no terminal or
/// shows log lines, and with `--quiet`.
pub(crate) fn progress(steps: u64, is_quiet: bool) -> ProgressBar {
    if log::is_on() || is_quiet {
        return ProgressBar::hidden();
    }
    let style = ProgressStyle::with_template("{prefix}{bar:20} {pos}/{len} {wide_msg}");
    let bar =
        ProgressBar::new(steps).with_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()));
    bar.enable_steady_tick(TICK);
    if bar.is_hidden() {
        keep_log(&bar);
    }
    bar
}

/// Prints what a hidden bar says every [`LOG_TICK`] until it is finished: a job's log shows that it
/// lives.
fn keep_log(bar: &ProgressBar) {
    let bar = bar.downgrade();
    thread::spawn(move || {
        loop {
            thread::sleep(LOG_TICK);
            let Some(bar) = bar.upgrade().filter(|bar| !bar.is_finished()) else { break };
            let (done, all) = (bar.position(), bar.length().unwrap_or(0));
            message(&format!("{done} of {all}: {}", bar.message()));
        }
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_ends_with_a_failure_or_if_no_sample_has_a_rate() {
        let sample = |seconds: Option<f64>, depth| Sample {
            point: Point { depth, ..Point::default() },
            repeat: 0,
            unix_time: 0.0,
            measured: seconds
                .map(|seconds| Measured { seconds: Some(seconds), ..Measured::default() }),
            error: None,
        };
        let mut rated = HashSet::new();
        let mut ends = |seconds, depth| ends_row(&sample(seconds, depth), &mut rated);
        assert!(ends(Some(0.05), 1) && !ends(Some(0.1), 2));
        assert!(!ends(Some(0.05), 2), "it has a rate");
        assert!(ends(None, 2) && ends(Some(0.05), 3));
    }

    #[test]
    fn files_are_large_enough_for_the_fastest_row_and_small_enough_for_the_slowest() {
        let of = |storage: Option<f64>, link: f64| whole_len(storage, [link].into_iter()) / MIB;
        assert_eq!(of(Some(2.8e9), 55e9), 256, "8 ms of the link");
        assert_eq!(of(Some(2.4e9), 10e9), 64, "0.05 s of the storage");
        assert_eq!(of(Some(0.15e9), 55e9), 16, "0.2 s of a disk");
        assert_eq!(of(Some(2.8e9), 5e6), 1);
        assert_eq!((of(None, 55e9), of(Some(50e9), 55e9)), (256, 1024));
    }
}
