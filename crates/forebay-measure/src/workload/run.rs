//! Runs the threads of a load, and merges their results.

use std::io;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, PoisonError, RwLock};
use std::thread::{self, ScopedJoinHandle};
use std::time::{Duration, Instant};

use forebay::Engine;
use forebay::units::format_size;
use forebay_cufile::Counters;
use forebay_evidence::{Evidence, Seen, Storage};

use super::backend::{self, Context, Method, Pool, Taken, add};
use super::check::{self, Checked, Most};
use super::clock::{Edge, Span, keep_time};
use super::latency::Latencies;
use super::pattern::Offsets;
use super::worker::{Counter, Phase, Progress, Worker};
use super::{Lane, Load};
use crate::failure::{Failure, Result};
use crate::results::{Cache, Direction};
use crate::results::{CpuCost, DriveBytes, Share, Steady};
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
    /// Of each repetition when all processes were ready, when its span began, and when it ended.
    pub rounds: Vec<[Instant; 3]>,
    /// Latencies of requests in the span. Each request of a call has the latency of the call.
    pub latencies: Latencies,
    /// The times to the first block of a block store's turns.
    pub firsts: Latencies,
    /// Bytes that the drives moved, if they are counted.
    pub drives: Option<DriveBytes>,
    /// Bytes that this process read from storage, if the kernel counts them.
    pub fetched: Option<u64>,
    /// The CPU time of the span.
    pub cpu: CpuCost,
    /// Whether the rate was steady.
    pub steady: Option<Steady>,
    /// The share of each target in the span, if there are several.
    pub shares: Vec<Share>,
    /// The share of each target in all bytes.
    pub of_targets: Vec<OfTarget>,
}

impl Ran {
    /// Bytes per second in the span.
    #[must_use]
    pub fn rate(&self) -> f64 {
        rate(self.bytes, self.span.as_secs_f64())
    }

    /// The share of the bytes that this process read from storage, if the kernel counts them.
    #[must_use]
    pub fn fetched_share(&self) -> Option<f64> {
        Some(rate(self.fetched?, float(self.bytes.max(1))))
    }

    /// All bytes by route.
    #[must_use]
    pub fn taken(&self) -> Vec<Taken> {
        let mut all = OfTarget::default();
        self.of_targets.iter().for_each(|own| all.add(own));
        all.taken
    }

    /// Takes the bytes of drives and storage from counters.
    pub(super) fn count(&mut self, seen: &[Evidence]) {
        let Some(seen) = seen.first() else { return };
        let is_of_process = matches!(seen.storage, Storage::Block | Storage::Nfs);
        let own = seen.process.value().filter(|_| is_of_process);
        self.fetched = own.map(|own| own.read);
        self.drives = seen.drives.value().map(|drives| {
            let own = || drives.iter().filter(|drive| drive.drive);
            let (read, written) = (own().map(|d| d.read).sum(), own().map(|d| d.written).sum());
            DriveBytes { read, written }
        });
    }

    /// Adds a repetition of the same load, whose routes and targets are kept.
    pub(super) fn add(&mut self, more: Self) {
        self.bytes += more.bytes;
        self.requests += more.requests;
        self.span += more.span;
        self.rounds.extend(more.rounds);
        self.fetched = self.fetched.zip(more.fetched).map(|(own, other)| own + other);
        self.drives = self.drives.zip(more.drives).map(|(own, other)| DriveBytes {
            read: own.read + other.read,
            written: own.written + other.written,
        });
        self.latencies.add_all(&more.latencies);
        let (own, other) = (self.cpu, more.cpu);
        let (user_s, system_s) = (own.user_s + other.user_s, own.system_s + other.system_s);
        self.cpu = CpuCost::new(user_s, system_s, self.span.as_secs_f64(), self.bytes);
        self.steady = None;
        self.of_targets = more.of_targets;
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
    /// Bytes that were read, and bytes that were written.
    pub moved: [u64; 2],
    /// All its bytes by route.
    pub taken: Vec<Taken>,
    /// Bytes of its smallest request; 0 without requests.
    pub request: u64,
}

impl OfTarget {
    /// Its bytes in one direction.
    #[must_use]
    pub fn moved(&self, direction: Direction) -> proof::Moved {
        let bytes = self.moved[usize::from(direction == Direction::Write)];
        let own = self.taken.iter().filter(|taken| taken.direction == direction);
        proof::Moved { bytes, routes: own.map(|taken| (taken.route, taken.bytes)).collect() }
    }

