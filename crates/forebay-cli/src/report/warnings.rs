//! Warnings for the reader of the numbers, each with the next thing to try.

use std::fmt;

use forebay::units::format_size;

/// Most rows that a warning names.
const NAMES_MAX: usize = 3;
/// Shorter samples are too inaccurate.
pub(crate) const SECONDS_MIN: f64 = 0.002;

/// Something that a reader of the numbers should know.
#[derive(Debug, Clone, PartialEq)]
pub enum Warning {
    /// There is no GPU, and why.
    HostTarget(String),
    /// The GPU is simulated.
    Simulated,
    /// The file system keeps its files in memory.
    InMemory(String),
    /// The file's pages cannot be dropped, and why.
    Resident(String),
    /// Rows are missing because the file cannot be brought into the wanted state.
    LeftOut {
        /// Which rows.
        rows: Vec<String>,
        /// Why.
        reason: String,
    },
    /// Only the start of a file is read.
    Part {
        /// Bytes that are read.
        len: u64,
        /// Bytes of the whole file.
        whole: u64,
    },
    /// cuFile's compat mode is not compared, and why.
    NoCufile(String),
    /// The GPU's own work is not measured, and why.
    NoCompute(String),
    /// Scratch of crashed runs was removed.
    Leftovers(usize),
    /// A message of the engine.
    Engine(String),
    /// Runs of a comparison far apart.
    Unstable {
        /// Which rows.
        rows: Vec<String>,
        /// The largest range, as a share of the mean.
        variation: f64,
        /// How many runs there were.
        runs: u32,
    },
    /// Samples too short.
    Short {
        /// Which rows.
        rows: Vec<String>,
    },
    /// Wrong bytes.
    Wrong {
        /// Which row.
        row: String,
    },
}

impl fmt::Display for Warning {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::HostTarget(reason) => write!(
                f,
                "the target is host memory: {reason}; `--gpu sim` shows every row with a simulated \
                 GPU"
            ),
            Self::Simulated => f.write_str(
                "the GPU is simulated: its numbers say nothing about hardware; leave `--gpu` out \
                 on a machine with a GPU",
            ),
            Self::InMemory(kind) => write!(
                f,
                "no cold rows and no storage limit: {kind} keeps its files in memory; give a \
                 path on a drive"
            ),
            Self::LeftOut { rows, reason } => {
                write!(f, "left out: {}: {reason}", some(rows))
            }
            Self::Part { len, whole } => write!(
                f,
                "only the first {} of {} are read, to save time; `--size {whole}` reads all",
                format_size(*len),
                format_size(*whole)
            ),
            Self::Resident(_) | Self::NoCompute(_) | Self::Unstable { .. } => {
                self.about_gpu_files(f)
            }
            Self::NoCufile(reason) => write!(f, "cuFile's compat mode is not compared: {reason}"),
            Self::Leftovers(1) => f.write_str("removed the scratch that a crashed run had left"),
            Self::Leftovers(count) => {
                write!(f, "removed the scratch that {count} crashed runs had left")
            }
            Self::Engine(note) => f.write_str(note),
            Self::Short { rows } => write!(
                f,
                "samples shorter than 2 ms are inaccurate: {}; try a larger `--size`",
                some(rows)
            ),
            Self::Wrong { row } => write!(
                f,
                "{row} moved wrong data: its speed means nothing; check whether the file changed \
                 during the run, and the kernel's log"
            ),
        }
    }
}

impl Warning {
    /// Warnings that only `forebay gpu-file-benchmark` has.
    fn about_gpu_files(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Resident(reason) => write!(
                f,
                "the file stays in memory, so no drive is compared: {reason}; give a path on a \
                 drive"
            ),
            Self::NoCompute(reason) => write!(
                f,
                "the GPU's own work during a read is not measured: {reason}; `-m compare` leaves \
                 it out"
            ),
            Self::Unstable { rows, variation, runs } => write!(
                f,
                "unstable, by up to {:.0} %: {}; end other work on this machine, or try `-r {}` or \
                 a larger `-s`",
                variation * 100.0,
                some(rows),
                (runs * 3).max(9)
            ),
            _ => Ok(()),
        }
    }
}

