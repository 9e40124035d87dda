//! The digest of the rows that `forebay bench` prints.

use std::collections::BTreeMap;

use serde_json::Value;

use super::gather::add_verdict;
use super::marks::marks_of_row;
use super::{Bound, Digest, Limit, Line, Metric, Raw, RunFacts};
use crate::bench::stats::{Spread, rate};
use crate::report::json::{Report, Row};
use crate::results::summary::Estimate;

/// Larger ratios of rates are implausible.
const SPEED_UP_MAX: f64 = 1e6;

impl Digest {
    /// Adds the output of `forebay bench`.
    pub(super) fn take_report(&mut self, name: &str, report: &Report) {
        let run = self.runs.len();
        self.runs.push(RunFacts {
            name: name.to_owned(),
            given: name.to_owned(),
            labelled: false,
            source: 0,
            verb: "bench".into(),
            environment: report.environment.clone(),
            gpus: report.environment.gpu.iter().cloned().collect(),
            unmetered: Vec::new(),
            asked: Value::Null.into(),
            unfinished: None,
            imported: None,
        });
        for text in &report.warnings {
            self.warn(text);
        }
        for row in &report.results {
            if row.method.is_ceiling() {
                self.take_ceiling(Bound {
                    run,
                    name: row.method.name().into(),
                    of: row.paths.as_ref().map_or_else(|| row.target.clone(), |p| p.join(", ")),
                    direction: Some(row.direction),
                    theory: false,
                    rate: row.bytes_per_second.max,
                    in_theory: None,
                    limits: None,
                    shared_by: Vec::new(),
                    how: "the best sample".into(),
                });
            } else {
                self.take_row(run, row);
            }
        }
    }

    fn take_row(&mut self, run: usize, row: &Row) {
        let number = self.lines.len();
        let mut line = Line { run, marks: marks_of_row(row), ..Line::default() };
        line.speed_up = row.speed_up.filter(|ratio| (0.0..=SPEED_UP_MAX).contains(ratio));
        let Spread { median, min, max } = row.bytes_per_second;
        let counted = Some(row.seconds.as_slice()).filter(|some| {
            Spread::of_rates(row.bytes, some).is_some_and(|spread| near(spread.median, median))
        });
        let estimate = Estimate::of(counted.into_iter().flatten().map(|s| rate(row.bytes, *s)));
        let interval = estimate.and_then(|estimate| estimate.interval);
        let confidence = estimate.and_then(|estimate| estimate.confidence);
        let count = counted.map_or(row.seconds.len(), <[f64]>::len);
        let estimate = Estimate { count, median, min, max, interval, confidence };
        line.metrics.insert(Metric::Rate, estimate);
        if let Some(cost) = row.cpu_s_per_gb.and_then(|cost| Estimate::of([cost])) {
            line.metrics.insert(Metric::CpuPerGb, cost);
        }
        line.bytes = row.bytes.saturating_mul(row.seconds.len() as u64);
        line.route.clone_from(&row.route);
        line.verified = row.verified;
        line.simulated = row.simulated;
        line.bound = row.limit.map(|limit| limit.name.name().into());
        line.limit = row
            .limit
            .map(|limit| Limit { name: limit.name.name().into(), rate: limit.bytes_per_second });
        let bytes = line.bytes;
        line.verdict = row.verdict.as_ref().map(|verdict| verdict.text.clone());
        add_verdict(&mut line, row.verdict.as_ref(), bytes);
        for (repeat, seconds) in row.seconds.iter().enumerate() {
            let values = BTreeMap::from([(Metric::Rate.key(), rate(row.bytes, *seconds))]);
            let (seconds, bytes) = (Some(*seconds), Some(row.bytes));
            let raw = Raw { line: number, repeat, seconds, bytes, values, ..Raw::default() };
            self.raw.push(raw);
        }
        self.lines.push(line);
    }
}

fn near(a: f64, b: f64) -> bool {
    (a - b).abs() <= 1e-9 * a.abs().max(b.abs())
}
