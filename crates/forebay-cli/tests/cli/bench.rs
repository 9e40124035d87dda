//! `forebay bench` with lists of values.

pub(crate) mod faults;
mod progress;
mod queues;
mod stopped;

use std::collections::HashSet;
use std::fs;
use std::os::unix::fs::FileExt;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::sleep;
use std::time::{Duration, Instant};

use forebay_measure::results::file::{read, samples};
use forebay_measure::results::{Measured, Point, Record, Sample};
use rustix::process::{Pid, Signal, kill_process};

use crate::program::program;
use crate::proof::stays_in_memory;

/// Little and short, with any other arguments.
const SHORT: [&str; 7] = ["--repeats", "1", "--size", "8M", "--warm-up", "0s", "--seed=5"];

fn command(folder: &Path, arguments: &[&str]) -> Command {
    let mut command = Command::new(program());
    command.current_dir(folder).arg("bench");
    // The kernel's answer to a full queue of a busy machine is none of these tests' business.
    command.args(arguments).stdin(Stdio::null());
    command
}

fn measure(folder: &Path, arguments: &[&str]) -> Output {
    command(folder, arguments).args(SHORT).output().unwrap()
}

fn folder() -> tempfile::TempDir {
    // On a drive, where the system's folder for such files may be in memory.
    tempfile::tempdir_in(".").unwrap()
}

fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// Runs what must succeed, and returns its samples.
fn measured(arguments: &[&str]) -> Vec<(Point, Measured)> {
    let folder = folder();
    let output = measure(folder.path(), &[arguments, &["-o", "results", "--bytes=256K"]].concat());
    assert!(output.status.success(), "{arguments:?}: {}", stderr(&output));
    let records = read(&folder.path().join("results")).unwrap();
    assert_eq!(scratch(folder.path()), Vec::<PathBuf>::new());
    samples(&records)
        .map(|(_, sample)| (sample.point.clone(), sample.measured.clone().unwrap()))
        .collect()
}

fn scratch(folder: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    entries.filter(|path| path.to_string_lossy().contains(".forebay-scratch-")).collect()
}

/// What holds for every sample, whatever moved its bytes.
fn check(point: &Point, measured: &Measured) {
    let Measured { bytes, requests, seconds, .. } = *measured;
    assert!(requests > Some(0) && seconds > Some(0.0), "{point:?}: {measured:?}");
    assert_eq!(bytes, requests.map(|requests| requests * point.request_size), "{point:?}");
    assert_ne!(measured.verified, Some(false), "{point:?}");
    let latency = measured.latency.unwrap();
    let rising = [latency.p50_ns, latency.p90_ns, latency.p99_ns, latency.p99_9_ns, latency.max_ns];
    assert!(rising.is_sorted() && latency.p50_ns > Some(0), "{latency:?}");
    let count = latency.count.unwrap();
    assert!(count > 0 && count.is_multiple_of(point.batch.into()), "of requests: {latency:?}");
    assert!(measured.cpu.unwrap().cores >= 0.0);
    assert!(measured.verdict.is_some() || point.targets.len() > 1, "{point:?}");
    assert_eq!(measured.simulated, point.targets.iter().any(|name| name.starts_with("sim")));
}

#[test]
fn every_way_moves_the_right_bytes_to_every_target() {
    for gpu in ["none", "sim"] {
        let ways = "forebay,cpu,cpu-gpu,cpu-async-gpu,cpu-cached-gpu,io-uring";
        let all = measured(&[
            "--gpu",
            gpu,
            "--method",
            ways,
            "--direction=read,write",
            "--block-size=64K",
            "--depth=1,4",
            "--threads=2",
            "--cache=warm",
        ]);
        // Most plain ways have one depth.
        assert_eq!(all.len(), 2 * (2 + 4 + 2), "{gpu}");
        for (point, measured) in &all {
            check(point, measured);
            assert_eq!(measured.verified, Some(true), "{point:?}");
        }
    }
}

