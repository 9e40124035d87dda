//! The kernel's turns of a comparison: alone, then during a read.

use std::cell::RefCell;
use std::rc::Rc;

use forebay::Engine;

use super::compute::{Beside, Compute, MemoryLimit};
use super::json::{CompareRow, ComputeFacts};
use super::run::Runner;
use crate::bench::data::Pattern;
use crate::bench::stats::rate;
use crate::bench::target::Target;
use crate::failure::Result;
use crate::report::compared::runs::Runs;
use crate::report::json::{Direction, MethodName};

/// The result of one turn, for its line.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Turn {
    /// Which run, from 1.
    pub(super) run: u32,
    /// The kernel's read and write rate, alone.
    pub(super) alone: f64,
    /// Its rate during a read.
    pub(super) beside: f64,
    /// Bytes per second of that read.
    pub(super) read: f64,
    /// Whether all data so far were verified.
    pub(super) verified: bool,
}

/// The kernel, and its measurements so far.
pub(super) struct Work {
    compute: Rc<RefCell<Compute>>,
    method: Beside,
    limit: MemoryLimit,
    alone: Vec<f64>,
    beside: Vec<f64>,
    read: Vec<f64>,
    verified: bool,
    /// Whether a turn failed, after which there are no more.
    failed: bool,
}

impl Work {
    /// Prepares to work on `len` bytes.
    ///
    /// # Errors
    /// There is no GPU, not enough memory, or the GPU runs no kernels.
    pub(super) fn new(
        engine: &Engine,
        target: &Target,
        len: u64,
        pattern: Pattern,
    ) -> Result<Self> {
        let mut compute = Compute::new(engine, target, len, pattern)?;
        let limit = compute.limit()?;
        let compute = Rc::new(RefCell::new(compute));
        let method = Beside::new(engine, Rc::clone(&compute));
        let (alone, beside, read) = (Vec::new(), Vec::new(), Vec::new());
        let (verified, failed) = (true, false);
        Ok(Self { compute, method, limit, alone, beside, read, verified, failed })
    }

    /// Whether a turn failed. Then earlier measurements do not count, but wrong data do.
    pub(super) fn has_failed(&self) -> bool {
        self.failed
    }

    /// Whether any turn, also a failed one, found wrong data.
    pub(super) fn found_wrong(&self) -> bool {
        !self.verified || !self.compute.borrow().verified
    }

    /// Runs the kernel alone, then during a read of the file.
    ///
    /// # Errors
    /// Errors of the GPU and of the read. The text says why the page cache is not in the required
    /// state.
    pub(super) fn turn(
        &mut self,
        runner: &mut Runner<'_>,
        run: u32,
    ) -> Result<std::result::Result<Turn, String>> {
        let turn = self.whole_turn(runner, run);
        self.failed = !matches!(turn, Ok(Ok(_)));
        turn
    }

    fn whole_turn(
        &mut self,
        runner: &mut Runner<'_>,
        run: u32,
    ) -> Result<std::result::Result<Turn, String>> {
        let alone = self.compute.borrow_mut().alone()?;
        let sample = match runner.sample(&mut self.method, Direction::Read, run)? {
            Ok(sample) => sample,
            Err(reason) => return Ok(Err(reason)),
        };
        self.verified &= sample.verified;
        self.compute.borrow_mut().check()?;
        self.verified &= self.compute.borrow().verified;
        let beside = self.method.last.map_or(0.0, |(_, rate)| rate);
        let read = rate(runner.len, sample.spent.seconds);
        self.alone.push(alone);
        self.beside.push(beside);
        self.read.push(read);
        Ok(Ok(Turn { run, alone, beside, read, verified: self.verified }))
    }

    /// The summary of all turns, with `rows` of reads without a kernel; none without a turn, or if
    /// one failed.
    pub(super) fn facts(&self, rows: &[CompareRow], simulated: bool) -> Option<ComputeFacts> {
        if self.failed {
            return None;
        }
        let of = |rates: &[f64]| Runs::of_rates(rates).map(|(runs, _)| runs);
        let (alone, beside, read) = (of(&self.alone)?, of(&self.beside)?, of(&self.read)?);
        let ours = rows.iter().find(|found| {
            let row = &found.row;
            let chosen = row.method == MethodName::Forebay && row.demanded.is_none();
            chosen && row.direction == Direction::Read
        });
        // The speed of wrong data means nothing.
        let ours = ours.filter(|found| self.verified && found.row.verified != Some(false));
        let limit = self.limit.bytes_per_second;
        Some(ComputeFacts {
            kernel: "xor".into(),
            bytes: self.compute.borrow().len(),
            limit,
            limit_by: if self.limit.filled { "filling" } else { "clock_and_width" }.into(),
            alone,
            share_of_limit: alone.median / limit,
            beside,
            read,
            share_of_read: ours.map(|row| read.median / row.runs.median),
            verified: self.verified,
            simulated,
        })
    }
}

#[cfg(test)]
mod tests {
    use forebay::Options;
    use forebay::units::MIB;

    use super::*;
    use crate::bench::make;
    use crate::bench::proof::Prover;
    use crate::compare::file::Allowed;
    use crate::compare::file::TestFile;
    use crate::report::json::Cache;

    #[test]
    fn wrong_data_are_not_forgotten_where_a_later_turn_fails() {
        let place = tempfile::tempdir_in(".").unwrap();
        let engine = Engine::new(Options::default()).unwrap();
        let target = Target::find(&engine, Some(&"sim".parse().unwrap())).unwrap();
        let file = TestFile::find(Some(place.path()), Allowed::default()).unwrap();
        make::fill(file.path(), Pattern::new(5), MIB).unwrap();
        let mut runner = Runner {
            engine: &engine,
            file: &file,
            memory: &mut target.allocate(&engine, MIB).unwrap(),
            len: MIB,
            cache: Cache::Resident,
            pattern: Pattern::new(5),
            prover: Prover::new(None),
        };
        let mut work = Work::new(&engine, &target, MIB, Pattern::new(5)).unwrap();
        assert!(work.turn(&mut runner, 1).unwrap().unwrap().verified && !work.found_wrong());
        assert!(work.facts(&[], true).unwrap().verified);
        runner.pattern = Pattern::new(6);
        assert!(!work.turn(&mut runner, 2).unwrap().unwrap().verified);
        assert!(work.found_wrong() && !work.facts(&[], true).unwrap().verified);
        std::fs::remove_file(file.path()).unwrap();
        assert!(work.turn(&mut runner, 3).is_err());
        assert!(work.has_failed() && work.found_wrong() && work.facts(&[], true).is_none());
    }
}
