//! What every combination must read or write in one call.

use std::fs;

use forebay::{
    Error, File, ManyOutcome, OpenOptions, Piece, PieceResult, RequestOptions, Result, Route,
    SyncMode,
};

use crate::case::{BEFORE, Case, Memory, SIZE, SLOT, assert_holds, bring_in, make_cold};
use crate::lab::{note, pattern};

/// A file, its bytes, and the ranges that are wanted of it.
struct Wanted<'a> {
    file: &'a File,
    bytes: &'a [u8],
    offset: usize,
    len: usize,
}

impl Wanted<'_> {
    fn expected(&self) -> &[u8] {
        let start = self.offset.min(self.bytes.len());
        &self.bytes[start..(self.offset + self.len).min(self.bytes.len()).max(start)]
    }
}

/// Reads all into memory of which nothing else may change, and checks every byte.
fn check(case: &Case, wanted: &[Wanted<'_>], options: &RequestOptions) -> Result<ManyOutcome> {
    let mut at = 5;
    let mut places = Vec::new();
    for one in wanted {
        places.push(at);
        at += one.len + at % 3; // some meet, some do not
    }
    let mut pieces = Vec::new();
    for (one, &at) in wanted.iter().zip(&places) {
        pieces.push(Piece::new(one.file, one.offset as u64, one.len as u64, at as u64));
    }
    let (outcome, all) = if case.memory == Memory::Slice {
        let mut all = vec![BEFORE; at + 7];
        (case.engine.read_many(&pieces, [&mut all]).options(*options).run()?, all)
    } else {
        let mut all = case.buffer(at + 7);
        let outcome = case.engine.read_many(&pieces, [&mut all]).options(*options).run()?;
        (outcome, case.content(&all))
    };
    let mut expected = vec![BEFORE; all.len()];
    let mut sum = 0;
    for ((one, &at), result) in wanted.iter().zip(&places).zip(&outcome.results) {
        let bytes = one.expected();
        expected[at..at + bytes.len()].copy_from_slice(bytes);
        match result.as_ref().map_err(|error| &**error) {
            Ok(got) => assert_eq!(*got, bytes.len() as u64, "{}+{}", one.offset, one.len),
            Err(Error::EndOfFile { got, .. }) => assert_eq!(*got, bytes.len() as u64),
            Err(error) => panic!("{}+{}: {error}", one.offset, one.len),
        }
        sum += bytes.len() as u64;
    }
    if all != expected {
        let wrong = all.iter().zip(&expected).position(|(is, should)| is != should);
        panic!("first wrong byte: {wrong:?}; pieces at {places:?}");
    }
    assert_eq!(outcome.whole.bytes, sum);
    let shares: u64 = outcome.whole.routes.iter().map(|share| share.bytes).sum();
    assert_eq!(shares, sum, "bytes by route: {:?}", outcome.whole);
    Ok(outcome)
}

/// Pieces of all sizes from two files: neighbours, some that overlap, and some behind the end.
fn some<'a>(files: &'a [(File, Vec<u8>)], seed: u64) -> Vec<Wanted<'a>> {
    let random = pattern(seed + 1, 4 * 2000);
    let mut random = random.as_chunks::<4>().0.iter().map(|four| u32::from_le_bytes(*four));
    let mut below = |most: usize| random.next().expect("there are enough") as usize % most;
    let mut wanted = Vec::new();
    for _ in 0..60 {
        let (file, bytes) = &files[below(files.len())];
        let len = [1, 100, 4096, 5000, 65_536, 70_001, SLOT + 9][below(7)];
        let mut offset = below(SIZE + 9000);
        if below(2) == 0 {
            offset -= offset % 4096;
        }
        for _ in 0..=below(3) {
            wanted.push(Wanted { file, bytes, offset, len });
            offset += len + [0, 0, 300, 4096][below(4)];
        }
    }
    wanted.push(Wanted { file: &files[0].0, bytes: &files[0].1, offset: 77, len: 0 });
    wanted
}

pub(crate) fn pieces(case: &Case) {
    let files = [case.random_file("one", SIZE), case.random_file("two", SIZE)];
    for seed in 0..4 {
        note(format!("pieces, seed {seed}"));
        for (file, _) in &files {
            match seed {
                0 => drop(fs::read(file.path()).expect("a read")),
                1 => drop(make_cold(file)),
                _ => {
                    make_cold(file);
                    bring_in(file, 0, SLOT + 12_345);
                    bring_in(file, 3 * SLOT - 4096, SLOT);
                }
            }
        }
        let wanted = some(&files, seed);
        for options in case.all_options(&files[0].0) {
            check(case, &wanted, &options).expect("a read");
        }
    }
}

pub(crate) fn pieces_that_end_early(case: &Case) {
    let (file, bytes) = case.random_file("short", 10_000);
    let one = |offset, len| Wanted { file: &file, bytes: &bytes, offset, len };
    let wanted = [one(0, 100), one(9_990, 20), one(20_000, 5), one(500, 0)];
    let outcome =
        check(case, &wanted, &RequestOptions { exact: true, ..RequestOptions::default() })
            .expect("a read");
    let is_short = |result: &PieceResult| {
        matches!(result.as_ref().map_err(|error| &**error), Err(Error::EndOfFile { .. }))
    };
    let short: Vec<bool> = outcome.results.iter().map(is_short).collect();
    assert_eq!(short, [false, true, true, false]);
    let nothing = check(case, &[], &RequestOptions::default()).expect("nothing to read");
    assert_eq!((nothing.results.len(), nothing.whole.bytes), (0, 0));
}

