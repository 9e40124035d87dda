//! The public items of the crate, listed in `api.txt`; a reason follows a function without example.
//!
//! `unreachable_pub` is denied, so every item that the sources declare `pub` is public, apart from
//! the items that `internal.rs` contains or exports.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

const KINDS: [&str; 7] = ["fn", "struct", "enum", "trait", "type", "mod", "const"];

fn sources(folder: &Path) -> Vec<PathBuf> {
    let paths =
        fs::read_dir(folder).expect("a folder").map(|entry| entry.expect("an entry").path());
    let inside = |path: PathBuf| if path.is_dir() { sources(&path) } else { vec![path] };
    let mut found: Vec<_> = paths.flat_map(inside).collect();
    found.retain(|path| !path.to_string_lossy().contains("tests"));
    found
}

fn words(text: &str) -> impl Iterator<Item = &str> {
    text.split(|c: char| !c.is_alphanumeric() && c != '_').filter(|word| !word.is_empty())
}

/// The name that a line declares or, for a re-export of another crate, the names.
fn declared(line: &str) -> Vec<&str> {
    let Some(line) = line.trim_start().strip_prefix("pub ") else { return Vec::new() };
    let mut words = words(line).skip_while(|word| *word == "unsafe").peekable();
    match words.next() {
        Some("mod") if words.peek() == Some(&"internal") => Vec::new(),
        Some("const") if words.peek() == Some(&"fn") => words.nth(1).into_iter().collect(),
        Some(kind) if KINDS.contains(&kind) => words.next().into_iter().collect(),
        Some("use") if line.contains("use forebay_") => words.skip(1).collect(),
        Some("use") if line.starts_with("use cuda::") => words.skip(1).collect(),
        _ => Vec::new(),
    }
}

/// The type of an `impl` block.
fn implemented(line: &str) -> Option<&str> {
    let mut depth = 0;
    let after = line.strip_prefix("impl")?.split_inclusive(['<', '>']).skip_while(|part| {
        let is_inside = depth > 0 || part.starts_with('<');
        depth += part.matches('<').count();
        depth -= part.matches('>').count();
        is_inside
    });
    after.flat_map(words).next()
}

#[test]
fn the_public_items_are_listed_and_have_an_example_or_a_reason() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let internal = fs::read_to_string(root.join("src/internal.rs")).unwrap();
    let exported =
        internal.split("pub use crate::").skip(1).filter_map(|text| text.split_once(';'));
    let internal: BTreeSet<&str> =
        exported.flat_map(|(path, _)| words(path.rsplit("::").next().unwrap())).collect();

    let (mut items, mut examples) = (BTreeSet::new(), String::new());
    for path in sources(&root.join("src")) {
        let text = fs::read_to_string(&path).unwrap();
        let (text, _) = text.split_once("#[cfg(test)]\nmod tests {").unwrap_or((&text, ""));
        let (mut owner, mut is_example) = (None, false);
        for line in text.lines() {
            if let Some(comment) = line.trim_start().strip_prefix("//") {
                let comment = comment.trim_start_matches(['/', '!', ' ']);
                match comment.strip_prefix("```") {
                    Some(language) => is_example = !is_example && language.is_empty(),
                    None if is_example => examples += comment,
                    None => {}
                }
                examples.push(' ');
            } else if line.starts_with("impl") && line.ends_with('{') {
                owner = implemented(line);
            } else if line.starts_with('}') {
                owner = None;
            } else if !path.ends_with("internal.rs") {
                let shown = |name: &&str| !internal.contains(owner.unwrap_or(name));
                let full = |name: &str| match owner {
                    Some(owner) => format!("{owner}::{name}"),
                    None => name.to_owned(),
                };
                items.extend(declared(line).into_iter().filter(shown).map(full));
            }
        }
    }
    let examples: BTreeSet<&str> = words(&examples).collect();
    let listed = fs::read_to_string(root.join("tests/api.txt")).unwrap();
    let mut wrong = Vec::new();
    for line in listed.lines() {
        let (name, reason) = line.split_once(": ").unwrap_or((line, ""));
        let last = name.rsplit("::").next().unwrap();
        let has_example = examples.contains(last) || last.starts_with(char::is_uppercase);
        if !items.remove(name) {
            wrong.push(format!("{name} is not public"));
        } else if has_example != reason.is_empty() {
            wrong.push(format!("{name} needs an example, or a reason instead of one"));
        }
    }
    wrong.extend(items.into_iter().map(|name| format!("{name} is not in the list")));
    assert!(wrong.is_empty(), "tests/api.txt:\n{}", wrong.join("\n"));
    assert!(listed.lines().count() <= 150, "{} public items", listed.lines().count());
}
