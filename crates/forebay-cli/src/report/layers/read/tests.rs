//! The accepted and refused inputs.

use proptest::prelude::*;
use serde_json::{Value, json};

use super::*;
use crate::report::layers::tests::MAPPED;

/// From before the format had versions and most of its numbers.
const FIRST: &str =
    include_str!("../../../../../../benches/runs/2026-11-22-h200-layers/run-1-large-all.json");
const TRAIN: &str =
    include_str!("../../../../../../benches/runs/2026-11-22-h200-layers-b/train.json");
const ELSE: &str =
    include_str!("../../../../../../benches/runs/2026-11-22-h200-layers-b/drive.json");

/// A small file of the current format.
fn told() -> Value {
    let way = json!({
        "pass_s": 0.2, "pass_low_s": 0.1, "pass_high_s": 0.3, "line_s": 0.2, "line_stall_s": 0.0,
        "transfer_layer_s": 0.06, "over_line": 0.9, "line_reads": 3, "reads": 3.0,
        "stall_s": -1e-9, "compute_beside": 1.0, "cpu_s_per_gb": 0.02, "bytes": {"file_bytes": 3000}
    });
    let point = json!({
        "tokens": 1024, "turns": 3, "compute_s": 0.1, "forward_layer_s": 0.03,
        "backward_layer_s": null, "transfer_layer_s": 0.05, "samples": {"compute": [{"round": 0}]},
        "ways": {"ours": way, "b": way, "a": way}, "operations": 1_000_000_000_000_u64
    });
    json!({
        "layers_schema": 1, "command": ["python3", "it's"], "flags": {"buffers": 3, "new": [1]},
        "environment": {"gpu": {"name": "G", "memory": 1 << 30, "cuda": "13"}, "cpus": 4},
        "layer_bytes": 1000, "layers": 3, "order": "forward", "from": "pinned",
        "simulated": false, "absent": {"kvikio": "it is not installed"}, "points": [point]
    })
}

fn read(value: &Value) -> Result<Layers, String> {
    layers(value.to_string().as_bytes())
}

/// The error for a file in which one value, given by its JSON pointer, is replaced.
fn why(pointer: &str, value: Value) -> String {
    let mut file = told();
    *file.pointer_mut(pointer).unwrap() = value;
    read(&file).unwrap_err()
}

#[test]
fn every_number_of_a_file_is_read() {
    let found = read(&told()).unwrap();
    assert_eq!(
        (found.count, found.layer_bytes, found.command.as_str()),
        (3, 1000, r"python3 'it'\''s'")
    );
    assert_eq!((found.buffers, found.rounds, found.simulated), (Some(3), None, false));
    assert_eq!(found.absent, [("kvikio".to_owned(), "it is not installed".to_owned())]);
    assert_eq!(found.machine.facts, [("GPU", "G, 1 GiB".into()), ("processor", "4 cores".into())]);
    assert_eq!(found.ways(), ["a", "b", "ours"]);
    let way = found.points[0].way("a").unwrap();
    assert_eq!((way.pass_high_s, way.bytes.file_bytes), (Some(0.3), Some(3000)));
    assert_eq!((way.over_line(), way.transfer(&found.points[0])), (0.9, 0.06));
    assert_eq!((found.points[0].operations, found.points[0].backward_layer_s), (Some(1e12), None));
}

#[test]
fn archived_runs_are_read_as_well() {
    let first = layers(FIRST.as_bytes()).unwrap();
    // In their own order, not in that of their names.
    assert_eq!(first.ways(), ["forebay", "two-buffers", "mmap", "kvikio"]);
    assert_eq!(
        (first.machine.gpu.as_deref(), first.machine.cores),
        (Some("NVIDIA H200"), Some(16))
    );
    let (point, way) = (&first.points[0], &first.points[0].ways[0].1);
    assert!((point.transfer_layer_s * 6.0 - 0.136_000_695).abs() < 1e-12);
    assert_eq!((way.pass_s, way.stall_s, way.reads), (0.175_537_628_000_029_14, None, None));
    let train = layers(TRAIN.as_bytes()).unwrap();
    assert_eq!((train.points[0].turns, train.points[0].ways[0].1.reads), (16, Some(13.0)));
    assert!(train.points[0].backward_layer_s.is_some());
}

#[test]
fn kinds_are_told_apart() {
    for text in [FIRST, TRAIN, MAPPED, r#"{"layers_schema": 9}"#] {
        assert_eq!(is_layers(text.as_bytes()), Ok(true));
    }
    for text in [ELSE, "{}", r#"{"layer_bytes": 1, "from": "", "points": [], "results": []}"#] {
        assert_eq!(is_layers(text.as_bytes()), Ok(false));
    }
    assert!(is_layers(b"[]").is_err() && is_layers(b"").is_err());
}

