//! The machine of a run, as far as its numbers depend on it.

use std::fs;
use std::path::Path;
use std::process::Command;

use forebay::gpu::GpuSelector;
use serde_json::{Value, json};

use crate::fio;

/// Facts about the machine and the run.
#[derive(Debug, Default)]
pub(crate) struct Environment {
    /// The machine in one sentence.
    pub(crate) sentence: String,
    /// `DATE-MACHINE`, as a folder's name.
    pub(crate) label: String,
    /// Everything that is archived.
    pub(crate) facts: Value,
}

impl Environment {
    /// Reads the facts of this machine; unknown ones stay empty.
    pub(crate) fn read(scratch: &Path, selector: &GpuSelector) -> Self {
        let date = printed(Command::new("date").args(["-u", "+%F"])).unwrap_or_default();
        let line = |path| fs::read_to_string(path).unwrap_or_default().trim().to_owned();
        let (kernel, cpu) =
            (line("/proc/sys/kernel/osrelease"), field("/proc/cpuinfo", "model name"));
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        let simulated = matches!(selector, GpuSelector::Sim(_));
        let (gpus, no_gpu) = match forebay::gpu::visible() {
            Ok(gpus) => (gpus, None),
            Err(reason) => (Vec::new(), Some(reason)),
        };
        let mut findmnt = Command::new("findmnt");
        let findmnt = findmnt.args(["--noheadings", "--output=FSTYPE,SOURCE", "--target"]);
        let drive = printed(findmnt.arg(scratch)).unwrap_or_default();
        let drive = drive.split_whitespace().collect::<Vec<_>>().join(" on ");
        let commit = std::env::var("FOREBAY_COMMIT").unwrap_or_else(|_| "unknown".into());
        let (gpu, name) = match gpus.first() {
            _ if simulated => ("simulated GPU".into(), "simulated".into()),
            Some(gpu) => (format!("{} × {}", gpus.len(), gpu.name), slug(&gpu.name)),
            None => ("no GPU".into(), format!("{cores}-core-{}", slug(&cpu))),
        };
        let variables = std::env::vars().filter(|(name, _)| name.starts_with("FOREBAY_"));
        Self {
            sentence: format!("{gpu}, {cores} × {cpu}, Linux {kernel}, {drive}, commit {commit}"),
            label: format!("{date}-{name}"),
            facts: json!({
                "date": date,
                "kernel": kernel,
                "cpu": cpu,
                "cores": cores,
                "memory": field("/proc/meminfo", "MemTotal"),
                "gpus": gpus.iter().map(|gpu| format!("{gpu:?}")).collect::<Vec<_>>(),
                "no_gpu": no_gpu,
                "simulated": simulated,
                "drive": drive,
                "fio": fio::version(),
                "version": env!("CARGO_PKG_VERSION"),
                "commit": commit,
                "command": std::env::args().collect::<Vec<_>>(),
                "variables": variables.collect::<std::collections::BTreeMap<_, _>>(),
            }),
        }
    }
}

/// What a program prints, if it succeeds.
pub(crate) fn printed(command: &mut Command) -> Option<String> {
    let output = command.output().ok().filter(|output| output.status.success())?;
    Some(String::from_utf8_lossy(&output.stdout).trim().to_owned())
}

/// The first value of `name` in a file of lines `name : value`.
pub(crate) fn field(path: &str, name: &str) -> String {
    let text = fs::read_to_string(path).unwrap_or_default();
    let mut pairs = text.lines().filter_map(|line| line.split_once(':'));
    let found = pairs.find(|(key, _)| key.trim() == name);
    found.map(|(_, value)| value.trim().to_owned()).unwrap_or_default()
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
