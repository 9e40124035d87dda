//! cuFile in its compat mode, which programs that call its C interface use if the direct route is
//! unavailable: at its defaults, and with the settings that were best on an H200.
//!
//! It runs in a child process of the same program (`child`): its driver may spin forever when it
//! opens, and its settings are per process. The child has its own memory on the same GPU, which it
//! fills and sums on request. Its clock is checked against this process's clock.

pub(crate) mod child;
mod folder;
mod order;

use std::cell::{RefCell, RefMut};
use std::collections::BTreeMap;
use std::os::unix::ffi::OsStrExt as _;
use std::path::PathBuf;
use std::rc::Rc;
use std::time::Duration;

use ::forebay::Route;
use ::forebay::direct::Counters;
use ::forebay::units::{MIB, format_size};
use forebay_evidence::Seen;

use self::folder::Folder;
use self::order::{Answer, Order, SUMS_MAX, digits};
use super::{Job, Method, Moved};
use crate::bench::cpu::Spent;
use crate::bench::data::{Expected, PIECE, Pattern};
use crate::bench::memory::Memory;
use crate::bench::worker::{Worker, shown, sound, strange};
use crate::failure::{Failure, Result};
use crate::program::Program;
use crate::report::json::{Cache, Direction, MethodName, Settings};

/// The verb that the process runs.
const VERB: &str = "cufile";
/// The name of the process in reasons.
const NAME: &str = "forebay cufile";
/// The hint for a library that ends its process.
const LOST: &str = "`forebay probe` shows how far the library gets; try another version of it";

/// How its caller uses the library.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Tuning {
    /// One thread that requests all bytes at once.
    Defaults,
    /// 8 threads with 16 MiB each: with these, cuFile 1.15 moved 8 GiB of a warm file 1.9 and 2.0
    /// times as fast on two H200 machines (`benches/runs/2026-11-21-h200-j`).
    Best,
}

impl Tuning {
    /// Both tunings.
    pub const ALL: [Self; 2] = [Self::Defaults, Self::Best];

    /// Its name in reports.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Defaults => "defaults",
            Self::Best => "best",
        }
    }

    /// The number of threads, and the bytes of each request; `None` for all.
    const fn shape(self) -> (u32, Option<u64>) {
        match self {
            Self::Defaults => (1, None),
            Self::Best => (8, Some(16 * MIB)),
        }
    }
}

/// Time limits of the process.
#[derive(Debug, Clone, Copy)]
pub struct Bounds {
    /// To load the library and open its driver: 0.4 s on an H200, more if a driver sleeps.
    pub start: Duration,
    /// For each request that moves no bytes, and for each move in addition to its bytes.
    pub order: Duration,
    /// Bytes per second of the slowest accepted move.
    pub slowest: u64,
}

impl Default for Bounds {
    fn default() -> Self {
        let seconds = Duration::from_secs;
        Self { start: seconds(20), order: seconds(30), slowest: 10_000_000 }
    }
}

impl Bounds {
    fn of_move(&self, len: u64) -> Duration {
        self.order + Duration::from_secs(len / self.slowest.max(1))
    }
}

/// A process that has opened cuFile's driver.
#[derive(Debug)]
pub struct Cufile {
    worker: Option<Worker>,
    /// Why the process was ended.
    lost: String,
    bounds: Bounds,
    /// Bytes of its memory.
    len: u64,
    library: String,
    version: String,
    /// Removed once the process has ended.
    _folder: Folder,
}

/// The failure of an order, and its hint.
#[derive(Debug)]
struct Refused {
    reason: String,
    hint: Option<String>,
}

impl From<String> for Refused {
    fn from(reason: String) -> Self {
        Self { reason, hint: None }
    }
}

impl Refused {
    /// Reason and hint in one line, for the row of a skipped method.
    fn text(self) -> String {
        match self.hint {
            Some(hint) => format!("{}; {hint}", self.reason),
            None => self.reason,
        }
    }
}

