//! Many pieces in one call, of which some go wrong.

mod lab;

use std::sync::Arc;
use std::time::Duration;

use forebay::units::KIB;
use forebay::{
    Buffer, Engine, Error, OpenOptions, Options, Piece, PieceResult, RingChoice, gpu::GpuSelector,
};
use lab::fuse::Fuse;
use lab::{or_skip, pattern, watchdog::Watchdog};

const PIECE: usize = 8 << 10;
const LEN: usize = 64 * PIECE;

fn engine(ring: RingChoice) -> Engine {
    let mut options = Options::default();
    options.ring = ring;
    options.slot_size = 256 * KIB;
    options.segment_size = 64 * KIB;
    Engine::new(options).expect("limits that fit")
}

/// With each ring, and with `LEN` bytes of the host and of a GPU.
fn on_each_way(check: impl Fn(&Engine, Buffer)) {
    for ring in [RingChoice::Auto, RingChoice::Pread] {
        for on_gpu in [false, true] {
            lab::note(format!("{ring:?}, on a GPU: {on_gpu}"));
            let engine = engine(ring);
            let wanted: GpuSelector = "sim".parse().expect("a name");
            let gpu = engine.device(&wanted).expect("a simulated GPU").expect("a GPU").id();
            let memory = match on_gpu {
                true => engine.allocate(gpu, LEN as u64),
                false => engine.allocate_pinned(LEN as u64),
            };
            check(&engine, memory.expect("memory"));
        }
    }
}

/// A drive that fails at one place: what lies there is an error, all else is read, on the host and
/// on a GPU, and no byte of the piece that failed shows up.
#[test]
fn a_piece_that_fails_is_the_only_one() {
    let _watchdog = Watchdog::start();
    let bytes = pattern(1, LEN);
    let Some(fuse) = or_skip(Fuse::new(bytes.clone())) else { return };
    let bad = 20 * PIECE + 5000;
    fuse.set(|faults| {
        faults.fail_at = Some(bad as u64);
        faults.uncached = true;
    });
    on_each_way(|engine, mut memory| {
        let file = engine.open(fuse.path()).expect("the file opens");
        memory.fill(0xee).expect("a fill");
        // Every second piece, so that no two are one request.
        let places: Vec<usize> = (0..LEN).step_by(2 * PIECE).collect();
        let piece = |&at: &usize| Piece::new(&file, at as u64, PIECE as u64, at as u64);
        let pieces: Vec<Piece<'_>> = places.iter().map(piece).collect();
        let targets = [&mut memory];
        let outcome = engine.read_many(&pieces, targets).run().expect("one failure is not all");
        let mut got = vec![0; LEN];
        memory.download(0, &mut got).expect("a download");
        for (&at, result) in places.iter().zip(&outcome.results) {
            let piece = &got[at..at + PIECE];
            let holds = at..at + PIECE;
            if holds.contains(&bad) {
                check_failure(result, at);
                let is_own = piece.iter().zip(&bytes[at..]).all(|(is, of)| is == of || *is == 0xee);
                assert!(is_own, "bytes of another piece at {at}");
            } else {
                assert_eq!(*result.as_ref().expect("a read"), PIECE as u64);
                assert!(piece == &bytes[at..at + PIECE], "piece at {at}");
            }
            let between = &got[at + PIECE..at + 2 * PIECE];
            assert!(between.iter().all(|&byte| byte == 0xee), "behind the piece at {at}");
        }
        let whole = (places.len() - 1) * PIECE;
        assert_eq!(outcome.whole.bytes, whole as u64);
    });
}

fn check_failure(result: &PieceResult, at: usize) {
    let Err(Error::Io { place, .. }) = result.as_ref().map_err(|error| &**error) else {
        panic!("no error at {at}: {result:?}")
    };
    let range = place.offset..place.offset + place.len.max(1);
    let meets = range.start < (at + PIECE) as u64 && range.end > at as u64;
    assert!(meets, "an error of another place: {place:?}");
}

