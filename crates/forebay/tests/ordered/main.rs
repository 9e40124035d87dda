//! Transfers in the order of a caller's stream, on the simulated GPU.

#![allow(unsafe_code, reason = "queues work on streams of its own, as a caller would")]

#[path = "../lab/mod.rs"]
mod lab;
mod many;
mod rig;

use std::fs;
use std::ptr::NonNull;
use std::time::{Duration, Instant};

use forebay::gpu::{CallerStream, Device, DeviceId};
use forebay::{Error, OpenOptions, RequestOptions, Result, Route, Transfer};
use lab::fuse::Fuse;
use lab::{or_skip, pattern, watchdog::Watchdog};
use rig::{Gate, LEN, Number, OFFSET, Rig, SLOT};

/// Far above what the slowest machine needs: only a hang exceeds it.
const BOUND: Duration = Duration::from_secs(100);

#[test]
fn a_read_runs_after_earlier_work_and_before_later_work() {
    let _watchdog = Watchdog::start();
    let rig = Rig::new();
    let bytes = pattern(1, OFFSET + LEN);
    let file = rig.file(&bytes);
    for round in 0..3 {
        let buffer = rig.buffer(LEN + 100);
        let address = buffer.address();
        let mut number = Number(Box::new(0));
        let gate = rig.hold(&mut number);
        // SAFETY: the buffer is alive until the stream has been waited for.
        unsafe { rig.device.fill(rig.stream, address, 0x11, LEN as u64 + 100) }.expect("a fill");
        let transfer = rig.read(&file, buffer).expect("a start");
        let fetched = rig.fetch(address, LEN + 100);
        assert!(!transfer.is_done(), "the stream is held up");
        gate.open();
        let seen = fetched.bytes();
        assert!(seen[..LEN] == bytes[OFFSET..], "round {round}");
        assert!(seen[LEN..].iter().all(|&byte| byte == 0x11), "behind the end of the file");
        let (end, buffer) = transfer.wait();
        let outcome = end.expect("a read");
        assert_eq!(outcome.bytes, LEN as u64);
        assert!(outcome.routes.iter().all(|share| share.route != Route::Host), "{outcome:?}");
        assert!(!outcome.stages.file.is_zero(), "{outcome:?}");
        assert!(buffer.is_some());
    }
}

#[test]
fn a_write_takes_what_was_queued_and_not_what_is_queued_later() {
    let _watchdog = Watchdog::start();
    let rig = Rig::new();
    let file = rig.file(&[7; OFFSET]);
    let bytes = pattern(2, LEN);
    let mut source = rig.buffer(LEN);
    source.fill(0).expect("a fill");
    let address = source.address();
    let mut host = bytes.clone();
    let at = NonNull::new(host.as_mut_ptr()).expect("a vector");
    let mut number = Number(Box::new(0));
    let gate = rig.hold(&mut number);
    // SAFETY: all memory is alive until the stream has been waited for.
    let transfer = unsafe {
        rig.device.register(at, LEN).expect("memory of our own");
        rig.device.copy_to_device(rig.stream, address, at, LEN).expect("a copy");
        let transfer = file
            .write(source)
            .at(OFFSET as u64)
            .sync(forebay::SyncMode::Data)
            .on(rig.caller())
            .start();
        rig.device.fill(rig.stream, address, 0xff, LEN as u64).expect("a fill");
        transfer.expect("a start")
    };
    assert!(!transfer.is_done());
    gate.open();
    assert_eq!(transfer.wait().0.expect("a write").bytes, LEN as u64);
    let written = fs::read(file.path()).expect("a read");
    assert!(written[..OFFSET].iter().all(|&byte| byte == 7) && written[OFFSET..] == bytes);
    // SAFETY: registered above, and the copy is done.
    unsafe { rig.device.unregister(at).expect("registered above") };
}

