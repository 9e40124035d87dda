//! Results in the text format of Prometheus, for a collector that reads files.

use std::fmt::Write as _;

use crate::report::digest::{Axis, Digest, Line, Metric, notes};
use crate::report::layers::{Layers, Of, Point, QUANTITIES};
use crate::report::plain::plain;

/// Everything that has a number, as gauges.
#[must_use]
pub fn text(digest: &Digest) -> String {
    let mut text = String::new();
    for metric in Metric::ALL {
        let lines = digest.lines.iter().filter(|line| line.metric(metric).is_some());
        let gauge =
            Gauge { name: name("", metric.key()), help: format!("the median {}", metric.name()) };
        gauge.begin(&mut text, lines.clone().next().is_some());
        for line in lines {
            let estimate = line.metric(metric);
            gauge.value(&mut text, &labels(line), estimate.map(|estimate| estimate.median));
        }
        for (end, of) in [("low", 0), ("high", 1)] {
            let percent = notes::confidence(digest, metric).unwrap_or_default();
            let help = format!(
                "the {end} end of the interval that holds the median with a confidence of \
                 {percent} at least"
            );
            let gauge = Gauge { name: format!("{}_{end}", name("", metric.key())), help };
            let known = digest.lines.iter().filter_map(|line| {
                let (low, high) = line.metric(metric)?.interval?;
                Some((line, if of == 0 { low } else { high }))
            });
            gauge.begin(&mut text, known.clone().next().is_some());
            for (line, value) in known {
                gauge.value(&mut text, &labels(line), Some(value));
            }
        }
    }
    counts(digest, &mut text);
    speed_ups(digest, &mut text);
    behind_compute(&mut text, &digest.layers);
    text
}

/// A name, its description, and its value.
type Counted = (&'static str, &'static str, fn(&Line) -> f64);

#[expect(clippy::cast_precision_loss, reason = "counts of samples, and bytes to 52 bits")]
fn counts(digest: &Digest, text: &mut String) {
    let any = !digest.lines.is_empty();
    let counted: [Counted; 3] = [
        ("forebay_samples", "samples that were measured", |line| {
            line.metric(Metric::Rate).map_or(0.0, |rate| rate.count as f64)
        }),
        ("forebay_samples_failed", "samples that failed", |line| line.failed as f64),
        ("forebay_bytes", "bytes that all samples moved", |line| line.bytes as f64),
    ];
    for (name, help, of) in counted {
        let gauge = Gauge { name: name.into(), help: help.into() };
        gauge.begin(text, any);
        for line in &digest.lines {
            gauge.value(text, &labels(line), Some(of(line)));
        }
    }
    let help = "the limit of a part of the machine".into();
    let gauge = Gauge { name: "forebay_ceiling_bytes_per_second".into(), help };
    gauge.begin(text, !digest.ceilings.is_empty());
    for (number, bound) in digest.ceilings.iter().enumerate() {
        let run = digest.runs.get(bound.run).map_or("", |run| &run.name);
        // Two limits may have the same names; a number separates their series.
        let labels = joined([
            ("run".to_owned(), run),
            ("number".to_owned(), &number.to_string()),
            ("name".to_owned(), &bound.name),
            ("of".to_owned(), &bound.of),
            ("direction".to_owned(), bound.direction.map_or("", |direction| direction.name())),
            ("theory".to_owned(), if bound.theory { "true" } else { "false" }),
        ]);
        gauge.value(text, &labels, Some(bound.rate));
    }
}

/// The speed-ups over the standard method.
fn speed_ups(digest: &Digest, text: &mut String) {
    let help = "the median over that of the standard method".into();
    let gauge = Gauge { name: name("", "speed_up"), help };
    let known = || digest.lines.iter().filter_map(|line| Some((line, line.speed_up?)));
    gauge.begin(text, known().next().is_some());
    known().for_each(|(line, value)| gauge.value(text, &labels(line), Some(value)));
}

/// The measurements of layers behind compute.
fn behind_compute(text: &mut String, all: &[Layers]) {
    let points = || all.iter().flat_map(|run| run.points.iter().map(move |point| (run, point)));
    for quantity in QUANTITIES {
        let mut values: Vec<(String, f64)> = Vec::new();
        for (layers, point) in points() {
            match quantity.of {
                Of::Point(of) => values.extend(of(point).map(|v| (place(layers, point, ""), v))),
                Of::Way(of) => {
                    values.extend(point.ways.iter().filter_map(|(name, way)| {
                        Some((place(layers, point, name), of(point, way)?))
                    }))
                }
            }
        }
        let gauge = Gauge { name: name("layers_", quantity.key), help: quantity.is.into() };
        gauge.begin(text, !values.is_empty());
        for (labels, value) in values {
            gauge.value(text, &labels, Some(value));
        }
    }
}

/// The labels of a method's passes, or, without one, of a number of tokens.
fn place(layers: &Layers, point: &Point, way: &str) -> String {
    joined([
        ("run".to_owned(), layers.name.as_str()),
        ("layers".to_owned(), &layers.count.to_string()),
        ("layer_bytes".to_owned(), &layers.layer_bytes.to_string()),
        ("order".to_owned(), &layers.order),
        ("from".to_owned(), &layers.from),
        ("tokens".to_owned(), &point.tokens.to_string()),
        ("way".to_owned(), way),
        ("simulated".to_owned(), if layers.simulated { "true" } else { "" }),
    ])
}