#[test]
fn every_axis_is_measured() {
    let all = measured(&[
        "--gpu=sim",
        "--block-size=4K,12K",
        "--pattern=random,strided:64K",
        "--batch=1,3",
        "--depth=2",
        "--files=1,2",
        "--threads=2",
        "--direction=read,mixed:50",
    ]);
    assert_eq!(all.len(), 2 * 2 * 2 * 2 * 2);
    all.iter().for_each(|(point, measured)| check(point, measured));
    let patterns: Vec<&str> = all.iter().map(|(point, _)| point.pattern.as_str()).collect();
    assert!(patterns.contains(&"random") && patterns.contains(&"strided:64K"));
}

#[test]
fn conversations_are_served_from_a_block_store() {
    let folder = folder();
    for gpu in ["none", "sim"] {
        let output = command(folder.path(), &["--kv=deepseek-r1:fp8:page1", "--time=500ms", "-v"])
            .args(["--gpu", gpu, "--size=24M", "--repeats=2", "--threads=2", "-o", gpu])
            .output()
            .unwrap();
        assert!(output.status.success(), "{}", stderr(&output));
        assert!(stderr(&output).contains("times as short as in the trace"), "{}", stderr(&output));
        let table = String::from_utf8_lossy(&output.stdout).into_owned();
        assert!(["loads", "hits", "TTFB p50"].iter().all(|head| table.contains(head)), "{table}");
        let records = read(&folder.path().join(gpu)).unwrap();
        let all: Vec<&Sample> = samples(&records).map(|(_, sample)| sample).collect();
        assert_eq!(all.len(), 2);
        for Sample { point, measured, error, .. } in all {
            let measured = measured.as_ref().unwrap_or_else(|| panic!("{error:?}"));
            let kv = measured.kv.unwrap();
            assert_eq!(
                (point.request_size, point.pattern.as_str()),
                (35_136, "kv:deepseek-r1:fp8:tp1:page1")
            );
            assert!(kv.turns > 0 && (1..kv.wanted).contains(&kv.hits), "{kv:?}");
            assert!(kv.first.unwrap().count <= Some(kv.turns + 4), "{kv:?}");
            assert_eq!(measured.verified, Some(true));
            let loads = measured.latency.unwrap().count.unwrap() * point.request_size;
            assert!(Some(loads) == measured.verified_bytes && Some(loads) < measured.bytes);
        }
    }
    assert_eq!(scratch(folder.path()), Vec::<PathBuf>::new());
    let file = folder.path().join("file");
    fs::write(&file, "bytes").unwrap();
    let output = command(folder.path(), &["--kv=llama-8b", "file"]).output().unwrap();
    assert!(
        stderr(&output).contains("`--kv` makes a block store in a folder"),
        "{}",
        stderr(&output)
    );
}

#[test]
fn several_gpus_begin_together_and_have_own_results() {
    let all = measured(&["--together=sim:3", "--block-size=64K", "--depth=2"]);
    let targets: Vec<usize> = all.iter().map(|(point, _)| point.targets.len()).collect();
    assert_eq!(targets, [1, 2, 3], "more and more of them");
    for (point, measured) in &all[1..] {
        check(point, measured);
        let names: Vec<&str> = measured.shares.iter().map(|share| share.target.as_str()).collect();
        assert_eq!(names, point.targets.iter().map(String::as_str).collect::<Vec<_>>());
        let sum: u64 = measured.shares.iter().map(|share| share.bytes).sum();
        assert_eq!(Some(sum), measured.bytes);
        for share in &measured.shares {
            assert!(share.first_done_s > 0.0 && share.first_done_s <= share.last_done_s);
        }
    }
}

#[test]
fn requests_that_are_due_at_a_rate_are_measured_from_then_on() {
    // A link so slow that requests queue up before it: each takes 10 ms of it, and is due after 5.
    let folder = folder();
    let output = measure(
        folder.path(),
        &[
            "--gpu=sim:latency=10ms",
            "--block-size=4K",
            "--depth=1",
            "--cache=warm",
            "--rate=200",
            "--time=2s",
            "-o",
            "results",
        ],
    );
    assert!(output.status.success(), "{}", stderr(&output));
    let records = read(&folder.path().join("results")).unwrap();
    let (_, sample) = samples(&records).next().unwrap();
    let measured = sample.measured.as_ref().unwrap();
    let latency = measured.latency.unwrap();
    assert!(latency.since_due);
    // A call takes 10 ms; the last of them waited for half of the time.
    assert!(latency.max_ns > Some(100_000_000), "{latency:?}");
    assert!(measured.requests_per_second.unwrap() < 150.0, "{measured:?}");
}