    /// Adds other bytes of the same target.
    pub fn add(&mut self, more: &Self) {
        for (own, more) in self.moved.iter_mut().zip(more.moved) {
            *own += more;
        }
        more.taken.iter().for_each(|taken| add(&mut self.taken, taken.clone()));
        let sizes = [self.request, more.request].into_iter().filter(|size| *size > 0);
        self.request = sizes.min().unwrap_or(0);
    }
}

/// A load whose files are open and whose memory is allocated, and what its threads moved last.
pub struct Ready<'a> {
    load: &'a Load,
    workers: Vec<Worker<'a>>,
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
        // The key of the memory's initial contents is random, so that bytes left in the files by an
        // earlier run never match.
        let key = random();
        let numbers = (0..lanes.len()).map(|index| worker(engine, load, (lanes, index), pool, key));
        Ok(Self { load, workers: numbers.collect::<Result<_>>()? })
    }

    /// cuFile's counters in another process, if it does the work.
    pub fn counters(&mut self) -> Option<Seen<Counters>> {
        self.workers.iter_mut().find_map(|worker| worker.backend.counters())
    }

    /// Runs it, from the first request on; `targets` are the names of the lanes' targets, by
    /// number.
    ///
    /// # Errors
    /// The first error of any thread.
    pub fn run(&mut self, targets: &[String]) -> Result<Ran> {
        let (load, phase) = (self.load, Arc::new(Phase::default()));
        self.workers.iter_mut().for_each(|worker| worker.phase = Arc::clone(&phase));
        let counters = self.workers.iter().map(|worker| Arc::clone(&worker.counter));
        let counters: Vec<Arc<Counter>> = counters.collect();
        let ended = AtomicUsize::new(0);
        let clock = thread::current();
        let gate = RwLock::new(());
        let closed = gate.write().unwrap_or_else(PoisonError::into_inner);
        let (span, start) = thread::scope(|scope| {
            let (ended, gate, clock) = (&ended, &gate, &clock);
            let spawned = self.workers.iter_mut().map(|worker| {
                let work = move || {
                    drop(gate.read());
                    let result = worker.run(Instant::now());
                    ended.fetch_add(1, Ordering::Release);
                    clock.unpark();
                    result
                };
                thread::Builder::new().name("load".into()).spawn_scoped(scope, work)
            });
            let spawned: io::Result<Vec<_>> = spawned.collect();
            if spawned.is_err() {
                phase.stop(); // threads that were spawned end when the gate opens
            }
            // If all requests count, threads may finish before the clock is first read.
            let all_counts = load.counts_all() && spawned.is_ok();
            let first = all_counts.then(|| {
                phase.count();
                Edge::now(&counters)
            });
            let start = Instant::now();
            drop(closed);
            let threads = spawned
                .map_err(|error| Failure::io("cannot start the threads of a load", &error))?;
            let done = || ended.load(Ordering::Acquire) == threads.len();
            let span = keep_time(load, &phase, &counters, (start, first), &done);
            let join = |thread: ScopedJoinHandle<'_, Result<()>>| {
                thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
            };
            threads.into_iter().try_for_each(join)?;
            Ok::<_, Failure>((span, start))
        })?;
        self.finish(targets, &span, start)
    }

    /// Merges the results of all threads.
    fn finish(&mut self, targets: &[String], counted: &Span, start: Instant) -> Result<Ran> {
        let (first, mut last) = (counted.first().clone(), counted.last().clone());
        let done = self.workers.iter().map(|worker| worker.progress.done).max().unwrap_or(last.at);
        if self.load.counts_all() && done < last.at {
            // The clock polls; the threads know exactly when they were done.
            last.at = done;
        }
        if self.load.writes() && self.load.cache == Cache::Cold {
            self.workers.iter_mut().try_for_each(|worker| worker.backend.sync())?;
            last.at += Instant::now().saturating_duration_since(counted.last().at);
            (last.user, last.system) = cpu::used_apart();
        }
        if self.load.writes() {
            self.workers.iter_mut().try_for_each(|worker| worker.backend.flush())?;
        }
        let span = last.at.saturating_duration_since(first.at).max(Duration::from_nanos(1));
        let mut of_targets = vec![OfTarget::default(); targets.len()];
        let (mut latencies, mut elsewhere, mut all) = (Latencies::default(), Duration::ZERO, 0);
        for Worker { lane, backend, progress, .. } in &self.workers {
            let (moved, request) = (progress.moved, self.load.request_size);
            of_targets[lane.target].add(&OfTarget { moved, taken: backend.routes(moved), request });
            latencies.add_all(&progress.latencies);
            elsewhere += backend.cpu();
            all += moved.iter().sum::<u64>();
        }
        let bytes = last.sum() - first.sum();
        // Of another process's processor time, the part of the bytes that count.
        let elsewhere = elsewhere.as_secs_f64() * rate(bytes, rate(all.max(1), 1.0));
        let user_s = last.user.saturating_sub(first.user).as_secs_f64() + elsewhere;
        let system_s = last.system.saturating_sub(first.system).as_secs_f64();
        Ok(Ran {
            bytes,
            requests: last.requests - first.requests,
            span,
            from: first.at,
            rounds: vec![[start, first.at, first.at + span]],
            latencies,
            firsts: Latencies::default(),
            drives: None,
            fetched: None,
            cpu: CpuCost::new(user_s, system_s, span.as_secs_f64(), bytes),
            steady: counted.steady(),
            shares: self.shares(targets, (&first, &last), start),
            of_targets,
        })
    }

    /// The share of each target, if there are several.
    fn shares(
        &self,
        targets: &[String],
        (first, last): (&Edge, &Edge),
        start: Instant,
    ) -> Vec<Share> {
        if targets.len() < 2 {
            return Vec::new();
        }
        let span = last.at.saturating_duration_since(first.at).as_secs_f64();
        let share = |(number, target): (usize, &String)| {
            let own = || (0..).zip(&self.workers).filter(|(_, own)| own.lane.target == number);
            let bytes =
                own().map(|(index, _): (usize, _)| last.bytes[index] - first.bytes[index]).sum();
            let done = || own().map(|(_, own)| own.progress.done.saturating_duration_since(start));
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

    /// Compares the written bytes, or the last reads and the files with known contents, up to
    /// `most`.
    ///
    /// # Errors
    /// System and GPU errors.
    pub fn check(&mut self, engine: &Engine, most: &Most) -> Result<Checked> {
        match self.load.read_percent {
            _ if *most == Most::NONE => return Ok(Checked::default()),
            0 => return check::written(engine, &self.workers, most),
            1..100 => return Ok(Checked::default()),
            _ => {}
        }
        let mut checked = check::last_reads(&mut self.workers)?;
        // The last call of a whole file had all of its bytes.
        let is_whole = |worker: &Worker<'_>| worker.lane.region.len <= self.load.request_size;
        if checked.right != Some(false) && !self.workers.iter().all(is_whole) {
            let known = check::known_holds(&self.workers, most)?;
            checked.right = known.or(checked.right);
        }
        Ok(checked)
    }
}

/// The thread of a lane.
fn worker<'a>(
    engine: &Engine,
    load: &'a Load,
    (lanes, index): (&'a [Lane], usize),
    pool: &Arc<Pool>,
    key: u64,
) -> Result<Worker<'a>> {
    let (lane, of, size) = (&lanes[index], lanes.len(), load.request_size);
    // With equal seeds, all threads would read the same random offsets.
    let apart = (index as u64).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    let seed = load.seed.wrapping_add(apart);
    let offsets = Offsets::new(lane.region, size, load.pattern, seed).ok_or_else(|| {
        let (wanted, have) = (format_size(size), format_size(lane.region.len));
        Failure::new(format!("cannot make requests of {wanted} in `{}`", lane.path.display()))
            .because(format!("each thread has {have} of it"))
            .hint("use a larger `--size`, fewer `--threads`, or a smaller block size")
    })?;
    let (life, has_file) = (Arc::default(), load.method != Method::Link);
    let context = Context {
        engine,
        pool,
        device: lane.device.as_ref(),
        path: &lane.path,
        writes: has_file && load.writes(),
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
    let mut backend = backend::make(load.method, &context)?;
    let is_host = backend.memory(0).is_some_and(|memory| memory.as_slice().is_some());
    Ok(Worker {
        load,
        lane,
        backend,
        progress: Progress::new(Instant::now(), load, &offsets),
        offsets,
        content: (context.written(), load.read_percent == 0 && is_host),
        calls: load.calls(lane.region),
        due,
        phase: Arc::default(),
        counter: Arc::default(),
        // Writes have no time limit.
        watched: (has_file && !load.writes()).then(|| engine.clone()),
        life,
    })
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::data::Pattern as Data;
    use crate::workload::End;
    use crate::workload::backend::Plain;
    use crate::workload::pattern::Region;

    #[test]
    fn all_counts_where_an_amount_is_to_be_moved() {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), vec![1; 16 << 10]).unwrap();
        let engine = Engine::new(forebay::Options::default()).unwrap();
        let (load, lanes) = (load(100), lanes(file.path()));
        // The load is so short that threads end before the clock is first read.
        for turn in 0..20 {
            let mut ready = Ready::new(&engine, &load, &lanes).unwrap();
            let ran = ready.run(&[String::new()]).unwrap();
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
            let mut ready = Ready::new(&engine, &load, &lanes).unwrap();
            ready.run(&[String::new()]).unwrap();
            if let Some(at) = spoilt {
                let mut bytes = std::fs::read(file.path()).unwrap();
                bytes[at] = !bytes[at];
                std::fs::write(file.path(), bytes).unwrap();
            }
            let checked = ready.check(&engine, &Most::USUAL).unwrap();
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
                let mut ready = Ready::new(&engine, &load, &lanes).unwrap();
                ready.run(&[String::new()]).unwrap();
                let mut bytes = std::fs::read(file.path()).unwrap();
                if swaps {
                    bytes[..8 << 10].rotate_left(4 << 10);
                    std::fs::write(file.path(), bytes).unwrap();
                }
                let checked = ready.check(&engine, &Most::USUAL).unwrap();
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
        let mut ready = Ready::new(&engine, &load, &lanes).unwrap();
        let ran = ready.run(&[String::new()]).unwrap();
        let taken: Vec<_> = ran.taken().iter().map(|one| (one.direction, one.bytes)).collect();
        assert_eq!(taken, [(Direction::Read, 12 << 10), (Direction::Write, 4 << 10)]);
        assert_eq!(ready.check(&engine, &Most::USUAL).unwrap(), Checked::default());
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
            let mut ready = Ready::new(&engine, &load, &lanes).unwrap();
            ready.run(&[String::new()]).unwrap();
            ready.check(&engine, &Most::USUAL).unwrap().right
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
        let cache = Cache::Warm;
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
