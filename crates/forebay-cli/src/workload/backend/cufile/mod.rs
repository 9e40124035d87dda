//! cuFile in its compat mode, which programs that call its C interface use if the direct route is
//! unavailable: at its defaults, and with settings that were faster on an H200.
//!
//! It runs in a child process of the same program (`child`): its driver may spin forever when it
//! opens, and its settings are per process. The child has its own memory on the same GPU, which it
//! fills and sums on request.

pub(crate) mod child;
mod folder;
mod order;
pub mod process;

use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use forebay::Route;
use forebay::direct::Counters;
use forebay::units::{MIB, format_size};
use forebay_evidence::Seen;
use twox_hash::XxHash3_64;

use self::process::{Bounds, Cufile, Move, Refused};
use super::blocking::Blocking;
use super::{Call, Context, Pool, Taken, Tuning};
use crate::bench::data::PIECE;
use crate::bench::memory::whole;
use crate::failure::{Failure, Result};
use crate::report::json::{Cache, Direction};
use crate::workload::check::Expected;

/// Bytes whose sums are compared at a time.
const STEP: u64 = 1024 * PIECE;

/// The number of threads, and the bytes of each request; `None` for the whole call.
const fn shape(tuning: Tuning) -> (u32, Option<u64>) {
    match tuning {
        // One thread that requests all bytes at once.
        Tuning::Defaults => (1, None),
        // With these, cuFile 1.15 moved 8 GiB of a warm file 1.9 and 2.0 times as fast on two H200
        // machines (`benches/runs/2026-11-21-h200-j`).
        Tuning::Tuned => (8, Some(16 * MIB)),
    }
}

/// A process with the library, for the GPU with this UUID.
///
/// # Errors
/// There is no library, or it does not open in time: the text says why, and what to do.
pub(crate) fn start(pool: &Pool, gpu: Option<&str>) -> Result<Cufile, String> {
    let gpu = gpu.map(str::to_owned);
    if let Some(process) = pool.cufile.take(&gpu) {
        return Ok(process);
    }
    Cufile::start(&pool.program(), gpu, Bounds::default())
}

/// Returns a process for the next measurement.
pub(crate) fn keep(pool: &Pool, gpu: Option<&str>, process: Cufile) {
    pool.cufile.give(gpu.map(str::to_owned), process);
}

/// The UUID of a context's GPU; `None` if host memory simulates it.
pub(super) fn gpu_of(context: &Context<'_>) -> Option<String> {
    let info = context.device?.info();
    (!info.simulated).then(|| info.uuid.clone())
}

/// Makes requests with cuFile.
pub(super) struct CufileBackend {
    /// `None` once it is back in the pool.
    process: Option<Cufile>,
    pool: Arc<Pool>,
    gpu: Option<String>,
    tuning: Tuning,
    path: PathBuf,
    request_size: u64,
    /// Whether the open file is used with O_DIRECT.
    direct: bool,
    /// Bytes read and written.
    moved: [u64; 2],
    cpu: Duration,
    life: Arc<AtomicU64>,
}

impl CufileBackend {
    /// Opens the file and allocates memory in the process.
    ///
    /// # Errors
    /// cuFile is unavailable, or refuses the file.
    pub(super) fn new(tuning: Tuning, context: &Context<'_>) -> Result<Self> {
        if context.device.is_none() {
            return Err(Failure::new("cuFile moves bytes to and from GPUs, not host memory"));
        }
        let gpu = gpu_of(context);
        let mut process = start(context.pool, gpu.as_deref())
            .map_err(|reason| Failure::new("cannot use cuFile").because(reason))?;
        let len = context.call_len();
        let mut open = || {
            process.allocate(len)?;
            match context.writes {
                true => process.put(context.held(0), len)?,
                false => process.fill(context.other_byte())?,
            }
            // 1.15 only accepts files for writing with O_DIRECT (5019).
            let direct = context.writes || context.cache == Cache::Cold;
            process.open(context.path, context.writes, direct)
        };
        let direct = open().map_err(|refused: Refused| {
            let text = format!("cannot open `{}` by cuFile", context.path.display());
            Failure::new(text).because(refused.text())
        })?;
        Ok(Self {
            process: Some(process),
            pool: Arc::clone(context.pool),
            gpu,
            tuning,
            path: context.path.to_owned(),
            request_size: context.request_size,
            direct,
            moved: [0; 2],
            cpu: Duration::ZERO,
            life: Arc::clone(context.life),
        })
    }