#[test]
fn bytes_through_the_page_cache_are_cold_once() {
    let folder = folder();
    let probe = folder.path().join("probe");
    fs::write(&probe, vec![7; 1 << 20]).unwrap();
    if let Some(reason) = stays_in_memory(&probe) {
        return println!("skipped: cold reads: {reason}");
    }
    let arguments = ["--gpu=none", "--block-size=256K", "--depth=1", "--time=2s"];
    let arguments = [&arguments[..], &["--cache=cold", "-o", "results"]].concat();
    let limited = |direct: &str| {
        let mut command = command(folder.path(), &arguments);
        command.args(SHORT).env("FOREBAY_DIRECT_IO", direct).output().unwrap()
    };
    let output = limited("off");
    assert!(output.status.success(), "{}", stderr(&output));
    let records = read(&folder.path().join("results")).unwrap();
    let measured = samples(&records).next().unwrap().1.measured.clone().unwrap();
    // The file is read again and again, and is cold each time.
    assert!(measured.page_cache.unwrap().before.unwrap() < 0.02, "{measured:?}");
    assert!(measured.bytes.unwrap().is_multiple_of(8 << 20), "{measured:?}");
    // What is limited otherwise measures something else, and goes on with none of this.
    let output = limited("auto");
    assert_eq!(output.status.code(), Some(2), "{}", stderr(&output));
    assert!(stderr(&output).contains("the results of something else"), "{}", stderr(&output));
}

#[test]
fn a_number_of_bytes_ends_a_sample_as_well() {
    let folder = folder();
    let arguments = ["--gpu=none", "--block-size=64K", "--depth=3", "--bytes=1M", "-o", "results"];
    let output = measure(folder.path(), &arguments);
    assert!(output.status.success(), "{}", stderr(&output));
    let records = read(&folder.path().join("results")).unwrap();
    let (_, sample) = samples(&records).next().unwrap();
    assert_eq!(sample.measured.as_ref().unwrap().bytes, Some(1 << 20));
}

#[test]
fn a_killed_run_is_continued() {
    // A link so slow that there is time to kill it.
    let arguments = ["--gpu=sim:latency=5ms", "--block-size=4K,8K,16K", "--depth=1,2"];
    let more = ["--size=8M", "--repeats=3", "--bytes=64K", "-o", "results"];
    let arguments = [&arguments[..], &more].concat();
    let count = |results: &Path| read(results).map_or(0, |all| samples(&all).count());
    let kill = || {
        let folder = folder();
        let mut child = command(folder.path(), &arguments)
            .process_group(0)
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let results = folder.path().join("results");
        wait_for(&mut child, || count(&results) >= 3);
        child.kill().unwrap();
        child.wait().unwrap();
        (folder, results)
    };
    // On a busy machine it may have come to its end before it is killed.
    let mut killed = std::iter::repeat_with(kill).take(10);
    let (folder, results) = killed.find(|(_, file)| count(file) < 18).expect("one in the middle");
    let before = read(&results).unwrap();
    let kept = samples(&before).count();
    let output = command(folder.path(), &arguments).output().unwrap();
    assert!(output.status.success(), "{}", stderr(&output));
    let messages = stderr(&output);
    assert!(messages.contains(&format!("{kept} samples kept from an earlier run")), "{messages}");
    let after = read(&results).unwrap();
    assert_eq!(after[..before.len()], before[..], "what was there stays as it was");
    let mut all: Vec<(Point, u32)> =
        samples(&after).map(|(_, s)| (s.point.clone(), s.repeat)).collect();
    all.sort_by_key(|(point, repeat)| (point.request_size, point.depth, *repeat));
    all.dedup();
    assert_eq!((all.len(), samples(&after).count()), (18, 18), "each once");
    // The same once more measures nothing.
    let again = command(folder.path(), &arguments).output().unwrap();
    assert!(again.status.success(), "{}", stderr(&again));
    assert!(stderr(&again).contains("has all samples of this run"), "{}", stderr(&again));
    assert_eq!(count(&results), 18);
}

