//! What every combination must read.

use std::fs;
use std::thread;
use std::time::Duration;

use forebay::{Error, File, Outcome, Reason, RequestOptions, Residency, Route};

use crate::case::{Case, Memory, SIZE, SLOT, bring_in, make_cold};

/// Offsets and lengths around everything that could be off by one: bytes, sectors, pages, segments,
/// slots, the end of the file.
const RANGES: &[(usize, usize)] = &[
    (0, 1),
    (1, 1),
    (0, 4096),
    (512, 512),
    (511, 2),
    (4095, 2),
    (4097, 70_001),
    (65_535, 2),
    (SLOT - 1, 2),
    (SLOT - 7, SLOT + 14),
    (7, SLOT),
    (123_457, 2 * SLOT + 777),
    (4096, 3 * SLOT),
    (0, SIZE),
    (0, SIZE + 5_000),
    (SIZE - 1, 1),
    (SIZE - 1, 2),
    (SIZE - 5_000, 4 * SLOT),
    (SIZE, 1),
    (SIZE, 5 * SLOT),
    (SIZE + 1, 10),
    (10 * SIZE, 10),
    (0, 0),
    (5, 0),
    (SIZE, 0),
    (10 * SIZE, 0),
];

fn expected(bytes: &[u8], offset: usize, len: usize) -> &[u8] {
    let start = offset.min(bytes.len());
    &bytes[start..offset.saturating_add(len).min(bytes.len()).max(start)]
}

fn check(case: &Case, file: &File, bytes: &[u8], range: (usize, usize)) -> Outcome {
    let (offset, len) = range;
    let (got, outcome) = case.read(file, offset as u64, len);
    assert!(got == expected(bytes, offset, len), "{offset}+{len}: {outcome:?}");
    outcome
}

/// All bytes of `outcome` went for one of these reasons, by the route that belongs to it.
fn assert_reasons(case: &Case, outcome: &Outcome, reasons: &[Reason]) {
    for share in &outcome.routes {
        assert!(reasons.contains(&share.reason), "{reasons:?}: {outcome:?}");
        assert_eq!(share.route, case.route(share.reason), "{outcome:?}");
    }
}

/// The reason for bytes that are resident, or that are not, on this file.
fn reason(file: &File, resident: bool) -> Reason {
    match file.no_direct_io() {
        Some("the file lives in memory") => Reason::InMemory,
        _ if resident => Reason::Resident,
        Some(_) => Reason::NoDirectIo,
        None => Reason::NotResident,
    }
}

/// How many bytes of the file the kernel says to hold.
fn resident_bytes(file: &File) -> Option<u64> {
    match file.residency(0, u64::MAX).expect("an answer") {
        Residency::Known { resident, .. } => Some(resident),
        Residency::Unknown(_) => None,
    }
}

/// Reads, and returns the outcome where the kernel held so many bytes before and after: it may
/// drop pages and bring pages in whenever it likes, which says nothing about the engine.
fn check_holding(
    case: &Case,
    file: &File,
    bytes: &[u8],
    range: (usize, usize),
    held: usize,
) -> Option<Outcome> {
    let holds = || resident_bytes(file) == Some(held as u64);
    let before = holds();
    let outcome = check(case, file, bytes, range);
    (before && holds()).then_some(outcome)
}

/// The same, again and again while the outcome is not `right`: the kernel was seen to count a page
/// less for a moment to the engine, which it counts again when the test reads them.
fn check_holding_soon(
    case: &Case,
    file: &File,
    bytes: &[u8],
    (range, held): ((usize, usize), usize),
    right: impl Fn(&Outcome) -> bool,
) -> Option<Outcome> {
    let look = || check_holding(case, file, bytes, range, held);
    let mut outcome = look();
    for _ in 0..50 {
        if outcome.as_ref().is_none_or(&right) {
            break;
        }
        thread::sleep(Duration::from_millis(10));
        outcome = look();
    }
    outcome
}

