//! `forebay probe`: opens cuFile's driver for an engine that does not dare to yet.

use std::io::Write as _;

use crate::args::ProbeArgs;
use crate::failure::{Failure, Result};

/// Runs the verb. What is seen is written at once: the next step may be the last.
pub(crate) fn command(args: &ProbeArgs) -> Result<()> {
    let mut written = Ok(());
    forebay::direct::look(args.library.as_deref(), &args.packages, &mut |word, rest| {
        let line = format!("{word} {rest}").replace(['\n', '\r'], " ");
        let mut out = std::io::stdout();
        let now = writeln!(out, "{}", line.trim_end()).and_then(|()| out.flush());
        if written.is_ok() {
            written = now;
        }
    });
    written.map_err(|error| Failure::stdout(&error))
}
