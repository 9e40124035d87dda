//! Measures the project's own performance targets (bars): our engine against the plain method for
//! the same move, interleaved in one run, and judged by the ratio of medians.
//!
//! [`bar`] holds the list of bars, which are functions of the modules that it names. The raw
//! samples, the machine and a summary are archived ([`archive`]). `benches/gpus` measures GPUs.

mod archive;
mod bar;
mod child;
mod cold;
mod data;
mod drives;
mod fio;
mod flight;
mod lab;
mod machine;
mod plain;
mod resident;
mod sample;
mod scratch;
mod small;
mod sweep;

use std::io::Write as _;
use std::path::PathBuf;
use std::process::ExitCode;

use child::Child;
use clap::Parser;

/// Measures the project's performance targets.
#[derive(Debug, Default, Parser)]
struct Arguments {
    /// Measure bars whose name contains NAME.
    #[arg(long, value_name = "NAME")]
    only: Option<String>,
    /// Use small files and few repeats: shows that the bars run, judges nothing.
    #[arg(long)]
    tiny: bool,
    /// Folder in which test files are made and removed.
    #[arg(long, value_name = "DIR", default_value = ".")]
    scratch: PathBuf,
    /// Folder for environment.json, samples.jsonl and table.txt.
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
    /// Write them to a new folder DIR/DATE-MACHINE.
    #[arg(long, value_name = "DIR")]
    archive: Option<PathBuf>,
    /// Do a part of a bar in a process of its own: the bars start this.
    #[arg(long, hide = true)]
    child: Option<Child>,
}

fn main() -> ExitCode {
    let mut arguments = Arguments::parse();
    let result = match arguments.child.take() {
        Some(child) => child.run().map(|()| true).map_err(|stop| format!("{stop:?}")),
        None => lab::measure(&arguments),
    };
    match result {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(message) => {
            let _ = writeln!(std::io::stderr().lock(), "error: {message}");
            ExitCode::FAILURE
        }
    }
}

/// Writes to stdout; a closed pipe is not an error.
fn talk(text: &str) {
    let _ = writeln!(std::io::stdout().lock(), "{text}");
}
