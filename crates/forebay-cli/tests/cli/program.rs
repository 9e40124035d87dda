//! Where the program under test is: a bundle names it, else it is what cargo built.

use std::path::PathBuf;

/// The program's file.
pub(crate) fn program() -> PathBuf {
    let named = std::env::var_os("FOREBAY_BIN").map(PathBuf::from);
    let file = named.unwrap_or_else(|| env!("CARGO_BIN_EXE_forebay").into());
    // A relative path would be looked for in the folder that the program is to run in.
    std::path::absolute(file).expect("a path that is not empty")
}
