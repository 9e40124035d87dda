//! Moves a few MiB in both directions between the path and the GPU, by every possible route: a
//! request of the core's engine method, which verifies every byte.
//!
//! A named file is only read. In a folder scratch is made, by the rules of [`scratch`]: only files
//! made here are written. The first read and write by a route have a time limit. All of it runs
//! on a separate thread, since other calls have none: a path may stop answering at any time.

use std::fs::File;
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};
use std::slice;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use forebay::units::MIB;
use forebay::{Engine, Error, OpenOptions, Route};
use forebay_measure::data::Pattern;
use forebay_measure::failure::{Failure, Result};
use forebay_measure::make;
use forebay_measure::memory::whole;
use forebay_measure::output::New;
use forebay_measure::proof::Prover;
use forebay_measure::results::Direction;
use forebay_measure::results::verdict::VerdictFacts;
use forebay_measure::scratch;
use forebay_measure::target::Target;
use forebay_measure::workload::backend::Method;
use forebay_measure::workload::check::Most;
use forebay_measure::workload::measure::proofs_of;
use forebay_measure::workload::pattern::Region;
use forebay_measure::workload::run::Ready;
use forebay_measure::workload::{self, Lane, Load};

use super::json::{End, Transfer};

/// Bytes of a transfer.
const LEN: u64 = 4 * MIB;
/// Time limit of the first read or write by a route: a drive in standby answers after some
/// seconds.
pub(super) const BOUND: Duration = Duration::from_secs(10);
/// Longest time without progress, in time limits of a read: the read, the plain calls before and
/// after it, and the opening of cuFile.
const LIMITS_PER_STEP: u32 = 3;

/// The transfers that were made.
#[derive(Debug, Default)]
pub(super) struct Moved {
    pub(super) transfers: Vec<Transfer>,
    /// Why transfers are missing.
    pub(super) ended: Option<String>,
    /// Whether that is a failure; otherwise there was nothing to move, or no place for scratch.
    pub(super) has_failed: bool,
}

/// All transfers; `direct` says why the direct route should not be tried.
pub(super) fn all(
    bound: Duration,
    engine: &Engine,
    target: &Target,
    path: &Path,
    direct: Option<String>,
) -> Moved {
    let (done, transfers) = channel();
    let (engine, target, path) = (engine.clone(), target.clone(), path.to_owned());
    let thread = thread::spawn(move || {
        Run::prepare(bound, engine, target, path)?.each(direct, &done);
        Ok(())
    });
    gathered(&transfers, bound * LIMITS_PER_STEP, thread)
}

/// Collects transfers until the end of their thread, or until none arrived for `most`.
fn gathered(
    transfers: &Receiver<Transfer>,
    most: Duration,
    thread: JoinHandle<Result<()>>,
) -> Moved {
    let mut moved = Moved::default();
    (moved.ended, moved.has_failed) = loop {
        match transfers.recv_timeout(most) {
            Ok(transfer) => moved.transfers.push(transfer),
            Err(RecvTimeoutError::Timeout) => {
                let most = most.as_secs();
                let reason = format!("the path no longer answers: no progress for {most} s");
                break (Some(reason), true);
            }
            Err(RecvTimeoutError::Disconnected) => {
                break match thread.join() {
                    Ok(ended) => (ended.err().map(|failure| failure.in_one_line()), false),
                    Err(_) => (Some("the transfer thread panicked".into()), true),
                };
            }
        }
    };
    moved
}

struct Run {
    /// Time limit of the first read or write by a route.
    bound: Duration,
    engine: Engine,
    target: Target,
    file: PathBuf,
    len: u64,
    /// The file if it is ours, so that it may be written.
    scratch: Vec<New>,
    prover: Arc<Prover>,
}

