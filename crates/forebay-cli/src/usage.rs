//! Errors of a command line, in the form of all errors of the command.

use std::error::Error as _;

use clap::error::{ContextKind, ContextValue, ErrorKind};

use crate::args::definition;
use crate::failure::Failure;

/// The failure for `error`. `verb` is the first word after the program's name.
pub(crate) fn failure(error: &clap::Error, verb: Option<&str>) -> Failure {
    let known = |verb: &&str| definition().find_subcommand(verb).is_some();
    let help = match verb.filter(known) {
        Some(verb) => format!("`forebay {verb} --help` lists its arguments"),
        None => "`forebay --help` lists the verbs".into(),
    };
    let suggested = [ContextKind::SuggestedArg, ContextKind::SuggestedSubcommand];
    let close = suggested.into_iter().find_map(|kind| first(error, kind));
    let close = close.or_else(|| in_other_case(verb?, &first(error, ContextKind::InvalidArg)?));
    let hint = match first(error, ContextKind::InvalidSubcommand).as_deref() {
        // Other programs have these as verbs.
        Some("help") => "`forebay --help` lists verbs, `forebay VERB --help` their flags".into(),
        Some("version") => "`forebay --version` prints it".into(),
        _ => close.map_or(help, |close| format!("perhaps `{close}` was meant")),
    };
    Failure::usage(message(error)).hint(hint)
}

/// The one-letter flag of `verb` that is `flag` in the other case, if `flag` itself is unknown.
fn in_other_case(verb: &str, flag: &str) -> Option<String> {
    let mut letters = flag.strip_prefix('-')?.chars();
    let (letter, None) = (letters.next()?, letters.next()) else { return None };
    let is_letter = |c: char| {
        let command = definition();
        let known =
            command.find_subcommand(verb)?.get_arguments().any(|a| a.get_short() == Some(c));
        Some(known)
    };
    let other = match letter {
        'a'..='z' => letter.to_ascii_uppercase(),
        _ => letter.to_ascii_lowercase(),
    };
    let is_missing = is_letter(letter) == Some(false) && is_letter(other) == Some(true);
    is_missing.then(|| format!("-{other}"))
}

fn message(error: &clap::Error) -> String {
    let named = first(error, ContextKind::InvalidArg).map(|name| word(&name));
    let name = named.unwrap_or_default();
    let value = first(error, ContextKind::InvalidValue).unwrap_or_default();
    match error.kind() {
        ErrorKind::InvalidValue if value.is_empty() => format!("`{name}` needs a value"),
        ErrorKind::InvalidValue => {
            let choices = all(error, ContextKind::ValidValue);
            let choices = choices.iter().map(|choice| format!("`{choice}`")).collect::<Vec<_>>();
            format!("`{name}` cannot be `{value}`: it takes one of {}", choices.join(", "))
        }
        ErrorKind::ValueValidation => {
            let reason = error.source().map(ToString::to_string).unwrap_or_default();
            format!("`{name}` cannot be `{value}`: {reason}")
        }
        ErrorKind::UnknownArgument if name.starts_with('-') => format!("there is no flag `{name}`"),
        ErrorKind::UnknownArgument => format!("unexpected argument `{name}`"),
        ErrorKind::InvalidSubcommand => {
            let verb = first(error, ContextKind::InvalidSubcommand).unwrap_or_default();
            format!("there is no verb `{verb}`")
        }
        ErrorKind::MissingRequiredArgument => format!("`{name}` is missing"),
        ErrorKind::TooManyValues => format!("`{name}` takes no value, but has `{value}`"),
        ErrorKind::ArgumentConflict => {
            let prior = first(error, ContextKind::PriorArg).map(|name| word(&name));
            match prior.filter(|prior| *prior != name) {
                Some(prior) => format!("`{name}` cannot be combined with `{prior}`"),
                None => format!("`{name}` cannot be given twice"),
            }
        }
        // Rarer errors keep the parser's words in our format.
        _ => {
            let text = error.to_string();
            let line = text.lines().next().unwrap_or_default();
            let line = line.strip_prefix("error: ").unwrap_or(line);
            line.trim_end_matches('.').replace('\'', "`")
        }
    }
}

/// The name without the value that the definition shows after it: `--size` of `--size <SIZE,…>`.
fn word(name: &str) -> String {
    name.split([' ', '=']).next().unwrap_or_default().to_owned()
}

fn first(error: &clap::Error, kind: ContextKind) -> Option<String> {
    all(error, kind).into_iter().next()
}

fn all(error: &clap::Error, kind: ContextKind) -> Vec<String> {
    match error.get(kind) {
        Some(ContextValue::String(text)) => vec![text.clone()],
        Some(ContextValue::Strings(texts)) => texts.clone(),
        _ => Vec::new(),
    }
}
