//! The pairs that are compared, and the sentences about them.

use serde_json::Value;

use super::json::{Verdict, Why};
use super::*;
use crate::report::digest::Axis;
use crate::report::digest::gather::tests::digest_of;
use crate::report::made::{self, Sweep};

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

fn of(texts: &[(&str, &str)], by: By, base: Option<&str>) -> Result<Diff> {
    let names: Vec<String> = texts.iter().map(|(name, _)| (*name).into()).collect();
    diff(&digest_of(texts), &names, (by, base), Metric::Rate)
}

fn overall(diff: &Diff, at: usize, metric: Metric) -> &json::Overall {
    let all = &diff.comparisons[at].overall;
    all.iter().find(|overall| overall.quantity == metric.key()).unwrap()
}

#[test]
fn two_files_are_compared_point_by_point() {
    let sweep = Sweep::default();
    let (base, other) = (file(&sweep, 1.0, |_, _| {}), file(&sweep, 1.25, |_, _| {}));
    let diff = of(&[("a", &base), ("b", &other)], By::File, None).unwrap();
    let comparison = &diff.comparisons[0];
    assert_eq!((comparison.points.len(), comparison.alone.len()), (15, 0));
    let rate = overall(&diff, 0, Metric::Rate);
    assert!((rate.ratio - 1.25).abs() < 1e-9, "{rate:?}");
    assert_eq!((rate.better, rate.worse, rate.not_shown), (15, 0, 0));
    // Less of it is better there, and still counts as faster.
    let p99 = overall(&diff, 0, Metric::P99);
    assert!((p99.ratio - 0.8).abs() < 1e-3 && p99.better == 15, "{p99:?}");
    assert_eq!(overall(&diff, 0, Metric::GpuJoules).not_shown, 15);
    let first = &comparison.points[0];
    assert_eq!(first.point["request_size"], 65536);
    assert_eq!(first.name, "64 KiB, depth 1");
    assert!(diff.environment.is_empty() && diff.warnings.is_empty(), "{diff:?}");

    // With sides swapped everything is the reciprocal.
    let back = of(&[("b", &other), ("a", &base)], By::File, None).unwrap();
    assert_eq!(overall(&back, 0, Metric::Rate).worse, 15);
    for (one, two) in comparison.points.iter().zip(&back.comparisons[0].points) {
        for (one, two) in one.quantities.iter().zip(&two.quantities) {
            let ((low, high), (low_2, high_2)) = (one.interval.unwrap(), two.interval.unwrap());
            assert!((one.ratio * two.ratio - 1.0).abs() < 1e-9);
            assert!((low * high_2 - 1.0).abs() < 1e-9 && (high * low_2 - 1.0).abs() < 1e-9);
            assert!((one.chance.unwrap() - two.chance.unwrap()).abs() < 1e-9);
        }
    }
}

#[test]
fn what_the_data_cannot_show_is_not_told() {
    let sweep = Sweep::default();
    let (base, other) = (file(&sweep, 1.0, |_, _| {}), file(&sweep, 1.01, |_, _| {}));
    let diff = of(&[("a", &base), ("b", &other)], By::File, None).unwrap();
    let rate = overall(&diff, 0, Metric::Rate);
    assert_eq!((rate.better, rate.worse, rate.not_shown), (0, 0, 15));
    // All points together show it.
    let (low, high) = rate.interval.unwrap();
    assert!(low > 1.0 && high < 1.02, "{rate:?}");
    assert_eq!(draw::counts(rate, Metric::Rate), "of 15: significant only in the mean");
    // One sample shows nothing, however large the difference.
    let once = Sweep { repeats: 1, ..Sweep::default() };
    let (base, other) = (file(&once, 1.0, |_, _| {}), file(&once, 9.0, |_, _| {}));
    let diff = of(&[("a", &base), ("b", &other)], By::File, None).unwrap();
    let rate = overall(&diff, 0, Metric::Rate);
    assert_eq!((rate.not_shown, rate.interval), (15, None));
    assert!(diff.warnings[0].contains("15 of 15 points have one sample"), "{:?}", diff.warnings);
}

/// Among many points one is apart by chance: it has its interval, and no verdict.
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
    let diff = of(&[("a", &base), ("b", &other)], By::File, None).unwrap();
    let apart = &diff.comparisons[0].points[7].quantities[0];
    assert!(apart.interval.unwrap().0 > 1.0, "{apart:?}");
    assert_eq!(apart.verdict, Verdict::NotShown);
    assert!(diff.warnings[0].starts_with("1 of 50 points have an interval"), "{:?}", diff.warnings);
}

