//! A results file on its drive: created, continued, read back.
//!
//! A writer holds a lock on it. A line that was written only in part is removed, so readers find
//! complete lines, except for the last one after a crash of the machine.

use std::fs::{File, OpenOptions};
use std::io::{self, BufRead, BufReader, ErrorKind, Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use forebay::units::{MIB, format_size};
use rustix::fs::{FlockOperation, flock};
use serde_json::{Number, Value};

use super::{Record, Run, SCHEMA, Sample};
use crate::failure::{Failure, Result};
use crate::json_memory;
use crate::memory::close;
use crate::output::{New, folder_of};

/// Most bytes of one line: the evidence of a sample with hundreds of drives is a MiB.
const LINE_MAX: u64 = 64 * MIB;
/// Most bytes of a whole file.
const FILE_MAX: u64 = 1024 * MIB;

/// A results file that is appended to.
#[derive(Debug)]
pub struct Ledger {
    path: PathBuf,
    file: Arc<File>,
    /// The new file: without a sample it is removed.
    made: Option<New>,
    /// Bytes of whole lines.
    len: u64,
    /// Whether a partial line follows, which is removed on the next append.
    is_torn: bool,
}

impl Ledger {
    /// Creates a new file.
    ///
    /// # Errors
    /// The file exists; or system errors.
    pub fn create(path: &Path) -> Result<Self> {
        let made = New::create(path, 0o666)
            .map_err(|error| Failure::at("create the results file", path, &error))?;
        let file = Arc::clone(&made.file);
        // Sync the folder so that the name is stored as well; some file systems cannot.
        let _ = File::open(folder_of(path)).and_then(|folder| folder.sync_all());
        let ledger = Self { path: path.to_owned(), file, made: Some(made), len: 0, is_torn: false };
        ledger.locked()
    }

    /// Opens a file to continue it, and returns its records. Only an append changes it.
    ///
    /// # Errors
    /// It is not a results file, another run appends to it, or system errors.
    pub fn reopen(path: &Path) -> Result<(Self, Vec<Record>)> {
        let opened = OpenOptions::new()
            .append(true)
            .read(true)
            .custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK)
            .open(path);
        let file = Arc::new(opened.map_err(|error| Failure::io(cannot_read(path), &error))?);
        let ledger = Self { path: path.to_owned(), file, made: None, len: 0, is_torn: false };
        let mut ledger = ledger.locked()?;
        let (records, whole) = records(&*ledger.file, path, true)?;
        let len = ledger.file.metadata().map_err(|error| ledger.failed(&error))?.len();
        (ledger.len, ledger.is_torn) = (whole, len > whole);
        Ok((ledger, records))
    }

    fn locked(self) -> Result<Self> {
        match flock(&self.file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => Ok(self),
            Err(rustix::io::Errno::WOULDBLOCK) => {
                let text = format!("cannot write to `{}`", self.path.display());
                Err(Failure::new(text)
                    .because("another run is writing to it")
                    .hint("wait for that run, or name another file with `-o`"))
            }
            // Some file systems have no locks: there, the user must not start two runs on one file.
            Err(_) => Ok(self),
        }
    }

    /// Its path.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Appends one record.
    ///
    /// # Errors
    /// System errors, above all for lack of space; the file is then unchanged.
    pub fn append(&mut self, record: &Record) -> Result<()> {
        let line = crate::plain::json(record).map_err(|error| {
            Failure::new("cannot write a result as JSON").because(error.to_string())
        })?;
        let too_large = if self.len + line.len() as u64 >= FILE_MAX {
            Err(format!("it would exceed {}", format_size(FILE_MAX)))
        } else if line.len() as u64 >= LINE_MAX {
            Err(format!("a line would exceed {}", format_size(LINE_MAX)))
        } else {
            json_memory::check(line.as_bytes(), 0).map(drop)
        };
        too_large.map_err(|why| {
            let text = format!("cannot write to the results file `{}`", self.path.display());
            Failure::new(text).because(why).hint("measure fewer points per file")
        })?;
        if self.is_torn {
            // The machine crashed during an append.
            self.file.set_len(self.len).map_err(|error| self.failed(&error))?;
            self.is_torn = false;
        }
        let written = (&*self.file).write_all(format!("{line}\n").as_bytes());
        if let Err(error) = written {
            // If the partial line cannot be removed, readers skip it.
            let _ = self.file.set_len(self.len);
            return Err(self.failed(&error));
        }
        self.len += line.len() as u64 + 1;
        if matches!(record, Record::Sample(_)) {
            self.made.take().into_iter().for_each(New::keep);
        }
        Ok(())
    }

    /// Syncs the appended records to the drive.
    ///
    /// # Errors
    /// System errors.
    pub fn sync(&self) -> Result<()> {
        match self.file.sync_data() {
            // Some file systems have no sync.
            Err(error) if error.kind() == ErrorKind::InvalidInput => Ok(()),
            synced => synced.map_err(|error| self.failed(&error)),
        }
    }

    /// Closes the file: some file systems only then report a failed write.
    ///
    /// # Errors
    /// System errors.
    pub fn finish(mut self) -> Result<()> {
        self.sync()?;
        self.made.take().into_iter().for_each(New::keep);
        // The lock is held until the last descriptor is closed.
        let closed = self.file.try_clone().and_then(close);
        closed.map_err(|error| self.failed(&error))
    }

    fn failed(&self, error: &io::Error) -> Failure {
        let text = format!("cannot write to the results file `{}`", self.path.display());
        let failure = Failure::io(text, error);
        match error.kind() {
            ErrorKind::StorageFull | ErrorKind::QuotaExceeded => failure
                .hint("free some space, and repeat the command: it continues where it stopped"),
            _ => failure,
        }
    }
}

