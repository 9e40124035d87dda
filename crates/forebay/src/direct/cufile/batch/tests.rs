//! Batches of a library that is played.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use super::super::failure::Answer;
use super::super::layout::Properties;
use super::super::rig::{Rig, UNIT};
use super::super::simulated;
use super::super::streams::StreamLane;
use super::super::table::Table;
use super::*;
use crate::gpu::sim::CuFilePlay;
use crate::memory::Buffer;

static SAYS_NOTHING: AtomicBool = AtomicBool::new(true);

unsafe extern "C" fn status_or_nothing(
    handle: BatchHandle,
    least: c_uint,
    count: *mut c_uint,
    events: *mut BatchEvent,
    longest: *mut Pause,
) -> Answer {
    if SAYS_NOTHING.load(Ordering::Relaxed) {
        return Answer { error: 5030, cuda: 0 };
    }
    let status = simulated::table().batch_status.unwrap();
    // SAFETY: the caller's promises.
    unsafe { status(handle, least, count, events, longest) }
}

#[test]
fn a_library_that_says_nothing_of_batches_is_given_no_more_and_keeps_what_it_has() {
    let table = Table { batch_status: Some(status_or_nothing), ..simulated::table() };
    let Some(rig) = Rig::played_by(table, CuFilePlay::P2pDma) else { return };
    let memory = Buffer::on_device(Arc::clone(&rig.device), UNIT).unwrap();
    let mut lane = BatchLane::new(&rig.session, &rig.device).unwrap();
    rig.begin(&mut lane, &memory);
    let (start, mut landed) = (Instant::now(), Vec::new());
    while lane.given_up.is_none() {
        lane.collect(Duration::from_millis(10), &mut landed);
        assert!(start.elapsed() < 9 * MUTE_MAX && landed.is_empty(), "{landed:?}");
    }
    assert!(start.elapsed() >= MUTE_MAX && !lane.rests().is_zero() && lane.room() > 0);
    let (address, port) = (memory.address(), &rig.port);
    let more = LaneRequest { port, writes: false, address, len: UNIT, offset: 0, token: 1 };
    // SAFETY: the memory stays.
    let refused = unsafe { lane.begin(more) }.unwrap_err();
    assert!(refused.errno == Errno::OPNOTSUPP && refused.words.contains("5030"), "{refused:?}");
    SAYS_NOTHING.store(false, Ordering::Relaxed);
    lane.collect(Duration::from_secs(9), &mut landed);
    assert_eq!(landed, [(0, Ok(UNIT))], "what it had lands all the same");
}

/// Requests of the batch that is under way, where the library takes no second one beside it.
static UNDER_WAY: AtomicUsize = AtomicUsize::new(0);

unsafe extern "C" fn submit_one_at_a_time(
    handle: BatchHandle,
    count: c_uint,
    requests: *mut BatchRequest,
    flags: c_uint,
) -> Answer {
    if UNDER_WAY.load(Ordering::Relaxed) > 0 || count > 1 {
        return Answer { error: FULL, cuda: 0 };
    }
    // SAFETY: the caller's promises.
    let told = unsafe { simulated::table().batch_submit.unwrap()(handle, count, requests, flags) };
    UNDER_WAY.fetch_add(usize::from(told.error == 0), Ordering::Relaxed);
    told
}

unsafe extern "C" fn status_of_one(
    handle: BatchHandle,
    least: c_uint,
    count: *mut c_uint,
    events: *mut BatchEvent,
    longest: *mut Pause,
) -> Answer {
    let status = simulated::table().batch_status.unwrap();
    // SAFETY: the caller's promises, and its output.
    unsafe {
        let told = status(handle, least, count, events, longest);
        UNDER_WAY.fetch_sub(*count as usize, Ordering::Relaxed);
        told
    }
}

#[test]
fn what_a_full_library_does_not_take_is_sent_off_when_something_has_landed() {
    let table = Table {
        batch_submit: Some(submit_one_at_a_time),
        batch_status: Some(status_of_one),
        ..simulated::table()
    };
    let Some(rig) = Rig::played_by(table, CuFilePlay::P2pDma) else { return };
    let mut lane = BatchLane::new(&rig.session, &rig.device).unwrap();
    assert!(rig.read(&mut lane).iter().all(|result| *result == Ok(UNIT)));
    assert_eq!((lane.most, lane.given_up.is_none()), (1, true));
}

