//! A block store under the load of a server of language models.
//!
//! Each thread takes the next turn, looks up the blocks of its prompt, loads those from the first
//! one to the last before one is missing, and stores all others, as if they were computed. A call
//! has several blocks, and a thread keeps several calls in flight.

use std::path::Path;
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use forebay::gpu::Device;
use forebay::units::format_size;
use forebay::{Buffer, Engine, File, Route};
use forebay_blocks::{Batch, Block, End, Options, RootOptions, Store, Why};

use super::model::Model;
use super::trace::{PROMPT, Trace};
use crate::cpu;
use crate::failure::{Failure, Result};
use crate::results::{CpuCost, Direction, KvFacts};
use crate::scratch::{self, Folder};
use crate::stats::rate;
use crate::workload::backend::Taken;
use crate::workload::check::Checked;
use crate::workload::latency::Latencies;
use crate::workload::run::{OfTarget, Ran};

/// The capacity holds this many prompts at least: the trace's prompts are shortened for that.
const PROMPTS_MIN: u64 = 16;
/// All conversations in progress have this many times the bytes of the capacity.
const WORKING_SET: u64 = 2;
/// The longest time to fill the store.
const FILL_MAX: Duration = Duration::from_secs(600);
/// Bytes that stay free on the file system, as with other scratch.
const KEEP_FREE: u64 = 1 << 30;
/// Why the bytes take their route.
const REASON: &str = "the block store uses O_DIRECT and memory of its own";

/// What the load of a store consists of.
#[derive(Debug, Clone)]
pub struct Shape {
    /// The GPU; `None` for host memory.
    pub device: Option<Arc<dyn Device>>,
    /// Threads, each with a turn.
    pub threads: usize,
    /// Calls in flight of each thread.
    pub depth: usize,
    /// Blocks of one call.
    pub batch: usize,
}

/// A store in a scratch folder, with the conversations that it serves.
#[derive(Debug)]
pub struct Served {
    // Closed before its folders are removed.
    store: Store,
    folders: Vec<Folder>,
    trace: Mutex<Trace>,
    len: u64,
    shape: Shape,
    capacity: u64,
    /// The memory of each thread.
    memory: Vec<Vec<Buffer>>,
}

/// When blocks count.
#[derive(Debug, Clone, Copy)]
struct Span {
    from: Instant,
    to: Instant,
}

impl Span {
    fn has(&self, at: Instant) -> bool {
        (self.from..self.to).contains(&at)
    }
}

/// What threads did in the span.
#[derive(Debug, Default)]
struct Tally {
    /// Bytes that were loaded, and stored.
    moved: [u64; 2],
    /// The same, outside the span as well.
    all: [u64; 2],
    facts: KvFacts,
    loads: Latencies,
    firsts: Latencies,
    is_wrong: bool,
}

impl Tally {
    fn add(&mut self, more: &Self) {
        for direction in [0, 1] {
            self.moved[direction] += more.moved[direction];
            self.all[direction] += more.all[direction];
        }
        self.facts.turns += more.facts.turns;
        self.facts.wanted += more.facts.wanted;
        self.facts.hits += more.facts.hits;
        self.facts.dropped += more.facts.dropped;
        self.loads.add_all(&more.loads);
        self.firsts.add_all(&more.firsts);
        self.is_wrong |= more.is_wrong;
    }
}

impl Served {
    /// Opens an empty store with a root of this capacity in scratch of each of `places`.
    ///
    /// # Errors
    /// Errors of the file system; a lack of memory.
    pub fn open(
        engine: &Engine,
        places: &[&Path],
        (model, capacity): (Model, u64),
        shape: &Shape,
        seed: u64,
    ) -> Result<Self> {
        let folders = places.iter().map(|place| scratch::folder(place));
        let folders = folders.collect::<Result<Vec<_>>>()?;
        let root = |folder: &Folder| RootOptions {
            path: folder.path().to_owned(),
            capacity,
            keep_free: Some(KEEP_FREE),
        };
        let store = Store::open(engine, &Options::new(folders.iter().map(root).collect()))?;
        let capacity = capacity * places.len() as u64;
        let (len, page) = (model.block_len(), model.page());
        let shorter = Self::shorter(model, capacity);
        let prompt = (PROMPT / shorter).max(1) * len / page;
        let sessions = (WORKING_SET * capacity / prompt.max(1)).max(1);
        let buffer = |_| {
            let buffer = match &shape.device {
                Some(device) => engine.allocate(device.id(), len)?,
                None => engine.allocate_pinned(len)?,
            };
            Ok(buffer)
        };
        let buffers = |_| (0..shape.depth * shape.batch).map(buffer).collect::<Result<_>>();
        let memory = (0..shape.threads).map(buffers).collect::<Result<_>>()?;
        let trace = Mutex::new(Trace::new(sessions, page, shorter, seed));
        Ok(Self { store, folders, trace, len, shape: shape.clone(), capacity, memory })
    }

