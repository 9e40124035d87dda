//! `forebay bench --find-depth`: the queue depth that a drive needs, and whether a fixed depth is
//! faster than the one that the engine finds by itself.
//!
//! [`search`] decides what is measured and is pure. A sample is a load of reads with O_DIRECT by an
//! engine of that depth. Nothing is stored.

use std::fmt::Write as _;
use std::io::Write as _;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use anstyle::Style;
use forebay::gpu::GpuSelector;
use forebay::units::{MIB, format_size};
use forebay::{DirectIo, Engine, Options, Reason};
use forebay_measure::failure::{Failure, Result};
use forebay_measure::make::Room;
use forebay_measure::plain::plain;
use forebay_measure::program::Program;
use forebay_measure::results::{Record, machine};
use forebay_measure::stats::{Spread, float};
use forebay_measure::stdio::say;
use forebay_measure::steps::Step;
use forebay_measure::subject::is_folder;
use forebay_measure::workload::check::Most;
use forebay_measure::workload::measure::Measurer;

use super::args::BenchArgs;
use super::plan::Planned;
use super::{Bench, progress};
use crate::report::grid;
use crate::report::numbers::{rate as shown_rate, time_text};

/// The greatest depth that is measured.
const DEPTH_MAX: u64 = 128;
/// A depth is enough within this factor of the best rate; a fixed depth must gain it.
const GAIN: f64 = 1.02;
/// Doubled depths in a row without gain that end the first round.
const FLAT: u32 = 2;
/// Pairs of samples, of the default and of the chosen depth.
const PAIRS: usize = 6;
/// Ratios of pairs that differ by more than this say nothing.
const NOISE: f64 = 0.1;
/// Time of a sample, and before it.
const TIME: Duration = Duration::from_millis(500);
const WARM_UP: Duration = Duration::from_millis(150);
/// Minimum size of a file: a smaller one ends before the queue is full.
const LEN_MIN: u64 = 16 * MIB;
/// Bounds of the size of scratch, which takes at most half of the room.
const SCRATCH: (u64, u64) = (64 * MIB, 512 * MIB);
/// Host memory of the program and of its threads' stacks.
const PROGRAM: u64 = 128 * MIB;
/// Columns of the longest bar.
const BAR: usize = 44;

const BOLD: Style = Style::new().bold();

/// Runs the search and prints the result.
pub(crate) fn command(args: &BenchArgs, command: &str, program: &Program) -> Result<()> {
    let path = match args.paths.as_slice() {
        [] => PathBuf::from("."),
        [path] => path.clone(),
        _ => {
            return Err(Failure::usage("`--find-depth` takes one path")
                .hint("name one drive after the other"));
        }
    };
    let mut options = program.engine_options()?;
    options.depth = None;
    if options.direct_io == DirectIo::Off {
        return Err(Failure::new("cannot find a depth: O_DIRECT is switched off")
            .because("`FOREBAY_DIRECT_IO` is `off`")
            .hint("unset it: without O_DIRECT, the kernel's read-ahead sets the queue depth"));
    }
    options.arena_size = Some(4 * options.slot_size + 2 * DEPTH_MAX * options.segment_size);
    let room = is_folder(&path).then(|| Room::of(&path)).transpose()?;
    let preset = BenchArgs {
        size: room.map(|room| (room.usable() / 2).clamp(SCRATCH.0, SCRATCH.1)),
        paths: vec![path],
        gpu: vec![GpuSelector::None],
        block_size: vec![options.segment_size],
        depth: vec![1],
        time: Some(TIME),
        warm_up: Some(WARM_UP),
        compared: Most::NONE,
        ..BenchArgs::default()
    };
    let bench = Bench::new(&preset, Engine::new(options.clone())?, None, program, command)?;
    let (title, depths) = look_at(&bench, options.segment_size)?;
    let mut planned = bench.planned[0].clone();
    planned.load.depth = u32::try_from(2 * depths[depths.len() - 1]).unwrap_or(u32::MAX);
    let bar = progress((2 * depths.len() + 2 * PAIRS) as u64, args.quiet);
    let room_hint = "use a folder with more free space, or a file";
    bench.make_scratch(&bar).map_err(|failure| failure.room_hint(room_hint))?;
    let mut read = (0, 0);
    let found = search(&depths, &mut |depth| {
        bar.set_message(depth.map_or_else(|| "default".into(), |depth| format!("depth {depth}")));
        let rate = sample(&bench, &planned, depth.map(|depth| (depth, &options)), &mut read);
        bar.inc(1);
        rate
    });
    bar.finish_and_clear();
    let found = found?;
    check(read, &bench.path(0))?;
    let text = render(&title, &found, options.segment_size);
    let mut out = anstream::stdout();
    let shown = out.write_all(text.as_bytes()).and_then(|()| out.flush());
    bench.engine.notes().into_iter().for_each(|note| say(&note));
    shown.map_err(|error| Failure::stdout(&error))
}

