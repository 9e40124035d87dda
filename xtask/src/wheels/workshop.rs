//! The tools that make wheels: an environment with maturin and zig, which links for the C library
//! of older systems and for other processors.

use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::folders::{entries, failed, make, remove};
use crate::process::{self, Result, say};
use crate::python;
use crate::report::Report;
use crate::test;

const TOOLS: [&str; 2] = ["maturin==1.9.6", "ziglang==0.17.0"];

/// The oldest systems that wheels are for: those with glibc 2.28, of 2018.
const SYSTEMS: &str = "manylinux_2_28";

/// Bytes that a wheel stays below.
const WHEEL_MAX: u64 = 8_000_000;

/// Folders and tools.
pub(super) struct Workshop {
    /// The repository.
    pub(super) root: PathBuf,
    /// The folder of all output.
    pub(super) home: PathBuf,
    /// The Python of this machine.
    pub(super) system: PathBuf,
    /// One that has the tools.
    pub(super) tools: PathBuf,
}

impl Workshop {
    /// Prepares the tools; returns the reason if that fails.
    pub(super) fn open(root: &Path, system: &Path) -> Result<Self> {
        let home = test::target(root)?.join("wheels");
        make(&home)?;
        let tools = python::environment(system, &home.join("tools"), &TOOLS)?;
        Ok(Self { root: root.into(), home, system: system.into(), tools })
    }

    /// `python -m maturin`, which finds zig in the same environment.
    pub(super) fn maturin(&self) -> Command {
        let mut command = Command::new(&self.tools);
        command.args(["-m", "maturin"]).current_dir(&self.root);
        command.env("PATH", self.path()).env("CARGO_TARGET_DIR", self.home.join("build"));
        command
    }

    /// `PATH` with the tools first.
    pub(super) fn path(&self) -> OsString {
        let path = process::full_path();
        let tools = self.tools.parent().map(PathBuf::from);
        std::env::join_paths(tools.into_iter().chain(std::env::split_paths(&path))).unwrap_or(path)
    }

    /// Builds the wheel `name` for `target`, and checks its size; `None` if that failed.
    pub(super) fn wheel(
        &self,
        report: &mut Report,
        name: &str,
        target: &str,
        arguments: &[&str],
    ) -> Result<Option<PathBuf>> {
        let folder = self.home.join("dist").join(name);
        remove(&folder)?;
        let mut build = self.maturin();
        build.args(["build", "--quiet", "--release", "--zig", "--compatibility", SYSTEMS]);
        build.args(["--target", target]).args(arguments).arg("--out").arg(&folder);
        // So that a path may have spaces.
        let unwinder = format!("-Clink-arg={}", self.unwinder(target)?.display());
        build.env("CARGO_ENCODED_RUSTFLAGS", unwinder);
        let built = process::succeeds(&mut build)?;
        report.step(&format!("wheels: {name}: built for {SYSTEMS}"), built);
        if !built {
            return Ok(None);
        }
        let wheel = entries(&folder)?.pop().ok_or("maturin built no wheel")?;
        let bytes = fs::metadata(&wheel).map_err(failed(&wheel))?.len();
        let file = wheel.file_name().unwrap_or_default().to_string_lossy();
        say!("wheels: {file}: {bytes} bytes, at most {WHEEL_MAX}");
        let is_tagged = file.contains(SYSTEMS);
        report.step(&format!("wheels: {name}: says that it is for {SYSTEMS}"), is_tagged);
        report.step(&format!("wheels: {name}: its size"), bytes < WHEEL_MAX);
        Ok(Some(wheel))
    }

    /// The object that a wheel is linked with so that it uses the system's unwinder, whose name it
    /// has: see `unwinder.c`.
    fn unwinder(&self, target: &str) -> Result<PathBuf> {
        let folder = self.home.join("unwinder").join(target);
        make(&folder)?;
        let (name, library) = ("libgcc_s.so.1", folder.join("libgcc_s.so.1"));
        let mut zig = Command::new(&self.tools);
        zig.args(["-m", "ziglang", "cc", "-target", &target.replace("-unknown", "")]);
        zig.args(["-shared", "-nostdlib", "-o"]).arg(&library);
        zig.arg(format!("-Wl,-soname,{name}")).arg(self.root.join("xtask/wheels/unwinder.c"));
        process::must_succeed(&mut zig)?;
        Ok(library)
    }

    /// A fresh, empty environment of `interpreter`, or why there is none.
    pub(super) fn environment(&self, name: &str, interpreter: &Path) -> Result<PathBuf> {
        python::environment(interpreter, &self.home.join("environments").join(name), &[])
    }

    /// Tests the package installed there, and returns its files; `None` if that failed.
    pub(super) fn smoke(&self, python: &Path) -> Result<Option<Vec<String>>> {
        let mut files = Vec::new();
        let mut smoke = Command::new(python);
        smoke.arg("-I").arg(self.root.join("xtask/wheels/smoke.py")).current_dir(&self.home);
        let passed = process::each_line(&mut smoke, |_, line| match line.strip_prefix("has ") {
            Some(file) => files.push(file.to_owned()),
            None => say!(err, "{line}"),
        })?;
        Ok(passed.then_some(files))
    }
}

/// `pip install` by the pip of an environment.
pub(super) fn pip(python: &Path) -> Command {
    let mut pip = Command::new(python);
    pip.args(["-m", "pip", "install", "--quiet", "--disable-pip-version-check"]);
    pip
}
