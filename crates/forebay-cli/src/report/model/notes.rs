//! Warnings on results, in short sentences. Pure.

use std::collections::HashSet;

use forebay_measure::results::{Measured, Point, Sample};
use serde::Deserialize as _;

use super::{Line, Metric, Model, RunFacts, grouped, unique};
use crate::report::numbers::{counted, percent};
use crate::report::ratio::{SAMPLES_MIN, SPREAD_MAX};

/// How a run names the rows that it did not measure.
pub const NO_TIME: &str = "no time was left to measure";
/// Most warnings that are kept.
const KEPT_MAX: usize = 1000;
/// Above this share of a limit, the limit was measured too low.
const SHARE_MAX: f64 = 1.05;

/// Warnings found while records are read.
#[derive(Debug, Default)]
pub(super) struct Collected {
    /// Whether the records are of files, whose runs may have been stopped.
    is_of_files: bool,
    texts: Vec<String>,
    /// Sentences by which rows are not what their titles say.
    doubts: Vec<String>,
    /// The sentences without their numbers.
    known: HashSet<String>,
}

impl Collected {
    pub(super) fn of_files() -> Self {
        Self { is_of_files: true, ..Self::default() }
    }

    /// Adds a sentence, unless a known sentence differs only in numbers.
    pub(super) fn add(&mut self, text: &str) {
        let kind: String = text.chars().filter(|letter| !letter.is_ascii_digit()).collect();
        if self.known.insert(kind) && self.texts.len() < KEPT_MAX {
            self.texts.push(text.to_owned());
        }
    }

    /// Adds a sentence that every form shows, once.
    pub(super) fn doubt(&mut self, text: &str) {
        if !self.doubts.iter().any(|known| known == text) && self.doubts.len() < KEPT_MAX {
            self.doubts.push(text.to_owned());
        }
    }

    /// Adds what the sensors of a point's samples report.
    pub(super) fn sampled(&mut self, samples: &[&Sample]) {
        let measured = samples.iter().filter_map(|sample| sample.measured.as_ref());
        for power in measured.filter_map(|measured| measured.power.as_ref()) {
            power.warnings.iter().for_each(|text| self.add(text));
            for found in &power.throttled {
                let share = percent(found.share);
                self.add(&format!("{} was throttled: {} ({share})", found.name, found.reason));
            }
        }
    }

    /// Adds the runs that were stopped: a sweep records its points before the first sample. Rows
    /// that failed lack no samples, nor do whole files that are too small for a rate.
    pub(super) fn incomplete(
        &mut self,
        runs: &[RunFacts],
        groups: &[((usize, Point), Vec<&Sample>)],
    ) {
        if !self.is_of_files {
            return;
        }
        for (number, run) in runs.iter().enumerate() {
            let Some(points) = points_of(run) else { continue };
            let request = &run.record.request;
            let repeats = request["repeats"].as_u64().unwrap_or(1);
            let is_own = |(key, _): &&((usize, Point), Vec<&Sample>)| {
                key.0 == number && points.contains(&key.1)
            };
            let has_ended = |(_, samples): &&((usize, Point), Vec<&Sample>)| {
                let mut all = samples.iter().map(|sample| sample.measured.as_ref());
                let is_short = |one: Option<&Measured>| one.is_some_and(|it| !it.is_long_enough());
                all.clone().any(|one| one.is_none())
                    || request["whole_files"] == true && all.all(is_short)
            };
            let (ended, others): (Vec<_>, Vec<_>) =
                groups.iter().filter(is_own).partition(has_ended);
            let samples = others.iter().flat_map(|(_, samples)| samples);
            let planned = samples.filter(|sample| u64::from(sample.repeat) < repeats);
            let there: HashSet<_> = planned.map(|one| (&one.point, one.repeat)).collect();
            let all = ((points.len() - ended.len()) as u64).saturating_mul(repeats);
            if ended.len() + others.len() > 0 && (there.len() as u64) < all {
                let name = &run.name;
                let there = there.len();
                let samples = format!("{there} of {all} samples; the same command continues it");
                self.add(&format!("`{name}` is incomplete: {samples}"));
            }
        }
    }
}

/// The points of a run, if it names them.
fn points_of(run: &RunFacts) -> Option<HashSet<Point>> {
    let points = run.record.request["points"].as_array()?.iter();
    points.map(|point| Point::deserialize(point).ok()).collect()
}

