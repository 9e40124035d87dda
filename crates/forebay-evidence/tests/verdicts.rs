//! Verdicts on real transfers: loop drives of their own, whose counters no other program moves,
//! files in memory, and a GPU where there is one.

#![allow(clippy::unwrap_used, reason = "a test may fail by panicking")]

#[path = "../../forebay/tests/lab/mod.rs"]
mod lab;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use forebay::gpu::{DeviceId, GpuSelector, absence_reason};
use forebay::{Direction, Engine, File, OpenOptions, Options, Outcome, Residency, Route, SyncMode};
use forebay_cufile::Counters;
use forebay_evidence::{
    Claim, Evidence, GpuLink, Memory, Seen, Sources, Storage, Verdict, verdict,
};
use forebay_topology::Resolver;
use lab::pages::held;
use lab::{FileSystem, LoopDrive, Overlay, memory_folder, or_skip, pattern, skip};

const LEN: usize = 16 << 20;

/// The process's own counter is one for all of these tests, so they take turns.
static TURN: Mutex<()> = Mutex::new(());

fn turn() -> MutexGuard<'static, ()> {
    TURN.lock().unwrap_or_else(PoisonError::into_inner)
}

/// An engine with a simulated GPU, and a file.
struct Rig {
    engine: Engine,
    gpu: DeviceId,
    path: PathBuf,
    file: File,
    resolver: Resolver,
}

impl Rig {
    fn new(folder: &Path) -> Self {
        let path = folder.join("file");
        fs::write(&path, pattern(3, LEN)).unwrap();
        fs::File::open(&path).unwrap().sync_all().unwrap();
        let engine = Engine::new(Options::default()).unwrap();
        let gpu = engine.device(&"sim".parse::<GpuSelector>().unwrap()).unwrap().unwrap().id();
        let file = engine.open_with(&path, &OpenOptions::writing()).unwrap();
        Self { engine, gpu, path, file, resolver: Resolver::default() }
    }

    fn sources(&self) -> Sources {
        let map = self.resolver.resolve(&self.path);
        Sources::new(self.resolver.system()).file(&self.file, 0, LEN as u64, &map)
    }

    /// Whether the file's pages could be dropped, so that a read is cold.
    fn make_cold(&self) -> bool {
        let left = self.file.evict().unwrap();
        matches!(left, Residency::Known { resident: 0, .. })
    }

    /// A read to the GPU, by `route` where one is required, and what was counted around it.
    fn read(&self, route: Option<Route>) -> (Outcome, Evidence) {
        let mut buffer = self.engine.allocate(self.gpu, LEN as u64).unwrap();
        let sources = self.sources();
        let span = sources.begin();
        let outcome = self.file.read(&mut buffer).route(route).exact().run().unwrap();
        (outcome, span.end())
    }

    /// A read of what is in the page cache, again where the kernel has taken pages of it.
    fn read_resident(&self, route: Option<Route>) -> (Outcome, Evidence) {
        held(|| {
            fs::read(&self.path).unwrap();
            let read = self.read(route);
            is_held(&read.1).then_some(read)
        })
    }

    /// A read through the page cache of what is not in it, again where the kernel has taken pages
    /// of it before they were counted.
    fn read_through(&self) -> (Outcome, Evidence) {
        held(|| {
            assert!(self.make_cold());
            let read = self.read(Some(Route::Cached));
            is_left(&read.1).then_some(read)
        })
    }

    fn write(&self, route: Route) -> (Outcome, Evidence) {
        let buffer = self.engine.allocate(self.gpu, LEN as u64).unwrap();
        let sources = self.sources();
        let span = sources.begin();
        let outcome = self.file.write(&buffer).route(route).sync(SyncMode::Data).run().unwrap();
        (outcome, span.end())
    }
}

/// Whether the whole file was in the page cache when the span ended.
fn is_left(evidence: &Evidence) -> bool {
    evidence.page_cache.value().unwrap().after == LEN as u64
}

/// Whether it was so when the span began, too.
fn is_held(evidence: &Evidence) -> bool {
    is_left(evidence) && evidence.page_cache.value().unwrap().before == LEN as u64
}

