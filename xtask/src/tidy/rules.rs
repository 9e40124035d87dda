//! Rules that hold for one file at a time: its size, its head, its names, its white space.

use super::{Breach, Source, code};

/// Lines of a function from its name to its closing brace, at most.
const FUNCTION_LINES_MAX: usize = 70;
/// Columns of a line of code, at most; rustfmt cannot break a string or a comment.
const COLUMNS_MAX: usize = 100;

/// How lines begin between which a merge left a choice.
const CONFLICT: [&str; 2] = ["<<<<<<< ", ">>>>>>> "];

/// Marks of unfinished work, each written in two parts so that this file does not hold them.
const MARKERS: [&str; 3] = [concat!("TO", "DO"), concat!("FIX", "ME"), concat!("X", "XX")];

/// Variables with these names have a longer one.
const SHORT_NAMES: [(&str, &str); 2] = [("src", "source"), ("dst", "target")];

/// Names that do not describe a module or type.
const EMPTY_NAMES: [&str; 8] =
    ["util", "utils", "common", "manager", "helper", "helpers", "handler", "handlers"];

/// All breaches of one file.
pub(crate) fn check(source: &Source) -> Vec<Breach> {
    let mut breaches = blanks(source);
    breaches.extend(markers(source));
    if source.has_extension("rs") {
        let code = code::only(&source.text);
        breaches.extend(head(source));
        breaches.extend(columns(source));
        breaches.extend(names(source, &code));
        breaches.extend(functions(source, &code));
    }
    breaches
}

fn blanks(source: &Source) -> Vec<Breach> {
    let mut breaches = Vec::new();
    for (index, line) in source.text.lines().enumerate() {
        if line.contains('\t') {
            breaches.push(source.breach(index + 1, "tab"));
        }
        if CONFLICT.iter().any(|marker| line.starts_with(marker)) {
            breaches.push(source.breach(index + 1, "a conflict of a merge"));
        }
        if line.ends_with([' ', '\t']) {
            breaches.push(source.breach(index + 1, "blank at the end of the line"));
        }
    }
    if !source.text.is_empty() && !source.text.ends_with('\n') {
        breaches.push(source.breach(source.text.lines().count(), "no newline at the end"));
    }
    breaches
}

fn markers(source: &Source) -> Vec<Breach> {
    code::words(&source.text)
        .filter(|(_, word)| MARKERS.contains(word))
        .map(|(line, word)| {
            source.breach(line, format!("`{word}`: finish it, or write an issue about it"))
        })
        .collect()
}

fn head(source: &Source) -> Option<Breach> {
    let first = source.text.lines().next().unwrap_or_default();
    (!first.starts_with("//!"))
        .then(|| source.breach(1, "the first line is no `//!` that says what the module is for"))
}

fn columns(source: &Source) -> Vec<Breach> {
    source
        .text
        .lines()
        .enumerate()
        .map(|(index, line)| (index + 1, line.chars().count()))
        .filter(|&(_, columns)| columns > COLUMNS_MAX)
        .map(|(line, columns)| {
            source.breach(line, format!("{columns} columns, at most {COLUMNS_MAX}"))
        })
        .collect()
}

fn names(source: &Source, code: &str) -> Vec<Breach> {
    let mut breaches = Vec::new();
    let stem = source.path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
    if let Some(word) = empty_word(&stem) {
        breaches.push(source.breach(1, format!("file name: `{word}` says nothing about it")));
    }
    let mut before = "";
    for (line, word) in code::words(code) {
        if let Some((short, long)) = SHORT_NAMES.iter().find(|(short, _)| *short == word) {
            breaches.push(source.breach(line, format!("`{short}`: write `{long}`")));
        }
        if matches!(before, "mod" | "struct" | "enum" | "trait" | "type" | "union")
            && let Some(empty) = empty_word(word)
        {
            breaches.push(source.breach(line, format!("`{word}`: `{empty}` says nothing")));
        }
        before = word;
    }
    breaches
}

/// The first part of `name` (`snake_case` or `CamelCase`) that is one of the empty words.
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

