//! The error of a verb: the failed step, its causes, and what to do about it.

use std::error::Error as _;
use std::fmt::Write as _;
use std::io::{self, Write as _};
use std::path::Path;

use anstyle::{AnsiColor, Style};
use forebay::error::SystemError;
use forebay::{Error, Operation, Place};
use rustix::io::Errno;

use crate::control_group;
use crate::held::named;
use crate::plain::plain;

/// `Result` with a [`Failure`].
pub type Result<T, E = Failure> = std::result::Result<T, E>;

/// The hint for a file that grows beyond the process's limit.
const FILE_SIZE: &str = "raise the limit on the size of files (`ulimit -f`), or write less";

/// The stack of a thread of the engine: Rust's default.
const ENGINE_STACK_LEN: u64 = 2 << 20;

/// The message on stderr when a verb fails.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Failure {
    /// The step that failed; empty if there is nothing to say.
    pub message: String,
    /// Why, the nearest cause first.
    pub causes: Vec<String>,
    /// What to do about it.
    pub hint: Option<String>,
    /// Whether the command itself is invalid.
    pub usage: bool,
}

impl Failure {
    /// A failure without cause or hint.
    #[must_use]
    pub fn new(message: impl Into<String>) -> Self {
        let message = named(&message.into());
        Self { message, causes: Vec::new(), hint: None, usage: false }
    }

    /// An invalid command.
    #[must_use]
    pub fn usage(message: impl Into<String>) -> Self {
        Self { usage: true, ..Self::new(message) }
    }

    /// A failure of the system at a file.
    #[must_use]
    pub fn io(message: impl Into<String>, error: &io::Error) -> Self {
        if error.kind() == io::ErrorKind::UnexpectedEof {
            // The standard library mentions a buffer, which means nothing to the user.
            let remedy = "give a larger file, or stop the program that truncates it";
            return Self::new(message).because("the file ends before that").hint(remedy);
        }
        let errno = Errno::from_io_error(error);
        let cause = errno.map_or_else(|| error.to_string(), |errno| errno.to_string());
        if errno == Some(Errno::FBIG) {
            return Self::new(message).because(cause).hint(FILE_SIZE);
        }
        // The library has hints for system errors.
        let hint = errno.and_then(|source| {
            let (operation, place) = (Operation::Open, Place::whole(""));
            Error::io(operation, place, source).hint()
        });
        Self { hint, ..Self::new(message).because(cause) }
    }

    /// The system cannot do `verb` with the file at `path`.
    #[must_use]
    pub fn at(verb: &str, path: &Path, error: &io::Error) -> Self {
        Self::io(format!("cannot {verb} `{}`", path.display()), error)
    }

    /// A thread with a stack of `stack` bytes cannot be started.
    #[must_use]
    pub fn thread(error: &io::Error, stack: u64) -> Self {
        let limit = control_group::of_threads(stack)
            .unwrap_or("processes (`ulimit -u`, or `pids.max` of the control group)");
        Self::io("cannot start a thread", error).hint(format!("raise the limit on {limit}"))
    }

    /// Adds a cause.
    #[must_use]
    pub fn because(mut self, cause: impl Into<String>) -> Self {
        self.causes.push(named(&cause.into()));
        self
    }

    /// Sets what to do about it.
    #[must_use]
    pub fn hint(mut self, hint: impl Into<String>) -> Self {
        self.hint = Some(hint.into());
        self
    }

    /// Sets the hint for lack of space, unless the process's own limit was the cause.
    #[must_use]
    pub fn room_hint(self, hint: &str) -> Self {
        if self.hint.as_deref() == Some(FILE_SIZE) { self } else { self.hint(hint) }
    }

    /// The failure of a write to stdout. If the reader closed the pipe, nothing is reported.
    #[must_use]
    pub fn stdout(error: &io::Error) -> Self {
        if error.kind() == io::ErrorKind::BrokenPipe {
            return Self::new("");
        }
        Self::io("cannot write to stdout", error)
    }

    /// Message and causes in one line.
    #[must_use]
    pub fn in_one_line(&self) -> String {
        let mut parts = vec![self.message.clone()];
        parts.extend(self.causes.iter().map(|cause| lower(cause)));
        parts.join(": ")
    }

    /// Message, causes and hint in one line.
    #[must_use]
    pub fn with_remedy(&self) -> String {
        let text = self.in_one_line();
        self.hint.as_ref().map_or_else(|| text.clone(), |remedy| format!("{text}; {remedy}"))
    }

