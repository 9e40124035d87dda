//! `forebay cufile`: the process that loads cuFile. It serves requests until its input ends.
//!
//! Its stdout has answers only: the library's own output is discarded. If a call hangs when the
//! input ends, the process kills itself.

#![expect(unsafe_code, reason = "lends memory to cuFile")]

use std::fs::{File, OpenOptions};
use std::io::Write as _;
use std::os::fd::AsRawFd as _;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use forebay::gpu::{Device, GpuSelector};
use forebay::units::ByteRange;
use forebay::{Buffer, Engine, Options};
use forebay_cufile::{CuFileFailure, RegisteredFile, Session};
use rustix::process::{Signal, getpid, kill_process};

use super::order::{Answer, Move, Order};
use super::pipe::lines;
use super::shared::Shared;
use crate::cpu::used;
use crate::failure::{Failure, Result};
use crate::held::no_link;
use crate::memory::{close, whole};
use crate::parallel::each_range;

/// Maximum number of threads.
const THREADS_MAX: u32 = 64;
/// How long the process may keep running after its input has ended.
const END_MAX: Duration = Duration::from_secs(1);

/// Runs the verb.
pub fn command(library: Option<&Path>, packages: &[PathBuf]) -> Result<()> {
    let failed = |error: &std::io::Error| Failure::io("cannot redirect stdout", error);
    let answers = rustix::io::dup(std::io::stdout()).map_err(|errno| failed(&errno.into()))?;
    let nowhere = File::options().write(true).open("/dev/null").map_err(|error| failed(&error))?;
    rustix::stdio::dup2_stdout(nowhere).map_err(|errno| failed(&errno.into()))?;
    let mut answers = File::from(answers);
    let mut state = State { library, packages, ..State::default() };
    // This process must not outlive its parent, even if a request never ends.
    let end = || {
        thread::sleep(END_MAX);
        let _ = kill_process(getpid(), Signal::KILL);
    };
    for line in lines(std::io::stdin(), end) {
        let answer = match serde_json::from_str(&line) {
            Ok(order) => state.take(&order).unwrap_or_else(refusal),
            Err(error) => refusal(Failure::new(format!("invalid order: {error}"))),
        };
        let mut line = serde_json::to_vec(&answer).unwrap_or_default();
        line.push(b'\n');
        answers.write_all(&line).map_err(|error| Failure::stdout(&error))?;
    }
    Ok(())
}

/// The answer to a failed order.
fn refusal(failure: Failure) -> Answer {
    let hint = failure.hint.clone();
    Answer::Failed { reason: failure.in_one_line(), hint }
}

fn failed(failure: &CuFileFailure) -> Failure {
    let text = Failure::new(failure.to_string());
    failure.hint().into_iter().fold(text, Failure::hint)
}

/// The state that the requests have built so far.
#[derive(Default)]
struct State<'a> {
    library: Option<&'a Path>,
    packages: &'a [PathBuf],
    session: Option<Arc<Session>>,
    gpu: Option<(Engine, Arc<dyn Device>)>,
    window: Option<Shared>,
    /// The GPU's memory; without a GPU, the window is the memory.
    buffer: Option<Buffer>,
    /// Bytes of memory.
    len: u64,
    file: Option<RegisteredFile>,
    /// Whether the file is open for writing.
    writes: bool,
}