    /// By what the trace's prompts are divided, so that the capacity holds enough of them.
    #[must_use]
    pub fn shorter(model: Model, capacity: u64) -> u64 {
        let all = PROMPTS_MIN * PROMPT * model.block_len() / model.page();
        all.div_ceil(capacity.max(1)).max(1)
    }

    /// The files of the blocks' bytes, with their lengths.
    ///
    /// # Errors
    /// Errors of the file system.
    pub(crate) fn files(&self, engine: &Engine) -> Result<Vec<(File, u64)>> {
        let mut files = Vec::new();
        for folder in &self.folders {
            let failed = |error| Failure::at("inspect", folder.path(), &error);
            for class in std::fs::read_dir(folder.path()).map_err(failed)? {
                let class = class.map_err(failed)?.path();
                // One entry is the file `format`.
                for entry in std::fs::read_dir(class).into_iter().flatten() {
                    let entry = entry.map_err(failed)?;
                    if entry.file_name().to_string_lossy().starts_with("data-") {
                        let file = engine.open(entry.path())?;
                        let len = file.len()?;
                        files.push((file, len));
                    }
                }
            }
        }
        Ok(files)
    }

    /// Serves turns until the store is full.
    ///
    /// # Errors
    /// Errors of the drive or the GPU.
    pub fn fill(&mut self) -> Result<()> {
        let begun = Instant::now();
        loop {
            let (before, _) = self.written();
            let now = Instant::now();
            self.serve(Span { from: now, to: now + Duration::from_millis(500) })?;
            let (after, evicted) = self.written();
            if evicted > 0 || after >= self.capacity {
                return Ok(());
            }
            if after == before || begun.elapsed() > FILL_MAX {
                let (had, capacity) = (format_size(after), format_size(self.capacity));
                return Err(Failure::new(format!("cannot fill a block store of {capacity}"))
                    .because(format!("after {:.0?} it has {had}", begun.elapsed()))
                    .hint("give a smaller `--size`, or a faster drive"));
            }
        }
    }

    /// Bytes that were written, and blocks that left.
    fn written(&self) -> (u64, u64) {
        let all = self.store.statistics();
        all.iter().fold((0, 0), |sum, root| (sum.0 + root.bytes_written, sum.1 + root.evicted))
    }

    /// Serves turns for `time`, after a warm-up that does not count.
    ///
    /// # Errors
    /// Errors of the drive or the GPU.
    pub(crate) fn run(
        &mut self,
        warm_up: Duration,
        time: Duration,
    ) -> Result<(Ran, KvFacts, Checked)> {
        let from = Instant::now() + warm_up;
        let span = Span { from, to: from + time };
        let (tally, cpu) = self.serve(span)?;
        let (bytes, seconds) = (tally.moved.iter().sum(), time.as_secs_f64());
        let taken = [Direction::Read, Direction::Write].map(|direction| Taken {
            direction,
            route: Route::Staged,
            is_engines: true,
            reason: REASON.into(),
            bytes: tally.all[usize::from(direction == Direction::Write)],
        });
        let of_target = OfTarget { moved: tally.all, taken: taken.into(), request: self.len };
        let ran = Ran {
            bytes,
            requests: bytes / self.len,
            span: time,
            from,
            rounds: vec![[from, from, from + time]],
            latencies: tally.loads,
            firsts: tally.firsts,
            drives: None,
            fetched: None,
            cpu: CpuCost::new(cpu.0.as_secs_f64(), cpu.1.as_secs_f64(), seconds, bytes),
            steady: None,
            shares: Vec::new(),
            of_targets: vec![of_target],
        };
        let loaded = tally.moved[0];
        let checked = Checked {
            right: (loaded > 0 || tally.is_wrong).then_some(!tally.is_wrong),
            bytes: loaded,
            is_all: true,
        };
        let facts = KvFacts {
            loaded_bytes_per_second: rate(loaded, seconds),
            first: ran.firsts.summary(false),
            ..tally.facts
        };
        Ok((ran, facts, checked))
    }

