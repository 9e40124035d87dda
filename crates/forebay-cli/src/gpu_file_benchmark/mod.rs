//! `forebay gpu-file-benchmark`: the modes of the GPU file benchmark. The standard method, the
//! engine and the direct route write a file from the GPU and read it back, run by run. Every byte
//! is verified.
//!
//! `file` finds or makes the file, [`crate::workload`] makes each move, `compute` works on the GPU
//! meanwhile, and `draw` shows the results, with the summaries of `runs`.

mod compute;
mod draw;
mod file;
mod runs;

use std::io::Write as _;
use std::sync::Arc;

use forebay::gpu::Device;
use forebay::units::{KIB, MIB};
use forebay::{Engine, Route};
use forebay_topology::Resolver;

use self::compute::{Compute, MemoryLimit};
use self::file::{Allowed, TestFile};
use crate::args::{GpuFileArgs, Mode};
use crate::bench::cache::make_cold;
use crate::bench::data::Pattern;
use crate::bench::demand::Demand;
use crate::bench::route::try_route;
use crate::bench::target::Target;
use crate::bench::{TRY_LEN, environment, make, scratch, spinner};
use crate::failure::{Failure, Result};
use crate::program::Program;
use crate::report::json::{Cache, Direction};
use crate::report::warnings;
use crate::results::Measured;
use crate::sockets::Sockets;
use crate::steps::{self, Step};
use crate::workload::backend::{Plain, Way};
use crate::workload::measure::Measurer;
use crate::workload::pattern::Region;
use crate::workload::run::Ran;
use crate::workload::{End, Lane, Load};

/// Most bytes of one request. A run is one call of such requests.
const REQUEST_MAX: u64 = 16 * MIB;

/// Runs the verb: lines as runs end, then the summary.
pub(crate) fn command(args: &GpuFileArgs, command: &str, program: &Program) -> Result<()> {
    let engine = Engine::new(crate::limits::limits(program)?)?;
    let target = Target::find(&engine, args.gpu.as_ref())?;
    target.check((args.mode == Mode::Dma).then_some(Route::Direct))?;
    let allowed = Allowed { files: args.overwrite, devices: args.overwrite_device };
    let file = TestFile::find(args.file.as_deref(), allowed)?;
    let mut warnings = target.warnings();
    warnings.extend(warnings::leftovers(file.remove_leftovers()));
    let info = target.device.as_ref().map(|device| device.info());
    let environment = environment::collect(file.path(), info, command);
    let in_memory = environment.file_system.as_ref().map(|facts| facts.kind.clone());
    let in_memory = in_memory.filter(|kind| matches!(kind.as_str(), "tmpfs" | "ramfs"));
    let mut benchmark = Benchmark { args, engine, target, file, cache: Cache::Cold };
    let methods = benchmark.prepare(in_memory, &mut warnings)?;
    let sockets = benchmark.sockets();
    // Runs end and are judged even if stdout is closed.
    let mut shown = Ok(());
    let mut show = |text: &str| {
        if shown.is_ok() {
            let mut out = anstream::stdout();
            let written = out.write_all(text.as_bytes()).and_then(|()| out.flush());
            shown = written.map_err(|error| Failure::stdout(&error));
        }
    };
    let simulated = benchmark.target.is_simulated();
    show(&draw::head(
        &environment,
        sockets.as_ref(),
        &draw::Head {
            path: benchmark.file.name(),
            len: args.size,
            cache: benchmark.cache,
            simulated,
        },
    ));
    let done = benchmark.measure(methods, &mut warnings, &mut show)?;
    let rows = draw::rows(&done.methods);
    if rows.is_empty() && !done.found_wrong() {
        return Err(nothing_measured(&done.methods));
    }
    show(&draw::summary(&rows, done.work.as_ref(), simulated));
    warnings.extend(sockets.as_ref().and_then(Sockets::warning));
    warnings.extend(benchmark.engine.notes());
    warnings.extend(draw::notes(&rows, args.runs));
    warnings.iter().for_each(|warning| crate::stdio::say(warning));
    if done.found_wrong() {
        return Err(Failure::new("wrong data were found")
            .hint("`MISMATCH` marks where; ignore the speed there"));
    }
    shown
}

