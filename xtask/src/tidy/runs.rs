//! Archived runs: documents cite existing runs, every run is cited, and all are small.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use super::{Breach, Source};

/// Where runs are archived.
const FOLDER: &str = "benches/runs";
/// Most runs, and most bytes of all of them.
const RUNS_MAX: usize = 15;
const BYTES_MAX: u64 = 1_000_000;

/// Checks the runs below `root` against the names of runs in `sources`.
pub(crate) fn check(root: &Path, sources: &[Source]) -> Vec<Breach> {
    let folder = root.join(FOLDER);
    let entries = fs::read_dir(&folder).into_iter().flatten().flatten();
    let runs = entries.filter(|entry| entry.path().is_dir());
    let runs: BTreeSet<String> =
        runs.map(|run| run.file_name().to_string_lossy().into_owned()).collect();
    let (mut breaches, mut cited) = (Vec::new(), BTreeSet::new());
    for source in sources {
        for (line, name) in names(&source.text) {
            if !runs.contains(name) {
                breaches.push(source.breach(line, format!("there is no run `{name}`")));
            }
            cited.insert(name.to_owned());
        }
    }
    let idle = runs.difference(&cited);
    breaches.extend(idle.map(|run| format!("{FOLDER}/{run}: nothing cites this run")));
    if runs.len() > RUNS_MAX {
        breaches.push(format!("{FOLDER}: {} runs, at most {RUNS_MAX}", runs.len()));
    }
    let bytes = bytes_of(&folder);
    if bytes > BYTES_MAX {
        breaches.push(format!("{FOLDER}: {bytes} bytes, at most {BYTES_MAX}"));
    }
    breaches
}

/// The names of runs in a text, `DATE-MACHINE`, with their lines.
fn names(text: &str) -> Vec<(usize, &str)> {
    let is_part = |letter: char| letter.is_ascii_alphanumeric() || letter == '-';
    let is_date = |word: &str| {
        let date = word.as_bytes().get(..11);
        date.is_some_and(|date| {
            date.iter().enumerate().all(|(at, byte)| match at {
                4 | 7 | 10 => *byte == b'-',
                _ => byte.is_ascii_digit(),
            })
        })
    };
    let mut found = Vec::new();
    for (index, line) in text.lines().enumerate() {
        let words = line.split(|letter| !is_part(letter));
        found.extend(words.filter(|word| is_date(word)).map(|word| (index + 1, word)));
    }
    found
}

/// The bytes of all files below a folder.
fn bytes_of(folder: &Path) -> u64 {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let size = |entry: fs::DirEntry| match entry.metadata() {
        Ok(facts) if facts.is_dir() => bytes_of(&entry.path()),
        Ok(facts) => facts.len(),
        Err(_) => 0,
    };
    entries.map(size).sum()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tidy::source;

    /// A name of a run, which this file must not hold as such.
    fn run(machine: &str) -> String {
        ["2026-01-02", machine].join("-")
    }

    #[test]
    fn runs_are_cited_and_there_and_small() {
        let root = tempfile::tempdir().unwrap();
        for machine in ["cited", "idle"] {
            fs::create_dir_all(root.path().join(FOLDER).join(run(machine))).unwrap();
        }
        let text = format!("2026-01-02 is a date\n`{}`, ({}/x.txt)\n", run("cited"), run("gone"));
        let sources = [source("docs/a.md", &text)];
        let found = check(root.path(), &sources);
        assert_eq!(found.len(), 2, "{found:?}");
        assert!(found[0].starts_with("docs/a.md:2: there is no run"), "{found:?}");
        assert!(found[1].contains("-idle: nothing cites"), "{found:?}");
        let large = root.path().join(FOLDER).join(run("cited")).join("samples.csv");
        fs::write(large, vec![0; 1_000_001]).unwrap();
        assert!(check(root.path(), &sources)[2].contains("1000001 bytes, at most 1000000"));
    }
}
