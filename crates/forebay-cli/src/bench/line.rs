//! The lines of a run, from the plan to the rows of the report. Pure.

use forebay::Route;

use super::cpu::Spent;
use super::measure::Sample;
use super::methods::cufile::Tuning;
use super::proof::Proof;
use super::stats::{Spread, cpu_per_gb, rate};
use crate::report::json::{Cache, Direction, Limit, MethodName, Row, Settings};
use crate::report::proof::{self, VerdictFacts};

/// One limit or one method, and its measurements so far.
#[derive(Debug, Clone, PartialEq)]
pub struct Line {
    /// The limit or the method.
    pub method: MethodName,
    /// From or to the file.
    pub direction: Direction,
    /// The file's page cache state; `None` for limits.
    pub cache: Option<Cache>,
    /// The route that the engine must take; `None` if it chooses, and for all other methods.
    pub demand: Option<Route>,
    /// How cuFile is used; `None` for all other methods.
    pub tuning: Option<Tuning>,
    /// The settings that the method used.
    pub settings: Option<Settings>,
    /// Bytes of one sample.
    pub bytes: u64,
    /// The time of each sample.
    pub samples: Vec<Spent>,
    /// Routes and reasons, each route once.
    pub routes: Vec<(Option<String>, Option<String>)>,
    /// Whether every byte of every sample matches; `None` for limits.
    pub verified: Option<bool>,
    /// The proven routes of each sample's bytes.
    pub proofs: Vec<Proof>,
    /// Why it cannot be measured.
    pub left_out: Option<String>,
}

impl Line {
    /// A line without measurements.
    #[must_use]
    pub fn new(method: MethodName, direction: Direction, cache: Option<Cache>) -> Self {
        Self {
            method,
            direction,
            cache,
            demand: None,
            tuning: None,
            settings: None,
            bytes: 0,
            samples: Vec::new(),
            routes: Vec::new(),
            verified: None,
            proofs: Vec::new(),
            left_out: None,
        }
    }

    /// Adds a sample of a method.
    pub fn add(&mut self, bytes: u64, sample: Sample) {
        self.bytes = bytes;
        self.samples.push(sample.spent);
        self.verified = Some(self.verified.unwrap_or(true) && sample.verified);
        self.proofs.extend(sample.proof);
        if self.routes.iter().all(|(route, _)| *route != sample.moved.route) {
            self.routes.push((sample.moved.route, sample.moved.reason));
        }
    }

    /// Adds a sample of a limit.
    pub fn add_ceiling(&mut self, bytes: u64, spent: Spent, how: String) {
        self.bytes = bytes;
        self.samples.push(spent);
        self.routes = vec![(None, Some(how))];
    }

    /// Its name in progress and warnings.
    #[must_use]
    pub fn name(&self) -> String {
        let cache = self.cache.map_or_else(String::new, |cache| format!(", {}", cache.name()));
        let demand = self.demand.map_or_else(String::new, |route| format!(", by `{route}`"));
        let tuning = self.tuning.map_or_else(String::new, |tuning| format!(", {}", tuning.name()));
        format!("`{}` {}{cache}{demand}{tuning}", self.method.name(), self.direction.name())
    }

    /// Its best sample as a rate; `None` if it could not be measured.
    #[must_use]
    pub fn best(&self) -> Option<f64> {
        if self.left_out.is_some() {
            return None;
        }
        self.samples.iter().map(|spent| rate(self.bytes, spent.seconds)).max_by(f64::total_cmp)
    }
}

/// The measurements of a run.
#[derive(Debug, Clone, Copy)]
pub struct Plan<'a> {
    /// Reads, writes, or both.
    pub directions: &'a [Direction],
    /// The page cache states to measure.
    pub caches: &'a [Cache],
    /// Whether the storage's limit is measured.
    pub storage: bool,
    /// Whether `fio` measures it too.
    pub fio: bool,
    /// The route that the user requires of the engine.
    pub route: Option<Route>,
    /// The engine's other routes to show.
    pub others: Others,
    /// Whether cuFile's compat mode is measured.
    pub cufile: bool,
}

