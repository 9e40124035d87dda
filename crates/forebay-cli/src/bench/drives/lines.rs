//! The lines of a comparison of several paths, from the plan to the rows of the report. Pure.
//!
//! For each path alone there are a limit and the engine, then for all paths together every method.
//! The limit of all paths is the sum of the drives' limits; each drive counts once, even if it
//! holds several files.

use crate::bench::line::{Line, RowPlace, row_of};
use crate::report::json::{Cache, Direction, Limit, MethodName, Row, Settings};

/// The paths of a line.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Scope {
    /// The path with this index.
    One(usize),
    /// All paths.
    All,
}

impl Scope {
    /// The indices of its paths, of `count` in all.
    #[must_use]
    pub fn indices(self, count: usize) -> Vec<usize> {
        match self {
            Self::One(index) => vec![index],
            Self::All => (0..count).collect(),
        }
    }
}

/// The settings with which KvikIO is measured.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kvikio {
    /// At its defaults.
    Defaults,
    /// With the best of a few settings.
    Best,
}

/// One line: a measurement, and its paths.
#[derive(Debug, Clone)]
pub struct Entry {
    /// The line that was measured.
    pub line: Line,
    /// Its paths.
    pub scope: Scope,
    /// KvikIO's settings, if that is the method.
    pub kvikio: Option<Kvikio>,
    /// The settings that the method used.
    pub settings: Option<Settings>,
}

impl Entry {
    fn new(method: MethodName, direction: Direction, cache: Option<Cache>, scope: Scope) -> Self {
        let line = Line::new(method, direction, cache);
        Self { line, scope, kvikio: None, settings: None }
    }

    /// Its name in progress and warnings.
    #[must_use]
    pub fn name(&self, paths: &[String]) -> String {
        let name = self.line.name();
        let settings = match self.kvikio {
            None => "",
            Some(Kvikio::Defaults) => ", defaults",
            Some(Kvikio::Best) => ", best settings",
        };
        match (self.line.method, self.scope) {
            (MethodName::Link, _) => name,
            (_, Scope::All) => format!("{name}{settings}, all together"),
            (_, Scope::One(index)) => format!("{name} of `{}`", paths[index]),
        }
    }
}

/// The measurements of a run.
#[derive(Debug, Clone, Copy)]
pub struct Plan<'a> {
    /// Number of paths.
    pub paths: usize,
    /// Reads, writes, or both.
    pub directions: &'a [Direction],
    /// The page cache states to measure.
    pub caches: &'a [Cache],
    /// Whether the storage's limits are measured.
    pub storage: bool,
    /// Whether KvikIO is compared.
    pub kvikio: bool,
    /// The route that the user requires of the engine.
    pub route: Option<forebay::Route>,
}

/// The lines of a run, in the order of the table. All limits of drives come before the engine's
/// lines, so that each drive has been idle for about as long.
#[must_use]
pub fn plan(plan: &Plan<'_>) -> Vec<Entry> {
    let mut entries = Vec::new();
    for direction in plan.directions {
        entries.push(Entry::new(MethodName::Link, *direction, None, Scope::All));
        let ones = || (0..plan.paths).map(Scope::One);
        if plan.storage {
            entries.extend(ones().map(|s| Entry::new(MethodName::Storage, *direction, None, s)));
        }
        for cache in plan.caches {
            let entry = |method, scope| Entry::new(method, *direction, Some(*cache), scope);
            for scope in ones().chain([Scope::All]) {
                let mut ours = entry(MethodName::Forebay, scope);
                ours.line.demand = plan.route;
                entries.push(ours);
            }
            entries.push(entry(MethodName::OneQueue, Scope::All));
            if plan.kvikio && *direction == Direction::Read {
                for kvikio in [Kvikio::Defaults, Kvikio::Best] {
                    let mut theirs = entry(MethodName::Kvikio, Scope::All);
                    theirs.kvikio = Some(kvikio);
                    entries.push(theirs);
                }
            }
        }
    }
    entries
}

