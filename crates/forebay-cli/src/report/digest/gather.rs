//! Makes a digest from results files and from the JSON of `forebay bench` and
//! `forebay.stream_bench`.
//!
//! Nothing in a file is trusted: values that are not numbers are dropped, and sums do not overflow.

use std::collections::{BTreeMap, HashMap, HashSet};

use super::alike::Alike;
use super::marks::{marks, queues};
use super::{Axis, Bound, Digest, Line, Mark, Metric, Raw, RunFacts, TargetShare, UNPROVEN, heat};
use crate::power::result::Part;
use crate::report::input::Source;
use crate::report::layers::Layers;
use crate::report::proof::VerdictFacts;
use crate::results::summary::{Estimate, Group, groups};
use crate::results::{DriveBytes, Measured, Record, Run, Sample, Share};

/// Most warnings that are kept.
pub(super) const KEPT_MAX: usize = 1000;
/// Most different routes or verdicts of one point that are reported.
const TEXTS_MAX: usize = 4;
/// Most targets of one point whose shares are reported.
const TARGETS_MAX: usize = 64;

/// The digest of these files, each with the name of its runs that have no label.
#[must_use]
pub fn digest(sources: &[(String, Source)]) -> Digest {
    let (mut digest, mut alike) = (Digest::default(), Alike::default());
    for (number, (name, source)) in sources.iter().enumerate() {
        let before = digest.runs.len();
        match source {
            Source::Records(records) => digest.take_records(name, records, &mut alike),
            Source::Table(report) => digest.take_report(name, report),
            Source::Layers(layers) => digest.take_layers(name, layers),
        }
        digest.runs[before..].iter_mut().for_each(|run| run.source = number);
    }
    digest.end(&alike)
}

/// The digest of records alone.
#[must_use]
pub fn of_records(name: &str, records: &[Record]) -> Digest {
    let (mut digest, mut alike) = (Digest::default(), Alike::default());
    digest.take_records(name, records, &mut alike);
    digest.end(&alike)
}

impl Digest {
    fn end(mut self, alike: &Alike) -> Self {
        super::names::name_imported(&mut self.runs);
        self.name_runs();
        for text in alike.sentences(&self) {
            self.warn(&text);
        }
        let found = super::notes::of(&self);
        self.warnings.extend(found);
        self
    }

    fn take_records(&mut self, name: &str, records: &[Record], alike: &mut Alike) {
        let mut samples: Vec<(usize, &Sample)> = Vec::new();
        let mut asked: HashMap<String, usize> = HashMap::new();
        let before = self.runs.len();
        let mut run = before;
        for record in records {
            match record {
                Record::Run(next) => run = self.take_run(name, next, &mut asked),
                Record::Sample(sample) => samples.push((run, &**sample)),
                Record::Warning { text } => self.warn(text),
                Record::Ceiling(ceiling) => self.take_ceiling(Bound {
                    run,
                    name: ceiling.name.clone(),
                    of: ceiling.of.clone(),
                    direction: ceiling.direction,
                    theory: ceiling.theory,
                    rate: ceiling.bytes_per_second,
                    in_theory: ceiling.theory_bytes_per_second,
                    limits: ceiling.limits.clone(),
                    shared_by: ceiling.shared_by.iter().take(TARGETS_MAX).cloned().collect(),
                    how: ceiling.how.clone(),
                }),
            }
        }
        super::unfinished::find(&mut self.runs[before..], before, &samples);
        self.warmed.extend(heat::of_runs(&samples));
        for group in groups(samples) {
            self.take_group(&group, alike);
        }
    }

    /// The number of a run: an earlier one's if a file was only continued.
    fn take_run(&mut self, name: &str, run: &Run, asked: &mut HashMap<String, usize>) -> usize {
        self.begin_attempt();
        let key = run.identity();
        if let Some(number) = asked.get(&key) {
            return *number;
        }
        let given = run.label.clone().unwrap_or_else(|| name.to_owned());
        self.runs.push(RunFacts {
            name: given.clone(),
            given,
            labelled: run.label.is_some(),
            source: 0,
            verb: run.verb.clone(),
            environment: run.environment.clone(),
            gpus: run.gpus.clone(),
            unmetered: run.unmetered.clone(),
            asked: run.asked.clone(),
            unfinished: None,
            imported: run.imported.clone(),
        });
        asked.insert(key, self.runs.len() - 1);
        self.runs.len() - 1
    }