/// A drive that takes no more at one place: the pieces that lie there are errors, all else is
/// written, from the host and from a GPU.
#[test]
fn a_piece_that_is_not_written_is_the_only_one() {
    let _watchdog = Watchdog::start();
    let bytes = pattern(1, LEN);
    let Some(fuse) = or_skip(Fuse::new(bytes.clone())) else { return };
    let bad = 20 * PIECE + 5000;
    fuse.set(|faults| {
        faults.fail_writes_at = Some((bad as u64, libc::ENOSPC));
        faults.uncached = true;
    });
    let source = pattern(2, LEN);
    on_each_way(|engine, mut memory| {
        let file = engine.open_with(fuse.path(), &OpenOptions::writing()).expect("it opens");
        memory.upload(0, &source).expect("an upload");
        let places: Vec<usize> = (0..LEN).step_by(2 * PIECE).collect();
        // From the other end of the memory.
        let from = |at: usize| LEN - PIECE - at;
        let piece = |&at: &usize| Piece::new(&file, at as u64, PIECE as u64, from(at) as u64);
        let pieces: Vec<Piece<'_>> = places.iter().map(piece).collect();
        let outcome = engine.write_many(&pieces, [&memory]).run().expect("one failure is not all");
        let there = fuse.content();
        for (&at, result) in places.iter().zip(&outcome.results) {
            if (at..at + PIECE).contains(&bad) {
                check_failure(result, at);
                continue;
            }
            assert_eq!(*result.as_ref().expect("a write"), PIECE as u64);
            assert!(there[at..at + PIECE] == source[from(at)..from(at) + PIECE], "at {at}");
            let between = at + PIECE..at + 2 * PIECE;
            assert!(there[between.clone()] == bytes[between], "behind the piece at {at}");
        }
        assert_eq!(outcome.whole.bytes, ((places.len() - 1) * PIECE) as u64);
    });
}

/// More stretches than are queued at a time, in one slot.
#[test]
fn thousands_of_tiny_pieces_are_written() {
    let _watchdog = Watchdog::start();
    const COUNT: usize = 3000;
    let source = pattern(5, LEN);
    on_each_way(|engine, mut memory| {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("tiny");
        std::fs::write(&path, vec![0xee; COUNT * 20]).expect("room for a file");
        let file = engine.open_with(&path, &OpenOptions::writing()).expect("it opens");
        memory.upload(0, &source).expect("an upload");
        let piece = |n: usize| Piece::new(&file, n as u64 * 20, 7, (n * 31) as u64);
        let pieces: Vec<Piece<'_>> = (0..COUNT).map(piece).collect();
        let sources = [&memory];
        let outcome = engine.write_many(&pieces, sources).run();
        assert_eq!(outcome.expect("a write").whole.bytes, 7 * COUNT as u64);
        let there = std::fs::read(&path).expect("a read");
        for n in 0..COUNT {
            assert!(there[n * 20..][..7] == source[n * 31..][..7], "piece {n}");
            assert!(there[n * 20 + 7..][..13] == [0xee; 13], "behind piece {n}");
        }
    });
}

/// A caller may query the result again, and gets the buffers back; files are closed with the
/// first answer, and a detached handle stops nothing.
#[test]
fn many_pieces_can_be_polled_without_giving_the_handle_up() {
    let _watchdog = Watchdog::start();
    let bytes = pattern(3, LEN);
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("file");
    on_each_way(|engine, memory| {
        std::fs::write(&path, &bytes).expect("room for a file");
        let file = engine.open_with(&path, &OpenOptions::writing()).expect("the file opens");
        let place = |at: usize| Piece::new(&file, at as u64, PIECE as u64, at as u64);
        let pieces: Vec<Piece<'_>> = (0..LEN).step_by(PIECE).map(place).collect();
        let many = engine.read_many(&pieces, vec![memory]).exact().start().expect("a start");
        let first = many.wait_for(Duration::from_secs(100)).expect("an end").expect("a read");
        let again = many.wait_for(Duration::ZERO).expect("an end").expect("a read");
        assert!(Arc::ptr_eq(&first, &again), "it was made out twice");
        assert!(first.results.iter().all(|result| matches!(result, Ok(got) if *got == 8192)));
        let memory = many.transfer().reclaim().pop().expect("it has ended");
        let mut got = vec![0; LEN];
        memory.download(0, &mut got).expect("a copy");
        assert_eq!(got, bytes);

        std::fs::write(&path, b"").expect("room for a file");
        let writing = engine.write_many(&pieces, vec![memory]).start();
        writing.expect("a start").detach();
        drop(pieces);
        drop(file);
        while std::fs::read(&path).expect("the file is there") != bytes {
            std::thread::sleep(Duration::from_millis(1));
        }
    });
}
