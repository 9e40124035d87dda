//! Diagnoses the obstacles to direct I/O between a path and a GPU, and suggests the next steps.
//!
//! [`examine`] reads all facts below the root of a [`System`] and returns a [`Report`]: checks,
//! with the finding, the reason why it matters and the next step, sorted by how much they hold the
//! path back. Nothing is written, no device is opened and no library is loaded;
//! cuFile is probed beforehand in a separate process ([`forebay_cufile::probe_cufile`]).
//!
//! `facts` holds everything that was read, and the checks use nothing else. The groups of checks
//! are `storage` and `volumes`, `network`, `driver`, `kernel`, `pcie` and `peers`, `config` and
//! `cufile`, `process` and `devices`. Comments next to the steps name their sources.

mod config;
mod cufile;
mod devices;
mod driver;
mod facts;
mod jsonc;
mod kernel;
mod network;
mod pcie;
mod peers;
mod process;
mod report;
mod storage;
mod volumes;

use std::fs::File;
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};

pub use driver::gpu_model;
pub use forebay_cufile::Answer;
pub use report::{Check, DirectPath, Gpu, Outlook, Report, State};

use facts::Facts;
use forebay_cufile::{answer_from_lines, answer_to_lines};
use forebay_topology::{System, read_record, record_with};

/// The file of a record that holds cuFile's answer.
const CUFILE_FILE: &str = "expected/cufile.txt";
const ANSWER_MAX: usize = 64 << 10;

/// The path and the GPU to examine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Wish {
    /// A file, a folder or a block device; it need not exist.
    pub path: PathBuf,
    /// The GPU.
    pub gpu: GpuWish,
}

/// The GPU that a diagnosis is about.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum GpuWish {
    /// The first GPU on PCI.
    #[default]
    First,
    /// The GPU with this index, in the order of PCI addresses.
    Index(usize),
    /// The GPU at this PCI address, named by the user.
    At(String),
    /// No GPU, for this reason.
    None(String),
}

/// Diagnoses the path from a file to a GPU of `system`; `cufile` is cuFile's answer there.
#[must_use]
pub fn examine(system: &System, wish: &Wish, cufile: Option<Answer>) -> Report {
    let facts = Facts::read(system, wish, cufile);
    let path = forebay_topology::clean(&wish.path.to_string_lossy());
    Report::new(path, facts.shown_gpu(), facts.checks())
}

/// Writes everything that [`examine`] reads of this machine, for all `wishes`, into the new
/// folder `dir`. Paths that did not answer `system`, the live system, are skipped.
///
/// # Errors
/// [`io::ErrorKind::AlreadyExists`] if `dir` exists, and any error while writing.
pub fn record(
    system: &System,
    wishes: &[Wish],
    cufile: Option<Answer>,
    dir: &Path,
) -> io::Result<()> {
    let lines = cufile.as_ref().map(answer_to_lines);
    let absolute = wishes.iter().map(|wish| std::path::absolute(&wish.path));
    let paths: Vec<PathBuf> = absolute.collect::<io::Result<_>>()?;
    record_with(system, &paths, dir, |system| {
        for (wish, path) in wishes.iter().zip(&paths) {
            let wish = Wish { path: path.clone(), gpu: wish.gpu.clone() };
            let _ = Facts::read(system, &wish, cufile.clone()); // only reads files for the record
        }
    })?;
    let Some(lines) = lines else { return Ok(()) };
    File::create_new(dir.join(CUFILE_FILE))?.write_all(lines.as_bytes())
}

/// cuFile's answer in the record in `dir`; `None` if cuFile was not probed.
///
/// # Errors
/// An I/O error of the file, unless it does not exist.
pub fn recorded_answer(dir: &Path) -> io::Result<Option<Answer>> {
    match read_record(&dir.join(CUFILE_FILE), ANSWER_MAX) {
        Ok(bytes) => Ok(Some(answer_from_lines(&String::from_utf8_lossy(&bytes)))),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    const PAGE: &str = include_str!("../../../docs/doctor.md");
    const SOURCES: [&str; 11] = [
        include_str!("config.rs"),
        include_str!("cufile.rs"),
        include_str!("devices.rs"),
        include_str!("driver.rs"),
        include_str!("kernel.rs"),
        include_str!("network.rs"),
        include_str!("peers.rs"),
        include_str!("pcie.rs"),
        include_str!("process.rs"),
        include_str!("storage.rs"),
        include_str!("volumes.rs"),
    ];

    #[test]
    fn the_page_lists_every_check() {
        let mut names: Vec<&str> = Vec::new();
        for source in SOURCES {
            let topics = source.split(" Topic {").skip(1);
            names.extend(topics.filter_map(|topic| topic.split('"').nth(1)));
        }
        let (_, page) = PAGE.split_once("\n## The checks\n").expect("its heading");
        let page = page.split("\n## ").next().expect("its text");
        let missing = names.iter().filter(|name| !page.contains(&format!("| `{name}` |")));
        assert_eq!(missing.collect::<Vec<_>>(), Vec::<&&str>::new());
        let listed = page.lines().filter(|line| line.starts_with("| `")).count();
        assert_eq!(listed, names.len(), "{names:?}");
    }
}