    pub(super) fn warn(&mut self, text: &str) {
        if self.warnings.len() < KEPT_MAX && !self.warnings.iter().any(|other| other == text) {
            self.warnings.push(text.to_owned());
        }
    }

    /// Names the external tool that measured a line, if there is one.
    fn name_tool(&self, line: &mut Line) {
        let run = self.runs.get(line.run);
        let Some(tool) = run.and_then(|run| Some(run.imported.as_ref()?.tool.clone())) else {
            return;
        };
        if let Some(Mark { text: way, .. }) = line.marks.get_mut(&Axis::Way) {
            // gdsio's `cpu-gpu` is not ours; `fio-libaio` names its tool.
            *way = match tool.as_str() {
                "csv" => format!("{way} (csv)"),
                tool if way.starts_with(tool) => way.clone(),
                tool => format!("{tool} {way}"),
            };
        }
        line.imported = Some(tool);
    }

    fn take_group(&mut self, group: &Group<'_>, alike: &mut Alike) {
        let samples = counted(&group.samples);
        let Some(first) = samples.first() else { return };
        let mut line = Line { run: group.run, marks: marks(&first.point), ..Line::default() };
        let found = samples.iter().filter_map(|sample| sample.queues_found).collect();
        if let Some((mark, is_other)) = queues(&first.point, &found) {
            line.marks.insert(Axis::Queues, mark);
            line.other_queues = is_other;
        }
        self.name_tool(&mut line);
        let number = self.lines.len();
        let mut lists: BTreeMap<Metric, Vec<f64>> = BTreeMap::new();
        let mut words = Words::default();
        for sample in &samples {
            let mut raw = Raw { line: number, repeat: sample.repeat as usize, ..Raw::default() };
            raw.unix_time = Some(sample.unix_time).filter(|time| *time != 0.0);
            raw.error.clone_from(&sample.error);
            match &sample.measured {
                Some(measured) => {
                    add_measured(&mut line, measured);
                    words.add(measured);
                    let told = measured.power.iter().flat_map(|power| &power.warnings);
                    told.for_each(|text| alike.add(text, number));
                    (raw.seconds, raw.bytes) = (measured.seconds, measured.bytes);
                    for (metric, value) in quantities(measured) {
                        raw.values.insert(metric.key(), value);
                        lists.entry(metric).or_default().push(value);
                    }
                }
                None => {
                    line.failed += 1;
                    if line.error.is_none() {
                        line.error.clone_from(&sample.error);
                    }
                }
            }
            self.raw.push(raw);
        }
        let estimates = lists.into_iter();
        line.metrics =
            estimates.filter_map(|(metric, list)| Some((metric, Estimate::of(list)?))).collect();
        words.tell(&mut line);
        line.targets = target_shares(&samples);
        (line.heat, line.throttled) = (heat::of_point(&samples), heat::throttled(&samples));
        line.limit = self.limit(group.run, &samples);
        self.lines.push(line);
    }

    fn take_layers(&mut self, name: &str, layers: &Layers) {
        self.layers.push(Layers { name: name.to_owned(), ..layers.clone() });
    }

    /// Gives each run a unique name, and each line its run's name if there are several.
    fn name_runs(&mut self) {
        let mut taken: HashSet<String> = HashSet::new();
        let mut counts: HashMap<String, usize> = HashMap::new();
        let runs = self.runs.iter_mut().map(|run| &mut run.name);
        for name in runs.chain(self.layers.iter_mut().map(|layers| &mut layers.name)) {
            let given = name.clone();
            let count = counts.entry(given.clone()).or_insert(1);
            while !taken.insert(name.clone()) {
                *count += 1;
                *name = format!("{given} ({count})");
            }
        }
        for line in &mut self.lines {
            let Some(run) = self.runs.get(line.run) else { continue };
            let number = run.name.trim().parse().ok().filter(|number: &f64| number.is_finite());
            line.marks.insert(Axis::Run, Mark { text: run.name.clone(), number });
        }
    }
}

