//! Runs the threads of a load, and merges their results.

use std::io;
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, PoisonError, RwLock};
use std::thread::{self, ScopedJoinHandle};
use std::time::{Duration, Instant};

use forebay::Engine;
use forebay::direct::Counters;
use forebay::units::format_size;
use forebay_evidence::Seen;

use super::backend::{self, Context, Pool, Taken, add};
use super::check::{self, Checked, Most};
use super::clock::{Edge, Span, keep_time};
use super::latency::Latencies;
use super::pattern::Offsets;
use super::worker::{Counter, Phase, Worked, Worker};
use super::{Lane, Load};
use crate::failure::{Failure, Result};
use crate::results::{Cache, Direction};
use crate::results::{CpuCost, Share, Steady};
use crate::scratch::random;
use crate::stats::{float, rate};
use crate::{cpu, proof};

/// The result of a load.
#[derive(Debug)]
pub struct Ran {
    /// Bytes moved in the span that counts.
    pub bytes: u64,
    /// Requests that ended in it.
    pub requests: u64,
    /// The span.
    pub span: Duration,
    /// When it began.
    pub from: Instant,
    /// All bytes read, including those outside the span.
    pub read: u64,
    /// All bytes written, including those outside the span.
    pub written: u64,
    /// Latencies of requests in the span. Each request of a call has the latency of the call.
    pub latencies: Latencies,
    /// The CPU time of the span.
    pub cpu: CpuCost,
    /// Whether the rate was steady.
    pub steady: Option<Steady>,
    /// All bytes by route.
    pub taken: Vec<Taken>,
    /// The share of each target in the span, if there are several.
    pub shares: Vec<Share>,
    /// The share of each target in all bytes.
    pub of_targets: Vec<OfTarget>,
}

impl Ran {
    /// Adds a repetition of the same load, whose routes and targets are kept.
    pub(super) fn add(&mut self, more: Self) {
        self.bytes += more.bytes;
        self.requests += more.requests;
        self.span += more.span;
        self.read += more.read;
        self.written += more.written;
        self.latencies.add_all(&more.latencies);
        let (own, other) = (self.cpu, more.cpu);
        let (user_s, system_s) = (own.user_s + other.user_s, own.system_s + other.system_s);
        self.cpu = CpuCost::new(user_s, system_s, self.span.as_secs_f64(), self.bytes);
        self.steady = None;
        (self.taken, self.of_targets) = (more.taken, more.of_targets);
        for (own, other) in self.shares.iter_mut().zip(more.shares) {
            own.bytes += other.bytes;
            own.bytes_per_second = rate(own.bytes, self.span.as_secs_f64());
            own.first_done_s += other.first_done_s;
            own.last_done_s += other.last_done_s;
        }
    }
}

/// The share of one target in all bytes, including those outside the span.
#[derive(Debug, Clone, Default)]
pub struct OfTarget {
    /// Bytes that were read.
    pub read: u64,
    /// Bytes that were written.
    pub written: u64,
    /// All its bytes by route.
    pub taken: Vec<Taken>,
    /// Bytes of its smallest request.
    pub request: u64,
}

impl OfTarget {
    /// Its bytes in one direction.
    #[must_use]
    pub fn moved(&self, direction: Direction) -> proof::Moved {
        let bytes = match direction {
            Direction::Read => self.read,
            Direction::Write => self.written,
        };
        let own = self.taken.iter().filter(|taken| taken.direction == direction);
        proof::Moved { bytes, routes: own.map(|taken| (taken.route, taken.bytes)).collect() }
    }
}

/// A load that is ready to run: files are open and memory is allocated.
pub struct Ready<'a> {
    load: &'a Load,
    lanes: &'a [Lane],
    phase: Arc<Phase>,
    counters: Arc<[Counter]>,
    workers: Vec<Worker<'a>>,
}

/// The state of a load after its run: the bytes that its threads moved last.
pub struct Moved<'a> {
    load: &'a Load,
    all: Vec<(&'a Path, Worked)>,
    /// The part of its file that each thread used.
    lanes: &'a [Lane],
}