/// Routes to and from a GPU that are shown in addition to the one that the engine chooses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Others {
    /// None: there is no other route, or the user requires one.
    None,
    /// The one of `staged` and `cached` that it did not choose.
    Staged,
    /// Both others, if `direct` is available.
    Direct,
}

impl Others {
    /// Number of other routes of each move.
    #[must_use]
    pub const fn count(self) -> u32 {
        match self {
            Self::None => 0,
            Self::Staged => 1,
            Self::Direct => 2,
        }
    }

    /// The routes that the engine does not choose by itself.
    const fn routes(self, direction: Direction, cache: Cache) -> &'static [Route] {
        match (self, direction, cache) {
            (Self::None, ..) => &[],
            (Self::Staged, Direction::Read, Cache::Cold) => &[Route::Cached],
            (Self::Staged, ..) => &[Route::Staged],
            // By itself the engine reads bytes outside the page cache by the direct route.
            (Self::Direct, Direction::Read, Cache::Cold) => &[Route::Staged, Route::Cached],
            (Self::Direct, ..) => &[Route::Direct, Route::Staged],
        }
    }
}

/// The lines of a run, limits first, in the order of the table.
#[must_use]
pub fn plan(plan: &Plan<'_>) -> Vec<Line> {
    let Plan { directions, caches, storage, fio, route, others, cufile } = *plan;
    let mut lines = Vec::new();
    for direction in directions {
        lines.push(Line::new(MethodName::Link, *direction, None));
        if storage {
            lines.push(Line::new(MethodName::Storage, *direction, None));
        }
        // `fio` would leave unknown bytes in scratch, which no check could verify.
        if fio && storage && *direction == Direction::Read {
            lines.push(Line::new(MethodName::Fio, *direction, None));
        }
    }
    for direction in directions {
        for cache in caches {
            let new = |method| Line::new(method, *direction, Some(*cache));
            lines.extend([MethodName::Standard, MethodName::Mmap].map(new));
            for tuning in Tuning::ALL.into_iter().filter(|_| cufile) {
                lines.push(Line { tuning: Some(tuning), ..new(MethodName::CufileCompat) });
            }
            lines.push(Line { demand: route, ..new(MethodName::Forebay) });
            let others = if route.is_none() { others } else { Others::None };
            for other in others.routes(*direction, *cache) {
                lines.push(Line { demand: Some(*other), ..new(MethodName::Forebay) });
            }
        }
    }
    lines
}

/// The limit of the move of `line`, a method: the lower of the link and, for bytes from or to the
/// drive, the storage. The storage's limit is the better of its two measurements.
#[must_use]
pub fn limit(lines: &[Line], line: &Line) -> Option<Limit> {
    let direction = line.direction;
    let cache = line.cache?;
    // These routes go to the drive in any page cache state.
    let drive = cache == Cache::Cold || matches!(line.demand, Some(Route::Staged | Route::Direct));
    let best = |method: MethodName| {
        let found = lines.iter().find(|line| line.method == method && line.direction == direction);
        found.and_then(Line::best).map(|bytes_per_second| Limit { name: method, bytes_per_second })
    };
    let by_rate = |a: &Limit, b: &Limit| a.bytes_per_second.total_cmp(&b.bytes_per_second);
    let link = best(MethodName::Link);
    let storage = [MethodName::Storage, MethodName::Fio].into_iter().filter_map(best);
    let storage = storage.filter(|_| drive).max_by(by_rate);
    [link, storage].into_iter().flatten().min_by(by_rate)
}

/// The facts that all rows of one size share.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Setting {
    /// The `--size`.
    pub size: u64,
    /// The name of the target memory.
    pub target: String,
    /// Whether it is a simulated GPU's.
    pub simulated: bool,
    /// The file that is read.
    pub read_path: String,
    /// The file that is written.
    pub write_path: String,
    /// The ids of the drives that hold both.
    pub drives: Vec<String>,
}

