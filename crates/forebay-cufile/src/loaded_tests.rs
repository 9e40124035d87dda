//! Tests of calls and settings with a real shared object, which takes our structures through the C
//! ABI. It moves bytes to host memory.

#![expect(unsafe_code, reason = "hands memory to the library")]

use std::ffi::{c_int, c_void};
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Barrier};
use std::thread;

use rustix::io::Errno;

use super::failure::CuFileFailure;
use super::library::CuFile;
use super::reach::Compat;
use super::session::level_of;
use super::session::{ALLOW_COMPAT, RegisteredFile, Session, setting, uses};
use forebay_gpu::sim::SimulatedCuFile;

use super::library::{FileHandle, Table};
use super::simulated;
use crate::simulated_library;

/// Compiles a library with this behavior in a temporary folder; `None` if there is no compiler.
fn library(as_of: u32, does: &str) -> Option<(tempfile::TempDir, PathBuf)> {
    let folder = tempfile::tempdir().unwrap();
    let library = simulated_library::compile_to(folder.path(), as_of, does);
    let library = library.map_err(|reason| println!("skipped: {reason}")).ok()?;
    Some((folder, library))
}

/// Bytes of a request, and the number of requests in the file.
const UNIT: usize = 4096;
const UNITS: usize = 300;

/// Reads a unit of a file to the same place of memory.
fn read_unit(
    file: &RegisteredFile,
    memory: &mut [u8],
    offset: usize,
) -> Result<u64, CuFileFailure> {
    assert!(offset + UNIT <= memory.len());
    let (base, at) = (memory.as_mut_ptr() as u64, offset as u64);
    // SAFETY: the memory is borrowed exclusively until the call returns.
    unsafe { file.read(base, at, UNIT, at) }
}

#[test]
fn a_failed_call_reports_the_librarys_error() {
    let bytes: Vec<u8> = (0..=250).cycle().take(UNITS * UNIT).collect();
    for (does, expected, says) in [
        ("", Ok(UNIT), ""),
        ("short", Ok(UNIT / 2), ""),
        ("code=5008", Err(None), "IO_NOT_SUPPORTED (5008)"),
        ("errno=28", Err(Some(Errno::NOSPC)), "os error 28"),
        ("more", Err(None), "reported 4097 bytes for a request of 4096"),
    ] {
        let Some((_folder, library)) = library(1190, does) else { return };
        let session = Session::open(Some(&library), &[]).unwrap();
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(&bytes).unwrap();
        let file = session.register(file).unwrap();
        for at in (0..bytes.len()).step_by(UNIT) {
            let mut got = vec![0xee; bytes.len()];
            let answer = read_unit(&file, &mut got, at);
            let words = answer.as_ref().map_or_else(CuFileFailure::in_words, |_| String::new());
            assert!(words.contains(says), "{does}: {words}");
            let moved = answer.map(|moved| usize::try_from(moved).unwrap());
            let read = *moved.as_ref().unwrap_or(&0);
            assert!(got[at..at + read] == bytes[at..at + read], "{does}: byte {at}");
            let errno = moved.map_err(|failure| match failure {
                CuFileFailure::Io(errno) => Some(errno),
                _ => None,
            });
            assert_eq!(errno, expected, "{does}");
        }
    }
}

/// Makes both requests fail before either of them returns.
static BOTH: Barrier = Barrier::new(2);

/// Refuses the first unit because of the memory, and the rest because of the file.
unsafe extern "C" fn refuse(
    _file: FileHandle,
    _base: *mut c_void,
    _len: usize,
    offset: i64,
    _at: i64,
) -> isize {
    BOTH.wait();
    if offset == 0 { -5036 } else { -5008 }
}

#[test]
fn two_concurrent_reads_have_a_reason_each() {
    let table = Table { read: refuse, ..simulated::table() };
    let session = Arc::new(Session::of_simulated_by(table).unwrap());
    let plain = (SimulatedCuFile::P2pDma, 0);
    let file = session.register_simulated(tempfile::tempfile().unwrap(), plain).unwrap();
    let read = |offset| read_unit(&file, &mut [0; 2 * UNIT], offset).unwrap_err();
    let [of_memory, of_file] = thread::scope(|scope| {
        [0, UNIT].map(|offset| scope.spawn(move || read(offset))).map(|t| t.join().unwrap())
    });
    let has = |failure: &CuFileFailure, code| failure.in_words().contains(code);
    assert!(of_memory.is_of_memory() && has(&of_memory, "5036"), "{of_memory:?}");
    assert!(!of_file.is_of_memory() && has(&of_file, "5008"), "{of_file:?}");
}

/// Whether a library allows its compatibility mode, and its statistics level.
fn settings(library: &Path) -> (bool, c_int) {
    let table = CuFile::load(&[library.into()]).unwrap().table;
    (setting(&table, ALLOW_COMPAT).unwrap(), level_of(&table).unwrap())
}

/// Opens a session without compatibility mode over a library with this behavior.
fn open(as_of: u32, does: &str, configured: Compat) -> Option<Result<Arc<Session>, CuFileFailure>> {
    let (_folder, library) = library(as_of, does)?;
    Some(Session::open_direct_only(Some(&library), configured))
}

