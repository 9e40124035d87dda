//! The engine's limits, as this command has them.

use forebay::Options;
use forebay_measure::failure::Result;
use forebay_measure::program::Program;

/// The options of the environment variables, with this program to probe cuFile's driver first.
pub(crate) fn limits(program: &Program) -> Result<Options> {
    let mut options = Options::from_env()?;
    options.probe = Some(program.verb("probe"));
    Ok(options)
}
