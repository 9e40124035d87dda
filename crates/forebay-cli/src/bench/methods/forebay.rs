//! The engine, by the route that it chooses or by one that the user requires.

use std::path::Path;

use ::forebay::{
    Engine, File, OpenOptions, Outcome, Reason, RequestOptions, Route, RouteShare, Source,
    SyncMode, Target,
};

use super::{Job, Method, Moved};
use crate::bench::memory::{Memory, whole};
use crate::bench::target::Target as Place;
use crate::failure::Result;
use crate::report::json::{Cache, Direction, MethodName};
use crate::steps::Step;

/// One engine, used for every sample, as in a program that keeps its engine.
#[derive(Debug)]
pub struct Forebay {
    engine: Engine,
    route: Option<Route>,
    file: Option<File>,
}

impl Forebay {
    /// Moves with `engine`, by `route` if one is required.
    #[must_use]
    pub fn new(engine: Engine, route: Option<Route>) -> Self {
        Self { engine, route, file: None }
    }

    fn file(&self) -> &File {
        self.file.as_ref().expect("a method is opened before it moves")
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
}

impl Method for Forebay {
    fn name(&self) -> MethodName {
        MethodName::Forebay
    }

    fn open(&mut self, job: &Job, _memory: &Memory) -> Result<()> {
        let mut how = OpenOptions::default();
        how.write = job.direction == Direction::Write;
        let _step = Step::begin("open", &job.path);
        self.file = Some(self.engine.open_with(&job.path, &how)?);
        Ok(())
    }

    fn read(&mut self, job: &Job, target: &mut Memory) -> Result<Moved> {
        let target = match target {
            Memory::Host(host) => Target::Host(&mut host.bytes_mut()[..whole(job.len)]),
            Memory::Gpu(gpu) => Target::Buffer(&mut gpu.buffer, 0..job.len),
        };
        Ok(moved(&self.file().read_with(0, target, &self.request(job))?))
    }

    fn reading(&self, job: &Job) -> Option<Step> {
        Some(Step::of_engine("read", &job.path, &self.engine, self.route))
    }

    fn write(&mut self, job: &Job, source: &Memory) -> Result<Moved> {
        let source = match source {
            Memory::Host(host) => Source::Host(&host.bytes()[..whole(job.len)]),
            Memory::Gpu(gpu) => Source::Buffer(&gpu.buffer, 0..job.len),
        };
        Ok(moved(&self.file().write_with(0, source, &self.request(job))?))
    }

    fn close(&mut self, _job: &Job) -> Result<()> {
        Ok(self.file.take().map_or(Ok(()), File::close)?)
    }
}

/// Reads the first `len` bytes of the file at `path` by `route`, to find out if the route is
/// available.
///
/// # Errors
/// If it is not available.
pub fn try_route(
    engine: &Engine,
    target: &Place,
    path: &Path,
    len: u64,
    route: Route,
) -> Result<()> {
    let mut memory = target.allocate(engine, len)?;
    let mut forebay = Forebay::new(engine.clone(), Some(route));
    let _step = Step::of_engine("read", path, engine, Some(route));
    let path = path.to_owned();
    let job = Job { path, len, direction: Direction::Read, cache: Cache::Resident };
    forebay.open(&job, &memory)?;
    forebay.read(&job, &mut memory).map(drop)
}

fn moved(outcome: &Outcome) -> Moved {
    let (route, reason) = routes(&outcome.routes);
    Moved { bytes: outcome.bytes, route, reason, said: said(&outcome.routes) }
}

/// The engine's report on its bytes, for a verdict.
#[must_use]
pub fn said(shares: &[RouteShare]) -> Vec<(Route, u64)> {
    shares.iter().map(|share| (share.route, share.bytes)).collect()
}

/// The routes taken, joined by `+`, and the reasons. With several, each reason has its share and
/// route.
#[must_use]
pub fn routes(shares: &[RouteShare]) -> (Option<String>, Option<String>) {
    let moved = shares.iter().filter(|share| share.bytes > 0);
    let parts: Vec<_> = moved.map(|share| (share.route, share.reason, share.bytes)).collect();
    describe(&parts)
}

fn describe(parts: &[(Route, Reason, u64)]) -> (Option<String>, Option<String>) {
    let mut names: Vec<&str> = Vec::new();
    for (route, ..) in parts {
        if !names.contains(&route.name()) {
            names.push(route.name());
        }
    }
    let total: u64 = parts.iter().map(|(.., bytes)| bytes).sum();
    let reasons = parts.iter().map(|(route, reason, bytes)| match parts.len() {
        1 => reason.to_string(),
        _ => format!("{} {route}: {reason}", percent(*bytes, total)),
    });
    let reasons = reasons.collect::<Vec<_>>().join("; ");
    (!names.is_empty()).then(|| (names.join("+"), reasons)).unzip()
}

fn percent(part: u64, total: u64) -> String {
    let percent = u128::from(part) * 100 / u128::from(total.max(1));
    if percent == 0 { "<1 %".into() } else { format!("{percent} %") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn routes_name_every_part() {
        assert_eq!(routes(&[]), (None, None));
        assert_eq!(
            describe(&[(Route::Cached, Reason::Resident, 5)]),
            (Some("cached".into()), Some("resident in the page cache".into()))
        );
        let (route, reason) = describe(&[
            (Route::Staged, Reason::NotResident, 999),
            (Route::Cached, Reason::Resident, 1),
        ]);
        assert_eq!(route.as_deref(), Some("staged+cached"));
        assert_eq!(
            reason.as_deref(),
            Some(
                "99 % staged: not resident, read from the drive with O_DIRECT; \
                 <1 % cached: resident in the page cache"
            )
        );
    }
}
