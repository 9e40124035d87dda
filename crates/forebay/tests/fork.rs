//! A process that forks while bytes move: the child is refused every call of its parent's
//! engine, hangs nowhere and gives nothing back; the parent's bytes arrive whole.

#![allow(clippy::unwrap_used, reason = "a test may fail by panicking")]
#![allow(unsafe_code, reason = "lends memory, as a caller would")]

mod lab;

use std::fs;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use forebay::gpu::sim::SimDevice;
use forebay::gpu::{CallerStream, Device, GpuSelector};
use forebay::internal::AddressKind;
use forebay::internal::clock::SystemClock;
use forebay::{
    Buffer, Completions, Engine, Error, File, OpenOptions, Options, Piece, RequestOptions,
    RingChoice, Route, Transfer,
};
use lab::fork::{Side, fork};
use lab::{child, pattern, watchdog::Watchdog};

const LEN: usize = 4 << 20;

/// An engine with a slow GPU, and a file.
struct Rig {
    engine: Engine,
    gpu: Arc<dyn Device>,
    file: File,
    bytes: Vec<u8>,
    folder: tempfile::TempDir,
}

impl Rig {
    fn new(ring: RingChoice, gpu: &str) -> Self {
        let engine = Engine::new(options(ring)).unwrap();
        let config = gpu.parse().unwrap();
        let gpu: Arc<dyn Device> =
            Arc::new(SimDevice::new(0, config, Arc::new(SystemClock::new())));
        engine.add_device(&gpu).unwrap();
        let folder = tempfile::tempdir_in(".").unwrap();
        let path = folder.path().join("file");
        let bytes = pattern(7, LEN);
        fs::write(&path, &bytes).unwrap();
        let file = engine.open_with(&path, &OpenOptions::writing()).unwrap();
        Self { engine, gpu, file, bytes, folder }
    }

    fn buffer(&self, on_gpu: bool) -> Buffer {
        let len = LEN as u64;
        let buffer = match on_gpu {
            true => self.engine.allocate(self.gpu.id(), len),
            false => self.engine.allocate_pinned(len),
        };
        buffer.unwrap()
    }

    /// Reads with O_DIRECT where that is available.
    fn options(&self, on_gpu: bool) -> RequestOptions {
        match self.file.no_direct_io() {
            None if on_gpu => {
                RequestOptions { route: Some(Route::Staged), ..RequestOptions::default() }
            }
            _ => RequestOptions::default(),
        }
    }

    fn start(&self, on_gpu: bool) -> Transfer {
        let buffer = self.buffer(on_gpu);
        self.file.read(buffer).options(self.options(on_gpu)).start().unwrap()
    }

    fn check(&self, transfer: Transfer) {
        let (result, buffer) = transfer.wait();
        assert_eq!(result.unwrap().bytes, LEN as u64);
        let mut got = vec![0; LEN];
        buffer.unwrap().download(0, &mut got).unwrap();
        assert!(got == self.bytes, "other bytes arrived");
    }
}

fn options(ring: RingChoice) -> Options {
    let mut options = Options::default();
    options.slot_size = 256 << 10;
    options.segment_size = 64 << 10;
    options.arena_size = Some(1 << 20);
    options.ring = ring;
    options
}

/// That a call was refused for what it is.
fn refused<T: std::fmt::Debug>(result: Result<T, Error>) {
    let error = result.expect_err("a child was served");
    let parent = std::os::unix::process::parent_id();
    assert!(matches!(error, Error::Forked { process, .. } if process == parent), "{error}");
    assert!(error.to_string().contains("forked from it"), "{error}");
    assert!(error.hint().is_some_and(|hint| hint.contains("after the fork")), "{error}");
}

/// Lends memory, and makes calls that check for interrupts.
fn use_memory_of_others(rig: &Rig, on_gpu: Buffer) {
    let Rig { engine, gpu, file, .. } = rig;
    let (mut host, address) = ([0; 10], on_gpu.address());
    // SAFETY: all of it is refused.
    let lent = unsafe {
        refused(engine.borrow_device_memory(address, 1));
        refused(engine.borrow_device_ranges(&[(address, 1)]));
        let go_on = &mut || panic!("a child waits");
        refused(engine.wait_for_stream(gpu.id(), CallerStream(0), go_on));
        engine.borrow_host_memory(host.as_mut_ptr() as u64, 10)
    };
    let (options, go_on) = (RequestOptions::default(), &mut || true);
    for mut buffer in [lent, on_gpu] {
        refused(file.read(&mut buffer).options(options).while_(go_on).run());
        refused(file.write(&buffer).options(options).while_(go_on).run());
        let pieces = [Piece::new(file, 0, 10, 0)];
        refused(engine.read_many(&pieces, &mut [buffer]).options(options).while_(go_on).run());
    }
    refused(file.read_to_end(None).while_(go_on).run());
}