pub(crate) fn resident(case: &Case) {
    let (file, bytes) = case.random_file("resident", SIZE);
    fs::read(file.path()).expect("a read");
    for &range in RANGES {
        // A small read says that bytes are resident where it would otherwise not have looked.
        let reasons = [reason(&file, true), Reason::Resident];
        let from_cache =
            |outcome: &Outcome| outcome.routes.iter().all(|share| reasons.contains(&share.reason));
        if let Some(outcome) = check_holding_soon(case, &file, &bytes, (range, SIZE), from_cache) {
            assert_reasons(case, &outcome, &reasons);
        }
    }
}

pub(crate) fn cold(case: &Case) {
    let (file, bytes) = case.random_file("cold", SIZE);
    for &range in RANGES {
        make_cold(&file);
        if let Some(outcome) = check_holding(case, &file, &bytes, range, 0) {
            assert_reasons(case, &outcome, &[reason(&file, false)]);
        }
    }
}

pub(crate) fn partly_resident(case: &Case) {
    let (file, bytes) = case.random_file("partly", SIZE);
    let runs = [(128 << 10, 128 << 10), (SLOT, 64 << 10), (3 * SLOT - (64 << 10), 256 << 10)];
    for range in [(0, SIZE), (130_001, 2 * SLOT), (SLOT - 1, 2), (3 * SLOT + 100, 300_000)] {
        if !make_cold(&file) {
            check(case, &file, &bytes, range);
            continue;
        }
        runs.iter().for_each(|&(offset, len)| bring_in(&file, offset, len));
        let overlap = |&(offset, len): &(usize, usize)| {
            (offset + len).min(range.0 + range.1).saturating_sub(offset.max(range.0))
        };
        let brought: usize = runs.iter().map(|run| run.1).sum();
        let resident = runs.iter().map(overlap).sum::<usize>() as u64;
        let from_cache = |outcome: &Outcome| {
            let of = |share: &&forebay::RouteShare| share.reason == Reason::Resident;
            outcome.routes.iter().filter(of).map(|share| share.bytes).sum::<u64>()
        };
        let is_direct = file.no_direct_io().is_none();
        let right = |outcome: &Outcome| !is_direct || from_cache(outcome) == resident;
        let held = check_holding_soon(case, &file, &bytes, (range, brought), right);
        if let Some(outcome) = held.filter(|_| is_direct) {
            assert_reasons(case, &outcome, &[Reason::Resident, Reason::NotResident]);
            assert_eq!(from_cache(&outcome), resident, "{range:?}: {outcome:?}");
        }
    }
}

pub(crate) fn required_routes(case: &Case) {
    let (file, bytes) = case.random_file("required", SIZE);
    let mut all = case.all_options(&file);
    all.push(RequestOptions { route: Some(Route::Cached), ..RequestOptions::default() });
    for options in all {
        for cold in [false, true] {
            if cold {
                make_cold(&file);
            }
            for (offset, len) in [(0, SIZE), (12_345, SLOT), (SIZE - 10, 20), (77, 100)] {
                let read = case.read_with(&file, offset as u64, len, &options);
                let (got, outcome) = read.expect("a route that can be had");
                assert!(got == expected(&bytes, offset, len), "{offset}+{len}: {outcome:?}");
                if let Some(route) = options.route {
                    let route = if case.memory.is_gpu() { route } else { Route::Host };
                    assert!(outcome.routes.iter().all(|share| share.route == route));
                }
                if options.route == Some(Route::Cached) {
                    let reasons = [Reason::Required, Reason::Resident, Reason::HadToWait];
                    assert_reasons(case, &outcome, &reasons);
                }
            }
        }
    }
}