impl Moved<'_> {
    /// cuFile's counters in another process, if it did the work.
    pub fn counters(&mut self) -> Option<Seen<Counters>> {
        self.all.iter_mut().find_map(|(_, worked)| worked.backend.counters())
    }

    /// Compares the written bytes, or the last reads and the files with known contents, up to
    /// `most`.
    ///
    /// # Errors
    /// System and GPU errors.
    pub fn check(mut self, engine: &Engine, most: &Most) -> Result<Checked> {
        match self.load.read_percent {
            0 => return check::written(engine, &self.all, most),
            1..100 => return Ok(Checked::default()),
            _ => {}
        }
        let mut checked = check::last_reads(&mut self.all, self.lanes, self.load.request_size)?;
        if checked.right != Some(false) {
            let known = check::known_holds(self.lanes, most)?;
            checked.right = known.or(checked.right);
        }
        Ok(checked)
    }
}

impl<'a> Ready<'a> {
    /// Prepares `load`, with a thread for each of `lanes`.
    ///
    /// # Errors
    /// A file or memory is unavailable.
    pub fn new(engine: &Engine, load: &'a Load, lanes: &'a [Lane]) -> Result<Self> {
        Self::with(engine, load, lanes, &Arc::default())
    }

    /// Like `new`, with what earlier loads left in `pool`.
    ///
    /// # Errors
    /// A file or memory is unavailable.
    pub fn with(
        engine: &Engine,
        load: &'a Load,
        lanes: &'a [Lane],
        pool: &Arc<Pool>,
    ) -> Result<Self> {
        let phase = Arc::new(Phase::default());
        let counters: Arc<[Counter]> = lanes.iter().map(|_| Counter::default()).collect();
        // The key of the memory's initial contents is random, so that bytes left in the files by an
        // earlier run never match.
        let key = random().map_err(|error| Failure::io("cannot get random bytes", &error))?;
        let mut ready = Self { load, lanes, phase, counters, workers: Vec::new() };
        for index in 0..lanes.len() {
            let worker = ready.worker(index, engine, pool, key)?;
            ready.workers.push(worker);
        }
        Ok(ready)
    }

    /// cuFile's counters in another process, if it does the work.
    pub fn counters(&mut self) -> Option<Seen<Counters>> {
        self.workers.iter_mut().find_map(|worker| worker.backend.counters())
    }

