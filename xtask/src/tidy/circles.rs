//! Imports between files of the engine make no circles.
//!
//! An import leads to the file that declares its name, through the modules that export it again. A
//! `pub use` is no import of its own: it gives a name, and uses nothing.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use super::{Breach, Source, code};

const ENGINE: &str = "crates/forebay/src/";

/// A file of the engine: the names that it declares outside tests, and the paths that it imports
/// and exports.
#[derive(Debug)]
struct Module<'a> {
    source: &'a Source,
    declared: BTreeSet<String>,
    imports: Vec<String>,
    exports: Vec<String>,
}

type Modules<'a> = BTreeMap<Vec<String>, Module<'a>>;

/// Reports each file that imports itself through others.
pub(crate) fn check(sources: &[Source]) -> Vec<Breach> {
    let modules = modules(sources);
    let edges: BTreeMap<_, _> =
        modules.keys().map(|module| (module, imported(&modules, module))).collect();
    let circle = |module: &Vec<String>| {
        let way = way_back(&edges, module)?;
        let names: Vec<String> = way.iter().map(|module| module.join("::")).collect();
        let text = format!("imports itself through `{}`", names.join("`, `"));
        Some(modules[module].source.breach(1, text))
    };
    modules.keys().filter_map(circle).collect()
}

fn modules(sources: &[Source]) -> Modules<'_> {
    let mut modules = Modules::new();
    let mut tests: Vec<Vec<String>> = Vec::new();
    for source in sources.iter().filter(|source| source.has_extension("rs")) {
        let path = source.path.to_string_lossy();
        let Some(path) = path.strip_prefix(ENGINE).and_then(|path| path.strip_suffix(".rs")) else {
            continue;
        };
        let mut module: Vec<String> = path.split('/').map(str::to_owned).collect();
        module.pop_if(|last| matches!(last.as_str(), "mod" | "lib"));
        let code = code::only(&source.text);
        let (code, test_modules) = without_tests(&code);
        tests.extend(test_modules.into_iter().map(|name| [&module[..], &[name]].concat()));
        let [imports, exports] = uses(&code);
        let declared = declared(&code);
        modules.insert(module, Module { source, declared, imports, exports });
    }
    modules.retain(|module, _| !tests.iter().any(|test| module.starts_with(test)));
    modules
}

/// The code up to the tests at the end of a file, and the names of its test modules.
fn without_tests(code: &str) -> (String, Vec<String>) {
    let (mut kept, mut names, mut is_test) = (String::new(), Vec::new(), false);
    for line in code.lines() {
        let words: Vec<&str> = code::words(line).map(|(_, word)| word).collect();
        match words[..] {
            ["cfg", "test"] => is_test = true,
            [.., "mod", name] if is_test && line.ends_with(';') => names.push(name.to_owned()),
            [.., "mod", _] if is_test && line.ends_with('{') => return (kept, names),
            _ => {}
        }
        is_test &= line.starts_with("#[");
        kept.push_str(line);
        kept.push('\n');
    }
    (kept, names)
}

/// The paths that the code imports, then those that it exports.
fn uses(code: &str) -> [Vec<String>; 2] {
    let [mut imports, mut exports] = [Vec::new(), Vec::new()];
    let mut lines = code.lines();
    while let Some(line) = lines.next() {
        let before = line.split_once("use ").map(|(before, _)| before.trim());
        let to = match before {
            Some("") => &mut imports,
            Some(public) if public.starts_with("pub") => &mut exports,
            _ => {
                imports.extend(paths(line));
                continue;
            }
        };
        let (_, first) = line.split_once("use ").unwrap_or_default();
        let mut tree = first.to_owned();
        while !tree.ends_with(';') {
            let Some(more) = lines.next() else { break };
            tree.push_str(more.trim());
        }
        to.extend(expanded("", tree.trim_end_matches(';')));
    }
    [imports, exports]
}

/// The paths from the crate's root or a parent in a line of code.
fn paths(line: &str) -> impl Iterator<Item = String> {
    let words = line.split(|c: char| !c.is_alphanumeric() && c != '_' && c != ':');
    let is_path = |word: &&str| word.starts_with("crate::") || word.starts_with("super::");
    words.filter(is_path).map(str::to_owned)
}

/// The paths of a tree such as `a::{b, c::d}`.
fn expanded(before: &str, tree: &str) -> Vec<String> {
    let Some(open) = tree.find('{') else { return vec![format!("{before}{}", tree.trim())] };
    let before = format!("{before}{}", tree[..open].trim());
    let inner = tree[open + 1..].trim_end().trim_end_matches('}');
    let (mut depth, mut parts) = (0, vec![String::new()]);
    for c in inner.chars() {
        depth += i32::from(c == '{') - i32::from(c == '}');
        if c == ',' && depth == 0 {
            parts.push(String::new());
        } else if let Some(part) = parts.last_mut() {
            part.push(c);
        }
    }
    let parts = parts.iter().filter(|part| !part.trim().is_empty());
    parts.flat_map(|part| expanded(&before, part.trim())).collect()
}

