//! The `forebay` command as a library: arguments in, report out.
//!
//! `args` reads the command line. Each verb has a module ([`mod@bench`], [`read`], [`doctor`],
//! [`map`], [`gdsio`], `probe`, `manual`).
//!
//! The package [`forebay_measure`] measures; [`report`] shows and compares its
//! [`results`](forebay_measure::results). [`failure`] is the error of a verb, `log` shows the
//! engine's events. [`cleanup`] undoes what must not remain, if `signals` or the watchdog in
//! [`steps`] end the command early. Data go to stdout, messages to stderr; [`stdio`] checks whether
//! they are open.

pub mod args;
pub mod bench;
pub mod doctor;
pub mod gdsio;
pub mod gpu_file_benchmark;
mod log;
mod manual;
pub mod map;
mod near;
mod probe;
mod reach;
pub mod read;
pub mod report;
mod signals;
mod usage;
mod values;

use std::ffi::OsString;
use std::io::Write as _;
use std::process::ExitCode;
use std::sync::Arc;
use std::thread;

use clap::error::ErrorKind;
use clap::{Parser as _, Subcommand as _};
use forebay_measure::failure::{self, Failure};
use forebay_measure::program::Program;
use forebay_measure::{cleanup, stdio, steps, variables, workload};

use args::{Arguments, Internal, InternalArguments, Verb};

/// The stack of a process's first thread, as Linux has it.
const STACK_LEN: usize = 8 << 20;
/// The exit code of Rust programs that panic.
const PANICKED: u8 = 101;

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
/// command again, for probes of what may crash or hang.
pub fn run_as(program: &Program, arguments: impl IntoIterator<Item = OsString>) -> ExitCode {
    stdio::hold(); // an interpreter has not done it
    // Otherwise the kernel ends the process if a file grows beyond a limit (`ulimit -f`), without
    // cleanup or a message. With a handler, the write fails.
    let _ = signal_hook::flag::register(libc::SIGXFSZ, Arc::default());
    let arguments: Vec<OsString> = arguments.into_iter().collect();
    // The kernel delivers signals to the first thread of a process, even if that thread is blocked
    // without end. Also, the first thread's stack is as small as `ulimit -s` says, and overflows
    // without an error.
    thread::scope(|scope| {
        let verb = thread::Builder::new().name("verb".into()).stack_size(STACK_LEN);
        match verb.spawn_scoped(scope, || run_verb(program, &arguments)) {
            // It has already reported its panic.
            Ok(running) => {
                let code = running.join().unwrap_or(ExitCode::from(PANICKED));
                // `doctor` may leave a thread behind that waits for a file.
                if !program.is_interpreter() {
                    cleanup::close_streams();
                }
                code
            }
            Err(error) => end(Err(Failure::thread(&error, STACK_LEN as u64))),
        }
    })
}

fn run_verb(program: &Program, arguments: &[OsString]) -> ExitCode {
    let first = arguments.get(1).and_then(|word| word.to_str());
    if first.is_some_and(Internal::has_subcommand) {
        return match InternalArguments::try_parse_from(arguments) {
            Ok(parsed) => end(run_internal(&parsed.verb)),
            Err(error) => not_a_verb(&error),
        };
    }
    let verb = &match Arguments::try_parse_from(renamed(arguments)) {
        Ok(parsed) => parsed.verb,
        Err(error) => return not_a_verb(&error),
    };
    signals::install();
    end(run_parsed(verb, program, &command_line(arguments)))
}

fn run_parsed(verb: &Verb, program: &Program, line: &str) -> failure::Result<()> {
    if !matches!(verb, Verb::Report(args) if args.output.is_some()) {
        stdio::check()?;
    }
    if verb.is_quiet() {
        stdio::leave_out_warnings();
    }
    if !matches!(verb, Verb::Completions { .. } | Verb::Man { .. }) {
        // The doctor has its own time limits, and reports its findings.
        if !matches!(verb, Verb::Doctor(_)) {
            steps::watch();
        }
        if !matches!(verb, Verb::Report(_)) {
            variables::warn_of_unknown();
        }
        log::begin()?;
    }
    match verb {
        Verb::Bench(args) => bench::command(args, line, program),
        Verb::Read(args) => read::command(args, program),
        Verb::Doctor(args) => doctor::command(args, line, program),
        Verb::Report(args) => report::command::command(args),
        Verb::Gdsio(args) => gdsio::command(args, program),
        Verb::GpuFileBenchmark(args) => gpu_file_benchmark::command(args, line, program),
        Verb::Completions { shell } => manual::completions(*shell),
        Verb::Man { verb } => manual::man_page(verb.as_deref()),
    }
}

fn run_internal(verb: &Internal) -> failure::Result<()> {
    stdio::check()?;
    log::begin()?;
    match verb {
        Internal::Probe(args) => probe::command(args),
        Internal::Reach(args) => reach::command(args),
        Internal::Cufile(args) => {
            workload::backend::cufile::child::command(args.library.as_deref(), &args.packages)
        }
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
    cleanup::wait_if_ending();
    ExitCode::from(code)
}

/// The arguments, with the forms of output by `--format` that had flags of their own before.
fn renamed(arguments: &[OsString]) -> Vec<OsString> {
    const VERBS: [&str; 4] = ["bench", "read", "doctor", "report"];
    const FLAGS: [(&str, &str); 3] =
        [("--json", "--format=json"), ("--csv", "--format=csv"), ("--markdown", "--format=md")];
    let mut renamed = arguments.to_vec();
    let is_ours = renamed.get(1).is_some_and(|verb| VERBS.iter().any(|name| verb == name));
    for word in renamed.iter_mut().take_while(|word| *word != "--").filter(|_| is_ours) {
        if let Some((_, name)) = FLAGS.iter().find(|(before, _)| word == before) {
            *word = name.into();
        }
    }
    renamed
}

/// Help and version, or an invalid command.
fn not_a_verb(error: &clap::Error) -> ExitCode {
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
        _ => end(Err(usage::failure(error))),
    }
}

/// The command line for a shell: words that it would split are quoted.
fn command_line(arguments: &[OsString]) -> String {
    let words = arguments.iter().enumerate().map(|(index, word)| {
        let word = if index == 0 { "forebay".into() } else { word.to_string_lossy() };
        // An argument of a program has no zero byte.
        shlex::try_quote(&word).map_or_else(|_| word.to_string(), Into::into)
    });
    words.collect::<Vec<String>>().join(" ")
}

#[cfg(test)]
#[path = "../../forebay-measure/tests/results/facts.rs"]
mod facts;
#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn earlier_names_of_flags_are_taken_up_to_the_end_of_the_flags() {
        let of = |line: &str| {
            let words: Vec<OsString> = line.split(' ').map(Into::into).collect();
            renamed(&words).join(" ".as_ref()).into_string().unwrap()
        };
        assert_eq!(of("f read a --json"), "f read a --format=json");
        assert_eq!(of("f report --csv -- --json"), "f report --format=csv -- --json");
        assert_eq!(of("f gdsio --json"), "f gdsio --json");
    }

    #[test]
    fn a_command_can_be_typed_again() {
        let words = ["/usr/bin/forebay", "bench", "--size=1G,2G", "my file", "it's", ""];
        let words: Vec<OsString> = words.iter().map(OsString::from).collect();
        assert_eq!(command_line(&words), r#"forebay bench '--size=1G,2G' 'my file' "it's" ''"#);
    }
}
