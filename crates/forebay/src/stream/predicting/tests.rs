//! What is predicted once later passes have shown something else than the first one.

use super::super::placement::Ceiling;
use super::super::planning::tests::{LEN, slow, stream};
use super::super::shared::From;
use super::*;
use crate::stream::LayerStream;

const LAYERS: usize = 8;

/// A stream whose layers were placed by a pass from a drive of 0.1 MB/s, with 1 µs of compute.
fn placed(host_budget: u64) -> (LayerStream, Made) {
    let stream = stream("sim", host_budget);
    let made = stream.shared.place(slow()).expect("a plan");
    (stream, made)
}

/// The second pass, each layer of which came from a drive in so many ms, one behind the other, and
/// was computed for so many.
fn second([came, computed]: [u64; 2]) -> Vec<LayerTimes> {
    let times = |number: usize| {
        let position = (LAYERS + number) as u64;
        let mut times = LayerTimes::of((position, number, 0), LEN, From::Files);
        let step = came.max(computed);
        times.drive_bytes = LEN;
        times.began = Duration::from_millis(number as u64 * step);
        times.transfer = Duration::from_millis(came);
        times.compute = Duration::from_millis(computed);
        times.stall = Duration::from_millis(step - computed);
        times
    };
    (0..LAYERS).map(times).collect()
}

fn anew((stream, made): (LayerStream, Made), told: &[LayerTimes]) -> Placement {
    stream.shared.predict_anew(made, told, LAYERS as u64)
}

#[track_caller]
fn is_about(time: Duration, expected: f64) {
    let ratio = time.as_secs_f64() / expected;
    assert!((ratio - 1.0).abs() < 0.02, "{time:?} of {expected} s");
}

#[test]
fn a_drive_that_others_wait_for_is_as_fast_as_it_was() {
    let (stream, made) = placed(0);
    is_about(made.placement.prediction.pass, 8.0 * LEN as f64 / 1e5);
    for milliseconds in [300, 2500] {
        let told = second([milliseconds, 1]);
        let placement = stream.shared.predict_anew(made.clone(), &told, LAYERS as u64);
        assert_eq!(placement.prediction.ceiling, Ceiling::Drive);
        is_about(placement.prediction.pass, 8.0 * milliseconds as f64 / 1e3);
        assert_eq!(placement.tiers, [Tier::Drive; LAYERS]);
    }
}

#[test]
fn compute_that_takes_longer_than_in_the_first_pass_counts() {
    let prediction = anew(placed(0), &second([1000, 3000])).prediction;
    assert_eq!((prediction.ceiling, prediction.lift), (Ceiling::Compute, None));
    is_about(prediction.pass, 24.0);
    is_about(prediction.compute, 24.0);
}

#[test]
fn a_drive_that_waited_for_the_compute_is_no_slower_for_that() {
    // Every other layer is computed for six seconds, while the drive brings the next one in one,
    // and waits; then the one behind that is waited for. Layers are 3.5 s apart.
    let mut told = second([1000, 0]);
    for (number, times) in told.iter_mut().enumerate() {
        let is_long = number % 2 == 0;
        times.compute = Duration::from_millis(if is_long { 6000 } else { 1 });
        times.stall = Duration::from_millis(if is_long { 1000 } else { 0 });
        times.began = Duration::from_millis(3500 * number as u64);
    }
    let prediction = anew(placed(0), &told).prediction;
    let pass = prediction.pass.as_secs_f64();
    assert!((24.0..29.0).contains(&pass), "{prediction:?}");
}

#[test]
fn only_a_whole_pass_behind_the_first_counts() {
    let (stream, made) = placed(0);
    let expected = &made.placement;
    let told = second([300, 1]);
    let mut first = told.clone();
    first.iter_mut().for_each(|times| times.position -= LAYERS as u64);
    for told in [&told[1..], &first[..], &[]] {
        let placement = stream.shared.predict_anew(made.clone(), told, LAYERS as u64);
        assert_eq!(&placement, expected);
    }
    // One has begun, and is not over.
    let mut more = told.clone();
    more.extend(second([900, 1]).into_iter().take(3).map(|mut times| {
        times.position += LAYERS as u64;
        times
    }));
    let placement = stream.shared.predict_anew(made.clone(), &more, LAYERS as u64);
    is_about(placement.prediction.pass, 2.4);
}

#[test]
fn layers_that_are_in_the_page_cache_by_now_are_told_so() {
    let mut told = second([100, 1]);
    told[5].drive_bytes = 0;
    let placement = anew(placed(0), &told);
    let cached: Vec<usize> =
        (0..LAYERS).filter(|&layer| placement.tiers[layer] == Tier::PageCache).collect();
    assert_eq!(cached, [5]);
    // What is pinned stays so, wherever it came from before.
    let pinned = placed(8 * (LEN + 512));
    let tiers = pinned.1.placement.tiers.clone();
    assert_eq!(tiers, [Tier::Pinned; LAYERS]);
    assert_eq!(anew(pinned, &told).tiers, tiers);
}