/// The limit of `entry`, a method: the lower one of the link's and, for bytes from or to drives,
/// the sum of the drives'. `None` if a drive's limit is unknown.
#[must_use]
pub fn limit(entries: &[Entry], entry: &Entry, queues: &[usize]) -> Option<Limit> {
    let line = &entry.line;
    let cache = line.cache?;
    let drive = cache == Cache::Cold || line.demand == Some(forebay::Route::Staged);
    let measured = |method: MethodName| {
        entries.iter().filter(move |other| {
            (other.line.method, other.line.direction) == (method, line.direction)
        })
    };
    let link = measured(MethodName::Link).find_map(|entry| entry.line.best());
    let link = link.map(|rate| Limit { name: MethodName::Link, bytes_per_second: rate });
    if !drive {
        return link;
    }
    let storage = |index: usize| {
        let mut found = measured(MethodName::Storage);
        found.find(|other| other.scope == Scope::One(index))?.line.best()
    };
    let rate = match entry.scope {
        Scope::One(index) => storage(index)?,
        Scope::All => sum(queues, storage)?,
    };
    let storage = Limit { name: MethodName::Storage, bytes_per_second: rate };
    let all = [link, Some(storage)].into_iter().flatten();
    all.min_by(|a, b| a.bytes_per_second.total_cmp(&b.bytes_per_second))
}

/// The combined rate of all queues: for each, the best of its files.
fn sum(queues: &[usize], rate: impl Fn(usize) -> Option<f64>) -> Option<f64> {
    let count = queues.iter().max().map_or(0, |last| last + 1);
    let mut best = vec![0.0_f64; count];
    for (index, queue) in queues.iter().enumerate() {
        best[*queue] = best[*queue].max(rate(index)?);
    }
    Some(best.iter().sum())
}

/// The facts that all rows of one size share.
#[derive(Debug)]
pub struct Setting<'a> {
    /// The group in the table: the `--size`, or the maximum bytes of a path.
    pub size: u64,
    /// The name of the target memory.
    pub target: &'a str,
    /// Whether it is a simulated GPU's.
    pub simulated: bool,
    /// The files that are read and written.
    pub paths: [&'a [String]; 2],
    /// The queue of each path.
    pub queues: &'a [usize],
    /// The ids of the drives of each path.
    pub drives: &'a [Vec<String>],
}

