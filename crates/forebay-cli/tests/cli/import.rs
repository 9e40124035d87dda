//! `forebay import`: whose output it reads, what it writes, and what a report makes of it.

use std::fs;
use std::path::Path;
use std::process::Output;

use assert_cmd::Command;

use crate::program::program;

const GDSIO: &str = "\
job 1 of 2
IoType: READ XferType: GPUD Threads: 8 DataSetSize: 8388608/8388608(KiB) IOSize: 1024(KiB) \
Throughput: 4.000000 GiB/sec, Avg_Latency: 1953.125000 usecs ops: 8192 total_time 2.000000 secs
job 2 of 2
IoType: READ XferType: CPU_GPU Threads: 8 DataSetSize: 8388608/8388608(KiB) IOSize: 1024(KiB) \
Throughput: 2.000000 GiB/sec, Avg_Latency: 3906.250000 usecs ops: 8192 total_time 4.000000 secs
";
const FIO: &str = include_str!("../import/fio/random.json");
const TABLE: &str = "Block;BW (MiB/s)\n64K;1000,5\n1M;2000\n";

fn forebay(folder: &Path, arguments: &[&str]) -> (Option<i32>, String, String) {
    let mut command = Command::new(program());
    let Output { status, stdout, stderr } =
        command.current_dir(folder).args(arguments).output().unwrap();
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
    (status.code(), text(stdout), text(stderr))
}

fn folder() -> tempfile::TempDir {
    let folder = crate::scratch();
    for (name, text) in [("log", GDSIO), ("fio.json", FIO), ("t.csv", TABLE)] {
        fs::write(folder.path().join(name), text).unwrap();
    }
    folder
}

#[test]
fn several_tools_stand_in_one_report() {
    let folder = folder();
    for (arguments, count) in [
        (&["gdsio", "log", "--set", "cache=cold,target=cuda:0"][..], "2 measurements of gdsio"),
        (&["fio", "fio.json", "--label", "disk"], "1 measurement of fio"),
        (
            &["csv", "t.csv", "--map", "size=Block,throughput=BW (MiB/s)", "--way=elbencho"],
            "2 measurements of csv",
        ),
    ] {
        let csv = arguments[0] == "csv";
        let more: &[&str] = if csv { &["--set=direction=read"] } else { &[] };
        let all = [&["import"], arguments, more, &["-o", "results"]].concat();
        let (code, data, talk) = forebay(folder.path(), &all);
        assert_eq!((code, data.as_str()), (Some(0), ""), "{talk}");
        assert_eq!(talk, format!("{count}: `forebay report results` shows them\n"));
    }
    let (code, data, talk) = forebay(folder.path(), &["report", "results"]);
    assert_eq!(code, Some(0), "{talk}");
    let words = ["gdsio cufile", "gdsio cpu-gpu", "fio-libaio", "elbencho (csv)", "disk, "];
    for word in words {
        assert!(data.contains(word), "{word}: {data}");
    }
    assert!(data.contains("not proved") && !data.to_lowercase().contains("dma"), "{data}");
    assert!(talk.contains("5 of 5 points were reported by a table, fio 3.33, gdsio"), "{talk}");
    let (_, csv, _) = forebay(folder.path(), &["report", "results", "--csv"]);
    // Nothing that is not known is 0.
    let head: Vec<&str> = csv.lines().next().unwrap().split(',').collect();
    let cells: Vec<&str> = csv.lines().nth(1).unwrap().split(',').collect();
    let cell = |name: &str| cells[head.iter().position(|head| *head == name).unwrap()];
    assert_eq!((cell("latency_p99_s"), cell("cpu_s_per_gb"), cell("files")), ("", "", ""));
    assert_eq!((cell("latency_mean_s"), cell("verdict")), ("0.001953125", ""));
}

#[test]
fn without_a_file_records_go_to_stdout() {
    let folder = folder();
    let (code, data, talk) = forebay(folder.path(), &["import", "gdsio", "log"]);
    assert_eq!((code, talk.as_str()), (Some(0), ""));
    fs::write(folder.path().join("made"), &data).unwrap();
    assert_eq!(data.lines().count(), 3);
    let (code, ..) = forebay(folder.path(), &["report", "made"]);
    assert_eq!(code, Some(0));
    assert!(!folder.path().join("results").exists());
}

#[test]
fn a_sweep_goes_on_in_a_file_that_something_was_imported_into() {
    // On a drive, where the system's folder for such files may be in memory.
    let folder = tempfile::tempdir_in(".").unwrap();
    fs::write(folder.path().join("log"), GDSIO).unwrap();
    let sweep = || {
        let asked = ["sweep", "--gpu=none", "--request-size=4K", "--depth=1", "--bytes=64K"];
        let short = ["--repeats=1", "--size=8M", "--warm-up=0s", "--seed=5", "-o", "results"];
        let (code, data, talk) = forebay(folder.path(), &[&asked[..], &short].concat());
        assert_eq!(code, Some(0), "{talk}");
        (data, talk)
    };
    sweep();
    let (code, ..) = forebay(folder.path(), &["import", "gdsio", "log", "-o", "results"]);
    assert_eq!(code, Some(0));
    let (data, talk) = sweep();
    assert!(talk.contains("has all samples of this sweep"), "{talk}");
    assert!(data.contains("requests, 1/s") && !data.contains("cufile"), "{data}");
    let (_, data, _) = forebay(folder.path(), &["report", "results"]);
    assert!(data.contains("gdsio cufile") && data.contains("forebay"), "{data}");
}

