//! Layers of a model that come to a simulated GPU behind the compute.

#[path = "../../../forebay/tests/lab/mod.rs"]
mod lab;

mod computes;
mod ends;
mod faults;
mod group;
mod mapped;
mod messages;
mod rig;
mod scheduled;
mod shapes;
mod threads;
mod unpinned;
mod writing;

use std::os::fd::AsRawFd;
use std::time::Duration;

use forebay::gpu::Device;
use forebay_layers::{Layer, LayerStream, Limit, Order, StreamOptions, Tier};
use rig::{Rig, SLOT, Seen, ordered};

const LEN: usize = 3 * SLOT;
/// Longer than a layer takes to come, and shorter.
const LONG: Duration = Duration::from_millis(3);
const SHORT: Duration = Duration::from_micros(50);

#[test]
fn each_layer_is_what_the_file_holds_in_every_order() {
    let rig = Rig::new();
    let model = rig.model(6, LEN);
    let forward: Vec<usize> = (0..6).collect();
    let backward: Vec<usize> = (0..6).rev().collect();
    let training = [&forward[..], &backward[..]].concat();
    let list = vec![3, 3, 0, 5];
    let orders = [
        (Order::Forward, forward),
        (Order::Backward, backward),
        (Order::Training, training),
        (Order::List(list.clone()), list),
    ];
    for (order, layers) in orders {
        for (time, buffers) in [(LONG, 2), (SHORT, 3)] {
            let budget = Some(buffers * model.layers[0].len());
            let stream = rig.stream(&model, ordered(order.clone(), budget));
            assert_eq!(stream.buffers() as u64, buffers);
            for _ in 0..2 {
                model.check_all(&rig.pass(&stream, time).expect("a pass"), &layers);
            }
            assert_eq!(stream.close().expect("an end"), Vec::<String>::new());
        }
    }
}

#[test]
fn layers_in_pinned_memory_are_read_once() {
    let rig = Rig::new();
    let model = rig.model(5, LEN);
    let mut options = ordered(Order::Appended, Some(2 * model.layers[0].len()));
    options.host_budget = 3 * (model.layers[0].len() + 4096);
    let stream = rig.stream(&model, options);
    for _ in 0..3 {
        stream.prefetch(&[0, 1, 2, 3, 4]).expect("layers that there are");
        model.check_all(&rig.pass(&stream, SHORT).expect("a pass"), &[0, 1, 2, 3, 4]);
    }
    let times = stream.statistics().layers;
    let pinned = |layer| times.iter().filter(|times| times.layer == layer && times.pinned).count();
    assert_eq!([0, 1, 2, 3, 4].map(pinned), [2, 2, 2, 0, 0]);
    let kept = [Tier::Pinned, Tier::Pinned, Tier::Pinned, Tier::File, Tier::File];
    assert_eq!((stream.tiers(), stream.prediction()), (kept.to_vec(), None));
}

#[test]
fn after_two_passes_it_is_known_what_binds() {
    let rig = Rig::with("sim:bandwidth=1GB/s");
    let model = rig.model(6, LEN);
    let prediction = |time: Duration| {
        let stream = rig.stream(&model, ordered(Order::Forward, Some(2 * model.layers[0].len())));
        for _ in 0..2 {
            assert_eq!(stream.prediction(), None);
            while rig.next(&stream).expect("it can be read").is_some() {
                rig.device.work(rig.compute(), time).expect("a stream");
            }
            rig.device.synchronize(rig.stream).expect("the compute ends");
        }
        stream.prediction().expect("two passes are over")
    };
    // Longer than any machine takes to bring a layer.
    let hidden = prediction(Duration::from_millis(40));
    assert_eq!((hidden.limit, hidden.more_gpu), (Limit::Compute, None));
    assert!(hidden.compute >= Duration::from_millis(240), "{hidden:?}");
    let bound = prediction(SHORT);
    assert_ne!(bound.limit, Limit::Compute);
    let all = model.layers.iter().map(Layer::len).sum::<u64>();
    assert!(bound.pass >= Duration::from_nanos(all * 9 / 10 / 2), "{bound:?}");
    let more = bound.more_gpu.expect("all of it would fit");
    assert!(more > 0 && more <= all + 4096, "{bound:?}");
}