#[test]
fn axes_that_differ_as_a_whole_are_what_is_compared() {
    let near = Sweep::default();
    let far = Sweep { path: "/far".into(), ..Sweep::default() };
    let (base, other) = (file(&near, 1.0, |_, _| {}), file(&far, 0.5, |_, _| {}));
    let diff = of(&[("local", &base), ("remote", &other)], By::File, None).unwrap();
    let compared = &diff.comparisons[0].compared;
    assert_eq!(compared.len(), 1);
    assert_eq!(compared[0].axis, "path");
    assert_eq!(compared[0].other.as_deref(), Some("/far"));
    assert!(!diff.comparisons[0].points[0].point.contains_key("path"));
    assert!((overall(&diff, 0, Metric::Rate).ratio - 0.5).abs() < 1e-9);
    // Two differences at once hide the cause.
    let far = Sweep { ways: vec!["cpu-gpu"], ..far };
    let diff = of(&[("a", &base), ("b", &file(&far, 1.0, |_, _| {}))], By::File, None).unwrap();
    assert!(diff.warnings[0].contains("2 things at once (path, method)"), "{:?}", diff.warnings);
}

#[test]
fn nothing_is_dropped_in_silence() {
    let base = Sweep { depths: vec![1, 8, 32], ..Sweep::default() };
    let other = Sweep { depths: vec![8, 32, 64], fails: 15, ..Sweep::default() };
    let base = file(&base, 1.0, |_, _| {});
    let other = file(&other, 1.0, |number, record| {
        if number == 1 {
            record["measured"]["verified"] = false.into();
        }
    });
    let diff = of(&[("a", &base), ("b", &other)], By::File, None).unwrap();
    let comparison = &diff.comparisons[0];
    assert_eq!(comparison.points.len(), 9);
    let count = |why: Why, side: &str| {
        comparison.alone.iter().filter(|alone| alone.why == why && alone.side == side).count()
    };
    assert_eq!(count(Why::NoPartner, "a"), 5);
    // The last one failed, and has no partner either.
    assert_eq!((count(Why::NoPartner, "b"), count(Why::WrongData, "b")), (5, 1));
    let told = diff.warnings.join("\n");
    assert!(told.contains("5 points of `a` have no partner in `b`"), "{told}");
    assert!(told.contains("(64 KiB, depth 1; 128 KiB, depth 1; 512 KiB, depth 1; …)"), "{told}");
    assert!(told.contains("1 point moved wrong data in `b` and is not compared"), "{told}");
    let rows = grid::all(&diff).rows;
    let lone = rows.iter().filter(|row| row.last().unwrap().text.contains(": "));
    assert_eq!(lone.count(), 11);
    assert!(rows.iter().all(|row| row.len() == grid::all(&diff).columns.len()));
}

#[test]
fn labels_that_are_numbers_are_in_their_order() {
    let labels = ["31", "7", "1", "23", "15"];
    let texts: Vec<String> = labels
        .iter()
        .map(|label| {
            let sweep = Sweep { label: Some(label), ..Sweep::default() };
            file(&sweep, label.parse::<f64>().unwrap(), |_, record| {
                if record["record"] == "run" {
                    record["asked"]["label"] = (*label).into();
                }
            })
        })
        .collect();
    let all = texts.concat();
    let by = sides::by("label").unwrap();
    let diff = of(&[("queues", &all)], by, None).unwrap();
    let names: Vec<&str> = diff.sides.iter().map(|side| side.name.as_str()).collect();
    assert_eq!(names, ["1", "7", "15", "23", "31"]);
    assert!((overall(&diff, 3, Metric::Rate).ratio - 31.0).abs() < 1e-6);
    let diff = of(&[("queues", &all)], by, Some("15")).unwrap();
    let names: Vec<&str> = diff.sides.iter().map(|side| side.name.as_str()).collect();
    assert_eq!(names, ["15", "1", "7", "23", "31"]);
    let failure = of(&[("queues", &all)], by, Some("2")).unwrap_err();
    assert!(failure.usage && failure.hint.unwrap().contains("`1`, `7`"));
    // A file with several of them cannot be a side.
    let failure = of(&[("a", &all), ("b", &texts[0])], By::File, None).unwrap_err();
    assert!(failure.hint.unwrap().contains("--by label"), "{:?}", failure.causes);
}