fn wait_for(child: &mut Child, done: impl Fn() -> bool) {
    let start = Instant::now();
    while !done() {
        let ended = child.try_wait().unwrap();
        assert!(ended.is_none() || done(), "it ended too early: {ended:?}");
        // Only a bound on a hang: nothing is measured.
        assert!(start.elapsed() < Duration::from_secs(120), "it never came that far");
        sleep(Duration::from_millis(5));
    }
}

#[test]
fn the_same_words_elsewhere_are_another_run() {
    let (here, there) = (folder(), folder());
    let arguments = ["--block-size=4K", "--depth=1", "--bytes=64K"];
    let results = here.path().join("results");
    for gpu in ["--gpu=sim", "--gpu=sim:latency=1ms"] {
        for place in [here.path(), there.path()] {
            let mut command = command(place, &[&arguments[..], &[gpu]].concat());
            let output = command.args(SHORT).arg("-o").arg(&results).output().unwrap();
            if place == here.path() && gpu == "--gpu=sim" {
                assert!(output.status.success(), "{}", stderr(&output));
            } else {
                assert!(stderr(&output).contains("something else"), "{}", stderr(&output));
            }
        }
    }
}

#[test]
fn a_failed_point_is_measured_again_and_its_failure_forgotten() {
    let folder = folder();
    let path = folder.path().join("file");
    fs::write(&path, vec![7; 8192]).unwrap();
    let arguments = ["file", "--gpu=none", "--method=cpu", "--block-size=4K,8K", "--bytes=64K"];
    let arguments = [&arguments[..], &["-o", "results", "--threads=2"]].concat();
    // Of 8 KiB no two threads can have 8 KiB each.
    let output = measure(folder.path(), &arguments);
    assert_eq!(output.status.code(), Some(1), "{}", stderr(&output));
    fs::write(&path, vec![7; 1 << 20]).unwrap();
    let output = measure(folder.path(), &arguments);
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    assert!(stderr(&output).contains("1 sample kept"), "{}", stderr(&output));
    let records = read(&folder.path().join("results")).unwrap();
    assert_eq!(samples(&records).count(), 3, "one right, one failed, and right then");
}

#[test]
fn calls_that_are_due_are_taken_while_others_are_waited_for() {
    let folder = folder();
    let arguments = ["--gpu=none", "--block-size=4K", "--depth=32", "--rate=20", "--time=1s"];
    let arguments = [&arguments[..], &["--cache=warm", "-o", "results"]].concat();
    let output = measure(folder.path(), &arguments);
    assert!(output.status.success(), "{}", stderr(&output));
    let records = read(&folder.path().join("results")).unwrap();
    let measured = samples(&records).next().unwrap().1.measured.clone().unwrap();
    // Fewer calls are due than may be in flight: none waits until there is no place for another.
    assert!((1..=25).contains(&measured.requests.unwrap()), "{measured:?}");
}

#[test]
fn ctrl_c_leaves_whole_results_and_no_scratch() {
    let folder = folder();
    let arguments = ["--gpu=none", "--block-size=4K", "--depth=1", "--size=8M"];
    let arguments = [&arguments[..], &["--repeats=1000", "--bytes=256K", "-o", "results"]].concat();
    let mut child = command(folder.path(), &arguments)
        .process_group(0)
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let results = folder.path().join("results");
    wait_for(&mut child, || read(&results).is_ok_and(|all| samples(&all).count() > 2));
    kill_process(Pid::from_raw(i32::try_from(child.id()).unwrap()).unwrap(), Signal::INT).unwrap();
    assert_eq!(child.wait().unwrap().signal(), Some(Signal::INT.as_raw()));
    assert!(scratch(folder.path()).is_empty());
    assert!(samples(&read(&results).unwrap()).count() > 2);
}