/// Queries everything that can be queried.
fn call_everything(rig: &Rig, spare: [Buffer; 2], under_way: [Transfer; 4], say: &dyn Fn(&str)) {
    let Rig { engine, gpu, file, .. } = rig;
    let (mut host, mut bytes) = (vec![0; 4096], vec![0; LEN]);
    let [mut on_gpu, mut on_host] = spare;
    say("engine");
    refused(engine.open(file.path()));
    refused(engine.device(&GpuSelector::Auto));
    refused(engine.device(&"sim".parse().unwrap()));
    refused(engine.add_device(gpu));
    refused(engine.allocate(gpu.id(), 4096));
    refused(engine.allocate_pinned(4096));
    assert!(engine.notes()[0].contains("forked from it"));
    assert_eq!(engine.options().slot_size, 256 << 10);
    assert!(format!("{engine:?}").contains("Engine"));
    say("small and large reads and writes");
    refused(file.read(&mut host).run());
    refused(file.read(&mut bytes).exact().run());
    refused(file.read(&mut on_gpu).run());
    refused(file.read_to_end(Some(gpu.id())).run());
    refused(file.write(&host).run());
    refused(file.write(&on_host).run());
    say("questions to a file");
    refused(file.len());
    refused(file.is_empty());
    refused(file.residency(0, 1));
    refused(file.evict());
    refused(file.sync_data());
    refused(file.sync_all());
    refused(file.preallocate(0, 1));
    assert!(file.no_direct_io().is_some());
    assert_eq!((file.drive(), file.drive_model(), file.is_rotational()), (None, None, None));
    say("buffers");
    assert!(on_host.as_slice().is_none() && on_host.as_mut_slice().is_none());
    assert!(on_gpu.as_slice().is_none());
    for buffer in [&mut on_gpu, &mut on_host] {
        refused(buffer.fill(1));
        refused(buffer.upload(0, &[1]));
        refused(buffer.download(0, &mut [1]));
    }
    say("the GPU");
    assert!(gpu.memory().is_err() && gpu.allocate(1).is_err() && gpu.create_stream().is_err());
    assert_eq!(gpu.address_kind(on_gpu.address()), AddressKind::Unknown);
    say("memory of others");
    let (part, on_gpu) = on_gpu.split_at(10);
    use_memory_of_others(rig, part);
    say("transfers");
    refused(file.read(on_gpu).start());
    refused(file.write(on_host).start());
    let [first, second, third, fourth] = under_way;
    assert!(first.is_done() && first.progress().1 == LEN as u64);
    assert!(first.routes().is_empty() && first.stages().copy < Duration::MAX);
    first.wait_for(Duration::MAX).into_iter().for_each(refused);
    first.cancel();
    refused(first.wait().0);
    refused(second.wait_at_most(Duration::MAX).0);
    let text = format!("{third:?}");
    assert!(text.contains("Transfer"), "{text}");
    fourth.on_end(|| panic!("a child runs the callback"));
    assert!(fourth.reclaim().is_empty());
    fourth.detach();
    drop(third);
    say("the last handles");
    drop((file.clone(), engine.clone()));
}

fn children_are_refused(ring: RingChoice) {
    let _watchdog = Watchdog::start();
    for turn in 0..12 {
        let rig = Rig::new(ring, "sim:bandwidth=200MB/s");
        let spare = [true, false].map(|on_gpu| rig.buffer(on_gpu));
        let under_way = [true, false, true, false].map(|on_gpu| rig.start(on_gpu));
        // Other locks are held each time.
        std::thread::sleep(Duration::from_micros(turn * 700));
        match fork() {
            Side::Child(child) => child.run(move |say| {
                call_everything(&rig, spare, under_way, say);
                std::mem::forget(rig.folder);
                drop((rig.file, rig.engine, rig.gpu));
                say("the end");
            }),
            Side::Parent(parent) => {
                under_way.into_iter().for_each(|transfer| rig.check(transfer));
                parent.finish();
                rig.check(rig.start(true));
                drop(spare);
            }
        }
    }
}

