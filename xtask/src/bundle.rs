//! `cargo xtask bundle DIR`: a folder from which a machine without cargo runs the same tests and
//! bars; it can be moved anywhere.
//!
//! It holds the test executables (`tests/`), the programs (`bin/`: `forebay`, `forebay-bars`,
//! `xtask`, a static `fio`), `manifest.json`, the script `run`, and a mark. Without the mark
//! nothing is ever removed from a folder. [`crate::replay`] runs it.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde::{Deserialize, Serialize};

use crate::process::{self, Result, say};
use crate::{fio, test};

/// Bytes of a whole bundle, at most: packed they are 0.41 of it (`gzip -6`), which travels easily.
const BUNDLE_LEN_MAX: u64 = 224 << 20;

/// The programs that are bundled with `fio`.
const PROGRAMS: [&str; 3] = ["forebay", "forebay-bars", "xtask"];

/// The file that marks a folder as a bundle, with its contents.
const MARK: &str = ".forebay-bundle";
const MARK_TEXT: &str = "made by `cargo xtask bundle`, which may replace what is in this folder\n";

const RUN: &str = "\
#!/usr/bin/env bash
# Runs this bundle's tests (no argument) or bars (`bench [ARGUMENT]...`) on this machine.
set -euo pipefail
here=\"$(cd \"$(dirname \"${BASH_SOURCE[0]}\")\" && pwd)\"
exec \"$here/bin/xtask\" replay \"$here\" \"$@\"
";

/// The contents and origin of a bundle.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Manifest {
    /// The commit that was built, with `+` if files differed from it.
    pub(crate) commit: String,
    /// The compiler's version.
    pub(crate) rustc: String,
    /// The test executables, in execution order.
    pub(crate) tests: Vec<TestExecutable>,
    /// Missing parts, as `WHAT: REASON`.
    pub(crate) skipped: Vec<String>,
}

/// One test executable.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct TestExecutable {
    /// `PACKAGE TARGET`, for people.
    pub(crate) name: String,
    /// Its file in `tests/`.
    pub(crate) file: String,
}

