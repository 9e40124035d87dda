//! The process that loads cuFile, as its parent uses it.

use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use forebay::direct::Counters;
use forebay_evidence::Seen;

use super::folder::{self, Folder};
use super::order::{Answer, Order, digits};
use crate::bench::data::{PIECE, Pattern};
use crate::program::Program;
use crate::workload::backend::process::{Process, shown, sound, strange};

/// The verb that the process runs.
const VERB: &str = "cufile";
/// The name of the process in reasons.
const NAME: &str = "forebay cufile";
/// The hint for a library that ends its process.
const LOST: &str = "`forebay probe` shows how far the library gets; try another version of it";

/// A move between the file and the memory.
#[derive(Debug, Clone, Copy)]
pub struct Move {
    /// To the file.
    pub write: bool,
    /// Where it begins in the file, and in the memory.
    pub offset: u64,
    /// Where it begins in the memory.
    pub at: u64,
    /// Its bytes.
    pub len: u64,
    /// Threads, and the bytes of each of their requests.
    pub threads: u32,
    /// The bytes of each request.
    pub request: u64,
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
    worker: Option<Process>,
    /// Why the process was ended.
    lost: String,
    bounds: Bounds,
    /// Bytes of its memory.
    len: u64,
    version: String,
    /// Removed once the process has ended.
    _folder: Folder,
}

/// The failure of an order, and its hint.
#[derive(Debug)]
pub struct Refused {
    reason: String,
    hint: Option<String>,
}

impl From<String> for Refused {
    fn from(reason: String) -> Self {
        Self { reason, hint: None }
    }
}

impl Refused {
    /// Reason and hint in one line.
    #[must_use]
    pub fn text(self) -> String {
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
        let worker = Process::start(&mut command, NAME)?;
        let mut cufile = Self {
            worker: Some(worker),
            lost: String::new(),
            bounds,
            len: 0,
            version: String::new(),
            _folder: folder,
        };
        match cufile.ask(&Order::Start { gpu }, bounds.start) {
            Ok((Answer::Started { version }, _)) => {
                cufile.version = shown(&version);
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

    /// Whether it still answers.
    #[must_use]
    pub fn is_alive(&self) -> bool {
        self.worker.is_some()
    }

    /// Makes its memory `len` bytes or more.
    ///
    /// # Errors
    /// There is not enough memory.
    pub fn allocate(&mut self, len: u64) -> Result<(), Refused> {
        if self.len < len {
            self.done(&Order::Allocate { len })?;
            self.len = len;
        }
        Ok(())
    }

    /// Sets every byte of its memory.
    ///
    /// # Errors
    /// GPU errors.
    pub fn fill(&mut self, byte: u8) -> Result<(), Refused> {
        self.done(&Order::Fill { byte })
    }

    /// Writes the first `len` bytes of `pattern` into its memory.
    ///
    /// # Errors
    /// GPU errors.
    pub fn put(&mut self, pattern: Pattern, len: u64) -> Result<(), Refused> {
        let (key, inverted) = (pattern.key(), pattern.is_inverted());
        self.done(&Order::Put { key, inverted, len })
    }

    /// Opens a file, with O_DIRECT if `direct` is set and the file system has it; returns whether
    /// it has.
    ///
    /// # Errors
    /// Errors of the system and of the library.
    pub fn open(&mut self, path: &Path, write: bool, direct: bool) -> Result<bool, Refused> {
        // The process runs in another folder.
        let path = std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
        let path = digits(path.as_os_str().as_bytes());
        match self.ask(&Order::Open { path, write, direct }, self.bounds.order)?.0 {
            Answer::Opened { direct } => Ok(direct),
            other => Err(unexpected(&other).into()),
        }
    }

    /// Moves bytes; returns their number, and the processor time.
    ///
    /// # Errors
    /// Errors of the library.
    pub fn run(&mut self, order: &Move) -> Result<(u64, Duration), Refused> {
        let Move { write, offset, at, len, threads, request } = *order;
        let order = Order::Move { write, offset, at, len, threads, request };
        match self.ask(&order, self.bounds.of_move(len))? {
            (Answer::Moved { bytes, seconds, cpu_seconds }, passed) => {
                Ok((bytes, sound(seconds, cpu_seconds, passed)?))
            }
            (other, _) => Err(unexpected(&other).into()),
        }
    }

    /// Syncs the written bytes.
    ///
    /// # Errors
    /// System errors.
    pub fn sync(&mut self) -> Result<(), Refused> {
        self.done(&Order::Sync {})
    }

    /// Closes the file.
    ///
    /// # Errors
    /// If written bytes may be lost.
    pub fn close(&mut self) -> Result<(), Refused> {
        self.done(&Order::Close {})
    }

    /// The XXH3-64 of each [`PIECE`] of `len` bytes of the memory.
    ///
    /// # Errors
    /// GPU errors.
    pub fn sums(&mut self, at: u64, len: u64) -> Result<Vec<u64>, Refused> {
        match self.ask(&Order::Sum { at, len }, self.bounds.of_move(len))?.0 {
            Answer::Sums { pieces } if pieces.len() as u64 == len.div_ceil(PIECE) => Ok(pieces),
            other => Err(unexpected(&other).into()),
        }
    }

    /// The library's counters in its process.
    pub fn counters(&mut self) -> Seen<Counters> {
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
}

fn unexpected(answer: &Answer) -> String {
    strange(&format!("{answer:?}"))
}
