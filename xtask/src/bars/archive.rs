//! The results: a table for the user, and three files that document the run. They are written anew
//! after every bar, so that a crash loses nothing.

use std::fs;
use std::path::{Path, PathBuf};

use serde::Serialize;

use crate::arguments::Arguments;
use crate::bar::Measured;
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
    /// A tiny or simulated run: it shows that the bar runs, nothing about speed.
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

    /// Its lines in the printed table.
    pub(crate) fn lines(&self) -> Vec<String> {
        self.cells()
            .into_iter()
            .map(|[bar, what, measured, bound, verdict]| {
                format!("{bar:<19} {what:<44} {measured:>9} {bound:>9}  {verdict}")
            })
            .collect()
    }

    /// Bar, comparison, value, bound and verdict, one row per comparison.
    fn cells(&self) -> Vec<[String; 5]> {
        let stopped =
            |verdict: String| vec![[self.bar.clone(), "-".into(), "-".into(), "-".into(), verdict]];
        match &self.verdict {
            Verdict::Skipped(reason) => return stopped(format!("skipped: {reason}")),
            Verdict::Fail(reason) if self.measured.checks.is_empty() => {
                return stopped(format!("fail: {reason}"));
            }
            _ => {}
        }
        let row = |check: &crate::bar::Check| {
            let verdict = match (&self.verdict, check.holds()) {
                (Verdict::NotJudged, _) => "not judged",
                (_, true) => "pass",
                (_, false) => "fail",
            };
            let value = format!("{:.3}", check.value);
            [self.bar.clone(), check.what.clone(), value, check.bound.to_string(), verdict.into()]
        };
        self.measured.checks.iter().map(row).collect()
    }
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
            (None, Some(parent)) => Some(free(parent, &environment.label())),
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
        let columns = ["bar", "what", "measured", "must be", "verdict"];
        let [bar, what, measured, bound, verdict] = columns;
        format!(
            "{}\n\n{bar:<19} {what:<44} {measured:>9} {bound:>9}  {verdict}",
            self.environment.sentence()
        )
    }

    /// The lines below the table.
    pub(crate) fn tail(&self) -> String {
        let count = |test: fn(&Verdict) -> bool| {
            self.records.iter().filter(|record| test(&record.verdict)).count()
        };
        let mut text = format!(
            "\n{} passed, {} failed, {} skipped",
            count(|v| matches!(v, Verdict::Pass)),
            count(|v| matches!(v, Verdict::Fail(_))),
            count(|v| matches!(v, Verdict::Skipped(_)))
        );
        let unjudged = count(|v| matches!(v, Verdict::NotJudged));
        if unjudged > 0 {
            text += &format!(", {unjudged} not judged (a tiny or simulated run)");
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
        write_json(&folder.join("environment.json"), &self.environment)?;
        write(&folder.join("samples.json"), &lines(&self.records)?)?;
        write(&folder.join("summary.md"), &self.summary())
    }

    fn summary(&self) -> String {
        let mut text =
            format!("# Bars, {}\n\n{}\n\n", self.environment.date, self.environment.sentence());
        text += "| bar | what | measured | must be | verdict |\n|---|---|---|---|---|\n";
        for record in &self.records {
            for cells in record.cells() {
                text += &format!("| {} |\n", cells.join(" | "));
            }
        }
        text += "\n| bar | side | median GB/s | min | max | CPU s per GB | samples |\n";
        text += "|---|---|---|---|---|---|---|\n";
        for record in &self.records {
            // If no bytes are moved, the time is what is compared above.
            for series in record.measured.series.iter().filter(|series| series.best_rate() > 0.0) {
                let (least, most) = series.extremes();
                text += &format!(
                    "| {} | {} | {:.3} | {:.3} | {:.3} | {:.3} | {} |\n",
                    record.bar,
                    series.name,
                    series.rate() / 1e9,
                    least / 1e9,
                    most / 1e9,
                    series.cpu_s_per_gb(),
                    series.samples.len()
                );
            }
        }
        text += "\n";
        for record in &self.records {
            for note in &record.measured.notes {
                text += &format!("- {}: {note}\n", record.bar);
            }
        }
        text
    }
}

/// `parent/label`, or with a number appended if that exists: archived runs stay as they are.
fn free(parent: &Path, label: &str) -> PathBuf {
    let numbered = (2_u32..).map(|number| parent.join(format!("{label}-{number}")));
    std::iter::once(parent.join(label))
        .chain(numbered)
        .find(|path| !path.exists())
        .unwrap_or_else(|| parent.join(label))
}

fn write_json(path: &Path, value: &impl Serialize) -> Result<(), String> {
    let text = serde_json::to_string_pretty(value).map_err(|error| error.to_string())?;
    write(path, &(text + "\n"))
}

/// A list in JSON, one record on each line: there may be thousands of samples in each.
fn lines(records: &[impl Serialize]) -> Result<String, String> {
    let lines: serde_json::Result<Vec<String>> =
        records.iter().map(serde_json::to_string).collect();
    let lines = lines.map_err(|error| error.to_string())?;
    Ok(format!("[\n{}\n]\n", lines.join(",\n")))
}

fn write(path: &Path, text: &str) -> Result<(), String> {
    fs::write(path, text).map_err(|error| format!("cannot write `{}`: {error}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bar::{Bound, Check};

    fn measured(value: f64) -> Measured {
        Measured {
            checks: vec![Check::new("share of the link", value, Bound::AtLeast(0.97))],
            ..Measured::default()
        }
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
            let environment = Environment::default();
            let mut archive = Archive::new(&arguments, environment).unwrap();
            archive.add(Record::measured("a", measured(0.98), true)).unwrap();
            archive.add(Record::stopped("b", Verdict::Skipped("no GPU".into()))).unwrap();
            assert!(!archive.is_missed());
            assert!(archive.tail().contains("1 passed, 0 failed, 1 skipped"));
        }
        assert_eq!(fs::read_dir(parent.path()).unwrap().count(), 2);
        let folder = free(parent.path(), &Environment::default().label());
        assert!(folder.to_string_lossy().ends_with("-3"));
    }
}
