//! A `fio` that runs on any x86-64 or arm64 Linux: built static from the distribution's source
//! package, once, and kept under cargo's target folder.
//!
//! apt gets a separate configuration, so that nothing in the system changes.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::process::{self, Result, say};

/// I/O engines that the bars and tests need it to have.
const ENGINES: [&str; 3] = ["io_uring", "libaio", "psync"];

/// Parts that are left out, because they need libraries that a static build has not.
const LEFT_OUT: [&str; 13] = [
    "--disable-native",
    "--disable-http",
    "--disable-rbd",
    "--disable-rados",
    "--disable-rdma",
    "--disable-numa",
    "--disable-pmem",
    "--disable-lex",
    "--disable-gfapi",
    "--disable-libnfs",
    "--disable-libzbc",
    "--disable-xnvme",
    "--disable-tcmalloc",
];

/// The static `fio`, built now if it was not before.
pub(crate) fn build(target: &Path) -> Result<PathBuf> {
    let folder = target.join("fio");
    let program = folder.join("fio");
    if program.is_file() {
        return Ok(program);
    }
    for tool in ["apt-get", "dpkg", "make", "gcc", "tar"] {
        process::find(tool).ok_or_else(|| format!("a static `fio` needs `{tool}` to build"))?;
    }
    say!(err, "building a static `fio` from the distribution's source package");
    let work = folder.join("work");
    let _ = fs::remove_dir_all(&work);
    for name in ["lists/partial", "archives/partial", "aio"] {
        fs::create_dir_all(work.join(name))
            .map_err(|error| format!("cannot create `{}`: {error}", work.display()))?;
    }
    fetch(&work)?;
    let built = compile(&work)?;
    let engines = process::output(Command::new(&built).arg("--enghelp"))?;
    for engine in ENGINES {
        if !engines.lines().any(|line| line.trim() == engine) {
            return Err(format!("the static `fio` came out without the engine `{engine}`"));
        }
    }
    // Last, so that an interrupted build is not taken for a finished one.
    fs::rename(&built, &program)
        .map_err(|error| format!("cannot keep `{}`: {error}", program.display()))?;
    let _ = fs::remove_dir_all(&work);
    Ok(program)
}

/// Downloads the sources of fio and the static libaio into `work`, and unpacks both.
fn fetch(work: &Path) -> Result<()> {
    fs::write(work.join("sources.list"), sources_list()?)
        .map_err(|error| format!("cannot write apt's list of sources: {error}"))?;
    let apt = |arguments: &[&str]| {
        let folder = work.display();
        let mut command = Command::new("apt-get");
        command.current_dir(work).args([
            format!("-oDir::State::Lists={folder}/lists"),
            format!("-oDir::Cache::archives={folder}/archives"),
            "-oDir::Cache::pkgcache=".into(),
            "-oDir::Cache::srcpkgcache=".into(),
            format!("-oDir::Etc::SourceList={folder}/sources.list"),
            "-oDir::Etc::SourceParts=/dev/null".into(),
            "-oAPT::Sandbox::User=root".into(),
            "-qq".into(),
        ]);
        process::must_succeed(command.args(arguments).stdout(std::process::Stdio::null()))
    };
    apt(&["update"])?;
    apt(&["source", "--download-only", "fio"])?;
    apt(&["download", "libaio-dev"])?;
    let archive = named(work, "fio_", ".orig.tar.")?;
    let unpack = Command::new("tar").current_dir(work).arg("xf").arg(archive).status();
    let package = named(work, "libaio-dev_", ".deb")?;
    let aio = Command::new("dpkg").current_dir(work).arg("-x").arg(package).arg("aio").status();
    match (unpack, aio) {
        (Ok(a), Ok(b)) if a.success() && b.success() => Ok(()),
        _ => Err("cannot unpack the sources of fio".into()),
    }
}

/// This distribution's own sources, binary and source packages.
fn sources_list() -> Result<String> {
    let text = fs::read_to_string("/etc/os-release")
        .map_err(|error| format!("cannot read `/etc/os-release`: {error}"))?;
    let field = |name: &str| {
        text.lines()
            .find_map(|line| line.strip_prefix(name)?.strip_prefix('='))
            .map(|value| value.trim_matches('"').to_owned())
    };
    let suite = field("VERSION_CODENAME").ok_or("this distribution has no code name")?;
    let (keyring, site, parts) = match field("ID").as_deref() {
        Some("debian") => ("debian-archive-keyring", "http://deb.debian.org/debian", "main"),
        Some("ubuntu") => {
            ("ubuntu-archive-keyring", "http://archive.ubuntu.com/ubuntu", "main universe")
        }
        other => return Err(format!("no known source of packages for {other:?}")),
    };
    let signed = format!("[signed-by=/usr/share/keyrings/{keyring}.gpg]");
    Ok(format!("deb {signed} {site} {suite} {parts}\ndeb-src {signed} {site} {suite} {parts}\n"))
}

/// Configures and builds; returns the stripped program.
fn compile(work: &Path) -> Result<PathBuf> {
    let tree = fs::read_dir(work)
        .map_err(|error| format!("cannot list `{}`: {error}", work.display()))?
        .flatten()
        .map(|entry| entry.path())
        .find(|path| path.join("configure").is_file())
        .ok_or("the sources of fio hold no `configure`")?;
    let aio = work.join("aio/usr");
    let triplet = format!("{}-linux-gnu", std::env::consts::ARCH);
    let log = fs::File::create(work.join("log"))
        .map_err(|error| format!("cannot write a log: {error}"))?;
    let logged = |command: &mut Command| -> Result<()> {
        let copy = || log.try_clone().map_err(|error| format!("cannot write a log: {error}"));
        let quiet = command.current_dir(&tree).stdout(copy()?).stderr(copy()?);
        process::must_succeed(quiet)
            .map_err(|error| format!("{error}: see `{}`", work.join("log").display()))
    };
    logged(
        Command::new("./configure")
            .arg("--build-static")
            .args(LEFT_OUT)
            .arg(format!("--extra-cflags=-I{}", aio.join("include").display()))
            .env("LDFLAGS", format!("-L{}", aio.join("lib").join(triplet).display())),
    )?;
    let jobs = std::thread::available_parallelism().map_or(1, usize::from);
    logged(Command::new("make").arg(format!("-j{jobs}")).arg("fio"))?;
    logged(Command::new("strip").arg("fio"))?;
    Ok(tree.join("fio"))
}

/// The file in `folder` whose name begins with `start` and contains `middle`.
fn named(folder: &Path, start: &str, middle: &str) -> Result<PathBuf> {
    fs::read_dir(folder)
        .map_err(|error| format!("cannot list `{}`: {error}", folder.display()))?
        .flatten()
        .map(|entry| entry.path())
        .find(|path| {
            let name = path.file_name().unwrap_or_default().to_string_lossy();
            name.starts_with(start) && name.contains(middle) && !name.ends_with(".asc")
        })
        .ok_or_else(|| format!("`{}` holds no `{start}…{middle}…`", folder.display()))
}
