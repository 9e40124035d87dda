//! Layers behind compute in words, by the same rules as `python/forebay/stream_bench/table.py`.

use super::{Layers, Point, Way};
use crate::report::digest::{Digest, grouped};

/// How much longer a pass may take than its reference, and still count as equally long: 1.5 %.
pub const AS_LONG: f64 = 1.015;
/// Most methods in an answer.
const ANSWER_MAX: usize = 8;

/// The meaning of the table's columns and of the sentences' words.
pub const LEGEND: [(&str, &str); 10] = [
    (
        "compute, transfer",
        "the time of one layer, each alone in this run; compute is the mean of a pass; the \
         transfer is over the link, or by plain reads of the drive if these take longer",
    ),
    ("reads", "layers that arrive in a pass; a layer that is still on the GPU is not read again"),
    (
        "line",
        "the shortest pass in theory, with the method's buffers, this transfer and this compute \
         (from version 6 of the file on, compute during transfers if that is shorter)",
    ),
    (
        "overhead, over compute",
        "the time of a pass beyond its line (from a drive: the line of its own round), and \
         beyond compute alone",
    ),
    ("from rest", "the overhead of a turn's first pass, before which the method was idle"),
    ("stall", "the time that compute waits in a pass"),
    ("compute slowdown", "compute time during transfers, divided by compute time alone"),
    ("free", "a pass takes at most 1.5 % more than compute alone and its first transfer"),
    ("on its line", "at most 1.5 % more than the line, whether compute or the link binds"),
    ("from", "at this number of tokens, and at every larger one that was measured"),
];

/// Whether a pass takes only as long as compute and the one transfer that cannot be hidden.
#[must_use]
pub fn is_free(point: &Point, way: &Way) -> bool {
    way.pass_s <= AS_LONG * (point.compute_s + way.transfer(point))
}

/// Whether a pass takes only as long as its line, whatever binds.
#[must_use]
pub fn is_on_line(_: &Point, way: &Way) -> bool {
    way.over_line() <= AS_LONG
}

/// The least measured number of tokens from which on a condition holds; `None` if there is none.
#[must_use]
pub fn tokens_from(
    layers: &Layers,
    way: &str,
    holds: impl Fn(&Point, &Way) -> bool,
) -> Option<u64> {
    let mut points: Vec<&Point> = layers.points.iter().collect();
    points.sort_by_key(|point| std::cmp::Reverse(point.tokens));
    let held = |point: &&Point| point.way(way).is_some_and(|found| holds(point, found));
    points.into_iter().take_while(held).last().map(|point| point.tokens)
}

/// From how many tokens on each method is free, and as fast as theory.
#[must_use]
pub fn sentences(layers: &Layers) -> Vec<String> {
    let from = |tokens: Option<u64>| {
        tokens.map_or_else(|| "none of these".into(), |n| format!("{} tokens on", grouped(n)))
    };
    let sentence = |way: &str| {
        let free = from(tokens_from(layers, way, is_free));
        let line = from(tokens_from(layers, way, is_on_line));
        format!("{way}: free from {free}; on its line from {line}")
    };
    layers.ways().into_iter().map(sentence).collect()
}

/// The methods that were left out, and why.
#[must_use]
pub fn left_out(layers: &Layers) -> Vec<String> {
    let told = layers.absent.iter().map(|(way, why)| format!("{way} is left out: {why}"));
    told.collect()
}

