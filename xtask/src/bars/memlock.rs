//! Direct reads by a user who may lock only 8 MiB of memory, compared with the same reads by root,
//! who has no limit: two children, one of each kind, take turns.
//!
//! The limit is the usual one of users who are not root. Neither speed nor the arena's size may
//! suffer.

use std::io::{BufRead as _, BufReader, Write as _};
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Child, ChildStdout, Command, Stdio};

use forebay::gpu::GpuSelector;
use forebay::units::{GIB, MIB, format_size, parse_size};
use forebay::{Buffer, Engine, File, RequestOptions, Route};
use rustix::process::{Resource, Rlimit, geteuid, setrlimit};
use serde::{Deserialize, Serialize};

use crate::bar::{Bound, Check, Measured, Stop};
use crate::flight::Flight;
use crate::host::evict;
use crate::lab::{Lab, Place, verify};
use crate::sample::{Sample, interleave, timed};
use crate::talk;

/// The user and group `nobody`.
const NOBODY: u32 = 65534;

/// The memory that this user may lock.
const LOCKED_LEN: u64 = 8 * MIB;

/// Bytes that are read.
const LEN: u64 = GIB;

/// Requests of 1 MiB to host memory in flight.
const DEPTH: u64 = 32;

/// The commands to a child, one line each.
const WAYS: [&str; 2] = ["host", "staged"];

/// A child's answer to one line.
#[derive(Debug, Serialize, Deserialize)]
enum Answer {
    Sample(Sample),
    Notes(Vec<String>),
    Skip(String),
    Fail(String),
}

/// To host memory in pieces of 1 MiB, and to a simulated GPU by the arena.
pub(crate) fn run(lab: &Lab) -> Result<Measured, Stop> {
    if !geteuid().is_root() {
        return Err(Stop::Skip("reading as two users takes root".into()));
    }
    let len = lab.len(LEN);
    let path = lab.file(Place::Disk, len)?;
    // Only a file's owner can see which pages are in the page cache.
    std::os::unix::fs::chown(&path, Some(NOBODY), Some(NOBODY))
        .map_err(|error| Stop::Skip(format!("no file of another user: {error}")))?;
    let mut readers = [Reader::start(&path, None)?, Reader::start(&path, Some(LOCKED_LEN))?];
    let sides: Vec<String> = WAYS
        .iter()
        .flat_map(|way| ["root", "another user"].map(|user| format!("{way}, {user}")))
        .collect();
    let series =
        interleave(lab.rounds(9), &sides, |side| match readers[side % 2].ask(WAYS[side / 2])? {
            Answer::Sample(sample) => Ok(sample),
            other => Err(Stop::Fail(format!("the child answers nonsense: {other:?}"))),
        })?;
    let mut measured = Measured::default();
    for (way, pair) in WAYS.iter().zip(series.chunks(2)) {
        let ratio = pair[1].rate() / pair[0].rate();
        let what = format!("{way}: rate of root, who may lock all");
        measured.checks.push(Check::new(what, ratio, Bound::AtLeast(0.97)));
    }
    let limit = format_size(LOCKED_LEN);
    measured.notes.push(format!("{}; the other user may lock {limit}", format_size(len)));
    for (user, reader) in ["root", "another user"].iter().zip(&mut readers) {
        if let Answer::Notes(notes) = reader.ask("notes")? {
            measured.notes.extend(notes.iter().map(|note| format!("{user}: {note}")));
        }
    }
    measured.series = series;
    Ok(measured)
}

/// A child that reads on request, and ends with its input.
#[derive(Debug)]
struct Reader {
    child: Child,
    answers: BufReader<ChildStdout>,
}

