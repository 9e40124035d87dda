//! The command line of the soak.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use crate::process::Result;

/// The text of `--help`.
pub(super) const HELP: &str = "\
usage: cargo xtask soak [--seed N] [--hours H]

  --seed N         the first seed (default: from the clock; it is printed)
  --hours H        how long, also parts of an hour such as 0.1 (default: 1)

Runs the whole engine under faults, seed after seed: on one thread for each core with simulated
rings, GPU and clock, where a seed replays exactly, and beside it with real threads, where a seed
replays the faults. Ctrl-C ends it with the summary.";

/// Longer than any useful run, and short enough to be added to a time.
const HOURS_MAX: f64 = 24.0 * 366.0;

/// The requested action.
#[derive(Debug, PartialEq)]
pub(super) enum Chore {
    /// Print the help.
    Help,
    /// Soak.
    Soak(Wishes),
}

/// The first seed, and the duration.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Wishes {
    pub(super) seed: u64,
    pub(super) time: Duration,
}

impl Wishes {
    /// From a seed taken from the clock.
    pub(super) fn lasting(time: Duration) -> Self {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        Self { seed: now.as_secs(), time }
    }
}

/// Parses a command line.
pub(super) fn parse(words: &[&str]) -> Result<Chore> {
    let mut wishes = Wishes::lasting(Duration::from_secs(3600));
    let mut words = words.iter();
    while let Some(word) = words.next() {
        let mut value = || words.next().ok_or(format!("`{word}` takes a number\n\n{HELP}"));
        match *word {
            "--seed" => wishes.seed = seed(value()?)?,
            "--hours" => wishes.time = hours(value()?)?,
            "help" | "-h" | "--help" => return Ok(Chore::Help),
            other => return Err(format!("no such argument: `{other}`\n\n{HELP}")),
        }
    }
    Ok(Chore::Soak(wishes))
}

fn seed(text: &str) -> Result<u64> {
    let wrong = |_| format!("`--seed {text}`: a seed is a whole number below 2^64\n\n{HELP}");
    text.parse().map_err(wrong)
}

fn hours(text: &str) -> Result<Duration> {
    let hours = text.parse::<f64>().ok().filter(|hours| *hours > 0.0 && *hours <= HOURS_MAX);
    let wrong = || format!("`--hours {text}`: hours are a number above 0, such as 0.5\n\n{HELP}");
    hours.map(|hours| Duration::from_secs_f64(hours * 3600.0)).ok_or_else(wrong)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_and_hours_are_read_in_any_order() {
        let wishes = Wishes { seed: 7, time: Duration::from_secs(90) };
        for words in [["--seed", "7", "--hours", "0.025"], ["--hours", "0.025", "--seed", "7"]] {
            assert_eq!(parse(&words), Ok(Chore::Soak(wishes)));
        }
        let Ok(Chore::Soak(wishes)) = parse(&["--seed", "18446744073709551615"]) else {
            panic!("the last seed is one")
        };
        assert_eq!((wishes.seed, wishes.time), (u64::MAX, Duration::from_secs(3600)));
    }

    #[test]
    fn help_is_asked_for_in_any_place() {
        for words in [vec!["--help"], vec!["-h"], vec!["help"], vec!["--seed", "1", "--help"]] {
            assert_eq!(parse(&words), Ok(Chore::Help), "{words:?}");
        }
        assert!(HELP.lines().all(|line| line.len() <= 100));
    }

    #[test]
    fn what_makes_no_sense_is_refused_with_the_help() {
        let wrong = [
            (vec!["--sed"], "no such argument: `--sed`"),
            (vec!["1"], "no such argument: `1`"),
            (vec!["--seed"], "`--seed` takes a number"),
            (vec!["--seed", "-1"], "`--seed -1`: a seed is"),
            (vec!["--seed", "18446744073709551616"], "`--seed 18446744073709551616`: a seed"),
            (vec!["--hours"], "`--hours` takes a number"),
            (vec!["--hours", "0"], "`--hours 0`: hours are"),
            (vec!["--hours", "-1"], "`--hours -1`: hours are"),
            (vec!["--hours", "nan"], "`--hours nan`: hours are"),
            (vec!["--hours", "inf"], "`--hours inf`: hours are"),
            (vec!["--hours", "1h"], "`--hours 1h`: hours are"),
        ];
        for (words, message) in wrong {
            let error = parse(&words).expect_err(message);
            assert!(error.starts_with(message) && error.ends_with(HELP), "{error}");
        }
    }
}
