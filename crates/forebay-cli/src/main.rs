//! The `forebay` command; everything is in the library, so that other programs can use it too.

use std::process::ExitCode;

fn main() -> ExitCode {
    forebay_cli::run(std::env::args_os())
}
