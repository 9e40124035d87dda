//! `--io-queues`: the user's command sets one number after the other, and the kernel's report is
//! read again after each.
//!
//! Setting a number disconnects all users of the path, so the run closes everything first:
//! scratch is removed and made again afterwards. A path is back when it has the same kind and the
//! same mount point as at the start. So an empty mount point is never measured. `shell` runs the
//! command, `place` checks the path, [`queues`](super::queues) reads the resulting number.

mod place;
mod turn;

use std::path::Path;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use forebay_measure::cleanup;
use forebay_measure::failure::{Failure, Result};
use forebay_measure::shell::{self, Rest, shortened};
use forebay_measure::stdio::tell;
use forebay_measure::steps::Step;

use self::place::Home;
use crate::bench::args::BenchArgs;

/// Ctrl-C ends the command by itself.
static NEVER: AtomicBool = AtomicBool::new(false);
/// The placeholder of the number in the command.
const NUMBER: &str = "{}";
/// Time limit of the command.
const COMMAND_MAX: Duration = Duration::from_secs(60);
/// How long the path may be away after it.
const AWAY_MAX: Duration = Duration::from_secs(30);
/// Time limit for files that were just closed, but are still open.
const CLOSE_MAX: Duration = Duration::from_secs(2);

/// Refuses contradictory arguments.
///
/// # Errors
/// One of both flags is missing, the command has no placeholder, or there are several paths.
pub(super) fn check(args: &BenchArgs) -> Result<()> {
    let Some(line) = &args.set_queues else {
        if args.io_queues.is_empty() {
            return Ok(());
        }
        return Err(Failure::usage("`--io-queues` needs a command that sets their number").hint(
            "give it with `--set-queues 'COMMAND'`, with `{}` for the number; or set it yourself, \
             and give each run a `--label`",
        ));
    };
    if args.io_queues.is_empty() {
        return Err(Failure::usage("`--set-queues` has no number to set")
            .hint("give numbers with `--io-queues`, such as `--io-queues 1,2,4,8`"));
    }
    if !line.contains(NUMBER) {
        return Err(Failure::usage("`--set-queues` would set the same number each time")
            .because(format!(
                "`{}` has no `{NUMBER}`, the placeholder of the number",
                shortened(line)
            ))
            .hint("write `{}` where the number belongs, such as `--nr-io-queues={}`"));
    }
    if args.paths.len() > 1 {
        return Err(Failure::usage("`--io-queues` is for one path")
            .because(format!("there are {}", args.paths.len()))
            .hint("run the command once for each path"));
    }
    Ok(())
}

/// The command that sets queues, and the state of the path.
#[derive(Debug)]
pub(super) struct Switch {
    line: String,
    home: Home,
    /// The last requested number and its repeat, with the number that the kernel reported then, or
    /// why nothing can be measured.
    last: Option<(u32, u32, Result<Option<u32>>)>,
    /// What the command left behind, in words.
    stays: Option<String>,
    command_max: Duration,
    away_max: Duration,
}

impl Switch {
    /// The switch for the arguments; none if they set no queues.
    ///
    /// # Errors
    /// The path does not exist.
    pub(super) fn find(args: &BenchArgs, path: &Path) -> Result<Option<Self>> {
        let Some(line) = &args.set_queues else { return Ok(None) };
        let _step = Step::begin("inspect", path);
        let home = Home::of(path).map_err(|why| {
            Failure::new(format!("cannot inspect `{}`", path.display()))
                .because(why)
                .hint("mount it first: it is recognized by its mount")
        })?;
        Ok(Some(Self {
            line: line.clone(),
            home,
            last: None,
            stays: None,
            command_max: COMMAND_MAX,
            away_max: AWAY_MAX,
        }))
    }

    /// The number that the kernel reports.
    pub(super) fn found(&self) -> Option<u32> {
        self.last.as_ref().and_then(|(.., found)| *found.as_ref().ok()?)
    }

    /// Why nothing can be measured with the last requested number.
    pub(super) fn failed(&self) -> Option<&Failure> {
        self.last.as_ref().and_then(|(.., found)| found.as_ref().err())
    }

    /// Whether `number` is set; a failing number is tried once in each repeat.
    fn is_tried(&self, number: u32, repeat: u32) -> bool {
        self.last.as_ref().is_some_and(|(last, last_repeat, found)| {
            *last == number && (found.is_ok() || *last_repeat == repeat)
        })
    }

    /// Runs the command for `number`, and waits for `path`.
    fn run(&mut self, number: u32, path: &Path) -> Result<()> {
        let cannot = || Failure::new(format!("cannot set {}", words(number)));
        let looking = Step::begin("inspect", path);
        place::let_go(path, CLOSE_MAX).map_err(|held| {
            cannot()
                .because(format!("this command itself has `{}` open", held.display()))
                .hint("do not redirect its input or output there")
        })?;
        drop(looking);
        let half = |how: &str| {
            let path = path.display();
            let set = words(number);
            format!("the command that sets {set} {how}: check how `{path}` is connected")
        };
        self.leaves(half("was stopped"));
        let line = self.line.replace(NUMBER, &number.to_string());
        if let Err(why) = shell::run(&line, self.command_max, &NEVER, Rest::Kept) {
            self.leaves(half("has failed"));
            let hint = if why.starts_with(shell::NO_SHELL) {
                "install a shell as `sh` in a folder of `PATH`".into()
            } else {
                format!(
                    "run it by hand until it works: it must succeed within {} s",
                    self.command_max.as_secs_f64()
                )
            };
            return Err(cannot().because(format!("`{}`: {why}", shortened(&line))).hint(hint));
        }
        self.leaves(format!(
            "`{}` keeps the {} that `--set-queues` has set",
            path.display(),
            words(number)
        ));
        self.home.wait(self.away_max).map_err(|why| {
            let away = format!(
                "`{}` was not back {} s after `{}`",
                path.display(),
                self.away_max.as_secs_f64(),
                shortened(&line)
            );
            cannot().because(away).because(why).hint(
                "the command must end after the path is mounted again, at the same mount point",
            )
        })
    }

    /// Sets the text on what remains, for any end of the run.
    fn leaves(&mut self, text: String) {
        cleanup::set_leftover_warning(Some(text.clone()));
        self.stays = Some(text);
    }
}

impl Drop for Switch {
    /// Reports which number remains, however the run ended.
    fn drop(&mut self) {
        if let Some(text) = self.stays.take() {
            cleanup::set_leftover_warning(None);
            tell(&text);
        }
    }
}

fn words(number: u32) -> String {
    format!("{number} I/O queue{}", if number == 1 { "" } else { "s" })
}

#[cfg(test)]
mod tests;