#[test]
fn ways_within_one_file_are_compared_where_they_have_the_same_points() {
    let sweep = Sweep { ways: vec!["forebay", "cpu-gpu"], ..Sweep::default() };
    let text = file(&sweep, 1.0, |_, _| {});
    let diff = of(&[("a", &text)], sides::by("way").unwrap(), Some("cpu-gpu")).unwrap();
    let rate = overall(&diff, 0, Metric::Rate);
    assert!((rate.ratio - 1.0 / 0.6).abs() < 1e-6 && rate.better == 15, "{rate:?}");
    assert_eq!(diff.environment, []);
    // The second difference is the depth.
    let plain = Sweep { ways: vec!["cpu-gpu"], depths: vec![2], ..Sweep::default() };
    let ours = Sweep { depths: vec![32], ..Sweep::default() };
    let both = [file(&ours, 1.0, |_, _| {}), file(&plain, 1.0, |_, _| {})].concat();
    let diff = of(&[("a", &both)], sides::by("way").unwrap(), None).unwrap();
    let told = &diff.warnings[0];
    assert!(told.contains("2 things at once (way, depth)"), "{told}");
    let failure = of(&[("a", &text)], sides::by("path").unwrap(), None).unwrap_err();
    assert!(failure.usage && failure.causes[0].contains("/data/model"), "{failure:?}");
    assert!(sides::by("colour").unwrap_err().contains("`label`, `path`"));
}

#[test]
fn machines_that_differ_are_told() {
    let sweep = Sweep::default();
    let base = file(&sweep, 1.0, |_, _| {});
    let other = file(&sweep, 1.0, |number, record| {
        if number == 0 {
            record["environment"]["kernel"] = "Linux 7.0".into();
            record["environment"]["cpu"]["cores"] = 64.into();
            record["gpus"][0]["simulated"] = true.into();
            record["asked"]["seconds"] = 5.into();
            record["asked"]["queues"] = serde_json::json!(["8 I/O queues", "2 connections"]);
        } else {
            record["unix_time"] = 1_800_000_000.into();
            record["measured"]["simulated"] = true.into();
        }
    });
    let diff = of(&[("a", &base), ("b", &other)], By::File, None).unwrap();
    let what: Vec<&str> = diff.environment.iter().map(|fact| fact.what.as_str()).collect();
    assert_eq!(what, ["kernel", "processors", "simulated GPU", "queues", "setting: seconds"]);
    let queues = [None, Some("8 I/O queues + 2 connections".to_owned())];
    assert_eq!(diff.environment[3].values, queues);
    let expected = [Some("Linux 6.18.0".to_owned()), Some("Linux 7.0".to_owned())];
    assert_eq!(diff.environment[0].values, expected);
    let told = diff.warnings.join("\n");
    assert!(told.contains("15 of 15 points compare a simulated GPU with a real one"), "{told}");
    assert!(told.contains("all of `a` was measured before `b`"), "{told}");
    assert!(draw::text(&diff, Metric::Rate).contains("  kernel: Linux 6.18.0 | Linux 7.0\n"));
}

#[test]
fn of_an_imported_side_the_tool_is_known_and_no_machine() {
    let sweep = Sweep::default();
    let base = file(&sweep, 1.0, |_, _| {});
    let other = file(&sweep, 1.01, |number, record| {
        if number == 0 {
            record["imported"] = serde_json::json!({"tool": "fio", "version": "3.33", "file": "f"});
            record["environment"]["cpu"]["cores"] = 0.into();
            record["environment"]["memory"]["total"] = 0.into();
        }
    });
    let diff = of(&[("a", &base), ("b", &other)], By::File, None).unwrap();
    let fact = |what: &str| diff.environment.iter().find(|fact| fact.what == what).unwrap();
    assert_eq!(fact("tool").values, [None, Some("fio 3.33".to_owned())]);
    assert_eq!(fact("processors").values[1], None);
    assert_eq!(fact("memory").values[1], None);
    // No difference of one part in a hundred can be shown of it, not even of all points.
    let (low, high) = overall(&diff, 0, Metric::Rate).interval.unwrap();
    assert!(low < 1.006 && high > 1.014, "{low} {high}");
}

#[test]
fn what_bench_printed_is_compared_by_its_samples() {
    let mut report = crate::report::json::tests::report();
    for row in &mut report.results {
        row.verified = row.verified.map(|_| true);
    }
    let base = report.to_text().unwrap();
    for row in &mut report.results {
        row.seconds.iter_mut().for_each(|seconds| *seconds /= 2.0);
        let rates = &mut row.bytes_per_second;
        for rate in [&mut rates.median, &mut rates.min, &mut rates.max] {
            *rate *= 2.0;
        }
    }
    let other = report.to_text().unwrap();
    let diff = of(&[("a", &base), ("b", &other)], By::File, None).unwrap();
    let rate = overall(&diff, 0, Metric::Rate);
    assert!((rate.ratio - 2.0).abs() < 1e-9 && rate.points > 0, "{rate:?}");
    let cost = overall(&diff, 0, Metric::CpuPerGb);
    assert_eq!((cost.interval, cost.not_shown), (None, cost.points));
}