#[test]
fn what_makes_no_sense_is_named() {
    let version = "it has version 7, and this program reads 1 to 6";
    assert_eq!(why("/layers_schema", 7.into()), version);
    assert_eq!(layers(br#"{"layers_schema": 7}"#).unwrap_err(), version);
    assert!(why("/layers_schema", "1".into()).contains("invalid type: string"));
    assert_eq!(why("/layers", 0.into()), "`layers` has to be 1 or more, not `0`");
    assert_eq!(
        why("/points/0/tokens", 0.into()),
        "at 0 tokens, `tokens` has to be 1 or more, not `0`"
    );
    assert!(why("/points/0/turns", (-1).into()).starts_with("invalid value: integer `-1`"));
    for (value, shown) in [(json!(0), "0.0"), (json!(-0.5), "-0.5"), (json!(1e300), "1e300")] {
        let expected =
            format!("at 1,024 tokens, of `b`, `pass_s` has to be from 1e-12 to 1e9, not `{shown}`");
        assert_eq!(why("/points/0/ways/b/pass_s", value), expected);
    }
    for (pointer, value) in [
        ("/points/0/ways/b/line_s", json!(0)),
        ("/points/0/ways/b/pass_low_s", json!(0)),
        ("/points/0/ways/b/stall_s", json!(1e10)),
        ("/points/0/ways/b/over_line", json!(0)),
        ("/points/0/ways/b/transfer_layer_s", json!(-1)),
        ("/points/0/ways/b/reads", json!(-1)),
        ("/points/0/ways/b/cpu_s_per_gb", json!(-1)),
        ("/points/0/compute_s", json!(-1)),
        ("/points/0/transfer_layer_s", json!(0)),
    ] {
        let key = pointer.rsplit('/').next().unwrap();
        assert!(why(pointer, value).contains(&format!("`{key}` has to be from")), "{key}");
    }
    assert!(why("/points/0/ways/b/pass_s", Value::Null).contains("expected f64"));
    assert!(why("/points/0/ways/b", json!({})).contains("missing field `pass_s`"));
    let missing = "at 1,024 tokens, `transfer_layer_s` is missing";
    assert_eq!(why("/points/0/transfer_layer_s", Value::Null), missing);
    assert!(why("/points", Value::Null).contains("null"));
    let text = told().to_string().replace("\"pass_s\":0.2", "\"pass_s\":NaN");
    assert!(layers(text.as_bytes()).unwrap_err().contains("expected value at line 1 column"));
    let text = told().to_string().replace("\"pass_s\":0.2", "\"pass_s\":1e999");
    assert!(layers(text.as_bytes()).unwrap_err().contains("number out of range"));
}

#[test]
fn what_is_too_much_is_refused() {
    let mut file = told();
    let point = file["points"][0].clone();
    file["points"] = json!([point, point]);
    assert_eq!(read(&file).unwrap_err(), "1,024 tokens occur twice");
    let points = |count: usize, way: &dyn Fn(usize) -> String| -> Value {
        let points = (0..count).map(|number| {
            let mut point = point.clone();
            point["tokens"] = (number + 1).into();
            point["ways"] = json!({way(number): point["ways"]["a"]});
            point
        });
        points.collect()
    };
    file["points"] = points(POINTS_MAX + 1, &|_| "a".into());
    assert!(read(&file).unwrap_err().contains("4097 points"));
    file["points"] = points(WAYS_MAX + 1, &|number| number.to_string());
    assert_eq!(read(&file).unwrap_err(), "it has 65 methods, and at most 64 are read");
    file["points"] = points(WAYS_MAX, &|number| number.to_string());
    assert_eq!(read(&file).unwrap().points.len(), WAYS_MAX);
    let many: serde_json::Map<String, Value> =
        (0..=WAYS_MAX).map(|number| (number.to_string(), "x".into())).collect();
    assert!(why("/absent", many.into()).contains("more than 64 methods"));
    assert!(why("/absent", json!({"x".repeat(201): ""})).contains("more than 200 letters"));
    let twice = told().to_string().replace("\"b\":{", "\"a\":{");
    assert!(layers(twice.as_bytes()).unwrap_err().contains("`a` occurs twice"));
    let long = told().to_string() + &" ".repeat(JSON_MAX);
    assert!(layers(long.as_bytes()).unwrap_err().contains("has at most 32 MiB"));
    let mut file = told();
    file["failed"] = "x".repeat(99_999).into();
    file["command"] = json!(["y".repeat(99_999)]);
    let found = read(&file).unwrap();
    assert_eq!(found.failed.map(|text| text.chars().count()), Some(TEXT_MAX));
    assert_eq!(found.command.chars().count(), COMMAND_MAX);
}

proptest! {
    #[test]
    fn no_bytes_end_the_command(bytes: Vec<u8>) {
        let _ = (is_layers(&bytes), layers(&bytes));
    }

    #[test]
    fn what_is_read_has_numbers_that_can_be_shown(
        number: f64, key in "(pass|pass_low|pass_high|line|stall|line_stall)_s|reads|compute_beside"
    ) {
        let mut file = told();
        file["points"][0]["ways"]["b"][key] = number.into();
        if let Ok(found) = read(&file) {
            let way = found.points[0].way("b").unwrap();
            prop_assert!(way.over_line().is_finite() && way.over_line() > 0.0);
            prop_assert!(way.over_compute(&found.points[0]).is_finite());
            prop_assert!(way.range_over_line().is_none_or(|(a, b)| a > 0.0 && b.is_finite()));
        }
    }
}
