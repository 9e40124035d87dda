//! Runs a bundle: the tests or bars that [`crate::bundle`] packed, on a machine without cargo, with
//! the report, the skips and the exit status of `cargo xtask test` and `bench`.

use std::ffi::OsString;
use std::fs;
use std::path::Path;
use std::process::Command;

use crate::bundle::Manifest;
use crate::process::{self, Result, say};
use crate::report::{Report, TestOutput};
use crate::test::BARS;

/// Runs the bundle in `folder`: its tests, or with `bench` first in `arguments` its bars.
pub(crate) fn run(folder: &Path, arguments: &[&str]) -> Result<bool> {
    let folder = folder
        .canonicalize()
        .map_err(|error| format!("cannot find the bundle `{}`: {error}", folder.display()))?;
    let text = fs::read_to_string(folder.join("manifest.json"))
        .map_err(|error| format!("cannot read the bundle's manifest: {error}"))?;
    let manifest: Manifest = serde_json::from_str(&text)
        .map_err(|error| format!("cannot read the bundle's manifest: {error}"))?;
    say!("bundle of {} ({})", manifest.commit, manifest.rustc);
    match arguments {
        [] => tests(&folder, &manifest, &[]),
        ["--all"] => tests(&folder, &manifest, &["--include-ignored"]),
        ["bench", rest @ ..] => {
            let mut bars = Command::new(folder.join("bin/forebay-bars"));
            bars.args(rest);
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
    fs::create_dir_all(&work)
        .map_err(|error| format!("cannot create `{}`: {error}", work.display()))?;
    for test in &manifest.tests {
        say!("\n== {}", test.name);
        let mut output = TestOutput::default();
        let mut command = Command::new(folder.join("tests").join(&test.file));
        command.arg("--show-output").args(extra).current_dir(&work);
        let succeeded = output.run(surround(&mut command, folder, manifest));
        // One executable that cannot be started must not hide the others' results.
        if let Err(message) = &succeeded {
            say!(err, "error: {message}");
        }
        report.add(&test.name, &output, succeeded == Ok(true));
    }
    say!("\n== bars in miniature");
    let mut bars = Command::new(folder.join("bin/forebay-bars"));
    bars.args(BARS).current_dir(&work);
    report.step("bars in miniature", process::succeeds(surround(&mut bars, folder, manifest))?);
    Ok(report.finish())
}

/// Sets the environment that cargo and the repository would give a command.
fn surround<'a>(command: &'a mut Command, folder: &Path, manifest: &Manifest) -> &'a mut Command {
    let mut path = OsString::from(folder.join("bin"));
    path.push(":");
    path.push(process::full_path());
    command
        .env("PATH", path)
        .env("FOREBAY_BIN", folder.join("bin/forebay"))
        .env("FOREBAY_COMMIT", &manifest.commit)
        // Snapshots are only compared; querying cargo for the workspace would fail here.
        .env("INSTA_WORKSPACE_ROOT", folder)
        .env("INSTA_UPDATE", "no")
}
