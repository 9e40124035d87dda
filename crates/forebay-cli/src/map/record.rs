//! `--record`: writes a record of this system, and lists what was masked.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use forebay_topology::System;

use super::gather::RDMA;
use crate::failure::{Failure, Result};

/// Writes a record of `paths` of `system` into the new folder `dir`, and returns what to report.
pub(crate) fn record(system: &System, paths: &[PathBuf], dir: &Path) -> Result<String> {
    forebay_topology::record(system, paths, dir).map_err(|error| {
        let failure = Failure::io(format!("cannot write a record to `{}`", dir.display()), &error);
        match error.kind() {
            io::ErrorKind::AlreadyExists => failure.hint("give the path of a new folder"),
            _ => failure,
        }
    })?;
    cards(dir).map_err(|error| {
        Failure::io(format!("cannot write a record to `{}`", dir.display()), &error)
    })?;
    let shown = dir.display();
    let (count, s) = (paths.len(), if paths.len() == 1 { "" } else { "s" });
    Ok(format!(
        "recorded  {count} path{s} to {shown}\n\
         masked    names of file servers, names and passwords of users in mount options, keys of \
         encrypted volumes\n\
         kept      paths, mount points, addresses, serial numbers of drives: check the record \
         before you share it\n\
         replay    forebay doctor --map --fixture {shown}\n"
    ))
}

/// The names of RDMA cards, which the topology itself does not read.
fn cards(dir: &Path) -> io::Result<()> {
    let folder = dir.join("root").join(RDMA);
    fs::create_dir_all(&folder)?;
    for entry in fs::read_dir(Path::new("/").join(RDMA)).into_iter().flatten().flatten() {
        fs::create_dir_all(folder.join(entry.file_name()))?;
    }
    Ok(())
}