    /// Runs it; `targets` are the names of the lanes' targets, by number.
    ///
    /// # Errors
    /// The first error of any thread.
    pub fn run(mut self, targets: &[String]) -> Result<(Ran, Moved<'a>)> {
        let Self { load, lanes, .. } = self;
        let workers = std::mem::take(&mut self.workers);
        let ended = AtomicUsize::new(0);
        let clock = thread::current();
        let gate = RwLock::new(());
        let closed = gate.write().unwrap_or_else(PoisonError::into_inner);
        let (worked, span, start) = thread::scope(|scope| {
            let (ended, gate, clock) = (&ended, &gate, &clock);
            let spawned = workers.into_iter().map(|worker| {
                let work = move || {
                    drop(gate.read());
                    let worked = worker.run(Instant::now());
                    ended.fetch_add(1, Ordering::Release);
                    clock.unpark();
                    worked
                };
                thread::Builder::new().name("load".into()).spawn_scoped(scope, work)
            });
            let spawned: io::Result<Vec<_>> = spawned.collect();
            if spawned.is_err() {
                self.phase.stop(); // threads that were spawned end when the gate opens
            }
            // If all requests count, threads may finish before the clock is first read.
            let all_counts = load.counts_all() && spawned.is_ok();
            let first = all_counts.then(|| {
                self.phase.count();
                Edge::now(&self.counters)
            });
            let start = Instant::now();
            drop(closed);
            let threads = spawned
                .map_err(|error| Failure::io("cannot start the threads of a load", &error))?;
            let done = || ended.load(Ordering::Acquire) == threads.len();
            let span = keep_time(load, &self.phase, &self.counters, (start, first), &done);
            let join = |thread: ScopedJoinHandle<'_, Worked>| {
                thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
            };
            Ok::<_, Failure>((threads.into_iter().map(join).collect::<Vec<Worked>>(), span, start))
        })?;
        let all = lanes.iter().map(|lane| lane.path.as_path()).zip(worked).collect();
        finish(load, all, (lanes, targets), &span, start)
    }

    /// The thread of a lane.
    fn worker(
        &self,
        index: usize,
        engine: &Engine,
        pool: &Arc<Pool>,
        key: u64,
    ) -> Result<Worker<'a>> {
        let (load, lane, of) = (self.load, &self.lanes[index], self.lanes.len());
        let size = load.request_size;
        // With equal seeds, all threads would read the same random offsets.
        let apart = (index as u64).wrapping_mul(0x9E37_79B9_7F4A_7C15);
        let seed = load.seed.wrapping_add(apart);
        let offsets = Offsets::new(lane.region, size, load.pattern, seed).ok_or_else(|| {
            let (wanted, have) = (format_size(size), format_size(lane.region.len));
            Failure::new(format!("cannot make requests of {wanted} in `{}`", lane.path.display()))
                .because(format!("each thread has {have} of it"))
                .hint("use a larger `--size`, fewer `--threads`, or a smaller block size")
        })?;
        let life = Arc::default();
        let context = Context {
            engine,
            pool,
            device: lane.device.as_ref(),
            path: &lane.path,
            writes: load.writes(),
            cache: load.cache,
            request_size: size,
            depth: load.places(),
            batch: load.requests(),
            key: key.wrapping_add(apart),
            life: &life,
        };
        let due = load.rate.map(|rate| {
            let distance = (float((of * load.requests()) as u64) / rate).min(86_400.0);
            let distance = Duration::from_secs_f64(distance);
            (distance.mul_f64(float(index as u64) / float(of as u64)), distance)
        });
        Ok(Worker {
            load,
            backend: backend::make(load.method, &context)?,
            content: context.written(),
            stamps: false,
            offsets,
            calls: load.calls(lane.region),
            due,
            phase: Arc::clone(&self.phase),
            counters: Arc::clone(&self.counters),
            index,
            // Writes have no time limit.
            watched: (!load.writes()).then(|| (lane.path.clone(), engine.clone())),
            life,
        })
    }
}