fn cannot_read(path: &Path) -> String {
    format!("cannot read the results file `{}`", path.display())
}

/// The failure of a file from another program.
fn foreign(path: &Path, why: impl Into<String>) -> Failure {
    Failure::new(cannot_read(path))
        .because(why)
        .hint("a results file is made by `forebay bench -o FILE`, with one JSON record per line")
}

/// Reads a results file, without the evidence of its samples: that is most of the file, and no
/// table shows it.
///
/// # Errors
/// It is not a results file, of another version, or damaged in the middle; or system errors.
pub fn read(path: &Path) -> Result<Vec<Record>> {
    read_from(File::open(path).map_err(|error| Failure::io(cannot_read(path), &error))?, path)
}

/// Reads the results of `path` from a reader.
///
/// # Errors
/// The same as of [`read`].
pub fn read_from(reader: impl Read, path: &Path) -> Result<Vec<Record>> {
    Ok(records(reader, path, false)?.0)
}

/// The records of a file, with or without evidence, and the bytes of its whole lines: the last may
/// have been cut.
fn records(reader: impl Read, path: &Path, evidence: bool) -> Result<(Vec<Record>, u64)> {
    let mut reader = BufReader::new(reader);
    let (mut records, mut whole, mut number) = (Vec::new(), 0, 0_u64);
    let (mut last, mut kept) = (None, 0);
    loop {
        let mut line = Vec::new();
        let read = (&mut reader).take(LINE_MAX).read_until(b'\n', &mut line);
        let len = read.map_err(|error| Failure::io(cannot_read(path), &error))? as u64;
        number += 1;
        if len == 0 {
            break;
        }
        if whole + len > FILE_MAX {
            return Err(foreign(path, format!("it exceeds {}", format_size(FILE_MAX))));
        }
        if line.last() != Some(&b'\n') && len < LINE_MAX && !records.is_empty() {
            break; // a writer has not finished it
        }
        let text = if number == 1 { crate::plain::without_mark(&line) } else { &line };
        let memory = json_memory::check(text, kept)
            .map_err(|why| foreign(path, format!("line {number}: {why}")))?;
        let mut record = record(text, number, path)?;
        if let Record::Sample(sample) = &mut record
            && let Some(measured) = sample.measured.as_mut().filter(|_| !evidence)
        {
            measured.evidence = None;
        }
        if let Record::Run(run) = &mut record {
            // A run that was continued often has many equal runs; they share one copy in memory.
            match &last {
                Some(last) if *last == run.request => run.request = Arc::clone(last),
                _ => {
                    kept += memory;
                    last = Some(Arc::clone(&run.request));
                }
            }
        }
        records.push(record);
        whole += len;
    }
    if !matches!(records.first(), Some(Record::Run(_))) {
        let why = if records.is_empty() { "it is empty" } else { "it does not begin with a run" };
        return Err(foreign(path, why));
    }
    Ok((records, whole))
}

