//! The guide's numbers against the runs that it names, and its checks against those that there are.

use super::block::blocks;
use super::{GUIDE, folder, said, shell};
use std::fs;

const BENCH: &str = include_str!("../../../../../benches/runs/2026-11-21-h200-k/bench-read.txt");
const TABLE: &str = include_str!("../../../../../benches/runs/2026-11-28-2-cores-bench/bench.txt");
const COMPARE: &str = include_str!("../../../../../benches/runs/2026-11-22-h200/compare.txt");
const SWEEPS: [&str; 2] = [
    include_str!("../../../../../benches/runs/2026-11-22-h200-c/sweep-32.jsonl"),
    include_str!("../../../../../benches/runs/2026-11-22-h200-c/sweep-24.jsonl"),
];
const DOCTOR: &str = include_str!("../../../../../docs/doctor.md");

/// The cells of the rows of a table below a row that begins so.
fn rows(page: &str, heading: &str) -> Vec<Vec<String>> {
    let lines = page.lines().map(str::trim).skip_while(|line| !line.starts_with(heading)).skip(2);
    let lines = lines.take_while(|line| line.starts_with('|'));
    lines
        .map(|line| line.trim_matches('|').split('|').map(|cell| cell.trim().into()).collect())
        .collect()
}

#[test]
fn lines_that_are_quoted_are_those_of_the_run() {
    let quoted: Vec<String> = blocks(GUIDE)
        .into_iter()
        .filter(|block| block.is("text"))
        .map(|block| block.text)
        .collect();
    assert_eq!(quoted.len(), 1);
    for line in quoted[0].lines() {
        assert!(TABLE.lines().any(|other| other == line), "no such line in the run: {line}");
    }
    assert!(TABLE.lines().all(|line| line.chars().count() <= 80));
    // What the text quotes of the same runs, by the line in which it stands there.
    for (run, method, numbers) in [
        (BENCH, "standard ", &["3.24"][..]),
        (BENCH, "cufile-compat ", &["24.0", "40.7"]),
        (BENCH, "forebay ", &["53.9", "2.49"]),
        (COMPARE, "standard ", &["1.25", "1.10", "0.438"]),
        (COMPARE, "forebay ", &["1.53", "2.00", "0.033"]),
    ] {
        for number in numbers {
            let mut lines = run.lines().filter(|line| line.starts_with(method));
            assert!(lines.any(|line| line.contains(&format!(" {number} "))), "{method}: {number}");
            assert!(GUIDE.contains(number), "the guide should quote {number}");
        }
    }
}

#[test]
fn the_table_of_sizes_is_what_the_sweeps_say() {
    let folder = folder();
    for (name, text) in ["sweep-32", "sweep-24"].iter().zip(SWEEPS) {
        fs::write(folder.path().join("here").join(name), text).unwrap();
    }
    let mut measured = Vec::new();
    for name in ["sweep-32", "sweep-24"] {
        let output = shell(&folder, &format!("forebay report {name} --markdown"));
        assert!(output.status.success(), "{}", said(&output));
        measured.extend(rows(&String::from_utf8(output.stdout).unwrap(), "| method |"));
    }
    let quoted = rows(GUIDE, "| Request |");
    assert_eq!(quoted.len(), 5);
    for row in quoted {
        for (cell, (method, cache)) in row[1..].iter().zip([
            ("forebay", "warm"),
            ("cpu-gpu", "warm"),
            ("forebay", "cold"),
            ("cpu-gpu", "cold"),
        ]) {
            let same = |cells: &&Vec<String>| {
                [method, cache, row[0].as_str()].iter().all(|word| cells.iter().any(|c| c == word))
            };
            let found: Vec<_> = measured.iter().filter(same).collect();
            assert_eq!(found.len(), 1, "{method}, {cache}, {}: {measured:?}", row[0]);
            assert!(found[0].contains(cell), "{row:?}: {found:?}");
        }
    }
}

#[test]
fn the_checks_that_are_named_exist() {
    let known = DOCTOR.lines().filter_map(|line| line.strip_prefix("| `")?.split('`').next());
    let known: Vec<&str> = known.collect();
    let symptoms = rows(GUIDE, "| Symptom |");
    assert_eq!(symptoms.len(), 8);
    for row in symptoms {
        let named: Vec<&str> = row[3].split('`').filter(|word| !word.trim().is_empty()).collect();
        assert!(!named.is_empty());
        for name in named {
            assert!(known.contains(&name), "there is no check `{name}`: {}", row[0]);
        }
    }
}