#[test]
fn nothing_in_common_is_said_to_be_so() {
    let base = file(&Sweep { depths: vec![1, 2], ..Sweep::default() }, 1.0, |_, _| {});
    let other = file(&Sweep { depths: vec![3, 4], ..Sweep::default() }, 1.0, |_, _| {});
    let failure = of(&[("a", &base), ("b", &other)], By::File, None).unwrap_err();
    assert!(failure.causes[0].contains("no point is the same in `a` and `b`"), "{failure:?}");
    let digest = digest_of(&[("a", &base), ("b", &base)]);
    let names = ["a".to_owned(), "b".to_owned()];
    let failure = diff(&digest, &names, (By::File, None), Metric::ServerJoules).unwrap_err();
    assert!(failure.causes[0].contains("no point has server energy"), "{failure:?}");
    let empty = made::text(&[made::run(&Sweep::default())]);
    let failure = of(&[("a", &base), ("b", &empty)], By::File, None).unwrap_err();
    assert!(failure.causes[0].contains("`b` holds no sample"), "{failure:?}");
}

#[test]
fn a_gate_holds_up_what_is_shown_to_be_worse() {
    let sweep = Sweep::default();
    let base = file(&sweep, 1.0, |_, _| {});
    let gate = |other: &str, worse_by: f64| {
        let diff = of(&[("a", &base), ("b", other)], By::File, None).unwrap();
        gate::judge(&diff, Metric::Rate, worse_by)
    };
    let slower = file(&sweep, 0.8, |_, _| {});
    let failed = gate(&slower, 0.05).unwrap();
    // All points, and their mean.
    assert_eq!(failed.failed.len(), 16);
    let failure = gate::failure(&failed, Metric::Rate).unwrap();
    assert_eq!(failure.exit_code(), 1);
    assert!(failure.message.contains("more than 5.00 %"), "{failure:?}");
    assert!(failure.causes[0].contains("`b`, 64 KiB, depth 1: 0.800"), "{failure:?}");
    assert_eq!(gate(&slower, 0.25).unwrap().failed, []);
    // Worse, and not surely: only the mean of all is.
    let little = gate(&file(&sweep, 0.985, |_, _| {}), 0.0).unwrap();
    assert_eq!(little.failed.len(), 1);
    assert_eq!(little.failed[0].point, None);
    assert_eq!(gate(&file(&sweep, 1.3, |_, _| {}), 0.0).unwrap().failed, []);
    // A failure is worse than any number.
    let broken = file(&Sweep { fails: 15, ..Sweep::default() }, 2.0, |_, _| {});
    assert_eq!(gate(&broken, 0.05).unwrap().failed[0].ratio, None);
    let once = file(&Sweep { repeats: 1, ..Sweep::default() }, 0.1, |_, _| {});
    assert!(gate(&once, 0.05).unwrap_err().hint.unwrap().contains("--repeats"));
    // More latency is worse too.
    let diff = of(&[("a", &base), ("b", &slower)], By::File, None).unwrap();
    assert_eq!(gate::judge(&diff, Metric::P99, 0.05).unwrap().failed.len(), 16);
    assert_eq!(gate::judge(&diff, Metric::P99, 0.30).unwrap().failed.len(), 0);
}

