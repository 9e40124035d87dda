//! Whether runs are complete. A sweep records its points and repeats before the first sample, and
//! may be stopped before the last. Pure.
//!
//! Imported runs and other verbs have no such record, so nothing is reported for them.

use std::collections::{HashMap, HashSet};

use serde::Deserialize as _;

use super::RunFacts;
use crate::report::plain::plain;
use crate::results::{Point, Sample};

/// How much of an incomplete sweep exists.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Unfinished {
    /// Requested points.
    pub points: usize,
    /// Points without a sample.
    pub without: usize,
    /// Requested samples: each repeat of each point.
    pub samples: u64,
    /// Existing samples, including failed ones.
    pub there: u64,
    /// Of these, the failed ones and those with wrong data.
    pub failed: u64,
}

impl Unfinished {
    /// The sentence on a run or a side of that name, with the next step.
    #[must_use]
    pub fn sentence(&self, name: &str) -> String {
        let Self { points, without, samples, there, failed } = self;
        let lack = if *without > 0 {
            format!(
                "{without} of {points} points have no sample, and it holds {there} of {samples} \
                 samples"
            )
        } else {
            format!("it holds {there} of {samples} samples, at least one of each point")
        };
        let failed = match failed {
            0 => String::new(),
            count => format!(", {count} of which failed"),
        };
        let name = plain(name);
        format!(
            "{name} is incomplete: {lack}{failed}; unless it is still running, or was started \
             anew, repeat the same `forebay sweep` command on that machine, with the same version, \
             to continue it"
        )
    }
}

/// Finds the missing samples of each of `runs`, the first of which has the number `first`.
pub(super) fn find(runs: &mut [RunFacts], first: usize, samples: &[(usize, &Sample)]) {
    let mut of_runs: HashMap<usize, Vec<&Sample>> = HashMap::new();
    for (run, sample) in samples {
        of_runs.entry(*run).or_default().push(sample);
    }
    for (number, run) in runs.iter_mut().enumerate() {
        let own = of_runs.get(&(first + number)).map_or(&[][..], Vec::as_slice);
        run.unfinished = of_run(run, own);
    }
}

