//! Many pieces in the order of a caller's stream.

#![allow(unsafe_code, reason = "queues work on streams of its own, as a caller would")]

use std::fs;
use std::time::Duration;

use forebay::gpu::Device;
use forebay::{
    Buffer, Error, File, ManyTransfer, Piece, PieceResult, RequestOptions, Result, Route, SyncMode,
};

use crate::BOUND;
use crate::lab::fuse::{Faults, Fuse};
use crate::lab::{or_skip, pattern, watchdog::Watchdog};
use crate::rig::{Number, Rig, SLOT};

/// Pieces of all lengths: none, small ones that touch, ones across slots, and one of three slots.
fn shapes() -> Vec<(u64, u64)> {
    let mut shapes = vec![(5, 0), (1000, 3 * SLOT as u64 + 7), (SLOT as u64 - 3, 6)];
    shapes.extend((0..700).map(|n| (4 * SLOT as u64 + n * 900, 300 + n % 500)));
    shapes.extend((0..20).map(|n| (n * 4096, 4096)));
    shapes
}

fn start(
    rig: &Rig,
    writes: bool,
    pieces: &[Piece<'_>],
    buffers: Vec<Buffer>,
    options: &RequestOptions,
) -> Result<ManyTransfer> {
    // SAFETY: the stream is this device's and alive.
    unsafe {
        match writes {
            false => {
                rig.engine.read_many(pieces, buffers).options(*options).on(rig.caller()).start()
            }
            true => {
                rig.engine.write_many(pieces, buffers).options(*options).on(rig.caller()).start()
            }
        }
    }
}

/// The pieces of two files, one behind the other in memory, and how long all are.
fn laid_out<'a>(files: &'a [File], shapes: &[(u64, u64)]) -> (Vec<Piece<'a>>, usize) {
    let mut at = 0;
    let mut pieces = Vec::new();
    for (n, &(offset, len)) in shapes.iter().enumerate() {
        pieces.push(Piece::new(&files[n % files.len()], offset, len, at));
        at += len;
    }
    (pieces, usize::try_from(at).expect("little"))
}

fn expected(contents: &[Vec<u8>], shapes: &[(u64, u64)]) -> Vec<u8> {
    let mut all = Vec::new();
    for (n, &(offset, len)) in shapes.iter().enumerate() {
        let index = |at: u64| usize::try_from(at).expect("little");
        all.extend(&contents[n % contents.len()][index(offset)..index(offset + len)]);
    }
    all
}

#[test]
fn many_reads_come_behind_what_was_queued_and_before_what_is_queued_later() {
    let _watchdog = Watchdog::start();
    let (rig, shapes) = (Rig::new(), shapes());
    let contents = vec![pattern(1, 8 * SLOT), pattern(2, 8 * SLOT)];
    let files = [rig.opened("one", &contents[0]), rig.opened("two", &contents[1])];
    let (pieces, len) = laid_out(&files, &shapes);
    for round in 0..3 {
        let buffer = rig.buffer(len + 100);
        let address = buffer.address();
        let mut number = Number(Box::new(0));
        let gate = rig.hold(&mut number);
        // SAFETY: the buffer is alive until the stream has been waited for.
        unsafe { rig.device.fill(rig.stream, address, 0x11, len as u64 + 100) }.expect("a fill");
        let options = RequestOptions { exact: true, ..RequestOptions::default() };
        let many = start(&rig, false, &pieces, vec![buffer], &options).expect("a start");
        let fetched = rig.fetch(address, len + 100);
        std::thread::sleep(Duration::from_millis(5));
        assert!(!many.transfer().is_done(), "the stream is held up");
        gate.open();
        let seen = fetched.bytes();
        assert!(seen[..len] == expected(&contents, &shapes), "round {round}");
        assert!(seen[len..].iter().all(|&byte| byte == 0x11));
        assert_eq!(many.transfer().progress(), (len as u64, len as u64));
        let (end, buffers) = many.wait();
        let outcome = end.expect("a read");
        assert_eq!((outcome.whole.bytes, buffers.len()), (len as u64, 1));
        let came: Vec<u64> = outcome.results.into_iter().map(|r| r.expect("a piece")).collect();
        assert!(came.iter().zip(&shapes).all(|(came, (_, len))| came == len));
        assert!(outcome.whole.routes.iter().all(|share| share.route != Route::Host));
    }
}

