//! `cargo xtask lab`: a virtual machine with many kinds of storage, in which the storage map and
//! reads are compared with how the machine was built.
//!
//! An emulator and a Debian system are fetched as packages. `image` makes the initial disk,
//! `machine` defines the drives, `boot` runs the machine, `found` compares. Its scripts are in
//! `xtask/lab/guest`; see docs/internals/lab.md.

mod archive;
mod bench;
mod boot;
mod expected;
mod found;
mod image;
mod machine;
mod share;
mod table;

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use found::Row;
use image::Image;
use machine::{Kind, Start};
use share::Share;

use crate::packages::{Origin, Tree};
use crate::process::{self, Result, find, say};
use crate::{folders, test};

const HELP: &str = "\
usage: cargo xtask lab [ARGUMENT]...

  --bench        measures files striped over capped drives instead, and archives the run
  --out DIR      where `--bench` archives (default: benches/runs/DATE-lab)
  --script NAME  runs `xtask/lab/guest/NAME.sh` in the machine and shows what it prints
  --record DIR   keeps records of the machine in DIR, whole and broken, for `forebay map --fixture`
  --kvm          runs on the processor's own virtualisation instead of emulating a processor
";

/// How long the machine may run.
const LIMIT: Duration = Duration::from_secs(1500);

/// How a run ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum End {
    /// It ran; true if all was as expected.
    Ran(bool),
    /// It could not run here, and why.
    Skipped(String),
}

/// The options of the command line.
#[derive(Debug, Default)]
struct Wishes {
    bench: bool,
    out: Option<PathBuf>,
    script: Option<String>,
    record: Option<PathBuf>,
    kvm: bool,
}

/// The chore: `Ok(false)` if there is a difference.
pub(crate) fn run(root: &Path, arguments: &[&str]) -> Result<bool> {
    let mut wishes = Wishes::default();
    let mut words = arguments.iter();
    while let Some(word) = words.next() {
        let mut folder = || {
            let folder = words.next().ok_or(format!("`{word}` takes a folder"))?;
            std::path::absolute(folder).map_err(|error| format!("`{folder}`: {error}"))
        };
        match *word {
            "--bench" => wishes.bench = true,
            "--out" => wishes.out = Some(folder()?),
            "--record" => wishes.record = Some(folder()?),
            "--script" => {
                let name = words.next().ok_or("`--script` takes a name")?;
                wishes.script = Some((*name).to_owned());
            }
            "--kvm" => wishes.kvm = true,
            "help" | "-h" | "--help" => {
                say!("{HELP}");
                return Ok(true);
            }
            other => return Err(format!("no such argument: `{other}`\n\n{HELP}")),
        }
    }
    let end = if wishes.bench { measured(root, &wishes)? } else { every(root, &wishes)? };
    match end {
        End::Ran(passed) => Ok(passed),
        End::Skipped(reason) => {
            say!("skipped: lab: {reason}");
            Ok(true)
        }
    }
}

/// The run that belongs to the tests.
pub(crate) fn for_tests(root: &Path) -> Result<End> {
    every(root, &Wishes::default())
}

/// The missing requirement of this machine, if any.
fn lacking() -> Option<String> {
    if !cfg!(all(target_os = "linux", target_arch = "x86_64")) {
        return Some("the virtual machine is an x86-64 one, for Linux on x86-64".into());
    }
    let release = std::fs::read_to_string("/etc/os-release").unwrap_or_default();
    if !release.lines().any(|line| line == "ID=debian") {
        return Some("its packages are Debian's, and this is no Debian".into());
    }
    let missing = ["apt-get", "dpkg-deb", "tar", "chroot"].iter().find(|p| find(p).is_none());
    if let Some(program) = missing {
        return Some(format!("no `{program}` on this machine"));
    }
    (!process::is_root()).then(|| "only root may unpack a system".into())
}