/// The rows of the report; lines that were left out have none.
#[must_use]
pub fn rows(lines: &[Line], setting: &Setting) -> Vec<Row> {
    let mut rows: Vec<Row> = lines.iter().filter_map(|line| row(line, lines, setting)).collect();
    let is_right = |row: &Row| row.verified != Some(false);
    let standard = |row: &&Row| row.method == MethodName::Standard && is_right(row);
    let told = |row: &Row| ((row.direction, row.cache), row.bytes_per_second.median);
    let bases: Vec<_> = rows.iter().filter(standard).map(told).collect();
    for row in rows.iter_mut().filter(|row| !row.method.is_ceiling() && is_right(row)) {
        let (own, median) = told(row);
        row.speed_up = bases.iter().find(|base| base.0 == own).map(|(_, base)| median / base);
    }
    rows
}

fn row(line: &Line, lines: &[Line], setting: &Setting) -> Option<Row> {
    let path = match line.direction {
        Direction::Read => &setting.read_path,
        Direction::Write => &setting.write_path,
    };
    let place = RowPlace {
        target: &setting.target,
        simulated: setting.simulated,
        size: setting.size,
        paths: vec![path.clone()],
        drives: setting.drives.clone(),
    };
    row_of(line, limit(lines, line), place)
}

/// The place and the target of the bytes of one row.
#[derive(Debug, Clone)]
pub(crate) struct RowPlace<'a> {
    /// The name of the target memory.
    pub(crate) target: &'a str,
    /// Whether it is a simulated GPU's.
    pub(crate) simulated: bool,
    /// The `--size`.
    pub(crate) size: u64,
    /// The files.
    pub(crate) paths: Vec<String>,
    /// The ids of their drives.
    pub(crate) drives: Vec<String>,
}