/// Each quantity of a sample.
#[expect(clippy::cast_precision_loss, reason = "nanoseconds of a request")]
fn quantities(measured: &Measured) -> Vec<(Metric, f64)> {
    let seconds = |ns: u64| ns as f64 * 1e-9;
    let mut found = vec![(Metric::Rate, measured.bytes_per_second)];
    found.extend(measured.requests_per_second.map(|rate| (Metric::Requests, rate)));
    if let Some(latency) = &measured.latency {
        found.extend(latency.mean_ns.map(|mean| (Metric::Mean, mean * 1e-9)));
        let quantiles = [
            (Metric::P50, latency.p50_ns),
            (Metric::P90, latency.p90_ns),
            (Metric::P99, latency.p99_ns),
            (Metric::P999, latency.p99_9_ns),
            (Metric::Slowest, latency.max_ns),
        ];
        found.extend(quantiles.into_iter().filter_map(|(of, ns)| Some((of, seconds(ns?)))));
    }
    if let Some(cpu) = &measured.cpu {
        found.push((Metric::Cores, cpu.cores));
        found.extend(cpu.s_per_gb.map(|cost| (Metric::CpuPerGb, cost)));
        let apart = [
            (Metric::CpuUser, Metric::CpuUserShare, cpu.user_s),
            (Metric::CpuSystem, Metric::CpuSystemShare, cpu.system_s),
        ];
        for (time, share, used) in apart {
            found.push((time, used));
            found.extend(measured.seconds.map(|span| (share, used / span)));
        }
    }
    if let Some(share) = &measured.page_cache {
        found.extend(share.before.map(|before| (Metric::CachedBefore, before)));
        found.extend(share.after.map(|after| (Metric::CachedAfter, after)));
    }
    found.extend(measured.steady.iter().map(|steady| (Metric::Slope, steady.slope)));
    found.extend(powers(measured));
    found.retain(|(_, value)| value.is_finite());
    found
}

/// Watts, and joules for the bytes moved, of the parts that can be added up.
fn powers(measured: &Measured) -> impl Iterator<Item = (Metric, f64)> + '_ {
    let parts = [
        (Part::Gpu, Metric::GpuWatts, Metric::GpuJoules),
        (Part::Package, Metric::PackageWatts, Metric::PackageJoules),
        (Part::Dram, Metric::DramWatts, Metric::DramJoules),
        (Part::Platform, Metric::PlatformWatts, Metric::PlatformJoules),
        (Part::Server, Metric::ServerWatts, Metric::ServerJoules),
    ];
    parts
        .into_iter()
        .flat_map(move |(part, watts, joules)| {
            let power = measured.power.as_ref().filter(|power| power.seconds > 0.0);
            let taken = power.and_then(|power| Some(power.joules_of(part)? / power.seconds));
            let per_gb = measured.joules_per_gb.iter().find(|found| found.part == part);
            [taken.map(|taken| (watts, taken)), per_gb.map(|found| (joules, found.per_gb))]
        })
        .flatten()
}

/// Adds the values that are summed over samples, and those that all samples share.
fn add_measured(line: &mut Line, measured: &Measured) {
    let bytes = measured.bytes.unwrap_or_default();
    line.bytes = line.bytes.saturating_add(bytes);
    if let Some(moved) = measured.drive_bytes {
        let sum = line.drive.unwrap_or_default();
        line.drive = Some(DriveBytes {
            read: sum.read.saturating_add(moved.read),
            written: sum.written.saturating_add(moved.written),
        });
    }
    line.verified = match (line.verified, measured.verified) {
        (Some(false), _) | (_, Some(false)) => Some(false),
        (before, now) => before.or(now),
    };
    line.simulated |= measured.simulated;
    line.since_due |= measured.latency.as_ref().is_some_and(|latency| latency.since_due);
    if let Some(steady) = &measured.steady {
        line.judged += 1;
        line.unsteady += usize::from(!steady.reached);
    }
    if measured.bytes.is_some() {
        add_verdict(line, measured.verdict.as_ref(), bytes);
    }
}

