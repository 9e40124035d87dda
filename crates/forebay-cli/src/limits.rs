//! The engine's limits, as this command has them.

use std::env;
use std::ffi::OsString;
use std::path::PathBuf;

use forebay::Options;
use forebay::direct::Program;

use crate::failure::Result;

/// What the variables say, and this program to open cuFile's driver first.
pub(crate) fn limits() -> Result<Options> {
    let mut options = Options::from_env()?;
    options.probe = probe();
    Ok(options)
}

/// The verbs that may have cuFile asked.
const VERBS: [&str; 5] = ["bench", "read", "map", "tune", "doctor"];

/// The verb `probe` of this program, which may be Python's entry point.
pub(crate) fn probe() -> Option<Program> {
    let words: Vec<OsString> = env::args_os().collect();
    called(env::current_exe().ok(), &words)
}

/// This program by its file, or as it was called where an interpreter runs it: only so it finds
/// the packages of a virtual environment.
fn called(own: Option<PathBuf>, words: &[OsString]) -> Option<Program> {
    if let Some(file) = own.filter(|file| file.file_stem().is_some_and(|name| name == "forebay")) {
        return Some(Program { file, arguments: vec!["probe".into()] });
    }
    let is_verb = |word: &OsString| VERBS.iter().any(|verb| word == verb);
    let verb = words.iter().position(is_verb).filter(|at| *at > 0)?;
    let before = words[1..verb].iter().map(|word| word.to_str().map(str::to_owned));
    let mut arguments: Vec<String> = before.collect::<Option<_>>()?;
    arguments.push("probe".into());
    Some(Program { file: words[0].clone().into(), arguments })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file_and_words(own: &str, words: &[&str]) -> Option<(PathBuf, Vec<String>)> {
        let words: Vec<OsString> = words.iter().map(OsString::from).collect();
        called(Some(own.into()), &words).map(|program| (program.file, program.arguments))
    }

    #[test]
    fn cufile_is_asked_by_whatever_runs_the_command() {
        let own = file_and_words("/usr/bin/forebay", &["forebay", "doctor", "--json"]);
        assert_eq!(own, Some(("/usr/bin/forebay".into(), vec!["probe".into()])));
        let words = ["/venv/bin/python", "-P", "-c", "code", "doctor", "--json", "read"];
        let python = file_and_words("/usr/bin/python3.13", &words);
        let arguments = ["-P", "-c", "code", "probe"].map(str::to_owned).to_vec();
        assert_eq!(python, Some(("/venv/bin/python".into(), arguments)));
        assert_eq!(file_and_words("/usr/bin/other", &["other"]), None);
        assert_eq!(file_and_words("/usr/bin/other", &["doctor"]), None, "that is its name");
    }
}
