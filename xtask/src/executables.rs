//! The test executables that cargo builds, and how they run.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Instant;

use crate::process::{self, Result, say};
use crate::report::{Report, TestOutput};

/// A test executable.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Executable {
    /// `PACKAGE KIND TARGET`, for people.
    pub(crate) name: String,
    pub(crate) file: PathBuf,
    /// The package's folder, in which cargo would run it.
    pub(crate) folder: PathBuf,
}

/// The results of a build of tests.
#[derive(Debug, Default)]
pub(crate) struct Built {
    /// Sorted: cargo announces them as they are built.
    pub(crate) tests: Vec<Executable>,
    /// The engine's library.
    pub(crate) library: Option<PathBuf>,
}

impl Built {
    /// Builds the tests that the words of `cargo` name, and runs none.
    pub(crate) fn new(cargo: &mut Command) -> Result<Self> {
        cargo.args(["--no-run", "--message-format=json-render-diagnostics"]);
        let mut built = Self::default();
        for line in process::output(cargo)?.lines() {
            let Ok(message) = serde_json::from_str(line) else { continue };
            built.tests.extend(executable(&message));
            built.library = library(&message).or(built.library);
        }
        built.tests.sort();
        Ok(built)
    }
}

/// The test executable in a message of cargo.
fn executable(message: &serde_json::Value) -> Option<Executable> {
    let is_test = message["profile"]["test"].as_bool() == Some(true);
    let file = message["executable"].as_str().filter(|_| is_test)?;
    let folder = Path::new(message["manifest_path"].as_str()?).parent()?;
    let package = folder.file_name()?.to_string_lossy();
    let target = message["target"]["name"].as_str()?;
    let kind = message["target"]["kind"][0].as_str().unwrap_or_default();
    let name = format!("{package} {kind} {target}");
    Some(Executable { name, file: file.into(), folder: folder.into() })
}

/// The engine's library in a message of cargo.
fn library(message: &serde_json::Value) -> Option<PathBuf> {
    if message["target"]["name"] != "forebay" || message["profile"]["test"] != false {
        return None;
    }
    let mut files = message["filenames"].as_array()?.iter().filter_map(serde_json::Value::as_str);
    files.find(|file| file.ends_with(".rlib")).map(PathBuf::from)
}

/// Runs an executable by `command`, prints its output after its end, since concurrent executables
/// print too, and adds its results to `report`.
pub(crate) fn run(report: &mut Report, name: &str, command: &mut Command, options: &[&str]) {
    let (start, mut output) = (Instant::now(), TestOutput::default());
    let mut printed = String::new();
    let succeeded = output.run(command.arg("--show-output").args(options), &mut printed);
    // An executable that cannot be started must not hide the results of the rest.
    if let Err(message) = &succeeded {
        printed.push_str(&format!("error: {message}\n"));
    }
    say!("\n== {name} ({:.1} s)\n{}", start.elapsed().as_secs_f64(), printed.trim_end());
    report.add(name, output, succeeded == Ok(true));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_test_executables_are_taken() {
        let message = serde_json::json!({
            "manifest_path": "/r/crates/forebay/Cargo.toml",
            "target": {"kind": ["test"], "name": "conformance"},
            "profile": {"test": true},
            "executable": "/t/conformance-1a",
        });
        let found = executable(&message).unwrap();
        assert_eq!(found.name, "forebay test conformance");
        assert_eq!(
            (found.file, found.folder),
            ("/t/conformance-1a".into(), "/r/crates/forebay".into())
        );
        for (key, value) in
            [("profile", serde_json::json!({"test": false})), ("executable", ().into())]
        {
            let mut other = message.clone();
            other[key] = value;
            assert!(executable(&other).is_none(), "{key}");
        }
    }
}
