//! What every combination must write: all bytes of the range and no other.

use std::fs;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::thread;

use forebay::{File, OpenOptions, RequestOptions, Route, SyncMode};

use crate::case::{Case, Memory, SLOT, assert_holds, bring_in, make_cold};
use crate::lab::{self, child, pattern};

const RANGES: &[(usize, usize)] = &[
    (0, 1),
    (1, 1),
    (4095, 2),
    (0, 4096),
    (4096, 8192),
    (100, 4096),
    (4097, 8190),
    (65_530, 20),
    (SLOT - 3, 6),
    (999, 2 * SLOT + 17),
    (8192, 2 * SLOT),
    (77, 0),
];

/// Writes `bytes` to the file and to the model of it.
fn write(
    case: &Case,
    file: &File,
    model: &mut Vec<u8>,
    at: usize,
    len: usize,
    how: Requirement<'_>,
) {
    let bytes = pattern((at * 31 + len) as u64 ^ how.salt, len);
    case.write(file, at as u64, &bytes, how.options);
    if len > 0 {
        model.resize(model.len().max(at + len), 0);
        model[at..at + len].copy_from_slice(&bytes);
    }
}

#[derive(Clone, Copy)]
struct Requirement<'a> {
    options: &'a RequestOptions,
    salt: u64,
}

