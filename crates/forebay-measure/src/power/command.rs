//! The power that a command of the user's prints, such as one that queries a server's meter.
//!
//! The command may hang, print garbage, or never stop printing. It runs in its own process group,
//! which is killed as a whole, and blocks if it prints more than a pipe holds.

use std::io::Read;
use std::os::fd::AsFd;
use std::os::unix::process::CommandExt as _;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::sleep;
use std::time::{Duration, Instant};

use rustix::io::ioctl_fionbio;
use rustix::process::{Pid, WaitId, WaitIdOptions, waitid};

use super::result::Part;
use super::track::{About, Reading};
use super::{END_MAX, Sensor, watts};
use crate::cleanup;
use crate::failure::{Failure, Result};
use crate::plain::plain;

/// How often it runs.
pub(super) const PERIOD: Duration = Duration::from_secs(1);
/// Time limit of one run.
const LIMIT: Duration = Duration::from_secs(2);
/// More than any server or rack consumes.
const WATTS_MAX: f64 = 1e6;
/// The interval of checks whether it has ended.
const LOOK: Duration = Duration::from_millis(10);
/// Most bytes of its output that are read: as many as a pipe holds.
const OUTPUT_MAX: u64 = 64 << 10;

/// Runs `line` once to check that it prints a power; `stop` ends later runs.
///
/// # Errors
/// It prints no power.
pub(super) fn sensor(line: &str, stop: &Arc<AtomicBool>) -> Result<Sensor> {
    let (owned, stop) = (line.to_owned(), Arc::clone(stop));
    let read = move || {
        let text = run(&owned, LIMIT, &stop)?;
        watts(parse(&text)?, WATTS_MAX)
    };
    read().map_err(|why| {
        Failure::new(format!("cannot measure power by `{}`", shortened(line)))
            .because(why)
            .hint("the command must print only the watts, such as `123.4`, within 2 s")
    })?;
    let about = About {
        name: "server".into(),
        part: Part::Server,
        how: format!("the command `{}`", shortened(line)),
        is_counter: false,
        rough: 5 * PERIOD,
        // One run may itself take long.
        reach: 3 * PERIOD / 2 + LIMIT,
    };
    Ok(Sensor { about, read: Box::new(move || Reading { value: read(), throttle: 0 }) })
}

/// Runs `line` in a shell, for `limit` at most, or until `stop` is set; returns what it printed. No
/// process of its group is left.
///
/// # Errors
/// It cannot be started, fails, or takes longer.
fn run(line: &str, limit: Duration, stop: &AtomicBool) -> Result<String, String> {
    let mut shell = Command::new("sh");
    shell.arg("-c").arg(line).process_group(0);
    shell.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let (mut child, entry) = cleanup::spawn_group(&mut shell)
        .map_err(|error| format!("`sh` cannot be started: {error}"))?;
    let begun = Instant::now();
    // Not reaped, so that its number stays that of its group.
    let options = WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
    let ended = loop {
        match waitid(WaitId::Pid(Pid::from_child(&child)), options) {
            Ok(Some(status)) => break Ok(status.exit_status() == Some(0)),
            // This process ignores SIGCHLD: the number may belong to another process.
            Err(errno) => {
                entry.keep();
                return Err(errno.to_string());
            }
            Ok(None) if begun.elapsed() >= limit => {
                break Err(format!("it takes more than {} s", limit.as_secs_f64()));
            }
            Ok(None) if stop.load(Ordering::Relaxed) => break Err("it was stopped".into()),
            Ok(None) => sleep(LOOK),
        }
    };
    drop(entry);
    // A process that waits for a server may not end.
    let killed = Instant::now();
    while matches!(child.try_wait(), Ok(None)) && killed.elapsed() < END_MAX {
        sleep(LOOK);
    }
    let (is_well, output) = (ended?, printed(child.stdout));
    if is_well {
        return Ok(output);
    }
    let last = last_line(&printed(child.stderr)).or_else(|| last_line(&output));
    Err(format!("it failed: {}", last.as_deref().unwrap_or("no output")))
}