impl State<'_> {
    fn take(&mut self, order: &Order) -> Result<Answer> {
        match order {
            Order::Start { gpu } => return self.start(gpu.as_deref()),
            Order::Allocate { window, bytes, len } => self.allocate(window, *bytes, *len)?,
            Order::Open { path, write, direct } => {
                return self.open(Path::new(path), *write, *direct);
            }
            Order::Fill { byte } => self.buffer(0, 0)?.0.fill(*byte)?,
            Order::Upload { at, len } => {
                let (buffer, window) = self.buffer(*at, *len)?;
                buffer.upload(*at, &window[..whole(*len)])?;
            }
            Order::Download { at, len } => {
                let (buffer, window) = self.buffer(*at, *len)?;
                buffer.download(*at, &mut window[..whole(*len)])?;
            }
            Order::Move(order) => return self.run(order),
            Order::Sync {} => self.sync()?,
            Order::Count {} => return self.count(),
            Order::Close {} => self.close()?,
        }
        Ok(Answer::Done {})
    }

    fn device(&self) -> Option<&dyn Device> {
        self.gpu.as_ref().map(|(_, device)| &**device)
    }

    fn start(&mut self, gpu: Option<&str>) -> Result<Answer> {
        let selector: Option<GpuSelector> = gpu.map(str::parse).transpose()?;
        // Before the GPU is opened: without the library nothing can be measured.
        let session =
            Session::open(self.library, self.packages).map_err(|failure| failed(&failure))?;
        if let Some(selector) = selector {
            let engine = Engine::new(Options::from_env()?)?;
            let device = engine.device(&selector)?.ok_or_else(|| Failure::new("this is no GPU"))?;
            self.gpu = Some((engine, device));
        }
        let version = session.version();
        self.session = Some(session);
        Ok(Answer::Started { version })
    }

    fn allocate(&mut self, window: &str, bytes: u64, len: u64) -> Result<()> {
        // Frees the earlier memory first: there may not be enough for both.
        (self.window, self.buffer, self.len) = (None, None, 0);
        let shared = Shared::open(window, bytes)
            .map_err(|error| Failure::io("cannot map the shared memory", &error))?;
        match &self.gpu {
            Some((engine, gpu)) => self.buffer = Some(engine.allocate(gpu.id(), len.max(1))?),
            None if len > bytes => return Err(Failure::new("the shared memory is too small")),
            None => {}
        }
        (self.window, self.len) = (Some(shared), len);
        Ok(())
    }

    /// The GPU's memory and the window, if they have `len` bytes, the memory from `at` on.
    fn buffer(&mut self, at: u64, len: u64) -> Result<(&mut Buffer, &mut [u8])> {
        let has = at.checked_add(len).is_some_and(|end| end <= self.len);
        match (&mut self.buffer, &mut self.window) {
            (Some(buffer), Some(window)) if has && len <= window.bytes().len() as u64 => {
                Ok((buffer, window.bytes_mut()))
            }
            _ => {
                Err(Failure::new(format!("no memory of {len} bytes at {at} of a GPU is allocated")))
            }
        }
    }

    /// The address of the memory, if it has `len` bytes.
    fn address(&mut self, len: u64) -> Result<u64> {
        match (&self.buffer, &mut self.window) {
            _ if len > self.len => {}
            (Some(buffer), _) => return Ok(buffer.address()),
            (None, Some(window)) => {
                return Ok(window.bytes_mut().as_mut_ptr().expose_provenance() as u64);
            }
            (None, None) => {}
        }
        Err(Failure::new(format!("no memory of {len} bytes is allocated")))
    }

    fn open(&mut self, path: &Path, write: bool, direct: bool) -> Result<Answer> {
        self.file = None;
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
        let session = self.session.as_ref().ok_or_else(|| Failure::new("cuFile is not open"))?;
        let registered = within(self.device(), || session.register(file))?;
        self.file = Some(registered.map_err(|failure| failed(&failure))?);
        self.writes = write;
        Ok(Answer::Opened { direct })
    }

    fn close(&mut self) -> Result<()> {
        let Some(file) = self.file.take().filter(|_| self.writes) else { return Ok(()) };
        let closed = file.file().try_clone().and_then(close);
        closed.map_err(|error| Failure::io("cannot close the file", &error))
    }

    fn sync(&self) -> Result<()> {
        let file = self.file.as_ref().ok_or_else(|| Failure::new("no file is open"))?;
        file.file().sync_data().map_err(|error| Failure::io("cannot sync the file", &error))
    }

    /// Moves bytes in several threads.
    fn run(&mut self, order: &Move) -> Result<Answer> {
        let Move { write, offset, at, len, threads, request } = *order;
        if !(1..=THREADS_MAX).contains(&threads) || request == 0 {
            return Err(Failure::new("invalid number of threads, or block size"));
        }
        let end = at.checked_add(len).filter(|_| offset.checked_add(len).is_some());
        let end = end.ok_or_else(|| Failure::new("the offset of a move is too large"))?;
        let base = self.address(end)?;
        let file = self.file.as_ref().ok_or_else(|| Failure::new("no file is open"))?;
        let (device, done) = (self.device(), AtomicU64::new(0));
        let cpu = used();
        let work = |(): &mut (), range: ByteRange| -> Result<()> {
            let mut from = range.start;
            let mut step = || -> Result<bool> {
                let rest = whole(range.end - from);
                // SAFETY: the memory has these bytes (`address`), requests do not overlap, and
                // the GPU is current on this thread. It is not registered.
                let moved = unsafe {
                    match write {
                        true => file.write(base, at + from, rest, offset + from),
                        false => file.read(base, at + from, rest, offset + from),
                    }
                };
                let moved = moved.map_err(|failure| failed(&failure))?;
                done.fetch_add(moved, Ordering::Relaxed);
                from += moved;
                // Without a byte the file has ended, or the library reports so.
                Ok(moved > 0 && from < range.end)
            };
            within(device, || -> Result<()> {
                while step()? {}
                Ok(())
            })?
        };
        each_range(len, request, threads as usize, || (), work)?;
        Ok(Answer::Moved {
            bytes: done.into_inner(),
            cpu_seconds: used().saturating_sub(cpu).as_secs_f64(),
        })
    }

    fn count(&self) -> Result<Answer> {
        let session = self.session.as_ref().ok_or_else(|| Failure::new("cuFile is not open"))?;
        let words = |bytes: Box<[u8]>| {
            bytes
                .chunks_exact(8)
                .map(|word| word.try_into().map_or(0, u64::from_ne_bytes))
                .collect()
        };
        let words = session.counters().map(words);
        Ok(Answer::Counted { version: session.version_number(), words })
    }
}

