//! KvikIO, if the detected Python has it: at its defaults, and at the best of a few settings. It
//! only reads.
//!
//! It runs in its own process with its own targets: host memory shared with this process, or memory
//! that it allocates on the GPU. They are filled and compared like those of any other method.

mod process;
mod shared;

use std::collections::BTreeMap;
use std::os::unix::ffi::OsStrExt as _;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use ::forebay::units::{KIB, MIB, align_up, format_size};

use self::process::{Answer, Order, Process};
use self::shared::Shared;
use super::{Job, Way};
use crate::bench::cpu::Spent;
use crate::bench::data::Expected;
use crate::bench::drives::lines;
use crate::bench::drives::targets::Targets;
use crate::bench::memory::{bytes_hold, set_bytes, whole};
use crate::bench::methods::Moved;
use crate::failure::{Failure, Result};
use crate::report::json::{Cache, Settings};

/// Time limit for loading.
const START_MAX: Duration = Duration::from_secs(30);
/// Time limit for a request that moves no bytes.
const ORDER_MAX: Duration = Duration::from_secs(15);
/// Bytes copied back from the GPU at a time.
const WINDOW: u64 = 16 * MIB;
/// Bytes of the first read, which shows whether it works.
const TRY_LEN: u64 = 64 * KIB;
/// Targets begin at multiples of this, as large allocations do.
const ALIGN: u64 = 2 * MIB;

/// A pool of threads for each drive, instead of one for all.
const POOL_PER_DRIVE: (&str, &str) = ("KVIKIO_THREAD_POOL_PER_BLOCK_DEVICE", "ON");
/// The settings to try, each with a pool for each drive: threads, bytes of a task, and whether
/// reads use O_DIRECT.
const CANDIDATES: [(u32, u64, bool); 3] =
    [(16, 4 * MIB, true), (64, MIB, true), (16, 4 * MIB, false)];

/// The variables of KvikIO's settings.
const VARIABLES: [(&str, &str); 4] = [
    ("num_threads", "KVIKIO_NTHREADS"),
    ("task_size", "KVIKIO_TASK_SIZE"),
    ("auto_direct_io_read", "KVIKIO_AUTO_DIRECT_IO_READ"),
    ("compat_mode", "KVIKIO_COMPAT_MODE"),
];

/// A variable of KvikIO, and its value.
type Variable = (String, String);
type Variables = Vec<Variable>;

/// The parameters that all processes of one run share.
#[derive(Debug, Clone)]
pub struct Shape {
    /// The UUID of the GPU; `None` for host memory.
    gpu: Option<String>,
    /// The offset of each path's target.
    offsets: Vec<u64>,
    /// Bytes of all targets.
    size: u64,
    /// Time limit of one read of all files.
    bound: Duration,
    memory: Arc<Mutex<Shared>>,
}

impl Shape {
    /// Allocates targets of these sizes, in host memory if no GPU is named.
    ///
    /// # Errors
    /// There is not enough memory.
    pub fn new(gpu: Option<String>, lens: &[u64], bound: Duration) -> Result<Self> {
        let (mut offsets, mut size) = (Vec::new(), 0);
        for len in lens {
            offsets.push(size);
            size += align_up(*len, ALIGN);
        }
        let window = if gpu.is_some() { WINDOW } else { size };
        let memory = Arc::new(Mutex::new(Shared::allocate(window)?));
        Ok(Self { gpu, offsets, size, bound, memory })
    }

    fn memory(&self) -> MutexGuard<'_, Shared> {
        self.memory.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Starts a process with these variables.
    fn start(&self, variables: &[Variable]) -> Result<Started, String> {
        let mut variables = variables.to_vec();
        if let Some(uuid) = &self.gpu {
            variables.push(("CUDA_VISIBLE_DEVICES".into(), uuid.clone()));
        }
        let mut process = Process::start(&variables)?;
        let (memory, window) = {
            let memory = self.memory();
            (memory.path(), memory.bytes().len() as u64)
        };
        let gpu = self.gpu.is_some();
        let order = Order::Start { memory, window, size: self.size, gpu };
        match process.ask(&order, START_MAX)? {
            Answer::Started { version, settings } => Ok(Started { process, version, settings }),
            other => Err(format!("unexpected answer: {other:?}")),
        }
    }
}