/// The failure of a benchmark without any measurement.
fn nothing_measured(methods: &[Method]) -> Failure {
    let mut failure = Failure::new("no method could be measured")
        .hint("try `--gpu none`, `-f` with a folder elsewhere, or a smaller `-s`");
    for reason in methods.iter().filter_map(|method| method.left_out.as_ref()) {
        if !failure.causes.contains(reason) {
            failure = failure.because(reason);
        }
    }
    failure
}

/// The warning that the GPU's own work is not measured.
fn no_compute(failure: &Failure) -> String {
    format!(
        "the GPU's own work during a read is not measured: {}; `-m compare` leaves it out",
        failure.in_one_line()
    )
}

/// One method, and its runs so far.
#[derive(Debug)]
struct Method {
    name: &'static str,
    way: Way,
    /// Whether the benchmark fails if this method fails.
    required: bool,
    write: Vec<Measured>,
    read: Vec<Measured>,
    /// Why there are no further runs.
    left_out: Option<String>,
}

impl Method {
    const fn new(name: &'static str, way: Way, required: bool) -> Self {
        Self { name, way, required, write: Vec::new(), read: Vec::new(), left_out: None }
    }

    fn found_wrong(&self) -> bool {
        self.write.iter().chain(&self.read).any(|run| run.verified == Some(false))
    }
}

/// The GPU's own work, and its measurements so far.
struct Work {
    compute: Compute,
    limit: MemoryLimit,
    /// Rates of the kernel alone, of the kernel during a read, and of that read.
    alone: Vec<f64>,
    during: Vec<f64>,
    read: Vec<f64>,
    verified: bool,
    /// Whether a turn failed, after which there are no more, and none counts.
    failed: bool,
}

impl Work {
    fn found_wrong(&self) -> bool {
        !self.verified || !self.compute.verified
    }
}

/// The results.
struct Done {
    methods: Vec<Method>,
    work: Option<Work>,
}

impl Done {
    fn found_wrong(&self) -> bool {
        self.methods.iter().any(Method::found_wrong)
            || self.work.as_ref().is_some_and(Work::found_wrong)
    }
}

/// The parts that all runs use.
struct Benchmark<'a> {
    args: &'a GpuFileArgs,
    engine: Engine,
    target: Target,
    file: TestFile,
    /// The page cache before a move.
    cache: Cache,
}

