//! A path whose server does not answer: the command says so, and ends.

use std::io::Read as _;
use std::os::unix::process::{CommandExt as _, ExitStatusExt as _};
use std::path::Path;
use std::process::{Output, Stdio};
use std::sync::mpsc::channel;
use std::thread;
use std::time::{Duration, Instant};

use assert_cmd::Command;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use tempfile::TempDir;

use crate::lab::fuse::{Faults, Fuse};
use crate::lab::hanging::HangingDrive;
use crate::lab::or_skip;
use crate::lab::watchdog::Watchdog;
use crate::program::program;

fn silent() -> Option<Fuse> {
    let fuse = or_skip(Fuse::new(vec![7; 8192]))?;
    fuse.set(|faults| faults.silent = true);
    Some(fuse)
}

/// Runs the command while the server does not answer. If the server were a thread of the command,
/// it could not end.
fn run(folder: &Path, arguments: &[&str]) -> Output {
    let mut command = Command::new(program());
    command.current_dir(folder).env("NO_COLOR", "1").env("LC_ALL", "C.UTF-8");
    command.env_remove("CUFILE_ENV_PATH_JSON").args(arguments).output().unwrap()
}

/// The first step of this kind in a map.
fn step<'a>(top: &'a Value, kind: &str) -> Option<&'a Value> {
    let below = || top["children"].as_array()?.iter().find_map(|below| step(below, kind));
    if top["kind"] == kind { Some(top) } else { below() }
}

#[test]
fn doctor_says_that_a_path_does_not_answer_and_ends() {
    let _watchdog = Watchdog::start();
    let Some(fuse) = silent() else { return };
    let folder = tempfile::tempdir().unwrap();
    let path = fuse.path();
    let path = path.to_str().unwrap();
    let output = run(folder.path(), &["doctor", path, "--gpu", "none", "--format=json"]);
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    let first = &report["checks"][0];
    assert!(first["name"] == "path_answers" && first["state"] == "problem", "{first}");
    assert_eq!(report["not_moved"], "the path does not answer");
    assert_eq!(report["transfers"].as_array().map(Vec::len), Some(0));
    let checks = report["checks"].as_array().unwrap();
    assert!(checks.iter().any(|check| check["name"] == "kernel_version"));
    let printed = String::from_utf8(output.stderr).unwrap();
    assert!(
        printed.contains("caused by: path_answers: ") && printed.contains("umount -f"),
        "{printed}"
    );
    assert!(fuse.parked() > 0, "a process still waits for an answer, but not the command");
}

#[test]
fn the_tree_shows_the_mount_of_a_silent_path_and_all_others() {
    let _watchdog = Watchdog::start();
    let Some(fuse) = silent() else { return };
    let folder = tempfile::tempdir().unwrap();
    let path = fuse.path();
    let output =
        run(folder.path(), &["doctor", "--tree", path.to_str().unwrap(), ".", "--format=json"]);
    assert!(output.status.success(), "{output:?}");
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    let maps = &report["maps"];
    assert!(maps[0]["exists"] == false && maps[1]["exists"] == true && maps[2].is_null());
    let mount = step(&maps[0]["steps"], "mount").unwrap();
    assert_eq!(mount["name"], path.parent().unwrap().to_str().unwrap());
    let mut warnings = report["warnings"].as_array().unwrap().iter();
    let warning = warnings.find(|warning| warning["rule"] == "silent").unwrap();
    assert!(warning["text"].as_str().unwrap().contains("`forebay doctor`"), "{warning}");
    assert_eq!(maps[0]["steps"]["facts"]["exists"]["unknown"], "no answer within 3 s");
}

#[test]
fn a_record_of_a_path_that_does_not_answer_is_made_and_replayed() {
    let _watchdog = Watchdog::start();
    let Some(fuse) = silent() else { return };
    let folder = tempfile::tempdir().unwrap();
    let path = fuse.path();
    let path = path.to_str().unwrap();
    for (flag, record) in [&[][..], &["--tree"]].into_iter().zip(["doctor", "map"]) {
        let output = run(folder.path(), &[&["doctor", path, "--record", record], flag].concat());
        assert!(output.status.success(), "{output:?}");
    }
    assert!(fuse.parked() > 0, "a process still waits for an answer, but not the commands");
    drop(fuse);
    let output = run(folder.path(), &["doctor", "--fixture", "doctor", "--format=json"]);
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(report["checks"][0]["name"], "path_answers");
    let output = run(folder.path(), &["doctor", "--tree", "--fixture", "map", "--format=json"]);
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    let warnings = report["warnings"].as_array().unwrap();
    assert!(warnings.iter().any(|warning| warning["rule"] == "silent"));
}

