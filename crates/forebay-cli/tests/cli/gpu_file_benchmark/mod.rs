//! `forebay gpu-file-benchmark`: its output, its refusals, and that it leaves nothing behind.

mod devices;
mod ends;
mod help;
mod refused;

use std::fs;
use std::path::Path;
use std::process::{Command, Output};

use crate::program::program;
use crate::proof::stays_in_memory;

/// On a drive, where the system's folder for such files may be in memory.
fn folder() -> tempfile::TempDir {
    tempfile::tempdir_in(".").unwrap()
}

fn benchmark(folder: &Path, arguments: &[&str]) -> Output {
    let mut command = Command::new(program());
    command.current_dir(folder).args(["gpu-file-benchmark", "-s", "2"]).args(arguments);
    command.output().unwrap()
}

fn good(folder: &Path, arguments: &[&str]) -> String {
    let output = benchmark(folder, arguments);
    assert!(output.status.success(), "{arguments:?}: {output:?}");
    String::from_utf8(output.stdout).unwrap()
}

/// The rows of the tables: of writes, then of reads.
fn rows(text: &str) -> Vec<&str> {
    let is_row = |line: &&str| {
        let mut words = line.split_whitespace();
        matches!(words.next(), Some("standard" | "forebay" | "direct"))
            && words.next().is_some_and(|word| word.parse::<f64>().is_ok())
    };
    text.lines().filter(is_row).collect()
}

/// The names in a folder.
fn names(folder: &Path) -> Vec<String> {
    let entries = fs::read_dir(folder).unwrap();
    let names = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap());
    let mut names: Vec<String> = names.collect();
    names.sort();
    names
}

/// The exit code and what stands on stderr, of a command that prints nothing and leaves nothing.
fn failure(folder: &Path, arguments: &[&str]) -> (i32, String) {
    let before = names(folder);
    let output = benchmark(folder, arguments);
    assert!(output.stdout.is_empty(), "{output:?}");
    assert_eq!(names(folder), before, "something was left");
    (output.status.code().unwrap(), String::from_utf8(output.stderr).unwrap())
}

#[test]
fn each_run_has_a_line_and_each_way_a_row() {
    let folder = folder();
    for gpu in ["none", "sim"] {
        let text = good(folder.path(), &["-m", "compare", "-r", "2", "--gpu", gpu]);
        for run in [1, 2] {
            for way in ["standard", "forebay"] {
                let line = format!("{way}, run {run}: write ");
                let line = text.lines().find(|found| found.starts_with(&line)).unwrap();
                assert!(line.contains(" GB/s, read ") && line.contains(" GB/s, verified"));
            }
        }
        assert_eq!(rows(&text).len(), 4, "{text}");
        assert!(["% faster", "% slower", "as fast"].iter().any(|word| text.contains(word)));
        assert!(text.lines().skip_while(|line| !line.starts_with("each run")).count() > 10);
        for line in text.lines().skip_while(|line| !line.is_empty()) {
            assert!(line.chars().count() <= 80 || line.starts_with(['D', 'x', 'd']), "{line}");
            let is_number = line.contains(" GB/s, ") && !line.contains("first");
            if is_number || rows(line).len() == 1 {
                assert_eq!(line.contains("simulated"), gpu == "sim", "{line}");
            }
        }
        assert_eq!(names(folder.path()), [""; 0]);
    }
}

#[test]
fn the_direct_path_is_called_dma_by_what_others_counted() {
    let folder = folder();
    let probe = folder.path().join("probe");
    fs::write(&probe, vec![7; 1 << 20]).unwrap();
    if let Some(reason) = stays_in_memory(&probe) {
        return println!("skipped: a direct path: {reason}");
    }
    for mode in ["dma", "compare"] {
        let text = good(folder.path(), &["-m", mode, "--gpu", "sim:cufile", "-r", "1"]);
        let of = |name| rows(&text).iter().filter(|row| row.starts_with(name)).count();
        let ours = if mode == "dma" { 0 } else { 2 };
        assert_eq!((of("standard"), of("direct"), of("forebay")), (2, 2, ours), "{text}");
        for line in dma(&text) {
            if line.contains("not proven") {
                println!("skipped: a proven path: {line}");
                continue;
            }
            assert!(line.contains(": yes: ") && line.contains("direct: direct (p2pdma)"), "{line}");
        }
    }
}

