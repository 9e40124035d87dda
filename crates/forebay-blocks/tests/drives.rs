//! Stores on drives that fill up, lose their power, hang or vanish.

#![allow(clippy::unwrap_used, reason = "helpers of tests")]

#[path = "../../forebay/tests/lab/mod.rs"]
mod lab;
mod stores;

use std::fs::File;
use std::path::Path;
use std::time::{Duration, Instant};

use forebay::Engine;
use forebay_blocks::{Batch, Block, End, Options, Store, Why};
use lab::fuse::Faults;
use lab::hanging::HangingDrive;
use lab::loop_drive::{LoopDrive, LoopOptions};
use lab::seeds::{Dice, index};
use lab::{FileSystem, or_skip};
use stores::{MIB, content, engine, get, key, memory, options, root, set, target};

const LEN: usize = 300_000;

/// Fills a drive `rounds` times in each of three ways.
fn fill_drive(rounds: usize) {
    let options_of_drive = LoopOptions { size: 64 * MIB, ..LoopOptions::default() };
    let Some(drive) = or_skip(LoopDrive::new(&options_of_drive)) else { return };
    let engine = engine();
    for (keep_free, page_cache) in [(0, true), (0, false), (20 * MIB, false)].repeat(rounds) {
        let path = drive.path().join(format!("{keep_free}{page_cache}"));
        let mut options = Options::new(vec![root(&path, 256 * MIB)]);
        options.roots[0].keep_free = Some(keep_free);
        options.page_cache = page_cache;
        let store = Store::open(&engine, &options).unwrap();
        let ends: Vec<_> = (0..300).map(|it| set(&engine, &store, it, LEN)).collect();
        let stored = ends.iter().filter(|end| **end == End::Done).count();
        assert!(stored > 50, "{stored}");
        // Blocks that are older make room for newer ones.
        let found = (0..300).filter(|&it| match get(&engine, &store, it, LEN) {
            Ok(bytes) => bytes == content(it, LEN) || panic!("block {it} is wrong"),
            Err(why) => why != Why::Absent && why != Why::Damaged && panic!("{why}"),
        });
        let found = found.count();
        assert!(found > 50, "{found} of {stored}");
        if keep_free > 0 {
            let space = rustix::fs::statvfs(drive.path()).unwrap();
            assert!(space.f_bavail * space.f_frsize >= keep_free - MIB);
        }
        store.clear().unwrap();
    }
}

#[test]
fn a_full_drive_drops_blocks_and_keeps_the_rest() {
    fill_drive(1);
}

#[test]
#[ignore = "long"]
fn a_hundred_full_drives() {
    fill_drive(34);
}

/// Cuts the power `rounds` times.
fn cut_power(rounds: u64, file_system: FileSystem) {
    let Some(mut drive) = or_skip(LoopDrive::with(file_system)) else { return };
    let mut synced: Vec<u64> = Vec::new();
    for round in 0..rounds {
        {
            let engine = engine();
            let mut options = options(&drive.path().join("store"), 256 * MIB);
            options.page_cache = round % 2 == 0;
            let store = Store::open(&engine, &options).unwrap();
            for &number in &synced {
                assert_eq!(get(&engine, &store, number, LEN).unwrap(), content(number, LEN));
            }
            for number in 0..round * 20 + 20 {
                if let Ok(bytes) = get(&engine, &store, number, LEN) {
                    assert_eq!(bytes, content(number, LEN), "block {number} in round {round}");
                }
            }
            for number in round * 20..round * 20 + 20 {
                assert!(set(&engine, &store, number, LEN).is_good());
                if number % 20 == 9 {
                    store.sync().unwrap();
                }
            }
            synced = (round * 20..round * 20 + 10).collect();
            if or_skip(drive.shut_down()).is_none() {
                return;
            }
        }
        std::thread::sleep(Duration::from_millis(100)); // files are closed on other threads
        if or_skip(drive.start_again(file_system)).is_none() {
            return;
        }
    }
}

