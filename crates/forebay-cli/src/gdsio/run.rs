//! Runs all jobs concurrently, and merges their results.

use std::os::unix::fs::FileTypeExt as _;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use forebay::gpu::Device;
use forebay::units::{MIB, format_size};
use forebay::{Engine, Route};
use forebay_measure::failure::{Failure, Result};
use forebay_measure::host_memory::check_requests;
use forebay_measure::output::{New, folder_of};
use forebay_measure::proof::Proof;
use forebay_measure::results::Cache;
use forebay_measure::stdio::{message, say};
use forebay_measure::steps::Step;
use forebay_measure::workload::backend::{ACCEPTS_ANY_SIZE, Method, Plain, WITHOUT_O_DIRECT};
use forebay_measure::workload::check::Most;
use forebay_measure::workload::pattern::Pattern;
use forebay_measure::workload::run::{Ran, Ready};
use forebay_measure::workload::{End, Lane, Load};
use forebay_measure::{data, held, make, scratch};

use super::line::ResultLine;
use super::node::Kept;
use super::options::{Job, Request};
use super::proved::Watched;
use super::words::{Io, Sizes, Transfer};
use crate::report::model::grouped;

/// A job with its parameters.
pub(super) struct Task<'a> {
    pub(super) request: &'a Request,
    job: &'a Job,
    /// The method that moves its bytes, and the type that a plain method counts as.
    pub(super) method: Method,
    plain: Transfer,
    /// The GPU that is the target.
    pub(super) device: Option<Arc<dyn Device>>,
    /// By thread; empty before the files exist.
    pub(super) lanes: Vec<Lane>,
}

/// The result of a job.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Done {
    pub(super) bytes: u64,
    pub(super) requests: u64,
    pub(super) time: Duration,
    /// The sum of all requests' durations.
    pub(super) waited: Duration,
    /// Bytes by the type that they count as.
    pub(super) types: Vec<(Transfer, u64)>,
    /// Whether the bytes are correct; `None` if they were not compared.
    pub(super) right: Option<bool>,
}

impl<'a> Task<'a> {
    pub(super) fn new(request: &'a Request, job: &'a Job, device: Option<Arc<dyn Device>>) -> Self {
        let (method, plain) = match request.transfer.is_direct() {
            true => (Method::Forebay(None), request.transfer),
            false => plain_method(request.transfer, request.cached, device.is_some()),
        };
        Self { request, job, method, plain, device, lanes: Vec::new() }
    }

    const fn depth(&self) -> u32 {
        match self.method {
            Method::Plain(plain) => match plain.places() {
                Some(places) => places,
                None => 1,
            },
            // A call with many requests would use host memory.
            Method::Forebay(Some(Route::Direct)) => self.requests(),
            Method::Forebay(_) if self.request.transfer.is_batch() => self.job.threads,
            _ => 1,
        }
    }

    /// Requests of a call.
    fn batch(&self) -> u32 {
        if matches!(self.method, Method::Forebay(None)) { self.request.batch } else { 1 }
    }

    /// Requests in flight per thread.
    const fn requests(&self) -> u32 {
        if self.request.transfer.is_batch() { self.job.threads * self.request.batch } else { 1 }
    }

    /// A load per block size. Reading back is a single pass, whatever the run was.
    fn loads(&self, io: Io, reads_back: bool) -> Vec<Load> {
        let (request, sizes) = (self.request, self.job.sizes.all());
        let parts = u32::try_from(sizes.len()).expect("a few hundred");
        let threads = if request.transfer.is_batch() { u64::from(self.job.threads) } else { 1 };
        let bytes = (request.size - request.shift).saturating_mul(threads) / u64::from(parts);
        let end = match request.time {
            Some(time) if !reads_back => End::Time(time / parts),
            _ => End::Bytes(bytes),
        };
        let load = |request_size| Load {
            read_percent: if reads_back { 100 } else { request.read_percent },
            pattern: if io.is_random { Pattern::Random } else { Pattern::Sequential },
            depth: self.depth(),
            batch: self.batch(),
            // No pages are evicted or read in before, and no write waits until its bytes are on the
            // drive.
            cache: Cache::Warm,
            seed: request.seed,
            ..Load::reads(self.method, request_size, end)
        };
        sizes.into_iter().map(load).collect()
    }

