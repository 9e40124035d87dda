//! `forebay reach`: checks paths that may never answer, for verbs that must continue.
//!
//! A call that a server never answers may not be interruptible by any signal, and a process ends
//! only when all its threads have. So this program makes the first check in a child process, which
//! can be abandoned; [`system`] starts it. Paths that do not answer there are not touched here.

use std::ffi::OsStr;
use std::io::{BufRead as _, BufReader, Write as _};
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::sync::mpsc::{Receiver, sync_channel};
use std::thread;
use std::time::Duration;

use forebay_measure::failure::{Failure, Result};
use forebay_measure::program::Program;
use forebay_topology::System;

use crate::args::ReachArgs;

/// How long the process may take for one path: more than the engine's library waits by itself,
/// which may be four times 3 s.
const PATH_MAX: Duration = Duration::from_secs(15);
const ANSWERS: &[u8] = b"answers";
const SILENT: &[u8] = b"silent ";

/// Runs the verb: a line for each path. The caller meets the same errors again.
pub(crate) fn command(args: &ReachArgs) -> Result<()> {
    let system = System::live();
    for path in &args.paths {
        let reached = if args.open { system.reach_open(path) } else { system.reach(path) };
        let answer = match reached {
            Err(error) if error.kind() == std::io::ErrorKind::TimedOut => {
                let real = system.known_way(path).unwrap_or_else(|| path.clone());
                [SILENT, real.as_os_str().as_bytes()].concat()
            }
            _ => ANSWERS.to_vec(),
        };
        let mut out = std::io::stdout();
        // The check of the next path may never return.
        let reported = out.write_all(&[&answer[..], b"\0"].concat()).and_then(|()| out.flush());
        reported.map_err(|error| Failure::stdout(&error))?;
    }
    Ok(())
}

/// This machine, with those of `paths` that do not answer excluded from access; `open`: they will
/// be opened.
pub(crate) fn system(program: &Program, paths: &[PathBuf], open: bool) -> System {
    let system = System::live();
    let mut command = program.command("reach");
    if open {
        command.arg("--open");
    }
    command.arg("--").args(paths).stdin(Stdio::null()).stderr(Stdio::null());
    // If no process can be started, the library's own time limit remains.
    let Ok(mut child) = command.stdout(Stdio::piped()).spawn() else { return system };
    let answers = listen(&mut child);
    for path in paths {
        match answers.recv_timeout(PATH_MAX).ok().as_deref().map(silent) {
            Some(Some(real)) => system.pass_over(path, &real),
            Some(None) => {}
            None => break,
        }
    }
    // A child that still waits is abandoned: it may never end.
    let _ = child.kill();
    let _ = child.try_wait();
    system
}

/// The lines of a child, as they arrive.
fn listen(child: &mut Child) -> Receiver<Vec<u8>> {
    let (report, reported) = sync_channel(1);
    if let Some(output) = child.stdout.take() {
        let mut lines = BufReader::new(output).split(0);
        thread::spawn(move || {
            while lines.next().is_some_and(|l| l.is_ok_and(|l| report.send(l).is_ok())) {}
        });
    }
    reported
}

/// The target of a path that does not answer; none if it answers.
fn silent(line: &[u8]) -> Option<PathBuf> {
    let real = line.strip_prefix(SILENT)?;
    Some(Path::new(OsStr::from_bytes(real)).to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Instant;

    /// A program that runs `script`.
    fn shell(script: &str) -> Program {
        Program::new(["sh", "-c", script].map(Into::into).to_vec())
    }

    #[test]
    fn a_path_reported_as_silent_is_not_opened() {
        let paths = [PathBuf::from("/tmp"), PathBuf::from("/")];
        let system =
            system(&shell("printf 'silent /x/y\\000answers\\000'; sleep 100"), &paths, false);
        assert_eq!(system.reach(&paths[0]).unwrap_err().kind(), std::io::ErrorKind::TimedOut);
        assert_eq!(system.known_way(&paths[0]), Some("/x/y".into()));
        system.reach(&paths[1]).unwrap();
    }

    #[test]
    fn a_program_that_cannot_look_changes_nothing() {
        let start = Instant::now();
        for script in ["exit 1", "echo damaged", "printf 'silent'", "printf '\\377\\000'"] {
            system(&shell(script), &["/".into()], false).reach(Path::new("/")).unwrap();
        }
        let none = Program::new(vec!["/no/such/program".into()]);
        system(&none, &["/".into()], true).reach(Path::new("/")).unwrap();
        assert!(start.elapsed() < 4 * PATH_MAX, "only a bound on a hang");
    }
}
