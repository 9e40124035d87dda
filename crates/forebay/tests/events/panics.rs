//! Subscribers and callbacks that panic: each transfer ends as it would without them, and nothing
//! waits.

use std::fs;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::channel;
use std::time::Duration;

use forebay::gpu::GpuSelector;
use forebay::{Engine, Error, OpenOptions, Options, Route};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Metadata, Subscriber};

use crate::lab::{child, note, pattern, watchdog::Watchdog};

/// Only a hang exceeds this bound.
const BOUND: Duration = Duration::from_secs(60);

/// The calls of a subscriber that panic, one kind at a time.
const CALLS: [&str; 4] = ["enabled", "new_span", "event", "try_close"];

/// Which of them does now.
static PANICS: AtomicUsize = AtomicUsize::new(CALLS.len());

struct Panics;

impl Panics {
    fn call(name: &str) {
        let now = CALLS.get(PANICS.load(Ordering::Relaxed));
        assert!(now != Some(&name), "{name} panics on purpose");
    }
}

impl Subscriber for Panics {
    fn enabled(&self, _: &Metadata<'_>) -> bool {
        Self::call("enabled");
        true
    }

    // Else `enabled` is called once for each event, and not when it panics.
    fn register_callsite(&self, _: &'static Metadata<'static>) -> tracing::subscriber::Interest {
        tracing::subscriber::Interest::sometimes()
    }

    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Self::call("new_span");
        Id::from_u64(1)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn event(&self, _: &Event<'_>) {
        Self::call("event");
    }

    fn enter(&self, _: &Id) {}

    fn exit(&self, _: &Id) {}

    fn try_close(&self, _: Id) -> bool {
        Self::call("try_close");
        true
    }
}

#[test]
fn a_subscriber_that_panics_blocks_no_other() {
    if child::role().is_none() {
        drop(child::run("panics"));
        return;
    }
    let _watchdog = Watchdog::start();
    tracing::subscriber::set_global_default(Panics).expect("there is no other");
    let bytes = pattern(3, 5_000_001);
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("data");
    for (number, name) in CALLS.iter().enumerate() {
        note(name);
        PANICS.store(number, Ordering::Relaxed);
        fs::write(&path, &bytes).expect("a file");
        let engine = Engine::new(Options::default()).expect("the defaults fit");
        let wanted: GpuSelector = "sim".parse().expect("a name");
        let gpu = engine.device(&wanted).expect("a simulated GPU").expect("a GPU").id();
        let file = engine.open_with(&path, &OpenOptions::writing()).expect("the file opens");
        let mut target = vec![0; bytes.len()];
        for len in [1000, bytes.len()] {
            file.evict().expect("an eviction");
            file.read(&mut target[..len]).run().expect("a read");
            assert!(target[..len] == bytes[..len]);
            file.read(&mut target[..len]).exact().run().expect("a warm read");
        }
        let (buffer, _) = file.read_to_end(Some(gpu)).run().expect("a read to a GPU");
        file.write(&buffer).at(77).run().expect("a write");
        drop(file.write(&buffer).route(Route::Staged).run());
        assert!(matches!(
            file.read(&mut target).at(1 << 40).exact().run(),
            Err(Error::EndOfFile { .. } | Error::FileChanged { .. })
        ));
        let buffer = engine.allocate_pinned(bytes.len() as u64).expect("memory");
        let cancelled = file.read(buffer).start().expect("a start");
        cancelled.cancel();
        assert!(cancelled.wait_for(BOUND).is_some(), "no end of what was cancelled");
        assert!(engine.open(folder.path().join("missing")).is_err());
    }
    PANICS.store(CALLS.len(), Ordering::Relaxed);
}

#[test]
fn a_callback_that_panics_keeps_no_other_from_running() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("data");
    fs::write(&path, pattern(3, 5_000_001)).expect("a file");
    let engine = Engine::new(Options::default()).expect("the defaults fit");
    let file = engine.open(&path).expect("the file opens");
    for _ in 0..3 {
        let buffer = engine.allocate_pinned(5_000_001).expect("memory");
        let transfer = file.read(buffer).exact().start().expect("a start");
        let (sender, ran) = channel();
        transfer.on_end(|| {
            let thread = std::thread::current();
            let is_engines = thread.name().is_some_and(|name| name.starts_with("forebay-"));
            assert!(!is_engines, "on purpose");
        });
        transfer.on_end(move || sender.send(()).expect("the test waits"));
        ran.recv_timeout(BOUND).expect("it runs");
        let (result, buffer) = transfer.wait();
        result.expect("a read");
        assert!(buffer.is_some());
    }
}
