//! Rules for single files: its head, its names, its white space.

use super::{Breach, Source};

/// Columns of a line of code, at most; rustfmt cannot break a string or a comment.
const COLUMNS_MAX: usize = 100;

/// How lines begin between which a merge left a choice.
const CONFLICT: [&str; 2] = ["<<<<<<< ", ">>>>>>> "];

/// Marks of unfinished work, written in two parts so that this file does not hold them.
const MARKERS: [&str; 3] = [concat!("TO", "DO"), concat!("FIX", "ME"), concat!("X", "XX")];

/// Names that do not describe a module or type.
const EMPTY_NAMES: [&str; 8] =
    ["util", "utils", "common", "manager", "helper", "helpers", "handler", "handlers"];

/// All breaches of a file.
pub(crate) fn check(source: &Source) -> Vec<Breach> {
    let mut breaches = Vec::new();
    let is_rust = source.has_extension("rs");
    let mut breach = |line: usize, text: String| breaches.push(source.breach(line, text));
    for (line, text) in (1..).zip(source.text.lines()) {
        let words = text.split(|c: char| !c.is_alphanumeric() && c != '_');
        let words: Vec<&str> = words.filter(|word| !word.is_empty()).collect();
        if CONFLICT.iter().any(|marker| text.starts_with(marker)) {
            breach(line, "a conflict of a merge".into());
        }
        if text.ends_with([' ', '\t']) {
            breach(line, "blank at the end of the line".into());
        }
        for marker in words.iter().filter(|word| MARKERS.contains(word)) {
            breach(line, format!("`{marker}`: finish it, or write an issue about it"));
        }
        if !is_rust {
            continue;
        }
        let columns = text.chars().count();
        if columns > COLUMNS_MAX {
            breach(line, format!("{columns} columns, at most {COLUMNS_MAX}"));
        }
        if let Some(empty) = declared(&words).and_then(empty_word) {
            breach(line, format!("a name with `{empty}`, which says nothing"));
        }
    }
    if !source.text.is_empty() && !source.text.ends_with('\n') {
        breach(source.text.lines().count(), "no newline at the end".into());
    }
    if is_rust && !source.text.starts_with("//!") {
        breach(1, "the first line is no `//!` that states the purpose of the module".into());
    }
    if let Some(empty) = source.path.file_stem().and_then(|stem| empty_word(stem.to_str()?)) {
        breach(1, format!("file name: `{empty}` says nothing about it"));
    }
    breaches
}

/// The module or type that a line with these words declares.
fn declared<'a>(words: &[&'a str]) -> Option<&'a str> {
    let words = words.strip_prefix(&["pub"]).unwrap_or(words);
    let words = words.strip_prefix(&["crate"]).unwrap_or(words);
    match words {
        ["mod" | "struct" | "enum" | "trait" | "type" | "union", name, ..] => Some(name),
        _ => None,
    }
}

/// The first part of `name` (`snake_case` or `CamelCase`) that is an empty word.
fn empty_word(name: &str) -> Option<&'static str> {
    let mut parts = String::new();
    for letter in name.chars() {
        if letter.is_uppercase() || letter == '_' {
            parts.push(' ');
        }
        parts.extend(letter.to_lowercase().filter(|c| *c != '_'));
    }
    EMPTY_NAMES.into_iter().find(|empty| parts.split(' ').any(|part| part == *empty))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tidy::source;

    fn messages(path: &str, text: &str) -> Vec<String> {
        check(&source(path, text))
    }

    #[test]
    fn each_rule_finds_its_breach() {
        assert!(messages("a.rs", "//! Moves bytes.\n\nfn source() {}\n").is_empty());
        assert_eq!(messages("a.rs", "fn f() {}\n").len(), 1);
        let white = messages("a.md", "one \nend");
        assert_eq!(
            white,
            ["a.md:1: blank at the end of the line", "a.md:2: no newline at the end"]
        );
        let names = "//! x\nmod test_utils;\npub(crate) struct SlotManager;\nfn helper() {}\n";
        assert_eq!(messages("a.rs", names).len(), 2);
        assert_eq!(messages("common.rs", "//! x\n").len(), 1);
        assert!(messages("commonly.rs", "//! x\n").is_empty());
        for marker in CONFLICT {
            assert_eq!(messages("a.md", &format!("{marker}branch\n")).len(), 1, "{marker}");
        }
        assert!(messages("a.md", "x <<<<<<< y\n=======\n").is_empty());
        let marker = MARKERS[0];
        assert_eq!(messages("a.md", &format!("{marker}: later\n")).len(), 1);
        assert!(messages("a.md", &format!("{marker}S\n")).is_empty());
        let wide = format!("//! {}\n", "µ".repeat(97));
        assert_eq!(messages("a.rs", &wide), ["a.rs:1: 101 columns, at most 100"]);
    }
}
