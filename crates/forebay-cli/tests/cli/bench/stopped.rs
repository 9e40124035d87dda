//! What a sweep that is stopped says, and what a report says of its results.

use std::collections::HashSet;
use std::fs::{self, File};
use std::os::unix::process::{CommandExt as _, ExitStatusExt as _};
use std::process::{Command, Stdio};

use forebay_measure::results::Record;
use forebay_measure::results::file::{read, samples};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

use super::{command, folder, stderr, wait_for};
use crate::program::program;

#[test]
fn a_stopped_sweep_says_its_progress_and_a_report_warns() {
    for signal in [Signal::INT, Signal::TERM] {
        let folder = folder();
        let arguments = ["--gpu=none", "--block-size=4K,8K", "--depth=1", "--size=8M"];
        let more = ["--repeats=100", "--time=200ms", "--warm-up=0s", "-o", "results"];
        let mut command = command(folder.path(), &[&arguments[..], &more].concat());
        // Signals for this run must not reach the tests.
        command.process_group(0).stdout(Stdio::null()).stderr(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let results = folder.path().join("results");
        let count = || read(&results).map_or(0, |all| samples(&all).count());
        wait_for(&mut child, || count() > 2);
        kill_process(Pid::from_raw(i32::try_from(child.id()).unwrap()).unwrap(), signal).unwrap();
        let output = child.wait_with_output().unwrap();
        assert_eq!(output.status.signal(), Some(signal.as_raw()));
        let reported = stderr(&output);
        let lines: Vec<&str> =
            reported.lines().filter(|line| line.starts_with("stopped: ")).collect();
        let [line] = lines[..] else { panic!("{reported}") };
        let kept = line.strip_prefix("stopped: `results` has ");
        let kept = kept.and_then(|line| {
            line.strip_suffix(" of 200 samples; the same command continues from there")
        });
        let kept: usize = kept.unwrap_or_else(|| panic!("{reported}")).parse().unwrap();
        // One may have come between the line and the end.
        let there = count();
        assert!((2..=there).contains(&kept), "{kept} of {there}");

        let mut report = Command::new(program());
        let output = report.current_dir(folder.path()).args(["report", "results"]).output();
        let output = output.unwrap();
        let reported = stderr(&output);
        assert!(output.status.success(), "{reported}");
        let expected = format!("warning: `results` is incomplete: {there} of 200 samples");
        assert!(reported.contains(&expected), "{reported}");
    }
}

#[test]
fn a_run_without_a_size_continues_with_the_size_that_its_file_records() {
    let whole = ["--method=forebay,standard", "--direction=read"];
    let store = ["--kv=deepseek-r1:fp8:page1,deepseek-r1:fp8:page2", "--time=300ms"];
    let size = ["--size=24M"];
    for arguments in [whole, store] {
        let folder = folder();
        let arguments = [&["--gpu=none", "--repeats=2", "-o", "results"], &arguments[..]].concat();
        let output = command(folder.path(), &[&arguments[..], &size].concat()).output().unwrap();
        assert!(output.status.success(), "{}", stderr(&output));
        // As if the size had been measured, and the run stopped after its first sample.
        let results = folder.path().join("results");
        let text = fs::read_to_string(&results).unwrap();
        let mut stopped = String::new();
        for line in text.lines() {
            let mut record: Value = serde_json::from_str(line).unwrap();
            if record["record"] == "run" {
                record["request"]["size"] = Value::Null;
            }
            stopped += &format!("{record}\n");
            if record["record"] == "sample" {
                break;
            }
        }
        fs::write(&results, &stopped).unwrap();
        let output = command(folder.path(), &arguments).output().unwrap();
        assert!(output.status.success(), "{}", stderr(&output));
        assert!(stderr(&output).contains("1 sample kept"), "{}", stderr(&output));
        let records = read(&results).unwrap();
        let mut all: Vec<_> = samples(&records).map(|(_, it)| (&it.point, it.repeat)).collect();
        let (runs, count) = (records.iter().filter(|it| matches!(it, Record::Run(_))), all.len());
        all.sort_by_key(|(point, repeat)| (format!("{point:?}"), *repeat));
        all.dedup();
        assert_eq!((runs.count(), all.len()), (2, count), "each once");
        let sizes: HashSet<u64> = all.iter().map(|(point, _)| point.request_size).collect();
        assert!(arguments.contains(&store[0]) || sizes == HashSet::from([24 << 20]), "{sizes:?}");
        // With other arguments it is another run, and the difference is named.
        let other = [&arguments[..], &["--size=8M", "--label=other"]].concat();
        let reported = stderr(&command(folder.path(), &other).output().unwrap());
        assert!(reported.contains("something else: other `label`, `size`"), "{reported}");
    }
}

#[test]
fn a_run_is_not_continued_on_a_file_that_has_become_shorter() {
    for rows in [&["--direction=read"][..], &["--block-size=4K"]] {
        let folder = folder();
        let data = folder.path().join("data");
        fs::write(&data, vec![7; 4 << 20]).unwrap();
        let run = |repeats: &str| {
            let arguments = ["data", "--gpu=none", "--time=100ms", "-o", "results", repeats];
            command(folder.path(), &[&arguments[..], rows].concat()).output().unwrap()
        };
        let output = run("--repeats=2");
        assert!(output.status.success(), "{}", stderr(&output));
        let results = folder.path().join("results");
        let text = fs::read_to_string(&results).unwrap();
        let cut = text.rfind("{\"record\":\"sample\"").unwrap();
        fs::write(&results, &text[..cut]).unwrap();
        let resize = |len| File::options().write(true).open(&data).unwrap().set_len(len).unwrap();
        resize(3 << 20);
        let output = run("--repeats=2");
        let reported = stderr(&output);
        assert_eq!(output.status.code(), Some(1), "{reported}");
        for text in ["read `data`", "of 4 MiB, and it has 3 MiB now", "restore the file, or"] {
            assert!(reported.contains(text), "{reported}");
        }
        resize(9 << 20);
        let output = run("--repeats=2");
        assert!(output.status.success(), "{}", stderr(&output));
    }
}