/// The record of a line.
fn record(line: &[u8], number: u64, path: &Path) -> Result<Record> {
    let wrong = |error: serde_json::Error| {
        if error.is_eof() {
            return Failure::new(cannot_read(path))
                .because(format!("line {number}: it ends early"))
                .hint("the file is truncated: copy it again, or repeat the measurement");
        }
        // The line is always the first of what was parsed.
        let (text, at) = (error.to_string(), error.column());
        let text = text.split(" at line ").next().unwrap_or_default();
        foreign(path, format!("line {number}: {text}, column {at}"))
    };
    let value: Value = serde_json::from_slice(line).map_err(wrong)?;
    let schema = value.get("schema").and_then(Value::as_u64);
    if let Some(schema) = schema.filter(|schema| *schema != u64::from(SCHEMA)) {
        return Err(Failure::new(cannot_read(path))
            .because(format!(
                "line {number}: it has version {schema}, and this program reads {SCHEMA}"
            ))
            .hint("read it with the `forebay` that wrote it, or with a newer one"));
    }
    if value["record"] != "run"
        && let Some((field, found)) = negative(&value)
        && let Some(field) = field.strip_prefix('.')
    {
        return Err(foreign(path, format!("line {number}: `{field}` is {found}")));
    }
    serde_json::from_value(value).map_err(|error| foreign(path, format!("line {number}: {error}")))
}

/// The first number below zero, after its field; no rate, time or count is. A slope may be.
fn negative(value: &Value) -> Option<(String, &Number)> {
    match value {
        Value::Number(number) => {
            number.as_f64().filter(|number| *number < 0.0).map(|_| (String::new(), number))
        }
        Value::Array(all) => all.iter().find_map(negative),
        Value::Object(all) => {
            let own = all.iter().filter(|(key, _)| !["slope", "evidence"].contains(&key.as_str()));
            let mut found = own.filter_map(|(key, value)| Some((key, negative(value)?)));
            found.next().map(|(key, (field, number))| (format!(".{key}{field}"), number))
        }
        _ => None,
    }
}

