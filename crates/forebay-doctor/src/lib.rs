//! Diagnoses the obstacles to direct I/O between a path and a GPU, and suggests the next steps.
//!
//! [`examine`] reads all facts below the root of a [`System`] and returns a [`Report`]: checks,
//! with the finding, the reason why it matters and the next step, sorted by how much they hold the
//! path back. Nothing is written, no device is opened and no library is loaded;
//! cuFile is probed beforehand in a separate process ([`forebay_cufile::probe_cufile`]).
//!
//! `facts` reads what several checks use; `topics` lists the checks. Their groups
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
mod topics;
mod volumes;

use std::fs::File;
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};

pub use facts::{GpuWish, Wish};
pub use forebay_cufile::Answer;
pub use report::{Check, DirectPath, Gpu, Outlook, Report, State};

use facts::Facts;
use forebay_cufile::{answer_from_lines, answer_to_lines};
use forebay_topology::{System, read_record, record_with};

/// The file of a record that holds cuFile's answer.
const CUFILE_FILE: &str = "expected/cufile.txt";
const ANSWER_MAX: usize = 64 << 10;

/// Diagnoses the path from a file to a GPU of `system`; `cufile` is cuFile's answer there.
pub fn examine(system: &System, wish: &Wish, cufile: Option<Answer>) -> Report {
    let facts = Facts::read(system, wish, cufile);
    let path = forebay_topology::clean(&wish.path.to_string_lossy());
    Report::new(path, facts.shown_gpu(), checks(&facts))
}

/// All checks, those first that are hardest to change.
fn checks(facts: &Facts) -> Vec<Check> {
    let mut checks = facts.storage.checks(facts);
    checks.extend(network::checks(facts));
    checks.extend(facts.driver.checks(facts));
    checks.extend(devices::check(facts));
    checks.extend(facts.kernel.checks(facts));
    checks.extend(pcie::checks(facts));
    checks.extend(facts.config.checks(facts));
    checks.extend(cufile::checks(facts));
    checks.extend(facts.process.checks(facts));
    checks
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
            let _ = examine(system, &wish, cufile.clone()); // reads files for the record
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
    use super::topics::ALL;

    #[test]
    fn the_page_lists_every_check() {
        let (_, page) = include_str!("../../../docs/doctor.md")
            .split_once("\n## The checks\n")
            .expect("its heading");
        let page = page.split("\n## ").next().expect("its text");
        let names = ALL.iter().map(|topic| topic.name);
        let missing = names.filter(|name| !page.contains(&format!("| `{name}` |")));
        assert_eq!(missing.collect::<Vec<_>>(), Vec::<&str>::new());
        let listed = page.lines().filter(|line| line.starts_with("| `")).count();
        assert_eq!(listed, ALL.len());
    }
}
