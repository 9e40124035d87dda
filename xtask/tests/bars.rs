//! Every bar runs, on little data. Nothing is judged.

#![allow(clippy::print_stdout, reason = "output of the bars, for a failure")]

use std::path::PathBuf;
use std::process::Command;

#[test]
fn every_bar_runs_in_miniature() {
    let here = PathBuf::from(env!("CARGO_BIN_EXE_forebay-bars"));
    let bundled = std::env::var_os("FOREBAY_BIN").map(PathBuf::from);
    let program = bundled.map_or(here, |forebay| forebay.with_file_name("forebay-bars"));
    // On a drive: a tmpfs would not do.
    let scratch = tempfile::tempdir_in(program.parent().unwrap()).unwrap();
    let output =
        Command::new(&program).args(["--tiny", "--scratch"]).arg(scratch.path()).output().unwrap();
    println!("{}", String::from_utf8_lossy(&output.stdout));
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}
