//! What a run leaves, however it ends: nothing.

use std::fs;
use std::os::unix::process::ExitStatusExt;
use std::process::Command;

use rustix::process::Signal;

use super::{benchmark, folder, rows};
use crate::interrupt::Running;
use crate::program::program;

/// A long run, once its file has bytes.
fn running(file: &[&str], path: &str) -> Running {
    let mut command = Command::new(program());
    command.args(["gpu-file-benchmark", "-m", "compare", "-s", "4", "-r", "1000", "--gpu", "none"]);
    let running = Running::spawn(folder(), command.args(file));
    running.wait_for(|| {
        let named = (!path.is_empty()).then(|| running.folder.path().join(path));
        let mut paths = running.scratch().into_iter().chain(named);
        paths.any(|path| fs::metadata(path).is_ok_and(|facts| facts.len() > 0))
    });
    running
}

#[test]
fn signals_leave_neither_scratch_nor_a_new_file() {
    for (file, path) in [(&[][..], ""), (&["-f", "new"], "new")] {
        for signal in [Signal::INT, Signal::TERM] {
            let mut running = running(file, path);
            running.send(signal);
            assert_eq!(running.end().signal(), Some(signal.as_raw()));
            let left = fs::read_dir(running.folder.path()).unwrap().count();
            assert_eq!(left, 0, "{signal:?} left something of {file:?}");
        }
    }
}

#[test]
fn a_reader_that_goes_away_is_no_failure() {
    let folder = folder();
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    let mut command = Command::new(program());
    command.current_dir(folder.path()).stdout(writer);
    command.args(["gpu-file-benchmark", "-m", "compare", "-s", "1", "-r", "1", "--gpu", "none"]);
    let output = command.output().unwrap();
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0);
}

#[test]
fn a_gpu_that_is_lost_on_the_way_is_no_success_without_a_row() {
    for (mode, after) in [("compare", 0..24), ("all", 20..40)] {
        for after in after.step_by(5) {
            let folder = folder();
            let gpu = format!("sim:lost-after={after}");
            let arguments = ["-m", mode, "-r", "1", "--gpu", &gpu];
            let output = benchmark(folder.path(), &arguments);
            if !output.status.success() {
                assert_eq!(output.status.code(), Some(1), "{after}: {output:?}");
                continue;
            }
            let text = String::from_utf8(output.stdout).unwrap();
            assert!(rows(&text).len() >= 6 && !text.contains("MISMATCH"), "{after}: {text}");
        }
    }
}
