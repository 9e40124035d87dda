//! Many callers at once with as little as an engine can do with: two slots, one reader, a depth of
//! one. Whoever waits must be woken, and whoever writes beside another must lose nothing.

mod lab;

use std::fs;
use std::os::unix::fs::FileExt;
use std::thread;

use forebay::gpu::GpuSelector;
use forebay::{Engine, OpenOptions, Options, RequestOptions, RingChoice, Route};
use lab::{FileSystem, LoopDrive, or_skip, pattern, watchdog::Watchdog};

const SLOT: usize = 256 << 10;

/// An engine with the least of everything.
fn least(ring: RingChoice) -> Engine {
    let mut options = Options::default();
    options.ring = ring;
    options.slot_size = SLOT as u64;
    options.segment_size = 32 << 10;
    options.arena_size = Some(2 * SLOT as u64);
    options.readers = Some(1);
    options.depth = Some(1);
    options.small_size = 0;
    Engine::new(options).expect("limits that fit")
}

#[test]
fn nobody_is_left_waiting() {
    const PART: usize = 3 * SLOT + 777;
    const CALLERS: usize = 6;
    let _watchdog = Watchdog::start();
    for ring in [RingChoice::Auto, RingChoice::Pread] {
        let engine = least(ring);
        let wanted: GpuSelector = "sim".parse().expect("a name");
        let gpu = engine.device(&wanted).expect("a simulated GPU").expect("a GPU").id();
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("shared");
        let file = engine.open_with(&path, &OpenOptions::writing()).expect("a new file");
        file.write(0, &vec![0; PART * CALLERS]).expect("room for it");
        thread::scope(|scope| {
            for caller in 0..CALLERS {
                let (engine, file) = (&engine, &file);
                scope.spawn(move || {
                    for turn in 0..30 {
                        let bytes = pattern((caller * 1000 + turn) as u64, PART);
                        let at = (caller * PART) as u64;
                        let mut buffer = engine.allocate(gpu, PART as u64).expect("memory");
                        if (caller + turn) % 3 == 0 {
                            file.write(at, &bytes).expect("a write");
                        } else {
                            let mut options = RequestOptions::default();
                            if turn % 2 == 0 && file.no_direct_io().is_none() {
                                options = RequestOptions::by_route(Route::Staged);
                            }
                            buffer.upload(0, &bytes).expect("an upload");
                            file.write_with(at, &buffer, &options).expect("a write");
                        }
                        buffer.fill(0xee).expect("a fill");
                        let mut target = vec![0xee; PART];
                        file.read_exact(at, &mut target).expect("a read");
                        assert!(target == bytes, "{caller} {turn}");
                        file.read_exact(at, &mut buffer).expect("a read");
                        buffer.download(0, &mut target).expect("a download");
                        assert!(target == bytes, "{caller} {turn}, on the GPU");
                    }
                });
            }
        });
        let before = fs::read(&path).expect("a read");
        file.evict().expect("an eviction");
        assert!(fs::read(&path).expect("a read") == before, "page cache and drive disagree");
    }
}

/// Ranges of neighbours share pages, and pages share folios: a write around the page cache beside a
/// write through it must leave neither stale bytes in the cache nor lost ones on the drive.
#[test]
fn neighbours_see_their_own_bytes() {
    const RANGE: usize = 20_000;
    const WRITERS: usize = 4;
    const EACH: usize = 8;
    let _watchdog = Watchdog::start();
    for file_system in FileSystem::ALL {
        let Some(drive) = or_skip(LoopDrive::with(file_system)) else { return };
        let engine = least(RingChoice::Auto);
        let wanted: GpuSelector = "sim".parse().expect("a name");
        let gpu = engine.device(&wanted).expect("a simulated GPU").expect("a GPU").id();
        let path = drive.path().join("shared");
        let how = OpenOptions::writing();
        let file = engine.open_with(&path, &how).expect("a new file");
        file.write(0, &vec![0; RANGE * WRITERS * EACH]).expect("room for it");
        let plain = fs::File::open(&path).expect("the file opens");
        thread::scope(|scope| {
            for writer in 0..WRITERS {
                let (engine, file, plain) = (&engine, &file, &plain);
                scope.spawn(move || {
                    let mut buffer = engine.allocate(gpu, RANGE as u64).expect("memory");
                    for turn in 0..25 * EACH {
                        let at = ((turn % EACH * WRITERS + writer) * RANGE) as u64;
                        let bytes = pattern((writer * 100_000 + turn) as u64, RANGE);
                        buffer.upload(0, &bytes).expect("an upload");
                        let route = [Route::Staged, Route::Cached][(turn / 3 + writer) % 2];
                        let options = RequestOptions::by_route(route);
                        file.write_with(at, &buffer, &options).expect("a write");
                        let mut seen = vec![0; RANGE];
                        plain.read_exact_at(&mut seen, at).expect("a read");
                        let wrong = seen.iter().zip(&bytes).filter(|(is, should)| is != should);
                        assert_eq!(wrong.count(), 0, "{file_system:?} {route} {writer} {turn}");
                    }
                });
            }
        });
        let before = fs::read(&path).expect("a read");
        file.sync_all().expect("a sync");
        file.evict().expect("an eviction");
        assert!(fs::read(&path).expect("a read") == before, "page cache and drive disagree");
    }
}