/// The answer of a digest with only such measurements.
#[must_use]
pub fn answer(digest: &Digest) -> String {
    let several = digest.layers.len() > 1;
    let all = digest.layers.iter().flat_map(|layers| {
        let name = if several { format!("{}, ", layers.name) } else { String::new() };
        sentences(layers).into_iter().map(move |sentence| format!("{name}{sentence}"))
    });
    let mut found: Vec<String> = all.collect();
    if found.is_empty() {
        let failed = digest.layers.iter().find_map(|layers| layers.failed.as_deref());
        return failed.map_or_else(
            || "Nothing was measured.".into(),
            |failed| format!("Nothing could be measured: {failed}."),
        );
    }
    let more = found.len().saturating_sub(ANSWER_MAX);
    found.truncate(ANSWER_MAX);
    if more > 0 {
        found.push(format!("{more} more below"));
    }
    let simulated =
        if digest.simulated() { " (simulated GPU: this says nothing about hardware)" } else { "" };
    format!("{}{simulated}.", found.join(". "))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::report::layers::read;
    use crate::report::layers::tests::MAPPED;

    /// One method; for each point its tokens, and its pass over compute and over the line.
    fn layers(points: &[(u64, f64, f64)]) -> Layers {
        let point = |(tokens, over_compute, over_line): &(u64, f64, f64)| {
            let (pass_s, line_s) = (*over_compute, over_compute / over_line);
            let way = Way { pass_s, line_s, ..Way::default() };
            let ways = vec![("ours".to_owned(), way)];
            Point { tokens: *tokens, turns: 1, compute_s: 1.0, ways, ..Point::default() }
        };
        Layers { points: points.iter().map(point).collect(), ..Layers::default() }
    }

    #[test]
    fn the_archived_run_says_what_its_log_says() {
        let log = include_str!("../../../../../benches/runs/2026-11-22-h200-layers-b/run.log");
        let layers = read::layers(MAPPED.as_bytes()).unwrap();
        let sentences = sentences(&layers);
        assert_eq!(sentences.len(), 2);
        assert!(sentences.iter().all(|sentence| log.contains(sentence)), "{sentences:?}");
        let answer = answer(&Digest { layers: vec![layers], ..Digest::default() });
        assert_eq!(answer, format!("{}.", sentences.join(". ")));
    }

    #[test]
    fn free_at_few_tokens_is_not_free_where_more_are_not() {
        let is_free = |points: &[_]| tokens_from(&layers(points), "ours", is_free);
        assert_eq!(is_free(&[(8, 1.0, 1.0), (1, 2.0, 1.0), (2, 1.014, 1.0)]), Some(2));
        assert_eq!(is_free(&[(1, 1.0, 1.0), (2, 1.016, 1.0)]), None);
        assert_eq!((is_free(&[]), tokens_from(&Layers::default(), "x", is_on_line)), (None, None));
        let text = sentences(&layers(&[(1024, 2.0, 1.0), (8192, 2.0, 1.1)]));
        assert_eq!(text, ["ours: free from none of these; on its line from none of these"]);
        // A point that was not measured does not count.
        let mut some = layers(&[(1, 1.0, 1.0), (2, 1.0, 1.0)]);
        some.points[1].ways.clear();
        assert_eq!(tokens_from(&some, "ours", super::is_free), None);
    }

    #[test]
    fn nothing_measured_is_said_with_its_reason() {
        let mut digest = Digest { layers: vec![Layers::default()], ..Digest::default() };
        assert_eq!(answer(&digest), "Nothing was measured.");
        digest.layers[0].failed = Some("at 8 tokens: out of memory".into());
        assert_eq!(answer(&digest), "Nothing could be measured: at 8 tokens: out of memory.");
        digest.layers = vec![layers(&[(1, 1.0, 1.0)]); ANSWER_MAX + 2];
        digest.layers[0].simulated = true;
        let text = answer(&digest);
        assert!(text.ends_with("2 more below (simulated GPU: this says nothing about hardware)."));
    }

    proptest! {
        #[test]
        fn it_holds_from_there_on_and_not_before(
            points in prop::collection::btree_map(1..99_u64, (0.9..1.2, 0.9..1.2), 0..9),
        ) {
            let points: Vec<_> = points.into_iter().map(|(n, (a, b))| (n, a, b)).collect();
            let layers = layers(&points);
            for holds in [is_free, is_on_line] {
                let all = |least: &u64| {
                    let mut after = layers.points.iter().filter(|point| point.tokens >= *least);
                    after.all(|point| point.way("ours").is_some_and(|way| holds(point, way)))
                };
                let expected = points.iter().map(|point| point.0).filter(all).min();
                prop_assert_eq!(tokens_from(&layers, "ours", holds), expected);
            }
        }
    }
}
