//! The `forebay` command as a library: arguments in, report out.
//!
//! `args` reads the command line. Each verb has a module ([`mod@bench`], [`map`],
//! [`mod@sweep`], [`read`], [`doctor`], [`gdsio`], [`import`], `stream`, `probe`,
//! `manual`).
//!
//! [`program`] starts the command again, [`workload`] keeps files busy, and [`results`] stores
//! measurements. [`report`] shows them, [`mod@diff`] compares them. [`failure`] is the error of a
//! verb, `log` shows the engine's events, [`power`] reads power sensors. `watched` runs a verb in a
//! process that can be abandoned; `steps` detects operations that never return. Data go to stdout,
//! messages to stderr; [`stdio`] checks whether they are open.

pub mod args;
pub mod bench;
mod depth;
pub mod diff;
pub mod doctor;
pub mod failure;
pub mod gdsio;
mod gpu_file_benchmark;
pub mod import;
mod interrupt;
mod json_memory;
mod limits;
mod log;
mod manual;
pub mod map;
pub mod power;
mod probe;
pub mod program;
mod reach;
pub mod read;
pub mod report;
pub mod results;
mod shell;
pub mod sockets;
pub mod stdio;
pub mod steps;
mod stream;
pub mod sweep;
mod usage;
mod variables;
mod watched;
pub mod workload;

use std::ffi::OsString;
use std::io::Write as _;
use std::process::ExitCode;
use std::sync::Arc;

use clap::Parser;
use clap::error::ErrorKind;

use args::{Arguments, Verb};
use failure::Failure;
use program::Program;

/// Runs the command of `arguments`, which begin with the program's own name. It may start this
/// process's program again, with other arguments that must reach this function. A caller that needs
/// another program calls [`run_as`].
///
/// The code is 0 on success, 1 if something failed or wrong data were found, and 2 if the command
/// itself is invalid.
pub fn run(arguments: impl IntoIterator<Item = OsString>) -> ExitCode {
    run_as(&Program::of_this_process(), arguments)
}

/// Like `run`, in a process with another program, such as an interpreter. `program` starts the
/// command again, since code that touches files runs in a process that can be abandoned.
pub fn run_as(program: &Program, arguments: impl IntoIterator<Item = OsString>) -> ExitCode {
    stdio::hold(); // an interpreter has not done it
    // Otherwise the kernel ends the process if a file grows beyond a limit (`ulimit -f`), without
    // cleanup or a message. With a handler, the write fails.
    let _ = signal_hook::flag::register(libc::SIGXFSZ, Arc::default());
    let mut arguments: Vec<OsString> = arguments.into_iter().collect();
    let is_child = arguments.get(1).is_some_and(|verb| verb == watched::VERB);
    if is_child {
        let word = arguments.get(2).cloned().unwrap_or_default();
        arguments.drain(1..arguments.len().min(3));
        if let Err(failure) = watched::begin(&word) {
            return end(Err(failure));
        }
    }
    watched::aside(|| run_verb(program, &arguments, is_child))
}

