//! `forebay read`: moves a range of a file to the target by the engine; prints the checksum, the
//! route and what verifies it.

mod lanes;
mod trace;

use std::io::{self, BufWriter, Write};
use std::path::Path;

use forebay::units::{KIB, MIB, format_size};
use forebay::{Buffer, Engine, Histogram, Outcome, Place, RouteShare, Statistics};
use forebay_measure::failure::{Failure, Result};
use forebay_measure::host_memory::check_transfer;
use forebay_measure::memory::{close, whole};
use forebay_measure::output::New;
use forebay_measure::plain::{json_lines, plain};
use forebay_measure::program::Program;
use forebay_measure::proof::{Moved, Prover};
use forebay_measure::results::Direction;
use forebay_measure::results::verdict::VerdictFacts;
use forebay_measure::route::describe;
use forebay_measure::stats::rate;
use forebay_measure::stdio;
use forebay_measure::steps::Step;
use forebay_measure::subject::check_size;
use forebay_measure::target::Target;
use serde_json::{Value, json};
use xxhash_rust::xxh3::Xxh3Default;

use crate::args::ReadArgs;
use crate::map::look::Look;
use crate::map::rows;
use crate::report::forms::indented;
use crate::report::numbers::{counted, rate_text};
use crate::values::Format;

/// Columns of the names in the summary.
const NAME: usize = 9;
/// Bytes copied back from the target at a time.
const STEP: u64 = 16 * MIB;
/// Bytes per second below which a speed in GB/s is meaningless.
const SPEED_MIN: f64 = 1e6;

/// Runs the verb.
pub(crate) fn command(args: &ReadArgs, program: &Program) -> Result<()> {
    let engine = Engine::new(program.engine_options()?)?;
    let target = Target::find(&engine, args.gpu.as_ref())?;
    target.check(args.route)?;
    let opening = Step::begin("open", &args.file);
    let file = engine.open(&args.file)?;
    let size = file.len()?;
    check_size(&args.file, size)?;
    drop(opening);
    let len = wanted_len(args, size)?;
    let is_in_host = target.device.is_none() || target.is_simulated();
    check_transfer(len, if is_in_host { len } else { 0 }, "--len")?;
    let memory = target.allocate(&engine, len.max(1));
    let mut memory = memory.map_err(|failure| {
        failure.hint("read the file in parts: `--len` bytes, from `--offset` on")
    })?;
    let to_stdout = args.output.as_deref() == Some(Path::new("-"));
    let output = args.output.as_deref().filter(|_| !to_stdout).map(create).transpose()?;
    let trace = args.trace.as_deref().map(create).transpose()?;
    if trace.is_some() {
        engine.start_trace();
    }
    let prover = Prover::new(target.device.as_ref().map(|device| device.info()));
    let inspecting = Step::begin("inspect", &args.file);
    let sources = prover.sources(&engine, &[(file.clone(), len)], &[]);
    let span = sources.begin();
    drop(inspecting);
    let reading = Step::of_engine("read", &args.file, &engine, args.route);
    let read = file.read((&mut memory, 0..len)).at(args.offset);
    let outcome = read.route(args.route).exact().run();
    drop(reading);
    let evidence = span.end();
    // Also for a failed read, since that is when a trace is useful.
    let mut left_out = 0;
    if let Some(output) = trace {
        let trace = engine.end_trace();
        left_out = trace.left_out;
        let mut out = BufWriter::new(&*output.0.file);
        let written = trace::write(&trace, &mut out).and_then(|()| out.flush());
        drop(out);
        finish(written, output)?;
    }
    let outcome = outcome?;
    let other = (&Moved::default(), 0);
    let proof = prover.proof(evidence, &Moved::of(&outcome), Direction::Read.into(), other);
    let verdict = VerdictFacts::of(&[proof]);
    let read = args.offset..args.offset + len;
    rows::of_file(&args.file, read).iter().for_each(|text| stdio::say(text));
    let sum = format!("{:016x}", pass_on(&memory, len, output, to_stdout)?);
    let text = if args.format == Format::Json {
        json_lines(&report(args, &engine, &target, &outcome, &sum, verdict.as_ref()))?
    } else if args.quiet {
        sum + "\n"
    } else {
        let mut text = summary(args, &target, &outcome, &sum, verdict.as_ref());
        text.extend(args.verbose.then(|| stages(&engine)));
        text.extend(args.trace.as_deref().map(|path| trace_line(path, left_out)));
        text
    };
    if !to_stdout {
        return stdio::print(&text);
    }
    // The bytes themselves went to stdout.
    let _ = anstream::stderr().write_all(text.as_bytes());
    Ok(())
}