/// Builds the machine with every situation, runs it and judges its results.
fn every(root: &Path, wishes: &Wishes) -> Result<End> {
    let ground = match Ground::prepare(root)? {
        Ok(ground) => ground,
        Err(reason) => return Ok(End::Skipped(reason)),
    };
    let share = Share::fill(root, &ground.cache.join("share"))?;
    if wishes.record.is_some() {
        share.ask_for_record()?;
    }
    let script = wishes.script.as_deref();
    ground.boot(&share, Kind::Every, script.unwrap_or("every"), wishes)?;
    if script.is_some() {
        say!("{}", folders::text(&share.out().join("script.txt"))?);
        return Ok(End::Ran(share.complaints()));
    }
    let mut right = true;
    for name in ["whole", "broken"] {
        let rows = found::judge(&share.out().join(name))?;
        right &= show(name, &rows);
    }
    right &= share.complaints();
    if let Some(folder) = &wishes.record {
        share.keep_record(folder)?;
    }
    Ok(End::Ran(right))
}

/// Builds the machine with capped drives, measures in it and judges.
fn measured(root: &Path, wishes: &Wishes) -> Result<End> {
    let ground = match Ground::prepare(root)? {
        Ok(ground) => ground,
        Err(reason) => return Ok(End::Skipped(reason)),
    };
    let share = Share::fill(root, &ground.cache.join("share"))?;
    ground.boot(&share, Kind::Capped(bench::RATE), "bench", wishes)?;
    if !share.complaints() {
        return Ok(End::Ran(false));
    }
    let date = process::output(std::process::Command::new("date").arg("+%F"))?;
    let archive = || root.join("benches/runs").join(format!("{}-lab", date.trim()));
    let folder = wishes.out.clone().unwrap_or_else(archive);
    let environment = bench::environment(root, &share.out(), date.trim(), &ground.image.release)?;
    bench::judge(&share.out(), &folder, &environment).map(End::Ran)
}

/// Prints the table; returns true if there is no difference.
fn show(name: &str, rows: &[Row]) -> bool {
    say!("\n{name}:");
    for line in table::lines(rows) {
        say!("{line}");
    }
    let differing = rows.iter().filter(|row| !row.differences.is_empty()).count();
    say!("{} paths, {differing} differ", rows.len());
    differing == 0
}

/// The parts that every run uses.
struct Ground {
    cache: PathBuf,
    image: Image,
    /// The emulator, if this machine has none installed.
    emulator: Option<Tree>,
}

impl Ground {
    /// The requirements of every run, or why one is unavailable here.
    fn prepare(root: &Path) -> Result<Result<Self>> {
        if let Some(reason) = lacking() {
            return Ok(Err(reason));
        }
        let cache = test::target(root)?.join("lab");
        folders::make(&cache)?;
        let made = Self::make(root, cache);
        Ok(made.map_err(|reason| format!("it cannot be prepared: {reason}")))
    }

    fn make(root: &Path, cache: PathBuf) -> Result<Self> {
        let emulator = match find("qemu-system-x86_64") {
            Some(_) => None,
            None => Some(Tree::fetch(&cache, "emulator", Origin::Machine, &machine::PACKAGES)?),
        };
        let image = Image::build(&cache, &root.join("xtask/lab/guest/first.sh"))?;
        Ok(Self { cache, image, emulator })
    }

    /// Runs one script in a fresh machine.
    fn boot(&self, share: &Share, kind: Kind, script: &str, wishes: &Wishes) -> Result<()> {
        let drives = self.cache.join("drives");
        folders::remove(&drives)?;
        folders::make(&drives)?;
        let start = Start {
            kind,
            image: &self.image,
            share: share.folder(),
            drives: &drives,
            script,
            seconds: LIMIT.as_secs(),
            kvm: wishes.kvm,
        };
        let begun = Instant::now();
        let command = start.command(self.emulator.as_ref())?;
        let ended = boot::run(command, &self.cache.join("console.txt"), LIMIT);
        folders::remove(&drives)?;
        ended?;
        say!("lab: the machine ran for {} s", begun.elapsed().as_secs());
        Ok(())
    }
}
