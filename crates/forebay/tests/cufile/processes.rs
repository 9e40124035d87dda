//! The driver is the process's: others may have opened it, and the process may fork or end.

#![expect(unsafe_code, reason = "opens cuFile as another library would")]

use std::ffi::c_int;
use std::os::unix::process::ExitStatusExt as _;
use std::time::{Duration, Instant};

use forebay_cufile::{CuFileFailure, Session};
use libloading::Library;

use super::lab::fork::{Side, fork};
use super::lab::watchdog::Watchdog;
use super::{ENDS_IN_FILE, LEN, NAME, Rig, child, pattern, read, write};

/// `CUfileError_t`.
#[repr(C)]
struct Answer {
    error: c_int,
    cuda: c_int,
}

/// The last calls of the library: to deregister the file and, once, to stop counting.
const LAST: [&str; 2] = ["cuFileHandleDeregister", "cuFileStatsStop"];

/// Opens the driver as whatever else uses it in a process would, with settings of its own.
fn open_before(rig: &Rig) -> Library {
    // SAFETY: the library of this test, whose functions have these types.
    unsafe {
        let library = Library::new(rig.path(NAME)).unwrap();
        let level = library.get::<unsafe extern "C" fn(c_int) -> Answer>(c"cuFileSetStatsLevel");
        assert_eq!(level.unwrap()(1).error, 0);
        let open = library.get::<unsafe extern "C" fn() -> Answer>(c"cuFileDriverOpen").unwrap();
        let answer = open();
        assert_eq!((answer.error, answer.cuda), (0, 0));
        library
    }
}

/// By its path, and by its name: the loader takes the one that is there.
#[test]
fn a_driver_that_others_opened_is_left_as_it_is() {
    if let Some(role) = child::role() {
        let rig = Rig::of_parent();
        let _library = open_before(&rig);
        let session = match role.as_str() {
            "by name" => Session::open(None, &[]).unwrap(),
            _ => rig.open().unwrap(),
        };
        assert_eq!(session.library() == rig.path(NAME), role == "by path");
        let (file, mut buffer) = (session.register(rig.file()).unwrap(), vec![0; LEN]);
        assert_eq!(read(&file, &mut buffer, (0, LEN, 0)), Ok(LEN as u64));
        assert!(session.counters().is_none(), "they are the others'");
        return;
    }
    let Some(rig) = Rig::as_of(1190) else { return };
    for role in ["by path", "by name"] {
        let calls = rig.run(role, "");
        let ours = [
            "cuFileSetStatsLevel 0 1",
            "cuFileDriverOpen",
            "cuFileDriverOpen",
            "cuFileHandleRegister",
            "cuFileRead",
            "cuFileHandleDeregister",
        ];
        assert_eq!(calls, ours, "{role}");
    }
}

#[test]
fn a_forked_child_leaves_the_library_alone() {
    if child::role().is_some() {
        let _watchdog = Watchdog::start();
        let rig = Rig::of_parent();
        let session = rig.open().unwrap();
        let file = session.register(rig.file()).unwrap();
        let before = rig.calls();
        match fork() {
            Side::Child(side) => side.run(|_| {
                let mut buffer = vec![0; LEN];
                let read = read(&file, &mut buffer, ENDS_IN_FILE).unwrap_err();
                assert_eq!(read, CuFileFailure::Forked);
                assert!(read.to_string().contains("forked") && read.hint().is_some());
                assert_eq!(write(&file, &[1; 9], 0), Err(CuFileFailure::Forked));
                assert_eq!(session.register(rig.file()).unwrap_err(), CuFileFailure::Forked);
                assert_eq!(rig.open().unwrap_err(), CuFileFailure::Forked, "nor anew");
                assert!(session.counters().is_none());
                drop(file);
                drop(session);
            }),
            Side::Parent(parent) => {
                parent.finish();
                assert_eq!(rig.calls(), before);
                let mut buffer = vec![0; LEN];
                assert_eq!(read(&file, &mut buffer, ENDS_IN_FILE), Ok(1000));
                assert!(session.counters().is_some());
            }
        }
        return;
    }
    let Some(rig) = Rig::as_of(1190) else { return };
    let calls = rig.run("forks", "");
    assert!(calls.ends_with(&LAST.map(str::to_owned)), "{calls:?}");
}

/// Waits until a call of the library stands still in the middle.
fn await_stuck(rig: &Rig) {
    let start = Instant::now();
    while !rig.calls().iter().any(|call| call == "stuck") {
        // Only a bound on a hang: nothing is measured.
        assert!(start.elapsed() < Duration::from_secs(60), "{:?}", rig.calls());
        std::thread::sleep(Duration::from_millis(2));
    }
}

#[test]
fn a_process_that_ends_in_the_middle_of_a_move_ends() {
    if let Some(role) = child::role() {
        let _watchdog = Watchdog::start();
        let rig = Rig::of_parent();
        let (file, mut buffer) = (rig.registered(), vec![0; LEN]);
        if role == "reads" {
            assert_eq!(read(&file, &mut buffer, (0, LEN, 0)), Ok(LEN as u64));
            assert!(buffer == pattern(7, LEN));
            return;
        }
        // It never comes back; a process that wants to end does so without it.
        let ends = role == "hangs and ends";
        let stuck = std::thread::spawn(move || match role.as_str() {
            "hangs in a write" => write(&file, &pattern(7, LEN), 0),
            _ => read(&file, &mut buffer, (0, LEN, 0)),
        });
        await_stuck(&rig);
        if ends {
            return;
        }
        stuck.join().unwrap().unwrap();
    }
    let Some(rig) = Rig::as_of(1190) else { return };
    for role in ["hangs in a read", "hangs in a write"] {
        let mut child = rig.start(role, "stuck");
        await_stuck(&rig);
        child.kill().unwrap();
        assert_eq!(child.wait().unwrap().signal(), Some(9), "{role}");
        // Nothing is left that would disturb other processes.
        let calls = rig.run("reads", "");
        assert!(calls.ends_with(&LAST.map(str::to_owned)), "{calls:?}");
    }
    rig.run("hangs and ends", "stuck");
    let start = Instant::now();
    let calls = rig.run("reads", "stop-spin");
    assert!(calls.ends_with(&["cuFileStatsStop".to_owned()]), "{calls:?}");
    // It takes one second at the end.
    assert!(start.elapsed() < Duration::from_secs(30), "{:?}", start.elapsed());
}
