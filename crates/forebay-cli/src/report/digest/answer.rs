//! The results in one sentence.

use super::{Axis, Digest, Line, Metric, added, digits, rate_text, ratio};
use crate::report::json::MethodName;
use crate::report::layers::said;
use crate::report::plain::plain;
use crate::workload::issuer::Plain;

/// Most directions and page cache states that are reported.
const KINDS_MAX: usize = 6;

/// The answer of a report: from its results, else from layers behind compute.
#[must_use]
pub fn of(digest: &Digest) -> String {
    let has_results = !digest.runs.is_empty() || digest.layers.is_empty();
    if has_results { sentence(digest) } else { said::answer(digest) }
}

/// The answer of results: the best rate in each direction, from drives and from memory, with its
/// method, its share of the limit, and the route of the bytes. If several numbers of GPUs were
/// measured, it also names the limit that takes over.
#[must_use]
pub fn sentence(digest: &Digest) -> String {
    // Rates from memory do not answer how fast a drive is, and bytes that stay in host memory do
    // not answer how fast a GPU gets them.
    let kind = |line: &Line| {
        let marks = [Axis::Direction, Axis::Cache].map(|axis| line.marks.get(&axis).cloned());
        (marks, line.stays_in_host())
    };
    let mut kinds = Vec::new();
    for line in &digest.lines {
        if kinds.len() < KINDS_MAX && !kinds.contains(&kind(line)) {
            kinds.push(kind(line));
        }
    }
    let best = kinds.iter().filter_map(|wanted| {
        let lines: Vec<&Line> = digest.lines.iter().filter(|line| kind(line) == *wanted).collect();
        fastest(&lines).map(|line| said(digest, line, &lines))
    });
    let parts: Vec<String> = best.collect();
    match (parts.is_empty(), digest.lines.iter().find_map(|line| line.error.as_deref())) {
        (true, Some(error)) => format!("Nothing could be measured: {}.", plain(error)),
        (true, None) => "Nothing was measured.".into(),
        (false, _) => {
            let simulated = if digest.simulated() {
                " (simulated GPU: this says nothing about hardware)"
            } else {
                ""
            };
            let best = format!("At best, {}{simulated}.", parts.join("; "));
            [vec![best], added::sentences(digest)].concat().join(" ")
        }
    }
}

/// The fastest line whose data were not wrong.
#[must_use]
pub fn fastest<'a>(lines: &[&'a Line]) -> Option<&'a Line> {
    let right = lines.iter().filter(|line| line.verified != Some(false) && line.rate().is_some());
    right
        .max_by(|a, b| a.rate().unwrap_or_default().total_cmp(&b.rate().unwrap_or_default()))
        .copied()
}

fn said(digest: &Digest, line: &Line, others: &[&Line]) -> String {
    let rate = line.metric(Metric::Rate);
    let way = line.mark(Axis::Way).unwrap_or("it");
    let verb = match line.mark(Axis::Direction) {
        Some("read") => "reads".to_owned(),
        Some("write") => "writes".to_owned(),
        Some(mixed) => format!("moves ({})", plain(mixed)),
        None => "moves".to_owned(),
    };
    let mut text = format!("{} {verb} ", plain(way));
    if let Some(rate) = rate {
        text.push_str(&rate_text(rate.median));
        if let Some((low, high)) = rate.interval {
            let (low, high) = (digits(low * 1e-9), digits(high * 1e-9));
            text.push_str(&format!(" ({low} to {high})"));
        }
    }
    if line.stays_in_host() && line.mark(Axis::Target) != Some("host") {
        text.push_str(" within host memory");
    }
    let where_it_was = where_it_was(digest, line);
    if !where_it_was.is_empty() {
        text.push_str(&format!(" with {where_it_was}"));
    }
    if let (Some(share), Some(limit)) = (line.share(), &line.limit) {
        let name = plain(&limit.name);
        text.push_str(&format!(", {} % of the limit `{name}`", digits(share * 100.0)));
    }
    let standard = standard(line, others).filter(|(_, rate)| *rate > 0.0);
    let times = |(name, rate)| Some((name, ratio(line.rate()?, rate)?));
    if let Some((name, times)) = standard.and_then(times) {
        text.push_str(&format!(", {} times the best of `{name}`", digits(times)));
    }
    match &line.verdict {
        Some(verdict) => text.push_str(&format!(", verdict: {}", plain(verdict))),
        None if line.imported.is_some() => text.push_str(", not proved: it was imported"),
        None => text.push_str(", without a verdict on the data path"),
    }
    text
}

/// The values of a line on the varying axes, except method and direction.
fn where_it_was(digest: &Digest, line: &Line) -> String {
    let named = [Axis::Way, Axis::Direction];
    let axes = digest.varying().into_iter().filter(|axis| !named.contains(axis));
    let values = axes.filter_map(|axis| {
        let mark = line.mark(axis)?;
        Some(format!("{} {}", axis.name(), plain(mark)))
    });
    values.collect::<Vec<_>>().join(", ")
}

