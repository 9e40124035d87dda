//! Streams whose pages are pinned and unpinned at any moment.

use std::fs;
use std::path::Path;

use forebay::gpu::sim::{SimConfig, SimDevice};
use forebay::gpu::{CallerStream, Device};
use forebay::{Engine, Options};
use forebay_base::clock::SystemClock;

use super::*;
use crate::{Layer, LayerStream, Order, StreamOptions};

/// Runs a pass and returns how many of its bytes came from pinned pages.
fn pass(stream: &LayerStream) -> u64 {
    // SAFETY: the default stream is alive, and nothing is queued on it.
    while unsafe { stream.next(CallerStream(0)) }.unwrap().is_some() {}
    stream.statistics().passes.last().map_or(0, |pass| pass.mapped_bytes)
}

const LEN: u64 = 1 << 20;

/// A file of four layers, and a stream that may pin all of their pages.
struct Rig {
    engine: Engine,
    device: Arc<SimDevice>,
    layers: Vec<Layer>,
    folder: tempfile::TempDir,
}

impl Rig {
    fn new() -> Self {
        let engine = Engine::new(Options::default()).unwrap();
        let device = SimDevice::new(0, SimConfig::default(), Arc::new(SystemClock::new()));
        let device = Arc::new(device);
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join("file"), vec![7; 4 << 20]).unwrap();
        let file = engine.open(folder.path().join("file")).unwrap();
        let named = |n: u64| Layer::named(format!("layer {n}")).with(&file, n * LEN, LEN);
        let layers = (0..4).map(named).collect();
        thread::sleep(Duration::from_millis(2100)); // until the files' timestamps count as settled
        Self { engine, device, layers, folder }
    }

    fn stream(&self) -> LayerStream {
        self.stream_within(Some(u64::MAX))
    }

    fn stream_within(&self, mapped_budget: Option<u64>) -> LayerStream {
        let mut options = StreamOptions::ordered(Order::Forward);
        (options.gpu_budget, options.mapped_budget) = (Some(2 * LEN), mapped_budget);
        let on = Arc::clone(&self.device) as Arc<dyn Device>;
        LayerStream::new(&self.engine, &on, &self.layers, options).unwrap()
    }

    fn bring_in(&self) {
        fs::read(self.folder.path().join("file")).unwrap();
    }
}

/// A simulated machine with this many KiB of memory available and in total.
fn machine(folder: &Path, available: u64, all: u64) -> System {
    fs::create_dir_all(folder.join("proc")).unwrap();
    let table = format!("MemTotal: {all} kB\nMemAvailable: {available} kB\n");
    fs::write(folder.join("proc/meminfo"), table).unwrap();
    System::at(folder)
}

#[test]
fn pages_that_others_need_are_released() {
    let rig = Rig::new();
    let stream = rig.stream();
    let is_pinned = (0..200).any(|_| {
        rig.bring_in();
        pass(&stream) == 4 * LEN
    });
    assert!(is_pinned, "{:?}", stream.mapped());
    let before = rig.device.registrations();
    // 4 MiB are pinned, and a sixteenth of all memory must be left besides.
    stream.shared.group.look_at_memory(&machine(rig.folder.path(), 8192, 65536));
    assert_eq!(stream.mapped(), (4 * LEN, None), "there is enough");
    stream.shared.group.look_at_memory(&machine(rig.folder.path(), 8191, 65536));
    for _ in 0..3 {
        pass(&stream);
    }
    assert_eq!(pass(&stream), 0);
    let until = Instant::now() + Duration::from_secs(10);
    while stream.mapped().0 > 0 && Instant::now() < until {
        thread::sleep(CHECKS_EVERY);
    }
    let reason = "of 64 MiB of memory too little is left for other programs";
    assert_eq!(stream.mapped(), (0, Some(reason.into())));
    assert!(rig.device.registrations() + 4 <= before);
    stream.close().unwrap();
}

#[test]
fn pages_of_what_is_written_to_meanwhile_are_not_kept() {
    let rig = Rig::new();
    let stream = rig.stream_within(None); // it pins nothing before a layer is loaded again
    let group = &stream.shared.group;
    for refuse in [false, true] {
        rig.bring_in();
        let pinned = group.pin_pages(&group.units[1]).recv().expect("an answer");
        assert!(pinned.is_ok(), "the pages are there");
        if refuse {
            group.homes().maps.refuse(1, "it is written to".into());
        }
        group.keep_pages(1, pinned);
        assert_eq!(group.home(1).is_some(), !refuse);
        group.let_pages_go(1);
    }
    assert_eq!(stream.mapped().1.as_deref(), Some("it is written to"));
    stream.close().unwrap();
}

#[test]
fn pages_that_are_on_their_way_out_go_with_the_stream() {
    let rig = Rig::new();
    for _ in 0..20 {
        let stream = rig.stream();
        let is_pinned = (0..200).any(|_| {
            rig.bring_in();
            pass(&stream) == 4 * LEN
        });
        assert!(is_pinned, "{:?}", stream.mapped());
        // Without the thread, as if none could be started. Layers that are loaded again must not be
        // pinned at once, which would start another.
        {
            let maps = &mut stream.shared.group.homes().maps;
            maps.at_once = false;
            maps.came.fill(0);
        }
        *stream.shared.group.mapper.wishes.lock() = None;
        let left = (0..4).filter_map(|number| stream.shared.group.homes().take_pages(number));
        for (number, home) in left.enumerate() {
            let leaving = Leaving { unit: number, home: Some(home), copies: Copies::Begin };
            stream.shared.group.mapper.leaving.lock().push(leaving);
        }
        if stream.shared.group.mapper.leaving.lock().len() == 4 {
            let reason = stream.mapped().1.unwrap();
            assert!(reason.starts_with("no thread can be started to pin"), "{reason}");
        }
        stream.close().unwrap();
        assert_eq!(stream.mapped().0, 0);
        // The engine may still hold the slots briefly. A thread that pins again what was removed
        // unpins that when it is done.
        let until = Instant::now() + Duration::from_secs(10);
        while rig.device.registrations() > 1 && Instant::now() < until {
            thread::sleep(CHECKS_EVERY);
        }
        let left = rig.device.registrations();
        assert!(left <= 1, "{left} are left");
    }
    assert_eq!(rig.device.misused(), 0);
}

#[test]
fn pages_may_be_released_at_any_moment() {
    let rig = Rig::new();
    for round in 0..40_u64 {
        rig.bring_in();
        let stream = rig.stream();
        thread::scope(|scope| {
            scope.spawn(|| {
                thread::sleep(Duration::from_micros(round * 331 % 7919));
                stream.shared.group.let_all_pages_go("others need it");
            });
            for _ in 0..6 {
                pass(&stream);
            }
        });
        assert_eq!(pass(&stream), 0);
        stream.close().unwrap();
    }
    assert_eq!(rig.device.misused(), 0);
}

#[test]
fn pages_go_before_others_have_no_memory() {
    const GIB: u64 = 1 << 30;
    let left = |available, pinned| MemoryLeft {
        available: available * GIB,
        pinned: pinned * GIB,
        all: 128 * GIB,
    };
    assert!(!is_short(left(100, 0), 50 * GIB));
    assert!(!is_short(left(100, 50), 50 * GIB), "counted once");
    assert!(is_short(left(57, 0), 50 * GIB));
    assert!(is_short(left(100, 95), 10 * GIB), "others have pinned the rest");
}
