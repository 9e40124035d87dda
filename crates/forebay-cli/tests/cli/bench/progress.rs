//! What a terminal shows of a sweep while it runs.

use std::collections::HashSet;
use std::fs::File;
use std::io::Read as _;
use std::os::unix::fs::OpenOptionsExt as _;

use rustix::io::Errno;
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use rustix::termios::{Winsize, tcsetwinsize};

use super::{command, folder, stderr};

/// Both ends of a terminal: what a program writes to the second can be read
/// from the first.
fn terminal() -> Result<(File, File), Errno> {
    let own = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC)?;
    grantpt(&own)?;
    unlockpt(&own)?;
    let name = ptsname(&own, Vec::new())?;
    let name = name.to_str().expect("the kernel's own names are text");
    let screen = File::options().read(true).write(true).custom_flags(libc::O_NOCTTY).open(name);
    let screen = screen.map_err(|error| Errno::from_io_error(&error).unwrap_or(Errno::IO))?;
    tcsetwinsize(&screen, Winsize { ws_row: 40, ws_col: 160, ws_xpixel: 0, ws_ypixel: 0 })?;
    Ok((File::from(own), screen))
}

/// What a run shows on a terminal, with these variables.
fn shown(arguments: &[&str], variables: &[(&str, &str)]) -> Option<String> {
    let (mut own, screen) = match terminal() {
        Ok(both) => both,
        Err(error) => {
            println!("skipped: progress of a sweep: no terminal can be made: {error}");
            return None;
        }
    };
    let folder = folder();
    let mut command = command(folder.path(), arguments);
    command.env("TERM", "xterm").envs(variables.iter().copied());
    let mut child = command.stdout(screen.try_clone().unwrap()).stderr(screen).spawn().unwrap();
    // As long as any process has that end open, no end is seen at this one.
    drop(command);
    let mut bytes = Vec::new();
    // If no process has it open any more, a read is an error.
    let _ = own.read_to_end(&mut bytes);
    let shown = String::from_utf8_lossy(&bytes).into_owned();
    assert!(child.wait().unwrap().success(), "{shown}");
    Some(shown)
}

#[test]
fn no_color_turns_off_colours_and_weights_of_a_run() {
    let arguments = ["--gpu=sim", "--size=4M", "--time=100ms", "--repeats=1", "--method=forebay"];
    let styles = |variables: &[(&str, &str)]| -> Option<HashSet<String>> {
        let shown = shown(&[&arguments[..], &["--cache=warm"]].concat(), variables)?;
        let parts = shown.split("\u{1b}[").skip(1).filter_map(|part| part.split_once('m'));
        let codes =
            parts.map(|(code, _)| code).filter(|code| code.parse().is_ok_and(|n: u8| n > 0));
        Some(codes.map(str::to_owned).collect())
    };
    let Some(plain) = styles(&[("NO_COLOR", "1")]) else { return };
    assert_eq!(plain, HashSet::new());
    assert_ne!(styles(&[]), Some(plain), "colours are on by default");
}

#[test]
fn a_log_shows_that_a_long_run_lives() {
    let folder = folder();
    let arguments = ["--gpu=none", "--method=forebay", "--block-size=64K", "--depth=1"];
    let rest = ["--time=9s", "--repeats=1", "--size=8M", "--cache=warm"];
    let output = command(folder.path(), &[&arguments[..], &rest].concat()).output().unwrap();
    let text = stderr(&output);
    assert!(output.status.success(), "{text}");
    assert!(text.contains("0 of 1: round 1 of 1: forebay read, warm"), "{text}");
    let output = command(folder.path(), &[&arguments[..], &rest, &["-q"]].concat()).output();
    assert!(!stderr(&output.unwrap()).contains("round 1"));
}

#[test]
fn a_terminal_shows_how_far_a_sweep_is_and_the_time_left() {
    let arguments = ["--gpu=none", "--block-size=64K", "--depth=1,2", "--time=300ms"];
    let rest = ["--repeats=2", "--size=8M", "--warm-up=0s", "-o", "results"];
    let Some(shown) = shown(&[&arguments[..], &rest].concat(), &[]) else { return };
    for (done, what) in [
        ("0/4 ", "measuring the storage"),
        ("0/4 ", "forebay read, cold, "),
        ("3/4 ", "forebay read, cold, "),
    ] {
        let left = shown.match_indices(done).find_map(|(at, _)| {
            let (name, _) = shown[at + done.len()..].split_once(" left")?;
            let (name, left) = name.rsplit_once(", ")?;
            let is_named = name.starts_with("round ") && name.contains(&format!(" of 2: {what}"));
            (left.len() < 9 && is_named).then(|| left.trim())
        });
        let left = left.unwrap_or_else(|| panic!("no {done}with the time left: {shown:?}"));
        let is_time = left.strip_suffix(" s").is_some_and(|number| number.parse::<f64>().is_ok());
        assert!(is_time, "{left:?} in {shown:?}");
    }
}