/// Merges the results of all threads.
fn finish<'a>(
    load: &'a Load,
    mut all: Vec<(&'a Path, Worked)>,
    (lanes, targets): (&'a [Lane], &[String]),
    counted: &Span,
    start: Instant,
) -> Result<(Ran, Moved<'a>)> {
    for (_, worked) in &mut all {
        std::mem::replace(&mut worked.result, Ok(()))?;
    }
    let (first, mut last) = (counted.first().clone(), counted.last().clone());
    let done = all.iter().map(|(_, worked)| worked.done).max().unwrap_or(last.at);
    if load.counts_all() && done < last.at {
        // The clock polls; the threads know exactly when they were done.
        last.at = done;
    }
    if load.writes() && load.cache == Cache::Cold {
        for (_, worked) in &mut all {
            worked.backend.sync()?;
        }
        last.at += Instant::now().saturating_duration_since(counted.last().at);
        (last.user, last.system) = cpu::used_apart();
    }
    if load.writes() {
        for (_, worked) in &mut all {
            worked.backend.flush()?;
        }
    }
    let span = last.at.saturating_duration_since(first.at).max(Duration::from_nanos(1));
    let mut taken = Vec::new();
    let own = OfTarget { request: load.request_size, ..OfTarget::default() };
    let mut of_targets = vec![own; targets.len()];
    let mut latencies = Latencies::default();
    for ((_, worked), lane) in all.iter().zip(lanes) {
        let mut own = of_targets.get_mut(lane.target);
        for more in worked.backend.routes([worked.read, worked.written]) {
            if let Some(own) = &mut own {
                add(&mut own.taken, more.clone());
            }
            add(&mut taken, more);
        }
        if let Some(own) = own {
            own.read += worked.read;
            own.written += worked.written;
        }
        latencies.add_all(&worked.latencies);
    }
    let sum = |part: fn(&Worked) -> u64| all.iter().map(|(_, worked)| part(worked)).sum();
    let (read, written) = (sum(|worked| worked.read), sum(|worked| worked.written));
    let bytes = last.sum() - first.sum();
    let ran = Ran {
        bytes,
        requests: last.requests - first.requests,
        span,
        from: first.at,
        read,
        written,
        latencies,
        cpu: cost((&first, &last), elsewhere(&all, bytes, read + written), span, bytes),
        steady: counted.steady(),
        taken,
        shares: shares(lanes, targets, &all, (&first, &last), start),
        of_targets,
    };
    Ok((ran, Moved { load, all, lanes }))
}

/// Seconds of other processes' processor time for the `bytes` that count of `all` bytes.
fn elsewhere(workers: &[(&Path, Worked)], bytes: u64, all: u64) -> f64 {
    let cpu: Duration = workers.iter().map(|(_, worked)| worked.backend.cpu()).sum();
    cpu.as_secs_f64() * rate(bytes, rate(all.max(1), 1.0))
}

fn cost((first, last): (&Edge, &Edge), elsewhere: f64, span: Duration, bytes: u64) -> CpuCost {
    let user_s = last.user.saturating_sub(first.user).as_secs_f64() + elsewhere;
    let system_s = last.system.saturating_sub(first.system).as_secs_f64();
    CpuCost::new(user_s, system_s, span.as_secs_f64(), bytes)
}

/// The share of each target, if there are several.
fn shares(
    lanes: &[Lane],
    targets: &[String],
    all: &[(&Path, Worked)],
    (first, last): (&Edge, &Edge),
    start: Instant,
) -> Vec<Share> {
    if targets.len() < 2 {
        return Vec::new();
    }
    let span = last.at.saturating_duration_since(first.at).as_secs_f64();
    let share = |(number, target): (usize, &String)| {
        let own = || (0..lanes.len()).filter(|index| lanes[*index].target == number);
        let bytes = own().map(|index| last.bytes[index] - first.bytes[index]).sum();
        let done = || own().map(|index| all[index].1.done.saturating_duration_since(start));
        Share {
            target: target.clone(),
            bytes,
            bytes_per_second: rate(bytes, span),
            first_done_s: done().min().unwrap_or_default().as_secs_f64(),
            last_done_s: done().max().unwrap_or_default().as_secs_f64(),
        }
    };
    targets.iter().enumerate().map(share).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::data::Pattern as Data;
    use crate::workload::End;
    use crate::workload::backend::{Method, Plain};
    use crate::workload::pattern::Region;

    #[test]
    fn all_counts_where_an_amount_is_to_be_moved() {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), vec![1; 16 << 10]).unwrap();
        let engine = Engine::new(forebay::Options::default()).unwrap();
        let (load, lanes) = (load(100), lanes(file.path()));
        // The load is so short that threads end before the clock is first read.
        for turn in 0..20 {
            let ready = Ready::new(&engine, &load, &lanes).unwrap();
            let (ran, _) = ready.run(&[String::new()]).unwrap();
            assert_eq!((ran.bytes, ran.requests), (16 << 10, 4), "turn {turn}");
            assert_eq!(ran.latencies.summary(false).and_then(|latency| latency.count), Some(4));
            assert!(ran.span < Duration::from_secs(3600) && !ran.span.is_zero());
        }
    }

    #[test]
    fn a_place_that_was_not_written_is_seen() {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), vec![1; 16 << 10]).unwrap();
        let engine = Engine::new(forebay::Options::default()).unwrap();
        let (load, lanes) = (load(0), lanes(file.path()));
        for spoilt in [None, Some(0), Some(9000), Some((16 << 10) - 1)] {
            let ready = Ready::new(&engine, &load, &lanes).unwrap();
            let (_, moved) = ready.run(&[String::new()]).unwrap();
            if let Some(at) = spoilt {
                let mut bytes = std::fs::read(file.path()).unwrap();
                bytes[at] = !bytes[at];
                std::fs::write(file.path(), bytes).unwrap();
            }
            let checked = moved.check(&engine, &Most::USUAL).unwrap();
            assert_eq!(checked.right, Some(spoilt.is_none()), "{spoilt:?}");
            assert!(spoilt.is_some() || (checked.is_all && checked.bytes == 16 << 10));
        }
    }

    #[test]
    fn two_writes_of_a_thread_that_were_swapped_are_seen() {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), vec![1; 16 << 10]).unwrap();
        let engine = Engine::new(forebay::Options::default()).unwrap();
        let lanes = lanes(file.path());
        for method in [Method::Forebay(None), Method::Plain(Plain::Standard)] {
            let load = Load { method, ..load(0) };
            for swaps in [false, true] {
                let ready = Ready::new(&engine, &load, &lanes).unwrap();
                let (_, moved) = ready.run(&[String::new()]).unwrap();
                let mut bytes = std::fs::read(file.path()).unwrap();
                if swaps {
                    bytes[..8 << 10].rotate_left(4 << 10);
                    std::fs::write(file.path(), bytes).unwrap();
                }
                let checked = moved.check(&engine, &Most::USUAL).unwrap();
                assert_eq!(checked.right, Some(!swaps), "{method:?}");
            }
        }
    }

    #[test]
    fn a_mix_of_reads_and_writes_is_counted_apart_and_never_found_right() {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), vec![1; 16 << 10]).unwrap();
        let engine = Engine::new(forebay::Options::default()).unwrap();
        let (load, lanes) = (Load { request_size: 2 << 10, ..load(75) }, lanes(file.path()));
        let ready = Ready::new(&engine, &load, &lanes).unwrap();
        let (ran, moved) = ready.run(&[String::new()]).unwrap();
        let taken: Vec<_> = ran.taken.iter().map(|one| (one.direction, one.bytes)).collect();
        assert_eq!(taken, [(Direction::Read, 12 << 10), (Direction::Write, 4 << 10)]);
        assert_eq!(moved.check(&engine, &Most::USUAL).unwrap(), Checked::default());
    }

    #[test]
    fn a_read_is_compared_with_what_the_file_is_to_hold() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let data = Data::new(5);
        let mut bytes = vec![0; 16 << 10];
        data.fill(0, &mut bytes);
        std::fs::write(file.path(), &bytes).unwrap();
        let engine = Engine::new(forebay::Options::default()).unwrap();
        // Sizes and offsets that are not multiples of the pattern's words.
        let load = Load { request_size: 1001, ..load(100) };
        let check = |content| {
            let lanes = lanes(file.path()).map(|lane| {
                let region = Region { start: lane.region.start + 3, len: (8 << 10) - 3 };
                Lane { content, region, ..lane }
            });
            let ready = Ready::new(&engine, &load, &lanes).unwrap();
            ready.run(&[String::new()]).unwrap().1.check(&engine, &Most::USUAL).unwrap().right
        };
        assert_eq!(check(Some(data)), Some(true));
        assert_eq!(check(Some(data.inverse())), Some(false));
        for at in [3, 9000, (16 << 10) - 1] {
            let mut wrong = bytes.clone();
            wrong[at] = !wrong[at];
            std::fs::write(file.path(), wrong).unwrap();
            assert_eq!(check(Some(data)), Some(false), "{at}");
            assert_eq!(check(None), Some(true), "a second read returns the same");
        }
    }

    fn load(read_percent: u8) -> Load {
        let method = Method::Plain(Plain::CpuCachedGpu);
        let cache = Cache::Resident;
        Load { read_percent, cache, ..Load::reads(method, 4 << 10, End::Bytes(8 << 10)) }
    }

    fn lanes(path: &Path) -> [Lane; 2] {
        [0, 8 << 10].map(|start| Lane {
            target: 0,
            device: None,
            path: path.to_owned(),
            region: Region { start, len: 8 << 10 },
            content: None,
        })
    }
}
