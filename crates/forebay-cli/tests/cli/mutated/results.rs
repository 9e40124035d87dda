//! Results of this program and of others with values, bytes and lines changed: `report` reads them,
//! or refuses them with an error that names the file.
//!
//! Most seeds call the library, which takes milliseconds; every 40th runs the program.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::thread;
use std::time::Duration;

use forebay_cli::report::foreign::{Hints, Tool};
use forebay_cli::report::input;
use serde_json::{Value, json};

use super::forms::{check_failure, check_report, no_number};
use super::{mutate, outcome};
use crate::lab::note;
use crate::lab::seeds::{self, Dice, index};
use crate::report::made::{self, Sweep};

/// Seeds of a test that runs every day.
const SEEDS: u64 = 100;
/// One seed of so many runs the program.
const PROGRAM: u64 = 40;

/// Kinds of results.
const KINDS: u64 = 7;

/// Values that take the place of others. `inf` and `NaN` are not among them: they are what no
/// output may hold.
const VALUES: [&str; 35] = [
    "0",
    "-0",
    "-0.0",
    "1",
    "-1",
    "0.5",
    "100",
    "1e-320",
    "5e-324",
    "-1e-320",
    "2.2250738585072014e-308",
    "1e-30",
    "1e30",
    "1e300",
    "1e308",
    "-1e308",
    "1.7976931348623157e308",
    "1e999",
    "nan",
    "-nan",
    "Infinity",
    "4294967296",
    "9007199254740993",
    "9223372036854775807",
    "18446744073709551615",
    "18446744073709551616",
    "999999999999999999999999999999999999999999",
    "null",
    "true",
    "\"\"",
    "\"1e308\"",
    "\"<xmp>\\\" onxmp=\\\"|`x`\\n=1+1\\u001b[2J\\u0000\\u009b\\u202e\"",
    "\"\\ud800\"",
    "[]",
    "{}",
];

/// Text that is put into strings.
const WORDS: [&str; 6] = ["<xmp>", "' onxmp=x '", "</script><xmp>", "\u{feff}", "|a|`", ",\"\t"];

/// What a seed changes: a text, and the map that it needs.
struct Base {
    text: String,
    map: &'static str,
}

impl Base {
    fn of(text: impl Into<String>) -> Self {
        Self { text: text.into(), map: "" }
    }

    fn hints(&self, tool: Option<Tool>) -> Hints {
        let map = (!self.map.is_empty()).then(|| self.map.parse().expect("a map"));
        Hints { tool, map }
    }
}

const GDSIO: &str = "\
IoType: READ XferType: GPUD Threads: 8 DataSetSize: 8388608/8388608(KiB) IOSize: 1024(KiB) \
Throughput: 4.000000 GiB/sec, Avg_Latency: 1953.125000 usecs ops: 8192 total_time 2.000000 secs
IoType: WRITE XferType: CPUONLY Threads: 4 DataSetSize: 4156416/4194304(KiB) IOSize: 64(KiB) \
Throughput: 1.049312 GiB/sec, Avg_Latency: 3721.307952 usecs ops: 4059 total_time 3.777586 secs
";
const NIXLBENCH: &str = "\
Backend (--backend=[UCX,GDS,GDS_MT,POSIX])                  : GDS
Op type (--op_type=[READ,WRITE])                            : READ
Num threads (--num_threads=N)                               : 2
filepath (--filepath=path)                                  : /data/nixl
Block Size (B)      Batch Size     B/W (GB/Sec)   Avg Lat. (us)  Avg Prep (us)  P99 Prep (us)  \
Avg Post (us)  P99 Post (us)  Avg Tx (us)    P99 Tx (us)
--------------------------------------------------------------------------------
4096                1              0.105000       39.0           5.0            9.0            \
38.0           59.0           1.0            3.0
65536               4              1.250000       52.0           5.0            9.0            \
2.0            3.0            207.0          400.0
";
const ELBENCHO: &str = "\
block size,operation,time ms [last],IOPS [last],MiB/s [last],IO lat us [avg],IO lat us [p99]
131072,READ,12,10660,1333,70,250.5
1M,WRITE,1200,2000,2000,\"70\",
64K,READ,,1,\"1,5\",70,1
";
const FIO: [&str; 3] = [
    include_str!("../../import/fio/random.json"),
    include_str!("../../import/fio/client.txt"),
    include_str!("../../import/fio/full.txt"),
];

fn sweep() -> Sweep {
    Sweep {
        methods: vec!["forebay", "cpu-gpu"],
        request_sizes: vec![64 << 10, 1 << 20],
        depths: vec![1, 8],
        targets: vec!["cuda:0", "cuda:1"],
        ..Sweep::default()
    }
}

