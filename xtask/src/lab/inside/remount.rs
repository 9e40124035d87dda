//! A remount between two opens: the path stays the same, the drive does not.

use std::path::Path;
use std::process::Command;

use forebay::{Engine, Options};
use forebay_topology::{Resolver, System};

use crate::{Result, sum};

/// `devices` is a device, its drive's serial number and the sum of its file, then the next.
pub(crate) fn run(folder: &str, file: &str, devices: &[&str]) -> Result<()> {
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
            let (buffer, outcome) = file.read_whole(None)?;
            let mut bytes = vec![0; usize::try_from(buffer.len())?];
            buffer.download(0, &mut bytes)?;
            let found = sum(&bytes);
            if found != *expected {
                let bytes = outcome.bytes;
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