fn judged(moved: &(Outcome, Evidence), direction: Direction) -> Verdict {
    verdict(&moved.1, &Claim::of(&moved.0, direction, Memory::SimulatedGpu))
}

/// What the device below the file system read and wrote.
fn front(evidence: &Evidence) -> (u64, u64) {
    evidence.front_bytes().unwrap_or_else(|| panic!("{evidence:?}"))
}

#[test]
fn a_loop_drive_shows_what_was_read_and_written() {
    let _turn = turn();
    for kind in FileSystem::ALL {
        let Some(drive) = or_skip(LoopDrive::with(kind)) else { continue };
        let rig = Rig::new(drive.path());
        let name = kind.name();
        assert!(rig.make_cold(), "{name}");
        let cold = rig.read(None);
        let verdict = judged(&cold, Direction::Read);
        assert_eq!((verdict.word(), verdict.simulated), ("staged", true), "{name}: {verdict:?}");
        assert_eq!(cold.1.storage, Storage::Block);
        assert!(front(&cold.1).0 >= LEN as u64, "{name}: {:?}", cold.1);

        let through = rig.read_through();
        assert_eq!(judged(&through, Direction::Read).word(), "cached", "{name}: {through:?}");
        assert!(front(&through.1).0 >= LEN as u64, "{name}: {:?}", through.1);

        let resident = rig.read_resident(None);
        assert_eq!(judged(&resident, Direction::Read).word(), "cached", "{name}: {resident:?}");
        assert_eq!(front(&resident.1).0, 0, "{name}: {:?}", resident.1);

        let past = rig.read(Some(Route::Staged));
        assert_eq!(judged(&past, Direction::Read).word(), "staged", "{name}: {past:?}");

        for (route, word) in [(Route::Cached, "cached"), (Route::Staged, "staged")] {
            // Only what stays in the page cache until it is counted shows that it went there.
            let written = held(|| {
                let written = rig.write(route);
                (route != Route::Cached || is_left(&written.1)).then_some(written)
            });
            let verdict = judged(&written, Direction::Write);
            assert_eq!(verdict.word(), word, "{name}: {verdict:?} {written:?}");
            assert!(front(&written.1).1 >= LEN as u64, "{name}: {:?}", written.1);
        }
    }
}

#[test]
fn a_false_account_is_refuted_on_a_real_drive() {
    let _turn = turn();
    let Some(drive) = or_skip(LoopDrive::with(FileSystem::Ext4)) else { return };
    let rig = Rig::new(drive.path());
    let (outcome, resident) = rig.read_resident(Some(Route::Cached));
    let mut claim = Claim::of(&outcome, Direction::Read, Memory::SimulatedGpu);
    claim.routes = vec![(Route::Staged, LEN as u64)];
    let lie = verdict(&resident, &claim);
    assert_eq!(lie.word(), "contradictory", "{lie:?}");

    // A library that counts peer-to-peer operations, and takes the bytes from the page cache.
    let calls = std::sync::atomic::AtomicU64::new(0);
    let sources = rig.sources().cufile(move || {
        let count = calls.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        Seen::Value(counted(count * 16, count * LEN as u64))
    });
    let mut bytes = vec![0; LEN];
    let evidence = held(|| {
        fs::read(&rig.path).unwrap();
        let span = sources.begin();
        rig.file.read(&mut bytes[..]).exact().run().unwrap();
        let evidence = span.end();
        is_held(&evidence).then_some(evidence)
    });
    claim.routes = vec![(Route::Direct, LEN as u64)];
    let lie = verdict(&evidence, &claim);
    assert_eq!(lie.word(), "contradictory", "{lie:?}");
    assert!(lie.contradictions[0].contains("but the drives have read 0 B"), "{lie:?}");
}

