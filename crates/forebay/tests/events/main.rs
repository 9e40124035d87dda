//! The `tracing` events of engines, from all tests of this program at once.

mod faults;
#[path = "../lab/mod.rs"]
mod lab;
mod listener;
mod panics;
mod streams;

use std::fs;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use forebay::gpu::sim::SimDevice;
use forebay::gpu::{Device, DeviceId};
use forebay::internal::clock::SystemClock;
use forebay::{Engine, Error, OpenOptions, Options, Piece};
use tempfile::TempDir;
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Level, Metadata, Subscriber};

use lab::{pattern, watchdog::Watchdog};
use listener::{Heard, listener};

const LEN: usize = 12_000_001;

/// A file whose path no other test has, and its name.
fn file_of(len: usize) -> (TempDir, String) {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("data");
    fs::write(&path, pattern(7, len)).expect("room for a file");
    let path = path.to_str().expect("plain letters").to_owned();
    (folder, path)
}

/// The same, on a disk.
fn file_in_a_folder_here(len: usize) -> (TempDir, String) {
    let folder = tempfile::tempdir_in(".").expect("a folder");
    let path = folder.path().join("data");
    fs::write(&path, pattern(7, len)).expect("room for a file");
    let path = path.to_str().expect("plain letters").to_owned();
    (folder, path)
}

fn gpu(engine: &Engine, index: u32, settings: &str) -> DeviceId {
    let config = settings.parse().expect("a configuration");
    let device: Arc<dyn Device> =
        Arc::new(SimDevice::new(index, config, Arc::new(SystemClock::new())));
    engine.add_device(&device).expect("a new GPU");
    device.id()
}

fn messages(reported: &[Heard]) -> Vec<&str> {
    reported.iter().map(Heard::message).collect()
}

/// The events of transfers of a file.
fn transfers(path: &str) -> Vec<Heard> {
    let mut reported = listener().about("path", path);
    reported.retain(|event| event.target == "forebay::transfer");
    reported
}

#[test]
fn the_life_of_an_engine_and_a_transfer() {
    let _watchdog = Watchdog::start();
    let listener = listener();
    let engine = Engine::new(Options::default()).expect("the defaults fit");
    let gpu = gpu(&engine, 50, "sim");
    let (_folder, path) = file_of(LEN);
    let caller = tracing::debug_span!(target: "events", "life");
    let outcome = caller.in_scope(|| {
        let file = engine.open(&path).expect("the file opens");
        file.read_to_end(Some(gpu)).run().expect("all bytes").1
    });
    drop(engine);
    let reported = transfers(&path);
    assert_eq!(messages(&reported), ["transfer begins", "transfer ended"]);
    for event in &reported {
        assert_eq!((event.level, event.get("direction")), (Level::DEBUG, Some("read")));
        assert_eq!(event.spans, [Some("transfer".to_owned()), Some("life".to_owned())]);
    }
    assert_eq!(reported[0].get("offset"), Some("0"));
    assert_eq!(reported[0].get("len"), Some("12000001"));
    assert_eq!(reported[0].get("gpu"), Some("sim:50"));
    assert!(["staged", "cached"].contains(&reported[0].get("route").expect("a route")));
    assert_eq!(reported[1].get("bytes"), Some("12000001"));
    let share = &outcome.routes[0];
    let routes = reported[1].get("routes").expect("routes");
    assert!(routes.starts_with(&format!("{} {}: ", share.bytes, share.route)), "{routes}");
    assert_eq!(listener.open_spans("life"), 0, "the span of a transfer ends with it");
    for message in ["engine made", "readers started", "drive found", "engine ended"] {
        assert!(!listener.with(message).is_empty(), "{message}");
    }
    let of_gpu = listener.about("gpu", "sim:50");
    for message in ["GPU brought in", "pinned memory made"] {
        assert!(messages(&of_gpu).contains(&message), "{message}: {of_gpu:?}");
    }
    let opened = listener.about("path", &path);
    assert_eq!(messages(&opened)[0], "file opened");
    // Twelve requests, and as many copies perhaps, but an event for none of them.
    assert!(opened.len() <= 4, "{opened:?}");
}

#[test]
fn a_file_without_o_direct_falls_back_and_says_why() {
    let _watchdog = Watchdog::start();
    listener();
    let path = "/proc/self/maps";
    let engine = Engine::new(Options::default()).expect("the defaults fit");
    let file = engine.open(path).expect("the file opens");
    let mut bytes = vec![0; 1 << 20];
    file.read(&mut bytes).run().expect("what there is");
    file.read(&mut bytes).run().expect("what there is");
    let reported = listener().about("path", path);
    let refused: Vec<&Heard> =
        reported.iter().filter(|event| event.message().starts_with("no O_DIRECT")).collect();
    assert_eq!((refused.len(), refused[0].level), (1, Level::INFO), "{reported:?}");
    assert_eq!(refused[0].target, "forebay::file");
    assert!(refused[0].get("reason").is_some_and(|reason| !reason.is_empty()), "{reported:?}");
    let begins = transfers(path);
    assert_eq!(begins[0].get("reason"), Some("no O_DIRECT on this file"));
    let ends = messages(&begins).into_iter().filter(|message| *message == "transfer ended");
    assert_eq!(ends.count(), 2);
}

