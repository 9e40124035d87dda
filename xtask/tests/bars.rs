//! Every bar runs, on little data. Nothing is judged.

#![allow(clippy::print_stdout, reason = "output of the bars, for a failure")]

use std::path::{Path, PathBuf};
use std::process::Command;

#[test]
fn every_bar_runs_in_miniature() {
    let here = Path::new(env!("CARGO_BIN_EXE_xtask")).with_file_name("forebay");
    let forebay = std::env::var_os("FOREBAY_BIN").map_or(here, PathBuf::from);
    if !forebay.is_file() {
        println!("skipped: bars: no `{}`: build it with `cargo build`", forebay.display());
        return;
    }
    // A bundle holds both programs.
    let bundled = forebay.with_file_name("xtask");
    let xtask = if bundled.is_file() { bundled } else { env!("CARGO_BIN_EXE_xtask").into() };
    // On a drive: a tmpfs would not do.
    let scratch = tempfile::tempdir_in(forebay.parent().unwrap()).unwrap();
    let mut bars = Command::new(xtask);
    bars.args(["bench", "--tiny", "--program"]).arg(&forebay);
    let output = bars.arg("--scratch").arg(scratch.path()).output().unwrap();
    println!("{}", String::from_utf8_lossy(&output.stdout));
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}
