//! `forebay probe`: opens cuFile's driver for an engine that does not dare to yet.

use std::io::Write as _;

use forebay::Options;
use forebay::direct::{End, Renewal, Seen};

use crate::args::ProbeArgs;
use crate::failure::{Failure, Result};

/// Runs the verb. What is seen is written at once: the next step may be the last.
pub(crate) fn command(args: &ProbeArgs) -> Result<()> {
    // Whoever has it asked by this verb remembers the answer himself, and says so by the variable.
    let remembers = Options::from_env().is_ok_and(|options| options.remember);
    let renewal = remembers.then(|| Renewal::begin(args.library.as_deref(), &args.packages));
    let (mut written, mut answer) = (Ok(()), String::new());
    forebay::direct::look(args.library.as_deref(), &args.packages, &mut |word, rest| {
        let line = format!("{word} {rest}").replace(['\n', '\r'], " ");
        let line = line.trim_end();
        answer += &format!("{line}\n");
        let mut out = std::io::stdout();
        let now = writeln!(out, "{line}").and_then(|()| out.flush());
        if written.is_ok() {
            written = now;
        }
    });
    if let Some(renewal) = renewal {
        renewal.end(&(Seen::parse(&answer), End::Exited(0)));
    }
    written.map_err(|error| Failure::stdout(&error))
}