#[test]
fn a_cancel_and_its_result_are_reported() {
    let _watchdog = Watchdog::start();
    listener();
    let engine = Engine::new(Options::default()).expect("the defaults fit");
    let gpu = gpu(&engine, 51, "sim:bandwidth=1MB/s");
    let (_folder, path) = file_of(LEN);
    let file = engine.open(&path).expect("the file opens");
    let buffer = engine.allocate(gpu, LEN as u64).expect("memory");
    let reading = file.read(buffer).exact().start().expect("it begins");
    reading.cancel();
    let (result, _) = reading.wait();
    assert!(matches!(result, Err(Error::Cancelled { .. })), "{result:?}");
    let reported = transfers(&path);
    let expected = ["transfer begins", "cancel requested", "transfer ended early"];
    assert_eq!(messages(&reported), expected);
    assert!(reported[2].get("error").is_some_and(|error| error.contains(&path)), "{reported:?}");
    assert!(reported.iter().all(|event| event.level == Level::DEBUG));
}

#[test]
fn a_lost_gpu_is_reported_once_and_each_transfer_that_fails() {
    let _watchdog = Watchdog::start();
    listener();
    let engine = Engine::new(Options::default()).expect("the defaults fit");
    let gpu = gpu(&engine, 52, "sim:bandwidth=300MB/s,lost-after=1");
    let (_folder, path) = file_of(LEN);
    let file = engine.open(&path).expect("the file opens");
    let buffers = [0, 1].map(|_| engine.allocate(gpu, LEN as u64).expect("memory"));
    let start = |buffer| file.read(buffer).exact().start();
    let reading = buffers.map(|buffer| start(buffer).expect("it is there yet"));
    for transfer in reading {
        transfer.wait().0.expect_err("the GPU vanished");
    }
    let reported = listener().about("gpu", "sim:52");
    let lost: Vec<&Heard> = reported.iter().filter(|event| event.message() == "GPU lost").collect();
    assert_eq!((lost.len(), lost[0].level), (1, Level::WARN), "{reported:?}");
    assert!(lost[0].get("error").is_some(), "{lost:?}");
    let failed = transfers(&path);
    let failed: Vec<_> = failed.iter().filter(|one| one.message() == "transfer failed").collect();
    assert_eq!((failed.len(), failed[0].level), (2, Level::WARN), "{failed:?}");
}

#[test]
fn small_and_many_reads_are_one_transfer_each() {
    let _watchdog = Watchdog::start();
    listener();
    let engine = Engine::new(Options::default()).expect("the defaults fit");
    let (_folder, path) = file_of(LEN);
    let file = engine.open(&path).expect("the file opens");
    let mut bytes = vec![0; 4096];
    file.read(&mut bytes[..]).at(4096).run().expect("some bytes");
    let small = transfers(&path);
    // Where residency is unknown it goes through the scheduler.
    if small.len() == 1 {
        assert_eq!((small[0].message(), small[0].get("small")), ("transfer ended", Some("true")));
        assert_eq!(small[0].get("offset"), Some("4096"));
    }
    let pieces: Vec<Piece<'_>> =
        (0..4).map(|n| Piece::new(&file, n * 9000, 1000, n * 1000)).collect();
    let targets = [&mut bytes[..]];
    engine.read_many(&pieces, targets).exact().run().expect("all of them");
    let reported = transfers(&path);
    let many = &reported[small.len()..];
    assert_eq!(messages(many), ["transfer begins", "transfer ended"]);
    assert_eq!((many[0].get("pieces"), many[0].get("len")), (Some("4"), Some("4000")));
    assert_eq!(many[0].get("offset"), None);
}