fn of_run(run: &RunFacts, samples: &[&Sample]) -> Option<Unfinished> {
    // Only a sweep continues where it stopped.
    if run.verb != "sweep" || run.imported.is_some() {
        return None;
    }
    let asked = run.asked["points"].as_array()?.iter();
    let points: HashSet<Point> =
        asked.map(|point| Point::deserialize(point).ok()).collect::<Option<_>>()?;
    let repeats = run.asked["repeats"].as_u64().unwrap_or(1);
    let was_asked =
        |sample: &&&Sample| u64::from(sample.repeat) < repeats && points.contains(&sample.point);
    // A sample that failed and was measured again counts once.
    let there: HashSet<(&Point, u32)> =
        samples.iter().filter(was_asked).map(|sample| (&sample.point, sample.repeat)).collect();
    let good: HashSet<(&Point, u32)> = samples
        .iter()
        .filter(was_asked)
        .filter(|sample| sample.is_good())
        .map(|sample| (&sample.point, sample.repeat))
        .collect();
    let with: HashSet<&Point> = there.iter().map(|(point, _)| *point).collect();
    let found = Unfinished {
        points: points.len(),
        without: points.len() - with.len(),
        samples: repeats.saturating_mul(points.len() as u64),
        there: there.len() as u64,
        failed: (there.len() - good.len()) as u64,
    };
    (found.there < found.samples).then_some(found)
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::report::digest::gather::tests::digest_of;
    use crate::report::made::{self, Sweep};

    /// Four points, each three times, after the run.
    fn records() -> Vec<Value> {
        let (request_sizes, depths) = (vec![65536, 1 << 20], vec![1, 8]);
        let sweep = Sweep { request_sizes, depths, ..Sweep::default() };
        let mut records = vec![made::run(&sweep)];
        records.extend(made::samples(&sweep));
        made::name_points(&mut records);
        records
    }

    fn found(text: &str) -> Option<Unfinished> {
        digest_of(&[("a", text)]).runs[0].unfinished
    }

    fn there(without: usize, there: u64) -> Option<Unfinished> {
        Some(Unfinished { points: 4, without, samples: 12, there, failed: 0 })
    }

    #[test]
    fn what_is_whole_lacks_nothing() {
        let records = records();
        assert_eq!(found(&made::text(&records)), None);
        let again = [&records[..], &records[1..]].concat();
        assert_eq!(found(&made::text(&again)), None, "each sample counts once");
        let continued = [&records[..6], &records[..1], &records[6..]].concat();
        assert_eq!(found(&made::text(&continued)), None, "a run that was continued is one");
    }

    #[test]
    fn each_repeat_of_each_point_counts() {
        let mut records = records();
        let text = |records: &[Value]| made::text(records);
        assert_eq!(found(&text(&records[..12])), there(0, 11), "the last is missing");
        assert_eq!(found(&text(&records[..4])), there(1, 3));
        let none = [&records[..1], &[made::ceiling("link", "cuda:0", false, 1e9)]].concat();
        assert_eq!(found(&text(&none)), there(4, 0));
        // An unrequested sample replaces no requested one.
        records[12]["repeat"] = 3.into();
        assert_eq!(found(&text(&records)), there(0, 11));
        records[12]["point"]["depth"] = 2.into();
        assert_eq!(found(&text(&records)), there(0, 11));
    }

    #[test]
    fn a_record_that_was_cut_is_not_there() {
        let text = made::text(&records());
        assert_eq!(found(&text[..text.len() - 40]), there(0, 11));
    }

    #[test]
    fn what_failed_is_there() {
        let mut records = records();
        for record in records.iter_mut().filter(|record| record["point"]["depth"] == 8) {
            record["measured"] = Value::Null;
            record["error"] = "cannot read".into();
        }
        assert_eq!(found(&made::text(&records)), None);
        records.pop();
        let found = found(&made::text(&records)).unwrap();
        assert_eq!((found.there, found.failed), (11, 5));
        assert!(found.sentence("a").contains("at least one of each point, 5 of which failed;"));
    }

    #[test]
    fn of_what_nobody_wrote_down_nothing_is_said() {
        let mut records = records();
        records.truncate(4);
        let change = |change: &dyn Fn(&mut Value)| {
            let mut records = records.clone();
            change(&mut records[0]);
            found(&made::text(&records))
        };
        assert_eq!(change(&|_| {}), there(1, 3));
        let imported = json!({"tool": "fio", "version": "fio-3.36", "file": "fio.json"});
        assert_eq!(change(&|run| run["imported"] = imported.clone()), None);
        assert_eq!(change(&|run| run["verb"] = "other".into()), None);
        assert_eq!(change(&|run| run["asked"]["points"] = Value::Null), None);
        assert_eq!(change(&|run| run["asked"]["points"][0] = 7.into()), None);
        assert_eq!(change(&|run| run["asked"] = Value::Null), None);
        // Sums do not overflow, whatever a file says.
        let most = change(&|run| run["asked"]["repeats"] = u64::MAX.into()).unwrap();
        assert_eq!((most.samples, most.there), (u64::MAX, 3));
    }

    #[test]
    fn a_report_warns_with_the_next_step() {
        let records = records();
        let warnings = |count: usize| {
            let warnings = digest_of(&[("a", &made::text(&records[..count]))]).warnings;
            warnings.into_iter().filter(|text| text.contains("is incomplete")).collect::<Vec<_>>()
        };
        assert_eq!(warnings(13), Vec::<String>::new());
        let next = "unless it is still running, or was started anew, repeat the same `forebay \
                    sweep` command on that machine, with the same version, to continue it";
        let lack = "1 of 4 points have no sample, and it holds 3 of 12 samples";
        assert_eq!(warnings(4), [format!("a is incomplete: {lack}; {next}")]);
        let lack = "it holds 11 of 12 samples, at least one of each point";
        assert_eq!(warnings(12), [format!("a is incomplete: {lack}; {next}")]);
    }
}