/// The path with what it is stored on, and the depths to measure, as far as the file and the
/// available host memory allow. `size` is the block size.
///
/// # Errors
/// The path is on no drive, has no O_DIRECT or too few bytes; too little memory is available.
fn look_at(bench: &Bench<'_>, size: u64) -> Result<(String, Vec<u64>)> {
    let nothing = |why: &str| {
        Failure::new(format!("cannot find a depth: `{}` {why}", bench.path(0)))
            .hint("name a path on a drive; `forebay doctor --map` shows the drives under it")
    };
    let environment = bench.records.iter().find_map(|record| match record {
        Record::Run(run) => Some(&run.environment),
        _ => None,
    });
    let environment = environment.expect("a run has its record");
    if let Some(kind) = environment.memory_file_system() {
        return Err(nothing("is in memory").because(format!("{kind} has no drive")));
    }
    let place = &bench.places[0];
    let step = Step::begin("read", &place.files[0]);
    if let Some(reason) = bench.engine.open(&place.files[0])?.no_direct_io() {
        return Err(nothing("has no O_DIRECT").because(reason));
    }
    drop(step);
    if place.len < LEN_MIN {
        let least = format_size(LEN_MIN);
        return Err(nothing(&format!("has {}", format_size(place.len)))
            .because(format!("at least {least} are required to keep the queue full"))
            .hint("name a larger file, or a folder for a scratch file"));
    }
    // Each pending request has a buffer, and there are twice as many as in flight.
    let fits = environment.memory.available.saturating_sub(PROGRAM) / (4 * size);
    let most = DEPTH_MAX.min(place.len / 2 / size).min(fits);
    let depths: Vec<u64> = (0..).map(|power| 1 << power).take_while(|n| *n <= most).collect();
    if depths.len() < 2 {
        return Err(Failure::new("cannot find a depth: too little memory is available")
            .because(format!("there is memory for {} of requests", format_size(fits * size)))
            .hint(
                "stop other programs, or raise the memory limit of the control group or of this \
                 process (`ulimit -v`, `ulimit -d`)",
            ));
    }
    let title = machine::place(environment, false).map(|place| format!(" ({place})"));
    Ok((bench.path(0) + &title.unwrap_or_default(), depths))
}

/// Bytes per second with a fixed depth, or with the default one of the bench's engine, which is
/// kept, as in a program that runs for long. Adds the bytes that were read, and those of them with
/// O_DIRECT.
fn sample(
    bench: &Bench<'_>,
    planned: &Planned,
    fixed: Option<(u64, &Options)>,
    read: &mut (u64, u64),
) -> Result<f64> {
    let mut own = None;
    if let Some((depth, options)) = fixed {
        let mut options = options.clone();
        options.depth = usize::try_from(depth).ok();
        let engine = Engine::new(options)?;
        own = Measurer::all(&engine, &bench.targets, &Arc::default(), Most::NONE).pop();
    }
    let (measured, ran) = bench.moved(planned, own.as_ref().unwrap_or(&bench.measurers[0]))?;
    let direct = [Reason::NotResident, Reason::TriedNotResident].map(|reason| reason.text());
    for taken in ran.taken() {
        read.0 += taken.bytes;
        read.1 += if direct.contains(&&*taken.reason) { taken.bytes } else { 0 };
    }
    Ok(measured.bytes_per_second)
}

/// Checks that the bytes came from the drive.
fn check((all, direct): (u64, u64), path: &str) -> Result<()> {
    if all - direct <= all / 100 {
        return Ok(());
    }
    let (cached, all) = (format_size(all - direct), format_size(all));
    Err(Failure::new(format!("cannot find a depth with `{path}`"))
        .because(format!("{cached} of {all} came from the page cache, not from the drive"))
        .hint("another process uses the file; try a folder, for a scratch file"))
}

