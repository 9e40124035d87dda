//! The pairs that are compared, the notes on them, and the gate.

use serde_json::Value;

use super::*;
use crate::report::made::{self, Sweep};
use crate::report::model::gather::tests::model_of;
use crate::report::show::{self, Block};

/// A sweep as a file, with rates multiplied by a factor, and any further change.
fn file(sweep: &Sweep, faster: f64, change: impl Fn(usize, &mut Value)) -> String {
    let mut records = vec![made::run(sweep)];
    records.extend(made::samples(sweep));
    for (number, record) in records.iter_mut().enumerate() {
        let measured = &mut record["measured"];
        if let Some(rate) = measured["bytes_per_second"].as_f64() {
            measured["bytes_per_second"] = (rate * faster).into();
            let p99 = measured["latency"]["p99_ns"].as_f64().unwrap();
            #[expect(clippy::cast_possible_truncation, reason = "nanoseconds")]
            let shorter = (p99 / faster) as i64;
            measured["latency"]["p99_ns"] = shorter.into();
        }
        change(number, record);
    }
    made::text(&records)
}

fn of(texts: &[(&str, &str)], by: Option<Axis>, base: Option<&str>) -> Result<Vec<Comparison>> {
    let names: Vec<String> = texts.iter().map(|(name, _)| (*name).into()).collect();
    compare(&model_of(texts), &names, by, base)
}

fn alone(found: &Comparison) -> usize {
    found.alone.values().flatten().count()
}

fn mean(found: &Comparison, metric: Metric) -> Mean {
    found.mean(metric).unwrap()
}

fn text_of(found: &Comparison) -> String {
    let blocks = show::comparison(found, Metric::Rate, 99);
    anstream::adapter::strip_str(&crate::report::forms::terminal(&blocks, Some(80))).to_string()
}

#[test]
fn two_files_are_compared_point_by_point() {
    let sweep = Sweep::default();
    let (base, other) = (file(&sweep, 1.0, |_, _| {}), file(&sweep, 1.25, |_, _| {}));
    let found = &of(&[("a", &base), ("b", &other)], None, None).unwrap()[0];
    assert_eq!((found.pairs.len(), alone(found), found.base_points), (15, 0, 15));
    let rate = mean(found, Metric::Rate);
    assert!((rate.ratio.value() - 1.25).abs() < 1e-9, "{rate:?}");
    assert_eq!((rate.better, rate.worse), (15, 0));
    // Less of it is better there, and still counts as faster.
    let p99 = mean(found, Metric::P99);
    assert!((p99.ratio.value() - 0.8).abs() < 1e-3 && p99.better == 15, "{p99:?}");
    assert!(!mean(found, Metric::Iops).is_significant());
    assert_eq!(found.pairs[0].name, "64 KiB, depth 1");
    assert!(found.facts.is_empty() && found.notes(Metric::Rate).is_empty(), "{found:?}");

    // With sides swapped everything is the reciprocal.
    let back = &of(&[("b", &other), ("a", &base)], None, None).unwrap()[0];
    assert_eq!(mean(back, Metric::Rate).worse, 15);
    for (one, two) in found.pairs.iter().zip(&back.pairs) {
        for (one, two) in one.quantities.iter().zip(&two.quantities) {
            assert!((one.ratio.value() * two.ratio.value() - 1.0).abs() < 1e-9);
            assert!((one.chance.unwrap() - two.chance.unwrap()).abs() < 1e-9);
        }
    }
}

#[test]
fn points_without_a_significant_difference_are_one_line() {
    let sweep =
        Sweep { request_sizes: vec![65536, 1 << 20], depths: vec![1, 8], ..Sweep::default() };
    let base = file(&sweep, 1.0, |_, _| {});
    let other = file(&sweep, 1.0, |_, record| {
        if record["record"] == "run" {
            record["environment"]["kernel"] = "Linux 7.0.0".into();
        }
        if record["point"]["request_size"] == 65536 {
            let rate = record["measured"]["bytes_per_second"].as_f64().unwrap();
            record["measured"]["bytes_per_second"] = (rate * 1.5).into();
        }
    });
    let found = &of(&[("before", &base), ("after", &other)], None, None).unwrap()[0];
    let text = text_of(found);
    for word in [
        "after compared with before\n\n",
        "\ndiffers in: kernel Linux 7.0.0 vs Linux 6.18.0\n",
        "\nthroughput, GB/s  before  after  ratio\n",
        "\n64 KiB, depth 1    0.218  0.327  1.50× (1.46–1.54)  faster\n",
        "\n2 of 4 points: no significant difference\n",
        "\nthroughput          1.22× (1.21–1.24)  2 faster of 4 points\n",
        "\nno significant change in 9 metrics: IOPS, mean latency, p50 latency,",
    ] {
        assert!(text.contains(word), "{word}: {text}");
    }
}

