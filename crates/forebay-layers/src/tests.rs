//! A stream for the tests of these modules, and its state before a layer is taken.

use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use forebay::gpu::Device;
use forebay::gpu::sim::SimDevice;
use forebay::{Engine, Options};
use forebay_base::clock::SystemClock;

use super::{Layer, LayerStream, Order, StreamOptions};

const LEN: u64 = 100_001;

/// A stream of eight layers from unaligned places of a file, through two buffers.
pub(super) fn stream() -> LayerStream {
    let engine = Engine::new(Options::default()).unwrap();
    let clock = Arc::new(SystemClock::new());
    let device: Arc<dyn Device> = Arc::new(SimDevice::new(0, "sim".parse().unwrap(), clock));
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("file"), vec![7; 1 << 20]).unwrap();
    let file = engine.open(folder.path().join("file")).unwrap();
    let layers: Vec<Layer> =
        (0..8).map(|n| Layer::named(format!("layer {n}")).with(&file, n * LEN, LEN)).collect();
    let mut options = StreamOptions::ordered(Order::Forward);
    (options.gpu_budget, options.mapped_budget) = (Some(2 * LEN), Some(0));
    LayerStream::new(&engine, &device, &layers, options).unwrap()
}

#[test]
fn a_layers_place_is_reused_after_its_copies() {
    let stream = stream();
    let until = Instant::now() + Duration::from_secs(10);
    let came = || stream.shared.lock().loads.iter().all(Option::is_some);
    while !came() && Instant::now() < until {
        thread::sleep(Duration::from_millis(1));
    }
    // No caller has taken them, so nothing else would delay the next contents.
    let state = stream.shared.lock();
    for (load, frees) in state.loads.iter().zip(&state.frees) {
        let ready = load.as_ref().expect("it has come").ready.event();
        assert!(frees.iter().any(|mark| mark.event() == ready), "{frees:?}");
    }
}
