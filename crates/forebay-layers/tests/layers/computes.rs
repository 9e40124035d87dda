//! Layers that are used on several streams of the caller's: each gives its place up only when the
//! streams that use it are done, whatever the others do.

#![expect(unsafe_code, reason = "queues work on streams of its own, as a caller would")]

use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use forebay::Error;
use forebay::gpu::{CallerStream, Device};
use forebay::internal::Stream;
use forebay_layers::{LayerMemory, LayerStream, Order, Taken};

use crate::LEN;
use crate::lab::watchdog::Watchdog;
use crate::rig::{Model, Rig, SLOT, Seen, ordered};
use crate::writing::{change, on_the_drive, writable, write_back};

/// Far longer than a layer takes to come.
const BUSY: Duration = Duration::from_millis(150);

/// Far longer than the end of a stream takes whose compute is stuck.
const STUCK: Duration = Duration::from_secs(5);

/// Another stream, on which nothing is queued.
fn idle(rig: &Rig) -> CallerStream {
    CallerStream(rig.device.create_stream().expect("a stream").0)
}

fn take(stream: &LayerStream, compute: CallerStream) -> Taken {
    // SAFETY: the stream is this device's and alive.
    unsafe { stream.next(compute) }.expect("it can be read").expect("a layer")
}

#[test]
fn a_layer_gives_its_place_up_when_the_stream_is_done_for_which_it_was_taken() {
    let rig = Rig::new();
    let model = rig.model(4, LEN);
    let stream = rig.stream(&model, ordered(Order::Forward, Some(2 * model.layers[0].len())));
    let other = idle(&rig);
    let first = take(&stream, rig.compute());
    let parts = first.parts().collect();
    let seen = rig.use_layer(&first, BUSY);
    // The third comes to the place of the first, on whose stream the work goes on.
    assert_eq!([take(&stream, other), take(&stream, other)].map(|layer| layer.layer()), [1, 2]);
    rig.device.synchronize(rig.stream).expect("the compute ends");
    model.check(&Seen { parts, ..seen });
    stream.close().expect("an end");
}

/// So slow that a layer that was just taken is still on its way, all of it behind slots.
const SLOW: &str = "sim:bandwidth=4MB/s";

#[test]
fn a_write_back_by_another_stream_waits_for_the_layer() {
    let rig = Rig::with(SLOW);
    let model = writable(&rig, LEN);
    let stream = rig.stream(&model, ordered(Order::Forward, None));
    let layer = take(&stream, rig.compute());
    // SAFETY: the stream is this device's and alive, and nothing changes the layer.
    unsafe { layer.write_back(idle(&rig)) }.expect("it can be written");
    assert!(stream.flush_while(&mut || true).expect("it is written"));
    on_the_drive(&model);
    stream.close().expect("an end");
}

/// A stream that fills what is released, and has room for all of the layers.
fn checked(rig: &Rig, model: &Model, order: Order) -> LayerStream {
    let mut options = ordered(order, Some(model.layers.len() as u64 * model.layers[0].len()));
    (options.check, options.passes) = (true, Some(1));
    rig.stream(model, options)
}

/// Whether there are no numbers in a layer's memory.
fn is_filled(memory: &LayerMemory) -> bool {
    let mut bytes = vec![0; usize::try_from(memory.len()).expect("it fits")];
    memory.download(0, &mut bytes).expect("memory that is still there");
    bytes.iter().all(|&byte| byte == 0xff)
}

#[test]
fn a_layer_released_by_another_stream_is_filled_after_its_copies() {
    let rig = Rig::with(SLOW);
    let model = rig.model(2, LEN);
    let stream = checked(&rig, &model, Order::Forward);
    let layer = take(&stream, rig.compute());
    let memory = layer.memory().expect("it is held");
    // SAFETY: the stream is this device's and alive, and nothing uses the layer.
    unsafe { layer.release(idle(&rig)) }.expect("it is held");
    assert!(is_filled(&memory));
    drop(memory);
    stream.close().expect("an end");
}