#[test]
fn a_power_cut_takes_at_most_what_was_not_synced() {
    cut_power(3, FileSystem::Ext4);
}

#[test]
#[ignore = "long"]
fn two_hundred_power_cuts() {
    cut_power(100, FileSystem::Ext4);
    cut_power(100, FileSystem::Xfs);
}

#[test]
fn a_hanging_drive_costs_its_own_blocks() {
    let len = usize::try_from(256 * MIB).unwrap();
    let Some(drive) = or_skip(HangingDrive::new(len)) else { return };
    let folder = tempfile::tempdir().unwrap();
    let engine = engine();
    let roots = vec![root(drive.path(), 64 * MIB), root(folder.path(), 64 * MIB)];
    let mut options = Options::new(roots);
    options.timeout = Duration::from_secs(1);
    let store = Store::open(&engine, &options).unwrap();
    for number in 0..40 {
        assert_eq!(set(&engine, &store, number, LEN), End::Done);
    }
    store.sync().unwrap();
    let all = || {
        let block = |number| target(&engine, &store, number, LEN);
        let started = Instant::now();
        let ends = store.get((0..40).map(block).collect()).wait();
        (ends, started.elapsed())
    };
    assert_eq!(all().0, [End::Done; 40]);
    drive.hang_writes(true);
    let block = |number| Block { key: key(&store, number), memory: vec![memory(&engine, &[1])] };
    let writes: Vec<_> = (0..20)
        .map(|call| store.set((100 + 10 * call..110 + 10 * call).map(block).collect()))
        .collect();
    // Of so few as eight keys, all may belong to the other root.
    let used: Vec<_> = (0..40).map(|number| key(&store, number)).collect();
    let notes: Vec<_> = (0..100).map(|_| store.touch(&used)).collect();
    assert!(notes.iter().all(|it| it.wait().len() == 40)); // at the latest when their time is over
    let ends: Vec<_> = writes.iter().flat_map(Batch::wait).collect();
    assert!(ends.contains(&End::Not(Why::Late)), "{ends:?}");
    drive.hang(true);
    let (ends, took) = all();
    let late = ends.iter().filter(|end| **end == End::Not(Why::Late)).count();
    let done = ends.iter().filter(|end| **end == End::Done).count();
    assert!(late > 5 && done > 5 && late + done == 40, "{ends:?}");
    assert!(took < Duration::from_secs(5), "{took:?}");
    // Once it is known, it costs no time, and stores of the other root go on.
    let until = Instant::now() + Duration::from_secs(10);
    loop {
        let (ends, took) = all();
        let done_now = ends.iter().filter(|end| **end == End::Done).count();
        assert_eq!(done_now, done, "{ends:?}");
        if took < Duration::from_millis(500) {
            break;
        }
        assert!(Instant::now() < until, "each call waits for the drive");
    }
    drive.hang(false);
    drive.hang_writes(false);
    let until = Instant::now() + Duration::from_secs(30);
    // A server looks before it reads.
    while store.find_at_once(&used) != [Some(true); 40] {
        assert!(Instant::now() < until, "{:?}", store.exists(&used).wait());
        std::thread::sleep(Duration::from_millis(200));
    }
    while all().0 != [End::Done; 40] {
        assert!(Instant::now() < until, "{:?}", store.statistics());
        std::thread::sleep(Duration::from_millis(200));
    }
}

