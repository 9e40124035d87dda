//! The verbs that print the command line's definition: completions, man page.

use clap_complete::Shell;
use forebay_measure::failure::{Failure, Result};
use forebay_measure::stdio::print;

use crate::args;

/// The heading above the text that follows the flags.
const EXTRA: &str = ".SH EXTRA\n";

/// Prints completions for `shell`.
pub(crate) fn completions(shell: Shell) -> Result<()> {
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut args::definition(), "forebay", &mut script);
    let script = String::from_utf8_lossy(&script);
    // The last value of a list is completed, by those that the list does not have.
    print(&match shell {
        Shell::Bash => {
            let value = (r#"=($(compgen -W ""#, r#"" -- "${cur}"))"#);
            let last = (
                r#"=($(compgen -P "${cur%"${cur##*,}"}" -W "$(printf '%s\n' "#,
                r#" | grep -vxF "$(tr , '\n' <<< "${cur%"${cur##*,}"}")")" -- "${cur##*,}"))"#,
            );
            // `--flag=value` is three words there.
            let prev = "    prev=\"$3\"\n";
            let flag = "    [[ ${prev} == = ]] && prev=\"${COMP_WORDS[COMP_CWORD-2]}\"\n";
            let script = script.replace(prev, &format!("{prev}{flag}"));
            script.replace(value.0, last.0).replace(value.1, last.1)
        }
        Shell::Zsh => within(&script, (",…:(", ")'"), |names| {
            Some(format!(",…:_sequence compadd - {names}'"))
        }),
        Shell::Fish => within(&script, (" -a \"", "\""), |lines| {
            let names: Option<Vec<&str>> =
                lines.lines().map(|line| line.strip_suffix("\\t''")).collect();
            Some(format!(" -a \"(__fish_append , {})\"", names?.join(" ")))
        }),
        _ => script.into_owned(),
    })
}

/// The text with what `make` makes of each part from `open` to `close`; `None` leaves it.
fn within(
    text: &str,
    (open, close): (&str, &str),
    make: impl Fn(&str) -> Option<String>,
) -> String {
    let mut parts = text.split(open);
    let mut made = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        match part.split_once(close).and_then(|(inner, rest)| Some((make(inner)?, rest))) {
            Some((inner, rest)) => made.extend([&inner, rest]),
            None => made.extend([open, part]),
        }
    }
    made
}

/// Prints the manual page of the command, or of `verb`.
pub(crate) fn man_page(verb: Option<&str>) -> Result<()> {
    let mut command = args::definition();
    command.build();
    let command = match verb {
        None => Some(&command),
        Some(verb) => command.find_subcommand(verb),
    };
    let command = command.cloned().ok_or_else(|| {
        Failure::usage(format!("there is no verb `{}`", verb.unwrap_or_default()))
            .hint("`forebay --help` lists the verbs")
    })?;
    let mut page = Vec::new();
    clap_mangen::Man::new(command)
        .render(&mut page)
        .map_err(|error| Failure::io("cannot write the manual page", &error))?;
    let page = String::from_utf8_lossy(&page);
    // Examples and tables keep their lines.
    let page = page.split_once(EXTRA).map_or(page.to_string(), |(flags, rest)| {
        format!("{flags}.SH NOTES\n.nf\n{}", rest.replace("\n.SH", "\n.fi\n.SH"))
    });
    print(&page)
}
