//! Programs that print a power: the user's own, and those that query a server's controller.
//!
//! Such a program may hang, print garbage, or never stop printing. It runs in its own process
//! group, which is killed as a whole beyond a time limit or when this process is stopped. Its
//! output is read up to a limit, and a number is only accepted if nothing else was printed.

use std::fs::File;
use std::io::{ErrorKind, Read as _};
use std::os::fd::OwnedFd;
use std::os::unix::process::CommandExt as _;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};
use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, kill_process_group, waitid};

use super::hwmon::shortened;
use super::result::Part;
use super::sensor::{Channel, Kind, SERVER_WATTS_MAX, Sensor, Value, watts};
use crate::failure::{Failure, Result};
use crate::interrupt;

/// Time limit of a program.
pub(super) const LIMIT: Duration = Duration::from_secs(2);
/// The interval of checks whether it has ended, or should end.
const LOOK: Duration = Duration::from_millis(20);
/// The most that a program may print.
const TEXT_LEN_MAX: usize = 16 << 10;

/// The user's command that reports a power.
pub(super) struct UserCommand {
    line: String,
    stop: Arc<AtomicBool>,
}

impl UserCommand {
    /// Runs it once to check that it prints a power; `stop` ends later runs.
    ///
    /// # Errors
    /// It prints no power.
    pub(super) fn new(line: &str, stop: &Arc<AtomicBool>) -> Result<Self> {
        let command = Self { line: line.to_owned(), stop: Arc::clone(stop) };
        match command.watts() {
            Ok(_) => Ok(command),
            Err(why) => Err(Failure::new(format!("cannot measure power by `{}`", shortened(line)))
                .because(why)
                .hint("the command must print only the watts, such as `123.4`, within 2 s")),
        }
    }

    fn watts(&self) -> Result<f64, String> {
        let mut shell = Command::new("sh");
        shell.arg("-c").arg(&self.line);
        let text = run(&mut shell, LIMIT, &self.stop)?;
        watts(parse(&text)?, SERVER_WATTS_MAX)
    }
}

impl Sensor for UserCommand {
    fn channels(&self) -> Vec<Channel> {
        let how = format!("the command `{}`", shortened(&self.line));
        vec![Channel { name: "command".into(), kind: Kind::Power { part: Part::Command, how } }]
    }

    fn read(&mut self, _asked: bool) -> Vec<Result<Value, String>> {
        vec![self.watts().map(Value::Number)]
    }
}

/// A power in watts: one number, with an optional unit.
fn parse(text: &str) -> Result<f64, String> {
    let text = text.trim();
    let none = || format!("its output is not a power: `{}`", shortened(text));
    let end =
        text.find(|c: char| !c.is_ascii_digit() && !".+-eE".contains(c)).unwrap_or(text.len());
    let number: f64 = text[..end].parse().map_err(|_| none())?;
    let unit = match text[end..].trim() {
        "" | "W" | "w" | "watt" | "watts" | "Watt" | "Watts" => 1.0,
        "mW" => 1e-3,
        "kW" => 1e3,
        _ => return Err(none()),
    };
    Ok(number * unit)
}

/// The output of a program, if it ends successfully within `limit` and before `stop` is set.
pub(super) fn run(
    command: &mut Command,
    limit: Duration,
    stop: &AtomicBool,
) -> Result<String, String> {
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    // Its child processes end with it.
    command.process_group(0);
    let name = command.get_program().display().to_string();
    let mut child = interrupt::spawn_group(command)
        .map_err(|error| format!("`{name}` cannot be started: {error}"))?;
    let mut printed = [child.stdout.take().map(Pipe::new), child.stderr.take().map(Pipe::new)];
    let told = listen(&child, &mut printed, limit, stop);
    end(&mut child);
    let is_well = told?;
    let [output, errors] = printed.map(|pipe| pipe.map(|pipe| pipe.text).unwrap_or_default());
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).trim().to_owned();
    if is_well {
        return Ok(text(&output));
    }
    let words = text(if errors.is_empty() { &output } else { &errors });
    let words = words.lines().next().unwrap_or("no output");
    Err(format!("it failed: {}", shortened(words)))
}

