//! The command, as a user sees it. One program for all these tests: each of its own would
//! carry the whole library.

#![allow(clippy::unwrap_used, reason = "a test may fail by panicking")]
#![allow(clippy::print_stdout, reason = "skipped tests are reported")]

mod bench;
mod closes;
mod corrupted;
mod cufile;
mod doctor;
#[allow(dead_code, reason = "the library's own tests use the rest")]
#[path = "../../../forebay-cufile/tests/lab/cufile/mod.rs"]
mod fake;
mod gdsio;
mod gpu_file_benchmark;
mod help;
mod interrupt;
#[path = "../../../forebay/tests/lab/mod.rs"]
mod lab;
mod limits;
mod log;
#[allow(dead_code, reason = "the library's own tests use the rest")]
#[path = "../../../forebay-doctor/tests/doctor/machine.rs"]
mod machine;
mod manual;
mod map;
mod mutated;
mod pages;
mod paths;
mod probe;
mod program;
mod proof;
mod ranks;
mod report;
mod rows;
mod shown;
mod signals;
mod silent;
mod sockets;
mod stdio;
mod swapped;
#[allow(dead_code, reason = "the library's own tests use the rest")]
#[path = "../../../forebay-topology/tests/topology/tree.rs"]
mod tree;
mod uplink;
mod usage;
mod verbs;

/// A folder for machines that are made by hand.
fn scratch() -> tempfile::TempDir {
    tempfile::tempdir().expect("a temporary folder")
}
