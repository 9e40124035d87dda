//! `forebay cufile`: the process that loads cuFile. It serves requests until its input ends.
//!
//! Its stdout has answers only: the library's own output is discarded. If a call hangs when the
//! input ends, the process kills itself.

#![expect(unsafe_code, reason = "lends memory to cuFile")]

use std::fs::{File, OpenOptions};
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::os::fd::AsRawFd as _;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, Barrier, Mutex, OnceLock, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use forebay::direct::{CuFileFailure, RegisteredFile, Session};
use forebay::gpu::{Device, GpuSelector};
use forebay::units::MIB;
use forebay::{Engine, Options};
use rustix::process::{Signal, getpid, kill_process};
use twox_hash::XxHash3_64;

use super::order::{Answer, Order, SUMS_MAX, bytes};
use crate::args::ProbeArgs;
use crate::bench::cpu::used;
use crate::bench::data::{PIECE, Pattern};
use crate::bench::held::no_link;
use crate::bench::memory::{HostMemory, Memory, close, whole};
use crate::bench::parallel::{cores, each_range};
use crate::bench::target::Target;
use crate::failure::{Failure, Result};

/// Maximum bytes of one order.
const ORDER_MAX: u64 = 64 * 1024;
/// Maximum number of threads.
const THREADS_MAX: u32 = 64;
/// Bytes of memory that are summed at a time.
const STEP: u64 = 16 * MIB;
/// How long the process may keep running after its input has ended.
const END_MAX: Duration = Duration::from_secs(1);

/// Runs the verb.
pub(crate) fn command(args: &ProbeArgs) -> Result<()> {
    let failed = |error: &std::io::Error| Failure::io("cannot redirect stdout", error);
    let answers = rustix::io::dup(std::io::stdout()).map_err(|errno| failed(&errno.into()))?;
    let nowhere = File::options().write(true).open("/dev/null").map_err(|error| failed(&error))?;
    rustix::stdio::dup2_stdout(nowhere).map_err(|errno| failed(&errno.into()))?;
    let mut answers = File::from(answers);
    let mut state = State::new(args);
    for line in orders() {
        let answer = match serde_json::from_str(&line) {
            Ok(order) => state.take(&order).unwrap_or_else(|failed| failed.into_answer()),
            Err(error) => Failed::of(format!("invalid order: {error}")).into_answer(),
        };
        let mut line = serde_json::to_vec(&answer).unwrap_or_default();
        line.push(b'\n');
        answers.write_all(&line).map_err(|error| Failure::stdout(&error))?;
    }
    Ok(())
}

/// Reads the lines of the input on a thread. This process must not outlive its parent, even if a
/// request never ends.
fn orders() -> Receiver<String> {
    let (sender, receiver) = channel();
    thread::spawn(move || {
        let mut input = BufReader::new(std::io::stdin());
        let mut line = Vec::new();
        while input.by_ref().take(ORDER_MAX).read_until(b'\n', &mut line).is_ok() {
            if !line.ends_with(b"\n") || sender.send(String::from_utf8_lossy(&line).into()).is_err()
            {
                break;
            }
            line.clear();
        }
        drop(sender);
        thread::sleep(END_MAX);
        let _ = kill_process(getpid(), Signal::KILL);
    });
    receiver
}

/// The failure of an order.
struct Failed {
    reason: String,
    hint: Option<String>,
}

impl Failed {
    fn of(reason: impl Into<String>) -> Self {
        Self { reason: reason.into(), hint: None }
    }

    fn into_answer(self) -> Answer {
        Answer::Failed { reason: self.reason, hint: self.hint }
    }
}

impl From<CuFileFailure> for Failed {
    fn from(failure: CuFileFailure) -> Self {
        Self { reason: failure.to_string(), hint: failure.hint().map(str::to_owned) }
    }
}

impl From<Failure> for Failed {
    fn from(failure: Failure) -> Self {
        let mut reason = failure.message;
        for cause in failure.causes {
            reason = format!("{reason}: {cause}");
        }
        Self { reason, hint: failure.hint }
    }
}

impl From<forebay::Error> for Failed {
    fn from(error: forebay::Error) -> Self {
        Failure::from(error).into()
    }
}

