//! A store on real files: what is stored comes back, whole or not at all.

#![allow(clippy::unwrap_used, reason = "a helper of tests")]

#[path = "../../forebay/tests/lab/mod.rs"]
mod lab;
mod stores;

use std::fs;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use forebay_blocks::{Block, End, Policy, RootStatistics, Store, Why};
use lab::fork::{Side, fork};
use lab::seeds::{Dice, index};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use stores::{MIB, content, engine, get, key, memory, options, set, source, target};

#[test]
fn blocks_of_any_length_come_back() {
    let folder = tempfile::tempdir().unwrap();
    let engine = engine();
    for page_cache in [true, false] {
        let mut options = options(&folder.path().join(page_cache.to_string()), 512 * MIB);
        options.page_cache = page_cache;
        let longest = if page_cache { 5 << 20 } else { 64 << 20 };
        let lengths = [1, 17, 4095, 4096, 18_432, 65_536, 562_176, longest];
        {
            let store = Store::open(&engine, &options).unwrap();
            for (number, len) in lengths.into_iter().enumerate() {
                assert_eq!(get(&engine, &store, number as u64, len), Err(Why::Absent));
                assert_eq!(set(&engine, &store, number as u64, len), End::Done);
                assert_eq!(set(&engine, &store, number as u64, len), End::Present);
            }
            store.sync().unwrap();
        }
        let store = Store::open(&engine, &options).unwrap();
        for (number, len) in lengths.into_iter().enumerate() {
            let number = number as u64;
            assert_eq!(get(&engine, &store, number, len).unwrap(), content(number, len));
            let why = if len == 64 << 20 { Why::TooLong } else { Why::Absent };
            assert_eq!(get(&engine, &store, number, len + 1), Err(why));
        }
        let keys: Vec<_> = (0..20).map(|number| key(&store, number)).collect();
        let there: Vec<_> = store.exists(&keys).wait().iter().map(|end| end.is_good()).collect();
        assert_eq!(there, (0..20).map(|number| number < lengths.len()).collect::<Vec<_>>());
        assert_eq!(store.delete(&keys[..2]).wait(), [End::Done, End::Done]);
        assert_eq!(store.delete(&keys[..1]).wait(), [End::Not(Why::Absent)]);
        assert_eq!(get(&engine, &store, 0, 1), Err(Why::Absent));
        assert_eq!(store.usage().unwrap().0, lengths.len() as u64 - 2);
        store.clear().unwrap();
        assert_eq!(store.usage().unwrap(), (0, 0));
    }
}

#[test]
fn a_caller_that_waits_copies_resident_blocks_itself() {
    let folder = tempfile::tempdir().unwrap();
    let engine = engine();
    let mut options = options(folder.path(), 64 * MIB);
    options.page_cache = true;
    let store = Store::open(&engine, &options).unwrap();
    for number in 0..4 {
        assert_eq!(set(&engine, &store, number, 18_432), End::Done);
    }
    let block = |number| target(&engine, &store, number, 18_432);
    let batch = store.get_here((0..5).map(block).collect());
    let ends = (0..4).map(|_| End::Done).chain([End::Not(Why::Absent)]);
    assert_eq!(batch.wait(), ends.collect::<Vec<_>>());
    for (number, memory) in batch.take_memory()[..4].iter().enumerate() {
        assert_eq!(memory[0].as_slice().unwrap(), content(number as u64, 18_432));
    }
    let statistics = &store.statistics()[0];
    assert_eq!((statistics.hits, &statistics.missed[..]), (4, &[(Why::Absent, 1)][..]));
}

#[test]
fn resident_blocks_are_copied_in_parts_and_end_by_their_checksums() {
    const LENGTHS: [usize; 7] = [1, 4096, 700_001, 262_144, 262_145, 65_536, 1 << 20];
    let folder = tempfile::tempdir().unwrap();
    let engine = engine();
    let mut options = options(folder.path(), 16 * MIB);
    options.page_cache = true;
    let store = Store::open(&engine, &options).unwrap();
    let gpu = engine.device(&"sim".parse().unwrap()).unwrap().unwrap().id();
    let allocate = |on_gpu, len| match on_gpu {
        true => engine.allocate(gpu, len).unwrap(),
        false => engine.allocate_pinned(len).unwrap(),
    };
    let places: [fn(usize) -> bool; 3] = [|_| true, |_| false, |number| number % 2 > 0];
    let check = |damaged: Option<usize>| {
        for (on_gpu, waits) in places.iter().flat_map(|it| [(it, true), (it, false)]) {
            let block = |(number, &len): (usize, &usize)| {
                let lens = [len / 3, len - len / 3].into_iter().enumerate();
                let piece = |(at, len)| allocate(on_gpu(number + at), len as u64);
                Block { key: key(&store, number as u64), memory: lens.map(piece).collect() }
            };
            let blocks = LENGTHS.iter().enumerate().map(block).collect();
            let batch = if waits { store.get_here(blocks) } else { store.get(blocks) };
            let ends = batch.wait();
            for (number, memory) in batch.take_memory().iter().enumerate() {
                if damaged == Some(number) {
                    assert!(!ends[number].is_good());
                    continue;
                }
                let mut got = vec![0; LENGTHS[number]];
                let (first, second) = got.split_at_mut(LENGTHS[number] / 3);
                memory[0].download(0, first).unwrap();
                memory[1].download(0, second).unwrap();
                assert_eq!(ends[number], End::Done);
                assert!(got == content(number as u64, LENGTHS[number]), "block {number}");
            }
        }
    };
    for (number, len) in LENGTHS.into_iter().enumerate() {
        assert_eq!(set(&engine, &store, number as u64, len), End::Done);
    }
    check(None);
    let (path, block) = (folder.path().join("data"), content(2, LENGTHS[2]));
    let data = fs::read(&path).unwrap();
    let page = data.chunks(4096).position(|page| *page == block[512_000..516_096]).unwrap();
    let file = fs::File::options().write(true).open(&path).unwrap();
    file.write_all_at(&[data[page * 4096 + 9] ^ 1], page as u64 * 4096 + 9).unwrap();
    check(Some(2));
    let missed = &store.statistics()[0].missed;
    assert!(missed.iter().any(|&(why, count)| why == Why::Damaged && count > 0), "{missed:?}");
}

