//! How this program is started again, for what needs a process of its own.

use std::ffi::OsString;
use std::process::Command;

/// The words of a command line that begin this program: a verb of its follows.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Program(Vec<OsString>);

impl Program {
    /// What this process runs, even where the file has been replaced since.
    #[must_use]
    pub fn of_this_process() -> Self {
        Self(vec!["/proc/self/exe".into()])
    }

    /// A program that these words begin: an interpreter's, say, which runs more than this one.
    ///
    /// # Panics
    /// Without a word.
    #[must_use]
    pub fn new(words: Vec<OsString>) -> Self {
        assert!(!words.is_empty(), "a program has a name");
        Self(words)
    }

    /// A command that runs `verb`.
    #[must_use]
    pub(crate) fn command(&self, verb: &str) -> Command {
        let mut command = Command::new(&self.0[0]);
        command.args(&self.0[1..]).arg(verb);
        command
    }
}