impl Reader {
    /// Starts a child, as the user `nobody` if its locked memory is limited.
    fn start(path: &Path, locked: Option<u64>) -> Result<Self, Stop> {
        let mut command = Command::new(std::env::current_exe()?);
        command.arg("--serve-reads").arg(path);
        command.arg(locked.map_or("unlimited".into(), |len| len.to_string()));
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        if locked.is_some() {
            command.uid(NOBODY).gid(NOBODY);
        }
        let mut child = command
            .spawn()
            .map_err(|error| Stop::Skip(format!("another user cannot run this: {error}")))?;
        let answers = child.stdout.take().map(BufReader::new);
        let answers = answers.ok_or_else(|| Stop::Fail("a child without output".into()))?;
        let mut reader = Self { child, answers };
        reader.ask("hello")?;
        Ok(reader)
    }

    fn ask(&mut self, word: &str) -> Result<Answer, Stop> {
        let input = self.child.stdin.as_mut();
        let input = input.ok_or_else(|| Stop::Fail("a child without input".into()))?;
        let mut line = String::new();
        writeln!(input, "{word}").and_then(|()| self.answers.read_line(&mut line))?;
        match serde_json::from_str(&line) {
            Ok(Answer::Skip(reason)) => Err(Stop::Skip(reason)),
            Ok(Answer::Fail(reason)) => Err(Stop::Fail(reason)),
            Ok(answer) => Ok(answer),
            Err(error) => Err(Stop::Fail(format!("the child reported nonsense: {error}"))),
        }
    }
}

impl Drop for Reader {
    fn drop(&mut self) {
        drop(self.child.stdin.take());
        let _ = self.child.wait();
    }
}

/// The child: limits its lockable memory, then answers each line of its input.
pub(crate) fn serve(path: &Path, locked: &str) -> Result<(), String> {
    if let Some(len) = parse_size(locked) {
        let limit = Rlimit { current: Some(len), maximum: Some(len) };
        setrlimit(Resource::Memlock, limit).map_err(|error| error.to_string())?;
    }
    let mut served = Served::new(path);
    for line in std::io::stdin().lines() {
        let line = line.map_err(|error| error.to_string())?;
        let answer = match &mut served {
            Ok(served) => served.answer(&line).unwrap_or_else(|stop| match stop {
                Stop::Skip(reason) => Answer::Skip(reason),
                Stop::Fail(reason) => Answer::Fail(reason),
            }),
            Err(Stop::Skip(reason) | Stop::Fail(reason)) => {
                Answer::Skip(format!("another user cannot read this: {reason}"))
            }
        };
        talk(&serde_json::to_string(&answer).map_err(|error| error.to_string())?);
    }
    Ok(())
}

/// The parts with which a child reads.
struct Served {
    engine: Engine,
    file: File,
    len: u64,
    target: Buffer,
}

impl Served {
    fn new(path: &Path) -> Result<Self, Stop> {
        let engine = Engine::new(forebay::Options::from_env()?)?;
        let file = engine.open(path)?;
        let len = file.len()?;
        let gpu = engine.device(&"sim".parse::<GpuSelector>()?)?;
        let gpu = gpu.ok_or_else(|| Stop::Fail("no simulated GPU".into()))?;
        let target = engine.allocate(gpu.id(), len)?;
        Ok(Self { engine, file, len, target })
    }

    fn answer(&mut self, word: &str) -> Result<Answer, Stop> {
        let Self { engine, file, len, target } = self;
        let len = *len;
        match word {
            "hello" | "notes" => Ok(Answer::Notes(engine.notes())),
            "host" => {
                evict(file)?;
                let mut flight = Flight::new(engine, file, MIB, DEPTH.min(len / MIB), 1)?;
                let sample = timed(len, || flight.read(len / MIB, |index| index * MIB))?;
                flight.check()?;
                Ok(Answer::Sample(sample))
            }
            "staged" => {
                target.fill(0x5A)?;
                evict(file)?;
                let mut options = RequestOptions::exactly();
                options.route = Some(Route::Staged);
                let sample =
                    timed(len, || Ok(file.read_with(0, &mut *target, &options).map(drop)?))?;
                verify(target, len)?;
                Ok(Answer::Sample(sample))
            }
            _ => Err(Stop::Fail(format!("no such word: `{word}`"))),
        }
    }
}
