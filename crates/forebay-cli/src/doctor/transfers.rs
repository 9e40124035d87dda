//! Moves a few MiB in each direction between the path and the GPU, by each possible route, and
//! verifies every byte.
//!
//! A named file is only read. In a folder scratch is made, by the rules of [`Scratch`]: only files
//! made here are written. Each transfer has a time limit, and one that exceeds it ends the rest.
//! All of it runs on a separate thread, since plain calls have no limit: a path may stop answering
//! at any time.

use std::fs::File;
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use forebay::units::MIB;
use forebay::{Buffer, Engine, Error, OpenOptions, Outcome, RequestOptions, Route, SyncMode};
use forebay_measure::data::Pattern;
use forebay_measure::failure::{Failure, Result};
use forebay_measure::make;
use forebay_measure::memory::whole;
use forebay_measure::proof::{self, Prover};
use forebay_measure::results::Direction;
use forebay_measure::results::verdict::VerdictFacts;
use forebay_measure::scratch::{Scratch, random};
use forebay_measure::target::Target;

use super::json::{End, Share, Transfer};

/// Bytes of each transfer.
const LEN: u64 = 4 * MIB;
/// Time limit of one transfer: a drive in standby takes some seconds to answer.
pub(super) const BOUND: Duration = Duration::from_secs(10);
/// Longest time without progress, in time limits of a transfer: the transfer, the plain calls
/// before and after it, and the opening of cuFile.
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

impl Moved {
    /// No transfers, for a reason other than a failed transfer.
    pub(super) fn nothing(reason: &str) -> Self {
        Self { ended: Some(reason.into()), ..Self::default() }
    }
}

/// All transfers, each within `bound`; `direct` says why the direct route should not be tried.
pub(super) fn all(
    bound: Duration,
    engine: &Engine,
    target: &Target,
    path: &Path,
    direct: Option<String>,
) -> Moved {
    let (sender, transfers) = channel();
    let (engine, target, path) = (engine.clone(), target.clone(), path.to_owned());
    let thread =
        thread::spawn(move || match Run::prepare(bound, &engine, &target, &path, direct, sender) {
            Err(failure) => (Some(failure.in_one_line()), false),
            Ok(mut run) => {
                let ended = run.each().err().map(|failure| failure.in_one_line());
                (ended.clone(), ended.is_some())
            }
        });
    gathered(&transfers, bound * LIMITS_PER_STEP, thread)
}

/// Collects transfers until the end of their thread, or until none arrived for `most`.
fn gathered(
    transfers: &Receiver<Transfer>,
    most: Duration,
    thread: JoinHandle<(Option<String>, bool)>,
) -> Moved {
    let mut moved = Moved { has_failed: true, ..Moved::default() };
    loop {
        match transfers.recv_timeout(most) {
            Ok(transfer) => moved.transfers.push(transfer),
            Err(RecvTimeoutError::Timeout) => {
                let most = most.as_secs();
                let reason = format!("the path no longer answers: no progress for {most} s");
                return Moved { ended: Some(reason), ..moved };
            }
            Err(RecvTimeoutError::Disconnected) => {
                let panicked = |_| (Some("the transfer thread panicked".into()), true);
                let (ended, has_failed) = thread.join().unwrap_or_else(panicked);
                return Moved { ended, has_failed, ..moved };
            }
        }
    }
}

struct Run<'a> {
    /// Time limit of one transfer.
    bound: Duration,
    engine: &'a Engine,
    target: &'a Target,
    file: PathBuf,
    len: u64,
    /// Set if the file is ours, so that it may be written.
    scratch: Option<Scratch>,
    key: u64,
    /// Why the direct route should not be tried.
    direct: Option<String>,
    prover: Prover,
    done: Sender<Transfer>,
}

impl<'a> Run<'a> {
    fn prepare(
        bound: Duration,
        engine: &'a Engine,
        target: &'a Target,
        path: &Path,
        direct: Option<String>,
        done: Sender<Transfer>,
    ) -> Result<Self> {
        let facts = std::fs::metadata(path).map_err(|e| Failure::at("inspect", path, &e))?;
        let key = random().map_err(|error| Failure::io("cannot get random bytes", &error))?;
        let mut run = Self {
            bound,
            engine,
            target,
            file: path.into(),
            len: LEN,
            scratch: None,
            key,
            direct,
            prover: Prover::new(target.device.as_ref().map(|device| device.info())),
            done,
        };
        if facts.is_dir() {
            let scratch = Scratch::create(path)?;
            run.file = scratch.add(0)?;
            scratch.check()?;
            make::fill(&run.file, Pattern::new(key), LEN)?;
            run.scratch = Some(scratch);
            return Ok(run);
        }
        run.len = engine.open(path)?.len()?.min(LEN);
        match run.len {
            0 => Err(Failure::new(format!("cannot move bytes of `{}`", path.display()))
                .because("it is empty")),
            _ => Ok(run),
        }
    }