#[test]
fn a_child_is_refused_and_hangs_nowhere() {
    children_are_refused(RingChoice::Auto);
}

#[test]
fn a_child_is_refused_where_threads_read() {
    children_are_refused(RingChoice::Pread);
}

#[test]
fn a_queue_of_ends_reports_nothing_to_a_child() {
    let _watchdog = Watchdog::start();
    let rig = Rig::new(RingChoice::Auto, "sim");
    let completions = Completions::new();
    rig.file.evict().unwrap();
    // No thread takes its completion before the fork.
    let buffer = rig.engine.allocate_pinned(4096).unwrap();
    let read = rig.file.read(buffer).start().unwrap();
    read.report_to(&completions, 7);
    match fork() {
        Side::Child(child) => child.run(move |say| {
            say("a wait");
            assert_eq!(completions.wait(None), None);
            std::mem::forget(rig.folder);
        }),
        Side::Parent(parent) => {
            parent.finish();
            assert_eq!(completions.wait(None), Some(7));
            read.wait().0.unwrap();
        }
    }
}

#[test]
fn a_child_has_engines_of_its_own() {
    let _watchdog = Watchdog::start();
    let rig = Rig::new(RingChoice::Auto, "sim:bandwidth=200MB/s");
    let under_way = rig.start(true);
    match fork() {
        Side::Child(child) => child.run(move |say| {
            say("an engine");
            let own = Engine::new(options(RingChoice::Auto)).unwrap();
            let gpu = own.device(&"sim".parse().unwrap()).unwrap().unwrap();
            say("a read");
            let file = own.open(rig.folder.path().join("file")).unwrap();
            let (buffer, _) = file.read_to_end(Some(gpu.id())).run().unwrap();
            let mut got = vec![0; LEN];
            buffer.download(0, &mut got).unwrap();
            assert!(got == rig.bytes, "other bytes arrived");
            say("a child of the child");
            match fork() {
                Side::Child(child) => child.run(|_| {
                    refused(file.len());
                    assert!(rig.file.len().is_err(), "its grandparent's");
                    std::mem::forget(rig.folder);
                }),
                Side::Parent(parent) => parent.finish(),
            }
            say("the end of the engine");
            drop((buffer, file, own));
            std::mem::forget(rig.folder);
        }),
        Side::Parent(parent) => {
            rig.check(under_way);
            parent.finish();
        }
    }
}

#[test]
fn a_child_has_memory_of_its_own_whatever_its_parent_allocates() {
    let _watchdog = Watchdog::start();
    let ended = AtomicBool::new(false);
    std::thread::scope(|scope| {
        // Another thread allocates at the moment of nearly every fork.
        scope.spawn(|| {
            let engine = Engine::new(options(RingChoice::Auto)).unwrap();
            while !ended.load(Ordering::Relaxed) {
                drop(engine.allocate_pinned(4096).unwrap());
            }
        });
        for _ in 0..30 {
            match fork() {
                Side::Child(child) => child.run(|say| {
                    say("an engine");
                    let own = Engine::new(options(RingChoice::Auto)).unwrap();
                    say("memory");
                    drop(own.allocate_pinned(4096).unwrap());
                }),
                Side::Parent(parent) => parent.finish(),
            }
        }
        ended.store(true, Ordering::Relaxed);
    });
}

#[test]
fn forks_during_copies_leave_every_byte_whole() {
    let _watchdog = Watchdog::start();
    for ring in [RingChoice::Auto, RingChoice::Pread] {
        let rig = Rig::new(ring, "sim:bandwidth=1GB/s");
        for _ in 0..20 {
            let _ = rig.file.evict().unwrap();
            let under_way = [true, false].map(|on_gpu| rig.start(on_gpu));
            let mut alive = Vec::new();
            while under_way.iter().any(|transfer| !transfer.is_done()) && alive.len() < 8 {
                match fork() {
                    // It holds what it has inherited while the parent's bytes arrive.
                    Side::Child(child) => {
                        child.run(|_| std::thread::sleep(Duration::from_millis(20)))
                    }
                    Side::Parent(parent) => alive.push(parent),
                }
            }
            under_way.into_iter().for_each(|transfer| rig.check(transfer));
            alive.into_iter().for_each(lab::fork::Parent::finish);
        }
    }
}

