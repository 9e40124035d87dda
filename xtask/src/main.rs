//! Runs the project's chores: `cargo xtask CHORE`.
//!
//! Each chore is a module; this file only chooses between them.

mod bars;
mod bundle;
mod cufile;
mod executables;
mod folders;
mod lab;
mod pages;
mod prepare;
mod process;
mod python;
mod report;
mod sanitize;
mod servers;
mod soak;
mod test;
mod tidy;
mod wheel;

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::Parser;
use process::{Result, say};
use report::Report;

/// Runs the project's chores.
#[derive(Parser)]
#[command(bin_name = "cargo xtask", disable_help_subcommand = true)]
enum Chore {
    /// Check everything that must hold before a change is accepted.
    Test {
        /// Run slow tests, sanitizers, the wheel, the bundle, the lab and licence checks too.
        #[arg(long)]
        all: bool,
        /// Install missing tools with apt-get; needs root.
        #[arg(long)]
        install: bool,
    },
    /// Check the style rules that rustfmt and clippy do not know.
    Tidy,
    /// Measure the project's performance targets (bars), and archive the run.
    Bench(bars::Arguments),
    /// Compare maps and reads with the storage of a virtual machine.
    Lab(lab::Arguments),
    /// Run the engine under seeded faults for hours.
    Soak(soak::SoakArguments),
    /// Run the engine's tests under tools that find invalid memory accesses and races.
    Sanitize {
        /// Tools to use; all by default.
        tools: Vec<sanitize::Tool>,
    },
    /// Build the references of Python, Rust, the command and results files: `target/pages`.
    Pages,
    /// Build the Python package as a release wheel, install it and test it.
    Wheel,
    /// Pack tests and bars for a machine without cargo: `DIR/run`, `DIR/run bench`.
    Bundle {
        dir: PathBuf,
        /// Pack only the bars for GPUs and the wheel: `python3 DIR/gpus`.
        #[arg(long)]
        gpus: bool,
    },
}

fn main() -> ExitCode {
    let chore = Chore::parse();
    match process::heed_signals().and_then(|()| chore.run()) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(message) => {
            say!(err, "error: {message}");
            ExitCode::FAILURE
        }
    }
}

impl Chore {
    /// Runs the chore; `Ok(false)` if it found a problem.
    fn run(self) -> Result<bool> {
        match self {
            Self::Test { all, install } => test::run(&repository()?, all, install),
            Self::Tidy => tidy::run(&repository()?),
            Self::Bench(arguments) => bars::run(arguments),
            Self::Lab(arguments) => reported(|report, root| lab::run(report, root, &arguments)),
            Self::Soak(arguments) => soak::run(&repository()?, arguments),
            Self::Sanitize { tools } => {
                reported(|report, root| sanitize::run(report, root, &tools))
            }
            Self::Pages => reported(pages::run),
            Self::Wheel => reported(wheel::run),
            Self::Bundle { dir, gpus: true } => bundle::gpus(&repository()?, &dir).map(|()| true),
            Self::Bundle { dir, gpus: false } => bundle::run(&repository()?, &dir).map(|()| true),
        }
    }
}

/// Runs a chore that is also a step of the tests, with a report of its own.
fn reported(chore: impl FnOnce(&mut Report, &Path) -> Result<()>) -> Result<bool> {
    let mut report = Report::default();
    chore(&mut report, &repository()?)?;
    Ok(report.finish())
}

/// The root of the repository, from cargo: the chore may start in any folder of it.
fn repository() -> Result<PathBuf> {
    let metadata = process::output(process::cargo().args([
        "locate-project",
        "--workspace",
        "--message-format=plain",
    ]))?;
    let manifest = PathBuf::from(metadata.trim());
    manifest.parent().map(PathBuf::from).ok_or_else(|| "no workspace around this folder".into())
}