impl Benchmark<'_> {
    /// Checks that everything is available, makes the file, and returns the methods.
    fn prepare(
        &mut self,
        in_memory: Option<String>,
        warnings: &mut Vec<String>,
    ) -> Result<Vec<Method>> {
        let len = self.args.size;
        self.file.check_room(len)?;
        self.demand(in_memory.is_some()).check(len, "--size")?;
        let key =
            scratch::random().map_err(|error| Failure::io("cannot get random bytes", &error))?;
        let pattern = Pattern::new(key);
        let has_direct = self.has_direct(pattern)?;
        // Too little memory of the GPU is found before the file is made.
        drop(self.target.allocate(&self.engine, len)?);
        let bar = spinner(true, len);
        let made = make::fill(self.file.path(), pattern, len);
        bar.finish_and_clear();
        made?;
        if let Some(reason) = self.no_eviction(in_memory)? {
            self.cache = Cache::Resident;
            warnings.push(format!(
                "the file stays in memory, so no drive is compared: {reason}; give a path on a \
                 drive"
            ));
        }
        let required = self.args.mode == Mode::Dma;
        let mut methods = vec![Method::new("standard", Way::Plain(Plain::CpuCachedGpu), false)];
        if !required {
            methods.push(Method::new("forebay", Way::Forebay(None), true));
        }
        if has_direct {
            methods.push(Method::new("direct", Way::Forebay(Some(Route::Direct)), required));
        }
        Ok(methods)
    }

    /// Makes all runs. Every second one goes backwards, so that a machine that becomes slower or
    /// faster favours no method.
    fn measure(
        &self,
        mut methods: Vec<Method>,
        warnings: &mut Vec<String>,
        show: &mut dyn FnMut(&str),
    ) -> Result<Done> {
        let simulated = self.target.is_simulated();
        let groups = [vec![self.target.device.clone()]];
        let measurer =
            Measurer::all(&self.engine, &groups, &Arc::default()).remove(0).verifying_all();
        let mut work = self.work(warnings);
        for run in 1..=self.args.runs {
            let mut order: Vec<&mut Method> = methods.iter_mut().collect();
            if run % 2 == 0 {
                order.reverse();
            }
            for method in order.into_iter().filter(|method| method.left_out.is_none()) {
                self.file.check()?;
                match self.turn(&measurer, method) {
                    Ok(()) => show(&draw::run(method, run, simulated)),
                    Err(failure) if method.required => return Err(failure),
                    Err(failure) => method.left_out = Some(failure.in_one_line()),
                }
            }
            let Some(work) = work.as_mut().filter(|work| !work.failed) else { continue };
            match self.work_turn(&measurer, work) {
                Ok(()) => show(&draw::work(work, run, simulated)),
                Err(failure) => {
                    work.failed = true;
                    warnings.push(no_compute(&failure));
                    if work.found_wrong() {
                        show(&draw::work_wrong(run, simulated));
                    }
                }
            }
        }
        for method in &methods {
            if let Some(reason) = &method.left_out {
                warnings.push(format!("left out: {}: {reason}", method.name));
            }
        }
        Ok(Done { methods, work })
    }

    /// Writes and reads once.
    fn turn(&self, measurer: &Measurer, method: &mut Method) -> Result<()> {
        method.write.push(self.sample(measurer, method.way, Direction::Write)?.0);
        method.read.push(self.sample(measurer, method.way, Direction::Read)?.0);
        Ok(())
    }

    /// Runs the kernel alone, then during a read by the engine.
    fn work_turn(&self, measurer: &Measurer, work: &mut Work) -> Result<()> {
        let alone = work.compute.alone()?;
        let read = || self.sample(measurer, Way::Forebay(None), Direction::Read);
        let (sample, done) = work.compute.run_meanwhile(read)?;
        let (measured, ran) = sample?;
        work.verified &= measured.verified != Some(false);
        work.compute.check()?;
        work.alone.push(alone);
        work.during.push(done.rate(ran.from, ran.span));
        work.read.push(measured.bytes_per_second);
        Ok(())
    }

    /// Moves all bytes once, in one call.
    fn sample(
        &self,
        measurer: &Measurer,
        way: Way,
        direction: Direction,
    ) -> Result<(Measured, Ran)> {
        let (len, path) = (self.args.size, self.file.path().to_owned());
        let request_size = request_size(len);
        let load = Load {
            read_percent: if direction == Direction::Read { 100 } else { 0 },
            batch: u32::try_from(len / request_size)
                .map_err(|_| Failure::new("cannot move so many bytes in one call"))?,
            cache: self.cache,
            once: true,
            ..Load::reads(way, request_size, End::Bytes(len))
        };
        let (device, region) = (self.target.device.clone(), Region { start: 0, len });
        measurer.measure(&load, &[Lane { target: 0, device, path, region, content: None }])
    }

    /// The GPU's own work, if requested and available.
    fn work(&self, warnings: &mut Vec<String>) -> Option<Work> {
        if self.args.mode != Mode::All {
            return None;
        }
        let work = || {
            let mut compute = Compute::new(&self.engine, &self.target, self.args.size)?;
            let limit = compute.limit()?;
            let (alone, during, read) = (Vec::new(), Vec::new(), Vec::new());
            Ok(Work { compute, limit, alone, during, read, verified: true, failed: false })
        };
        work()
            .inspect_err(|failure: &Failure| {
                warnings.push(no_compute(failure));
            })
            .ok()
    }

    /// The sockets of the GPU and the drives.
    fn sockets(&self) -> Option<Sockets> {
        let info = self.target.device.as_ref().map(|device: &Arc<dyn Device>| device.info())?;
        let _step = Step::begin("inspect", self.file.path());
        Sockets::look(&Resolver::default(), self.file.path(), &info.pci_address)
    }

    /// Whether the direct route between this file and the GPU is available.
    ///
    /// # Errors
    /// Errors of the route, if it is required.
    fn has_direct(&self, pattern: Pattern) -> Result<bool> {
        if self.target.device.is_none() {
            return Ok(false);
        }
        let len = match self.file.given_len() {
            // The contents of the user's file must not be lost for an unavailable route.
            Some(len) => len,
            None => {
                let len = TRY_LEN.min(self.args.size);
                make::fill(self.file.path(), pattern, len)?;
                len
            }
        };
        match try_route(&self.engine, &self.target, self.file.path(), len, Route::Direct) {
            Err(failure) if self.args.mode == Mode::Dma => Err(failure
                .hint("`forebay doctor` reports what the route requires; `-m compare` omits it")),
            // Most machines lack that route, so there is no warning.
            tried => Ok(tried.is_ok()),
        }
    }

    /// Why the file's pages cannot be evicted, if so.
    fn no_eviction(&self, in_memory: Option<String>) -> Result<Option<String>> {
        if let Some(kind) = in_memory {
            return Ok(Some(format!("{kind} keeps its files in memory")));
        }
        let file = steps::open(&self.engine, self.file.path())?;
        Ok(make_cold(&file, self.args.size)?.err())
    }

    /// The host memory that a run needs: what the standard method copies through, the bytes to
    /// compare, and the target if it is in host memory.
    fn demand(&self, in_memory: bool) -> Demand {
        let gpu = self.target.device.is_some();
        let transfer = Demand::of_transfer(self.engine.options(), self.args.size, false, gpu);
        let copies = 2 + u64::from(self.target.is_simulated()) + u64::from(in_memory);
        Demand { copies, fixed: transfer.fixed + make::STEP }
    }
}

