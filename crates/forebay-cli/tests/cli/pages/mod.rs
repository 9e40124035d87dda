//! What the pages of the documentation say: their examples run as they are printed, their numbers
//! are those of the archived runs that they name, and the checks that they name exist.
//!
//! A block that begins with `sh` is run by the shell, whole, in one fresh folder for the page, and
//! has to end with 0, or as `exit-N` beside `sh` says. What needs hardware is marked `needs-…`:
//! each command of such a block is parsed as it is printed, and in the slow tests runs with a
//! simulated GPU and little to do. Of blocks that begin with `console` each command is parsed and
//! no more.

mod archived;
mod block;

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::{Command, Output, Stdio};

use block::{Block, blocks};
use clap::Parser as _;
use forebay_cli::args::Arguments;
use tempfile::TempDir;

use crate::program::program;
use crate::proof::stays_in_memory;
use crate::report::made::{self, Sweep};

const GUIDE: &str = include_str!("../../../../../docs/guide.md");
const REPORT: &str = include_str!("../../../../../docs/report.md");
const OTHERS: [(&str, &str); 3] = [
    ("gpu-file-benchmark.md", include_str!("../../../../../docs/gpu-file-benchmark.md")),
    ("gdsio.md", include_str!("../../../../../docs/gdsio.md")),
    ("bench.md", include_str!("../../../../../docs/bench.md")),
];

/// A folder on a drive, with the command below `bin`.
fn folder() -> TempDir {
    let folder = tempfile::tempdir_in(".").unwrap();
    for name in ["bin", "home", "here"] {
        fs::create_dir(folder.path().join(name)).unwrap();
    }
    symlink(program(), folder.path().join("bin/forebay")).unwrap();
    folder
}

/// Runs a script in the folder `here`, with `forebay` as the only word that is put in its way.
fn shell(folder: &TempDir, script: &str) -> Output {
    let root = std::path::absolute(folder.path()).unwrap();
    let path = std::env::var("PATH").unwrap_or_default();
    let mut command = Command::new("sh");
    command.arg("-ec").arg(script).current_dir(root.join("here")).stdin(Stdio::null());
    command.env("PATH", format!("{}:{path}", root.join("bin").display()));
    for variable in ["HOME", "XDG_STATE_HOME", "XDG_CACHE_HOME"] {
        command.env(variable, root.join("home"));
    }
    command.output().unwrap()
}

fn said(output: &Output) -> String {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    format!("{}\n{}", text(&output.stdout), text(&output.stderr))
}

/// Runs one block of a page.
fn run(folder: &TempDir, page: &str, block: &Block) {
    let output = shell(folder, &block.text);
    let code = output.status.code();
    assert!(
        block.exits().contains(&code.unwrap_or(-1)),
        "{page}:{}: ended with {code:?}:\n{}\n{}",
        block.line,
        block.text,
        said(&output)
    );
}

/// Has the shell part the words of each command of a block, and the command line read them.
fn parse(folder: &TempDir, page: &str, block: &Block) -> usize {
    // What a loop would set.
    let words = "queues=1; exec 3>&1; forebay() { printf '%s\\0' forebay \"$@\" >&3; }; ";
    let commands = block.commands();
    for command in &commands {
        // No words are written to where the command would write its results.
        let output = shell(folder, &format!("{words}{command}"));
        assert!(output.status.success(), "{page}:{}: {command}: {}", block.line, said(&output));
        let text = String::from_utf8(output.stdout).unwrap();
        let parsed = Arguments::try_parse_from(text.trim_end_matches('\0').split('\0'));
        if let Err(error) = parsed {
            panic!("{page}:{}: {command}: {error}", block.line);
        }
    }
    commands.len()
}

/// Has what follows run on the simulated GPU, with little to do, in this folder.
const SMALL: &str = "
forebay() {
  verb=$1; shift
  case $verb in
    bench) set -- --gpu sim:cufile --size 4M --time 10ms --repeats 1 \"$@\" ;;
    gpu-file-benchmark) set -- --gpu sim:cufile -s 2 -r 1 \"$@\" ;;
  esac
  command forebay $verb \"$@\"
}
";

