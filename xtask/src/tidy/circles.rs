//! Imports between files of a package make no circles.
//!
//! An import leads to the file that declares its name, through the modules that export it again. A
//! `pub use` is no import of its own: it gives a name, and uses nothing. Tests are excluded.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::slice::from_ref;

use proc_macro2::{Spacing, TokenStream, TokenTree};
use quote::ToTokens as _;
use syn::{Item, UseTree, Visibility};

use super::{Breach, Source};

const PACKAGES: [&str; 7] = [
    "crates/forebay/src/",
    "crates/forebay-topology/src/",
    "crates/forebay-evidence/src/",
    "crates/forebay-doctor/src/",
    "crates/forebay-layers/src/",
    "crates/forebay-measure/src/",
    "crates/forebay-cli/src/",
];

/// Words that begin an item; the first seven stand before a declared name.
const STARTS: [&str; 13] = [
    "struct",
    "enum",
    "trait",
    "type",
    "fn",
    "const",
    "static",
    "pub",
    "mod",
    "use",
    "impl",
    "unsafe",
    "macro_rules",
];

/// A file: the names that it declares, and the paths that it imports and exports.
#[derive(Debug)]
struct Module<'a> {
    source: &'a Source,
    names: Names,
}

#[derive(Debug, Default)]
struct Names {
    declared: BTreeSet<String>,
    imports: Vec<String>,
    exports: Vec<String>,
    test_modules: Vec<String>,
}

type Modules<'a> = BTreeMap<Vec<String>, Module<'a>>;

/// Reports every file that imports itself through further files.
pub(crate) fn check(sources: &[Source]) -> Vec<Breach> {
    PACKAGES.iter().flat_map(|package| check_package(sources, package)).collect()
}

fn check_package(sources: &[Source], package: &str) -> Vec<Breach> {
    let modules = modules(sources, package);
    let edges: BTreeMap<_, _> =
        modules.keys().map(|module| (module, imported(&modules, module))).collect();
    let circle = |module: &Vec<String>| {
        let circle = path_back(&edges, module)?;
        let names: Vec<String> = circle.iter().map(|module| module.join("::")).collect();
        let text = format!("imports itself through `{}`", names.join("`, `"));
        Some(modules[module].source.breach(1, text))
    };
    modules.keys().filter_map(circle).collect()
}

fn modules<'a>(sources: &'a [Source], package: &str) -> Modules<'a> {
    let mut modules = Modules::new();
    for source in sources {
        let path = source.path.to_string_lossy();
        let path = path.strip_prefix(package).and_then(|path| path.strip_suffix(".rs"));
        // The compiler reports files that cannot be parsed.
        let (Some(path), Ok(file)) = (path, syn::parse_file(&source.text)) else { continue };
        let mut module: Vec<String> = path.split('/').map(str::to_owned).collect();
        module.pop_if(|last| matches!(last.as_str(), "mod" | "lib"));
        modules.insert(module, Module { source, names: Names::of(&file) });
    }
    let tests: Vec<Vec<String>> = modules
        .iter()
        .flat_map(|(module, of)| {
            of.names.test_modules.iter().map(|name| [&module[..], from_ref(name)].concat())
        })
        .collect();
    modules.retain(|module, _| !tests.iter().any(|test| module.starts_with(test)));
    modules
}

impl Names {
    fn of(file: &syn::File) -> Self {
        let mut names = Self::default();
        for item in &file.items {
            let code = code(item.to_token_stream());
            let words: Vec<&str> = code.split_whitespace().collect();
            let attributes = words.iter().take_while(|word| !STARTS.contains(word));
            let is_test =
                attributes.collect::<Vec<_>>().windows(2).any(|two| *two == [&"cfg", &"test"]);
            match item {
                Item::Mod(item) if is_test => names.test_modules.push(item.ident.to_string()),
                _ if is_test => {}
                Item::Use(item) => {
                    let is_private = matches!(item.vis, Visibility::Inherited);
                    let to = if is_private { &mut names.imports } else { &mut names.exports };
                    flatten("", &item.tree, to);
                }
                _ => {
                    let is_path =
                        |word: &&&str| word.starts_with("crate::") || word.starts_with("super::");
                    names.imports.extend(words.iter().filter(is_path).map(ToString::to_string));
                    let declared = words.windows(2).filter(|two| STARTS[..7].contains(&two[0]));
                    names.declared.extend(declared.map(|two| two[1].to_owned()));
                }
            }
        }
        names
    }
}