#[test]
fn a_file_that_shrinks_and_a_cancel_let_the_stream_continue() {
    let _watchdog = Watchdog::start();
    for cancels in [false, true] {
        let rig = Rig::new();
        let file = rig.file(&pattern(3, OFFSET + LEN));
        let mut number = Number(Box::new(0));
        let gate = rig.hold(&mut number);
        let transfer = rig.read(&file, rig.buffer(LEN)).expect("a start");
        // No more than four slots are read before the first is copied.
        if cancels {
            transfer.cancel();
        } else {
            let plain = fs::OpenOptions::new().write(true).open(file.path()).expect("it opens");
            plain.set_len(4 * SLOT as u64 + 99).expect("a cut");
        }
        gate.open();
        let end = transfer.wait().0;
        match &end {
            Err(Error::Cancelled { .. }) if cancels => {}
            Err(error) if !cancels => {
                assert!(!matches!(error, Error::TimedOut { .. }), "{error}");
            }
            other => panic!("{other:?}"),
        }
        rig.device.synchronize(rig.stream).expect("the stream goes on");
    }
}

#[test]
fn a_drive_that_hangs_is_given_up_after_a_while() {
    let _watchdog = Watchdog::start();
    let Some(fuse) = or_skip(Fuse::new(pattern(4, OFFSET + LEN))) else { return };
    // On a busy machine a drive that answers may take as long as one that hangs.
    let mut limits = [400, 3000, 20_000].map(Duration::from_millis).into_iter();
    assert!(limits.any(|limit| only_what_hangs_is_given_up(&fuse, limit)));
}

/// Whether the transfers behind one that hangs are not given up with it, as its `limit` has it.
fn only_what_hangs_is_given_up(fuse: &Fuse, limit: Duration) -> bool {
    let rig = Rig::with(limit);
    let file = rig.engine.open(fuse.path()).expect("the file opens");
    fuse.set(|faults| faults.hang_from = Some(5 * SLOT as u64));
    let start = Instant::now();
    let transfer = rig.read(&file, rig.buffer(LEN)).expect("a start");
    rig.device.synchronize(rig.stream).expect("the stream goes on");
    let end = transfer.wait_for(BOUND).expect("it ends");
    assert!(matches!(end, Err(Error::TimedOut { .. })), "{end:?}");
    assert!(start.elapsed() >= limit);
    // Reads that hang still have the slots, so that the next transfer has others.
    let bytes = pattern(5, OFFSET + LEN);
    let other = rig.file(&bytes);
    for _ in 0..2 {
        let buffer = rig.buffer(LEN);
        let address = buffer.address();
        let transfer = rig.read(&other, buffer).expect("a start");
        let fetched = rig.fetch(address, LEN);
        fuse.set(|faults| faults.hang_from = None);
        match transfer.wait().0 {
            Err(Error::TimedOut { .. }) => return false,
            end => drop(end.expect("a read")),
        }
        assert!(fetched.bytes() == bytes[OFFSET..], "bytes of the file that hung");
    }
    true
}

#[test]
fn a_gpu_that_vanishes_ends_what_is_ordered() {
    let _watchdog = Watchdog::start();
    let rig = Rig::with(Duration::from_millis(400));
    let file = rig.file(&pattern(6, OFFSET + LEN));
    let transfer = rig.read(&file, rig.buffer(LEN)).expect("a start");
    let late = rig.buffer(LEN);
    rig.device.lose();
    let end = rig.read(&file, late);
    let error = end.expect_err("the GPU is gone");
    assert!(matches!(error, Error::Device { .. } | Error::CopyNotOver { .. }), "{error:?}");
    assert!(error.to_string().contains(&rig.device.id().to_string()), "{error}");
    assert!(error.hint().is_some_and(|hint| hint.contains("`dmesg`")), "{error:?}");
    // What was queued by then may still be carried out, and its memory stays until it was.
    let end = transfer.wait_for(BOUND).expect("it ends");
    lab::note(format!("{end:?}"));
    drop((transfer, file));
    let bytes = pattern(7, LEN);
    fs::write(rig.folder.path().join("other"), &bytes).expect("room for a file");
    let other = rig.engine.open(rig.folder.path().join("other")).expect("the file opens");
    assert!(other.read_to_end(None).run().expect("all bytes").0.as_slice() == Some(&bytes[..]));
}