#[test]
fn at_the_turn_of_training_nothing_is_read_twice() {
    let rig = Rig::new();
    let model = rig.model(8, LEN);
    let stream = rig.stream(&model, ordered(Order::Training, Some(3 * model.layers[0].len())));
    for _ in 0..3 {
        rig.pass(&stream, SHORT).expect("a pass");
    }
    let brought: Vec<u64> = stream.statistics().passes.iter().map(|pass| pass.brought).collect();
    assert_eq!(brought, [13, 10, 10]);
}

#[test]
fn layers_that_stay_hold_no_more_marks_with_each_pass() {
    let rig = Rig::new();
    let model = rig.model(3, SLOT / 4);
    let stream = rig.stream(&model, ordered(Order::Forward, None));
    for _ in 0..3 {
        rig.pass(&stream, Duration::ZERO).expect("a pass");
    }
    let before = rig.device.events();
    for _ in 0..200 {
        while rig.next(&stream).expect("it is there").is_some() {}
        rig.device.synchronize(rig.stream).expect("the compute ends");
    }
    let after = rig.device.events();
    assert!(after < before + 50, "{before} events, then {after}");
}

#[test]
fn a_pass_that_was_taken_to_its_last_layer_is_followed_by_the_next() {
    let rig = Rig::new();
    let model = rig.model(3, SLOT / 4);
    let stream = rig.stream(&model, ordered(Order::Forward, None));
    for _ in 0..2 {
        stream.begin_pass();
        for layer in 0..3 {
            assert_eq!(rig.next(&stream).unwrap().expect("a layer").layer(), layer);
        }
    }
    assert!(rig.next(&stream).unwrap().is_none());
    stream.begin_pass();
    assert_eq!(rig.next(&stream).unwrap().expect("a layer").layer(), 0);
    stream.begin_pass(); // in the middle nothing changes
    assert_eq!(rig.next(&stream).unwrap().expect("a layer").layer(), 1);
}

#[test]
fn a_pass_begins_again_wherever_it_was_left() {
    let rig = Rig::new();
    let model = rig.model(6, LEN);
    for (order, pass) in [(Order::Forward, 6), (Order::Training, 12)] {
        let mut options = ordered(order, Some(2 * model.layers[0].len()));
        options.passes = Some(2);
        let stream = rig.stream(&model, options);
        assert_eq!(stream.pass_len().expect("no child"), Some(pass));
        let first = || rig.next(&stream).expect("it can be read").expect("a layer");
        for taken in 0..pass {
            stream.rewind().expect("it has a first layer");
            for number in 0..taken {
                assert_eq!(first().position() % pass, number);
            }
        }
        // None of these passes was made, so both are left.
        stream.rewind().expect("it has a first layer");
        let held = first();
        let seen = rig.use_layer(&held, SHORT);
        stream.rewind().expect("it has a first layer");
        assert!(held.memory().is_ok(), "it stays until the next is taken");
        rig.device.synchronize(rig.stream).expect("the compute ends");
        model.check(&Seen { parts: held.parts().collect(), ..seen });
        for _ in 0..2 {
            let seen = rig.pass(&stream, SHORT).expect("a pass");
            assert_eq!(seen.len() as u64, pass);
            seen.iter().for_each(|seen| model.check(seen));
        }
        for _ in 0..2 {
            assert!(rig.next(&stream).expect("the end").is_none());
            stream.rewind().expect("it has a first layer");
        }
    }
    let reported = rig.stream(&model, ordered(Order::Appended, None));
    assert_eq!(reported.pass_len().expect("no child"), None);
    let error = reported.rewind().expect_err("it has no first layer").to_string();
    assert!(error.contains("is given while it runs"), "{error}");
}

#[test]
fn passes_that_were_left_predict_nothing() {
    let rig = Rig::new();
    let model = rig.model(6, LEN);
    let stream = rig.stream(&model, ordered(Order::Forward, Some(2 * model.layers[0].len())));
    for _ in 0..3 {
        rig.next(&stream).expect("it can be read").expect("a layer");
        stream.rewind().expect("it has a first layer");
    }
    assert_eq!(stream.prediction(), None);
    rig.pass(&stream, SHORT).expect("a pass");
    assert!(stream.prediction().is_some());
}

