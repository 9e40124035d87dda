//! `cargo xtask bundle DIR`: a folder from which a machine without cargo runs the same tests and
//! bars; it can be moved anywhere.
//!
//! It holds the test executables (`tests/`), the programs (`bin/`: `forebay`, `xtask`, a static
//! `fio`), `commit`, `skipped`, the script `run`, and a mark. Without the mark nothing is ever
//! removed from a folder.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::Command;

use crate::executables::{Built, Executable};
use crate::folders::{self, entries, failed, make, remove};
use crate::process::{self, Result, say};
use crate::{test, wheel};

/// Bytes of a whole bundle, at most: packed they are 0.41 of it (`gzip -6`), which travels easily.
const BUNDLE_LEN_MAX: u64 = 224 << 20;

/// The programs that are bundled with `fio`.
const PROGRAMS: [&str; 2] = ["forebay", "xtask"];

/// The file that marks a folder as a bundle, with its contents.
const MARK: &str = ".forebay-bundle";
const MARK_TEXT: &str = "made by `cargo xtask bundle`, which may replace what is in this folder\n";

/// Runs a bundle.
const RUN: &str = include_str!("../run.sh");

/// Fills `folder`, which is made, or holds an earlier bundle that is replaced.
pub(crate) fn run(root: &Path, folder: &Path) -> Result<()> {
    clear(folder, &["bin", "tests"])?;
    let target = test::target(root)?;
    let rustc = process::output(Command::new("rustc").arg("--version"))?;
    write(&folder.join("commit"), &format!("{}\n{rustc}", commit(root)))?;
    let mut skipped =
        "skipped: documentation tests and the README's examples: they need cargo\n".to_owned();
    say!(err, "building the tests and programs");
    let built = executables(root, &["--workspace", "--release"])?;
    for Executable { file, .. } in &built {
        copy(file, &folder.join("tests").join(file.file_name().unwrap_or_default()))?;
    }
    let mut build = process::cargo();
    build.current_dir(root).args(["build", "--release", "--workspace", "--bins"]);
    process::must_succeed(&mut build)?;
    for program in PROGRAMS {
        let file = target.join("release").join(program);
        copy(&file, &folder.join("bin").join(program))?;
    }
    let fio = target.join("fio");
    if !fio.join("fio").exists() {
        say!(err, "building a static `fio` from the distribution's source package");
        process::succeeds(Command::new(root.join("xtask/fio.sh")).arg(&fio))?;
    }
    match fio.join("fio").exists() {
        true => copy(&fio.join("fio"), &folder.join("bin/fio"))?,
        false => skipped += "skipped: comparison with fio: `xtask/fio.sh` failed\n",
    }
    write(&folder.join("skipped"), &skipped)?;
    write(&folder.join("run"), RUN)?;
    let executable = fs::Permissions::from_mode(0o755);
    fs::set_permissions(folder.join("run"), executable).map_err(failed(folder))?;
    let size = process::output(Command::new("du").arg("-sb").arg(folder))?;
    let len: u64 = size.split('\t').next().unwrap_or_default().parse().unwrap_or(u64::MAX);
    let mib = |bytes: u64| bytes.div_ceil(1 << 20);
    say!(
        "bundle: `{}`: {} test executables, {} MiB of {} MiB",
        folder.display(),
        built.len(),
        mib(len),
        mib(BUNDLE_LEN_MAX)
    );
    if len > BUNDLE_LEN_MAX {
        return Err(format!("the bundle has {} MiB, at most {}", mib(len), mib(BUNDLE_LEN_MAX)));
    }
    Ok(())
}

/// Fills `folder` with the bars for GPUs, the wheel and the commit.
pub(crate) fn gpus(root: &Path, folder: &Path) -> Result<()> {
    clear(folder, &["gpus", "layers"])?;
    let wheel = wheel::build(root, &wheel::maturin(root)?)?;
    let to = folder.join("gpus");
    folders::copy(&wheel, &to.join(wheel.file_name().unwrap_or_default()))?;
    for part in ["gpus", "layers"] {
        for file in entries(&root.join("benches").join(part))?.iter().filter(|file| file.is_file())
        {
            folders::copy(file, &folder.join(part).join(file.file_name().unwrap_or_default()))?;
        }
    }
    write(&to.join("commit"), &commit(root))?;
    say!("bundle: `python3 {}` measures the bars", to.display());
    Ok(())
}

