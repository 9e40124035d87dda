//! Warnings on results: a short sentence each. Pure.

use std::collections::HashSet;

use forebay_measure::results::{Point, Sample};
use serde::Deserialize as _;

use super::{Line, Metric, Model, RunFacts, unique};
use crate::report::numbers::{counted, percent};
use crate::report::ratio::{SAMPLES_MIN, SPREAD_MAX};

/// Most warnings that are kept.
const KEPT_MAX: usize = 1000;
/// Above this share of a limit, the limit was measured too low.
const SHARE_MAX: f64 = 1.05;

/// Warnings found while records are read.
#[derive(Debug, Default)]
pub(super) struct Collected {
    texts: Vec<String>,
    /// The sentences without their numbers.
    known: HashSet<String>,
}

impl Collected {
    /// Adds a sentence, once if only its numbers differ from those of others.
    pub(super) fn add(&mut self, text: &str) {
        let kind: String = text.chars().filter(|letter| !letter.is_ascii_digit()).collect();
        if self.known.insert(kind) && self.texts.len() < KEPT_MAX {
            self.texts.push(text.to_owned());
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

    /// Adds the runs that were stopped: a sweep records its points before the first sample.
    pub(super) fn incomplete(
        &mut self,
        runs: &[RunFacts],
        groups: &[((usize, Point), Vec<&Sample>)],
    ) {
        for (number, run) in runs.iter().enumerate() {
            let own = groups.iter().filter(|((run, _), _)| *run == number);
            let samples: Vec<&Sample> = own.flat_map(|(_, samples)| samples).copied().collect();
            let Some(points) = points_of(run).filter(|_| !samples.is_empty()) else { continue };
            let repeats = run.record.request["repeats"].as_u64().unwrap_or(1);
            let is_planned = |sample: &&&Sample| {
                u64::from(sample.repeat) < repeats && points.contains(&sample.point)
            };
            let there = samples.iter().filter(is_planned);
            let there: HashSet<_> = there.map(|sample| (&sample.point, sample.repeat)).collect();
            let all = (points.len() as u64).saturating_mul(repeats);
            if (there.len() as u64) < all {
                let (name, count) = (&run.name, there.len());
                // A run of several ranks begins again.
                let next = match run.record.ranks.is_empty() {
                    true => "; the same command continues it",
                    false => "",
                };
                self.add(&format!("`{name}` is incomplete: {count} of {all} samples{next}"));
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
pub(super) fn of(model: &Model, collected: Collected) -> (Vec<String>, usize) {
    let lines = &model.lines;
    let about = |fits: &dyn Fn(&Line) -> bool, text: &str| {
        let count = lines.iter().filter(|line| fits(line)).count();
        (count > 0).then(|| format!("{count} of {} {text}", counted(lines.len(), "point")))
    };
    let error = lines.iter().find_map(|line| line.error.as_deref()).unwrap_or_default();
    let is_short = |line: &Line| !line.imported && line.rate().is_none() && line.failed == 0;
    let is_few = |line: &Line| !line.imported && line.failed == 0 && line.count() < SAMPLES_MIN;
    let grave = [
        about(&|line| line.verified == Some(false), "moved wrong data: see the kernel's log"),
        about(&|line| line.failed > 0, &format!("failed, the first with: {error}")),
        about(&is_few, "have fewer than three samples: their error is unknown (`--repeats 3`)"),
        about(
            &is_short,
            "have samples shorter than 0.5 s, too short for a rate: give a longer `--time`",
        ),
    ];
    let mut texts: Vec<String> = grave.into_iter().flatten().collect();
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
        about(&|line| line.steady == Some(false), "had no steady rate: measure for longer"),
        about(&is_apart, &format!("have repeats more than {percent} apart (marked ~)")),
        about(&above, "exceed their limit, which was measured too low"),
        about(&Line::is_doubtful, "have no verified path: `forebay doctor` says what is missing"),
        about(&|line| line.since_due, "have a fixed rate: latency begins when an I/O was due"),
        about(&|line| line.imported, &format!("are from {tools}: data and path are not verified")),
    ];
    texts.extend(rest.into_iter().flatten());
    (texts, count)
}

fn is_apart(line: &Line) -> bool {
    line.estimate(Metric::Rate).is_some_and(|rate| rate.is_unsteady())
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use crate::report::made::{self, Sweep};
    use crate::report::model::gather::tests::model_of;

    fn changed(change: impl Fn(&mut Value)) -> Vec<String> {
        let mut records = vec![made::run(&Sweep::default())];
        records.extend(made::samples(&Sweep::default()));
        change(&mut records[1]);
        model_of(&[("a", &made::text(&records))]).warnings
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
        one(changed(|sample| sample["measured"]["bytes_per_second"] = 9.0.into()), "apart");
        one(changed(|sample| sample["measured"]["simulated"] = true.into()), "simulated");
        one(changed(|s| s["measured"]["latency"]["since_due"] = true.into()), "was due");
        one(changed(|s| s["measured"]["verdict"]["text"] = "unproven".into()), "no verified path");
        let mut records = vec![made::run(&Sweep::default())];
        records.extend(made::samples(&Sweep::default()));
        for record in &mut records[1..] {
            record["measured"]["bound"]["bytes_per_second"] = 1e7.into();
        }
        one(
            model_of(&[("a", &made::text(&records))]).warnings,
            "15 of 15 points exceed their limit",
        );
        let failed = changed(|sample| {
            sample["measured"] = Value::Null;
            sample["error"] = "cannot read".into();
        });
        one(failed, "failed, the first with: cannot read");
    }

    #[test]
    fn sentences_that_differ_in_numbers_come_once() {
        let mut records = vec![made::run(&Sweep::default())];
        records.extend(made::samples(&Sweep::default()));
        for (number, record) in records.iter_mut().enumerate().skip(1) {
            record["measured"]["power"] = json!({
                "warnings": [format!("`gpu` gave {number} readings")],
                "throttled": [{"name": "gpu 0", "reason": "heat", "share": 0.5}],
            });
        }
        let warnings = model_of(&[("a", &made::text(&records))]).warnings;
        assert_eq!(warnings, ["`gpu` gave 1 readings", "gpu 0 was throttled: heat (50 %)"]);
    }

    #[test]
    fn a_run_that_was_stopped_is_incomplete() {
        let sweep = Sweep { request_sizes: vec![4096], depths: vec![1, 8], ..Sweep::default() };
        let mut records = vec![made::run(&sweep)];
        records.extend(made::samples(&sweep));
        made::name_points(&mut records);
        let of = |records: &[Value]| model_of(&[("a", &made::text(records))]).warnings;
        assert_eq!(of(&records), Vec::<String>::new());
        let continued = [&records[..3], &records[..1], &records[3..]].concat();
        assert_eq!(of(&continued), Vec::<String>::new());
        let found = of(&records[..5]);
        assert!(found[0].contains("2 of 2 points have fewer than three samples"), "{found:?}");
        assert!(found[1].starts_with("`a` is incomplete: 4 of 6 samples"), "{found:?}");
    }
}
