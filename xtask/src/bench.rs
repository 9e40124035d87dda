//! `cargo xtask bench`: builds the bars in release mode and runs them; by default the run is
//! archived under `benches/runs/`. The bars for GPUs are a Python program, `benches/gpus`, which
//! measures the wheel.

use std::path::Path;
use std::process::Command;

use crate::process::{self, Result};
use crate::{bundle, test};

/// Runs `forebay-bars` with the caller's `arguments`, archiving unless they set a folder. `gpus`
/// as their first runs `benches/gpus` with the rest instead.
pub(crate) fn run(root: &Path, arguments: &[String]) -> Result<bool> {
    if let [first, rest @ ..] = arguments
        && first == "gpus"
    {
        let folder = test::target(root)?.join("gpus");
        bundle::gpus(root, &folder)?;
        let mut bars = Command::new("python3");
        bars.arg(folder.join("gpus")).arg("--archive").arg(root.join("benches/runs"));
        return process::succeeds(bars.args(rest));
    }
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
