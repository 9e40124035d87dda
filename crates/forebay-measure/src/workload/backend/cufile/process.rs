//! A process that moves bytes with cuFile, as its parent uses it.

use std::path::Path;
use std::time::Duration;

use forebay::units::MIB;
use forebay_cufile::Counters;
use forebay_evidence::Seen;

use super::folder::Folder;
pub use super::order::Move;
use super::order::{Answer, Order};
use super::pipe::{Pipe, shown, strange};
use super::shared::Shared;
use crate::data::Pattern;
use crate::failure::{Failure, Result};
use crate::memory::{put_bytes, set_bytes, whole};
use crate::program::Program;
use crate::workload::expected::Expected;

/// Bytes of the window between a GPU's memory and this process.
pub(super) const WINDOW: u64 = 16 * MIB;

/// Time limits of the process.
#[derive(Debug, Clone, Copy)]
pub struct Bounds {
    /// To load the library: 0.4 s on an H200, more if a driver sleeps.
    pub start: Duration,
    /// For each request that moves no bytes, and for each move in addition to its bytes.
    pub order: Duration,
    /// Bytes per second of the slowest accepted move.
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

impl Bounds {
    fn of_move(&self, len: u64) -> Duration {
        self.order + Duration::from_secs(len / self.slowest.max(1))
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
    /// The whole memory, or a window of a GPU's.
    window: Option<Shared>,
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
        let folder = Folder::create().map_err(|error| {
            let place = std::env::temp_dir();
            format!("cannot make a folder in `{}`: {error}; set `TMPDIR`", place.display())
        })?;
        let mut command = program.command("cufile");
        folder.rule(&mut command);
        let pipe = Ok(Pipe::start(&mut command, "forebay cufile")?);
        // As `forebay doctor` checks it: cuFile from 1.16 on spins without this file.
        let may_spin = !Path::new("/proc/modules").exists();
        let quick = may_spin || gpu.is_none();
        let start = if quick { bounds.start.min(QUICK) } else { bounds.start };
        let (version, window, len) = (String::new(), None, 0);
        let mut mover =
            Self { pipe, bounds, version, gpu: gpu.clone(), window, len, _folder: folder };
        match mover.exchange(&Order::Start { gpu }, start) {
            Ok(Answer::Started { version }) => {
                mover.version = shown(&version);
                Ok(mover)
            }
            Ok(other) => Err(unexpected(&other).message),
            Err(failure) if failure.message.starts_with("no answer") && may_spin => Err(format!(
                "no answer within {} s; this kernel has no /proc/modules, without which cuFile \
                 from 1.16 on does not open: use cuFile 1.15",
                start.as_secs()
            )),
            Err(failure) => Err(failure.with_remedy()),
        }
    }

    /// Whether it is for the GPU with this UUID; without one, for simulated GPUs.
    #[must_use]
    pub fn is_for(&self, gpu: Option<&str>) -> bool {
        self.gpu.as_deref() == gpu
    }

    /// The library's version, as `1.15`.
    #[must_use]
    pub fn version(&self) -> &str {
        &self.version
    }

    fn exchange(&mut self, order: &Order, bound: Duration) -> Result<Answer> {
        let answer = match &mut self.pipe {
            Ok(pipe) => pipe.exchange(order, bound),
            Err(lost) => Err(lost.clone()),
        };
        match answer {
            Ok(Answer::Failed { reason, hint }) => {
                let failure = Failure::new(shown(&reason));
                Err(hint.into_iter().fold(failure, |failure, hint| failure.hint(shown(&hint))))
            }
            Ok(answer) => Ok(answer),
            // After a late or invalid answer no more requests are sent: the next answer could
            // belong to this request.
            Err(reason) => {
                self.pipe = Err(reason.clone());
                Err(Failure::new(reason).hint(REMEDY))
            }
        }
    }

