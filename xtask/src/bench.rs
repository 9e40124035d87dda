//! `cargo xtask bench`: builds the bars in release mode and runs them; by default the run is
//! archived under `benches/runs/`.

use std::path::Path;
use std::process::Command;

use crate::process::{self, Result};
use crate::{bundle, test};

/// Runs `forebay-bars` with the caller's `arguments`, archiving unless they set a folder.
pub(crate) fn run(root: &Path, arguments: &[String]) -> Result<bool> {
    let commit = bundle::commit(root);
    let mut build = process::cargo();
    build.current_dir(root).args(["build", "--release", "--workspace", "--bins"]);
    process::must_succeed(&mut build)?;
    let mut bars = Command::new(test::target(root)?.join("release/forebay-bars"));
    bars.args(arguments).env("PATH", process::full_path()).env("FOREBAY_COMMIT", commit);
    if !arguments
        .iter()
        .any(|argument| matches!(argument.as_str(), "--out" | "--help" | "-h" | "--tiny"))
    {
        bars.arg("--archive").arg(root.join("benches/runs"));
    }
    process::succeeds(&mut bars)
}
