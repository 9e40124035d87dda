//! Events of transfers in the order of a stream.

#![expect(unsafe_code, reason = "queues copies on a stream, as a caller would")]

use std::fs;
use std::sync::Arc;
use std::time::Duration;

use forebay::gpu::sim::SimDevice;
use forebay::gpu::{CallerStream, Device};
use forebay::internal::clock::SystemClock;
use forebay::{Engine, Error, Options};
use tracing::Level;

use crate::lab::fuse::Fuse;
use crate::lab::{or_skip, pattern, watchdog::Watchdog};
use crate::listener::listener;
use crate::{LEN, messages, transfers};

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
    let end = listener.calling(&engine, || {
        engine.add_device(&shared).expect("a new GPU");
        let stream = device.create_stream().expect("a stream");
        let file = engine.open(&path).expect("the file opens");
        let buffer = engine.allocate(device.id(), LEN as u64).expect("memory");
        // SAFETY: the stream is this device's and alive.
        let reading = unsafe { file.read(buffer).on(CallerStream(stream.0)).start() };
        reading.expect("a start").wait().0
    });
    fuse.set(|faults| faults.hang_from = None);
    assert!(matches!(end, Err(Error::TimedOut { .. })), "{end:?}");
    let reported = transfers(path.to_str().expect("plain letters"));
    // Its blocks are none of a subscriber's business.
    assert_eq!(messages(&reported), ["transfer begins", "watchdog fired", "transfer failed"]);
    assert_eq!(reported[1].get("bound_ns"), Some("400000000"));
    assert!(reported[1..].iter().all(|event| event.level == Level::WARN));
    assert_eq!(fs::metadata(&path).expect("it answers again").len(), LEN as u64);
}