/// The lines that say whether it was DMA, writing and reading.
fn dma(text: &str) -> Vec<&str> {
    text.lines().filter_map(|line| line.strip_prefix("DMA      ")).collect()
}

#[test]
fn it_is_called_dma_where_the_verdict_says_so_and_nowhere_else() {
    let folder = folder();
    let text = good(folder.path(), &["-m", "compare", "-r", "1", "--gpu", "sim"]);
    let said = dma(&text);
    assert_eq!(said.len(), 2, "{text}");
    for (line, direction) in said.iter().zip(["write", "read"]) {
        let says = |word| line.starts_with(&format!("{direction}: {word}: forebay"));
        assert!(says("no") || says("not proven"), "{line}");
        assert!(line.ends_with(", simulated"), "{line}");
    }
    assert_eq!(text.matches("DMA").count(), 2, "{text}");

    // A library that says that bytes have gone, which have not.
    let output = benchmark(folder.path(), &["-m", "dma", "-r", "1", "--gpu", "sim:cufile=lie"]);
    let (text, message) = (String::from_utf8(output.stdout), String::from_utf8(output.stderr));
    let (text, message) = (text.unwrap(), message.unwrap());
    if message.contains("by the route `direct`: ") {
        return println!("skipped: a path that lies: {message}");
    }
    assert_eq!(output.status.code(), Some(1), "{text}");
    assert!(text.contains("run 1: ") && text.contains("MISMATCH"), "{text}");
    assert!(message.contains("error: wrong data were found"), "{message}");
    assert!(dma(&text).iter().all(|line| line.contains(": not proven: ")), "{text}");
    let wrong: Vec<&str> = text.lines().filter(|line| line.contains("MISMATCH")).collect();
    assert!(!wrong.is_empty());
    for line in wrong {
        assert!(!line.contains("faster") && !line.contains("slower"), "it says nothing: {line}");
    }
}

#[test]
fn a_kernel_works_alone_and_beside_a_read() {
    let folder = folder();
    let text = good(folder.path(), &["-r", "2", "--gpu", "sim"]);
    for run in [1, 2] {
        let line = format!("xor, run {run}: alone ");
        let line = text.lines().find(|found| found.starts_with(&line)).unwrap();
        assert!(line.contains("GB/s, during a read ") && line.ends_with("verified, simulated"));
    }
    for (name, says) in [("xor ", "verified, simulated"), ("during ", ", simulated")] {
        let line = text.lines().find(|line| line.starts_with(name) && !line.contains("run "));
        assert!(line.unwrap().ends_with(says), "{text}");
    }
    // Without a GPU the rest is measured all the same.
    let output = benchmark(folder.path(), &["-r", "1", "--gpu", "none"]);
    assert!(output.status.success(), "{output:?}");
    let message = String::from_utf8(output.stderr).unwrap();
    assert!(
        message.contains("own work during a read is not measured: no GPU is available"),
        "{message}"
    );
    assert!(!String::from_utf8(output.stdout).unwrap().contains("xor"));
}

#[test]
fn a_file_system_in_memory_is_told() {
    let Ok(folder) = tempfile::tempdir_in("/dev/shm") else {
        return println!("skipped: a file system in memory: no `/dev/shm`");
    };
    let output = benchmark(folder.path(), &["-m", "compare", "-r", "1", "--gpu", "none"]);
    assert!(output.status.success(), "{output:?}");
    let text = String::from_utf8(output.stdout).unwrap();
    if !text.contains(", tmpfs") {
        return println!("skipped: a file system in memory: `/dev/shm` is another");
    }
    assert!(text.contains("reads begin there") && rows(&text).len() == 4, "{text}");
    let message = String::from_utf8(output.stderr).unwrap();
    assert!(message.contains("stays in memory") && message.contains("tmpfs keeps"), "{message}");
}
