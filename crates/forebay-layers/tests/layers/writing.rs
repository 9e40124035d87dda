//! Layers that are changed on the GPU and written back.

#![expect(unsafe_code, reason = "queues work on streams of its own, as a caller would")]

use std::cell::Cell;
use std::fs;
use std::os::fd::AsRawFd;
use std::thread;
use std::time::Duration;

use forebay::gpu::Device;
use forebay::{Error, OpenOptions};
use forebay_layers::{Layer, LayerStream, Order, Step, StreamOptions, Taken};

use crate::lab::seeds::{Dice, each, index};
use crate::lab::watchdog::Watchdog;
use crate::rig::{Model, Rig, SLOT, ordered};
use crate::{LEN, SHORT};

const COUNT: usize = 5;

/// The model, of files that are open for writing.
pub(crate) fn writable(rig: &Rig, len: usize) -> Model {
    let model = rig.model(COUNT, len);
    let open = |layer: &Layer| {
        layer.parts().iter().fold(Layer::named(layer.name()), |made, part| {
            let file = rig.engine.open_with(part.file.path(), &OpenOptions::writing());
            made.with(&file.expect("it opens"), part.offset, part.len)
        })
    };
    Model { layers: model.layers.iter().map(open).collect(), bytes: model.bytes }
}

/// Has the compute fill all of a layer, gaps as well, and the model know.
pub(crate) fn change(rig: &Rig, model: &mut Model, layer: &Taken, byte: u8) {
    let memory = layer.memory().expect("it is held");
    rig.device.work(rig.compute(), SHORT).expect("a stream");
    // SAFETY: the memory stays until the stream's work is done.
    unsafe { rig.device.fill(rig.stream, memory.address(), byte, memory.len()) }.expect("a fill");
    model.bytes[layer.layer()].iter_mut().for_each(|part| part.fill(byte));
}

pub(crate) fn write_back(rig: &Rig, layer: &Taken) -> Result<(), Error> {
    // SAFETY: the stream is this device's and alive.
    unsafe { layer.write_back(rig.compute()) }
}

/// Changes every layer of a pass and writes it back.
fn changed_pass(rig: &Rig, model: &mut Model, stream: &LayerStream, first: u8) {
    let mut byte = first;
    while let Some(layer) = rig.next(stream).expect("it can be read") {
        change(rig, model, &layer, byte);
        write_back(rig, &layer).expect("it can be written");
        byte = byte.wrapping_add(1);
    }
}

/// What the files hold, with the model's layers taken out.
fn outside_layers(model: &Model) -> Vec<Vec<u8>> {
    let parts = || model.layers.iter().flat_map(Layer::parts);
    let mut paths: Vec<_> = parts().map(|part| part.file.path().to_owned()).collect();
    paths.sort();
    paths.dedup();
    let read = |path: std::path::PathBuf| {
        let mut bytes = fs::read(&path).expect("it is there");
        for part in parts().filter(|part| part.file.path() == path) {
            let start = usize::try_from(part.offset).expect("small");
            bytes[start..start + usize::try_from(part.len).expect("small")].fill(0);
        }
        bytes
    };
    paths.into_iter().map(read).collect()
}

pub(crate) fn on_the_drive(model: &Model) {
    for (layer, expected) in model.layers.iter().zip(&model.bytes) {
        for (part, expected) in layer.parts().iter().zip(expected) {
            let bytes = fs::read(part.file.path()).expect("it is there");
            let start = usize::try_from(part.offset).expect("small");
            assert!(bytes[start..start + expected.len()] == expected[..], "{}", layer.name());
        }
    }
}

