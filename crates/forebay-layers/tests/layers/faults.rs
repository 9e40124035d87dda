//! Files that fail, hang and shrink under a stream, GPUs that fail and go, and streams that end in
//! the middle.

#![expect(unsafe_code, reason = "queues work on streams of its own, as a caller would")]

use std::fs::OpenOptions;
use std::sync::Arc;
use std::time::{Duration, Instant};

use forebay::gpu::Device;
use forebay::gpu::sim::SimDevice;
use forebay::internal::clock::SystemClock;
use forebay::{Error, File};
use forebay_layers::{Layer, LayerStream, Order, Step};

use crate::lab::fuse::Fuse;
use crate::lab::or_skip;
use crate::lab::seeds::index;
use crate::lab::watchdog::Watchdog;
use crate::rig::{Rig, SLOT, ordered};
use crate::{LEN, SHORT};

pub(crate) const COUNT: u64 = 6;

/// Layers of one file, one behind the other.
pub(crate) fn layers(file: &File, len: u64) -> Vec<Layer> {
    (0..COUNT).map(|n| Layer::named(format!("layer {n}")).with(file, n * len, len)).collect()
}

/// What the byte at a place of a layer is: another one in each layer, and in each part of it.
fn byte_of(layer: usize, at: usize) -> u8 {
    (layer * 31 + at / 512 * 7 + at).to_le_bytes()[0]
}

/// Whether these are the bytes of a layer from a place on.
pub(crate) fn holds(bytes: &[u8], layer: usize, from: usize) -> bool {
    bytes.iter().zip(from..).all(|(&byte, at)| byte == byte_of(layer, at))
}

/// A file in user space with layers.
pub(crate) fn served(rig: &Rig, len: u64) -> Option<(Fuse, File)> {
    let len = usize::try_from(len).expect("it fits");
    let bytes = (0..index(COUNT)).flat_map(|layer| (0..len).map(move |at| byte_of(layer, at)));
    let fuse = or_skip(Fuse::new(bytes.collect()))?;
    let file = rig.engine.open(fuse.path()).expect("the file opens");
    Some((fuse, file))
}

/// The same, and a stream of its layers.
fn streamed(rig: &Rig, len: u64) -> Option<(Fuse, LayerStream)> {
    let (fuse, file) = served(rig, len)?;
    let options = ordered(Order::Forward, Some(2 * len));
    let stream = LayerStream::new(&rig.engine, &rig.gpu(), &layers(&file, len), options);
    Some((fuse, stream.expect("a stream")))
}

#[test]
fn a_failed_read_fails_its_layer_alone() {
    let _watchdog = Watchdog::start();
    let (rig, len) = (Rig::new(), 2 * SLOT as u64);
    let Some((fuse, stream)) = streamed(&rig, len) else { return };
    fuse.set(|faults| faults.fail_at = Some(3 * len + SLOT as u64 + 5));
    for layer in 0..3 {
        assert_eq!(rig.next(&stream).expect("it can be read").expect("a layer").layer(), layer);
    }
    for _ in 0..2 {
        let error = rig.next(&stream).expect_err("it cannot be read");
        assert_eq!(error.to_string(), "cannot read the layer `layer 3`");
        assert!(
            matches!(error.without_layer(), Error::Io { place, .. } if place.path == fuse.path()),
            "{error:?}"
        );
        assert!(error.errno() == Some(libc::EIO) && error.hint().is_some(), "{error:?}");
    }
    fuse.set(|faults| faults.fail_at = None);
    for layer in 3..6 {
        let taken = rig.next(&stream).expect("it can be read").expect("a layer");
        let seen = rig.use_layer(&taken, SHORT);
        rig.device.synchronize(rig.stream).expect("the compute ends");
        assert_eq!(taken.layer(), layer);
        assert!(holds(seen.copy.as_slice().expect("host memory"), layer, 0));
    }
    assert!(rig.next(&stream).expect("the end of a pass").is_none());
}

