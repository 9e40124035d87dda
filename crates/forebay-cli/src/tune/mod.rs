//! `forebay tune`: a full search for the best queue depth of a drive.
//!
//! `place` finds or makes the file. `search` decides what is measured and [`curve`] analyses it,
//! both pure; `probe` measures with the engine itself. [`json`] holds the result, `draw` shows it,
//! `settings` translates it for other programs, and `notes` adds warnings.

pub mod curve;
mod draw;
pub mod json;
mod notes;
mod place;
mod probe;
mod search;
mod settings;

use std::io::Write as _;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use forebay::gpu::{Device, GpuSelector};
use forebay::units::{MIB, format_size};
use forebay::{DirectIo, Engine, Options};
use forebay_topology::Resolver;
use indicatif::{ProgressBar, ProgressStyle};

use self::curve::{Cell, whole};
use self::json::{Choice, SCHEMA, Searched, TuneReport};
use self::place::Place;
use self::probe::{EngineProbe, in_flight_within};
use self::search::{Bounds, Found, IN_FLIGHT_MAX, Probe as _};
use crate::args::TuneArgs;
use crate::bench::environment;
use crate::failure::{Failure, Result};
use crate::interrupt;
use crate::log;
use crate::map::look::Look;
use crate::program::Program;
use crate::report::json::Direction;
use crate::report::warnings::say;

/// The load before the first sample: it wakes an idle drive, and uses up the burst credit of a
/// drive that has one.
const WARM_UP: (Cell, Duration) =
    (Cell { request_size: MIB, depth: 8 }, Duration::from_millis(300));
/// Steps of the progress bar.
const STEPS: u64 = 1000;

/// Runs the verb.
pub(crate) fn command(args: &TuneArgs, command: &str, program: &Program) -> Result<()> {
    interrupt::install();
    let report = run(args, command, program)?;
    let text = if args.json {
        report.to_text().map_err(|error| {
            Failure::new("cannot write the result as JSON").because(error.to_string())
        })?
    } else {
        draw::render(&report, Look::of_stdout())
    };
    let mut out = anstream::stdout();
    let shown = out.write_all(text.as_bytes()).and_then(|()| out.flush());
    report.warnings.iter().for_each(|warning| say(warning));
    shown.map_err(|error| Failure::stdout(&error))
}

/// Searches in each direction of `args`; `program` is spawned to probe cuFile.
///
/// # Errors
/// Engine and system errors, and if there is nothing to tune.
pub fn run(args: &TuneArgs, command: &str, program: &Program) -> Result<TuneReport> {
    let options = crate::limits::limits(program)?;
    if options.direct_io == DirectIo::Off {
        return Err(Failure::new("nothing to tune: O_DIRECT is switched off")
            .because("`FOREBAY_DIRECT_IO` is `off`")
            .hint("unset it: without O_DIRECT, the kernel's read-ahead sets the queue depth"));
    }
    // The result is for engines that find their depth, so `FOREBAY_DEPTH` has no effect here.
    let mut free = options.clone();
    free.depth = None;
    let engine = Engine::new(free)?;
    let mut directions = Vec::new();
    if args.read || !args.write {
        directions.push(Direction::Read);
    }
    if args.write {
        directions.push(Direction::Write);
    }
    let mut place = Place::find(&engine, args.path.as_deref(), args.write)?;
    let environment = environment::collect(place.on(), None, command);
    let mut tune = Tune { args, options, engine, notes: notes::about(&environment, &place) };
    let (mut searches, mut settings, mut bytes) = (Vec::new(), Vec::new(), 0);
    for direction in directions {
        let (searched, len) = tune.search(&mut place, direction)?;
        let (ground, first) = (place.ground(direction), searches.is_empty());
        let (cell, points) = (searched.found.cell, &searched.points);
        settings.extend(settings::settings(direction, cell, points, ground, first));
        bytes = if first { len } else { bytes };
        searches.push(searched);
    }
    Ok(TuneReport {
        schema: SCHEMA,
        environment,
        path: place.asked.display().to_string(),
        scratch: place.is_scratch(searches[0].direction),
        bytes,
        searches,
        settings,
        warnings: tune.notes,
    })
}