#[test]
fn a_layer_of_several_streams_is_filled_after_all_of_them() {
    let rig = Rig::new();
    let model = rig.model(2, LEN);
    let stream = checked(&rig, &model, Order::List(vec![0, 0]));
    let other = idle(&rig);
    let first = take(&stream, rig.compute());
    first.keep().expect("it is held");
    let second = take(&stream, other);
    let parts = first.parts().collect();
    let memory = first.memory().expect("it is held");
    let seen = rig.use_layer(&first, BUSY);
    // SAFETY: the streams are this device's and alive.
    unsafe { first.release(rig.compute()) }.expect("it is held");
    // SAFETY: as above.
    unsafe { second.release(other) }.expect("it is held");
    rig.device.synchronize(rig.stream).expect("the compute ends");
    model.check(&Seen { parts, ..seen });
    assert!(is_filled(&memory));
    drop(memory);
    stream.close().expect("an end");
}

#[test]
fn a_layer_released_during_its_write_is_filled_afterwards() {
    let rig = Rig::new();
    let mut model = writable(&rig, LEN);
    let stream = checked(&rig, &model, Order::Forward);
    let layer = take(&stream, rig.compute());
    let memory = layer.memory().expect("it is held");
    rig.device.work(rig.compute(), BUSY).expect("a stream");
    change(&rig, &mut model, &layer, 7);
    write_back(&rig, &layer).expect("it can be written");
    take(&stream, rig.compute());
    assert!(stream.flush_while(&mut || true).expect("it is written"));
    assert!(is_filled(&memory));
    on_the_drive(&model);
    drop(memory);
    stream.close().expect("an end");
}

#[test]
fn a_layer_that_was_filled_is_read_again() {
    let rig = Rig::new();
    let mut model = writable(&rig, LEN);
    let mut options = ordered(Order::Forward, None);
    options.check = true;
    let stream = rig.stream(&model, options);
    for byte in 0..3 {
        while let Some(layer) = rig.next(&stream).expect("it can be read") {
            change(&rig, &mut model, &layer, byte);
            write_back(&rig, &layer).expect("it can be written");
        }
        let seen = rig.pass(&stream, BUSY / 50).expect("a pass");
        model.check_all(&seen, &[0, 1, 2, 3, 4]);
    }
    stream.close().expect("an end");
    on_the_drive(&model);
}

#[test]
fn a_caller_far_ahead_of_the_gpu_makes_no_more_queries() {
    let rig = Rig::new();
    let model = rig.model(3, SLOT / 4);
    let stream = rig.stream(&model, ordered(Order::Forward, None));
    rig.pass(&stream, Duration::ZERO).expect("a pass");
    let kept = take(&stream, rig.compute());
    kept.keep().expect("it is held");
    // The GPU stops until it is released.
    let gate = rig.engine.allocate_pinned(4096).expect("memory");
    let number = NonNull::new(gate.address() as *mut u32).expect("mapped memory");
    // SAFETY: the memory is this function's, and stays until the stream's work is done.
    let opened = unsafe { AtomicU32::from_ptr(number.as_ptr()) };
    opened.store(0, Ordering::Release);
    // SAFETY: as above.
    unsafe { rig.device.wait_number(rig.stream, number, 1) }.expect("a stream");
    // All of them stay, so that nothing is brought meanwhile.
    let counts = || {
        let before = rig.device.queries();
        for _ in 0..300 {
            rig.next(&stream).expect("it is there");
        }
        rig.device.queries() - before
    };
    let (first, second) = (counts(), counts());
    assert!(second < first + 300, "{first}, then {second}");
    assert!(stream.statistics().layers.len() < 10, "the host was not ahead");
    opened.store(1, Ordering::Release);
    rig.device.synchronize(rig.stream).expect("the compute ends");
    // What is kept for long hides nothing of the others.
    let positions: Vec<u64> =
        stream.statistics().layers.iter().map(|times| times.position).collect();
    assert!(positions.len() > 400 && !positions.contains(&kept.position()), "{positions:?}");
    // SAFETY: the stream is this device's and alive.
    unsafe { kept.release(rig.compute()) }.expect("it is held");
    rig.device.synchronize(rig.stream).expect("the compute ends");
    assert!(stream.statistics().layers.iter().any(|times| times.position == kept.position()));
}

