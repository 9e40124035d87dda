//! `forebay gpu-file-benchmark`: its output, its refusals, and that it leaves nothing behind.

mod devices;
mod ends;
mod help;
mod refused;

use std::fs;
use std::path::Path;
use std::process::Output;

use crate::program::{folder, names, run};
use crate::proof::stays_in_memory;

fn benchmark(folder: &Path, arguments: &[&str]) -> Output {
    run(folder, ["gpu-file-benchmark", "-s", "2"].iter().chain(arguments))
}

fn good(folder: &Path, arguments: &[&str]) -> String {
    let output = benchmark(folder, arguments);
    assert!(output.status.success(), "{arguments:?}: {output:?}");
    String::from_utf8(output.stdout).unwrap()
}

/// The rows of methods: without limits, and those that were measured.
fn rows(text: &str) -> Vec<&str> {
    let is_row = |line: &&str| {
        let method = ["read()", "write()", "forebay"].iter().any(|name| line.starts_with(name));
        method && line.split_whitespace().last().is_some_and(|word| word.parse::<f64>().is_ok())
    };
    text.lines().filter_map(|line| line.strip_prefix("  ")).filter(is_row).collect()
}

/// A text without its line breaks.
fn words(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
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
fn each_method_has_a_row_of_each_direction() {
    let folder = folder();
    for (gpu, samples) in [("none", "3"), ("sim", "1")] {
        let text = good(folder.path(), &["-m", "compare", "-r", samples, "--gpu", gpu]);
        for state in ["WRITE, synced", "READ, warm", "READ, cold"] {
            assert!(text.contains(state), "{text}");
        }
        assert_eq!(rows(&text).len(), 6, "{text}");
        assert!(words(&text).contains(&format!("files of 2 MiB · {samples} sample")), "{text}");
        assert!(words(&text).contains("All data verified."), "{text}");
        // Three samples may be too far apart for a ratio; one never makes any.
        assert!(samples == "3" || !text.contains('×'), "{text}");
        assert!(text.lines().all(|line| line.chars().count() <= 80), "{text}");
        assert_eq!(names(folder.path()), [""; 0]);
    }
}

#[test]
fn the_direct_route_is_proven_by_counters() {
    let folder = folder();
    let probe = folder.path().join("probe");
    fs::write(&probe, vec![7; 1 << 20]).unwrap();
    if let Some(reason) = stays_in_memory(&probe) {
        return println!("skipped: a direct path: {reason}");
    }
    let text = good(folder.path(), &["-m", "compare", "--gpu", "sim:cufile", "-r", "1"]);
    let direct = |row: &&&str| row.starts_with("forebay --route direct");
    assert_eq!(rows(&text).iter().filter(direct).count(), 3, "{text}");
    assert_eq!(rows(&text).len(), 9, "{text}");
    let (_, path) = text.split_once("Path: ").unwrap();
    match path.contains("unproven") {
        true => println!("skipped: a proven path: {text}"),
        false => assert!(words(path).contains("direct (p2pdma)"), "{text}"),
    }
}

#[test]
fn a_false_report_of_the_library_is_found() {
    let folder = folder();
    // A library that says that bytes have gone, which have not.
    let output = benchmark(folder.path(), &["-m", "dma", "-r", "1", "--gpu", "sim:cufile=lie"]);
    let (text, message) = (String::from_utf8(output.stdout), String::from_utf8(output.stderr));
    let (text, message) = (text.unwrap(), message.unwrap());
    if message.contains("by the route `direct`: ") {
        return println!("skipped: a path that lies: {message}");
    }
    assert_eq!(output.status.code(), Some(1), "{text}");
    assert!(message.contains("moved wrong data"), "{message}");
    let wrong: Vec<&str> = text.lines().filter(|line| line.contains("MISMATCH")).collect();
    assert!(!wrong.is_empty(), "{text}");
    assert!(wrong.iter().all(|line| !line.contains('×')), "its speed means nothing: {text}");
}

#[test]
fn a_kernel_works_alone_and_during_a_read() {
    let folder = folder();
    let text = good(folder.path(), &["-r", "1", "--gpu", "sim"]);
    let (_, kernel) = text.split_once("\nKernel: XOR of 2 MiB of the GPU's memory, ").unwrap();
    let kernel = words(kernel);
    assert!(kernel.contains("During a read: ") && kernel.ends_with("verified."), "{kernel}");
    assert!(text.lines().all(|line| line.chars().count() <= 80), "{text}");
    // Without a GPU the rest is measured all the same.
    let output = benchmark(folder.path(), &["-r", "1", "--gpu", "none"]);
    assert!(output.status.success(), "{output:?}");
    let message = String::from_utf8(output.stderr).unwrap();
    assert!(
        message.contains("the GPU's own work is not measured: no GPU is available"),
        "{message}"
    );
    assert!(!String::from_utf8(output.stdout).unwrap().contains("Kernel"));
}

#[test]
fn a_file_system_in_memory_is_reported() {
    let Ok(folder) = tempfile::tempdir_in("/dev/shm") else {
        return println!("skipped: a file system in memory: no `/dev/shm`");
    };
    let output = benchmark(folder.path(), &["-m", "compare", "-r", "1", "--gpu", "none"]);
    assert!(output.status.success(), "{output:?}");
    let text = String::from_utf8(output.stdout).unwrap();
    if !text.contains("tmpfs") {
        return println!("skipped: a file system in memory: `/dev/shm` is another");
    }
    assert!(!text.contains("cold") && rows(&text).len() == 4, "{text}");
    let message = String::from_utf8(output.stderr).unwrap();
    assert!(message.contains("tmpfs keeps its files in memory"), "{message}");
}