/// What was written to a pipe. A process outside the group may still hold its other end.
fn printed(pipe: Option<impl Read + AsFd>) -> String {
    let mut bytes = Vec::new();
    if let Some(pipe) = pipe.filter(|pipe| ioctl_fionbio(pipe, true).is_ok()) {
        let _ = pipe.take(OUTPUT_MAX).read_to_end(&mut bytes);
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

/// The last line of a text.
fn last_line(text: &str) -> Option<String> {
    let last = text.lines().map(str::trim).rfind(|line| !line.is_empty())?;
    Some(shortened(&plain(last)))
}

/// The start of a text, short enough for a message.
fn shortened(text: &str) -> String {
    text.chars().take(80).collect()
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

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const LONG: Duration = Duration::from_secs(60);
    static NEVER: AtomicBool = AtomicBool::new(false);

    fn ran(line: &str, limit: Duration) -> Result<(), String> {
        run(line, limit, &NEVER).map(drop)
    }

    /// Whether a process runs; an ended one may remain until its parent waits for it.
    fn is_alive(process: &str) -> bool {
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", process.trim()));
        stat.is_ok_and(|stat| {
            let state = stat.rsplit_once(") ").and_then(|(_, rest)| rest.chars().next());
            state.is_some_and(|state| !"ZX".contains(state))
        })
    }

    #[test]
    fn the_reason_is_the_last_line_of_a_failed_command() {
        assert_eq!(ran("echo much; echo more >&2", LONG), Ok(()));
        let why = |line: &str| ran(line, LONG).unwrap_err();
        assert_eq!(why("exit 3"), "it failed: no output");
        assert_eq!(why("echo first >&2; echo target is busy >&2; false"), {
            "it failed: target is busy"
        });
        assert_eq!(why("printf 'no end\\n\\n' >&2; kill $$"), "it failed: no end");
        let many = "i=0; while [ $i -lt 3000 ]; do echo line $i; i=$((i+1)); done >&2; false";
        assert_eq!(why(many), "it failed: line 2999");
        assert!(!why("printf '\\033[2Jgone\\377' >&2; false").contains('\u{1b}'));
    }

    #[test]
    fn output_is_bounded_and_processes_left_behind_are_killed() {
        let run = |line: &str| super::run(line, LONG, &NEVER);
        assert_eq!(run("echo 5; sleep 1000 &"), Ok("5\n".into()));
        let why = super::run("yes", 10 * LOOK, &NEVER);
        assert_eq!(why, Err("it takes more than 0.1 s".into()), "it blocks");
        let why = super::run("sleep 1000", LONG, &AtomicBool::new(true));
        assert_eq!(why, Err("it was stopped".into()));
    }

    #[test]
    fn a_command_that_hangs_is_ended_with_all_its_processes() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("pid");
        let inner = format!("echo $$ > {0}.new; mv {0}.new {0}; exec sleep 1000", path.display());
        let line = format!("sh -c '{inner}' & sleep 1000");
        // On a busy machine it may not have set its name at first.
        let mut limits = [100, 1000, 5000, 20_000].map(Duration::from_millis).into_iter();
        let begins = limits.any(|limit| {
            let why = ran(&line, limit).unwrap_err();
            assert_eq!(why, format!("it takes more than {} s", limit.as_secs_f64()));
            path.exists()
        });
        assert!(begins);
        let (process, begun) = (std::fs::read_to_string(path).unwrap(), Instant::now());
        while is_alive(&process) {
            assert!(begun.elapsed() < LONG);
            sleep(LOOK);
        }
    }

    proptest! {
        #[test]
        fn the_last_line_is_short_and_plain(text: String) {
            let words = last_line(&text).unwrap_or_default();
            proptest::prop_assert!(words.chars().count() <= 80, "{}", words);
            proptest::prop_assert!(words.chars().all(|letter| !letter.is_control()), "{}", words);
        }
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
    fn a_command_without_a_plausible_power_is_refused() {
        for (line, cause) in [
            ("echo 1e308", "W is not plausible"),
            ("echo -5", "-5 W is not plausible"),
            ("echo power", "not a power: `power`"),
            ("echo no meter >&2; exit 3", "it failed: no meter"),
        ] {
            // On a busy machine a shell may take longer than its limit.
            let failures = (0..20).filter_map(|_| sensor(line, &Arc::default()).err());
            let mut failures = failures.skip_while(|f| f.causes[0].starts_with("it takes more"));
            let failure = failures.next().unwrap();
            assert!(failure.message.starts_with("cannot measure power by `"), "{failure:?}");
            assert!(failure.causes[0].contains(cause), "{failure:?}");
            assert!(failure.hint.unwrap().contains("print only the watts"));
        }
    }

    proptest! {
        #[test]
        fn every_accepted_power_is_plausible(text in "\\PC{0,40}|-?[0-9]{1,9}(e[0-9]{1,3})?m?W?") {
            if let Ok(found) = parse(&text).and_then(|number| watts(number, WATTS_MAX)) {
                prop_assert!(found > 0.0 && found <= WATTS_MAX);
            }
        }
    }
}