#[test]
fn a_layer_knows_the_stream_for_which_it_was_taken() {
    let rig = Rig::new();
    let model = rig.model(4, LEN);
    let stream = rig.stream(&model, ordered(Order::Forward, None));
    let other = idle(&rig);
    let first = take(&stream, rig.compute());
    first.keep().expect("it is held");
    let second = take(&stream, other);
    assert_eq!(
        [&first, &second].map(|layer| layer.compute().expect("held")),
        [rig.compute(), other]
    );
    // SAFETY: the stream is alive.
    unsafe { first.release(rig.compute()) }.expect("it is held");
    let error = first.compute().expect_err("it was released");
    let reason = error.without_layer().to_string();
    assert!(reason.contains("it was released"), "{error}: {reason}");
}

/// A stream from which the first layer was taken, with which the compute is busy for so long.
fn busy(rig: &Rig, time: Duration) -> (LayerStream, Taken) {
    let model = rig.model(4, LEN);
    let stream = rig.stream(&model, ordered(Order::Forward, Some(2 * model.layers[0].len())));
    let layer = take(&stream, rig.compute());
    let memory = layer.memory().expect("it is held");
    rig.device.work(rig.compute(), time).expect("a stream");
    // SAFETY: the stream keeps the memory until its work is done.
    unsafe { rig.device.fill(rig.stream, memory.address(), 3, memory.len()) }.expect("a fill");
    (stream, layer)
}

fn free(rig: &Rig) -> u64 {
    rig.device.memory().expect("it is there").0
}

#[test]
fn a_loop_that_ends_in_its_middle_waits_for_the_compute() {
    for closes in [true, false] {
        let rig = Rig::new();
        let before = free(&rig);
        let (stream, layer) = busy(&rig, BUSY);
        assert_eq!(stream.held(), [0]);
        if closes {
            stream.close().expect("the compute ends");
        }
        drop(stream);
        assert_eq!((rig.device.misused(), free(&rig)), (0, before));
        assert!(layer.memory().is_err());
    }
}

#[test]
fn a_stream_whose_compute_is_stuck_keeps_the_layer_that_is_held() {
    let _watchdog = Watchdog::start();
    let rig = Rig::with_watchdog("sim:bandwidth=4GB/s", Duration::from_millis(300));
    let before = free(&rig);
    let (stream, layer) = busy(&rig, STUCK);
    let began = Instant::now();
    let error = stream.close().expect_err("the compute is stuck");
    assert!(began.elapsed() < STUCK / 2, "{:?}", began.elapsed());
    let Error::CopyNotOver { source, .. } = &error else { panic!("{error:?}") };
    let detail = "it is unknown when the stream that used `layer 0` is done";
    assert_eq!(source.detail, detail);
    drop((stream, layer));
    rig.device.synchronize(rig.stream).expect("the compute ends");
    assert_eq!(rig.device.misused(), 0);
    assert!(free(&rig) < before, "what the compute used was given back");
}

#[test]
fn a_stream_with_stuck_or_lost_compute_is_an_error() {
    let rig = Rig::new();
    let model = rig.model(4, LEN);
    let budget = || ordered(Order::Forward, Some(2 * model.layers[0].len()));
    let (stream, other) = (rig.stream(&model, budget()), idle(&rig));
    let layer = take(&stream, other);
    rig.device.destroy_stream(Stream(other.0)).expect("a stream");
    let error = rig.next(&stream).expect_err("its end is unknown");
    assert!(
        matches!(&error, Error::BadState { reason } if reason.contains("destroyed")),
        "{error:?}"
    );
    assert!(layer.memory().is_ok(), "it stays held");
    // Who knows better says so.
    // SAFETY: the stream is this device's and alive, and nothing uses the layer.
    unsafe { layer.release(rig.compute()) }.expect("it is held");
    assert_eq!(take(&stream, rig.compute()).layer(), 1);
    stream.close().expect("an end");
    for captures in [true, false] {
        let (stream, other) = (rig.stream(&model, budget()), idle(&rig));
        let layer = take(&stream, other);
        let before = free(&rig);
        match captures {
            true => rig.device.set_capturing(Stream(other.0), true).expect("a stream"),
            false => rig.device.destroy_stream(Stream(other.0)).expect("a stream"),
        }
        let error = stream.close().expect_err("its end is unknown");
        assert!(matches!(error, Error::CopyNotOver { .. }), "{error:?}");
        drop((stream, layer));
        assert_eq!(free(&rig), before, "what may be in use was given back");
    }
}
