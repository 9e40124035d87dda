//! The runs of a comparison: each way writes the file from the target and reads it back, then all
//! again, as often as asked.
//!
//! Every second run goes backwards, so that a machine that grows slower or faster favours nobody.

use forebay::{Engine, Route};

use super::file::TestFile;
use super::runs::{Runs, counted};
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
use crate::failure::Result;
use crate::report::json::{Cache, Direction, MethodName};
use crate::steps;

/// One way of those that are compared.
pub(super) struct Way {
    method: Box<dyn Method>,
    /// What its name says, in lines and warnings.
    pub(super) name: String,
    /// Whether its failure is that of the whole comparison.
    demanded: bool,
    write: Line,
    read: Line,
}

impl Way {
    /// The standard way.
    pub(super) fn standard(cache: Cache) -> Self {
        Self::new(Box::new(Standard::default()), None, false, cache)
    }

    /// Ours, as the engine chooses or by a route.
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

    /// Why it could not go on.
    pub(super) fn left_out(&self) -> Option<&str> {
        self.write.left_out.as_deref()
    }
}

/// What one run of one way came to, for its line.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Told {
    /// The way.
    pub(super) name: String,
    /// Which run, from 1.
    pub(super) run: u32,
    /// Bytes per second.
    pub(super) write: f64,
    /// Bytes per second.
    pub(super) read: f64,
    /// Whether every byte was right, written and read.
    pub(super) verified: (bool, bool),
}

/// What the runs need.
pub(super) struct Runner<'a> {
    pub(super) engine: &'a Engine,
    pub(super) file: &'a TestFile,
    pub(super) memory: &'a mut Memory,
    pub(super) len: u64,
    pub(super) cache: Cache,
    /// What the file holds now.
    pub(super) pattern: Pattern,
    pub(super) prover: Prover,
}

impl Runner<'_> {
    /// Has each of `ways` run once; `tell` hears of it.
    ///
    /// # Errors
    /// Those of a way that was demanded, and of `tell`.
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

    /// Writes and reads once by `way`; none where it was left out on the way.
    fn turn(&mut self, way: &mut Way, run: u32) -> Result<Option<Told>> {
        self.file.check()?;
        let samples = self.samples(way.method.as_mut(), run);
        let (write, read) = match samples {
            Ok(Ok(samples)) => samples,
            Ok(Err(reason)) => {
                way.write.left_out = Some(reason);
                return Ok(None);
            }
            Err(failure) if way.demanded => return Err(failure),
            Err(failure) => {
                way.write.left_out = Some(failure.in_one_line());
                // The next way must find the file as the pattern says, whatever this one left.
                make::fill(self.file.path(), self.pattern, self.len)?;
                return Ok(None);
            }
        };
        let told = Told {
            name: way.name.clone(),
            run,
            write: rate(self.len, write.spent.seconds),
            read: rate(self.len, read.spent.seconds),
            verified: (write.verified, read.verified),
        };
        way.write.add(self.len, write);
        way.read.add(self.len, read);
        Ok(Some(told))
    }

    fn samples(
        &mut self,
        method: &mut dyn Method,
        run: u32,
    ) -> Result<Result<(Sample, Sample), String>> {
        let write = match self.sample(method, Direction::Write, run)? {
            Ok(sample) => sample,
            Err(reason) => return Ok(Err(reason)),
        };
        Ok(self.sample(method, Direction::Read, run)?.map(|read| (write, read)))
    }

    /// Takes one sample; the text says why the file's pages are not where they should be.
    ///
    /// # Errors
    /// The way's, and the system's.
    pub(super) fn sample(
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

/// The rows of all ways, writes before reads; those that were left out have none.
pub(super) fn rows(ways: &[Way], place: &RowPlace<'_>) -> Vec<CompareRow> {
    let ways = || ways.iter().filter(|way| way.left_out().is_none());
    let lines = ways().map(|way| &way.write).chain(ways().map(|way| &way.read));
    let mut rows: Vec<CompareRow> = lines.filter_map(|line| row(line, place)).collect();
    let medians: Vec<(Direction, f64)> = rows
        .iter()
        .filter(|row| row.row.method == MethodName::Standard)
        .map(|row| (row.row.direction, row.row.bytes_per_second.median))
        .collect();
    for CompareRow { row, .. } in &mut rows {
        let base = medians.iter().find(|base| base.0 == row.direction);
        row.speed_up = base.map(|(_, base)| row.bytes_per_second.median / base);
    }
    rows
}

/// The row of a line: all of its samples, but what is said of several leaves the first out.
fn row(line: &Line, place: &RowPlace<'_>) -> Option<CompareRow> {
    let mut row = row_of(line, None, place.clone())?;
    let (runs, spread) = Runs::of(line.bytes, &row.seconds)?;
    row.bytes_per_second = spread;
    let cpu: Vec<f64> = counted(&line.samples).iter().map(|spent| spent.cpu_seconds).collect();
    row.cpu_s_per_gb = cpu_per_gb(line.bytes, &cpu);
    Some(CompareRow { row, runs })
}
