//! Training on a simulated GPU, against the schedule that such compute and such a link allow.

use std::time::Duration;

use forebay::gpu::Device;
use forebay_layers::{Limit, Order, Prediction};

use crate::rig::{Rig, ordered};

const LAYERS: usize = 8;
const ROOM: usize = 3;
const PASSES: usize = 4;

/// When each turn of an order is over, where every layer takes as long to come and to be computed:
/// the layer that gives way is the one that is wanted last, but for the one just taken.
fn schedule(order: &[usize], room: usize, comes: f64, computed: f64) -> Vec<f64> {
    struct Place {
        layer: usize,
        ready: f64,
        used: f64,
    }
    let mut places: Vec<Place> = Vec::new();
    let (mut link, mut compute, mut ends) = (0.0_f64, 0.0_f64, Vec::new());
    for (turn, &layer) in order.iter().enumerate() {
        let there = places.iter().position(|place| place.layer == layer);
        let at = there.unwrap_or_else(|| {
            let comes_to = |used: f64, link: &mut f64| {
                *link = link.max(used) + comes;
                *link
            };
            if places.len() < room {
                let ready = comes_to(0.0, &mut link);
                places.push(Place { layer, ready, used: 0.0 });
                return places.len() - 1;
            }
            let wanted = |layer: usize| order[turn..].iter().position(|&other| other == layer);
            let last = turn.checked_sub(1).map(|before| order[before]);
            let gives = (0..room)
                .filter(|&at| Some(places[at].layer) != last)
                .max_by_key(|&at| wanted(places[at].layer).unwrap_or(usize::MAX))
                .expect("there is room for two");
            let ready = comes_to(places[gives].used, &mut link);
            places[gives] = Place { layer, ready, used: 0.0 };
            gives
        });
        compute = compute.max(places[at].ready) + computed;
        places[at].used = compute;
        ends.push(compute);
    }
    ends
}

/// The time of all passes behind the first.
fn behind_first(ends: &[f64]) -> f64 {
    ends[ends.len() - 1] - ends[2 * LAYERS - 1]
}

/// The time that training takes, of which each layer's compute takes `time`, over its schedule.
fn measured(order: &[usize], time: Duration) -> f64 {
    const LEN: usize = 2_000_000;
    let rig = Rig::with("sim:bandwidth=100MB/s,latency=0us");
    let model = rig.model(LAYERS, LEN);
    let len = model.layers[0].len();
    let mut options = ordered(Order::Appended, Some(ROOM as u64 * len));
    options.host_budget = LAYERS as u64 * (len + 65_536);
    let stream = rig.stream(&model, options);
    stream.prefetch(order).expect("layers that there are");
    while rig.next(&stream).expect("it can be read").is_some() {
        rig.device.work(rig.compute(), time).expect("a stream");
    }
    rig.device.synchronize(rig.stream).expect("the compute ends");
    let times = stream.statistics().layers;
    // What came in the first pass, and in each that followed.
    let brought = |pass: usize| {
        let turns = &times[2 * LAYERS * pass..2 * LAYERS * (pass + 1)];
        turns.iter().filter(|times| times.bytes > 0).count()
    };
    assert_eq!((0..PASSES).map(brought).collect::<Vec<_>>(), [13, 10, 10, 10]);
    let ends: Vec<f64> =
        times.iter().map(|times| (times.entered + times.compute).as_secs_f64()).collect();
    let ideal = schedule(order, ROOM, len as f64 / 100e6, time.as_secs_f64());
    behind_first(&ends) / behind_first(&ideal)
}

#[test]
fn training_takes_no_longer_than_its_schedule() {
    let there = 0..LAYERS;
    let pass: Vec<usize> = there.clone().chain(there.rev()).collect();
    let order = pass.repeat(PASSES);
    // The link takes 20 ms for a layer.
    for milliseconds in [8, 20, 30] {
        // The consumer may be late on a busy machine, but not each time.
        let mut ratios = Vec::new();
        while ratios.len() < 5 && ratios.last().is_none_or(|ratio| *ratio >= 1.03) {
            ratios.push(measured(&order, Duration::from_millis(milliseconds)));
        }
        println!("{milliseconds} ms: {ratios:.3?} of the schedule");
        assert!(ratios.iter().all(|ratio| *ratio > 0.98), "faster than can be: {ratios:.3?}");
        assert!(ratios.last().is_some_and(|ratio| *ratio < 1.03), "{ratios:.3?}");
    }
}