/// The samples of a point that count: of each repeat the last with a result, else the last. A
/// sample that failed and was repeated did not fail.
fn counted<'a>(samples: &[&'a Sample]) -> Vec<&'a Sample> {
    let mut kept: Vec<&Sample> = Vec::new();
    let mut places: HashMap<u32, usize> = HashMap::new();
    for sample in samples.iter().copied() {
        let place = *places.entry(sample.repeat).or_insert(kept.len());
        match kept.get_mut(place) {
            Some(before) if sample.measured.is_some() || before.measured.is_none() => {
                *before = sample;
            }
            Some(_) => {}
            None => kept.push(sample),
        }
    }
    kept
}

/// The texts of a point's samples, each once.
#[derive(Debug, Default)]
struct Words<'a> {
    route: Vec<&'a str>,
    bound: Vec<&'a str>,
    verdict: Vec<&'a str>,
}

impl<'a> Words<'a> {
    fn add(&mut self, measured: &'a Measured) {
        also(&mut self.route, measured.route.as_deref());
        also(&mut self.bound, measured.bound.as_ref().map(|bound| bound.name.as_str()));
        also(&mut self.verdict, measured.verdict.as_ref().map(|verdict| verdict.text.as_str()));
    }

    fn tell(&self, line: &mut Line) {
        line.route = joined(&self.route);
        line.bound = joined(&self.bound);
        line.verdict = joined(&self.verdict);
    }
}

/// Adds a text once; one text above the maximum marks further ones.
fn also<'a>(texts: &mut Vec<&'a str>, text: Option<&'a str>) {
    if let Some(text) = text.filter(|text| texts.len() <= TEXTS_MAX && !texts.contains(text)) {
        texts.push(text);
    }
}

fn joined(texts: &[&str]) -> Option<String> {
    let more = if texts.len() > TEXTS_MAX { " or others" } else { "" };
    let told = texts.get(..TEXTS_MAX).unwrap_or(texts);
    (!told.is_empty()).then(|| format!("{}{more}", told.join(" or ")))
}

#[expect(clippy::cast_precision_loss, reason = "a share of bytes")]
pub(super) fn add_verdict(line: &mut Line, verdict: Option<&VerdictFacts>, bytes: u64) {
    let bytes = bytes as f64;
    let mut proven = 0.0;
    for share in verdict.iter().flat_map(|verdict| &verdict.shares) {
        let part = share.share.clamp(0.0, 1.0 - proven);
        proven += part;
        *line.ways.entry(share.way.clone()).or_default() += part * bytes;
    }
    // Shares are rounded; less than a thousandth is not listed as a route.
    if proven < 0.999 {
        *line.ways.entry(UNPROVEN.into()).or_default() += (1.0 - proven) * bytes;
    }
}

/// With several targets, the share of each in the samples of a point.
fn target_shares(samples: &[&Sample]) -> Vec<TargetShare> {
    let measured = || samples.iter().filter_map(|sample| sample.measured.as_ref());
    let Some(first) = measured().next() else { return Vec::new() };
    let mut targets: Vec<(&str, Vec<&Share>)> = Vec::new();
    let mut places: HashMap<&str, usize> = HashMap::new();
    for share in first.shares.iter() {
        if targets.len() < TARGETS_MAX && !places.contains_key(share.target.as_str()) {
            places.insert(&share.target, targets.len());
            targets.push((&share.target, Vec::new()));
        }
    }
    for share in measured().flat_map(|measured| &measured.shares) {
        if let Some(place) = places.get(share.target.as_str()) {
            targets[*place].1.push(share);
        }
    }
    let shares = targets.into_iter().filter_map(|(target, shares)| {
        let estimate = |of: fn(&Share) -> f64| Estimate::of(shares.iter().map(|share| of(share)));
        Some(TargetShare {
            target: target.to_owned(),
            rate: estimate(|share| share.bytes_per_second)?,
            first_done: estimate(|share| share.first_done_s)?,
            last_done: estimate(|share| share.last_done_s)?,
        })
    });
    shares.collect()
}

#[cfg(test)]
pub(crate) mod tests;
