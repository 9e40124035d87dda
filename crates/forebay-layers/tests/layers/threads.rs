//! The threads of an engine: those that `FOREBAY_THREADS` counts, and those that
//! `docs/variables.md` lists as well.

#![expect(unsafe_code, reason = "queues work on streams of its own, as a caller would")]

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use forebay::gpu::CallerStream;
use forebay::{Engine, OpenOptions, Options, Route};
use forebay_layers::{Layer, LayerStream, Order};

use crate::lab::child;
use crate::lab::watchdog::Watchdog;
use crate::rig::{SLOT, ordered};

/// As few as an engine takes.
const MOST: usize = 8;

/// Those that the variable counts, by the beginnings of their names.
const COUNTED: [&str; 8] = [
    "forebay-read-",
    "forebay-copy-",
    "forebay-wait-",
    "forebay-lane-",
    "forebay-ring",
    "forebay-close",
    "forebay-free",
    "iou-wrk-",
];

/// What the kernel keeps of a thread's name.
const NAME_MAX: usize = 15;

/// This process's threads that have run: the ID and the name of each.
///
/// A new thread has the name of the one that started it until it runs, and sets its own first.
fn threads() -> Vec<(u32, String)> {
    let tasks = fs::read_dir("/proc/self/task").expect("this process").flatten();
    let thread = |task: fs::DirEntry| {
        let name = fs::read_to_string(task.path().join("comm")).ok()?;
        // The time on a processor comes first.
        let times = fs::read_to_string(task.path().join("schedstat")).ok()?;
        if times.starts_with("0 ") {
            return None;
        }
        Some((task.file_name().to_str()?.parse().ok()?, name.trim_end().to_owned()))
    };
    tasks.filter_map(thread).collect()
}

/// The maximum number of concurrent threads of each name; all counted ones have one name. A thread
/// is known by its last name, and one that was seen only once is left out.
fn watch(over: &AtomicBool) -> BTreeMap<String, usize> {
    let (mut last, mut looks) = (BTreeMap::new(), Vec::new());
    while !over.load(Ordering::Relaxed) {
        let now = threads();
        looks.push(now.iter().map(|(id, _)| *id).collect::<Vec<_>>());
        for (id, name) in now {
            let (seen, known) = last.entry(id).or_insert((0_u32, String::new()));
            (*seen, *known) = (*seen + 1, name);
        }
        thread::sleep(Duration::from_micros(200));
    }
    let mut most = BTreeMap::new();
    for look in looks {
        let mut now: BTreeMap<&str, usize> = BTreeMap::new();
        for name in look.iter().map(|id| &last[id]).filter(|(seen, _)| *seen > 1) {
            let name = name.1.as_str();
            // The thread that closes a stream of layers has a name that begins like a counted one.
            let is_closing = name == "forebay-closes";
            let is_counted = COUNTED.iter().any(|known| name.starts_with(known)) && !is_closing;
            *now.entry(if is_counted { "counted" } else { name }).or_default() += 1;
        }
        for (name, count) in now {
            let most = most.entry(name.to_owned()).or_insert(0);
            *most = count.max(*most);
        }
    }
    most
}

/// The threads that the documentation lists, and how many there may be.
fn documented() -> Vec<(String, String)> {
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/variables.md");
    let page = fs::read_to_string(page).expect("the page");
    let row = |line: &str| {
        let mut cells = line.strip_prefix("| `forebay-")?.split(" | ");
        let name = format!("forebay-{}", cells.next()?.trim_end_matches('`'));
        Some((name.chars().take(NAME_MAX).collect(), cells.nth(1)?.to_owned()))
    };
    page.lines().filter_map(row).collect()
}

