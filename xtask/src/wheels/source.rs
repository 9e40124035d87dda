//! Builds from sources: the source archive, and a fresh clone of the repository.

use std::fs;
use std::path::Path;
use std::process::Command;

use super::workshop::{Workshop, pip};
use crate::folders::{entries, failed, remove};
use crate::process::{self, Result, say};
use crate::report::Report;

/// Bytes that the archive stays below: it holds no measurements, pages or folders of tests.
const ARCHIVE_MAX: u64 = 2_000_000;

/// Files that the archive must hold, besides those the build would miss.
const NEEDED: [&str; 9] = [
    "Cargo.lock",
    "Cargo.toml",
    "LICENSE",
    "PKG-INFO",
    "README.md",
    "crates/forebay-python/src/lib.rs",
    "pyproject.toml",
    "python/forebay/_forebay.pyi",
    "python/forebay/py.typed",
];

/// All its files are in these folders, or in its root.
const FOLDERS: [&str; 9] = [
    "crates/forebay/",
    "crates/forebay-base/",
    "crates/forebay-cli/",
    "crates/forebay-doctor/",
    "crates/forebay-evidence/",
    "crates/forebay-layers/",
    "crates/forebay-python/",
    "crates/forebay-topology/",
    "python/forebay/",
];

/// Prints the names in an archive, without their common folder.
const NAMES: &str = "\
import sys, tarfile
for name in tarfile.open(sys.argv[1]).getnames():
    print(name.partition('/')[2])
";

pub(super) fn run(report: &mut Report, workshop: &Workshop) -> Result<()> {
    let archived = archive(report, workshop)?;
    let cloned = clone(report, workshop)?;
    if let (Some(archived), Some(cloned)) = (archived, cloned) {
        let same = archived == cloned;
        if !same {
            say!(err, "error: the archive installs {archived:#?}, the clone {cloned:#?}");
        }
        report.step("wheels: source: archive and clone install the same", same);
    }
    Ok(())
}

/// The files that the archive installs.
fn archive(report: &mut Report, workshop: &Workshop) -> Result<Option<Vec<String>>> {
    let folder = workshop.home.join("dist/source");
    remove(&folder)?;
    let mut build = workshop.maturin();
    build.args(["sdist", "--out"]).arg(&folder);
    let built = process::succeeds(&mut build)?;
    report.step("wheels: source: archive", built);
    if !built {
        return Ok(None);
    }
    let archive = entries(&folder)?.pop().ok_or("maturin built no archive")?;
    let bytes = fs::metadata(&archive).map_err(failed(&archive))?.len();
    let file = archive.file_name().unwrap_or_default().to_string_lossy();
    say!("wheels: {file}: {bytes} bytes, at most {ARCHIVE_MAX}");
    report.step("wheels: source: the archive's size", bytes < ARCHIVE_MAX);
    let mut names = Command::new(&workshop.system);
    let names = process::output(names.args(["-c", NAMES]).arg(&archive))?;
    let wrong = wrong(&names.lines().collect::<Vec<_>>());
    wrong.iter().for_each(|text| say!(err, "error: the archive {text}"));
    report.step("wheels: source: what the archive holds", wrong.is_empty());
    install(report, workshop, "archive", &archive)
}

/// The errors in the names of an archive.
fn wrong(names: &[&str]) -> Vec<String> {
    let lacking = NEEDED.iter().filter(|needed| !names.contains(needed));
    let is_known = |name: &str| {
        let in_folder = FOLDERS.iter().any(|folder| name.starts_with(folder));
        let is_test = name.starts_with("crates/") && name.split('/').nth(2) == Some("tests");
        (in_folder || !name.contains('/')) && !name.ends_with(".so") && !is_test
    };
    let needless = names.iter().filter(|name| !is_known(name));
    let lacking = lacking.map(|name| format!("lacks `{name}`"));
    lacking.chain(needless.map(|name| format!("holds `{name}`, which nobody needs"))).collect()
}

/// The files that a clone of the last commit installs.
fn clone(report: &mut Report, workshop: &Workshop) -> Result<Option<Vec<String>>> {
    let folder = workshop.home.join("clone");
    remove(&folder)?;
    let mut git = Command::new("git");
    git.args(["clone", "--quiet"]).arg(&workshop.root).arg(&folder);
    if process::find("git").is_none() || !workshop.root.join(".git").exists() {
        report.skip("wheels: source: clone: no repository of `git` here");
        return Ok(None);
    }
    let cloned = process::succeeds(&mut git)?;
    report.step("wheels: source: clone", cloned);
    if cloned { install(report, workshop, "clone", &folder) } else { Ok(None) }
}

/// Installs from sources into a fresh environment, as a user would: pip fetches the build tools.
fn install(
    report: &mut Report,
    workshop: &Workshop,
    name: &str,
    sources: &Path,
) -> Result<Option<Vec<String>>> {
    let python = workshop.environment(name, &workshop.system)?;
    let mut pip = pip(&python);
    // Both share their builds of other crates, and share nothing with anything else.
    pip.arg(sources).env("CARGO_TARGET_DIR", workshop.home.join("build-source"));
    let installed = process::succeeds(&mut pip)?;
    report.step(&format!("wheels: source: {name} installs"), installed);
    if !installed {
        return Ok(None);
    }
    let files = workshop.smoke(&python)?;
    report.step(&format!("wheels: source: {name}: smoke"), files.is_some());
    Ok(files)
}

#[cfg(test)]
mod tests {
    use super::{NEEDED, wrong};

    #[test]
    fn what_an_archive_lacks_and_what_it_should_not_hold_is_told() {
        let mut names = NEEDED.to_vec();
        names.extend(["python/forebay/kvikio/zarr.py", "crates/forebay/src/queue/tests.rs"]);
        assert!(wrong(&names).is_empty());
        names.extend(["benches/runs/a.json", "python/forebay/_forebay.abi3.so", "docs/python.md"]);
        names.push("crates/forebay/tests/fork.rs");
        names.retain(|name| *name != "LICENSE");
        let wrong = wrong(&names);
        assert_eq!(wrong.len(), 5, "{wrong:?}");
        assert_eq!(wrong[0], "lacks `LICENSE`");
    }
}