/// The warnings of a model, the gravest first, and how many of them are grave: with these, numbers
/// may be wrong or mean nothing, so every form shows them.
pub(super) fn of(model: &Model, mut collected: Collected) -> (Vec<String>, usize) {
    let lines = &model.lines;
    let about = |fits: &dyn Fn(&Line) -> bool, verbs: [&str; 2], text: &str| {
        let count = lines.iter().filter(|line| fits(line)).count();
        let verb = verbs[usize::from(count > 1)];
        (count > 0).then(|| format!("{count} of {} {verb} {text}", counted(lines.len(), "point")))
    };
    const HAVE: [&str; 2] = ["has", "have"];
    let failed = lines.iter().filter(|line| line.failed > 0);
    let error = failed.filter_map(|line| line.error.as_deref()).next().unwrap_or_default();
    let is_short = |line: &Line| !line.imported && line.why_no_rate() == Some("too short");
    let is_few = |line: &Line| {
        !line.imported && line.failed == 0 && line.rate().is_some() && line.count() < SAMPLES_MIN
    };
    let grave = [
        about(
            &|line| line.verified == Some(false),
            ["moved"; 2],
            "wrong data: see the kernel's log",
        ),
        about(&|line| line.failed > 0, ["failed"; 2], &format!("(first error: {error})")),
        about(&is_few, HAVE, "fewer than three samples, too few for an error (`--repeats 3`)"),
        about(
            &is_short,
            HAVE,
            "samples shorter than 0.1 s, too short for a rate: give a larger `--size` or `--bytes`",
        ),
    ];
    let mut texts: Vec<String> = grave.into_iter().flatten().collect();
    texts.extend(unavailable(lines));
    texts.extend(collected.texts.extract_if(.., |text| text.starts_with(NO_TIME)));
    texts.extend(collected.doubts);
    let count = texts.len();
    let is_known = collected.texts.iter().any(|text| text.contains("simulated"));
    texts.extend(collected.texts);
    if lines.iter().any(|line| line.simulated) && !is_known {
        texts.push("a GPU was simulated: its numbers say nothing about hardware".into());
    }
    let above = |line: &Line| line.share().is_some_and(|share| share > SHARE_MAX);
    let imported = model.runs.iter().filter_map(|run| run.record.imported.as_ref());
    let tools = unique(imported.map(|from| from.tool.as_str())).join(", ");
    let percent = percent(SPREAD_MAX);
    let rest = [
        about(&|line| line.steady == Some(false), ["had"; 2], "no steady rate: measure for longer"),
        about(&is_apart, HAVE, &format!("a `±` above {percent}: keep the machine idle")),
        about(&above, ["exceeds", "exceed"], "a limit that was measured too low"),
        about(&Line::is_doubtful, HAVE, "no verified path: `forebay doctor` says what is missing"),
        about(&|line| line.since_due, HAVE, "a fixed rate: latency begins when an I/O was due"),
        about(
            &|line| line.imported,
            ["is", "are"],
            &format!("from {tools}: data and path are not verified"),
        ),
    ];
    texts.extend(rest.into_iter().flatten());
    (texts, count)
}

/// The methods that the machine lacks, a sentence per reason.
fn unavailable(lines: &[Line]) -> Vec<String> {
    let absent = lines.iter().filter(|line| line.is_unavailable());
    let reasons = grouped(absent.map(|line| (line.error.as_deref(), format!("`{}`", line.method))));
    let text = |(why, methods): (Option<&str>, Vec<String>)| {
        let methods = unique(methods);
        let verb = if methods.len() == 1 { "is" } else { "are" };
        format!("{} {verb} not available: {}", methods.join(" and "), why.unwrap_or_default())
    };
    reasons.into_iter().map(text).collect()
}

fn is_apart(line: &Line) -> bool {
    line.estimate(Metric::Rate).is_some_and(|rate| rate.is_unsteady())
}

#[cfg(test)]
mod tests {
    use forebay_measure::results::Record;
    use serde::Deserialize as _;
    use serde_json::{Value, json};

    use crate::report::made::{self, Sweep};
    use crate::report::model::gather;
    use crate::report::model::gather::tests::{of_records, records_of};

    fn changed(change: impl Fn(&mut Value)) -> Vec<String> {
        let mut records = records_of(&Sweep::default());
        change(&mut records[1]);
        of_records(&records).warnings
    }