#[test]
fn changed_layers_are_written_and_read_back() {
    let rig = Rig::new();
    let everything = |pinned: u64, mapped: u64| {
        let mut options = StreamOptions::default();
        (options.host_budget, options.mapped_budget) = (pinned, Some(mapped));
        options
    };
    let half = 2 * (LEN as u64 + 8192);
    let kinds = [
        (Order::Forward, everything(0, 0)),
        (Order::Training, everything(0, 0)),
        (Order::Forward, everything(0, u64::MAX)),
        (Order::Appended, everything(half, 0)),
    ];
    for (order, options) in kinds {
        let mut model = writable(&rig, LEN);
        let before = outside_layers(&model);
        let mut options = options;
        (options.order, options.gpu_budget) = (order.clone(), Some(2 * model.layers[0].len()));
        let waits = options.mapped_budget != Some(0);
        let stream = rig.stream(&model, options);
        for round in 0..4_u8 {
            if waits && round == 0 {
                thread::sleep(Duration::from_millis(2100)); // so that pages are pinned
            }
            if order == Order::Appended {
                stream.prefetch(&[0, 1, 2, 3, 4]).expect("layers that there are");
            }
            let seen = rig.pass(&stream, SHORT).expect("a pass");
            seen.iter().for_each(|seen| model.check(seen));
            if order == Order::Appended {
                stream.prefetch(&[0, 1, 2, 3, 4]).expect("layers that there are");
            }
            changed_pass(&rig, &mut model, &stream, 10 * round);
        }
        assert!(stream.flush_while(&mut || true).expect("all is written"));
        on_the_drive(&model);
        assert!(
            outside_layers(&model) == before,
            "{order:?}: bytes around the layers were changed"
        );
        assert!(stream.statistics().written_bytes > 0);
        stream.close().expect("an end");
    }
}

#[test]
fn pending_writes_end_before_the_stream() {
    let rig = Rig::new();
    let mut model = writable(&rig, LEN);
    let stream = rig.stream(&model, ordered(Order::Forward, Some(2 * model.layers[0].len())));
    changed_pass(&rig, &mut model, &stream, 40);
    stream.close().expect("an end");
    on_the_drive(&model);
}

#[test]
fn unwritable_layers_are_refused_or_reported() {
    let rig = Rig::new();
    let model = rig.model(COUNT, LEN);
    let stream = rig.stream(&model, ordered(Order::Forward, None));
    let layer = rig.next(&stream).expect("it can be read").expect("a layer");
    let error = write_back(&rig, &layer).expect_err("the file is open for reading");
    assert_eq!(error.to_string(), "cannot write the layer `layer 0`");
    let cause = error.without_layer().to_string();
    assert!(cause.contains("open it for writing"), "{cause}");
    let mut model = writable(&rig, LEN);
    let stream = rig.stream(&model, ordered(Order::Forward, None));
    let layer = rig.next(&stream).expect("it can be read").expect("a layer");
    rig.next(&stream).expect("it can be read").expect("a layer");
    let error = write_back(&rig, &layer).expect_err("it was released");
    assert!(error.without_layer().to_string().contains("released"), "{error:?}");

    // A file that takes no more writes once it is open.
    let flags = rustix::fs::MemfdFlags::ALLOW_SEALING | rustix::fs::MemfdFlags::CLOEXEC;
    let sealed = rustix::fs::memfd_create("sealed", flags).expect("memory");
    rustix::io::pwrite(&sealed, &vec![5; 4 * SLOT], 0).expect("room");
    let path = format!("/proc/self/fd/{}", sealed.as_raw_fd());
    let file = rig.engine.open_with(path, &OpenOptions::writing()).expect("it opens");
    let len = 2 * SLOT as u64;
    let named = |n: u64| Layer::named(format!("layer {n}")).with(&file, n * len, len);
    model.layers = (0..2).map(named).collect();
    model.bytes = vec![vec![vec![5; 2 * SLOT]]; 2];
    rustix::fs::fcntl_add_seals(&sealed, rustix::fs::SealFlags::WRITE).expect("a seal");
    for closes in [false, true] {
        let stream = rig.stream(&model, ordered(Order::Forward, None));
        for _ in 0..2 {
            let layer = rig.next(&stream).expect("it can be read").expect("a layer");
            write_back(&rig, &layer).expect("it is known later");
        }
        let reported = |error: Error, layer: usize| {
            assert_eq!(error.to_string(), format!("cannot write the layer `layer {layer}`"));
            assert!(matches!(error.without_layer(), Error::Io { .. }), "{error:?}");
        };
        if closes {
            reported(stream.close().expect_err("it cannot be written"), 0);
            continue;
        }
        // Each failure is reported once, and the stream continues.
        for layer in 0..2 {
            reported(stream.flush_while(&mut || true).expect_err("it cannot be written"), layer);
        }
        assert!(stream.flush_while(&mut || true).expect("reported before"));
        assert!(rig.next(&stream).expect("reported before").is_none());
        model.check_all(&rig.pass(&stream, SHORT).expect("a pass"), &[0, 1]);
        stream.close().expect("an end");
    }
}

