//! Streams that end, or fork, while their threads are in the middle of something: pages that are
//! pinned from a drive that hangs, layers that are written to one, compute that does not go on.

#![expect(unsafe_code, reason = "queues work on streams of its own, as a caller would")]

use std::fs;
use std::thread;
use std::time::{Duration, Instant};

use forebay::gpu::Device;
use forebay::gpu::sim::SimCall;
use forebay::{Engine, Error, OpenOptions, Options};
use forebay_layers::{Layer, LayerStream, Order, Step};

use crate::lab::child;
use crate::lab::fork::{Side, fork};
use crate::lab::fuse::Fuse;
use crate::lab::hanging::HangingDrive;
use crate::lab::or_skip;
use crate::lab::watchdog::Watchdog;
use crate::mapped::{SETTLED, settle};
use crate::rig::{Rig, SLOT, Seen, ordered};
use crate::writing::{change, on_the_drive, writable, write_back};
use crate::{LEN, SHORT};

const COUNT: u64 = 6;

/// Far longer than any end takes, and far shorter than what hangs.
const AT_ONCE: Duration = Duration::from_secs(20);

/// Far longer than the end of a stream whose compute is stuck takes, with a watchdog of a second.
const STUCK: Duration = Duration::from_secs(12);

fn layers(file: &forebay::File, len: u64) -> Vec<Layer> {
    (0..COUNT).map(|n| Layer::named(format!("layer {n}")).with(file, n * len, len)).collect()
}

/// Has a layer's pages pinned while its drive hangs, of which less than a tenth is missing; whether
/// that came about: others may take more from the page cache, or nothing.
fn hangs(drive: &HangingDrive, stream: &LayerStream, (layer, len): (u64, u64)) -> bool {
    let path = drive.path().join("file");
    let file = fs::File::open(&path).expect("it is there");
    let give_back = |from, len| {
        let advice = rustix::fs::Advice::DontNeed;
        rustix::fs::fadvise(&file, from, std::num::NonZero::new(len), advice).expect("an advice");
    };
    // What is written lies in larger folios than what is read, of which a part stays whole.
    give_back(0, 0);
    fs::read(&path).expect("it is there");
    give_back(layer * len + len / 2, len / 16);
    let before = stream.mapped().0;
    drive.hang(true);
    stream.prefetch(&[usize::try_from(layer).expect("few")]).expect("it is there");
    let until = Instant::now() + Duration::from_secs(2);
    while drive.fuse().parked() == 0 && Instant::now() < until {
        thread::sleep(Duration::from_millis(1));
    }
    // It is counted while it is pinned, and not where it is refused.
    drive.fuse().parked() > 0 && stream.mapped().0 == before + len
}

#[test]
fn a_drive_that_hangs_while_pages_are_pinned_blocks_no_caller() {
    let _watchdog = Watchdog::start();
    let (rig, len) = (Rig::new(), 4 << 20);
    let Some(drive) = or_skip(HangingDrive::new(96 << 20)) else { return };
    let path = drive.path().join("file");
    fs::write(&path, vec![7; 24 << 20]).expect("room");
    fs::File::open(&path).and_then(|file| file.sync_all()).expect("it is written");
    let file = rig.engine.open(&path).expect("the file opens");
    let mut options = ordered(Order::Appended, Some(2 * len));
    options.mapped_budget = Some(u64::MAX);
    let stream = LayerStream::new(&rig.engine, &rig.gpu(), &layers(&file, len), options);
    let stream = stream.expect("a stream");
    let take = |all: &[usize]| {
        stream.prefetch(all).expect("layers that there are");
        all.iter().for_each(|_| drop(rig.next(&stream).expect("it can be read").expect("one")));
    };
    take(&[0, 1, 2, 3, 4, 5]);
    thread::sleep(SETTLED);
    let is_hung = (0..4).any(|layer| {
        if hangs(&drive, &stream, (layer, len)) {
            return true;
        }
        drive.hang(false);
        rig.next(&stream).expect("it can be read").expect("a layer");
        take(&[4, 5]);
        false
    });
    if !is_hung {
        return crate::lab::skip("pages of a drive that hangs: others take them from the cache");
    }
    let began = Instant::now();
    thread::scope(|scope| {
        let waiting = scope.spawn(|| rig.next(&stream).expect_err("it never comes").to_string());
        thread::sleep(Duration::from_millis(100));
        assert!(stream.statistics().layers.len() >= 6);
        stream.close().expect("its copies end");
        assert!(waiting.join().expect("no panic").contains("stream is closed"));
    });
    assert!(began.elapsed() < AT_ONCE, "{:?}", began.elapsed());
    assert!(drive.fuse().parked() > 0, "it hung meanwhile");
    drive.hang(false);
    // What is pinned too late is given back.
    let until = Instant::now() + AT_ONCE;
    while rig.device.registrations() > 0 && Instant::now() < until {
        thread::sleep(Duration::from_millis(5));
    }
    assert_eq!(rig.device.registrations(), 0);
}

