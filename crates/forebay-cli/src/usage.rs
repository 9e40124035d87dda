//! Errors of a command line: the parser's words, in the form of all errors of the command.

use clap::error::{ContextKind, ContextValue};
use forebay_measure::failure::{Failure, lower};

use crate::args::definition;
use crate::near::near;

/// The failure for `error`. It omits the parser's usage line, which `--help` has.
pub(crate) fn failure(error: &clap::Error) -> Failure {
    let text = error.to_string().replace('\'', "`");
    let mut parts = text.trim_end().split("\n\n");
    let message = parts.next().unwrap_or_default().trim_start_matches("error: ");
    let message = message.lines().map(str::trim).collect::<Vec<_>>().join(" ");
    let help = parts.last().map(|line| lower(line.trim_end_matches('.')));
    let kinds = [ContextKind::SuggestedArg, ContextKind::SuggestedSubcommand];
    let given = match error.get(ContextKind::InvalidArg) {
        Some(ContextValue::String(given)) => given.as_str(),
        _ => "",
    };
    let near = kinds.into_iter().find_map(|kind| match error.get(kind)? {
        // The parser's idea of similar is wide: `--trace` for `--force`.
        ContextValue::String(name) => near(given, [name.as_str()]).map(str::to_owned),
        ContextValue::Strings(names) => names.iter().find(|name| !is_hidden(name)).cloned(),
        _ => None,
    });
    let hint = near.map(|name| format!("perhaps `{name}` was meant")).or(help);
    Failure { hint, ..Failure::usage(message) }
}

fn is_hidden(verb: &str) -> bool {
    definition().find_subcommand(verb).is_some_and(clap::Command::is_hide_set)
}
