//! What every combination must read in one call.

use std::fs;

use forebay::{Error, File, ManyOutcome, Piece, RequestOptions, Result, Target};

use crate::case::{BEFORE, Case, Memory, SIZE, SLOT, bring_in, make_cold};
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
        (case.engine.read_many(&pieces, &mut [Target::from(&mut all)], options)?, all)
    } else {
        let mut all = case.buffer(at + 7);
        let outcome = case.engine.read_many(&pieces, &mut [Target::from(&mut all)], options)?;
        (outcome, case.content(&all))
    };
    let mut expected = vec![BEFORE; all.len()];
    let mut sum = 0;
    for ((one, &at), result) in wanted.iter().zip(&places).zip(&outcome.results) {
        let bytes = one.expected();
        expected[at..at + bytes.len()].copy_from_slice(bytes);
        match result {
            Ok(got) => assert_eq!(*got, bytes.len() as u64, "{}+{}", one.offset, one.len),
            Err(Error::EndOfFile { got, .. }) => assert_eq!(*got, bytes.len() as u64),
            Err(error) => panic!("{}+{}: {error}", one.offset, one.len),
        }
        sum += bytes.len() as u64;
    }
    let wrong = all.iter().zip(&expected).position(|(is, should)| is != should);
    assert_eq!(wrong, None, "first wrong byte; pieces at {places:?}");
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
        for demand in case.demands(&files[0].0) {
            check(case, &wanted, &demand).expect("a read");
        }
    }
}

pub(crate) fn pieces_that_end_early(case: &Case) {
    let (file, bytes) = case.random_file("short", 10_000);
    let one = |offset, len| Wanted { file: &file, bytes: &bytes, offset, len };
    let wanted = [one(0, 100), one(9_990, 20), one(20_000, 5), one(500, 0)];
    let outcome = check(case, &wanted, &RequestOptions::exactly()).expect("a read");
    let is_short = |result: &Result<u64>| matches!(result, Err(Error::EndOfFile { .. }));
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
    let options = RequestOptions::default();
    let buffers = || vec![case.buffer(100 * LEN), case.buffer(100 * LEN)];
    let transfer = case.engine.start_read_many(&pieces, buffers(), &options).expect("a start");
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
        let error = case.engine.start_read_many(&[wrong], buffers(), &options);
        assert!(matches!(error, Err(Error::BadRequest { .. })), "{error:?}");
    }
    let error = case.engine.start_read_many(&[], buffers(), &options);
    assert!(matches!(error, Err(Error::BadOption { .. })), "{error:?}");
    let other = forebay::Engine::new(forebay::Options::default()).expect("an engine");
    let foreign = other.open(file.path()).expect("the file opens");
    let foreign = [Piece::new(&foreign, 0, 10, 0)];
    let error = case.engine.start_read_many(&foreign, buffers(), &options);
    assert!(matches!(error, Err(Error::BadRequest { .. })), "{error:?}");
    let cancelled = case.engine.start_read_many(&pieces, buffers(), &options);
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
    let mut on_host = vec![0; 10];
    let mut on_gpu = case.buffer(10);
    let pieces = [Piece::new(&file, 0, 10, 0), Piece::new(&file, 20, 10, 0).to(1)];
    let mut targets = [Target::from(&mut on_host), Target::from(&mut on_gpu)];
    let error = case.engine.read_many(&pieces, &mut targets, &RequestOptions::default());
    assert!(matches!(error, Err(Error::BadRequest { .. })), "{error:?}");
}
