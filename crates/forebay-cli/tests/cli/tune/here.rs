//! On the drive of this folder: what is printed, stored and left behind.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::Path;
use std::process::{Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use forebay_cli::report::json::Direction;
use forebay_cli::tune::json::{SCHEMA, TuneReport};
use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;

use crate::program::program;
use crate::tune::{good, report};

const LEN: usize = 32 << 20;

/// A folder with a file, both of which can be read past the page cache; `None` where this machine
/// has no such place here.
fn folder() -> Option<TempDir> {
    let folder = tempfile::tempdir_in(".").unwrap();
    let path = folder.path().join("file");
    fs::write(&path, vec![7; LEN]).unwrap();
    fs::File::open(&path).unwrap().sync_all().unwrap();
    let engine = forebay::Engine::new(forebay::Options::default()).unwrap();
    let file = engine.open(&path).unwrap();
    if let Some(reason) = file.no_direct_io() {
        println!("skipped: a search: no O_DIRECT in this folder: {reason}");
        return None;
    }
    if matches!(file.file_system(), "tmpfs" | "ramfs") {
        println!("skipped: a search: this folder is in memory");
        return None;
    }
    Some(folder)
}

fn names(folder: &Path) -> Vec<String> {
    let entries = fs::read_dir(folder).unwrap();
    let mut names: Vec<String> =
        entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

fn check(report: &TuneReport) {
    assert_eq!(report.schema, SCHEMA);
    for searched in &report.searches {
        let point = searched.points.at(searched.found.cell).expect("what is found was measured");
        // How many there are is for the search's own tests: on a busy drive what is found changes
        // with every sample.
        assert!(!point.samples.is_empty());
        assert!(searched.found.bytes_per_second > 0.0 && searched.found.latency_s > 0.0);
        assert!(searched.found.cell.request_size <= 1 << 20);
        assert!(searched.knees.iter().all(|knee| searched.points.at(knee.cell).is_some()));
        for point in &searched.points.0 {
            let spread = point.bytes_per_second;
            assert!(spread.min <= spread.median && spread.median <= spread.max);
            assert!(point.cell.depth <= 128 && point.cell.in_flight() <= 128 << 20);
        }
    }
}

#[test]
fn a_file_leads_to_the_drive_of_its_folder() {
    let Some(folder) = folder() else { return };
    let first = report(folder.path(), &["--duration", "1s"]);
    check(&first);
    let [searched] = first.searches.as_slice() else { panic!("reading only") };
    assert!(first.scratch && searched.direction == Direction::Read);
    assert_eq!(names(folder.path()), ["file"], "scratch was left");
    let second = report(folder.path(), &["file", "--duration", "1"]);
    let [next] = second.searches.as_slice() else { panic!("reading only") };
    assert_eq!(next.queue, searched.queue);
}

#[test]
fn people_get_a_plot() {
    let Some(folder) = folder() else { return };
    let (text, talk) = good(folder.path(), &["file", "--duration", "1"]);
    let measured = "\nmeasured with 32 MiB, O_DIRECT\n";
    assert!(text.starts_with("file  ") && text.contains(measured), "{text}");
    assert_eq!(text.matches("◀ knee").count(), 1, "{text}");
    assert!(text.contains('█'), "{text}");
    for setting in ["FOREBAY_DEPTH=", "fio --name=read", "KVIKIO_NTHREADS=", "an estimate"] {
        assert!(text.contains(setting), "{setting}: {text}");
    }
    assert!(text.lines().all(|line| line.chars().count() <= 80), "{text}");
    assert!(!text.contains('\u{1b}') && talk.lines().all(|line| line.starts_with("warning: ")));
    let mut plain = crate::tune::command(folder.path(), &["file", "--duration", "1"]);
    let output = plain.env("LC_ALL", "C").output().unwrap();
    let (text, _) = crate::tune::texts(&output, Some(0));
    assert!(text.is_ascii() && text.contains("<- knee"), "{text}");
}

#[test]
fn a_file_stays_as_it_is() {
    let Some(folder) = folder() else { return };
    let path = folder.path().join("file");
    let facts = || {
        let facts = fs::metadata(&path).unwrap();
        let times = (facts.mtime(), facts.mtime_nsec(), facts.ctime(), facts.ctime_nsec());
        (times, facts.ino(), facts.len(), fs::read(&path).unwrap())
    };
    let before = facts();
    let arguments = ["file", "--read", "--write", "--duration", "1"];
    let report = report(folder.path(), &arguments);
    check(&report);
    assert!(facts() == before, "the file was changed");
    assert_eq!(names(folder.path()), ["file"], "something was left");
    let directions: Vec<_> = report.searches.iter().map(|searched| searched.direction).collect();
    assert_eq!(directions, [Direction::Read, Direction::Write]);
    assert!(!report.scratch && report.bytes == LEN as u64);
    // The settings of both, each with its place; what counts for both directions is told once.
    let tools: Vec<_> = report.settings.iter().map(|setting| setting.tool.as_str()).collect();
    assert_eq!(tools, ["forebay", "fio", "kvikio", "fio"]);
    for setting in report.settings.iter().filter(|setting| setting.tool == "fio") {
        takes(folder.path(), &setting.text);
    }
    assert_eq!(names(folder.path()), ["file"], "something was left");
}

/// Whether `fio` takes the command line.
fn takes(folder: &Path, text: &str) {
    let mut shell = Command::new("sh");
    shell.current_dir(folder).args(["-c", &format!("{text} --parse-only")]);
    if Command::new("fio").arg("--version").output().is_err() {
        return println!("skipped: fio's own view of its command line: it is not installed");
    }
    let output = shell.output().unwrap();
    assert!(output.status.success(), "{text}: {output:?}");
}

#[test]
fn a_depth_that_is_set_is_not_the_only_one() {
    let Some(folder) = folder() else { return };
    let mut command = crate::tune::command(folder.path(), &["file", "--duration", "1", "--json"]);
    let output = command.env("FOREBAY_DEPTH", "3").output().unwrap();
    let (text, talk) = crate::tune::texts(&output, Some(0));
    let report: TuneReport = serde_json::from_str(&text).unwrap();
    assert!(talk.contains("warning: `FOREBAY_DEPTH` is set"), "{talk}");
    let searched = &report.searches[0];
    assert!(searched.points.depths().len() > 1 || !searched.complete);
    assert_eq!(names(folder.path()), ["file"]);
}

#[test]
fn signals_leave_nothing() {
    let Some(folder) = folder() else { return };
    for signal in [Signal::INT, Signal::TERM, Signal::HUP] {
        let mut command = Command::new(program());
        command.current_dir(folder.path()).args(["tune", "--duration", "600"]);
        command.stdout(Stdio::null()).stderr(Stdio::null()).process_group(0);
        let mut child = command.spawn().unwrap();
        let scratch = || names(folder.path()).iter().any(|name| name.starts_with(".forebay-"));
        let start = Instant::now();
        while !scratch() && start.elapsed() < Duration::from_secs(120) {
            sleep(Duration::from_millis(5));
        }
        let pid = Pid::from_raw(i32::try_from(child.id()).unwrap()).unwrap();
        kill_process(pid, signal).unwrap();
        assert_eq!(child.wait().unwrap().signal(), Some(signal.as_raw()));
        assert_eq!(names(folder.path()), ["file"], "{signal:?} left something");
    }
}
