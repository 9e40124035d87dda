//! Tests of engine internals.

#[expect(unsafe_code, reason = "lends memory of simulated GPUs")]
mod borrowed;
mod cold;
mod corrupt;
mod cufile;
#[expect(unsafe_code, reason = "queues on streams of simulated GPUs")]
mod limit;
mod pinned;
mod reset;
mod several;
#[expect(unsafe_code, reason = "stands between the engine and a device's unsafe calls")]
mod silent;
mod together;
mod writes;

use std::sync::atomic::Ordering;

use super::*;
use crate::options::RingChoice;
use crate::plan::Route;
use crate::queue::Chore;
use crate::trace::What;

const LEN: usize = 3_000_000;

/// An engine with small slots, and a file that it can read and write with O_DIRECT.
struct Rig {
    engine: Engine,
    gpu: DeviceId,
    file: File,
    bytes: Vec<u8>,
    _folder: tempfile::TempDir,
}

impl Rig {
    fn new(ring: RingChoice) -> Option<Self> {
        let options = Options {
            slot_size: 256 << 10,
            segment_size: 64 << 10,
            arena_size: Some(1 << 20),
            ring,
            ..Options::default()
        };
        let engine = Engine::new(options).unwrap();
        let gpu = engine.device(&GpuSelector::Sim(Default::default())).unwrap().unwrap().id();
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("data");
        let bytes: Vec<u8> = (0..=250).cycle().take(LEN).collect();
        std::fs::write(&path, &bytes).unwrap();
        let file = engine.open_with(&path, &OpenOptions::writing()).unwrap();
        if let Some(reason) = file.no_direct_io() {
            println!("skipped: no O_DIRECT in the temporary folder: {reason}");
            return None;
        }
        Some(Self { engine, gpu, file, bytes, _folder: folder })
    }

    /// Moves the file to the GPU and back, with O_DIRECT.
    fn move_staged(&self) {
        let mut buffer = self.engine.allocate(self.gpu, LEN as u64).unwrap();
        let outcome = self.file.read(&mut buffer).route(Route::Staged).run().unwrap();
        assert!(outcome.routes.iter().all(|share| share.route == Route::Staged), "{outcome:?}");
        let mut got = vec![0; LEN];
        buffer.download(0, &mut got).unwrap();
        assert!(got == self.bytes);
        self.file.write(&buffer).at(4096).route(Route::Staged).run().unwrap();
        let there = std::fs::read(self.file.path()).unwrap();
        assert!(there[..4096] == self.bytes[..4096] && there[4096..] == self.bytes);
        self.file.write(&self.bytes).run().unwrap();
    }
}

#[test]
fn slots_are_moved_by_a_ring_and_by_threads() {
    for ring in [RingChoice::Auto, RingChoice::Pread] {
        let Some(rig) = Rig::new(ring) else { return };
        rig.move_staged();
        rig.file.evict().unwrap();
        let mut got = vec![0; LEN];
        rig.file.read(&mut got).run().unwrap();
        assert!(got == rig.bytes);
    }
}

#[test]
fn a_quiesced_engine_frees_its_memory_and_the_next_one_reads_its_files() {
    let Some(rig) = Rig::new(RingChoice::Auto) else { return };
    rig.move_staged();
    let buffer = rig.engine.allocate(rig.gpu, LEN as u64).unwrap(); // keeps the couriers
    let room = Arc::clone(rig.engine.inner.tools.arena.room());
    assert!(room.account().used() > 0);
    let Rig { engine, file, bytes, _folder, .. } = rig;
    let Ok(Quiesced::InUse(engine)) = engine.quiesce(Duration::ZERO) else { panic!("in use") };
    let clone = file.clone();
    let file = file.detach().unwrap_err();
    drop(clone);
    let (file, options) = (file.detach().unwrap(), engine.options().clone());
    assert!(matches!(engine.quiesce(Duration::ZERO), Ok(Quiesced::Ended)));
    assert_eq!(room.account().used(), 0);
    drop(buffer);
    let file = Engine::new(options).unwrap().attach(file);
    for len in [4096, LEN] {
        file.evict().unwrap();
        let mut got = vec![0; len];
        file.read(&mut got).exact().run().unwrap();
        assert!(got == bytes[..len]);
    }
}

#[test]
fn an_engine_whose_thread_hangs_is_not_quiesced() {
    let engine = Engine::new(Options::default()).unwrap();
    let (gate, shut) = std::sync::mpsc::channel::<()>();
    engine.inner.core.aside(Chore::Free, move || assert!(shut.recv().is_err()));
    assert!(matches!(engine.quiesce(Duration::ZERO), Ok(Quiesced::Hangs)));
    drop(gate);
}