/// A depth and its rate.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Point {
    depth: u64,
    bytes_per_second: f64,
}

/// The result of a search.
#[derive(Debug, PartialEq)]
struct Found {
    curve: Vec<Point>,
    /// The lowest depth that is enough.
    depth: u64,
    /// The rate of the default, the median of its samples.
    default: f64,
    /// How many times as fast as the default that depth was, in pairs of samples.
    ratios: Spread,
}

/// The judgement of a search.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Verdict {
    /// The fixed depth was faster in every pair.
    Faster,
    /// Pairs differ too much.
    TooNoisy,
    /// The fixed depth gains nothing.
    NoFaster,
}

impl Found {
    fn verdict(&self) -> Verdict {
        let Spread { median, min, .. } = self.ratios;
        if min >= GAIN {
            Verdict::Faster
        } else if median >= GAIN || self.ratios.relative() > NOISE {
            Verdict::TooNoisy
        } else {
            Verdict::NoFaster
        }
    }
}

/// Measures `depths`, which double, until more gain nothing, and again backwards. Then compares the
/// lowest sufficient one with the default, in pairs whose order alternates. `measure` returns the
/// rate at a depth, or at the default.
fn search(depths: &[u64], measure: &mut dyn FnMut(Option<u64>) -> Result<f64>) -> Result<Found> {
    let mut curve: Vec<Point> = Vec::new();
    let (mut best, mut flat) = (0.0, 0);
    for &depth in depths {
        let bytes_per_second = measure(Some(depth))?;
        curve.push(Point { depth, bytes_per_second });
        flat = if bytes_per_second >= best * GAIN { 0 } else { flat + 1 };
        best = f64::max(best, bytes_per_second);
        if flat == FLAT {
            break;
        }
    }
    for point in curve.iter_mut().rev() {
        let again = measure(Some(point.depth))?;
        point.bytes_per_second = f64::midpoint(point.bytes_per_second, again);
    }
    let best = curve.iter().map(|point| point.bytes_per_second).fold(0.0, f64::max);
    let enough = |point: &&Point| point.bytes_per_second * GAIN >= best;
    let Some(depth) = curve.iter().find(enough).map(|point| point.depth).filter(|_| best > 0.0)
    else {
        return Err(Failure::new("cannot find a depth: no request ended in time")
            .hint("the drive is too slow to measure, or does not answer: look at `dmesg`"));
    };
    let (mut defaults, mut ratios) = (Vec::new(), Vec::new());
    for pair in 0..PAIRS {
        let (default, fixed) = if pair % 2 == 0 {
            let default = measure(None)?;
            (default, measure(Some(depth))?)
        } else {
            let fixed = measure(Some(depth))?;
            (measure(None)?, fixed)
        };
        defaults.push(default);
        ratios.push(if default > 0.0 { fixed / default } else { f64::INFINITY });
    }
    let default = Spread::of(defaults).expect("there are pairs").median;
    Ok(Found { curve, depth, default, ratios: Spread::of(ratios).expect("there are pairs") })
}

