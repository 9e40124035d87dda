//! Layers of any shape, order and budget, on drives of any pace, and the statistics of their bytes.

use std::thread;
use std::time::{Duration, Instant};

use forebay::gpu::Device;
use forebay::{Error, File};
use forebay_layers::{Layer, LayerStream, Order, StreamOptions, StreamStatistics, Tier};

use crate::SHORT;
use crate::faults::{COUNT, holds, layers, served};
use crate::lab::fuse::drop_pages;
use crate::lab::seeds::{Dice, each, index};
use crate::lab::watchdog::Watchdog;
use crate::rig::{Model, Rig, SLOT, ordered};

/// Layers of parts anywhere in two files, also of the same bytes more than once.
fn any_model(rig: &Rig, dice: &mut Dice) -> Model {
    let contents = [0, 1].map(|seed| crate::rig::pattern(seed, SLOT + index(dice.below(1 << 20))));
    let files: Vec<File> = (0..2).map(|n| rig.file(&format!("file {n}"), &contents[n])).collect();
    let (mut layers, mut bytes) = (Vec::new(), Vec::new());
    for number in 0..1 + dice.below(8) {
        let (mut layer, mut parts) = (Layer::named(format!("layer {number}")), Vec::new());
        for _ in 0..1 + dice.below(4) {
            let from = index(dice.below(2));
            let whole = contents[from].len() as u64;
            let start = dice.below(whole);
            let most = dice.one_of(&[1, 5000, whole]);
            let len = 1 + dice.below(most) % (whole - start);
            layer = layer.with(&files[from], start, len);
            parts.push(contents[from][index(start)..index(start + len)].to_vec());
        }
        layers.push(layer);
        bytes.push(parts);
    }
    Model { layers, bytes }
}

/// An order of that many layers, and what a pass takes in it.
fn any_order(count: usize, dice: &mut Dice) -> (Order, Vec<usize>) {
    let forward: Vec<usize> = (0..count).collect();
    let backward: Vec<usize> = forward.iter().rev().copied().collect();
    let list: Vec<usize> =
        (0..1 + dice.below(9)).map(|_| index(dice.below(count as u64))).collect();
    match dice.below(5) {
        0 => (Order::Forward, forward),
        1 => (Order::Backward, backward),
        2 => (Order::Training, [forward, backward].concat()),
        3 => (Order::List(list.clone()), list),
        _ => (Order::Appended, list),
    }
}

fn any_options(order: Order, model: &Model, dice: &mut Dice) -> StreamOptions {
    let largest = model.layers.iter().map(Layer::len).max().unwrap_or(0);
    let all: u64 = model.layers.iter().map(Layer::len).sum();
    let budget = match dice.below(4) {
        0 => None,
        1 => Some(largest + dice.below(largest)), // slices, where parts are small enough
        _ => Some(2 * largest + dice.below(all)),
    };
    let mut options = ordered(order, budget);
    options.host_budget = dice.below(2) * dice.below(2 * all);
    options.mapped_budget = Some(dice.below(2) * all);
    options.check = dice.below(3) == 0;
    options
}

/// The reported bytes add up to those that were moved.
fn adds_up(reported: &StreamStatistics) {
    for times in &reported.layers {
        assert!(times.drive_bytes <= times.bytes, "{times:?}");
        let is_file = !times.pinned && !times.mapped;
        assert!(is_file || times.drive_bytes == 0, "{times:?}");
        let routed: u64 = times.routes.iter().map(|share| share.bytes).sum();
        assert_eq!(routed, if is_file { times.bytes } else { 0 }, "{times:?}");
        assert!(times.overhead() <= times.time(), "{times:?}");
    }
    let sum =
        |of: fn(&forebay_layers::PassTimes) -> u64| reported.passes.iter().map(of).sum::<u64>();
    let routed: u64 = reported.routes.iter().map(|share| share.bytes).sum();
    assert_eq!(sum(|pass| pass.file_bytes), routed, "{reported:?}");
    for pass in &reported.passes {
        let routed: u64 = pass.routes.iter().map(|share| share.bytes).sum();
        assert_eq!(pass.file_bytes, routed, "{pass:?}");
    }
    let brought: u64 = reported.layers.iter().map(|times| times.bytes).sum();
    let all = sum(|pass| pass.file_bytes + pass.pinned_bytes + pass.mapped_bytes);
    assert_eq!(all, brought, "{reported:?}");
    let drive: u64 = reported.layers.iter().map(|times| times.drive_bytes).sum();
    assert_eq!(sum(|pass| pass.drive_bytes), drive, "{reported:?}");
}