/// The largest request that divides `len` into requests of whole 4 KiB.
fn request_size(len: u64) -> u64 {
    let fits = |count: &u64| len.is_multiple_of(*count) && (len / count).is_multiple_of(4 * KIB);
    let count = (len.div_ceil(REQUEST_MAX)..=len / (4 * KIB)).find(fits);
    count.map_or(len, |count| len / count)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_divide_a_run() {
        for (len, size) in [
            (MIB, MIB),
            (MIB + MIB / 2, MIB + MIB / 2),
            (512 * MIB, 16 * MIB),
            (17 * MIB, 17 * MIB / 2),
            (8_000_000_000, 12_800_000),
            (4096 * 1009 * 5, 4096 * 1009),
        ] {
            assert_eq!(request_size(len), size, "{len}");
        }
    }

    #[test]
    fn a_benchmark_that_measured_nothing_has_failed() {
        let methods = ["the device is gone", "so it is"].map(|reason| {
            let mut method = Method::new("standard", Way::Forebay(None), false);
            method.left_out = Some(reason.into());
            method
        });
        let failure = nothing_measured(&methods);
        assert_eq!(failure.exit_code(), 1);
        assert_eq!(failure.causes, ["the device is gone", "so it is"]);
        assert!(failure.hint.unwrap().contains("`--gpu none`"));
    }
}
