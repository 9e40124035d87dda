//! The `FOREBAY_` variables known to the command: those of the engine's limits, and those that only
//! tests and builds read.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use forebay::Options;

use crate::stdio::say;

/// The command's own variable: which events of the engine are shown.
pub const LOG: &str = "FOREBAY_LOG";
/// Its values.
pub const LOG_TAKES: &str = "`off`, `warn`, `info` or `debug`";
const LOG_ABOUT: &str = "log level of engine events, on stderr";
/// The command's own variable that keeps the ranks of two runs apart.
pub const TOKEN: &str = "FOREBAY_TOKEN";
const TOKEN_ABOUT: &str = "any text that all ranks of one run have, and other runs do not";

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
pub fn help() -> String {
    let mut text = "Variables that set limits of the engine, all optional:".to_owned();
    for variable in Options::VARIABLES {
        // Writing to a string cannot fail.
        let _ = write!(text, "\n  {} [default: {}]", variable.name, variable.default);
        let _ = write!(text, "\n          {}", variable.about);
    }
    text + &format!(
        "\n\nVariables of the command:\n  {LOG} [default: off]\n          {LOG_ABOUT}: {LOG_TAKES}\
         \n  {TOKEN} [default: the launcher's, or a random one]\n          {TOKEN_ABOUT}"
    )
}

/// The engine's variables that are set: their limits belong to every measurement.
pub fn set() -> BTreeMap<String, String> {
    let value =
        |name: &str| std::env::var_os(name).map(|value| value.to_string_lossy().into_owned());
    let set = Options::VARIABLES.iter().filter_map(|v| Some((v.name.to_owned(), value(v.name)?)));
    set.collect()
}

/// Warns of unknown variables with the prefix `FOREBAY_`: the intended limit would not apply.
pub fn warn_of_unknown() {
    let names = std::env::vars_os().map(|(name, _)| name.to_string_lossy().into_owned());
    let mut names: Vec<String> = names.filter(|name| is_unknown(name)).collect();
    names.sort();
    for name in names {
        say(&format!("unknown variable `{name}`: `forebay --help` lists the known ones"));
    }
}

fn is_unknown(name: &str) -> bool {
    let known = || Options::VARIABLES.iter().any(|variable| variable.name == name);
    name.starts_with("FOREBAY_")
        && ![LOG, TOKEN].contains(&name)
        && !OF_TESTS.contains(&name)
        && !known()
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
        assert_eq!(listed, Options::VARIABLES.len() + 2 + OF_TESTS.len());
        assert!(PAGE.contains(&format!("| `{TOKEN}` |")));
        let row = format!("| `{LOG}` | {LOG_ABOUT} | off | {LOG_TAKES} |\n");
        assert!(PAGE.contains(&row), "docs/variables.md should hold this row:\n{row}");
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
