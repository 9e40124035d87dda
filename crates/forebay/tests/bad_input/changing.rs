//! Files that become shorter, longer or others while they are read.

use std::fs;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;

use forebay::{Engine, Error, File, RequestOptions, RingChoice};

use crate::lab::fuse::Fuse;
use crate::lab::{self, or_skip, pattern, watchdog::Watchdog};
use crate::{assert_adds_up, assert_says, sim, small_engine};

const FULL: usize = 6 << 20;

const CHANGED: &str =
    "read it again when no process writes to it; a writer should replace it by a rename";

/// Ends the other thread of a test, also when this one fails.
struct Ending<'a>(&'a AtomicBool);

impl Drop for Ending<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

fn rings() -> Vec<RingChoice> {
    match lab::has_uring() {
        true => vec![RingChoice::Pread, RingChoice::Uring],
        false => vec![RingChoice::Pread],
    }
}

/// What arrives of a read at the start, in host memory or by way of a GPU.
fn read_by_turns(
    engine: &Engine,
    file: &File,
    turn: usize,
    options: &RequestOptions,
    target: &mut [u8],
) -> forebay::Result<usize> {
    let outcome = if turn.is_multiple_of(2) {
        file.read(&mut *target).options(*options).run()?
    } else {
        let gpu = sim(engine, "sim");
        let mut buffer = engine.allocate(gpu, target.len() as u64).expect("memory");
        buffer.fill(target[0]).expect("a fill");
        let outcome = file.read(&mut buffer).options(*options).run()?;
        buffer.download(0, target).expect("a download");
        outcome
    };
    assert_adds_up(&outcome);
    Ok(usize::try_from(outcome.bytes).expect("a small file"))
}

#[test]
fn a_file_that_shrinks_while_it_is_read() {
    const LEFT: usize = (2 << 20) + 1000;
    let _watchdog = Watchdog::start();
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("data");
    let bytes = pattern(3, FULL);
    fs::write(&path, &bytes).expect("a file");
    let engine = small_engine(|_| {});
    let file = engine.open(&path).expect("the file opens");
    let plain = fs::File::options().write(true).open(&path).expect("the file opens");
    let ended = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            while !ended.load(Ordering::Relaxed) {
                plain.set_len(LEFT as u64).expect("a cut");
                plain.write_all_at(&bytes[LEFT..], LEFT as u64).expect("a write");
                plain.sync_all().expect("a sync");
                let _ = file.evict();
            }
        });
        let _end = Ending(&ended);
        for turn in 0..32 {
            let exact = turn % 4 > 1;
            let options = if exact {
                RequestOptions { exact: true, ..RequestOptions::default() }
            } else {
                RequestOptions::default()
            };
            let mut target = vec![0xee; if exact { FULL } else { FULL + 100 }];
            let got = match read_by_turns(&engine, &file, turn, &options, &mut target) {
                Ok(got) => got,
                // The cut came before the read began, or after.
                Err(Error::EndOfFile { got, .. } | Error::FileChanged { got, .. }) if exact => {
                    assert!((LEFT as u64..FULL as u64).contains(&got), "{got}");
                    continue;
                }
                Err(error) => panic!("{error}"),
            };
            assert!((LEFT..=FULL).contains(&got), "{got}");
            assert!(target[..LEFT] == bytes[..LEFT]);
            let wrong = (LEFT..got).filter(|&at| target[at] != bytes[at] && target[at] != 0);
            assert_eq!(wrong.count(), 0, "bytes that the file never held");
        }
    });
}

/// Runs `read` on a file of [`FULL`] bytes, and cuts the file to `left` while a request for its
/// byte at `cut` is on its way.
fn cut_meanwhile<T: Send>(
    ring: RingChoice,
    (left, cut): (u64, u64),
    read: impl FnOnce(&Engine, &File) -> T + Send,
) -> Option<(T, String)> {
    let fuse = or_skip(Fuse::new(pattern(7, FULL)))?;
    fuse.set(|faults| (faults.uncached, faults.hang_from) = (true, Some(cut)));
    let engine = small_engine(|options| options.ring = ring);
    let file = engine.open(fuse.path()).expect("the file opens");
    let plain = fs::File::options().write(true).open(fuse.path()).expect("the file opens");
    let done = thread::scope(|scope| {
        let reading = scope.spawn(|| read(&engine, &file));
        fuse.wait_for_parked(1);
        plain.set_len(left).expect("a cut");
        fuse.set(|faults| faults.hang_from = None);
        reading.join().expect("a read that ends")
    });
    Some((done, fuse.path().display().to_string()))
}

