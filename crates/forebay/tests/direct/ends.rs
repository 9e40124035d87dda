//! How direct transfers end: with other GPUs, when their file is cut or replaced, when
//! they are cancelled or dropped, when the engine is gone, and in a forked child; and who takes
//! another way although there is a path.

#![allow(unsafe_code, reason = "queues a read on a stream, as a caller would")]

use std::fs;
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use forebay::gpu::sim::SimDevice;
use forebay::gpu::{CallerStream, Device};
use forebay::internal::clock::SystemClock;
use forebay::{Buffer, Error, File, OpenOptions, Piece, Reason, RequestOptions, Route, Transfer};

use super::lab::fork::{Side, fork};
use super::lab::seeds::{Dice, index};
use super::lab::{note, pattern, skip, watchdog::Watchdog};
use super::{LEN, Rig, bytes_by, direct_only};

/// What is in whole units of a file.
const BODY: u64 = LEN as u64 / 4096 * 4096;

/// Whether the file may be read with O_DIRECT; else the test is skipped.
fn can_go_straight(rig: &Rig) -> bool {
    let file = rig.engine.open(rig.path()).expect("it opens");
    if let Some(reason) = file.no_direct_io() {
        skip(format!("bytes that go straight: {reason}"));
        return false;
    }
    true
}

fn bytes_of(buffer: &Buffer) -> Vec<u8> {
    let mut got = vec![0; usize::try_from(buffer.len()).expect("small")];
    buffer.download(0, &mut got).expect("a copy");
    got
}

/// Another simulated GPU.
fn add(rig: &Rig, number: u32, play: &str) -> Arc<dyn Device> {
    let config = play.parse().expect("a configuration");
    let device: Arc<dyn Device> =
        Arc::new(SimDevice::new(number, config, Arc::new(SystemClock::new())));
    rig.engine.add_device(&device).expect("a new one");
    device
}

#[test]
fn each_gpu_has_a_way_of_its_own() {
    let _watchdog = Watchdog::start();
    let rig = Rig::new("sim:cufile");
    if !can_go_straight(&rig) {
        return;
    }
    let breaks = add(&rig, 1, "sim:cufile=fail").id();
    let other = add(&rig, 2, "sim:cufile=nvidia-fs").id();
    let refuses = add(&rig, 3, "sim:cufile=refuse").id();
    let file = rig.cold();
    let gpus = [rig.gpu, breaks, other];
    let start = |gpu| {
        let buffer = rig.engine.allocate(gpu, LEN as u64).expect("memory");
        file.read(buffer).options(direct_only()).start().expect("a start")
    };
    let ends = gpus.map(start).map(Transfer::wait);
    for (gpu, (end, buffer)) in gpus.into_iter().zip(ends) {
        if gpu == breaks {
            let error = end.expect_err("it breaks").to_string();
            assert!(error.contains("IO_ERROR (5044)"), "{error}");
            continue;
        }
        assert_eq!(bytes_by(&end.expect("a read"), Route::Direct), BODY, "{gpu}");
        assert!(bytes_of(&buffer.expect("the memory")) == rig.bytes, "{gpu}");
    }
    let buffer = rig.engine.allocate(refuses, LEN as u64).expect("memory");
    let refused =
        file.read(buffer).options(direct_only()).start().expect_err("it refuses").to_string();
    assert!(refused.contains("IO_NOT_SUPPORTED (5008)"), "{refused}");
    // What is closed for one GPU is open for the others.
    file.evict().expect("advice");
    let mut buffer = rig.engine.allocate(breaks, LEN as u64).expect("memory");
    let broken = file.read(&mut buffer).run().expect("through slots");
    assert!(bytes_of(&buffer) == rig.bytes && bytes_by(&broken, Route::Direct) < BODY);
    let mut buffer = rig.engine.allocate(other, LEN as u64).expect("memory");
    let open = file.read(&mut buffer).options(direct_only()).run().expect("as before");
    assert_eq!(bytes_by(&open, Route::Direct), BODY);
}