#[test]
fn a_gate_does_not_pass_what_it_could_not_judge() {
    let sweep = Sweep::default();
    let base = file(&sweep, 1.0, |_, _| {});
    let gate = |other: &str, metric: Metric| {
        let names = ["a".to_owned(), "b".to_owned()];
        let digest = digest_of(&[("a", &base), ("b", other)]);
        let diff = diff(&digest, &names, (By::File, None), metric).unwrap();
        let gate = gate::judge(&diff, metric, 0.5).unwrap();
        let failure = gate::failure(&gate, metric);
        ((gate.judged, gate.points), failure.map(|f| f.in_one_line()), diff.warnings.join("\n"))
    };
    assert_eq!(gate(&base, Metric::Rate), ((15, 15), None, String::new()));
    // A sample of one point fails.
    let lame = file(&sweep, 1.0, |number, record| {
        if number == 1 {
            (record["measured"], record["error"]) = (Value::Null, "no".into());
        }
    });
    let (counts, failure, told) = gate(&lame, Metric::Rate);
    assert_eq!(counts, (15, 15));
    assert!(failure.unwrap().contains("fails more often"), "{told}");
    assert!(told.contains("1 samples of 1 points failed in `b`"), "{told}");
    // The quantity is missing at two points.
    let gone = file(&sweep, 1.0, |number, record| {
        if number > 0 && (number - 1) % 15 < 2 {
            record["measured"]["latency"]["p99_ns"] = Value::Null;
        }
    });
    let (counts, failure, told) = gate(&gone, Metric::P99);
    assert_eq!(counts, (13, 15));
    assert!(failure.unwrap().contains("judged 13 of 15 points"), "{told}");
    assert!(told.contains("2 points of `b` have no p99 latency"), "{told}");
    // Points are missing.
    let fewer = file(&Sweep { depths: vec![1, 8], ..Sweep::default() }, 1.0, |_, _| {});
    let (counts, failure, told) = gate(&fewer, Metric::Rate);
    assert_eq!(counts, (10, 15));
    assert!(failure.unwrap().contains("judged 10 of 15 points"), "{told}");
}

#[test]
fn json_can_be_read_back_and_nothing_acts() {
    let hostile = made::hostile();
    let sweep = Sweep::default();
    let text = file(&sweep, 1.0, |_, _| {});
    for texts in [[("a", &*hostile), ("b", &*hostile)], [("a", &*text), ("b", &*text)]] {
        let diff = of(&texts, By::File, None).unwrap();
        let json = serde_json::to_string(&diff).unwrap();
        let again: Diff = serde_json::from_str(&json).unwrap();
        let kept = |diff: &Diff| -> Vec<_> {
            let pairs = diff.comparisons.iter().flat_map(|one| &one.points);
            pairs.map(|pair| (pair.name.clone(), pair.point.clone(), pair.simulated)).collect()
        };
        assert!(kept(&again) == kept(&diff) && again.warnings == diff.warnings);
        let drawn = draw::text(&diff, Metric::Rate);
        assert!(drawn.chars().all(|letter| letter == '\n' || !letter.is_control()), "{drawn}");
        assert!(drawn.lines().all(|line| line.chars().count() <= 80), "{drawn}");
        let marked = markdown::text(&diff, Metric::Rate);
        assert!(!marked.replace(made::HARM.trim_end(), "").contains("\n<script"), "{marked}");
    }
}

#[test]
fn files_are_called_by_their_stems_where_these_differ() {
    assert_eq!(names(&["x/a.jsonl", "b.json"]), ["a", "b"]);
    assert_eq!(names(&["x/a.jsonl", "y/a.jsonl"]), ["x/a.jsonl", "y/a.jsonl"]);
    assert_eq!(names(&["a", "a"]), ["a", "a (2)"]);
}

#[test]
fn every_axis_can_be_compared_by() {
    let names = sides::AXES.map(|(_, axis)| axis);
    let missing: Vec<Axis> = Axis::ALL.into_iter().filter(|axis| !names.contains(axis)).collect();
    // The size of a measurement is an input of a bench; for a sweep it follows from its requests.
    assert_eq!(missing, [Axis::Size]);
    for (name, _) in sides::AXES {
        assert_eq!(sides::by(name).unwrap().name(), name);
    }
}

#[test]
fn a_side_that_is_not_whole_is_told_of() {
    let sweep = Sweep::default();
    let mut records = vec![made::run(&sweep)];
    records.extend(made::samples(&sweep));
    made::name_points(&mut records);
    let (whole, cut) = (made::text(&records), made::text(&records[..31]));
    let told = |texts: &[(&str, &str)], by: By| {
        let mut warnings = of(texts, by, None).unwrap().warnings;
        warnings.retain(|text| text.contains("is incomplete"));
        warnings
    };
    let both = |a, b| told(&[("a", a), ("b", b)], By::File);
    assert_eq!(both(&whole, &whole), Vec::<String>::new());
    let lack = "it holds 30 of 45 samples, at least one of each point; unless it is still \
                running, or was started anew, repeat the same `forebay sweep` command on that \
                machine, with the same version, to continue it";
    assert_eq!(both(&whole, &cut), [format!("`b` is incomplete: {lack}")]);
    assert_eq!(both(&cut, &cut).len(), 2, "each side");
    // All sides are of one run.
    let within = told(&[("a", &cut)], By::Axis(Axis::Depth));
    assert_eq!(within, [format!("`a` is incomplete: {lack}")]);
}