#[test]
fn a_point_that_fails_is_a_row_and_not_the_end() {
    let folder = folder();
    // No plain method reads a thousand bytes with O_DIRECT.
    let arguments = ["--gpu=none", "--method=cpu,forebay", "--block-size=1000,4K", "--depth=1"];
    let output =
        measure(folder.path(), &[&arguments[..], &["--bytes=256K", "-o", "results"]].concat());
    assert_eq!(output.status.code(), Some(1));
    let records = read(&folder.path().join("results")).unwrap();
    let all: Vec<&Sample> = samples(&records).map(|(_, sample)| sample).collect();
    assert_eq!(all.len(), 4);
    let failed: Vec<&&Sample> = all.iter().filter(|sample| sample.error.is_some()).collect();
    let [failed] = failed.as_slice() else { panic!("{all:?}") };
    assert_eq!((failed.point.method.as_str(), failed.point.request_size), ("cpu", 1000));
    let error = failed.error.as_ref().unwrap();
    assert!(error.contains("invalid argument"), "{failed:?}");
    assert!(error.contains("use a multiple of 4096"), "the remedy is kept: {failed:?}");
    let shown = String::from_utf8_lossy(&output.stdout);
    assert!(shown.lines().any(|line| line.contains(" failed")), "{shown}");
    let messages = stderr(&output);
    assert!(messages.contains("1 sample failed\n  caused by: cannot read"), "{messages}");
    assert_eq!(messages.matches("use a multiple of 4096").count(), 1, "{messages}");
}

#[test]
fn copies_in_host_memory_have_one_limit() {
    let folder = folder();
    let arguments = ["--gpu=none", "--method=standard", "--cache=warm", "--format=json"];
    let output = measure(folder.path(), &arguments);
    assert!(output.status.success(), "{}", stderr(&output));
    let text = String::from_utf8(output.stdout).unwrap();
    let limits = text.lines().filter_map(|line| match serde_json::from_str(line).unwrap() {
        Record::Limit(limit) => Some((limit.of, limit.direction)),
        _ => None,
    });
    assert_eq!(limits.collect::<HashSet<_>>(), HashSet::from([("host".into(), None)]));
}

#[test]
fn nothing_is_written_that_was_not_made_for_it() {
    let folder = folder();
    let precious = vec![7; 1 << 20];
    fs::write(folder.path().join("file"), &precious).unwrap();
    let write = ["file", "--gpu=none", "--direction=write", "--block-size=4K", "--bytes=256K"];
    let refused = measure(folder.path(), &write);
    assert_eq!(refused.status.code(), Some(2));
    assert!(stderr(&refused).contains("`--overwrite` allows it"), "{}", stderr(&refused));
    assert_eq!(fs::read(folder.path().join("file")).unwrap(), precious);
    let allowed = measure(folder.path(), &[&write[..], &["--overwrite"]].concat());
    assert!(allowed.status.success(), "{}", stderr(&allowed));
    assert_ne!(fs::read(folder.path().join("file")).unwrap(), precious);
    // Results of something else stay too.
    fs::write(folder.path().join("notes"), "precious").unwrap();
    let refused = measure(folder.path(), &["--gpu=none", "--depth=1", "-o", "notes"]);
    assert_eq!(refused.status.code(), Some(1), "{}", stderr(&refused));
    assert_eq!(fs::read_to_string(folder.path().join("notes")).unwrap(), "precious");
    let one = ["--gpu=none", "--block-size=4K", "--depth=1", "--bytes=256K", "-o", "one"];
    assert!(measure(folder.path(), &one).status.success());
    let before = fs::read(folder.path().join("one")).unwrap();
    let other = measure(folder.path(), &[&one[..], &["--batch=2"]].concat());
    assert_eq!(other.status.code(), Some(2));
    assert!(stderr(&other).contains("the results of something else"), "{}", stderr(&other));
    assert_eq!(fs::read(folder.path().join("one")).unwrap(), before);
}