#[test]
fn cancelled_or_dropped_writes_keep_foreign_sectors() {
    const SECTOR: usize = 512;
    let _watchdog = Watchdog::start();
    let rig = Rig::new("sim:cufile");
    if !can_go_straight(&rig) {
        return;
    }
    let file = rig.engine.open_with(rig.path(), &OpenOptions::writing()).expect("it opens");
    let mut versions = vec![rig.bytes.clone()];
    for round in 0..12_u64 {
        versions.push(pattern(100 + round, LEN));
        let mut source = rig.buffer(LEN);
        source.upload(0, versions.last().expect("the newest")).expect("a copy");
        let transfer = file.write(source).options(direct_only()).start().expect("a start");
        match round % 3 {
            0 => drop(transfer),
            1 => {
                transfer.cancel();
                let (end, source) = transfer.wait();
                assert!(matches!(end, Ok(_) | Err(Error::Cancelled { .. })), "{end:?}");
                assert!(source.is_some(), "its memory comes back");
            }
            _ => {
                let (end, source) = transfer.wait_at_most(Duration::from_micros(300 * round));
                let timed_out = matches!(end, Err(Error::TimedOut { .. }));
                assert!(end.is_ok() || timed_out, "{end:?}");
                assert_eq!(timed_out, source.is_none(), "memory in use came back");
            }
        }
    }
    let path = rig.path();
    let Rig { engine, folder: _folder, .. } = rig;
    drop((file, engine)); // and all that is still on its way
    let there = fs::read(path).expect("it is read");
    assert_eq!(there.len(), LEN);
    for (number, sector) in there.chunks(SECTOR).enumerate() {
        let at = number * SECTOR..number * SECTOR + sector.len();
        let known = versions.iter().any(|version| version[at.clone()] == *sector);
        assert!(known, "sector {number} belongs to no file");
    }
}

#[test]
fn a_file_that_shrinks_meanwhile_ends_where_it_does() {
    let _watchdog = Watchdog::start();
    let rig = Rig::new("sim:cufile");
    if !can_go_straight(&rig) {
        return;
    }
    let shorter = (2 << 20) + 777;
    for round in 0..8_u64 {
        fs::write(rig.path(), &rig.bytes).expect("it is written");
        let file = rig.cold();
        let mut options = direct_only();
        options.exact = round % 2 == 0;
        let mut buffer = rig.buffer(LEN);
        buffer.fill(0xee).expect("a fill");
        let cut = fs::File::options().write(true).open(rig.path()).expect("it opens");
        let cutter = thread::spawn(move || {
            thread::sleep(Duration::from_micros(150 * (round / 2)));
            cut.set_len(shorter).expect("a cut");
        });
        let (end, buffer) = file.read(buffer).options(options).start().expect("a start").wait();
        cutter.join().expect("it ends");
        let got = match end {
            Ok(outcome) => outcome.bytes,
            Err(Error::FileChanged { got, .. } | Error::EndOfFile { got, .. }) if options.exact => {
                got
            }
            Err(error) => panic!("round {round}: {error}"),
        };
        assert!((shorter..=LEN as u64).contains(&got), "round {round}: {got}");
        let there = bytes_of(&buffer.expect("its memory comes back"));
        assert!(there[..index(shorter)] == rig.bytes[..index(shorter)], "round {round}");
        for (at, byte) in there.iter().enumerate().skip(index(shorter)) {
            // What lies in the page of the new end may be zeros already.
            let known = [rig.bytes[at], 0xee, 0].contains(byte);
            assert!(known, "round {round}: byte {at} is {byte:#x}");
        }
    }
}

#[test]
fn a_replaced_file_that_is_open_is_read_as_it_was() {
    let _watchdog = Watchdog::start();
    let rig = Rig::new("sim:cufile");
    if !can_go_straight(&rig) {
        return;
    }
    let file = rig.cold();
    rig.read(&file, (0, LEN, 0), &direct_only()).expect("the first has a way");
    let (new, bytes) = (rig.folder.path().join("new"), pattern(9, LEN));
    fs::write(&new, &bytes).expect("it is written");
    fs::rename(&new, rig.path()).expect("it is replaced");
    rig.read(&file, (0, LEN, 0), &direct_only()).expect("the old one");
    let mut buffer = rig.buffer(LEN);
    let opened = rig.engine.open(rig.path()).expect("it opens");
    opened.read(&mut buffer).options(direct_only()).run().expect("the new one");
    assert!(bytes_of(&buffer) == bytes);
    // Truncated in place to less than a unit: the rest is read, and none of it directly.
    fs::File::options().write(true).open(rig.path()).expect("it opens").set_len(100).expect("cut");
    let whole = opened.read(&mut buffer).run().expect("the first 100 bytes");
    assert_eq!((whole.bytes, bytes_by(&whole, Route::Direct)), (100, 0));
    let error =
        opened.read(&mut buffer).options(direct_only()).run().expect_err("no unit").to_string();
    assert!(error.contains("no whole unit"), "{error}");
}

