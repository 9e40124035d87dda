//! Runs the project's chores: `cargo xtask CHORE`.
//!
//! Each chore is a module; this file only chooses between them. The `run` script of a bundle calls
//! `replay` on a machine without cargo.

mod bench;
mod bundle;
mod cufile;
mod fio;
mod folders;
mod lab;
mod packages;
mod prepare;
mod process;
mod python;
mod replay;
mod report;
mod sanitize;
mod servers;
mod soak;
mod test;
mod tidy;
mod wheels;

use std::path::PathBuf;
use std::process::ExitCode;

use process::{Result, say};

const HELP: &str = "\
usage: cargo xtask CHORE

  test [--all]            prepares this machine, then checks style, lints, tests, docs, examples
                          (`--all`: slow tests, sanitizers, the wheels, the bundle, the lab,
                          the dependencies' licences too)
  tidy                    checks the project's own style rules
  bench [ARGUMENT]...     measures the bars and archives the run (`--help` lists the arguments)
  lab [ARGUMENT]...       compares maps and reads with how a virtual machine's storage was built
                          (`--help` lists the arguments)
  soak [ARGUMENT]...      runs the engine under seeded faults for hours
                          (`--help` lists the arguments)
  sanitize [TOOL]...      runs the engine's tests under `address`, `thread` and `miri`, or those of
                          them that are named (needs a nightly toolchain)
  wheels [PART]...        builds the Python package as it is handed out, installs and tests it:
                          `native`, `source`, `aarch64`, `free-threaded`, or those that
                          are named
  bundle DIR              fills DIR with everything that a machine without cargo needs to run
                          the same tests (`DIR/run`) and bars (`DIR/run bench`)
";

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match process::heed_signals().and_then(|()| choose(&arguments)) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(message) => {
            say!(err, "error: {message}");
            ExitCode::FAILURE
        }
    }
}

/// Runs the chore that `arguments` name; `Ok(false)` if it ran and found a problem.
fn choose(arguments: &[String]) -> Result<bool> {
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match words.as_slice() {
        ["test"] => test::run(&repository()?, false),
        ["test", "--all"] => test::run(&repository()?, true),
        ["tidy"] => tidy::run(&repository()?),
        ["bench", rest @ ..] => bench::run(&repository()?, rest),
        ["lab", rest @ ..] => lab::run(&repository()?, rest),
        ["soak", rest @ ..] => soak::run(&repository()?, rest),
        ["sanitize", rest @ ..] => sanitize::run(&repository()?, rest),
        ["wheels", rest @ ..] => wheels::run(&repository()?, rest),
        ["bundle", folder] => bundle::run(&repository()?, &PathBuf::from(folder)).map(|()| true),
        ["replay", folder, rest @ ..] => replay::run(&PathBuf::from(folder), rest),
        ["help" | "-h" | "--help"] => {
            say!("{HELP}");
            Ok(true)
        }
        _ => Err(format!("no such chore: `{}`\n\n{HELP}", words.join(" "))),
    }
}

/// The root of the repository: asked of cargo, because the chore may start in any folder of it.
fn repository() -> Result<PathBuf> {
    let metadata = process::output(process::cargo().args([
        "locate-project",
        "--workspace",
        "--message-format=plain",
    ]))?;
    let manifest = PathBuf::from(metadata.trim());
    manifest.parent().map(PathBuf::from).ok_or_else(|| "no workspace around this folder".into())
}