/// Bytes from the offset on; a range that the file does not have is an error.
fn wanted_len(args: &ReadArgs, size: u64) -> Result<u64> {
    let rest = size.checked_sub(args.offset);
    match (rest, args.len) {
        (Some(rest), None) => Ok(rest),
        (Some(rest), Some(len)) if len <= rest => Ok(len),
        (rest, len) => {
            let place = Place {
                path: args.file.clone(),
                offset: args.offset,
                len: len.unwrap_or(0),
                drive: None,
            };
            let bytes = counted(whole(size), "byte");
            let text = format!("cannot read {place}: the file has {bytes}");
            let hint = match rest {
                None => "give an `--offset` inside the file".to_owned(),
                Some(rest) => format!("`--len {rest}` reads up to the end"),
            };
            Err(Failure::new(text).hint(hint))
        }
    }
}

/// Makes a new file. It is removed if it is not finished: a part of the bytes would look like all
/// of them.
fn create(path: &Path) -> Result<(New, &Path)> {
    let _step = Step::begin("create", path);
    let made = New::create(path, 0o666).map_err(|error| {
        let failure = Failure::at("create", path, &error);
        match error.kind() {
            io::ErrorKind::AlreadyExists => {
                failure.hint("no file is ever overwritten: give the path of a new file")
            }
            _ => failure,
        }
    })?;
    Ok((made, path))
}

/// Ends a new file that was `written`. Some file systems report a failed write only when a
/// descriptor is closed.
fn finish(written: io::Result<()>, (made, path): (New, &Path)) -> Result<()> {
    let closed = written.and_then(|()| made.file.try_clone()).and_then(close);
    closed.map_err(|error| Failure::at("write to", path, &error))?;
    made.keep();
    Ok(())
}

/// Copies the bytes back from the target, to a file or to stdout; returns their checksum.
fn pass_on(
    memory: &Buffer,
    len: u64,
    output: Option<(New, &Path)>,
    to_stdout: bool,
) -> Result<u64> {
    let mut out: Box<dyn Write> = match &output {
        Some((made, _)) => Box::new(&*made.file),
        None if to_stdout => Box::new(io::stdout()),
        None => Box::new(io::sink()),
    };
    let failed = |error: io::Error| match &output {
        Some((_, path)) => Failure::at("write to", path, &error),
        None => Failure::stdout(&error),
    };
    let (mut hash, mut step) = (Xxh3Default::new(), Vec::new());
    for start in (0..len).step_by(whole(STEP)) {
        let end = len.min(start + STEP);
        let bytes = match memory.as_slice() {
            Some(bytes) => &bytes[whole(start)..whole(end)],
            None => {
                step.resize(whole(end - start), 0);
                memory.download(start, &mut step)?;
                &step[..]
            }
        };
        hash.update(bytes);
        out.write_all(bytes).map_err(failed)?;
    }
    out.flush().map_err(failed)?;
    drop(out);
    output.map_or(Ok(()), |output| finish(Ok(()), output))?;
    Ok(hash.digest())
}

fn moved(bytes: u64) -> String {
    match bytes {
        // Below a KiB the short form would repeat the number.
        0..KIB => counted(whole(bytes), "byte"),
        _ => format!("{bytes} bytes ({})", format_size(bytes)),
    }
}

/// The path of the trace, and what to do with it.
fn trace_line(path: &Path, left_out: u64) -> String {
    let missing = match left_out {
        0 => String::new(),
        spans => format!(" ({} left out)", counted(whole(spans), "more span")),
    };
    let path = plain(&path.display().to_string());
    format!("{:<9}{path}{missing}: open it in https://ui.perfetto.dev\n", "trace")
}