    #[test]
    fn each_fault_has_a_sentence() {
        assert_eq!(changed(|_| {}), Vec::<String>::new());
        let one = |warnings: Vec<String>, word: &str| {
            assert_eq!(warnings.len(), 1, "{warnings:?}");
            assert!(warnings[0].contains(word) && warnings[0].len() < 100, "{warnings:?}");
        };
        one(
            changed(|sample| sample["measured"]["verified"] = false.into()),
            "1 of 15 points moved",
        );
        one(changed(|s| s["measured"]["steady"]["reached"] = false.into()), "no steady rate");
        one(changed(|sample| sample["measured"]["bytes_per_second"] = 9.0.into()), "above 25 %");
        one(changed(|sample| sample["measured"]["simulated"] = true.into()), "simulated");
        one(changed(|s| s["measured"]["latency"]["since_due"] = true.into()), "was due");
        one(changed(|s| s["measured"]["verdict"]["text"] = "unproven".into()), "no verified path");
        let mut records = records_of(&Sweep::default());
        for record in &mut records[1..] {
            record["measured"]["bound"]["bytes_per_second"] = 1e7.into();
        }
        one(of_records(&records).warnings, "15 of 15 points exceed a limit");
        let failed = changed(|sample| {
            sample["measured"] = Value::Null;
            sample["error"] = "cannot read".into();
        });
        one(failed, "1 of 15 points failed (first error: cannot read)");
    }

    #[test]
    fn one_point_has_a_singular_verb_and_doubts_are_grave() {
        let sweep = Sweep { request_sizes: vec![4096], depths: vec![1], ..Sweep::default() };
        let mut records = vec![made::run(&sweep)];
        records.extend(made::samples(&sweep).into_iter().take(1));
        records.push(json!({"record": "warning", "text": "a note"}));
        records.push(json!({"record": "doubt", "text": "all of it are holes"}));
        let model = of_records(&records);
        assert!(model.warnings[0].starts_with("1 of 1 point has fewer"), "{:?}", model.warnings);
        assert_eq!(model.warnings[1..], ["all of it are holes", "a note"]);
        assert_eq!(model.grave, 2);
    }

    #[test]
    fn sentences_that_differ_in_numbers_come_once() {
        let mut records = records_of(&Sweep::default());
        for (number, record) in records.iter_mut().enumerate().skip(1) {
            record["measured"]["power"] = json!({
                "warnings": [format!("`gpu` gave {number} readings")],
                "throttled": [{"name": "gpu 0", "reason": "heat", "share": 0.5}],
            });
        }
        records.push(json!({"record": "warning", "text": format!("{} it", super::NO_TIME)}));
        let model = of_records(&records);
        let (grave, warnings) = model.warnings.split_at(model.grave);
        assert_eq!(grave, ["no time was left to measure it"]);
        assert_eq!(warnings, ["`gpu` gave 1 readings", "gpu 0 was throttled: heat (50 %)"]);
    }

    #[test]
    fn a_run_that_was_stopped_is_incomplete() {
        let sweep = Sweep { request_sizes: vec![4096], depths: vec![1, 8], ..Sweep::default() };
        let mut records = records_of(&sweep);
        made::name_points(&mut records);
        let of = |records: &[Value]| of_records(records).warnings;
        assert_eq!(of(&records), Vec::<String>::new());
        let continued = [&records[..3], &records[..1], &records[3..]].concat();
        assert_eq!(of(&continued), Vec::<String>::new());
        let found = of(&records[..5]);
        assert!(found[0].contains("2 of 2 points have fewer than three samples"), "{found:?}");
        let text = "`a` is incomplete: 4 of 6 samples; the same command continues it";
        assert_eq!(found[1], text);
        // Whole files that are too small for a rate are measured once.
        for seconds in [0.5, 0.05] {
            let mut whole = records[..6].to_vec();
            whole[0]["request"]["whole_files"] = true.into();
            for sample in whole[1..].iter_mut().filter(|sample| sample["point"]["depth"] == 8) {
                sample["measured"]["seconds"] = seconds.into();
            }
            let is_incomplete = of(&whole).iter().any(|text| text.contains("incomplete"));
            assert_eq!(is_incomplete, seconds > 0.1, "{:?}", of(&whole));
        }
        // Rows that failed lack no samples.
        let stopped = records.clone();
        for sample in records[1..].iter_mut().filter(|sample| sample["point"]["depth"] == 8) {
            (sample["measured"], sample["error"]) = (Value::Null, "it broke".into());
        }
        let failed = records.iter().filter(|record| record["point"]["depth"] != 8);
        let broken = records.iter().find(|record| record["point"]["depth"] == 8);
        let found = of(&failed.chain(broken).cloned().collect::<Vec<_>>());
        assert_eq!(found, ["1 of 2 points failed (first error: it broke)"]);
        // The command that measures knows itself whether it is complete.
        let own: Vec<_> =
            stopped[..5].iter().map(|one| Record::deserialize(one).unwrap()).collect();
        let own = gather::of_own_run(&own).warnings;
        assert!(own.iter().all(|text| !text.contains("incomplete")), "{own:?}");
    }
}
