//! A path that nobody answers for: the command says so, and ends.

use std::os::unix::process::{CommandExt as _, ExitStatusExt as _};
use std::path::Path;
use std::process::{Output, Stdio};
use std::sync::mpsc::channel;
use std::thread;
use std::time::{Duration, Instant};

use assert_cmd::Command;
use forebay_cli::doctor::json::DoctorReport;
use forebay_cli::map::json::{MapReport, Value};
use rustix::process::{Pid, Signal, kill_process};
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

#[test]
fn a_record_of_a_path_that_does_not_answer_is_made_and_replayed() {
    let _watchdog = Watchdog::start();
    let Some(fuse) = silent() else { return };
    let folder = tempfile::tempdir().unwrap();
    let path = fuse.path();
    let path = path.to_str().unwrap();
    for verb in ["doctor", "map"] {
        let output = run(folder.path(), &[verb, path, "--record", verb]);
        assert!(output.status.success(), "{output:?}");
    }
    assert!(fuse.parked() > 0, "somebody still waits for an answer, but not the commands");
    drop(fuse);
    let output = run(folder.path(), &["doctor", "--fixture", "doctor", "--json"]);
    let report: DoctorReport = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(report.checks[0].name, "path_answers");
    let output = run(folder.path(), &["map", "--fixture", "map", "--json"]);
    let report: MapReport = serde_json::from_slice(&output.stdout).unwrap();
    assert!(report.warnings.iter().any(|warning| warning.rule == "silent"));
}

/// Longer than a healthy step takes, also on a busy machine.
const BOUND: &str = "5s";

/// How a rig misbehaves.
type Fault = fn(&mut Faults);

const SILENT: Fault = |faults| faults.silent = true;
const NO_OPENS: Fault = |faults| faults.hang_opens = true;
const NO_READS: Fault = |faults| faults.hang_from = Some(0);

/// A file that misbehaves so, with one beside it that does not.
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

/// The command of this line; it gives up after `bound`, and nobody who reads what it says waits
/// for those that it leaves behind.
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

/// What these say and end with; none of those that do not end.
fn ends(children: Vec<std::process::Child>) -> Vec<Option<Output>> {
    let end = |child: std::process::Child| {
        let (tell, told) = channel();
        thread::spawn(move || tell.send(child.wait_with_output().unwrap()));
        told
    };
    let ends: Vec<_> = children.into_iter().map(end).collect();
    let start = Instant::now();
    // Only a bound on a hang: nothing is measured.
    let bound = Duration::from_secs(60);
    ends.iter().map(|end| end.recv_timeout(bound.saturating_sub(start.elapsed())).ok()).collect()
}

/// All of these lines fail, each with its own text.
fn all_give_up(fault: Fault, lines: &[(&str, &str)]) {
    let _watchdog = Watchdog::start();
    let Some((fuse, folder)) = rig(fault) else { return };
    let start = |(line, _): &(&str, &str)| begin(line, &fuse, folder.path(), BOUND);
    let ends = ends(lines.iter().map(start).collect());
    assert!(fuse.parked() > 0, "somebody still waits for an answer, but not the commands");
    drop(fuse);
    for ((line, expected), end) in lines.iter().zip(ends) {
        let end = end.unwrap_or_else(|| panic!("`{line}` does not end"));
        let said = String::from_utf8(end.stderr).unwrap();
        assert_eq!(end.status.code(), Some(1), "{line}: {said}");
        assert!(said.starts_with(&format!("error: cannot {expected} `/")), "{line}: {said}");
        assert!(said.contains("  caused by: no response within 5s: "), "{line}: {said}");
        assert!(said.contains("\nhint: ") && said.contains("`umount -f MOUNT`"), "{line}: {said}");
        assert!(end.stdout.is_empty(), "{line}");
    }
}

#[test]
fn a_path_that_does_not_answer_fails_whatever_moves_bytes() {
    all_give_up(
        SILENT,
        &[
            ("read FILE --gpu none", "open"),
            ("read FILE --gpu sim --json", "open"),
            ("read other --gpu none --output FOLDER/new", "create"),
            ("bench FILE --gpu none --json", "inspect"),
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
            ("gpu-file-benchmark -f FILE --overwrite --gpu none", "inspect"),
        ],
    );
}

#[test]
fn a_path_of_which_nothing_comes_fails_whatever_moves_bytes() {
    all_give_up(
        NO_READS,
        &[
            ("read FILE --gpu none", "read"),
            ("read FILE --gpu sim", "read"),
            ("bench FILE --gpu none", "read"),
            ("bench FILE --gpu sim", "read"),
            ("bench other FILE --gpu none", "read"),
            ("bench FILE --find-depth", "read"),
        ],
    );
}

#[test]
fn a_path_that_stops_in_the_middle_of_a_measurement_ends_it() {
    let _watchdog = Watchdog::start();
    let Some((fuse, folder)) = rig(|_| ()) else { return };
    let line = "bench FILE --gpu none --read --cold --size 1M --repeats 1000";
    let mut command = command(line, &fuse, folder.path(), BOUND);
    // Without fio, a process of its own which no bound fits.
    let child = command.env("PATH", folder.path()).spawn().unwrap();
    let start = Instant::now();
    while fuse.reads() < 500 {
        // Only a bound on a hang: nothing is measured.
        assert!(start.elapsed() < Duration::from_secs(100), "it reads");
        thread::sleep(Duration::from_millis(1));
    }
    fuse.set(NO_READS);
    let end = ends(vec![child]).pop().unwrap();
    drop(fuse);
    let end = end.expect("it ends");
    let said = String::from_utf8(end.stderr).unwrap();
    assert_eq!(end.status.code(), Some(1), "{said}");
    assert!(said.contains("error: cannot read `/"), "{said}");
    assert!(said.contains("  caused by: no response within 5s: "), "{said}");
}

