//! The bars for several drives: their sum, stripes, a slow or hung one among them, the automatic
//! depth, urgent reads, and an idle engine.
//!
//! The drives are loop devices with caps, and file systems in user space with a latency
//! ([`ground`], [`slow`]). Each bar runs in a separate process, mount namespace and control group:
//! mounts, devices and servers disappear with that process, however it ends, and the caps bind no
//! other process.

mod agree;
mod alone;
mod ground;
mod group;
mod hung;
mod idle;
mod reads;
pub(crate) mod slow;
mod striped;
mod together;
mod urgent;

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use rustix::process::{Signal, geteuid, set_parent_process_death_signal};
use serde::{Deserialize, Serialize};

use self::ground::Ground;
use self::group::Group;
use crate::bar::{Measured, Stop};
use crate::lab::{Lab, Place};
use crate::talk;

/// The answer of a bar's process at its end, in one line.
#[derive(Debug, Serialize, Deserialize)]
enum Answer {
    Measured(Measured),
    Skip(String),
    Fail(String),
}

/// A file on each of four drives, read in sequence.
pub(crate) fn four(lab: &Lab) -> Result<Measured, Stop> {
    in_child(lab, "four")
}

/// Sixty-four files, shuffled over four drives.
pub(crate) fn shuffled(lab: &Lab) -> Result<Measured, Stop> {
    in_child(lab, "shuffled")
}

/// One file that is striped over four drives.
pub(crate) fn striped(lab: &Lab) -> Result<Measured, Stop> {
    in_child(lab, "striped")
}

/// Two drives that are four times as fast as two others.
pub(crate) fn unequal(lab: &Lab) -> Result<Measured, Stop> {
    in_child(lab, "unequal")
}

/// One of four drives hangs.
pub(crate) fn hung(lab: &Lab) -> Result<Measured, Stop> {
    in_child(lab, "hung")
}

/// A drive that is faster the more requests it has.
pub(crate) fn depth(lab: &Lab) -> Result<Measured, Stop> {
    in_child(lab, "depth")
}

/// Small urgent reads during a large transfer.
pub(crate) fn urgent(lab: &Lab) -> Result<Measured, Stop> {
    in_child(lab, "urgent")
}

/// A sweep and `fio` on a drive that a cap binds.
pub(crate) fn agree_capped(lab: &Lab) -> Result<Measured, Stop> {
    in_child(lab, "agree-capped")
}

/// A sweep and `fio` on a drive that answers late.
pub(crate) fn agree_delayed(lab: &Lab) -> Result<Measured, Stop> {
    in_child(lab, "agree-delayed")
}

/// An engine that has worked and is now idle.
pub(crate) fn idle(lab: &Lab) -> Result<Measured, Stop> {
    in_child(lab, "idle")
}

/// Runs a bar in a separate process.
fn in_child(lab: &Lab, name: &str) -> Result<Measured, Stop> {
    if !geteuid().is_root() {
        return Err(Stop::Skip("making drives takes root".into()));
    }
    let folder = lab.path(Place::Disk, &format!("drives-{name}"))?;
    std::fs::create_dir_all(&folder)?;
    let group = Group::new()?;
    // The kernel removes the namespace's mounts when the last process in it has ended.
    let output = Command::new("unshare")
        .args(["--mount", "--propagation", "private", "--"])
        .arg(std::env::current_exe()?)
        .arg("--drives")
        .arg(name)
        .arg(&folder)
        .arg(group.path())
        .arg(if lab.is_tiny() { "tiny" } else { "full" })
        .stdin(Stdio::null())
        .stderr(Stdio::inherit())
        .output()
        .map_err(|error| Stop::Skip(format!("no `unshare`: {error}")))?;
    let said = String::from_utf8_lossy(&output.stdout);
    match said.lines().last().map(serde_json::from_str) {
        Some(Ok(Answer::Measured(measured))) => Ok(measured),
        Some(Ok(Answer::Skip(reason))) => Err(Stop::Skip(reason)),
        Some(Ok(Answer::Fail(reason))) => Err(Stop::Fail(reason)),
        _ => Err(Stop::Fail(format!("its process ended with {} and said `{said}`", output.status))),
    }
}

/// The process of one bar, as the command line `--drives` requests.
#[derive(Debug, PartialEq)]
pub(crate) struct Job {
    pub(crate) name: String,
    pub(crate) folder: PathBuf,
    pub(crate) group: PathBuf,
    pub(crate) tiny: bool,
}

/// Runs the bar and prints its result.
pub(crate) fn run(job: &Job) -> Result<(), String> {
    let answer = match measure(job) {
        Ok(measured) => Answer::Measured(measured),
        Err(Stop::Skip(reason)) => Answer::Skip(reason),
        Err(Stop::Fail(reason)) => Answer::Fail(reason),
    };
    talk(&serde_json::to_string(&answer).map_err(|error| error.to_string())?);
    Ok(())
}

fn measure(job: &Job) -> Result<Measured, Stop> {
    let bar = match job.name.as_str() {
        "four" => together::four,
        "shuffled" => together::shuffled,
        "unequal" => together::unequal,
        "striped" => striped::run,
        "hung" => hung::run,
        "depth" => alone::depth,
        "urgent" => urgent::run,
        "idle" => idle::run,
        "agree-capped" => agree::capped,
        "agree-delayed" => agree::delayed,
        name => return Err(Stop::Fail(format!("no such bar of drives: `{name}`"))),
    };
    end_with_parent()?;
    group::enter(&job.group)?;
    bar(&Ground::new(&job.folder, &job.group, job.tiny)?)
}

/// Has the kernel kill this process when the one that started it ends.
pub(crate) fn end_with_parent() -> Result<(), Stop> {
    set_parent_process_death_signal(Some(Signal::KILL))
        .map_err(|error| Stop::Fail(format!("cannot be tied to the parent: {error}")))
}

/// Runs a system tool and returns its output.
fn tool(name: &str, arguments: &[&str]) -> Result<String, Stop> {
    // Tools for administrators are not on everybody's path.
    let path = std::env::var("PATH").unwrap_or_default() + ":/usr/sbin:/sbin";
    let output = Command::new(name)
        .args(arguments)
        .env("PATH", path)
        .env("LC_ALL", "C")
        .output()
        .map_err(|error| Stop::Skip(format!("no `{name}`: {error}")))?;
    if output.status.success() {
        return Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned());
    }
    let complaint = String::from_utf8_lossy(&output.stderr);
    Err(Stop::Skip(format!("`{name}` failed: {}", complaint.trim())))
}

/// A path as an argument of a tool.
fn text(path: &Path) -> Result<&str, Stop> {
    path.to_str().ok_or_else(|| Stop::Skip(format!("`{}` is no text", path.display())))
}