impl Cufile {
    /// Starts the process for the GPU with this UUID; without one, host memory simulates a GPU. The
    /// text says why cuFile is unavailable, and what to do about it.
    ///
    /// # Errors
    /// If there is no library, or it does not open in time.
    pub fn start(program: &Program, gpu: Option<String>, bounds: Bounds) -> Result<Self, String> {
        let folder = Folder::create().map_err(|error| {
            let place = std::env::temp_dir();
            format!("cannot make a folder in `{}`: {error}; set `TMPDIR`", place.display())
        })?;
        let mut command = program.command(VERB);
        let environment = std::env::var_os("VIRTUAL_ENV").map(PathBuf::from);
        for packages in folder::packages(environment.as_deref()) {
            command.arg("--packages").arg(packages);
        }
        folder.rule(&mut command);
        let worker = Worker::start(&mut command, NAME)?;
        let (library, version) = (String::new(), String::new());
        let mut cufile = Self {
            worker: Some(worker),
            lost: String::new(),
            bounds,
            len: 0,
            library,
            version,
            _folder: folder,
        };
        match cufile.ask(&Order::Start { gpu }, bounds.start) {
            Ok((Answer::Started { library, version }, _)) => {
                (cufile.library, cufile.version) = (shown(&library), shown(&version));
                Ok(cufile)
            }
            Ok((other, _)) => Err(unexpected(&other)),
            Err(refused) => Err(refused.text()),
        }
    }

    /// The library's version, as `1.15`.
    #[must_use]
    pub fn version(&self) -> &str {
        &self.version
    }

    fn ask(&mut self, order: &Order, bound: Duration) -> Result<(Answer, Duration), Refused> {
        let lost = |reason: &str| Refused { reason: reason.into(), hint: Some(LOST.into()) };
        let Some(worker) = &mut self.worker else { return Err(lost(&self.lost)) };
        match worker.ask(order, bound) {
            Ok((Answer::Failed { reason, hint }, _)) => {
                let hint = hint.map(|hint| shown(&hint));
                Err(Refused { reason: shown(&reason), hint })
            }
            Ok(answer) => Ok(answer),
            // After a late or invalid answer no more requests are sent: the next answer could
            // belong to this request.
            Err(reason) => {
                self.worker = None;
                self.lost = reason;
                Err(lost(&self.lost))
            }
        }
    }

    fn done(&mut self, order: &Order) -> Result<(), Refused> {
        match self.ask(order, self.bounds.order)?.0 {
            Answer::Done {} => Ok(()),
            other => Err(unexpected(&other).into()),
        }
    }

    /// Opens the job's file; returns whether O_DIRECT is used.
    fn open(&mut self, job: &Job) -> Result<bool, Refused> {
        if self.len < job.len {
            self.done(&Order::Allocate { len: job.len })?;
            self.len = job.len;
        }
        // The process runs in another folder.
        let path = std::path::absolute(&job.path).unwrap_or_else(|_| job.path.clone());
        let path = digits(path.as_os_str().as_bytes());
        let write = job.direction == Direction::Write;
        // 1.15 only accepts files for writing with O_DIRECT (5019).
        let order = Order::Open { path, write, direct: write || job.cache == Cache::Cold };
        match self.ask(&order, self.bounds.order)?.0 {
            Answer::Opened { direct } => Ok(direct),
            other => Err(unexpected(&other).into()),
        }
    }

    fn moved(&mut self, job: &Job, tuning: Tuning) -> Result<(u64, Spent), Refused> {
        let (threads, request) = tuning.shape();
        let write = job.direction == Direction::Write;
        let order = Order::Move {
            write,
            len: job.len,
            threads,
            request: request.unwrap_or(job.len),
            sync: write && job.cache == Cache::Cold,
        };
        match self.ask(&order, self.bounds.of_move(job.len))? {
            (Answer::Moved { bytes, seconds, cpu_seconds }, passed) => {
                Ok((bytes, sound(seconds, cpu_seconds, passed)?))
            }
            (other, _) => Err(unexpected(&other).into()),
        }
    }

    /// The library's counters in its process.
    fn counters(&mut self) -> Seen<Counters> {
        let none = |why: String| Seen::missing(why, "use cuFile 1.15 or later");
        match self.ask(&Order::Count {}, self.bounds.order) {
            Ok((Answer::Counted { version, words: Some(words) }, _)) => {
                let bytes: Vec<u8> = words.into_iter().flat_map(u64::to_ne_bytes).collect();
                Counters::parse(version, 3, &bytes).map_or_else(none, Seen::Value)
            }
            Ok((Answer::Counted { words: None, .. }, _)) => {
                none(format!("cuFile {} has no counters", self.version))
            }
            Ok((other, _)) => none(unexpected(&other)),
            Err(refused) => none(refused.text()),
        }
    }

    /// Whether the first bytes of its memory are as expected.
    fn holds(&mut self, expected: &Expected, len: u64) -> Result<bool, Refused> {
        let mut at = 0;
        while at < len {
            let part = SUMS_MAX.min(len - at);
            let sums = match self.ask(&Order::Sum { at, len: part }, self.bounds.of_move(part))?.0 {
                Answer::Sums { pieces } => pieces,
                other => return Err(unexpected(&other).into()),
            };
            if sums.len() as u64 != part.div_ceil(PIECE) || !expected.sums_match(at, part, &sums) {
                return Ok(false);
            }
            at += part;
        }
        Ok(true)
    }
}