/// A stream's end waits for what gets on, however long that takes.
#[test]
fn slow_writes_are_whole() {
    let watchdog = Duration::from_secs(1);
    // Copies that leave together are seen to have moved when the last of them has.
    let rig = Rig::with_watchdog("sim:bandwidth=4MB/s", watchdog);
    let mut model = writable(&rig, 8 * LEN);
    let stream = rig.stream(&model, ordered(Order::Forward, None));
    let layer = rig.next(&stream).expect("it can be read").expect("a layer");
    change(&rig, &mut model, &layer, 9);
    write_back(&rig, &layer).expect("it can be written");
    rig.device.synchronize(rig.stream).expect("the compute ends");
    let start = std::time::Instant::now();
    stream.close().expect("an end");
    assert!(start.elapsed() > watchdog, "too fast to show anything: {:?}", start.elapsed());
    on_the_drive(&model);
}

#[test]
fn a_part_that_fails_disturbs_no_other() {
    let rig = Rig::new();
    let mut model = writable(&rig, LEN);
    let flags = rustix::fs::MemfdFlags::ALLOW_SEALING | rustix::fs::MemfdFlags::CLOEXEC;
    let sealed = rustix::fs::memfd_create("sealed", flags).expect("memory");
    rustix::io::pwrite(&sealed, &[5; SLOT], 0).expect("room");
    let path = format!("/proc/self/fd/{}", sealed.as_raw_fd());
    let file = rig.engine.open_with(path, &OpenOptions::writing()).expect("it opens");
    rustix::fs::fcntl_add_seals(&sealed, rustix::fs::SealFlags::WRITE).expect("a seal");
    // The first layer has a part of it in front of its own.
    let own = model.layers[0].parts().iter().cloned();
    let first = Layer::named("sealed").with(&file, 0, SLOT as u64);
    model.layers[0] = own.fold(first, |layer, part| layer.with(&part.file, part.offset, part.len));
    let stream = rig.stream(&model, ordered(Order::Forward, None));
    let layer = rig.next(&stream).expect("it can be read").expect("a layer");
    let memory = layer.memory().expect("it is held");
    // SAFETY: the memory stays until the stream's work is done.
    unsafe { rig.device.fill(rig.stream, memory.address(), 9, memory.len()) }.expect("a fill");
    write_back(&rig, &layer).expect("it is known later");
    while rig.next(&stream).expect("it can be read").is_some() {
        rig.device.work(rig.compute(), SHORT).expect("a stream");
    }
    let error = stream.flush_while(&mut || true).expect_err("a part cannot be written");
    assert_eq!(error.to_string(), "cannot write the layer `sealed`");
    assert!(matches!(error.without_layer(), Error::Io { .. }), "{error:?}");
    stream.close().expect("an end");
    // Every other layer is as it was.
    on_the_drive(&Model { layers: model.layers.split_off(1), bytes: model.bytes.split_off(1) });
}

#[test]
fn layers_that_share_bytes_are_not_written() {
    let rig = Rig::new();
    let model = writable(&rig, LEN);
    let shared = &model.layers[1].parts()[0];
    let tied = Layer::named("tied").with(&shared.file, shared.offset + shared.len - 1, 1);
    let layers = [model.layers[0].clone(), model.layers[1].clone(), tied];
    let options = ordered(Order::Forward, None);
    let stream = LayerStream::new(&rig.engine, &rig.gpu(), &layers, options).expect("a stream");
    let layer = rig.next(&stream).expect("it can be read").expect("a layer");
    write_back(&rig, &layer).expect("it has its bytes alone");
    let layer = rig.next(&stream).expect("it can be read").expect("a layer");
    let error = write_back(&rig, &layer).expect_err("another has some of them");
    let cause = error.without_layer().to_string();
    assert!(cause.contains("`tied` has some of these bytes"), "{cause}");
    let twice = Layer::named("twice").with(&shared.file, 0, 100).with(&shared.file, 99, 100);
    let options = ordered(Order::Forward, None);
    let own = LayerStream::new(&rig.engine, &rig.gpu(), &[twice], options).expect("a stream");
    let taken = rig.next(&own).expect("it can be read").expect("a layer");
    let error = write_back(&rig, &taken).expect_err("two parts have the same byte");
    let cause = error.without_layer().to_string();
    assert!(cause.contains("another part of it has some of these bytes"), "{cause}");
    own.close().expect("an end");
    rig.device.set_capturing(rig.stream, true).expect("a stream");
    for refused in [write_back(&rig, &layer), release(&rig, &layer)] {
        let error = refused.expect_err("the stream is captured");
        let text = error.without_layer().to_string();
        assert!(text.contains("captured") || text.contains("`tied`"), "{error}");
    }
    rig.device.set_capturing(rig.stream, false).expect("a stream");
    release(&rig, &layer).expect("it is held");
    stream.close().expect("an end");
}

