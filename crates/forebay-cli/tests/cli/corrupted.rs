//! Scratch of which other bytes come back than were written: each verb that says whether bytes are
//! right says so, and ends with 1.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use forebay_measure::results::file::{read, samples};

use crate::program::{program, run, stderr};

/// Files of ours in a folder: scratch, and those of `gdsio` and `gpu-file-benchmark`.
fn files(folder: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let is_ours = |path: &PathBuf| {
        let name = path.file_name().unwrap().to_str().unwrap();
        [".forebay-scratch-", "gdsio.", "file-"].iter().any(|start| name.starts_with(start))
    };
    entries.map(|entry| entry.path()).filter(is_ours).collect()
}

/// Pauses between two writes: within the shortest run, and long enough for pages to be evicted.
const OFTEN: Duration = Duration::from_micros(200);
const RARELY: Duration = Duration::from_millis(20);

/// Runs a verb while the bytes at `at` of each of its files of 1 MiB are overwritten again and
/// again with what no file is filled with.
fn spoilt(folder: &Path, at: u64, line: &str) -> Output {
    spoilt_to(Stdio::piped(), folder, (at, OFTEN), line)
}

/// A pipe whose reader has gone.
fn closed() -> Stdio {
    let (reader, writer) = io::pipe().unwrap();
    drop(reader);
    writer.into()
}

fn spoilt_to(stdout: Stdio, folder: &Path, (at, pause): (u64, Duration), line: &str) -> Output {
    let ended = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            while !ended.load(Ordering::Relaxed) {
                for path in files(folder) {
                    let Ok(file) = File::options().write(true).open(&path) else { continue };
                    if file.metadata().is_ok_and(|facts| facts.len() == 1 << 20) {
                        let _ = file.write_all_at(&[0; 100], at);
                    }
                }
                thread::sleep(pause);
            }
        });
        let mut command = Command::new(program());
        command.current_dir(folder).args(line.split_whitespace()).stdout(stdout);
        let output = command.output().unwrap();
        ended.store(true, Ordering::Relaxed);
        output
    })
}

#[test]
fn a_read_of_scratch_is_compared_with_what_was_written() {
    let folder = tempfile::tempdir_in(".").unwrap();
    let results = folder.path().join("results");
    for (at, way) in [(0, "forebay"), (500_001, "forebay"), (0, "cpu"), ((1 << 20) - 100, "cpu")] {
        for pattern in ["sequential", "random"] {
            // Not cold: pages that are written again and again cannot be evicted. And long enough
            // for the other thread to have had a turn on a busy machine.
            let line = format!(
                "bench . --gpu none --method {way} --block-size 64K --pattern {pattern} --depth 2 \
                 --cache warm --time 600ms --repeats 1 --size 1M -o results"
            );
            let output = spoilt(folder.path(), at, &line);
            assert_eq!(output.status.code(), Some(1), "{line}: {output:?}");
            let records = read(&results).unwrap();
            let all: Vec<_> = samples(&records).collect();
            assert!(!all.is_empty());
            for (_, sample) in all {
                let verified = sample.measured.as_ref().and_then(|measured| measured.verified);
                assert_eq!(verified, Some(false), "{line}: {sample:?}");
            }
            fs::remove_file(&results).unwrap();
        }
    }
}

#[test]
fn a_read_of_gdsio_is_compared_with_what_was_written() {
    let folder = tempfile::tempdir_in(".").unwrap();
    for at in [0, 500_001, (1 << 20) - 100] {
        for kind in ["0", "2", "4"] {
            for gpu in ["none", "sim"] {
                let line = format!("gdsio -D . -w 1 -s 1M -i 64K -x {kind} -I 0 -V --gpu {gpu}");
                let output = spoilt(folder.path(), at, &line);
                let reported = String::from_utf8_lossy(&output.stderr);
                assert_eq!(output.status.code(), Some(1), "{line}: {reported}");
                assert!(reported.contains("wrong data"), "{line}: {reported}");
            }
        }
    }
}