#[test]
fn a_stream_whose_compute_is_stuck_has_an_end_with_pages_and_with_layers_to_write() {
    let _watchdog = Watchdog::start();
    for is_written in [false, true] {
        let rig = Rig::with_watchdog("sim:bandwidth=4GB/s", Duration::from_secs(1));
        let model = writable(&rig, LEN);
        let mut options = ordered(Order::Forward, Some(2 * model.layers[0].len()));
        options.mapped_budget = Some(u64::MAX);
        let stream = rig.stream(&model, options);
        if !is_written {
            thread::sleep(SETTLED);
            settle(&rig, &model, &stream);
        }
        let layer = rig.next(&stream).expect("it can be read").expect("a layer");
        let memory = layer.memory().expect("it is held");
        rig.device.work(rig.compute(), STUCK).expect("a stream");
        // SAFETY: the memory stays until the stream's work is done.
        unsafe { rig.device.fill(rig.stream, memory.address(), 3, memory.len()) }.expect("a fill");
        if is_written {
            write_back(&rig, &layer).expect("it is known later");
        }
        drop(memory);
        rig.next(&stream).expect("it can be read").expect("a layer");
        let began = Instant::now();
        let error = stream.close().expect_err("the compute is stuck");
        assert!(began.elapsed() < STUCK, "{:?}", began.elapsed());
        assert!(matches!(error.without_layer(), Error::CopyNotOver { .. }), "{error:?}");
        let names = matches!(&error, Error::Layer { layer, .. } if layer == "layer 0");
        assert_eq!(names, is_written, "{error:?}");
        drop(stream);
        rig.device.synchronize(rig.stream).expect("the compute ends");
        on_the_drive(&model); // nothing was written
    }
}

#[test]
fn a_close_waits_for_writes_within_a_bound() {
    let _watchdog = Watchdog::start();
    let rig = Rig::with_watchdog("sim:bandwidth=4GB/s", Duration::from_secs(1));
    let len = 2 * SLOT as u64;
    let Some(fuse) = or_skip(Fuse::new(vec![1; 12 * SLOT])) else { return };
    let file = rig.engine.open_with(fuse.path(), &OpenOptions::writing()).expect("it opens");
    let options = ordered(Order::Forward, Some(2 * len));
    let stream = LayerStream::new(&rig.engine, &rig.gpu(), &layers(&file, len), options);
    let stream = stream.expect("a stream");
    let next = || rig.next(&stream).expect("it can be read").expect("a layer");
    let write = |layer: &forebay_layers::Taken, byte: u8| {
        let memory = layer.memory().expect("it is held");
        // SAFETY: the memory stays until the stream's work is done.
        unsafe { rig.device.fill(rig.stream, memory.address(), byte, memory.len()) }.expect("fill");
        fuse.set(|faults| faults.hang_writes = true);
        write_back(&rig, layer).expect("it is known later");
        fuse.wait_for_parked(1);
    };
    write(&next(), 9);
    // Others come and go through the other buffer.
    assert_eq!([1, 2, 3, 4, 5].map(|_| next().layer()), [1, 2, 3, 4, 5]);
    assert!(rig.next(&stream).expect("no error").is_none());
    let mut calls = 0;
    let mut go_on = || {
        calls += 1;
        calls < 6
    };
    // SAFETY: the stream is this device's and alive.
    let step = unsafe { stream.next_while(rig.compute(), &mut go_on) }.expect("no error");
    assert!(matches!(step, Step::Interrupted), "{step:?}");
    fuse.set(|faults| faults.hang_writes = false);
    let first = next();
    let mut bytes = vec![0; 2 * SLOT];
    first.memory().expect("it is held").download(0, &mut bytes).expect("memory");
    assert!(first.layer() == 0 && bytes.iter().all(|&byte| byte == 9));
    assert!(stream.flush_while(&mut || true).expect("it is written"));
    assert!(fuse.content()[..2 * SLOT] == bytes[..]);
    write(&first, 10);
    assert!(!stream.flush_while(&mut || false).expect("nothing failed"), "it hangs");
    let began = Instant::now();
    let error = stream.close().expect_err("it hangs");
    assert!(began.elapsed() < AT_ONCE, "{:?}", began.elapsed());
    assert_eq!(error.to_string(), "cannot write the layer `layer 0`");
    assert!(matches!(error.without_layer(), Error::TimedOut { .. }), "{error:?}");
    fuse.set(|faults| faults.hang_writes = false);
}