/// The rows of the report; lines that were left out have none.
#[must_use]
pub fn rows(entries: &[Entry], setting: &Setting<'_>) -> Vec<Row> {
    let row = |entry: &Entry| {
        let indices = entry.scope.indices(setting.queues.len());
        let paths = setting.paths[entry.line.direction as usize];
        let mut drives: Vec<String> = Vec::new();
        for id in indices.iter().flat_map(|index| &setting.drives[*index]) {
            if !drives.contains(id) {
                drives.push(id.clone());
            }
        }
        let place = RowPlace {
            target: setting.target,
            simulated: setting.simulated,
            size: setting.size,
            paths: indices.iter().map(|index| paths[*index].clone()).collect(),
            drives,
        };
        let mut row = row_of(&entry.line, limit(entries, entry, setting.queues), place)?;
        row.settings.clone_from(&entry.settings);
        Some(row)
    };
    entries.iter().filter_map(row).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::cpu::Spent;
    use crate::bench::measure::Sample;
    use crate::bench::methods::Moved;

    const PLAN: Plan<'_> = Plan {
        paths: 3,
        directions: &[Direction::Read],
        caches: &[Cache::Cold],
        storage: true,
        kvikio: true,
        route: None,
    };

    /// Link 10000, drives 100, 200, 300 bytes per second.
    fn measured(plan: &Plan<'_>) -> Vec<Entry> {
        let mut entries = super::plan(plan);
        for entry in &mut entries {
            let spent = |seconds| Spent { seconds, cpu_seconds: 0.1 };
            match (entry.line.method, entry.scope) {
                (MethodName::Link, _) => entry.line.add_ceiling(1000, spent(0.1), "link".into()),
                (MethodName::Storage, Scope::One(index)) => {
                    let seconds = 10.0 / [1.0, 2.0, 3.0][index];
                    entry.line.add_ceiling(1000, spent(seconds), "direct".into());
                }
                _ => {
                    let said = Vec::new();
                    let moved = Moved { bytes: 1000, route: None, reason: None, said };
                    let spent = spent(2.0);
                    let sample = Sample { spent, moved, verified: true, proof: None };
                    entry.line.add(1000, sample);
                }
            }
        }
        entries
    }

    fn limits(entries: &[Entry], queues: &[usize]) -> Vec<(Scope, f64)> {
        let ours = entries.iter().filter(|entry| entry.line.method == MethodName::Forebay);
        let limit = |entry: &Entry| limit(entries, entry, queues).unwrap().bytes_per_second;
        ours.map(|entry| (entry.scope, limit(entry).round())).collect()
    }

    #[test]
    fn each_path_is_measured_alone_and_all_together() {
        let paths = ["a", "b", "c"].map(String::from);
        let entries = plan(&Plan { paths: 2, ..PLAN });
        let names: Vec<_> = entries.iter().map(|entry| entry.name(&paths)).collect();
        assert_eq!(
            names,
            [
                "`link` read",
                "`storage` read of `a`",
                "`storage` read of `b`",
                "`forebay` read, cold of `a`",
                "`forebay` read, cold of `b`",
                "`forebay` read, cold, all together",
                "`one-queue` read, cold, all together",
                "`kvikio` read, cold, defaults, all together",
                "`kvikio` read, cold, best settings, all together",
            ]
        );
        let both = &[Direction::Read, Direction::Write];
        let caches = &[Cache::Cold, Cache::Resident];
        let entries = plan(&Plan { directions: both, caches, ..PLAN });
        assert_eq!(entries.len(), 2 * (1 + 3 + 2 * 5) + 4, "KvikIO only reads");
    }

    #[test]
    fn the_sum_binds_all_and_its_own_drive_each() {
        let entries = measured(&PLAN);
        let found = limits(&entries, &[0, 1, 2]);
        let expected = [100.0, 200.0, 300.0].into_iter().enumerate();
        let mut expected: Vec<_> = expected.map(|(i, rate)| (Scope::One(i), rate)).collect();
        expected.push((Scope::All, 600.0));
        assert_eq!(found, expected);
        // A drive with two files counts once.
        assert_eq!(limits(&entries, &[0, 0, 1]).pop(), Some((Scope::All, 500.0)));
        assert_eq!(limits(&entries, &[0, 0, 0]).pop(), Some((Scope::All, 300.0)));
    }

    #[test]
    fn the_link_binds_where_it_is_lower_and_what_is_resident() {
        let mut entries = measured(&Plan { caches: &[Cache::Resident], ..PLAN });
        assert!(limits(&entries, &[0, 1, 2]).iter().all(|(_, rate)| (rate - 1e4).abs() < 1.0));
        entries = measured(&PLAN);
        entries[0].line.samples[0].seconds = 4.0;
        assert_eq!(limits(&entries, &[0, 1, 2]).pop(), Some((Scope::All, 250.0)));
        // If one drive's limit is unknown, so is that of all together.
        entries[2].line.left_out = Some("why".into());
        let all =
            entries.iter().find(|entry| entry.scope == Scope::All && entry.line.cache.is_some());
        assert_eq!(limit(&entries, all.unwrap(), &[0, 1, 2]), None);
    }

    #[test]
    fn rows_name_their_own_paths_and_drives() {
        let entries = measured(&PLAN);
        let paths = ["a", "b", "c"].map(String::from);
        let drives = [vec!["d".to_owned()], vec!["d".to_owned()], vec!["e".to_owned()]];
        let setting = Setting {
            size: 1000,
            target: "host",
            simulated: false,
            paths: [&paths, &paths],
            queues: &[0, 0, 1],
            drives: &drives,
        };
        let rows = rows(&entries, &setting);
        assert_eq!(rows.len(), entries.len());
        assert_eq!((&rows[0].paths, &rows[0].drives), (&None, &None));
        assert_eq!(rows[2].paths.as_deref(), Some(&paths[1..2]));
        let all = rows.iter().find(|row| row.method == MethodName::OneQueue).unwrap();
        assert_eq!(all.paths.as_deref(), Some(&paths[..]));
        assert_eq!(all.drives, Some(vec!["d".into(), "e".into()]));
        assert_eq!(all.limit.unwrap().name, MethodName::Storage);
        assert!((all.share_of_limit.unwrap() - 1.0).abs() < 1e-9);
    }
}
