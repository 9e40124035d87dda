//! Where the program under test is: a bundle names it, else it is what cargo built.

use std::path::PathBuf;

use assert_cmd::Command;

/// The program's file.
pub(crate) fn program() -> PathBuf {
    // A relative path would be looked for in the folder that the program is to run in.
    let named = std::env::var_os("FOREBAY_BIN").map(PathBuf::from);
    let file = named.unwrap_or_else(|| env!("CARGO_BIN_EXE_forebay").into());
    std::path::absolute(file).expect("a path that is not empty")
}

/// A command that runs it.
pub(crate) fn command() -> Command {
    Command::new(program())
}