/// The curve, the chosen depth and the reason. `size` is the block size.
fn render(title: &str, found: &Found, size: u64) -> String {
    let Found { curve, depth, default, ratios } = found;
    let rates = curve.iter().map(|point| point.bytes_per_second).chain([*default]);
    let most = rates.fold(0.0, f64::max);
    let bar = |rate: f64| grid::bar(rate / most, BAR);
    let mut text = format!(
        "{BOLD}{}{BOLD:#}\ncold reads with O_DIRECT, block size {}\n\n  depth    GB/s   latency\n",
        plain(title),
        format_size(size)
    );
    // Writing to a string cannot fail.
    for Point { depth: of, bytes_per_second: rate } in curve {
        // The queue is full, so this is the mean time of a request (Little's law).
        let latency = time_text(float(of * size) / rate);
        let (style, mark) = if of == depth { (BOLD, " ◀") } else { (Style::new(), "") };
        let (shown, bar) = (shown_rate(*rate), bar(*rate));
        let _ = writeln!(text, "{style}  {of:>5}  {shown:>6}  {latency:>8}  {bar}{mark}{style:#}");
    }
    let (shown, bar) = (shown_rate(*default), bar(*default));
    let _ = writeln!(text, "   auto  {shown:>6}  {:8}  {bar}\n", "");
    let Spread { median, min, max } = ratios;
    let verdict = match found.verdict() {
        Verdict::Faster => format!("{BOLD}FOREBAY_DEPTH={depth}{BOLD:#} is"),
        Verdict::TooNoisy => format!("Too noisy, keeping the default: depth {depth} was"),
        Verdict::NoFaster => format!("Keeping the default: depth {depth} is enough, and"),
    };
    let _ = writeln!(
        text,
        "{verdict} {median:.2} times as fast as the default\n\
         ({min:.2} to {max:.2} in {PAIRS} interleaved pairs)."
    );
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A drive of 7 GB/s and 1 ms, by depth. The default has the rate `default`; rates vary by the
    /// share `noise`.
    fn drive(default: f64, noise: f64) -> impl FnMut(Option<u64>) -> Result<f64> {
        let mut count = 0;
        move |depth| {
            count += 1;
            let rate = depth.map_or(default, |depth| (float(depth * MIB) / 0.001).min(7e9));
            Ok(rate * if count % 3 == 0 { 1.0 - noise } else { 1.0 })
        }
    }

    const DEPTHS: [u64; 8] = [1, 2, 4, 8, 16, 32, 64, 128];

    fn found(default: f64, noise: f64) -> Found {
        search(&DEPTHS, &mut drive(default, noise)).unwrap()
    }

    #[test]
    fn a_depth_is_kept_only_if_it_beats_the_default_in_every_pair() {
        for (default, noise, verdict) in [
            (7e9, 0.0, Verdict::NoFaster),
            (7e9, 0.01, Verdict::NoFaster),
            (9e9, 0.01, Verdict::NoFaster),
            (6e9, 0.01, Verdict::Faster),
            (5e9, 0.1, Verdict::Faster),
            (6.8e9, 0.1, Verdict::TooNoisy),
            (7e9, 0.3, Verdict::TooNoisy),
        ] {
            let found = found(default, noise);
            assert_eq!(found.verdict(), verdict, "{default} {noise}: {found:?}");
        }
    }

    #[test]
    fn the_lowest_depth_that_reaches_the_best_rate_is_found() {
        let found = found(7e9, 0.0);
        assert_eq!(found.depth, 8);
        let depths: Vec<u64> = found.curve.iter().map(|point| point.depth).collect();
        assert_eq!(depths, [1, 2, 4, 8, 16, 32], "two depths without gain end the search");
    }

    #[test]
    fn a_drive_that_answers_nothing_in_time_is_an_error() {
        let failure = search(&DEPTHS, &mut |_| Ok(0.0)).unwrap_err();
        assert_eq!(failure.message, "cannot find a depth: no request ended in time");
        let failure = search(&DEPTHS, &mut |_| Err(Failure::new("lost"))).unwrap_err();
        assert_eq!(failure.message, "lost");
    }

    fn shown(found: &Found) -> String {
        let text = render("/data (ext4 on nvme0n1)", found, MIB);
        let text = anstream::adapter::strip_str(&text).to_string();
        assert!(text.lines().all(|line| line.chars().count() <= 80), "{text}");
        text
    }

    #[test]
    fn the_curve_the_depth_and_the_reason_are_shown() {
        insta::assert_snapshot!(shown(&found(6e9, 0.0)), @r"
        /data (ext4 on nvme0n1)
        cold reads with O_DIRECT, block size 1 MiB

          depth    GB/s   latency
              1    1.05   1.00 ms  ██████▋
              2    2.10   1.00 ms  █████████████▏
              4    4.19   1.00 ms  ██████████████████████████▍
              8    7.00   1.20 ms  ████████████████████████████████████████████ ◀
             16    7.00   2.40 ms  ████████████████████████████████████████████
             32    7.00   4.79 ms  ████████████████████████████████████████████
           auto    6.00            █████████████████████████████████████▊

        FOREBAY_DEPTH=8 is 1.17 times as fast as the default
        (1.17 to 1.17 in 6 interleaved pairs).
        ");
        assert!(shown(&found(6.8e9, 0.1)).contains("Too noisy, keeping the default"));
        assert!(shown(&found(7e9, 0.0)).contains("Keeping the default: depth 8 is enough"));
    }
}