/// Waits until a thread is in a call of the driver that hangs.
fn wait_for_hang(rig: &Rig) {
    let until = Instant::now() + AT_ONCE;
    while rig.device.hanging() == 0 {
        assert!(Instant::now() < until, "no call hangs");
        thread::sleep(Duration::from_millis(1));
    }
}

/// Closes a stream whose driver hangs.
fn closes_in_time(stream: &LayerStream) {
    let began = Instant::now();
    let error = stream.close().expect_err("the driver hangs");
    assert!(began.elapsed() < AT_ONCE, "{:?}", began.elapsed());
    assert!(matches!(error, Error::CopyNotOver { .. }), "{error:?}");
    let reason = std::error::Error::source(&error).expect("a reason").to_string();
    assert!(reason.contains("a call of the driver does not return"), "{reason}");
}

#[test]
fn a_driver_that_hangs_for_one_gpu_delays_neither_its_end_nor_the_other_gpu() {
    let _watchdog = Watchdog::start();
    let first = Rig::with_watchdog("sim:bandwidth=4GB/s", Duration::from_secs(1));
    let second = first.sibling("sim:bandwidth=4GB/s");
    let model = first.model(6, LEN);
    let options = ordered(Order::Forward, Some(2 * model.layers[0].len()));
    let gpus = [first.gpu(), second.gpu()];
    let streams = LayerStream::group(&first.engine, &gpus, &model.layers, options);
    let streams = streams.expect("streams");
    let all: Vec<usize> = (0..6).collect();
    thread::scope(|scope| {
        first.next(&streams[0]).expect("it can be read").expect("a layer");
        first.device.hang(Some(SimCall::RecordOnCaller));
        let hung = scope.spawn(|| drop(first.next(&streams[0])));
        wait_for_hang(&first);
        for _ in 0..2 {
            model.check_all(&second.pass(&streams[1], SHORT).expect("a pass"), &all);
        }
        closes_in_time(&streams[0]);
        model.check_all(&second.pass(&streams[1], SHORT).expect("a pass"), &all);
        assert!(!hung.is_finished());
        first.device.hang(None);
        hung.join().expect("no panic");
    });
    streams.iter().for_each(|stream| drop(stream.close().expect("all copies are over")));
}

#[test]
fn a_copy_that_cannot_be_queued_does_not_delay_the_end() {
    let _watchdog = Watchdog::start();
    // The loader copies what comes from files, the caller what is in pinned memory.
    for host_budget in [0, 1 << 30] {
        let rig = Rig::with_watchdog("sim:bandwidth=4GB/s", Duration::from_millis(300));
        let model = rig.model(6, LEN);
        let mut options = ordered(Order::Appended, Some(2 * model.layers[0].len()));
        options.host_budget = host_budget;
        let stream = rig.stream(&model, options);
        stream.prefetch(&[0, 1, 2]).expect("layers that there are");
        (0..3).for_each(|_| drop(rig.next(&stream).expect("it can be read").expect("a layer")));
        thread::scope(|scope| {
            rig.device.hang(Some(SimCall::CopyToDevice));
            let hung = scope.spawn(|| {
                let _ = stream.prefetch(&[0, 1, 2]);
                drop(rig.next(&stream));
            });
            wait_for_hang(&rig);
            closes_in_time(&stream);
            rig.device.hang(None);
            hung.join().expect("no panic");
        });
        stream.close().expect("all copies are over");
    }
}

