//! Names of runs imported without a label: the end of their files' paths, as short as is unique.
//! Pure.

use super::RunFacts;
use crate::import::short;

/// Most parts of a path that are shown.
const PARTS_MAX: usize = 16;

/// Names them; files with the same path and different contents are numbered later.
pub(super) fn name_imported(runs: &mut [RunFacts]) {
    let path = |run: &RunFacts| {
        let from = run.imported.as_ref().filter(|_| !run.labelled)?;
        Some(from.file.clone())
    };
    let paths: Vec<Option<String>> = runs.iter().map(path).collect();
    let end = |path: &str, parts: usize| {
        let all: Vec<&str> = path.split('/').filter(|part| !["", "."].contains(part)).collect();
        all[all.len().saturating_sub(parts)..].join("/")
    };
    let mut parts = 1;
    let ends = |parts: usize| -> Vec<Option<String>> {
        paths.iter().map(|path| path.as_ref().map(|path| end(path, parts))).collect()
    };
    let several = |ends: &[Option<String>]| {
        let mut known: std::collections::HashMap<&String, String> =
            std::collections::HashMap::new();
        ends.iter().zip(&paths).any(|(end, path)| {
            let Some((end, path)) = end.as_ref().zip(path.as_ref()) else { return false };
            let whole = self::whole(path);
            known.insert(end, whole.clone()).is_some_and(|other| other != whole)
        })
    };
    let mut names = ends(parts);
    while parts < PARTS_MAX && several(&names) {
        parts += 1;
        names = ends(parts);
    }
    for (run, name) in runs.iter_mut().zip(names) {
        if let Some(name) = name.filter(|name| !name.is_empty()) {
            run.given = short(&name);
            run.name.clone_from(&run.given);
        }
    }
}

/// A path without its redundant parts.
fn whole(path: &str) -> String {
    path.split('/').filter(|part| *part != ".").collect::<Vec<_>>().join("/")
}
