//! `cargo xtask lab`: a virtual machine with many kinds of storage, in which the storage map and
//! reads are compared with how the machine was built.
//!
//! `xtask/lab/prepare.sh` fetches an emulator and a Debian system as packages and makes the initial
//! disk, `machine.sh` runs the machine with the drives of `drives.txt`, `found` compares. The
//! guest's scripts are in `xtask/lab/guest`; see docs/internals.md#the-lab.

mod found;
mod share;

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Instant;

use share::Share;

use crate::process::{self, Result, say};
use crate::report::Report;
use crate::{folders, test};

/// Lines of the console that are shown when the machine failed.
const TAIL: usize = 30;

/// The options of the command line.
#[derive(Debug, Default, clap::Args)]
pub(crate) struct Arguments {
    /// Run `xtask/lab/guest/NAME.sh` in the machine and show its output.
    #[arg(long, value_name = "NAME")]
    script: Option<String>,
    /// Keep records of the machine, whole and broken, for `forebay doctor --tree --fixture`.
    #[arg(long, value_name = "DIR")]
    record: Option<PathBuf>,
    /// Use the processor's own virtualisation instead of emulating a processor.
    #[arg(long)]
    kvm: bool,
}

/// Runs the machine with every situation and judges its results, as a step of `report`.
pub(crate) fn run(report: &mut Report, root: &Path, arguments: &Arguments) -> Result<()> {
    if let Some(reason) = lacking() {
        report.skip(format!("lab: {reason}"));
        return Ok(());
    }
    let cache = test::target(root)?.join("lab");
    let scripts = root.join("xtask/lab");
    let mut prepare = Command::new(scripts.join("prepare.sh"));
    prepare.arg(&cache).arg(scripts.join("guest/first.sh")).env("PATH", process::full_path());
    if process::succeeds(&mut prepare)? {
        report.step("lab", every(root, &cache, arguments)?);
    } else {
        report.skip("lab: its packages cannot be fetched");
    }
    Ok(())
}

/// The missing requirement of this machine, if any.
fn lacking() -> Option<String> {
    let release = std::fs::read_to_string("/etc/os-release").unwrap_or_default();
    let is_debian = release.lines().any(|line| line == "ID=debian");
    if !cfg!(target_arch = "x86_64") || !is_debian {
        return Some("the virtual machine is made of Debian's packages for x86-64".into());
    }
    (!process::is_root()).then(|| "only root may unpack a system".into())
}

/// Runs the machine; true if there is no difference.
fn every(root: &Path, cache: &Path, arguments: &Arguments) -> Result<bool> {
    let share = Share::fill(root, &cache.join("share"))?;
    if arguments.record.is_some() {
        folders::make(&share.out().join("record"))?; // the guest makes one then
    }
    let script = arguments.script.as_deref();
    let mut machine = Command::new(root.join("xtask/lab/machine.sh"));
    machine.arg(cache).arg(&share.folder).arg(script.unwrap_or("every")).stdin(Stdio::null());
    boot(machine.args(arguments.kvm.then_some("kvm")), &cache.join("console.txt"))?;
    if script.is_some() {
        say!("{}", folders::text(&share.out().join("script.txt"))?);
        return Ok(share.complaints());
    }
    let mut passed = true;
    for name in ["whole", "broken"] {
        let rows = found::judge(&share.out().join(name))?;
        say!("\n{name}:");
        found::lines(&rows).iter().for_each(|line| say!("{line}"));
        let differing = rows.iter().filter(|row| !row.differences.is_empty()).count();
        say!("{} paths, {differing} differ", rows.len());
        passed &= differing == 0;
    }
    passed &= share.complaints();
    if let Some(folder) = &arguments.record {
        share.keep_record(folder)?;
    }
    Ok(passed)
}

/// Runs the machine until it ends; its console is also kept in `log`.
fn boot(machine: &mut Command, log: &Path) -> Result<()> {
    let begun = Instant::now();
    let mut console: Vec<String> = Vec::new();
    let ended = process::each_line(machine, |_, line| {
        if line.starts_with("lab: ") {
            say!("{line}");
        }
        console.push(line.to_owned());
    })?;
    std::fs::write(log, console.join("\n")).map_err(folders::failed(log))?;
    if ended {
        say!("lab: the machine ran for {} s", begun.elapsed().as_secs());
        return Ok(());
    }
    say!(err, "lab: the last lines of the virtual machine:");
    console[console.len().saturating_sub(TAIL)..].iter().for_each(|line| say!(err, "  {line}"));
    Err(format!("the virtual machine failed; its console is in `{}`", log.display()))
}
