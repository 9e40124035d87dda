//! Where the results of a run are stored, and the results already there.

use std::collections::HashSet;
use std::hash::Hasher as _;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use serde_json::Value;
use twox_hash::XxHash3_64;

use crate::args::BenchArgs;
use crate::failure::{Failure, Result};
use crate::results::file::{Ledger, samples};
use crate::results::{Point, Record};
use crate::stdio::say;

/// Most files of the same run in the state folder.
const NUMBERS: u32 = 10_000;

/// The results of a part of the same run.
#[derive(Debug, Default)]
pub(super) struct Kept {
    pub(super) records: Vec<Record>,
    /// Points and repeats that were measured.
    measured: HashSet<(Point, u32)>,
}

impl Kept {
    fn of(records: Vec<Record>) -> Self {
        let good = samples(&records).filter(|(_, sample)| sample.is_good());
        let measured = good.map(|(_, sample)| (sample.point.clone(), sample.repeat)).collect();
        Self { records, measured }
    }

    pub(super) fn has(&self, point: &Point, repeat: u32) -> bool {
        // The clone costs nothing compared with a sample.
        self.measured.contains(&(point.clone(), repeat))
    }

    /// Whether all points of `asked` were measured.
    fn is_whole(&self, asked: &Value) -> bool {
        let points = asked["points"].as_array().map_or(0, Vec::len);
        let repeats = asked["repeats"].as_u64().unwrap_or(1);
        self.measured.len() as u64 >= points as u64 * repeats
    }
}

/// The request of the run that a file begins with.
fn asked_in(records: &[Record]) -> Option<&Value> {
    records.iter().find_map(|record| match record {
        Record::Run(run) if run.verb == "bench" => Some(&*run.asked),
        _ => None,
    })
}

/// Opens the results file, and returns the existing results of `asked`.
///
/// # Errors
/// The user's file holds something else; or system errors.
pub(super) fn open(args: &BenchArgs, asked: &Value) -> Result<(Ledger, Kept)> {
    if let Some(path) = &args.output {
        if std::fs::symlink_metadata(path).is_err() {
            return Ok((Ledger::create(path)?, Kept::default()));
        }
        return continued(path, asked, args.restart);
    }
    let folder = folder()?;
    let mut hasher = XxHash3_64::new();
    hasher.write(asked.to_string().as_bytes());
    let name = format!("bench-{:016x}", hasher.finish());
    let path = |number: u32| folder.join(format!("{name}-{number}.jsonl"));
    let is_there = |number: &u32| std::fs::symlink_metadata(path(*number)).is_ok();
    let Some(new) = (1..NUMBERS).find(|number| !is_there(number)) else {
        return Err(Failure::new(format!("`{}` is full of results of this run", folder.display()))
            .hint("remove some, or name a file with `-o`"));
    };
    // Continue the last one: earlier files were restarted or are complete.
    for number in (1..new).rev().take_while(|_| !args.restart) {
        match Ledger::reopen(&path(number)) {
            Ok((ledger, records)) => {
                let kept = Kept::of(records);
                if asked_in(&kept.records) != Some(asked) {
                    continue;
                }
                if kept.is_whole(asked) {
                    break;
                }
                return Ok((ledger, kept));
            }
            Err(failure) => say(&format!("skipped a file: {}", failure.in_one_line())),
        }
    }
    Ok((Ledger::create(&path(new))?, Kept::default()))
}

fn continued(path: &Path, asked: &Value, restart: bool) -> Result<(Ledger, Kept)> {
    let refuse = |why: &str| {
        Err(Failure::usage(format!("`{}` exists already", path.display()))
            .because(why)
            .hint("name another file with `-o`"))
    };
    if restart {
        return refuse("`--restart` begins with a new file");
    }
    let (ledger, records) = Ledger::reopen(path)?;
    if asked_in(&records) != Some(asked) {
        return refuse("it holds the results of something else");
    }
    Ok((ledger, Kept::of(records)))
}

/// The user's folder for state kept between runs (the XDG base directories).
pub(super) fn folder() -> Result<PathBuf> {
    let variable = |name: &str| {
        let value = std::env::var_os(name).map(PathBuf::from);
        value.filter(|path| path.is_absolute())
    };
    let state = variable("XDG_STATE_HOME")
        .or_else(|| variable("HOME").map(|home| home.join(".local/state")))
        .ok_or_else(|| {
            Failure::new("there is no folder for results")
                .because("neither `XDG_STATE_HOME` nor `HOME` names one")
                .hint("name a file with `-o`")
        })?;
    let folder = state.join("forebay");
    let made = std::fs::DirBuilder::new().recursive(true).mode(0o700).create(&folder);
    made.map_err(|error| {
        Failure::io(format!("cannot make the folder `{}`", folder.display()), &error)
            .hint("name a file with `-o`")
    })?;
    Ok(folder)
}
