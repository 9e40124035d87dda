//! `forebay gpu-file-benchmark`: the GPU file benchmark's modes, as a preset of [`crate::bench`].
//!
//! `file` makes or checks the file. `bench` writes it from the GPU and reads it back by all
//! methods, verifies every byte, and prints the table. In the mode `all`, `compute` works on the
//! GPU concurrently.

pub mod args;
mod compute;
mod file;

use std::time::Duration;

use forebay::units::format_size;
use forebay::{Engine, Route};
use forebay_measure::failure::{Failure, Result};
use forebay_measure::host_memory::check_transfer;
use forebay_measure::program::Program;
use forebay_measure::stats::Spread;
use forebay_measure::stdio::{print, say};
use forebay_measure::target::Target;
use forebay_measure::workload::backend::{Method, Plain};
use forebay_measure::workload::check::Most;

use self::args::{GpuFileArgs, Mode};
use self::compute::Compute;
use crate::bench::args::{BenchArgs, GpuRows, RouteChoice};
use crate::bench::{self, Bench, Joined, progress};
use crate::map::look::Look;
use crate::report::forms::wrapped;
use crate::report::model::Metric;

/// Time of a sample.
const TIME: Duration = Duration::from_millis(500);
/// What to do where the mode `dma` cannot have the direct route.
const WITHOUT_DIRECT: &str =
    "`forebay doctor` reports what the route requires; `-m compare` omits it";

/// Runs the verb.
pub(crate) fn command(args: &GpuFileArgs, command: &str, program: &Program) -> Result<()> {
    let engine = Engine::new(program.engine_options()?)?;
    let target = Target::find(&engine, args.gpu.as_ref())?;
    target
        .check((args.mode == Mode::Dma).then_some(Route::Direct))
        .map_err(|failure| failure.hint(WITHOUT_DIRECT))?;
    let mut preset = preset(args);
    let mut place = file::find(&engine, &preset)?;
    file::check_room(&place, &preset.paths[0], args.size)?;
    let is_in_host = target.device.is_none() || target.is_simulated();
    check_transfer(args.size, if is_in_host { args.size } else { 0 }, "--size")?;
    // Too little GPU memory is found before the file gets its size.
    drop(target.allocate(&engine, args.size)?);
    let routes = routes(args.mode, file::try_direct(&mut place, &engine, &target))?;
    preset.route = routes.into_iter().map(RouteChoice).collect();
    if !place.is_scratch() {
        let bar = progress(1, false);
        bar.set_message(format!("making {} of scratch", format_size(args.size)));
        place.fill_first(args.size)?;
        bar.finish_and_clear();
    }
    let alone = Joined::default();
    let mut bench = Bench::new(&preset, engine.clone(), (Some(place), &alone), program, command)?;
    let records = bench.run()?;
    let compute = || Compute::new(&engine, &target, args.size);
    let work = match (args.mode == Mode::All).then(compute).transpose() {
        Ok(compute) => {
            compute.map(|compute| Work { compute, rates: Vec::new() }.measure(args.runs, &bench))
        }
        Err(failure) => {
            let why = failure.in_one_line();
            say(&format!("the GPU's own work is not measured: {why}; `-m compare` leaves it out"));
            None
        }
    };
    drop(bench);
    let shown = bench::show(&preset, &records);
    let Some(work) = work else { return shown };
    shown.and(work.and_then(|work| work.show()))
}

/// What is measured, without the routes.
fn preset(args: &GpuFileArgs) -> BenchArgs {
    BenchArgs {
        paths: vec![args.file.clone().unwrap_or_else(|| ".".into())],
        fills_file: true,
        overwrite: args.overwrite,
        overwrite_device: args.overwrite_device,
        gpu: args.gpu.iter().map(|one| GpuRows(vec![one.clone()])).collect(),
        size: Some(args.size),
        method: vec![Method::Plain(Plain::Standard), Method::Forebay(None)],
        direction: vec![0, 100],
        repeats: Some(args.runs),
        time: Some(TIME),
        compared: Most::ALL,
        ..BenchArgs::default()
    }
}

/// The routes that a mode requires of the engine; with `None` the engine chooses.
fn routes(mode: Mode, direct: Result<()>) -> Result<Vec<Option<Route>>> {
    match (mode, direct) {
        (Mode::Dma, Ok(())) => Ok(vec![Some(Route::Direct)]),
        (Mode::Dma, Err(failure)) => Err(failure.hint(WITHOUT_DIRECT)),
        (_, Ok(())) => Ok(vec![None, Some(Route::Direct)]),
        // Most machines lack that route, so there is no warning.
        (_, Err(_)) => Ok(vec![None]),
    }
}

/// The GPU's own work.
struct Work {
    compute: Compute,
    /// Bytes per second by run: of the kernel alone, of the kernel during a read, and of that
    /// read.
    rates: Vec<[f64; 3]>,
}

impl Work {
    /// Runs the kernel alone and then during a read by the engine, as often as the methods ran.
    ///
    /// # Errors
    /// The kernel or the read failed.
    fn measure(mut self, runs: u32, bench: &Bench<'_>) -> Result<Self> {
        for _ in 0..runs {
            let rates = self.run(bench);
            // A later failure does not hide a mismatch.
            if !self.compute.verified {
                break;
            }
            self.rates.push(rates?);
        }
        Ok(self)
    }

    fn run(&mut self, bench: &Bench<'_>) -> Result<[f64; 3]> {
        let alone = self.compute.alone()?;
        let (moved, done) = self.compute.run_meanwhile(|| bench.read_by_engine())?;
        self.compute.check()?;
        let (measured, ran) = moved?;
        self.compute.verified &= measured.verified != Some(false);
        Ok([alone, done.rate(ran.from, ran.span), measured.bytes_per_second])
    }

    /// Prints the kernel's rates, as shares of the memory's limit and of the rate alone.
    ///
    /// # Errors
    /// Data were wrong.
    fn show(&self) -> Result<()> {
        let rates = [0, 1, 2].map(|index| Spread::of(self.rates.iter().map(|run| run[index])));
        let (true, [Some(alone), Some(during), Some(read)]) = (self.compute.verified, rates) else {
            print("\nKernel: MISMATCH in the data\n")?;
            return Err(Failure::new("wrong data were found during the GPU's own work")
                .hint("check the kernel's log (`dmesg`), and the GPU's memory"));
        };
        let [alone, during, read] = [alone, during, read].map(|rates| rates.median);
        let rate = |rate| Metric::Rate.text(rate);
        let share = self.compute.limit().map_or_else(String::new, |limit| {
            let percent = alone / limit * 100.0;
            format!(" ({percent:.0} % of the limit of {} GB/s: clock times width)", rate(limit))
        });
        let text = format!(
            "Kernel: XOR of {} of the GPU's memory, {} GB/s read and written{share}. During a \
             read: {} GB/s ({:.0} %); that read: {} GB/s. All data verified.",
            format_size(self.compute.len()),
            rate(alone),
            rate(during),
            during / alone * 100.0,
            rate(read)
        );
        print(&format!("\n{}", wrapped(&text, Look::of_stdout().0)))
    }
}