#[test]
fn layers_that_fail_together_are_reported_one_by_one_and_retried() {
    let rig = Rig::new();
    let model = rig.model(6, LEN);
    let stream = rig.stream(&model, ordered(Order::Forward, Some(2 * model.layers[0].len())));
    let whole: Vec<(std::path::PathBuf, Vec<u8>)> = (0..2)
        .map(|n| rig.folder.path().join(format!("file {n}")))
        .map(|path| (path.clone(), std::fs::read(path).expect("it is there")))
        .collect();
    rig.next(&stream).expect("it can be read").expect("a layer");
    let cut = |len: u64| {
        for (path, _) in &whole {
            let file = OpenOptions::new().write(true).open(path).expect("it is there");
            file.set_len(len).expect("a cut");
        }
    };
    cut(100);
    let failed = (0..8).filter(|_| rig.next(&stream).is_err()).count();
    assert!(failed > 5, "only {failed} of 8");
    let error = rig.next(&stream).expect_err("it is cut");
    assert!(is_end(&error), "{error:?}");
    whole.iter().for_each(|(path, bytes)| std::fs::write(path, bytes).expect("room"));
    // Each earlier failure is reported once; then all layers come.
    let mut seen = Vec::new();
    for _ in 0..30 {
        match rig.next(&stream) {
            Ok(Some(layer)) => {
                let looked = rig.use_layer(&layer, SHORT);
                seen.push(crate::rig::Seen { parts: layer.parts().collect(), ..looked });
            }
            Ok(None) => break,
            Err(_) => {}
        }
    }
    rig.device.synchronize(rig.stream).expect("the compute ends");
    let last = seen.last().expect("some came").layer;
    assert_eq!(last, 5);
    seen.iter().for_each(|seen| model.check(seen));
}

#[test]
fn a_file_that_shrinks_fails_the_layer_that_it_cuts() {
    let rig = Rig::new();
    let model = rig.model(6, LEN);
    let stream = rig.stream(&model, ordered(Order::Forward, Some(2 * model.layers[0].len())));
    let first = rig.next(&stream).expect("it can be read").expect("a layer");
    let cut = model.layers[4].parts()[0].offset + 100;
    let path = model.layers[4].parts()[0].file.path().to_owned();
    OpenOptions::new().write(true).open(&path).and_then(|file| file.set_len(cut)).expect("a cut");
    drop(first);
    for layer in 1..4 {
        assert_eq!(rig.next(&stream).expect("it can be read").expect("a layer").layer(), layer);
    }
    let error = rig.next(&stream).expect_err("it is cut");
    assert!(is_end(&error), "{error:?}");
    assert!(matches!(&error, Error::Layer { layer, .. } if layer == "layer 4"), "{error:?}");
    let cause = error.without_layer().to_string();
    assert!(cause.contains(path.to_str().expect("plain letters")), "{cause}");
}

#[test]
fn a_layer_without_a_name_is_called_by_its_number_and_a_slice_by_both() {
    let rig = Rig::new();
    let file = rig.file("short", &[1; 3 * SLOT]);
    let half = SLOT as u64;
    let layer = || Layer::named("").with(&file, 0, half).with(&file, half, half);
    let budget = Some(2 * half + 4096);
    let stream =
        LayerStream::new(&rig.engine, &rig.gpu(), &[layer()], ordered(Order::Forward, budget));
    let stream = stream.expect("a stream");
    let taken = rig.next(&stream).expect("it can be read").expect("a layer");
    assert_eq!((stream.slices(), taken.name()), (2, "layer 0 (1 of 2)"));
    let long = layer().with(&file, 0, 3 * half + 1);
    let refused =
        LayerStream::new(&rig.engine, &rig.gpu(), &[layer(), long], ordered(Order::Forward, None));
    let error = refused.expect_err("it is too long");
    assert_eq!(error.to_string(), "cannot read the layer `layer 1`");
    assert!(error.without_layer().to_string().contains("it ends behind"), "{error:?}");
}

/// Whether a file had ended.
fn is_end(error: &Error) -> bool {
    matches!(error.without_layer(), Error::FileChanged { .. } | Error::EndOfFile { .. })
}

#[test]
fn a_stream_whose_drive_hangs_can_be_closed() {
    let _watchdog = Watchdog::start();
    let (rig, len) = (Rig::new(), 2 * SLOT as u64);
    let Some((fuse, stream)) = streamed(&rig, len) else { return };
    rig.next(&stream).expect("it can be read").expect("a layer");
    fuse.set(|faults| faults.hang_from = Some(3 * len));
    crate::lab::fuse::drop_pages(&fuse.path());
    let began = Instant::now();
    std::thread::scope(|scope| {
        let waiting = scope.spawn(|| {
            loop {
                match rig.next(&stream) {
                    Ok(_) => {}
                    Err(error) => return error.to_string(),
                }
            }
        });
        fuse.wait_for_parked(1);
        stream.close().expect("its copies end");
        let error = "the layer stream is closed";
        assert_eq!(waiting.join().expect("no panic"), error);
    });
    assert!(began.elapsed() < Duration::from_secs(20));
    fuse.set(|faults| faults.hang_from = None);
}

