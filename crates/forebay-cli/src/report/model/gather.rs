//! Makes a model of records.
//!
//! Nothing in a file is trusted: values that are not numbers are dropped, and sums do not overflow.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};

use forebay_measure::results::{Bound, Limit, Measured, Point, Record, Sample};
use forebay_measure::stats::Spread;

use super::{Line, Metric, Model, RunFacts, grouped, notes, unique};

/// Most limits that are kept: machines have some dozens.
const LIMITS_MAX: usize = 1000;
/// Most different routes or verdicts of a point that are named.
const TEXTS_MAX: usize = 4;
/// Names of limits that a sample may report.
const BINDING: [&str; 4] = ["link", "uplink", "shared", "storage"];

/// The model of these files, with the names of their runs without a label.
#[must_use]
pub fn model(sources: &[(String, Vec<Record>)]) -> Model {
    gathered(sources, notes::Collected::of_files())
}

/// The model of this process's own run, which is not called incomplete.
#[must_use]
pub fn of_own_run(records: &[Record]) -> Model {
    gathered(&[("this run".into(), records.to_vec())], notes::Collected::default())
}

fn gathered(sources: &[(String, Vec<Record>)], mut notes: notes::Collected) -> Model {
    let mut model = Model::default();
    for (source, (name, records)) in sources.iter().enumerate() {
        model.take(source, name, records, &mut notes);
    }
    model.name_runs();
    (model.warnings, model.grave) = notes::of(&model, notes);
    model
}

impl Model {
    fn take(
        &mut self,
        source: usize,
        name: &str,
        records: &[Record],
        notes: &mut notes::Collected,
    ) {
        let mut known: HashMap<String, usize> = HashMap::new();
        let mut run = self.runs.len();
        let groups = grouped(records.iter().filter_map(|record| {
            match record {
                Record::Run(next) => {
                    // A run may continue an earlier run.
                    run = *known.entry(next.identity()).or_insert_with(|| {
                        let given = next.label.clone().unwrap_or_else(|| name.to_owned());
                        let (name, record) = (given.clone(), next.clone());
                        self.runs.push(RunFacts { name, given, source, record });
                        self.runs.len() - 1
                    });
                }
                Record::Doubt { text } => notes.doubt(text),
                Record::Warning { text } => notes.add(text),
                Record::Limit(limit) => self.take_limit(run, limit),
                Record::Sample(sample) => {
                    return Some(((run, sample.point.clone()), &**sample));
                }
            }
            None
        }));
        notes.incomplete(&self.runs, &groups);
        for ((run, point), samples) in groups {
            self.take_point(run, point, &counted(&samples), notes);
        }
    }

    /// Adds a limit. If it was measured again, the larger value counts: it was reached.
    fn take_limit(&mut self, run: usize, limit: &Limit) {
        let same = |(other, found): &&mut (usize, Limit)| {
            *other == run && found.is_of(&limit.name, &limit.of, limit.direction)
        };
        let has_room = self.limits.len() < LIMITS_MAX;
        match self.limits.iter_mut().find(same) {
            Some((_, found)) if limit.bytes_per_second > found.bytes_per_second => {
                let predicted = limit.predicted.or(found.predicted);
                *found = Limit { predicted, ..limit.clone() };
            }
            None if has_room => self.limits.push((run, limit.clone())),
            _ => {}
        }
    }

    fn take_point(
        &mut self,
        run: usize,
        point: Point,
        samples: &[&Sample],
        notes: &mut notes::Collected,
    ) {
        let all = || samples.iter().filter_map(|sample| sample.measured.as_ref());
        let tool = self.runs.get(run).and_then(|run| run.record.imported.as_ref());
        let values = |metric: Metric| {
            let is_rate = [Metric::Rate, Metric::Iops, Metric::SlowestGpu].contains(&metric);
            let counts = |one: &&Measured| tool.is_some() || !is_rate || one.is_long_enough();
            let values = all().filter(counts).filter_map(|measured| metric.of(measured));
            let values: Vec<f64> = values.collect();
            (!values.is_empty()).then_some((metric, values))
        };
        let failed = || samples.iter().filter(|sample| sample.measured.is_none());
        let is_unavailable = all().next().is_none() && self.is_optional(run, &point);
        let checks: BTreeSet<bool> = all().filter_map(|measured| measured.verified).collect();
        notes.sampled(samples);
        let limit = self.limit(run, samples);
        self.lines.push(Line {
            run,
            method: method(&point.method, tool.map(|tool| tool.tool.as_str())),
            point,
            samples: Metric::all().filter_map(values).collect(),
            bytes: all().try_fold(0, |sum: u64, one| Some(sum.saturating_add(one.bytes?))),
            route: joined(all().filter_map(|one| one.route.as_deref())),
            verdict: joined(all().filter_map(|one| Some(one.verdict.as_ref()?.text.as_str()))),
            verified: checks.first().copied(),
            steady: all().filter_map(|one| Some(one.steady.as_ref()?.reached)).min(),
            since_due: all().any(|one| one.latency.is_some_and(|latency| latency.since_due)),
            failed: if is_unavailable { 0 } else { failed().count() },
            error: failed().find_map(|sample| sample.error.clone()),
            simulated: all().any(|measured| measured.simulated),
            limit,
            bound: joined(all().filter_map(|one| Some(one.bound.as_ref()?.name.as_str()))),
            imported: tool.is_some(),
            ranks: self.ranks(run, samples),
        });
    }