impl Run {
    fn prepare(bound: Duration, engine: Engine, target: Target, path: PathBuf) -> Result<Self> {
        let facts = std::fs::metadata(&path).map_err(|e| Failure::at("inspect", &path, &e))?;
        let (scratch, file, len) = if facts.is_dir() {
            let scratch = scratch::create(&path, 1)?;
            let file = scratch[0].path();
            make::fill(&file, Pattern::new(0), LEN)?;
            (scratch, file, LEN)
        } else {
            let len = engine.open(&path)?.len()?.min(LEN);
            (Vec::new(), path, len)
        };
        if len == 0 {
            return Err(Failure::new(format!("cannot move bytes of `{}`", file.display()))
                .because("it is empty"));
        }
        let prover = Arc::new(Prover::new(target.device.as_ref().map(|device| device.info())));
        Ok(Self { bound, engine, target, file, len, scratch, prover })
    }

    fn each(&self, direct: Option<String>, done: &Sender<Transfer>) {
        let send = |transfer| {
            let _ = done.send(transfer); // the receiver may be gone
        };
        // The direct route is tried whenever there is a GPU: a provider answers, or its absence is
        // reported.
        let routes: &[Route] = match self.target.device {
            Some(_) => &[Route::Direct, Route::Staged, Route::Cached],
            None => &[Route::Host],
        };
        let write = (!self.scratch.is_empty()).then_some(Direction::Write);
        for &route in routes {
            let refused = match direct.clone().filter(|_| route == Route::Direct) {
                Some(reason) => Ok(Some(reason)),
                None => self.first(Direction::Read, route),
            };
            let refused = refused.unwrap_or_else(|failure| {
                send(Transfer::failed(Direction::Read, route, &failure));
                // It was a read, so the file is unchanged and the other routes can still be tried.
                Some("the first read failed".into())
            });
            for direction in write.into_iter().chain([Direction::Read]) {
                let refused = match (direction, &refused) {
                    // A route may serve reads only.
                    (Direction::Write, None) => self.first(direction, route),
                    (_, refused) => Ok(refused.clone()),
                };
                send(match refused {
                    Ok(Some(reason)) => {
                        Transfer::new(direction, route).ending(End::Refused, reason)
                    }
                    Ok(None) => self
                        .transfer(direction, route)
                        .unwrap_or_else(|failure| Transfer::failed(direction, route, &failure)),
                    // The write may still change the file, so nothing more can be verified.
                    Err(failure) => return send(Transfer::failed(direction, route, &failure)),
                });
            }
        }
    }

    /// Makes a first transfer by `route`, which also makes the engine open cuFile: its counters can
    /// only be read from then on. Returns why the route is unavailable, if it is. Other errors of
    /// a transfer recur in the next.
    fn first(&self, direction: Direction, route: Route) -> Result<Option<String>> {
        let memory = self.target.allocate(&self.engine, self.len)?;
        let mut how = OpenOptions::default();
        how.write = direction == Direction::Write;
        let file = self.engine.open_with(&self.file, &how)?;
        let request = match direction {
            Direction::Read => file.read(memory),
            Direction::Write => file.write(memory),
        };
        match request.route(route).start() {
            Err(Error::RouteUnavailable { reason, .. }) => Ok(Some(reason)),
            started => match started?.wait_at_most(self.bound) {
                (Err(error @ Error::TimedOut { .. }), _) => Err(error.into()),
                _ => Ok(None),
            },
        }
    }

    /// Makes a transfer, between two readings of independent counters, and verifies its bytes.
    fn transfer(&self, direction: Direction, route: Route) -> Result<Transfer> {
        let is_write = direction == Direction::Write;
        let end = workload::End::Bytes(self.len);
        let load = Load::reads(Method::Forebay(Some(route)), self.len, end).in_direction(direction);
        let (path, device) = (self.file.clone(), self.target.device.clone());
        let region = Region { start: 0, len: self.len };
        let lanes = [Lane { path, device, region, ..Lane::default() }];
        let before = if is_write { Vec::new() } else { self.plain()? };
        let files = [(self.engine.open(&self.file)?, self.len)];
        let sources = self.prover.sources(&self.engine, &files, &[]);
        let mut ready = Ready::new(&self.engine, &load, &lanes)?;
        let span = sources.begin();
        let ran = ready.run(&[String::new()])?;
        let seen = span.end_each();
        let proofs = proofs_of(slice::from_ref(&self.prover), &seen, &ran.of_targets);
        let transfer = Transfer {
            bytes: ran.bytes,
            seconds: ran.span.as_secs_f64(),
            routes: ran.taken().into_iter().filter(|taken| taken.bytes > 0).collect(),
            verdict: VerdictFacts::of(&proofs),
            ..Transfer::new(direction, route)
        };
        let (end, reason) = match ready.check(&self.engine, &Most::USUAL)?.right {
            Some(true) => return Ok(transfer.judged()),
            _ if is_write => (End::Failed, "the file differs from what was written"),
            // A different process may write to a file that is not ours.
            _ if self.plain()? != before => (End::Refused, "the file changed during the read"),
            _ => (End::Failed, "the bytes that arrived differ from the file"),
        };
        Ok(transfer.ending(end, reason))
    }

