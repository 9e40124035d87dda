//! Our own engine, by the route that it chooses or by one that the user demands.

use ::forebay::{
    Engine, File, OpenOptions, Outcome, RequestOptions, Route, RouteShare, Source, SyncMode, Target,
};

use super::{Job, Method, Moved};
use crate::bench::memory::{Memory, whole};
use crate::failure::Result;
use crate::report::json::{Cache, Direction, MethodName};

/// One engine, used for every sample, as a program that keeps its engine does it.
#[derive(Debug)]
pub struct Forebay {
    engine: Engine,
    route: Option<Route>,
    file: Option<File>,
}

impl Forebay {
    /// Moves by `engine`, by `route` where one is demanded.
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

    fn write(&mut self, job: &Job, source: &Memory) -> Result<Moved> {
        let source = match source {
            Memory::Host(host) => Source::Host(&host.bytes()[..whole(job.len)]),
            Memory::Gpu(gpu) => Source::Buffer(&gpu.buffer, 0..job.len),
        };
        Ok(moved(&self.file().write_with(0, source, &self.request(job))?))
    }

    fn close(&mut self) {
        self.file = None;
    }
}

fn moved(outcome: &Outcome) -> Moved {
    let (route, reason) = routes(&outcome.routes);
    Moved { bytes: outcome.bytes, route, reason }
}

/// The routes that were taken, joined by `+`, and why. Each part is named with its share where
/// there are several.
#[must_use]
pub fn routes(shares: &[RouteShare]) -> (Option<String>, Option<String>) {
    let mut names: Vec<&str> = Vec::new();
    for share in shares.iter().filter(|share| share.bytes > 0) {
        if !names.contains(&share.route.name()) {
            names.push(share.route.name());
        }
    }
    let total: u64 = shares.iter().map(|share| share.bytes).sum();
    let several = shares.iter().filter(|share| share.bytes > 0).count() > 1;
    let reasons = shares.iter().filter(|share| share.bytes > 0).map(|share| {
        if several {
            let percent = percent(share.bytes, total);
            format!("{percent} {}: {}", share.route, share.reason)
        } else {
            share.reason.to_string()
        }
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
    use ::forebay::Reason;

    use super::*;

    #[test]
    fn routes_name_every_part() {
        let share = |route, reason, bytes| RouteShare { route, reason, bytes };
        assert_eq!(routes(&[]), (None, None));
        assert_eq!(
            routes(&[share(Route::Cached, Reason::Resident, 5)]),
            (Some("cached".into()), Some("resident in the page cache".into()))
        );
        let (route, reason) = routes(&[
            share(Route::Staged, Reason::NotResident, 999),
            share(Route::Cached, Reason::Resident, 1),
            share(Route::Host, Reason::Demanded, 0),
        ]);
        assert_eq!(route.unwrap(), "staged+cached");
        assert_eq!(
            reason.unwrap(),
            "99 % staged: not resident, read from the drive with O_DIRECT; \
             <1 % cached: resident in the page cache"
        );
    }
}