/// Functions that are too long. `code` is blanked, so braces in it are braces of the language.
fn functions(source: &Source, code: &str) -> Vec<Breach> {
    let lines: Vec<&str> = code.lines().collect();
    let mut breaches = Vec::new();
    for (index, line) in lines.iter().enumerate() {
        let Some(name) = function_name(line) else { continue };
        let count = function_lines(&lines[index..], line.find("fn ").unwrap_or(0));
        if count > FUNCTION_LINES_MAX {
            breaches.push(source.breach(
                index + 1,
                format!("`{name}` has {count} lines, at most {FUNCTION_LINES_MAX}"),
            ));
        }
    }
    breaches
}

/// The name of the function that a line declares.
fn function_name(line: &str) -> Option<&str> {
    let rest = line.split_once("fn ")?.1;
    let name = rest.split(|c: char| !c.is_alphanumeric() && c != '_').next()?;
    (!name.is_empty()).then_some(name)
}

/// Lines from the declaration, at byte `start` of the first line, to the closing brace of the body;
/// zero if there is no body.
fn function_lines(lines: &[&str], start: usize) -> usize {
    let (mut depth, mut brackets) = (0_usize, 0_usize);
    for (index, line) in lines.iter().enumerate() {
        let text = if index == 0 { &line[start..] } else { line };
        for letter in text.chars() {
            match letter {
                '(' | '[' => brackets += 1,
                ')' | ']' => brackets = brackets.saturating_sub(1),
                '{' => depth += 1,
                '}' if depth <= 1 => return index + 1,
                '}' => depth -= 1,
                ';' if depth == 0 && brackets == 0 => return 0,
                _ => {}
            }
        }
    }
    0
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tidy::source;

    fn messages(path: &str, text: &str) -> Vec<String> {
        check(&source(path, text)).iter().map(ToString::to_string).collect()
    }

    #[test]
    fn a_clean_file_has_no_breach() {
        assert!(messages("a.rs", "//! Moves bytes.\n\nfn source() {}\n").is_empty());
        assert!(messages("a.md", "# Title\n\nsrc and dst are words here.\n").is_empty());
    }

    #[test]
    fn heads_and_white_space() {
        assert_eq!(messages("a.rs", "fn f() {}\n").len(), 1);
        assert_eq!(
            messages("a.md", "one \ntwo\tthree\nend"),
            [
                "a.md:1: blank at the end of the line",
                "a.md:2: tab",
                "a.md:3: no newline at the end",
            ]
        );
    }

    #[test]
    fn short_names_count_in_code_only() {
        let found =
            messages("a.rs", "//! src\nfn f(dst: &str) { g(\"src/a\"); let src_len = 1; }\n");
        assert_eq!(found, ["a.rs:2: `dst`: write `target`"]);
    }

    #[test]
    fn empty_names_are_found_in_modules_types_and_files() {
        let text = "//! x\nmod test_utils;\nstruct SlotManager;\nfn helper() {}\n";
        assert_eq!(messages("a.rs", text).len(), 2);
        assert_eq!(messages("common.rs", "//! x\n").len(), 1);
        assert!(messages("commonly.rs", "//! x\n").is_empty());
    }

    #[test]
    fn conflicts_of_merges_are_found_in_any_file() {
        for marker in CONFLICT {
            assert_eq!(messages("a.md", &format!("{marker}branch\n")).len(), 1, "{marker}");
        }
        assert!(messages("a.md", "x <<<<<<< y\n=======\n").is_empty());
    }

    #[test]
    fn markers_are_whole_words() {
        let marker = MARKERS[0];
        assert_eq!(messages("a.md", &format!("{marker}: later\n")).len(), 1);
        assert!(messages("a.md", &format!("{marker}S\n")).is_empty());
    }

    #[test]
    fn long_lines_and_functions() {
        let wide = format!("//! {}\n", "µ".repeat(97));
        assert_eq!(messages("a.rs", &wide), ["a.rs:1: 101 columns, at most 100"]);
        let body = |lines| format!("//! x\nfn f() {{\n{}}}\n", "    g();\n".repeat(lines));
        assert!(messages("a.rs", &body(68)).is_empty());
        assert_eq!(messages("a.rs", &body(69)), ["a.rs:2: `f` has 71 lines, at most 70"]);
    }

    #[test]
    fn declarations_without_a_body_have_no_length() {
        let gap = "    fn g(a: [u8; 3]);\n".repeat(100);
        assert!(messages("a.rs", &format!("//! x\ntrait T {{\n{gap}}}\n")).is_empty());
    }
}