/// The samples of records, each with its run.
pub fn samples(records: &[Record]) -> impl Iterator<Item = (&Run, &Sample)> {
    let mut run: Option<&Run> = None;
    records.iter().filter_map(move |record| match record {
        Record::Run(next) => {
            run = Some(next);
            None
        }
        Record::Sample(sample) => run.map(|run| (run, &**sample)),
        Record::Limit(_) | Record::Doubt { .. } | Record::Warning { .. } => None,
    })
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::process::Command;
    use std::sync::{Mutex, MutexGuard, PoisonError};

    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

    use super::*;
    use crate::environment::of_machine;
    use crate::results::Point;

    /// Held by tests that lock a file again, and while another test starts a process: until that
    /// runs its program, it holds the locks of this one.
    static LOCKS: Mutex<()> = Mutex::new(());

    fn alone() -> MutexGuard<'static, ()> {
        LOCKS.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn run(verb: &str) -> Record {
        let environment = of_machine("forebay bench", Vec::new());
        let (verb, request) = (verb.into(), Arc::new(Value::Null));
        Record::Run(Box::new(Run {
            schema: SCHEMA,
            verb,
            label: None,
            environment,
            gpus: Vec::new(),
            unmetered: Vec::new(),
            ranks: Vec::new(),
            request,
            imported: None,
        }))
    }

    fn warning(text: &str) -> Record {
        Record::Warning { text: text.into() }
    }

    #[test]
    fn appended_records_are_read_back_and_continued() {
        let _alone = alone();
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("results");
        let mut ledger = Ledger::create(&path).unwrap();
        ledger.append(&run("bench")).unwrap();
        ledger.append(&warning("one\nline")).unwrap();
        let again = Ledger::reopen(&path).unwrap_err();
        assert!(again.causes[0].contains("another run"), "{again:?}");
        ledger.finish().unwrap();
        let (mut ledger, records) = Ledger::reopen(&path).unwrap();
        assert_eq!(records, [run_of(&records), warning("one\nline")]);
        ledger.append(&warning("two")).unwrap();
        assert_eq!(read(&path).unwrap().len(), 3);
        assert!(Ledger::create(&path).unwrap_err().message.contains("results"));
    }

    fn run_of(records: &[Record]) -> Record {
        records[0].clone()
    }

    #[test]
    fn a_line_that_was_cut_is_left_out_and_taken_away() {
        let _alone = alone();
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("results");
        let mut ledger = Ledger::create(&path).unwrap();
        ledger.append(&run("bench")).unwrap();
        ledger.append(&warning("whole")).unwrap();
        ledger.finish().unwrap();
        let whole = fs::read(&path).unwrap();
        for cut in [1, 10, 25] {
            let mut bytes = whole.clone();
            bytes.extend(&br#"{"record":"warning","text":"cut"}"#[..cut]);
            fs::write(&path, &bytes).unwrap();
            assert_eq!(read(&path).unwrap().len(), 2);
            let (mut ledger, _) = Ledger::reopen(&path).unwrap();
            assert_eq!(fs::read(&path).unwrap(), bytes, "opening changes nothing");
            ledger.append(&warning("more")).unwrap();
            let text = fs::read(&path).unwrap();
            assert!(text.starts_with(&whole) && read(&path).unwrap().len() == 3);
        }
    }

    #[test]
    fn other_files_are_refused_with_the_reason() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("results");
        let why = |text: &str| {
            fs::write(&path, text).unwrap();
            read(&path).unwrap_err().causes.concat()
        };
        assert_eq!(why(""), "it is empty");
        assert!(why("hello\n").starts_with("line 1: expected"), "{}", why("hello\n"));
        assert!(why(r#"{"record":"warning","text":"x"}"#).contains("begin with a run"));
        let mut newer = serde_json::to_value(run("bench")).unwrap();
        newer["schema"] = 7.into();
        assert!(why(&newer.to_string()).contains("version 7, and this program reads 1"));
        let hint = || read(&path).unwrap_err().hint.unwrap();
        assert!(hint().contains("`forebay` that wrote it, or with a newer one"), "{}", hint());
        assert!(why("hello\n").starts_with("line 1") && hint().contains("is made by"));
        let of =
            |line: &str| why(&format!("{}\n{line}\n", serde_json::to_string(&run("a")).unwrap()));
        let limit = r#""record":"limit","name":"a","of":"a","how":"","simulated":false"#;
        let limit =
            |rate: f64| format!("{{{limit},\"direction\":null,\"bytes_per_second\":{rate}}}");
        assert_eq!(of(&limit(-1.0)), "line 2: `bytes_per_second` is -1");
        assert!(of("-1").starts_with("line 2: ") && of("[-1]").starts_with("line 2: "));
        fs::write(&path, &serde_json::to_string(&run("a")).unwrap()[..50]).unwrap();
        let cut = read(&path).unwrap_err();
        assert_eq!(cut.causes, ["line 1: it ends early"]);
        assert!(cut.hint.unwrap().contains("truncated"));
        let middle = format!("{}\n{{\n{}\n", serde_json::to_string(&run("a")).unwrap(), "{}");
        assert!(why(&middle).starts_with("line 2: "));
    }

    #[test]
    fn a_full_disk_is_an_error_with_a_remedy() {
        // Every write to it fails.
        let path = Path::new("/dev/full");
        let file = Arc::new(OpenOptions::new().append(true).read(true).open(path).unwrap());
        let mut ledger = Ledger { path: path.to_owned(), file, made: None, len: 0, is_torn: false };
        let failure = ledger.append(&run("bench")).unwrap_err();
        assert!(failure.hint.unwrap().contains("continues where it stopped"));
    }

    /// Set for a child process with a limited file size: the file that it writes.
    const LIMITED: &str = "FOREBAY_TEST_LIMITED_FILE";

    #[test]
    fn a_line_that_was_written_in_part_is_taken_back() {
        if let Some(path) = std::env::var_os(LIMITED) {
            return written_in_part(Path::new(&path));
        }
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("results");
        let name = "results::file::tests::a_line_that_was_written_in_part_is_taken_back";
        // The limit applies to a whole process, and a signal ends a process that exceeds it.
        let mut own = Command::new("sh");
        own.args(["-c", "trap '' XFSZ && exec \"$@\"", "sh"]);
        own.arg(std::env::current_exe().unwrap()).args(["--exact", name, "--nocapture"]);
        let _alone = alone();
        let output = own.env(LIMITED, &path).output().unwrap();
        let text = String::from_utf8_lossy(&output.stdout);
        assert!(output.status.success() && text.contains("1 passed"), "{output:?}");
        assert_eq!(read(&path).unwrap().len(), 3);
    }

    /// A file with less room than a line needs, as on a disk that fills up during a write.
    fn written_in_part(path: &Path) {
        let mut ledger = Ledger::create(path).unwrap();
        ledger.append(&run("bench")).unwrap();
        ledger.append(&warning("whole")).unwrap();
        let whole = fs::read(path).unwrap();
        let before = getrlimit(Resource::Fsize);
        let most = Some(whole.len() as u64 + 20);
        setrlimit(Resource::Fsize, Rlimit { current: most, ..before }).unwrap();
        assert_eq!(ledger.file.write(&[b'x'; 40]).unwrap(), 20, "as many as fit");
        ledger.file.set_len(ledger.len).unwrap();
        let failure = ledger.append(&warning("longer than 20 bytes")).unwrap_err();
        assert!(failure.message.contains("cannot write to the results file"), "{failure:?}");
        assert_eq!(fs::read(path).unwrap(), whole);
        setrlimit(Resource::Fsize, before).unwrap();
        ledger.append(&warning("room again")).unwrap();
        assert!(fs::read(path).unwrap().starts_with(&whole));
        ledger.finish().unwrap();
    }

    #[test]
    fn a_new_file_without_a_sample_is_removed() {
        let _alone = alone();
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("results");
        let (point, error) = (Point::default(), Some("it broke".into()));
        let sample = Sample { point, repeat: 0, unix_time: 0.0, measured: None, error };
        for more in [warning("early"), Record::Sample(Box::new(sample))] {
            let mut ledger = Ledger::create(&path).unwrap();
            ledger.append(&run("bench")).unwrap();
            ledger.append(&more).unwrap();
            drop(ledger);
            assert_eq!(path.exists(), matches!(more, Record::Sample(_)));
        }
        // One that was there stays, whatever it holds.
        fs::write(&path, serde_json::to_string(&run("bench")).unwrap() + "\n").unwrap();
        drop(Ledger::reopen(&path).unwrap());
        assert!(path.exists());
    }

    proptest::proptest! {
        #[test]
        fn no_bytes_end_the_command(bytes: Vec<u8>) {
            let _ = record(&bytes, 1, Path::new(""));
            let mut line = br#"{"record":"sample","point":"#.to_vec();
            line.extend(&bytes);
            let _ = record(&line, 1, Path::new(""));
        }
    }
}