/// It would wait for the caller's own work for as long as that takes, which never ends now.
#[test]
fn a_gpu_that_vanishes_under_the_callers_own_work_is_found_out() {
    let _watchdog = Watchdog::start();
    let rig = Rig::with(Duration::from_millis(400));
    let file = rig.file(&pattern(6, OFFSET + LEN));
    let mut number = Number(Box::new(0));
    std::mem::forget(rig.hold(&mut number));
    let transfer = rig.read(&file, rig.buffer(LEN)).expect("a start");
    std::thread::sleep(Duration::from_millis(900));
    assert!(!transfer.is_done(), "the caller's work may take long");
    rig.device.lose();
    let end = transfer.wait_for(BOUND).expect("it ends");
    assert!(matches!(end, Err(Error::CopyNotOver { .. })), "{end:?}");
    std::mem::forget(number); // what is queued may still look at it
}

#[test]
fn requests_that_cannot_be_ordered_are_refused() {
    let rig = Rig::new();
    let file = rig.file(&pattern(5, OFFSET + LEN));
    let refused = |end: Result<Transfer, Error>, word: &str| match end {
        Err(error) => assert!(error.to_string().contains(word), "{error}"),
        Ok(transfer) => panic!("{word}: {transfer:?}"),
    };
    rig.device.set_capturing(rig.stream, true).expect("our stream");
    refused(rig.read(&file, rig.buffer(LEN)), "captured");
    rig.device.set_capturing(rig.stream, false).expect("our stream");
    let host = rig.engine.allocate_pinned(LEN as u64).expect("memory");
    refused(rig.read(&file, host), "host");
    let large = fs::OpenOptions::new().write(true).open(file.path()).expect("it opens");
    large.set_len(400 * SLOT as u64).expect("a hole");
    refused(rig.read(&file, rig.buffer(350 * SLOT)), "several transfers");
    let options = RequestOptions { route: Some(Route::Staged), ..RequestOptions::default() };
    // SAFETY: the stream is this device's and alive.
    let end = unsafe { file.read(rig.buffer(10)).options(options).on(rig.caller()).start() };
    refused(end, "omit `route`");
    // SAFETY: as above.
    let read = unsafe { file.read(rig.buffer(10)).on(rig.caller()) };
    assert!(read.start_at_once().is_err(), "such a start knows no streams");
    let none = CallerStream(1 << 40);
    // SAFETY: there is no such stream, which the simulated device finds.
    let end = unsafe { file.read(rig.buffer(10)).on(none).start() };
    assert!(matches!(end, Err(Error::Device { .. })), "{end:?}");
}

#[test]
fn a_wait_for_a_stream_that_is_held_up_can_be_given_up() {
    let _watchdog = Watchdog::start();
    let rig = Rig::new();
    let (own, gpu) = (rig.caller(), rig.device.id());
    let wait = |device: DeviceId, stream: CallerStream, go_on: &mut dyn FnMut() -> bool| {
        // SAFETY: the stream is the device's and alive, or none, which a simulated device finds.
        unsafe { rig.engine.wait_for_stream(device, stream, go_on) }
    };
    wait(gpu, own, &mut || panic!("nothing is queued")).expect("at once");
    let mut number = Number(Box::new(0));
    let gate = rig.hold(&mut number);
    let (start, mut calls) = (Instant::now(), 0);
    let end = wait(gpu, own, &mut || {
        calls += 1;
        calls < 8
    });
    assert!(matches!(end, Err(Error::Device { .. })), "{end:?}");
    assert_eq!(calls, 8);
    assert!(start.elapsed() >= Duration::from_millis(8 * 50), "twenty times a second");
    let mut gate = Some(gate);
    let end = wait(gpu, own, &mut || {
        gate.take().into_iter().for_each(Gate::open);
        true
    });
    end.expect("it goes on");

    rig.device.set_capturing(rig.stream, true).expect("our stream");
    let end = wait(gpu, own, &mut || true);
    assert!(matches!(end, Err(Error::BadOption { .. })), "{end:?}");
    rig.device.set_capturing(rig.stream, false).expect("our stream");
    let end = wait(DeviceId { index: 9, ..gpu }, own, &mut || true);
    assert!(matches!(end, Err(Error::NoDevice { .. })), "{end:?}");
    let end = wait(gpu, CallerStream(1 << 40), &mut || true);
    assert!(matches!(end, Err(Error::Device { .. })), "{end:?}");
    rig.device.lose();
    let end = wait(gpu, own, &mut || true);
    assert!(matches!(end, Err(Error::Device { .. })), "{end:?}");
}

