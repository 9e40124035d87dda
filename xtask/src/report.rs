//! Counts passed, failed and skipped tests, from the output of test executables and from the
//! chore's own steps.
//!
//! Tests print `skipped: WHAT: REASON` if the machine lacks something, by `println!` or directly to
//! stderr. The executables run with `--show-output`, which prints the former after the tests; all
//! other output of passing tests is hidden.

use std::collections::BTreeMap;
use std::process::Command;

use crate::process::{self, Result, Stream, say};

/// The prefix of the line by which a test reports that it did not run.
const SKIPPED: &str = "skipped: ";

/// Characters of a line of a failed test that are shown again at the end.
const OUTPUT_MAX: usize = 2000;

/// The results so far.
#[derive(Debug, Default)]
pub(crate) struct Report {
    pub(crate) passed: u64,
    pub(crate) failed: u64,
    pub(crate) skipped: Vec<String>,
    pub(crate) failures: Vec<String>,
    /// The output of failed tests, up to [`OUTPUT_MAX`] characters a line.
    outputs: Vec<String>,
}

impl Report {
    /// A step of the chore itself, counted like a test.
    pub(crate) fn step(&mut self, name: &str, passed: bool) {
        if passed {
            self.passed += 1;
        } else {
            self.failed += 1;
            self.failures.push(name.into());
        }
    }

    /// Reports a step that could not run here, as `WHAT: REASON`.
    pub(crate) fn skip(&mut self, what: impl Into<String>) {
        self.skipped.push(what.into());
    }

    /// Adds the counts of a run of a test program. A run that failed without a failed test (an
    /// executable that crashed or did not compile) counts as a failure.
    pub(crate) fn add(&mut self, name: &str, output: TestOutput, succeeded: bool) {
        let TestOutput { mut counts, ignored, .. } = output;
        if !succeeded && counts.failed == 0 {
            self.step(name, false);
        }
        counts.failures.iter_mut().for_each(|test| *test = format!("{name}: {test}"));
        for _ in 0..ignored {
            counts.skip(format!("{name}: slow, `cargo xtask test --all` runs it"));
        }
        self.merge(counts);
    }

    /// Adds the results of a part that ran concurrently.
    pub(crate) fn merge(&mut self, other: Self) {
        self.passed += other.passed;
        self.failed += other.failed;
        self.skipped.extend(other.skipped);
        self.failures.extend(other.failures);
        self.outputs.extend(other.outputs);
    }

    /// Prints the skips, the output of failed tests, their names, and the sums. True if nothing
    /// failed.
    pub(crate) fn finish(&self) -> bool {
        for line in self.lines() {
            say!("{line}");
        }
        self.failed == 0
    }

    /// The lines of [`finish`](Self::finish). Skips with the same reason share a line.
    fn lines(&self) -> Vec<String> {
        let mut counted: BTreeMap<&str, u64> = BTreeMap::new();
        for line in &self.skipped {
            *counted.entry(line).or_default() += 1;
        }
        let mut lines = vec![String::new()];
        for (line, count) in counted {
            let times = if count > 1 { format!(" ({count} times)") } else { String::new() };
            lines.push(format!("{SKIPPED}{line}{times}"));
        }
        lines.extend(self.outputs.iter().cloned());
        lines.extend(self.failures.iter().map(|name| format!("failed: {name}")));
        lines.push(format!(
            "{} passed, {} failed, {} skipped",
            self.passed,
            self.failed,
            self.skipped.len()
        ));
        lines
    }
}

/// The output of a run's test executables, read line by line.
#[derive(Debug, Default)]
pub(crate) struct TestOutput {
    pub(crate) counts: Report,
    ignored: u64,
    quiet: bool,
    /// Whether the output of failed tests follows.
    failed_comes: bool,
}

impl TestOutput {
    /// Runs a command that runs tests, adds the relevant output to `printed`, and returns whether
    /// it succeeded.
    pub(crate) fn run(&mut self, command: &mut Command, printed: &mut String) -> Result<bool> {
        process::each_line(command, |stream, line| {
            let is_shown = match stream {
                Stream::Stdout => self.take(line),
                Stream::Stderr => !self.take_skip(line),
            };
            if is_shown {
                printed.push_str(line);
                printed.push('\n');
            }
        })
    }

