//! `cargo xtask bench`: measures the project's performance targets (bars), and archives the run.
//!
//! A bar is a plan ([`plans`]): commands of `forebay bench` and `fio` that run in turn, round by
//! round, and a bound for their medians ([`judge`]). The bars for GPUs are a Python program,
//! `benches/gpus`, which measures the wheel.

mod judge;
mod plans;
mod run;

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::Command;

use forebay_measure::environment;
use forebay_measure::results::machine;
use rustix::fs::{FlockOperation, flock};

use self::judge::Judged;
use self::run::{Drives, Run, Stop, Tools};
use crate::folders::{failed, make};
use crate::process::{self, Result, say};
use crate::{bundle, test};

/// The prefix of the folders of test files.
const PREFIX: &str = ".forebay-bars-";

/// The options of the command line.
#[derive(Debug, Default, clap::Args)]
pub(crate) struct Arguments {
    /// `gpus` measures GPUs by `benches/gpus`, which gets all arguments after it.
    #[arg(value_name = "gpus", allow_hyphen_values = true, trailing_var_arg = true)]
    gpus: Vec<String>,
    /// Measure bars whose name contains NAME.
    #[arg(long, value_name = "NAME")]
    only: Option<String>,
    /// Use small files and a single round: shows that the bars run, judges nothing.
    #[arg(long)]
    tiny: bool,
    /// Folder in which test files are made and removed.
    #[arg(long, value_name = "DIR", default_value = ".")]
    scratch: PathBuf,
    /// Write environment.json, samples.jsonl and table.txt to this folder.
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
    /// Write them to a new folder DIR/DATE-MACHINE.
    #[arg(long, value_name = "DIR")]
    archive: Option<PathBuf>,
    /// The `forebay` command to measure; by default a release build of this repository.
    #[arg(long, value_name = "FILE")]
    program: Option<PathBuf>,
    /// Mounts of this process are private.
    #[arg(long, hide = true)]
    private: bool,
}

/// Runs the chore; `Ok(false)` if a bar was missed.
pub(crate) fn run(mut arguments: Arguments) -> Result<bool> {
    if let [first, rest @ ..] = &arguments.gpus[..] {
        return if first == "gpus" { gpus(rest) } else { Err(format!("no bars `{first}`")) };
    }
    if arguments.private {
        return measure(&arguments);
    }
    if arguments.program.is_none() {
        arguments.program = Some(build(&crate::repository()?)?);
        if arguments.out.is_none() && !arguments.tiny {
            let archive = || Ok::<_, String>(crate::repository()?.join("benches/runs"));
            arguments.archive = Some(arguments.archive.map_or_else(archive, Ok)?);
        }
    }
    // Mounts vanish with the process, even if it is killed.
    let unshare = ["--mount", "--propagation", "private", "--"];
    if !process::succeeds(Command::new("unshare").args(unshare).arg("true"))? {
        return measure(&arguments);
    }
    let own = std::env::current_exe().map_err(|error| format!("cannot find itself: {error}"))?;
    let mut private = Command::new("unshare");
    private.args(unshare).arg(own).args(["bench", "--private"]).args(arguments.words());
    process::succeeds(private.env("PATH", process::full_path()))
}

impl Arguments {
    /// The arguments of the process with private mounts.
    fn words(&self) -> Vec<std::ffi::OsString> {
        let paths = [
            ("--scratch", Some(&self.scratch)),
            ("--out", self.out.as_ref()),
            ("--archive", self.archive.as_ref()),
            ("--program", self.program.as_ref()),
        ];
        let pairs = paths.into_iter().filter_map(|(name, path)| Some((name, path?.into())));
        let only = self.only.as_ref().map(|only| ("--only", only.into()));
        let pairs = pairs.chain(only).flat_map(|(name, value)| [name.into(), value]);
        pairs.chain(self.tiny.then(|| "--tiny".into())).collect()
    }
}

