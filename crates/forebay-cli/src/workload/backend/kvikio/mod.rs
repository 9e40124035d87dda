//! `KvikIO`, if the first `python3` has it: at its defaults, and tuned. It only reads.
//!
//! It runs in its own process with its own memory: host memory shared with this process, or memory
//! that it allocates on the GPU.

mod python;
mod shared;

use std::os::unix::ffi::OsStrExt as _;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use forebay::Route;
use forebay::units::MIB;

use self::python::{Answer, Order, Python};
use self::shared::Shared;
use super::blocking::Blocking;
use super::cufile::gpu_of;
use super::{Call, Context, Pool, Taken, Tuning};
use crate::bench::memory::{set_bytes, whole};
use crate::failure::{Failure, Result};
use crate::report::json::Cache;
use crate::workload::check::Expected;

/// Time limit for loading.
const START_MAX: Duration = Duration::from_secs(30);
/// Time limit for a request, in addition to that of its bytes.
const ORDER_MAX: Duration = Duration::from_secs(20);
/// Bytes per second of the slowest accepted read.
const SLOWEST: u64 = 10_000_000;
/// Bytes copied back from the GPU at a time.
const WINDOW: u64 = 16 * MIB;

/// The settings that were fastest on the machines measured so far: a pool of threads for each
/// drive, and O_DIRECT for cold files.
const TUNED: [(&str, &str); 3] = [
    ("KVIKIO_NTHREADS", "16"),
    // In bytes: KvikIO silently ignores units.
    ("KVIKIO_TASK_SIZE", "4194304"),
    ("KVIKIO_THREAD_POOL_PER_BLOCK_DEVICE", "ON"),
];
const DIRECT: &str = "KVIKIO_AUTO_DIRECT_IO_READ";

/// A process with `KvikIO`, and its memory.
#[derive(Debug)]
pub(super) struct Process {
    python: Python,
    version: String,
    memory: Shared,
    /// Bytes of the target.
    len: u64,
}

impl Process {
    /// Starts it with a target of `len` bytes, on the GPU with this UUID or in host memory.
    fn start(gpu: Option<&str>, len: u64, variables: &[(String, String)]) -> Result<Self> {
        let failed = |reason: String| {
            Failure::new("cannot use KvikIO").because(reason).hint(
                "install `kvikio` for the first `python3` that is found, and an NVIDIA driver",
            )
        };
        let mut variables = variables.to_vec();
        variables.extend(gpu.map(|uuid| ("CUDA_VISIBLE_DEVICES".into(), uuid.to_owned())));
        let window = if gpu.is_some() { WINDOW } else { len };
        let memory = Shared::allocate(window)?;
        let mut python = Python::start(&variables).map_err(failed)?;
        let order = Order::Start { memory: memory.path(), window, size: len, gpu: gpu.is_some() };
        match python.ask(&order, START_MAX).map_err(failed)?.0 {
            Answer::Started { version } => Ok(Self { python, version, memory, len }),
            other => Err(failed(format!("unexpected answer: {other:?}"))),
        }
    }

    fn done(&mut self, order: &Order) -> Result<(), String> {
        match self.python.ask(order, ORDER_MAX)?.0 {
            Answer::Done {} => Ok(()),
            other => Err(format!("unexpected answer: {other:?}")),
        }
    }
}

/// The variables of a setting.
fn variables(tuning: Tuning, cold: bool) -> Vec<(String, String)> {
    if tuning == Tuning::Defaults {
        return Vec::new();
    }
    let direct = (DIRECT, if cold { "ON" } else { "OFF" });
    let all = TUNED.into_iter().chain([direct]);
    all.map(|(name, value)| (name.to_owned(), value.to_owned())).collect()
}

/// Makes requests with `KvikIO`.
pub(super) struct KvikioBackend {
    /// `None` once it is back in the pool.
    process: Option<Process>,
    pool: Arc<Pool>,
    /// The kind of the process.
    kind: (Option<String>, Tuning, bool),
    path: PathBuf,
    request_size: u64,
    moved: u64,
    cpu: Duration,
    life: Arc<AtomicU64>,
}

