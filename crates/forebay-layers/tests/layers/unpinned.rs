//! Layers whose pages are not pinned: what refuses it, and how it is reported.

use std::thread;
use std::time::{Duration, Instant};

use forebay_layers::{LayerStream, Order};

use crate::lab::fuse::Fuse;
use crate::lab::or_skip;
use crate::mapped::{COUNT, SETTLED, bring_in, options};
use crate::rig::{Rig, SLOT, ordered};
use crate::{LEN, SHORT};

#[test]
fn unpinnable_pages_are_copied_through_slots_and_say_why() {
    let rig = Rig::new();
    let small = rig.model(COUNT, 3000);
    thread::sleep(SETTLED);
    let stream = rig.stream(&small, options(&small, u64::MAX));
    for _ in 0..4 {
        bring_in(&rig);
        small.check_all(&rig.pass(&stream, SHORT).expect("a pass"), &[0, 1, 2, 3, 4]);
    }
    let (bytes, refused) = stream.mapped();
    assert_eq!((bytes, refused.as_deref()), (0, Some("`layer 0` lies in too many small parts")));

    let len = 2 * SLOT as u64;
    let Some(fuse) = or_skip(Fuse::new(vec![7; 4 * 2 * SLOT])) else { return };
    let file = rig.engine.open(fuse.path()).expect("the file opens");
    let layer = |n| forebay_layers::Layer::named(format!("layer {n}")).with(&file, n * len, len);
    let layers: Vec<_> = (0..4).map(layer).collect();
    let mut options = ordered(Order::Forward, Some(2 * len));
    options.mapped_budget = Some(u64::MAX);
    let stream = LayerStream::new(&rig.engine, &rig.gpu(), &layers, options).expect("a stream");
    for _ in 0..4 {
        rig.pass(&stream, SHORT).expect("a pass");
    }
    let refused = stream.mapped().1.expect("a reason");
    assert!(refused.ends_with("is on fuse, where it may change unnoticed"), "{refused}");
}

#[test]
fn pages_that_the_driver_does_not_pin_are_copied_through_slots_and_say_why() {
    let all: Vec<usize> = (0..COUNT).collect();
    let page = rustix::param::page_size();
    // None at all; a layer's first file, and not its second; two layers.
    for (limit, layers) in [(0, 0), (LEN, 0), (2 * LEN + 8 * page, 2)] {
        let rig = Rig::with(&format!("sim:bandwidth=4GB/s,pages={limit}"));
        let model = rig.model(COUNT, LEN);
        thread::sleep(SETTLED);
        rig.pass(&rig.stream(&model, options(&model, 0)), SHORT).expect("a pass");
        let stream = rig.stream(&model, options(&model, u64::MAX));
        // The kernel may take pages out of memory meanwhile; then they are pinned later.
        let is_appended = |reason: &str| {
            reason.starts_with("cannot pin pages of `")
                && reason.contains("register_read_only: SIM_ERROR_OUT_OF_MEMORY")
        };
        let each: u64 = model.layers[0].parts().iter().map(|part| part.len).sum();
        let mut last = None;
        let is_as_reported = (0..50).any(|_| {
            bring_in(&rig);
            model.check_all(&rig.pass(&stream, SHORT).expect("a pass"), &all);
            let pass = stream.statistics().passes.last().cloned().expect("there was one");
            let (bytes, reason) = stream.mapped();
            let is_so = bytes == layers * each
                && (pass.mapped_bytes > 0) == (layers > 0)
                && reason.as_deref().is_some_and(is_appended);
            last = Some((bytes, reason, pass.mapped_bytes));
            is_so
        });
        assert!(is_as_reported, "{limit}: {last:?}");
        drop(stream);
        // Also the first of a layer's files, where the second was refused. Slots that a cancelled
        // read still held are freed by another thread.
        let start = Instant::now();
        while rig.device.registrations() > 0 && start.elapsed() < Duration::from_secs(10) {
            thread::sleep(Duration::from_millis(1));
        }
        assert_eq!(rig.device.registrations(), 0, "{limit}");
    }
}
