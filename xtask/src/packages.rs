//! Programs from Debian packages that are unpacked, never installed: emulators for this machine, a
//! whole system for a virtual one, and libraries for programs of another processor.
//!
//! `apt-get` sees a system without packages, so it fetches every library too. Unpacked programs run
//! with their own loader and libraries, independent of this machine's.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::folders::{entries, failed, make, remove};
use crate::process::{self, Result, say};

/// Folders that are links into `usr` on Debian; packages hold files below either name.
const MERGED: [&str; 4] = ["bin", "sbin", "lib", "lib64"];

/// The file in which a complete tree records its packages.
const NOTE: &str = ".packages";

/// The keys that sign Debian's lists.
const KEYS: &str = "/usr/share/keyrings/debian-archive-keyring.gpg";

/// The origin of packages.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Origin {
    /// This machine's own package lists.
    Machine,
    /// A version of Debian for a processor, independent of this machine.
    Debian { suite: &'static str, architecture: &'static str },
}

impl Origin {
    /// Options of `apt-get` that keep it away from this machine's packages.
    fn options(self, cache: &Path) -> Result<Vec<String>> {
        let Self::Debian { suite, architecture } = self else { return Ok(Vec::new()) };
        let home = cache.join(format!("debian-{suite}-{architecture}"));
        make(&home.join("lists/partial"))?;
        let list = home.join("sources.list");
        let line = format!("deb [signed-by={KEYS}] http://deb.debian.org/debian {suite} main\n");
        fs::write(&list, line).map_err(failed(&list))?;
        let home = home.display();
        Ok(vec![
            format!("APT::Architecture={architecture}"),
            format!("Dir::Cache={home}"),
            format!("Dir::State::lists={home}/lists"),
            format!("Dir::Etc::sourcelist={home}/sources.list"),
            "Dir::Etc::sourceparts=-".into(),
        ])
    }
}

/// The missing requirement to fetch Debian's packages and unpack them, if any.
pub(crate) fn lacking() -> Option<String> {
    if ["apt-get", "dpkg-deb"].iter().any(|program| process::find(program).is_none()) {
        return Some("its packages are Debian's, and this is no Debian".into());
    }
    let reason = || format!("no `{KEYS}` (on Debian: install `debian-archive-keyring`)");
    (!Path::new(KEYS).exists()).then(reason)
}

/// An unpacked set of packages.
#[derive(Debug)]
pub(crate) struct Tree {
    pub(crate) folder: PathBuf,
}

impl Tree {
    /// The tree `name` in `cache`, with `packages` and all their dependencies; an existing one is
    /// used as it is.
    pub(crate) fn fetch(
        cache: &Path,
        name: &str,
        origin: Origin,
        packages: &[&str],
    ) -> Result<Self> {
        let folder = cache.join(name);
        let wanted = format!("{origin:?} {}", packages.join(" "));
        let note = folder.join(NOTE);
        if fs::read_to_string(&note).is_ok_and(|there| there == wanted) {
            return Ok(Self { folder });
        }
        say!("packages: fetching packages for `{name}` with apt-get");
        let archives = cache.join(format!("{name}-packages"));
        remove(&archives)?;
        make(&archives.join("partial"))?;
        download(cache, &archives, origin, packages)?;
        remove(&folder)?;
        for merged in MERGED {
            make(&folder.join("usr").join(merged))?;
            symlink(format!("usr/{merged}"), folder.join(merged)).map_err(failed(&folder))?;
        }
        let files = entries(&archives)?;
        let files: Vec<&PathBuf> =
            files.iter().filter(|file| file.extension().is_some_and(|e| e == "deb")).collect();
        say!("packages: unpacking {}", files.len());
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
fn download(cache: &Path, archives: &Path, origin: Origin, packages: &[&str]) -> Result<()> {
    // A machine without installed packages.
    let status = cache.join("nothing-installed");
    fs::write(&status, "").map_err(failed(&status))?;
    let mut options = origin.options(cache)?;
    options.push(format!("Dir::State::status={}", status.display()));
    options.push(format!("Dir::Cache::archives={}", archives.display()));
    options.push("Debug::NoLocking=1".into());
    let apt_get = |arguments: &[&str]| {
        let mut command = Command::new("apt-get");
        command.env("DEBIAN_FRONTEND", "noninteractive").env("LC_ALL", "C").arg("-qq");
        options.iter().for_each(|option| {
            command.args(["-o", option]);
        });
        command.args(arguments).stdout(Stdio::null());
        command
    };
    let get = || {
        let mut get = apt_get(&["-y", "--no-install-recommends", "--download-only", "install"]);
        get.args(packages);
        get
    };
    // The lists of packages are often absent in containers, or so old that their files are gone.
    if process::succeeds(get().stderr(Stdio::null()))? {
        return Ok(());
    }
    process::must_succeed(&mut apt_get(&["update"]))?;
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