#[test]
fn pieces_are_one_block() {
    let folder = tempfile::tempdir().unwrap();
    let engine = engine();
    let store = Store::open(&engine, &options(folder.path(), 64 * MIB)).unwrap();
    let bytes = content(7, 30_000);
    let pieces = [&bytes[..9_216], &bytes[9_216..9_217], &bytes[9_217..]];
    let pieces = pieces.iter().map(|piece| memory(&engine, piece)).collect();
    let done = store.set(vec![Block { key: key(&store, 7), memory: pieces }]).wait();
    assert_eq!(done, [End::Done]);
    assert_eq!(get(&engine, &store, 7, 30_000).unwrap(), bytes);
    let lengths = [1, 29_999];
    let pieces = lengths.iter().map(|&len| engine.allocate_pinned(len).unwrap()).collect();
    let batch = store.get(vec![Block { key: key(&store, 7), memory: pieces }]);
    assert_eq!(batch.wait(), [End::Done]);
    let back: Vec<u8> =
        batch.take_memory()[0].iter().flat_map(|it| it.as_slice().unwrap().to_vec()).collect();
    assert_eq!(back, bytes);
}

#[test]
fn several_stores_share_the_capacity() {
    let (folder, engine) = (tempfile::tempdir().unwrap(), engine());
    let capacity = 32 * MIB;
    // As many processes have them.
    let open = |_| Store::open(&engine, &options(folder.path(), capacity)).unwrap();
    let stores: Vec<_> = (0..4).map(open).collect();
    std::thread::scope(|scope| {
        for (store, len) in stores.iter().zip([70_000, 100_000, 150_000, 200_000]) {
            let engine = &engine;
            scope.spawn(move || {
                (0..300).for_each(|it| _ = set(engine, store, 1000 * len as u64 + it, len));
            });
        }
    });
    let (count, bytes) = stores[0].usage().unwrap();
    assert!(count > 100);
    assert!(bytes <= capacity, "{count} blocks in {bytes} bytes");
}

#[test]
fn the_oldest_block_leaves_and_the_capacity_holds() {
    let folder = tempfile::tempdir().unwrap();
    let engine = engine();
    let (len, capacity) = (64 << 10, 64 * MIB);
    let store = Store::open(&engine, &options(folder.path(), capacity)).unwrap();
    for number in 0..1000 {
        assert_eq!(set(&engine, &store, number, len), End::Done);
    }
    assert_eq!(store.statistics()[0].evicted, 0);
    assert!(get(&engine, &store, 60, len).is_ok());
    let used = [70, 9999].map(|number| key(&store, number));
    assert_eq!(store.touch(&used).wait(), [End::Done, End::Not(Why::Absent)]);
    // While they are written again, they are found.
    let found = || store.exists(&[60, 70].map(|number| key(&store, number))).wait();
    for number in 1000..1100 {
        assert_eq!(set(&engine, &store, number, len), End::Done);
        assert_eq!(found(), [End::Done; 2]);
    }
    let is_lost = |number: &u64| get(&engine, &store, *number, len).is_err();
    let lost: Vec<_> = (0..1100).filter(is_lost).collect();
    let oldest: Vec<_> =
        (0..).filter(|number| ![60, 70].contains(number)).take(lost.len()).collect();
    assert_eq!(lost, oldest);
    // The next ones to be overwritten count already.
    let evicted = store.statistics()[0].evicted;
    assert!((80..100).contains(&lost.len()) && evicted - lost.len() as u64 <= 16, "{evicted}");
    // Another length pushes these out.
    for number in 2000..2016 {
        assert_eq!(set(&engine, &store, number, 2 * len), End::Done, "{number}");
    }
    let (count, bytes) = store.usage().unwrap();
    assert!(bytes <= capacity, "{count} blocks in {bytes} bytes");
    assert!(get(&engine, &store, 2015, 2 * len).is_ok());
    let small = Store::open(&engine, &options(&folder.path().join("small"), MIB)).unwrap();
    assert_eq!(set(&engine, &small, 1, 1 << 20), End::Not(Why::NoRoom));
}

