//! How fast one engine reads each of some paths, interleaved, cold, with default settings.

use std::fs;
use std::io::Write as _;
use std::path::PathBuf;
use std::time::Instant;

use forebay::{Engine, Options, RequestOptions};
use serde::Serialize;

use crate::{Result, sum};

/// Bytes read from a drive before each sample, so that the burst that a capped drive lets pass
/// after a pause is used up.
const BURST: usize = 12 << 20;

/// One path with its samples.
#[derive(Debug, Serialize)]
struct Series {
    name: String,
    path: String,
    bytes: u64,
    seconds: Vec<f64>,
    /// The routes of the last sample, each with its reason.
    route: String,
    /// The sum of the bytes of each sample.
    sums: Vec<String>,
    #[serde(skip)]
    burst: Vec<PathBuf>,
}

/// `paths` are `NAME=PATH[:BYTES]`; names that begin with `drive` are the drives themselves.
pub(crate) fn run(out: &str, rounds: &str, paths: &[&str]) -> Result<()> {
    let mut series = paths.iter().map(|word| parse(word)).collect::<Result<Vec<_>>>()?;
    let drives: Vec<PathBuf> = series
        .iter()
        .filter(|one| one.name.starts_with("drive"))
        .map(|one| PathBuf::from(&one.path))
        .collect();
    for one in &mut series {
        let is_drive = one.name.starts_with("drive");
        one.burst = if is_drive { vec![PathBuf::from(&one.path)] } else { drives.clone() };
    }
    // One engine for all, as in a program.
    let engine = Engine::new(Options::from_env()?)?;
    let most = series.iter().map(|one| one.bytes).max().unwrap_or_default();
    let mut memory = vec![1_u8; usize::try_from(most)?];
    for _ in 0..rounds.parse::<u32>()? {
        for index in 0..series.len() {
            sample(&engine, &mut series[index], &mut memory)?;
            let (name, last) = (&series[index].name, series[index].seconds.last());
            let seconds = last.copied().unwrap_or_default();
            let _ = writeln!(std::io::stderr(), "lab:        {name}: {seconds:.3} s");
            // Store the measurements, whatever comes after.
            fs::write(out, serde_json::to_string_pretty(&series)?)?;
        }
    }
    Ok(())
}

fn parse(word: &str) -> Result<Series> {
    let (name, rest) = word.split_once('=').ok_or("no `NAME=PATH`")?;
    let (path, bytes) = match rest.split_once(':') {
        Some((path, bytes)) => (path, bytes.parse()?),
        None => (rest, fs::metadata(rest)?.len()),
    };
    Ok(Series {
        name: name.to_owned(),
        path: path.to_owned(),
        bytes,
        seconds: Vec::new(),
        route: String::new(),
        sums: Vec::new(),
        burst: Vec::new(),
    })
}

fn sample(engine: &Engine, one: &mut Series, memory: &mut [u8]) -> Result<()> {
    fs::write("/proc/sys/vm/drop_caches", "3")?;
    let exactly = RequestOptions::exactly();
    for drive in &one.burst {
        engine.open(drive)?.read_with(0, &mut memory[..BURST], &exactly)?;
    }
    let memory = &mut memory[..usize::try_from(one.bytes)?];
    let file = engine.open(&one.path)?;
    let start = Instant::now();
    let outcome = file.read_with(0, &mut *memory, &exactly)?;
    one.seconds.push(start.elapsed().as_secs_f64());
    let routes =
        outcome.routes.iter().map(|r| format!("{} bytes {}: {}", r.bytes, r.route, r.reason));
    one.route = routes.collect::<Vec<_>>().join("; ");
    one.sums.push(sum(memory));
    Ok(())
}