/// Runs the verb of `arguments`, in a child process unless this is one.
fn run_verb(program: &Program, arguments: &[OsString], is_child: bool) -> ExitCode {
    let parsed = match Arguments::try_parse_from(arguments) {
        Ok(parsed) => parsed,
        Err(error) => {
            let verb = arguments.get(1).and_then(|word| word.to_str());
            return not_a_verb(&error, verb);
        }
    };
    if !is_child
        && is_shown(&parsed.verb)
        && let Err(failure) = stdio::check()
    {
        return end(Err(failure));
    }
    let moves = matches!(
        parsed.verb,
        Verb::Bench(_)
            | Verb::Read(_)
            | Verb::Sweep(_)
            | Verb::Doctor(_)
            | Verb::Gdsio(_)
            | Verb::GpuFileBenchmark(_)
    );
    if moves
        || matches!(parsed.verb, Verb::Map(_) | Verb::Report(_) | Verb::Import(_) | Verb::Diff(_))
    {
        if !is_child && let Some(code) = watched::run(program, arguments) {
            return code;
        }
        // The doctor has its own time limits, and reports its findings.
        if !matches!(parsed.verb, Verb::Doctor(_)) {
            steps::watch();
        }
    }
    if moves {
        variables::warn_of_unknown();
    }
    let is_about_us = matches!(parsed.verb, Verb::Completions { .. } | Verb::Man);
    if !is_about_us && let Err(failure) = log::begin() {
        return end(Err(failure));
    }
    let result = match &parsed.verb {
        Verb::Bench(args) if args.find_depth => {
            depth::command(args, &command_line(arguments), program)
        }
        Verb::Bench(args) => bench::command(args, &command_line(arguments), program),
        Verb::Read(args) => read::command(args, program),
        Verb::Map(args) => map::command(args, &command_line(arguments), program),
        Verb::Sweep(args) => sweep::command(args, &command_line(arguments), program),
        Verb::Stream(args) => stream::command(args, program),
        Verb::Doctor(args) => doctor::command(args, program),
        Verb::Report(args) => report::command::command(args),
        Verb::Diff(args) => diff::command(args),
        Verb::Gdsio(args) => gdsio::command(args, program),
        Verb::GpuFileBenchmark(args) => {
            gpu_file_benchmark::command(args, &command_line(arguments), program)
        }
        Verb::Import(args) => import::command(args, &command_line(arguments)),
        Verb::Completions { shell } => manual::completions(*shell),
        Verb::Man => manual::man_page(),
        Verb::Probe(args) => probe::command(args),
        Verb::Reach(args) => reach::command(args),
        Verb::Cufile(args) => bench::methods::cufile::child::command(args),
    };
    end(result)
}

/// Whether the verb writes to stdout. Probes do as well, for the process that starts them.
fn is_shown(verb: &Verb) -> bool {
    match verb {
        Verb::Report(args) => args.output.is_none(),
        Verb::Import(args) => args.output.is_none(),
        _ => true,
    }
}

fn end(result: failure::Result<()>) -> ExitCode {
    let code = result.map_or_else(
        |failure| {
            failure.print();
            failure.exit_code()
        },
        |()| 0,
    );
    if watched::is_ending() {
        watched::wait_for_the_end();
    }
    if watched::tell(watched::End::Regular(code)) {
        watched::let_go(); // another thread may still block
    }
    ExitCode::from(code)
}

/// Help and version, or an invalid command.
fn not_a_verb(error: &clap::Error, verb: Option<&str>) -> ExitCode {
    match error.kind() {
        ErrorKind::DisplayHelp | ErrorKind::DisplayVersion => {
            let shown = || error.print().and_then(|()| std::io::stdout().flush());
            let shown = || shown().map_err(|error| Failure::stdout(&error));
            end(stdio::check().and_then(|()| shown()))
        }
        // Help instead of an error, on stderr.
        ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand => {
            let _ = error.print();
            ExitCode::from(2)
        }
        _ => end(Err(usage::failure(error, verb))),
    }
}

/// The command line for a shell: words that it would split are quoted.
fn command_line(arguments: &[OsString]) -> String {
    let words = arguments.iter().enumerate().map(|(index, word)| {
        let word = if index == 0 { "forebay".into() } else { word.to_string_lossy() };
        shell_word(&word)
    });
    words.collect::<Vec<_>>().join(" ")
}

/// The bytes of a text without the byte order mark that some editors write first.
pub(crate) fn without_mark(bytes: &[u8]) -> &[u8] {
    bytes.strip_prefix(b"\xef\xbb\xbf").unwrap_or(bytes)
}

/// Quotes a word for a shell.
pub(crate) fn shell_word(word: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_./=:,+@%".contains(c);
    if !word.is_empty() && word.chars().all(plain) {
        word.to_owned()
    } else {
        format!("'{}'", word.replace('\'', r"'\''"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_can_be_typed_again() {
        let words = ["/usr/bin/forebay", "bench", "--size=1G,2G", "my file", "it's", ""];
        let words: Vec<OsString> = words.iter().map(OsString::from).collect();
        assert_eq!(command_line(&words), r"forebay bench --size=1G,2G 'my file' 'it'\''s' ''");
    }
}
