//! The digest of records and rows.

use super::*;
use crate::report::digest::Limit;
use crate::report::input;
use crate::report::made::{self, Sweep};

/// The digest of files with these texts.
pub(crate) fn digest_of(texts: &[(&str, &str)]) -> Digest {
    let folder = tempfile::tempdir().unwrap();
    let sources: Vec<(String, Source)> = texts
        .iter()
        .map(|(name, text)| {
            let path = folder.path().join("results");
            std::fs::write(&path, text).unwrap();
            ((*name).to_owned(), input::read(&path).unwrap())
        })
        .collect();
    digest(&sources)
}

#[test]
fn samples_of_a_point_are_one_line() {
    let sweep = Sweep { fails: 4, ..Sweep::default() };
    let digest = digest_of(&[("a", &made::file(&sweep))]);
    assert_eq!((digest.lines.len(), digest.raw.len()), (15, 45));
    assert_eq!(digest.varying(), [Axis::RequestSize, Axis::Depth]);
    let line = &digest.lines[0];
    let rate = line.metric(Metric::Rate).unwrap();
    let single: Vec<f64> = digest
        .raw
        .iter()
        .filter(|raw| raw.line == 0)
        .map(|raw| raw.values["bytes_per_second"])
        .collect();
    assert_eq!(rate, Estimate::of(single).unwrap());
    assert_eq!((rate.count, line.failed, line.mark(Axis::RequestSize)), (3, 0, Some("64 KiB")));
    assert_eq!(line.limit, Some(Limit { name: "storage".into(), rate: 7e9 }));
    let staged = line.ways["staged"] / line.bytes as f64;
    assert!((staged - 0.75).abs() < 1e-9 && !line.ways.contains_key(UNPROVEN));
    let failed = &digest.lines[3];
    assert_eq!((failed.failed, failed.rate()), (3, None));
    assert!(failed.error.as_ref().unwrap().contains("input/output"));
}

#[test]
fn links_of_several_gpus_add_up_and_are_no_limit_where_one_is_not_known() {
    let mut sweep = Sweep { targets: vec!["cuda:0", "cuda:1"], ..Sweep::default() };
    let all = digest_of(&[("a", &made::file(&sweep))]);
    assert_eq!(all.lines[0].targets.len(), 2);
    let records = [
        made::run(&sweep),
        made::ceiling("link", "cuda:0", false, 1e9),
        made::ceiling("link", "cuda:1", false, 2e9),
    ];
    let mut records: Vec<_> = records.into();
    records.extend(made::samples(&sweep));
    // Cold points would read from drives, whose limit is unknown here.
    let limit = |records: &[_]| {
        let text = made::text(records).replace("\"cold\"", "\"resident\"");
        digest_of(&[("a", &text)]).lines[0].limit.clone()
    };
    assert_eq!(limit(&records), Some(Limit { name: "link".into(), rate: 3e9 }));
    records.remove(2);
    assert_eq!(limit(&records), None);
    sweep.targets.pop();
    assert!(digest_of(&[("a", &made::file(&sweep))]).lines[0].targets.is_empty());
}

#[test]
fn runs_have_names_of_their_own_and_continued_ones_are_one() {
    let sweep = Sweep::default();
    let text = made::file(&sweep);
    let both = digest_of(&[("a", &text), ("a", &text)]);
    let names: Vec<&str> = both.runs.iter().map(|run| run.name.as_str()).collect();
    assert_eq!((names, both.lines.len()), (vec!["a", "a (2)"], 30));
    assert!(both.varying().contains(&Axis::Run));
    let continued = format!("{text}{text}");
    let one = digest_of(&[("a", &continued)]);
    assert_eq!((one.runs.len(), one.lines.len(), one.raw.len()), (1, 15, 45));
    let labelled = made::file(&Sweep { label: Some("7"), ..sweep });
    let digest = digest_of(&[("a", &labelled)]);
    assert_eq!(digest.lines[0].marks[&Axis::Run].number, Some(7.0));
}

#[test]
fn what_failed_and_was_measured_again_did_not_fail() {
    let sweep = Sweep { request_sizes: vec![4096], depths: vec![1], ..Sweep::default() };
    let fine = made::samples(&sweep);
    let failed = made::samples(&Sweep { fails: 1, ..sweep.clone() });
    let of = |samples: &[serde_json::Value]| {
        let mut records = vec![made::run(&sweep)];
        records.extend(samples.iter().cloned());
        let digest = digest_of(&[("a", &made::text(&records))]);
        let line = &digest.lines[0];
        let count = line.metric(Metric::Rate).map_or(0, |rate| rate.count);
        (count, line.failed, line.error.is_some(), digest.raw.len())
    };
    // In either order.
    let again = [&failed[..2], &fine, &failed[1..2]].concat();
    assert_eq!(of(&again), (3, 0, false, 3));
    let one = [&fine[..2], &failed[2..], &failed[2..]].concat();
    assert_eq!(of(&one), (2, 1, true, 3));
    // Of two that were measured, the last.
    let mut last = fine[0].clone();
    last["measured"]["bytes"] = 7.into();
    let mut records = vec![made::run(&sweep), fine[0].clone(), last];
    records.push(failed[0].clone());
    assert_eq!(digest_of(&[("a", &made::text(&records))]).lines[0].bytes, 7);
}

