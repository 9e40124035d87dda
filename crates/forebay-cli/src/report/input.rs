//! Reads the files of a report: results files, and other tools' results. A file's kind is found by
//! its contents.

use std::fs::OpenOptions;
use std::io::{self, Read};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;

use forebay::units::{KIB, MIB, format_size};
use forebay_measure::failure::{Failure, Result};
use forebay_measure::results::{Record, file};

use super::foreign::{self, Hints};

/// Most bytes of a foreign file: its parsed form needs several times as much memory.
const WHOLE_MAX: u64 = 64 * MIB;
/// Length of the start of a file from which its kind is found.
const START: u64 = 64 * KIB;

/// Reads a file of any kind; `-` is stdin.
///
/// # Errors
/// Its kind or version is unknown, or it is too large; or system errors.
pub fn read(path: &Path, hints: &Hints) -> Result<Vec<Record>> {
    let text = format!("cannot read the results in `{}`", path.display());
    let failed = |error| Failure::io(&text, &error);
    let mut reader: Box<dyn Read> = if path == Path::new("-") {
        Box::new(io::stdin())
    } else {
        Box::new(opened(path).map_err(failed)?)
    };
    let mut bytes = Vec::new();
    (&mut reader).take(START).read_to_end(&mut bytes).map_err(failed)?;
    if hints.tool.is_none() && begins_record(&bytes) {
        return file::read_from(bytes.chain(reader), path);
    }
    reader.take(WHOLE_MAX + 1 - START).read_to_end(&mut bytes).map_err(failed)?;
    if bytes.len() as u64 > WHOLE_MAX {
        let why = format!("it has more than {}", format_size(WHOLE_MAX));
        let hint = "give only the lines of the results, or split the file";
        return Err(Failure::new(text).because(why).hint(hint));
    }
    if bytes.trim_ascii().is_empty() {
        return Err(Failure::new(text).because("it is empty").hint(
            "give results files (`forebay bench -o FILE`), output of `forebay bench --format \
             json`, or results of gdsio, fio, nixlbench, elbencho or CSV",
        ));
    }
    foreign::records(path, &bytes, hints)
}

/// Opens a file or a pipe. A pipe has no end that could be missed: reading waits for its writer.
fn opened(path: &Path) -> io::Result<std::fs::File> {
    let file = OpenOptions::new().read(true).custom_flags(libc::O_NONBLOCK).open(path)?;
    let kind = file.metadata()?.file_type();
    if kind.is_dir() {
        return Err(io::Error::from(io::ErrorKind::IsADirectory));
    }
    if kind.is_file() { Ok(file) } else { OpenOptions::new().read(true).open(path) }
}

/// Whether the first line is a record.
fn begins_record(bytes: &[u8]) -> bool {
    let bytes = forebay_measure::plain::without_mark(bytes).trim_ascii_start();
    let line = bytes.split(|byte| *byte == b'\n').next().unwrap_or_default();
    bytes.first() == Some(&b'{') && String::from_utf8_lossy(line).contains("\"record\"")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::made;

    fn read_text(text: &str) -> Result<Vec<Record>> {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("results");
        std::fs::write(&path, text).unwrap();
        read(&path, &Hints::default())
    }

    #[test]
    fn each_kind_is_found_by_its_contents() {
        let records = read_text(&made::file(&made::Sweep::default())).unwrap();
        assert_eq!(records.len(), 48);
        let gdsio = "IoType: READ XferType: GPUD Threads: 8 DataSetSize: 8388608/8388608(KiB) \
                     IOSize: 1024(KiB) Throughput: 4.000000 GiB/sec, Avg_Latency: 1953.125000 \
                     usecs ops: 8192 total_time 2.000000 secs\n";
        assert_eq!(read_text(gdsio).unwrap().len(), 2);
    }

    #[test]
    fn other_contents_are_refused_with_the_kinds_that_are_read() {
        let why = |text: &str| {
            let failure = read_text(text).unwrap_err();
            assert!(failure.hint.is_some(), "{failure:?}");
            failure.causes.concat()
        };
        assert!(why(r#"{"results": []}"#).contains("unknown"));
        assert!(why(" \n").contains("empty"));
        let program = "\u{7f}ELF\0\u{1},a,b\n1,2,3\n";
        assert!(why(program).contains("unknown"));
        let folder = tempfile::tempdir().unwrap();
        let failed = |path: &Path| read(path, &Hints::default()).unwrap_err();
        assert!(failed(folder.path()).causes.concat().contains("directory"));
        assert!(failed(&folder.path().join("none")).message.contains("none"));
    }
}
