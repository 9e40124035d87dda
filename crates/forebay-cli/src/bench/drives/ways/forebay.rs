//! The engine: one thread requests all files in sequence, then waits for all.

use ::forebay::{Engine, File, OpenOptions, RequestOptions, Route, RouteShare, SyncMode, Transfer};

use super::{Job, Way};
use crate::bench::cpu::{Spent, timed};
use crate::bench::drives::targets::Targets;
use crate::bench::methods::Moved;
use crate::bench::methods::forebay::{routes, said};
use crate::failure::Result;
use crate::report::json::{Cache, Direction};
use crate::steps::Step;

/// One engine for every sample, like in a program that keeps its engine.
#[derive(Debug)]
pub struct Forebay {
    engine: Engine,
    route: Option<Route>,
    files: Vec<File>,
}

impl Forebay {
    /// Moves with `engine`, by `route` if one is required.
    #[must_use]
    pub fn new(engine: Engine, route: Option<Route>) -> Self {
        Self { engine, route, files: Vec::new() }
    }

    fn request(&self, job: &Job) -> RequestOptions {
        let mut request = RequestOptions::default();
        request.route = self.route;
        request.exact = job.direction == Direction::Read;
        if job.direction == Direction::Write && job.cache == Cache::Cold {
            request.sync = SyncMode::Data;
        }
        request
    }

    /// Starts all transfers, in sequence.
    fn start(&self, job: &Job, targets: &mut Targets) -> Result<Vec<Transfer>> {
        let request = self.request(job);
        let transfers = job.parts.iter().zip(&self.files).map(|(part, file)| {
            let buffer = targets.take(part.index)?;
            Ok(match job.direction {
                Direction::Read => file.start_read(0, buffer, &request)?,
                Direction::Write => file.start_write(0, buffer, &request)?,
            })
        });
        transfers.collect()
    }
}

impl Way for Forebay {
    fn open(&mut self, job: &Job, _targets: &mut Targets) -> Result<()> {
        let mut how = OpenOptions::default();
        how.write = job.direction == Direction::Write;
        self.files.clear();
        for part in &job.parts {
            let _step = Step::begin("open", &part.path);
            self.files.push(self.engine.open_with(&part.path, &how)?);
        }
        Ok(())
    }

    fn run(&mut self, job: &Job, targets: &mut Targets) -> Result<(Moved, Spent)> {
        let mut given_back = Vec::with_capacity(job.parts.len());
        let (result, spent) = timed(|| -> Result<(u64, Vec<RouteShare>)> {
            let (mut bytes, mut shares) = (0, Vec::new());
            for (part, transfer) in job.parts.iter().zip(self.start(job, targets)?) {
                let (outcome, buffer) = transfer.wait();
                given_back.push((part.index, buffer));
                let outcome = outcome?;
                bytes += outcome.bytes;
                outcome.routes.iter().for_each(|share| add(&mut shares, share));
            }
            Ok((bytes, shares))
        });
        given_back.into_iter().for_each(|(index, buffer)| targets.give_back(index, buffer));
        let (bytes, shares) = result?;
        let (route, reason) = routes(&shares);
        Ok((Moved { bytes, route, reason, said: said(&shares) }, spent))
    }

    fn close(&mut self, _job: &Job) -> Result<()> {
        let closed: Vec<_> = self.files.drain(..).map(File::close).collect();
        Ok(closed.into_iter().collect::<::forebay::Result<()>>()?)
    }
}

/// Adds the bytes of one transfer by one route to `sum`, the largest first.
fn add(sum: &mut Vec<RouteShare>, share: &RouteShare) {
    let same = |known: &&mut RouteShare| (known.route, known.reason) == (share.route, share.reason);
    match sum.iter_mut().find(same) {
        Some(known) => known.bytes += share.bytes,
        None => sum.push(*share),
    }
    sum.sort_by_key(|share| std::cmp::Reverse(share.bytes));
}
