//! The runs of a comparison: each method writes the file from the target and reads it back,
//! repeated for the requested number of rounds.
//!
//! Every second round runs backwards, so that a machine that becomes slower or faster favours no
//! method.

use std::thread;
use std::time::Duration;

use forebay::{Engine, Route};

use super::file::TestFile;
use crate::bench::data::{Expected, Pattern};
use crate::bench::line::{Line, RowPlace, row_of};
use crate::bench::make;
use crate::bench::measure::{Content, Sample, sample};
use crate::bench::memory::Memory;
use crate::bench::methods::forebay::Forebay;
use crate::bench::methods::standard::Standard;
use crate::bench::methods::{Job, Method};
use crate::bench::proof::Prover;
use crate::bench::stats::{cpu_per_gb, rate};
use crate::compare::json::CompareRow;
use crate::failure::{Failure, Result};
use crate::report::compared::runs::{Runs, counted};
use crate::report::json::{Cache, Direction, MethodName, Row};
use crate::steps;

/// Attempts to bring the file's pages into the required state.
const TRIES: u32 = 3;
/// The pause between two checks.
const PAUSE: Duration = Duration::from_millis(50);

/// One compared method.
pub(super) struct Way {
    method: Box<dyn Method>,
    /// Its name in lines and warnings.
    pub(super) name: String,
    /// Whether the comparison fails if this method fails.
    demanded: bool,
    write: Line,
    read: Line,
}

impl Way {
    /// The standard method.
    pub(super) fn standard(cache: Cache) -> Self {
        Self::new(Box::new(Standard::default()), None, false, cache)
    }

    /// The engine, by the route that it chooses or by `route`.
    pub(super) fn ours(engine: &Engine, route: Option<Route>, must: bool, cache: Cache) -> Self {
        Self::new(Box::new(Forebay::new(engine.clone(), route)), route, must, cache)
    }

    fn new(method: Box<dyn Method>, demand: Option<Route>, demanded: bool, cache: Cache) -> Self {
        let name = method.name();
        let new = |direction| Line { demand, ..Line::new(name, direction, Some(cache)) };
        let (write, read) = (new(Direction::Write), new(Direction::Read));
        let name = match demand {
            Some(route) => format!("{}, by `{route}`", name.name()),
            None => name.name().to_owned(),
        };
        Self { method, name, demanded, write, read }
    }

    /// Why it was left out.
    pub(super) fn left_out(&self) -> Option<&str> {
        self.write.left_out.as_deref()
    }
}

/// The result of one run of one method, for its line.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Told {
    /// The method.
    pub(super) name: String,
    /// Which run, from 1.
    pub(super) run: u32,
    /// Bytes per second.
    pub(super) write: f64,
    /// Bytes per second.
    pub(super) read: f64,
    /// Whether all bytes were verified: written, read.
    pub(super) verified: (bool, bool),
}

/// The seconds of a sample, and whether all bytes were verified.
type Taken = (f64, bool);

/// The parts that the runs need.
pub(super) struct Runner<'a> {
    pub(super) engine: &'a Engine,
    pub(super) file: &'a TestFile,
    pub(super) memory: &'a mut Memory,
    pub(super) len: u64,
    pub(super) cache: Cache,
    /// The current contents of the file.
    pub(super) pattern: Pattern,
    pub(super) prover: Prover,
}

