//! `forebay report`: its forms, what it refuses, and its page in a browser.

mod browser;
mod devtools;
pub(crate) mod layers;
#[path = "../../results/made.rs"]
pub(crate) mod made;
mod replaced;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Output;

use crate::program::program;
use assert_cmd::Command;
use made::Sweep;

fn forebay(folder: &Path, arguments: &[&str]) -> Output {
    let mut command = Command::new(program());
    command.current_dir(folder).arg("report").args(arguments).output().unwrap()
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
    let (folder, _) = folder(&made::file(&Sweep { repeats: 2, ..Sweep::default() }));
    for (arguments, begins) in [
        (&["results"][..], "results: forebay sweep"),
        (&["results", "--markdown"], "# Report"),
        (&["results", "--csv"], "run,path,way,"),
        (&["results", "--prometheus"], "# HELP forebay_bytes_per_second "),
    ] {
        let output = forebay(folder.path(), arguments);
        assert!(output.status.success() && output.stderr.is_empty(), "{output:?}");
        let text = String::from_utf8(output.stdout).unwrap();
        assert!(text.starts_with(begins), "{text}");
        let written = [arguments, &["-o", "written", "--overwrite"]].concat();
        let output = forebay(folder.path(), &written);
        assert!(output.status.success() && output.stdout.is_empty(), "{output:?}");
        let file = fs::read_to_string(folder.path().join("written")).unwrap();
        // With a file to write to, a page is what is asked for.
        let page = arguments.len() == 1;
        assert!(if page { file.starts_with("<!doctype html>") } else { file == text });
    }
}

#[test]
fn warnings_are_told_beside_the_data() {
    let (folder, _) = folder(&made::file(&Sweep { fails: 5, ..Sweep::default() }));
    let output = forebay(folder.path(), &["results"]);
    let talk = String::from_utf8(output.stderr).unwrap();
    assert!(output.status.success() && talk.contains("warning: 3 of 15 points failed"), "{talk}");
}

#[test]
fn what_makes_no_sense_is_refused() {
    let text = made::file(&Sweep::default());
    let (folder, results) = folder(&text);
    let refused = |arguments: &[&str], code: i32, words: &[&str]| {
        let output = forebay(folder.path(), arguments);
        let talk = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(code), "{talk}");
        assert!(words.iter().all(|word| talk.contains(word)), "{talk}");
    };
    refused(&[], 2, &["`<RESULTS>...` is missing"]);
    refused(&["none"], 1, &["`none`", "hint:"]);
    refused(&["results", "--csv", "--markdown"], 2, &["cannot be combined with"]);
    refused(&["results", "--overwrite"], 2, &["--output"]);
    refused(&["results", "-o", "results", "--overwrite"], 2, &["made from"]);
    refused(&["results", "-o", "none/x"], 1, &["`none/x`"]);
    fs::write(folder.path().join("there"), "mine").unwrap();
    refused(&["results", "-o", "there"], 1, &["--overwrite"]);
    assert_eq!(fs::read_to_string(folder.path().join("there")).unwrap(), "mine");
    fs::write(folder.path().join("cut"), &text[..text.len() / 2]).unwrap();
    assert!(forebay(folder.path(), &["cut"]).status.success());
    fs::write(folder.path().join("newer"), text.replacen("\"schema\":1", "\"schema\":9", 1))
        .unwrap();
    refused(&["newer"], 1, &["version 9"]);
    assert_eq!(fs::read_to_string(results).unwrap(), text);
}
