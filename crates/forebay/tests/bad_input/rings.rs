//! A kernel that refuses io_uring, and signals that interrupt every call.

use std::fs;
use std::io::Read as _;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use forebay::{Engine, Error, OpenOptions, RingChoice, Route};

use crate::lab::fork::{Side, fork};
use crate::lab::hanging::HangingDrive;
use crate::lab::{self, child, or_skip, pattern, watchdog::Watchdog};
use crate::{assert_says, engine, sim, small_engine};

/// The number of `io_uring_setup` on every architecture.
const SETUP: i64 = 425;

/// The number of `io_uring_enter` on every architecture.
const ENTER: i64 = 426;

/// Reads a cold file, so that the drive's ring is needed.
fn read_cold(engine: &Engine, bytes: &[u8]) -> forebay::Result<()> {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("data");
    fs::write(&path, bytes).expect("a file");
    let file = engine.open_with(&path, &OpenOptions::writing())?;
    if let Some(reason) = file.no_direct_io() {
        lab::skip(format!("the temporary folder has no O_DIRECT: {reason}"));
    }
    file.evict()?;
    let (buffer, _) = file.read_to_end(None).run()?;
    assert!(buffer.as_slice() == Some(bytes));
    file.evict()?;
    let gpu = sim(engine, "sim");
    let (buffer, _) = file.read_to_end(Some(gpu)).run()?;
    let mut got = vec![0; bytes.len()];
    buffer.download(0, &mut got)?;
    assert!(got == bytes);
    file.write(&buffer).at(77).route(Route::Staged).run()?;
    assert!(fs::read(&path).expect("a read")[77..] == *bytes);
    Ok(())
}

/// Reads a small part of a cold file, for which the engine has another ring.
fn read_small(engine: &Engine, bytes: &[u8]) {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("data");
    fs::write(&path, bytes).expect("a file");
    let file = engine.open(&path).expect("the file opens");
    file.evict().expect("an eviction");
    let mut part = [0; 777];
    file.read(&mut part[..]).at(100_003).exact().run().expect("the general path reads it");
    assert!(part == bytes[100_003..][..777]);
}

#[test]
fn io_uring_that_is_refused() {
    let _watchdog = Watchdog::start();
    let bytes = pattern(1, 5_000_001);
    const EPERM: (i32, &str) = (libc::EPERM, "Operation not permitted (os error 1)");
    const ENOSYS: (i32, &str) = (libc::ENOSYS, "Function not implemented (os error 38)");
    for (call, (errno, printed)) in
        [(SETUP, EPERM), (SETUP, ENOSYS), (ENTER, EPERM), (ENTER, ENOSYS)]
    {
        let result = lab::without_call(call, errno, || {
            assert!(call == ENTER || !lab::has_uring());
            let engine = engine();
            read_cold(&engine, &bytes).expect("the other ring takes over");
            let notes = engine.notes();
            let note = format!(
                "io_uring is refused here ({printed}): up to 24 threads read each drive instead"
            );
            assert_eq!(notes, [note]);
            read_small(&engine, &bytes);
            let engine = small_engine(|options| options.ring = RingChoice::Uring);
            let hint = "leave `FOREBAY_RING` at `auto` to use threads with `pread` instead";
            let message = "cannot start the engine's io_uring";
            assert_says(read_cold(&engine, &bytes), message, printed, hint);
            let engine = small_engine(|options| options.ring = RingChoice::Pread);
            read_cold(&engine, &bytes).expect("io_uring was not requested");
            assert!(engine.notes().is_empty());
        });
        if or_skip(result).is_none() {
            return;
        }
    }
}