/// Reads until the program has ended; returns whether it succeeded.
fn listen(
    child: &Child,
    printed: &mut [Option<Pipe>; 2],
    limit: Duration,
    stop: &AtomicBool,
) -> Result<bool, String> {
    let begun = Instant::now();
    loop {
        // Checked before the pipes are read: then they hold its last output.
        let ended = ended(child)?;
        let mut is_open = false;
        for pipe in printed.iter_mut().flatten() {
            is_open |= pipe.read()?;
        }
        if let Some(is_well) = ended {
            return Ok(is_well);
        }
        if begun.elapsed() >= limit {
            return Err(format!("it takes more than {} s", limit.as_secs_f64()));
        }
        if stop.load(Ordering::Relaxed) {
            return Err("it was stopped".into());
        }
        if is_open {
            wait(printed);
        } else {
            std::thread::sleep(LOOK);
        }
    }
}

/// Waits for more to read, or for a while.
fn wait(printed: &[Option<Pipe>; 2]) {
    let open = printed.iter().flatten().filter(|pipe| pipe.is_open);
    let mut fds: Vec<_> = open.map(|pipe| PollFd::new(&pipe.file, PollFlags::IN)).collect();
    let look = Timespec { tv_sec: 0, tv_nsec: LOOK.subsec_nanos().into() };
    // On any result, the caller checks again.
    let _ = poll(&mut fds, Some(&look));
}

/// Whether the program has succeeded; `None` if it still runs. It is not reaped.
pub(crate) fn ended(child: &Child) -> Result<Option<bool>, String> {
    let Some(pid) = pid(child) else { return Ok(Some(false)) };
    let options = WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
    let status = waitid(WaitId::Pid(pid), options).map_err(|errno| errno.to_string())?;
    Ok(status.map(|status| status.exit_status() == Some(0)))
}

/// Kills the program and all processes that it started. Its number is not reused until it was
/// waited for, so the group is still its own.
pub(crate) fn kill_all(child: &Child) {
    // If nothing waits for children (SIGCHLD is ignored), the number may already belong to another
    // process.
    if let Some(pid) = pid(child).filter(|_| ended(child).is_ok()) {
        let _ = kill_process_group(pid, Signal::KILL);
    }
}

/// Ends the program with all that it has started.
fn end(child: &mut Child) {
    kill_all(child);
    interrupt::ended(child.id());
    let _ = child.wait();
}

fn pid(child: &Child) -> Option<Pid> {
    Pid::from_raw(i32::try_from(child.id()).ok()?)
}

/// One of the program's outputs.
struct Pipe {
    file: File,
    text: Vec<u8>,
    is_open: bool,
}

impl Pipe {
    fn new(pipe: impl Into<OwnedFd>) -> Self {
        let file = File::from(pipe.into());
        let set = fcntl_getfl(&file).and_then(|flags| fcntl_setfl(&file, flags | OFlags::NONBLOCK));
        // One that would block is not read at all.
        Self { file, text: Vec::new(), is_open: set.is_ok() }
    }