#[test]
fn a_transfer_starts_at_once_whose_server_is_silent() {
    let _watchdog = Watchdog::start();
    let Some(fuse) = or_skip(Fuse::new(pattern(1, OFFSET + LEN))) else { return };
    let rig = Rig::with(Duration::from_millis(300));
    let file = rig.engine.open(fuse.path()).expect("the file opens");
    fuse.set(|faults| faults.silent = true);
    // It may have grown, which only its server knows.
    let error = rig.read(&file, rig.buffer(LEN + 1)).expect_err("its end is not known");
    assert!(error.to_string().contains("did not report the size in time"), "{error}");
    let (report, reported) = std::sync::mpsc::channel();
    let (of, buffer, caller) = (file.clone(), rig.buffer(LEN), rig.caller());
    std::thread::spawn(move || {
        // SAFETY: the stream is alive, and one of the GPU.
        let start = unsafe { of.read(buffer).at(OFFSET as u64).on(caller).start() };
        report.send(start.expect("a start").wait_for(BOUND))
    });
    let end = reported.recv_timeout(BOUND);
    fuse.set(|faults| faults.silent = false);
    let end = end.expect("it starts, and ends by the watchdog");
    assert!(matches!(end, Some(Err(Error::TimedOut { .. }))), "{end:?}");
    let (end, _) = rig.read(&file, rig.buffer(LEN)).expect("a start").wait();
    assert_eq!(end.expect("the server answers again").bytes, LEN as u64);
}

/// The keeper's thread serves the transfers of others, so it does not wait for a server.
#[test]
fn the_drive_of_an_ordered_transfer_is_found_before_it_starts() {
    let _watchdog = Watchdog::start();
    let Some(fuse) = or_skip(Fuse::new(pattern(1, OFFSET + LEN))) else { return };
    let rig = Rig::with(Duration::from_millis(300));
    let file = rig.engine.open(fuse.path()).expect("the file opens");
    fuse.set(|faults| faults.silent = true);
    let transfer = rig.read(&file, rig.buffer(LEN)).expect("a start");
    let parked = fuse.parked();
    fuse.set(|faults| faults.silent = false);
    assert!(parked > 0, "the call itself has queried the server");
    let _ = transfer.wait_for(BOUND).expect("it ends");
}

/// A cancel opens the gates of all copies, but not of those into a slot that a write still reads.
#[test]
fn a_cancelled_write_moves_no_bytes_to_another_place() {
    const BLOCK: usize = 4 << 20; // four requests of the file system
    const BLOCKS: u8 = 8;
    let _watchdog = Watchdog::start();
    let Some(fuse) = or_skip(Fuse::new(vec![0xff; usize::from(BLOCKS) * BLOCK])) else { return };
    let rig = Rig::sized(Duration::from_secs(30), BLOCK as u64, BLOCK as u64);
    let writing = OpenOptions::writing();
    let file = rig.engine.open_with(fuse.path(), &writing).expect("the file opens");
    let bytes: Vec<u8> = (0..BLOCKS).flat_map(|block| vec![block; BLOCK]).collect();
    let mut source = rig.buffer(usize::from(BLOCKS) * BLOCK);
    source.upload(0, &bytes).expect("a copy");
    fuse.set(|faults| faults.hang_writes = true);
    // SAFETY: the stream is this device's and alive.
    let transfer = unsafe { file.write(source).on(rig.caller()).start() };
    let transfer = transfer.expect("a start");
    fuse.wait_for_parked(1);
    transfer.cancel();
    std::thread::sleep(Duration::from_millis(100)); // the GPU would overwrite slots now
    fuse.set(|faults| faults.hang_writes = false);
    let (end, buffer) = transfer.wait();
    assert!(matches!(end, Err(Error::Cancelled { .. })), "{end:?}");
    assert!(buffer.is_some(), "the GPU has passed it");
    for (block, written) in fuse.content().chunks(BLOCK).enumerate() {
        let other = written.iter().find(|&&byte| byte != 0xff && usize::from(byte) != block);
        assert_eq!(other, None, "in block {block}");
    }
}
