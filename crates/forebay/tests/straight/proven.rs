//! What counters of others say of bytes that a played cuFile moved, or says that it has moved.

use std::path::Path;

use forebay::proof::{Claim, Memory, Sources, Verdict, verdict};
use forebay::{Direction, Route};
use forebay_topology::Resolver;

use super::lab::{FileSystem, LoopDrive, or_skip, watchdog::Watchdog};
use super::{Rig, bytes_by, demanded};

const LEN: usize = 4 << 20;

/// A demanded read of whole units, judged by what is read; `sees_drives`: the drive's counters are
/// among that.
fn judged(rig: &Rig, sees_drives: bool) -> (Verdict, bool) {
    let file = rig.cold();
    let resolver = Resolver::default();
    let map = resolver.resolve(&rig.path());
    let sources = Sources::new(resolver.system()).engine(&rig.engine);
    let sources = if sees_drives { sources.file(&file, 0, LEN as u64, &map) } else { sources };
    let mut buffer = rig.buffer(LEN);
    buffer.fill(0xee).expect("a fill");
    // So that the library is in use when the span begins.
    file.read_with(0, &mut rig.buffer(4096), &demanded()).expect("a unit");
    let span = sources.begin();
    let outcome = file.read_with(0, &mut buffer, &demanded()).expect("it says that it did");
    let evidence = span.end();
    assert_eq!(bytes_by(&outcome, Route::Direct), LEN as u64);
    let mut got = vec![0; LEN];
    buffer.download(0, &mut got).expect("a copy");
    let claim = Claim::of(&outcome, Direction::Read, Memory::SimulatedGpu);
    (verdict(&evidence, &claim), got == rig.bytes[..LEN])
}

#[test]
fn a_library_that_lies_proves_nothing() {
    let _watchdog = Watchdog::start();
    let here = Rig::new("sim:cufile=lie");
    if let Some(reason) = here.cold().no_direct_io() {
        return println!("skipped: a cuFile that lies: {reason}");
    }
    let (told, is_right) = judged(&here, false);
    assert!(!is_right, "it has moved nothing");
    assert!(!told.word().starts_with("direct"), "{told:?}");
    let Some(drive) = or_skip(LoopDrive::with(FileSystem::Ext4)) else { return };
    let (told, is_right) = judged(&Rig::within("sim:cufile=lie", drive.path()), true);
    assert!(!is_right, "it has moved nothing");
    assert_eq!(told.word(), "contradictory", "{told:?}");
    // The same by a library that does what it says.
    let (told, is_right) = judged(&Rig::within("sim:cufile", drive.path()), true);
    assert!(is_right);
    assert_eq!(told.word(), "direct (p2pdma)", "{told:?}");
    // And by one that does, but not by the way that it names.
    let (told, is_right) = judged(&Rig::within("sim:cufile=nvidia-fs", drive.path()), true);
    assert!(is_right);
    if !Path::new("/proc/driver/nvidia-fs").exists() {
        assert_eq!(told.word(), "contradictory", "{told:?}");
        assert!(told.contradictions[0].contains("nvidia-fs is not loaded"), "{told:?}");
    }
}