/// A model that is not used any more leaves its space to one with blocks of another length.
#[test]
fn blocks_of_another_length_leave_when_they_are_older() {
    for (old, new) in [(64 << 10, 18_432), (18_432, 64 << 10), (40_000, 1_000_000)] {
        let (folder, engine) = (tempfile::tempdir().unwrap(), engine());
        let capacity = 16 * MIB;
        let store = Store::open(&engine, &options(folder.path(), capacity)).unwrap();
        let fits = |len: usize| (capacity - MIB / 4) / (len as u64).next_multiple_of(4096);
        for number in 0..fits(old) {
            assert!(set(&engine, &store, number, old).is_good(), "{number} of {old}");
        }
        // Three quarters of the capacity.
        let count = fits(new) * 3 / 4;
        for number in 0..count {
            assert!(set(&engine, &store, 10_000 + number, new).is_good(), "{number} of {new}");
        }
        let is_there = |number: &u64| get(&engine, &store, 10_000 + number, new).is_ok();
        let found = (0..count).filter(is_there).count() as u64;
        assert_eq!(found, count, "blocks of {new} bytes after {old}");
        let (_, bytes) = store.usage().unwrap();
        assert!(bytes <= capacity, "{bytes}");
        // Each takes the space of many others, while other threads look for space as well.
        let block = |number| Block {
            key: key(&store, 20_000 + number),
            memory: vec![memory(&engine, &content(number, 3_000_000))],
        };
        assert_eq!(store.set((0..4).map(block).collect()).wait(), [End::Done; 4]);
        let (_, bytes) = store.usage().unwrap();
        assert!(bytes <= capacity, "{bytes}");
    }
}