/// Everything that starts threads, with one engine, one GPU, one stream of layers and eight
/// callers.
fn work() {
    let mut options = Options::default();
    options.threads = MOST;
    options.slot_size = SLOT as u64;
    options.segment_size = 64 << 10;
    let engine = Engine::new(options).expect("limits that fit");
    let wanted = "sim:bandwidth=4GB/s,cufile".parse().expect("a simulated GPU");
    let device = engine.device(&wanted).expect("it is simulated").expect("a GPU");
    let stream = device.create_stream().expect("a stream");
    let compute = CallerStream(stream.0);
    // On a drive, where the system's folder for such files may be in memory.
    let folder = tempfile::tempdir_in(".").expect("a folder");
    let path = folder.path().join("file");
    fs::write(&path, vec![7; 8 << 20]).expect("room");
    fs::File::open(&path).and_then(|file| file.sync_all()).expect("it is written");
    thread::sleep(Duration::from_millis(2100)); // pages are pinned of files that are not new
    let file = engine.open_with(&path, &OpenOptions::writing()).expect("it opens");
    thread::scope(|scope| {
        for route in [None, Some(Route::Cached), Some(Route::Staged), Some(Route::Direct)] {
            for _ in 0..2 {
                let (engine, file, device) = (&engine, &file, &device);
                scope.spawn(move || {
                    for _ in 0..4 {
                        file.evict().expect("advice");
                        let buffer = engine.allocate(device.id(), 8 << 20).expect("memory");
                        // Not every file system has every route.
                        if let Ok(transfer) = file.read(buffer).route(route).exact().start() {
                            let _ = transfer.wait();
                        }
                    }
                });
            }
        }
    });
    // Several, so that their thread lives long enough to be seen twice.
    let transfers: Vec<_> = (0..8)
        .map(|_| {
            let buffer = engine.allocate(device.id(), 8 << 20).expect("memory");
            // SAFETY: the stream is this device's and alive.
            unsafe { file.read(buffer).on(compute).start() }
        })
        .collect();
    for transfer in transfers {
        transfer.expect("a start").wait().0.expect("a read");
    }
    let layers: Vec<Layer> =
        (0..8).map(|n| Layer::named(format!("layer {n}")).with(&file, n << 20, 1 << 20)).collect();
    let mut options = ordered(Order::Forward, Some(2 << 20));
    options.mapped_budget = Some(u64::MAX);
    let layers = LayerStream::new(&engine, &device, &layers, options).expect("a stream");
    for pass in 0..4 {
        fs::read(&path).expect("it comes to the page cache");
        // SAFETY: the stream is this device's and alive.
        while let Some(layer) = unsafe { layers.next(compute) }.expect("it can be read") {
            if pass == 3 {
                // SAFETY: as above.
                unsafe { layer.write_back(compute) }.expect("it can be written");
            }
        }
        device.synchronize(stream).expect("the compute ends");
    }
    // SAFETY: as above.
    let held = unsafe { layers.next(compute) }.expect("it can be read").expect("a layer");
    layers.close().expect("an end");
    drop(held);
}

#[test]
fn every_thread_is_counted_or_documented() {
    if child::role().is_none() {
        child::run("threads");
        return;
    }
    let _watchdog = Watchdog::start();
    let over = AtomicBool::new(false);
    let most = thread::scope(|scope| {
        let watching = scope.spawn(|| watch(&over));
        work();
        over.store(true, Ordering::Relaxed);
        watching.join().expect("no panic")
    });
    println!("{most:?}");
    assert!((2..=MOST).contains(&most["counted"]), "{most:?}");
    let documented = documented();
    for (name, count) in most.iter().filter(|(name, _)| name.starts_with("forebay-")) {
        let Some((_, many)) = documented.iter().find(|(known, _)| known == name) else {
            panic!("`{name}` is neither counted nor documented");
        };
        // One may begin while the one before it still ends.
        let is_bounded = !many.starts_with("1 per query") && !many.starts_with("up to");
        assert!(*count <= 2 || !is_bounded, "{name}: {count}");
    }
    for name in ["keeper", "layers", "mapper", "writer", "closes", "sim"] {
        assert!(documented.iter().any(|(known, _)| *known == format!("forebay-{name}")), "{name}");
    }
    for name in ["forebay-keeper", "forebay-layers", "forebay-mapper", "forebay-writer"] {
        assert!(most.contains_key(name), "{name} did not run: {most:?}");
    }
}