#[test]
fn mixed_loads_count_bytes_read_and_written() {
    let folder = folder();
    // Reads use O_DIRECT, with more than was requested at both ends; writes of such
    // lengths have to go through it.
    let arguments = ["--block-size=6000", "--direction=mixed:80", "--depth=4", "--gpu=sim"];
    let output =
        measure(folder.path(), &[&arguments[..], &["--time=300ms", "-o", "results"]].concat());
    assert!(output.status.success(), "{}", stderr(&output));
    let records = read(&folder.path().join("results")).unwrap();
    let (_, sample) = samples(&records).next().unwrap();
    let verdict = sample.measured.as_ref().unwrap().verdict.as_ref().unwrap();
    let bytes = |of: &serde_json::Value| of["bytes"].as_f64().unwrap();
    let (read, written) = (bytes(&verdict.claim), bytes(&verdict.claim["concurrent"]));
    assert!(read > 3.0 * written, "{verdict:?}");
    // Where a file system reads through its page cache only, all goes one way.
    let [most, least] = verdict.shares.as_slice() else {
        let probe = folder.path().join("probe");
        fs::write(&probe, vec![7; 1 << 20]).unwrap();
        assert_ne!(verdict.word, "mixed");
        assert!(verdict.word == "unproven" || stays_in_memory(&probe).is_some(), "{verdict:?}");
        return;
    };
    let sum = read + written;
    let far = (most.share - read / sum).abs().max((least.share - written / sum).abs());
    assert!(far < 0.05, "{verdict:?}");
}

#[test]
fn wrong_words_are_named_with_what_was_meant() {
    let folder = folder();
    fs::write(folder.path().join("file"), "x").unwrap();
    let wrong = [
        (&["--block-sise", "4K"][..], "perhaps `--block-size` was meant"),
        (&["--depth", "0"], "it takes a number from 1 to 4096"),
        (&["--block-size", "5Q"], "it takes a size"),
        (&["--time", "1ms"], "it takes 100ms or more"),
        (&["--pattern", "strided:0"], "is not a distance: use bytes"),
        (&["--direction", "mixed:0"], "`mixed:70` for 70 % reads"),
        (&["--method", "dma"], "it takes `forebay`, `standard`"),
        (&["--cache", "resident"], "it takes `warm` or `cold`"),
        (&["--together", "3-1"], "it takes GPUs such as `0-3`"),
        (&["--kv", "gpt"], "is not a known model"),
        (&["--rate", "0"], "it takes requests per second"),
        (&["file", "--files", "2"], "is one file, not 2"),
        (&["missing"], "cannot open"),
    ];
    for (arguments, text) in wrong {
        let output = measure(folder.path(), &[arguments, &["--gpu=none"][..]].concat());
        let code = output.status.code();
        assert!(matches!(code, Some(1 | 2)), "{arguments:?}: {output:?}");
        assert!(stderr(&output).contains(text), "{arguments:?}: {}", stderr(&output));
        assert!(output.stdout.is_empty());
    }
}

#[test]
fn records_are_printed_for_programs() {
    let folder = folder();
    let arguments = ["--gpu=none", "--block-size=4K", "--depth=1", "--bytes=256K", "--format=json"];
    let output = measure(folder.path(), &[&arguments[..], &["--label=mine"]].concat());
    assert!(output.status.success(), "{}", stderr(&output));
    let text = String::from_utf8(output.stdout).unwrap();
    let records: Vec<Record> =
        text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let Record::Run(run) = &records[0] else { panic!("{records:?}") };
    assert_eq!((run.label.as_deref(), run.verb.as_str()), (Some("mine"), "bench"));
    assert!(records.iter().any(|record| matches!(record, Record::Limit(_))));
    assert!(records.iter().any(|record| matches!(record, Record::Sample(_))));
}

#[test]
fn a_refused_file_of_other_results_is_unchanged() {
    let folder = folder();
    let run = |size: &str| {
        let words = ["--gpu=none", "--depth=1", "--bytes=64K", "-o", "results", "--block-size"];
        measure(folder.path(), &[&words[..], &[size]].concat())
    };
    assert!(run("4K").status.success());
    let path = folder.path().join("results");
    let mut text = fs::read_to_string(&path).unwrap();
    assert_eq!(text.pop(), Some('\n'));
    fs::write(&path, &text).unwrap();
    assert!(!run("8K").status.success());
    assert_eq!(fs::read_to_string(&path).unwrap(), text, "a refused file is as it was");
    // The same run continues, and measures the cut sample again.
    let output = run("4K");
    assert!(output.status.success(), "{}", stderr(&output));
    let all = fs::read_to_string(&path).unwrap();
    assert!(all.lines().all(|line| line.starts_with('{') && line.ends_with('}')), "{all}");
    assert!(all.ends_with("}\n") && all.lines().count() >= text.lines().count());
}