struct Started {
    process: Process,
    version: String,
    settings: BTreeMap<String, String>,
}

/// The version of KvikIO in the detected Python; the text says why there is none, or why it cannot
/// read.
///
/// # Errors
/// There is not enough memory.
pub fn look(gpu: Option<String>) -> Result<Result<String, String>> {
    let shape = Shape::new(gpu, &[TRY_LEN], ORDER_MAX)?;
    let tried = shape.start(&[]).and_then(|started| {
        let Started { mut process, version, .. } = started;
        // The shared memory is a file that it can read.
        let path = shape.memory().path();
        open(&mut process, vec![(hexadecimal(path.as_bytes()), 0, TRY_LEN)])?;
        read(&mut process, shape.bound)?;
        Ok(version)
    });
    Ok(tried)
}

/// KvikIO with some settings.
#[derive(Debug)]
pub struct Kvikio {
    which: lines::Kvikio,
    shape: Shape,
    process: Option<Process>,
    settings: Option<Settings>,
    how: String,
}

impl Kvikio {
    /// Does not start anything yet.
    #[must_use]
    pub fn new(which: lines::Kvikio, shape: Shape) -> Self {
        Self { which, shape, process: None, settings: None, how: String::new() }
    }

    fn take(&mut self, started: Started, name: &str, variables: &[Variable]) {
        let told = started.settings.iter().filter_map(|(name, value)| {
            let (_, variable) = VARIABLES.iter().find(|(known, _)| known == name)?;
            Some(((*variable).to_owned(), value.clone()))
        });
        let mut values: BTreeMap<String, String> = told.collect();
        values.extend(variables.iter().cloned());
        self.how = how(&started.version, &values);
        self.settings = Some(Settings { name: name.into(), values });
        self.process = Some(started.process);
    }

    fn process(&mut self) -> Result<&mut Process> {
        self.process.as_mut().ok_or_else(|| Failure::new("KvikIO was not started"))
    }

    /// The files of a job, in the form of the process's requests.
    fn files(&self, job: &Job) -> Vec<(String, u64, u64)> {
        let file = |part: &super::Part| {
            // The process runs in another folder.
            let path = std::path::absolute(&part.path).unwrap_or_else(|_| part.path.clone());
            (hexadecimal(path.as_os_str().as_bytes()), self.shape.offsets[part.index], part.len)
        };
        job.parts.iter().map(file).collect()
    }

    /// Tries each candidate once, and keeps the fastest.
    fn search(&mut self, job: &Job, ready: &mut dyn FnMut() -> Result<()>) -> Result<()> {
        let mut best: Option<(f64, Started, Variables)> = None;
        let mut refused = String::new();
        for candidate in CANDIDATES {
            let direct = candidate.2;
            if direct && job.cache == Cache::Resident {
                continue;
            }
            let variables = variables(candidate);
            ready()?;
            let tried = self.shape.start(&variables).and_then(|mut started| {
                open(&mut started.process, self.files(job))?;
                let (_, spent) = read(&mut started.process, self.shape.bound)?;
                Ok((spent.seconds, started))
            });
            match tried {
                Ok((seconds, started)) => {
                    if best.as_ref().is_none_or(|(least, ..)| seconds < *least) {
                        best = Some((seconds, started, variables));
                    }
                }
                Err(reason) => refused = reason,
            }
        }
        let (_, started, variables) = best.ok_or_else(|| failed(&refused))?;
        self.take(started, "best", &variables);
        Ok(())
    }
}

impl Way for Kvikio {
    fn settings(&self) -> Option<Settings> {
        self.settings.clone()
    }

    fn is_elsewhere(&self) -> bool {
        true
    }

    fn prepare(
        &mut self,
        job: &Job,
        _targets: &mut Targets,
        ready: &mut dyn FnMut() -> Result<()>,
    ) -> Result<()> {
        match self.which {
            lines::Kvikio::Best => self.search(job, ready),
            lines::Kvikio::Defaults => {
                let started = self.shape.start(&[]).map_err(|reason| failed(&reason))?;
                self.take(started, "defaults", &[]);
                Ok(())
            }
        }
    }

    fn open(&mut self, job: &Job, _targets: &mut Targets) -> Result<()> {
        let files = self.files(job);
        open(self.process()?, files).map_err(|reason| failed(&reason))
    }

