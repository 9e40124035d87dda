//! Programs from Debian packages that are unpacked, never installed: QEMU for this machine, and a
//! whole system for the virtual one.
//!
//! `apt-get` is told that nothing is installed, so it fetches every library too, and what is
//! unpacked runs with its own loader and libraries beside whatever this machine has.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::folders::{entries, failed, make, remove};
use crate::process::{self, Result, say};

/// Folders that are links into `usr` on Debian; packages hold files below either name.
const MERGED: [&str; 4] = ["bin", "sbin", "lib", "lib64"];

/// Where a tree notes what it was made of, once it is whole.
const NOTE: &str = ".packages";

/// An unpacked set of packages.
#[derive(Debug)]
pub(crate) struct Tree {
    pub(crate) folder: PathBuf,
}

impl Tree {
    /// The tree `name` in `cache`, with `packages` and all that they need; an earlier one is taken
    /// as it is.
    pub(crate) fn fetch(cache: &Path, name: &str, packages: &[&str]) -> Result<Self> {
        let folder = cache.join(name);
        let wanted = packages.join(" ");
        let note = folder.join(NOTE);
        if fs::read_to_string(&note).is_ok_and(|there| there == wanted) {
            return Ok(Self { folder });
        }
        say!("lab: fetching packages for `{name}` with apt-get");
        let archives = cache.join(format!("{name}-packages"));
        remove(&archives)?;
        make(&archives.join("partial"))?;
        download(cache, &archives, packages)?;
        remove(&folder)?;
        for merged in MERGED {
            make(&folder.join("usr").join(merged))?;
            symlink(format!("usr/{merged}"), folder.join(merged)).map_err(failed(&folder))?;
        }
        let files = entries(&archives)?;
        let files: Vec<&PathBuf> =
            files.iter().filter(|file| file.extension().is_some_and(|e| e == "deb")).collect();
        say!("lab: unpacking {} packages", files.len());
        for file in files {
            unpack(file, &folder)?;
        }
        remove(&archives)?;
        fs::write(&note, wanted).map_err(failed(&note))?;
        Ok(Self { folder })
    }

    /// A command that runs a program of the tree, with the tree's own libraries, on this machine's
    /// files.
    pub(crate) fn command(&self, program: &str) -> Command {
        let libraries = self.folder.join("usr/lib/x86_64-linux-gnu");
        let folders = ["bin", "sbin"].map(|folder| self.folder.join("usr").join(folder));
        let mut places = folders.iter().map(|folder| folder.join(program));
        let place = places.find(|file| file.exists());
        let mut command = Command::new(libraries.join("ld-linux-x86-64.so.2"));
        command.arg("--library-path").arg(&libraries);
        command.arg(place.unwrap_or_else(|| self.folder.join("usr/bin").join(program)));
        command
    }

    /// A command that runs a program of the tree and sees nothing but the tree.
    pub(crate) fn inside(&self, program: &str) -> Command {
        let mut command = Command::new("chroot");
        command.arg(&self.folder).arg(program).env("PATH", "/usr/sbin:/usr/bin");
        command
    }
}

/// Downloads `packages` and all that they need to `archives`.
fn download(cache: &Path, archives: &Path, packages: &[&str]) -> Result<()> {
    // A machine on which nothing is installed.
    let status = cache.join("nothing-installed");
    fs::write(&status, "").map_err(failed(&status))?;
    let option = |name: &str, value: &Path| format!("{name}={}", value.display());
    let options = [
        option("Dir::State::status", &status),
        option("Dir::Cache::archives", archives),
        "Debug::NoLocking=1".into(),
    ];
    let get = || {
        let mut command = Command::new("apt-get");
        command.env("DEBIAN_FRONTEND", "noninteractive").env("LC_ALL", "C");
        command.args(["-qq", "-y", "--no-install-recommends", "--download-only", "install"]);
        options.iter().for_each(|option| {
            command.args(["-o", option]);
        });
        command.args(packages).stdout(Stdio::null());
        command
    };
    // The lists of packages are often absent in containers, or so old that their files are gone.
    if process::succeeds(get().stderr(Stdio::null()))? {
        return Ok(());
    }
    process::must_succeed(Command::new("apt-get").args(["-qq", "update"]))?;
    process::must_succeed(&mut get())
}

/// Puts a package's files into `folder`, through the links that are there.
fn unpack(file: &Path, folder: &Path) -> Result<()> {
    let error = |error| format!("cannot unpack `{}`: {error}", file.display());
    let mut files = Command::new("dpkg-deb");
    let mut files =
        files.arg("--fsys-tarfile").arg(file).stdout(Stdio::piped()).spawn().map_err(error)?;
    let pipe = files.stdout.take().expect("it was just asked for");
    let mut tar = Command::new("tar");
    tar.args(["--extract", "--preserve-permissions", "--keep-directory-symlink", "--directory"]);
    let unpacked = tar.arg(folder).stdin(pipe).status().map_err(error)?;
    let read = files.wait().map_err(error)?;
    if unpacked.success() && read.success() {
        return Ok(());
    }
    Err(format!("cannot unpack `{}`", file.display()))
}