/// Runs a block that names `/data` and takes hardware, with as much less as it takes to run here.
fn run_small(folder: &TempDir, page: &str, block: &Block) {
    let mut small = block.clone();
    small.text = format!("{SMALL}{}", block.text.replace("/data", "."));
    run(folder, page, &small);
}

#[test]
fn every_example_of_the_guide_runs() {
    let folder = folder();
    let (mut ran, mut parsed) = (0, 0);
    for block in blocks(GUIDE) {
        if !block.is("sh") {
            assert!(block.is("text"), "guide.md:{}: a block of no known kind", block.line);
        } else if block.needs().is_some() {
            parsed += parse(&folder, "guide.md", &block);
        } else {
            // The shell ends with the last command's code, and ends at the first that fails.
            let code = block.exits();
            assert!(code == [0] || block.commands().len() == 1, "guide.md:{}", block.line);
            run(&folder, "guide.md", &block);
            ran += block.commands().len();
        }
    }
    assert!(ran >= 10 && parsed >= 5, "{ran} ran, {parsed} were parsed");
    let left = fs::read_dir(folder.path().join("here")).unwrap();
    let left: Vec<String> =
        left.map(|entry| entry.unwrap().file_name().to_string_lossy().into_owned()).collect();
    let scratch = left.iter().filter(|name| name.starts_with(".forebay") || *name == "gdsio.0");
    assert_eq!(scratch.count(), 0, "{left:?}");
}

#[test]
#[ignore = "takes half a minute"]
fn the_examples_of_the_guide_for_hardware_run_on_a_simulated_gpu() {
    let folder = folder();
    let probe = folder.path().join("probe");
    fs::write(&probe, vec![7; 1 << 20]).unwrap();
    if let Some(reason) = stays_in_memory(&probe) {
        return println!("skipped: the guide's examples for drives: {reason}");
    }
    let needing = blocks(GUIDE).into_iter().filter(|block| block.needs().is_some());
    let ran = needing.map(|block| run_small(&folder, "guide.md", &block));
    assert!(ran.count() >= 3, "there are some");
}

#[test]
fn the_examples_of_the_other_pages_are_commands() {
    let folder = folder();
    for (page, text) in OTHERS {
        let count: usize = blocks(text)
            .iter()
            .filter(|block| block.is("sh") || block.is("console"))
            .map(|block| parse(&folder, page, block))
            .sum();
        assert!(count >= 3, "{page}: {count}");
    }
}

/// Writes the files that the page of `report` names.
fn prepare(here: &Path) {
    let sweep = |label| Sweep { label, depths: vec![1], ..Sweep::default() };
    for name in ["before.jsonl", "after.jsonl"] {
        fs::write(here.join(name), made::file(&sweep(None))).unwrap();
    }
    for label in ["1", "2", "4", "8"] {
        let text = made::file(&sweep(Some(label)));
        fs::write(here.join(format!("queues-{label}.jsonl")), text).unwrap();
    }
    fs::write(here.join("fio.json"), include_str!("../../import/fio/random.json")).unwrap();
    fs::write(here.join("t.csv"), "Block,BW (MiB/s),lat99\n64K,1000,200\n1M,2000,900\n").unwrap();
    let line = "IoType: READ XferType: CPU_GPU Threads: 8 DataSetSize: 8388608/8388608(KiB) \
                IOSize: 1024(KiB) Throughput: 2.000000 GiB/sec, Avg_Latency: 3906.250000 usecs \
                ops: 8192 total_time 4.000000 secs\n";
    fs::write(here.join("gdsio.log"), line).unwrap();
}

#[test]
fn the_commands_of_the_report_page_run() {
    let folder = folder();
    prepare(&folder.path().join("here"));
    let mut count = 0;
    for block in blocks(REPORT).iter().filter(|block| block.is("sh") || block.is("console")) {
        parse(&folder, "report.md", block);
        for command in block.commands() {
            // A measurement takes a path and time.
            if !command.starts_with("forebay bench") {
                let output = shell(&folder, &command);
                assert!(output.status.success(), "{command}: {}", said(&output));
                count += 1;
            }
        }
    }
    assert!(count >= 7, "{count}");
}
