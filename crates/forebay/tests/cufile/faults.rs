//! Wrong answers of a library.

use std::fmt::Debug;

use forebay_cufile::CuFileFailure;
use forebay_cufile::Paths;
use rustix::io::Errno;

use super::{LEN, Rig, by_p2pdma, child, counters, moves, pattern, read, write};

/// The library's own error, of which there is a hint.
#[track_caller]
fn refused<T: Debug>(answer: Result<T, CuFileFailure>, says: &str, hint: &str) {
    match answer {
        Err(CuFileFailure::Refused(error)) => {
            assert!(error.to_string().contains(says), "{error}");
            assert!(error.hint().unwrap_or_default().contains(hint), "{error}: {:?}", error.hint());
        }
        other => panic!("{other:?}"),
    }
}

/// Runs `part` in children over a library that does as each line of `cases` begins.
fn each(cases: &[&str], part: impl Fn(&Rig, &str)) {
    if let Some(does) = child::role() {
        return part(&Rig::of_parent(), &does);
    }
    let Some(rig) = Rig::as_of(1190) else { return };
    for does in cases {
        rig.run(does, does);
    }
}

#[test]
fn a_driver_that_does_not_open_says_why() {
    let cases = ["open=5001", "open=5033", "open=5011:999", "version=5030"];
    each(&cases, |rig, does| match (does, rig.open()) {
        ("open=5001", answer) => refused(answer, "DRIVER_NOT_INITIALIZED (5001)", "modprobe"),
        ("open=5033", answer) => refused(answer, "NVFS_SETUP_ERROR (5033)", "libcuda.so.1"),
        ("open=5011:999", answer) => refused(answer, "(CUDA error 999)", "nvidia-smi"),
        (_, Err(CuFileFailure::Library(why))) => assert!(why.contains("(5030)"), "{why}"),
        (_, answer) => panic!("{answer:?}"),
    });
}

#[test]
fn a_file_that_is_not_taken_says_why() {
    let cases = ["register=5008", "register=5027", "register=5028", "register=5030"];
    each(&cases, |rig, does| {
        let answer = rig.open().unwrap().register(rig.file());
        let (says, hint) = match does {
            "register=5008" => ("IO_NOT_SUPPORTED (5008)", "forebay doctor --tree"),
            "register=5027" => ("HANDLE_NOT_REGISTERED (5027)", "/run/udev"),
            "register=5028" => ("HANDLE_ALREADY_REGISTERED (5028)", "open the file anew"),
            _ => ("INTERNAL_ERROR (5030)", "cufile.log"),
        };
        refused(answer, says, hint);
    });
}

#[test]
fn a_move_that_fails_says_why() {
    let cases = ["errno=28", "errno=5", "errno=0", "code=5008", "code=5044", "code=99"];
    each(&cases, |rig, does| {
        let (file, mut buffer) = (rig.registered(), vec![1; LEN]);
        for answer in [read(&file, &mut buffer, (0, LEN, 0)), write(&file, &[2; 100], 0)] {
            match does {
                "errno=28" => assert_eq!(answer, Err(CuFileFailure::Io(Errno::NOSPC))),
                "errno=5" => assert_eq!(answer, Err(CuFileFailure::Io(Errno::IO))),
                "errno=0" => assert!(matches!(answer, Err(CuFileFailure::Io(_))), "{answer:?}"),
                "code=5008" => refused(answer, "IO_NOT_SUPPORTED (5008)", "forebay doctor --tree"),
                "code=5044" => refused(answer, "IO_ERROR (5044)", "dmesg"),
                _ => refused(answer, "cuFile's error 99", ""),
            }
        }
        // Where no offset can be that large, the library is not called.
        let far = usize::try_from(1_u64 << 63).unwrap();
        let overflow = Err(CuFileFailure::Io(Errno::OVERFLOW));
        assert_eq!(read(&file, &mut buffer, (far, 1, 0)), overflow);
        assert_eq!(write(&file, &[2], far), overflow);
    });
}

#[test]
fn false_reports_of_moves_are_found_or_harmless() {
    each(&["short", "more", "lie", "posix", "nvidia-fs"], |rig, does| {
        let (session, bytes) = (rig.open().unwrap(), pattern(7, LEN));
        let file = session.register(rig.file()).unwrap();
        let mut buffer = vec![0xee; LEN];
        let answer = read(&file, &mut buffer, (0, LEN, 0));
        let mut by = by_p2pdma(1);
        let mut moved = LEN;
        match does {
            "short" => {
                moved = LEN / 2 / 512 * 512;
                assert_eq!(answer, Ok(moved as u64));
                assert!(buffer[..moved] == bytes[..moved] && buffer[moved] == 0xee);
            }
            "more" => {
                let (moved, requested) = (LEN as u64 + 1, LEN as u64);
                assert_eq!(answer, Err(CuFileFailure::Nonsense { moved, requested }));
            }
            "lie" => {
                // Nothing here shows it; the drives' counters do.
                assert_eq!(answer, Ok(LEN as u64));
                assert!(buffer.iter().all(|byte| *byte == 0xee));
            }
            way => {
                assert!(answer == Ok(LEN as u64) && buffer == bytes);
                by = Paths::default();
                *(if way == "posix" { &mut by.posix } else { &mut by.nvidia_fs }) = 1;
            }
        }
        assert_eq!(counters(&session).reads(), moves(moved, 1, by), "{does}");
    });
}