#[test]
fn texts_and_targets_of_a_point_are_bounded() {
    let sweep = Sweep { request_sizes: vec![4096], depths: vec![1], ..Sweep::default() };
    let mut records = vec![made::run(&sweep)];
    let mut sample = made::samples(&sweep).remove(0);
    let share = |number: u32| {
        serde_json::json!({"target": format!("cuda:{}", number / 2), "bytes": 1,
            "bytes_per_second": f64::from(number), "first_done_s": 1.0, "last_done_s": 1.0})
    };
    for repeat in 0..20 {
        sample["repeat"] = repeat.into();
        sample["measured"]["route"] = format!("r{}", repeat / 2).into();
        sample["measured"]["shares"] = (0..200).map(share).collect();
        records.push(sample.clone());
    }
    let digest = digest_of(&[("a", &made::text(&records))]);
    let line = &digest.lines[0];
    assert_eq!(line.route.as_deref(), Some("r0 or r1 or r2 or r3 or others"));
    assert_eq!(line.verdict.as_deref(), Some("mixed 75 % staged / 25 % cached"));
    assert_eq!(line.targets.len(), 64);
    // All shares of a target count, of all samples.
    assert_eq!((line.targets[1].rate.count, line.targets[1].rate.median), (40, 2.5));
    let four = digest_of(&[("a", &made::text(&records[..9]))]);
    assert_eq!(four.lines[0].route.as_deref(), Some("r0 or r1 or r2 or r3"));
}

#[test]
fn rows_of_a_bench_keep_their_numbers() {
    let report = crate::report::json::tests::report();
    let digest = digest_of(&[("bench", &report.to_text().unwrap())]);
    assert_eq!((digest.lines.len(), digest.ceilings.len()), (2, 1));
    let (line, row) = (&digest.lines[0], &report.results[1]);
    let rate = line.metric(Metric::Rate).unwrap();
    assert_eq!(rate.median.to_bits(), row.bytes_per_second.median.to_bits());
    assert_eq!((rate.count, rate.interval.is_some()), (3, true));
    assert!((line.share().unwrap() - row.share_of_limit.unwrap()).abs() < 1e-9);
    assert_eq!(digest.raw.len(), 6);
}

#[test]
fn sizes_never_read_the_same() {
    let texts = [4096, 4097, 1 << 20, (1 << 20) + 1]
        .map(|bytes| crate::report::digest::marks::size(bytes).text);
    assert_eq!(texts, ["4 KiB", "4097 B", "1 MiB", "1048577 B"]);
}

#[test]
fn what_makes_no_sense_is_left_out_or_bounded() {
    let digest = digest_of(&[("a", &made::hostile())]);
    assert!(!digest.lines.is_empty());
    for line in &digest.lines {
        assert!(line.metrics.values().all(|estimate| estimate.median.is_finite()));
        assert!(line.ways.values().all(|bytes| bytes.is_finite() && *bytes >= 0.0));
        assert!(line.limit.as_ref().is_none_or(|limit| limit.rate > 0.0));
    }
}

#[test]
fn power_is_summed_by_part() {
    let sweep =
        Sweep { repeats: 1, request_sizes: vec![4096], depths: vec![1], ..Sweep::default() };
    let mut records = vec![made::run(&sweep)];
    records.extend(made::samples(&sweep));
    let source = |part: &str, joules: f64| serde_json::json!({"part": part, "joules": joules});
    let parts = [
        ("gpu", 2.0),
        ("package", 4.0),
        ("package", 6.0),
        ("dram", 8.0),
        ("platform", 14.0),
        ("server", 40.0),
    ];
    let sources: Vec<_> = parts.iter().map(|(part, joules)| source(part, *joules)).collect();
    records[1]["measured"]["power"] = serde_json::json!({"seconds": 2.0, "sources": sources});
    let digest = digest_of(&[("a", &made::text(&records))]);
    let watts = [
        (Metric::GpuWatts, 1.0),
        (Metric::PackageWatts, 5.0),
        (Metric::DramWatts, 4.0),
        (Metric::PlatformWatts, 7.0),
        (Metric::ServerWatts, 20.0),
    ];
    for (metric, expected) in watts {
        let found = digest.lines[0].metric(metric).map(|estimate| estimate.median);
        assert_eq!(found, Some(expected), "{metric:?}");
    }
}
