//! Tests of lanes, buffers and settings over a real shared object, which takes our structures by
//! the C interface: the memory of a simulated GPU is the host's, so it moves bytes there.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use rustix::io::Errno;

use super::batch::BatchLane;
use super::buffers::Buffers;
use super::failure::CuFileFailure;
use super::rig::{Rig, UNIT};
use super::session::Session;
use super::streams::StreamLane;
use crate::clock::SystemClock;
use crate::direct::played;
use crate::file::Lane;
use crate::gpu::sim::{SimConfig, SimDevice};
use crate::memory::Buffer;
use crate::proof::cufile::{Counters, Paths};

/// A library that does so, in a folder of its own; `None`: there is no compiler.
fn library(as_of: u32, does: &str) -> Option<(tempfile::TempDir, PathBuf)> {
    let folder = tempfile::tempdir().unwrap();
    let library = played::compile_to(folder.path(), as_of, does);
    let library = library.map_err(|reason| println!("skipped: {reason}")).ok()?;
    Some((folder, library))
}

/// A file with a port by such a library.
fn rig(as_of: u32, does: &str) -> Option<Rig> {
    let (_folder, library) = library(as_of, does)?;
    let session = Session::open(Some(&library), &[]).unwrap();
    let clock = Arc::new(SystemClock::new());
    Rig::of(session, Arc::new(SimDevice::new(0, SimConfig::default(), clock)))
}

fn lanes(rig: &Rig) -> [Box<dyn Lane>; 2] {
    let batches = BatchLane::new(&rig.session, &rig.device).unwrap();
    let streams = StreamLane::new(&rig.session, &rig.device).unwrap();
    [Box::new(batches), Box::new(streams)]
}

/// What each request of a lane answers, which is the same for all.
fn answer(rig: &Rig, lane: &mut dyn Lane) -> Result<u64, Errno> {
    let results = rig.read(lane);
    assert!(results.iter().all(|result| *result == results[0]), "{results:?}");
    results[0]
}

fn counted(rig: &Rig) -> Counters {
    Counters::parse(rig.session.version_number(), 3, &rig.session.counters().unwrap()).unwrap()
}

#[test]
fn every_request_of_every_lane_lands_and_is_counted() {
    for (as_of, does) in [(1180, ""), (1180, "posix"), (1190, "nvidia-fs,reorder")] {
        let Some(rig) = rig(as_of, does) else { return };
        let before = counted(&rig);
        let [mut batches, mut streams] = lanes(&rig);
        assert_eq!(answer(&rig, &mut *batches), Ok(UNIT), "{does}");
        let by_batch = counted(&rig).since(&before).unwrap();
        assert!(by_batch.batches >= 3, "{by_batch:?}");
        assert_eq!(by_batch.batches_by.total(), by_batch.batches);
        assert_eq!(by_batch.batch_bytes, (as_of < 1190).then_some(300 * UNIT));
        assert_eq!(by_batch.reads().operations, 0);
        let before = counted(&rig);
        assert_eq!(answer(&rig, &mut *streams), Ok(UNIT), "{does}");
        let by_streams = counted(&rig).since(&before).unwrap();
        let (mut by, count) = (Paths::default(), 300);
        match does {
            "" => by.p2pdma = count,
            "posix" => by.posix = count,
            _ => by.nvidia_fs = count,
        }
        assert_eq!((by_streams.reads().by, by_streams.batches), (by, 0));
    }
}

#[test]
fn a_library_of_any_version_has_lanes() {
    for as_of in played::VERSIONS {
        let Some(rig) = rig(as_of, "") else { return };
        for mut lane in lanes(&rig) {
            assert_eq!(answer(&rig, &mut *lane), Ok(UNIT), "{as_of}");
        }
    }
}

#[test]
fn what_a_lane_is_answered_is_not_taken_for_more_than_it_is() {
    for (does, expected, says) in [
        ("short", Ok(UNIT / 2), ""),
        ("code=5008", Err(Errno::OPNOTSUPP), "IO_NOT_SUPPORTED (5008)"),
        ("errno=28", Err(Errno::IO), "os error 5"),
        ("more", Err(Errno::OPNOTSUPP), "moved 4097 bytes of 4096"),
    ] {
        let Some(rig) = rig(1190, does) else { return };
        for mut lane in lanes(&rig) {
            assert_eq!(answer(&rig, &mut *lane), expected, "{does}");
            assert!(rig.port.refusal().contains(says), "{does}: {}", rig.port.refusal());
        }
    }
}