pub(crate) fn refused_routes(case: &Case) {
    let (file, _) = case.random_file("refused", 10_000);
    let refused: &[Route] = match case.memory {
        Memory::Slice | Memory::Pinned => &[Route::Direct, Route::Staged],
        Memory::Sim | Memory::Gpu => &[Route::Direct, Route::Host],
    };
    for &route in refused {
        let options = RequestOptions { route: Some(route), ..RequestOptions::default() };
        let error = case.read_with(&file, 0, 10_000, &options).expect_err("no such route");
        assert!(matches!(&error, Error::RouteUnavailable { route: r, .. } if *r == route));
        let error = case.write_with(&file, 0, &[1; 100], &options).expect_err("no such route");
        assert!(matches!(&error, Error::RouteUnavailable { route: r, .. } if *r == route));
    }
}

pub(crate) fn early_ends(case: &Case) {
    let (file, bytes) = case.random_file("ends", SLOT + 1000);
    let exactly = RequestOptions { exact: true, ..RequestOptions::default() };
    for cold in [false, true] {
        if cold {
            make_cold(&file);
        }
        for (offset, len, there) in [
            (0, SLOT + 1001, SLOT + 1000),
            (SLOT, 4096, 1000),
            (SLOT + 999, 4 * SLOT, 1),
            (SLOT + 1000, 1, 0),
            (SLOT + 1001, 1, 0),
            (9 * SLOT, 1, 0),
        ] {
            let read = case.read_with(&file, offset as u64, len, &exactly);
            match read.expect_err("the file ends before") {
                Error::EndOfFile { place, got } => {
                    assert_eq!(got, there as u64, "{place}");
                    assert_eq!((place.offset, place.len), (offset as u64, len as u64));
                }
                error => panic!("{offset}+{len}: {error}"),
            }
        }
        let (got, _) = case.read_with(&file, 100, SLOT + 900, &exactly).expect("all is there");
        assert!(got == bytes[100..]);
    }
}

pub(crate) fn whole_files(case: &Case) {
    for len in [0, 1, 4096, SIZE] {
        let (file, bytes) = case.random_file("whole", len);
        for cold in [false, true] {
            if cold {
                make_cold(&file);
            }
            let (buffer, outcome) = file.read_to_end(case.device).run().expect("the whole file");
            assert_eq!((outcome.bytes, buffer.len()), (len as u64, len as u64));
            assert!(case.content(&buffer) == bytes, "{len} bytes");
        }
    }
}

pub(crate) fn without_blocking(case: &Case) {
    let (file, bytes) = case.random_file("started", SIZE);
    for cold in [false, true] {
        if cold {
            make_cold(&file);
        }
        // Two halves of one buffer, and several buffers, all on their way at once.
        let (left, right) = case.buffer(SIZE).split_at(SIZE as u64 / 3);
        let third = left.len();
        let mut transfers = vec![
            (0, file.read(left).exact().start().expect("a start")),
            (third, file.read(right).at(third).exact().start().expect("a start")),
        ];
        for offset in [1_u64, 100_000, SLOT as u64] {
            let buffer = case.buffer(SLOT + 3);
            transfers
                .push((offset, file.read(buffer).at(offset).exact().start().expect("a start")));
        }
        for (offset, transfer) in transfers {
            let (requested, at) = (transfer.progress().1, usize::try_from(offset).expect("small"));
            let (result, buffer) = transfer.wait();
            assert_eq!(result.expect("all bytes").bytes, requested);
            let got = case.content(&buffer.expect("the buffer comes back"));
            assert!(got == expected(&bytes, at, got.len()), "{offset}+{requested}");
        }
    }
}

pub(crate) fn many_threads(case: &Case) {
    let (file, bytes) = case.random_file("threads", SIZE);
    for cold in [false, true] {
        if cold {
            make_cold(&file);
        }
        thread::scope(|scope| {
            for start in 0..6 {
                let (file, bytes) = (&file, &bytes);
                scope.spawn(move || {
                    for turn in 0..8 {
                        let range = RANGES[(start * 5 + turn * 3) % RANGES.len()];
                        check(case, file, bytes, range);
                    }
                });
            }
        });
    }
}