/// Longer than a healthy step takes, also on a busy machine.
const BOUND: &str = "5s";

/// How a rig misbehaves.
type Fault = fn(&mut Faults);

const SILENT: Fault = |faults| faults.silent = true;
const NO_OPENS: Fault = |faults| faults.hang_opens = true;
const NO_READS: Fault = |faults| faults.hang_from = Some(0);

/// A file with such faults, and one without.
fn rig(fault: Fault) -> Option<(Fuse, TempDir)> {
    let fuse = or_skip(Fuse::new(vec![7; 32 << 20]))?;
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("other"), vec![7; 8192]).unwrap();
    fuse.set(fault);
    Some((fuse, folder))
}

/// `FILE` and `FOLDER` in a command line are those of the file system that does not answer.
fn words<'a>(line: &'a str, fuse: &Fuse) -> Vec<String> {
    let file = fuse.path();
    let folder = file.parent().unwrap().to_str().unwrap();
    let word =
        |word: &'a str| word.replace("FILE", file.to_str().unwrap()).replace("FOLDER", folder);
    line.split(' ').map(word).collect()
}

/// The command of this line; it gives up after `bound`, and a reader of its output
/// does not wait for its children.
fn begin(line: &str, fuse: &Fuse, folder: &Path, bound: &str) -> std::process::Child {
    command(line, fuse, folder, bound).spawn().unwrap()
}

fn command(line: &str, fuse: &Fuse, folder: &Path, bound: &str) -> std::process::Command {
    let mut command = std::process::Command::new(program());
    command.current_dir(folder).env("NO_COLOR", "1").env("FOREBAY_WATCHDOG", bound);
    command.stdout(Stdio::piped()).stderr(Stdio::piped()).args(words(line, fuse));
    // Signals for this run must not reach the tests.
    command.process_group(0);
    command
}

/// Output of a command once it has closed its streams. A thread in a call that is not answered
/// may keep its process.
struct Heard {
    child: std::process::Child,
    stdout: Vec<u8>,
    stderr: Vec<u8>,
}

impl Heard {
    /// Waits for the end, after the file system is gone.
    fn end(mut self) -> Output {
        let status = self.child.wait().unwrap();
        Output { status, stdout: self.stdout, stderr: self.stderr }
    }
}

/// What these say; none of those that do not close their streams.
fn outputs(children: Vec<std::process::Child>) -> Vec<Option<Heard>> {
    let listen = |mut child: std::process::Child| {
        let (report, reported) = channel();
        thread::spawn(move || {
            let (mut stdout, mut stderr) = (Vec::new(), Vec::new());
            let (out, err) = (child.stdout.take(), child.stderr.take());
            out.unwrap().read_to_end(&mut stdout).unwrap();
            err.unwrap().read_to_end(&mut stderr).unwrap();
            report.send(Heard { child, stdout, stderr })
        });
        reported
    };
    let reported: Vec<_> = children.into_iter().map(listen).collect();
    let start = Instant::now();
    // Only a bound on a hang: nothing is measured.
    let bound = Duration::from_secs(60);
    reported
        .iter()
        .map(|reported| reported.recv_timeout(bound.saturating_sub(start.elapsed())).ok())
        .collect()
}

/// All of these lines fail, each with its own text.
fn all_give_up(fault: Fault, lines: &[(&str, &str)]) {
    let _watchdog = Watchdog::start();
    let Some((fuse, folder)) = rig(fault) else { return };
    let start = |(line, _): &(&str, &str)| begin(line, &fuse, folder.path(), BOUND);
    let all = outputs(lines.iter().map(start).collect());
    assert!(fuse.parked() > 0, "a thread still waits for an answer");
    drop(fuse);
    for ((line, expected), reported) in lines.iter().zip(all) {
        let end = reported.unwrap_or_else(|| panic!("`{line}` does not end")).end();
        let printed = String::from_utf8(end.stderr).unwrap();
        assert_eq!(end.status.code(), Some(1), "{line}: {printed}");
        let is_expected = |word| printed.starts_with(&format!("error: cannot {word} `/"));
        assert!(expected.split(" or ").any(is_expected), "{line}: {printed}");
        assert!(printed.contains("  caused by: no response within 5s: "), "{line}: {printed}");
        assert!(
            printed.contains("\nhint: ") && printed.contains("`umount -f MOUNT`"),
            "{line}: {printed}"
        );
        assert!(end.stdout.is_empty(), "{line}");
    }
}

