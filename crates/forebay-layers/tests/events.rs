//! Events of layers that are loaded from files.

#![expect(unsafe_code, reason = "takes layers for a stream, as a caller would")]

#[path = "../../forebay/tests/lab/mod.rs"]
mod lab;
#[allow(dead_code, reason = "the engine's tests use the rest")]
#[path = "../../forebay/tests/events/listener.rs"]
mod listener;

use std::fs;
use std::sync::Arc;

use forebay::gpu::sim::SimDevice;
use forebay::gpu::{CallerStream, Device};
use forebay::internal::clock::SystemClock;
use forebay::{Engine, Options};
use forebay_layers::{Layer, LayerStream, Order, StreamOptions};

use lab::{pattern, watchdog::Watchdog};
use listener::listener;

const LEN: usize = 12_000_001;

#[test]
fn a_layer_from_files_has_the_events_of_one_transfer() {
    const LAYERS: u64 = 3;
    let _watchdog = Watchdog::start();
    listener();
    let mut options = Options::default();
    (options.slot_size, options.segment_size) = (512 << 10, 64 << 10);
    let engine = Engine::new(options).expect("limits that fit");
    let config = "sim".parse().expect("a configuration");
    let device = Arc::new(SimDevice::new(63, config, Arc::new(SystemClock::new())));
    let shared: Arc<dyn Device> = Arc::clone(&device) as _;
    engine.add_device(&shared).expect("a new GPU");
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("data");
    fs::write(&path, pattern(7, LEN)).expect("room for a file");
    let file = engine.open(&path).expect("the file opens");
    // Of several blocks each.
    let len = LEN as u64 / LAYERS;
    let layers: Vec<Layer> =
        (0..LAYERS).map(|n| Layer::named(format!("layer {n}")).with(&file, n * len, len)).collect();
    let order = StreamOptions::ordered(Order::Forward);
    let stream = LayerStream::new(&engine, &shared, &layers, order).expect("a stream");
    // SAFETY: the default stream is alive, and nothing is queued on it.
    while unsafe { stream.next(CallerStream(0)) }.expect("it can be read").is_some() {}
    let routes = stream.statistics().routes;
    stream.close().expect("an end");
    let path = path.to_str().expect("plain letters");
    let mut reported = listener().about("path", path);
    reported.retain(|event| event.target == "forebay::transfer");
    let ended: Vec<_> = reported.iter().filter(|e| e.message() == "transfer ended").collect();
    let begun = reported.iter().filter(|e| e.message() == "transfer begins").count();
    assert_eq!(
        (begun as u64, ended.len() as u64, reported.len() as u64),
        (LAYERS, LAYERS, 2 * LAYERS)
    );
    for event in &reported {
        assert_eq!(event.get("direction"), Some("read"), "{event:?}");
    }
    for event in ended {
        assert_eq!(event.get("bytes"), Some(len.to_string().as_str()), "{event:?}");
        let routed = |share: &forebay::RouteShare| {
            event.get("routes").is_some_and(|text| text.contains(share.reason.text()))
        };
        assert!(routes.iter().any(routed), "{event:?}, of {routes:?}");
    }
}