/// Refuses a system call to all threads of this process, from now on.
fn refuse_to_all(number: i64, errno: i32) -> lab::Offer<()> {
    #![expect(unsafe_code, reason = "a filter on system calls is set by its address")]
    let number = u32::try_from(number).map_err(|_| "no such system call here".to_owned())?;
    let step = |code, jt, jf, k| libc::sock_filter { code, jt, jf, k };
    let refused = libc::SECCOMP_RET_ERRNO | errno.cast_unsigned();
    let mut steps = [
        step(0x20, 0, 0, 0),
        step(0x15, 0, 1, number),
        step(0x06, 0, 0, refused),
        step(0x06, 0, 0, libc::SECCOMP_RET_ALLOW),
    ];
    let program = libc::sock_fprog { len: 4, filter: steps.as_mut_ptr() };
    let (mode, all) = (libc::SECCOMP_SET_MODE_FILTER, libc::SECCOMP_FILTER_FLAG_TSYNC);
    // SAFETY: the program outlives the second call, which copies it.
    let refused = unsafe {
        libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0
            || libc::syscall(libc::SYS_seccomp, mode, all, &raw const program) != 0
    };
    if refused { Err("no filter on system calls here".into()) } else { Ok(()) }
}

/// What threads do then, a note says.
fn assert_noted(engine: &Engine) {
    let note = "io_uring takes no more requests here (Operation not permitted (os error 1)): \
                threads read and write instead";
    assert!(engine.notes().iter().any(|known| known == note), "{:?}", engine.notes());
}

#[test]
fn io_uring_that_is_refused_later() {
    if child::role().is_none() {
        drop(child::run("refused"));
        return;
    }
    if !lab::has_uring() {
        return lab::skip("io_uring is refused here");
    }
    let _watchdog = Watchdog::start();
    let bytes = pattern(1, 5_000_001);
    let engine = small_engine(|options| options.ring = RingChoice::Uring);
    read_cold(&engine, &bytes).expect("the ring serves");
    read_small(&engine, &bytes);
    let small = crate::engine(); // it has no other ring yet
    read_small(&small, &bytes);
    if or_skip(refuse_to_all(ENTER, libc::EPERM)).is_none() {
        return;
    }
    read_cold(&engine, &bytes).expect("threads take over");
    assert_noted(&engine);
    read_small(&engine, &bytes);
    read_cold(&engine, &bytes).expect("and go on");
    (0..3).for_each(|_| read_small(&small, &bytes));
    assert_noted(&small);
}

/// What the kernel has of the ring comes back before threads read the same bytes.
#[test]
fn io_uring_that_is_refused_with_requests_in_flight() {
    if child::role().is_none() {
        drop(child::run("refused"));
        return;
    }
    if !lab::has_uring() {
        return lab::skip("io_uring is refused here");
    }
    let _watchdog = Watchdog::start();
    let Some(drive) = or_skip(HangingDrive::new(64 << 20)) else { return };
    let path = drive.path().join("data");
    let bytes = pattern(1, 8_000_001);
    fs::write(&path, &bytes).expect("a file");
    let engine = small_engine(|options| options.depth = Some(8));
    let file = engine.open_with(&path, &OpenOptions::writing()).expect("the file opens");
    if let Some(reason) = file.no_direct_io() {
        return lab::skip(format!("no O_DIRECT: {reason}"));
    }
    file.evict().expect("an eviction");
    drive.hang(true);
    let start = || {
        let buffer = engine.allocate_pinned(bytes.len() as u64).expect("memory");
        file.read(buffer).exact().start().expect("a start")
    };
    let (whole, cancelled) = (start(), start());
    let small_reads = crate::engine(); // it keeps no depth, so it has a ring for them
    let small_file = small_reads.open(&path).expect("the file opens");
    let read_small = |at: u64| {
        let buffer = small_reads.allocate_pinned(4096).expect("memory");
        (at, small_file.read(buffer).at(at).exact().start().expect("a start"))
    };
    let mut small: Vec<_> = (0..8).map(|at| read_small(at << 19)).collect();
    drive.fuse().wait_for_parked(1);
    // A child that lives on, as a worker of a data loader, holds none of its parent's rings open.
    let (mut ended, goes_on) = std::io::pipe().expect("a pipe");
    let parent = match fork() {
        Side::Child(side) => side.run(|_| {
            drop(goes_on);
            ended.read_to_end(&mut Vec::new()).expect("an end");
        }),
        Side::Parent(parent) => parent,
    };
    if or_skip(refuse_to_all(ENTER, libc::EPERM)).is_none() {
        return;
    }
    // Before the drive answers as well as after.
    cancelled.cancel();
    // The kernel has eight of these reads, and has not taken four.
    small.extend((8..12).map(|at| read_small(at << 19)));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for (at, read) in small {
                let (result, buffer) = read.wait();
                result.expect("the ring or threads read it");
                let from = usize::try_from(at).expect("small");
                assert!(buffer.expect("it comes back").as_slice() == Some(&bytes[from..][..4096]));
            }
        });
        std::thread::sleep(Duration::from_millis(50));
        drive.hang(false);
    });
    assert_noted(&small_reads);
    let (result, buffer) = whole.wait();
    result.expect("threads read it");
    assert!(buffer.expect("it comes back").as_slice() == Some(&bytes[..]));
    assert!(matches!(cancelled.wait().0, Err(Error::Cancelled { .. })));
    assert_noted(&engine);
    drop(goes_on);
    parent.finish();
}

