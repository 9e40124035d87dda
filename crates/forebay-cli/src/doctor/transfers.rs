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
    let (done, transfers) = channel();
    let (engine, target, path) = (engine.clone(), target.clone(), path.to_owned());
    let thread = thread::spawn(move || match Run::prepare(bound, engine, target, path, done) {
        Err(failure) => (Some(failure.in_one_line()), false),
        Ok(run) => {
            let ended = run.each(direct).err().map(|failure| failure.in_one_line());
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

struct Run {
    /// Time limit of one transfer.
    bound: Duration,
    engine: Engine,
    target: Target,
    file: PathBuf,
    len: u64,
    /// Set if the file is ours, so that it may be written.
    scratch: Option<Scratch>,
    prover: Prover,
    done: Sender<Transfer>,
}

impl Run {
    fn prepare(
        bound: Duration,
        engine: Engine,
        target: Target,
        path: PathBuf,
        done: Sender<Transfer>,
    ) -> Result<Self> {
        let facts = std::fs::metadata(&path).map_err(|e| Failure::at("inspect", &path, &e))?;
        let (scratch, file, len) = if facts.is_dir() {
            let scratch = Scratch::create(&path)?;
            let file = scratch.add(0)?;
            scratch.check()?;
            make::fill(&file, Pattern::new(0), LEN)?;
            (Some(scratch), file, LEN)
        } else {
            let len = engine.open(&path)?.len()?.min(LEN);
            (None, path, len)
        };
        if len == 0 {
            return Err(Failure::new(format!("cannot move bytes of `{}`", file.display()))
                .because("it is empty"));
        }
        let prover = Prover::new(target.device.as_ref().map(|device| device.info()));
        Ok(Self { bound, engine, target, file, len, scratch, prover, done })
    }

    fn each(&self, mut closed: Option<String>) -> Result<()> {
        let key = random().map_err(|error| Failure::io("cannot get random bytes", &error))?;
        // The direct route is tried whenever there is a GPU: a provider answers, or its absence is
        // reported.
        let routes: &[Route] = match self.target.device {
            Some(_) => &[Route::Direct, Route::Staged, Route::Cached],
            None => &[Route::Host],
        };
        if self.target.device.is_some()
            && closed.is_none()
            && let Err(failure) = self.begin_direct()
        {
            // It was a read, so the file is unchanged and the other routes can still be tried.
            let blank = blank(Direction::Read, Route::Direct);
            self.done(blank.ending(End::Failed, failure.in_one_line()));
            closed = Some("the first read did not end".into());
        }
        let write = self.scratch.as_ref().map(|_| Direction::Write);
        for (number, &route) in routes.iter().enumerate() {
            for direction in write.into_iter().chain([Direction::Read]) {
                let pattern = Pattern::new(key.wrapping_add(number as u64));
                self.done(match closed.as_ref().filter(|_| route == Route::Direct) {
                    Some(reason) => blank(direction, route).ending(End::Refused, reason),
                    None => self.transfer(direction, route, pattern)?,
                });
            }
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

    /// Makes one transfer, and verifies its bytes; a write is of `pattern`.
    fn transfer(&self, direction: Direction, route: Route, pattern: Pattern) -> Result<Transfer> {
        let is_write = direction == Direction::Write;
        let mut expected = vec![0; whole(self.len)];
        if is_write {
            self.scratch.as_ref().map_or(Ok(()), Scratch::check)?;
            pattern.fill(0, &mut expected);
        } else {
            expected = self.plain()?;
        }
        let mut buffer = self.buffer()?;
        // Before a read, the contents that it should leave would look as if they had been read.
        let inverse = |byte: &u8| if is_write { *byte } else { !byte };
        buffer.upload(0, &expected.iter().map(inverse).collect::<Vec<_>>())?;
        let (mut transfer, buffer) = self.moved(direction, route, buffer)?;
        if !transfer.is_right() {
            return Ok(transfer);
        }
        if is_write && self.plain()? != expected {
            transfer = transfer.ending(End::Failed, "the file differs from what was written");
        }
        let Some(buffer) = buffer.filter(|_| !is_write) else { return Ok(transfer) };
        let mut bytes = vec![0; expected.len()];
        buffer.download(0, &mut bytes)?;
        if bytes != expected {
            // Another process may write to a file that is not ours.
            let (end, reason) = match self.plain()? == expected {
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
        buffer: Buffer,
    ) -> Result<(Transfer, Option<Buffer>)> {
        let mut how = OpenOptions::default();
        how.write = direction == Direction::Write;
        let file = match self.engine.open_with(&self.file, &how) {
            Ok(file) => file,
            Err(error) => return Ok((ended_as(direction, route, Err(error)), None)),
        };
        let sources = self.prover.sources(&self.engine, &[(file.clone(), self.len)], &[]);
        let mut request = RequestOptions::by_route(route);
        let span = sources.begin();
        let started = if how.write {
            file.start_write(0, buffer, &request.synced(SyncMode::Data))
        } else {
            request.exact = true;
            file.start_read(0, buffer, &request)
        };
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
        match started.map(|transfer| transfer.wait_at_most(self.bound)) {
            Err(error) => Ok((Err(error), None)),
            Ok((Err(error @ Error::TimedOut { .. }), _)) => Err(error.into()),
            Ok(ended) => Ok(ended),
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