#[test]
fn a_caller_gives_up_waiting() {
    let _watchdog = Watchdog::start();
    let (rig, len) = (Rig::new(), 2 * SLOT as u64);
    let Some((fuse, stream)) = streamed(&rig, len) else { return };
    fuse.set(|faults| faults.hang_from = Some(len));
    crate::lab::fuse::drop_pages(&fuse.path());
    let mut taken = Vec::new();
    let mut steps = |most: u32| {
        let mut calls = 0;
        let mut go_on = || {
            calls += 1;
            calls < most
        };
        loop {
            // SAFETY: the stream is this device's and alive.
            let next = unsafe { stream.next_while(rig.compute(), &mut go_on) };
            match next.expect("no error") {
                Step::Taken(layer) => taken.push(layer.layer()),
                Step::End => return true,
                Step::Interrupted => return false,
            }
        }
    };
    // The first layers may be there before the drive hangs. A caller that gives up may try again.
    assert!(!steps(3) && !steps(1));
    fuse.set(|faults| faults.hang_from = None);
    assert!(steps(u32::MAX), "the pass has an end");
    assert_eq!(taken, (0..6).collect::<Vec<_>>());
}

#[test]
fn a_panic_in_the_question_leaves_the_stream_as_it_is() {
    let _watchdog = Watchdog::start();
    let (rig, len) = (Rig::new(), 2 * SLOT as u64);
    let Some((fuse, file)) = served(&rig, len) else { return };
    fuse.set(|faults| faults.hang_from = Some(0));
    crate::lab::fuse::drop_pages(&fuse.path());
    let options = ordered(Order::Forward, Some(2 * len));
    let stream = LayerStream::new(&rig.engine, &rig.gpu(), &layers(&file, len), options);
    let stream = stream.expect("a stream");
    let taken = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        // SAFETY: the stream is this device's and alive.
        unsafe { stream.next_while(rig.compute(), &mut || panic!("no more")) }
    }));
    assert!(taken.is_err(), "nothing can have come");
    fuse.set(|faults| faults.hang_from = None);
    for layer in 0..6 {
        assert_eq!(rig.next(&stream).expect("it can be read").expect("a layer").layer(), layer);
    }
    stream.close().expect("an end");
}

#[test]
fn a_stream_that_is_closed_takes_nothing_more() {
    let rig = Rig::new();
    let model = rig.model(3, LEN);
    let stream = rig.stream(&model, ordered(Order::Appended, None));
    stream.prefetch(&[0, 1]).expect("layers that there are");
    let layer = rig.next(&stream).expect("it can be read").expect("a layer");
    stream.close().expect("an end");
    let closed = "the layer stream is closed";
    let errors = [
        stream.prefetch(&[2]).expect_err("closed"),
        layer.keep().expect_err("closed"),
        rig.next(&stream).expect_err("closed"),
        stream.rewind().expect_err("closed"),
    ];
    for error in errors {
        assert_eq!(error.to_string(), closed);
    }
}

#[test]
fn copies_that_fail_end_the_stream_and_leave_nothing_behind() {
    for seed in 0..12 {
        let rig = Rig::with(&format!("sim:copy-faults=0.02,seed={seed}"));
        let model = rig.model(4, LEN);
        let stream = rig.stream(&model, ordered(Order::Forward, Some(2 * model.layers[0].len())));
        for _ in 0..40 {
            match rig.next(&stream) {
                Ok(_) => {}
                Err(Error::Device { .. }) => break,
                Err(error) => panic!("seed {seed}: {error}"),
            }
        }
        let _ = stream.close();
        let error = rig.next(&stream).expect_err("it has ended").to_string();
        assert!(error.contains("closed") || error.contains("cannot copy"), "seed {seed}: {error}");
    }
}

#[test]
fn a_gpu_that_goes_ends_the_stream() {
    let rig = Rig::new();
    let model = rig.model(6, LEN);
    let stream = rig.stream(&model, ordered(Order::Forward, None));
    rig.next(&stream).expect("it can be read").expect("a layer");
    rig.device.lose();
    let error = (0..10).find_map(|_| rig.next(&stream).err()).expect("the GPU is gone");
    assert!(error.to_string().contains("sim:0"), "{error}");
    assert!(stream.close().is_err());
}

