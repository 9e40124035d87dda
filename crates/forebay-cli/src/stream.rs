//! `forebay stream`: transfers of layers during compute. torch computes, so the measurement runs in
//! Python, in the package that this command is a part of.

use std::ffi::OsString;
use std::os::unix::process::CommandExt as _;
use std::process::{Command, Stdio};

use crate::args::StreamArgs;
use crate::bench::demand::Demand;
use crate::failure::{Failure, Result};
use crate::program::Program;

/// The measuring module of the package.
const MODULE: &str = "forebay.stream_bench";

const HINT: &str = "install both packages (`pip install '.[torch]'` in a clone), or run this \
                    command in an environment whose `python3` has them";

/// Replaces this process by the measurement; returns only on failure.
///
/// # Errors
/// Python, or the package, is missing.
pub(crate) fn command(args: &StreamArgs, program: &Program) -> Result<()> {
    check_memory(args)?;
    let mut measured = match program.is_interpreter() {
        true => program.command("stream-bench"),
        false => own_python()?,
    };
    let error = measured.args(args.given()).exec();
    Err(Failure::io("cannot start Python", &error))
}

/// Refuses layers that would pin more memory than allowed. Other invalid arguments are left to the
/// measurement.
fn check_memory(args: &StreamArgs) -> Result<()> {
    let number = |given: &Option<OsString>, usual: u64| match given {
        None => Some(usual),
        Some(text) => text.to_str()?.trim().parse().ok(),
    };
    let (Some(layers), Some(mb)) = (number(&args.layers, 3), number(&args.layer_mb, 1237)) else {
        return Ok(());
    };
    let len = mb.saturating_mul(1_000_000);
    // The file has two sets of layers, and two more measure the link.
    let pinned = match args.from.as_ref().and_then(|from| from.to_str()) {
        Some("pinned") => layers.saturating_mul(2),
        Some("half") => layers.div_ceil(2).saturating_mul(2),
        _ => 0,
    };
    let demand = Demand::of_layers(pinned.saturating_add(2).saturating_mul(len));
    demand.check(layers.saturating_mul(len), "--layers` or `--layer-mb")
}

/// The `python3` of the path, if it has the package.
fn own_python() -> Result<Command> {
    let text = "`forebay stream` requires Python with the packages `forebay` and `torch`";
    let looks = format!(
        "import importlib.util as u, sys\n\
         if not u.find_spec('{MODULE}'): sys.exit(1)\n\
         from importlib import metadata as m\n\
         try: print(m.version('forebay'))\n\
         except m.PackageNotFoundError: pass"
    );
    // Without `-P` the current folder's files would be run as the package's.
    let output = Command::new("python3").args(["-P", "-c", &looks]).stdin(Stdio::null()).output();
    let output = match output {
        Ok(output) => output,
        Err(error) => {
            let why = format!("cannot start `python3`: {error}");
            return Err(Failure::new(text).because(why).hint(HINT));
        }
    };
    if !output.status.success() {
        let why = format!("`python3` has no package `forebay` with the module `{MODULE}`");
        let failure = Failure::new(text).because(why).hint(HINT);
        let said = String::from_utf8_lossy(&output.stderr);
        let last = said.lines().rfind(|line| !line.trim().is_empty());
        return Err(match last {
            Some(last) => failure.because(format!("its last line was: {last}")),
            None => failure,
        });
    }
    let version = String::from_utf8_lossy(&output.stdout).trim().to_owned();
    if !version.is_empty() && version != env!("CARGO_PKG_VERSION") {
        let own = env!("CARGO_PKG_VERSION");
        return Err(Failure::new(text)
            .because(format!("`python3` has `forebay` {version}, but this command is {own}"))
            .hint(format!("install version {own} of both (`pip install .` in its clone)")));
    }
    let mut python = Command::new("python3");
    python.args(["-P", "-m", MODULE]);
    Ok(python)
}