/// The state that the requests have built so far.
struct State<'a> {
    args: &'a ProbeArgs,
    session: Option<Arc<Session>>,
    gpu: Option<(Engine, Target)>,
    memory: Option<(Memory, u64)>,
    file: Option<RegisteredFile>,
    /// Whether the file is open for writing.
    writes: bool,
}

impl<'a> State<'a> {
    fn new(args: &'a ProbeArgs) -> Self {
        Self { args, session: None, gpu: None, memory: None, file: None, writes: false }
    }

    fn take(&mut self, order: &Order) -> Result<Answer, Failed> {
        match order {
            Order::Start { gpu } => return self.start(gpu.as_deref()),
            Order::Allocate { len } => self.allocate(*len)?,
            Order::Open { path, write, direct } => return self.open(path, *write, *direct),
            Order::Fill { byte } => self.memory(0)?.set(*byte)?,
            Order::Put { key, inverted, len } => {
                let pattern = Pattern::new(*key);
                let pattern = if *inverted { pattern.inverse() } else { pattern };
                self.memory(*len)?.put(pattern, *len)?;
            }
            Order::Move { write, offset, at, len, threads, request } => {
                let shape =
                    Shape { write: *write, offset: *offset, at: *at, len: *len, request: *request };
                return self.run(&shape, *threads);
            }
            Order::Sync {} => self.sync()?,
            Order::Sum { at, len } => return self.sum(*at, *len),
            Order::Count {} => return self.count(),
            Order::Close {} => self.close()?,
        }
        Ok(Answer::Done {})
    }

    fn device(&self) -> Option<&dyn Device> {
        self.gpu.as_ref().and_then(|(_, target)| target.device.as_deref())
    }

    fn start(&mut self, gpu: Option<&str>) -> Result<Answer, Failed> {
        let selector: Option<GpuSelector> = gpu.map(str::parse).transpose()?;
        let args = self.args;
        // Before the GPU is opened: without the library nothing can be measured.
        let session = Session::open(args.library.as_deref(), &args.packages)?;
        if let Some(selector) = selector {
            let engine = Engine::new(Options::from_env()?)?;
            let target = Target::find(&engine, Some(&selector))?;
            self.gpu = Some((engine, target));
        }
        let version = session.version();
        self.session = Some(session);
        Ok(Answer::Started { version })
    }

    fn allocate(&mut self, len: u64) -> Result<(), Failed> {
        // Frees the earlier memory first: there may not be enough for both.
        self.memory = None;
        let memory = match &self.gpu {
            Some((engine, target)) => target.allocate(engine, len.max(1))?,
            None => Memory::Host(HostMemory::allocate(len)?),
        };
        self.memory = Some((memory, len));
        Ok(())
    }

    /// The memory, if it has this many bytes.
    fn memory(&mut self, len: u64) -> Result<&mut Memory, Failed> {
        match &mut self.memory {
            Some((memory, has)) if *has >= len => Ok(memory),
            _ => Err(Failed::of(format!("no memory of {len} bytes is allocated"))),
        }
    }

    fn open(&mut self, path: &str, write: bool, direct: bool) -> Result<Answer, Failed> {
        self.file = None;
        let path = bytes(path).ok_or_else(|| Failed::of("invalid path"))?;
        let path = Path::new(std::ffi::OsStr::from_bytes(&path));
        let open = |direct: bool| {
            let mut how = OpenOptions::new();
            how.read(true).write(write);
            let found = how.custom_flags(no_link(path, write)).open(path)?;
            // cuFile refuses descriptors with O_NOFOLLOW, so the file is reopened through its
            // descriptor.
            let again = format!("/proc/self/fd/{}", found.as_raw_fd());
            how.custom_flags(if direct { libc::O_DIRECT } else { 0 }).open(again)
        };
        // The file system may not support O_DIRECT; the answer says which mode is used.
        let (file, direct) = match open(direct) {
            Err(error) if direct && error.raw_os_error() == Some(libc::EINVAL) => {
                (open(false), false)
            }
            other => (other, direct),
        };
        let file = file.map_err(|error| Failure::io("cannot open the file", &error))?;
        let session = self.session.as_ref().ok_or_else(|| Failed::of("cuFile is not open"))?;
        self.file = Some(within(self.device(), || session.register(file))??);
        self.writes = write;
        Ok(Answer::Opened { direct })
    }

    fn close(&mut self) -> Result<(), Failed> {
        let Some(file) = self.file.take().filter(|_| self.writes) else { return Ok(()) };
        let closed = file.file().try_clone().and_then(close);
        Ok(closed.map_err(|error| Failure::io("cannot close the file", &error))?)
    }

