//! The same bytes to several GPUs.

use forebay_base::clock::SystemClock;

use super::*;
use crate::gpu::sim::{SimConfig, SimDevice};
use crate::options::RequestOptions;
use crate::{Error, Outcome, RouteShare};

/// An engine with this many simulated GPUs, which copy to each other or not.
fn rig(count: u32, are_peers: bool) -> Option<(Rig, Vec<DeviceId>)> {
    let rig = Rig::new(RingChoice::Auto)?;
    let new = || SimDevice::new(7, SimConfig::default(), Arc::new(SystemClock::new()));
    let (first, mut gpus) = (new(), Vec::new());
    for number in 0..count {
        let first = if are_peers { &first } else { &new() };
        let device = first.sibling(8 + number, SimConfig::default());
        let device: Arc<dyn Device> = Arc::new(device);
        rig.engine.add_device(&device).unwrap();
        gpus.push(device.id());
    }
    Some((rig, gpus))
}

fn targets(rig: &Rig, gpus: &[DeviceId], len: usize) -> Vec<Buffer> {
    gpus.iter().map(|&gpu| rig.engine.allocate(gpu, len as u64).unwrap()).collect()
}

fn bytes_of(buffer: &Buffer) -> Vec<u8> {
    let mut got = vec![0; usize::try_from(buffer.len()).unwrap()];
    buffer.download(0, &mut got).unwrap();
    got
}

fn read(rig: &Rig, offset: u64, targets: &mut [Buffer], exact: bool) -> Result<Outcome> {
    let options = RequestOptions { exact, ..RequestOptions::default() };
    rig.file.read_to_all(targets).at(offset).options(options).while_(&mut || true).run()
}

#[test]
fn each_gpu_gets_all_bytes_of_any_range() {
    for are_peers in [false, true] {
        let Some((rig, gpus)) = rig(3, are_peers) else { return };
        let ranges = [(0, LEN), (1, LEN - 1), (12_345, 262_144), (7, 1), (LEN / 2, 1_000_000)];
        for ((offset, len), is_cold) in ranges.into_iter().flat_map(|r| [(r, false), (r, true)]) {
            if is_cold {
                let _ = rig.file.evict();
            }
            let mut targets = targets(&rig, &gpus, len);
            let outcome = read(&rig, offset as u64, &mut targets, true).unwrap();
            assert_eq!(outcome.bytes, len as u64);
            assert_eq!(outcome.routes.iter().map(|share| share.bytes).sum::<u64>(), len as u64);
            let to_gpus = |share: &RouteShare| matches!(share.route, Route::Cached | Route::Staged);
            assert!(outcome.routes.iter().all(to_gpus), "{outcome:?}");
            for target in &targets {
                assert!(bytes_of(target) == rig.bytes[offset..offset + len], "{offset}+{len}");
            }
        }
    }
}

#[test]
fn pieces_go_to_the_same_places_of_all() {
    for are_peers in [false, true] {
        let Some((rig, gpus)) = rig(2, are_peers) else { return };
        let mut all = targets(&rig, &gpus, LEN + 5000);
        let piece = |offset, len, at| Piece::new(&rig.file, offset, len, at);
        let half = (LEN / 2) as u64;
        let pieces =
            [piece(half, half, 0), piece(0, half - 7, half + 1000), piece(5, 0, 2 * half + 4000)];
        let read = |pieces: &[Piece<'_>], all: &mut [Buffer]| {
            rig.engine.read_many_to_all(pieces, all).exact().while_(&mut || true).run()
        };
        let done = read(&pieces, &mut all).unwrap();
        let lens: Vec<u64> = done.results.into_iter().map(Result::unwrap).collect();
        assert_eq!((lens, done.whole.bytes), (vec![half, half - 7, 0], 2 * half - 7));
        let half = LEN / 2;
        for bytes in all.iter().map(bytes_of) {
            assert!(bytes[..half] == rig.bytes[half..2 * half]);
            assert!(bytes[half + 1000..2 * half + 993] == rig.bytes[..half - 7]);
        }
        let turned = read(&[pieces[1], pieces[0]], &mut all).unwrap_err().to_string();
        assert!(turned.contains("not in the order of their places"), "{turned}");
        let beyond = read(&[piece(0, 10, LEN as u64 + 4991)], &mut all).unwrap_err().to_string();
        assert!(beyond.contains("outside the targets"), "{beyond}");
        assert_eq!(read(&[], &mut all).unwrap().whole.bytes, 0);
    }
}

