//! Starts this program again, for work that needs a separate process.

use std::ffi::OsString;
use std::process::Command;

/// The beginning of a command line that starts this program; its verb follows.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Program {
    words: Vec<OsString>,
    is_interpreter: bool,
}

impl Program {
    /// The executable of this process, even if the file has been replaced since.
    #[must_use]
    pub fn of_this_process() -> Self {
        Self { words: vec!["/proc/self/exe".into()], is_interpreter: false }
    }

    /// A program that these words start: an interpreter, for example, which runs more than this
    /// program.
    ///
    /// # Panics
    /// If there are no words.
    #[must_use]
    pub fn new(words: Vec<OsString>) -> Self {
        assert!(!words.is_empty(), "a program has a name");
        Self { words, is_interpreter: true }
    }

    /// Whether it is an interpreter, which has more verbs than this program.
    pub fn is_interpreter(&self) -> bool {
        self.is_interpreter
    }

    /// This program with `verb`, for the engine to start.
    #[must_use]
    pub fn verb(&self, verb: &str) -> forebay_cufile::Program {
        let mut arguments = self.words[1..].to_vec();
        arguments.push(verb.into());
        forebay_cufile::Program { file: self.words[0].clone().into(), arguments }
    }

    /// The engine's options by the environment variables, with this program to probe cuFile's
    /// driver first.
    ///
    /// # Errors
    /// A variable has a wrong value.
    pub fn engine_options(&self) -> forebay::Result<forebay::Options> {
        let mut options = forebay::Options::from_env()?;
        options.set_probe(Some(self.verb("probe")));
        Ok(options)
    }

    /// A command that runs `verb`.
    #[must_use]
    pub fn command(&self, verb: &str) -> Command {
        let program = self.verb(verb);
        let mut command = Command::new(program.file);
        command.args(program.arguments);
        command
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_programs_own_arguments_come_first() {
        let python = Program::new(["python", "-P", "-m", "forebay"].map(Into::into).to_vec());
        let probe = python.verb("probe");
        assert_eq!(probe.file.to_str(), Some("python"));
        assert_eq!(probe.arguments, ["-P", "-m", "forebay", "probe"]);
        let command = python.command("cufile");
        assert_eq!(command.get_program(), "python");
        assert!(command.get_args().eq(["-P", "-m", "forebay", "cufile"]));
        let own = Program::of_this_process().verb("probe");
        assert_eq!(own.arguments, ["probe"]);
        let is_same = |path: &std::path::Path| std::fs::read_link(path).ok();
        assert_eq!(is_same(&own.file), std::env::current_exe().ok());
    }
}
