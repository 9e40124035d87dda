//! Measures the project's own performance targets (bars): our engine against the plain method for
//! the same move, interleaved in one run, and judged by the ratio of medians.
//!
//! A bar is a function in one of the modules `host`, `small`, `memlock`, `memory`, `resident`,
//! `first`, `write`, `cold`, `map`, `sweep` and `drives`; [`bar`] holds the list. The rest is
//! shared. The raw samples, the machine and a summary are archived ([`archive`]).

mod archive;
mod arguments;
mod bar;
mod cold;
mod data;
mod device;
mod drives;
mod fio;
mod first;
mod flight;
mod host;
mod lab;
mod machine;
mod many;
mod map;
mod memlock;
mod memory;
mod plain;
mod resident;
mod ring;
mod sample;
mod scratch;
mod small;
mod statistics;
mod sweep;
mod write;

use std::io::Write as _;
use std::process::ExitCode;

use arguments::{Arguments, Chore};

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let result = match Arguments::parse(&words) {
        Ok(Chore::Help) => {
            talk(arguments::HELP);
            Ok(true)
        }
        Ok(Chore::MakeFile { path, len }) => data::write(&path, len).map(|()| true),
        Ok(Chore::ProbeMemory { path, gpu }) => memory::probe(&path, &gpu).map(|()| true),
        Ok(Chore::ServeReads { path, locked }) => memlock::serve(&path, &locked).map(|()| true),
        Ok(Chore::RunDrives(job)) => drives::run(&job).map(|()| true),
        Ok(Chore::ServeDrive { image, point, pace, namespace }) => {
            drives::slow::serve(&image, &point, pace, &namespace).map(|()| true)
        }
        Ok(Chore::Measure(arguments)) => lab::measure(arguments),
        Err(message) => {
            complain(&message);
            return ExitCode::from(2);
        }
    };
    match result {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(message) => {
            complain(&message);
            ExitCode::FAILURE
        }
    }
}

/// Writes to stdout; a closed pipe is not an error.
fn talk(text: &str) {
    let _ = writeln!(std::io::stdout().lock(), "{text}");
}

fn complain(message: &str) {
    let _ = writeln!(std::io::stderr().lock(), "error: {message}");
}
