//! Parts of bars that need a process of their own: this program, started with `--child`.
//!
//! A child prints its answer as one line of JSON, the last of its output.

use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::bar::{Measured, Stop};
use crate::drives::slow::Pace;
use crate::{drives, talk};

/// The work of a child.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) enum Child {
    /// Run a bar for several drives.
    Drives(drives::Job),
    /// Be a slow drive until the file system is gone.
    Slow { image: PathBuf, point: PathBuf, pace: Pace, namespace: PathBuf },
}

impl FromStr for Child {
    type Err = serde_json::Error;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        serde_json::from_str(text)
    }
}

impl Child {
    /// The words that make this program do it.
    pub(crate) fn words(&self) -> Result<[String; 3], Stop> {
        let own = std::env::current_exe()?.to_string_lossy().into_owned();
        Ok([own, "--child".into(), serde_json::to_string(self)?])
    }

    /// Does the work, in the child.
    pub(crate) fn run(&self) -> Result<(), Stop> {
        match self {
            Self::Drives(job) => talk(&serde_json::to_string(&drives::measure(job))?),
            Self::Slow { image, point, pace, namespace } => {
                drives::slow::serve(image, point, *pace, namespace)?;
            }
        }
        Ok(())
    }
}

/// Runs a child to its end, and returns its answer.
pub(crate) fn answer(command: &mut Command) -> Result<Measured, Stop> {
    let output = command
        .stdin(Stdio::null())
        .stderr(Stdio::inherit())
        .output()
        .map_err(|error| Stop::Skip(format!("`{command:?}` cannot run: {error}")))?;
    let printed = String::from_utf8_lossy(&output.stdout);
    serde_json::from_str(printed.lines().last().unwrap_or_default()).unwrap_or_else(|_| {
        Err(Stop::Fail(format!("its process ended with {} and printed `{printed}`", output.status)))
    })
}
