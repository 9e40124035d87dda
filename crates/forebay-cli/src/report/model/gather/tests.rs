//! The model of records.

use serde_json::{Value, json};

use super::*;
use crate::report::foreign::Hints;
use crate::report::input;
use crate::report::made::{self, Sweep};
use crate::report::model::Axis;
use crate::report::ratio::Estimate;

/// The model of files with these texts.
pub(crate) fn model_of(texts: &[(&str, &str)]) -> Model {
    let folder = tempfile::tempdir().unwrap();
    let sources: Vec<(String, Vec<Record>)> = texts
        .iter()
        .map(|(name, text)| {
            let path = folder.path().join("results");
            std::fs::write(&path, text).unwrap();
            ((*name).to_owned(), input::read(&path, &Hints::default()).unwrap())
        })
        .collect();
    model(&sources)
}

/// The model of a file with these records.
pub(crate) fn of_records(records: &[Value]) -> Model {
    model_of(&[("a", &made::text(records))])
}

/// The model of a sweep and its limits.
pub(crate) fn of_sweep(sweep: &Sweep) -> Model {
    model_of(&[("a", &made::file(sweep))])
}

/// The run and the samples of a sweep.
pub(crate) fn records_of(sweep: &Sweep) -> Vec<Value> {
    [vec![made::run(sweep)], made::samples(sweep)].concat()
}

#[test]
fn samples_of_a_point_are_one_line() {
    let sweep = Sweep { fails: 4, ..Sweep::default() };
    let model = of_sweep(&sweep);
    assert_eq!(model.lines.len(), 15);
    assert_eq!(model.varying(), [Axis::BlockSize, Axis::Depth]);
    let line = &model.lines[0];
    assert_eq!(line.samples(Metric::Rate).len(), 3);
    assert_eq!(line.estimate(Metric::Rate), Estimate::of(line.samples(Metric::Rate)));
    assert_eq!((line.failed, model.text(Axis::BlockSize, line)), (0, Some("64 KiB".into())));
    assert_eq!(line.verdict, "mixed 75 % staged / 25 % cached");
    let failed = &model.lines[3];
    assert_eq!((failed.failed, failed.rate()), (3, None));
    assert!(failed.error.as_ref().unwrap().contains("input/output"));
}

#[test]
fn runs_have_unique_names_and_a_continued_run_is_one() {
    let sweep = Sweep::default();
    let text = made::file(&sweep);
    let both = model_of(&[("a", &text), ("a", &text)]);
    let names: Vec<&str> = both.runs.iter().map(|run| run.name.as_str()).collect();
    assert_eq!((names, both.lines.len()), (vec!["a", "a (2)"], 30));
    assert_eq!((both.runs[1].source, both.varying()[0]), (1, Axis::Run));
    let one = model_of(&[("a", &format!("{text}{text}"))]);
    assert_eq!((one.runs.len(), one.lines.len()), (1, 15));
    assert_eq!(one.lines[0].samples(Metric::Rate).len(), 3);
    let labelled = made::file(&Sweep { label: Some("7"), ..sweep });
    let model = model_of(&[("a", &labelled)]);
    assert_eq!(model.number(Axis::Run, &model.lines[0]), Some(7.0));
}

#[test]
fn a_failed_sample_that_was_repeated_did_not_fail() {
    let sweep = Sweep { request_sizes: vec![4096], depths: vec![1], ..Sweep::default() };
    let fine = made::samples(&sweep);
    let failed = made::samples(&Sweep { fails: 1, ..sweep.clone() });
    let of = |samples: &[serde_json::Value]| {
        let mut records = vec![made::run(&sweep)];
        records.extend(samples.iter().cloned());
        let model = of_records(&records);
        let line = &model.lines[0];
        (line.samples(Metric::Rate).len(), line.failed, line.error.is_some())
    };
    // In either order.
    assert_eq!(of(&[&failed[..2], &fine, &failed[1..2]].concat()), (3, 0, false));
    assert_eq!(of(&[&fine[..2], &failed[2..], &failed[2..]].concat()), (2, 1, true));
}