/// The first few of the names, and how many more there are.
fn some(rows: &[String]) -> String {
    let shown = rows.iter().take(NAMES_MAX).map(String::as_str).collect::<Vec<_>>().join("; ");
    match rows.len().checked_sub(NAMES_MAX) {
        None | Some(0) => shown,
        Some(more) => format!("{shown}; and {more} more"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_warning_names_what_to_do_next() {
        let rows = || vec!["`mmap` read, cold".to_owned(), "`standard` read, cold".to_owned()];
        let warnings = [
            Warning::HostTarget("no driver".into()),
            Warning::Simulated,
            Warning::InMemory("tmpfs".into()),
            Warning::LeftOut { rows: rows(), reason: "why".into() },
            Warning::Part { len: 1 << 30, whole: 5 << 30 },
            Warning::NoCufile("no library; get one".into()),
            Warning::Leftovers(1),
            Warning::Leftovers(2),
            Warning::Short { rows: rows() },
            Warning::Wrong { row: rows().remove(0) },
        ];
        let text: Vec<String> =
            warnings.iter().map(|warning| wrapped(&warning.to_string())).collect();
        insta::assert_snapshot!(text.join("\n"), @"
        the target is host memory: no driver; `--gpu sim` shows every row with a
          simulated GPU
        the GPU is simulated: its numbers say nothing about hardware; leave `--gpu` out
          on a machine with a GPU
        no cold rows and no storage limit: tmpfs keeps its files in memory; give a path
          on a drive
        left out: `mmap` read, cold; `standard` read, cold: why
        only the first 1 GiB of 5 GiB are read, to save time; `--size 5368709120` reads
          all
        cuFile's compat mode is not compared: no library; get one
        removed the scratch that a crashed run had left
        removed the scratch that 2 crashed runs had left
        samples shorter than 2 ms are inaccurate: `mmap` read, cold; `standard` read,
          cold; try a larger `--size`
        `mmap` read, cold moved wrong data: its speed means nothing; check whether the
          file changed during the run, and the kernel's log
        ");
    }

    #[test]
    fn those_of_a_comparison_do_so_too() {
        let rows = vec!["`standard` read, cold".to_owned()];
        let warnings = [
            Warning::Resident("ramfs keeps its files in memory".into()),
            Warning::NoCompute("there is no GPU".into()),
            Warning::Unstable { rows, variation: 1.45, runs: 4 },
        ];
        let text: Vec<String> =
            warnings.iter().map(|warning| wrapped(&warning.to_string())).collect();
        insta::assert_snapshot!(text.join("\n"), @"
        the file stays in memory, so no drive is compared: ramfs keeps its files in
          memory; give a path on a drive
        the GPU's own work during a read is not measured: there is no GPU; `-m compare`
          leaves it out
        unstable, by up to 145 %: `standard` read, cold; end other work on this machine,
          or try `-r 12` or a larger `-s`
        ");
    }

    #[test]
    fn a_long_list_is_cut() {
        let names: Vec<_> = ["a", "b", "c", "d", "e"].map(String::from).into();
        assert_eq!(some(&names[..3]), "a; b; c");
        assert_eq!(some(&names), "a; b; c; and 2 more");
    }

    /// Lines that fit into this file.
    fn wrapped(text: &str) -> String {
        let mut lines = vec![String::new()];
        for word in text.split(' ') {
            let line = lines.last_mut().unwrap();
            match line.len() {
                0 => line.push_str(word),
                len if len + word.len() < 80 => *line = format!("{line} {word}"),
                _ => lines.push(format!("  {word}")),
            }
        }
        lines.join("\n")
    }
}