impl Runner<'_> {
    /// Runs each of `ways` once; `tell` gets each result.
    ///
    /// # Errors
    /// Errors of a required method, and of `tell`.
    pub(super) fn run(
        &mut self,
        ways: &mut [Way],
        run: u32,
        tell: &mut dyn FnMut(&Told) -> Result<()>,
    ) -> Result<()> {
        let count = ways.len();
        for index in 0..count {
            let index = if run % 2 == 1 { index } else { count - 1 - index };
            let way = &mut ways[index];
            if way.left_out().is_none()
                && let Some(told) = self.turn(way, run)?
            {
                tell(&told)?;
            }
        }
        Ok(())
    }

    /// Writes and reads once by `way`; none if it was left out.
    fn turn(&mut self, way: &mut Way, run: u32) -> Result<Option<Told>> {
        self.file.check()?;
        let (write, read) = match self.samples(way, run) {
            Ok(Ok(samples)) => samples,
            Ok(Err(reason)) if way.demanded => {
                return Err(Failure::new(format!("cannot measure `{}`", way.name)).because(reason));
            }
            Ok(Err(reason)) => {
                way.write.left_out = Some(reason);
                return Ok(None);
            }
            Err(failure) if way.demanded => return Err(failure),
            Err(failure) => {
                way.write.left_out = Some(failure.in_one_line());
                // This method may have left other bytes, but the next one needs the pattern.
                make::fill(self.file.path(), self.pattern, self.len)?;
                return Ok(None);
            }
        };
        Ok(Some(Told {
            name: way.name.clone(),
            run,
            write: rate(self.len, write.0),
            read: rate(self.len, read.0),
            verified: (write.1, read.1),
        }))
    }

    /// Adds a sample of each direction to the lines of `way`; returns the seconds, and whether all
    /// bytes were verified. The write's result is kept if the read fails.
    fn samples(&mut self, way: &mut Way, run: u32) -> Result<Result<(Taken, Taken), String>> {
        let mut taken = |direction, line: &mut Line| {
            let sample = self.sample(way.method.as_mut(), direction, run)?;
            Ok::<_, Failure>(sample.map(|sample| {
                let taken = (sample.spent.seconds, sample.verified);
                line.add(self.len, sample);
                taken
            }))
        };
        let write = match taken(Direction::Write, &mut way.write)? {
            Ok(write) => write,
            Err(reason) => return Ok(Err(reason)),
        };
        Ok(taken(Direction::Read, &mut way.read)?.map(|read| (write, read)))
    }

    /// Takes one sample. If the file's pages are not in the required state, it tries again a few
    /// times, since other processes may interfere. The text has the reason of the last attempt.
    ///
    /// # Errors
    /// Errors of the method, and of the system.
    pub(super) fn sample(
        &mut self,
        method: &mut dyn Method,
        direction: Direction,
        run: u32,
    ) -> Result<Result<Sample, String>> {
        for _ in 1..TRIES {
            if let Ok(sample) = self.one_sample(method, direction, run)? {
                return Ok(Ok(sample));
            }
            thread::sleep(PAUSE);
        }
        self.one_sample(method, direction, run)
    }

    fn one_sample(
        &mut self,
        method: &mut dyn Method,
        direction: Direction,
        run: u32,
    ) -> Result<Result<Sample, String>> {
        let path = self.file.path().to_owned();
        let job = Job { path, len: self.len, direction, cache: self.cache };
        let file = steps::open(self.engine, &job.path)?;
        let sources = self.prover.sources(self.engine, &[(file.clone(), job.len)]);
        let counters = Some((&self.prover, &sources));
        let expected = Expected::Pattern(self.pattern);
        let mut content = match direction {
            Direction::Read => Content::Read(&expected),
            Direction::Write => Content::Write(&mut self.pattern),
        };
        sample(method, &job, self.memory, &mut content, &file, run, counters)
    }
}

/// The rows of all methods, writes before reads. Methods that were left out have none, unless their
/// data were wrong: a later failure does not hide that.
pub(super) fn rows(ways: &[Way], place: &RowPlace<'_>) -> Vec<CompareRow> {
    let lines = |line: fn(&Way) -> &Line| {
        let counts = move |way: &&Way| way.left_out().is_none() || is_wrong(line(way));
        ways.iter().filter(counts).map(line)
    };
    let lines = lines(|way| &way.write).chain(lines(|way| &way.read));
    let mut rows: Vec<CompareRow> = lines.filter_map(|line| row(line, place)).collect();
    // The speed of wrong data means nothing.
    let is_right = |row: &Row| row.verified != Some(false);
    let medians: Vec<(Direction, f64)> = rows
        .iter()
        .filter(|row| row.row.method == MethodName::Standard && is_right(&row.row))
        .map(|row| (row.row.direction, row.row.bytes_per_second.median))
        .collect();
    for CompareRow { row, .. } in rows.iter_mut().filter(|row| is_right(&row.row)) {
        let base = medians.iter().find(|base| base.0 == row.direction);
        row.speed_up = base.map(|(_, base)| row.bytes_per_second.median / base);
    }
    rows
}

fn is_wrong(line: &Line) -> bool {
    line.verified == Some(false)
}

