//! cuFile's driver as a session opens it: a real shared object, compiled here, in a process of its
//! own, since there is one driver for each process.

#![expect(unsafe_code, reason = "lends memory to cuFile")]
#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "a test prints and may panic")]

#[path = "../lab/mod.rs"]
mod lab;

#[allow(dead_code, reason = "the library's own unit tests use the rest")]
#[path = "../../../forebay-cufile/tests/lab/cufile/mod.rs"]
mod fake;
mod faults;
mod processes;

use std::ffi::OsStr;
use std::fs::{self, File, OpenOptions};
use std::path::PathBuf;
use std::process::Child;
use std::sync::Arc;

use fake::{CALLS, DOES, NAME, VERSIONS};
use forebay_cufile::{Counters, Moves, Paths};
use forebay_cufile::{CuFileFailure, RegisteredFile, Session};
use lab::{child, or_skip, pattern};

const LEN: usize = (1 << 20) + 1234;

/// Names a child the folder that it shares with its parent.
const FOLDER: &str = "MOCK_CUFILE_FOLDER";

/// A library, a file, and a list of the calls that the library got.
struct Rig {
    folder: PathBuf,
    _own: Option<tempfile::TempDir>,
}

impl Rig {
    /// The library as of a version; none without a compiler.
    fn as_of(version: u32) -> Option<Self> {
        let own = tempfile::tempdir_in(".").unwrap();
        or_skip(fake::compile(own.path(), version))?;
        fs::write(own.path().join("file"), pattern(7, LEN)).unwrap();
        Some(Self { folder: std::path::absolute(own.path()).unwrap(), _own: Some(own) })
    }

    /// That of this process's parent.
    fn of_parent() -> Self {
        let folder = std::env::var_os(FOLDER).expect("a parent names it");
        Self { folder: folder.into(), _own: None }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.join(name)
    }

    /// Starts the running test again, over a library that does so.
    fn start(&self, role: &str, does: &str) -> Child {
        let calls = self.path("calls");
        let _ = fs::remove_file(&calls);
        let variables = [
            (FOLDER, self.folder.as_os_str()),
            (DOES, OsStr::new(does)),
            (CALLS, calls.as_os_str()),
            ("LD_LIBRARY_PATH", self.folder.as_os_str()),
        ];
        child::start_with(role, &variables)
    }

    /// Runs it to its end, and says which calls the library got.
    fn run(&self, role: &str, does: &str) -> Vec<String> {
        child::finish(self.start(role, does));
        self.calls()
    }

    fn calls(&self) -> Vec<String> {
        let text = fs::read_to_string(self.path("calls")).unwrap_or_default();
        text.lines().map(str::to_owned).collect()
    }

    fn open(&self) -> Result<Arc<Session>, CuFileFailure> {
        Session::open(Some(&self.path(NAME)), &[])
    }

    fn file(&self) -> File {
        OpenOptions::new().read(true).write(true).open(self.path("file")).unwrap()
    }

    fn registered(&self) -> RegisteredFile {
        self.open().unwrap().register(self.file()).unwrap()
    }
}

/// Reads to the byte `at` of a buffer.
fn read(
    file: &RegisteredFile,
    buffer: &mut [u8],
    (offset, len, at): (usize, usize, usize),
) -> Result<u64, CuFileFailure> {
    assert!(at + len <= buffer.len());
    // SAFETY: the bytes are there, and lent for as long as the call takes.
    unsafe { file.read(buffer.as_mut_ptr() as u64, at as u64, len, offset as u64) }
}

fn write(file: &RegisteredFile, bytes: &[u8], offset: usize) -> Result<u64, CuFileFailure> {
    // SAFETY: as above.
    unsafe { file.write(bytes.as_ptr() as u64, 0, bytes.len(), offset as u64) }
}

fn counters(session: &Session) -> Counters {
    Counters::of(session).unwrap()
}

fn moves(bytes: usize, operations: u64, by: Paths) -> Moves {
    Moves { bytes: bytes as u64, operations, by }
}

fn by_p2pdma(count: u64) -> Paths {
    Paths { p2pdma: count, ..Paths::default() }
}

const ENDS_IN_FILE: (usize, usize, usize) = (LEN - 1000, 5000, 24);

/// Moves bytes both ways, over a library as of the version that the role names.
fn move_both_ways(rig: &Rig, version: u32) {
    let session = rig.open().unwrap();
    assert_eq!((session.version_number(), session.library()), (version, &*rig.path(NAME)));
    assert_eq!(session.version(), format!("1.{}", version % 1000 / 10));
    let file = session.register(rig.file()).unwrap();
    let bytes = pattern(7, LEN);
    let mut buffer = vec![0xee; LEN + 100];
    assert_eq!(read(&file, &mut buffer, (0, LEN, 17)), Ok(LEN as u64));
    assert!(buffer[17..17 + LEN] == bytes && buffer[..17].iter().all(|byte| *byte == 0xee));
    buffer.fill(0xee);
    assert_eq!(read(&file, &mut buffer, ENDS_IN_FILE), Ok(1000), "the end of the file");
    assert!(buffer[24..1024] == bytes[LEN - 1000..] && buffer[1024] == 0xee);
    assert_eq!(read(&file, &mut buffer, (LEN + 5, 10, 0)), Ok(0));
    let written = session.register(File::create_new(rig.path("written")).unwrap()).unwrap();
    assert_eq!(write(&written, &bytes, 4096), Ok(LEN as u64));
    assert!(fs::read(rig.path("written")).unwrap()[4096..] == bytes);
    if version < 1150 {
        assert!(session.counters().is_none());
        assert!(Counters::of(&session).is_err());
        return;
    }
    let counted = counters(&session);
    assert_eq!(counted.reads(), moves(LEN + 1000, 2, by_p2pdma(2)));
    assert_eq!(counted.writes(), moves(LEN, 1, by_p2pdma(1)));
    // Many at once.
    std::thread::scope(|scope| {
        for part in 0..8 {
            let (file, bytes) = (&file, &bytes);
            scope.spawn(move || {
                let (offset, mut buffer) = (part * 100_000, vec![0; 100_000]);
                for _ in 0..20 {
                    assert_eq!(read(file, &mut buffer, (offset, 100_000, 0)), Ok(100_000));
                    assert!(buffer == bytes[offset..offset + 100_000]);
                }
            });
        }
    });
    let grown = counters(&session).since(&counted).unwrap();
    assert_eq!(grown.reads(), moves(160 * 100_000, 160, by_p2pdma(160)));
}

#[test]
fn every_version_moves_bytes_and_counts_them() {
    if let Some(version) = child::role() {
        return move_both_ways(&Rig::of_parent(), version.parse().unwrap());
    }
    for version in VERSIONS {
        let Some(rig) = Rig::as_of(version) else { return };
        let calls = rig.run(&version.to_string(), "");
        let count = |name: &str| calls.iter().filter(|call| call.starts_with(name)).count();
        assert_eq!(count("cuFileHandleRegister"), 2, "{calls:?}");
        assert_eq!(count("cuFileHandleDeregister"), 2, "{calls:?}");
        // It ends with the process, since others may have come to use it.
        assert_eq!(count("cuFileDriverClose"), 0, "{calls:?}");
        assert_eq!(count("cuFileSetStatsLevel 0 3"), usize::from(version >= 1150), "{calls:?}");
    }
}