/// A sweep of two points, and limits.
pub(super) fn small() -> String {
    let sweep = Sweep { request_sizes: vec![1 << 20], depths: vec![1, 8], ..Sweep::default() };
    let mut records = vec![made::run(&sweep), made::limit("link", "cuda:0", 7e9)];
    records.push(made::limit("storage", &sweep.path, 7e9));
    records.extend(made::samples(&Sweep { repeats: 1, ..sweep }));
    made::text(&records)
}

fn base(number: u64, dice: &mut Dice) -> Base {
    match number {
        0 => Base::of(made::file(&sweep())),
        1 => Base::of(small()),
        2 => Base::of(made::file(&Sweep { fails: 3, repeats: 1, ..sweep() })),
        3 => Base::of(GDSIO),
        4 => Base { map: "cache:=cold", ..Base::of(NIXLBENCH) },
        5 => Base {
            map: "block-size=block size,direction=operation,throughput=MiB/s [last],\
                  iops=IOPS [last],seconds=time ms [last]:ms,mean=IO lat us [avg]:us,\
                  p99=IO lat us [p99]:us",
            ..Base::of(ELBENCHO)
        },
        _ => Base::of(dice.one_of(&FIO)),
    }
}

/// The places of numbers in a text.
fn numbers(text: &str) -> Vec<(usize, usize)> {
    let mut found = Vec::new();
    let mut start = None;
    for (at, letter) in text.char_indices().chain([(text.len(), ' ')]) {
        let within = letter.is_ascii_digit() || (start.is_some() && ".e-+".contains(letter));
        match (within, start) {
            (true, None) => start = Some(at),
            (false, Some(first)) => {
                found.push((first, at));
                start = None;
            }
            _ => {}
        }
    }
    found
}

/// Whether a number is a rate, a time or a ratio, as most numbers of a file are not.
fn is_rate(text: &str, (start, _): (usize, usize)) -> bool {
    let keys = ["per_second\":", "share\":", "_s\":", "_gb\":", "slope\":", "\"rates\":["];
    let keys = keys.into_iter().chain(["median\":", "min\":", "max\":", "speed_up\":"]);
    let before = text[..start].trim_end();
    keys.into_iter().any(|key| before.ends_with(key))
}

/// Puts `token` in the place of the value number `at` within `value`.
fn put(value: &mut Value, at: &mut u64, token: &Value) -> bool {
    if *at == 0 {
        *value = token.clone();
        return true;
    }
    *at -= 1;
    match value {
        Value::Array(values) => values.iter_mut().any(|value| put(value, at, token)),
        Value::Object(values) => values.values_mut().any(|value| put(value, at, token)),
        _ => false,
    }
}

fn size(value: &Value) -> u64 {
    1 + match value {
        Value::Array(values) => values.iter().map(size).sum(),
        Value::Object(values) => values.values().map(size).sum(),
        _ => 0,
    }
}

/// JSON with one value replaced: by another, by one that stands twice, or by deep nesting.
fn with_value(dice: &mut Dice, text: &str) -> Option<String> {
    let mut value: Value = serde_json::from_str(text).ok()?;
    let mut at = dice.below(size(&value));
    put(&mut value, &mut at, &json!("@PUT@"));
    let token = dice.one_of(&VALUES);
    let token = match dice.below(12) {
        0 => format!("{}1{}", "[".repeat(5000), "]".repeat(5000)),
        1 => format!("{}1{}", "{\"a\":".repeat(100), "}".repeat(100)),
        2 => format!("{token},\"schema\":1,\"point\":{token},\"bytes_per_second\":{token}"),
        3 => format!("[{token},{token}]"),
        4 => format!("{{\"a\":{token}}}"),
        _ => token.to_owned(),
    };
    Some(value.to_string().replace("\"@PUT@\"", &token))
}

/// Changes a text in one to four places.
fn changed(dice: &mut Dice, text: &str) -> Vec<u8> {
    let mut text = text.to_owned();
    for _ in 0..=dice.below(4) {
        match dice.below(8) {
            0..=2 => {
                let mut places = numbers(&text);
                if dice.below(2) == 0 && places.iter().any(|place| is_rate(&text, *place)) {
                    places.retain(|place| is_rate(&text, *place));
                }
                if let Some((start, end)) =
                    (!places.is_empty()).then(|| places[index(dice.below(places.len() as u64))])
                {
                    let far = ["1e-320", "1e308", "-1e308", "0"];
                    let value =
                        if dice.below(2) == 0 { dice.one_of(&far) } else { dice.one_of(&VALUES) };
                    text.replace_range(start..end, value);
                }
            }
            3..=5 => {
                // Of a file with a record to a line, one line.
                let mut lines: Vec<String> = text.lines().map(str::to_owned).collect();
                if let Some(whole) = with_value(dice, &text) {
                    text = whole;
                } else if !lines.is_empty() {
                    let at = index(dice.below(lines.len() as u64));
                    let line = &mut lines[at];
                    if let Some(changed) = with_value(dice, line) {
                        *line = changed;
                    }
                    text = lines.join("\n") + "\n";
                }
            }
            6 => {
                let quotes: Vec<usize> = text.match_indices('"').map(|(at, _)| at + 1).collect();
                if let Some(at) =
                    (!quotes.is_empty()).then(|| quotes[index(dice.below(quotes.len() as u64))])
                {
                    text.insert_str(at, dice.one_of(&WORDS));
                }
            }
            _ => {
                let lines: Vec<&str> = text.lines().collect();
                if !lines.is_empty() {
                    let line = lines[index(dice.below(lines.len() as u64))].to_owned();
                    text = format!("{text}{line}\n");
                }
            }
        }
    }
    let mut bytes = text.into_bytes();
    if dice.below(3) == 0 {
        mutate(dice, &mut bytes);
    }
    bytes
}

