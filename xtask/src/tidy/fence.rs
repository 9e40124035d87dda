//! `unsafe` only occurs in files that the root of their package lists.
//!
//! The list is part of the documentation of `lib.rs` (or `main.rs`): under a heading `# Unsafe
//! modules`, one item per file, its path from the folder of the root in backticks.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use super::{Breach, Source, code};

/// The heading above the list.
const HEADING: &str = "# Unsafe modules";

/// Compares the lists with the files. The engine's library must have a list, even an empty one.
pub(crate) fn check(sources: &[Source]) -> Vec<Breach> {
    let roots: Vec<(&Source, Option<Vec<Listed>>)> =
        sources.iter().filter(|s| is_root(s)).map(|s| (s, listed(s))).collect();
    let mut breaches = Vec::new();
    for (root, list) in &roots {
        if list.is_none() && root.path == Path::new("crates/forebay/src/lib.rs") {
            breaches.push(root.breach(1, format!("no heading `{HEADING}` in its documentation")));
        }
    }
    let allowed: BTreeMap<PathBuf, &Source> = roots
        .iter()
        .flat_map(|(root, list)| {
            list.iter().flatten().map(|item| (candidates(root, &item.name), *root))
        })
        .flat_map(|(paths, root)| paths.into_iter().map(move |path| (path, root)))
        .collect();
    for source in sources.iter().filter(|source| source.has_extension("rs")) {
        let Some(line) = first_unsafe(source) else { continue };
        if !allowed.contains_key(&source.path) {
            breaches.push(
                source.breach(
                    line,
                    format!("`unsafe` in a file that no root lists under `{HEADING}`"),
                ),
            );
        }
    }
    for (root, list) in &roots {
        for item in list.iter().flatten() {
            let paths = candidates(root, &item.name);
            let used = sources.iter().any(|s| paths.contains(&s.path) && first_unsafe(s).is_some());
            if !used {
                breaches.push(root.breach(
                    item.line,
                    format!("`{}` is listed under `{HEADING}` but holds no `unsafe`", item.name),
                ));
            }
        }
    }
    breaches
}

fn is_root(source: &Source) -> bool {
    source.path.file_name().is_some_and(|name| name == "lib.rs" || name == "main.rs")
}

fn first_unsafe(source: &Source) -> Option<usize> {
    code::words(&code::only(&source.text)).find(|(_, word)| *word == "unsafe").map(|(line, _)| line)
}

/// One item of a list.
#[derive(Debug)]
struct Listed {
    name: String,
    line: usize,
}

/// The items of the list in the documentation of `root`; `None` if the heading is missing.
fn listed(root: &Source) -> Option<Vec<Listed>> {
    let mut list: Option<Vec<Listed>> = None;
    for (index, line) in root.text.lines().enumerate() {
        let Some(text) = line.strip_prefix("//!").map(str::trim) else { break };
        if text.starts_with('#') {
            if list.is_some() {
                break;
            }
            list = (text == HEADING).then(Vec::new);
        } else if let Some(items) = &mut list
            && text.starts_with(['-', '*', '|'])
            && let Some(name) = text.split('`').nth(1)
        {
            items.push(Listed { name: name.into(), line: index + 1 });
        }
    }
    list
}

/// The files that an item may mean: a path from the root's folder or its package, or a module.
fn candidates(root: &Source, name: &str) -> Vec<PathBuf> {
    let folder = root.path.parent().unwrap_or(Path::new(""));
    if name.ends_with(".rs") {
        let package = folder.parent().unwrap_or(Path::new(""));
        return vec![folder.join(name), package.join(name)];
    }
    let module = folder.join(name.trim_start_matches("crate::").replace("::", "/"));
    vec![module.with_extension("rs"), module.join("mod.rs")]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tidy::source;

    const ROOT: &str = "crates/forebay/src/lib.rs";
    const LIST: &str = "//! Bytes.\n//!\n//! # Unsafe modules\n//!\n//! - `gpu/mod.rs`: addresses\n\
                        //! - [`queue::uring`]: rings\n//!\n//! # More\n//!\n//! - `x.rs`\n";

    fn messages(sources: &[Source]) -> Vec<String> {
        check(sources).iter().map(ToString::to_string).collect()
    }

    #[test]
    fn listed_files_may_be_unsafe() {
        let sources = [
            source(ROOT, LIST),
            source("crates/forebay/src/gpu/mod.rs", "//! x\nunsafe fn f() {}\n"),
            source("crates/forebay/src/queue/uring.rs", "//! x\nfn f() { unsafe {} }\n"),
        ];
        assert!(messages(&sources).is_empty());
    }

    #[test]
    fn others_may_not() {
        let sources = [
            source(ROOT, "//! x\n//!\n//! # Unsafe modules\n"),
            source("crates/forebay/src/x.rs", "//! unsafe\n// unsafe\nunsafe fn f() {}\n"),
        ];
        let found = messages(&sources);
        assert_eq!(found.len(), 1);
        assert!(found[0].starts_with("crates/forebay/src/x.rs:3: `unsafe`"), "{found:?}");
    }

    #[test]
    fn a_stale_item_and_a_missing_heading_are_reported() {
        assert!(messages(&[source(ROOT, "//! x\n")])[0].contains("no heading"));
        assert_eq!(messages(&[source(ROOT, LIST)]).len(), 2);
        assert!(messages(&[source("xtask/src/main.rs", "//! x\n")]).is_empty());
    }
}