#[test]
fn a_sample_names_its_limit_or_its_rate_does() {
    let sweep = Sweep { request_sizes: vec![4096], depths: vec![1], ..Sweep::default() };
    let limit = |bounds: &[(&str, f64)]| {
        let mut records = vec![
            made::run(&sweep),
            made::limit("link", "cuda:0", 25e9),
            made::limit("storage", &sweep.path, 7e9),
        ];
        records.extend(made::samples(&sweep).into_iter().zip(bounds).map(|(mut sample, bound)| {
            sample["measured"]["bound"] = json!({"name": bound.0, "bytes_per_second": bound.1});
            sample
        }));
        of_records(&records).lines[0].limit.clone()
    };
    assert_eq!(limit(&[("storage", 6e9)]), Some(("storage".into(), 6e9)));
    assert_eq!(limit(&[("in-flight", 25e9)]), Some(("link".into(), 25e9)));
    assert_eq!(limit(&[("in-flight", 3e9)]), Some(("lowest limit".into(), 3e9)));
    let several = [("storage", 6e9), ("in-flight", 7e9), ("link", 0.0)];
    assert_eq!(limit(&several), Some(("storage".into(), 7e9)));
    assert_eq!(limit(&[("in-flight", 0.0)]), None);
}

#[test]
fn the_largest_measurement_of_a_limit_counts() {
    let mut records = vec![made::run(&Sweep::default())];
    records.extend([6e9, 8e9, 7e9].map(|rate| made::limit("storage", "/data", rate)));
    let model = of_records(&records);
    assert_eq!((model.limits.len(), model.limits[0].1.bytes_per_second), (1, 8e9));
}

#[test]
fn several_gpus_have_their_first_and_last_end() {
    let sweep = Sweep { targets: vec!["cuda:0", "cuda:1"], ..Sweep::default() };
    let model = of_sweep(&sweep);
    let of = |metric| model.lines[0].estimate(metric).unwrap().median;
    assert_eq!((of(Metric::FirstDone), of(Metric::LastDone)), (1.9, 2.1));
    assert!((of(Metric::SlowestGpu) * 2.0 / of(Metric::Rate) - 1.0).abs() < 1e-9);
    assert_eq!(model.text(Axis::Target, &model.lines[0]).as_deref(), Some("2 GPUs (0-1)"));
}

#[test]
fn power_is_listed_by_part() {
    use forebay_measure::power::result::Part;
    let sweep =
        Sweep { repeats: 1, request_sizes: vec![4096], depths: vec![1], ..Sweep::default() };
    let mut records = records_of(&sweep);
    let source = |(part, joules): (&str, f64)| json!({"part": part, "joules": joules});
    let sources = [("gpu", 2.0), ("package", 4.0), ("package", 6.0), ("server", 40.0)];
    let sources: Vec<_> = sources.into_iter().map(source).collect();
    records[1]["measured"]["power"] = json!({"seconds": 2.0, "sources": sources});
    records[1]["measured"]["bytes"] = 4_000_000_000_u64.into();
    let model = of_records(&records);
    for (part, watts) in [(Part::Gpu, 1.0), (Part::Package, 5.0), (Part::Server, 20.0)] {
        assert_eq!(model.lines[0].samples(Metric::Watts(part)), [watts], "{part:?}");
    }
    for (part, per_gb) in [(Part::Gpu, 0.5), (Part::Package, 2.5), (Part::Server, 10.0)] {
        assert_eq!(model.lines[0].samples(Metric::Joules(part)), [per_gb], "{part:?}");
    }
    // Nothing was moved.
    records[1]["measured"]["bytes"] = 0.into();
    let model = of_records(&records);
    assert!(model.lines[0].samples(Metric::Joules(Part::Gpu)).is_empty());
}

#[test]
fn texts_of_a_point_are_bounded_and_absurd_numbers_left_out() {
    let five = ["a", "b", "c", "a", "d", "e"];
    assert_eq!(joined(five.into_iter()), "a or b or c or d or others");
    assert_eq!(joined(five[..5].iter().copied()), "a or b or c or d");
    assert_eq!(
        joined(["in-flight", "storage", "link"].into_iter()),
        "link or storage or in-flight"
    );
    let model = model_of(&[("a", &made::hostile())]);
    assert!(!model.lines.is_empty());
    for line in &model.lines {
        assert!(line.samples.iter().flat_map(|(_, list)| list).all(|value| value.is_finite()));
        assert!(line.limit.as_ref().is_none_or(|(_, rate)| *rate > 0.0));
    }
}
