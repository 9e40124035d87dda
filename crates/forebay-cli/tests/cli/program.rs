//! Where the program under test is: a bundle names it, else it is what cargo built.

use std::fs;
use std::path::PathBuf;

/// The program's file.
pub(crate) fn program() -> PathBuf {
    let named = std::env::var_os("FOREBAY_BIN").map(PathBuf::from);
    let file = named.unwrap_or_else(|| env!("CARGO_BIN_EXE_forebay").into());
    // A relative path would be looked for in the folder that the program is to run in.
    std::path::absolute(file).expect("a path that is not empty")
}

/// The process that works for the command with this number; none before it has started, or where
/// the kernel does not tell.
pub(crate) fn worker(command: u32) -> Option<u32> {
    let threads = fs::read_dir(format!("/proc/{command}/task")).ok()?;
    let children = threads.flatten().map(|thread| thread.path().join("children"));
    let mut children = children.filter_map(|path| fs::read_to_string(path).ok());
    children.find_map(|children| children.split(' ').next()?.parse().ok())
}