    fn set(&mut self, job: &Job, _targets: &mut Targets, byte: u8) -> Result<()> {
        if self.shape.gpu.is_some() {
            return done(self.process()?, &Order::Fill { byte }).map_err(|reason| failed(&reason));
        }
        let mut memory = self.shape.memory();
        for part in &job.parts {
            let start = whole(self.shape.offsets[part.index]);
            set_bytes(&mut memory.bytes_mut()[start..][..whole(part.len)], byte);
        }
        Ok(())
    }

    fn run(&mut self, _job: &Job, _targets: &mut Targets) -> Result<(Moved, Spent)> {
        let bound = self.shape.bound;
        let (bytes, spent) = read(self.process()?, bound).map_err(|reason| failed(&reason))?;
        let (reason, said) = (Some(self.how.clone()), Vec::new());
        Ok((Moved { bytes, route: None, reason, said }, spent))
    }

    fn holds(&mut self, job: &Job, _targets: &mut Targets, expected: &[Expected]) -> Result<bool> {
        for part in &job.parts {
            let (start, expected) = (self.shape.offsets[part.index], &expected[part.index]);
            if self.shape.gpu.is_none() {
                let memory = self.shape.memory();
                if !bytes_hold(&memory.bytes()[whole(start)..][..whole(part.len)], expected) {
                    return Ok(false);
                }
                continue;
            }
            for offset in (0..part.len).step_by(whole(WINDOW)) {
                let size = WINDOW.min(part.len - offset);
                let order = Order::Fetch { at: start + offset, size };
                done(self.process()?, &order).map_err(|reason| failed(&reason))?;
                if !expected.matches(offset, &self.shape.memory().bytes()[..whole(size)]) {
                    return Ok(false);
                }
            }
        }
        Ok(true)
    }

    fn close(&mut self, _job: &Job) -> Result<()> {
        if let Some(process) = &mut self.process
            && done(process, &Order::Close {}).is_err()
        {
            // A process that does not answer is killed; the next request reports that.
            self.process = None;
        }
        Ok(())
    }
}

fn open(process: &mut Process, files: Vec<(String, u64, u64)>) -> Result<(), String> {
    done(process, &Order::Open { files })
}

fn done(process: &mut Process, order: &Order) -> Result<(), String> {
    match process.ask(order, ORDER_MAX)? {
        Answer::Done {} => Ok(()),
        other => Err(format!("unexpected answer: {other:?}")),
    }
}

fn read(process: &mut Process, bound: Duration) -> Result<(u64, Spent), String> {
    match process.ask(&Order::Read {}, bound)? {
        Answer::Read { bytes, seconds, cpu_seconds } => Ok((bytes, Spent { seconds, cpu_seconds })),
        other => Err(format!("unexpected answer: {other:?}")),
    }
}

fn failed(reason: &str) -> Failure {
    Failure::new("KvikIO failed").because(reason)
}

/// The variables of a candidate.
fn variables((threads, task, direct): (u32, u64, bool)) -> Variables {
    let direct = if direct { "ON" } else { "OFF" };
    let pool = (POOL_PER_DRIVE.0, POOL_PER_DRIVE.1.to_owned());
    let all = [
        ("KVIKIO_NTHREADS", threads.to_string()),
        // KvikIO silently ignores units.
        ("KVIKIO_TASK_SIZE", task.to_string()),
        ("KVIKIO_AUTO_DIRECT_IO_READ", direct.to_owned()),
        pool,
    ];
    all.map(|(name, value)| (name.to_owned(), value)).into()
}

/// The reason of a row in the report.
fn how(version: &str, values: &BTreeMap<String, String>) -> String {
    let value = |name: &str| values.get(name).map_or("?", String::as_str);
    let task = value("KVIKIO_TASK_SIZE").parse().map_or_else(|_| "?".into(), format_size);
    let direct = value("KVIKIO_AUTO_DIRECT_IO_READ") == "ON";
    let source = if direct { "O_DIRECT" } else { "page cache" };
    let threads = value("KVIKIO_NTHREADS");
    let s = if threads == "1" { "" } else { "s" };
    let pool = if value(POOL_PER_DRIVE.0) == "ON" { "a pool for each drive of " } else { "" };
    format!("KvikIO {version}: {pool}{threads} thread{s}, tasks of {task}, {source}")
}

fn hexadecimal(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests;