/// The modules that a module imports from.
fn imported<'a>(modules: &'a Modules<'_>, module: &[String]) -> BTreeSet<&'a Vec<String>> {
    let imports = &modules[module].imports;
    let found = imports.iter().filter_map(|path| resolved(modules, module, path, 0));
    found.filter(|other| other.as_slice() != module).collect()
}

/// The module that declares the name at the end of `path`, seen from `module`. `depth` bounds
/// exports that lead back to themselves.
fn resolved<'a>(
    modules: &'a Modules<'_>,
    module: &[String],
    path: &str,
    depth: usize,
) -> Option<&'a Vec<String>> {
    let path = path.split(" as ").next()?;
    let mut names = path.split("::").peekable();
    let mut at = module.to_vec();
    match *names.peek()? {
        "crate" => at.clear(),
        "self" | "super" => {}
        first if modules.contains_key(&[module, &[first.to_owned()]].concat()) => {}
        _ => return None,
    }
    let mut name = None;
    for part in names {
        match part {
            "crate" | "self" => {}
            "super" => drop(at.pop()),
            part if modules.contains_key(&[&at[..], &[part.to_owned()]].concat()) => {
                at.push(part.to_owned());
            }
            part => {
                name = Some(part);
                break;
            }
        }
    }
    let (own, found) = modules.get_key_value(&at)?;
    let Some(name) = name.filter(|name| !found.declared.contains(*name)) else { return Some(own) };
    let gives = |path: &&String| {
        path.ends_with(&format!("::{name}")) || path.ends_with(&format!(" as {name}"))
    };
    let export = found.exports.iter().find(gives).filter(|_| depth < modules.len());
    export.and_then(|path| resolved(modules, &at, path, depth + 1)).or(Some(own))
}

fn declared(code: &str) -> BTreeSet<String> {
    const KINDS: [&str; 7] = ["struct", "enum", "trait", "type", "fn", "const", "static"];
    let words: Vec<&str> = code::words(code).map(|(_, word)| word).collect();
    let names = words.windows(2).filter(|two| KINDS.contains(&two[0])).map(|two| two[1]);
    names.map(str::to_owned).collect()
}

/// The shortest chain of imports from `module` back to it.
fn way_back<'a>(
    edges: &BTreeMap<&'a Vec<String>, BTreeSet<&'a Vec<String>>>,
    module: &'a Vec<String>,
) -> Option<Vec<&'a Vec<String>>> {
    let (mut seen, mut next) = (BTreeSet::new(), VecDeque::from([vec![module]]));
    while let Some(way) = next.pop_front() {
        for other in edges.get(*way.last()?)? {
            if *other == module {
                return Some(way[1..].to_vec());
            }
            if seen.insert(*other) {
                next.push_back([&way[..], &[*other]].concat());
            }
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::super::source;
    use super::*;

    fn checked(files: &[(&str, &str)]) -> Vec<String> {
        let files = files.iter().map(|(name, text)| source(&format!("{ENGINE}{name}"), text));
        check(&files.collect::<Vec<_>>()).iter().map(ToString::to_string).collect()
    }

    #[test]
    fn a_circle_through_an_exported_name_is_found() {
        let files = [
            ("lib.rs", "mod a;\nmod b;"),
            ("a/mod.rs", "mod one;\npub use one::One;"),
            ("a/one.rs", "use crate::b::{Other, Two};\npub struct One;"),
            ("b.rs", "use crate::a::One;\npub struct Two;\npub struct Other;"),
        ];
        let found = checked(&files);
        assert_eq!(found.len(), 2, "{found:?}");
        assert!(found[0].ends_with("a/one.rs:1: imports itself through `b`"), "{found:?}");
    }

    #[test]
    fn tests_and_exports_make_no_circle() {
        let files = [
            ("lib.rs", "mod a;\nmod b;"),
            ("a.rs", "pub(crate) use crate::b::Two;\npub struct One;"),
            ("b.rs", "use crate::a::One;\npub struct Two;\n#[cfg(test)]\nmod rig;\n"),
            ("b/rig.rs", "use super::Two;"),
            ("c.rs", "pub struct Three;\n#[cfg(test)]\nmod tests {\n    use crate::d::Four;\n}"),
            ("d.rs", "use crate::c::Three;\npub struct Four;"),
        ];
        assert_eq!(checked(&files), [""; 0]);
    }
}
