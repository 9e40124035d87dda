//! Runs inside the virtual machine of `cargo xtask lab`: checks that the `forebay` command cannot
//! do.
//!
//! - `remount FOLDER FILE DEVICE SERIAL SUM DEVICE SERIAL SUM`: mounts two devices on one folder,
//!   one after the other, and opens and maps the same path on each by one engine.
//! - `places MAP`: compares bytes of files with those of the drives at the places that a map names.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::Write as _;
use std::os::unix::fs::FileExt as _;
use std::path::Path;
use std::process::{Command, ExitCode};

use forebay::{Engine, Options};
use forebay_topology::{Resolver, System};
use serde_json::Value;
use xxhash_rust::xxh3::xxh3_64;

/// Bytes that are compared at either end of a run.
const PIECE: u64 = 4096;

/// Errors here are messages for the user.
type Result<T> = std::result::Result<T, Box<dyn std::error::Error>>;

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let done = match words.as_slice() {
        ["remount", folder, file, devices @ ..] => remount(folder, file, devices),
        ["places", map] => places(map),
        _ => Err("no such verb".into()),
    };
    let Err(error) = done else { return ExitCode::SUCCESS };
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        text = format!("{text}\n  caused by: {error}");
        cause = error.source();
    }
    let _ = writeln!(std::io::stderr(), "forebay-lab: {text}");
    ExitCode::FAILURE
}

/// A remount between two opens: the path stays the same, the drive does not. `devices` is a device,
/// its drive's serial number and the sum of its file, then the next.
fn remount(folder: &str, file: &str, devices: &[&str]) -> Result<()> {
    // Both cache facts about the path, which must not outlive the mount.
    let engine = Engine::new(Options::from_env()?)?;
    let resolver = Resolver::new(System::live());
    let path = Path::new(folder).join(file);
    let mut names = Vec::new();
    for device in devices.chunks_exact(3) {
        let [device, serial, expected] = device else { return Err("three words each".into()) };
        call("mount", &[device, folder])?;
        // Twice, so that the cache is tested too.
        for _ in 0..2 {
            let map = resolver.resolve(&path);
            let serials: Vec<&str> =
                map.drives.iter().filter_map(|drive| drive.serial.as_deref()).collect();
            if serials != [*serial] {
                return Err(format!("`{device}` is mapped to {serials:?}, not {serial}").into());
            }
            let file = engine.open(&path)?;
            let (buffer, _) = file.read_to_end(None).run()?;
            let mut bytes = vec![0; usize::try_from(buffer.len())?];
            buffer.download(0, &mut bytes)?;
            let found = format!("{:016x}", xxh3_64(&bytes));
            if found != *expected {
                let bytes = bytes.len();
                return Err(format!("{bytes} bytes of `{device}`: {found}, not {expected}").into());
            }
            names.push(file.drive().map(str::to_owned));
        }
        call("umount", &[folder])?;
    }
    // The device that the engine has a queue for.
    names.dedup();
    if names.len() != devices.len() / 3 || names.contains(&None) {
        return Err(format!("the engine took the devices for {names:?}").into());
    }
    Ok(())
}

fn call(program: &str, words: &[&str]) -> Result<()> {
    let status = Command::new(program).args(words).status()?;
    if status.success() { Ok(()) } else { Err(format!("{program} {words:?}: {status}").into()) }
}

/// Compares the bytes of files with the drives themselves, below every volume and file system.
/// `map` is the output of `forebay doctor --tree --format=json --extents`; the caches were dropped
/// after the files were written.
fn places(map: &str) -> Result<()> {
    let report: Value = serde_json::from_slice(&std::fs::read(map)?)?;
    let list = |value: &Value| value.as_array().cloned().unwrap_or_default();
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let names: BTreeMap<String, String> = list(&report["drives"])
        .iter()
        .map(|drive| (text(&drive["id"]), format!("/dev/{}", text(&drive["name"]))))
        .collect();
    let mut wrong = Vec::new();
    for map in list(&report["maps"]) {
        let path = text(&map["path"]);
        for run in list(&map["extents"]["first"]) {
            let device = names.get(&text(&run["drive"])).ok_or("a run on no drive")?;
            let number = |key: &str| run[key].as_u64().ok_or(format!("no `{key}`"));
            let (logical, offset, len) = (number("logical")?, number("offset")?, number("len")?);
            for at in [0, len.saturating_sub(PIECE)] {
                let len = usize::try_from(PIECE.min(len))?;
                let bytes = part(&path, logical + at, len)?;
                if bytes != part(device, offset + at, bytes.len())? {
                    let (logical, offset) = (logical + at, offset + at);
                    wrong.push(format!("{path} at {logical} is not {device} at {offset}"));
                }
            }
        }
    }
    if wrong.is_empty() { Ok(()) } else { Err(wrong.join("\n").into()) }
}

/// Up to `len` bytes; a file may end inside its last run.
fn part(path: &str, offset: u64, len: usize) -> Result<Vec<u8>> {
    let file = File::open(path)?;
    let mut bytes = vec![0; len];
    let end = file.read_at(&mut bytes, offset)?;
    bytes.truncate(end);
    Ok(bytes)
}