#[test]
fn many_writes_take_what_was_queued_and_not_what_is_queued_later() {
    let _watchdog = Watchdog::start();
    let rig = Rig::new();
    // Where no two meet in a file.
    let shapes: Vec<(u64, u64)> =
        (0..900).map(|n| (n * 9000, 1 + n * 10)).chain([(9_000_000, 3 * SLOT as u64)]).collect();
    let files = [rig.opened("one", b""), rig.opened("two", b"")];
    for sync in [SyncMode::None, SyncMode::All] {
        let (pieces, len) = laid_out(&files, &shapes);
        let bytes = pattern(3, len);
        let mut source = rig.buffer(len);
        source.upload(0, &bytes).expect("a copy");
        let address = source.address();
        let mut number = Number(Box::new(0));
        let gate = rig.hold(&mut number);
        let options = RequestOptions { sync, ..RequestOptions::default() };
        let many = start(&rig, true, &pieces, vec![source], &options).expect("a start");
        // SAFETY: the memory is alive until the stream has been waited for.
        unsafe { rig.device.fill(rig.stream, address, 0xff, len as u64) }.expect("a fill");
        assert!(!many.transfer().is_done());
        gate.open();
        let outcome = many.wait().0.expect("writes");
        assert!(outcome.results.iter().all(Result::is_ok) && outcome.whole.bytes == len as u64);
        let written: Vec<Vec<u8>> =
            files.iter().map(|file| fs::read(file.path()).expect("a file")).collect();
        assert!(expected(&written, &shapes) == bytes, "{sync:?}");
    }
}

/// One that meets its file's end, one behind it, and none at all.
#[test]
fn each_has_its_own_end() {
    let _watchdog = Watchdog::start();
    let rig = Rig::new();
    let file = rig.file(&pattern(4, 10_000));
    let place = |offset: u64| Piece::new(&file, offset, 1000, 0);
    let pieces = [place(0), place(9_500), place(50_000)];
    let mut options = RequestOptions { exact: true, ..RequestOptions::default() };
    for exact in [true, false] {
        options.exact = exact;
        let many = start(&rig, false, &pieces, vec![rig.buffer(1000)], &options).expect("a start");
        let outcome = many.wait().0.expect("reads");
        assert_eq!(outcome.whole.bytes, 1500);
        let got = |result: &PieceResult| match result.as_ref().map_err(|error| &**error) {
            Err(Error::EndOfFile { got, place }) if exact => (*got, place.offset),
            Ok(got) => (*got, 0),
            other => panic!("{other:?}"),
        };
        let got: Vec<(u64, u64)> = outcome.results.iter().map(got).collect();
        let places = if exact { [0, 9_500, 50_000] } else { [0; 3] };
        assert_eq!(got, [(1000, places[0]), (500, places[1]), (0, places[2])]);
    }
    // Where no file has any of it there is nothing to order.
    let many = start(&rig, false, &pieces[2..], vec![rig.buffer(1000)], &options).expect("a start");
    assert!(matches!(many.wait().0.expect("a read").results[..], [Ok(0)]));
}

/// The first piece ends within the size that the kernel knows, the last one behind it.
#[test]
fn a_file_that_grew_is_read_to_its_new_end() {
    let _watchdog = Watchdog::start();
    let bytes = pattern(6, 4 * SLOT);
    let faults = Faults { size: Some(SLOT as u64), ..Faults::default() };
    let Some(fuse) = or_skip(Fuse::with(bytes.clone(), faults)) else { return };
    let rig = Rig::new();
    let file = rig.engine.open(fuse.path()).expect("the file opens");
    fuse.set(|faults| faults.size = None);
    let place = |n: u64| Piece::new(&file, n * SLOT as u64, 5000, n * 5000);
    let pieces = [place(0), place(3), place(1)];
    let buffer = rig.buffer(20_000);
    let address = buffer.address();
    let many = start(&rig, false, &pieces, vec![buffer], &RequestOptions::default());
    let many = many.expect("a start");
    let seen = rig.fetch(address, 20_000).bytes();
    let outcome = many.wait().0.expect("reads");
    for (n, result) in [0, 3, 1].into_iter().zip(outcome.results) {
        assert_eq!(result.expect("a read"), 5000, "piece {n}");
        assert!(seen[n * 5000..][..5000] == bytes[n * SLOT..][..5000], "piece {n}");
    }
}