    fn process(&mut self) -> &mut Cufile {
        self.process.as_mut().expect("it is given back on drop")
    }

    fn refused(&self, verb: &str, refused: Refused) -> Failure {
        let text = format!("cannot {verb} `{}` by cuFile", self.path.display());
        Failure::new(text).because(refused.text())
    }

    /// How it moves bytes.
    fn how(&self) -> String {
        let (threads, request) = shape(self.tuning);
        let s = if threads == 1 { "" } else { "s" };
        let request = request.map_or("all bytes".into(), format_size);
        let source = if self.direct { "O_DIRECT" } else { "page cache" };
        let version = self.process.as_ref().map_or("", |process| process.version());
        format!("cuFile {version} in compat mode: {threads} thread{s}, {request} a call, {source}")
    }
}

impl Drop for CufileBackend {
    fn drop(&mut self) {
        if let Some(process) = self.process.take().filter(Cufile::is_alive) {
            keep(&self.pool, self.gpu.as_deref(), process);
        }
    }
}

impl Blocking for CufileBackend {
    fn call(&mut self, call: Call<'_>) -> Result<()> {
        let (threads, request) = shape(self.tuning);
        let (write, len) = (call.direction == Direction::Write, self.request_size);
        for (index, offset) in call.offsets.iter().enumerate() {
            let (at, request) = (index as u64 * len, request.unwrap_or(len));
            let order = Move { write, offset: *offset, at, len, threads, request };
            let moved = self.process().run(&order);
            let (bytes, cpu) =
                moved.map_err(|refused| self.refused(call.direction.name(), refused))?;
            if bytes != len {
                let text = format!("cannot {} `{}`", call.direction.name(), self.path.display());
                let text = format!("{text} by cuFile");
                return Err(Failure::new(text).because(format!("{bytes} of {len} bytes moved")));
            }
            self.cpu += cpu;
            self.moved[usize::from(write)] += bytes;
            self.life.fetch_add(1, Ordering::Relaxed);
        }
        Ok(())
    }

    fn sync(&mut self) -> Result<()> {
        self.process().sync().map_err(|refused| self.refused("sync", refused))
    }

    fn flush(&mut self) -> Result<()> {
        self.process().close().map_err(|refused| self.refused("close", refused))
    }

    fn holds(&mut self, at: u64, len: u64, expected: &Expected<'_>, offset: u64) -> Result<bool> {
        let failed = |error: &io::Error| Failure::io("cannot read a file again", error);
        let mut bytes = Vec::new();
        for from in (0..len).step_by(whole(STEP)) {
            let part = STEP.min(len - from);
            let sums = self.process().sums(at + from, part).map_err(|refused| {
                Failure::new("cannot check the memory of cuFile's process").because(refused.text())
            })?;
            for (index, sum) in sums.into_iter().enumerate() {
                let first = from + index as u64 * PIECE;
                bytes.resize(whole(PIECE.min(len - first)), 0);
                expected.fill(offset + first, &mut bytes).map_err(|error| failed(&error))?;
                if XxHash3_64::oneshot(&bytes) != sum {
                    return Ok(false);
                }
            }
        }
        Ok(true)
    }

    fn routes(&self) -> Vec<Taken> {
        // They were handed to the library; its counters show which route was taken.
        super::taken(self.moved, Route::Direct, &self.how())
    }

    fn cpu(&self) -> Duration {
        self.cpu
    }

    fn counters(&mut self) -> Option<Seen<Counters>> {
        Some(self.process().counters())
    }
}