#[test]
fn layers_of_any_shape_are_what_the_files_hold() {
    let _watchdog = Watchdog::start();
    each("layers shapes::layers_of_any_shape", 30, |seed| {
        let (rig, mut dice) = (Rig::new(), Dice(seed));
        let model = any_model(&rig, &mut dice);
        let (order, taken) = any_order(model.layers.len(), &mut dice);
        let is_appended = order == Order::Appended;
        let options = any_options(order, &model, &mut dice);
        let stream = LayerStream::new(&rig.engine, &rig.gpu(), &model.layers, options.clone());
        let stream = match stream {
            // Parts are not cut.
            Err(Error::BadOption { name, .. }) if name == "gpu_budget" => return Some(()),
            stream => stream.expect("a stream"),
        };
        let slices = stream.slices();
        for _ in 0..3 {
            if is_appended {
                stream.prefetch(&taken).expect("layers that there are");
            }
            let seen = rig.pass(&stream, SHORT).expect("a pass");
            let of_slices = |&layer: &usize| std::iter::repeat_n(layer, slices);
            let expected: Vec<usize> = taken.iter().flat_map(of_slices).collect();
            model.check_all(&seen, &expected);
        }
        adds_up(&stream.statistics());
        stream.close().expect("an end");
        Some(())
    });
}

#[test]
fn a_slow_drive_is_waited_for_and_reported() {
    let _watchdog = Watchdog::start();
    let (rig, len) = (Rig::new(), 2 * SLOT as u64);
    let Some((fuse, file)) = served(&rig, len) else { return };
    let pause = Duration::from_millis(20);
    fuse.set(|faults| faults.pause = pause);
    drop_pages(&fuse.path());
    let options = ordered(Order::Forward, Some(2 * len));
    let stream = LayerStream::new(&rig.engine, &rig.gpu(), &layers(&file, len), options);
    let stream = stream.expect("a stream");
    let began = Instant::now();
    let seen = rig.pass(&stream, SHORT).expect("a pass");
    let took = began.elapsed();
    for (number, seen) in seen.iter().enumerate() {
        let bytes = seen.copy.as_slice().expect("host memory");
        assert!(holds(bytes, number, 0), "layer {number}");
    }
    let reported = stream.statistics();
    adds_up(&reported);
    let pass = &reported.passes[0];
    assert_eq!(pass.drive_bytes, COUNT * len, "{reported:?}");
    // The drive gives one answer after the other; a layer is one at least.
    let least = pause * u32::try_from(COUNT - 1).expect("few");
    assert!(took >= least && pass.time() >= least && pass.transfer >= least, "{reported:?}");
    assert!(pass.overhead() < pass.time() / 2, "the drive binds: {pass:?}");
    stream.close().expect("an end");
}

#[test]
fn slices_of_a_slow_drive_are_placed_one_by_one() {
    let _watchdog = Watchdog::start();
    let (rig, len) = (Rig::new(), 2 * SLOT as u64);
    let Some((fuse, file)) = served(&rig, len) else { return };
    fuse.set(|faults| faults.pause = Duration::from_millis(2));
    // The second part of each is a slice of its own.
    let cut = |number: u64| {
        let first = Layer::named("").with(&file, number * len, len - SLOT as u64 / 2);
        first.with(&file, (number + 1) * len - SLOT as u64 / 2, SLOT as u64 / 2)
    };
    let layers: Vec<Layer> = (0..COUNT).map(cut).collect();
    let some = Order::List(vec![4, 0, 2, 0]);
    for (order, takes) in [(Order::Forward, 6), (Order::Training, 12), (some, 4)] {
        drop_pages(&fuse.path());
        let mut options = ordered(order.clone(), Some(2 * (len - SLOT as u64 / 2)));
        (options.host_budget, options.mapped_budget) = (2 * COUNT * len, Some(0));
        let stream = LayerStream::new(&rig.engine, &rig.gpu(), &layers, options);
        let stream = stream.expect("a stream");
        assert_eq!(stream.slices(), 2);
        let pass = || {
            let seen = rig.pass(&stream, SHORT).expect("a pass");
            assert_eq!(seen.len(), 2 * takes, "{order:?}");
            for pair in seen.chunks(2) {
                assert_eq!((pair[0].layer, pair[0].slice), (pair[1].layer, 0));
                assert_eq!(pair[1].slice, 1);
            }
            for seen in &seen {
                let bytes = seen.copy.as_slice().expect("host memory");
                let from = seen.slice * index(len - SLOT as u64 / 2);
                assert!(holds(bytes, seen.layer, from), "{order:?}");
            }
        };
        let tiers = stream.tiers();
        assert_eq!(tiers.len(), 12, "{tiers:?}");
        let is_kept = |tier: &&Tier| matches!(tier, Tier::Pinned | Tier::Gpu);
        let kept = tiers.iter().filter(is_kept).count();
        assert_eq!(kept, if takes == 4 { 6 } else { 12 }, "{order:?}: {tiers:?}");
        (0..3).for_each(|_| pass());
        let reported = stream.statistics();
        let last = reported.passes.last().expect("some");
        assert_eq!((last.file_bytes, last.drive_bytes), (0, 0), "{last:?}");
        assert!(last.pinned_bytes > 0, "{last:?}");
        // Its compute is that of both slices.
        let prediction = stream.prediction().expect("three passes are over");
        assert!(prediction.compute >= SHORT * u32::try_from(2 * takes).expect("few"));
        stream.close().expect("an end");
    }
}

