//! What a terminal shows of foreign text: no file name, label, model or message of a results file
//! moves its cursor, forges a line or turns the writing around, whatever verb and form shows it.

use std::fs;
use std::path::Path;
use std::process::{Command, Output, Stdio};

use serde_json::Value;

use crate::program::program;
use crate::report::made;

/// A name with letters of each kind that acts, and a line that only a newline can begin.
const NAME: &str =
    "n\nFORGED \u{1b}]0;\u{7}\u{1b}[6n\u{9b}\u{7f}\u{85}\u{202e}\u{2066}\u{200f}\u{61c}\u{2028}e";

/// The command, which colours its output as on a terminal.
fn forebay(folder: &Path, arguments: &[&str]) -> Command {
    let mut command = Command::new(program());
    command.current_dir(folder).args(arguments).stdin(Stdio::null());
    command.env("CLICOLOR_FORCE", "1").env("LC_ALL", "C.UTF-8").env("FOREBAY_LOG", "debug");
    command
}

/// Runs it, and checks what it shows.
#[track_caller]
fn shows(folder: &Path, arguments: &[&str]) -> Output {
    let output = forebay(folder, arguments).output().unwrap();
    check(&output, &format!("{arguments:?}"));
    output
}

#[track_caller]
fn check(output: &Output, what: &str) {
    for bytes in [&output.stdout, &output.stderr] {
        let text = std::str::from_utf8(bytes).unwrap();
        let own = without_colours(text).replace("\r\n", "\n");
        let acts = |c: &char| {
            (c.is_control() && *c != '\n')
                || "\u{61c}\u{200e}\u{200f}\u{2028}\u{2029}".contains(*c)
                || matches!(c, '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
        };
        assert_eq!(own.chars().find(acts), None, "{what}: {text:?}");
        assert!(!own.lines().any(|line| line.trim_start().starts_with("FORGED")), "{what}: {text}");
    }
}

/// `text` without changes of colour (`ESC [ … m`).
fn without_colours(text: &str) -> String {
    let mut parts = text.split("\u{1b}[");
    let mut shown = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        let end = part.find(|c: char| !c.is_ascii_digit() && c != ';');
        match end.filter(|end| part[*end..].starts_with('m')) {
            Some(end) => shown.push_str(&part[end + 1..]),
            None => shown.push_str(&format!("\u{1b}[{part}")),
        }
    }
    shown
}

#[test]
fn a_file_name_acts_on_no_terminal() {
    let folder = tempfile::tempdir_in(".").unwrap();
    let folder = folder.path();
    fs::write(folder.join(NAME), vec![7; 3_000_000]).unwrap();
    fs::create_dir(folder.join("folder")).unwrap();
    let inner = format!("folder/{NAME}");
    fs::create_dir(folder.join(&inner)).unwrap();
    let (small, new) = (["--size=4M", "--time=100ms"], format!("{NAME}.new"));
    let made = format!("{NAME}.made");
    let trace = format!("{NAME}.trace");
    let good: [&[&str]; 14] = [
        &["read", NAME, "--gpu", "sim", "--trace", &trace],
        &["read", NAME, "--format=json"],
        &["read", NAME, "--output", &new],
        &["doctor", "--tree", NAME],
        &["doctor", "--tree", NAME, "--format=json"],
        &["doctor", NAME, "-v"],
        &["doctor", &inner, "--format=json"],
        &["bench", &inner, small[0], small[1], "--repeats", "1"],
        &["bench", NAME, "--format=json", "--repeats", "1", "--time", "100ms"],
        &["bench", &inner, "folder", small[0], small[1], "--repeats", "1"],
        &["gpu-file-benchmark", "-s", "2", "-r", "1", "--gpu", "sim", "-f", &made],
        &["gdsio", "-f", NAME, "-w", "2", "-s", "2M", "-i", "64K", "-x", "0", "-I", "0"],
        &["bench", NAME, "--depth", "1", "--block-size", "64K", "--time", "100ms", "-o", "swept"],
        &[
            "bench",
            NAME,
            "--format=json",
            "--depth",
            "1",
            "--time",
            "100ms",
            "--block-size",
            "64K",
            "-o",
            &inner,
        ],
    ];
    for arguments in good {
        let output = shows(folder, arguments);
        assert_ne!(output.status.code(), Some(2), "{output:?}");
    }
    let missing = format!("{NAME}.none");
    for verb in ["read", "doctor", "bench", "report", NAME] {
        shows(folder, &[verb, &missing]);
    }
    for flag in [NAME, "--gpu", "--offset", "--output"] {
        shows(folder, &["read", NAME, flag, NAME]);
    }
    shows(folder, &["gdsio", &missing]);
    for variable in ["FOREBAY_LOG", "FOREBAY_DEPTH", "FOREBAY_\u{1b}[6n\nFORGED"] {
        let output = forebay(folder, &["read", NAME]).env(variable, NAME).output().unwrap();
        check(&output, variable);
    }
}

