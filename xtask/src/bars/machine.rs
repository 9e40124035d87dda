//! The machine of a run, as far as its numbers depend on it.

use std::path::Path;
use std::process::Command;

use forebay_measure::environment;
use forebay_measure::results::machine::{self, Environment as Facts};
use serde::Serialize;

/// Facts about the machine and the run.
#[derive(Debug, Default, Serialize)]
pub(crate) struct Environment {
    /// The machine in one sentence.
    pub(crate) sentence: String,
    /// `DATE-MACHINE`, as a folder's name.
    pub(crate) label: String,
    pub(crate) commit: String,
    #[serde(flatten)]
    pub(crate) facts: Facts,
}

impl Environment {
    /// Reads the facts of this machine; unknown ones stay empty.
    pub(crate) fn read(scratch: &Path) -> Self {
        let date = printed(Command::new("date").args(["-u", "+%F"])).unwrap_or_default();
        let command = std::env::args().collect::<Vec<_>>().join(" ");
        let facts = environment::collect(scratch, None, &command);
        let (cores, cpu) = (facts.cpu.cores, &facts.cpu.model);
        let commit = std::env::var("FOREBAY_COMMIT").unwrap_or_else(|_| "unknown".into());
        let drive = machine::place(&facts, false).unwrap_or_default();
        let kernel = &facts.kernel;
        Self {
            sentence: format!("{cores} × {cpu}, {kernel}, {drive}, commit {commit}"),
            label: format!("{date}-{cores}-core-{}", slug(cpu)),
            commit,
            facts,
        }
    }
}

/// What a program prints, if it succeeds.
pub(crate) fn printed(command: &mut Command) -> Option<String> {
    let output = command.output().ok().filter(|output| output.status.success())?;
    Some(String::from_utf8_lossy(&output.stdout).trim().to_owned())
}

/// Letters and digits in lower case, all else as single hyphens.
fn slug(name: &str) -> String {
    let words = name.split(|c: char| !c.is_ascii_alphanumeric()).filter(|word| !word.is_empty());
    words.map(str::to_ascii_lowercase).collect::<Vec<_>>().join("-")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_become_parts_of_paths() {
        assert_eq!(slug("NVIDIA H200"), "nvidia-h200");
        assert_eq!(slug("AMD EPYC (TM) 9.0 "), "amd-epyc-tm-9-0");
    }
}