fn each_requirement(case: &Case, name: &str, check: impl Fn(&File, &mut Vec<u8>, Requirement<'_>)) {
    let (probe, _) = case.random_file(name, 1);
    for (salt, options) in case.all_options(&probe).iter().enumerate() {
        let (file, mut model) = case.random_file(name, 3 * SLOT + 4321);
        check(&file, &mut model, Requirement { options, salt: salt as u64 });
        assert_holds(&file, &model);
    }
}

pub(crate) fn overwriting(case: &Case) {
    each_requirement(case, "over", |file, model, how| {
        for &(at, len) in RANGES {
            write(case, file, model, at, len, how);
        }
        // Once more on a file whose pages are not in memory.
        assert_holds(file, model);
        for &(at, len) in RANGES {
            write(case, file, model, at + 13, len, how);
        }
    });
}

pub(crate) fn growing(case: &Case) {
    each_requirement(case, "grow", |file, model, how| {
        for (gap, len) in [(0, 1), (0, 4096), (1, 10), (0, SLOT + 5), (70_000, 9000), (0, 0)] {
            let at = model.len() + gap;
            write(case, file, model, at, len, how);
            assert_eq!(file.len().expect("a size"), model.len() as u64);
        }
        let last = model.len() - 5;
        write(case, file, model, last, SLOT, how);
    });
}

pub(crate) fn holes(case: &Case) {
    each_requirement(case, "holes", |file, model, how| {
        let plain = fs::File::options().write(true).open(file.path()).expect("the file opens");
        plain.set_len(0).expect("a cut");
        plain.set_len(4 * SLOT as u64).expect("a hole");
        *model = vec![0; 4 * SLOT];
        for (at, len) in [(10_000, 1), (SLOT + 1, 4095), (2 * SLOT - 100, 70_000), (8192, 4096)] {
            write(case, file, model, at, len, how);
        }
    });
}

pub(crate) fn read_back_by_the_other_path(case: &Case) {
    each_requirement(case, "back", |file, model, how| {
        for turn in 0..3 {
            let (at, len) = (5000 * turn + 1, SLOT + 8192 * turn);
            write(case, file, model, at, len, how);
            for options in case.all_options(file) {
                let read = case.read_with(file, 0, model.len(), &options);
                assert!(read.expect("a read").0 == *model, "{options:?} after {:?}", how.options);
            }
            let plain = fs::read(file.path()).expect("a read");
            assert!(plain == *model, "after {:?}", how.options);
        }
    });
}

pub(crate) fn next_to_dirty_pages(case: &Case) {
    each_requirement(case, "dirty", |file, model, how| {
        let plain = fs::File::options().write(true).open(file.path()).expect("the file opens");
        for turn in 0..6 {
            // Dirty bytes before, in and behind the range, and its edges' pages are in memory.
            let at = 20_000 + 7_777 * turn;
            for start in [at - 500, at + 30_000, at + 99_000] {
                let dirty = pattern(start as u64, 2_000);
                plain.write_all_at(&dirty, start as u64).expect("a write");
                model[start..start + 2_000].copy_from_slice(&dirty);
            }
            write(case, file, model, at, 100_000, how);
            let plain = fs::read(file.path()).expect("a read");
            assert!(plain == *model, "turn {turn} with {:?}", how.options);
        }
    });
}

pub(crate) fn durable_and_reserved(case: &Case) {
    each_requirement(case, "synced", |file, model, how| {
        for sync in [SyncMode::None, SyncMode::Data, SyncMode::All] {
            for preallocate in [false, true] {
                let options = RequestOptions { sync, preallocate, ..*how.options };
                let how = Requirement { options: &options, salt: model.len() as u64 };
                let end = model.len();
                write(case, file, model, end - 10, 30_000, how);
                write(case, file, model, 4096, 8192, how);
                write(case, file, model, 0, 0, how);
                assert_eq!(file.len().expect("a size"), model.len() as u64);
            }
        }
    });
}

pub(crate) fn many_threads(case: &Case) {
    each_requirement(case, "threads", |file, model, how| {
        const PART: usize = 50_000;
        let parts: Vec<_> = (0..24_u64).map(|n| pattern(n ^ how.salt, PART)).collect();
        thread::scope(|scope| {
            for first in 0..4 {
                let (file, parts) = (&file, &parts);
                scope.spawn(move || {
                    for n in (first..parts.len()).step_by(4) {
                        case.write(file, (n * PART) as u64, &parts[n], how.options);
                    }
                });
            }
        });
        for (n, part) in parts.iter().enumerate() {
            model[n * PART..][..PART].copy_from_slice(part);
        }
    });
}

pub(crate) fn without_blocking(case: &Case) {
    let bytes = pattern(99, 3 * SLOT + 5);
    let path = case.path("started-write");
    let _ = fs::File::create(&path).expect("an empty file");
    let file = case.engine.open_with(&path, &OpenOptions::writing()).expect("a new file");
    let mut whole = case.buffer(bytes.len());
    whole.upload(0, &bytes).expect("an upload");
    let (left, right) = whole.split_at(SLOT as u64 + 1);
    let (first, options) = (left.len(), RequestOptions::default());
    let transfers = [
        file.write(left).options(options).start().expect("a start"),
        file.write(right).at(first).options(options).start().expect("a start"),
    ];
    for transfer in transfers {
        let (result, buffer) = transfer.wait();
        let len = buffer.expect("the buffer comes back").len();
        assert_eq!(result.expect("all bytes").bytes, len);
    }
    assert_holds(&file, &bytes);
}

/// Files that the caller has opened, with flags that hinder.
pub(crate) fn by_a_given_descriptor(case: &Case) {
    let (named, mut model) = case.random_file("given", 2 * SLOT + 4321);
    for flags in [0, libc::O_APPEND, libc::O_NONBLOCK, libc::O_DIRECT] {
        let mut how = fs::File::options();
        let plain = how.read(true).write(true).custom_flags(flags).open(named.path());
        let plain = match plain {
            Err(error) if flags == libc::O_DIRECT => {
                assert_eq!(error.raw_os_error(), Some(libc::EINVAL), "{error}");
                continue;
            }
            plain => plain.expect("the file opens"),
        };
        let before = rustix::fs::fcntl_getfl(&plain).expect("flags");
        let file = case.engine.open_borrowed_fd(&plain).expect("the same file");
        assert_eq!(file.path(), named.path());
        for (salt, options) in case.all_options(&file).iter().enumerate() {
            let how = Requirement { options, salt: salt as u64 };
            for (at, len) in [(0, 4096), (999, SLOT), (8192, SLOT), (model.len() - 5, 100)] {
                write(case, &file, &mut model, at, len, how);
            }
            assert_holds(&named, &model);
            let read = case.read_with(&file, 1, model.len(), options);
            assert!(read.expect("a read").0 == model[1..], "{options:?}");
        }
        assert_eq!(rustix::fs::fcntl_getfl(&plain).expect("flags"), before);
    }
}

/// Ranges that two processes write by turns, and how many of them.
const SHARED: [(usize, usize); 2] = [(1000, 100), (20_000, 24)];

/// Every second range of the shared file, from `first` on.
pub(crate) fn write_share(case: &Case, file: &File, first: usize, options: &RequestOptions) {
    let mut base = 0;
    for (len, count) in SHARED {
        for n in (first..count).step_by(2) {
            let bytes = pattern((base + n) as u64, len);
            case.write(file, (base + n * len) as u64, &bytes, options);
        }
        base += len * count;
    }
}

pub(crate) fn during_another_process(case: &Case) {
    if !child::may_start() {
        return lab::skip("this user may not start the test program again");
    }
    let (probe, _) = case.random_file("shared", 1);
    for options in case.all_options(&probe) {
        let total = SHARED.iter().map(|(len, count)| len * count).sum();
        let file = case.file("shared", &vec![0; total]);
        for (offset, len) in [(0, 50_000), (200_000, 200_000)] {
            if make_cold(&file) {
                bring_in(&file, offset, len);
            }
        }
        let route = options.route.map_or("any", Route::name);
        let role = format!(
            "{:?} {:?} {route} {}",
            case.ring,
            case.memory,
            case.folder.to_str().expect("a path of text")
        );
        let other = child::start(&role);
        // The child's own start-up takes a moment; several passes meet it for certain.
        let mut other = Some(other);
        loop {
            write_share(case, &file, 0, &options);
            let ended = other.as_mut().is_none_or(|c| c.try_wait().expect("a child").is_some());
            if ended {
                break;
            }
        }
        child::finish(other.take().expect("started above"));
        let mut model = Vec::with_capacity(total);
        for (len, count) in SHARED {
            let base = model.len();
            (0..count).for_each(|n| model.extend(pattern((base + n) as u64, len)));
        }
        assert_holds(&file, &model);
    }
}

/// The other process: its role is what [`during_another_process`] wrote.
pub(crate) fn be_the_other_process(role: &str) {
    let parts: Vec<&str> = role.splitn(4, ' ').collect();
    let [ring, memory, route, folder] = parts[..] else { panic!("no role: {role}") };
    let ring = crate::RINGS.into_iter().find(|r| format!("{r:?}") == ring).expect("a ring");
    let memory = Memory::ALL.into_iter().find(|m| format!("{m:?}") == memory).expect("a memory");
    let case = Case::new(ring, memory, folder.as_ref()).expect("what the first process had");
    let route = route.parse().ok();
    let options = RequestOptions { route, ..RequestOptions::default() };
    let path = case.path("shared");
    let file = case.engine.open_with(&path, &OpenOptions::writing()).expect("the file opens");
    (0..2).for_each(|_| write_share(&case, &file, 1, &options));
}
