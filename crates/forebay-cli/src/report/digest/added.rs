//! Which limit takes over as GPUs are added, in words.

use std::collections::BTreeMap;

use super::answer::fastest;
use super::{Axis, Digest, Line, digits, rate_text};
use crate::report::plain::plain;
use crate::results::Bound;

/// Most counts of GPUs that are reported, and most kinds of points.
const COUNTS_MAX: usize = 16;
const KINDS_MAX: usize = 4;

/// The properties that points with different numbers of GPUs share: their run, direction and page
/// cache state.
type Kind<'a> = (usize, Option<&'a str>, Option<&'a str>);

/// A sentence for each kind of points that were measured with several numbers of GPUs: the best of
/// each number, and the lowest limit there.
#[must_use]
pub(super) fn sentences(digest: &Digest) -> Vec<String> {
    let mut kinds: Vec<(Kind<'_>, BTreeMap<usize, Vec<&Line>>)> = Vec::new();
    for line in digest.lines.iter().filter(|line| !line.stays_in_host()) {
        let Some(count) = gpus(line) else { continue };
        let kind = (line.run, line.mark(Axis::Direction), line.mark(Axis::Cache));
        let place = kinds.iter().position(|(known, _)| *known == kind).unwrap_or_else(|| {
            kinds.push((kind, BTreeMap::new()));
            kinds.len() - 1
        });
        kinds[place].1.entry(count).or_default().push(line);
    }
    kinds.iter().filter_map(|(kind, counts)| sentence(kind, counts)).take(KINDS_MAX).collect()
}

/// How many GPUs took part in a line at once.
fn gpus(line: &Line) -> Option<usize> {
    let count = line.mark(Axis::Target)?.split(" + ").filter(|name| *name != "host").count();
    (count > 0).then_some(count)
}

fn sentence(kind: &Kind<'_>, counts: &BTreeMap<usize, Vec<&Line>>) -> Option<String> {
    let best = counts.iter().filter_map(|(&count, lines)| Some((count, fastest(lines)?)));
    let best: Vec<(usize, &Line)> = best.take(COUNTS_MAX).collect();
    if best.len() < 2 {
        return None;
    }
    let mut before = None;
    let parts = best.iter().map(|(count, line)| {
        let noun = if *count == 1 { "GPU" } else { "GPUs" };
        let rate = rate_text(line.rate().unwrap_or_default());
        let part = format!("{count} {noun} {rate}{}", of_ceiling(line, before));
        before = line.limit.as_ref().map(|limit| limit.name.as_str()).or(before);
        part
    });
    let parts = parts.collect::<Vec<_>>().join("; ");
    let words = [kind.1, kind.2].into_iter().flatten().map(plain).collect::<Vec<_>>();
    Some(format!("As GPUs are added ({}): {parts}.", words.join(", ")))
}

/// Its share of the lowest limit on its path, and whether another one was lowest before.
fn of_ceiling(line: &Line, before: Option<&str>) -> String {
    let (Some(limit), Some(share)) = (&line.limit, line.share()) else { return String::new() };
    let is_new = before.is_some_and(|name| name != limit.name);
    let then = match (is_new, share >= Bound::NEAR) {
        (true, true) => ", which takes over",
        (true, false) => ", now the lowest, and not reached",
        (false, true) => "",
        (false, false) => ", not reached",
    };
    format!(", {} % of the limit `{}`{then}", digits(share * 100.0), plain(&limit.name))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::digest::gather::tests::digest_of;
    use crate::report::digest::{Limit, Mark, Metric};
    use crate::report::made::{self, Sweep};

    /// The GPUs of a point, its rate, and its lowest limit, in GB/s.
    type Told<'a> = (&'a str, f64, Option<(&'a str, f64)>);

    /// The sentences for such points.
    fn told(points: &[Told<'_>]) -> Vec<String> {
        let sweep = Sweep { request_sizes: vec![1 << 20], depths: vec![1], ..Sweep::default() };
        let mut digest = digest_of(&[("a", &made::file(&sweep))]);
        let line = digest.lines.remove(0);
        for (targets, rate, limit) in points {
            let mut line = line.clone();
            line.marks.insert(Axis::Target, Mark::text(*targets));
            line.metrics.get_mut(&Metric::Rate).unwrap().median = rate * 1e9;
            line.limit = limit.map(|(name, rate)| Limit { name: name.into(), rate: rate * 1e9 });
            digest.lines.push(line);
        }
        sentences(&digest)
    }

    #[test]
    fn each_number_of_gpus_has_its_lowest_ceiling() {
        let link = Some(("link", 55.0));
        let one = [("cuda:0", 20.0, link), ("cuda:0", 51.0, link), ("cuda:1", 50.0, link)];
        assert!(told(&one).is_empty(), "one GPU each");
        let two = |rate: f64| {
            let mut points = one.to_vec();
            points.push(("cuda:0 + cuda:1", rate, Some(("memory", 100.0))));
            told(&points).concat()
        };
        let begins = "As GPUs are added (read, cold): 1 GPU 51.0 GB/s, 92.7 % of the limit \
                      `link`; 2 GPUs ";
        let over = "90.0 GB/s, 90.0 % of the limit `memory`, which takes over.";
        assert_eq!(two(90.0), format!("{begins}{over}"));
        let under = "81.3 GB/s, 81.3 % of the limit `memory`, now the lowest, and not reached.";
        assert_eq!(two(81.3), format!("{begins}{under}"));
    }

    #[test]
    fn what_has_no_ceiling_and_what_stays_in_the_host_is_no_hindrance() {
        let points = [
            ("host", 90.0, None),
            ("cuda:0", 20.0, None),
            ("cuda:0 + cuda:1", 30.0, Some(("storage", 60.0))),
            ("cuda:0 + cuda:1 + cuda:2", 31.0, Some(("storage", 60.0))),
        ];
        let expected = "As GPUs are added (read, cold): 1 GPU 20.0 GB/s; 2 GPUs 30.0 GB/s, 50.0 % \
                        of the limit `storage`, not reached; 3 GPUs 31.0 GB/s, 51.7 % of the \
                        limit `storage`, not reached.";
        assert_eq!(told(&points), [expected]);
    }
}
