//! Verdicts on the bytes that a simulated cuFile moved, or reported without moving them.

#[path = "../../forebay/tests/lab/mod.rs"]
mod lab;

use std::fs;
use std::path::{Path, PathBuf};

use forebay::gpu::DeviceId;
use forebay::{Direction, Engine, File, Options, Route};
use forebay_evidence::{Claim, Memory, Sources, Verdict, verdict};
use forebay_topology::Resolver;
use lab::watchdog::Watchdog;
use lab::{FileSystem, LoopDrive, or_skip, pattern};

const LEN: usize = 4 << 20;

/// An engine, a simulated GPU, and a file in a folder.
struct Rig {
    engine: Engine,
    gpu: DeviceId,
    folder: tempfile::TempDir,
    bytes: Vec<u8>,
}

impl Rig {
    fn within(gpu: &str, place: &Path) -> Self {
        let engine = Engine::new(Options::default()).expect("limits that fit");
        let wanted = gpu.parse().expect("a name");
        let gpu = engine.device(&wanted).expect("a simulated GPU").expect("a GPU").id();
        let folder = tempfile::tempdir_in(place).expect("a folder");
        let bytes = pattern(3, LEN);
        fs::write(folder.path().join("file"), &bytes).expect("it is written");
        fs::File::open(folder.path().join("file")).expect("it opens").sync_all().expect("a sync");
        Self { engine, gpu, folder, bytes }
    }

    fn path(&self) -> PathBuf {
        self.folder.path().join("file")
    }

    /// The file, without pages in memory.
    fn cold(&self) -> File {
        let file = self.engine.open(self.path()).expect("it opens");
        file.evict().expect("advice");
        file
    }
}

/// A direct read of the whole file: the verdict, and whether the bytes arrived. With `sees_drives`
/// the drive's counters are evidence too.
fn judged(rig: &Rig, sees_drives: bool) -> (Verdict, bool) {
    let file = rig.cold();
    let resolver = Resolver::default();
    let map = resolver.resolve(&rig.path());
    let sources = Sources::new(resolver.system()).engine(&rig.engine);
    let sources = if sees_drives { sources.file(&file, 0, LEN as u64, &map) } else { sources };
    let allocate = |len: usize| rig.engine.allocate(rig.gpu, len as u64).expect("memory");
    let mut buffer = allocate(LEN);
    buffer.fill(0xee).expect("a fill");
    // So that the library is in use when the span begins.
    file.read(&mut allocate(4096)).route(Route::Direct).run().expect("a unit");
    let span = sources.begin();
    let read = file.read(&mut buffer).route(Route::Direct).run();
    let outcome = read.expect("the library reports success");
    let evidence = span.end();
    assert!(outcome.routes.iter().all(|share| share.route == Route::Direct), "{outcome:?}");
    let mut got = vec![0; LEN];
    buffer.download(0, &mut got).expect("a copy");
    let claim = Claim::of(&outcome, Direction::Read, Memory::SimulatedGpu);
    (verdict(&evidence, &claim), got == rig.bytes)
}

#[test]
fn false_reports_of_a_library_prove_nothing() {
    let _watchdog = Watchdog::start();
    let here = Rig::within("sim:cufile=lie", Path::new("."));
    if let Some(reason) = here.cold().no_direct_io() {
        return println!("skipped: a cuFile that lies: {reason}");
    }
    let (found, is_right) = judged(&here, false);
    assert!(!is_right, "it has moved nothing");
    assert!(!found.word().starts_with("direct"), "{found:?}");
    let Some(drive) = or_skip(LoopDrive::with(FileSystem::Ext4)) else { return };
    let (found, is_right) = judged(&Rig::within("sim:cufile=lie", drive.path()), true);
    assert!(!is_right, "it has moved nothing");
    assert_eq!(found.word(), "contradictory", "{found:?}");
    // The same by a library that does what it says.
    let (found, is_right) = judged(&Rig::within("sim:cufile", drive.path()), true);
    assert!(is_right);
    assert_eq!(found.word(), "direct (p2pdma)", "{found:?}");
    // And by one that does, but not by the way that it names.
    let (found, is_right) = judged(&Rig::within("sim:cufile=nvidia-fs", drive.path()), true);
    assert!(is_right);
    if !Path::new("/proc/driver/nvidia-fs").exists() {
        assert_eq!(found.word(), "contradictory", "{found:?}");
        assert!(found.contradictions[0].contains("nvidia-fs is not loaded"), "{found:?}");
    }
}