#[test]
fn a_stream_from_a_slow_drive_ends_at_any_close() {
    let _watchdog = Watchdog::start();
    let (rig, len) = (Rig::new(), 2 * SLOT as u64);
    let Some((fuse, file)) = served(&rig, len) else { return };
    fuse.set(|faults| faults.pause = Duration::from_millis(2));
    let before = rig.device.memory().expect("it is there").0;
    each("layers shapes::a_stream_from_a_slow_drive_ends", 12, |seed| {
        let mut dice = Dice(seed);
        drop_pages(&fuse.path());
        let mut options = ordered(Order::Forward, Some((2 + dice.below(2)) * len));
        options.host_budget = dice.below(2) * 3 * len;
        let stream = LayerStream::new(&rig.engine, &rig.gpu(), &layers(&file, len), options);
        let (stream, ends) = (stream.expect("a stream"), Duration::from_micros(dice.below(40_000)));
        thread::scope(|scope| {
            let taking = scope.spawn(|| {
                loop {
                    match rig.next(&stream) {
                        Ok(Some(_)) => rig.device.work(rig.compute(), SHORT).expect("a stream"),
                        Ok(None) => {}
                        Err(error) => return error.to_string(),
                    }
                }
            });
            thread::sleep(ends);
            let closing = Instant::now();
            stream.close().expect("an end");
            assert!(closing.elapsed() < Duration::from_secs(10), "{:?}", closing.elapsed());
            let error = taking.join().expect("no panic");
            assert!(error.contains("closed"), "{error}");
        });
        assert_eq!(rig.device.memory().expect("it is there").0, before, "memory is lost");
        Some(())
    });
}

#[test]
fn a_drive_that_fails_anywhere_fails_that_layer_alone() {
    let _watchdog = Watchdog::start();
    let (rig, len) = (Rig::new(), 2 * SLOT as u64);
    let Some((fuse, file)) = served(&rig, len) else { return };
    let before = rig.device.memory().expect("it is there").0;
    each("layers shapes::a_drive_that_fails_anywhere", 12, |seed| {
        let mut dice = Dice(seed);
        let (order, taken) = any_order(index(COUNT), &mut dice);
        let is_appended = order == Order::Appended;
        let mut options = ordered(order, Some((2 + dice.below(2)) * len));
        options.host_budget = dice.below(2) * 3 * len;
        let at = dice.below(COUNT * len);
        fuse.set(|faults| faults.fail_at = Some(at));
        drop_pages(&fuse.path());
        let stream = LayerStream::new(&rig.engine, &rig.gpu(), &layers(&file, len), options);
        let (stream, named) = (stream.expect("a stream"), format!("`layer {}`", at / len));
        let most = 1 + dice.below(3);
        let mut left = most;
        for _ in 0..2 {
            if is_appended {
                stream.prefetch(&taken).expect("layers that there are");
            }
            let mut seen = Vec::new();
            while seen.len() < taken.len() {
                match rig.next(&stream) {
                    Ok(Some(layer)) => seen.push(rig.use_layer(&layer, SHORT)),
                    Ok(None) => panic!("{} of {} layers", seen.len(), taken.len()),
                    Err(error) => {
                        assert!(error.to_string().contains(&named), "{error}: {named}");
                        assert_eq!(error.errno(), Some(libc::EIO), "{error:?}");
                        assert_eq!(taken[seen.len()] as u64, at / len, "{error}: it is not due");
                        left = left.checked_sub(1).expect("a drive that works again is read");
                    }
                }
                if left == 0 {
                    fuse.set(|faults| faults.fail_at = None);
                }
            }
            let is_due = taken.contains(&index(at / len));
            assert!(left < most || !is_due, "the drive was to fail at {at}");
            assert!(is_appended || rig.next(&stream).expect("the end of a pass").is_none());
            rig.device.synchronize(rig.stream).expect("the compute ends");
            for (seen, &layer) in seen.iter().zip(&taken) {
                let bytes = seen.copy.as_slice().expect("host memory");
                assert_eq!(seen.layer, layer);
                assert!(holds(bytes, layer, 0), "layer {layer}");
            }
        }
        stream.close().expect("an end");
        assert_eq!(rig.device.memory().expect("it is there").0, before, "memory is lost");
        Some(())
    });
}
