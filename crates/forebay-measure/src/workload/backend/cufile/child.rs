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
use serde_json::{Value, json};

use super::order::{Answer, Move, Order};
use super::pipe::lines;
use crate::cpu::used;
use crate::data::Pattern;
use crate::failure::{Failure, Result};
use crate::held::no_link;
use crate::memory::{close, put_into, whole};
use crate::parallel::each_range;
use crate::workload::expected::Expected;

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
        let order = serde_json::from_str(&line);
        let order = order.map_err(|error| Failure::new(format!("invalid order: {error}")));
        let answer: Answer<Value> = order
            .and_then(|order| state.take(&order))
            .map_err(|failure| (failure.in_one_line(), failure.hint));
        let mut line = serde_json::to_vec(&answer).unwrap_or_default();
        line.push(b'\n');
        answers.write_all(&line).map_err(|error| Failure::stdout(&error))?;
    }
    Ok(())
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
    engine: Option<Engine>,
    gpu: Option<Arc<dyn Device>>,
    /// The GPU's memory; without a GPU, host memory.
    memory: Option<Buffer>,
    file: Option<RegisteredFile>,
    path: PathBuf,
    /// Whether the file is open for writing.
    writes: bool,
}

impl State<'_> {
    fn take(&mut self, order: &Order) -> Result<Value> {
        Ok(match order {
            Order::Start { gpu } => json!(self.start(gpu.as_deref())?),
            Order::Allocate { len } => json!(self.allocate(*len)?),
            Order::Open { path, write, direct } => {
                json!(self.open(Path::new(path), *write, *direct)?)
            }
            Order::Fill { byte } => json!(self.memory(0, 0)?.fill(*byte)?),
            Order::Put { at, len, pattern } => {
                json!(put_into(self.memory(*at, *len)?, *at, *pattern, *len)?)
            }
            Order::Compare { at, len, pattern, offset } => {
                json!(self.compare((*at, *len), *pattern, *offset)?)
            }
            Order::Move(order) => json!(self.run(order)?),
            Order::Sync {} => json!(self.sync()?),
            Order::Count {} => json!(self.count()?),
            Order::Close {} => json!(self.close()?),
        })
    }

    fn engine(&mut self) -> Result<Engine> {
        if self.engine.is_none() {
            self.engine = Some(Engine::new(Options::from_env()?)?);
        }
        Ok(self.engine.clone().expect("it was made"))
    }

    fn start(&mut self, gpu: Option<&str>) -> Result<String> {
        let selector: Option<GpuSelector> = gpu.map(str::parse).transpose()?;
        // Before the GPU is opened: without the library nothing can be measured.
        let session =
            Session::open(self.library, self.packages).map_err(|failure| failed(&failure))?;
        if let Some(selector) = selector {
            let device = self.engine()?.device(&selector)?;
            self.gpu = Some(device.ok_or_else(|| Failure::new("this is no GPU"))?);
        }
        Ok(self.session.insert(session).version())
    }

    fn allocate(&mut self, len: u64) -> Result<()> {
        // Frees the earlier memory first: there may not be enough for both.
        self.memory = None;
        let (engine, len) = (self.engine()?, len.max(1));
        self.memory = Some(match &self.gpu {
            Some(gpu) => engine.allocate(gpu.id(), len)?,
            None => engine.allocate_pinned(len)?,
        });
        Ok(())
    }

    /// The memory, if it has `len` bytes from `at` on.
    fn memory(&mut self, at: u64, len: u64) -> Result<&mut Buffer> {
        let has = |memory: &&mut Buffer| at.checked_add(len).is_some_and(|end| end <= memory.len());
        let memory = self.memory.as_mut().filter(has);
        memory.ok_or_else(|| Failure::new(format!("no memory of {len} bytes at {at} is allocated")))
    }

    fn compare(
        &mut self,
        (at, len): (u64, u64),
        pattern: Option<Pattern>,
        offset: u64,
    ) -> Result<bool> {
        let path = self.path.clone();
        let memory = self.memory(at, len)?;
        offset.checked_add(len).ok_or_else(|| Failure::new("the offset is too large"))?;
        let file = || File::open(path).map_err(|error| Failure::io("cannot open the file", &error));
        let file = pattern.is_none().then(file).transpose()?;
        let expected = match (&file, pattern) {
            (Some(file), _) => Expected::File(file),
            (None, pattern) => Expected::Pattern(pattern.expect("it has one")),
        };
        expected.is_in(memory, at, len, offset)
    }

    fn open(&mut self, path: &Path, write: bool, direct: bool) -> Result<bool> {
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
        let registered = within(self.gpu.as_deref(), || session.register(file))?;
        self.file = Some(registered.map_err(|failure| failed(&failure))?);
        (self.path, self.writes) = (path.to_owned(), write);
        Ok(direct)
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
    fn run(&mut self, order: &Move) -> Result<(u64, f64)> {
        let Move { write, offset, at, len, threads, request } = *order;
        if !(1..=THREADS_MAX).contains(&threads) || request == 0 {
            return Err(Failure::new("invalid number of threads, or block size"));
        }
        let end = at.checked_add(len).filter(|_| offset.checked_add(len).is_some());
        let end = end.ok_or_else(|| Failure::new("the offset of a move is too large"))?;
        let base = self.memory(0, end)?.address();
        let file = self.file.as_ref().ok_or_else(|| Failure::new("no file is open"))?;
        let (device, done) = (self.gpu.as_deref(), AtomicU64::new(0));
        let cpu = used();
        let work = |(): &mut (), range: ByteRange| -> Result<()> {
            let mut from = range.start;
            let mut step = || -> Result<bool> {
                let rest = whole(range.end - from);
                // SAFETY: the memory has these bytes (`memory`), requests do not overlap, and
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
        Ok((done.into_inner(), used().saturating_sub(cpu).as_secs_f64()))
    }

    fn count(&self) -> Result<(u32, Option<Vec<u64>>)> {
        let session = self.session.as_ref().ok_or_else(|| Failure::new("cuFile is not open"))?;
        let words = |bytes: Box<[u8]>| {
            bytes
                .chunks_exact(8)
                .map(|word| word.try_into().map_or(0, u64::from_ne_bytes))
                .collect()
        };
        Ok((session.version_number(), session.counters().map(words)))
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

    fn order() -> impl Strategy<Value = Order> {
        let path = prop_oneof![Just("/dev/null".to_owned()), "[0-9a-f]{0,9}"];
        prop_oneof![
            length().prop_map(|len| Order::Allocate { len }),
            (path, any::<bool>(), any::<bool>()).prop_map(|(path, write, direct)| Order::Open {
                path: path.into(),
                write,
                direct
            }),
            any::<u8>().prop_map(|byte| Order::Fill { byte }),
            (length(), length(), any::<u64>())
                .prop_map(|(at, len, key)| { Order::Put { at, len, pattern: Pattern::new(key) } }),
            (length(), length(), any::<Option<u64>>(), length()).prop_map(
                |(at, len, key, offset)| {
                    Order::Compare { at, len, pattern: key.map(Pattern::new), offset }
                }
            ),
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
        fn orders_in_any_order_are_answered(orders in prop::collection::vec(order(), 1..12)) {
            let mut state = State::default();
            let mut has: Option<u64> = None;
            for order in orders {
                let answer = state.take(&order);
                let holds = |at: u64, len: u64| {
                    has.is_some_and(|has| at.checked_add(len).is_some_and(|end| end <= has))
                };
                match order {
                    Order::Allocate { len } => {
                        has = (len <= 3 * MIB).then_some(len.max(1));
                        prop_assert_eq!(answer.is_ok(), has.is_some());
                    }
                    Order::Fill { .. } => prop_assert_eq!(answer.is_ok(), has.is_some()),
                    Order::Put { at, len, .. } => prop_assert_eq!(answer.is_ok(), holds(at, len)),
                    Order::Compare { at, len, pattern, offset } => {
                        let fits = holds(at, len) && offset.checked_add(len).is_some();
                        prop_assert_eq!(answer.is_ok(), fits && pattern.is_some());
                    }
                    Order::Close {} => prop_assert!(answer.is_ok()),
                    // cuFile is not open, and no file is.
                    _ => prop_assert!(answer.is_err()),
                }
            }
        }
    }
}