/// Runs `work` with the GPU current, if there is a GPU.
fn within<T>(device: Option<&dyn Device>, work: impl FnOnce() -> T) -> Result<T> {
    let Some(device) = device else { return Ok(work()) };
    let (mut work, mut result) = (Some(work), None);
    let entered = device.within(&mut || result = work.take().map(|work| work()));
    entered.map_err(|error| Failure::new(error.to_string()))?;
    result.ok_or_else(|| Failure::new("the GPU cannot be made current"))
}

#[cfg(test)]
mod tests {
    use forebay::units::MIB;
    use proptest::prelude::*;

    use super::*;

    /// Lengths and offsets that are small, or too large.
    fn length() -> impl Strategy<Value = u64> {
        prop_oneof![0..3 * MIB, Just(MIB), u64::MAX - 2 * MIB..=u64::MAX]
    }

    fn order(window: String) -> impl Strategy<Value = Order> {
        let path = prop_oneof![Just("/dev/null".to_owned()), "[0-9a-f]{0,9}"];
        let window = prop_oneof![4 => Just(window), 1 => Just("/dev/null".to_owned())];
        prop_oneof![
            (window, length(), length()).prop_map(|(window, bytes, len)| Order::Allocate {
                window,
                bytes,
                len
            }),
            (path, any::<bool>(), any::<bool>()).prop_map(|(path, write, direct)| Order::Open {
                path: path.into(),
                write,
                direct
            }),
            any::<u8>().prop_map(|byte| Order::Fill { byte }),
            (length(), length()).prop_map(|(at, len)| Order::Upload { at, len }),
            (length(), length()).prop_map(|(at, len)| Order::Download { at, len }),
            (any::<bool>(), length(), length(), 0_u32..70, length()).prop_map(
                |(write, at, len, threads, request)| {
                    Order::Move(Move { write, offset: at, at, len, threads, request })
                }
            ),
            Just(Order::Sync {}),
            Just(Order::Count {}),
            Just(Order::Close {}),
        ]
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]

        #[test]
        fn orders_in_any_order_are_answered(
            orders in prop::collection::vec(order("SHARED".into()), 1..12)
        ) {
            let shared = Shared::allocate(2 * MIB).unwrap();
            let mut state = State::default();
            for mut order in orders {
                if let Order::Allocate { window, .. } = &mut order && window == "SHARED" {
                    *window = shared.path();
                }
                let answer = state.take(&order);
                match order {
                    Order::Allocate { window, bytes, len } => {
                        let fits = window != "/dev/null" && bytes <= 2 * MIB && bytes > 0;
                        prop_assert_eq!(answer.is_ok(), fits && len <= bytes);
                    }
                    Order::Close {} => prop_assert!(answer.is_ok()),
                    // There is no GPU, and cuFile is not open.
                    _ => prop_assert!(answer.is_err()),
                }
            }
        }
    }
}
