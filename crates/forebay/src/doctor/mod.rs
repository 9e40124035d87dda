//! What stands between a path and a GPU, and what to do about it.
//!
//! [`examine`] reads all there is to know, below the root of a [`System`], and answers with a
//! [`Report`]: checks, each with what was seen, why it matters and the next step, those first that
//! hold the path back most. Nothing is written, no device is opened and no library is loaded; what
//! cuFile says of itself is asked before, in a process of its own ([`crate::direct::ask_cufile`]).
//!
//! `facts` is all that was read; a group of checks looks at nothing else: `storage` and `volumes`,
//! `network`, `driver`, `kernel`, `pcie` and `peers`, `config` and `cufile`, `process` and
//! `devices`. Where a step is from stands in a comment beside it.

mod config;
mod cufile;
mod devices;
mod driver;
mod facts;
mod gunzip;
mod jsonc;
mod kernel;
mod network;
mod pcie;
mod peers;
mod process;
mod report;
mod storage;
mod volumes;

use std::io;
use std::path::{Path, PathBuf};

pub use crate::direct::Answer;
pub use report::{Check, Gpu, Outlook, Report, State, Way};

use crate::direct::{answer_from_lines, answer_to_lines};
use crate::topology::{System, read_record, record_with};
use facts::Facts;

/// Where a record holds what cuFile said.
const CUFILE_FILE: &str = "expected/cufile.txt";
const ANSWER_MAX: usize = 64 << 10;

/// Which path, and which GPU.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Wish {
    /// A file, a folder or a block device, there or to be made.
    pub path: PathBuf,
    /// The GPU.
    pub gpu: GpuWish,
}

/// Which GPU a diagnosis is about.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum GpuWish {
    /// The first on PCI.
    #[default]
    First,
    /// This one, in the order of addresses on PCI.
    Index(usize),
    /// The one at this address on PCI, which somebody named.
    At(String),
    /// None, for this reason.
    None(String),
}

/// What stands between a path and a GPU of `system`; `cufile` is what cuFile said there.
#[must_use]
pub fn examine(system: &System, wish: &Wish, cufile: Option<Answer>) -> Report {
    let facts = Facts::read(system, wish, cufile);
    let path = crate::topology::clean(&wish.path.to_string_lossy());
    Report::new(path, facts.shown_gpu(), facts.checks())
}

/// Writes all that [`examine`] reads of this machine into the new folder `dir`. What did not answer
/// `system`, which is the live one, is not looked at.
///
/// # Errors
/// [`io::ErrorKind::AlreadyExists`] where there is something at `dir`; what else the writing meets.
pub fn record(system: &System, wish: &Wish, cufile: Option<Answer>, dir: &Path) -> io::Result<()> {
    let lines = cufile.as_ref().map(answer_to_lines);
    let wish = Wish { path: std::path::absolute(&wish.path)?, gpu: wish.gpu.clone() };
    record_with(system, std::slice::from_ref(&wish.path), dir, |system| {
        let _ = Facts::read(system, &wish, cufile); // only to have its files read
    })?;
    match lines {
        Some(lines) => {
            let file = dir.join(CUFILE_FILE);
            let mut options = std::fs::OpenOptions::new();
            let mut file = options.write(true).create_new(true).open(file)?;
            io::Write::write_all(&mut file, lines.as_bytes())
        }
        None => Ok(()),
    }
}

/// What cuFile said when the record in `dir` was made; none where it was not asked.
///
/// # Errors
/// The file's, where it is there and cannot be read.
pub fn recorded_answer(dir: &Path) -> io::Result<Option<Answer>> {
    match read_record(&dir.join(CUFILE_FILE), ANSWER_MAX) {
        Ok(bytes) => Ok(Some(answer_from_lines(&String::from_utf8_lossy(&bytes)))),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    const PAGE: &str = include_str!("../../../../docs/doctor.md");
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