/// The words and paths of some code, without its literals and comments.
fn code(tokens: TokenStream) -> String {
    let mut text = String::new();
    for token in tokens {
        match token {
            TokenTree::Group(group) => text += &format!(" {} ", code(group.stream())),
            TokenTree::Ident(name) if text.ends_with("::") => text += &name.to_string(),
            TokenTree::Ident(name) => text += &format!(" {name}"),
            TokenTree::Punct(colon) if colon.as_char() == ':' => {
                let is_first = colon.spacing() == Spacing::Joint;
                text.push(if is_first || text.ends_with(':') { ':' } else { ' ' });
            }
            TokenTree::Punct(_) | TokenTree::Literal(_) => text.push(' '),
        }
    }
    text
}

/// The paths of a tree such as `a::{b, c as d}`; a renamed path ends with ` as d`.
fn flatten(before: &str, tree: &UseTree, to: &mut Vec<String>) {
    match tree {
        UseTree::Path(path) => flatten(&format!("{before}{}::", path.ident), &path.tree, to),
        UseTree::Name(name) => to.push(format!("{before}{}", name.ident)),
        UseTree::Rename(name) => to.push(format!("{before}{} as {}", name.ident, name.rename)),
        UseTree::Glob(_) => to.push(format!("{before}*")),
        UseTree::Group(group) => group.items.iter().for_each(|tree| flatten(before, tree, to)),
    }
}

/// The modules that a module imports from.
fn imported<'a>(modules: &'a Modules<'_>, module: &[String]) -> BTreeSet<&'a Vec<String>> {
    let imports = &modules[module].names.imports;
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
    let is_declared = |name: &&str| found.names.declared.contains(*name);
    let Some(name) = name.filter(|name| !is_declared(name)) else { return Some(own) };
    let gives = |path: &&String| {
        path.ends_with(&format!("::{name}")) || path.ends_with(&format!(" as {name}"))
    };
    let export = found.names.exports.iter().find(gives).filter(|_| depth < modules.len());
    // An export of a different package leads to no file of this one.
    export.map_or(Some(own), |path| resolved(modules, &at, path, depth + 1))
}

/// The shortest chain of imports from `module` back to it.
fn path_back<'a>(
    edges: &BTreeMap<&'a Vec<String>, BTreeSet<&'a Vec<String>>>,
    module: &'a Vec<String>,
) -> Option<Vec<&'a Vec<String>>> {
    let (mut seen, mut next) = (BTreeSet::new(), VecDeque::from([vec![module]]));
    while let Some(path) = next.pop_front() {
        for other in edges.get(*path.last()?)? {
            if *other == module {
                return Some(path[1..].to_vec());
            }
            if seen.insert(*other) {
                next.push_back([&path[..], &[*other]].concat());
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
        let files =
            files.iter().map(|(name, text)| source(&format!("{}{name}", PACKAGES[0]), text));
        check(&files.collect::<Vec<_>>())
    }

    #[test]
    fn a_circle_through_an_exported_name_is_found() {
        let files = [
            ("lib.rs", "mod a;\nmod b;"),
            ("a/mod.rs", "mod one;\npub use one::One;"),
            ("a/one.rs", "use crate::b::{Other, Two};\npub struct One;"),
            ("b.rs", "fn f(one: crate::a::One) {}\npub struct Two;\npub struct Other;"),
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
