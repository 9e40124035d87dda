//! The results: a table for the user, and three files that document the run. They are written anew
//! after every bar, so that a crash loses nothing.

use std::fs;
use std::path::{Path, PathBuf};

use serde::Serialize;

use crate::Arguments;
use crate::bar::{Check, Measured};
use crate::machine::Environment;

/// How a bar ended.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Verdict {
    /// Every bound was met.
    Pass,
    /// A bound was missed, or something broke: why.
    Fail(String),
    /// The machine lacks something.
    Skipped(String),
    /// A tiny run: it shows that the bar runs, nothing about speed.
    NotJudged,
}

/// One bar's result.
#[derive(Debug, Serialize)]
pub(crate) struct Record {
    bar: String,
    verdict: Verdict,
    #[serde(flatten)]
    measured: Measured,
}

impl Record {
    /// The record of a completed bar.
    pub(crate) fn measured(bar: &str, measured: Measured, judged: bool) -> Self {
        let missed: Vec<&str> =
            measured.checks.iter().filter(|c| !c.holds()).map(|c| c.what.as_str()).collect();
        let verdict = match (judged, missed.is_empty()) {
            (false, _) => Verdict::NotJudged,
            (true, true) => Verdict::Pass,
            (true, false) => Verdict::Fail(missed.join("; ")),
        };
        Self { bar: bar.into(), verdict, measured }
    }

    /// The record of a bar that did not.
    pub(crate) fn stopped(bar: &str, verdict: Verdict) -> Self {
        Self { bar: bar.into(), verdict, measured: Measured::default() }
    }

    /// Its lines in the table, one for each comparison.
    pub(crate) fn lines(&self) -> Vec<String> {
        match &self.verdict {
            Verdict::Skipped(reason) => return vec![row(&self.bar, "skipped", "", "", reason)],
            Verdict::Fail(reason) if self.measured.checks.is_empty() => {
                return vec![row(&self.bar, "fail", "", "", reason)];
            }
            _ => {}
        }
        let line = |check: &Check| {
            let verdict = match (&self.verdict, check.holds()) {
                (Verdict::NotJudged, _) => "not judged",
                (_, true) => "pass",
                (_, false) => "fail",
            };
            let value = format!("{:.3}", check.value);
            row(&self.bar, &check.what, &value, &check.bound.to_string(), verdict)
        };
        self.measured.checks.iter().map(line).collect()
    }

    /// Its notes, and the rate of each side, which is compared above if no bytes are moved.
    fn details(&self) -> Vec<String> {
        let notes = self.measured.notes.iter().map(|note| format!("{}: {note}", self.bar));
        let moved = self.measured.series.iter().filter(|series| series.best_rate() > 0.0);
        let sides = moved.map(|series| {
            format!(
                "{}: {}: {:.3} GB/s (best {:.3}), {:.3} CPU s per GB, {} samples",
                self.bar,
                series.name,
                series.rate() / 1e9,
                series.best_rate() / 1e9,
                series.cpu_s_per_gb(),
                series.samples.len()
            )
        });
        notes.chain(sides).collect()
    }
}

fn row(bar: &str, what: &str, value: &str, bound: &str, verdict: &str) -> String {
    format!("{bar:<19} {what:<44} {value:>9} {bound:>9}  {verdict}")
}

/// All results of a run.
#[derive(Debug)]
pub(crate) struct Archive {
    folder: Option<PathBuf>,
    environment: Environment,
    records: Vec<Record>,
}

impl Archive {
    /// Chooses and makes the folder, if the arguments request one.
    pub(crate) fn new(arguments: &Arguments, environment: Environment) -> Result<Self, String> {
        let folder = match (&arguments.out, &arguments.archive) {
            (Some(folder), _) => Some(folder.clone()),
            (None, Some(parent)) => Some(free(parent, &environment.label)),
            (None, None) => None,
        };
        if let Some(folder) = &folder {
            fs::create_dir_all(folder)
                .map_err(|error| format!("cannot create `{}`: {error}", folder.display()))?;
        }
        Ok(Self { folder, environment, records: Vec::new() })
    }

