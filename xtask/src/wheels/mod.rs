//! `cargo xtask wheels [PART]...`: the Python package as distributed. Wheels and the source archive
//! are built, measured, installed into empty environments, and tested there.
//!
//! `workshop` has the folders and tools of all parts, `native` makes this machine's wheel, `source`
//! builds from sources, `aarch64` makes that processor's wheel, which `emulated` runs in an
//! emulator. `free_threaded` makes wheels for Pythons without a GIL; `interpreters` finds other
//! Pythons. Missing tools are reported as skipped. The wheels stay in `target/wheels/dist`.

mod aarch64;
mod emulated;
mod free_threaded;
mod interpreters;
mod native;
mod source;
mod workshop;

use std::path::Path;

use workshop::Workshop;

use crate::process::{Result, say};
use crate::python;
use crate::report::Report;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Part {
    Native,
    Source,
    Aarch64,
    FreeThreaded,
}

impl Part {
    const ALL: [Self; 4] = [Self::Native, Self::Source, Self::Aarch64, Self::FreeThreaded];

    fn name(self) -> &'static str {
        match self {
            Self::Native => "native",
            Self::Source => "source",
            Self::Aarch64 => "aarch64",
            Self::FreeThreaded => "free-threaded",
        }
    }

    fn run(self, report: &mut Report, workshop: &Workshop) -> Result<()> {
        say!("\n== wheels: {}", self.name());
        match self {
            Self::Native => native::run(report, workshop),
            Self::Source => source::run(report, workshop),
            Self::Aarch64 => aarch64::run(report, workshop),
            Self::FreeThreaded => free_threaded::run(report, workshop),
        }
    }
}

/// The chore: `Ok(false)` if a check failed.
pub(crate) fn run(root: &Path, arguments: &[&str]) -> Result<bool> {
    let mut report = Report::default();
    parts(&mut report, root, &chosen(arguments)?)?;
    Ok(report.finish())
}

/// All parts that belong to the tests.
pub(crate) fn for_tests(report: &mut Report, root: &Path) -> Result<()> {
    parts(report, root, &Part::ALL)
}

fn parts(report: &mut Report, root: &Path, parts: &[Part]) -> Result<()> {
    match python::system().and_then(|python| Workshop::open(root, &python)) {
        Ok(workshop) => parts.iter().try_for_each(|part| part.run(report, &workshop)),
        Err(reason) => {
            report.skip(format!("wheels: {reason}"));
            Ok(())
        }
    }
}

/// The parts that a command line names, or all.
fn chosen(arguments: &[&str]) -> Result<Vec<Part>> {
    if arguments.is_empty() {
        return Ok(Part::ALL.into());
    }
    let one = |word: &&str| {
        let found = Part::ALL.into_iter().find(|part| part.name() == *word);
        let names = Part::ALL.map(|part| format!("`{}`", part.name())).join(", ");
        found.ok_or_else(|| format!("no such part: `{word}` (there are {names})"))
    };
    arguments.iter().map(one).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_are_chosen_by_name() {
        assert_eq!(chosen(&[]), Ok(Part::ALL.into()));
        assert_eq!(chosen(&["source"]), Ok(vec![Part::Source]));
        let message = chosen(&["native", "mips"]).unwrap_err();
        assert!(message.starts_with("no such part: `mips` (there are `native`, "), "{message}");
    }
}