#[test]
fn pieces_of_one_call_and_what_streams_order_go_through_slots() {
    let _watchdog = Watchdog::start();
    let rig = Rig::new("sim:cufile");
    if !can_go_straight(&rig) {
        return;
    }
    let file = rig.cold();
    let pieces = [Piece::new(&file, 0, 1 << 20, 0), Piece::new(&file, 2 << 20, 1 << 20, 1 << 20)];
    let many = |options: &RequestOptions| {
        let many =
            rig.engine.read_many(&pieces, vec![rig.buffer(2 << 20)]).options(*options).start()?;
        let (outcome, buffers) = many.wait();
        outcome.map(|outcome| (outcome, buffers))
    };
    let (outcome, buffers) = many(&RequestOptions::default()).expect("pieces");
    assert_eq!(bytes_by(&outcome.whole, Route::Direct), 0, "{outcome:?}");
    let reported = outcome.whole.not_direct.as_deref();
    assert!(reported.is_some_and(|why| why.contains("pieces of one call")), "{outcome:?}");
    let got = bytes_of(&buffers[0]);
    assert!(
        got[..1 << 20] == rig.bytes[..1 << 20] && got[1 << 20..] == rig.bytes[2 << 20..3 << 20]
    );
    let refused = many(&direct_only()).map(drop).expect_err("a required route").to_string();
    assert!(refused.contains("each by a separate call"), "{refused}");

    file.evict().expect("advice");
    let device = add(&rig, 1, "sim:cufile");
    let stream = device.create_stream().expect("a stream");
    let start = |options: &RequestOptions| {
        let buffer = rig.engine.allocate(device.id(), LEN as u64).expect("memory");
        // SAFETY: the stream is this device's, and alive.
        unsafe { file.read(buffer).options(*options).on(CallerStream(stream.0)).start() }
    };
    let (end, buffer) = start(&RequestOptions::default()).expect("a start").wait();
    let outcome = end.expect("in order");
    assert_eq!((outcome.bytes, bytes_by(&outcome, Route::Direct)), (LEN as u64, 0), "{outcome:?}");
    let reported = outcome.not_direct.as_deref();
    assert!(reported.is_some_and(|why| why.contains("stream-ordered")), "{outcome:?}");
    assert!(bytes_of(&buffer.expect("its memory")) == rig.bytes);
    let refused = start(&direct_only()).expect_err("a required route").to_string();
    assert!(refused.contains("stream-ordered"), "{refused}");
    device.destroy_stream(stream).expect("its end");
}

#[test]
fn an_engine_that_is_dropped_ends_what_is_under_way() {
    let _watchdog = Watchdog::start();
    for round in 0..4 {
        let rig = Rig::new(["sim:cufile", "sim:cufile=fail"][round % 2]);
        if !can_go_straight(&rig) {
            return;
        }
        let start = |file: &File| file.read(rig.buffer(LEN)).exact().start().expect("a start");
        let file = rig.cold();
        let kept: Vec<Transfer> = (0..3).map(|_| start(&file)).collect();
        let dropped: Vec<Transfer> = (0..3).map(|_| start(&file)).collect();
        drop(dropped);
        let Rig { engine, bytes, folder: _folder, .. } = rig;
        drop((file, engine)); // the transfers keep what they need
        for transfer in kept {
            let (end, buffer) = transfer.wait();
            assert_eq!(end.expect("a read").bytes, LEN as u64, "round {round}");
            assert!(bytes_of(&buffer.expect("its memory")) == bytes, "round {round}");
        }
    }
}