#[test]
fn a_path_that_does_not_answer_fails_whatever_moves_bytes() {
    all_give_up(
        SILENT,
        &[
            ("read FILE --gpu none", "open"),
            ("read FILE --gpu sim --format=json", "open"),
            ("read other --gpu none --output FOLDER/new", "create"),
            ("bench FILE --gpu none --format=json", "inspect"),
            ("bench FOLDER --gpu none", "inspect"),
            ("bench other FILE --gpu none", "inspect"),
            ("gpu-file-benchmark -f FILE --gpu none", "inspect"),
            ("gpu-file-benchmark -f FOLDER --gpu none", "inspect"),
        ],
    );
}

/// As if it had been alive when it was looked at.
#[test]
fn a_path_that_is_not_opened_fails_whatever_moves_bytes() {
    all_give_up(
        NO_OPENS,
        &[
            ("read FILE --gpu none", "open"),
            ("bench FILE --gpu none", "open"),
            ("bench other FILE --gpu none", "open"),
            ("gpu-file-benchmark -f FILE --overwrite --gpu none", "open"),
        ],
    );
}

#[test]
fn a_path_without_data_fails_with_every_method() {
    all_give_up(
        NO_READS,
        &[
            ("read FILE --gpu none", "read"),
            ("read FILE --gpu sim", "read"),
            // While a read through the page cache hangs, other processes cannot open the file.
            ("bench FILE --gpu none", "read or open"),
            ("bench FILE --gpu sim", "read or open"),
            ("bench other FILE --gpu none", "read or open"),
        ],
    );
}

#[test]
fn a_path_that_stops_in_the_middle_of_a_measurement_ends_it() {
    let _watchdog = Watchdog::start();
    let Some((fuse, folder)) = rig(|_| ()) else { return };
    let line = "bench FILE --gpu none --cache cold --size 1M --repeats 1000 --time 100ms";
    let mut command = command(line, &fuse, folder.path(), BOUND);
    let child = command.spawn().unwrap();
    let start = Instant::now();
    while fuse.reads() < 500 {
        // Only a bound on a hang: nothing is measured.
        assert!(start.elapsed() < Duration::from_secs(100), "it reads");
        thread::sleep(Duration::from_millis(1));
    }
    fuse.set(NO_READS);
    let reported = outputs(vec![child]).pop().unwrap();
    drop(fuse);
    let end = reported.expect("it ends").end();
    let printed = String::from_utf8(end.stderr).unwrap();
    assert_eq!(end.status.code(), Some(1), "{printed}");
    // An open waits for pages that the kernel is still reading ahead.
    let operations = ["read", "open"].map(|name| format!("error: cannot {name} `/"));
    assert!(operations.iter().any(|operation| printed.contains(operation)), "{printed}");
    assert!(printed.contains("  caused by: no response within 5s: "), "{printed}");
}

/// What the command of this line says, which may take `bound` without a sign of life.
fn reported_by(line: &str, fuse: &Fuse, folder: &Path, bound: &str) -> Heard {
    let mut command = command(line, fuse, folder, bound);
    let child = command.spawn().unwrap();
    outputs(vec![child]).pop().unwrap().unwrap_or_else(|| panic!("`{line}` does not end"))
}

#[test]
fn a_call_may_take_longer_than_the_bound_as_long_as_its_requests_end() {
    let _watchdog = Watchdog::start();
    // Requests of 128 KiB: 64 of them are a call of 1.9 s.
    let faults = Faults { uncached: true, pause: Duration::from_millis(30), ..Faults::default() };
    let Some(fuse) = or_skip(Fuse::with(vec![7; 8 << 20], faults)) else { return };
    let folder = tempfile::tempdir().unwrap();
    let line = "bench FILE --method cpu --gpu none --block-size 128K --batch 64 --threads 1 \
                --depth 1 --pattern sequential --direction read --bytes 8M --repeats 1 \
                --warm-up 0s -o results";
    let end = reported_by(line, &fuse, folder.path(), "1s").end();
    assert!(end.status.success(), "{end:?}");
}