fn release(rig: &Rig, layer: &Taken) -> Result<(), Error> {
    // SAFETY: the stream is this device's and alive.
    unsafe { layer.release(rig.compute()) }
}

/// Changes and writes layers back, and gives up and tries again, as the dice fall, until the stream
/// is closed; the layers that are to be written, each with its byte.
fn write_until_closed(rig: &Rig, stream: &LayerStream, mut dice: Dice) -> Vec<(usize, u8)> {
    let mut written = Vec::new();
    loop {
        let next = index(dice.below(COUNT as u64));
        if dice.below(3) == 0 && stream.prefetch(&[next]).is_err() {
            return written;
        }
        let patience = dice.below(3);
        let mut calls = 0;
        let mut go_on = || {
            calls += 1;
            calls <= patience
        };
        // SAFETY: the stream is this device's and alive.
        let layer = match unsafe { stream.next_while(rig.compute(), &mut go_on) } {
            Ok(Step::Taken(layer)) => layer,
            Ok(_) => {
                thread::yield_now();
                continue;
            }
            Err(_) => return written,
        };
        let Ok(memory) = layer.memory() else { return written };
        let byte = u8::try_from(1 + dice.below(255)).expect("at most 255");
        rig.device.work(rig.compute(), SHORT).expect("a stream");
        // SAFETY: the stream waits for its compute before it gives the memory back.
        unsafe { rig.device.fill(rig.stream, memory.address(), byte, memory.len()) }
            .expect("a fill");
        drop(memory);
        match write_back(rig, &layer) {
            Ok(()) => written.push((layer.layer(), byte)),
            Err(_) => return written,
        }
    }
}

#[test]
fn pending_writes_are_made_whenever_the_stream_is_closed() {
    let _watchdog = Watchdog::start();
    let most = Cell::new(0);
    each("layers writing::pending_writes_are_made", 12, |seed| {
        let (rig, mut dice) = (Rig::new(), Dice(seed));
        let mut model = writable(&rig, LEN);
        let len = model.layers[0].len();
        let mut options = ordered(Order::Appended, Some((2 + dice.below(2)) * len));
        options.host_budget = dice.below(2) * 3 * len;
        let stream = rig.stream(&model, options);
        let before = outside_layers(&model);
        // On a busy machine nothing may be written in so short a time.
        let longer = if most.get() == 0 { seed.min(8) } else { 0 };
        let ends = Duration::from_micros(dice.below(30_000 << longer));
        let written = thread::scope(|scope| {
            let writing = scope.spawn(|| write_until_closed(&rig, &stream, Dice(seed + 1)));
            thread::sleep(ends);
            stream.close().expect("an end");
            writing.join().expect("no panic")
        });
        most.set(most.get().max(written.len()));
        for (layer, byte) in written {
            model.bytes[layer].iter_mut().for_each(|part| part.fill(byte));
        }
        rig.device.synchronize(rig.stream).expect("the compute ends");
        on_the_drive(&model);
        assert!(before == outside_layers(&model), "bytes outside the layers have changed");
        Some(())
    });
    // One seed alone may end the stream before anything is written.
    assert!(most.get() > 0 || std::env::var_os("FOREBAY_SEED").is_some(), "nothing was written");
}
