//! The bars for several drives: their sum, stripes, a slow or hung one among them, the automatic
//! depth, urgent reads, an idle engine, and a load compared with `fio`'s.
//!
//! The drives are loop devices with caps, and file systems in user space with a latency
//! ([`ground`], [`slow`]). Each bar runs in a separate process, mount namespace and control group:
//! mounts, devices and servers disappear with that process, however it ends, and the caps bind no
//! other process.

mod ground;
mod group;
mod hung;
mod one;
mod reads;
pub(crate) mod slow;
mod together;

use std::path::{Path, PathBuf};
use std::process::Command;

use rustix::process::{Signal, geteuid, set_parent_process_death_signal};
use serde::{Deserialize, Serialize};

use self::ground::Ground;
use self::group::Group;
use crate::bar::{Measured, Stop};
use crate::child::{self, Child};
use crate::lab::Lab;

/// Bytes per second of a capped drive.
const RATE: u64 = 200_000_000;

/// The process of one bar.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Job {
    name: String,
    folder: PathBuf,
    group: PathBuf,
    tiny: bool,
}

/// Runs a bar in a separate process.
pub(crate) fn in_child(lab: &Lab, name: &str) -> Result<Measured, Stop> {
    if !geteuid().is_root() {
        return Err(Stop::Skip("making drives takes root".into()));
    }
    let folder = lab.path(name);
    std::fs::create_dir_all(&folder)?;
    let group = Group::new()?;
    let job = Job { name: name.into(), folder, group: group.path().into(), tiny: lab.is_tiny() };
    // The kernel removes the namespace's mounts when the last process in it has ended.
    let mut command = Command::new("unshare");
    command.args(["--mount", "--propagation", "private", "--"]);
    child::answer(command.args(Child::Drives(job).words()?))
}

/// The child: runs the bar.
pub(crate) fn measure(job: &Job) -> Result<Measured, Stop> {
    let bar = match job.name.as_str() {
        "drives-shuffled" => together::shuffled,
        "drives-unequal" => together::unequal,
        "drives-striped" => together::striped,
        "drives-hung" => hung::run,
        "drives-urgent" => one::urgent,
        "drives-idle" => together::idle,
        "sweep-capped" => one::agree_capped,
        "sweep-delayed" => one::agree_delayed,
        name => return Err(Stop::Fail(format!("no such bar of drives: `{name}`"))),
    };
    end_with_parent()?;
    group::enter(&job.group)?;
    bar(&Ground::new(&job.folder, &job.group, job.tiny)?)
}

/// Has the kernel kill this process when the one that started it ends.
pub(crate) fn end_with_parent() -> Result<(), Stop> {
    Ok(set_parent_process_death_signal(Some(Signal::KILL))?)
}

/// Runs a system tool and returns its output.
fn tool(name: &str, arguments: &[&str]) -> Result<String, Stop> {
    // An ordinary user's path may lack tools for administrators.
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
