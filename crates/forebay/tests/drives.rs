//! Several drives under one engine: none waits for another, and the bounds on requests and threads
//! hold over all of them.

mod lab;

use std::fs;
use std::time::{Duration, Instant};

use forebay::gpu::{DeviceId, GpuSelector};
use forebay::{Buffer, DirectIo, Engine, File, Options, Priority, Residency, RingChoice, Transfer};
use lab::fuse::{Faults, Fuse};
use lab::hanging::HangingDrive;
use lab::{LoopDrive, LoopOptions, child, or_skip, pattern, watchdog::Watchdog};

const MIB: usize = 1 << 20;
const LEN: usize = 6 * MIB + 777;

/// Far above what the slowest machine needs: only a hang exceeds it.
const BOUND: Duration = Duration::from_secs(100);

/// An engine whose transfers are cut in many pieces.
fn engine(change: impl FnOnce(&mut Options)) -> Engine {
    let mut options = Options::default();
    options.slot_size = MIB as u64;
    options.segment_size = 128 << 10;
    options.small_size = 0;
    change(&mut options);
    Engine::new(options).expect("limits that fit")
}

fn sim(engine: &Engine) -> DeviceId {
    let wanted: GpuSelector = "sim".parse().expect("a name");
    engine.device(&wanted).expect("a simulated GPU").expect("a GPU").id()
}

fn start(engine: &Engine, file: &File, gpu: Option<DeviceId>) -> Transfer {
    let len = file.len().expect("a size");
    let buffer = match gpu {
        Some(gpu) => engine.allocate(gpu, len),
        None => engine.allocate_pinned(len),
    };
    file.read(buffer.expect("memory")).exact().start().expect("a start")
}

fn content(buffer: &Buffer) -> Vec<u8> {
    let mut bytes = vec![0; usize::try_from(buffer.len()).expect("small")];
    buffer.download(0, &mut bytes).expect("a download");
    bytes
}

/// Rings, and whether O_DIRECT may be used.
const WAYS: [(RingChoice, DirectIo); 3] = [
    (RingChoice::Auto, DirectIo::Auto),
    (RingChoice::Pread, DirectIo::Auto),
    (RingChoice::Auto, DirectIo::Off),
];

/// Reads from drives that answer while one that was read first does not.
fn read_concurrently(
    engine: &Engine,
    hung: &File,
    others: &[File],
    bytes: &[Vec<u8>],
    hangs: impl Fn(),
) {
    for gpu in [None, Some(sim(engine))] {
        lab::note(format!("on a GPU: {}", gpu.is_some()));
        hung.evict().expect("an eviction");
        for other in others {
            other.evict().expect("an eviction");
        }
        let stuck = start(engine, hung, gpu);
        hangs();
        let under_way: Vec<Transfer> = others.iter().map(|file| start(engine, file, gpu)).collect();
        for (transfer, bytes) in under_way.into_iter().zip(bytes) {
            let end = transfer.wait_for(BOUND);
            assert!(matches!(end, Some(Ok(_))), "a drive that answers: {end:?}");
            let buffer = transfer.wait().1.expect("it comes back");
            assert!(content(&buffer) == *bytes);
        }
        assert!(!stuck.is_done(), "the drive hangs");
        stuck.cancel();
    }
}

/// File systems without a block device: one hangs, three do not.
fn during_a_file_system_that_hangs(change: impl Fn(&mut Options)) {
    for (ring, direct_io) in WAYS {
        lab::note(format!("{ring:?}, {direct_io:?}"));
        let bytes: Vec<Vec<u8>> = (1..4).map(|seed| pattern(seed, LEN)).collect();
        let Some(hung) = or_skip(Fuse::new(pattern(9, LEN))) else { return };
        let mut fuses = Vec::new();
        for bytes in &bytes {
            let Some(fuse) = or_skip(Fuse::new(bytes.clone())) else { return };
            fuses.push(fuse);
        }
        let engine = engine(|options| {
            (options.ring, options.direct_io) = (ring, direct_io);
            change(options);
        });
        let stuck = engine.open(hung.path()).expect("the file opens");
        let open = |fuse: &Fuse| engine.open(fuse.path()).expect("the file opens");
        let others: Vec<File> = fuses.iter().map(open).collect();
        hung.set(|faults| faults.hang_from = Some(0));
        read_concurrently(&engine, &stuck, &others, &bytes, || hung.wait_for_parked(1));
        hung.set(|faults| faults.hang_from = None);
    }
}