/// Makes the folder, or removes the bundle's parts from it, and makes `parts`; other files are left
/// alone.
fn clear(folder: &Path, parts: &[&str]) -> Result<()> {
    make(folder)?;
    let mark = folder.join(MARK);
    if !entries(folder)?.is_empty() && fs::read(&mark).ok().as_deref() != Some(MARK_TEXT.as_bytes())
    {
        let text = "is neither empty nor a bundle with its mark";
        let remedy = "remove it, or name a new folder";
        return Err(format!("`{}` {text}: {remedy}", folder.display()));
    }
    // Written first, so that an interrupted bundle can be made anew.
    write(&mark, MARK_TEXT)?;
    for part in ["bin", "tests", "gpus", "layers"] {
        remove(&folder.join(part))?;
    }
    parts.iter().try_for_each(|part| make(&folder.join(part)))
}

/// Builds the tests that `which` names to cargo.
pub(crate) fn executables(root: &Path, which: &[&str]) -> Result<Vec<Executable>> {
    let mut cargo = process::cargo();
    Ok(Built::new(cargo.current_dir(root).arg("test").args(which))?.tests)
}

/// The commit that is checked out, with `+` if files differ from it.
pub(crate) fn commit(root: &Path) -> String {
    let git = |arguments: &[&str]| {
        process::output(Command::new("git").current_dir(root).args(arguments))
            .map(|text| text.trim().to_owned())
    };
    let changed = git(&["status", "--porcelain"]).is_ok_and(|text| !text.is_empty());
    match git(&["rev-parse", "--short=12", "HEAD"]) {
        Ok(commit) => commit + if changed { "+" } else { "" },
        Err(_) => "unknown".into(),
    }
}

/// Copies a program without its symbols, if `strip` is available to remove them.
fn copy(from: &Path, to: &Path) -> Result<()> {
    folders::copy(from, to)?;
    if process::find("strip").is_some() {
        process::must_succeed(Command::new("strip").arg(to))?;
    }
    Ok(())
}

fn write(path: &Path, text: &str) -> Result<()> {
    fs::write(path, text).map_err(failed(path))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn another_folder_is_left_alone() {
        let folder = tempfile::tempdir().unwrap();
        let inside = |name: &str| folder.path().join(name);
        clear(folder.path(), &["tests"]).unwrap();
        fs::write(inside("tests/old"), "").unwrap();
        clear(folder.path(), &["tests"]).unwrap();
        assert!(!inside("tests/old").exists(), "an earlier bundle is replaced");
        // Other folders have a manifest, programs and tests too.
        fs::remove_file(inside(MARK)).unwrap();
        fs::write(inside("manifest.json"), "{}").unwrap();
        for other in [None, Some("another mark")] {
            other.inspect(|text| fs::write(inside(MARK), text).unwrap());
            fs::write(inside("tests/precious"), "").unwrap();
            assert!(clear(folder.path(), &[]).unwrap_err().contains("neither empty"));
            assert!(inside("tests/precious").exists());
        }
        assert!(clear(&inside("manifest.json"), &[]).is_err(), "a file is no folder");
    }

    #[test]
    fn the_script_sums_results_skips_and_crashes() {
        let folder = tempfile::tempdir().unwrap();
        let inside = |name: &str| folder.path().join(name);
        make(&inside("tests")).unwrap();
        for (name, text) in [("run", RUN), ("commit", "abc\n"), ("skipped", "skipped: fio: no\n")] {
            fs::write(inside(name), text).unwrap();
        }
        let result = |words: &str| {
            let run = Command::new("bash")
                .arg(inside("run"))
                .env("HEEDS_SIGNALS", "1")
                .args(words.split_whitespace())
                .output();
            let run = run.unwrap();
            let text = String::from_utf8(run.stdout).unwrap();
            (run.status.code(), text.lines().last().unwrap_or_default().to_owned())
        };
        let add = |name: &str, script: &str| {
            let test = inside("tests").join(name);
            fs::write(&test, format!("#!/bin/sh\n{script}\n")).unwrap();
            fs::set_permissions(&test, fs::Permissions::from_mode(0o755)).unwrap();
        };
        add(
            "good",
            "echo 'skipped: gpu: none' >&2; echo 'test result: ok. 7 passed; 0 failed; 1 ignored;'",
        );
        assert_eq!(result(""), (Some(0), "7 passed, 0 failed, 3 skipped".into()));
        add(
            "bad",
            "echo \"$2\"; echo 'test result: FAILED. 1 passed; 2 failed; 0 ignored;'; exit 101",
        );
        add("crash", "exit 139");
        assert_eq!(result("--all"), (Some(1), "8 passed, 3 failed, 3 skipped".into()));
        assert_eq!(result("--none").0, Some(2));
    }
}