#[test]
fn the_end_of_the_file_and_bad_targets_are_reported() {
    for are_peers in [false, true] {
        let Some((rig, gpus)) = rig(2, are_peers) else { return };
        let mut long = targets(&rig, &gpus, LEN + 600_000);
        assert_eq!(read(&rig, 0, &mut long, false).unwrap().bytes, LEN as u64);
        for bytes in long.iter().map(bytes_of) {
            assert!(bytes[..LEN] == rig.bytes && bytes[LEN..].iter().all(|&byte| byte == 0));
        }
        assert!(matches!(read(&rig, 0, &mut long, true), Err(Error::EndOfFile { .. })));
    }
    let Some((rig, gpus)) = rig(2, true) else { return };
    let bad = |targets: &mut [Buffer], says: &str| {
        let error = read(&rig, 0, targets, true).unwrap_err().to_string();
        assert!(error.contains(says), "{error}");
    };
    let differ = [targets(&rig, &gpus[..1], 5000), targets(&rig, &gpus[1..], 5001)];
    bad(&mut differ.into_iter().flatten().collect::<Vec<_>>(), "differ in length");
    let mut host = targets(&rig, &gpus[..1], 5000);
    host.push(rig.engine.allocate_pinned(5000).unwrap());
    bad(&mut host, "needs memory on GPUs");
    bad(&mut [], "needs memory on GPUs");
    let mut both = targets(&rig, &gpus, 5000);
    let refused = rig
        .file
        .read_to_all(&mut both)
        .route(Route::Staged)
        .while_(&mut || true)
        .run()
        .unwrap_err();
    assert!(refused.to_string().contains("no required route"), "{refused}");
}

#[test]
fn a_copy_that_fails_is_an_error_and_leaves_the_engine_whole() {
    let Some((rig, gpus)) = rig(2, true) else { return };
    let config = SimConfig { copy_faults: 0.5, ..SimConfig::default() };
    let faulty: Arc<dyn Device> = Arc::new(SimDevice::new(5, config, Arc::new(SystemClock::new())));
    rig.engine.add_device(&faulty).unwrap();
    let mut some = targets(&rig, &[gpus[0], faulty.id(), gpus[1]], LEN);
    for _ in 0..20 {
        let error = read(&rig, 0, &mut some, true).unwrap_err();
        assert!(matches!(error, Error::Device { .. }), "{error}");
    }
    let mut good = targets(&rig, &gpus, LEN);
    assert_eq!(read(&rig, 0, &mut good, true).unwrap().bytes, LEN as u64);
}

#[test]
fn memory_is_kept_after_errors_and_shared_by_calls() {
    let Some((rig, gpus)) = rig(2, false) else { return };
    let slot = rig.engine.options().slot_size;
    let mut all = targets(&rig, &gpus, LEN);
    read(&rig, 0, &mut all, true).unwrap();
    let pinned = || rig.engine.statistics().pinned;
    let kept = pinned();
    let mut longer = targets(&rig, &gpus, LEN + 1);
    for _ in 0..5 {
        read(&rig, 0, &mut longer, true).unwrap_err(); // the file ends
        read(&rig, 0, &mut all, true).unwrap();
        assert_eq!(pinned(), kept);
    }
    std::thread::scope(|scope| {
        let call = || {
            let mut own = targets(&rig, &gpus, LEN);
            for _ in 0..5 {
                read(&rig, 0, &mut own, true).unwrap();
                assert!(own.iter().all(|target| bytes_of(target) == rig.bytes));
            }
        };
        (0..3).for_each(|_| drop(scope.spawn(call)));
    });
    // A call that finds no free block pins one; copies of the test's checks pin 4 MiB at most each.
    assert!(pinned() <= (4 + 2) * slot + 3 * (4 << 20), "{} of {slot}", pinned());
}

#[test]
fn a_call_that_is_stopped_ends_although_a_gpu_hangs() {
    let Some((rig, gpus)) = rig(1, true) else { return };
    let config = SimConfig { bandwidth: Some(1000), ..SimConfig::default() };
    let slow: Arc<dyn Device> = Arc::new(SimDevice::new(5, config, Arc::new(SystemClock::new())));
    rig.engine.add_device(&slow).unwrap();
    let mut both = targets(&rig, &[gpus[0], slow.id()], LEN);
    let (options, start) = (RequestOptions::default(), std::time::Instant::now());
    let stopped =
        rig.file.read_to_all(&mut both).options(options).while_(&mut || false).run().unwrap_err();
    assert!(matches!(stopped, Error::Cancelled { .. }), "{stopped}");
    assert!(start.elapsed() < Duration::from_secs(30), "the copies take an hour");
    // The slow copy may still write to its target.
    let refused = rig.file.read(&mut both[1]).run().unwrap_err();
    assert!(refused.to_string().contains("an abandoned call still uses"), "{refused}");
}