#[test]
fn compatibility_mode_is_off_or_nothing_goes_that_way() {
    let Some(strict) = open(1190, "posix", Compat::Allowed) else { return };
    let refused = strict.unwrap().register(tempfile::tempfile().unwrap()).unwrap_err();
    assert!(refused.to_string().contains("IO_NOT_SUPPORTED (5008)"), "{refused}");
    let allowed = |as_of, does, configured| {
        let refused = open(as_of, does, configured).unwrap().unwrap_err();
        assert_eq!(refused, CuFileFailure::CompatAllowed { is_shared: false }, "{does}");
        assert!(refused.hint().unwrap().contains("allow_compat_mode"), "{refused}");
    };
    // Setting it has no effect, or it cannot be set.
    allowed(1190, "posix,keeps", Compat::Allowed);
    allowed(1190, "posix,keeps", Compat::Forbidden);
    allowed(1190, "forced", Compat::Allowed);
    allowed(1110, "posix", Compat::Allowed);
    allowed(1110, "posix", Compat::Forced);
    assert!(
        open(1110, "posix", Compat::Forbidden).unwrap().is_ok(),
        "the configuration forbids it"
    );
}

/// Other users of the driver did not request this, and may configure it as they like.
#[test]
fn a_refused_session_closes_what_it_opened() {
    let refuses = |does, configured, expected| {
        let Some((_folder, library)) = library(1190, does) else { return };
        let forbids = || Session::open_direct_only(Some(&library), configured).unwrap_err();
        for _ in 0..2 {
            let is_tried = matches!(forbids(), CuFileFailure::Refused(_));
            assert_eq!(is_tried, configured != Compat::Forced, "{configured:?}");
            assert_eq!(settings(&library), (expected, 0), "{configured:?}");
        }
    };
    refuses("open=5001", Compat::Allowed, true);
    refuses("open=5001", Compat::Forbidden, false);
    refuses("", Compat::Forced, false); // nothing was set
    // It opens, and uses compatibility mode whatever the setting is.
    let Some((_folder, library)) = library(1190, "forced,late") else { return };
    let refused = Session::open_direct_only(Some(&library), Compat::Allowed).unwrap_err();
    assert_eq!(refused, CuFileFailure::CompatAllowed { is_shared: false });
    assert!(settings(&library).0);
}

#[test]
fn a_driver_of_others_that_is_of_no_use_is_not_opened_once_more() {
    let Some((_folder, path)) = library(1190, "") else { return };
    // Opened without the table of sessions, as another library would.
    let theirs = Session::of(CuFile::load(std::slice::from_ref(&path)).unwrap()).unwrap();
    let refused = Session::open_direct_only(Some(&path), Compat::Forbidden).unwrap_err();
    assert_eq!(refused, CuFileFailure::CompatAllowed { is_shared: true });
    assert_eq!(uses(theirs.table()), 1);
    let ours = Session::open(Some(&path), &[]).unwrap();
    assert_eq!((uses(theirs.table()), ours.counters()), (2, None), "they count for themselves");
}

/// All users of the driver must share the counters of one session.
#[test]
fn opening_a_library_again_gives_the_same_session() {
    let Some((_folder, path)) = library(1190, "") else { return };
    let first = Session::open_direct_only(Some(&path), Compat::Allowed).unwrap();
    let again = Session::open_direct_only(Some(&path), Compat::Allowed).unwrap();
    assert!(Arc::ptr_eq(&first, &again) && again.counters().is_some());
    assert!(Arc::ptr_eq(&first, &Session::open(Some(&path), &[]).unwrap()));
    // The same file by another name, and another file.
    let folder = path.parent().unwrap();
    let link = folder.join("link.so");
    std::os::unix::fs::symlink(&path, &link).unwrap();
    assert!(Arc::ptr_eq(&first, &Session::open(Some(&link), &[]).unwrap()));
    let (_other, other) = library(1190, "").unwrap();
    let other = Session::open(Some(&other), &[]).unwrap();
    assert!(!Arc::ptr_eq(&first, &other));
    again.fall_silent();
    assert!(first.is_silent() && !other.is_silent());
}

#[test]
fn two_concurrent_openings_open_the_driver_once() {
    let Some((_folder, library)) = library(1190, "") else { return };
    let open = || Session::open_direct_only(Some(&library), Compat::Allowed).unwrap();
    let all: Vec<_> = std::thread::scope(|scope| {
        let all: Vec<_> = (0..4).map(|_| scope.spawn(open)).collect();
        all.into_iter().map(|one| one.join().unwrap()).collect()
    });
    assert!(all.iter().all(|one| Arc::ptr_eq(one, &all[0]) && one.counters().is_some()));
}

#[test]
fn the_settings_of_others_are_not_changed() {
    let Some((_folder, library)) = library(1190, "") else { return };
    let _other = Session::open(Some(&library), &[]).unwrap();
    let refused = Session::open_direct_only(Some(&library), Compat::Forbidden).unwrap_err();
    assert_eq!(refused, CuFileFailure::CompatAllowed { is_shared: true });
    assert!(refused.to_string().contains("other code in this process"), "{refused}");
}