#[test]
fn a_child_is_refused_and_closes_nothing_of_its_parent() {
    let _watchdog = Watchdog::start();
    let rig = Rig::new("sim:cufile");
    if !can_go_straight(&rig) {
        return;
    }
    let file = rig.cold();
    rig.read(&file, (0, LEN, 0), &direct_only()).expect("there is a way");
    let under_way = file.read(rig.buffer(LEN)).options(direct_only()).start().expect("a start");
    let spare = rig.buffer(LEN);
    match fork() {
        Side::Child(child) => child.run(move |say| {
            let refused =
                file.read(spare).options(direct_only()).start().expect_err("a child was served");
            assert!(matches!(refused, Error::Forked { .. }), "{refused}");
            say("a transfer of its parent");
            drop(under_way);
            say("its parent's file, with its way");
            drop(file);
            say("its parent's engine");
            drop(rig);
        }),
        Side::Parent(parent) => {
            let (end, buffer) = under_way.wait();
            assert_eq!(bytes_by(&end.expect("a read"), Route::Direct), BODY);
            assert!(bytes_of(&buffer.expect("its memory")) == rig.bytes);
            parent.finish();
            let after = rig.read(&file, (0, LEN, 0), &direct_only()).expect("as before");
            assert_eq!(bytes_by(&after, Route::Direct), BODY);
        }
    }
}

/// Threads that read and write what is theirs, by paths that break, for as many rounds as a seed
/// says. `FOREBAY_SEED` begins with another.
#[test]
fn threads_of_one_file_lose_nothing_by_paths_that_break() {
    const PART: usize = 1 << 20;
    let _watchdog = Watchdog::start();
    let seed = std::env::var("FOREBAY_SEED").ok().map_or(1, |seed| seed.parse().expect("a seed"));
    note(format!("FOREBAY_SEED={seed} cargo test -p forebay --test direct threads_of_one_file"));
    let mut dice = Dice(seed);
    for _ in 0..3 {
        let play = dice.one_of(&["", "=short", "=fail", "=nvidia-fs"]);
        let rig = Rig::new(&format!("sim:cufile{play},seed={}", dice.below(1000)));
        if !can_go_straight(&rig) {
            return;
        }
        fs::write(rig.path(), vec![0; 4 * PART]).expect("it is written");
        let act = |number: usize, mut dice: Dice| {
            let file = rig.engine.open_with(rig.path(), &OpenOptions::writing()).expect("it opens");
            let mut part = vec![0; PART];
            let start = number * PART;
            for _ in 0..8 {
                let (from, len) =
                    (index(dice.below(PART as u64 / 2)), index(dice.below(PART as u64 / 2)));
                let bytes = pattern(dice.next(), len);
                let at = (start + from) as u64;
                // At the file's offset within a unit, so that it may go straight.
                let mut source = rig.buffer(4096 + len);
                source.upload(at % 4096, &bytes).expect("a copy");
                let (_, source) = source.split_at(at % 4096);
                let (source, _) = source.split_at(len as u64);
                let straight = file.write(source).at(at).options(direct_only()).start();
                match straight.map(Transfer::wait) {
                    Ok((Ok(outcome), _)) => assert_eq!(outcome.bytes, len as u64),
                    // Broken, closed, or too short: then it goes as it can.
                    Ok((Err(Error::RouteUnavailable { .. }), _))
                    | Err(Error::RouteUnavailable { .. }) => {
                        file.write(bytes.as_slice()).at(at).run().expect("a write");
                    }
                    other => panic!("seed {seed}: {other:?}"),
                }
                part[from..from + len].copy_from_slice(&bytes);
                if dice.below(2) == 0 {
                    file.evict().expect("advice");
                }
                let mut target = rig.buffer(PART);
                file.read(&mut target).at(start as u64).exact().run().expect("a read");
                assert!(bytes_of(&target) == part, "seed {seed}, {play}: other bytes came back");
            }
            let mut there = vec![0; PART];
            let plain = fs::File::open(rig.path()).expect("it opens");
            plain.read_exact_at(&mut there, start as u64).expect("it is read");
            assert!(there == part, "seed {seed}, {play}: other bytes are on the drive");
        };
        let act = &act;
        thread::scope(|scope| {
            for number in 0..4 {
                let dice = Dice(dice.next());
                scope.spawn(move || act(number, dice));
            }
        });
    }
}

#[test]
fn the_edges_are_separated_from_failures() {
    let rig = Rig::new("sim:cufile");
    if !can_go_straight(&rig) {
        return;
    }
    let outcome = rig.read(&rig.cold(), (1000, LEN - 2000, 1000), &direct_only()).expect("a read");
    let edges = outcome.routes.iter().filter(|share| share.reason == Reason::UnalignedEdge);
    let edges: u64 = edges.map(|share| share.bytes).sum();
    assert_eq!(edges + bytes_by(&outcome, Route::Direct), LEN as u64 - 2000, "{outcome:?}");
}
