//! How much memory the engine takes in addition to the caller's, at its peak, in a process of its
//! own.

mod lab;

use std::fs;

use forebay::gpu::GpuSelector;
use forebay::units::{GIB, MIB};
use forebay::{Engine, Options, RingChoice};
use lab::{child, or_skip, watchdog::Watchdog};

const SIZE: u64 = GIB;

/// Bytes that the engine may take in addition to its arena.
const OVERHEAD: u64 = 64 * MIB;

/// A line of this process's status, in bytes.
fn status(name: &str) -> u64 {
    let text = fs::read_to_string("/proc/self/status").expect("this process");
    let line = text.lines().find_map(|line| line.strip_prefix(name)).expect("a known line");
    let kib = line.trim_start_matches(':').trim().strip_suffix(" kB").expect("in kB");
    kib.parse::<u64>().expect("a number") << 10
}

/// Bytes that this process held at most while `action` ran, beyond those before.
fn peak(action: impl FnOnce()) -> u64 {
    // Makes the highest mark so far that of now.
    fs::write("/proc/self/clear_refs", "5").expect("an own mark");
    let before = status("VmRSS");
    action();
    status("VmHWM").saturating_sub(before)
}

/// Runs the test's other half in a process of its own, where the machine has the memory.
fn is_child(needs: u64) -> bool {
    if child::role().is_some() {
        return true;
    }
    let text = fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let line = text.lines().find_map(|line| line.strip_prefix("MemAvailable:"));
    let kib = line.and_then(|line| line.trim().strip_suffix(" kB")?.parse::<u64>().ok());
    let offer = match kib {
        Some(kib) if kib << 10 < 2 * needs => Err(format!("too little memory for {needs} bytes")),
        _ => Ok(()),
    };
    if or_skip(offer).is_some() {
        lab::note(child::run("peak"));
    }
    false
}

/// An engine, and a file without content that is as large.
fn engine_and_file(ring: RingChoice) -> (Engine, tempfile::TempDir, forebay::File) {
    let mut options = Options::default();
    options.ring = ring;
    options.arena_size = Some(128 * MIB);
    let engine = Engine::new(options).expect("limits that fit");
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("large");
    fs::File::create(&path).and_then(|file| file.set_len(SIZE)).expect("a hole");
    let file = engine.open(&path).expect("the file opens");
    (engine, folder, file)
}

/// Brings all of a file into the page cache.
fn bring_in(file: &forebay::File) {
    let mut plain = fs::File::open(file.path()).expect("the file opens");
    let read = std::io::copy(&mut plain, &mut std::io::sink());
    assert_eq!(read.expect("all bytes"), SIZE);
}

#[test]
fn to_host_memory() {
    if !is_child(SIZE) {
        return;
    }
    let _watchdog = Watchdog::start();
    let mut target = vec![0xee_u8; usize::try_from(SIZE).expect("memory")];
    for ring in [RingChoice::Auto, RingChoice::Pread] {
        let (_engine, _folder, file) = engine_and_file(ring);
        for resident in [false, true] {
            if resident {
                bring_in(&file);
            }
            // An odd address, which O_DIRECT cannot take: the worst case.
            let taken = peak(|| {
                file.read(&mut target[1..]).run().expect("all bytes");
            });
            lab::note(format!("{ring:?}, resident: {resident}: {taken} bytes"));
            assert!(taken <= OVERHEAD, "{ring:?}, resident: {resident}: {taken} bytes");
            let zeros = vec![0; 1 << 20];
            assert!(target[1..].chunks(zeros.len()).all(|part| *part == zeros[..part.len()]));
        }
    }
}

#[test]
fn to_the_simulated_gpu() {
    if !is_child(SIZE) {
        return;
    }
    let _watchdog = Watchdog::start();
    for ring in [RingChoice::Auto, RingChoice::Pread] {
        let (engine, _folder, file) = engine_and_file(ring);
        let wanted: GpuSelector = "sim".parse().expect("a name");
        let gpu = engine.device(&wanted).expect("a simulated GPU").expect("a GPU");
        let mut buffer = engine.allocate(gpu.id(), SIZE).expect("memory");
        // Its memory is the host's, once it is written.
        buffer.fill(0xee).expect("a fill");
        for (way, read) in [("cold", true), ("resident", true), ("written", false)] {
            if way == "resident" {
                bring_in(&file);
            }
            let taken = peak(|| {
                if read {
                    file.read(&mut buffer).run().expect("all bytes");
                } else {
                    let path = file.path().with_file_name("copy");
                    let how = forebay::OpenOptions::writing();
                    let copy = engine.open_with(path, &how).expect("a new file");
                    copy.write((&buffer, 0..SIZE / 4)).run().expect("all bytes");
                }
            });
            lab::note(format!("{ring:?}, {way}: {taken} bytes"));
            assert!(taken <= 128 * MIB + OVERHEAD, "{ring:?}, {way}: {taken} bytes");
        }
    }
}

#[test]
fn small_buffers_take_few_mappings() {
    let mappings = || fs::read_to_string("/proc/self/maps").expect("this process").lines().count();
    let engine = Engine::new(Options::default()).expect("an engine");
    let before = mappings();
    let buffers: Vec<_> =
        (0..5000).map(|_| engine.allocate_pinned(4096).expect("20 MiB")).collect();
    let taken = mappings().saturating_sub(before);
    assert!(taken < 1000, "{} buffers take {taken} mappings", buffers.len());
}