    fn done(&mut self, order: &Order) -> Result<()> {
        match self.exchange(order, self.bounds.order)? {
            Answer::Done {} => Ok(()),
            other => Err(unexpected(&other)),
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
        if self.len < len || self.window.is_none() {
            self.window = None;
            let bytes = if self.gpu.is_some() { WINDOW } else { len.max(1) };
            let window = Shared::allocate(bytes)?;
            self.done(&Order::Allocate { window: window.path(), bytes, len })?;
            (self.window, self.len) = (Some(window), len);
        }
        Ok(())
    }

    fn window(&mut self) -> Result<&mut Shared> {
        self.window.as_mut().ok_or_else(|| Failure::new("no memory is allocated"))
    }

    /// Sets every byte of its memory.
    ///
    /// # Errors
    /// GPU errors.
    pub fn fill(&mut self, byte: u8) -> Result<()> {
        if self.gpu.is_some() {
            return self.done(&Order::Fill { byte });
        }
        set_bytes(self.window()?.bytes_mut(), byte);
        Ok(())
    }

    /// Writes the first `len` bytes of `pattern` into its memory, from byte `at` on.
    ///
    /// # Errors
    /// GPU errors.
    pub fn put(&mut self, at: u64, pattern: Pattern, len: u64) -> Result<()> {
        if self.gpu.is_none() {
            put_bytes(&mut self.window()?.bytes_mut()[whole(at)..whole(at + len)], pattern, 0);
            return Ok(());
        }
        for from in (0..len).step_by(whole(WINDOW)) {
            let part = WINDOW.min(len - from);
            put_bytes(&mut self.window()?.bytes_mut()[..whole(part)], pattern, from);
            self.done(&Order::Upload { at: at + from, len: part })?;
        }
        Ok(())
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
        if self.gpu.is_none() {
            let bytes = &self.window()?.bytes()[whole(at)..whole(at + len)];
            return expected.is_in_bytes(bytes, offset);
        }
        for from in (0..len).step_by(whole(WINDOW)) {
            let part = WINDOW.min(len - from);
            self.done(&Order::Download { at: at + from, len: part })?;
            let bytes = &self.window()?.bytes()[..whole(part)];
            if !expected.is_in_bytes(bytes, offset + from)? {
                return Ok(false);
            }
        }
        Ok(true)
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
        match self.exchange(&Order::Open { path, write, direct }, self.bounds.order)? {
            Answer::Opened { direct } => Ok(direct),
            other => Err(unexpected(&other)),
        }
    }

    /// Moves bytes; returns their number, and the processor time.
    ///
    /// # Errors
    /// Errors of the library.
    pub fn run(&mut self, order: &Move) -> Result<(u64, Duration)> {
        match self.exchange(&Order::Move(*order), self.bounds.of_move(order.len))? {
            Answer::Moved { bytes, cpu_seconds } => {
                let cpu = Duration::try_from_secs_f64(cpu_seconds);
                Ok((bytes, cpu.map_err(|_| Failure::new("it reported an impossible time"))?))
            }
            other => Err(unexpected(&other)),
        }
    }

    /// Syncs the written bytes.
    ///
    /// # Errors
    /// System errors.
    pub fn sync(&mut self) -> Result<()> {
        self.done(&Order::Sync {})
    }

    /// Closes the file.
    ///
    /// # Errors
    /// If written bytes may be lost.
    pub fn close(&mut self) -> Result<()> {
        self.done(&Order::Close {})
    }

    /// cuFile's counters in its process.
    pub fn counters(&mut self) -> Seen<Counters> {
        let none = |why: String| Seen::missing(why, "use cuFile 1.15 or later");
        match self.exchange(&Order::Count {}, self.bounds.order) {
            Ok(Answer::Counted { version, words: Some(words) }) => {
                let bytes: Vec<u8> = words.into_iter().flat_map(u64::to_ne_bytes).collect();
                Counters::parse(version, 3, &bytes).map_or_else(none, Seen::Value)
            }
            Ok(Answer::Counted { words: None, .. }) => {
                none(format!("cuFile {} has no counters", self.version))
            }
            Ok(other) => none(unexpected(&other).message),
            Err(failure) => none(failure.with_remedy()),
        }
    }
}

fn unexpected(answer: &Answer) -> Failure {
    Failure::new(strange(&format!("{answer:?}")))
}