    fn sync(&self) -> Result<(), Failed> {
        let file = self.file.as_ref().ok_or_else(|| Failed::of("no file is open"))?;
        Ok(file.file().sync_data().map_err(|error| Failure::io("cannot sync the file", &error))?)
    }

    fn run(&mut self, shape: &Shape, threads: u32) -> Result<Answer, Failed> {
        if !(1..=THREADS_MAX).contains(&threads) || shape.request == 0 {
            return Err(Failed::of("invalid number of threads, or block size"));
        }
        let end = shape.at.checked_add(shape.len);
        let end = end.filter(|_| shape.offset.checked_add(shape.len).is_some());
        let end = end.ok_or_else(|| Failed::of("the offset of a move is too large"))?;
        let base = match self.memory(end)? {
            Memory::Host(host) => host.bytes_mut().as_mut_ptr().expose_provenance() as u64,
            Memory::Gpu(gpu) => gpu.buffer.address(),
        };
        let file = self.file.as_ref().ok_or_else(|| Failed::of("no file is open"))?;
        let moving = Moving::default();
        let (line, begun) = (Barrier::new(threads as usize), OnceLock::new());
        // Thread start is not part of the move: programs that use the library keep their threads.
        thread::scope(|scope| {
            for _ in 0..threads {
                scope.spawn(|| {
                    let moved = within(self.device(), || {
                        line.wait();
                        begun.get_or_init(|| (Instant::now(), used()));
                        moving.work(file, base, shape)
                    });
                    if let Err(failed) = moved.unwrap_or_else(|failed| {
                        // The other threads wait for this one at the barrier.
                        line.wait();
                        Err(failed)
                    }) {
                        moving.stop(shape.len, Some(failed));
                    }
                });
            }
        });
        if let Some(failed) = moving.failed.into_inner().unwrap_or_else(PoisonError::into_inner) {
            return Err(failed);
        }
        let (start, cpu) = begun.into_inner().ok_or_else(|| Failed::of("no thread started"))?;
        Ok(Answer::Moved {
            bytes: moving.done.into_inner(),
            seconds: start.elapsed().as_secs_f64(),
            cpu_seconds: used().saturating_sub(cpu).as_secs_f64(),
        })
    }

    fn count(&self) -> Result<Answer, Failed> {
        let session = self.session.as_ref().ok_or_else(|| Failed::of("cuFile is not open"))?;
        let words = |bytes: Box<[u8]>| {
            bytes
                .chunks_exact(8)
                .map(|word| word.try_into().map_or(0, u64::from_ne_bytes))
                .collect()
        };
        let words = session.counters().map(words);
        Ok(Answer::Counted { version: session.version_number(), words })
    }

    fn sum(&mut self, at: u64, len: u64) -> Result<Answer, Failed> {
        if len > SUMS_MAX {
            return Err(Failed::of("invalid length of sums"));
        }
        let end =
            at.checked_add(len).ok_or_else(|| Failed::of("the offset of sums is too large"))?;
        let memory = &*self.memory(end)?;
        let sums: Vec<AtomicU64> = (0..len.div_ceil(PIECE)).map(|_| AtomicU64::new(0)).collect();
        let put = |first: u64, bytes: &[u8]| {
            for (piece, sum) in bytes.chunks(whole(PIECE)).zip(&sums[whole(first / PIECE)..]) {
                sum.store(XxHash3_64::oneshot(piece), Ordering::Relaxed);
            }
        };
        each_range(len, STEP, cores().min(8), Vec::new, |scratch, range| -> Result<(), Failed> {
            match memory {
                Memory::Host(host) => {
                    let bytes = host.bytes();
                    put(range.start, &bytes[whole(at + range.start)..whole(at + range.end)]);
                }
                Memory::Gpu(gpu) => {
                    scratch.resize(whole(range.len()), 0);
                    gpu.buffer.download(at + range.start, scratch)?;
                    put(range.start, scratch);
                }
            }
            Ok(())
        })?;
        Ok(Answer::Sums { pieces: sums.into_iter().map(AtomicU64::into_inner).collect() })
    }
}

/// The direction and sizes of a move.
struct Shape {
    write: bool,
    offset: u64,
    at: u64,
    len: u64,
    request: u64,
}

