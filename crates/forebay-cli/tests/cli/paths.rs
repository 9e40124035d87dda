//! `forebay bench` with several paths: each alone, and all at once.

use std::fs;
use std::path::Path;
use std::process::Output;

use forebay_measure::results::Cache;
use forebay_measure::results::{Limit, Record, Sample};

use crate::program::{self, names, stderr};

/// Short samples, for tests that measure nothing.
const SHORT: [&str; 4] = ["--repeats", "1", "--time", "100ms"];

fn run(folder: &Path, arguments: &[&str]) -> Output {
    program::run(folder, ["bench"].iter().chain(arguments).chain(&SHORT))
}

/// The records that a run prints.
pub(crate) fn records(output: &Output) -> Vec<Record> {
    let text = String::from_utf8_lossy(&output.stdout);
    let record = |line| serde_json::from_str(line).unwrap_or_else(|e| panic!("{e}: {output:?}"));
    text.lines().map(record).collect()
}

/// The samples among records.
pub(crate) fn samples(records: &[Record]) -> Vec<&Sample> {
    let mut samples = Vec::new();
    for record in records {
        if let Record::Sample(sample) = record {
            samples.push(&**sample);
        }
    }
    samples
}

/// A folder on a drive, with files of these lengths.
fn folder_with(files: &[(&str, usize)]) -> tempfile::TempDir {
    let folder = tempfile::tempdir_in(".").unwrap();
    for (name, len) in files {
        let bytes: Vec<u8> = (0..=250).flat_map(|byte| [byte; 3]).cycle().take(*len).collect();
        fs::write(folder.path().join(name), bytes).unwrap();
    }
    folder
}

#[test]
fn files_are_measured_alone_and_all_at_once() {
    let folder = folder_with(&[("a", 3_000_001), ("b", 5_000_000), ("c", 100)]);
    let before = fs::read(folder.path().join("b")).unwrap();
    for gpu in ["none", "sim"] {
        let words = ["a", "b", "c", "--gpu", gpu, "--format=json", "--method", "forebay,standard"];
        let output = run(folder.path(), &words);
        if stderr(&output).contains("stayed in the page cache") {
            println!("skipped: cold rows: this folder's files cannot be cold");
            return;
        }
        assert!(output.status.success(), "{}", stderr(&output));
        let all = records(&output);
        let forebay = samples(&all).into_iter().filter(|sample| sample.point.method == "forebay");
        let cold = forebay.filter(|sample| sample.point.cache == Some(Cache::Cold));
        let paths: Vec<&str> = cold.map(|sample| sample.point.path.as_str()).collect();
        assert_eq!(paths, ["a", "b", "c", "a + b + c"]);
        for sample in samples(&all) {
            let measured = sample.measured.as_ref().unwrap();
            assert_eq!(measured.verified, Some(true), "{sample:?}");
            assert_eq!(measured.simulated, gpu == "sim");
            assert_eq!(sample.point.read_percent, 100, "files are only read");
        }
        // They are on one drive, which is never counted twice.
        let storage = |record: &Record| match record {
            Record::Limit(limit) if limit.name == "storage" => Some(limit.clone()),
            _ => None,
        };
        let limits: Vec<Limit> = all.iter().filter_map(storage).collect();
        if let Some(sum) = limits.iter().find(|limit| limit.of == "a + b + c") {
            let own = limits.iter().filter(|limit| limit.of.len() == 1);
            let most = own.map(|limit| limit.bytes_per_second).fold(0.0, f64::max);
            assert!((sum.bytes_per_second - most).abs() <= most * 1e-9, "{limits:?}");
        }
        assert_eq!(names(folder.path()), ["a", "b", "c"]);
    }
    assert_eq!(fs::read(folder.path().join("b")).unwrap(), before);
}

#[test]
fn folders_get_scratch_of_their_own_and_keep_none() {
    let folder = folder_with(&[]);
    for name in ["one", "two"] {
        fs::create_dir(folder.path().join(name)).unwrap();
    }
    let words = ["one", "two", "--size", "2000001", "--gpu", "none", "--direction", "read,write"];
    let output = run(folder.path(), &[&words[..], &["--cache", "warm"]].concat());
    assert!(output.status.success(), "{}", stderr(&output));
    let shown = String::from_utf8(output.stdout).unwrap();
    for heading in ["READ, warm (page cache) · one", "WRITE, warm (page cache) · one + two"] {
        assert!(shown.contains(heading), "{heading}: {shown}");
    }
    let words = shown.split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(words.contains("All data verified."), "{shown}");
    assert!(shown.lines().all(|line| line.chars().count() <= 80), "{shown}");
    for name in ["one", "two"] {
        assert!(names(&folder.path().join(name)).is_empty(), "scratch was left");
    }
}

/// The exit code and the messages of a run that prints nothing and leaves nothing.
fn failure(folder: &Path, arguments: &[&str]) -> (i32, String) {
    let before = names(folder);
    let output = run(folder, &[arguments, &["--gpu", "none"]].concat());
    assert!(output.stdout.is_empty(), "{output:?}");
    assert_eq!(names(folder), before, "something was left");
    (output.status.code().unwrap(), stderr(&output))
}

#[test]
fn a_path_that_cannot_be_measured_is_named() {
    let folder = folder_with(&[("a", 1000), ("b", 100), ("empty", 0)]);
    std::os::unix::fs::symlink("a", folder.path().join("link")).unwrap();
    fs::create_dir(folder.path().join("scratch")).unwrap();
    for (words, code, text) in [
        (&["a", "b", "a"][..], 2, "error: `a` is given twice\nhint: name each file or folder once"),
        (&["a", "b", "link"], 2, "error: `link` is the same as `a`\n"),
        (&[".", "b", "./."], 2, "error: `./.` is given twice\n"),
        (&["a", "scratch", "missing", "b"], 1, "error: cannot open `missing`\n"),
        (&["scratch", "/proc"], 1, "error: cannot make a scratch file in `/proc`\n"),
        (&["a", "empty"], 1, "error: nothing to measure: `empty` is empty\n"),
        (&["a", "b", "--size", "500"], 1, "error: cannot read 500 B of `b`\n"),
    ] {
        let (is, messages) = failure(folder.path(), words);
        assert_eq!(is, code, "{words:?}: {messages}");
        assert!(messages.starts_with(text), "{words:?}: {messages}");
        assert!(names(&folder.path().join("scratch")).is_empty(), "scratch was left");
    }
}