#[test]
fn gdsio_names_the_file_without_progress() {
    let _watchdog = Watchdog::start();
    for kind in ["0", "1"] {
        let Some((fuse, folder)) = rig(|faults| faults.hang_from = Some(4 << 20)) else { return };
        std::fs::write(folder.path().join("other"), vec![7; 8 << 20]).unwrap();
        // Both jobs run at once, and the first of them goes on.
        let line = format!("gdsio -f other -f FILE -x {kind} -s 8M -i 128K -I 0 -T 50 --gpu sim");
        let reported = reported_by(&line, &fuse, folder.path(), "2s");
        let path = fuse.path().display().to_string();
        drop(fuse);
        let end = reported.end();
        let printed = String::from_utf8(end.stderr).unwrap();
        assert!(
            !end.status.success() && printed.contains(&format!("error: cannot read `{path}`")),
            "{printed}"
        );
        assert!(printed.contains("  caused by: no response within 2s: "), "{printed}");
    }
}

#[test]
fn a_path_whose_open_hangs_is_silent_to_doctor() {
    let _watchdog = Watchdog::start();
    let Some((fuse, folder)) = rig(NO_OPENS) else { return };
    let lines = ["doctor --tree FILE --extents", "doctor FILE --gpu none"];
    let all = outputs(lines.map(|line| begin(line, &fuse, folder.path(), "30s")).into());
    assert!(fuse.parked() > 0, "a process still waits for an answer, but not the commands");
    drop(fuse);
    let ends: Vec<_> = all.into_iter().map(|reported| reported.unwrap().end()).collect();
    let [map, doctor] = &ends[..] else { unreachable!("one for each line") };
    let printed = |end: &Output| String::from_utf8(end.stderr.clone()).unwrap();
    assert!(map.status.success() && printed(map).contains("the path does not answer"), "{map:?}");
    assert_eq!(doctor.status.code(), Some(1), "{doctor:?}");
    assert!(printed(doctor).contains("caused by: path_answers: "), "{doctor:?}");
}

#[test]
fn ctrl_c_ends_a_command_that_waits_for_an_answer() {
    let _watchdog = Watchdog::start();
    let (read, bench) = ("read FILE --gpu none", "bench FILE --gpu none");
    let cases = [(SILENT, bench), (NO_OPENS, read), (NO_READS, read), (NO_READS, bench)];
    let (mut rigs, mut children) = (Vec::new(), Vec::new());
    for (fault, line) in cases {
        let Some((fuse, folder)) = rig(fault) else { return };
        children.push(begin(line, &fuse, folder.path(), "1h"));
        rigs.push((fuse, folder));
    }
    rigs.iter().for_each(|(fuse, _)| fuse.wait_for_parked(1));
    for child in &children {
        let pid = Pid::from_raw(i32::try_from(child.id()).unwrap()).unwrap();
        kill_process(pid, Signal::INT).unwrap();
    }
    let all = outputs(children);
    drop(rigs);
    for (index, reported) in all.into_iter().enumerate() {
        let end = reported.unwrap_or_else(|| panic!("{index} does not end")).end();
        assert_eq!(end.status.signal(), Some(Signal::INT.as_raw()), "{index}: {end:?}");
    }
}

/// The upper file system answers from its cache; the lower one is not waited for long.
#[test]
fn a_loop_device_whose_image_is_silent_holds_up_no_look() {
    let _watchdog = Watchdog::start();
    let Some(drive) = or_skip(HangingDrive::new(32 << 20)) else { return };
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(drive.path().join("data"), vec![7; 8192]).unwrap();
    drive.fuse().set(|faults| faults.silent = true);
    let at = drive.path().to_str().unwrap();
    let lines =
        ["doctor --tree FOLDER/data --extents --format=json", "doctor FOLDER/data --gpu none"];
    let begin = |line: &str| {
        let mut command = std::process::Command::new(program());
        command.current_dir(folder.path()).env("NO_COLOR", "1").env("FOREBAY_WATCHDOG", "30s");
        command.stdout(Stdio::piped()).stderr(Stdio::piped()).process_group(0);
        command.args(line.replace("FOLDER", at).split(' ')).spawn().unwrap()
    };
    let mut all = outputs(lines.map(begin).into());
    drive.fuse().set(|faults| faults.silent = false);
    let (doctor, map) = (all.pop().unwrap(), all.pop().unwrap());
    let map = map.expect("`doctor --tree` ends").end();
    assert!(map.status.success(), "{map:?}");
    let report: Value = serde_json::from_slice(&map.stdout).unwrap();
    let image = step(&report["maps"][0]["steps"], "backing_file").unwrap();
    assert_eq!(image["facts"]["answers"]["unknown"], "no answer within 3 s");
    let mut below = image["children"].as_array().unwrap().iter();
    assert!(below.any(|step| step["kind"] == "mount"), "{image}");
    assert!(doctor.is_some(), "`doctor` ends");
}