/// btrfs takes requests with O_DIRECT for compressed bytes and serves them through the page cache.
#[test]
fn compressed_bytes_pass_the_page_cache_and_the_verdict_says_so() {
    let _turn = turn();
    let Some(drive) = or_skip(LoopDrive::with(FileSystem::Btrfs)) else { return };
    if let Err(reason) = drive.remount("remount,compress=zstd") {
        return skip(format!("compressed files: {reason}"));
    }
    let rig = Rig::new(drive.path());
    fs::write(&rig.path, [1, 2, 3, 4].repeat(LEN / 4)).unwrap();
    assert!(rig.make_cold());
    let moved = rig.read(Some(Route::Staged));
    let found = judged(&moved, Direction::Read);
    let cache = moved.1.page_cache.value().unwrap_or_else(|| panic!("{moved:?}"));
    // A kernel that would really pass the page cache, or does not compress, is not refuted.
    if cache.grown() > LEN as u64 / 2 && front(&moved.1).0 < LEN as u64 / 2 {
        assert!(cache.encoded > LEN as u64 * 9 / 10, "{cache:?}");
        assert_eq!(found.to_string(), "cached", "{found:?} {moved:?}");
        let printed = found.grounds.iter().find(|ground| ground.contains("in another form"));
        assert!(
            printed.is_some_and(|printed| printed.contains("requested with O_DIRECT")),
            "{found:?}"
        );
    } else {
        skip("a file system that falls back silently: this one does not");
    }
    if let Err(reason) = drive.remount("remount,compress=no") {
        return skip(format!("files that are compressed no more: {reason}"));
    }
    fs::remove_file(&rig.path).unwrap();
    let plain = Rig::new(drive.path());
    assert!(plain.make_cold());
    let moved = plain.read(Some(Route::Staged));
    let cache = moved.1.page_cache.value().unwrap_or_else(|| panic!("{moved:?}"));
    assert_eq!(cache.encoded, 0, "{moved:?}");
    assert_eq!(judged(&moved, Direction::Read).to_string(), "staged", "{moved:?}");
}

/// The buffer of a cuFile 1.15 that counts so many reads by peer-to-peer DMA.
fn counted(reads: u64, bytes: u64) -> Counters {
    let mut buffer = vec![0; 8192];
    let mut put = |at: usize, word: u64| buffer[at..at + 8].copy_from_slice(&word.to_ne_bytes());
    put(1024, 1);
    put(1032 + 16, bytes);
    put(1032 + 48, reads);
    put(1032 + 56, reads);
    Counters::parse(1150, 3, &buffer).unwrap()
}

#[test]
fn bytes_of_other_processes_on_the_drive_are_separated() {
    let _turn = turn();
    let Some(drive) = or_skip(LoopDrive::with(FileSystem::Ext4)) else { return };
    let rig = Rig::new(drive.path());
    let mut bytes = vec![0; LEN];
    rig.file.read(&mut bytes[..]).exact().run().unwrap();
    let sources = rig.sources();
    let span = sources.begin();
    let outcome = rig.file.read(&mut bytes[..]).exact().run().unwrap();
    let source = format!("if={}", drive.device().display());
    let before = bytes_read(&drive);
    let mut other = Command::new("dd");
    other.args([source.as_str(), "of=/dev/null", "bs=1M", "count=64", "iflag=direct"]);
    let Ok(mut other) = other.stderr(Stdio::null()).spawn() else {
        return skip("traffic of another process: no `dd`");
    };
    // Not waited for: the kernel adds what an ended child did to its parent's once that knows.
    let arrived = arrives(&drive, before, 64 << 20);
    let evidence = span.end();
    let status = other.wait().unwrap();
    if !arrived || !status.success() {
        return skip("traffic of another process: `dd` does not read this drive");
    }
    assert!(front(&evidence).0 >= 64 << 20, "{evidence:?}");
    let found = verdict(&evidence, &Claim::of(&outcome, Direction::Read, Memory::Host));
    assert_eq!(found.word(), "host (page cache)", "{found:?} {evidence:?}");
    assert!(found.grounds.iter().any(|text| text.contains("is counted separately")), "{found:?}");
}

/// Bytes that a drive has delivered so far.
fn bytes_read(drive: &LoopDrive) -> u64 {
    let line = fs::read_to_string(format!("/sys/block/{}/stat", drive.name())).unwrap();
    line.split_whitespace().nth(2).unwrap().parse::<u64>().unwrap() * 512
}