#[test]
fn a_lane_that_others_leave_no_room_gives_up() {
    let Some(rig) = Rig::played(CuFilePlay::P2pDma) else { return };
    let most = rig.session.limits().batch;
    assert_eq!(rig.session.take_room(most), most, "batches of others, which never end");
    let mut lane = BatchLane::new(&rig.session, &rig.device).unwrap();
    let start = Instant::now();
    for result in rig.read(&mut lane) {
        let refused = result.unwrap_err();
        assert!(refused.words.contains("takes no more batches"), "{refused:?}");
    }
    assert!(start.elapsed() >= MUTE_MAX);
}

#[test]
fn what_the_driver_does_not_support_is_no_lane() {
    unsafe extern "C" fn only_batches(properties: *mut Properties) -> Answer {
        // SAFETY: the caller's output.
        unsafe { properties.write(Properties { features: 1 << 1, ..Properties::default() }) };
        Answer { error: 0, cuda: 0 }
    }
    let mut table = simulated::table();
    table.get_properties = only_batches;
    let Some(rig) = Rig::played_by(table, CuFilePlay::P2pDma) else { return };
    assert!(BatchLane::new(&rig.session, &rig.device).is_ok());
    let refused = StreamLane::new(&rig.session, &rig.device).unwrap_err();
    assert!(refused.contains("queues nothing in streams"), "{refused}");
}

#[test]
fn more_than_one_batch_takes_are_split_and_each_lands_once() {
    let Some(rig) = Rig::played(CuFilePlay::P2pDma) else { return };
    let mut lane = BatchLane::new(&rig.session, &rig.device).unwrap();
    assert!(lane.room() > 16, "what it says it takes");
    assert!(rig.read(&mut lane).iter().all(|result| *result == Ok(UNIT)));
    assert!(lane.most <= 16, "it has found how many really go: {}", lane.most);
    assert!(rig.read(&mut lane).iter().all(|result| *result == Ok(UNIT)), "once more");
}

#[test]
fn lanes_share_the_room_that_the_library_has() {
    let Some(rig) = Rig::played(CuFilePlay::P2pDma) else { return };
    let lanes = || BatchLane::new(&rig.session, &rig.device).unwrap();
    std::thread::scope(|scope| {
        for mut lane in [lanes(), lanes(), lanes()] {
            let rig = &rig;
            scope.spawn(move || {
                assert!(rig.read(&mut lane).iter().all(|result| *result == Ok(UNIT)));
            });
        }
    });
    let most = rig.session.limits().batch;
    assert_eq!(rig.session.take_room(most + 1), most, "all of it is back");
    assert_eq!(rig.session.take_room(1), 0);
}

#[test]
fn each_of_those_that_fail_is_handed_back() {
    let Some(rig) = Rig::played(CuFilePlay::Fail) else { return };
    let mut batches = BatchLane::new(&rig.session, &rig.device).unwrap();
    let results = rig.read(&mut batches);
    assert_eq!(results.iter().filter(|result| result.is_ok()).count(), 3, "{results:?}");
    for refused in results.into_iter().filter_map(Result::err) {
        assert!(refused.words.contains("5044"), "{refused:?}");
    }
    let mut streams = StreamLane::new(&rig.session, &rig.device).unwrap();
    assert!(rig.read(&mut streams).iter().all(Result::is_err));
}

#[test]
fn what_the_library_says_of_a_request_is_told_apart() {
    let event = |status, moved| over(&BatchEvent::new(ptr::null_mut(), status, moved));
    assert_eq!(event(BatchEvent::COMPLETE, 7), Some(Ok(7)));
    assert_eq!(event(BatchEvent::FAILED, -5008), Some(Ok(-5008)));
    assert!(matches!(event(BatchEvent::FAILED, 0), Some(Err(_))));
    assert!(matches!(event(BatchEvent::CANCELED, 0), Some(Err(_))));
    assert!(matches!(event(BatchEvent::INVALID, 0), Some(Err(_))));
    // Waiting, pending and timed out: its memory may be in use.
    for status in [0, 1, 2, 32, 77] {
        assert_eq!(event(status, 4096), None, "{status}");
    }
}