/// The offsets of the reads that the engine makes, those of its three repeats last.
fn offsets(folder: &Path, more: &[&str]) -> Vec<String> {
    let arguments = ["--gpu=none", "--method=forebay", "--pattern=random", "--block-size=4K"];
    let end = ["--depth=1", "--size=8M", "--bytes=64K", "--repeats=3", "--warm-up=0s"];
    let mut command = command(folder, &[&arguments[..], &end, more].concat());
    let output = command.env("FOREBAY_LOG", "debug").output().unwrap();
    let messages = stderr(&output);
    assert!(output.status.success(), "{messages}");
    let reads = messages.lines().filter(|line| line.contains("transfer begins direction=\"read\""));
    let reads = reads.filter(|line| line.contains(" len=4096"));
    reads.map(|line| line.split_once(" offset=").unwrap().1.to_owned()).collect()
}

#[test]
fn each_repeat_reads_other_offsets_and_the_same_run_the_same() {
    let folder = folder();
    let [one, again, other] = [("1", "one"), ("1", "again"), ("2", "other")].map(|(seed, name)| {
        let all = offsets(folder.path(), &["--seed", seed, "-o", name]);
        all[all.len() - 48..].to_vec()
    });
    assert!(one[..16] != one[16..32] && one[16..32] != one[32..], "{one:?}");
    assert_eq!(one, again);
    assert_ne!(one, other);
}

#[test]
fn no_line_is_longer_than_80_columns() {
    let folder = folder();
    let arguments = [
        "--together=sim:8",
        "--block-size=4K,1M",
        "--pattern=sequential,random",
        "--cache=warm",
        "--bytes=64K",
    ];
    let output = measure(folder.path(), &arguments);
    assert!(output.status.success(), "{}", stderr(&output));
    let shown = String::from_utf8(output.stdout).unwrap();
    let longest = shown.lines().map(|line| line.chars().count()).max().unwrap();
    assert!(longest <= 80, "{longest}: {shown}");
    assert!(shown.contains("8 simulated GPUs (0-7)"), "{shown}");
}

#[test]
fn a_call_that_takes_longer_than_the_time_is_measured() {
    let folder = folder();
    let slow = ["--gpu=sim:latency=300ms", "--block-size=4K", "--depth=1", "--time=100ms"];
    let output = measure(folder.path(), &[&slow[..], &["-o", "results"]].concat());
    assert!(output.status.success(), "{}", stderr(&output));
    let records = read(&folder.path().join("results")).unwrap();
    let all: Vec<&Sample> = samples(&records).map(|(_, sample)| sample).collect();
    assert_eq!(all.len(), 1);
    check(&all[0].point, all[0].measured.as_ref().unwrap());
}

#[test]
fn a_slow_link_has_a_file_that_it_moves_in_time() {
    let folder = folder();
    // 4 MB in 0.2 s.
    let arguments = ["--gpu=sim:bandwidth=20MB/s", "--method=forebay", "--cache=warm"];
    let more = ["--direction=read", "--repeats=1", "--time=100ms", "--format=json"];
    let output = command(folder.path(), &[&arguments[..], &more].concat()).output().unwrap();
    assert!(output.status.success(), "{}", stderr(&output));
    let text = String::from_utf8(output.stdout).unwrap();
    let sizes = text.lines().filter_map(|line| match serde_json::from_str(line).unwrap() {
        Record::Sample(sample) => Some(sample.point.request_size),
        _ => None,
    });
    let sizes: Vec<u64> = sizes.collect();
    assert!(sizes.len() == 1 && sizes[0] <= 2 << 20, "{sizes:?}");
}

