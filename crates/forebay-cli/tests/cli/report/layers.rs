//! Reports of layers behind compute, from archived runs of `python -m forebay.stream_bench`.

use std::fs;

use super::made::{self, Sweep};
use super::{folder, forebay};
use crate::program::program;
use assert_cmd::Command;

pub(crate) const LARGE: &str =
    include_str!("../../../../../benches/runs/2026-11-22-h200-layers-b/large-mapped.json");
/// Of the first days, when less was written down.
const FIRST: &str =
    include_str!("../../../../../benches/runs/2026-11-22-h200-layers/run-1-large-all.json");
const SENTENCE: &str = "two-buffers: free from 32,768 tokens on; on its line from 1,024 tokens on";

/// The same as it is written today, ended early.
fn failed() -> String {
    let mut value: serde_json::Value = serde_json::from_str(LARGE).unwrap();
    value["layers_schema"] = 1.into();
    value["failed"] = "at 65,536 tokens: out of memory".into();
    value["absent"]["kvikio"] = "it is not installed".into();
    value.to_string()
}

#[test]
fn layers_alone_have_each_form() {
    let (folder, path) = folder(LARGE);
    fs::create_dir(folder.path().join("mapped")).unwrap();
    fs::rename(path, folder.path().join("mapped/stream_bench.json")).unwrap();
    for (arguments, begins, holds) in [
        (&[][..], "mapped: python3 -m forebay.stream_bench", SENTENCE),
        (&["--markdown"], "# Report\n\n## Layers behind compute: mapped", SENTENCE),
        (
            &["--csv"],
            "run,layers,layer_bytes,order,from,tokens,way,turns,compute_s,",
            "\r\nmapped,6,",
        ),
        (&["--prometheus"], "# HELP forebay_layers_turns ", "forebay_layers_pass_seconds{run="),
        (&["-o", "page"], "", ""),
    ] {
        let output = forebay(folder.path(), &[&["mapped/stream_bench.json"], arguments].concat());
        assert!(output.status.success() && output.stderr.is_empty(), "{output:?}");
        let text = String::from_utf8(output.stdout).unwrap();
        assert!(text.starts_with(begins) && text.contains(holds), "{text}");
    }
    let page = fs::read_to_string(folder.path().join("page")).unwrap();
    assert!(page.starts_with("<!doctype html>") && page.contains("<h2>Layers behind compute</h2>"));
    assert!(page.contains(SENTENCE));
}

#[test]
fn several_stand_beside_each_other_and_beside_results() {
    let (folder, _) = folder(&made::file(&Sweep { repeats: 1, ..Sweep::default() }));
    fs::write(folder.path().join("large.json"), LARGE).unwrap();
    fs::write(folder.path().join("first.json"), FIRST).unwrap();
    let all = ["results", "large.json", "first.json"];
    let output = forebay(folder.path(), &all);
    assert!(output.status.success(), "{output:?}");
    let text = String::from_utf8(output.stdout).unwrap();
    for word in ["At best, forebay reads", "large: python3", "first: ", "kvikio: free from"] {
        assert!(text.contains(word), "{word}: {text}");
    }
    let output = forebay(folder.path(), &[&all[..], &["--csv"]].concat());
    let talk = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(2), "{talk}");
    assert!(talk.contains("different columns") && talk.contains("files of one kind"), "{talk}");
    let output = forebay(folder.path(), &["large.json", "first.json", "--csv"]);
    assert_eq!(String::from_utf8(output.stdout).unwrap().lines().count(), 1 + 6 + 8);
}

#[test]
fn what_was_left_out_and_what_failed_is_told() {
    let (folder, _) = folder(&failed());
    let output = forebay(folder.path(), &["results"]);
    let (text, talk) = (output.stdout, String::from_utf8(output.stderr).unwrap());
    let text = String::from_utf8(text).unwrap();
    assert!(output.status.success() && text.contains(SENTENCE), "{text}");
    assert!(text.contains("\nkvikio is left out: it is not installed\n"), "{text}");
    let warning = "warning: results ended early, at 65,536 tokens: out of memory; remove";
    assert!(talk.contains(warning), "{talk}");
}

#[test]
fn bytes_from_elsewhere_than_was_asked_are_warned_of() {
    let talk = |from: &str, drive: u64| {
        let mut value: serde_json::Value = serde_json::from_str(LARGE).unwrap();
        value["from"] = from.into();
        let bytes = serde_json::json!({"file_bytes": 4_000_000, "drive_bytes": drive});
        value["points"][1]["ways"]["forebay"]["bytes"] = bytes;
        let (folder, _) = folder(&value.to_string());
        let output = forebay(folder.path(), &["results"]);
        assert!(output.status.success(), "{output:?}");
        String::from_utf8(output.stderr).unwrap()
    };
    assert_eq!(talk("page-cache", 0), "");
    assert_eq!(talk("drive", 4_000_000), "");
    let share = "warning: up to 25.0 % of the bytes of a pass of results came from";
    let told = talk("page-cache", 1_000_000).replace('\n', " ");
    assert!(told.starts_with(&format!("{share} the drive, which")), "{told}");
    assert!(told.contains("leave the page cache room for all layers"), "{told}");
    let told = talk("half", 3_000_000).replace('\n', " ");
    assert!(told.starts_with(&format!("{share} the page cache, which")), "{told}");
    assert!(told.contains("stop other readers of the file"), "{told}");
}

#[test]
fn what_is_wrong_is_told_with_the_file_and_the_remedy() {
    let (folder, path) = folder("");
    for (text, why) in [
        (
            LARGE.replacen("\"pass_s\": 0.134", "\"pass_s\": -0.134", 1),
            "at 1,024 tokens, of `forebay`",
        ),
        (LARGE.replacen("\"tokens\": 8192", "\"tokens\": 0", 1), "`tokens` has to be 1 or more"),
        (LARGE.replacen("\"turns\"", "\"others\"", 1), "missing field `turns`"),
        (LARGE[..LARGE.len() / 2].to_owned(), "EOF while parsing"),
        (failed().replace("\"layers_schema\":1", "\"layers_schema\":7"), "it has version 7"),
    ] {
        fs::write(&path, text).unwrap();
        let output = forebay(folder.path(), &["results"]);
        let talk = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(1), "{talk}");
        for word in ["`results`", why, "hint: ", "`python -m forebay.stream_bench --out FOLDER`"] {
            assert!(talk.contains(word), "{word}: {talk}");
        }
    }
    let mut empty: serde_json::Value = serde_json::from_str(LARGE).unwrap();
    empty["points"] = serde_json::json!([]);
    fs::write(&path, empty.to_string()).unwrap();
    let talk = forebay(folder.path(), &["results"]).stderr;
    assert!(String::from_utf8(talk).unwrap().contains("no sample, no limit and no pass"));
}

#[test]
fn they_are_not_compared_point_by_point() {
    let (folder, _) = folder(LARGE);
    let mut command = Command::new(program());
    let output = command.current_dir(folder.path()).args(["diff", "results", "results"]).output();
    let output = output.unwrap();
    let talk = String::from_utf8(output.stderr).unwrap();
    assert_eq!((output.status.code(), output.stdout.is_empty()), (Some(1), true), "{talk}");
    for word in ["`results`", "passes of layers", "hint: `forebay report` shows several"] {
        assert!(talk.contains(word), "{word}: {talk}");
    }
}