fn unexpected(answer: &Answer) -> String {
    strange(&format!("{answer:?}"))
}

/// One process, for both settings.
pub type Shared = Rc<RefCell<Cufile>>;

/// One setting of cuFile.
#[derive(Debug)]
pub struct CufileCompat {
    cufile: Shared,
    tuning: Tuning,
    /// Whether the open file is read with O_DIRECT.
    direct: bool,
    spent: Option<Spent>,
}

impl CufileCompat {
    /// Uses the process `cufile`.
    #[must_use]
    pub fn new(cufile: Shared, tuning: Tuning) -> Self {
        Self { cufile, tuning, direct: false, spent: None }
    }

    fn cufile(&self) -> RefMut<'_, Cufile> {
        self.cufile.borrow_mut()
    }

    fn run(&mut self, job: &Job) -> Result<Moved> {
        self.spent = None;
        let moved = self.cufile().moved(job, self.tuning);
        let (bytes, spent) = moved.map_err(|refused| at(job, refused))?;
        self.spent = Some(spent);
        // Passed to the library; its counters show which route was taken.
        let said = vec![(Route::Direct, bytes)];
        Ok(Moved { bytes, route: None, reason: Some(self.how()), said })
    }

    /// The reason of a row in the report.
    fn how(&self) -> String {
        let (threads, request) = self.tuning.shape();
        let s = if threads == 1 { "" } else { "s" };
        let request = request.map_or("all bytes".into(), format_size);
        let source = if self.direct { "O_DIRECT" } else { "page cache" };
        let cufile = self.cufile.borrow();
        let version = &cufile.version;
        format!("cuFile {version} in compat mode: {threads} thread{s}, {request} a call, {source}")
    }
}

impl Method for CufileCompat {
    fn name(&self) -> MethodName {
        MethodName::CufileCompat
    }

    fn settings(&self) -> Option<Settings> {
        let (threads, request) = self.tuning.shape();
        let cufile = self.cufile.borrow();
        let values = BTreeMap::from([
            ("library".to_owned(), cufile.library.clone()),
            ("threads".to_owned(), threads.to_string()),
            ("request_size".to_owned(), request.map_or("all".into(), |size| size.to_string())),
        ]);
        Some(Settings { name: self.tuning.name().into(), values })
    }

    fn open(&mut self, job: &Job, _memory: &Memory) -> Result<()> {
        let opened = self.cufile().open(job);
        self.direct = opened.map_err(|refused| {
            let path = job.path.display();
            Failure::new(format!("cannot open `{path}` by cuFile")).because(refused.text())
        })?;
        Ok(())
    }

    fn set(&mut self, _memory: &mut Memory, byte: u8) -> Result<()> {
        self.cufile().done(&Order::Fill { byte }).map_err(in_memory)
    }

    fn put(&mut self, _memory: &mut Memory, pattern: Pattern, len: u64) -> Result<()> {
        let order = Order::Put { key: pattern.key(), inverted: pattern.is_inverted(), len };
        self.cufile().done(&order).map_err(in_memory)
    }

    fn holds(&mut self, _memory: &Memory, expected: &Expected, len: u64) -> Result<bool> {
        self.cufile().holds(expected, len).map_err(in_memory)
    }

    fn read(&mut self, job: &Job, _target: &mut Memory) -> Result<Moved> {
        self.run(job)
    }

    fn write(&mut self, job: &Job, _source: &Memory) -> Result<Moved> {
        self.run(job)
    }

    fn spent(&self) -> Option<Spent> {
        self.spent
    }

    fn is_elsewhere(&self) -> bool {
        true
    }

    fn counters(&self) -> Option<Seen<Counters>> {
        Some(self.cufile().counters())
    }

    fn close(&mut self, job: &Job) -> Result<()> {
        match self.cufile().done(&Order::Close {}) {
            Err(refused) if job.direction == Direction::Write => {
                let text = format!("cannot close `{}` by cuFile", job.path.display());
                Err(Failure::new(text).because(refused.text()))
            }
            // A process that does not answer is lost, which the next order reports.
            _ => Ok(()),
        }
    }
}

fn at(job: &Job, refused: Refused) -> Failure {
    let (verb, path) = (job.direction.name(), job.path.display());
    Failure::new(format!("cannot {verb} `{path}` by cuFile")).because(refused.text())
}

fn in_memory(refused: Refused) -> Failure {
    Failure::new("cannot fill or check the memory of cuFile's process").because(refused.text())
}
