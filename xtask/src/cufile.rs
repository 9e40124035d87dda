//! The vendor's cuFile from its Python wheels, for tests: header and library of several versions,
//! from the first that the engine accepts to a recent version. They are fetched by package name
//! and kept below the target folder; none of it is in the repository.

use std::path::{Path, PathBuf};

use crate::folders::{copy, make, remove};
use crate::process::{Result, say};
use crate::python;
use crate::report::Report;
use crate::test;

/// Names tests the folder, which has one for each version.
pub(crate) const VARIABLE: &str = "FOREBAY_CUFILE_WHEELS";

/// Packages, versions, and the folders of their files: the oldest, the first that counts, the last
/// with short counters and the first with longer ones, and a recent version.
const WHEELS: [(&str, &str, &str); 5] = [
    ("nvidia-cufile-cu12", "1.11.1.6", "nvidia/cufile"),
    ("nvidia-cufile", "1.15.1.6", "nvidia/cu13"),
    ("nvidia-cufile", "1.18.1.6", "nvidia/cu13"),
    ("nvidia-cufile", "1.19.1.55", "nvidia/cu13"),
    ("nvidia-cufile", "1.20.0.107", "nvidia/cu13"),
];

/// The files that are kept of every wheel.
const FILES: [(&str, &str); 2] = [("include", "cufile.h"), ("lib", "libcufile.so.0")];

/// Their folder.
pub(crate) fn folder(root: &Path) -> Result<PathBuf> {
    Ok(test::target(root)?.join("cufile"))
}

/// Fetches missing files; unavailable ones are reported as skipped.
pub(crate) fn prepare(report: &mut Report, root: &Path) -> Result<()> {
    let folder = folder(root)?;
    let mut wheels = WHEELS.into_iter().filter(|(_, version, _)| {
        !FILES.iter().all(|(_, file)| folder.join(version).join(file).exists())
    });
    match wheels.try_for_each(|(package, version, part)| fetch(&folder, package, version, part)) {
        Ok(()) => say!("prepared: cuFile's header and library, in {} versions", WHEELS.len()),
        Err(reason) => report.skip(format!("cuFile's header and library: {reason}")),
    }
    Ok(())
}

fn fetch(folder: &Path, package: &str, version: &str, part: &str) -> Result<()> {
    let work = folder.join("fetched");
    remove(&work)?;
    let python = python::environment(&python::system()?, &work.join("python"), &[])?;
    let (unpacked, wheel) = (work.join("wheel"), format!("{package}=={version}"));
    let quickly = ["--no-deps", "--timeout", "15", "--retries", "1", "--target"];
    if !python::pip(&python, &[&quickly[..], &[&unpacked.to_string_lossy(), &wheel]].concat())? {
        return Err(format!("`pip` cannot fetch {wheel}"));
    }
    let home = folder.join(version);
    make(&home)?;
    for (kind, name) in FILES {
        copy(&unpacked.join(part).join(kind).join(name), &home.join(name))?;
    }
    remove(&work)
}