/// The baseline methods.
fn plain_ways() -> impl Iterator<Item = &'static str> {
    Plain::ALL.map(Plain::name).into_iter().chain([MethodName::Standard.name()])
}

/// The best rate of a baseline method among comparable lines. `None` if `line` is one of them.
fn standard<'a>(line: &Line, others: &[&'a Line]) -> Option<(&'a str, f64)> {
    let way = |line: &Line| plain_ways().find(|name| line.mark(Axis::Way) == Some(*name));
    if way(line).is_some() {
        return None;
    }
    let same = |other: &&Line| {
        let alike = [Axis::Run, Axis::Path, Axis::Cache, Axis::Target, Axis::Size, Axis::Pattern];
        alike.into_iter().all(|axis| other.mark(axis) == line.mark(axis))
    };
    let plain_ones = others.iter().copied().filter(|other| way(other).is_some()).filter(same);
    let best = fastest(&plain_ones.collect::<Vec<_>>())?;
    Some((way(best)?, best.rate()?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::digest::gather::tests::digest_of;
    use crate::report::made::{self, Sweep};

    fn of(sweep: &Sweep) -> String {
        sentence(&digest_of(&[("a", &made::file(sweep))]))
    }

    #[test]
    fn the_best_of_each_direction_is_told() {
        let mut sweep = Sweep { ways: vec!["forebay", "cpu-gpu"], ..Sweep::default() };
        insta::assert_snapshot!(of(&sweep).replace(", ", ",\n"), @"
        At best,
        forebay reads 6.77 GB/s (6.70 to 6.83) with block size 4 MiB,
        depth 32,
        96.7 % of the limit `storage`,
        1.67 times the best of `cpu-gpu`,
        verdict: mixed 75 % staged / 25 % cached.
        ");
        sweep.read_percents = vec![100, 0];
        let both = of(&sweep);
        assert!(both.contains("forebay reads 6.77") && both.contains("; forebay writes 6.77"));
    }

    #[test]
    fn what_came_from_memory_is_told_apart() {
        let report = crate::report::json::tests::report().to_text().unwrap();
        let text = sentence(&digest_of(&[("b", &report)]));
        assert!(text.contains("standard reads 2.15 GB/s"), "{text}");
        assert!(text.contains("; forebay reads 54.5 GB/s"), "{text}");
    }

    #[test]
    fn what_never_reaches_the_gpu_is_told_apart() {
        let sweep = Sweep { ways: vec!["forebay", "cpu-gpu", "cpu"], ..Sweep::default() };
        let mut digest = digest_of(&[("a", &made::file(&sweep))]);
        for line in digest.lines.iter_mut().filter(|line| line.mark(Axis::Way) == Some("cpu")) {
            line.metrics.get_mut(&Metric::Rate).unwrap().median = 9e9;
            line.ways = [("host (drive)".into(), 1.0)].into();
        }
        let told = |digest: &Digest| {
            let text = sentence(digest);
            assert!(text.contains("forebay reads 6.77 GB/s"), "{text}");
            assert!(text.contains("; cpu reads 9.00 GB/s"), "{text}");
            assert!(text.contains("1.67 times the best of `cpu-gpu`"), "{text}");
            assert_eq!(text.matches("within host memory").count(), 1, "{text}");
        };
        told(&digest);
        // By its name alone, and by its verdict alone.
        for line in digest.lines.iter_mut().filter(|line| line.mark(Axis::Way) == Some("cpu")) {
            line.ways.clear();
        }
        told(&digest);
        let mut line = Line { ways: [("host (drive)".into(), 1.0)].into(), ..Line::default() };
        assert!(line.stays_in_host());
        line.ways.insert("staged".into(), 1.0);
        assert!(!line.stays_in_host() && !Line::default().stays_in_host());
    }

    #[test]
    fn each_plain_way_is_one_to_be_held_against() {
        for way in ["cpu-gpu", "cpu-async-gpu", "cpu-cached-gpu", "standard"] {
            let text = of(&Sweep { ways: vec!["forebay", way], ..Sweep::default() });
            assert!(text.contains(&format!("1.67 times the best of `{way}`")), "{text}");
        }
    }

    #[test]
    fn what_failed_or_was_wrong_is_no_best() {
        let sweep = Sweep { fails: 1, ..Sweep::default() };
        let failed = "Nothing could be measured: cannot read: input/output error.";
        assert_eq!(of(&sweep), failed);
        assert_eq!(sentence(&Digest::default()), "Nothing was measured.");
        let mut digest = digest_of(&[("a", &made::file(&Sweep::default()))]);
        let all: Vec<&Line> = digest.lines.iter().collect();
        let best = all.iter().position(|line| Some(*line) == fastest(&all)).unwrap();
        digest.lines[best].verified = Some(false);
        let all: Vec<&Line> = digest.lines.iter().collect();
        assert_ne!(fastest(&all).unwrap().marks, digest.lines[best].marks);
    }
}