#[test]
fn a_file_that_is_cut_below_a_read_that_wants_all_of_it() {
    let _watchdog = Watchdog::start();
    const LEFT: u64 = (1 << 20) + 5;
    const CUT: u64 = 4 << 20;
    for (turn, ring) in rings().into_iter().flat_map(|ring| [(0, ring), (1, ring)]) {
        let read = |engine: &Engine, file: &File| {
            let mut target = vec![0xee; FULL];
            read_by_turns(
                engine,
                file,
                turn,
                &RequestOptions { exact: true, ..RequestOptions::default() },
                &mut target,
            )
        };
        let Some((result, path)) = cut_meanwhile(ring, (LEFT, CUT), read) else { return };
        let Err(Error::FileChanged { got, .. }) = result else { panic!("{result:?}") };
        assert!((LEFT..=CUT).contains(&got), "{got}");
        let message = format!(
            "cannot read `{path}` at 0+{FULL}: the file changed: it ended after {got} bytes, and \
             was longer"
        );
        assert_says(result, &message, "-", CHANGED);

        let whole = |_: &Engine, file: &File| file.read_to_end(None).run().map(drop);
        let Some((result, _)) = cut_meanwhile(ring, (LEFT, CUT), whole) else { return };
        assert!(matches!(result, Err(Error::FileChanged { .. })), "{result:?}");

        // What takes what there is takes it, and nothing behind is touched.
        let read = |engine: &Engine, file: &File| {
            let mut target = vec![0xee; FULL];
            let got = read_by_turns(engine, file, turn, &RequestOptions::default(), &mut target);
            (got, target)
        };
        let Some(((got, target), _)) = cut_meanwhile(ring, (LEFT, CUT), read) else { return };
        let got = got.expect("an end of the file");
        assert!((LEFT..=CUT).contains(&(got as u64)), "{got}");
        assert!(target[..got] == pattern(7, FULL)[..got]);

        // A read of more than the file ever had is reported as that.
        let read =
            |_: &Engine, file: &File| file.read(&mut vec![0; FULL + 1]).exact().run().map(drop);
        let Some((result, _)) = cut_meanwhile(ring, (LEFT, CUT), read) else { return };
        assert!(matches!(result, Err(Error::EndOfFile { .. })), "{result:?}");
    }
}

#[test]
fn a_file_that_grows_while_it_is_read() {
    const STEP: usize = 70_001;
    let _watchdog = Watchdog::start();
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("data");
    let bytes = pattern(3, FULL);
    for ring in rings() {
        fs::write(&path, &bytes[..STEP]).expect("a file");
        let engine = small_engine(|options| options.ring = ring);
        let file = engine.open(&path).expect("the file opens");
        let plain = fs::File::options().write(true).open(&path).expect("the file opens");
        let (ended, reads) = (AtomicBool::new(false), AtomicU64::new(0));
        thread::scope(|scope| {
            scope.spawn(|| {
                for start in (STEP..FULL).step_by(STEP) {
                    let end = FULL.min(start + STEP);
                    plain.write_all_at(&bytes[start..end], start as u64).expect("a write");
                    // Each read meets a few steps, and the last steps some reads.
                    let seen = reads.load(Ordering::Relaxed);
                    let goes_on = || reads.load(Ordering::Relaxed) < seen + 1;
                    while start % (4 * STEP) == 0 && goes_on() && !ended.load(Ordering::Relaxed) {
                        thread::yield_now();
                    }
                }
            });
            let _end = Ending(&ended);
            for turn in 0.. {
                let before = usize::try_from(file.len().expect("a size")).expect("small");
                let mut target = vec![0xee; FULL + 100];
                let options = RequestOptions::default();
                let read = read_by_turns(&engine, &file, turn, &options, &mut target);
                let got = read.expect("what there is");
                let after = usize::try_from(file.len().expect("a size")).expect("small");
                assert!((before..=after).contains(&got), "{got} of {before} to {after}");
                assert!(target[..got] == bytes[..got]);
                assert!(target[got..].iter().all(|byte| *byte == 0xee), "behind the end");
                let (buffer, _) = file.read_to_end(None).run().expect("all that there was");
                assert!(buffer.as_slice().is_some_and(|got| bytes.starts_with(got)));
                reads.fetch_add(1, Ordering::Relaxed);
                if before == FULL {
                    break;
                }
            }
        });
    }
}

#[test]
fn a_file_that_is_replaced_while_it_is_read() {
    let _watchdog = Watchdog::start();
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("data");
    // The size shows the version.
    let size = |version: u64| 1_000_000 + usize::try_from(version).expect("small");
    let replace = |version: u64, path: &Path| {
        let new = path.with_extension("new");
        fs::write(&new, pattern(version, size(version))).expect("room");
        fs::rename(&new, path).expect("a rename");
    };
    replace(0, &path);
    let ended = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            for version in 1.. {
                replace(version, &path);
                if ended.load(Ordering::Relaxed) {
                    break;
                }
            }
        });
        let _end = Ending(&ended);
        for ring in rings() {
            let engine = small_engine(|options| options.ring = ring);
            for turn in 0..20 {
                let file = engine.open(&path).expect("one version or another");
                let len = usize::try_from(file.len().expect("a size")).expect("small");
                let expected = pattern((len - size(0)) as u64, len);
                for cold in [false, true] {
                    if cold {
                        file.evict().expect("an eviction");
                    }
                    let mut target = vec![0xee; len + 10];
                    let options = RequestOptions::default();
                    let read = read_by_turns(&engine, &file, turn, &options, &mut target);
                    assert_eq!(read.expect("all of one version"), len);
                    assert!(target[..len] == expected, "bytes of another version");
                }
            }
        }
    });
}