/// The row of a line: all of its samples; values over several samples leave the first out.
fn row(line: &Line, place: &RowPlace<'_>) -> Option<CompareRow> {
    let line = &Line { left_out: None, ..line.clone() };
    let mut row = row_of(line, None, place.clone())?;
    let (runs, spread) = Runs::of(line.bytes, &row.seconds)?;
    row.bytes_per_second = spread;
    let cpu: Vec<f64> = counted(&line.samples).iter().map(|spent| spent.cpu_seconds).collect();
    row.cpu_s_per_gb = cpu_per_gb(line.bytes, &cpu);
    Some(CompareRow { row, runs })
}

#[cfg(test)]
mod tests {
    use std::fs;

    use forebay::Options;
    use forebay::units::MIB;

    use super::*;
    use crate::bench::memory::HostMemory;
    use crate::bench::methods::Moved;
    use crate::compare::file::Allowed;

    const LEN: u64 = MIB + 4096;

    /// The standard method with a fault.
    struct Broken(Standard, &'static str, u32);

    impl Method for Broken {
        fn name(&self) -> MethodName {
            MethodName::Mmap
        }

        fn open(&mut self, job: &Job, memory: &Memory) -> Result<()> {
            self.0.open(job, memory)
        }

        fn read(&mut self, job: &Job, target: &mut Memory) -> Result<Moved> {
            if self.1 == "cuts, then fails" {
                return Err(Failure::new("all of it"));
            }
            let moved = self.0.read(job, target);
            if let (Memory::Host(host), "flips" | "flips, then fails") = (target, self.1) {
                host.bytes_mut()[4096] ^= 1;
            }
            moved
        }

        fn write(&mut self, job: &Job, source: &Memory) -> Result<Moved> {
            let moved = self.0.write(job, source);
            self.2 += 1;
            match self.1 {
                "flips, then fails" if self.2 > 1 => Err(Failure::new("half of it")),
                "fails" => Err(Failure::new("half of it").because("the drive is gone")),
                "cuts" | "cuts, then fails" => {
                    fs::File::options().write(true).open(&job.path).unwrap().set_len(7).unwrap();
                    moved
                }
                _ => moved,
            }
        }

        fn close(&mut self, job: &Job) -> Result<()> {
            self.0.close(job)
        }
    }

    fn broken(fault: &'static str, must: bool) -> Way {
        Way::new(Box::new(Broken(Standard::default(), fault, 0)), None, must, Cache::Resident)
    }

    /// The methods after this many runs, with the standard one, and the progress reports.
    fn run(ways: Vec<Way>, runs: u32) -> Result<(Vec<Way>, Vec<Told>)> {
        let place = tempfile::tempdir().unwrap();
        let engine = Engine::new(Options::default()).unwrap();
        let file = TestFile::find(Some(place.path()), Allowed::default()).unwrap();
        let pattern = Pattern::new(5);
        make::fill(file.path(), pattern, LEN).unwrap();
        let mut runner = Runner {
            engine: &engine,
            file: &file,
            memory: &mut Memory::Host(HostMemory::allocate(LEN).unwrap()),
            len: LEN,
            cache: Cache::Resident,
            pattern,
            prover: Prover::new(None),
        };
        let mut told = Vec::new();
        let mut ways: Vec<Way> = ways.into_iter().chain([Way::standard(Cache::Resident)]).collect();
        for run in 1..=runs {
            runner.run(&mut ways, run, &mut |one| {
                told.push(one.clone());
                Ok(())
            })?;
        }
        Ok((ways, told))
    }

    fn place() -> RowPlace<'static> {
        let (paths, drives) = (Vec::new(), Vec::new());
        RowPlace { target: "host", simulated: false, size: LEN, paths, drives }
    }

    #[test]
    fn every_second_run_goes_backwards() {
        let (ways, told) = run(vec![broken("", false)], 3).unwrap();
        let order: Vec<_> = told.iter().map(|one| (one.run, one.name.as_str())).collect();
        let (first, second) = ("mmap", "standard");
        let expected = [(1, first), (1, second), (2, second), (2, first), (3, first), (3, second)];
        assert_eq!(order, expected);
        assert!(told.iter().all(|one| one.verified == (true, true)));
        let rows = rows(&ways, &place());
        assert_eq!(rows.len(), 4);
        for found in &rows {
            let seconds = &found.row.seconds;
            assert_eq!((seconds.len(), found.row.verified), (3, Some(true)));
            let (runs, spread) = Runs::of(LEN, seconds).unwrap();
            assert_eq!((found.runs, found.row.bytes_per_second), (runs, spread));
            assert!(found.row.speed_up.is_some());
        }
    }

