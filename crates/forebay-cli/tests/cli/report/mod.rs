//! `forebay report`: its forms, what it refuses, and its page in a browser.

mod browser;
mod compared;
mod devtools;
mod foreign;
#[path = "../../../../forebay-measure/tests/results/made.rs"]
pub(crate) mod made;
mod replaced;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Output;

use crate::program::run;
use made::Sweep;

/// The output of `forebay report`.
fn forebay(folder: &Path, arguments: &[&str]) -> Output {
    run(folder, [&["report"], arguments].concat())
}

/// A folder with a results file of this name and text.
fn folder(text: &str) -> (tempfile::TempDir, PathBuf) {
    let folder = crate::scratch();
    let path = folder.path().join("results");
    fs::write(&path, text).unwrap();
    (folder, path)
}

#[test]
fn each_form_is_printed_or_written() {
    let (folder, _) = folder(&made::file(&Sweep { repeats: 3, ..Sweep::default() }));
    for (arguments, file, begins) in [
        (&[][..], "r.txt", "results  forebay bench"),
        (&["--format=md"], "r.md", "# Report"),
        (&["--format=csv"], "r.csv", "label,path,method,"),
        (&["--format=html"], "r.html", "<!DOCTYPE html>"),
        (&["--format=json"], "r.jsonl", "{\"record\":\"run\""),
    ] {
        let output = forebay(folder.path(), &[&["results"], arguments].concat());
        assert!(output.status.success() && output.stderr.is_empty(), "{output:?}");
        let text = String::from_utf8(output.stdout).unwrap();
        let output = forebay(folder.path(), &["results", "-o", file]);
        assert!(output.status.success() && output.stdout.is_empty(), "{output:?}");
        let talk = String::from_utf8(output.stderr).unwrap();
        assert!(talk.starts_with(&format!("wrote {file} (")), "{talk}");
        let written = fs::read_to_string(folder.path().join(file)).unwrap();
        assert!(written.starts_with(begins), "{written}");
        assert!(written == text || file == "r.html", "{text}");
    }
}

#[test]
fn warnings_go_to_stderr() {
    let (folder, _) = folder(&made::file(&Sweep { fails: 5, ..Sweep::default() }));
    let output = forebay(folder.path(), &["results"]);
    let talk = String::from_utf8(output.stderr).unwrap();
    assert!(output.status.success() && talk.contains("warning: 3 of 15 points failed"), "{talk}");
}

#[test]
fn impossible_arguments_are_refused() {
    let text = made::file(&Sweep::default());
    let (folder, results) = folder(&text);
    let refused = |arguments: &[&str], code: i32, words: &[&str]| {
        let output = forebay(folder.path(), arguments);
        let talk = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(code), "{talk}");
        assert!(words.iter().all(|word| talk.contains(word)), "{talk}");
    };
    refused(&[], 2, &["arguments were not provided: <FILE>"]);
    refused(&["none"], 1, &["`none`", "hint:"]);
    refused(&["results", "--format=csv", "--format=md"], 2, &["multiple times"]);
    refused(&["results", "--format=csv", "-o", "x.md"], 2, &["does not fit the name `x.md`"]);
    refused(&["results", "--overwrite"], 2, &["--output"]);
    refused(&["results", "--format=csv", "-o", "results", "--overwrite"], 2, &["made from"]);
    refused(&["results", "-o", "none/x.md"], 1, &["`none/x.md`"]);
    refused(&["results", "-o", "x.pdf"], 2, &["`.pdf` is unknown", "`.html`"]);
    fs::write(folder.path().join("there.md"), "mine").unwrap();
    refused(&["results", "-o", "there.md"], 1, &["--overwrite"]);
    assert_eq!(fs::read_to_string(folder.path().join("there.md")).unwrap(), "mine");
    fs::write(folder.path().join("cut"), &text[..text.len() / 2]).unwrap();
    assert!(forebay(folder.path(), &["cut"]).status.success());
    fs::write(folder.path().join("newer"), text.replacen("\"schema\":1", "\"schema\":9", 1))
        .unwrap();
    refused(&["newer"], 1, &["version 9"]);
    assert_eq!(fs::read_to_string(results).unwrap(), text);
}