/// Fills `folder`, which is made, or holds an earlier bundle that is replaced.
pub(crate) fn run(root: &Path, folder: &Path) -> Result<()> {
    clear(folder)?;
    let target = test::target(root)?;
    let mut manifest = Manifest {
        commit: commit(root),
        rustc: process::output(Command::new("rustc").arg("--version"))?.trim().into(),
        tests: Vec::new(),
        skipped: vec!["documentation tests and the README's examples: they need cargo".into()],
    };
    say!(err, "building the tests and programs");
    let built = executables(root, &["--workspace"])?;
    for (name, executable) in &built {
        let file = file_name(executable);
        copy(executable, &folder.join("tests").join(&file))?;
        manifest.tests.push(TestExecutable { name: name.clone(), file });
    }
    let mut build = process::cargo();
    build.current_dir(root).args(["build", "--release", "--workspace", "--bins"]);
    process::must_succeed(build.env("FOREBAY_COMMIT", &manifest.commit))?;
    for program in PROGRAMS {
        let file = target.join("release").join(program);
        copy(&file, &folder.join("bin").join(program))?;
    }
    match fio::build(&target) {
        Ok(program) => copy(&program, &folder.join("bin/fio"))?,
        Err(reason) => {
            say!(err, "warning: no static `fio` in the bundle: {reason}");
            manifest.skipped.push(format!("comparison with fio: {reason}"));
        }
    }
    let json = serde_json::to_string_pretty(&manifest).map_err(|error| error.to_string())?;
    write(&folder.join("manifest.json"), &(json + "\n"))?;
    write(&folder.join("run"), RUN)?;
    make_executable(&folder.join("run"))?;
    let len = size(folder);
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

/// Makes the folder, or removes the bundle's parts from it; other files are left alone.
fn clear(folder: &Path) -> Result<()> {
    let failed = |error| format!("cannot prepare `{}`: {error}", folder.display());
    fs::create_dir_all(folder).map_err(failed)?;
    let is_empty = fs::read_dir(folder).map_err(failed)?.next().is_none();
    let mark = folder.join(MARK);
    if !is_empty && fs::read(&mark).ok().as_deref() != Some(MARK_TEXT.as_bytes()) {
        let text = "is neither empty nor a bundle with its mark";
        let remedy = "remove it, or name a folder that is to be made";
        return Err(format!("`{}` {text}: {remedy}", folder.display()));
    }
    // Written first, so that an interrupted bundle can be made anew.
    write(&mark, MARK_TEXT)?;
    for part in ["bin", "tests"] {
        let part = folder.join(part);
        if part.exists() {
            fs::remove_dir_all(&part).map_err(failed)?;
        }
        fs::create_dir(&part).map_err(failed)?;
    }
    Ok(())
}

/// Builds the tests that `which` names to cargo in release mode; returns `PACKAGE TARGET` and file
/// of each executable.
pub(crate) fn executables(root: &Path, which: &[&str]) -> Result<Vec<(String, PathBuf)>> {
    let mut cargo = process::cargo();
    cargo.current_dir(root).args(["test", "--release"]).args(which);
    cargo.args(["--no-run", "--message-format=json-render-diagnostics"]);
    // Cargo announces them as they are built; their order must not change from bundle to bundle.
    let mut built: Vec<_> = process::output(&mut cargo)?.lines().filter_map(executable).collect();
    built.sort();
    Ok(built)
}

/// The test executable in one of cargo's messages.
fn executable(message: &str) -> Option<(String, PathBuf)> {
    let message: serde_json::Value = serde_json::from_str(message).ok()?;
    let is_test = message["profile"]["test"].as_bool() == Some(true);
    let file = message["executable"].as_str().filter(|_| is_test)?;
    let package = Path::new(message["manifest_path"].as_str()?).parent()?.file_name()?;
    let target = message["target"]["name"].as_str()?;
    let kind = message["target"]["kind"][0].as_str().unwrap_or_default();
    Some((format!("{} {kind} {target}", package.to_string_lossy()), file.into()))
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
    fs::copy(from, to).map_err(|error| {
        format!("cannot copy `{}` to `{}`: {error}", from.display(), to.display())
    })?;
    if process::find("strip").is_some() {
        process::must_succeed(Command::new("strip").arg(to))?;
    }
    Ok(())
}

fn write(path: &Path, text: &str) -> Result<()> {
    fs::write(path, text).map_err(|error| format!("cannot write `{}`: {error}", path.display()))
}

fn make_executable(path: &Path) -> Result<()> {
    fs::set_permissions(path, fs::Permissions::from_mode(0o755))
        .map_err(|error| format!("cannot make `{}` executable: {error}", path.display()))
}

/// Bytes of all files below `folder`.
fn size(folder: &Path) -> u64 {
    let Ok(entries) = fs::read_dir(folder) else { return 0 };
    entries
        .flatten()
        .map(|entry| match entry.metadata() {
            Ok(metadata) if metadata.is_dir() => size(&entry.path()),
            Ok(metadata) => metadata.len(),
            Err(_) => 0,
        })
        .sum()
}

fn file_name(path: &Path) -> String {
    path.file_name().unwrap_or_default().to_string_lossy().into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_test_executables_are_taken() {
        let message = r#"{"reason":"compiler-artifact",
            "manifest_path":"/r/crates/forebay/Cargo.toml",
            "target":{"kind":["test"],"name":"conformance"},"profile":{"test":true},
            "executable":"/t/conformance-1a"}"#;
        let (name, file) = executable(&message.replace('\n', "")).unwrap();
        assert_eq!(
            (name.as_str(), file.to_str()),
            ("forebay test conformance", Some("/t/conformance-1a"))
        );
        assert!(executable(&message.replace("\"test\":true", "\"test\":false")).is_none());
        assert!(executable(&message.replace("\"/t/conformance-1a\"", "null")).is_none());
        assert!(executable("no json").is_none());
    }

    #[test]
    fn a_folder_of_somebody_else_is_left_alone() {
        let folder = tempfile::tempdir().unwrap();
        let inside = |name: &str| folder.path().join(name);
        clear(folder.path()).unwrap();
        fs::write(inside("tests/old"), "").unwrap();
        clear(folder.path()).unwrap();
        assert!(!inside("tests/old").exists(), "an earlier bundle is replaced");
        // Many a project has a manifest, programs and tests.
        fs::remove_file(inside(MARK)).unwrap();
        fs::write(inside("manifest.json"), "{}").unwrap();
        for other in [None, Some("a mark of somebody else")] {
            other.inspect(|text| fs::write(inside(MARK), text).unwrap());
            fs::write(inside("tests/precious"), "").unwrap();
            assert!(clear(folder.path()).unwrap_err().contains("neither empty"));
            assert!(inside("tests/precious").exists());
        }
        assert!(clear(&inside("manifest.json")).is_err(), "a file is no folder");
    }
}