    /// Reads the available output; returns whether there may be more.
    fn read(&mut self) -> Result<bool, String> {
        let mut bytes = [0; 4096];
        while self.is_open {
            match self.file.read(&mut bytes) {
                Ok(0) => self.is_open = false,
                Ok(_) if self.text.len() >= TEXT_LEN_MAX => {
                    return Err(format!("it prints more than {TEXT_LEN_MAX} bytes"));
                }
                Ok(len) => self.text.extend_from_slice(&bytes[..len]),
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(true),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(error.to_string()),
            }
        }
        Ok(false)
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use proptest::prelude::*;

    static NEVER: AtomicBool = AtomicBool::new(false);

    fn shell(line: &str, limit: Duration) -> Result<String, String> {
        let mut command = Command::new("sh");
        run(command.arg("-c").arg(line), limit, &NEVER)
    }

    fn first(line: &str) -> Result<f64, Failure> {
        // On a busy machine a shell may take longer than its limit.
        let is_late = |why: &str| why.starts_with("it takes more than");
        for _ in 0..20 {
            match UserCommand::new(line, &Arc::new(AtomicBool::new(false))) {
                Err(failure) if is_late(&failure.causes[0]) => {}
                Err(failure) => return Err(failure),
                Ok(command) => match command.watts() {
                    Err(why) if is_late(&why) => {}
                    watts => return Ok(watts.unwrap()),
                },
            }
        }
        panic!("`{line}` never ends")
    }

    #[test]
    fn a_power_is_one_number_with_or_without_its_unit() {
        for (text, watts) in [
            ("123", 123.0),
            (" 123 W\n", 123.0),
            ("98.5watts", 98.5),
            ("1.2 kW", 1200.0),
            ("250000 mW", 250.0),
            ("1e2", 100.0),
        ] {
            assert_eq!(parse(text), Ok(watts), "{text}");
        }
        for text in ["", "W", "many", "12 34", "12 V", "12\n13", "0x10", "nan", "inf", "1,5", "é"]
        {
            assert!(parse(text).unwrap_err().starts_with("its output is not a power: `"), "{text}");
        }
    }

    #[test]
    fn what_a_command_prints_is_held_against_what_can_be() {
        assert_eq!(first("echo 123 W"), Ok(123.0));
        assert_eq!(first("echo 5; sleep 100 >&2 &"), Ok(5.0), "what it leaves behind ends with it");
        let fails = |line: &str, cause: &str| {
            let failure = first(line).unwrap_err();
            assert!(failure.message.starts_with("cannot measure power by `"), "{failure:?}");
            assert!(failure.causes[0].contains(cause), "{failure:?}");
            assert!(failure.hint.unwrap().contains("print only the watts"));
        };
        fails("echo 1e308", "W is not plausible");
        fails("echo 0", "0 W is not plausible");
        fails("echo -- -5", "not a power");
        fails("echo -5", "-5 W is not plausible");
        fails("echo power", "not a power: `power`");
        fails("true", "not a power: ``");
        fails("echo 5; false", "it failed: 5");
        fails("echo no meter >&2; exit 3", "it failed: no meter");
        fails("exit 3", "it failed: no output");
        fails("/nonexistent/meter", "/nonexistent/meter");
        fails("printf '\\377\\001\\033[2J'", "not a power");
        fails("yes", "it prints more than 16384 bytes");
    }

    /// Whether a process runs; an ended one may remain until its parent waits for it.
    pub(crate) fn is_alive(process: &str) -> bool {
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", process.trim()));
        stat.is_ok_and(|stat| {
            let state = stat.rsplit_once(") ").and_then(|(_, rest)| rest.chars().next());
            state.is_some_and(|state| !"ZX".contains(state))
        })
    }

    #[test]
    fn a_command_that_hangs_is_ended_with_all_that_it_started() {
        let begun = Instant::now();
        let why = shell("sleep 100", Duration::from_millis(50)).unwrap_err();
        assert_eq!(why, "it takes more than 0.05 s");
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("pid");
        // Without the kill of the whole group the inner shell would live on.
        let inner = format!("echo $$ > {0}.new; mv {0}.new {0}; sleep 100", path.display());
        let stop = Arc::new(AtomicBool::new(false));
        let stops = std::thread::spawn({
            let (stop, path) = (Arc::clone(&stop), path.clone());
            move || {
                while !path.exists() && begun.elapsed() < Duration::from_secs(60) {
                    std::thread::sleep(LOOK);
                }
                stop.store(true, Ordering::Relaxed);
            }
        });
        let mut command = Command::new("sh");
        let command = command.arg("-c").arg(format!("sh -c '{inner}' & sleep 100"));
        assert_eq!(run(command, Duration::MAX, &stop).unwrap_err(), "it was stopped");
        stops.join().unwrap();
        let process = std::fs::read_to_string(path).unwrap();
        while is_alive(&process) {
            assert!(begun.elapsed() < Duration::from_secs(60));
            std::thread::sleep(LOOK);
        }
    }

    #[test]
    fn a_command_ends_when_the_meter_does() {
        let stop = AtomicBool::new(true);
        let mut command = Command::new("sleep");
        assert_eq!(run(command.arg("100"), Duration::MAX, &stop).unwrap_err(), "it was stopped");
        let none = run(&mut Command::new("/nonexistent"), LIMIT, &NEVER).unwrap_err();
        assert!(none.starts_with("`/nonexistent` cannot be started: No such file"), "{none}");
    }

    proptest! {
        #[test]
        fn no_text_is_a_panic(text in "\\PC{0,40}") {
            let _ = parse(&text).and_then(|number| watts(number, SERVER_WATTS_MAX));
        }

        #[test]
        fn whatever_is_taken_can_be(number in any::<f64>(), unit in "( |m|k)?W?") {
            if let Ok(told) = parse(&format!("{number}{unit}"))
                && let Ok(told) = watts(told, SERVER_WATTS_MAX)
            {
                prop_assert!(told > 0.0 && told <= SERVER_WATTS_MAX);
            }
        }
    }
}
