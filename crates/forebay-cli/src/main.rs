//! The `forebay` command. Everything is in the library, so that other programs can use it too.

#![expect(unsafe_code, reason = "a function that runs before `main`")]

use std::process::ExitCode;

extern "C" fn before_main() {
    forebay_measure::stdio::hold();
}

// SAFETY: the C library calls functions of this section before `main`. This one makes system calls
// and sets an atomic, for which Rust's runtime need not have started.
#[used]
#[unsafe(link_section = ".init_array")]
static BEFORE_MAIN: extern "C" fn() = before_main;

fn main() -> ExitCode {
    forebay_cli::run(std::env::args_os())
}
