//! `forebay report` of other tools' results.

use std::fs;
use std::io::Write as _;
use std::process::{Command, Stdio};

use super::forebay;
use crate::program::program;

const GDSIO: &str = "\
job 1 of 2
IoType: READ XferType: GPUD Threads: 8 DataSetSize: 8388608/8388608(KiB) IOSize: 1024(KiB) \
Throughput: 4.000000 GiB/sec, Avg_Latency: 1953.125000 usecs ops: 8192 total_time 2.000000 secs
job 2 of 2
IoType: READ XferType: CPU_GPU Threads: 8 DataSetSize: 8388608/8388608(KiB) IOSize: 1024(KiB) \
Throughput: 2.000000 GiB/sec, Avg_Latency: 3906.250000 usecs ops: 8192 total_time 4.000000 secs
";
const FIO: &str = include_str!("../../import/fio/random.json");
const TABLE: &str = "Block;BW (MiB/s)\n64K;1000,5\n1M;2000\n";

fn folder() -> tempfile::TempDir {
    let folder = crate::scratch();
    for (name, text) in [("log", GDSIO), ("fio.json", FIO), ("t.csv", TABLE)] {
        fs::write(folder.path().join(name), text).unwrap();
    }
    folder
}

fn text(bytes: Vec<u8>) -> String {
    String::from_utf8(bytes).unwrap()
}

#[test]
fn results_are_recognized_by_their_contents() {
    let folder = folder();
    for (arguments, words) in [
        (&["log"][..], &["gdsio cufile", "gdsio cpu-gpu", "4.29"][..]),
        (&["log", "--columns", "cache:=cold,gpu:=cuda:0"], &["GPU cuda:0", "cache cold"]),
        (&["fio.json"], &["fio-libaio", "measured by fio 3.33"]),
        (
            &["t.csv", "--columns", "direction:=read,method:=mine"],
            &["method mine", "64 KiB", "1.05"],
        ),
        (
            &[
                "t.csv",
                "--as=csv",
                "--columns=block-size=Block,throughput=BW (MiB/s),direction:=write",
            ],
            &["direction write"],
        ),
    ] {
        let output = forebay(folder.path(), arguments);
        let (data, talk) = (text(output.stdout), text(output.stderr));
        assert_eq!(output.status.code(), Some(0), "{talk}");
        assert!(words.iter().all(|word| data.contains(word)), "{words:?}: {data}");
        assert!(
            data.contains("Data not verified") && !data.to_lowercase().contains("dma"),
            "{data}"
        );
        assert!(talk.contains("data and path are not verified"), "{talk}");
    }
    let csv = text(forebay(folder.path(), &["log", "--format=csv"]).stdout);
    // Records of ours say the same.
    assert!(forebay(folder.path(), &["log", "-o", "log.jsonl"]).status.success());
    let again = text(forebay(folder.path(), &["log.jsonl", "--format=csv"]).stdout);
    assert_eq!(again, csv);
    let mut reader = csv::Reader::from_reader(csv.as_bytes());
    let head = reader.headers().unwrap().clone();
    let row = reader.records().next().unwrap().unwrap();
    let cell =
        |name: &str| head.iter().position(|other| other == name).map(|at| row[at].to_owned());
    // No unknown value is 0.
    assert_eq!((cell("latency_p99_s"), cell("cpu_s_per_gb"), cell("files")), (None, None, None));
    assert_eq!(
        (cell("latency_mean_s").as_deref(), cell("path_taken").as_deref()),
        (Some("0.001953125"), Some(""))
    );
}

#[test]
fn results_may_come_from_stdin_or_a_pipe() {
    let folder = folder();
    let mut command = Command::new(program());
    command.current_dir(folder.path()).args(["report", "-", "--format=csv"]);
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    child.stdin.take().unwrap().write_all(GDSIO.as_bytes()).unwrap();
    let output = child.wait_with_output().unwrap();
    assert!(text(output.stdout).contains("stdin,gdsio cufile"));
    let mut shell = Command::new("sh");
    shell.args(["-c", "cat log | \"$0\" report /dev/stdin"]).arg(program());
    let output = shell.current_dir(folder.path()).output().unwrap();
    assert!(text(output.stdout).contains("gdsio cpu-gpu"));
}

#[test]
fn unknown_contents_and_maps_are_refused() {
    let folder = folder();
    fs::write(folder.path().join("bench.txt"), "forebay bench\nforebay 53.9 GB/s\n").unwrap();
    let refused = |arguments: &[&str], code: i32, words: &[&str]| {
        let output = forebay(folder.path(), arguments);
        let talk = text(output.stderr);
        assert_eq!(output.status.code(), Some(code), "{talk}");
        assert!(words.iter().all(|word| talk.contains(word)), "{talk}");
    };
    refused(&["log", "--as", "gdsoi"], 2, &["gdsio", "fio", "nixlbench", "elbencho", "csv"]);
    refused(&["s3://bucket/results"], 2, &["remote objects are not supported"]);
    refused(&["bench.txt"], 1, &["`bench.txt`", "its kind is unknown", "`--as`"]);
    refused(&["fio.json", "--as", "gdsio"], 1, &["holds no result of gdsio"]);
    refused(&["log", "--columns", "troughput=x"], 2, &["perhaps `throughput` was meant"]);
    refused(&["log", "--columns", "threds:=3"], 2, &["perhaps `threads` was meant"]);
    refused(&["log", "--columns", "threads:=3"], 1, &["the file has its own threads: omit it"]);
    refused(&["log", "--columns", "cache:=cold,cache:=warm"], 2, &["`cache`", "twice"]);
    refused(
        &["t.csv", "--columns", "throughput=BW"],
        1,
        &["no column `BW`: perhaps `BW (MiB/s)` was meant; it has `Block`, `BW (MiB/s)`"],
    );
    refused(&["t.csv"], 1, &["holds no result of csv", "the direction is unknown"]);
}
