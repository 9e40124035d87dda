//! `--record` and `--fixture`: writes and opens records of a system.

use std::io;
use std::path::{Path, PathBuf};

use forebay_doctor::{self as doctor, Answer, Wish};
use forebay_measure::failure::{Failure, Result};
use forebay_topology::System;

/// Writes a record of `system` into the new folder `dir`, and returns what to report.
pub(super) fn write(
    system: &System,
    wishes: &[Wish],
    cufile: Option<Answer>,
    dir: &Path,
    is_map: bool,
) -> Result<String> {
    let dir_name = dir.display();
    doctor::record(system, wishes, cufile, dir).map_err(|error| {
        let failure = Failure::io(format!("cannot write a record to `{dir_name}`"), &error);
        match error.kind() {
            io::ErrorKind::AlreadyExists => failure.hint("give the path of a new folder"),
            _ => failure,
        }
    })?;
    let (count, s) = (wishes.len(), if wishes.len() == 1 { "" } else { "s" });
    let map = if is_map { " --tree" } else { "" };
    Ok(format!(
        "recorded  {count} path{s} to {dir_name}\n\
         masked    names of file servers, names and passwords of users in mount options, keys of \
         encrypted volumes, all variables but cuFile's, comments and paths in its settings\n\
         kept      paths, mount points, addresses, serial numbers of drives: check the record \
         before you share it\n\
         replay    forebay doctor{map} --fixture {dir_name}\n"
    ))
}

/// The recorded system in `dir`, and `paths` or, if there are none, those of the record.
pub(super) fn open(dir: &Path, paths: &[PathBuf]) -> Result<(System, Vec<PathBuf>)> {
    let system = System::fixture(dir).map_err(|error| cannot_replay(dir, &error))?;
    let paths = if paths.is_empty() { system.recorded_paths() } else { paths.to_vec() };
    if paths.is_empty() {
        return Err(cannot_replay(dir, &io::Error::other("its record names no path")));
    }
    Ok((system, paths))
}

/// What cuFile reported on the recorded system.
pub(super) fn answer(dir: &Path) -> Result<Option<Answer>> {
    doctor::recorded_answer(dir).map_err(|error| cannot_replay(dir, &error))
}

fn cannot_replay(dir: &Path, error: &io::Error) -> Failure {
    Failure::at("replay", dir, error).hint("give a folder that `forebay doctor --record` made")
}