#[test]
fn rows_of_a_part_of_a_file_are_judged_by_that_part() {
    let folder = folder();
    let path = folder.path().join("file");
    // Of 16 MiB the link moves 2 MiB in time.
    let arguments = ["file", "--gpu=sim:bandwidth=20MB/s", "--method=forebay", "--repeats=1"];
    let records = |holes_first: bool| -> Vec<Record> {
        let file = fs::File::create(&path).unwrap();
        file.write_all_at(&[7; 8 << 20], if holes_first { 8 << 20 } else { 0 }).unwrap();
        file.set_len(16 << 20).unwrap();
        file.sync_all().unwrap();
        let output = command(folder.path(), &arguments).arg("--format=json").output().unwrap();
        assert!(output.status.success(), "{}", stderr(&output));
        let lines = String::from_utf8(output.stdout).unwrap();
        lines.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    };
    let has = |records: &[Record], words: &str| {
        let is = |one: &Record| matches!(one, Record::Doubt { text } if text.contains(words));
        records.iter().any(is)
    };
    let part = "of `file` are read, to save time; `--size 16777216` reads all 16 MiB";
    let data = records(false);
    assert!(has(&data, part) && !has(&data, "holes"), "{data:?}");
    if let Some(reason) = stays_in_memory(&path) {
        return println!("skipped: a file with holes: {reason}");
    }
    let is_storage = |one: &Record| matches!(one, Record::Limit(one) if one.name == "storage");
    assert!(data.iter().any(is_storage), "{data:?}");
    let holes = records(true);
    assert!(has(&holes, part) && has(&holes, "it has only holes"), "{holes:?}");
    assert!(!holes.iter().any(is_storage), "{holes:?}");
}

#[test]
fn cold_rows_of_a_file_that_another_program_reads_are_doubted() {
    let folder = folder();
    let path = folder.path().join("file");
    fs::write(&path, vec![7; 32 << 20]).unwrap();
    if let Some(reason) = stays_in_memory(&path) {
        return println!("skipped: cold reads: {reason}");
    }
    let arguments = ["file", "--gpu=none", "--method=standard", "--cache=cold", "--format=json"];
    let is_doubted = |reads: bool| {
        let stops = AtomicBool::new(!reads);
        let output = std::thread::scope(|scope| {
            let read = || {
                while !stops.load(Ordering::Relaxed) {
                    fs::read(&path).unwrap();
                }
            };
            (0..3).for_each(|_| drop(scope.spawn(read)));
            let output = command(folder.path(), &arguments).arg("--repeats=8").output().unwrap();
            stops.store(true, Ordering::Relaxed);
            output
        });
        let text = String::from_utf8(output.stdout).unwrap();
        assert!(output.status.success(), "{text}");
        text.contains("as if another program reads the same file")
    };
    // On a busy machine the readers may not run between an eviction and the reads after it.
    assert!((0..5).any(|_| is_doubted(true)), "the reads of another program go unnoticed");
    assert!(!is_doubted(false), "no other program reads");
}

#[test]
fn a_rate_at_which_no_call_is_due_is_an_error() {
    let folder = folder();
    // The first call is due at once, and ends within the warm-up.
    let short = ["--repeats=1", "--size=8M", "--time=100ms", "--warm-up=3s"];
    let rare = ["--gpu=none", "--block-size=4K", "--threads=4", "--rate=0.01"];
    let output = command(folder.path(), &[short, rare].concat()).output().unwrap();
    assert!(!output.status.success());
    assert!(stderr(&output).contains("a higher `--rate`"), "{}", stderr(&output));
}

#[test]
fn a_results_file_is_not_named_as_another_form() {
    let folder = folder();
    for name in ["r.CSV", "r.html", "r.md"] {
        let output = measure(folder.path(), &["--gpu=none", "--block-size=4K", "-o", name]);
        assert_eq!(output.status.code(), Some(2));
        let hint = format!("use `-o r.jsonl`, and `forebay report r.jsonl -o {name}`");
        assert!(stderr(&output).contains(&hint), "{}", stderr(&output));
    }
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0);
}