/// The parts that one run uses.
struct Tune<'a> {
    args: &'a TuneArgs,
    options: Options,
    engine: Engine,
    notes: Vec<String>,
}

impl Tune<'_> {
    /// Searches in one direction; also returns the length of the file.
    fn search(&mut self, place: &mut Place, direction: Direction) -> Result<(Searched, u64)> {
        let bar = self.bar(direction);
        let (measured, stays) = place.ready(&self.engine, direction)?;
        self.notes.extend(stays);
        let device = match direction {
            Direction::Read => None,
            Direction::Write => Some(self.device()?),
        };
        let way = match direction {
            Direction::Read => forebay::Direction::Read,
            Direction::Write => forebay::Direction::Write,
        };
        let (path, len) = (measured.path.clone(), measured.len);
        let mut probe = EngineProbe::new(self.options.clone(), path, len, way, device);
        let fits = in_flight_within(environment::memory().available, way);
        let bounds = Bounds {
            time: self.args.duration,
            in_flight: IN_FLIGHT_MAX.min(len / 2).min(fits),
            size_max: Options::default().segment_size,
        };
        let warm_up = Cell { depth: 1, ..WARM_UP.0 };
        if bounds.in_flight < warm_up.in_flight() {
            let path = measured.path.display();
            return Err(Failure::new(format!(
                "cannot tune `{path}`: too little memory is available"
            ))
            .because(format!("there is memory for {} in flight", format_size(bounds.in_flight)))
            .hint(
                "stop other programs, or raise the memory limit of the control group or of this \
                 process (`ulimit -v`, `ulimit -d`)",
            ));
        }
        let fits = WARM_UP.0.in_flight() <= bounds.in_flight;
        probe.measure(if fits { WARM_UP.0 } else { warm_up }, WARM_UP.1)?;
        let found = search::search(bounds, &mut probe, &mut |cell, share| {
            bar.set_position(steps(share));
            let size = format_size(cell.request_size);
            bar.set_message(format!("{}, {} of {size}", direction.name(), cell.depth));
        });
        bar.finish_and_clear();
        let found = found?;
        self.notes.extend(notes::of_samples(&probe.seen));
        self.notes.extend(notes::of_search(&found, bounds, self.args.duration));
        let searched = judge(&found, bounds, &measured.path, direction)?;
        Ok((searched, len))
    }

    /// The source of writes: the first GPU, or a simulated one.
    fn device(&mut self) -> Result<Arc<dyn Device>> {
        if let Some(device) = self.engine.device(&GpuSelector::Auto)? {
            return Ok(device);
        }
        let device = self.engine.device(&GpuSelector::Sim(Default::default()))?;
        self.notes.push(notes::PLAYED.into());
        device.ok_or_else(|| Failure::new("cannot simulate a GPU"))
    }

    /// Shows the progress of a search, on a terminal.
    fn bar(&self, direction: Direction) -> ProgressBar {
        if log::is_on() {
            return ProgressBar::hidden();
        }
        // Hidden if stderr is not a terminal.
        let bar = ProgressBar::new(STEPS).with_style(
            ProgressStyle::with_template("{bar:30} {percent:>3} % {msg}")
                .unwrap_or_else(|_| ProgressStyle::default_bar()),
        );
        bar.set_message(format!("{}, preparing", direction.name()));
        bar.tick();
        bar
    }
}

/// Judges a search on the file at `path`.
fn judge(found: &Found, bounds: Bounds, path: &Path, direction: Direction) -> Result<Searched> {
    let curve = &found.curve;
    let (Some(point), Some(best)) = (curve.found(bounds.size_max), curve.best(u64::MAX)) else {
        return Err(Failure::new("nothing was measured").hint("use a longer `--duration`"));
    };
    Ok(Searched {
        direction,
        queue: Resolver::default().resolve(path).queue.id.as_str().to_owned(),
        found: point.into(),
        best: best.into(),
        knees: draw::knees(curve).into_iter().map(Choice::from).collect(),
        points: curve.clone(),
        complete: found.complete,
    })
}

/// A share of the time, in steps of the progress bar.
fn steps(share: f64) -> u64 {
    whole(share * curve::float(STEPS)).min(STEPS)
}