#[test]
fn few_samples_have_a_ratio_and_one_note() {
    for repeats in [1, 2] {
        let sweep = Sweep { repeats, ..Sweep::default() };
        let (base, other) = (file(&sweep, 1.0, |_, _| {}), file(&sweep, 9.0, |_, _| {}));
        let found = &of(&[("a", &base), ("b", &other)], None, None).unwrap()[0];
        let rate = mean(found, Metric::Rate);
        assert_eq!((rate.better, rate.ratio.interval()), (0, None));
        let text = text_of(found);
        assert_eq!(text.matches("too few for an interval").count(), 1, "{text}");
        assert!(!text.contains('–') && text.contains("9.00×"), "{text}");
    }
    let wide = Ratio::of(&[1e-9, 1.0, 1e9], &[1.0, 1.0, 1.0], ERROR_MIN).unwrap();
    assert_eq!(text(wide), "1.00×");
}

/// Among many points one is apart by chance: it has an interval, and no verdict.
#[test]
fn one_of_many_points_is_no_difference() {
    let sweep = Sweep { depths: (1..=10).collect(), ..Sweep::default() };
    let base = file(&sweep, 1.0, |_, _| {});
    let other = file(&sweep, 1.0, |number, record| {
        // Samples of one point: 50 apart, the run's record before them.
        if number > 0 && (number - 1) % 50 == 7 {
            let rate = record["measured"]["bytes_per_second"].as_f64().unwrap();
            record["measured"]["bytes_per_second"] = (rate * 1.035).into();
        }
    });
    let found = &of(&[("a", &base), ("b", &other)], None, None).unwrap()[0];
    let apart = &found.pairs[7].quantities[0];
    assert!(apart.ratio.interval().unwrap().0 > 1.0, "{apart:?}");
    assert_eq!(apart.verdict(), None);
}

#[test]
fn axes_that_differ_as_a_whole_are_compared() {
    let near = Sweep::default();
    let far = Sweep { path: "/far".into(), ..Sweep::default() };
    let (base, other) = (file(&near, 1.0, |_, _| {}), file(&far, 0.5, |_, _| {}));
    let found = &of(&[("local", &base), ("remote", &other)], None, None).unwrap()[0];
    assert_eq!(found.axes.len(), 1);
    assert_eq!((found.axes[0].0, found.axes[0].2.as_str()), (Axis::Path, "/far"));
    assert!((mean(found, Metric::Rate).ratio.value() - 0.5).abs() < 1e-9);
    // Two differences at once hide the cause.
    let other = file(&Sweep { targets: vec!["cuda:1"], ..far }, 0.5, |_, _| {});
    let found = &of(&[("local", &base), ("remote", &other)], None, None).unwrap()[0];
    assert!(found.notes(Metric::Rate)[0].contains("path, GPU differ at once"));
}

#[test]
fn the_values_of_an_axis_are_sides() {
    let sweep = Sweep { methods: vec!["forebay", "cpu-gpu"], ..Sweep::default() };
    let text = file(&sweep, 1.0, |_, _| {});
    let found = of(&[("a", &text)], Some(Axis::Method), Some("cpu-gpu")).unwrap();
    assert_eq!((found[0].base.as_str(), found[0].pairs.len()), ("cpu-gpu", 15));
    assert!((mean(&found[0], Metric::Rate).ratio.value() - 1.0 / 0.6).abs() < 1e-9);
    // Numbers are in order, and the smallest is the base.
    let labelled = |label: &'static str| {
        file(&Sweep { label: Some(label), ..Sweep::default() }, 1.0, |_, _| {})
    };
    let all = [labelled("15"), labelled("7"), labelled("9")].concat();
    let found = of(&[("a", &all)], Some(Axis::Run), None).unwrap();
    let sides: Vec<(&str, &str)> =
        found.iter().map(|one| (one.base.as_str(), one.other.as_str())).collect();
    assert_eq!(sides, [("7", "9"), ("7", "15")]);
    let refused = |texts: &[(&str, &str)], by, base: Option<&str>, words: &str| {
        let failure = of(texts, by, base).unwrap_err();
        let text = format!("{} {:?}", failure.in_one_line(), failure.hint);
        assert!(failure.usage && text.contains(words), "{text}");
    };
    refused(&[("a", &text)], Some(Axis::Path), None, "no two sides");
    refused(&[("a", &text)], Some(Axis::Method), Some("x"), "the sides are `forebay`");
    // A label separates the points of two files.
    let other = ["9", "7"].map(labelled).concat();
    let found = &of(&[("a", &all), ("b", &other)], None, None).unwrap()[0];
    assert_eq!((found.pairs.len(), alone(found)), (30, 15));
}