/// A results file, a report or a table of another tool whose every text is hostile says the same as
/// before in every form, and acts in none.
#[test]
fn a_foreign_file_acts_on_no_terminal() {
    let folder = crate::scratch();
    let folder = folder.path();
    let sweep = made::file(&made::Sweep { label: Some("a"), fails: 4, ..made::Sweep::default() });
    let bench = printed(
        folder,
        &["bench", "--size", "4M", "--repeats", "1", "--time", "100ms", "--format=json"],
    );
    let whole = made::hostile().replace(&inside(made::HARM), &inside(NAME));
    fs::write(folder.join(NAME), &whole).unwrap();
    let texts = [hostile(folder, &sweep), hostile(folder, &bench), whole];
    for text in &texts {
        fs::write(folder.join(NAME), text).unwrap();
        fs::write(folder.join("other"), text.replace("\"a", "\"b")).unwrap();
        for form in [&[][..], &["--wide"], &["--format=md"], &["--format=csv"]] {
            shows(folder, &[&["report", NAME], form].concat());
            shows(folder, &[&["report", NAME, "other"], form].concat());
        }
        let _ = fs::remove_file(folder.join("page.html"));
        shows(folder, &["report", NAME, "other", "-o", "page.html"]);
        let page = fs::read(folder.join("page.html")).unwrap_or_default();
        check(&Output { stdout: page, ..shows(folder, &["report", NAME, "other"]) }, "page");
    }
    let fio = include_str!("../import/fio/random.json").replace("data", &inside(NAME));
    let csv = format!("size,bw,\"{NAME}\"\n4096,1 MiB/s,{NAME}\n4096,x{NAME},b\n");
    let map = "size=size,throughput=bw";
    for (text, rest) in [
        (fio.as_str(), &[][..]),
        (&csv, &["--columns", &format!("{map},method:={NAME},direction:=read")]),
        (NAME, &["--as", "gdsio"]),
    ] {
        fs::write(folder.join(NAME), text).unwrap();
        shows(folder, &[&["report", NAME], rest].concat());
        shows(folder, &[&["report", NAME, "--format=csv"], rest].concat());
    }
}

fn printed(folder: &Path, arguments: &[&str]) -> String {
    let output = shows(folder, arguments);
    assert!(output.status.success(), "{output:?}");
    String::from_utf8(output.stdout).unwrap()
}

/// `text` as it stands within a string of JSON.
fn inside(text: &str) -> String {
    let quoted = serde_json::to_string(text).unwrap();
    quoted[1..quoted.len() - 1].to_owned()
}

/// `text`, objects of JSON, with every string that a report takes in any wording made hostile.
fn hostile(folder: &Path, text: &str) -> String {
    let objects = serde_json::Deserializer::from_str(text).into_iter::<Value>();
    let mut objects: Vec<Value> = objects.map(Result::unwrap).collect();
    let written = |objects: &[Value]| {
        let lines = objects.iter().map(|object| object.to_string() + "\n");
        fs::write(folder.join("tried"), lines.collect::<String>()).unwrap();
        let output = forebay(folder, &["report", "tried"]).env("FOREBAY_LOG", "off").output();
        output.unwrap().status.success()
    };
    // A sample stands for all.
    let tried = objects.len().min(3);
    let mut places: Vec<(usize, String)> = Vec::new();
    for (at, object) in objects.iter().enumerate().take(tried) {
        let mut found = Vec::new();
        strings(object, "", &mut found);
        places.extend(found.into_iter().map(|place| (at, place)));
    }
    // Halves of what is refused, until single texts are.
    let (mut taken, mut sets) = (0, vec![places]);
    while let Some(mut set) = sets.pop() {
        let before = objects.clone();
        for (at, place) in &set {
            *objects[*at].pointer_mut(place).unwrap() = NAME.into();
        }
        if written(&objects) {
            taken += set.len();
            continue;
        }
        objects = before;
        if set.len() > 1 {
            sets.push(set.split_off(set.len() / 2));
            sets.push(set);
        }
    }
    assert!(taken > 3, "{taken} texts are free");
    objects.iter().map(|object| object.to_string() + "\n").collect()
}

/// Where strings stand in a value.
fn strings(value: &Value, place: &str, found: &mut Vec<String>) {
    match value {
        Value::String(_) => found.push(place.to_owned()),
        Value::Array(values) => {
            values.iter().enumerate().take(2).for_each(|(at, value)| {
                strings(value, &format!("{place}/{at}"), found);
            });
        }
        Value::Object(values) => values.iter().for_each(|(key, value)| {
            let key = key.replace('~', "~0").replace('/', "~1");
            strings(value, &format!("{place}/{key}"), found);
        }),
        _ => {}
    }
}