#[test]
fn available_io_uring() {
    if !lab::has_uring() {
        return lab::skip("io_uring is refused here");
    }
    let engine = small_engine(|options| options.ring = RingChoice::Uring);
    read_cold(&engine, &pattern(1, 3_000_000)).expect("the required ring");
    read_small(&engine, &pattern(1, 3_000_000));
    assert_eq!(engine.notes(), [""; 0]);
}

static CAUGHT: AtomicUsize = AtomicUsize::new(0);

extern "C" fn count(_: libc::c_int) {
    CAUGHT.fetch_add(1, Ordering::Relaxed);
}

/// Sends every thread of this process a signal, over and over, that interrupts what it waits for.
fn bombard(ended: &AtomicBool) {
    #![expect(unsafe_code, reason = "sets a signal's action, and sends it to single threads")]
    // SAFETY: an empty action is a valid start, and the function only counts.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = count as *const () as usize;
        assert_eq!(libc::sigaction(libc::SIGUSR1, &raw const action, std::ptr::null_mut()), 0);
    }
    // SAFETY: returns numbers only.
    let (process, own) = unsafe { (libc::getpid(), libc::gettid()) };
    while !ended.load(Ordering::Relaxed) {
        for task in fs::read_dir("/proc/self/task").expect("this process").flatten() {
            let thread: i32 =
                task.file_name().to_str().and_then(|n| n.parse().ok()).expect("a number");
            if thread != own {
                // SAFETY: a thread that has ended meanwhile is an error that is ignored.
                unsafe { libc::syscall(libc::SYS_tgkill, process, thread, libc::SIGUSR1) };
            }
        }
        std::thread::sleep(Duration::from_micros(200));
    }
}

#[test]
fn signals_that_interrupt_every_call() {
    if child::role().is_none() {
        child::run("signals");
        return;
    }
    let _watchdog = Watchdog::start();
    let ended = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| bombard(&ended));
        for ring in [RingChoice::Auto, RingChoice::Pread] {
            for turn in 0..6 {
                let engine = small_engine(|options| options.ring = ring);
                read_cold(&engine, &pattern(turn, 6_000_001)).expect("nothing but signals");
            }
        }
        ended.store(true, Ordering::Relaxed);
    });
    assert!(CAUGHT.load(Ordering::Relaxed) > 0);
}

#[test]
fn a_required_ring_is_not_used_where_none_is_needed() {
    let result = lab::without_call(SETUP, libc::EPERM, || {
        let engine = small_engine(|options| options.ring = RingChoice::Uring);
        let folder = or_skip(lab::memory_folder())?;
        let path = folder.path().join("data");
        fs::write(&path, pattern(1, 100)).expect("a file");
        let read: Result<_, Error> =
            engine.open(&path).and_then(|file| file.read_to_end(None).run());
        Some(read.expect("nothing goes to a drive").1.bytes)
    });
    if let Some(Some(bytes)) = or_skip(result) {
        assert_eq!(bytes, 100);
    }
}