#[test]
fn an_announced_order_is_followed() {
    let rig = Rig::new();
    let model = rig.model(6, LEN);
    let stream = rig.stream(&model, ordered(Order::Appended, None));
    assert!(rig.next(&stream).expect("no error").is_none());
    for layers in [vec![5, 2], vec![2, 0, 4]] {
        stream.prefetch(&layers).expect("layers that there are");
        model.check_all(&rig.pass(&stream, SHORT).expect("a pass"), &layers);
    }
    let error = stream.prefetch(&[6]).expect_err("no such layer").to_string();
    assert_eq!(error, "`prefetch` cannot be `6`: it takes numbers of the 6 layers, from 0");
}

#[test]
fn a_layer_that_does_not_fit_arrives_in_slices() {
    let rig = Rig::new();
    let model = rig.model(3, LEN);
    let len = model.layers[0].len();
    let stream = rig.stream(&model, ordered(Order::Forward, Some(len + len / 4)));
    assert_eq!(stream.slices(), 2);
    assert_eq!(stream.tiers(), [Tier::File; 6]);
    let seen = rig.pass(&stream, SHORT).expect("a pass");
    let order: Vec<(usize, usize)> = seen.iter().map(|seen| (seen.layer, seen.slice)).collect();
    assert_eq!(order, [(0, 0), (0, 1), (1, 0), (1, 1), (2, 0), (2, 1)]);
    for seen in &seen {
        model.check(seen);
    }
}

#[test]
fn kept_layers_stay_and_too_many_are_an_error() {
    let rig = Rig::new();
    let model = rig.model(4, LEN);
    let stream = rig.stream(&model, ordered(Order::Forward, Some(2 * model.layers[0].len())));
    let first = rig.next(&stream).unwrap().expect("a layer");
    first.keep().expect("it is held");
    let second = rig.next(&stream).unwrap().expect("a layer");
    second.keep().expect("it is held");
    let error = rig.next(&stream).expect_err("both buffers are held");
    assert_eq!(error.to_string(), "cannot read the layer `layer 2`");
    assert!(error.without_layer().to_string().ends_with(
        "there is no room for it: layers that are kept hold all of the 2 buffers on the GPU; \
         release one, or give a larger `gpu_budget`"
    ));
    // SAFETY: the stream is alive.
    #[expect(unsafe_code, reason = "as a caller would")]
    unsafe { first.release(rig.compute()) }.expect("it is held");
    assert_eq!(rig.next(&stream).unwrap().expect("a layer").layer(), 2);
    second.memory().expect("it is kept");
    let error = first.memory().expect_err("it was released");
    assert_eq!(error.to_string(), "cannot use the layer `layer 0`");
    assert_eq!(
        error.without_layer().to_string(),
        "it was released: use a layer before the next one is taken, or keep it"
    );
}

#[test]
fn a_layer_used_after_its_release_has_nans() {
    let rig = Rig::new();
    let model = rig.model(4, LEN);
    // With room for all, and no other pass, nothing comes to its place.
    let mut options = ordered(Order::Forward, Some(4 * model.layers[0].len()));
    (options.check, options.passes) = (true, Some(1));
    let stream = rig.stream(&model, options);
    let first = rig.next(&stream).unwrap().expect("a layer");
    let memory = first.memory().expect("it is held");
    rig.next(&stream).unwrap().expect("a layer");
    rig.device.work(rig.compute(), LONG).unwrap();
    let mut bytes = [0; 8];
    memory.download(0, &mut bytes).expect("memory that is still there");
    assert_eq!(bytes, [0xff; 8]);
    let names = stream.close().expect("an end");
    assert_eq!(names, ["layer 0"]);
}

