//! The verbs that print the command line's definition: completions, man page.

use std::io::{self, Write as _};

use clap_complete::Shell;

use crate::args;
use crate::failure::{Failure, Result};

/// Prints completions for `shell`.
pub(crate) fn completions(shell: Shell) -> Result<()> {
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut args::definition(), "forebay", &mut script);
    show(&script)
}

/// Prints the manual page: the command, then each verb.
pub(crate) fn man_page() -> Result<()> {
    let mut page = Vec::new();
    render(&mut page).map_err(|error| Failure::io("cannot write the manual page", &error))?;
    let page = without_repeats(&String::from_utf8_lossy(&page));
    show(page.as_bytes())
}

fn show(bytes: &[u8]) -> Result<()> {
    let mut out = io::stdout();
    out.write_all(bytes).and_then(|()| out.flush()).map_err(|error| Failure::stdout(&error))
}

/// Each section brings its own definition of the apostrophe; one is enough.
fn without_repeats(page: &str) -> String {
    let definition = |line: &&str| line.starts_with(".ie \\n(.g") || line.starts_with(".el .ds");
    let mut lines: Vec<&str> = page.lines().filter(definition).take(2).collect();
    lines.extend(page.lines().filter(|line| !definition(line)));
    lines.join("\n") + "\n"
}

fn render(page: &mut Vec<u8>) -> io::Result<()> {
    let mut command = args::definition();
    command.build();
    let man = clap_mangen::Man::new(command.clone());
    man.render_title(page)?;
    man.render_name_section(page)?;
    man.render_synopsis_section(page)?;
    man.render_description_section(page)?;
    for verb in command.get_subcommands() {
        writeln!(page, ".SH {}", verb.get_name().to_uppercase())?;
        let man = clap_mangen::Man::new(verb.clone());
        for section in [
            clap_mangen::Man::render_synopsis_section,
            clap_mangen::Man::render_description_section,
            clap_mangen::Man::render_options_section,
            clap_mangen::Man::render_extra_section,
        ] {
            let mut text = Vec::new();
            section(&man, &mut text)?;
            // A section of the verb's own page is a subsection of the one page of the command.
            let text = String::from_utf8_lossy(&text).replace("\n.SH ", "\n.SS ");
            let text = match text.strip_prefix(".SH ") {
                Some(rest) => format!(".SS {rest}"),
                None => text,
            };
            page.extend_from_slice(text.as_bytes());
        }
    }
    man.render_extra_section(page)?;
    man.render_version_section(page)
}