#[test]
fn a_store_that_is_closed_touches_no_memory() {
    let len = usize::try_from(256 * MIB).unwrap();
    let Some(drive) = or_skip(HangingDrive::new(len)) else { return };
    let engine = engine();
    let store = Store::open(&engine, &options(drive.path(), 64 * MIB)).unwrap();
    (0..10).for_each(|number| assert_eq!(set(&engine, &store, number, LEN), End::Done));
    store.sync().unwrap();
    drive.hang(true);
    let block = |number| target(&engine, &store, number, LEN);
    let batch = store.get((0..10).map(block).collect());
    std::thread::sleep(Duration::from_millis(100)); // its threads wait for the drive
    store.close();
    assert_eq!(batch.wait_for(Duration::ZERO), Some(vec![End::Not(Why::Cancelled); 10]));
    let mut memory = batch.take_memory();
    memory.iter_mut().for_each(|pieces| pieces[0].fill(7).unwrap());
    assert_eq!(store.get((0..10).map(block).collect()).wait(), [End::Not(Why::Cancelled); 10]);
    drive.hang(false);
    std::thread::sleep(Duration::from_millis(500));
    for pieces in &memory {
        assert!(pieces[0].as_slice().unwrap().iter().all(|&byte| byte == 7));
    }
}

/// Drops the pages of a store's files from the page cache.
fn evict(root: &Path) {
    for name in ["index", "data"] {
        let file = File::open(root.join(name)).unwrap();
        file.sync_all().unwrap();
        rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed).unwrap();
    }
}

#[test]
fn an_index_on_a_hanging_drive_costs_its_own_blocks() {
    let len = usize::try_from(256 * MIB).unwrap();
    let Some(drive) = or_skip(HangingDrive::new(len)) else { return };
    let folder = tempfile::tempdir().unwrap();
    let engine = engine();
    let roots = vec![root(drive.path(), 64 * MIB), root(folder.path(), 64 * MIB)];
    let mut options = Options::new(roots);
    options.timeout = Duration::from_secs(2); // the other root answers in time on a busy machine
    let store = Store::open(&engine, &options).unwrap();
    (0..40).for_each(|number| assert_eq!(set(&engine, &store, number, LEN), End::Done));
    store.sync().unwrap();
    evict(drive.path()); // as after a start
    drive.hang(true);
    let block = |number| target(&engine, &store, number, LEN);
    let keys: Vec<_> = (0..40).map(|number| key(&store, number)).collect();
    let is_slow = || {
        let blocks = (0..40).map(block).collect();
        let started = Instant::now();
        let (read, found) = (store.get(blocks).wait(), store.exists(&keys).wait());
        let is_done = |ends: &[End]| ends.iter().map(|it| *it == End::Done).collect::<Vec<_>>();
        assert_eq!(is_done(&read), is_done(&found));
        assert!(read.contains(&End::Done));
        started.elapsed() > Duration::from_millis(1900)
    };
    // Its threads hang in the kernel. Once that is known, few calls try it again.
    let first = Instant::now();
    while is_slow() {
        assert!(first.elapsed() < Duration::from_secs(20), "each call waits for the drive");
    }
    let known = Instant::now();
    let mut slow = 0;
    while known.elapsed() < Duration::from_secs(9) {
        slow += u32::from(is_slow());
        std::thread::sleep(Duration::from_millis(10));
    }
    assert!((1..=3).contains(&slow), "{slow} calls waited for the drive");
    drive.hang(false);
    let until = Instant::now() + Duration::from_secs(30);
    while store.get((0..40).map(block).collect()).wait() != [End::Done; 40] {
        assert!(Instant::now() < until, "{:?}", store.statistics());
        std::thread::sleep(Duration::from_millis(200));
    }
}

