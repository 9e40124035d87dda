//! The Pythons of this machine that wheels are tried on, in addition to `python3`.

use std::path::PathBuf;
use std::process::Command;

use crate::process::{self, Result};

/// Names them, as `PATH` names folders.
const VARIABLE: &str = "FOREBAY_PYTHONS";

/// Prints the version, and whether there is no GIL.
const ASK: &str = "\
import sys, sysconfig
print(*sys.version_info[:2], int(bool(sysconfig.get_config_var('Py_GIL_DISABLED'))))
";

/// A Python.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Interpreter {
    pub(super) program: PathBuf,
    pub(super) version: (u32, u32),
    pub(super) is_free_threaded: bool,
}

impl Interpreter {
    /// As Python calls it: `3.12`, `3.14t`.
    pub(super) fn name(&self) -> String {
        let free_threaded = if self.is_free_threaded { "t" } else { "" };
        format!("{}.{}{free_threaded}", self.version.0, self.version.1)
    }

    fn ask(program: PathBuf) -> Result<Self> {
        let told = process::output(Command::new(&program).args(["-I", "-c", ASK]))?;
        Self::told(program, &told)
    }

    fn told(program: PathBuf, told: &str) -> Result<Self> {
        let numbers: Vec<u32> = told.split_whitespace().flat_map(str::parse).collect();
        let [major, minor, free_threaded] = numbers[..] else {
            return Err(format!("`{}` is no Python: it prints `{told}`", program.display()));
        };
        Ok(Self { program, version: (major, minor), is_free_threaded: free_threaded != 0 })
    }
}

/// Those that the variable names, and a `python3.14t` that is there anyway.
pub(super) fn all() -> Result<Vec<Interpreter>> {
    let named = std::env::var_os(VARIABLE).unwrap_or_default();
    let mut programs: Vec<PathBuf> = std::env::split_paths(&named).collect();
    programs.retain(|program| !program.as_os_str().is_empty());
    if let Some(program) = process::find("python3.14t")
        && !programs.contains(&program)
    {
        programs.push(program);
    }
    let asked = programs.into_iter().map(Interpreter::ask).collect::<Result<_>>();
    asked.map_err(|error| format!("{error} (`{VARIABLE}` names programs, with `:` between them)"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_python_tells_what_it_is() {
        let named = |told| Interpreter::told("python".into(), told).map(|python| python.name());
        assert_eq!(named("3 12 0\n"), Ok("3.12".into()));
        assert_eq!(named("3 14 1\n"), Ok("3.14t".into()));
        assert_eq!(named("hello"), Err("`python` is no Python: it prints `hello`".into()));
    }
}
