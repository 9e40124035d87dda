//! A machine of another processor, emulated by QEMU in user mode: this machine's kernel and files,
//! and the other processor's programs and libraries, from Debian's packages.
//!
//! The packages are unpacked below `target` and never installed, so nothing of this machine
//! changes. QEMU has no io_uring, so reads and writes there use `pread` and `pwrite`.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use super::workshop::{Workshop, pip};
use crate::folders::{failed, make, remove};
use crate::packages::{self, Origin, Tree};
use crate::process::{self, Result};

/// Before version 8 QEMU says that a page is wiped in forked children, and leaves it.
const EMULATOR: Origin = Origin::Debian { suite: "trixie", architecture: "amd64" };

/// Has the oldest Python that the package is for, 3.11.
const SYSTEM: Origin = Origin::Debian { suite: "bookworm", architecture: "arm64" };

/// The C++ library is NumPy's.
const PACKAGES: [&str; 3] = ["python3.11", "libc-bin", "libstdc++6"];

/// pip's names of such systems: NumPy and others require different versions of the C library.
const PLATFORMS: [&str; 4] = [
    "manylinux_2_28_aarch64",
    "manylinux_2_27_aarch64",
    "manylinux_2_17_aarch64",
    "manylinux2014_aarch64",
];

/// An emulated machine with Python 3.11.
pub(super) struct Machine {
    home: PathBuf,
    /// The command before a program's name that runs a program of its processor.
    pub(super) runner: String,
    /// Its Python: a script, which programs that it starts can run as well.
    pub(super) python: PathBuf,
}

impl Machine {
    /// Fetches its parts, or says why they are unavailable.
    pub(super) fn fetch(home: &Path) -> Result<Self> {
        if !cfg!(target_arch = "x86_64") {
            return Err("the emulator is fetched for x86-64 only".into());
        }
        if let Some(reason) = packages::lacking() {
            return Err(reason);
        }
        let cache = home.join("emulated");
        make(&cache)?;
        let emulator = Tree::fetch(&cache, "emulator", EMULATOR, &["qemu-user"])?;
        let system = Tree::fetch(&cache, "aarch64", SYSTEM, &PACKAGES)?;
        let (emulator, system) = (emulator.folder.join("usr/bin/qemu-aarch64"), system.folder);
        let runner = format!("{} -L {}", emulator.display(), system.display());
        // Next to the real one, so that Python finds its library relative to its own path.
        let python = system.join("usr/bin/python");
        let true_one = system.join("usr/bin/python3.11");
        let (start, name) = (format!("{runner} -0 \"$0\""), true_one.display());
        script(&python, &format!("exec {start} {name} \"$@\""))?;
        Ok(Self { home: cache, runner, python })
    }

    /// Puts a wheel and other packages into a folder of their own, which `PYTHONPATH` is to name.
    pub(super) fn install(&self, python: &Path, wheel: &Path, others: &[&str]) -> Result<PathBuf> {
        let folder = self.home.join("packages");
        remove(&folder)?;
        let mut pip = pip(python);
        pip.args(["--only-binary=:all:", "--python-version", "3.11", "--target"]).arg(&folder);
        for platform in PLATFORMS {
            pip.args(["--platform", platform]);
        }
        process::must_succeed(pip.arg(wheel).args(others))?;
        Ok(folder)
    }
}

/// The compiler and linker for aarch64, as scripts that cargo and its build scripts can call.
pub(super) struct Linker {
    pub(super) compiler: PathBuf,
    pub(super) archiver: PathBuf,
}

impl Linker {
    pub(super) fn new(workshop: &Workshop) -> Result<Self> {
        let folder = workshop.home.join("linker");
        make(&folder)?;
        let zig = format!("exec {} -m maturin zig", workshop.tools.display());
        // `rustc` infers a linker's argument style from its name.
        let (compiler, archiver) = (folder.join("zig-gcc"), folder.join("zig-ar"));
        script(&compiler, &format!("{zig} cc -- -target aarch64-linux-gnu.2.28 \"$@\""))?;
        script(&archiver, &format!("{zig} ar -- \"$@\""))?;
        Ok(Self { compiler, archiver })
    }
}

fn script(file: &Path, line: &str) -> Result<()> {
    fs::write(file, format!("#!/bin/sh\n{line}\n")).map_err(failed(file))?;
    fs::set_permissions(file, fs::Permissions::from_mode(0o755)).map_err(failed(file))
}