fn gpus(rest: &[String]) -> Result<bool> {
    let root = crate::repository()?;
    let folder = test::target(&root)?.join("gpus");
    bundle::gpus(&root, &folder)?;
    let mut bars = Command::new("python3");
    bars.arg(folder.join("gpus")).arg("--archive").arg(root.join("benches/runs"));
    process::succeeds(bars.args(rest))
}

/// Builds the command in release mode.
fn build(root: &Path) -> Result<PathBuf> {
    let mut build = process::cargo();
    process::must_succeed(build.current_dir(root).args([
        "build",
        "--release",
        "--bin",
        "forebay",
    ]))?;
    Ok(test::target(root)?.join("release/forebay"))
}

fn measure(arguments: &Arguments) -> Result<bool> {
    let program = arguments.program.clone().ok_or("no program to measure")?;
    let program = program.canonicalize().map_err(failed(&program))?;
    let scratch = arguments.scratch.canonicalize().map_err(failed(&arguments.scratch))?;
    let (scratch, _lock) = scratch_in(&scratch)?;
    let tools = Tools { program, tiny: arguments.tiny };
    let mut archive = Archive::new(arguments, scratch.path())?;
    let only = arguments.only.as_deref();
    for bar in plans::BARS.iter().filter(|bar| only.is_none_or(|name| bar.name.contains(name))) {
        let folder = scratch.path().join(bar.name);
        make(&folder)?;
        let private = arguments.private;
        let judged = Drives::new(bar.on, &folder, private, &tools)
            .and_then(|drives| Run { bar, drives, tools: &tools }.series())
            .map_or_else(Judged::stopped, |series| Judged::new(bar.checks, series));
        archive.add(bar.name, judged)?;
    }
    Ok(archive.finish())
}

/// A locked folder for test files. Folders without a lock are those of killed runs; they are
/// removed.
fn scratch_in(parent: &Path) -> Result<(tempfile::TempDir, File)> {
    let lock = |folder: &Path| {
        let file = File::open(folder)?;
        flock(&file, FlockOperation::NonBlockingLockExclusive)?;
        Ok(file)
    };
    for entry in fs::read_dir(parent).map_err(failed(parent))?.flatten() {
        let is_ours = entry.file_name().to_string_lossy().starts_with(PREFIX);
        if is_ours && lock(&entry.path()).is_ok() {
            let _ = fs::remove_dir_all(entry.path());
        }
    }
    let folder = tempfile::Builder::new().prefix(PREFIX).tempdir_in(parent);
    let folder = folder.map_err(failed(parent))?;
    let lock = lock(folder.path()).map_err(failed(folder.path()))?;
    Ok((folder, lock))
}

/// The results: a table for the user, and three files that document the run. They are rewritten
/// after every bar, so that a crash loses nothing.
#[derive(Debug, Default)]
struct Archive {
    folder: Option<PathBuf>,
    is_judged: bool,
    environment: String,
    table: Vec<String>,
    samples: Vec<String>,
    /// Bars that passed, failed and were skipped.
    counts: [u32; 3],
}

impl Archive {
    /// Makes the folder, if the arguments request one, and prints the head of the table.
    fn new(arguments: &Arguments, scratch: &Path) -> Result<Self> {
        let words = std::env::args().collect::<Vec<_>>().join(" ");
        let facts = environment::collect(scratch, None, &words);
        let commit = std::env::var("FOREBAY_COMMIT");
        let commit = commit.or_else(|_| crate::repository().map(|root| bundle::commit(&root)));
        let commit = commit.unwrap_or_else(|_| "unknown".into());
        let (cores, cpu, kernel) = (facts.cpu.cores, &facts.cpu.model, &facts.kernel);
        let place = machine::place(&facts, false).unwrap_or_default();
        let head = format!("{cores} × {cpu}, {kernel}, {place}, commit {commit}");
        let words = cpu.split(|c: char| !c.is_ascii_alphanumeric()).filter(|word| !word.is_empty());
        let model = words.map(str::to_ascii_lowercase).collect::<Vec<_>>().join("-");
        let date = process::output(Command::new("date").args(["-u", "+%F"]))?;
        let label = format!("{}-{cores}-core-{model}", date.trim());
        let folder = arguments.out.clone();
        let folder = folder.or_else(|| arguments.archive.as_ref().map(|in_| free(in_, &label)));
        folder.as_deref().map_or(Ok(()), make)?;
        let environment = serde_json::json!({"commit": commit, "machine": facts});
        let environment = format!("{environment:#}\n");
        let table = vec![head, String::new(), judge::HEAD.into()];
        table.iter().for_each(|line| say!("{line}"));
        Ok(Self { folder, is_judged: !arguments.tiny, environment, table, ..Self::default() })
    }