#[test]
fn a_failed_piece_stops_no_other() {
    let _watchdog = Watchdog::start();
    let Some(fuse) = or_skip(Fuse::new(pattern(5, 8 * SLOT))) else { return };
    let rig = Rig::new();
    let file = rig.engine.open(fuse.path()).expect("the file opens");
    fuse.set(|faults| {
        faults.fail_at = Some(5 * SLOT as u64 + 100);
        faults.uncached = true;
    });
    let place = |n: u64| Piece::new(&file, n * SLOT as u64, 5000, n * 5000);
    let pieces: Vec<Piece<'_>> = (0..8).map(place).collect();
    let buffer = rig.buffer(40_000);
    let address = buffer.address();
    let many = start(&rig, false, &pieces, vec![buffer], &RequestOptions::default());
    let many = many.expect("a start");
    let seen = rig.fetch(address, 40_000).bytes();
    let outcome = many.wait_for(BOUND).expect("it ends").expect("reads");
    for (n, result) in outcome.results.iter().enumerate() {
        match result.as_ref().map_err(|error| &**error) {
            Err(Error::Io { place, .. }) if n == 5 => assert!(place.offset >= 5 * SLOT as u64),
            Ok(5000) if n != 5 => {
                let bytes = &pattern(5, 8 * SLOT)[n * SLOT..][..5000];
                assert!(&seen[n * 5000..][..5000] == bytes, "piece {n}");
            }
            other => panic!("piece {n}: {other:?}"),
        }
    }
}

#[test]
fn a_cancel_and_a_hanging_drive_let_the_stream_continue() {
    let _watchdog = Watchdog::start();
    let Some(fuse) = or_skip(Fuse::new(pattern(7, 40 * SLOT))) else { return };
    for cancels in [true, false] {
        let rig = Rig::with(Duration::from_millis(400));
        let file = rig.engine.open(fuse.path()).expect("the file opens");
        fuse.set(|faults| faults.hang_from = Some(20 * SLOT as u64));
        let place = |n: u64| Piece::new(&file, n * SLOT as u64, 5000, n * 5000);
        let pieces: Vec<Piece<'_>> = (0..40).map(place).collect();
        let buffer = rig.buffer(40 * 5000);
        let many = start(&rig, false, &pieces, vec![buffer], &RequestOptions::default());
        let many = many.expect("a start");
        if cancels {
            many.transfer().cancel();
        }
        rig.device.synchronize(rig.stream).expect("the stream goes on");
        match many.wait_for(BOUND).expect("it ends") {
            Err(Error::Cancelled { .. }) if cancels => {}
            Err(Error::TimedOut { .. }) if !cancels => {}
            other => panic!("{other:?}"),
        }
        fuse.set(|faults| faults.hang_from = None);
        assert_eq!(many.transfer().reclaim().len(), 1);
    }
}

#[test]
fn calls_that_cannot_be_ordered_are_refused_whole() {
    let rig = Rig::new();
    let file = rig.file(&pattern(8, 4 * SLOT));
    let one = [Piece::new(&file, 0, 10, 0)];
    let options = RequestOptions::default();
    let refused = |end: Result<ManyTransfer>, word: &str| match end {
        Err(error) => assert!(error.to_string().contains(word), "{error}"),
        Ok(many) => panic!("{word}: {many:?}"),
    };
    rig.device.set_capturing(rig.stream, true).expect("our stream");
    refused(start(&rig, false, &one, vec![rig.buffer(10)], &options), "captured");
    rig.device.set_capturing(rig.stream, false).expect("our stream");
    let host = rig.engine.allocate_pinned(10).expect("memory");
    refused(start(&rig, false, &one, vec![host], &options), "host");
    refused(start(&rig, false, &[], vec![rig.buffer(10)], &options), "pieces");
    refused(start(&rig, false, &one, vec![rig.buffer(9)], &options), "lie outside");
    refused(start(&rig, false, &one, Vec::new(), &options), "none with the index");
    let staged = RequestOptions { route: Some(Route::Staged), ..RequestOptions::default() };
    refused(start(&rig, false, &one, vec![rig.buffer(10)], &staged), "omit `route`");
    let large = fs::OpenOptions::new().write(true).open(file.path()).expect("it opens");
    large.set_len(400 * SLOT as u64).expect("a hole");
    let long = [Piece::new(&file, 0, 350 * SLOT as u64, 0)];
    let much = vec![rig.buffer(350 * SLOT)];
    refused(start(&rig, false, &long, much, &options), "several calls");
    let other = Rig::new();
    refused(start(&other, false, &one, vec![other.buffer(10)], &options), "another engine");
}
