//! A path that nobody answers for: the command says so, and ends.

use std::path::Path;
use std::process::Output;

use assert_cmd::Command;
use forebay_cli::doctor::json::DoctorReport;
use forebay_cli::map::json::{MapReport, Value};

use crate::lab::fuse::Fuse;
use crate::lab::or_skip;
use crate::lab::watchdog::Watchdog;
use crate::program::program;

fn silent() -> Option<Fuse> {
    let fuse = or_skip(Fuse::new(vec![7; 8192]))?;
    fuse.set(|faults| faults.silent = true);
    Some(fuse)
}

/// Runs the command while nobody answers: were the file system its own, it could not end.
fn run(folder: &Path, arguments: &[&str]) -> Output {
    let mut command = Command::new(program());
    command.current_dir(folder).env("NO_COLOR", "1").env("LC_ALL", "C.UTF-8");
    command.env_remove("CUFILE_ENV_PATH_JSON").args(arguments).output().unwrap()
}

#[test]
fn doctor_says_that_a_path_does_not_answer_and_ends() {
    let _watchdog = Watchdog::start();
    let Some(fuse) = silent() else { return };
    let folder = tempfile::tempdir().unwrap();
    let path = fuse.path();
    let path = path.to_str().unwrap();
    let output = run(folder.path(), &["doctor", path, "--gpu", "none", "--json"]);
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    let report: DoctorReport = serde_json::from_slice(&output.stdout).unwrap();
    let first = &report.checks[0];
    assert_eq!((first.name.as_str(), first.state.as_str()), ("path_answers", "problem"));
    assert_eq!(report.not_moved.as_deref(), Some("the path does not answer"));
    assert!(report.transfers.is_empty());
    assert!(report.checks.iter().any(|check| check.name == "kernel_version"));
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(said.contains("caused by: path_answers: ") && said.contains("umount -f"), "{said}");
    assert!(fuse.parked() > 0, "somebody still waits for an answer, but not the command");
}

#[test]
fn map_shows_the_mount_of_a_path_that_does_not_answer_and_goes_on() {
    let _watchdog = Watchdog::start();
    let Some(fuse) = silent() else { return };
    let folder = tempfile::tempdir().unwrap();
    let path = fuse.path();
    let output = run(folder.path(), &["map", path.to_str().unwrap(), ".", "--json"]);
    assert!(output.status.success(), "{output:?}");
    let report: MapReport = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(report.maps.len(), 2);
    assert!(!report.maps[0].exists && report.maps[1].exists);
    let mount = report.maps[0].walk().find(|(_, step)| step.kind == "mount").unwrap().1;
    assert_eq!(mount.name, path.parent().unwrap().to_str().unwrap());
    let warning = report.warnings.iter().find(|warning| warning.rule == "silent").unwrap();
    assert!(warning.text.contains("`forebay doctor`"), "{warning:?}");
    let exists = &report.maps[0].steps.facts["exists"];
    assert_eq!(*exists, Value::Unknown { unknown: "no answer within 3 s".into() });
}