    fn each(&mut self) -> Result<()> {
        // The direct route is tried whenever there is a GPU: a provider answers, or its absence is
        // reported.
        let routes: &[Route] = match self.target.device {
            Some(_) => &[Route::Direct, Route::Staged, Route::Cached],
            None => &[Route::Host],
        };
        if self.target.device.is_some()
            && self.direct.is_none()
            && let Err(failure) = self.begin_direct()
        {
            // It was a read, so the file is unchanged and the other routes can still be tried.
            let blank = blank(Direction::Read, Route::Direct);
            self.done(blank.ending(End::Failed, failure.in_one_line()));
            self.direct = Some("the first read did not end".into());
        }
        for (number, &route) in routes.iter().enumerate() {
            if let Some(reason) = self.direct.clone().filter(|_| route == Route::Direct) {
                let writes = self.scratch.as_ref().map(|_| Direction::Write);
                for direction in writes.into_iter().chain([Direction::Read]) {
                    self.done(blank(direction, route).ending(End::Refused, reason.clone()));
                }
                continue;
            }
            if let Some(scratch) = &self.scratch {
                scratch.check()?;
                let pattern = Pattern::new(self.key.wrapping_add(number as u64 + 1));
                self.done(self.write(route, pattern)?);
            }
            self.done(self.read(route)?);
        }
        Ok(())
    }

    fn done(&self, transfer: Transfer) {
        let _ = self.done.send(transfer); // the receiver may be gone
    }

    /// Makes the engine open cuFile: its counters can only be read from then on. An error here
    /// recurs where it is reported.
    fn begin_direct(&self) -> Result<()> {
        let (buffer, request) = (self.buffer()?, RequestOptions::by_route(Route::Direct));
        let started =
            self.engine.open(&self.file).and_then(|file| file.start_read(0, buffer, &request));
        self.ended(started).map(drop)
    }

    fn buffer(&self) -> Result<Buffer> {
        Ok(match &self.target.device {
            Some(device) => self.engine.allocate(device.id(), self.len)?,
            None => self.engine.allocate_pinned(self.len)?,
        })
    }

    fn write(&self, route: Route, pattern: Pattern) -> Result<Transfer> {
        let mut bytes = vec![0; whole(self.len)];
        pattern.fill(0, &mut bytes);
        let mut buffer = self.buffer()?;
        buffer.upload(0, &bytes)?;
        let mut how = OpenOptions::default();
        how.write = true;
        let request = RequestOptions::by_route(route).synced(SyncMode::Data);
        let opened = self.engine.open_with(&self.file, &how);
        let start = |file: &forebay::File| file.start_write(0, buffer, &request);
        let (mut transfer, _) = self.moved(Direction::Write, route, opened, start)?;
        if transfer.is_right() && self.plain()? != bytes {
            transfer = transfer.ending(End::Failed, "the file differs from what was written");
        }
        Ok(transfer)
    }

    fn read(&self, route: Route) -> Result<Transfer> {
        let before = self.plain()?;
        let mut buffer = self.buffer()?;
        // The previous contents would look as if they had been read.
        let inverse: Vec<u8> = before.iter().map(|byte| !byte).collect();
        buffer.upload(0, &inverse)?;
        let mut request = RequestOptions::by_route(route);
        request.exact = true;
        let opened = self.engine.open(&self.file);
        let start = |file: &forebay::File| file.start_read(0, buffer, &request);
        let (mut transfer, buffer) = self.moved(Direction::Read, route, opened, start)?;
        let Some(buffer) = buffer.filter(|_| transfer.is_right()) else { return Ok(transfer) };
        let mut bytes = inverse;
        buffer.download(0, &mut bytes)?;
        if bytes != before {
            // Another process may write to a file that is not ours.
            let (end, reason) = match self.plain()? == before {
                true => (End::Failed, "the bytes that arrived differ from the file"),
                false => (End::Refused, "the file changed during the read"),
            };
            transfer = transfer.ending(end, reason);
        }
        Ok(transfer)
    }

