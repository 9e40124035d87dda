//! Sizes of cold reads that go through slots since these are over sooner, and those that do not.

use std::sync::Arc;

use forebay::clock::SystemClock;
use forebay::gpu::Device;
use forebay::gpu::sim::SimDevice;
use forebay::{Buffer, File, Outcome, RequestOptions, Route};

use super::lab::{skip, watchdog::Watchdog};
use super::{Rig, bytes_by, demanded};

/// Bytes of a read, within one request.
const LEN: usize = 200 << 10;

/// A cold read of whole units; other tests look at the bytes.
fn read(file: &File, buffer: &mut Buffer, options: &RequestOptions) -> Outcome {
    file.evict().expect("advice");
    file.read_with(0, buffer, options).expect("a read")
}

fn is_straight(outcome: &Outcome) -> bool {
    bytes_by(outcome, Route::Direct) == LEN as u64
}

/// So many reads, one after the other; how many went straight, and what the others said.
fn reads(rig: &Rig, file: &File, count: usize) -> (usize, Vec<String>) {
    let mut buffer = rig.buffer(LEN);
    let outcomes = (0..count).map(|_| read(file, &mut buffer, &RequestOptions::exactly()));
    let (straight, others): (Vec<_>, Vec<_>) = outcomes.partition(is_straight);
    let why = |outcome: Outcome| outcome.not_direct.expect("a reason").to_string();
    (straight.len(), others.into_iter().map(why).collect())
}

/// A file that can be read straight, and is where nothing else is known.
fn cold(rig: &Rig) -> Option<File> {
    let file = rig.cold();
    let reason = file.no_direct_io().map(str::to_owned).or_else(|| {
        let goes = is_straight(&read(&file, &mut rig.buffer(LEN), &RequestOptions::exactly()));
        (!goes).then(|| "nothing leaves the page cache here".into())
    });
    reason.iter().for_each(|reason| skip(format!("sizes of reads that go straight: {reason}")));
    reason.is_none().then_some(file)
}

const SOONER: &str = "transfers of up to 256 KiB are over sooner by way of slots here";
const TRIED: &str = "now and then slots are tried for a transfer of up to 256 KiB";

/// Runs what may fail where other programs hold the drive up for long, at most three times.
fn in_one_of_three(scenario: impl Fn() -> Result<(), String>) {
    let _watchdog = Watchdog::start();
    let failures: Vec<String> = (0..3).map_while(|_| scenario().err()).collect();
    assert!(failures.len() < 3, "{failures:?}");
}

fn ensure(holds: bool, what: &str, seen: &impl std::fmt::Debug) -> Result<(), String> {
    holds.then_some(()).ok_or_else(|| format!("{what}: {seen:?}"))
}

#[test]
fn a_size_that_is_over_sooner_through_slots_goes_there_and_says_so() {
    in_one_of_three(|| {
        let rig = Rig::new("sim:cufile=slow");
        let Some(file) = cold(&rig) else { return Ok(()) };
        let (_, said) = reads(&rig, &file, 40);
        let first = said.iter().take_while(|why| *why == TRIED).count();
        let led = first > 0 && first < said.len() && said[first..].iter().all(|why| why == SOONER);
        ensure(led, "slots lead after some tries", &said)?;
        let (straight, said) = reads(&rig, &file, 122);
        let led = said.iter().all(|why| why == SOONER);
        ensure(led && straight == 2, "one in 61 goes straight", &(straight, said))?;
        // It holds for another file of the drive, not for another size, nor where it is demanded.
        let other = rig.engine.open(rig.path()).expect("it opens");
        ensure(reads(&rig, &other, 10).0 == 0, "another file", &())?;
        let longer = rig.read(&other, (0, 2 * LEN, 0), &RequestOptions::exactly());
        let longer = longer.expect("a read");
        ensure(bytes_by(&longer, Route::Direct) == 2 * LEN as u64, "another size", &longer)?;
        let demanded = read(&file, &mut rig.buffer(LEN), &demanded());
        ensure(is_straight(&demanded), "demanded", &demanded)
    });
}

#[test]
fn a_size_that_is_over_sooner_straight_stays_so() {
    in_one_of_three(|| {
        // 20 ms for the copy of each.
        let rig = Rig::new("sim:cufile,bandwidth=10MB/s");
        let Some(file) = cold(&rig) else { return Ok(()) };
        let (straight, said) = reads(&rig, &file, 160);
        let tried = said.iter().all(|why| why == TRIED);
        let some = (150..160).contains(&straight);
        ensure(tried && some, "a few go through slots", &(straight, said))
    });
}

#[test]
fn beside_others_a_size_is_no_reason() {
    in_one_of_three(|| {
        let rig = Rig::new("sim:cufile=slow");
        let Some(file) = cold(&rig) else { return Ok(()) };
        reads(&rig, &file, 40);
        // This takes a second.
        let config = "sim:bandwidth=1MB/s".parse().expect("a configuration");
        let slow = Arc::new(SimDevice::new(1, config, Arc::new(SystemClock::new())));
        let slow: Arc<dyn Device> = slow;
        rig.engine.add_device(&slow).expect("a new one");
        let buffer = rig.engine.allocate(slow.id(), 1 << 20).expect("memory");
        let beside = file.start_read(0, buffer, &RequestOptions::default()).expect("a start");
        let (straight, said) = reads(&rig, &file, 3);
        ensure(!beside.is_done(), "the other is still on its way", &())?;
        ensure(straight == 3, "beside another", &said)?;
        beside.wait().0.expect("a read");
        let (straight, said) = reads(&rig, &file, 3);
        ensure(straight == 0, "alone again", &said)
    });
}