/// The metric name of this key, with our prefix, and base units.
fn name(part: &str, key: &str) -> String {
    let key = key.strip_suffix("_s").map_or_else(|| key.to_owned(), |key| format!("{key}_seconds"));
    format!("forebay_{part}{}", key.replace("cpu_s_per", "cpu_seconds_per"))
}

struct Gauge {
    name: String,
    help: String,
}

impl Gauge {
    fn begin(&self, text: &mut String, any: bool) {
        if any {
            // Writing to a string cannot fail.
            let _ = writeln!(text, "# HELP {} {}", self.name, self.help);
            let _ = writeln!(text, "# TYPE {} gauge", self.name);
        }
    }

    fn value(&self, text: &mut String, labels: &str, value: Option<f64>) {
        if let Some(value) = value.filter(|value| value.is_finite()) {
            let _ = writeln!(text, "{}{{{labels}}} {value}", self.name);
        }
    }
}

fn labels(line: &Line) -> String {
    let marks = Axis::ALL.into_iter().filter_map(|axis| {
        let mark = line.marks.get(&axis)?;
        Some((axis.key(), mark.text.as_str()))
    });
    joined(marks)
}

fn joined<'a>(labels: impl IntoIterator<Item = (String, &'a str)>) -> String {
    let labels = labels.into_iter().filter(|(_, value)| !value.is_empty());
    let labels = labels.map(|(key, value)| format!("{key}=\"{}\"", escaped(value)));
    labels.collect::<Vec<_>>().join(",")
}

/// A label's value. The format only knows `\n`; other control characters are shown as escapes.
fn escaped(value: &str) -> String {
    let line = |line: &str| plain(line).replace('\\', r"\\").replace('"', "\\\"");
    value.split('\n').map(line).collect::<Vec<_>>().join(r"\n")
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;
    use crate::report::digest::gather::tests::digest_of;
    use crate::report::layers::tests::{MAPPED, hostile};
    use crate::report::made::{self, Sweep};

    /// Checks every line, and returns the series with their values.
    fn series(text: &str) -> Vec<(String, f64)> {
        let mut found = Vec::new();
        for line in text.lines() {
            if line.starts_with("# HELP ") || line.starts_with("# TYPE ") {
                continue;
            }
            let (series, value) = line.rsplit_once(' ').unwrap();
            let (name, labels) = series.split_once('{').unwrap();
            assert!(
                name.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'_')
            );
            assert!(labels.ends_with('}'), "{line}");
            found.push((series.to_owned(), value.parse().unwrap()));
        }
        found
    }

    #[test]
    fn series_are_whole_and_apart() {
        let sweep = Sweep { fails: 7, ..Sweep::default() };
        let digest = digest_of(&[("a", &made::file(&sweep)), ("b", &made::file(&sweep))]);
        let found = series(&text(&digest));
        let names: HashSet<&String> = found.iter().map(|(name, _)| name).collect();
        assert_eq!(names.len(), found.len());
        let rates = found.iter().filter(|(name, _)| name.starts_with("forebay_bytes_per_second{"));
        let rates: Vec<f64> = rates.map(|(_, value)| *value).collect();
        let expected: Vec<f64> = digest.lines.iter().filter_map(Line::rate).collect();
        assert_eq!(rates, expected);
        assert!(found.iter().any(|(name, _)| name.starts_with("forebay_latency_p99_9_seconds{")));
    }

    #[test]
    fn layers_have_gauges_of_their_own() {
        let digest = digest_of(&[("l", MAPPED), ("m", MAPPED)]);
        let text = text(&digest);
        let found = series(&text);
        let names: HashSet<&String> = found.iter().map(|(name, _)| name).collect();
        assert_eq!(names.len(), found.len());
        let labels = "run=\"l\",layers=\"6\",layer_bytes=\"1236996096\",order=\"forward\",\
                      from=\"mapped\",tokens=\"1024\"";
        let pass = digest.layers[0].points[0].way("forebay").unwrap().pass_s;
        for line in [
            format!("forebay_layers_pass_seconds{{{labels},way=\"forebay\"}} {pass}"),
            format!("forebay_layers_turns{{{labels}}} 6"),
            "# HELP forebay_layers_cpu_seconds_per_gb processor time for 1e9 bytes".to_owned(),
        ] {
            assert!(text.lines().any(|other| other == line), "{line}");
        }
        // Neither a backward pass nor bytes of two buffers were reported.
        let passes =
            found.iter().filter(|(name, _)| name.starts_with("forebay_layers_pass_seconds{"));
        assert_eq!((passes.count(), text.matches("forebay_layers_mapped_bytes{").count()), (12, 6));
        assert!(!series(&self::text(&digest_of(&[("h", &hostile())]))).is_empty());
    }

    #[test]
    fn a_label_holds_anything() {
        assert_eq!(escaped("a\"b\\c\nd"), r#"a\"b\\c\nd"#);
        assert_eq!(escaped("\u{1b}]0;\u{9b}\r"), r"\\u{1b}]0;\\u{9b}\\r");
        assert!(!series(&text(&digest_of(&[("a", &made::hostile())]))).is_empty());
    }
}