/// Forks during reads with O_DIRECT into memory of the caller, which children inherit and write to.
#[test]
fn forks_during_reads_into_a_callers_memory_leave_every_byte_whole() {
    let _watchdog = Watchdog::start();
    for ring in [RingChoice::Auto, RingChoice::Pread] {
        let rig = Rig::new(ring, "sim");
        let mut memory = vec![0_u8; LEN + 4096];
        let skip = memory.as_ptr().align_offset(4096);
        for _ in 0..20 {
            let _ = rig.file.evict().unwrap();
            let part = &mut memory[skip..skip + LEN];
            part.fill(0xee);
            let (address, len) = (part.as_mut_ptr() as u64, LEN as u64);
            // SAFETY: the memory outlives the transfer, and this process does not touch it until
            // the transfer has ended.
            let buffer = unsafe { rig.engine.borrow_host_memory(address, len) };
            let transfer = rig.file.read(buffer).options(rig.options(false)).start().unwrap();
            let mut alive = Vec::new();
            while !transfer.is_done() && alive.len() < 4 {
                match fork() {
                    Side::Child(child) => child.run(|_| {
                        // SAFETY: a fork copies the memory, and no other thread of the child runs.
                        unsafe { std::ptr::write_bytes(address as *mut u8, 0xdd, LEN) };
                    }),
                    Side::Parent(parent) => alive.push(parent),
                }
            }
            assert_eq!(transfer.wait().0.unwrap().bytes, len);
            assert!(memory[skip..skip + LEN] == rig.bytes, "other bytes arrived");
            alive.into_iter().for_each(lab::fork::Parent::finish);
        }
    }
}

/// The kernel's flags of the mapping that holds an address.
fn flags_of(address: u64) -> Option<String> {
    let maps = fs::read_to_string("/proc/self/smaps").unwrap();
    let mut is_it = false;
    for line in maps.lines() {
        let range = line.split(' ').next().and_then(|range| range.split_once('-'));
        let bound = |text| u64::from_str_radix(text, 16).ok();
        if let Some((Some(start), Some(end))) = range.map(|(a, b)| (bound(a), bound(b))) {
            is_it = (start..end).contains(&address);
        }
        if is_it && let Some(flags) = line.strip_prefix("VmFlags:") {
            return Some(flags.to_owned());
        }
    }
    None
}

#[test]
fn pinned_memory_is_not_inherited() {
    let rig = Rig::new(RingChoice::Auto, "sim");
    let address = rig.buffer(false);
    let flags = flags_of(address.address()).expect("the buffer is mapped");
    assert!(flags.split(' ').any(|flag| flag == "dc"), "it is inherited: {flags}");
    match fork() {
        Side::Child(child) => child.run(|_| {
            assert_eq!(flags_of(address.address()), None, "a child has it mapped");
            std::mem::forget(rig.folder);
        }),
        Side::Parent(parent) => parent.finish(),
    }
}

/// Kilobytes that the kernel counts as pinned for this process.
fn pinned() -> u64 {
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmPin:")).unwrap();
    line.trim().trim_end_matches(" kB").parse().unwrap()
}

/// In a process of its own, since it counts what the whole process has.
#[test]
fn a_child_that_lives_on_keeps_no_memory_pinned() {
    if child::role().is_none() {
        child::run("counts");
        return;
    }
    let rig = Rig::new(RingChoice::Auto, "sim");
    let _ = rig.file.evict().unwrap();
    rig.check(rig.start(true));
    if pinned() == 0 {
        return lab::skip("no ring keeps memory pinned here");
    }
    // It ends when the other end of this pipe does.
    let (waits, holds) = rustix::pipe::pipe().unwrap();
    match fork() {
        Side::Child(child) => child.run(|_| {
            drop(holds);
            let _ = rustix::io::read(&waits, &mut [0]);
        }),
        Side::Parent(parent) => {
            drop((rig.file, rig.engine, rig.gpu));
            assert_eq!(pinned(), 0, "kB are pinned after the engine's end");
            drop(holds);
            parent.finish();
        }
    }
}
