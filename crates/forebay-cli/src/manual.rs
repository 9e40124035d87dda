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
    if shell != Shell::Bash {
        return print(&script);
    }
    // The last value of a list is completed, by those that the list does not have.
    let value = (r#"=($(compgen -W ""#, r#"" -- "${cur}"))"#);
    let last = (
        r#"=($(compgen -P "${cur%"${cur##*,}"}" -W "$(printf '%s\n' "#,
        r#" | grep -vxF "$(tr , '\n' <<< "${cur%"${cur##*,}"}")")" -- "${cur##*,}"))"#,
    );
    print(&script.replace(value.0, last.0).replace(value.1, last.1))
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