pub(crate) fn pieces_without_blocking(case: &Case) {
    if case.memory == Memory::Slice {
        return;
    }
    let (file, bytes) = case.random_file("background", SIZE);
    make_cold(&file);
    const LEN: usize = 5_000;
    let offsets: Vec<usize> = (0..200).map(|n| n * 7919 % (SIZE - LEN)).collect();
    // To two targets in turn.
    let piece = |(n, &offset): (usize, &usize)| {
        Piece::new(&file, offset as u64, LEN as u64, (n / 2 * LEN) as u64).to(n % 2)
    };
    let pieces: Vec<Piece<'_>> = offsets.iter().enumerate().map(piece).collect();
    let buffers = || vec![case.buffer(100 * LEN), case.buffer(100 * LEN)];
    let transfer = case.engine.read_many(&pieces, buffers()).start().expect("a start");
    let (end, buffers_back) = transfer.wait();
    assert_eq!(end.expect("a read").whole.bytes, (200 * LEN) as u64);
    let all: Vec<Vec<u8>> = buffers_back.iter().map(|buffer| case.content(buffer)).collect();
    for (n, offset) in offsets.into_iter().enumerate() {
        let at = n / 2 * LEN;
        assert!(all[n % 2][at..at + LEN] == bytes[offset..offset + LEN], "piece {n}");
    }
    for wrong in [
        Piece::new(&file, 0, 10, 100 * LEN as u64 - 5),
        Piece::new(&file, u64::MAX - 3, 10, 0),
        Piece::new(&file, 0, 10, 0).to(2),
    ] {
        let error = case.engine.read_many(&[wrong], buffers()).start();
        assert!(matches!(error, Err(Error::BadRequest { .. })), "{error:?}");
    }
    let error = case.engine.read_many(&[], buffers()).start();
    assert!(matches!(error, Err(Error::BadOption { .. })), "{error:?}");
    let other = forebay::Engine::new(forebay::Options::default()).expect("an engine");
    let foreign = other.open(file.path()).expect("the file opens");
    let foreign = [Piece::new(&foreign, 0, 10, 0)];
    let error = case.engine.read_many(&foreign, buffers()).start();
    assert!(matches!(error, Err(Error::BadRequest { .. })), "{error:?}");
    let cancelled = case.engine.read_many(&pieces, buffers()).start();
    let cancelled = cancelled.expect("a start");
    cancelled.transfer().cancel();
    match cancelled.wait() {
        (Ok(_) | Err(Error::Cancelled { .. }), back) => assert_eq!(back.len(), 2),
        other => panic!("{other:?}"),
    }
}

pub(crate) fn targets_of_two_kinds(case: &Case) {
    if !case.memory.is_gpu() {
        return;
    }
    let (file, _) = case.random_file("kinds", 10_000);
    let mut on_host = case.engine.allocate_pinned(10).expect("host memory");
    let mut on_gpu = case.buffer(10);
    let pieces = [Piece::new(&file, 0, 10, 0), Piece::new(&file, 20, 10, 0).to(1)];
    let targets = [&mut on_host, &mut on_gpu];
    let error = case.engine.read_many(&pieces, targets).run();
    assert!(matches!(error, Err(Error::BadRequest { .. })), "{error:?}");
}

/// A piece of a file that is written: which file, where, and from where in the source.
struct Written {
    file: usize,
    offset: usize,
    len: usize,
    at: usize,
}

/// Pieces of all sizes for two files, of which some touch, none overlap and some lie behind the
/// end, in no order; and how long their source is.
fn some_to_write(seed: u64, is_one_file: bool) -> (Vec<Written>, usize) {
    let random = pattern(seed + 9, 4 * 2000);
    let mut random = random.as_chunks::<4>().0.iter().map(|four| u32::from_le_bytes(*four));
    let mut below = |most: usize| random.next().expect("there are enough") as usize % most;
    let mut ends = [0, 0];
    let mut pieces: Vec<Written> = Vec::new();
    for _ in 0..100 {
        let file = below(2);
        let end = &mut ends[if is_one_file { 0 } else { file }];
        let len = [0, 1, 100, 4096, 5000, 65_536, 70_001, SLOT + 9][below(8)];
        let offset = *end + [0, 0, 0, 1, 300, 4096, 9000][below(7)];
        *end = offset + len;
        pieces.push(Written { file, offset, len, at: 0 });
    }
    for last in (1..pieces.len()).rev() {
        pieces.swap(last, below(last + 1));
    }
    let mut at = 3;
    for piece in &mut pieces {
        piece.at = at;
        at += piece.len + [0, 0, 1, 5000][below(4)];
    }
    (pieces, at + 7)
}