    /// The file's bytes by plain calls.
    fn plain(&self) -> Result<Vec<u8>> {
        let mut bytes = vec![0; whole(self.len)];
        let read = File::open(&self.file).and_then(|file| file.read_exact_at(&mut bytes, 0));
        read.map_err(|error| Failure::at("read", &self.file, &error))?;
        Ok(bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A library that accepts a file and then hangs does not block the working routes.
    #[test]
    fn where_the_direct_way_hangs_the_others_are_tried() {
        let new = || Engine::new(forebay::Options::default()).unwrap();
        let engine = new();
        let folder = tempfile::tempdir_in(".").unwrap();
        let path = folder.path().join("file");
        std::fs::write(&path, [7; 4096]).unwrap();
        if let Some(reason) = engine.open(&path).unwrap().no_direct_io() {
            return println!("skipped: a direct route that hangs: {reason}");
        }
        std::fs::remove_file(&path).unwrap();
        // The hanging transfer uses all of it. On a busy machine writes and their syncs may as
        // well: then retry with more time.
        let mut slow = Vec::new();
        let (bound, moved) = [3, 10, 40]
            .map(Duration::from_secs)
            .into_iter()
            .find_map(|bound| {
                let engine = new();
                let gpu = "sim:cufile=hang".parse().unwrap();
                let target = Target::find(&engine, Some(&gpu)).unwrap();
                let moved = all(bound, &engine, &target, folder.path(), None);
                let is_slow = moved.ended.is_some()
                    || moved.transfers.iter().skip(1).any(Transfer::has_failed);
                if is_slow {
                    slow.push(moved);
                    return None;
                }
                Some((bound, moved))
            })
            .unwrap_or_else(|| panic!("every try was slow: {slow:#?}"));
        let ends: Vec<_> = moved.transfers.iter().map(|t| (t.required.name(), t.end)).collect();
        let (refused, staged) = (("direct", End::Refused), ("staged", End::Moved));
        let cached = ("cached", End::Moved);
        let expected = [("direct", End::Failed), refused, refused, staged, staged, cached, cached];
        assert_eq!(ends, expected, "{moved:?}");
        assert_eq!((moved.ended.as_deref(), moved.has_failed), (None, false));
        assert!(moved.transfers[0].has_failed() && moved.transfers[0].direction == Direction::Read);
        let reason = moved.transfers[0].reason.as_ref().unwrap();
        assert!(reason.contains(&format!("timed out after {bound:?}")), "{reason}");
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0, "scratch is removed");
    }

    #[test]
    fn a_thread_that_ends_early_or_hangs_has_failed() {
        let (sender, transfers) = channel();
        let gathered =
            |most, thread: fn() -> Result<()>| gathered(&transfers, most, thread::spawn(thread));
        sender.send(Transfer::new(Direction::Read, Route::Cached)).unwrap();
        let moved = gathered(Duration::from_millis(1), || Ok(()));
        assert_eq!((moved.transfers.len(), moved.has_failed), (1, true));
        assert!(moved.ended.unwrap().starts_with("the path no longer answers"));
        drop(sender);
        let moved = gathered(BOUND, || Ok(()));
        assert_eq!((moved.ended, moved.has_failed), (None, false));
        let moved = gathered(BOUND, || panic!("as a test"));
        assert!(moved.has_failed && moved.ended.unwrap().ends_with("panicked"));
    }
}