#[test]
fn blocks_wait_for_memory_that_the_process_cannot_have() {
    if lab::child::role().is_none() {
        drop(lab::child::run("limited"));
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let engine = engine();
    let store = Store::open(&engine, &options(folder.path(), 256 * MIB)).unwrap();
    let len = 1 << 20;
    assert!((0..64).all(|number| set(&engine, &store, number, len) == End::Done));
    assert!(get(&engine, &store, 1, len).is_ok());
    let block = |number| target(&engine, &store, number, 1 << 20);
    for left in [20, 24, 48] {
        let blocks = (0..64).map(block).collect();
        let statm = fs::read_to_string("/proc/self/statm").unwrap();
        let pages: u64 = statm.split(' ').next().unwrap().parse().unwrap();
        let before = getrlimit(Resource::As);
        let most = Some(pages * 4096 + left * MIB);
        setrlimit(Resource::As, Rlimit { current: most, ..before }).unwrap();
        let ends = store.get(blocks).wait();
        setrlimit(Resource::As, before).unwrap();
        assert_eq!(ends, [End::Done; 64], "{left}");
    }
}

#[test]
fn calls_whose_bytes_exceed_the_root_do_not_overwrite_each_other() {
    let folder = tempfile::tempdir().unwrap();
    let engine = engine();
    let options = options(folder.path(), 8 * MIB);
    let stores = [(); 2].map(|()| Store::open(&engine, &options).unwrap());
    let write = |thread: u64| {
        let (engine, store) = (&engine, &stores[index(thread % 2)]);
        for round in 0..15 {
            let numbers = (0..4).map(|it| thread * 1000 + round * 4 + it);
            let blocks = |bytes: fn(u64) -> Vec<u8>| {
                let block = |number| {
                    let memory = vec![memory(engine, &bytes(number))];
                    Block { key: key(store, number), memory }
                };
                numbers.clone().map(block).collect()
            };
            assert_eq!(store.set(blocks(|number| content(number, 500_000))).wait(), [End::Done; 4]);
            for end in store.get(blocks(|_| vec![0; 500_000])).wait() {
                assert!(matches!(end, End::Done | End::Not(Why::Absent)), "{round}: {end:?}");
            }
        }
    };
    let write = &write;
    thread::scope(|scope| {
        (0..8).for_each(|it| drop(scope.spawn(move || write(it))));
    });
    assert!(stores.iter().any(|store| store.statistics()[0].hits > 0));
}

#[test]
fn a_capacity_above_the_drive_takes_no_space_for_its_index() {
    let folder = tempfile::tempdir().unwrap();
    let drive = rustix::fs::statvfs(folder.path()).unwrap();
    let engine = engine();
    let options = options(folder.path(), drive.f_blocks * drive.f_frsize * 2);
    let store = Store::open(&engine, &options).unwrap();
    assert_eq!(set(&engine, &store, 1, 5000), End::Done);
    let file = fs::metadata(folder.path().join("index")).unwrap();
    assert!(file.blocks() * 512 <= MIB, "{} blocks", file.blocks());
}

#[test]
fn a_folder_without_locks_is_refused_with_the_remedy() {
    let folder = tempfile::tempdir().unwrap();
    let engine = engine();
    let options = options(folder.path(), 64 * MIB);
    for errno in [libc::EINVAL, libc::ENOSYS, libc::ENOLCK] {
        let opened = lab::without_call(libc::SYS_fcntl, errno, || Store::open(&engine, &options));
        let Some(opened) = lab::or_skip(opened) else { return };
        let printed = opened.expect_err("no lock").to_string();
        assert!(
            printed.contains("can be locked there") && printed.contains("`flock`"),
            "{printed}"
        );
    }
    assert!(Store::open(&engine, &options).is_ok());
}

#[test]
fn blocks_that_are_used_more_often_stay() {
    let folder = tempfile::tempdir().unwrap();
    let engine = engine();
    let mut options = options(folder.path(), 64 * MIB);
    options.policy = Policy::Lfu;
    let store = Store::open(&engine, &options).unwrap();
    let len = 64 << 10;
    for number in 0..1000 {
        assert_eq!(set(&engine, &store, number, len), End::Done);
    }
    for number in [60, 60, 61, 63, 63] {
        assert!(get(&engine, &store, number, len).is_ok());
    }
    for number in 1000..1200 {
        assert_eq!(set(&engine, &store, number, len), End::Done);
    }
    let there: Vec<_> = (0..100).filter(|&it| get(&engine, &store, it, len).is_ok()).collect();
    assert_eq!(there, [60, 61, 63]);
}

#[test]
fn old_blocks_are_not_found_and_are_written_again() {
    let folder = tempfile::tempdir().unwrap();
    let engine = engine();
    let mut options = options(folder.path(), 64 * MIB);
    options.ttl = Some(Duration::from_millis(300));
    let store = Store::open(&engine, &options).unwrap();
    assert_eq!(set(&engine, &store, 1, 5000), End::Done);
    thread::sleep(Duration::from_millis(400));
    assert_eq!(store.find_at_once(&[key(&store, 1)]), [Some(false)]);
    assert_eq!(get(&engine, &store, 1, 5000), Err(Why::Absent));
    assert_eq!(store.exists(&[key(&store, 1)]).wait(), [End::Not(Why::Absent)]);
    assert_eq!(set(&engine, &store, 1, 5000), End::Done);
    assert!(get(&engine, &store, 1, 5000).is_ok());
    assert_eq!(store.usage().unwrap().0, 1);
    thread::sleep(Duration::from_millis(400));
    assert_eq!(store.delete(&[key(&store, 1)]).wait(), [End::Not(Why::Absent)]);
    assert_eq!(store.usage().unwrap().0, 0);
}

#[test]
fn each_miss_is_counted_with_its_reason() {
    let folder = tempfile::tempdir().unwrap();
    let engine = engine();
    let store = Store::open(&engine, &options(folder.path(), 256 * MIB)).unwrap();
    for number in 0..64 {
        set(&engine, &store, number, 1 << 20);
    }
    let block = |number| target(&engine, &store, number, 1 << 20);
    for _ in 0..20 {
        let before = store.statistics().remove(0);
        let batch = store.get((0..70).map(block).collect());
        batch.cancel();
        let ends = batch.wait();
        let of = |end: End| ends.iter().filter(|it| **it == end).count() as u64;
        assert!(of(End::Not(Why::Cancelled)) > 0, "{ends:?}");
        let now = &store.statistics()[0];
        assert_eq!(now.hits - before.hits, of(End::Done), "{ends:?}");
        let counted = |root: &RootStatistics, why| {
            root.missed.iter().find(|(it, _)| *it == why).map_or(0, |(_, count)| *count)
        };
        for why in [Why::Absent, Why::Cancelled, Why::Late, Why::Damaged] {
            assert_eq!(counted(now, why) - counted(&before, why), of(End::Not(why)), "{ends:?}");
        }
    }
}

#[test]
fn queued_writes_are_not_dropped_and_cancelled_ones_are_whole_or_absent() {
    let folder = tempfile::tempdir().unwrap();
    let engine = engine();
    let mut options = options(folder.path(), 256 * MIB);
    options.memory = 4 * MIB;
    let store = Store::open(&engine, &options).unwrap();
    let start = |numbers: std::ops::Range<u64>| {
        let block = |number| source(&engine, &store, number, 1 << 20);
        store.set(numbers.map(block).collect())
    };
    let calls: Vec<_> = (0..4).map(|call| start(call * 16..call * 16 + 16)).collect();
    for call in calls {
        assert_eq!(call.wait(), [End::Done; 16]);
    }
    assert!(store.statistics()[0].dropped.is_empty());
    let cancelled = start(100..104);
    cancelled.cancel();
    let cancelled = cancelled.wait();
    let known = |end: &End| matches!(end, End::Done | End::Not(Why::Cancelled));
    assert!(cancelled.iter().all(known), "{cancelled:?}");
    for number in (0..64).chain(100..104) {
        match get(&engine, &store, number, 1 << 20) {
            Ok(bytes) => assert_eq!(bytes, content(number, 1 << 20)),
            Err(why) => assert_eq!(why, Why::Absent),
        }
    }
}

#[test]
fn two_stores_share_a_root() {
    let folder = tempfile::tempdir().unwrap();
    let engine = engine();
    let one = Store::open(&engine, &options(folder.path(), 64 * MIB)).unwrap();
    let other = Store::open(&engine, &options(folder.path(), 64 * MIB)).unwrap();
    assert_eq!(set(&engine, &one, 1, 18_432), End::Done);
    assert_eq!(set(&engine, &other, 1, 18_432), End::Present);
    assert_eq!(get(&engine, &other, 1, 18_432).unwrap(), content(1, 18_432));
    let both: Vec<_> = thread::scope(|scope| {
        let run = |store| {
            let engine = &engine;
            move || (0..200).map(|it| set(engine, store, 1000 + it, 5000)).collect::<Vec<_>>()
        };
        let threads = [scope.spawn(run(&one)), scope.spawn(run(&other))];
        threads.into_iter().flat_map(|it| it.join().unwrap()).collect()
    });
    assert_eq!(both.iter().filter(|end| **end == End::Done).count(), 200);
    assert_eq!(both.iter().filter(|end| **end == End::Present).count(), 200);
    let refused = Store::open(&engine, &options(folder.path(), 65 * MIB)).unwrap_err();
    assert!(refused.to_string().contains("use the same capacity"), "{refused}");
    drop((one, other));
}

#[test]
fn folders_of_others_are_left_alone() {
    let (folder, engine) = (tempfile::tempdir().unwrap(), engine());
    let root = folder.path().join("root");
    let refused = |what: &str| {
        let error = Store::open(&engine, &options(&root, 64 * MIB)).unwrap_err().to_string();
        assert!(error.contains(what) && error.contains(root.to_str().unwrap()), "{error}");
        fs::remove_dir_all(&root).unwrap();
        fs::create_dir(&root).unwrap();
    };
    fs::create_dir(&root).unwrap();
    // Earlier layouts.
    for text in ["forebay blocks 1\nroot 1\ncapacity 67108864\n", "forebay blocks 2\nroot 1\n"] {
        fs::write(root.join("format"), text).unwrap();
        refused("another version of Forebay made it");
    }
    fs::write(root.join("format"), "mine").unwrap();
    refused("choose another folder");
    fs::write(root.join("data"), "mine").unwrap();
    refused("it has a file `data`");
    let victim = folder.path().join("victim");
    for name in ["format", "lock", "index", "data"] {
        fs::write(&victim, "").unwrap();
        std::os::unix::fs::symlink(&victim, root.join(name)).unwrap();
        refused("");
        fs::hard_link(&victim, root.join(name)).unwrap();
        // An empty `format` is replaced, not written to.
        if name != "format" {
            refused("choose another folder");
        }
        assert_eq!(fs::read(&victim).unwrap(), b"", "{name}");
        fs::remove_dir_all(&root).unwrap();
        fs::create_dir(&root).unwrap();
        rustix::fs::mknodat(
            rustix::fs::CWD,
            root.join(name),
            rustix::fs::FileType::Fifo,
            rustix::fs::Mode::RUSR | rustix::fs::Mode::WUSR,
            0,
        )
        .unwrap();
        refused("choose another folder");
    }
    // Only the last folder is made.
    let deep = folder.path().join("missing/root");
    let error = Store::open(&engine, &options(&deep, 64 * MIB)).unwrap_err().to_string();
    assert!(error.contains("its parent folder is missing") && !deep.exists(), "{error}");
}

#[test]
fn others_cannot_read_the_blocks() {
    use std::os::unix::fs::PermissionsExt;
    let (folder, engine) = (tempfile::tempdir().unwrap(), engine());
    let root = folder.path().join("root");
    let store = Store::open(&engine, &options(&root, 64 * MIB)).unwrap();
    assert_eq!(set(&engine, &store, 1, 5000), End::Done);
    let mode = |path: &std::path::Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
    assert_eq!(mode(&root), 0o700);
    for file in fs::read_dir(&root).unwrap() {
        let path = file.unwrap().path();
        assert_eq!(mode(&path), 0o600, "{}", path.display());
    }
}

#[test]
fn another_capacity_keeps_the_blocks_that_lie_within_it() {
    let (folder, engine) = (tempfile::tempdir().unwrap(), engine());
    let len = |number: u64| [5000, 65_536, 300_001][index(number % 3)];
    let there = |store: &Store, numbers: std::ops::Range<u64>| -> Vec<u64> {
        let is_there = |&number: &u64| match get(&engine, store, number, len(number)) {
            Ok(bytes) => bytes == content(number, len(number)) || panic!("{number} is wrong"),
            Err(why) => why != Why::Absent && panic!("{number}: {why}"),
        };
        numbers.filter(is_there).collect()
    };
    let (mut before, mut next, mut last) = (Vec::new(), 0, 0);
    // Within the first lap of the log and later, with and without space in its own lap.
    for (capacity, count) in
        [(16, 60), (64, 200), (20, 0), (20, 50), (24, 300), (23, 1), (40, 10), (17, 400), (64, 900)]
    {
        let capacity = capacity * MIB;
        let store = Store::open(&engine, &options(folder.path(), capacity)).unwrap();
        let kept = there(&store, 0..next);
        assert!(kept.iter().all(|number| before.contains(number)));
        assert!(capacity < last || kept == before, "from {last} to {capacity}");
        assert!(kept.len() * 4 >= before.len(), "{} of {}", kept.len(), before.len());
        for number in next..next + count {
            assert_eq!(set(&engine, &store, number, len(number)), End::Done);
        }
        // The newest blocks are found, and at most as many bytes as fit.
        let newest = next + count - count.min(60)..next + count;
        assert_eq!(there(&store, newest.clone()), newest.collect::<Vec<_>>());
        (last, next) = (capacity, next + count);
        before = there(&store, 0..next);
        let bytes = before.iter().map(|&it| (len(it) as u64).next_multiple_of(4096)).sum();
        assert_eq!(store.usage().unwrap(), (before.len() as u64, bytes));
        assert!(bytes <= capacity);
        let taken = ["index", "data"].map(|it| fs::metadata(folder.path().join(it)).unwrap().len());
        assert!(taken.iter().sum::<u64>() <= capacity);
    }
}

#[test]
fn another_namespace_does_not_match() {
    let folder = tempfile::tempdir().unwrap();
    let engine = engine();
    let mut options = options(folder.path(), 64 * MIB);
    options.namespace = b"llama bf16".to_vec();
    let store = Store::open(&engine, &options).unwrap();
    assert_eq!(set(&engine, &store, 1, 100), End::Done);
    options.namespace = b"llama fp8".to_vec();
    let other = Store::open(&engine, &options).unwrap();
    assert_eq!(get(&engine, &other, 1, 100), Err(Why::Absent));
}

#[test]
fn a_root_is_used_up_to_its_capacity() {
    let (folder, engine) = (tempfile::tempdir().unwrap(), engine());
    let (capacity, len) = (64 * MIB, 65_536);
    let store = Store::open(&engine, &options(folder.path(), capacity)).unwrap();
    let count = capacity * 97 / 100 / len as u64;
    for number in 0..count {
        assert_eq!(set(&engine, &store, number, len), End::Done);
    }
    let keys: Vec<_> = (0..count).map(|number| key(&store, number)).collect();
    assert_eq!(store.exists(&keys).wait(), vec![End::Done; keys.len()]);
    assert_eq!(store.usage().unwrap(), (count, count * len as u64));
    // The oldest are evicted, and the newest stay.
    for number in count..2 * count {
        assert_eq!(set(&engine, &store, number, len), End::Done);
    }
    let keys: Vec<_> = (count..2 * count).map(|number| key(&store, number)).collect();
    assert_eq!(store.exists(&keys).wait(), vec![End::Done; keys.len()]);
    let taken: u64 = fs::read_dir(folder.path())
        .unwrap()
        .map(|it| std::os::unix::fs::MetadataExt::blocks(&it.unwrap().metadata().unwrap()) * 512)
        .sum();
    assert!(taken <= capacity + MIB / 4, "{taken} bytes"); // and what the file system notes
}

#[test]
fn a_key_has_a_block_of_each_length() {
    let (folder, engine) = (tempfile::tempdir().unwrap(), engine());
    let store = Store::open(&engine, &options(folder.path(), 64 * MIB)).unwrap();
    for len in [100, 200, 70_000] {
        assert_eq!(set(&engine, &store, 1, len), End::Done);
    }
    for len in [100, 200, 70_000] {
        assert_eq!(get(&engine, &store, 1, len).unwrap(), content(1, len));
    }
    assert_eq!(store.delete(&[key(&store, 1)]).wait(), [End::Done]);
    for len in [100, 200, 70_000] {
        assert_eq!(get(&engine, &store, 1, len), Err(Why::Absent));
    }
}

#[test]
fn what_was_cut_off_is_a_miss_and_is_stored_again() {
    let (folder, engine) = (tempfile::tempdir().unwrap(), engine());
    for page_cache in [true, false] {
        let mut options = options(&folder.path().join(page_cache.to_string()), 64 * MIB);
        options.page_cache = page_cache;
        let store = Store::open(&engine, &options).unwrap();
        for name in ["data", "index"] {
            for number in 0..50 {
                assert!(set(&engine, &store, number, 65_536).is_good());
            }
            let file = fs::File::options().write(true).open(options.roots[0].path.join(name));
            file.unwrap().set_len(0).unwrap();
            let keys: Vec<_> = (0..50).map(|number| key(&store, number)).collect();
            for number in 0..50 {
                let read = get(&engine, &store, number, 65_536);
                let is_miss = matches!(read, Err(Why::Damaged | Why::Absent));
                assert!(name == "journal" || is_miss, "{name}: {:?}", read.err());
            }
            if name != "journal" {
                assert_eq!(store.exists(&keys).wait(), vec![End::Not(Why::Absent); 50]);
                assert_eq!(store.find_at_once(&keys), vec![Some(false); 50]);
            }
            for number in 0..50 {
                assert!(set(&engine, &store, number, 65_536).is_good(), "{name}");
                let bytes = get(&engine, &store, number, 65_536).unwrap();
                assert!(bytes == content(number, 65_536));
            }
        }
    }
}

#[test]
fn lookups_of_all_stores_follow_every_change() {
    let (folder, engine) = (tempfile::tempdir().unwrap(), engine());
    let open = || Store::open(&engine, &options(folder.path(), 64 * MIB)).unwrap();
    let stores = [open(), open()];
    let keys: Vec<_> = (0..40).map(|number| key(&stores[0], number)).collect();
    let mut there = [false; 40];
    let mut dice = Dice(7); // any seed has all changes
    for _ in 0..600 {
        let (number, store) = (dice.below(40), &stores[index(dice.below(2))]);
        match dice.below(40) {
            0 => {
                store.clear().unwrap();
                there = [false; 40];
            }
            1..15 => {
                let deleted = store.delete(&keys[index(number)..=index(number)]).wait();
                assert_eq!(deleted[0].is_good(), there[index(number)]);
                there[index(number)] = false;
            }
            _ => {
                assert!(set(&engine, store, number, 5000).is_good());
                there[index(number)] = true;
            }
        }
        for store in &stores {
            assert_eq!(store.find_at_once(&keys), there.map(Some));
        }
    }
    // Records that vanish from the index.
    for number in 0..40 {
        assert!(set(&engine, &stores[0], number, 5000).is_good());
    }
    assert_eq!(stores[0].find_at_once(&keys), [Some(true); 40]);
    let path = folder.path().join("index");
    let file = fs::File::options().write(true).open(&path).unwrap();
    let len = file.metadata().unwrap().len();
    file.set_len(4096).unwrap();
    file.set_len(len).unwrap();
    assert_eq!(stores[0].find_at_once(&keys), [Some(false); 40]);
    for number in 0..40 {
        assert_eq!(get(&engine, &stores[0], number, 5000), Err(Why::Absent));
    }
    assert_eq!(set(&engine, &stores[0], 1, 5000), End::Done);
    assert_eq!(stores[0].find_at_once(&keys[1..2]), [Some(true)]);
}

#[test]
fn lookups_follow_changes_that_leave_their_records() {
    let (folder, engine) = (tempfile::tempdir().unwrap(), engine());
    let open = || Store::open(&engine, &options(folder.path(), 64 * MIB)).unwrap();
    let stores = [open(), open()];
    let keys: Vec<_> = (0..40).map(|number| key(&stores[0], number)).collect();
    (0..40).for_each(|number| assert_eq!(set(&engine, &stores[0], number, 5000), End::Done));
    stores.iter().for_each(|store| assert_eq!(store.find_at_once(&keys), [Some(true); 40]));
    // The log overwrites them.
    (40..110).for_each(|number| assert_eq!(set(&engine, &stores[0], number, 1 << 20), End::Done));
    stores.iter().for_each(|store| assert_eq!(store.find_at_once(&keys), [Some(false); 40]));
    // A second store notices that the index was made anew.
    let cut = || fs::File::options().write(true).open(folder.path().join("index"))?.set_len(0);
    let remade = |store| assert_eq!(get(&engine, store, 0, 5000), Err(Why::Absent));
    cut().unwrap();
    remade(&stores[0]);
    assert_eq!(set(&engine, &stores[0], 1, 5000), End::Done);
    assert_eq!(stores[0].delete(&keys[1..2]).wait(), [End::Done]);
    assert_eq!(stores[1].find_at_once(&keys[1..2]), [Some(false)]);
    cut().unwrap();
    remade(&stores[0]);
    for len in [5000, 6000] {
        assert_eq!(set(&engine, &stores[0], 1, len), End::Done);
    }
    assert_eq!(stores[1].find_at_once(&keys[1..2]), [Some(true)]);
}

#[test]
fn a_forked_child_finds_nothing() {
    let (folder, engine) = (tempfile::tempdir().unwrap(), engine());
    let store = Store::open(&engine, &options(folder.path(), 64 * MIB)).unwrap();
    assert_eq!(set(&engine, &store, 1, 5000), End::Done);
    let keys = [key(&store, 1)];
    assert_eq!(store.find_at_once(&keys), [Some(true)]);
    match fork() {
        Side::Child(child) => child.run(|_| {
            assert_eq!(store.find_at_once(&keys), [None]);
            assert_eq!(store.exists(&keys).wait(), [End::Not(Why::Forked)]);
        }),
        Side::Parent(child) => child.finish(),
    }
}

#[test]
fn a_folder_that_is_emptied_or_replaced_is_made_again() {
    let (folder, engine) = (tempfile::tempdir().unwrap(), engine());
    let root = folder.path().join("root");
    let open = || Store::open(&engine, &options(&root, 64 * MIB)).unwrap();
    let stores = [open(), open()];
    for round in 0..3 {
        assert!(set(&engine, &stores[0], 1, 5000).is_good());
        match round {
            0 => fs::rename(&root, folder.path().join("other")).unwrap(),
            1 => fs::remove_dir_all(&root).unwrap(),
            _ => fs::read_dir(&root).unwrap().for_each(|it| {
                fs::remove_file(it.unwrap().path()).unwrap();
            }),
        }
        if round < 2 {
            assert_eq!(get(&engine, &stores[0], 1, 5000), Err(Why::RootFailed));
            fs::create_dir(&root).unwrap();
        }
        // Several threads make it at once.
        thread::scope(|scope| {
            for number in 10..18 {
                let (engine, store) = (&engine, &stores[index(number % 2)]);
                scope.spawn(move || assert!(set(engine, store, number, 5000).is_good()));
            }
        });
        for store in stores.iter().chain(&[open()]) {
            assert!(
                set(&engine, store, 2, 5000).is_good(),
                "{:?}",
                store.statistics()[0].last_error
            );
            assert_eq!(get(&engine, store, 1, 5000), Err(Why::Absent));
            assert_eq!(get(&engine, store, 2, 5000).unwrap(), content(2, 5000));
        }
    }
}

#[test]
fn flipped_bits_are_misses() {
    flip_bits(1_000);
}

#[test]
#[ignore = "long"]
fn ten_thousand_flipped_bits_are_misses() {
    flip_bits(10_000);
}

fn flip_bits(rounds: u64) {
    let folder = tempfile::tempdir().unwrap();
    let engine = engine();
    let store = Store::open(&engine, &options(folder.path(), 64 * MIB)).unwrap();
    for number in 0..64 {
        assert_eq!(set(&engine, &store, number, 5000), End::Done);
    }
    // In every file of the store, index included.
    let files = ["index", "data"].map(|name| folder.path().join(name));
    let mut random = 1_u64;
    let mut next = move |below: u64| {
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (random >> 33) % below
    };
    let mut lost = 0;
    let pick = |next: &mut dyn FnMut(u64) -> u64, len: usize| usize::try_from(next(len as u64));
    for round in 0..rounds {
        use std::os::unix::fs::FileExt;
        let path = &files[pick(&mut next, files.len()).unwrap()];
        let file = std::fs::File::options().read(true).write(true).open(path).unwrap();
        let at = next(file.metadata().unwrap().len());
        let mut byte = [0];
        file.read_exact_at(&mut byte, at).unwrap();
        file.write_all_at(&[byte[0] ^ 1 << next(8)], at).unwrap();
        let number = round % 64;
        match get(&engine, &store, number, 5000) {
            Ok(bytes) => assert_eq!(bytes, content(number, 5000)),
            Err(Why::Absent | Why::Damaged) => {
                lost += 1;
                assert_eq!(set(&engine, &store, number, 5000), End::Done);
            }
            Err(why) => panic!("{why}"),
        }
    }
    assert!(lost > 0, "{lost}");
}

#[test]
fn blocks_that_are_removed_and_stored_again_during_reads_are_not_damaged() {
    const LEN: usize = 300_000;
    let folder = tempfile::tempdir_in(".").unwrap();
    let engine = engine();
    let store = Store::open(&engine, &options(folder.path(), 64 * MIB)).unwrap();
    let until = Instant::now() + Duration::from_secs(3);
    thread::scope(|scope| {
        for first in 0..3 {
            let (engine, store) = (&engine, &store);
            scope.spawn(move || {
                while Instant::now() < until {
                    for number in (first..32).step_by(3) {
                        set(engine, store, number, LEN);
                        let _ = store.delete(&[key(store, number)]).wait();
                        set(engine, store, number, LEN);
                    }
                    if first == 0 {
                        store.clear().unwrap();
                    }
                }
            });
        }
        let block = |number| target(&engine, &store, number, LEN);
        while Instant::now() < until {
            let read = store.get((0..32).map(block).collect());
            let ends = read.wait();
            for (number, (end, memory)) in ends.into_iter().zip(read.take_memory()).enumerate() {
                match end {
                    End::Done => {
                        let bytes = memory[0].as_slice().unwrap();
                        assert_eq!(bytes, content(number as u64, LEN));
                    }
                    end => assert_eq!(end, End::Not(Why::Absent), "block {number}"),
                }
            }
        }
    });
}

#[test]
fn a_block_in_use_is_found_while_the_log_passes_it() {
    const LEN: usize = 65_536;
    let engine = engine();
    for page_cache in [true, false] {
        let folder = tempfile::tempdir_in(".").unwrap();
        let mut options = options(folder.path(), 32 * MIB);
        options.page_cache = page_cache;
        let store = Store::open(&engine, &options).unwrap();
        let used = [0, 301].map(|number| key(&store, number));
        (0..302).for_each(|number| assert_eq!(set(&engine, &store, number, LEN), End::Done));
        let is_over = AtomicBool::new(false);
        thread::scope(|scope| {
            for number in [0, 301] {
                let (engine, store, is_over) = (&engine, &store, &is_over);
                scope.spawn(move || {
                    // Also if an assertion of the other thread fails.
                    let until = Instant::now() + Duration::from_secs(120);
                    while !is_over.load(Ordering::Relaxed) && Instant::now() < until {
                        let read = get(engine, store, number, LEN);
                        assert!(read == Ok(content(number, LEN)), "{number}: {:?}", read.err());
                    }
                });
            }
            for number in 302..2500 {
                assert_eq!(set(&engine, &store, number, LEN), End::Done);
                if number % 50 == 0 {
                    assert_eq!(store.touch(&used).wait(), [End::Done; 2], "{number}");
                }
            }
            is_over.store(true, Ordering::Relaxed);
        });
    }
}

/// Threads of this process that an engine or a store has started.
fn threads() -> usize {
    let tasks = fs::read_dir("/proc/self/task").unwrap().flatten();
    let names = tasks.filter_map(|task| fs::read_to_string(task.path().join("comm")).ok());
    names.filter(|name| name.starts_with("forebay-")).count()
}

#[test]
fn batches_end_whatever_is_dropped_before() {
    const BLOCKS: u64 = 16;
    const LEN: usize = 65_536;
    let _watchdog = lab::watchdog::Watchdog::start();
    if lab::child::role().is_none() {
        lab::child::run("threads");
        return;
    }
    let folder = tempfile::tempdir_in(".").unwrap();
    for (page_cache, on_gpu) in [(true, true), (false, true), (false, false)] {
        let path = folder.path().join(format!("{page_cache}"));
        for order in [[0, 1, 2], [2, 1, 0], [1, 0, 2], [1, 2, 0]] {
            let engine = engine();
            let mut options = options(&path, 64 * MIB);
            options.page_cache = page_cache;
            options.timeout = Duration::from_secs(3600); // no thread waits that long
            let store = Store::open(&engine, &options).unwrap();
            for number in 0..BLOCKS {
                assert!(set(&engine, &store, number, LEN).is_good());
            }
            let gpu = engine.device(&"sim".parse().unwrap()).unwrap().unwrap();
            let block = |number| {
                let target = match on_gpu {
                    true => engine.allocate(gpu.id(), LEN as u64),
                    false => engine.allocate_pinned(LEN as u64),
                };
                Block { key: key(&store, number), memory: vec![target.unwrap()] }
            };
            let batch = store.get((0..BLOCKS).map(block).collect());
            let (sender, ended) = std::sync::mpsc::channel();
            let own = engine.clone();
            batch.on_end(move || {
                drop(own);
                sender.send(()).unwrap();
            });
            let (mut engine, mut store, mut batch) = (Some(engine), Some(store), Some(batch));
            for handle in order {
                match handle {
                    0 => drop(engine.take()),
                    1 => drop(store.take()),
                    _ if order[2] == 2 => {
                        let batch = batch.take().unwrap();
                        let ends = batch.wait();
                        for (number, memory) in batch.take_memory().iter().enumerate() {
                            let mut got = vec![0; LEN];
                            memory[0].download(0, &mut got).unwrap();
                            // A store that is dropped gives up what no thread has begun.
                            match ends[number] {
                                End::Done => assert!(got == content(number as u64, LEN)),
                                end => assert_eq!(end, End::Not(Why::Cancelled)),
                            }
                        }
                    }
                    _ => drop(batch.take()),
                }
            }
            ended.recv_timeout(Duration::from_secs(60)).expect("an end");
            while threads() > 0 {
                thread::sleep(Duration::from_millis(1)); // the watchdog ends what never comes
            }
        }
    }
}