/// Reads a changed file by the library, in each form.
fn by_library(base: &Base, path: &Path, bytes: &[u8]) {
    let may_hold = no_number(&String::from_utf8_lossy(bytes)).is_some();
    // A change may hide a file's kind, so each tool reads it as well.
    let tools = [None, Some(Tool::Gdsio), Some(Tool::Fio), Some(Tool::Nixlbench), Some(Tool::Csv)];
    let other = path.with_file_name("whole");
    fs::write(&other, made::file(&sweep())).expect("a file");
    let whole = input::read(&other, &Hints::default()).expect("the whole file");
    for tool in tools {
        match input::read(path, &base.hints(tool)) {
            Ok(source) => {
                let own = ("mutated".to_owned(), source);
                check_report(std::slice::from_ref(&own), may_hold);
                check_report(&[("whole".into(), whole.clone()), own.clone()], may_hold);
                check_report(&[own.clone(), ("again".into(), own.1)], may_hold);
            }
            Err(failure) => check_failure(&failure),
        }
    }
}

/// The same by the program.
fn by_program(base: &Base, folder: &Path) {
    fs::write(folder.join("whole"), made::file(&sweep())).expect("a file");
    let map = if base.map.is_empty() { Vec::new() } else { vec!["--columns", base.map] };
    for files in [&["report", "mutated"][..], &["report", "whole", "mutated"]] {
        outcome(folder, &[files, &map].concat());
    }
}

/// Runs `work` in a thread of its own, and fails where that takes too long.
fn in_time(work: impl FnOnce() + Send + 'static) {
    let (report, reported) = channel();
    let worker = thread::spawn(move || {
        work();
        let _ = report.send(());
    });
    match reported.recv_timeout(Duration::from_secs(100)) {
        Err(RecvTimeoutError::Timeout) => panic!("it hangs"),
        _ => worker.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)),
    }
}

fn run(seed: u64) -> Option<()> {
    let mut dice = Dice(seed);
    let folder = tempfile::tempdir().expect("a folder");
    let path: PathBuf = folder.path().join("mutated");
    let base = base(dice.below(KINDS), &mut dice);
    note(format!("in {}", folder.path().display()));
    let bytes = changed(&mut dice, &base.text);
    fs::write(&path, &bytes).expect("a file");
    if seed.is_multiple_of(PROGRAM) {
        by_program(&base, folder.path());
    } else {
        in_time(move || by_library(&base, &path, &bytes));
    }
    Some(())
}

#[test]
fn unchanged_results_are_read() {
    for number in 0..KINDS {
        let folder = tempfile::tempdir().expect("a folder");
        let base = base(number, &mut Dice(0));
        let path = folder.path().join("mutated");
        fs::write(&path, &base.text).expect("a file");
        let read = input::read(&path, &base.hints(None)).is_ok();
        assert!(read, "{number}");
    }
}

#[test]
fn no_rate_is_shown_as_infinite() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("mutated");
    let base = Base::of(small());
    for (start, end) in numbers(&base.text) {
        if !is_rate(&base.text, (start, end)) {
            continue;
        }
        for value in ["1e-320", "1e308"] {
            let mut text = base.text.clone();
            text.replace_range(start..end, value);
            fs::write(&path, &text).expect("a file");
            note(format!("{value} behind {}", &text[start.saturating_sub(60)..start]));
            let source = input::read(&path, &Hints::default()).expect("legal numbers");
            check_report(&[("mutated".into(), source)], false);
        }
    }
}

#[test]
fn changed_results_are_read_or_refused() {
    seeds::each("-p forebay-cli --test cli changed_results", SEEDS, run);
}

#[test]
#[ignore = "slow: its like runs with the others"]
fn many_changed_results_are_read_or_refused() {
    seeds::each("-p forebay-cli --test cli changed_results", 50 * SEEDS, run);
}
