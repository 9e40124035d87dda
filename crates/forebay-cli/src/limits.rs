//! The engine's limits, as this command has them.

use std::env;

use forebay::Options;
use forebay::direct::Program;

use crate::failure::Result;

/// What the variables say, and this program to open cuFile's driver first.
pub(crate) fn limits() -> Result<Options> {
    let mut options = Options::from_env()?;
    options.probe = probe();
    Ok(options)
}

/// The verb `probe` of this program, which may be Python's entry point.
fn probe() -> Option<Program> {
    let file = env::current_exe().ok()?;
    let is_python = file.file_name()?.to_string_lossy().starts_with("python");
    let arguments: &[&str] = if is_python { &["-m", "forebay", "probe"] } else { &["probe"] };
    Some(Program { file, arguments: arguments.iter().map(|&word| word.into()).collect() })
}
