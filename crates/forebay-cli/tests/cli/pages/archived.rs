//! The lines that a page quotes against the run that it names, and its checks against the doctor's.

use super::MEASURE;
use super::block::blocks;

const TABLE: &str = include_str!("../../../../../benches/runs/2026-11-28-2-cores-bench/bench.txt");
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
    let quoted: Vec<String> = blocks(MEASURE)
        .into_iter()
        .filter(|block| block.is("text"))
        .map(|block| block.text)
        .collect();
    assert_eq!(quoted.len(), 1);
    for line in quoted[0].lines() {
        assert!(TABLE.lines().any(|other| other == line), "no such line in the run: {line}");
    }
    assert!(TABLE.lines().all(|line| line.chars().count() <= 80));
}

#[test]
fn the_checks_that_are_named_exist() {
    let known = DOCTOR.lines().filter_map(|line| line.strip_prefix("| `")?.split('`').next());
    let known: Vec<&str> = known.collect();
    let symptoms = rows(MEASURE, "| Symptom |");
    assert_eq!(symptoms.len(), 8);
    for row in symptoms {
        let named: Vec<&str> = row[3].split('`').filter(|word| !word.trim().is_empty()).collect();
        assert!(!named.is_empty());
        for name in named {
            assert!(known.contains(&name), "there is no check `{name}`: {}", row[0]);
        }
    }
}