#[test]
fn files_on_other_file_systems_do_not_wait_for_one_that_hangs() {
    let _watchdog = Watchdog::start();
    during_a_file_system_that_hangs(|_| {});
}

fn few(options: &mut Options) {
    options.readers = Some(2);
    options.threads = 12;
}

#[test]
fn nor_do_they_with_few_readers_and_threads() {
    let _watchdog = Watchdog::start();
    during_a_file_system_that_hangs(few);
}

#[test]
fn files_on_other_drives_do_not_wait_for_one_that_hangs() {
    let _watchdog = Watchdog::start();
    let bytes: Vec<Vec<u8>> = (1..4).map(|seed| pattern(seed, LEN)).collect();
    let Some(hung) = or_skip(HangingDrive::new(32 * MIB)) else { return };
    let write = |folder: &std::path::Path, bytes: &[u8]| {
        let path = folder.join("data");
        fs::write(&path, bytes).expect("room for a file");
        fs::File::open(&path).and_then(|file| file.sync_all()).expect("a sync");
        path
    };
    let stuck = write(hung.path(), &pattern(9, LEN));
    let (mut drives, mut paths) = (Vec::new(), Vec::new());
    for bytes in &bytes {
        let options = LoopOptions { size: 64 << 20, ..LoopOptions::default() };
        let Some(drive) = or_skip(LoopDrive::new(&options)) else { return };
        paths.push(write(drive.path(), bytes));
        drives.push(drive);
    }
    for (ring, direct_io) in WAYS {
        for scarce in [false, true] {
            lab::note(format!("{ring:?}, {direct_io:?}, few threads: {scarce}"));
            let engine = engine(|options| {
                (options.ring, options.direct_io) = (ring, direct_io);
                if scarce {
                    few(options);
                }
            });
            let stuck = engine.open(&stuck).expect("the file opens");
            let open = |path| engine.open(path).expect("the file opens");
            let others: Vec<File> = paths.iter().map(open).collect();
            for (index, other) in others.iter().enumerate() {
                hung.hang(false);
                let evicted = stuck.evict().expect("an eviction");
                assert!(matches!(evicted, Residency::Known { resident: 0, .. }), "{evicted:?}");
                hung.hang(true);
                // Not even the first start waits, though it is unknown yet what O_DIRECT does here.
                let before = start(&engine, &stuck, None);
                hung.fuse().wait_for_parked(1);
                other.evict().expect("an eviction");
                let transfer = start(&engine, other, None);
                let end = transfer.wait_for(BOUND);
                assert!(matches!(end, Some(Ok(_))), "a drive that answers: {end:?}");
                let buffer = transfer.wait().1.expect("it comes back");
                assert!(content(&buffer) == bytes[index]);
                assert!(!before.is_done(), "the drive hangs");
                hung.hang(false);
                let (end, buffer) = before.wait();
                end.expect("the drive answers again");
                assert!(content(&buffer.expect("it comes back")) == pattern(9, LEN));
            }
        }
    }
}