/// A move in progress.
#[derive(Default)]
struct Moving {
    next: AtomicU64,
    done: AtomicU64,
    failed: Mutex<Option<Failed>>,
}

impl Moving {
    /// Moves requests until all are done.
    fn work(&self, file: &RegisteredFile, base: u64, shape: &Shape) -> Result<(), Failed> {
        loop {
            let start = self.next.fetch_add(shape.request, Ordering::Relaxed);
            if start >= shape.len {
                return Ok(());
            }
            let end = shape.len.min(start.saturating_add(shape.request));
            let mut at = start;
            while at < end {
                let len = whole(end - at);
                // SAFETY: the memory has these bytes (`State::run`), requests do not overlap, and
                // the GPU is current on this thread. It is not registered.
                let moved = unsafe {
                    if shape.write {
                        file.write(base, shape.at + at, len, shape.offset + at)
                    } else {
                        file.read(base, shape.at + at, len, shape.offset + at)
                    }
                }?;
                self.done.fetch_add(moved, Ordering::Relaxed);
                if moved == 0 {
                    // The file has ended, or the library reports so. The moved bytes are counted.
                    self.stop(shape.len, None);
                    return Ok(());
                }
                at += moved;
            }
        }
    }

    /// Stops all threads after their current requests.
    fn stop(&self, len: u64, failed: Option<Failed>) {
        self.next.store(len, Ordering::Relaxed);
        let mut first = self.failed.lock().unwrap_or_else(PoisonError::into_inner);
        if first.is_none() {
            *first = failed;
        }
    }
}

/// Runs `work` with the GPU current, if there is a GPU.
fn within<T>(device: Option<&dyn Device>, work: impl FnOnce() -> T) -> Result<T, Failed> {
    let Some(device) = device else { return Ok(work()) };
    let (mut work, mut result) = (Some(work), None);
    let entered = device.within(&mut || result = work.take().map(|work| work()));
    entered.map_err(|error| Failed::of(error.to_string()))?;
    result.ok_or_else(|| Failed::of("the GPU cannot be made current"))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Lengths and offsets that are small, or too large.
    fn length() -> impl Strategy<Value = u64> {
        prop_oneof![0..3 * MIB, Just(MIB), u64::MAX - 2 * MIB..=u64::MAX]
    }

    fn order() -> impl Strategy<Value = Order> {
        let path = prop_oneof![Just("2f6465762f6e756c6c".to_owned()), "[0-9a-f]{0,9}"];
        prop_oneof![
            length().prop_map(|len| Order::Allocate { len }),
            (path, any::<bool>(), any::<bool>()).prop_map(|(path, write, direct)| Order::Open {
                path,
                write,
                direct
            }),
            any::<u8>().prop_map(|byte| Order::Fill { byte }),
            (any::<u64>(), any::<bool>(), length()).prop_map(|(key, inverted, len)| Order::Put {
                key,
                inverted,
                len
            }),
            (any::<bool>(), length(), length(), 0_u32..70, length()).prop_map(
                |(write, at, len, threads, request)| {
                    Order::Move { write, offset: at, at, len, threads, request }
                }
            ),
            Just(Order::Sync {}),
            (length(), length()).prop_map(|(at, len)| Order::Sum { at, len }),
            Just(Order::Count {}),
            Just(Order::Close {}),
        ]
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]

        #[test]
        fn orders_in_any_order_are_answered(orders in prop::collection::vec(order(), 1..12)) {
            let args = ProbeArgs { library: None, packages: Vec::new() };
            let mut state = State::new(&args);
            let mut has = None;
            for order in orders {
                let answer = state.take(&order);
                match order {
                    Order::Allocate { len } => has = answer.is_ok().then_some(len),
                    // cuFile is not open.
                    Order::Open { .. } | Order::Move { .. } | Order::Count {} | Order::Sync {} => {
                        prop_assert!(answer.is_err());
                    }
                    Order::Put { len, .. } => {
                        prop_assert_eq!(answer.is_ok(), has.is_some_and(|has| len <= has));
                    }
                    Order::Sum { at, len } => {
                        let fits = at
                            .checked_add(len)
                            .is_some_and(|end| has.is_some_and(|has| end <= has));
                        prop_assert_eq!(answer.is_ok(), fits);
                    }
                    _ => {}
                }
            }
        }
    }
}