#[test]
fn an_engine_ends_during_a_close_that_hangs() {
    let engine = Engine::new(Options::default()).unwrap();
    let (gate, shut) = std::sync::mpsc::channel::<()>();
    engine
        .inner
        .core
        .aside(Chore::Free, move || assert!(shut.recv().is_err(), "its sender is dropped"));
    let (sender, ended) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        drop(engine);
        sender.send(()).unwrap();
    });
    // The bound only separates late from never.
    assert_eq!(ended.recv_timeout(Duration::from_secs(60)), Ok(()));
    drop(gate);
}

/// PCI devices, one for each NUMA node that has any.
fn places() -> Vec<(u32, String)> {
    let system = forebay_topology::System::live();
    let devices = std::fs::read_dir("/sys/bus/pci/devices").into_iter().flatten().flatten();
    let mut places: Vec<(u32, String)> = devices
        .filter_map(|device| {
            let address = device.file_name().into_string().ok()?;
            Some((system.numa_node_of(&address)?, address))
        })
        .collect();
    places.sort();
    places.dedup_by_key(|place| place.0);
    places
}

#[test]
fn slots_and_readers_are_near_the_gpu() {
    let system = forebay_topology::System::live();
    if system.numa_nodes().len() < 2 {
        return println!("skipped: this machine has one NUMA node");
    }
    let places = places();
    if places.is_empty() {
        return println!("skipped: no device on PCI says which NUMA node it hangs on");
    }
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("data");
    std::fs::write(&path, vec![7; LEN]).unwrap();
    let clock = Arc::new(forebay_base::clock::SystemClock::new());
    let gpu = |index: u32, address: &str| -> Arc<dyn Device> {
        let gpu = gpu::sim::SimDevice::new(index, Default::default(), clock.clone());
        Arc::new(gpu.at(address))
    };
    for (node, address) in &places {
        let options = Options { readers: Some(1), small_size: 0, ..Options::default() };
        let engine = Engine::new(options).unwrap();
        let here = rustix::thread::sched_getaffinity(None).unwrap();
        let near = crate::memory::Node::new(*node, system.numa_cpus(*node)).cpus(&here);
        let read = |device: &Arc<dyn Device>| {
            engine.add_device(device).unwrap();
            let mut buffer = engine.allocate(device.id(), LEN as u64).unwrap();
            engine.open(&path).unwrap().read(&mut buffer).run().unwrap();
            let affinity = |thread| rustix::thread::sched_getaffinity(Some(thread)).unwrap();
            engine.inner.tools.affinity.threads().into_iter().map(affinity).collect::<Vec<_>>()
        };
        let wanted = if near.count() > 0 { near } else { here };
        assert_eq!(read(&gpu(0, address)), [wanted], "on node {node}");
        assert_eq!(engine.notes(), [""; 0]);
        for (address, len) in engine.inner.tools.arena.parts().places() {
            match crate::memory::nodes_of(address, len) {
                Ok(nodes) => assert!(nodes.iter().all(|other| other == node), "on node {node}"),
                Err(errno) => {
                    println!("skipped: the system does not report where pages lie: {errno}")
                }
            }
        }
        if let Some((other, address)) = places.iter().find(|place| place.0 != *node) {
            assert_eq!(read(&gpu(1, address)), [here], "on nodes {node} and {other}");
        }
    }
}

#[test]
fn a_trace_shows_the_thread_and_the_copy_of_each_slot() {
    let Some(rig) = Rig::new(RingChoice::Auto) else { return };
    rig.engine.start_trace();
    rig.move_staged();
    let mut small = [0; 100];
    rig.file.read(&mut small[..]).run().unwrap();
    let trace = rig.engine.end_trace();
    let spans = trace.threads.iter().flat_map(|thread| &thread.spans).chain(&trace.others);
    let spans: Vec<&What> = spans.map(|span| &span.what).collect();
    let count = |is_one: fn(&What) -> bool| spans.iter().filter(|what| is_one(what)).count();
    assert!(count(|what| matches!(what, What::Copy { link: 0, name: "to the GPU", .. })) > 0);
    assert!(count(|what| matches!(what, What::Copy { link: 0, name: "from the GPU", .. })) > 0);
    assert!(count(|what| matches!(what, What::Op { .. })) >= LEN >> 16, "each request");
    assert!(count(|what| matches!(what, What::Taken { .. })) > 0);
    let [(_, small)] = &trace.small[..] else { panic!("{trace:?}") };
    assert!(matches!(small.what, What::Small { name: "read", bytes: (0, 100) }));
    assert!(count(|what| matches!(what, What::Transfer { .. })) > 0);
    assert_eq!(trace.left_out, 0);
    assert!(trace.threads.iter().any(|thread| thread.overlaps), "the ring's thread");
    // Without a trace, nothing is recorded.
    rig.move_staged();
    let trace = rig.engine.end_trace();
    assert!(trace.threads.is_empty() && trace.small.is_empty() && trace.others.is_empty());
}