#[test]
fn points_that_are_not_compared_are_noted() {
    let sweep = Sweep { request_sizes: vec![4096], depths: vec![1, 8, 16], ..Sweep::default() };
    let base = file(&sweep, 1.0, |_, _| {});
    let other = Sweep { depths: vec![8, 16, 32], ..sweep };
    let other = file(&other, 1.0, |_, record| match record["point"]["depth"].as_u64() {
        Some(8) => record["measured"]["verified"] = false.into(),
        Some(16) => {
            record["measured"] = Value::Null;
            record["error"] = "cannot read".into();
        }
        _ => {}
    });
    let found = &of(&[("a", &base), ("b", &other)], None, None).unwrap()[0];
    assert_eq!(found.pairs.len(), 0);
    let notes = found.notes(Metric::Rate);
    assert_eq!(
        notes,
        [
            "1 point of `a` has no partner: depth 1",
            "1 point of `b` has no partner: depth 32",
            "1 point of `b` has no result: depth 16",
            "1 point of `b` has wrong data: depth 8",
        ]
    );
}

#[test]
fn a_gate_passes_only_if_every_point_is_judged() {
    let sweep = Sweep::default();
    let base = file(&sweep, 1.0, |_, _| {});
    let gate = |other: &str, metric: Metric, worse_by: f64| {
        let found = of(&[("a", &base), ("b", other)], None, None).unwrap();
        super::gate(&found, metric, worse_by).map_err(|failure| failure.in_one_line())
    };
    let same = gate(&base, Metric::Rate, 0.05).unwrap();
    assert_eq!(same, "no regression of throughput above 5.00 %: 15 points judged");
    let half = file(&sweep, 0.5, |_, _| {});
    let why = gate(&half, Metric::Rate, 0.05).unwrap_err();
    assert!(why.contains("worse than the base by more than 5.00 %: "), "{why}");
    assert!(why.contains("and 15 more"), "all points and the mean: {why}");
    assert!(gate(&half, Metric::Rate, 0.6).is_ok() && gate(&half, Metric::P99, 0.5).is_err());
    let few = file(&Sweep { repeats: 2, ..sweep.clone() }, 1.0, |_, _| {});
    assert!(gate(&few, Metric::Rate, 0.05).unwrap_err().contains("judged 0 of 15 points"));
    let lacks = file(&Sweep { depths: vec![1, 8], ..sweep.clone() }, 1.0, |_, _| {});
    assert!(gate(&lacks, Metric::Rate, 0.05).unwrap_err().contains("judged 10 of 15 points"));
    let wrong = file(&sweep, 2.0, |number, record| {
        if number == 1 {
            record["measured"]["verified"] = false.into();
        }
    });
    assert!(gate(&wrong, Metric::Rate, 0.05).unwrap_err().contains("judged 14 of 15 points"));
    let fails = file(&sweep, 2.0, |number, record| {
        if number == 1 {
            record["measured"] = Value::Null;
            record["error"] = "cannot read".into();
        }
    });
    assert!(gate(&fails, Metric::Rate, 0.05).unwrap_err().contains("more samples failed"));
}

#[test]
fn blocks_of_hostile_results_are_harmless() {
    let hostile = made::hostile();
    let found = of(&[("a", &hostile), ("b", &hostile)], None, None).unwrap();
    for one in &found {
        assert!(
            show::comparison(one, Metric::Rate, 99).iter().any(|b| matches!(b, Block::Title(_)))
        );
        let text = text_of(one);
        assert!(text.chars().all(|letter| letter == '\n' || !letter.is_control()), "{text}");
        assert!(text.lines().all(|line| line.chars().count() <= 80), "{text}");
    }
}