    /// Makes a few of the job's requests by the route `direct`, of its sizes, the first ones of two
    /// files.
    ///
    /// # Errors
    /// The route is unavailable, or refuses these requests; the text says why, and what to do.
    pub(super) fn try_direct(&self, engine: &Engine) -> Result<()> {
        let lanes = &self.lanes[..self.lanes.len().min(2)];
        let (written, _scratch) = self.writable(lanes);
        let sizes = self.job.sizes.all();
        for &size in sizes.iter().take(2).chain(sizes.last()) {
            // Every alignment that a route requires divides a MiB, so longer requests end alike.
            let size = if size > MIB { MIB + size % MIB } else { size };
            let method = Method::Forebay(Some(Route::Direct));
            let reads = Load::reads(method, size, End::Bytes(2 * size));
            let reads = Load { cache: Cache::Warm, ..reads };
            Ready::new(engine, &reads, lanes)?.run(&[String::new()])?;
            if !written.is_empty() {
                let writes = Load { read_percent: 0, ..reads };
                Ready::new(engine, &writes, &written)?.run(&[String::new()])?;
            }
        }
        Ok(())
    }

    /// The parts of files that a trial writes to, and their scratch. A device, and `lanes` that the
    /// job overwrites, are tried themselves. Other jobs, such as random and timed ones, are tried
    /// in scratch next to their files. Without space for scratch their writes are not tried.
    fn writable(&self, lanes: &[Lane]) -> (Vec<Lane>, Vec<New>) {
        let Request { read_percent, time, io, .. } = *self.request;
        if read_percent == 100 {
            return (Vec::new(), Vec::new());
        }
        let path = &lanes[0].path;
        let step = Step::begin("inspect", path);
        let is_device =
            std::fs::metadata(path).is_ok_and(|facts| facts.file_type().is_block_device());
        drop(step);
        if is_device || (read_percent == 0 && time.is_none() && !io.is_random) {
            return (lanes.to_vec(), Vec::new());
        }
        let folder = folder_of(&held::name(path)).to_owned();
        let in_scratch = || -> Result<_> {
            scratch::remove_leftovers(&folder);
            let scratch = scratch::create(&folder, lanes.len())?;
            let mut lanes = lanes.to_vec();
            for (made, lane) in scratch.iter().zip(&mut lanes) {
                lane.path = made.path();
                lane.region.start %= MIB;
                lane.region.len = lane.region.len.min(4 * MIB);
                make::fill(&lane.path, data::Pattern::new(0), lane.region.start + lane.region.len)?;
            }
            Ok((lanes, scratch))
        };
        in_scratch().unwrap_or_else(|failure| {
            say(&format!("no write is tried before the run: {}", failure.with_remedy()));
            Default::default()
        })
    }

    /// Bytes of memory that it needs, on the GPU and the host together.
    fn memory(&self) -> u64 {
        let threads =
            if self.request.transfer.is_batch() { 1 } else { u64::from(self.job.threads) };
        let calls = threads * u64::from(self.depth());
        let bytes = self.job.sizes.max.saturating_mul(u64::from(self.batch()));
        bytes.saturating_mul(calls).saturating_mul(if self.device.is_some() { 2 } else { 1 })
    }

    fn done(&self, ran: &Ran, right: Option<bool>) -> Done {
        let mean_ns =
            ran.latencies.summary(false).and_then(|latency| latency.mean_ns).unwrap_or_default();
        let type_of = |route| match (self.method, route) {
            (Method::Plain(_), _) => self.plain,
            (_, Route::Direct) => self.request.transfer,
            (_, Route::Staged) => Transfer::CpuAsyncGpu,
            (_, Route::Cached) => Transfer::CpuCachedGpu,
            _ => Transfer::CpuOnly,
        };
        // A call of a batch waits for all of its requests, which run at the same time.
        let waited = if self.request.transfer.is_batch() {
            ran.span
        } else {
            Duration::from_secs_f64(mean_ns * 1e-9 * float(ran.requests))
        };
        Done {
            bytes: ran.bytes,
            requests: ran.requests,
            time: ran.span,
            waited,
            types: ran.taken().iter().map(|taken| (type_of(taken.route), taken.bytes)).collect(),
            right,
        }
    }

    /// Whether the bytes of a finished load are correct; `None` if they were not compared.
    fn right(&self, engine: &Engine, load: &Load, mut ready: Ready<'_>) -> Result<Option<bool>> {
        if !self.request.verify {
            return Ok(None);
        }
        let checked = ready.check(engine, &Most::ALL)?;
        if load.read_percent == 0 && checked.right == Some(true) && !checked.is_all {
            message(&format!(
                "{} of the written bytes were verified: the order of requests that overlapped is \
                 unknown",
                format_size(checked.bytes)
            ));
        }
        Ok(checked.right)
    }
}