    /// The lines above the table.
    pub(crate) fn head(&self) -> String {
        let names = row("bar", "what", "measured", "must be", "verdict");
        format!("{}\n\n{names}", self.environment.sentence)
    }

    /// The lines below the table.
    pub(crate) fn tail(&self) -> String {
        let [mut passed, mut failed, mut skipped, mut unjudged] = [0; 4];
        for record in &self.records {
            *match record.verdict {
                Verdict::Pass => &mut passed,
                Verdict::Fail(_) => &mut failed,
                Verdict::Skipped(_) => &mut skipped,
                Verdict::NotJudged => &mut unjudged,
            } += 1;
        }
        let mut text = format!("\n{passed} passed, {failed} failed, {skipped} skipped");
        if unjudged > 0 {
            text += &format!(", {unjudged} not judged (a tiny run)");
        }
        if let Some(folder) = &self.folder {
            text += &format!("\narchived in `{}`", folder.display());
        }
        text
    }

    /// Whether a bar was missed.
    pub(crate) fn is_missed(&self) -> bool {
        self.records.iter().any(|record| matches!(record.verdict, Verdict::Fail(_)))
    }

    /// Adds a result and rewrites all files.
    pub(crate) fn add(&mut self, record: Record) -> Result<(), String> {
        self.records.push(record);
        let Some(folder) = &self.folder else { return Ok(()) };
        let write = |name: &str, lines: Vec<String>| {
            let path = folder.join(name);
            fs::write(&path, lines.join("\n") + "\n")
                .map_err(|error| format!("cannot write `{}`: {error}", path.display()))
        };
        let text = |error: serde_json::Error| error.to_string();
        let environment = serde_json::to_string_pretty(&self.environment).map_err(text)?;
        write("environment.json", vec![environment])?;
        let samples: serde_json::Result<_> =
            self.records.iter().map(serde_json::to_string).collect();
        write("samples.jsonl", samples.map_err(text)?)?;
        let mut table = vec![self.head()];
        table.extend(self.records.iter().flat_map(Record::lines));
        table.push(String::new());
        table.extend(self.records.iter().flat_map(Record::details));
        write("table.txt", table)
    }
}

/// `parent/label`, or with a number appended if that exists: archived runs stay as they are.
fn free(parent: &Path, label: &str) -> PathBuf {
    let names = (1_u32..).map(|n| if n == 1 { label.into() } else { format!("{label}-{n}") });
    names.map(|name| parent.join(name)).find(|path| !path.exists()).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn measured(value: f64) -> Measured {
        Measured::default().at_least("share of the link", value, 0.97)
    }

    #[test]
    fn verdicts_follow_the_bounds_where_the_run_is_judged() {
        assert_eq!(Record::measured("a", measured(0.98), true).verdict, Verdict::Pass);
        let missed = Record::measured("a", measured(0.96), true);
        assert_eq!(missed.verdict, Verdict::Fail("share of the link".into()));
        assert_eq!(Record::measured("a", measured(0.1), false).verdict, Verdict::NotJudged);
        assert!(missed.lines()[0].ends_with("0.960  >= 0.970  fail"), "{:?}", missed.lines());
    }

    #[test]
    fn runs_are_written_and_never_over_an_earlier_one() {
        let parent = tempfile::tempdir().unwrap();
        let arguments = Arguments { archive: Some(parent.path().into()), ..Arguments::default() };
        for _ in 0..2 {
            let environment = Environment { label: "run".into(), ..Environment::default() };
            let mut archive = Archive::new(&arguments, environment).unwrap();
            archive.add(Record::measured("a", measured(0.98), true)).unwrap();
            archive.add(Record::stopped("b", Verdict::Skipped("no drive".into()))).unwrap();
            assert!(!archive.is_missed());
            assert!(archive.tail().contains("1 passed, 0 failed, 1 skipped"));
        }
        assert_eq!(fs::read_dir(parent.path()).unwrap().count(), 2);
        assert!(free(parent.path(), "run").ends_with("run-3"));
    }
}