#[test]
fn a_stream_ends_at_any_moment() {
    let rig = Rig::new();
    let model = rig.model(6, LEN);
    let before = rig.device.memory().expect("it is there").0;
    for seed in 0..40_u64 {
        let mut options = ordered(Order::Training, Some((2 + seed % 3) * model.layers[0].len()));
        options.host_budget = (seed % 2) * 3 * model.layers[0].len();
        options.check = seed % 5 == 0;
        let stream = rig.stream(&model, options);
        let mut held = Vec::new();
        for _ in 0..seed * 7 % 13 {
            if let Some(layer) = rig.next(&stream).expect("it can be read") {
                rig.device.work(rig.compute(), SHORT).expect("a stream");
                held.push(layer);
            }
        }
        if seed % 3 == 0 {
            drop(stream);
        } else {
            stream.close().expect("an end");
        }
        let error = held.last().map(|layer| layer.memory().is_err());
        assert_ne!(error, Some(false), "seed {seed}: a layer outlives its stream");
    }
    assert_eq!(rig.device.memory().expect("it is there").0, before, "memory of the GPU is lost");
}

#[test]
fn layers_larger_than_the_gpu_are_refused() {
    let rig = Rig::with("sim:memory=2M");
    let model = rig.model(6, LEN);
    let options = ordered(Order::Forward, Some(4 * model.layers[0].len()));
    let refused = LayerStream::new(&rig.engine, &rig.gpu(), &model.layers, options);
    let error = refused.expect_err("there is no room");
    assert!(matches!(error, Error::Device { .. }), "{error}");
    assert_eq!(rig.device.memory().expect("it is there").0, 2 << 20);
}

#[test]
fn a_gpu_that_others_fill_meanwhile_is_streamed_to_as_before() {
    let rig = Rig::with("sim:memory=8M,bandwidth=4GB/s");
    let model = rig.model(6, LEN);
    let mut options = ordered(Order::Forward, Some(2 * model.layers[0].len()));
    options.host_budget = 3 * (model.layers[0].len() + 65_536);
    let stream = rig.stream(&model, options);
    let all: Vec<usize> = (0..6).collect();
    model.check_all(&rig.pass(&stream, SHORT).expect("a pass"), &all[..]);
    let mut others = Vec::new();
    for size in [1 << 20, 1 << 16, 1 << 12, 256] {
        while let Ok(memory) = rig.engine.allocate(rig.device.id(), size) {
            others.push(memory);
        }
    }
    assert!(rig.device.memory().expect("it is there").0 < 4096);
    for _ in 0..3 {
        model.check_all(&rig.pass(&stream, SHORT).expect("a pass"), &all[..]);
    }
    stream.close().expect("an end");
    drop(others);
}

#[test]
fn two_streams_and_two_gpus_bring_the_same_layers() {
    let rig = Rig::new();
    let model = rig.model(5, LEN);
    let config = "sim:bandwidth=1GB/s".parse().expect("a configuration");
    let other = Arc::new(SimDevice::new(1, config, Arc::new(SystemClock::new())));
    let shared: Arc<dyn Device> = Arc::clone(&other) as _;
    rig.engine.add_device(&shared).expect("a new GPU");
    let second = Rig {
        engine: rig.engine.clone(),
        stream: other.create_stream().expect("a stream"),
        device: other,
        folder: tempfile::tempdir().expect("a folder"),
    };
    let budget = Some(2 * model.layers[0].len());
    let streams =
        [&rig, &rig, &second].map(|on| (on, on.stream(&model, ordered(Order::Forward, budget))));
    std::thread::scope(|scope| {
        for (number, (on, stream)) in streams.iter().enumerate() {
            let model = &model;
            let compute = on.device.create_stream().expect("a stream");
            scope.spawn(move || {
                let on = Rig {
                    engine: on.engine.clone(),
                    device: Arc::clone(&on.device),
                    stream: compute,
                    folder: tempfile::tempdir().expect("a folder"),
                };
                for _ in 0..=number {
                    let seen = on.pass(stream, SHORT).expect("a pass");
                    model.check_all(&seen, &[0, 1, 2, 3, 4]);
                }
            });
        }
    });
}

#[test]
fn a_stream_that_is_captured_takes_no_layers() {
    let rig = Rig::new();
    let model = rig.model(3, LEN);
    let stream = rig.stream(&model, ordered(Order::Forward, None));
    rig.next(&stream).expect("it can be read").expect("a layer");
    rig.device.set_capturing(rig.stream, true).expect("a stream");
    let error = rig.next(&stream).expect_err("nothing may be taken");
    assert!(error.to_string().contains("being captured"), "{error}");
    rig.device.set_capturing(rig.stream, false).expect("a stream");
    let layer = rig.next(&stream).expect("it can be read").expect("a layer");
    assert_eq!(layer.layer(), 1);
}
