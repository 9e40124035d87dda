//! The command line of the bars.

use std::path::PathBuf;

use forebay::units::parse_size;

use crate::drives::Job;
use crate::drives::slow::Pace;

/// The text of `--help`.
pub(crate) const HELP: &str = "\
usage: forebay-bars [ARGUMENT]...

  --only NAME      bars whose name contains NAME, also where they are meant for another machine
  --tiny           small files and few repeats: shows that the bars run, judges nothing
  --gpu WHICH      as for `forebay`: an index, a UUID, `none`, `sim[:...]`
  --scratch DIR    where test files are made and removed (default: the current folder)
  --out DIR        write environment.json, samples.json and summary.md there
  --archive DIR    the same, in a new folder DIR/DATE-MACHINE
  --make-file PATH SIZE
                   write random, position-dependent data to a new file and stop";

/// The requested action.
#[derive(Debug, PartialEq)]
pub(crate) enum Chore {
    /// Print the help.
    Help,
    /// Make a file of test data.
    MakeFile {
        /// The file, which must not exist.
        path: PathBuf,
        /// Its bytes.
        len: u64,
    },
    /// Read a file once and print the memory used: the bars start this as a child.
    ProbeMemory {
        /// The file.
        path: PathBuf,
        /// The target.
        gpu: String,
    },
    /// Read a file each time a line of input asks for it, with this much memory that may be
    /// locked: the bars start this as a child.
    ServeReads {
        /// The file.
        path: PathBuf,
        /// A size, or `unlimited`.
        locked: String,
    },
    /// Run one bar for several drives: the bars start this as a child.
    RunDrives(Job),
    /// Be a slow drive: the bars for drives start this as a child.
    ServeDrive {
        /// The file with its bytes.
        image: PathBuf,
        /// Its mount point.
        point: PathBuf,
        /// How slow it is.
        pace: Pace,
        /// The mount namespace to enter.
        namespace: PathBuf,
    },
    /// Measure the bars.
    Measure(Arguments),
}

/// How to measure.
#[derive(Debug, Default, PartialEq)]
pub(crate) struct Arguments {
    pub(crate) only: Option<String>,
    pub(crate) tiny: bool,
    pub(crate) gpu: Option<String>,
    pub(crate) scratch: Option<PathBuf>,
    pub(crate) out: Option<PathBuf>,
    pub(crate) archive: Option<PathBuf>,
}

impl Arguments {
    /// Parses a command line.
    pub(crate) fn parse(words: &[String]) -> Result<Chore, String> {
        let mut arguments = Self::default();
        let mut words = words.iter();
        while let Some(word) = words.next() {
            let mut value =
                || words.next().cloned().ok_or_else(|| format!("`{word}` needs a value"));
            match word.as_str() {
                "-h" | "--help" => return Ok(Chore::Help),
                "--tiny" => arguments.tiny = true,
                "--only" => arguments.only = Some(value()?),
                "--gpu" => arguments.gpu = Some(value()?),
                "--scratch" => arguments.scratch = Some(value()?.into()),
                "--out" => arguments.out = Some(value()?.into()),
                "--archive" => arguments.archive = Some(value()?.into()),
                "--make-file" => {
                    let path = value()?.into();
                    let size = value()?;
                    let len = parse_size(&size).ok_or_else(|| format!("`{size}` is no size"))?;
                    return Ok(Chore::MakeFile { path, len });
                }
                "--probe-memory" => {
                    return Ok(Chore::ProbeMemory { path: value()?.into(), gpu: value()? });
                }
                "--serve-reads" => {
                    return Ok(Chore::ServeReads { path: value()?.into(), locked: value()? });
                }
                "--drives" => {
                    return Ok(Chore::RunDrives(Job {
                        name: value()?,
                        folder: value()?.into(),
                        group: value()?.into(),
                        tiny: value()? == "tiny",
                    }));
                }
                "--serve-drive" => {
                    let (image, point) = (value()?.into(), value()?.into());
                    let mut number = || {
                        let text = value()?;
                        text.parse().map_err(|_| format!("`{text}` is no number"))
                    };
                    let pace = Pace { latency_us: number()?, rate: number()? };
                    let namespace = value()?.into();
                    return Ok(Chore::ServeDrive { image, point, pace, namespace });
                }
                _ => return Err(format!("no such argument: `{word}`\n\n{HELP}")),
            }
        }
        Ok(Chore::Measure(arguments))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(line: &str) -> Result<Chore, String> {
        Arguments::parse(&line.split_whitespace().map(str::to_owned).collect::<Vec<_>>())
    }

    #[test]
    fn arguments_are_read() {
        let Ok(Chore::Measure(read)) = parse("--tiny --only host --gpu sim --out x") else {
            panic!("no measuring")
        };
        assert!(read.tiny && read.only.as_deref() == Some("host") && read.out == Some("x".into()));
        let made = Chore::MakeFile { path: "a".into(), len: 1 << 20 };
        assert_eq!(parse("--make-file a 1M"), Ok(made));
        let served = Chore::ServeReads { path: "a".into(), locked: "8M".into() };
        assert_eq!(parse("--serve-reads a 8M"), Ok(served));
        let pace = Pace { latency_us: 1000, rate: 5 };
        let (image, point, namespace) = ("a".into(), "b".into(), "c".into());
        let slow = Chore::ServeDrive { image, point, pace, namespace };
        assert_eq!(parse("--serve-drive a b 1000 5 c"), Ok(slow));
        assert_eq!(parse("-h"), Ok(Chore::Help));
    }

    #[test]
    fn nonsense_is_an_error() {
        for line in ["--only", "--fast", "--make-file a", "--make-file a big", "--serve-reads a"] {
            assert!(parse(line).is_err(), "{line}");
        }
    }
}
