//! A process that moves bytes with cuFile, as its parent uses it.

use std::path::Path;
use std::time::Duration;

use forebay_cufile::Counters;
use forebay_evidence::Seen;
use serde::de::DeserializeOwned;

use super::folder;
pub use super::order::Move;
use super::order::{Answer, Order};
use super::pipe::{Pipe, shown};
use crate::data::Pattern;
use crate::failure::{Failure, Result};
use crate::program::Program;
use crate::scratch::Folder;
use crate::workload::expected::Expected;

/// Time limits of the process.
#[derive(Debug, Clone, Copy)]
pub struct Bounds {
    /// To load the library: 0.4 s on an H200, more if a driver sleeps.
    pub start: Duration,
    /// For each request, in addition to its bytes.
    pub order: Duration,
    /// Bytes per second of the slowest accepted move or comparison.
    pub slowest: u64,
}

/// Time limit to load cuFile where it may spin, or where a simulated GPU needs no driver.
const QUICK: Duration = Duration::from_secs(4);

impl Default for Bounds {
    fn default() -> Self {
        let seconds = Duration::from_secs;
        Self { start: seconds(30), order: seconds(30), slowest: 10_000_000 }
    }
}

/// What to do if the process is lost.
const REMEDY: &str = "`forebay probe` shows how far the library gets; try another version of it";

/// A process with cuFile.
#[derive(Debug)]
pub struct Mover {
    /// Or why the process was ended.
    pipe: Result<Pipe, String>,
    bounds: Bounds,
    version: String,
    gpu: Option<String>,
    /// Bytes of its memory.
    len: u64,
    /// Removed once the process has ended.
    _folder: Folder,
}

impl Mover {
    /// Starts a process that loads cuFile in its compat mode, for the GPU with this UUID; without
    /// one, host memory simulates a GPU. The text says why cuFile is unavailable, and what to do.
    ///
    /// # Errors
    /// If there is no library, or it does not open in time.
    pub fn start(program: &Program, gpu: Option<String>, bounds: Bounds) -> Result<Self, String> {
        let mut command = program.command("cufile");
        let folder = folder::rule(&mut command).map_err(|failure| failure.with_remedy())?;
        let pipe = Ok(Pipe::start(&mut command, "forebay cufile")?);
        // As `forebay doctor` checks it: cuFile from 1.16 on spins without this file.
        let may_spin = !Path::new("/proc/modules").exists();
        let quick = may_spin || gpu.is_none();
        let start = if quick { bounds.start.min(QUICK) } else { bounds.start };
        let (version, len) = (String::new(), 0);
        let mut mover = Self { pipe, bounds, version, gpu: gpu.clone(), len, _folder: folder };
        match mover.exchange_within::<String>(&Order::Start { gpu }, start) {
            Ok(version) => {
                mover.version = shown(&version);
                Ok(mover)
            }
            Err(failure) if failure.message.starts_with("no answer") && may_spin => Err(format!(
                "no answer within {} s; this kernel has no /proc/modules, without which cuFile \
                 from 1.16 on does not open: use cuFile 1.15",
                start.as_secs()
            )),
            Err(failure) => Err(failure.with_remedy()),
        }
    }

    /// The UUID of its GPU; `None` for simulated ones.
    #[must_use]
    pub fn gpu(&self) -> Option<&str> {
        self.gpu.as_deref()
    }

    /// The library's version, as `1.15`.
    #[must_use]
    pub fn version(&self) -> &str {
        &self.version
    }

    /// Sends a request that moves or compares `len` bytes, and waits for its answer.
    fn exchange<T: DeserializeOwned>(&mut self, order: &Order, len: u64) -> Result<T> {
        let bound = self.bounds.order + Duration::from_secs(len / self.bounds.slowest.max(1));
        self.exchange_within(order, bound)
    }