#[test]
fn statistics_count_every_request_and_copy() {
    let Some(rig) = Rig::new(RingChoice::Auto) else { return };
    rig.move_staged();
    let found = rig.engine.statistics();
    let [files, copies] = [&found.file, &found.copy].map(|histogram| histogram.count());
    assert!(files >= 2 * (LEN as u64 >> 16), "{files} requests");
    assert!(copies >= 2 * (LEN as u64 >> 18) && copies == found.link_wait.count(), "{copies}");
    // There are four slots for twelve windows.
    assert!(found.slot_wait.count() > 0);
    for histogram in [&found.file, &found.copy, &found.link_wait, &found.slot_wait] {
        let median = histogram.quantile(0.5).unwrap();
        assert!(median <= histogram.max() && histogram.max() <= histogram.sum());
        assert!(histogram.max() < std::time::Duration::from_secs(1000), "{histogram:?}");
    }
    rig.move_staged();
    assert!(rig.engine.statistics().file.count() > files);
}

#[test]
fn a_little_on_its_way_does_not_send_small_reads_the_long_way() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("data");
    std::fs::write(&path, vec![7; LEN]).unwrap();
    let engine = Engine::new(Options::default()).unwrap();
    // A copy of any size takes long.
    let slow = "sim:latency=200ms".parse().unwrap();
    let device = engine.device(&GpuSelector::Sim(slow)).unwrap().unwrap();
    let file = engine.open(&path).unwrap();
    // If part of it was done at the time of the check, it is tried again.
    let once = |len: u64| {
        let buffer = engine.allocate(device.id(), len).unwrap();
        let transfer = file.read(buffer).start().unwrap();
        let queues_all = || engine.queued_on(&device) >= len;
        while !queues_all() && !transfer.is_done() {
            std::thread::yield_now();
        }
        let goes_short = engine.idle_lanes(&device, Instant::now()).is_some();
        let asked_in_time = queues_all();
        transfer.wait().0.unwrap();
        asked_in_time.then_some(goes_short)
    };
    let read = |len| (0..50).find_map(|_| once(len)).expect("200 ms are enough once");
    assert!(read(64 << 10) && !read(LEN as u64), "{LEN} bytes are too much to wait for");
    assert!(engine.idle_lanes(&device, Instant::now()).is_some(), "nothing is on its way any more");
}

#[test]
fn short_reads_that_never_end_do_not_keep_a_long_one_from_ending() {
    const LONG: u64 = 48 << 20;
    const SHORT: u64 = 256 << 10;
    let most = std::time::Duration::from_secs(30); // alone it takes 0.16 s
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("data");
    std::fs::write(&path, vec![7; usize::try_from(LONG).unwrap()]).unwrap();
    let options = Options { small_size: 0, slot_size: 1 << 20, ..Options::default() };
    let engine = Engine::new(options).unwrap();
    let slow = "sim:bandwidth=300MB/s".parse().unwrap();
    let gpu = engine.device(&GpuSelector::Sim(slow)).unwrap().unwrap().id();
    let file = engine.open(&path).unwrap();
    let over = std::sync::atomic::AtomicBool::new(false);
    let start = std::time::Instant::now();
    let took = std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                let new = || engine.allocate(gpu, SHORT).unwrap();
                let read = |buffer| file.read(buffer).start().unwrap();
                let mut running: std::collections::VecDeque<_> =
                    (0..8).map(|_| read(new())).collect();
                while !over.load(Ordering::Relaxed) && start.elapsed() < most * 2 {
                    let (outcome, buffer) = running.pop_front().unwrap().wait();
                    outcome.unwrap();
                    running.push_back(read(buffer.unwrap()));
                }
                running.into_iter().for_each(|transfer| drop(transfer.wait()));
            });
        }
        let mut target = engine.allocate(gpu, LONG).unwrap();
        file.read(&mut target).run().unwrap();
        over.store(true, Ordering::Relaxed);
        start.elapsed()
    });
    assert!(took < most, "{took:?}");
}

#[test]
fn whether_reads_wait_is_known_once_a_file_is_open() {
    for direct_io in [DirectIo::Auto, DirectIo::Off] {
        let engine = Engine::new(Options { direct_io, ..Options::default() }).unwrap();
        let folder = tempfile::tempdir_in(".").unwrap();
        let path = folder.path().join("data");
        std::fs::write(&path, [1; 100]).unwrap();
        let file = engine.open(&path).unwrap();
        let handle = &file.handle;
        assert!(handle.is_memory() || handle.knows_nowait(), "{direct_io:?}");
    }
}

#[test]
fn a_thread_that_drops_the_last_handle_does_not_wait_for_itself() {
    let engine = Engine::new(Options::default()).unwrap();
    let (sender, waited) = std::sync::mpsc::channel();
    let threads = engine.inner.threads.clone();
    let own = threads.clone();
    threads.start_cold(move || sender.send(own.wait()).unwrap()).unwrap();
    assert_eq!(waited.recv(), Ok(true));
}