#[test]
fn a_batch_that_is_not_taken_is_handed_back() {
    for (does, expected) in [
        ("batch=5035", "BATCH_SUBMIT_FAILED (5035)"),
        ("batch=5037", "BATCH_FULL (5037)"),
        ("batch=5049", "BATCH_NOCOMPAT_ERROR (5049)"),
    ] {
        let Some(rig) = rig(1190, does) else { return };
        let [mut batches, mut streams] = lanes(&rig);
        assert_eq!(answer(&rig, &mut *batches), Err(Errno::OPNOTSUPP));
        assert!(rig.port.refusal().contains(expected), "{}", rig.port.refusal());
        assert_eq!(answer(&rig, &mut *streams), Ok(UNIT), "the others go on");
    }
}

/// As long as nothing says that it is over, its memory is in use.
#[test]
fn a_batch_that_hangs_keeps_its_memory_and_nobody_waits_for_it() {
    let Some(rig) = rig(1190, "hang") else { return };
    let [mut batches, _] = lanes(&rig);
    let memory = Buffer::on_device(Arc::clone(&rig.device), UNIT).unwrap();
    rig.begin(&mut *batches, &memory);
    let mut landed = Vec::new();
    for _ in 0..3 {
        batches.collect(Duration::from_millis(5), &mut landed);
    }
    assert_eq!(landed, []);
    let shares = Arc::strong_count(&rig.port);
    drop(batches);
    assert_eq!(Arc::strong_count(&rig.port), shares, "the library may yet use the file");
    std::mem::forget(memory);
}

#[test]
fn memory_that_the_library_refuses_is_used_unregistered() {
    let Some(rig) = rig(1190, "buffer=5036") else { return };
    let memory = Buffer::on_device(Arc::clone(&rig.device), 1 << 20).unwrap();
    for _ in 0..3 {
        let place = (memory.address(), 1 << 20);
        let refused = Buffers::register(&rig.session, &rig.device, place).unwrap_err();
        assert!(refused.to_string().contains("GPU_MEMORY_PINNING_FAILED (5036)"), "{refused}");
        assert!(refused.hint().unwrap().contains("max_device_pinned_mem_size_kb"));
    }
    for mut lane in lanes(&rig) {
        assert_eq!(answer(&rig, &mut *lane), Ok(UNIT));
    }
}

/// How a session is opened that takes no other way unseen, over a library that does so.
fn open(as_of: u32, does: &str, forbidden: bool) -> Option<Result<Arc<Session>, CuFileFailure>> {
    let (_folder, library) = library(as_of, does)?;
    Some(Session::open_direct_only(Some(&library), forbidden))
}

#[test]
fn compatibility_mode_is_off_or_nothing_goes_that_way() {
    let Some(strict) = open(1190, "posix", false) else { return };
    let refused = strict.unwrap().register(tempfile::tempfile().unwrap()).unwrap_err();
    assert!(refused.to_string().contains("IO_NOT_SUPPORTED (5008)"), "{refused}");
    let allowed = |as_of, does, forbidden| {
        let refused = open(as_of, does, forbidden).unwrap().unwrap_err();
        assert_eq!(refused, CuFileFailure::CompatAllowed { is_shared: false }, "{does}");
        assert!(refused.hint().unwrap().contains("allow_compat_mode"), "{refused}");
    };
    // What it is told makes no difference; it cannot be told.
    allowed(1190, "posix,keeps", false);
    allowed(1190, "posix,keeps", true);
    allowed(1190, "forced", false);
    allowed(1110, "posix", false);
    assert!(open(1110, "posix", true).unwrap().is_ok(), "the configuration forbids it");
}

#[test]
fn the_settings_of_others_are_not_changed() {
    let Some((_folder, library)) = library(1190, "") else { return };
    let _other = Session::open(Some(&library), &[]).unwrap();
    let refused = Session::open_direct_only(Some(&library), true).unwrap_err();
    assert_eq!(refused, CuFileFailure::CompatAllowed { is_shared: true });
    assert!(refused.to_string().contains("something else in this process"), "{refused}");
}
