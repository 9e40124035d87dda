//! The vendor's cuFile from its Python wheels, for tests: header and library of several versions,
//! from the first that the engine accepts to one of the newest. They are fetched by package name
//! and kept below the target folder; none of it is in the repository.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::folders::{entries, failed, make, remove};
use crate::process::{self, Result, say};
use crate::python;
use crate::report::Report;
use crate::test;

/// Names tests the folder, which has one for each version.
pub(crate) const VARIABLE: &str = "FOREBAY_CUFILE_WHEELS";

/// Packages and versions: the oldest, the first that counts, the last with short counters and the
/// first with longer ones, and one that is new.
const WHEELS: [(&str, &str); 5] = [
    ("nvidia-cufile-cu12", "1.11.1.6"),
    ("nvidia-cufile", "1.15.1.6"),
    ("nvidia-cufile", "1.18.1.6"),
    ("nvidia-cufile", "1.19.1.55"),
    ("nvidia-cufile", "1.20.0.107"),
];

/// The files that are kept of each.
const FILES: [&str; 2] = ["cufile.h", "libcufile.so.0"];

/// Their folder.
pub(crate) fn folder(root: &Path) -> Result<PathBuf> {
    Ok(test::target(root)?.join("cufile"))
}

/// Fetches missing files; unavailable ones are reported as skipped.
pub(crate) fn prepare(report: &mut Report, root: &Path) -> Result<()> {
    let folder = folder(root)?;
    let is_there =
        |version: &str| FILES.iter().all(|file| folder.join(version).join(file).exists());
    let missing: Vec<_> = WHEELS.into_iter().filter(|(_, version)| !is_there(version)).collect();
    let fetched = match missing.is_empty() {
        true => Ok(()),
        false => fetch(&folder, &missing),
    };
    match fetched {
        Ok(()) => say!("prepared: cuFile's header and library, in {} versions", WHEELS.len()),
        Err(reason) => report.skip(format!("cuFile's header and library: {reason}")),
    }
    Ok(())
}

fn fetch(folder: &Path, wheels: &[(&str, &str)]) -> Result<()> {
    let work = folder.join("fetched");
    remove(&work)?;
    make(&work)?;
    let python = python::environment(&python::system()?, &work.join("python"), &[])?;
    for (package, version) in wheels {
        let wheel = work.join(version);
        let named = format!("{package}=={version}");
        let mut pip = Command::new(&python);
        pip.args(["-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps"]);
        pip.args(["--only-binary", ":all:", "--timeout", "15", "--retries", "1", "--dest"]);
        if !process::succeeds(pip.arg(&wheel).arg(&named))? {
            return Err(format!("`pip` cannot fetch {named}"));
        }
        let file = entries(&wheel)?.pop().ok_or_else(|| format!("{named} has no wheel"))?;
        let unpacked = wheel.join("unpacked");
        let mut unpack = Command::new(&python);
        process::must_succeed(unpack.args(["-m", "zipfile", "-e"]).arg(file).arg(&unpacked))?;
        keep(&unpacked, &folder.join(version))?;
    }
    remove(&work)
}

/// Moves the kept files out of a wheel.
fn keep(unpacked: &Path, home: &Path) -> Result<()> {
    make(home)?;
    for name in FILES {
        let found = find(unpacked, name)?;
        let found = found.ok_or_else(|| format!("a wheel of cuFile has no `{name}`"))?;
        fs::rename(&found, home.join(name)).map_err(failed(&found))?;
    }
    Ok(())
}

/// The file of this name in a folder or in one below.
fn find(folder: &Path, name: &str) -> Result<Option<PathBuf>> {
    for entry in entries(folder)? {
        if entry.file_name().is_some_and(|own| own == name) {
            return Ok(Some(entry));
        }
        if entry.is_dir()
            && let Some(found) = find(&entry, name)?
        {
            return Ok(Some(found));
        }
    }
    Ok(None)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wheel_keeps_what_is_needed_wherever_it_lies() {
        let folder = tempfile::tempdir().unwrap();
        let (wheel, home) = (folder.path().join("wheel"), folder.path().join("1.15.1.6"));
        for (part, name) in [("nvidia/cu13/include", FILES[0]), ("nvidia/cu13/lib", FILES[1])] {
            make(&wheel.join(part)).unwrap();
            let without = keep(&wheel, &home).unwrap_err();
            assert!(without.contains(name), "{without}");
            fs::write(wheel.join(part).join(name), name).unwrap();
        }
        keep(&wheel, &home).unwrap_err(); // the first was moved before
        fs::write(wheel.join("nvidia").join(FILES[0]), "anew").unwrap();
        keep(&wheel, &home).unwrap();
        assert_eq!(fs::read_to_string(home.join(FILES[0])).unwrap(), "anew");
        assert_eq!(fs::read_to_string(home.join(FILES[1])).unwrap(), FILES[1]);
    }
}
