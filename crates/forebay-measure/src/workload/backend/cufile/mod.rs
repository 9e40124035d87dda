//! cuFile in its compat mode, which programs that call its C interface use if the direct route is
//! unavailable: at its defaults, and with threads and requests that were faster on the machines
//! measured so far.
//!
//! It runs in a process of its own: its settings are per process, and its driver may spin forever
//! when it opens. The process has memory of its own on the same GPU, which it also fills and
//! compares. `order` has the requests, which `pipe` sends line by line, and `child` serves them.

pub mod child;
mod folder;
mod order;
mod pipe;
pub mod process;

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use forebay::units::{MIB, format_size};
use forebay::{Buffer, Route};
use forebay_cufile::Counters;
use forebay_evidence::Seen;

use self::process::{Move, Mover};
use super::{Backend, Call, Context, Pool, Taken};
use crate::failure::{Failure, Result};
use crate::memory::whole;
use crate::results::{Cache, Direction};
use crate::workload::expected::Expected;

/// How cuFile is called.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Tuning {
    /// By one thread, with one request for all bytes.
    Defaults,
    /// By threads and requests that were faster on the machines measured so far.
    Tuned,
}

/// Makes requests with cuFile in another process.
pub(super) struct CuFileBackend {
    /// `None` once it is back in the pool.
    process: Option<Mover>,
    pool: Arc<Pool>,
    tuning: Tuning,
    path: PathBuf,
    request_size: u64,
    /// Whether the open file is used with O_DIRECT.
    direct: bool,
    cpu: Duration,
    life: Arc<AtomicU64>,
}

impl CuFileBackend {
    /// Opens the file and allocates memory in the process.
    ///
    /// # Errors
    /// cuFile is unavailable or refuses the file, or the target is host memory.
    pub(super) fn new(tuning: Tuning, context: &Context<'_>) -> Result<Self> {
        let device = context
            .device
            .ok_or_else(|| Failure::new("cuFile moves bytes to and from GPUs, not host memory"))?;
        let gpu = (!device.info().simulated).then_some(device.info().uuid.as_str());
        let process = context
            .pool
            .mover(gpu)
            .map_err(|reason| Failure::new("cannot use cuFile").because(reason))?;
        let mut backend = Self {
            process: Some(process),
            pool: Arc::clone(context.pool),
            tuning,
            path: context.path.to_owned(),
            request_size: context.request_size,
            direct: false,
            cpu: Duration::ZERO,
            life: Arc::clone(context.life),
        };
        let (len, process) = (context.call_len(), backend.process());
        let mut open = || {
            process.allocate(len)?;
            match context.writes {
                true => {
                    let size = context.request_size;
                    for at in (0..len).step_by(whole(size)) {
                        process.put(at, context.written(), size)?;
                    }
                }
                false => process.fill(context.other_byte())?,
            }
            // 1.15 only accepts files for writing with O_DIRECT (5019).
            let is_cold = context.cache == Cache::Cold;
            process.open(context.path, context.writes, context.writes || is_cold)
        };
        backend.direct = open().map_err(|failure| {
            // Without the path: a scratch file is named differently in every run.
            Failure::new("cuFile cannot open the file").because(failure.with_remedy())
        })?;
        Ok(backend)
    }

    fn process(&mut self) -> &mut Mover {
        self.process.as_mut().expect("it is given back on drop")
    }

    fn refused(&self, verb: &str, failure: Failure) -> Failure {
        self.failed(verb).because(failure.with_remedy())
    }

    fn failed(&self, verb: &str) -> Failure {
        Failure::new(format!("cannot {verb} `{}` by cuFile", self.path.display()))
    }

    /// How it moves bytes.
    fn how(&self) -> String {
        let version = self.process.as_ref().map_or("", Mover::version);
        let source = if self.direct { "O_DIRECT" } else { "page cache" };
        let (threads, request) = shape(self.tuning);
        let s = if threads == 1 { "" } else { "s" };
        let request = request.map_or("all bytes".into(), format_size);
        format!("cuFile {version} in compat mode: {threads} thread{s}, {request} a call, {source}")
    }
}

/// The number of threads, and the bytes of each request; `None` for the whole call.
const fn shape(tuning: Tuning) -> (u32, Option<u64>) {
    match tuning {
        // One thread that requests all bytes at once.
        Tuning::Defaults => (1, None),
        // With these, cuFile 1.15 moved 8 GiB of a warm file 1.9 and 2.0 times as fast on two H200
        // machines (H200, 2026-11-21, `7756050d`).
        Tuning::Tuned => (8, Some(16 * MIB)),
    }
}

impl Drop for CuFileBackend {
    fn drop(&mut self) {
        if let Some(process) = self.process.take().filter(Mover::is_alive) {
            self.pool.give_mover(process);
        }
    }
}

impl Backend for CuFileBackend {
    fn start(&mut self, _place: usize, call: Call<'_>) -> Result<Option<Instant>> {
        let (threads, request) = shape(self.tuning);
        let (verb, write) = (call.direction.name(), call.direction == Direction::Write);
        let len = self.request_size;
        for (index, offset) in call.offsets.iter().enumerate() {
            let (at, request) = (index as u64 * len, request.unwrap_or(len));
            let order = Move { write, offset: *offset, at, len, threads, request };
            let moved = self.process().run(&order);
            let (bytes, cpu) = moved.map_err(|failure| self.refused(verb, failure))?;
            if bytes != len {
                return Err(self.failed(verb).because(format!("{bytes} of {len} bytes moved")));
            }
            self.cpu += cpu;
            self.life.fetch_add(1, Ordering::Relaxed);
        }
        Ok(Some(Instant::now()))
    }

    fn sync(&mut self) -> Result<()> {
        self.process().sync().map_err(|failure| self.refused("sync", failure))
    }

    fn flush(&mut self) -> Result<()> {
        self.process().close().map_err(|failure| self.refused("close", failure))
    }

    fn memory(&mut self, _place: usize) -> Option<&mut Buffer> {
        None // the other process has it
    }

    fn holds(
        &mut self,
        _place: usize,
        at: u64,
        len: u64,
        expected: &Expected<'_>,
        offset: u64,
    ) -> Result<bool> {
        let holds = self.process().holds(at, len, expected, offset);
        holds.map_err(|failure| self.refused("check", failure))
    }

    fn routes(&self, moved: [u64; 2]) -> Vec<Taken> {
        // Its counters show which route was taken.
        super::call::taken(moved, Route::Direct, self.how())
    }

    fn cpu(&self) -> Duration {
        self.cpu
    }

    fn counters(&mut self) -> Option<Seen<Counters>> {
        Some(self.process().counters())
    }
}
