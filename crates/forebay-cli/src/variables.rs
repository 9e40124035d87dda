//! The `FOREBAY_` variables known to the command: those of the engine's limits, and those that only
//! tests and builds read.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use forebay::Options;

use crate::stdio::say;

/// A variable of the command itself.
pub(crate) struct OfCommand {
    pub(crate) name: &'static str,
    about: &'static str,
    default: &'static str,
    pub(crate) takes: &'static str,
}

/// Which events of the engine are shown.
pub(crate) const LOG: OfCommand = OfCommand {
    name: "FOREBAY_LOG",
    about: "log level of engine events, on stderr",
    default: "off",
    takes: "`off`, `warn`, `info` or `debug`",
};

/// All variables of the command.
const OF_COMMAND: [OfCommand; 1] = [LOG];

/// Variables of the tests and the build, which are valid here.
const OF_TESTS: [&str; 10] = [
    "FOREBAY_BIN",
    "FOREBAY_COMMIT",
    "FOREBAY_CUFILE_WHEELS",
    "FOREBAY_REQUIRE_GPU",
    "FOREBAY_REQUIRE_GPUS",
    "FOREBAY_SEED",
    "FOREBAY_SEEDS",
    "FOREBAY_SOAK",
    "FOREBAY_STRESS",
    "FOREBAY_TRANSFERS",
];

/// The engine's variables and the command's, for the long help.
pub(crate) fn help() -> String {
    let mut text = "Variables that set limits of the engine, all optional:".to_owned();
    for variable in Options::VARIABLES {
        // Writing to a string cannot fail.
        let _ = write!(text, "\n  {} [default: {}]", variable.name, variable.default);
        let _ = write!(text, "\n          {}", variable.about);
    }
    text.push_str("\n\nVariables of the command:");
    for OfCommand { name, about, default, takes } in OF_COMMAND {
        let _ = write!(text, "\n  {name} [default: {default}]\n          {about}: {takes}");
    }
    text
}

/// The engine's variables that are set: their limits belong to every measurement.
pub(crate) fn set() -> BTreeMap<String, String> {
    let value =
        |name: &str| std::env::var_os(name).map(|value| value.to_string_lossy().into_owned());
    let set = Options::VARIABLES.iter().filter_map(|v| Some((v.name.to_owned(), value(v.name)?)));
    set.collect()
}

/// Warns of unknown variables with the prefix `FOREBAY_`: the intended limit would not apply.
pub(crate) fn warn_of_unknown() {
    let names = std::env::vars_os().map(|(name, _)| name.to_string_lossy().into_owned());
    let mut names: Vec<String> = names.filter(|name| is_unknown(name)).collect();
    names.sort();
    for name in names {
        say(&format!("unknown variable `{name}`: `forebay --help` lists the known ones"));
    }
}

fn is_unknown(name: &str) -> bool {
    let known = || Options::VARIABLES.iter().any(|variable| variable.name == name);
    let ours = || OF_COMMAND.iter().any(|variable| variable.name == name);
    name.starts_with("FOREBAY_") && !OF_TESTS.contains(&name) && !ours() && !known()
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAGE: &str = include_str!("../../../docs/variables.md");

    #[test]
    fn the_page_lists_every_variable_as_it_is() {
        let mut rows = String::new();
        for variable in Options::VARIABLES {
            let (name, about) = (variable.name, variable.about);
            let (default, takes) = (variable.default, variable.takes);
            rows.push_str(&format!("| `{name}` | {about} | {default} | {takes} |\n"));
        }
        assert!(PAGE.contains(&rows), "docs/variables.md should hold these rows:\n{rows}");
        let listed = PAGE.lines().filter(|line| line.starts_with("| `FOREBAY_")).count();
        assert_eq!(listed, Options::VARIABLES.len() + OF_COMMAND.len() + OF_TESTS.len());
        for OfCommand { name, about, default, takes } in OF_COMMAND {
            let row = format!("| `{name}` | {about} | {default} | {takes} |\n");
            assert!(PAGE.contains(&row), "docs/variables.md should hold this row:\n{row}");
        }
        assert!(OF_TESTS.iter().all(|name| PAGE.contains(&format!("| `{name}` |"))));
    }

    #[test]
    fn only_what_looks_like_ours_is_unknown() {
        assert!(is_unknown("FOREBAY_DEPHT"));
        for name in ["FOREBAY_DEPTH", "FOREBAY_BIN", "FOREBAY_LOG", "PATH", "MY_FOREBAY_DEPTH"] {
            assert!(!is_unknown(name), "{name}");
        }
    }
}