impl KvikioBackend {
    /// Opens the file, in a new process unless the pool has one.
    ///
    /// # Errors
    /// `KvikIO` is unavailable, or the load writes.
    pub(super) fn new(tuning: Tuning, context: &Context<'_>) -> Result<Self> {
        if context.writes {
            return Err(Failure::new("KvikIO is only measured with reads"));
        }
        if context.device.is_some_and(|device| device.info().simulated) {
            return Err(Failure::new("KvikIO cannot move bytes to a simulated GPU"));
        }
        let (gpu, cold) = (gpu_of(context), context.cache == Cache::Cold);
        let len = context.call_len();
        let kind = (gpu, tuning, cold);
        let kept = context.pool.kvikio.take(&kind).filter(|process| process.len >= len);
        let mut process = match kept {
            Some(process) => process,
            None => Process::start(kind.0.as_deref(), len, &variables(tuning, cold))?,
        };
        if kind.0.is_none() {
            set_bytes(process.memory.bytes_mut(), context.other_byte());
        } else {
            process.done(&Order::Fill { byte: context.other_byte() }).map_err(failed)?;
        }
        // The process runs in another folder.
        let path = std::path::absolute(context.path).unwrap_or_else(|_| context.path.to_owned());
        let path: String =
            path.as_os_str().as_bytes().iter().map(|byte| format!("{byte:02x}")).collect();
        process.done(&Order::Open { path }).map_err(failed)?;
        Ok(Self {
            process: Some(process),
            pool: Arc::clone(context.pool),
            kind,
            path: context.path.to_owned(),
            request_size: context.request_size,
            moved: 0,
            cpu: Duration::ZERO,
            life: Arc::clone(context.life),
        })
    }

    fn process(&mut self) -> Result<&mut Process> {
        self.process.as_mut().ok_or_else(|| failed("its process was given up".into()))
    }
}

fn failed(reason: String) -> Failure {
    Failure::new("KvikIO failed").because(reason)
}

impl Drop for KvikioBackend {
    fn drop(&mut self) {
        if let Some(process) = self.process.take() {
            self.pool.kvikio.give(self.kind.clone(), process);
        }
    }
}

impl Blocking for KvikioBackend {
    fn call(&mut self, call: Call<'_>) -> Result<()> {
        let size = self.request_size;
        let bound = ORDER_MAX + Duration::from_secs(size / SLOWEST);
        for (index, &offset) in call.offsets.iter().enumerate() {
            let order = Order::Read { offset, at: index as u64 * size, size };
            let answer = self.process()?.python.ask(&order, bound);
            match answer {
                Ok((Answer::Read { bytes, .. }, cpu)) if bytes == size => {
                    self.cpu += cpu;
                    self.moved += bytes;
                }
                other => {
                    // Its next answer could belong to this request.
                    self.process = None;
                    let text = format!("cannot read `{}` by KvikIO", self.path.display());
                    let why = other.map_or_else(|why| why, |(answer, _)| format!("{answer:?}"));
                    return Err(Failure::new(text).because(why));
                }
            }
            self.life.fetch_add(1, Ordering::Relaxed);
        }
        Ok(())
    }

    fn sync(&mut self) -> Result<()> {
        Ok(())
    }

    fn flush(&mut self) -> Result<()> {
        Ok(())
    }

    fn holds(&mut self, at: u64, len: u64, expected: &Expected<'_>, offset: u64) -> Result<bool> {
        let is_on_gpu = self.kind.0.is_some();
        let process = self.process()?;
        if !is_on_gpu {
            let bytes = &process.memory.bytes()[whole(at)..whole(at + len)];
            return expected.is_in_bytes(bytes, offset);
        }
        for from in (0..len).step_by(whole(WINDOW)) {
            let size = WINDOW.min(len - from);
            process.done(&Order::Fetch { at: at + from, size }).map_err(failed)?;
            if !expected.is_in_bytes(&process.memory.bytes()[..whole(size)], offset + from)? {
                return Ok(false);
            }
        }
        Ok(true)
    }

    fn routes(&self) -> Vec<Taken> {
        let version = self.process.as_ref().map_or("", |process| &process.version);
        let settings = match self.kind {
            (_, Tuning::Defaults, _) => "default settings",
            (_, _, true) => "16 threads per drive, tasks of 4 MiB, O_DIRECT",
            (..) => "16 threads per drive, tasks of 4 MiB, page cache",
        };
        super::taken([self.moved, 0], Route::Cached, &format!("KvikIO {version}: {settings}"))
    }

    fn cpu(&self) -> Duration {
        self.cpu
    }
}

#[cfg(test)]
mod tests;
