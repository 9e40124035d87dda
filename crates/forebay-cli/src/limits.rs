//! The engine's limits, as this command has them.

use forebay::Options;

use crate::failure::Result;
use crate::program::Program;

/// What the variables say, and this program to open cuFile's driver first.
pub(crate) fn limits(program: &Program) -> Result<Options> {
    let mut options = Options::from_env()?;
    options.probe = Some(program.verb("probe"));
    Ok(options)
}