/// The row of a line; `None` if it was left out.
pub(crate) fn row_of(line: &Line, limit: Option<Limit>, place: RowPlace<'_>) -> Option<Row> {
    if line.left_out.is_some() {
        return None;
    }
    let seconds: Vec<f64> = line.samples.iter().map(|spent| spent.seconds).collect();
    let cpu: Vec<f64> = line.samples.iter().map(|spent| spent.cpu_seconds).collect();
    let bytes_per_second = Spread::of_rates(line.bytes, &seconds)?;
    let link = line.method == MethodName::Link;
    let host = matches!(line.method, MethodName::Storage | MethodName::Fio);
    let (routes, reasons): (Vec<_>, Vec<_>) = line.routes.iter().cloned().unzip();
    let joined = |parts: Vec<Option<String>>, by: &str| {
        let parts: Vec<String> = parts.into_iter().flatten().collect();
        (!parts.is_empty()).then(|| parts.join(by))
    };
    Some(Row {
        method: line.method,
        route: joined(routes, " or "),
        demanded: line.demand.map(|route| route.name().to_owned()),
        reason: joined(reasons, " or "),
        direction: line.direction,
        cache: line.cache,
        target: if host { "host".into() } else { place.target.into() },
        paths: (!link).then_some(place.paths),
        drives: (!link).then_some(place.drives),
        settings: line.settings.clone(),
        speed_up: None,
        bytes: line.bytes,
        cpu_s_per_gb: cpu_per_gb(line.bytes, &cpu),
        seconds,
        bytes_per_second,
        share_of_limit: limit.map(|limit| bytes_per_second.median / limit.bytes_per_second),
        limit,
        verified: line.verified,
        verdict: VerdictFacts::of(&line.proofs),
        evidence: proof::evidence(&line.proofs),
        simulated: place.simulated,
        size: place.size,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::methods::Moved;

    const BOTH: [Direction; 2] = [Direction::Read, Direction::Write];
    const ALL: [Cache; 2] = [Cache::Cold, Cache::Resident];

    const EVERYTHING: Plan<'_> = Plan {
        directions: &BOTH,
        caches: &ALL,
        storage: true,
        fio: true,
        route: None,
        others: Others::None,
        cufile: false,
    };

    fn spent(seconds: f64) -> Spent {
        Spent { seconds, cpu_seconds: seconds / 2.0 }
    }

    fn sample(seconds: f64, route: &str, verified: bool) -> Sample {
        let (route, reason) = (Some(route.into()), Some("why".into()));
        let moved = Moved { bytes: 1, route, reason, said: Vec::new() };
        Sample { spent: spent(seconds), moved, verified, proof: None }
    }

    fn measured() -> Vec<Line> {
        let mut lines = plan(&Plan { directions: &[Direction::Read], ..EVERYTHING });
        for line in &mut lines {
            match line.method {
                MethodName::Link => line.add_ceiling(1000, spent(0.1), "link".into()),
                MethodName::Storage => line.add_ceiling(1000, spent(0.5), "direct".into()),
                MethodName::Fio => line.add_ceiling(1000, spent(0.4), "fio".into()),
                _ => [1.0, 4.0, 2.0].iter().for_each(|s| line.add(1000, sample(*s, "x", true))),
            }
        }
        lines
    }

    fn setting() -> Setting {
        Setting {
            size: 1000,
            target: "cuda:0".into(),
            simulated: false,
            read_path: "r".into(),
            write_path: "w".into(),
            drives: vec!["d".into()],
        }
    }

    #[test]
    fn every_way_has_a_line_for_each_direction_and_cache() {
        assert_eq!(plan(&EVERYTHING).len(), 2 + 2 + 1 + 12);
        let (directions, caches) = (&[Direction::Write], &[Cache::Resident]);
        let lines = plan(&Plan { directions, caches, storage: false, ..EVERYTHING });
        let names: Vec<_> = lines.iter().map(Line::name).collect();
        assert_eq!(
            names,
            [
                "`link` write",
                "`standard` write, resident",
                "`mmap` write, resident",
                "`forebay` write, resident"
            ]
        );
    }

    #[test]
    fn the_routes_that_the_engine_does_not_choose_are_shown_beside() {
        let demands = |plan: &Plan<'_>| -> Vec<_> {
            let lines = super::plan(plan).into_iter();
            let ours = lines.filter(|line| line.method == MethodName::Forebay);
            ours.map(|line| (line.direction, line.cache.unwrap(), line.demand)).collect()
        };
        let (read, write) = (Direction::Read, Direction::Write);
        let (cold, resident) = (Cache::Cold, Cache::Resident);
        assert_eq!(
            demands(&Plan { others: Others::Staged, ..EVERYTHING }),
            [
                (read, cold, None),
                (read, cold, Some(Route::Cached)),
                (read, resident, None),
                (read, resident, Some(Route::Staged)),
                (write, cold, None),
                (write, cold, Some(Route::Staged)),
                (write, resident, None),
                (write, resident, Some(Route::Staged)),
            ]
        );
        let beside: Vec<_> = demands(&Plan { others: Others::Direct, ..EVERYTHING });
        let beside = |direction, cache| {
            let found = beside.iter().filter(|(d, c, _)| (*d, *c) == (direction, cache));
            found.filter_map(|(.., demand)| *demand).collect::<Vec<_>>()
        };
        assert_eq!(beside(read, cold), [Route::Staged, Route::Cached]);
        for (direction, cache) in [(read, resident), (write, cold), (write, resident)] {
            assert_eq!(beside(direction, cache), [Route::Direct, Route::Staged]);
        }
        assert_eq!([Others::None, Others::Staged, Others::Direct].map(Others::count), [0, 1, 2]);
        let route = Some(Route::Cached);
        let demanded = demands(&Plan { others: Others::Direct, route, ..EVERYTHING });
        assert_eq!(demanded.len(), 4);
        assert!(demanded.iter().all(|(_, _, demand)| *demand == route));
    }

    #[test]
    fn cufile_is_used_in_two_ways_beside_the_others() {
        let (directions, caches) = (&[Direction::Write], &[Cache::Cold]);
        let lines = plan(&Plan { directions, caches, cufile: true, storage: false, ..EVERYTHING });
        let names: Vec<_> = lines.iter().skip(1).map(Line::name).collect();
        assert_eq!(
            names,
            [
                "`standard` write, cold",
                "`mmap` write, cold",
                "`cufile-compat` write, cold, defaults",
                "`cufile-compat` write, cold, best",
                "`forebay` write, cold",
            ]
        );
        assert_eq!(plan(&Plan { cufile: true, ..EVERYTHING }).len(), 2 + 2 + 1 + 20);
    }

    #[test]
    fn speed_is_compared_with_the_standard_way_of_the_same_move() {
        let mut lines = measured();
        let cold = Some(Cache::Cold);
        let (standard, ours) = (3, 5);
        lines[ours].samples = vec![spent(0.25)];
        let up = |lines: &[Line], method, cache| {
            let mut rows = rows(lines, &setting()).into_iter();
            rows.find(|row| row.method == method && row.cache == cache).unwrap().speed_up
        };
        assert_eq!(up(&lines, MethodName::Forebay, cold), Some(8.0));
        assert_eq!(up(&lines, MethodName::Forebay, Some(Cache::Resident)), Some(1.0));
        assert_eq!(up(&lines, MethodName::Standard, cold), Some(1.0));
        assert_eq!(up(&lines, MethodName::Link, None), None);
        for wrong in [standard, ours] {
            lines[wrong].verified = Some(false);
            assert_eq!(up(&lines, MethodName::Forebay, cold), None, "a mismatch has no speed-up");
            lines[wrong].verified = Some(true);
        }
        lines[standard].left_out = Some("gone".into());
        assert_eq!(up(&lines, MethodName::Forebay, cold), None);
    }

    #[test]
    fn the_drive_binds_a_route_to_it() {
        let mut lines = measured();
        let resident = |line: &&mut Line| line.cache == Some(Cache::Resident);
        lines.iter_mut().find(resident).unwrap().demand = Some(Route::Staged);
        let line = lines.iter().find(|line| line.demand.is_some()).unwrap();
        assert_eq!(limit(&lines, line).unwrap().name, MethodName::Fio);
        let row = &rows(std::slice::from_ref(line), &setting())[0];
        assert_eq!((row.demanded.as_deref(), &row.limit), (Some("staged"), &None));
        assert_eq!(line.name(), "`standard` read, resident, by `staged`");
    }

    #[test]
    fn the_lower_ceiling_binds_and_the_better_storage_counts() {
        let mut lines = measured();
        let limit = |lines: &[Line], direction, cache| {
            super::limit(lines, &Line::new(MethodName::Mmap, direction, Some(cache)))
        };
        let cold = limit(&lines, Direction::Read, Cache::Cold).unwrap();
        assert_eq!(cold, Limit { name: MethodName::Fio, bytes_per_second: 2500.0 });
        let resident = limit(&lines, Direction::Read, Cache::Resident).unwrap();
        assert_eq!(resident, Limit { name: MethodName::Link, bytes_per_second: 10000.0 });
        assert_eq!(limit(&lines, Direction::Write, Cache::Cold), None);
        lines[0].samples = vec![spent(10.0)];
        let cold = limit(&lines, Direction::Read, Cache::Cold).unwrap();
        assert_eq!(cold.name, MethodName::Link);
    }

    #[test]
    fn a_row_says_what_its_samples_say() {
        let mut lines = measured();
        lines[3].add(1000, sample(2.0, "y", false));
        lines[4].left_out = Some("broken".into());
        let rows = rows(&lines, &setting());
        assert_eq!(rows.len(), lines.len() - 1);
        let row = &rows[3];
        assert_eq!((row.route.as_deref(), row.verified), (Some("x or y"), Some(false)));
        assert_eq!(row.seconds, [1.0, 4.0, 2.0, 2.0]);
        assert!((row.bytes_per_second.median - 500.0).abs() < 1e-9);
        assert!((row.share_of_limit.unwrap() - 0.2).abs() < 1e-9);
        assert!((row.cpu_s_per_gb.unwrap() - 1e6).abs() < 1e-3);
        assert!(rows[..3].iter().all(|row| row.verified.is_none() && row.limit.is_none()));
        assert_eq!((&rows[0].paths, &*rows[0].target, &*rows[1].target), (&None, "cuda:0", "host"));
    }
}