/// Uses a store on a bad drive in all ways until then, and returns how many blocks succeeded.
fn use_bad_drive(engine: &Engine, store: &Store, seed: u64, until: Instant) -> usize {
    let mut dice = Dice(seed);
    let mut done = 0;
    while Instant::now() < until {
        let numbers: Vec<u64> = (0..=dice.below(8)).map(|_| dice.below(500)).collect();
        let keys: Vec<_> = numbers.iter().map(|&number| key(store, number)).collect();
        let len_of = |number: u64| [5000, 18_432, LEN][index(number % 3)];
        let what = dice.below(10);
        let block = |&number: &u64| {
            let bytes = if what < 4 { content(number, len_of(number)) } else { Vec::new() };
            let mut memory = engine.allocate_pinned(len_of(number) as u64).unwrap();
            memory.upload(0, &bytes).unwrap();
            Block { key: key(store, number), memory: vec![memory] }
        };
        let blocks = numbers.iter().map(block).collect();
        let started = Instant::now();
        let batch = match what {
            0..4 => store.set(blocks),
            4..7 => store.get(blocks),
            7 => store.get_here(blocks),
            8 => store.exists(&keys),
            _ => store.delete(&keys[..1]),
        };
        let ends = batch.wait();
        assert!(started.elapsed() < BAD_DRIVE_TIMEOUT + Duration::from_secs(1), "call {what}");
        done += ends.iter().filter(|end| **end == End::Done).count();
        if !(4..8).contains(&what) {
            continue;
        }
        for ((end, memory), number) in ends.iter().zip(batch.take_memory()).zip(numbers) {
            let is_right = || memory[0].as_slice().unwrap() == content(number, len_of(number));
            assert!(*end != End::Done || is_right(), "block {number} is wrong");
        }
    }
    done
}

const BAD_DRIVE_TIMEOUT: Duration = Duration::from_millis(300);

/// A drive that hangs, is slow, fails to read or reads zeros, in turn for short times, while four
/// threads use the store for so many seconds.
fn bad_drive(seconds: u64, page_cache: bool) {
    let len = 256 * MIB;
    let Some(drive) = or_skip(HangingDrive::new(index(len))) else { return };
    let folder = tempfile::tempdir().unwrap();
    let engine = engine();
    // Room for a part of the blocks.
    let roots = vec![root(drive.path(), 24 * MIB), root(folder.path(), 24 * MIB)];
    let mut options = Options::new(roots);
    (options.timeout, options.page_cache) = (BAD_DRIVE_TIMEOUT, page_cache);
    let store = Store::open(&engine, &options).unwrap();
    let until = Instant::now() + Duration::from_secs(seconds);
    let done: usize = std::thread::scope(|scope| {
        let use_it = |seed| use_bad_drive(&engine, &store, seed, until);
        let users: Vec<_> = (1..5).map(|seed| scope.spawn(move || use_it(seed))).collect();
        let mut dice = Dice(seconds);
        while Instant::now() < until {
            let (fault, at) = (dice.below(6), dice.below(len));
            if dice.below(2) == 0 {
                evict(drive.path());
            }
            drive.fuse().set(|faults| match fault {
                0 => faults.hang_from = Some(0),
                1 => faults.hang_writes = true,
                2 => (faults.hang_from, faults.hang_writes) = (Some(0), true),
                3 => faults.fail_at = Some(at),
                4 => faults.pause = Duration::from_millis(20),
                _ => faults.read_most = Some(4096),
            });
            std::thread::sleep(Duration::from_millis(100 + dice.below(1000)));
            drive.fuse().set(|faults| *faults = Faults::default());
            std::thread::sleep(Duration::from_millis(dice.below(500)));
        }
        users.into_iter().map(|user| user.join().unwrap()).sum()
    });
    assert!(done > 100, "{done} blocks");
    let until = Instant::now() + Duration::from_secs(30);
    for number in 1000..1020 {
        while !set(&engine, &store, number, LEN).is_good()
            || get(&engine, &store, number, LEN) != Ok(content(number, LEN))
        {
            assert!(Instant::now() < until, "{:?}", store.statistics());
            std::thread::sleep(Duration::from_millis(100));
        }
    }
}

#[test]
fn a_bad_drive_gives_no_wrong_block_and_holds_no_call() {
    bad_drive(4, false);
}

#[test]
#[ignore = "long"]
fn a_bad_drive_for_minutes() {
    bad_drive(60, false);
    bad_drive(60, true);
}