    /// Whether a run compares whole files with this method only where the machine has it: no
    /// argument named it.
    fn is_optional(&self, run: usize, point: &Point) -> bool {
        let request = self.runs.get(run).map(|run| &run.record.request);
        request.is_some_and(|request| {
            request["whole_files"] == true
                && request["methods"].as_array().is_none_or(Vec::is_empty)
                && point.method != "forebay"
        })
    }

    /// Of several ranks the slowest and the fastest.
    fn ranks(&self, run: usize, samples: &[&Sample]) -> Option<[(String, f64); 2]> {
        let is_of_ranks = self.runs.get(run)?.record.ranks.len() > 1;
        let measured = samples.iter().filter_map(|sample| sample.measured.as_ref());
        let measured = measured.filter(|one| is_of_ranks && one.is_long_enough());
        let shares = measured.flat_map(|one| &one.shares);
        let rates = grouped(shares.map(|share| (&share.target, share.bytes_per_second)));
        let medians = rates.into_iter().filter_map(|(name, rates)| {
            Some((name.clone(), Spread::of(rates)?.median)).filter(|(_, rate)| rate.is_finite())
        });
        let mut medians: Vec<(String, f64)> = medians.collect();
        medians.sort_by(|a, b| a.1.total_cmp(&b.1));
        Some([medians.first()?.clone(), medians.pop()?])
    }

    /// The lowest limit on the path of a point, as its samples report it. The larger value counts
    /// if it was measured again.
    fn limit(&self, run: usize, samples: &[&Sample]) -> Option<(String, f64)> {
        let bounds = samples.iter().filter_map(|sample| sample.measured.as_ref()?.bound.as_ref());
        let rate =
            |bound: &Bound| bound.bytes_per_second.filter(|rate| rate.is_finite() && *rate > 0.0);
        let known = bounds.filter_map(|bound| Some((bound, rate(bound)?)));
        let (bound, rate) = known.max_by(|(_, a), (_, b)| a.total_cmp(b))?;
        if BINDING.contains(&bound.name.as_str()) {
            return Some((bound.name.clone(), rate));
        }
        // A sample far below all limits names none of them.
        let near = |limit: &Limit| (limit.bytes_per_second - rate).abs() <= 1e-9 * rate;
        let name = self.limits.iter().find(|(own, limit)| *own == run && near(limit));
        Some((name.map_or_else(|| "lowest limit".into(), |(_, limit)| limit.name.clone()), rate))
    }

    /// Makes the names of runs unique.
    fn name_runs(&mut self) {
        let mut taken: HashSet<String> = HashSet::new();
        for name in self.runs.iter_mut().map(|run| &mut run.name) {
            let (given, mut count) = (name.clone(), 1);
            while !taken.insert(name.clone()) {
                count += 1;
                *name = format!("{given} ({count})");
            }
        }
    }
}

/// The method's name: gdsio's `cpu-gpu` is not ours, and `fio-libaio` names its tool.
fn method(name: &str, tool: Option<&str>) -> String {
    match tool {
        None | Some("csv" | "elbencho") => name.to_owned(),
        Some(tool) if name.starts_with(tool) => name.to_owned(),
        Some(tool) => format!("{tool} {name}"),
    }
}

/// The samples of a point that count: of each repeat the last with a result, else the last. A
/// sample that failed and was repeated did not fail.
fn counted<'a>(samples: &[&'a Sample]) -> Vec<&'a Sample> {
    let mut kept: BTreeMap<u32, &Sample> = BTreeMap::new();
    for sample in samples {
        let before = kept.entry(sample.repeat).or_insert(sample);
        if sample.measured.is_some() || before.measured.is_none() {
            *before = sample;
        }
    }
    kept.into_values().collect()
}

/// The different texts.
fn joined<'a>(texts: impl Iterator<Item = &'a str>) -> String {
    let mut found = unique(texts);
    let more = if found.len() > TEXTS_MAX { " or others" } else { "" };
    found.truncate(TEXTS_MAX);
    // Limits first.
    found.sort_by_key(|text| (!BINDING.contains(text), *text));
    found.join(" or ") + more
}

#[cfg(test)]
pub(crate) mod tests;