/// Converts the hints of methods, which name other verbs' flags; `shift` is how far `-U` shifts
/// requests.
fn in_options(mut failure: Failure, shift: u64) -> Failure {
    let cached = "`-O 1`, which uses the page cache";
    if let Some(hint) = &mut failure.hint {
        if hint.contains(WITHOUT_O_DIRECT) {
            *hint = format!("use `-x 4` or {cached}");
        } else if hint.contains(ACCEPTS_ANY_SIZE) && shift > 0 {
            *hint = format!(
                "`-U` shifts requests by {shift} bytes, but O_DIRECT requires multiples of the \
                 drive's block size: omit `-U`, or try {cached}"
            );
        } else if hint.contains(ACCEPTS_ANY_SIZE) {
            *hint = format!(
                "with O_DIRECT, `-i`, `-o` and `-s` must be multiples of the drive's block size: \
                 try multiples of 4K, or {cached}"
            );
        }
    }
    failure
}

/// Refuses requests that do not fit in memory.
///
/// # Errors
/// They need too much; the text says how much.
pub(super) fn check_memory(tasks: &[Task<'_>]) -> Result<()> {
    let bytes = tasks.iter().map(Task::memory).fold(0, u64::saturating_add);
    check_requests(bytes, "lower `-i`, `-w` or `-B`")
}

/// Runs all `tasks` concurrently; returns their results, and the proof of bytes that should be
/// direct.
///
/// # Errors
/// The first of any task.
pub(super) fn run_all(
    engine: &Engine,
    tasks: &[Task<'_>],
    io: Io,
    reads_back: bool,
) -> Result<(Vec<Done>, Vec<Proof>)> {
    let direct = tasks.iter().filter(|task| task.request.transfer.is_direct());
    let direct: Vec<&[Lane]> = direct.map(|task| task.lanes.as_slice()).collect();
    let watched = Watched::new(engine, &direct)?;
    let mut proofs = Vec::new();
    let loads: Vec<Vec<Load>> = tasks.iter().map(|task| task.loads(io, reads_back)).collect();
    let mut done: Vec<Vec<Done>> = tasks.iter().map(|_| Vec::new()).collect();
    let most = loads.iter().map(Vec::len).max().unwrap_or(0);
    for size in 0..most {
        let mut works = Vec::new();
        for (index, (task, loads)) in tasks.iter().zip(&loads).enumerate() {
            let Some(load) = loads.get(size) else { continue };
            let _kept = Kept::to(task.job.node)?;
            let mut ready = Ready::new(engine, load, &task.lanes)
                .map_err(|failure| in_options(failure, task.request.shift))?;
            works.push(move || {
                let _kept = Kept::to(task.job.node)?;
                let ran = ready
                    .run(&[String::new()])
                    .map_err(|failure| in_options(failure, task.request.shift))?;
                Ok((index, load, ran, ready))
            });
        }
        let span = watched.as_ref().map(|watched| (watched, watched.begin()));
        let ended = all_at_once(works)?;
        if let Some((watched, span)) = span {
            let ran = ended.iter().map(|(index, _, ran, _)| (*index, ran));
            proofs.extend(watched.proofs(&span.end_each(), ran));
        }
        // Comparing would slow the drives and processors of jobs still running.
        for (index, load, ran, ready) in ended {
            let right = tasks[index].right(engine, load, ready)?;
            done[index].push(tasks[index].done(&ran, right));
        }
    }
    Ok((done.iter().map(|sizes| one_after_another(sizes)).collect(), proofs))
}

/// The results of all `works`, run on separate threads, when all have ended.
fn all_at_once<T: Send>(works: Vec<impl FnOnce() -> Result<T> + Send>) -> Result<Vec<T>> {
    thread::scope(|scope| {
        let threads = works.into_iter().map(|work| {
            let thread = thread::Builder::new().name("job".into()).spawn_scoped(scope, work);
            thread.map_err(|error| Failure::io("cannot start the threads of jobs", &error))
        });
        let threads: Vec<_> = threads.collect();
        let join = |thread: Result<thread::ScopedJoinHandle<'_, Result<T>>>| {
            thread?.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        };
        // Wait for all, even if the first failed.
        let ended: Vec<_> = threads.into_iter().map(join).collect();
        ended.into_iter().collect()
    })
}

/// The combined result of loads that ran in sequence.
fn one_after_another(all: &[Done]) -> Done {
    together(all, all.iter().map(|done| done.time).sum())
}

/// The combined result of concurrent jobs.
pub(super) fn at_once(all: &[Done]) -> Done {
    together(all, all.iter().map(|done| done.time).max().unwrap_or_default())
}

fn together(all: &[Done], time: Duration) -> Done {
    let right = all.iter().filter_map(|done| done.right).reduce(|one, other| one && other);
    let types = grouped(all.iter().flat_map(|done| done.types.iter().copied()));
    Done {
        bytes: all.iter().map(|done| done.bytes).sum(),
        requests: all.iter().map(|done| done.requests).sum(),
        time,
        waited: all.iter().map(|done| done.waited).sum(),
        types: types.into_iter().map(|(kind, bytes)| (kind, bytes.iter().sum())).collect(),
        right,
    }
}

/// The line of the combined result of `jobs`.
pub(super) fn line(request: &Request, jobs: &[&Job], io: Io, done: &Done) -> ResultLine {
    let threads: u32 = jobs.iter().map(|job| job.threads).sum();
    let is_batch = request.transfer.is_batch();
    // A single job without the direct route is enough for the line not to report it.
    let most = done.types.iter().max_by_key(|(kind, bytes)| (!kind.is_direct(), *bytes));
    let sizes = jobs.iter().map(|job| job.sizes);
    let sizes = sizes.reduce(|one, other| Sizes {
        min: one.min.min(other.min),
        max: one.max.max(other.max),
        step: one.step.min(other.step),
    });
    ResultLine {
        io,
        transfer: most.map_or(request.transfer, |(kind, _)| *kind),
        threads: if is_batch { u32::try_from(jobs.len()).unwrap_or(1) } else { threads },
        depth: is_batch.then(|| jobs.iter().map(|job| job.threads).max().unwrap_or(1)),
        done: done.bytes,
        whole: request.size.saturating_mul(u64::from(threads)),
        sizes: sizes.unwrap_or(Sizes::one(1)),
        requests: done.requests,
        latency_us: done.waited.as_secs_f64() * 1e6 / float(done.requests.max(1)),
        time: done.time,
    }
}

/// The plain method of a type that uses host memory, and its type without a GPU.
fn plain_method(transfer: Transfer, cached: bool, gpu: bool) -> (Method, Transfer) {
    let plain = transfer.plain().filter(|_| !cached).unwrap_or(Plain::CpuCachedGpu);
    let kind = Transfer::all().find(|kind| gpu && kind.plain() == Some(plain));
    (Method::Plain(plain), kind.unwrap_or(Transfer::CpuOnly))
}

#[expect(clippy::cast_precision_loss, reason = "a mean is taken of it")]
fn float(count: u64) -> f64 {
    count as f64
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use clap::Parser as _;

    use super::*;
    use crate::args::{Arguments, Verb};
    use forebay_measure::workload::Lane;

    fn done(bytes: u64, seconds: u64, kind: Transfer, right: Option<bool>) -> Done {
        Done {
            bytes,
            requests: bytes / 10,
            time: Duration::from_secs(seconds),
            waited: Duration::from_secs(2 * seconds),
            types: vec![(kind, bytes)],
            right,
        }
    }

    #[test]
    fn jobs_run_concurrently_and_sizes_one_after_the_other() {
        let all = [
            done(100, 3, Transfer::Direct, Some(true)),
            done(40, 5, Transfer::CpuAsyncGpu, None),
            done(70, 4, Transfer::CpuAsyncGpu, Some(true)),
        ];
        let jobs = at_once(&all);
        assert_eq!((jobs.bytes, jobs.requests), (210, 21));
        assert_eq!(jobs.time, Duration::from_secs(5));
        assert_eq!(jobs.waited, Duration::from_secs(24));
        assert_eq!(jobs.types, [(Transfer::Direct, 100), (Transfer::CpuAsyncGpu, 110)]);
        assert_eq!(jobs.right, Some(true));
        assert_eq!(one_after_another(&all).time, Duration::from_secs(12));
        let wrong = [all[0].clone(), done(1, 1, Transfer::Direct, Some(false))];
        assert_eq!(at_once(&wrong).right, Some(false));
        assert_eq!(at_once(&all[1..2]).right, None);
    }

    #[test]
    fn nothing_is_compared_before_all_have_ended() {
        let ended = AtomicUsize::new(0);
        let works = [0, 30, 60].map(|wait| {
            let ended = &ended;
            move || {
                thread::sleep(Duration::from_millis(wait));
                ended.fetch_add(1, Ordering::SeqCst);
                Ok(wait)
            }
        });
        let all = all_at_once(works.into()).unwrap();
        assert_eq!((ended.load(Ordering::SeqCst), all), (3, vec![0, 30, 60]));
        let fails = |fails: bool| {
            let ended = &ended;
            move || {
                ended.fetch_add(1, Ordering::SeqCst);
                if fails { Err(Failure::new("it fails")) } else { Ok(()) }
            }
        };
        assert!(all_at_once(vec![fails(true), fails(false)]).is_err());
        assert_eq!(ended.load(Ordering::SeqCst), 5, "the others are waited for");
    }

    #[test]
    fn a_line_says_direct_only_where_all_bytes_went_so() {
        let words = "forebay gdsio -D x -s 1M -w 8 -x 6";
        let parsed = Arguments::try_parse_from(words.split(' ')).unwrap();
        let Verb::Gdsio(args) = parsed.verb else { panic!("{parsed:?}") };
        let request = Request::of_options(&args).unwrap();
        let jobs = [&request.jobs[0], &request.jobs[0]];
        let all = [
            done(1000, 3, Transfer::Batch, None),
            done(40, 5, Transfer::CpuAsyncGpu, None),
            done(4, 5, Transfer::CpuCachedGpu, None),
        ];
        let of = |all: &[Done]| line(&request, &jobs, Io::parse("0").unwrap(), &at_once(all));
        assert_eq!(of(&all[..1]).transfer, Transfer::Batch);
        assert_eq!(of(&all).transfer, Transfer::CpuAsyncGpu);
        let line = of(&all);
        assert_eq!((line.threads, line.depth, line.whole), (2, Some(8), 16 << 20));
        assert_eq!((line.done, line.requests, line.time), (1044, 104, Duration::from_secs(5)));
    }

    #[test]
    fn a_trial_of_the_direct_route_writes_only_what_the_job_overwrites() {
        let engine = Engine::new(forebay::Options::default()).unwrap();
        let device = engine.device(&"sim:cufile".parse().unwrap()).unwrap();
        let folder = tempfile::tempdir_in(".").unwrap();
        let path = folder.path().join("file");
        for (job, writes, in_scratch) in [
            ("-I 1", true, false),
            ("-I 1 -T 1", false, true),
            ("-I 3", false, true),
            ("-I 0", false, false),
        ] {
            std::fs::write(&path, vec![7; 1 << 20]).unwrap();
            let words = format!("forebay gdsio -D x -s 1M -i 64K -x 0 {job}");
            let parsed = Arguments::try_parse_from(words.split(' ')).unwrap();
            let Verb::Gdsio(args) = parsed.verb else { panic!("{parsed:?}") };
            let request = Request::of_options(&args).unwrap();
            let region = forebay_measure::workload::pattern::Region { start: 0, len: 1 << 20 };
            let (path, device) = (path.clone(), device.clone());
            let mut task = Task::new(&request, &request.jobs[0], device.clone());
            task.lanes.push(Lane { target: 0, device, path: path.clone(), region, content: None });
            task.try_direct(&engine).unwrap();
            assert_eq!(std::fs::read(&path).unwrap() != vec![7; 1 << 20], writes, "{words}");
            let (tried, scratch) = task.writable(&task.lanes);
            assert_eq!((tried.is_empty(), !scratch.is_empty()), (job == "-I 0", in_scratch));
            assert_eq!(tried.iter().any(|lane| lane.path == path), writes, "{words}");
            assert!(tried.iter().all(|lane| lane.path.exists() && lane.region.start == 0));
            drop(scratch);
            assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1, "{words}");
        }
    }

    #[test]
    fn plain_methods_are_their_types() {
        for number in 1..=4 {
            let transfer = Transfer::parse(&number.to_string()).unwrap();
            assert_eq!(plain_method(transfer, false, true).1, transfer);
            assert_eq!(plain_method(transfer, false, false).1, Transfer::CpuOnly);
        }
        let (method, kind) = plain_method(Transfer::CpuGpu, true, true);
        assert_eq!((method, kind), (Method::Plain(Plain::CpuCachedGpu), Transfer::CpuCachedGpu));
        assert_eq!(plain_method(Transfer::CpuOnly, true, false).1, Transfer::CpuOnly);
    }

    #[test]
    fn a_hint_names_the_option_that_is_in_the_way() {
        let hint = |shift| {
            let failure = Failure::new("x").hint(format!("use {ACCEPTS_ANY_SIZE}"));
            in_options(failure, shift).hint.unwrap()
        };
        assert!(hint(0).contains("`-i`, `-o` and `-s`"));
        let none = Failure::new("x").hint(WITHOUT_O_DIRECT);
        assert!(in_options(none, 0).hint.unwrap().contains("`-x 4`"));
        assert!(hint(512).starts_with("`-U` shifts requests by 512 bytes"));
        let other = Failure::new("x").hint("y");
        assert_eq!(in_options(other.clone(), 512), other);
    }
}
