//! `unsafe` occurs only in a few folders, and in tests.

use std::path::Path;

use super::{Breach, Source, code};

/// The folders and files that may have `unsafe` code outside tests.
const ALLOWED: [&str; 18] = [
    "crates/forebay-base/src",
    "crates/forebay-cli/src/bench",
    "crates/forebay-cli/src/compare/compute.rs",
    "crates/forebay-cli/src/main.rs",
    "crates/forebay-cli/src/workload/issuer",
    "crates/forebay-evidence/src/nvml",
    "crates/forebay-layers/src",
    "crates/forebay-python/src",
    "crates/forebay-topology/src/calls.rs",
    "crates/forebay/src/direct/cufile",
    "crates/forebay/src/engine/ordered",
    "crates/forebay/src/engine/raw",
    "crates/forebay/src/file",
    "crates/forebay/src/gpu",
    "crates/forebay/src/memory",
    "crates/forebay/src/queue",
    "crates/forebay/src/staging",
    "xtask/src/bars",
];

/// Reports `unsafe` elsewhere, and entries of the list without any.
pub(crate) fn check(sources: &[Source]) -> Vec<Breach> {
    let mut used = [false; ALLOWED.len()];
    let mut breaches = Vec::new();
    for source in sources.iter().filter(|source| source.has_extension("rs")) {
        let Some(line) = first_unsafe(source) else { continue };
        if source.path.components().any(|part| part.as_os_str() == "tests") {
            continue;
        }
        match ALLOWED.iter().position(|allowed| source.path.starts_with(allowed)) {
            Some(index) => used[index] = true,
            None => breaches.push(
                source.breach(line, "`unsafe` outside the folders of `xtask/src/tidy/fence.rs`"),
            ),
        }
    }
    for (allowed, _) in ALLOWED.iter().zip(used).filter(|(_, used)| !used) {
        let in_it = |source: &&Source| source.path.starts_with(Path::new(allowed));
        if let Some(source) = sources.iter().find(in_it) {
            breaches.push(
                source.breach(1, format!("`{allowed}` has no `unsafe`: take it off the list")),
            );
        }
    }
    breaches
}

fn first_unsafe(source: &Source) -> Option<usize> {
    code::words(&code::only(&source.text)).find(|(_, word)| *word == "unsafe").map(|(line, _)| line)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tidy::source;

    fn messages(sources: &[Source]) -> Vec<String> {
        check(sources).iter().map(ToString::to_string).collect()
    }

    #[test]
    fn folders_of_the_list_and_tests_may_be_unsafe() {
        let sources = [
            source("crates/forebay/src/gpu/mod.rs", "//! x\nunsafe fn f() {}\n"),
            source("crates/forebay/src/queue/uring.rs", "//! x\nfn f() { unsafe {} }\n"),
            source("crates/forebay/tests/cuda.rs", "//! x\nfn f() { unsafe {} }\n"),
        ];
        assert!(messages(&sources).is_empty());
    }

    #[test]
    fn other_files_may_not() {
        let text = "//! unsafe\n// unsafe\nunsafe fn f() {}\n";
        let found = messages(&[source("crates/forebay/src/x.rs", text)]);
        assert_eq!(found.len(), 1);
        assert!(found[0].starts_with("crates/forebay/src/x.rs:3: `unsafe`"), "{found:?}");
    }

    #[test]
    fn an_entry_without_unsafe_is_reported() {
        let found = messages(&[source("xtask/src/bars/main.rs", "//! x\n")]);
        assert!(found[0].contains("take it off the list"), "{found:?}");
    }
}
