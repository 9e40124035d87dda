//! Warnings for the reader of the numbers, each with the next thing to try.

use std::fmt;

use forebay::units::format_size;

use super::json::{MethodName, Report, Row};
use super::paths;

/// Samples further apart than this share of their median are called unsteady.
const SPREAD_MAX: f64 = 0.25;
/// A method above its limit by this factor was not bound by it.
const SHARE_MAX: f64 = 1.05;
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
    /// Only the start of some of several files is read.
    Parts {
        /// How many files.
        parts: usize,
        /// Bytes of all that are read.
        len: u64,
    },
    /// Some paths share a drive.
    SameDrive {
        /// How many paths there are.
        paths: usize,
        /// How many queues these have.
        queues: usize,
    },
    /// Queues that share these drives.
    SharedDrive(Vec<String>),
    /// Some drives were busy for longer than others.
    Uneven {
        /// The share of the sum of all that can be reached at best.
        share: f64,
    },
    /// KvikIO is not compared, and why.
    NoKvikio(String),
    /// cuFile's compat mode is not compared, and why.
    NoCufile(String),
    /// The GPU's own work is not measured, and why.
    NoCompute(String),
    /// `fio` is not installed.
    NoFio,
    /// Scratch of crashed runs was removed.
    Leftovers(usize),
    /// A message of the engine.
    Engine(String),
    /// Samples far apart.
    Unsteady {
        /// Which rows.
        rows: Vec<String>,
        /// The largest range, as a share of the median.
        spread: f64,
        /// How many samples a row has.
        count: usize,
    },
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
    /// A method above its limit.
    AboveLimit {
        /// Which row.
        row: String,
        /// Its share.
        share: f64,
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
            Self::Parts { .. }
            | Self::SameDrive { .. }
            | Self::SharedDrive(_)
            | Self::Uneven { .. }
            | Self::NoKvikio(_) => self.about_paths(f),
            Self::Resident(_) | Self::NoCompute(_) | Self::Unstable { .. } => {
                self.about_gpu_files(f)
            }
            Self::NoCufile(reason) => write!(f, "cuFile's compat mode is not compared: {reason}"),
            Self::NoFio => f.write_str(
                "`fio` is not installed: install it to check the storage limit by a second tool",
            ),
            Self::Leftovers(1) => f.write_str("removed the scratch that a crashed run had left"),
            Self::Leftovers(count) => {
                write!(f, "removed the scratch that {count} crashed runs had left")
            }
            Self::Engine(note) => f.write_str(note),
            Self::Unsteady { rows, spread, count } => write!(
                f,
                "unsteady, by up to {:.0} %: {}; end other work on this machine, or try \
                 `--repeats {}`",
                spread * 100.0,
                some(rows),
                (count * 3).max(9)
            ),
            Self::Short { rows } => write!(
                f,
                "samples shorter than 2 ms are inaccurate: {}; try a larger `--size`",
                some(rows)
            ),
            Self::AboveLimit { row, share } => write!(
                f,
                "{row} reached {:.0} % of its limit: the limit varied, or a cache below the file \
                 system answered; try more `--repeats` or a larger `--size`",
                share * 100.0
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
    /// Warnings that only a run over several paths has.
    fn about_paths(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Parts { parts, len } => {
                let files = if *parts == 1 { "one file" } else { &format!("{parts} files") };
                write!(
                    f,
                    "only the start of {files} is read, {} of all paths together, to save time; \
                     `--size` reads more",
                    format_size(*len)
                )
            }
            Self::SameDrive { paths, queues } => write!(
                f,
                "{paths} paths are on {queues} drive{} or volume{}, whose bandwidth counts once; \
                 `forebay doctor --map` shows which",
                if *queues == 1 { "" } else { "s" },
                if *queues == 1 { "" } else { "s" },
            ),
            Self::SharedDrive(names) => write!(
                f,
                "several paths share {}, so the sum of their storage limits may be too high; \
                 `forebay doctor --map` shows how",
                some(names)
            ),
            Self::Uneven { share } => write!(
                f,
                "some drives worked for longer than others, so at best {:.0} % of their sum can be \
                 reached; leave `--size` out, or give files in proportion to their drives' speed",
                share * 100.0
            ),
            Self::NoKvikio(reason) => write!(
                f,
                "KvikIO is not compared: {reason}; install `kvikio` for the first `python3` that \
                 is found, and an NVIDIA driver"
            ),
            _ => Ok(()),
        }
    }

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

/// A row's name in warnings: with its path if there are several, and its size if these differ.
#[must_use]
pub fn name_of(row: &Row, path: Option<&str>, sizes: bool) -> String {
    let mut name = format!("`{}` {}", row.method.name(), row.direction.name());
    if let Some(cache) = row.cache {
        name = format!("{name}, {}", cache.name());
    }
    if let Some(route) = &row.demanded {
        name = format!("{name}, by `{route}`");
    }
    let several = [MethodName::Kvikio, MethodName::CufileCompat].contains(&row.method);
    if let Some(settings) = row.settings.as_ref().filter(|_| several) {
        name = format!("{name}, {}", settings.name);
    }
    if let Some(path) = path {
        name = format!("{name} of {path}");
    }
    if sizes { format!("{name}, {}", format_size(row.bytes)) } else { name }
}

/// Warnings on the rows themselves.
#[must_use]
pub fn about(report: &Report) -> Vec<Warning> {
    let methods = || report.results.iter().filter(|row| !row.method.is_ceiling());
    let several = paths::are_several(report);
    let sizes = methods().any(|row| methods().any(|other| other.size != row.size));
    let mut warnings = Vec::new();
    let mut short = Vec::new();
    let mut unsteady = (Vec::new(), 0.0_f64, 0);
    for row in &report.results {
        let path = row.paths.as_ref().filter(|_| several).and_then(|paths| match &paths[..] {
            [] => None,
            [path] => Some(format!("`{}`", paths::given(path))),
            paths => Some(format!("all {}", paths.len())),
        });
        let name = name_of(row, path.as_deref(), sizes);
        if row.verified == Some(false) {
            warnings.push(Warning::Wrong { row: name.clone() });
        }
        let spread = row.bytes_per_second.relative();
        if row.seconds.iter().any(|seconds| *seconds < SECONDS_MIN) {
            short.push(name);
        } else if let Some(share) = row.share_of_limit.filter(|share| *share > SHARE_MAX) {
            warnings.push(Warning::AboveLimit { row: name, share });
        } else if spread > SPREAD_MAX && !row.method.is_ceiling() {
            unsteady.0.push(name);
            unsteady.1 = unsteady.1.max(spread);
            unsteady.2 = row.seconds.len();
        }
    }
    if !short.is_empty() {
        warnings.push(Warning::Short { rows: short });
    }
    let (rows, spread, count) = unsteady;
    if !rows.is_empty() {
        warnings.push(Warning::Unsteady { rows, spread, count });
    }
    warnings
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::json::{Cache, tests::report};

    #[test]
    fn every_warning_names_what_to_do_next() {
        let rows = || vec!["`mmap` read, cold".to_owned(), "`standard` read, cold".to_owned()];
        let row = || rows().remove(0);
        let warnings = [
            Warning::HostTarget("no driver".into()),
            Warning::Simulated,
            Warning::InMemory("tmpfs".into()),
            Warning::LeftOut { rows: rows(), reason: "why".into() },
            Warning::Part { len: 1 << 30, whole: 5 << 30 },
            Warning::Parts { parts: 1, len: 1 << 30 },
            Warning::Parts { parts: 3, len: 1 << 30 },
            Warning::SameDrive { paths: 3, queues: 1 },
            Warning::SharedDrive(vec!["vda".into()]),
            Warning::Uneven { share: 0.5 },
            Warning::NoKvikio("no module".into()),
            Warning::NoCufile("no library; get one".into()),
            Warning::NoFio,
            Warning::Leftovers(1),
            Warning::Leftovers(2),
            Warning::Unsteady { rows: rows(), spread: 0.5, count: 3 },
            Warning::Short { rows: rows() },
            Warning::AboveLimit { row: row(), share: 1.2 },
            Warning::Wrong { row: row() },
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
        only the start of one file is read, 1 GiB of all paths together, to save time;
          `--size` reads more
        only the start of 3 files is read, 1 GiB of all paths together, to save time;
          `--size` reads more
        3 paths are on 1 drive or volume, whose bandwidth counts once; `forebay doctor
          --map` shows which
        several paths share vda, so the sum of their storage limits may be too high;
          `forebay doctor --map` shows how
        some drives worked for longer than others, so at best 50 % of their sum can be
          reached; leave `--size` out, or give files in proportion to their drives'
          speed
        KvikIO is not compared: no module; install `kvikio` for the first `python3` that
          is found, and an NVIDIA driver
        cuFile's compat mode is not compared: no library; get one
        `fio` is not installed: install it to check the storage limit by a second tool
        removed the scratch that a crashed run had left
        removed the scratch that 2 crashed runs had left
        unsteady, by up to 50 %: `mmap` read, cold; `standard` read, cold; end other
          work on this machine, or try `--repeats 9`
        samples shorter than 2 ms are inaccurate: `mmap` read, cold; `standard` read,
          cold; try a larger `--size`
        `mmap` read, cold reached 120 % of its limit: the limit varied, or a cache below
          the file system answered; try more `--repeats` or a larger `--size`
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

    #[test]
    fn rows_are_looked_at() {
        let mut report = report();
        assert_eq!(about(&report), []);
        let row = report.results.iter_mut().find(|row| row.cache == Some(Cache::Cold)).unwrap();
        row.verified = Some(false);
        row.bytes_per_second.max *= 2.0;
        let found = about(&report);
        assert!(matches!(&found[0], Warning::Wrong { row } if row == "`standard` read, cold"));
        assert!(matches!(&found[1], Warning::Unsteady { rows, .. } if rows.len() == 1));
        assert_eq!(found.len(), 2);
    }
}