/// Whether so many more bytes are read from a drive within a minute.
fn arrives(drive: &LoopDrive, before: u64, bytes: u64) -> bool {
    let since = Instant::now();
    while since.elapsed() < Duration::from_secs(60) {
        if bytes_read(drive) - before >= bytes {
            return true;
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    false
}

#[test]
fn a_drive_that_counts_nothing_says_how_to_make_it() {
    let _turn = turn();
    let Some(drive) = or_skip(LoopDrive::with(FileSystem::Ext4)) else { return };
    let switch = format!("/sys/block/{}/queue/iostats", drive.name());
    if fs::write(&switch, "0").is_err() {
        return skip("a drive that counts nothing: `iostats` cannot be switched off here");
    }
    let rig = Rig::new(drive.path());
    assert!(rig.make_cold());
    let (_, evidence) = rig.read(None);
    fs::write(&switch, "1").unwrap();
    let text = evidence.drives.absence().unwrap_or_else(|| panic!("{evidence:?}"));
    assert!(text.contains("its `queue/iostats` is 0"), "{text}");
    assert_eq!(evidence.front_bytes(), None);
}

#[test]
fn files_in_memory_and_below_an_overlay_are_judged_by_what_is_below() {
    let _turn = turn();
    if let Some(folder) = or_skip(memory_folder()) {
        let rig = Rig::new(folder.path());
        let moved = rig.read(None);
        assert_eq!(
            (moved.1.storage, judged(&moved, Direction::Read).word()),
            (Storage::Memory, "cached"),
            "{moved:?}"
        );
    }
    let Some(drive) = or_skip(LoopDrive::with(FileSystem::Ext4)) else { return };
    let Some(overlay) = or_skip(Overlay::over(drive.path(), drive.path())) else { return };
    let rig = Rig::new(overlay.path());
    let moved = rig.read_resident(None);
    assert_eq!(moved.1.storage, Storage::Block, "{moved:?}");
    assert_eq!(judged(&moved, Direction::Read).word(), "cached", "{moved:?}");
}

#[test]
fn a_real_gpus_link_sees_what_was_copied_to_it() {
    let _turn = turn();
    let engine = Engine::new(Options::default()).unwrap();
    let Some(device) = engine.device(&GpuSelector::Auto).unwrap() else {
        let reason = absence_reason().unwrap_or_default();
        let required = std::env::var_os("FOREBAY_REQUIRE_GPU").is_some_and(|set| set == "1");
        assert!(!required, "FOREBAY_REQUIRE_GPU is 1, but no GPU: {reason}");
        return skip(format!("the GPU's link: {reason}"));
    };
    const BIG: usize = 512 << 20;
    let folder = tempfile::tempdir_in(".").unwrap();
    let path = folder.path().join("file");
    fs::write(&path, pattern(5, BIG)).unwrap();
    let file = engine.open(&path).unwrap();
    let resolver = Resolver::default();
    let map = resolver.resolve(&path);
    let link = GpuLink::find(device.info());
    let mut buffer = engine.allocate(device.id(), BIG as u64).unwrap();
    file.read(&mut buffer).exact().run().unwrap();
    // Once, read at the edges alone; then past the end of a counter of 32 bits.
    for times in [1, 10] {
        let sources = Sources::new(resolver.system()).gpu(&link);
        let add = |sources: Sources, _| sources.file(&file, 0, BIG as u64, &map);
        let sources = (0..times).fold(sources, add);
        let span = sources.begin();
        for _ in 0..times {
            file.read(&mut buffer).exact().run().unwrap();
        }
        let evidence = span.end();
        let Seen::Value(seen) = &evidence.gpu else {
            return skip(format!("the GPU's link: {:?}", evidence.gpu.absence()));
        };
        lab::note(format!("{times} × {BIG}: {seen:?} in {:?}", evidence.read_in));
        let bytes = (times * BIG) as u64;
        if !seen.may_have_wrapped {
            assert!(seen.received >= bytes && seen.received < bytes + bytes / 2, "{seen:?}");
        }
        let mut claim = Claim::silent(Direction::Read, bytes, Memory::Gpu);
        claim.routes.push((Route::Cached, bytes));
        let found = verdict(&evidence, &claim);
        assert!(found.contradictions.is_empty(), "{found:?}");
    }
}