    #[test]
    fn wrong_data_are_seen_in_their_direction_and_harm_nobody_else() {
        for (fault, verified) in [("cuts", (false, true)), ("flips", (true, false))] {
            let (ways, told) = run(vec![broken(fault, false)], 2).unwrap();
            for one in &told {
                let expected = if one.name == "standard" { (true, true) } else { verified };
                assert_eq!(one.verified, expected, "{fault}: {one:?}");
            }
            let wrong =
                rows(&ways, &place()).into_iter().filter(|row| row.row.verified == Some(false));
            assert_eq!(wrong.count(), 1, "{fault}");
        }
    }

    #[test]
    fn wrong_data_are_not_forgotten_where_something_fails_later() {
        let of = |fault| {
            let (ways, _) = run(vec![broken(fault, false)], 2).unwrap();
            assert!(ways[0].left_out().is_some(), "{fault}");
            let rows = rows(&ways, &place()).into_iter().map(|row| row.row);
            rows.filter(|row| row.method == MethodName::Mmap).collect::<Vec<_>>()
        };
        let told = |row: &Row| (row.direction, row.verified, row.speed_up);
        let flipped: Vec<_> = of("flips, then fails").iter().map(told).collect();
        assert_eq!(flipped, [(Direction::Read, Some(false), None)]);
        let cut: Vec<_> = of("cuts, then fails").iter().map(told).collect();
        assert_eq!(cut, [(Direction::Write, Some(false), None)]);
    }

    #[test]
    fn wrong_data_are_compared_with_nothing_and_nothing_with_them() {
        let (mut ways, _) = run(vec![broken("flips", false)], 2).unwrap();
        let ups = |ways: &[Way]| -> Vec<_> {
            let rows = rows(ways, &place()).into_iter().map(|row| row.row);
            rows.map(|row| (row.direction, row.method, row.speed_up.is_some())).collect()
        };
        let (write, read) = (Direction::Write, Direction::Read);
        let (flips, standard) = (MethodName::Mmap, MethodName::Standard);
        let expected = [(write, flips, true), (write, standard, true), (read, flips, false)];
        assert_eq!(ups(&ways), [&expected[..], &[(read, standard, true)]].concat());
        ways[1].write.verified = Some(false);
        assert!(ups(&ways)[..2].iter().all(|(.., up)| !up), "the baseline had wrong data");
    }

    #[test]
    fn a_way_that_fails_is_left_out_unless_it_was_demanded() {
        let (ways, told) = run(vec![broken("fails", false)], 2).unwrap();
        assert_eq!(ways[0].left_out(), Some("half of it: the drive is gone"));
        assert!(told.iter().all(|one| one.name == "standard" && one.verified == (true, true)));
        assert_eq!((told.len(), rows(&ways, &place()).len()), (2, 2));
        let failure = run(vec![broken("fails", true)], 2).err().unwrap();
        assert_eq!(failure.message, "half of it");
    }

    #[test]
    fn whoever_is_told_can_end_it() {
        let place = tempfile::tempdir().unwrap();
        let engine = Engine::new(Options::default()).unwrap();
        let file = TestFile::find(Some(place.path()), Allowed::default()).unwrap();
        make::fill(file.path(), Pattern::new(5), LEN).unwrap();
        let mut runner = Runner {
            engine: &engine,
            file: &file,
            memory: &mut Memory::Host(HostMemory::allocate(LEN).unwrap()),
            len: LEN,
            cache: Cache::Resident,
            pattern: Pattern::new(5),
            prover: Prover::new(None),
        };
        let mut ways = [Way::standard(Cache::Resident), Way::standard(Cache::Resident)];
        let end = runner.run(&mut ways, 1, &mut |_| Err(Failure::new("nobody reads")));
        assert_eq!(end.unwrap_err().message, "nobody reads");
        assert_eq!((ways[0].write.samples.len(), ways[1].write.samples.len()), (1, 0));
    }
}