#[test]
fn a_close_that_hangs_blocks_no_caller() {
    let _watchdog = Watchdog::start();
    for (ring, direct_io) in WAYS {
        lab::note(format!("{ring:?}, {direct_io:?}"));
        let bytes = pattern(9, LEN);
        let faults = Faults { closes: true, ..Faults::default() };
        let Some(fuse) = or_skip(Fuse::with(bytes.clone(), faults)) else { return };
        let engine = engine(|options| {
            (options.ring, options.direct_io) = (ring, direct_io);
            few(options);
        });
        // More than there are threads that close files.
        let open = |_| engine.open(fuse.path()).expect("the file opens");
        let files: Vec<File> = (0..4).map(open).collect();
        lab::fuse::drop_pages(&fuse.path());
        fuse.set(|faults| faults.hang_from = Some(0));
        let gpu = sim(&engine);
        let under_way: Vec<Transfer> =
            files.iter().map(|file| start(&engine, file, Some(gpu))).collect();
        fuse.wait_for_parked(1);
        fuse.set(|faults| faults.hang_closes = true);
        drop(files);
        fuse.set(|faults| faults.hang_from = None);
        for transfer in &under_way {
            let end = transfer.wait_for(BOUND);
            assert!(matches!(end, Some(Ok(_))), "only its close hangs: {end:?}");
        }
        fuse.wait_for_parked(1);
        fuse.set(|faults| faults.hang_closes = false);
        for transfer in under_way {
            let (end, buffer) = transfer.wait();
            end.expect("it has ended");
            assert!(content(&buffer.expect("it comes back")) == bytes);
        }
    }
}

#[test]
fn memory_of_a_gpu_is_freed_during_closes_that_hang() {
    let _watchdog = Watchdog::start();
    let faults = Faults { closes: true, ..Faults::default() };
    let Some(fuse) = or_skip(Fuse::with(pattern(9, LEN), faults)) else { return };
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("other");
    fs::write(&path, pattern(1, LEN)).expect("room for a file");
    let engine = engine(few);
    let device = engine.device(&"sim".parse().expect("a name")).expect("a GPU").expect("a GPU");
    let files: Vec<File> = (0..4).map(|_| engine.open(fuse.path()).expect("it opens")).collect();
    // The reads end after the files are dropped, so the engine closes these.
    fuse.set(|faults| faults.hang_from = Some(0));
    let moved: Vec<Transfer> = files.iter().map(|file| start(&engine, file, None)).collect();
    lab::fuse::drop_pages(&fuse.path());
    fuse.set(|faults| faults.hang_closes = true);
    drop(files);
    fuse.set(|faults| faults.hang_from = None);
    let mut quickest = BOUND;
    for transfer in moved {
        transfer.wait_for(BOUND).expect("it ends").expect("only its close hangs");
        let start = Instant::now();
        transfer.wait_at_most(BOUND).0.expect("as before");
        quickest = quickest.min(start.elapsed());
    }
    assert!(
        quickest < Duration::from_millis(200),
        "a bounded wait includes no close: {quickest:?}"
    );
    fuse.wait_for_parked(1);
    let free = || device.memory().expect("a GPU has memory").0;
    let other = engine.open(&path).expect("the file opens");
    let before = free();
    for _ in 0..4 {
        drop(start(&engine, &other, Some(device.id())));
    }
    assert!(becomes_so(|| free() == before), "{} of {before} bytes are free", free());
    assert!(fuse.parked() > 0, "a close still hangs");
}

/// Threads of this process whose names begin so.
fn threads(names: &[&str]) -> usize {
    let tasks = fs::read_dir("/proc/self/task").expect("the kernel lists threads");
    let name = |task: fs::DirEntry| fs::read_to_string(task.path().join("comm")).ok();
    let is_one = |comm: &String| names.iter().any(|name| comm.starts_with(name));
    tasks.flatten().filter_map(name).filter(is_one).count()
}

/// Waits until a count has not changed for a while, and returns the most that it was.
fn settled(count: impl Fn() -> usize) -> usize {
    let (mut most, mut since) = (count(), Instant::now());
    while since.elapsed() < Duration::from_millis(300) {
        let now = count();
        if now > most {
            (most, since) = (now, Instant::now());
        }
        std::thread::sleep(Duration::from_millis(2));
    }
    most
}

#[test]
fn bounds_hold_over_all_drives() {
    match child::role() {
        Some(role) => hold_bounds(WAYS[role.parse::<usize>().expect("a number")], false),
        None => ["0", "1"].into_iter().for_each(|way| drop(child::run(way))),
    }
}