    fn add(&mut self, bar: &str, judged: Judged) -> Result<()> {
        let lines = judged.lines(bar, self.is_judged);
        lines.iter().for_each(|line| say!("{line}"));
        self.table.extend(lines);
        self.samples.extend(judged.series.iter().map(|series| {
            serde_json::json!({"bar": bar, "name": series.name, "samples": series.samples})
                .to_string()
        }));
        let place = match (&judged.stopped, self.is_judged && judged.is_missed()) {
            (Some(Stop::Skip(_)), _) => 2,
            (Some(Stop::Fail(_)), _) | (None, true) => 1,
            (None, false) => 0,
        };
        self.counts[place] += 1;
        let Some(folder) = &self.folder else { return Ok(()) };
        let write = |name: &str, text: String| {
            let path = folder.join(name);
            fs::write(&path, text).map_err(failed(&path))
        };
        write("environment.json", self.environment.clone())?;
        write("samples.jsonl", self.samples.join("\n") + "\n")?;
        write("table.txt", self.table.join("\n") + "\n")
    }

    /// Prints the sums; true if no bar failed.
    fn finish(&self) -> bool {
        let [passed, failed, skipped] = self.counts;
        say!("\n{passed} passed, {failed} failed, {skipped} skipped");
        if !self.is_judged {
            say!("no bound was judged: the run was tiny");
        }
        if let Some(folder) = &self.folder {
            say!("archived in `{}`", folder.display());
        }
        failed == 0
    }
}

/// `parent/label`, or with a number appended if that exists: archived runs stay as they are.
fn free(parent: &Path, label: &str) -> PathBuf {
    let names = (1_u32..).map(|n| if n == 1 { label.into() } else { format!("{label}-{n}") });
    names.map(|name| parent.join(name)).find(|path| !path.exists()).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn folders_of_killed_runs_are_removed_and_locked_ones_kept() {
        let parent = tempfile::tempdir().unwrap();
        let killed = parent.path().join(".forebay-bars-killed");
        let other = parent.path().join("forebay-bars-other");
        fs::create_dir(&killed).unwrap();
        fs::create_dir(&other).unwrap();
        let (first, _lock) = scratch_in(parent.path()).unwrap();
        let (_second, _) = scratch_in(parent.path()).unwrap();
        assert!(!killed.exists());
        assert!(other.exists() && first.path().exists());
    }

    #[test]
    fn runs_are_written_and_never_over_an_earlier_one() {
        let parent = tempfile::tempdir().unwrap();
        fs::create_dir(parent.path().join("run")).unwrap();
        let folder = free(parent.path(), "run");
        assert!(folder.ends_with("run-2"));
        make(&folder).unwrap();
        let mut archive =
            Archive { folder: Some(folder.clone()), is_judged: true, ..Archive::default() };
        archive.add("a", Judged::stopped(Stop::Skip("no drive".into()))).unwrap();
        assert!(archive.finish());
        archive.add("b", Judged::stopped(Stop::Fail("no bytes".into()))).unwrap();
        assert!(!archive.finish());
        let table = fs::read_to_string(folder.join("table.txt")).unwrap();
        assert_eq!(table.lines().filter(|line| line.contains("no ")).count(), 2, "{table}");
    }
}