    /// Runs all threads until the end of the span; returns what they did, and the processor time
    /// from the start of the span on.
    fn serve(&mut self, span: Span) -> Result<(Tally, (Duration, Duration))> {
        let (store, trace, len, shape) = (&self.store, &self.trace, self.len, &self.shape);
        let results: Result<Vec<_>> = thread::scope(|scope| {
            let threads = self.memory.iter_mut().map(|memory| {
                let mut server =
                    Server { store, len, shape, span, memory, tally: Tally::default() };
                let work = move || server.work(trace).map(|()| server.tally);
                thread::Builder::new().name("load".into()).spawn_scoped(scope, work)
            });
            let threads: std::io::Result<Vec<_>> = threads.collect();
            let threads = threads
                .map_err(|error| Failure::io("cannot start the threads of a load", &error))?;
            thread::sleep(span.from.saturating_duration_since(Instant::now()));
            let before = cpu::used_apart();
            thread::sleep(span.to.saturating_duration_since(Instant::now()));
            let after = cpu::used_apart();
            let used = (after.0.saturating_sub(before.0), after.1.saturating_sub(before.1));
            let joined = threads.into_iter().map(|thread| {
                thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
            });
            joined.map(|result| result.map(|tally| (tally, used))).collect()
        });
        let mut sum = (Tally::default(), (Duration::ZERO, Duration::ZERO));
        for (tally, used) in results? {
            sum.0.add(&tally);
            sum.1 = used;
        }
        Ok(sum)
    }
}

/// One thread.
struct Server<'a> {
    store: &'a Store,
    len: u64,
    shape: &'a Shape,
    span: Span,
    memory: &'a mut Vec<Buffer>,
    tally: Tally,
}

/// A call in flight.
struct Running<'a> {
    batch: Batch,
    began: Instant,
    names: &'a [u64],
}