#[test]
fn bounds_hold_over_all_drives_where_threads_of_the_kernel_wait() {
    match child::role() {
        Some(role) => hold_bounds(WAYS[role.parse::<usize>().expect("a number")], true),
        None => ["0", "1", "2"].into_iter().for_each(|way| drop(child::run(way))),
    }
}

#[test]
fn bounds_hold_over_all_drives_through_the_page_cache() {
    match child::role() {
        Some(_) => hold_bounds(WAYS[2], false),
        None => drop(child::run("alone")),
    }
}

/// Looks again while it is not so: a thread is still seen for a moment after it gave its place to
/// another.
fn becomes_so(is_so: impl Fn() -> bool) -> bool {
    let start = Instant::now();
    while !is_so() {
        if start.elapsed() > BOUND {
            return false;
        }
        std::thread::sleep(Duration::from_millis(2));
    }
    true
}

/// `waits`: a thread waits for each answer.
fn hold_bounds((ring, direct_io): (RingChoice, DirectIo), waits: bool) {
    const DRIVES: usize = 6;
    let _watchdog = Watchdog::start();
    let (in_flight, most) = (20, 16);
    let mut fuses = Vec::new();
    for seed in 0..DRIVES {
        let faults = Faults { interruptible: waits, ..Faults::default() };
        let fuse = Fuse::with(pattern(seed as u64, LEN), faults);
        let Some(fuse) = or_skip(fuse) else { return };
        fuses.push(fuse);
    }
    let engine = engine(|options| {
        (options.ring, options.direct_io) = (ring, direct_io);
        (options.in_flight, options.threads, options.depth) = (in_flight, most, Some(16));
        options.readers = Some(2);
    });
    let open = |fuse: &Fuse| engine.open(fuse.path()).expect("the file opens");
    let files: Vec<File> = fuses.iter().map(open).collect();
    for (file, fuse) in files.iter().zip(&fuses) {
        drop(file.read(&mut [0; 4096][..]).run().expect("it does not hang yet"));
        file.evict().expect("an eviction");
        fuse.set(|faults| faults.hang_from = Some(0));
    }
    let under_way: Vec<Transfer> =
        files.iter().flat_map(|file| [file, file]).map(|f| start(&engine, f, None)).collect();
    let parked = settled(|| fuses.iter().map(Fuse::parked).sum());
    let (own, kernel) = (threads(&["forebay-"]), threads(&["iou-wrk"]));
    lab::note(format!("{ring:?}, {direct_io:?}: {parked} parked, {own} + {kernel} threads"));
    if direct_io == DirectIo::Auto {
        // One is refused to no drive that has none.
        assert!(parked < in_flight + DRIVES, "{parked} requests in flight");
    }
    let is_bounded = !engine.notes().iter().any(|note| note.contains("cannot limit"));
    let bounded = is_bounded.then_some(kernel).ok_or_else(|| engine.notes().join("; "));
    let all = if or_skip(bounded).is_some() { &["forebay-", "iou-wrk"][..] } else { &["forebay-"] };
    let is_bound = becomes_so(|| threads(all) <= most);
    assert!(is_bound, "{own} threads and {kernel} of the kernel's");
    // Where a thread waits for each answer it is one of the engine's: no ring serves FUSE.
    assert!(kernel == 0 && (!waits || parked <= own), "{parked} requests, {kernel} threads");
    for fuse in &fuses {
        fuse.set(|faults| faults.hang_from = None);
    }
    for (transfer, seed) in under_way.into_iter().zip((0..DRIVES).flat_map(|seed| [seed, seed])) {
        let (end, buffer) = transfer.wait();
        end.expect("all drives answer");
        assert!(content(&buffer.expect("it comes back")) == pattern(seed as u64, LEN));
    }
}