/// Puts what is written of `source` into the models of the files.
fn expect_written(pieces: &[Written], source: &[u8], models: &mut [Vec<u8>], is_one_file: bool) {
    for &Written { file, offset, len, at } in pieces.iter().filter(|piece| piece.len > 0) {
        let model = &mut models[if is_one_file { 0 } else { file }];
        model.resize(model.len().max(offset + len), 0);
        model[offset..offset + len].copy_from_slice(&source[at..at + len]);
    }
}

pub(crate) fn pieces_written(case: &Case) {
    for (seed, sync) in (0..).zip([SyncMode::None, SyncMode::Data, SyncMode::All]) {
        note(format!("pieces to write, seed {seed}"));
        let files = [case.random_file("one", SIZE), case.random_file("two", SIZE)];
        let is_one_file = files[0].0.path() == files[1].0.path();
        let (written, len) = some_to_write(seed, is_one_file);
        let source = pattern(seed + 77, len);
        let piece = |&Written { file, offset, len, at }: &Written| {
            Piece::new(&files[file].0, offset as u64, len as u64, at as u64)
        };
        let pieces: Vec<Piece<'_>> = written.iter().map(piece).collect();
        let mut options = RequestOptions { sync, ..RequestOptions::default() };
        if sync == SyncMode::All {
            options.preallocate = true;
        }
        let outcome = if case.memory == Memory::Slice {
            case.engine.write_many(&pieces, [&source]).options(options).run()
        } else {
            let mut buffer = case.buffer(len);
            buffer.upload(0, &source).expect("an upload");
            let outcome = case.engine.write_many(&pieces, [&buffer]).options(options).run();
            assert!(case.content(&buffer) == source, "the source of a write has changed");
            outcome
        };
        let outcome = outcome.expect("a write");
        for (result, piece) in outcome.results.iter().zip(&written) {
            assert_eq!(*result.as_ref().expect("a write"), piece.len as u64);
        }
        let sum: u64 = written.iter().map(|piece| piece.len as u64).sum();
        let shares: u64 = outcome.whole.routes.iter().map(|share| share.bytes).sum();
        assert_eq!((outcome.whole.bytes, shares), (sum, sum), "{:?}", outcome.whole);
        let mut models = files.each_ref().map(|(_, bytes)| bytes.clone());
        expect_written(&written, &source, &mut models, is_one_file);
        for ((file, _), model) in files.iter().zip(&models).take(if is_one_file { 1 } else { 2 }) {
            assert_holds(file, model);
        }
    }
}

pub(crate) fn pieces_written_without_blocking(case: &Case) {
    if case.memory == Memory::Slice {
        return;
    }
    const LEN: usize = 5_000;
    let (file, mut model) = case.random_file("later", SIZE);
    let sources = [pattern(1, 100 * LEN), pattern(2, 100 * LEN)];
    let buffers = || {
        let filled = sources.each_ref().map(|bytes| {
            let mut buffer = case.buffer(bytes.len());
            buffer.upload(0, bytes).expect("an upload");
            buffer
        });
        Vec::from(filled)
    };
    let piece = |n: usize| {
        Piece::new(&file, (n * 7001) as u64, LEN as u64, (n / 2 * LEN) as u64).from(n % 2)
    };
    let pieces: Vec<Piece<'_>> = (0..(SIZE / 7001).min(200)).map(piece).collect();
    let transfer = case.engine.write_many(&pieces, buffers()).start().expect("a start");
    let (end, back) = transfer.wait();
    assert_eq!(end.expect("a write").whole.bytes, (pieces.len() * LEN) as u64);
    assert_eq!(back.len(), 2);
    for n in 0..pieces.len() {
        let from = &sources[n % 2][n / 2 * LEN..][..LEN];
        model[n * 7001..][..LEN].copy_from_slice(from);
    }
    assert_holds(&file, &model);
    let read_only = case.engine.open_with(file.path(), &OpenOptions::default()).expect("it opens");
    for (wrong, words) in [
        (Piece::new(&file, 0, 10, 100 * LEN as u64 - 5), "outside the source of"),
        (Piece::new(&file, u64::MAX - 3, 10, 0), "the range ends beyond the largest file offset"),
        (Piece::new(&file, 0, 10, 0).from(2), "there are 2 sources, none with the index 2"),
        (Piece::new(&read_only, 0, 10, 0), "open for reading only"),
    ] {
        let error = case.engine.write_many(&[wrong], buffers()).start().expect_err(words);
        assert!(matches!(error, Error::BadRequest { .. }), "{error:?}");
        assert!(error.to_string().contains(words), "{error}");
    }
    let error = case.engine.write_many(&pieces, buffers()).route(Route::Staged).start();
    assert!(matches!(error, Err(Error::RouteUnavailable { .. })), "{error:?}");
    let cancelled = case.engine.write_many(&pieces, buffers()).start().expect("a start");
    cancelled.transfer().cancel();
    match cancelled.wait() {
        (Ok(_) | Err(Error::Cancelled { .. }), back) => assert_eq!(back.len(), 2),
        other => panic!("{other:?}"),
    }
    // What was written by then are the same bytes.
    assert_holds(&file, &model);
}