/// The stages of a read, by their names in JSON.
const fn stages_of(seen: &Statistics) -> [(&'static str, &Histogram); 4] {
    [
        ("slot_wait", &seen.slot_wait),
        ("file", &seen.file),
        ("link_wait", &seen.link_wait),
        ("copy", &seen.copy),
    ]
}

/// A line per stage that ran.
fn stages(engine: &Engine) -> String {
    let seen = engine.statistics();
    let ran = stages_of(&seen).into_iter().filter(|(_, times)| times.count() > 0);
    let line = |(name, times): (&str, &Histogram)| {
        let name = name.replace('_', " ");
        let (count, sum, max) = (times.count(), times.sum(), times.max());
        let median = times.quantile(0.5).unwrap_or_default();
        let text = format!("{name} {count} ×, median {median:.1?}, at most {max:.1?}, {sum:.1?}");
        format!("{:<NAME$}{text} in all\n", "stage")
    };
    ran.map(line).collect()
}

/// The read as JSON, version 1; docs/json-schema.md describes every key.
fn report(
    args: &ReadArgs,
    engine: &Engine,
    target: &Target,
    outcome: &Outcome,
    xxh3_64: &str,
    verdict: Option<&VerdictFacts>,
) -> Value {
    let share = |share: &RouteShare| {
        let (route, reason) = (share.route.name(), share.reason.text());
        json!({ "route": route, "reason": reason, "bytes": share.bytes })
    };
    let seen = engine.statistics();
    json!({
        "schema": 1,
        "path": args.file.display().to_string(),
        "offset": args.offset,
        "bytes": outcome.bytes,
        "target": target.name(),
        "simulated": target.is_simulated(),
        "routes": outcome.routes.iter().map(share).collect::<Vec<_>>(),
        "not_direct": outcome.not_direct.as_deref(),
        "seconds": outcome.elapsed.as_secs_f64(),
        "xxh3_64": xxh3_64,
        "verdict": verdict,
        "stages": Value::from_iter(stages_of(&seen).map(|(name, times)| (name, stage(times)))),
        "notes": engine.notes(),
    })
}

/// How often a stage ran, and how long it took.
fn stage(times: &Histogram) -> Value {
    let share = |share| times.quantile(share).map(|time| time.as_secs_f64());
    let max = Some(times.max().as_secs_f64()).filter(|_| times.count() > 0);
    json!({
        "count": times.count(),
        "p50_s": share(0.5),
        "p99_s": share(0.99),
        "max_s": max,
        "sum_s": times.sum().as_secs_f64(),
    })
}

fn summary(
    args: &ReadArgs,
    target: &Target,
    outcome: &Outcome,
    xxh3_64: &str,
    verdict: Option<&VerdictFacts>,
) -> String {
    let to = match (&target.device, &target.reason) {
        (Some(device), _) if target.is_simulated() => format!("{} (simulated)", device.id()),
        (Some(device), _) => format!("{}, {}", device.id(), device.info().name),
        (None, Some(reason)) => format!("host memory: {reason}"),
        (None, None) => "host memory".into(),
    };
    let seconds = outcome.elapsed.as_secs_f64();
    let mut lines = vec![
        ("file", format!("{} at {}", args.file.display(), args.offset)),
        ("target", to),
        ("moved", moved(outcome.bytes)),
    ];
    let shares = outcome.routes.iter().filter(|share| share.bytes > 0);
    let parts = shares.map(|share| (Some(share.route), share.reason.to_string(), share.bytes));
    if let (Some(route), Some(reason)) = describe(&parts.collect::<Vec<_>>()) {
        lines.push(("route", format!("{route}: {reason}")));
    }
    lines.extend(verdict.map(|verdict| ("proof", proof(verdict))));
    lines.extend(outcome.not_direct.as_ref().map(|why| ("direct", format!("no: {why}"))));
    let speed = rate(outcome.bytes, seconds);
    lines.push(match speed >= SPEED_MIN {
        true => ("speed", format!("{} in {seconds:.6} s", rate_text(speed))),
        false => ("time", format!("{seconds:.6} s")),
    });
    lines.push(("xxh3-64", xxh3_64.into()));
    let (indent, Look(width)) = (" ".repeat(NAME), Look::of_stdout());
    let line = |(name, text): &(&str, String)| {
        let line = format!("{name:<NAME$}{}", plain(text));
        if *name == "file" { line + "\n" } else { indented(&line, width, &indent) }
    };
    lines.iter().map(line).collect()
}

/// The path that independent counters prove, or why they prove none.
pub(crate) fn proof(verdict: &VerdictFacts) -> String {
    match verdict.note() {
        Some(why) if verdict.shares.is_empty() => format!("{}: {why}", verdict.text),
        _ => verdict.text.clone(),
    }
}