/// What is predicted of passes whose compute takes `time` for each layer, of which `pinned` may be
/// in pinned memory, and the median of those that follow.
fn predicted(time: Duration, pinned: u64) -> (Prediction, Duration) {
    const LEN: usize = 2_000_000;
    // So slow that neither files nor the consumer count.
    let rig = Rig::with("sim:bandwidth=50MB/s,latency=0us");
    let model = rig.model(LAYERS, LEN);
    let len = model.layers[0].len();
    let mut options = ordered(Order::Forward, Some(ROOM as u64 * len));
    (options.host_budget, options.mapped_budget) = (pinned * (len + 65_536), Some(0));
    let stream = rig.stream(&model, options);
    let passes = |count: usize| {
        for _ in 0..count {
            while rig.next(&stream).expect("it can be read").is_some() {
                rig.device.work(rig.compute(), time).expect("a stream");
            }
        }
        rig.device.synchronize(rig.stream).expect("the compute ends");
    };
    passes(3);
    let prediction = stream.prediction().expect("two passes are over");
    passes(5);
    let reported = stream.statistics().passes;
    // One begins from rest.
    let mut times: Vec<Duration> =
        reported[4..].iter().map(forebay_layers::PassTimes::time).collect();
    times.sort();
    (prediction, times[times.len() / 2])
}

/// A GPU that works all the time may lower its clocks: passes behind the first compute for longer.
#[test]
fn predictions_follow_the_passes() {
    let rig = Rig::with("sim:bandwidth=50MB/s,latency=0us");
    let model = rig.model(LAYERS, 2_000_000);
    let options = ordered(Order::Forward, Some(ROOM as u64 * model.layers[0].len()));
    let stream = rig.stream(&model, options);
    let pass = |milliseconds| {
        while rig.next(&stream).expect("it can be read").is_some() {
            let time = Duration::from_millis(milliseconds);
            rig.device.work(rig.compute(), time).expect("a stream");
        }
    };
    pass(8);
    assert_eq!(stream.prediction(), None);
    (0..2).for_each(|_| pass(8));
    rig.device.synchronize(rig.stream).expect("the compute ends");
    let before = stream.prediction().expect("two passes are over");
    assert_ne!(before.limit, Limit::Compute, "{before:?}");
    (0..3).for_each(|_| pass(60));
    rig.device.synchronize(rig.stream).expect("the compute ends");
    let later = stream.prediction().expect("more are");
    let compute = Duration::from_millis(60 * LAYERS as u64);
    assert_eq!(later.limit, Limit::Compute, "{later:?}");
    assert!(later.compute >= compute, "{later:?}");
    assert!(later.pass < compute * 11 / 10, "{later:?}");
}

#[test]
fn passes_take_as_long_as_was_predicted() {
    // The link takes 40 ms for a layer. It takes copies in the order in which they were queued,
    // also where one waits, so that layers from two places do not come as they would.
    for (milliseconds, pinned) in [(8, 8), (50, 0)] {
        // On a busy machine a layer takes longer now and then than the link does.
        let fits = (0..5).any(|_| {
            let time = Duration::from_millis(milliseconds);
            let (prediction, took) = predicted(time, pinned);
            let ratio = took.as_secs_f64() / prediction.pass.as_secs_f64();
            println!("{milliseconds} ms, {pinned} pinned: {ratio:.3} of {prediction:?}");
            let is_compute = prediction.limit == Limit::Compute;
            is_compute == (milliseconds == 50) && (ratio - 1.0).abs() <= 0.05
        });
        assert!(fits, "{milliseconds} ms, {pinned} pinned");
    }
}