#[test]
fn a_block_that_the_drive_cannot_read_is_stored_again() {
    let size = 96 * MIB;
    let options_of_drive = LoopOptions { size, ..LoopOptions::default() };
    let Some(drive) = or_skip(LoopDrive::new(&options_of_drive)) else { return };
    let engine = engine();
    let store = Store::open(&engine, &options(drive.path(), 64 * MIB)).unwrap();
    (0..200).for_each(|it| assert_eq!(set(&engine, &store, it, LEN), End::Done));
    store.sync().unwrap();
    // The end of the drive becomes unreadable, more each time, until a block is there.
    let mut len = size;
    let lost = loop {
        len -= MIB;
        drive.cut_writable(len);
        let is_lost = |&it: &u64| match get(&engine, &store, it, LEN) {
            Ok(bytes) => bytes != content(it, LEN),
            Err(why) => why == Why::Damaged || panic!("block {it}: {why}"),
        };
        if let Some(lost) = (0..200).find(is_lost) {
            break lost;
        }
    };
    assert_eq!(get(&engine, &store, lost, LEN), Err(Why::Absent));
    let error = store.statistics()[0].last_error.clone();
    assert!(error.is_some_and(|it| it.contains("os error 5")));
    assert_eq!(set(&engine, &store, lost, LEN), End::Done);
    assert_eq!(get(&engine, &store, lost, LEN).unwrap(), content(lost, LEN));
}

#[test]
fn a_root_that_vanishes_costs_misses() {
    let Some(drive) = or_skip(LoopDrive::with(FileSystem::Ext4)) else { return };
    let engine = engine();
    let store = Store::open(&engine, &options(drive.path(), 64 * MIB)).unwrap();
    for number in 0..10 {
        assert_eq!(set(&engine, &store, number, LEN), End::Done);
    }
    if or_skip(drive.shut_down()).is_none() {
        return;
    }
    for number in 0..10 {
        match get(&engine, &store, number, LEN) {
            Ok(bytes) => assert_eq!(bytes, content(number, LEN)),
            Err(why) => assert!(matches!(why, Why::RootFailed | Why::Absent), "{why}"),
        }
        let end = set(&engine, &store, 100 + number, LEN);
        assert_eq!(end, End::Not(Why::RootFailed));
    }
    let statistics = &store.statistics()[0];
    let error = statistics.last_error.as_deref().unwrap();
    assert!(error.contains("cannot"), "{error}");
    let block = Block { key: key(&store, 1), memory: vec![memory(&engine, &[1])] };
    assert_eq!(store.set(vec![block]).wait(), [End::Not(Why::RootFailed)]);
}

#[test]
fn a_root_that_is_back_serves_callers_that_wait() {
    let (folder, engine) = (tempfile::tempdir_in(".").unwrap(), engine());
    let path = folder.path().join("root");
    let mut options = options(&path, 64 * MIB);
    options.page_cache = true;
    let store = Store::open(&engine, &options).unwrap();
    let keys = [0, 2].map(|number| key(&store, number));
    for number in [0, 2] {
        assert_eq!(set(&engine, &store, number, LEN), End::Done);
    }
    store.sync().unwrap();
    let away = folder.path().join("away");
    std::fs::rename(&path, &away).unwrap();
    while store.find_at_once(&keys) != [Some(false); 2] {
        assert_eq!(get(&engine, &store, 0, LEN), Err(Why::RootFailed));
    }
    std::fs::rename(&away, &path).unwrap();
    let until = Instant::now() + Duration::from_secs(30);
    while store.find_at_once(&keys) != [Some(true); 2] {
        assert!(Instant::now() < until, "it rests");
        std::thread::sleep(Duration::from_millis(50));
    }
    // Resident blocks do not probe the drive, and a probe of the others is a single one.
    for is_resident in [true, true, false] {
        if !is_resident {
            evict(&path);
        }
        for number in [0, 2] {
            assert_eq!(get(&engine, &store, number, LEN), Ok(content(number, LEN)));
        }
    }
}
