//! Events of transfers in the order of a stream.

#![expect(unsafe_code, reason = "queues copies on a stream, as a caller would")]

use std::fs;
use std::sync::Arc;
use std::time::Duration;

use forebay::clock::SystemClock;
use forebay::gpu::sim::SimDevice;
use forebay::gpu::{CallerStream, Device};
use forebay::{Engine, Error, Options, RequestOptions};
use tracing::Level;

use crate::lab::fuse::Fuse;
use crate::lab::{or_skip, pattern, watchdog::Watchdog};
use crate::listener::listener;
use crate::{LEN, file_of, messages, transfers};

#[test]
fn a_transfer_that_its_stream_waits_for_in_vain_is_reported() {
    let _watchdog = Watchdog::start();
    let listener = listener();
    let Some(fuse) = or_skip(Fuse::new(pattern(4, LEN))) else { return };
    fuse.set(|faults| faults.hang_from = Some(5 << 20));
    let mut options = Options::default();
    options.slot_size = 1 << 20;
    options.watchdog = Duration::from_millis(400);
    let engine = Engine::new(options).expect("limits that fit");
    let config = "sim".parse().expect("a configuration");
    let device = Arc::new(SimDevice::new(61, config, Arc::new(SystemClock::new())));
    let shared: Arc<dyn Device> = Arc::clone(&device) as _;
    let path = fuse.path();
    let end = listener.asking(&engine, || {
        engine.add_device(&shared).expect("a new GPU");
        let stream = device.create_stream().expect("a stream");
        let file = engine.open(&path).expect("the file opens");
        let buffer = engine.allocate(device.id(), LEN as u64).expect("memory");
        let options = RequestOptions::default();
        // SAFETY: the stream is this device's and alive.
        let reading = unsafe { file.start_read_on(CallerStream(stream.0), 0, buffer, &options) };
        reading.expect("a start").wait().0
    });
    fuse.set(|faults| faults.hang_from = None);
    assert!(matches!(end, Err(Error::TimedOut { .. })), "{end:?}");
    let told = transfers(path.to_str().expect("plain letters"));
    // Its blocks are none of a subscriber's business.
    assert_eq!(messages(&told), ["transfer begins", "watchdog fired", "transfer failed"]);
    assert_eq!(told[1].get("bound_ns"), Some("400000000"));
    assert!(told[1..].iter().all(|event| event.level == Level::WARN));
    assert_eq!(fs::metadata(&path).expect("it answers again").len(), LEN as u64);
}

/// Memory of a length that no other test's slots have tells of them.
#[test]
fn what_is_prepared_for_streams_is_not_made_again() {
    const SLOT: u64 = 512 << 10;
    let _watchdog = Watchdog::start();
    // Listens from the start, also if this test runs alone.
    listener();
    let mut options = Options::default();
    options.slot_size = SLOT;
    options.segment_size = 64 << 10;
    let engine = Engine::new(options).expect("limits that fit");
    // So slow that all reads of a round are under way at once, however slow the machine is.
    let config = "sim:bandwidth=100MB/s".parse().expect("a configuration");
    let device = Arc::new(SimDevice::new(62, config, Arc::new(SystemClock::new())));
    let shared: Arc<dyn Device> = Arc::clone(&device) as _;
    let made = || {
        let told = listener().about("len", &(4 * (SLOT + 4096)).to_string());
        told.iter().filter(|event| event.message() == "pinned memory made").count()
    };
    engine.add_device(&shared).expect("a new GPU");
    let (_folder, path) = file_of(LEN);
    let file = engine.open(&path).expect("the file opens");
    let stream = device.create_stream().expect("a stream");
    let read = || {
        let buffer = engine.allocate(device.id(), LEN as u64).expect("memory");
        let options = RequestOptions::default();
        // SAFETY: the stream is this device's and alive.
        let started = unsafe { file.start_read_on(CallerStream(stream.0), 0, buffer, &options) };
        started.expect("a start")
    };
    for (transfers, in_all) in [(3, 3), (2, 3), (4, 4)] {
        engine.prepare_ordered(&shared, transfers).expect("room for slots");
        assert_eq!(made(), in_all);
        let reads: Vec<_> = (0..transfers).map(|_| read()).collect();
        assert_eq!(made(), in_all, "{transfers} at once");
        reads.into_iter().for_each(|read| assert!(read.wait().0.is_ok()));
    }
    drop((read(), read(), read(), read(), read()));
    assert_eq!(made(), 5, "one more than was asked for");
}