    fn exchange_within<T: DeserializeOwned>(
        &mut self,
        order: &Order,
        bound: Duration,
    ) -> Result<T> {
        let answer: Result<Answer<T>, String> = match &mut self.pipe {
            Ok(pipe) => pipe.exchange(order, bound),
            Err(lost) => Err(lost.clone()),
        };
        match answer {
            Ok(answer) => answer.map_err(|(reason, hint)| {
                let failure = Failure::new(shown(&reason));
                hint.into_iter().fold(failure, |failure, hint| failure.hint(shown(&hint)))
            }),
            // After a late or invalid answer no more requests are sent: the next answer could
            // belong to this request.
            Err(reason) => {
                self.pipe = Err(reason.clone());
                Err(Failure::new(reason).hint(REMEDY))
            }
        }
    }

    /// Whether it still answers.
    #[must_use]
    pub fn is_alive(&self) -> bool {
        self.pipe.is_ok()
    }

    /// Makes its memory `len` bytes or more.
    ///
    /// # Errors
    /// There is not enough memory.
    pub fn allocate(&mut self, len: u64) -> Result<()> {
        if self.len < len {
            self.len = 0;
            self.exchange::<()>(&Order::Allocate { len }, len)?;
            self.len = len;
        }
        Ok(())
    }

    /// Sets every byte of its memory.
    ///
    /// # Errors
    /// GPU errors.
    pub fn fill(&mut self, byte: u8) -> Result<()> {
        self.exchange(&Order::Fill { byte }, self.len)
    }

    /// Writes the first `len` bytes of `pattern` into its memory, from byte `at` on.
    ///
    /// # Errors
    /// GPU errors.
    pub fn put(&mut self, at: u64, pattern: Pattern, len: u64) -> Result<()> {
        self.exchange(&Order::Put { at, len, pattern }, len)
    }

    /// Whether its memory, from byte `at` on, has the `len` bytes that `expected` has at `offset`.
    ///
    /// # Errors
    /// GPU errors; the expected bytes cannot be read.
    pub fn holds(
        &mut self,
        at: u64,
        len: u64,
        expected: &Expected<'_>,
        offset: u64,
    ) -> Result<bool> {
        let pattern = match expected {
            Expected::Pattern(pattern) => Some(*pattern),
            Expected::File(_) => None,
        };
        self.exchange(&Order::Compare { at, len, pattern, offset }, len)
    }

    /// Opens a file, with O_DIRECT if `direct` is set and the file system has it; returns whether
    /// it has.
    ///
    /// # Errors
    /// Errors of the system and of the library.
    pub fn open(&mut self, path: &Path, write: bool, direct: bool) -> Result<bool> {
        // The process runs in another folder.
        let path = std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
        let path = path.into_os_string();
        self.exchange(&Order::Open { path, write, direct }, 0)
    }

    /// Moves bytes; returns their number, and the processor time.
    ///
    /// # Errors
    /// Errors of the library.
    pub fn run(&mut self, order: &Move) -> Result<(u64, Duration)> {
        let (bytes, seconds) = self.exchange(&Order::Move(*order), order.len)?;
        let cpu = Duration::try_from_secs_f64(seconds);
        Ok((bytes, cpu.map_err(|_| Failure::new("it reported an impossible time"))?))
    }

    /// Syncs the written bytes.
    ///
    /// # Errors
    /// System errors.
    pub fn sync(&mut self) -> Result<()> {
        self.exchange(&Order::Sync {}, self.len)
    }

    /// Closes the file.
    ///
    /// # Errors
    /// If written bytes may be lost.
    pub fn close(&mut self) -> Result<()> {
        self.exchange(&Order::Close {}, self.len)
    }

    /// cuFile's counters in its process.
    pub fn counters(&mut self) -> Seen<Counters> {
        let none = |why: String| Seen::missing(why, "use cuFile 1.15 or later");
        match self.exchange::<(u32, Option<Vec<u64>>)>(&Order::Count {}, 0) {
            Ok((version, Some(words))) => {
                let bytes: Vec<u8> = words.into_iter().flat_map(u64::to_ne_bytes).collect();
                Counters::parse(version, 3, &bytes).map_or_else(none, Seen::Value)
            }
            Ok((_, None)) => none(format!("cuFile {} has no counters", self.version)),
            Err(failure) => none(failure.with_remedy()),
        }
    }
}
