//! Runs a bundle: the tests or bars that [`crate::bundle`] packed, on a machine without cargo, with
//! the report, the skips and the exit status of `cargo xtask test` and `bench`.

use std::fs;
use std::path::Path;
use std::process::Command;

use crate::bundle::Manifest;
use crate::executables;
use crate::folders::{failed, make};
use crate::process::{self, Result, say};
use crate::report::Report;

/// Runs the bundle in `folder`: its tests, or with `bench` first in `arguments` its bars.
pub(crate) fn run(folder: &Path, arguments: &[String]) -> Result<bool> {
    let folder = folder.canonicalize().map_err(failed(folder))?;
    let file = folder.join("manifest.json");
    let text = fs::read_to_string(&file).map_err(failed(&file))?;
    let manifest: Manifest = serde_json::from_str(&text)
        .map_err(|error| format!("cannot read the bundle's manifest: {error}"))?;
    say!("bundle of {} ({})", manifest.commit, manifest.rustc);
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match words.as_slice() {
        [] => tests(&folder, &manifest, &[]),
        ["--all"] => tests(&folder, &manifest, &["--include-ignored"]),
        ["bench", rest @ ..] => {
            let mut bars = Command::new(folder.join("bin/xtask"));
            bars.arg("bench").arg("--program").arg(folder.join("bin/forebay")).args(rest);
            process::succeeds(surround(&mut bars, &folder, &manifest))
        }
        _ => Err("a bundle takes no argument, `--all`, or `bench [ARGUMENT]...`".into()),
    }
}

fn tests(folder: &Path, manifest: &Manifest, extra: &[&str]) -> Result<bool> {
    let mut report = Report::default();
    for what in &manifest.skipped {
        report.skip(what.clone());
    }
    // Cargo runs tests in their package's folder; none of those folders exists here.
    let work = folder.join("work");
    make(&work)?;
    for (name, file) in &manifest.tests {
        let mut command = Command::new(folder.join("tests").join(file));
        surround(command.current_dir(&work), folder, manifest);
        executables::run(&mut report, name, &mut command, extra);
    }
    Ok(report.finish())
}

/// Sets the environment that cargo and the repository would give a command.
fn surround<'a>(command: &'a mut Command, folder: &Path, manifest: &Manifest) -> &'a mut Command {
    let path = format!("{}:{}", folder.join("bin").display(), process::full_path());
    command
        .env("PATH", path)
        .env("FOREBAY_BIN", folder.join("bin/forebay"))
        .env("FOREBAY_COMMIT", &manifest.commit)
        // Snapshots are only compared; querying cargo for the workspace would fail here.
        .env("INSTA_WORKSPACE_ROOT", folder)
        .env("INSTA_UPDATE", "no")
}