    /// Runs one transfer, and reads independent counters before and after it.
    fn moved(
        &self,
        direction: Direction,
        route: Route,
        opened: forebay::Result<forebay::File>,
        start: impl FnOnce(&forebay::File) -> forebay::Result<forebay::Transfer>,
    ) -> Result<(Transfer, Option<Buffer>)> {
        let file = match opened {
            Ok(file) => file,
            Err(error) => return Ok((ended_as(direction, route, Err(error)), None)),
        };
        let sources = self.prover.sources(self.engine, &[(file.clone(), self.len)], &[]);
        let span = sources.begin();
        let started = start(&file);
        let has_begun = started.is_ok();
        let (outcome, buffer) = self.ended(started)?;
        let evidence = span.end();
        let outcome = outcome.and_then(|outcome| file.close().map(|()| outcome));
        let proof = outcome.as_ref().ok().map(|outcome| {
            let (moved, none) = (proof::Moved::of(outcome), proof::Moved::default());
            self.prover.proof(evidence, &moved, direction.into(), (&none, 0))
        });
        let mut transfer = ended_as(direction, route, outcome);
        if has_begun && transfer.end == End::Refused {
            transfer.end = End::Failed; // the route is available, but the transfer failed
        }
        transfer.verdict = proof.and_then(|proof| VerdictFacts::of(&[proof]));
        Ok((transfer, buffer))
    }

    /// Waits for a transfer; it is an error if the transfer does not end.
    fn ended(&self, started: forebay::Result<forebay::Transfer>) -> Result<Ended> {
        match started {
            Err(error) => Ok((Err(error), None)),
            Ok(transfer) => match transfer.wait_at_most(self.bound) {
                (Err(error @ Error::TimedOut { .. }), _) => Err(error.into()),
                ended => Ok(ended),
            },
        }
    }

    /// The file's bytes by plain calls.
    fn plain(&self) -> Result<Vec<u8>> {
        let mut bytes = vec![0; whole(self.len)];
        let read = File::open(&self.file).and_then(|file| file.read_exact_at(&mut bytes, 0));
        read.map_err(|error| Failure::at("read", &self.file, &error))?;
        Ok(bytes)
    }
}

type Ended = (forebay::Result<Outcome>, Option<Buffer>);

fn blank(direction: Direction, route: Route) -> Transfer {
    Transfer {
        direction,
        demanded: route.to_string(),
        end: End::Moved,
        bytes: 0,
        seconds: 0.0,
        routes: Vec::new(),
        verdict: None,
        reason: None,
    }
}

fn ended_as(direction: Direction, route: Route, outcome: forebay::Result<Outcome>) -> Transfer {
    let mut transfer = blank(direction, route);
    match outcome {
        Ok(outcome) => {
            transfer.bytes = outcome.bytes;
            transfer.seconds = outcome.elapsed.as_secs_f64();
            let moved = outcome.routes.iter().filter(|share| share.bytes > 0);
            transfer.routes = moved.map(Share::of).collect();
            transfer
        }
        Err(Error::RouteUnavailable { reason, .. }) => transfer.ending(End::Refused, reason),
        Err(error) => transfer.ending(End::Failed, Failure::from(error).in_one_line()),
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
        let ends: Vec<_> = moved.transfers.iter().map(|t| (&*t.demanded, t.end)).collect();
        let (refused, staged) = (("direct", End::Refused), ("staged", End::Moved));
        let cached = ("cached", End::Moved);
        let expected = [("direct", End::Failed), refused, refused, staged, staged, cached, cached];
        assert_eq!(ends, expected, "{moved:?}");
        assert_eq!((moved.ended.as_deref(), moved.has_failed), (None, false));
        assert!(moved.transfers[0].has_failed() && moved.transfers[0].direction == Direction::Read);
        let reason = moved.transfers[0].reason.as_ref().unwrap();
        assert!(reason.contains(&format!("within {bound:?}")), "{reason}");
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0, "scratch is removed");
    }

    #[test]
    fn a_thread_that_ends_early_or_hangs_has_failed() {
        let (sender, transfers) = channel();
        let gathered = |most, thread: fn() -> (Option<String>, bool)| {
            gathered(&transfers, most, thread::spawn(thread))
        };
        sender.send(blank(Direction::Read, Route::Cached)).unwrap();
        let moved = gathered(Duration::from_millis(1), || (None, false));
        assert_eq!((moved.transfers.len(), moved.has_failed), (1, true));
        assert!(moved.ended.unwrap().starts_with("the path no longer answers"));
        drop(sender);
        let moved = gathered(BOUND, || (None, false));
        assert_eq!((moved.ended, moved.has_failed), (None, false));
        let moved = gathered(BOUND, || panic!("as a test"));
        assert!(moved.has_failed && moved.ended.unwrap().ends_with("panicked"));
    }
}
