//! What a terminal shows of a sweep while it runs.

use std::fs::File;
use std::io::Read as _;
use std::os::unix::fs::OpenOptionsExt as _;
use std::process::Stdio;

use rustix::io::Errno;
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use rustix::termios::{Winsize, tcsetwinsize};

use super::{command, folder};

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

#[test]
fn a_terminal_shows_how_far_a_sweep_is_and_the_time_left() {
    let (mut own, screen) = match terminal() {
        Ok(both) => both,
        Err(error) => {
            println!("skipped: progress of a sweep: no terminal can be made: {error}");
            return;
        }
    };
    let folder = folder();
    let arguments = ["--gpu=none", "--block-size=64K", "--depth=1,2", "--time=300ms"];
    let rest = ["--repeats=2", "--size=8M", "--warm-up=0s", "-o", "results"];
    let mut command = command(folder.path(), &[&arguments[..], &rest].concat());
    command.env("TERM", "xterm").stdout(Stdio::null()).stderr(screen);
    let mut child = command.spawn().unwrap();
    // As long as anybody has that end open, no end is seen at this one.
    drop(command);
    let mut bytes = Vec::new();
    // If no process has it open any more, a read is an error.
    let _ = own.read_to_end(&mut bytes);
    let shown = String::from_utf8_lossy(&bytes);
    assert!(child.wait().unwrap().success(), "{shown}");
    for done in ["0/4 ", "3/4 "] {
        let left = shown.match_indices(done).find_map(|(at, _)| {
            let (name, _) = shown[at + done.len()..].split_once(" left")?;
            let (name, left) = name.rsplit_once(", ")?;
            let is_named =
                name.starts_with("round ") && name.contains(" of 2: forebay read, cold, ");
            (left.len() < 9 && is_named).then(|| left.trim())
        });
        let left = left.unwrap_or_else(|| panic!("no {done}with the time left: {shown:?}"));
        let is_time = left.strip_suffix(" s").is_some_and(|number| number.parse::<f64>().is_ok());
        assert!(is_time, "{left:?} in {shown:?}");
    }
}