#[test]
fn a_subscriber_may_call_the_engine() {
    let _watchdog = Watchdog::start();
    let listener = listener();
    let engine = Engine::new(Options::default()).expect("the defaults fit");
    let (_folder, path) = file_of(LEN);
    listener.calling(&engine, || {
        let lost = gpu(&engine, 53, "sim:bandwidth=300MB/s,lost-after=2");
        let slow = gpu(&engine, 54, "sim:bandwidth=1MB/s");
        let file = engine.open(&path).expect("the file opens");
        file.evict().expect("its pages are clean");
        file.read_to_end(None).run().expect("all bytes");
        file.read(&mut [0; 100][..]).run().expect("some bytes");
        file.read_to_end(Some(lost)).run().expect_err("the GPU vanished");
        let buffer = engine.allocate(slow, LEN as u64).expect("memory");
        drop(file.read(buffer).exact().start().expect("it begins"));
        engine.allocate_pinned(1 << 20).expect("memory");
        engine.allocate_pinned(u64::MAX).expect_err("no machine has so much");
    });
    drop(engine);
    assert!(!listener.with("pinned memory refused").is_empty());
    let reported = transfers(&path);
    assert!(messages(&reported).contains(&"transfer failed"), "{reported:?}");
}

/// Reads a file when the readers of its engine have started.
struct Reading {
    engine: Engine,
    path: String,
    bytes: AtomicU64,
}

impl Subscriber for Reading {
    fn enabled(&self, _metadata: &Metadata<'_>) -> bool {
        true
    }

    fn new_span(&self, _span: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }

    fn record(&self, _span: &Id, _values: &Record<'_>) {}

    fn record_follows_from(&self, _span: &Id, _follows: &Id) {}

    fn event(&self, event: &Event<'_>) {
        if event.fields().any(|field| field.name() == "readers") {
            let file = self.engine.open(&self.path).expect("the file opens");
            let outcome = file.read(&mut vec![0; LEN][..]).run().expect("all bytes");
            self.bytes.fetch_add(outcome.bytes, Ordering::Relaxed);
        }
    }

    fn enter(&self, _span: &Id) {}

    fn exit(&self, _span: &Id) {}
}

#[test]
fn a_subscriber_may_start_a_transfer() {
    let _watchdog = Watchdog::start();
    let engine = Engine::new(Options::default()).expect("the defaults fit");
    let (_folder, path) = file_of(LEN);
    let (own, bytes) = (engine.clone(), AtomicU64::new(0));
    let reading = Arc::new(Reading { engine: own, path: path.clone(), bytes });
    tracing::subscriber::with_default(Arc::clone(&reading), || {
        let file = engine.open(&path).expect("the file opens");
        file.read(&mut vec![0; LEN][..]).run().expect("all bytes");
    });
    assert_eq!(reading.bytes.load(Ordering::Relaxed), LEN as u64);
}

/// Why no transfer is direct is reported where there is a path, and nowhere else.
#[test]
fn events_say_why_a_transfer_is_not_direct() {
    let _watchdog = Watchdog::start();
    listener();
    const GPUS: [(u32, &str); 3] = [(70, "sim"), (71, "sim:cufile"), (72, "sim:cufile=refuse")];
    for (index, settings) in GPUS {
        let engine = Engine::new(Options::default()).expect("the defaults fit");
        let gpu = gpu(&engine, index, settings);
        let (_folder, path) = file_in_a_folder_here(LEN);
        let file = engine.open_with(&path, &OpenOptions::writing()).expect("the file opens");
        if let Some(reason) = file.no_direct_io() {
            return println!("skipped: bytes that go straight: {reason}");
        }
        let mut buffer = engine.allocate(gpu, 2 << 20).expect("memory");
        file.read(&mut buffer).run().expect("what is in memory");
        file.read(&mut buffer).at(512).run().expect("crooked");
        file.write(&buffer).run().expect("a write");
        let pieces = [Piece::new(&file, 0, 1 << 20, 0)];
        let targets = [&mut buffer];
        engine.read_many(&pieces, targets).run().expect("a piece");
        let reported = transfers(&path);
        let of = |message: &str| -> Vec<Option<&str>> {
            let these = reported.iter().filter(|event| event.message() == message);
            these.map(|event| event.get("not_direct")).collect()
        };
        let whys = of("transfer begins");
        assert_eq!(of("transfer ended"), whys, "{reported:?}");
        let mut few = engine.allocate(gpu, 4096).expect("memory");
        file.read(&mut few).run().expect("what is in memory");
        let small = transfers(&path).pop().expect("its end");
        assert_eq!(small.get("not_direct").is_some(), settings != "sim", "{small:?}");
        let expected: [&str; 4] = match settings {
            "sim" => {
                assert_eq!(whys, [None; 4], "{reported:?}");
                continue;
            }
            "sim:cufile" => [
                "in the page cache",
                "memory address and file offset differ modulo 4096",
                "only if the route is required",
                "pieces of one call",
            ],
            _ => ["5008", "5008", "only if the route is required", "pieces of one call"],
        };
        assert_eq!(whys.len(), expected.len(), "{reported:?}");
        for (why, part) in whys.into_iter().zip(expected) {
            assert!(why.is_some_and(|why| why.contains(part)), "{settings}: {part}: {reported:?}");
        }
    }
}