/// That a child was refused for what it is.
fn refused<T: std::fmt::Debug>(result: Result<T, Error>) {
    let error = result.expect_err("a child was served");
    assert!(matches!(error, Error::Forked { .. }), "{error}");
}

#[test]
fn a_fork_leaves_the_streams_of_its_parent_alone() {
    let _watchdog = Watchdog::start();
    let rig = Rig::new();
    let mut model = writable(&rig, LEN);
    let mut options = ordered(Order::Forward, Some(2 * model.layers[0].len()));
    options.mapped_budget = Some(u64::MAX);
    let stream = rig.stream(&model, options);
    thread::sleep(SETTLED);
    settle(&rig, &model, &stream);
    let layer = rig.next(&stream).expect("it can be read").expect("a layer");
    change(&rig, &mut model, &layer, 77);
    write_back(&rig, &layer).expect("it can be written");
    match fork() {
        Side::Child(child) => child.run(|say| {
            say("taking");
            refused(rig.next(&stream));
            refused(stream.rewind());
            refused(stream.prefetch(&[0]));
            refused(stream.flush_while(&mut || panic!("a child waits")));
            refused(write_back(&rig, &layer));
            refused(layer.memory());
            refused(stream.pass_len());
            assert!(stream.prediction().is_none());
            assert_eq!(stream.mapped(), (0, None));
            stream.begin_pass();
            assert!(stream.statistics().layers.is_empty());
            say("ending");
            refused(stream.close());
            drop(layer);
            drop(stream);
            say("ended");
        }),
        Side::Parent(parent) => {
            model.check_all(&rig.pass(&stream, SHORT).expect("the rest"), &[1, 2, 3, 4]);
            parent.finish();
            model.check_all(&rig.pass(&stream, SHORT).expect("a pass"), &[0, 1, 2, 3, 4]);
            stream.close().expect("an end");
            on_the_drive(&model);
        }
    }
}

/// Threads of this process that an engine or a stream of layers has started.
fn threads() -> usize {
    let tasks = std::fs::read_dir("/proc/self/task").expect("this process").flatten();
    let names = tasks.filter_map(|task| std::fs::read_to_string(task.path().join("comm")).ok());
    names.filter(|name| name.starts_with("forebay-")).count()
}

#[test]
fn a_stream_outlives_its_engine_and_files_and_ends_with_all_threads() {
    let _watchdog = Watchdog::start();
    if child::role().is_none() {
        child::run("threads");
        return;
    }
    for mapped in [false, true] {
        for (dropped_after, ends_after) in [(0, 6), (2, 6), (1, 3), (0, 0)] {
            let mut rig = Rig::new();
            let mut model = rig.model(6, 3 * SLOT);
            let mut options = ordered(Order::Forward, Some(2 * model.layers[0].len()));
            options.host_budget = if mapped { u64::MAX } else { 0 };
            let stream = rig.stream(&model, options);
            for number in 0..ends_after.max(1) {
                if number == dropped_after {
                    model.layers.clear();
                    rig.engine = Engine::new(Options::default()).expect("limits that fit");
                    rig.engine.add_device(&rig.gpu()).expect("a new device");
                }
                if number < ends_after {
                    let layer = rig.next(&stream).expect("no error").expect("a layer");
                    let seen = rig.use_layer(&layer, Duration::ZERO);
                    let seen = Seen { parts: layer.parts().collect(), ..seen };
                    rig.device.synchronize(rig.stream).expect("the compute ends");
                    model.check(&seen);
                }
            }
            drop((stream, rig));
            while threads() > 0 {
                std::thread::sleep(Duration::from_millis(1)); // the watchdog ends what never comes
            }
        }
    }
}