#[test]
fn wrong_data_end_a_command_with_1_even_with_closed_streams() {
    for (pause, line) in [
        (OFTEN, "gdsio -D . -w 1 -s 1M -i 64K -x 4 -I 1 -V --gpu none"),
        (RARELY, "gpu-file-benchmark -m compare -f file-0 -s 1 -r 1 --gpu none"),
    ] {
        // A write between the flush and the eviction keeps pages in the cache, and a cold run is
        // refused. On a fast drive all runs may fit between two writes. Then it is run again.
        let mut attempts = (0..20).map(|_| {
            let folder = tempfile::tempdir_in(".").unwrap();
            spoilt_to(closed(), folder.path(), (500_001, pause), line)
        });
        let text = |output: &Output| String::from_utf8_lossy(&output.stderr).into_owned();
        let is_found = |output: &Output| text(output).contains("wrong data");
        let output = attempts.find(is_found).expect("a run that meets the other bytes");
        assert_eq!(output.status.code(), Some(1), "{line}: {}", text(&output));
    }
}

#[test]
fn writes_of_gdsio_are_read_back_even_with_closed_streams() {
    let folder = tempfile::tempdir_in(".").unwrap();
    let line = "gdsio -D . -w 1 -s 256K -i 64K -x 0 -I 1 -V --gpu sim";
    let mut command = Command::new(program());
    command.current_dir(folder.path()).args(line.split(' ')).stdout(closed());
    let output = command.output().unwrap();
    let reported = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(0), "{reported}");
    assert_eq!(reported.matches("verdict by counters: ").count(), 2, "{reported}");
}

#[test]
fn a_sweep_that_writes_reads_right_bytes_afterwards() {
    let folder = tempfile::tempdir_in(".").unwrap();
    let line = "bench . --gpu none --direction read,write --method forebay,cpu \
                --block-size 12K,64K --depth 2 --bytes 512K --repeats 3 --size 1M -o results";
    let output = run(folder.path(), line.split_whitespace());
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    let records = read(&folder.path().join("results")).unwrap();
    let all: Vec<_> = samples(&records).filter_map(|(_, sample)| sample.measured.clone()).collect();
    assert_eq!(all.len(), 24);
    assert!(all.iter().all(|measured| measured.verified == Some(true)), "{all:?}");
    // All that was written, each byte once.
    let whole = all.iter().filter(|measured| measured.verified_bytes == measured.bytes).count();
    assert!(whole >= 12, "{all:?}");
}

#[test]
fn a_users_file_is_compared_with_a_second_read() {
    let folder = tempfile::tempdir_in(".").unwrap();
    fs::write(folder.path().join("own"), vec![7; 1 << 20]).unwrap();
    let run = |line: &str| {
        let output = run(folder.path(), line.split(' '));
        assert_eq!(output.status.code(), Some(0), "{line}: {output:?}");
        stderr(&output)
    };
    let reported = run("gdsio -f own -w 1 -s 1M -i 64K -x 4 -I 0 -V --gpu none");
    assert!(reported.contains("compared with those of a second read"), "{reported}");
    let reported = run("gdsio -f new -w 1 -s 1M -i 64K -x 4 -I 0 -V --gpu none");
    assert!(!reported.contains("second read"), "{reported}");
    let sweep = "--gpu none --block-size 64K --depth 1 --bytes 64K --repeats 1 --size 1M -o";
    run(&format!("bench own {sweep} one"));
    run(&format!("bench . {sweep} two"));
    for (name, compared) in [("one", "a second read"), ("two", "what was written")] {
        let records = read(&folder.path().join(name)).unwrap();
        let (_, sample) = samples(&records).next().unwrap();
        let measured = sample.measured.as_ref().unwrap();
        assert_eq!(measured.compared_with.as_deref(), Some(compared));
    }
}