/// The end of the command of this line, which may take `bound` without a sign of life.
fn end(line: &str, fuse: &Fuse, folder: &Path, bound: &str) -> (bool, String) {
    let mut command = command(line, fuse, folder, bound);
    let child = command.env("XDG_STATE_HOME", folder).spawn().unwrap();
    let end = ends(vec![child]).pop().unwrap().unwrap_or_else(|| panic!("`{line}` does not end"));
    (end.status.success(), String::from_utf8(end.stderr).unwrap())
}

#[test]
fn a_call_may_take_longer_than_the_bound_as_long_as_its_requests_end() {
    let _watchdog = Watchdog::start();
    // Requests of 128 KiB: 64 of them are a call of 1.9 s.
    let faults = Faults { uncached: true, pause: Duration::from_millis(30), ..Faults::default() };
    let Some(fuse) = or_skip(Fuse::with(vec![7; 8 << 20], faults)) else { return };
    let folder = tempfile::tempdir().unwrap();
    let line = "sweep FILE --way cpu --gpu none --request-size 128K --batch 64 --threads 1 \
                --depth 1 --pattern sequential --direction read --bytes 8M --repeats 1 \
                --warm-up 0s -o results";
    let (is_right, said) = end(line, &fuse, folder.path(), "1s");
    assert!(is_right, "{said}");
}

#[test]
fn gdsio_ends_with_the_name_of_the_file_that_stands_still() {
    let _watchdog = Watchdog::start();
    for kind in ["0", "1"] {
        let Some((fuse, folder)) = rig(|faults| faults.hang_from = Some(4 << 20)) else { return };
        std::fs::write(folder.path().join("other"), vec![7; 8 << 20]).unwrap();
        // Both jobs run at once, and the first of them goes on.
        let line = format!("gdsio -f other -f FILE -x {kind} -s 8M -i 128K -I 0 -T 50 --gpu sim");
        let (is_right, said) = end(&line, &fuse, folder.path(), "2s");
        let path = fuse.path().display().to_string();
        drop(fuse);
        assert!(!is_right && said.contains(&format!("error: cannot read `{path}`")), "{said}");
        assert!(said.contains("  caused by: no response within 2s: "), "{said}");
    }
}

#[test]
fn a_path_that_is_not_opened_is_silent_to_those_who_look() {
    let _watchdog = Watchdog::start();
    let Some((fuse, folder)) = rig(NO_OPENS) else { return };
    let lines = ["map FILE --extents", "doctor FILE --gpu none"];
    let ends = ends(lines.map(|line| begin(line, &fuse, folder.path(), "30s")).into());
    assert!(fuse.parked() > 0, "somebody still waits for an answer, but not the commands");
    drop(fuse);
    let [map, doctor] = &ends[..] else { unreachable!("one for each line") };
    let said = |end: &Output| String::from_utf8(end.stderr.clone()).unwrap();
    let (map, doctor) = (map.as_ref().unwrap(), doctor.as_ref().unwrap());
    assert!(map.status.success() && said(map).contains("the path does not answer"), "{map:?}");
    assert_eq!(doctor.status.code(), Some(1), "{doctor:?}");
    assert!(said(doctor).contains("caused by: path_answers: "), "{doctor:?}");
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
    let ends = ends(children);
    drop(rigs);
    for (index, end) in ends.iter().enumerate() {
        let end = end.as_ref().unwrap_or_else(|| panic!("{index} does not end"));
        assert_eq!(end.status.signal(), Some(Signal::INT.as_raw()), "{index}: {end:?}");
        let said = String::from_utf8_lossy(&end.stderr);
        // Reads through the page cache can be ended by the kernel, other requests cannot.
        if index < 2 {
            assert!(said.contains("error: stopped, but process "), "{index}: {said}");
            assert!(said.contains("caused by: it may wait for a file that does not"), "{said}");
        }
    }
}

/// The file system above remembers its files and tells of them; what is below it is not asked for
/// long.
#[test]
fn a_loop_device_whose_image_is_silent_holds_up_no_look() {
    let _watchdog = Watchdog::start();
    let Some(drive) = or_skip(HangingDrive::new(32 << 20)) else { return };
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(drive.path().join("data"), vec![7; 8192]).unwrap();
    drive.fuse().set(|faults| faults.silent = true);
    let at = drive.path().to_str().unwrap();
    let lines = ["map FOLDER/data --extents --json", "doctor FOLDER/data --gpu none"];
    let begin = |line: &str| {
        let mut command = std::process::Command::new(program());
        command.current_dir(folder.path()).env("NO_COLOR", "1").env("FOREBAY_WATCHDOG", "30s");
        command.stdout(Stdio::piped()).stderr(Stdio::piped()).process_group(0);
        command.args(line.replace("FOLDER", at).split(' ')).spawn().unwrap()
    };
    let ends = ends(lines.map(begin).into());
    drive.fuse().set(|faults| faults.silent = false);
    let [map, doctor] = &ends[..] else { unreachable!("one for each line") };
    let map = map.as_ref().expect("`map` ends");
    assert!(map.status.success(), "{map:?}");
    let report: MapReport = serde_json::from_slice(&map.stdout).unwrap();
    let steps = report.maps[0].walk();
    let (_, image) = steps.into_iter().find(|(_, step)| step.kind == "backing_file").unwrap();
    assert_eq!(image.facts["answers"], Value::Unknown { unknown: "no answer within 3 s".into() });
    assert!(image.children.iter().any(|step| step.kind == "mount"), "{image:?}");
    assert!(doctor.is_some(), "`doctor` ends");
}