impl Server<'_> {
    fn work(&mut self, trace: &Mutex<Trace>) -> Result<()> {
        while Instant::now() < self.span.to {
            let turn = trace.lock().unwrap_or_else(PoisonError::into_inner).next();
            let turn = turn.expect("it has no end");
            let began = Instant::now();
            let keys: Vec<_> =
                turn.blocks[..turn.prompt].iter().map(|name| self.key(*name)).collect();
            let found = self.store.exists(&keys).wait();
            let found = found.iter().take_while(|end| end.is_good()).count();
            let before = self.tally.facts.hits;
            self.calls(Direction::Read, &turn.blocks[..found], began)?;
            self.calls(Direction::Write, &turn.blocks[found..], began)?;
            // A turn that the end of the span cut off would look like one with few blocks.
            if self.span.has(began) && Instant::now() < self.span.to {
                self.tally.facts.turns += 1;
                self.tally.facts.wanted += turn.prompt as u64;
            } else {
                self.tally.facts.hits = before;
            }
        }
        Ok(())
    }

    fn key(&self, name: u64) -> forebay_blocks::Key {
        self.store.key(&name.to_le_bytes())
    }

    /// Loads or stores blocks, of a turn that began at `turn`.
    fn calls(&mut self, direction: Direction, names: &[u64], turn: Instant) -> Result<()> {
        let mut groups = names.chunks(self.shape.batch);
        let mut running: Vec<Option<Running<'_>>> = (0..self.shape.depth).map(|_| None).collect();
        let (over, ends) = channel();
        let mut first = (direction == Direction::Read).then_some(turn);
        loop {
            for (place, free) in running.iter_mut().enumerate().filter(|one| one.1.is_none()) {
                if Instant::now() < self.span.to
                    && let Some(names) = groups.next()
                {
                    *free = Some(self.start(direction, names, (place, &over))?);
                }
            }
            if running.iter().all(Option::is_none) {
                return Ok(());
            }
            let (place, at) = ends.recv().expect("a call is in flight");
            let call = running[place].take().expect("it was started");
            self.end(direction, call, at)?;
            if let Some(turn) = first.take().filter(|_| self.span.has(at)) {
                self.tally.firsts.add(at.saturating_duration_since(turn), 1);
            }
        }
    }

    fn start<'n>(
        &mut self,
        direction: Direction,
        names: &'n [u64],
        (place, over): (usize, &Sender<(usize, Instant)>),
    ) -> Result<Running<'n>> {
        let mut blocks = Vec::with_capacity(names.len());
        for name in names {
            let mut buffer = self.memory.pop().expect("each call has memory");
            if direction == Direction::Write {
                buffer.upload(0, &name.to_le_bytes())?;
            }
            blocks.push(Block { key: self.key(*name), memory: vec![buffer] });
        }
        let began = Instant::now();
        let batch = match direction {
            Direction::Read => self.store.get(blocks),
            Direction::Write => self.store.set(blocks),
        };
        let over = over.clone();
        batch.on_end(move || {
            let _ = over.send((place, Instant::now()));
        });
        Ok(Running { batch, began, names })
    }

    fn end(&mut self, direction: Direction, call: Running<'_>, at: Instant) -> Result<()> {
        let Running { batch, began, names } = call;
        let counts = self.span.has(at);
        let ends = batch.wait();
        let memory: Vec<Buffer> = batch.take_memory().into_iter().flatten().collect();
        // The first block of a call is compared by its name, all by the store's checksums.
        if let (Direction::Read, Some(End::Done), Some(name)) =
            (direction, ends.first(), names.first())
            && let Some(buffer) = memory.first()
        {
            let mut found = [0; 8];
            buffer.download(0, &mut found)?;
            self.tally.is_wrong |= found != name.to_le_bytes();
        }
        self.memory.extend(memory);
        let index = usize::from(direction == Direction::Write);
        for end in ends {
            match end {
                End::Done => {
                    self.tally.all[index] += self.len;
                    if direction == Direction::Read {
                        self.tally.facts.hits += 1;
                    }
                    if counts {
                        self.tally.moved[index] += self.len;
                    }
                    if counts && direction == Direction::Read {
                        self.tally.loads.add(at.saturating_duration_since(began), 1);
                    }
                }
                End::Not(Why::Damaged) => self.tally.is_wrong = true,
                End::Present | End::Not(Why::Absent) => {}
                End::Not(Why::NoRoom) => self.tally.facts.dropped += 1,
                End::Not(why) => return Err(self.failed(direction, why)),
            }
        }
        Ok(())
    }

    fn failed(&self, direction: Direction, why: Why) -> Failure {
        let what = if direction == Direction::Read { "load" } else { "store" };
        let roots = self.store.statistics();
        let error = roots.into_iter().find_map(|root| root.last_error);
        Failure::new(format!("cannot {what} blocks"))
            .because(error.unwrap_or_else(|| why.to_string()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn turns_are_served_and_their_blocks_come_back() {
        let place = tempfile::tempdir_in(".").unwrap();
        let engine = Engine::new(forebay::Options::default()).unwrap();
        let model: Model = "deepseek-r1:fp8:page1".parse().unwrap();
        let (capacity, time) = (32 << 20, Duration::from_millis(400));
        assert!(Served::shorter(model, capacity) > 100);
        let shape = Shape { device: None, threads: 2, depth: 2, batch: 4 };
        let mut served =
            Served::open(&engine, &[place.path()], (model, capacity), &shape, 1).unwrap();
        served.fill().unwrap();
        let (ran, facts, checked) = served.run(Duration::from_millis(50), time).unwrap();
        assert!(facts.hits > 0 && facts.hits < facts.wanted && facts.turns > 0, "{facts:?}");
        let loads = ran.latencies.summary(false).unwrap();
        assert_eq!(checked.right, Some(true));
        assert_eq!(checked.bytes, loads.count.unwrap() * 35_136);
        assert!(ran.bytes > checked.bytes && facts.first.is_some(), "{ran:?}");
        let (used, blocks) = (served.store.usage().unwrap(), served.written());
        assert!(used.1 <= capacity && blocks.0 > capacity / 2, "{used:?}, {blocks:?}");
        drop(served);
        assert_eq!(std::fs::read_dir(place.path()).unwrap().count(), 0, "scratch stayed");
    }
}