#[test]
fn a_hundred_drives() {
    const DRIVES: usize = 100;
    const EACH: u64 = 10;
    const PART: u64 = 100 << 10;
    if child::role().is_none() {
        child::run("alone");
        return;
    }
    let _watchdog = Watchdog::start();
    let Some(memory) = or_skip(lab::memory_folder()) else { return };
    let options = LoopOptions {
        size: 1 << 20,
        file_system: None,
        image_in: memory.path().into(),
        ..LoopOptions::default()
    };
    let mut drives = Vec::new();
    for seed in 0..DRIVES {
        let Some(drive) = or_skip(LoopDrive::new(&options)) else { return };
        let bytes = pattern(seed as u64, 1 << 20);
        fs::write(drive.device(), bytes).expect("a drive takes bytes");
        drives.push(drive);
    }
    for most in [256, 32, 8] {
        let engine = engine(|options| options.threads = most);
        let open = |drive: &LoopDrive| engine.open(drive.device()).expect("a drive opens");
        let files: Vec<File> = drives.iter().map(open).collect();
        let mut under_way = Vec::new();
        for part in 0..EACH {
            for (drive, file) in files.iter().enumerate() {
                if part == 0 {
                    file.evict().expect("an eviction");
                }
                let buffer = engine.allocate_pinned(PART).expect("memory");
                let transfer = file.read(buffer).at(part * PART).exact().start().expect("a start");
                under_way.push((drive, part, transfer));
            }
        }
        let own = || threads(&["forebay-"]);
        assert!(becomes_so(|| own() <= most), "{} threads, not {most} at most", own());
        for (drive, part, transfer) in under_way {
            let end = transfer.wait_for(BOUND);
            assert!(matches!(end, Some(Ok(_))), "drive {drive} with {most} threads: {end:?}");
            let buffer = transfer.wait().1.expect("it comes back");
            let at = usize::try_from(part * PART).expect("small");
            let bytes = pattern(drive as u64, 1 << 20);
            assert!(content(&buffer) == bytes[at..][..content(&buffer).len()]);
        }
    }
}

#[test]
fn urgent_reads_overtake() {
    const DEPTH: usize = 4;
    // Transfers take turns: any request would come right after a single one.
    const LARGE: usize = 8;
    const AT: u64 = 5 * MIB as u64;
    let _watchdog = Watchdog::start();
    for ring in [RingChoice::Auto, RingChoice::Pread] {
        let bytes = pattern(3, LEN);
        let Some(fuse) = or_skip(Fuse::new(bytes.clone())) else { return };
        let engine = engine(|options| (options.ring, options.depth) = (ring, Some(DEPTH)));
        let file = engine.open(fuse.path()).expect("the file opens");
        drop(file.read(&mut [0; 4096][..]).run().expect("it does not hang yet"));
        file.evict().expect("an eviction");
        let before = fuse.order().len();
        fuse.set(|faults| faults.hang_from = Some(0));
        let large = [(); LARGE].map(|()| start(&engine, &file, None));
        fuse.wait_for_parked(1);
        let in_flight = settled(|| fuse.parked());
        let buffer = engine.allocate_pinned(4096).expect("memory");
        let small =
            file.read(buffer).at(AT).exact().priority(Priority::Urgent).start().expect("a start");
        let parked = in_flight.max(settled(|| fuse.parked()));
        // The server answers once the next request has arrived. Otherwise other threads overtake a
        // thread that is preempted between taking a request and sending it.
        while !fuse.order()[before..].contains(&AT) {
            let answered = fuse.reads();
            fuse.set(|faults| faults.answers = 1);
            assert!(becomes_so(|| fuse.reads() > answered), "an answer");
            fuse.wait_for_parked(in_flight);
        }
        let turn = fuse.order().len() - before - 1;
        fuse.set(|faults| faults.hang_from = None);
        let (end, buffer) = small.wait();
        end.expect("the drive answers");
        assert!(content(&buffer.expect("it comes back")) == bytes[5 * MIB..][..4096]);
        for (end, buffer) in large.map(Transfer::wait) {
            end.expect("the drive answers");
            assert!(content(&buffer.expect("it comes back")) == bytes);
        }
        lab::note(format!("{ring:?}: {parked} before it, turn {turn}"));
        assert!(turn <= parked, "turn {turn}, {parked} before it");
    }
}