#[test]
fn what_makes_no_sense_is_refused() {
    let folder = folder();
    let refused = |arguments: &[&str], code: i32, words: &[&str]| {
        let (status, _, talk) = forebay(folder.path(), &[&["import"], arguments].concat());
        assert_eq!(status, Some(code), "{talk}");
        assert!(words.iter().all(|word| talk.contains(word)), "{talk}");
    };
    refused(&[], 2, &["`<TOOL>`"]);
    refused(&["gdsoi", "log"], 2, &["`gdsio`, `fio`, `nixlbench`, `csv`"]);
    refused(&["gdsio", "fio.json"], 1, &["holds no result of gdsio", "`forebay import fio`"]);
    refused(&["fio", "none"], 1, &["cannot read `none`"]);
    refused(&["csv", "t.csv"], 2, &["`--map` is missing"]);
    refused(&["csv", "t.csv", "--map", "troughput=x"], 2, &["perhaps `throughput` was meant"]);
    refused(
        &["csv", "t.csv", "--way=x", "--map", "throughput=BW"],
        1,
        &["no column `BW`: perhaps `BW (MiB/s)` was meant; it has `Block`, `BW (MiB/s)`"],
    );
    refused(&["gdsio", "log", "--set", "threds=3"], 2, &["perhaps `threads` was meant"]);
    refused(&["gdsio", "log", "--set", "threads=3"], 2, &["the file already has the threads"]);
    refused(&["gdsio", "log", "--set", "cache=cold,cache=resident"], 2, &["`cache`", "twice"]);
    refused(&["gdsio", "log", "--lable=x"], 2, &["`--label` was meant"]);
    refused(&["gdsio", "log", "-o", "t.csv"], 1, &["t.csv", "appends only to a results file"]);
    assert_eq!(fs::read_to_string(folder.path().join("t.csv")).unwrap(), TABLE);
}

#[test]
fn help_tells_what_it_takes() {
    let (code, text, _) = forebay(Path::new("."), &["import", "--help"]);
    assert_eq!(code, Some(0));
    for word in ["gdsio", "fio", "nixlbench", "csv", "--map", "--set", "--way", "Examples:"] {
        assert!(text.contains(word), "{word}: {text}");
    }
    assert!(text.lines().all(|line| line.chars().count() <= 90), "{text}");
}

#[test]
fn results_that_are_lost_when_the_file_is_closed_are_an_error() {
    use crate::lab::fuse::{Faults, Fuse};
    let folder = folder();
    let import = ["import", "gdsio", "log", "-o", "results"];
    assert_eq!(forebay(folder.path(), &import).0, Some(0));
    let bytes = fs::read(folder.path().join("results")).unwrap();
    let faults = Faults { closes: true, ..Faults::default() };
    let Some(fuse) = crate::lab::or_skip(Fuse::with(bytes, faults)) else { return };
    let at = fuse.path().display().to_string();
    let import = ["import", "gdsio", "log", "-o", &at];
    assert_eq!(forebay(folder.path(), &import).0, Some(0));
    fuse.set(|faults| faults.fail_closes = Some(libc::EDQUOT));
    let (code, _, talk) = forebay(folder.path(), &import);
    assert_eq!(code, Some(1), "{talk}");
    assert!(talk.contains(&format!("cannot write to the results file `{at}`")), "{talk}");
    assert!(talk.to_lowercase().contains("quota"), "{talk}");
}

#[test]
fn a_file_of_other_results_keeps_what_stands_behind_its_last_line() {
    let folder = folder();
    let sweep = |size: &str| {
        let size = format!("--request-size={size}");
        let words = ["sweep", ".", "--gpu=none", &size, "--depth=1", "--bytes=64K", "--size=1M"];
        forebay(folder.path(), &[&words[..], &["--repeats=1", "-o", "results"]].concat())
    };
    assert_eq!(sweep("4K").0, Some(0));
    let path = folder.path().join("results");
    let mut text = fs::read_to_string(&path).unwrap();
    assert_eq!(text.pop(), Some('\n'));
    fs::write(&path, &text).unwrap();
    let (code, _, talk) = sweep("8K");
    assert!(code != Some(0), "{talk}");
    assert_eq!(fs::read_to_string(&path).unwrap(), text, "a refused file is as it was");
    // The same sweep goes on, and measures again what was cut.
    let (code, _, talk) = sweep("4K");
    assert_eq!(code, Some(0), "{talk}");
    let all = fs::read_to_string(&path).unwrap();
    assert!(all.lines().all(|line| line.starts_with('{') && line.ends_with('}')), "{all}");
    assert!(all.ends_with("}\n") && all.lines().count() >= text.lines().count());
}