    /// Adds a line if it reports a skip.
    fn take_skip(&mut self, line: &str) -> bool {
        let Some(what) = line.strip_prefix(SKIPPED) else { return false };
        self.counts.skip(what.trim());
        true
    }

    /// Processes a line; returns whether to show it.
    fn take(&mut self, line: &str) -> bool {
        if self.take_skip(line) {
            return false;
        }
        if let Some(result) = line.strip_prefix("test result: ") {
            (self.quiet, self.failed_comes) = (false, false);
            self.counts.passed += count(result, "passed");
            self.counts.failed += count(result, "failed");
            self.ignored += count(result, "ignored");
            return true;
        }
        if let Some(name) =
            line.strip_prefix("test ").and_then(|rest| rest.strip_suffix(" ... FAILED"))
        {
            self.counts.failures.push(name.into());
        }
        match line {
            "successes:" => self.quiet = true,
            "failures:" => (self.quiet, self.failed_comes) = (false, true),
            _ if self.failed_comes && !line.is_empty() => {
                self.counts.outputs.push(line.chars().take(OUTPUT_MAX).collect());
            }
            _ => {}
        }
        !self.quiet
    }
}

/// The number before `word` in `ok. 5 passed; 0 failed; …`.
fn count(result: &str, word: &str) -> u64 {
    result
        .split([';', '.'])
        .filter_map(|part| part.trim().strip_suffix(word))
        .find_map(|number| number.trim().parse().ok())
        .unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    const OUTPUT: &str = "\
running 4 tests
test a ... ok
test b ... ok
test slow ... ignored
test c ... FAILED

successes:

---- a stdout ----
chatter
skipped: gpu: no `libcuda.so.1`

successes:
    a
    b

failures:

---- c stdout ----
it broke

failures:
    c

test result: FAILED. 2 passed; 1 failed; 1 ignored; 0 measured; 0 filtered out; finished in 0.1s
";

    #[test]
    fn chatter_of_passing_tests_is_dropped_and_skips_are_kept() {
        let mut output = TestOutput::default();
        let shown: Vec<&str> = OUTPUT.lines().filter(|line| output.take(line)).collect();
        assert!(shown.contains(&"it broke"));
        assert!(!shown.contains(&"chatter"));
        assert_eq!(output.counts.skipped, ["gpu: no `libcuda.so.1`"]);
        assert_eq!((output.counts.passed, output.counts.failed, output.ignored), (2, 1, 1));
        assert_eq!(output.counts.failures, ["c"]);
    }

    #[test]
    fn everything_is_summed_in_the_last_line() {
        let mut output = TestOutput::default();
        OUTPUT.lines().for_each(|line| {
            output.take(line);
        });
        let mut report = Report::default();
        report.step("format", true);
        report.skip("gpu: no `libcuda.so.1`");
        report.add("tests", output, false);
        let lines = report.lines();
        assert_eq!(lines.last().unwrap(), "3 passed, 1 failed, 3 skipped");
        assert!(lines.contains(&"skipped: gpu: no `libcuda.so.1` (2 times)".into()));
        assert!(lines.contains(&"failed: tests: c".into()));
        assert!(lines.contains(&"it broke".into()) && !lines.contains(&"chatter".into()));
    }

    #[test]
    fn skips_are_taken_from_both_streams() {
        let mut output = TestOutput::default();
        let script = "echo skipped: a: b; echo skipped: c >&2";
        let mut printed = String::new();
        assert_eq!(output.run(Command::new("sh").args(["-c", script]), &mut printed), Ok(true));
        assert_eq!(printed, "");
        output.counts.skipped.sort();
        assert_eq!(output.counts.skipped, ["a: b", "c"]);
    }

    #[test]
    fn a_crash_without_a_result_is_a_failure() {
        let mut report = Report::default();
        report.add("tests", TestOutput::default(), false);
        assert!(report.lines().contains(&"0 passed, 1 failed, 0 skipped".into()));
    }

    #[test]
    fn a_crash_after_good_results_is_a_failure() {
        let mut output = TestOutput::default();
        output.take("test result: ok. 7 passed; 0 failed; 0 ignored; 0 measured");
        let mut report = Report::default();
        report.add("tests", output, false);
        assert!(report.lines().contains(&"7 passed, 1 failed, 0 skipped".into()));
    }
}
