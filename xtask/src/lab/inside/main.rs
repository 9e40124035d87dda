//! Runs inside the virtual machine of `cargo xtask lab`: checks that need one engine over several
//! opens or reads, which the `forebay` command cannot do.
//!
//! - `remount FOLDER FILE DEVICE SERIAL SUM DEVICE SERIAL SUM`: mounts two devices on one folder,
//!   one after the other, and opens and maps the same path on each.
//! - `places MAP`: compares bytes of files with those of the drives at the places that a map names.
//! - `rates OUT ROUNDS NAME=PATH[:BYTES]...`: reads each path in turn and writes the times.

mod places;
mod rates;
mod remount;

use std::hash::Hasher as _;
use std::io::Write as _;
use std::process::ExitCode;

use twox_hash::XxHash3_64;

/// Errors here are messages for the user.
type Result<T> = std::result::Result<T, Box<dyn std::error::Error>>;

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let done = match words.as_slice() {
        ["remount", folder, file, devices @ ..] => remount::run(folder, file, devices),
        ["places", map] => places::run(map),
        ["rates", out, rounds, paths @ ..] => rates::run(out, rounds, paths),
        _ => Err("no such verb".into()),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            let mut talk = std::io::stderr().lock();
            let _ = writeln!(talk, "forebay-lab: {error}");
            let mut cause = error.source();
            while let Some(error) = cause {
                let _ = writeln!(talk, "  caused by: {error}");
                cause = error.source();
            }
            ExitCode::FAILURE
        }
    }
}

/// The XXH3-64 of some bytes, as the scripts have it.
fn sum(bytes: &[u8]) -> String {
    let mut hash = XxHash3_64::new();
    hash.write(bytes);
    format!("{:016x}", hash.finish())
}