    /// The process's exit code.
    #[must_use]
    pub fn exit_code(&self) -> u8 {
        match (self.message.is_empty(), self.usage) {
            (true, _) => 0,
            (false, true) => 2,
            (false, false) => 1,
        }
    }

    /// The whole text, with escape codes for colours.
    #[must_use]
    pub fn text(&self) -> String {
        let mut text = String::new();
        if self.message.is_empty() {
            return text;
        }
        let error = Style::new().bold().fg_color(Some(AnsiColor::Red.into()));
        let hint = Style::new().bold().fg_color(Some(AnsiColor::Cyan.into()));
        // Writing to a string cannot fail.
        let _ = writeln!(text, "{error}error:{error:#} {}", plain(&self.message));
        for cause in &self.causes {
            let _ = writeln!(text, "  caused by: {}", plain(&lower(cause)));
        }
        if let Some(remedy) = &self.hint {
            let _ = writeln!(text, "{hint}hint:{hint:#} {}", plain(remedy));
        }
        text
    }

    /// Shows it on stderr.
    pub fn print(&self) {
        // If stderr is closed, there is nowhere to report it.
        let _ = anstream::stderr().write_all(self.text().as_bytes());
    }
}

/// System messages begin with a capital letter; ours are in the middle of a line. Names such as
/// `EIO` and `CUDA` keep their case.
pub fn lower(text: &str) -> String {
    let word = text.split(|letter: char| !letter.is_alphanumeric()).next().unwrap_or_default();
    let mut letters = text.chars();
    match letters.next() {
        // Names such as `ModuleNotFoundError`, and words of capitals, stay as they are.
        Some(first) if first.is_uppercase() && !word.chars().skip(1).any(char::is_uppercase) => {
            first.to_lowercase().chain(letters).collect()
        }
        _ => text.to_owned(),
    }
}

impl From<serde_json::Error> for Failure {
    fn from(error: serde_json::Error) -> Self {
        Self::new("cannot write JSON").because(error.to_string())
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        let usage = matches!(error, Error::BadOption { .. });
        let mut causes = Vec::new();
        let mut source = error.source();
        while let Some(cause) = source {
            causes.push(named(&cause.to_string()));
            source = cause.source();
        }
        let hint = match &error {
            Error::BadOption { name, .. } if name.starts_with("FOREBAY_") => {
                Some("`forebay --help` describes the variables; all of them are optional".into())
            }
            Error::Resource { source: SystemError(libc::EAGAIN), .. } => {
                let limit = control_group::of_threads(ENGINE_STACK_LEN);
                limit.map(|limit| format!("raise the limit on {limit}")).or_else(|| error.hint())
            }
            other => other.hint(),
        };
        Self { message: named(&error.to_string()), causes, hint, usage }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plain(failure: &Failure) -> String {
        anstream::adapter::strip_str(&failure.text()).to_string()
    }

    #[test]
    fn an_error_shows_its_cause_and_its_remedy() {
        let error = Error::Io {
            operation: Operation::Read,
            place: Place {
                path: "model-3.safetensors".into(),
                offset: 8192,
                len: 1 << 20,
                drive: Some("nvme1n1".into()),
            },
            source: SystemError(libc::EIO),
        };
        insta::assert_snapshot!(plain(&error.into()), @r"
        error: cannot read `model-3.safetensors` at 8192+1048576 on nvme1n1
          caused by: input/output error (os error 5)
        hint: the drive or its file system failed: look at the kernel's log (`dmesg`)
        ");
    }

    #[test]
    fn a_short_file_is_reported_in_our_words() {
        let error = io::Error::new(io::ErrorKind::UnexpectedEof, "failed to fill whole buffer");
        insta::assert_snapshot!(plain(&Failure::io("cannot read `cut` at 4096", &error)), @r"
        error: cannot read `cut` at 4096
          caused by: the file ends before that
        hint: give a larger file, or stop the program that truncates it
        ");
    }

    #[test]
    fn a_bad_option_is_a_matter_of_usage() {
        let error = Error::BadOption {
            name: "FOREBAY_DEPTH".into(),
            value: "no".into(),
            expected: "a number of requests from 1 to 1024".into(),
        };
        let failure = Failure::from(error);
        assert!(failure.usage);
        insta::assert_snapshot!(
            plain(&failure),
            @"
        error: `FOREBAY_DEPTH` cannot be `no`: it takes a number of requests from 1 to 1024
        hint: `forebay --help` describes the variables; all of them are optional
        "
        );
    }

    #[test]
    fn a_reader_that_went_away_is_no_failure() {
        let failure = Failure::stdout(&io::ErrorKind::BrokenPipe.into());
        assert_eq!(plain(&failure), "");
    }
}