#[test]
fn invalid_layers_are_refused() {
    let rig = Rig::new();
    let file = rig.file("short", &[1; 1000]);
    let refused = |layers: &[Layer], options: StreamOptions| {
        LayerStream::new(&rig.engine, &rig.gpu(), layers, options).expect_err("refused").to_string()
    };
    let good = || Layer::named("good").with(&file, 0, 1000);
    let plain = StreamOptions::default;
    assert_eq!(
        refused(&[], plain()),
        "`layers` cannot be `an empty list`: it takes at least one layer"
    );
    let empty = Layer::named("empty").with(&file, 5, 0);
    let error = LayerStream::new(&rig.engine, &rig.gpu(), &[good(), empty], plain());
    let error = error.expect_err("refused");
    assert_eq!(error.to_string(), "cannot read the layer `empty`");
    let reason = "it has no bytes: leave it out";
    assert_eq!(error.without_layer().to_string(), reason);
    let reason = "it ends behind the file's 1000 bytes: end it there, or check that all of the \
                  file has been written";
    for (name, offset, len) in [("long", 500, 501), ("endless", u64::MAX, u64::MAX)] {
        let long = Layer::named(name).with(&file, offset, len);
        let error = LayerStream::new(&rig.engine, &rig.gpu(), &[good(), long], plain());
        let error = error.expect_err("refused");
        assert_eq!(error.to_string(), format!("cannot read the layer `{name}`"));
        assert!(error.without_layer().to_string().ends_with(reason), "{error:?}");
    }
    let error = "`gpu_budget` cannot be `1999 bytes`: it takes 2000 bytes at least";
    assert!(refused(&[good()], ordered(Order::Forward, Some(1999))).starts_with(error));
    let error = "`order` cannot be `a list with 1`: it takes numbers of the 1 layers, from 0";
    assert_eq!(refused(&[good()], ordered(Order::List(vec![0, 1]), None)), error);
    let error = "`order` cannot be `an empty list`: it takes one layer at least";
    assert_eq!(refused(&[good()], ordered(Order::List(vec![]), None)), error);
}

#[test]
fn sizes_that_no_memory_has_are_refused_at_once() {
    let rig = Rig::new();
    let flags = rustix::fs::MemfdFlags::CLOEXEC;
    let sparse = rustix::fs::memfd_create("sparse", flags).expect("memory");
    let most = i64::MAX.unsigned_abs();
    rustix::fs::ftruncate(&sparse, most).expect("a file without bytes");
    let file = rig.engine.open(format!("/proc/self/fd/{}", sparse.as_raw_fd()));
    let file = file.expect("the file opens");
    let refused = |layer: Layer, budget: Option<u64>| {
        let options = ordered(Order::Forward, budget);
        let stream = LayerStream::new(&rig.engine, &rig.gpu(), &[layer], options);
        stream.expect_err("refused").without_layer().to_string()
    };
    let part = "cut this part in smaller ones";
    let whole = || Layer::named("pebibyte").with(&file, 5, 1 << 50);
    for budget in [None, Some(1 << 30), Some(1 << 40), Some(u64::MAX)] {
        assert!(refused(whole(), budget).ends_with(part), "{budget:?}");
    }
    // Its parts would fit.
    let pieces =
        || (0..1024).fold(Layer::named("many"), |all, n| all.with(&file, n << 30, 1 << 30));
    let error = refused(pieces(), None);
    assert!(error.contains("two layers as large as `many`") && error.contains("`gpu_budget`"));
    let error = refused(pieces(), Some((2 << 30) - 1));
    assert!(error.contains("for two layers, or 2147483648 for two slices"), "{error}");
    // Sums of these are more than a number holds.
    let over = [[most, most, 10], [most, most, 300], [most, 10, most]];
    for lens in over {
        let layer = lens.iter().fold(Layer::named("over"), |all, &len| all.with(&file, 0, len));
        for budget in [None, Some(u64::MAX)] {
            let error = refused(layer.clone(), budget);
            assert!(
                error.ends_with("larger than any memory: make several layers of it"),
                "{error}"
            );
        }
    }
    // Many parts, of which one does not fit.
    let small = (0..50_000).fold(Layer::named("small"), |all, n| all.with(&file, n * 8192, 4096));
    let error = refused(small.with(&file, 0, 1 << 20), Some(1 << 20));
    assert!(error.contains("or 2097152 for two slices"), "{error}");
}
