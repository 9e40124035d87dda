//! Streams of the same layers to several simulated GPUs of one host.

use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use forebay::Error;
use forebay::gpu::Device;
use forebay::gpu::sim::SimDevice;
use forebay::internal::clock::SystemClock;
use forebay_layers::{Layer, LayerStream, Order, StreamOptions};

use crate::lab::fuse::Fuse;
use crate::lab::or_skip;
use crate::lab::seeds::{Dice, each};
use crate::lab::watchdog::Watchdog;
use crate::mapped::SETTLED;
use crate::rig::{Model, Rig, SLOT, Seen, ordered};
use crate::writing::{writable, write_back};
use crate::{LEN, SHORT};

const COUNT: usize = 6;

/// A GPU, and the stream that brings its layers.
struct Member {
    rig: Rig,
    stream: LayerStream,
}

/// Rigs of so many GPUs.
fn rigs(count: usize) -> Vec<Rig> {
    let mut rigs = vec![Rig::new()];
    while rigs.len() < count {
        let last = rigs.last().expect("the first");
        rigs.push(last.sibling("sim:bandwidth=4GB/s"));
    }
    rigs
}

fn join(rigs: Vec<Rig>, layers: &[Layer], options: StreamOptions) -> Vec<Member> {
    let gpus: Vec<Arc<dyn Device>> = rigs.iter().map(Rig::gpu).collect();
    let streams = LayerStream::group(&rigs[0].engine, &gpus, layers, options).expect("streams");
    rigs.into_iter().zip(streams).map(|(rig, stream)| Member { rig, stream }).collect()
}

impl Member {
    /// Takes the next layer, which is this one, or the end of a pass; what it was.
    fn take(&self, layer: Option<usize>, time: Duration) -> Option<Seen> {
        let taken = self.rig.next(&self.stream).expect("it can be read");
        assert_eq!(taken.as_ref().map(forebay_layers::Taken::layer), layer);
        let taken = taken?;
        let seen = self.rig.use_layer(&taken, time);
        Some(Seen { parts: taken.parts().collect(), ..seen })
    }

    /// Takes the next layer, which is this one, and looks at nothing.
    fn pass_by(&self, layer: usize) {
        let taken = self.rig.next(&self.stream).expect("it can be read").expect("a layer");
        assert_eq!(taken.layer(), layer);
        self.rig.device.work(self.rig.compute(), SHORT).expect("a stream");
    }

    fn settle(&self) {
        self.rig.device.synchronize(self.rig.stream).expect("the compute ends");
    }

    /// Takes a pass, and checks what came.
    fn pass(&self, model: &Model) {
        let all: Vec<usize> = (0..COUNT).collect();
        model.check_all(&self.rig.pass(&self.stream, SHORT).expect("a pass"), &all);
    }
}

/// Takes a pass of all, layer by layer.
fn pass_in_step(members: &[Member], model: &Model) {
    let mut seen = Vec::new();
    for layer in 0..COUNT {
        seen.extend(members.iter().map(|member| member.take(Some(layer), SHORT)));
    }
    assert!(members.iter().all(|member| member.take(None, SHORT).is_none()));
    members.iter().for_each(Member::settle);
    seen.iter().flatten().for_each(|seen| model.check(seen));
}

/// A file that is never in the page cache, whose layers hold their own numbers.
fn served(rig: &Rig) -> Option<(Fuse, Vec<Layer>)> {
    let bytes = (0..COUNT).flat_map(|n| vec![u8::try_from(n).expect("few"); LEN]);
    let fuse = or_skip(Fuse::new(bytes.collect()))?;
    fuse.set(|faults| faults.uncached = true);
    let file = rig.engine.open(fuse.path()).expect("the file opens");
    let of = |n: usize| {
        Layer::named(format!("layer {n}")).with(&file, (n * LEN) as u64, LEN as u64) //
    };
    Some((fuse, (0..COUNT).map(of).collect()))
}

/// How often each place of a file was read: at least, and at most.
fn times_read(fuse: &Fuse) -> (usize, usize) {
    let mut offsets = fuse.order();
    offsets.sort_unstable();
    let counts = || offsets.chunk_by(|one, other| one == other).map(<[u64]>::len);
    (counts().min().unwrap_or(0), counts().max().unwrap_or(0))
}

#[test]
fn layers_of_several_gpus_are_read_once() {
    let _watchdog = Watchdog::start();
    for count in [1, 2, 4] {
        // A stream that is late on a busy machine reads by itself.
        let is_read_once = (0..5).any(|_| {
            let rigs = rigs(count);
            let Some((fuse, layers)) = served(&rigs[0]) else { return true };
            let mut options = ordered(Order::Forward, Some(3 * LEN as u64));
            options.passes = Some(3);
            let members = join(rigs, &layers, options);
            for _ in 0..3 {
                let mut seen = Vec::new();
                for layer in 0..COUNT {
                    seen.extend(members.iter().map(|member| member.take(Some(layer), SHORT)));
                }
                assert!(members.iter().all(|member| member.take(None, SHORT).is_none()));
                members.iter().for_each(Member::settle);
                for seen in seen.into_iter().flatten() {
                    let expected = u8::try_from(seen.layer).expect("few");
                    let bytes = seen.copy.as_slice().expect("host memory");
                    assert!(bytes.iter().all(|&byte| byte == expected));
                }
            }
            members.iter().for_each(|member| drop(member.stream.close().expect("an end")));
            // What stays on the GPUs is not read in every pass.
            let (least, most) = times_read(&fuse);
            assert!((1..=3).contains(&least) && most >= 3, "{least} to {most}");
            most == 3
        });
        assert!(is_read_once, "by {count} GPUs");
    }
}

#[test]
fn each_gpu_gets_what_the_files_hold_at_its_own_pace() {
    let _watchdog = Watchdog::start();
    for order in [Order::Forward, Order::Training] {
        let rigs = rigs(3);
        let model = rigs[0].model(COUNT, LEN);
        let options = ordered(order.clone(), Some(3 * model.layers[0].len()));
        let members = join(rigs, &model.layers, options);
        let layers: Vec<usize> = match order {
            Order::Forward => (0..COUNT).collect(),
            _ => (0..COUNT).chain((0..COUNT).rev()).collect(),
        };
        thread::scope(|scope| {
            for (number, member) in members.iter().enumerate() {
                let (model, layers) = (&model, &layers);
                scope.spawn(move || {
                    let time = Duration::from_micros(200 * number as u64);
                    for _ in 0..4 {
                        model.check_all(&member.rig.pass(&member.stream, time).unwrap(), layers);
                    }
                });
            }
        });
    }
}

#[test]
fn a_slow_member_blocks_no_other_for_long() {
    let _watchdog = Watchdog::start();
    let rigs = rigs(2);
    let model = rigs[0].model(COUNT, LEN);
    let members =
        join(rigs, &model.layers, ordered(Order::Forward, Some(3 * model.layers[0].len())));
    // It waits once: the other does not go on. A busy machine may take as long, but not each time.
    let mut passes = 0;
    assert!((0..4).any(|_| {
        let began = Instant::now();
        (0..3).for_each(|_| members[0].pass(&model));
        passes += 3;
        began.elapsed() < Duration::from_secs(5)
    }));
    (0..passes).for_each(|_| members[1].pass(&model));
    pass_in_step(&members, &model);
    // One whose compute is not done has its buffers for itself. A busy machine may need as long
    // for what is not held up: its compute takes longer then.
    assert!([4, 12, 30].into_iter().any(|seconds| {
        let (began, work) = (Instant::now(), Duration::from_secs(seconds));
        members[1].rig.device.work(members[1].rig.compute(), work).expect("a stream");
        let late: Vec<_> = (0..2).map(|layer| members[1].take(Some(layer), SHORT)).collect();
        (0..3).for_each(|_| members[0].pass(&model));
        let is_ahead = began.elapsed() < work - Duration::from_millis(500);
        members[1].settle();
        late.iter().flatten().for_each(|seen| model.check(seen));
        for layer in 2..COUNT {
            let seen = members[1].take(Some(layer), SHORT).expect("a layer");
            members[1].settle();
            model.check(&seen);
        }
        assert!(members[1].take(None, SHORT).is_none());
        (0..2).for_each(|_| members[1].pass(&model));
        is_ahead
    }));
}

#[test]
fn slices_without_bytes_come_at_once() {
    let rigs = rigs(2);
    let file = rigs[0].file("file", &vec![5; 3 << 20]);
    // Cut in two, the first half of the second layer has nothing.
    let layers = [
        Layer::named("two parts").with(&file, 0, 1 << 20).with(&file, 1 << 20, 1 << 20),
        Layer::named("one part").with(&file, 2 << 20, 1 << 20),
    ];
    let members = join(rigs, &layers, ordered(Order::Forward, Some(2 << 20)));
    for _ in 0..2 {
        for layer in [0, 0, 1, 1] {
            members.iter().for_each(|member| member.pass_by(layer));
        }
        assert!(members.iter().all(|member| member.take(None, SHORT).is_none()));
    }
}

#[test]
fn one_thread_that_takes_in_turn_without_room_is_not_held_up_at_each_layer() {
    let _watchdog = Watchdog::start();
    let rigs = rigs(2);
    let model = rigs[0].model(COUNT, LEN);
    let members =
        join(rigs, &model.layers, ordered(Order::Forward, Some(2 * model.layers[0].len())));
    // One of the two buffers of each is kept.
    let kept = members.iter().map(|member| {
        let layer = member.rig.next(&member.stream).expect("it can be read").expect("a layer");
        layer.keep().expect("it is held");
        layer
    });
    let kept: Vec<_> = kept.collect();
    for layer in 1..COUNT {
        members.iter().for_each(|member| member.pass_by(layer));
    }
    // Of 24 layers it waits for at a few. A busy machine may take as long as waits at each of them
    // would, but not each time.
    assert!((0..4).any(|_| {
        let began = Instant::now();
        for _ in 0..4 {
            assert!(members.iter().all(|member| member.take(None, SHORT).is_none()));
            for layer in 0..COUNT {
                members.iter().for_each(|member| member.pass_by(layer));
            }
        }
        began.elapsed() < Duration::from_secs(5)
    }));
    drop(kept);
}

#[test]
fn a_stream_that_ends_does_not_affect_the_others() {
    let _watchdog = Watchdog::start();
    each("layers group::a_stream_that_ends", 12, |seed| {
        let mut dice = Dice(seed);
        let rigs = rigs(3);
        let registered = rigs[0].device.registrations();
        let model = rigs[0].model(COUNT, LEN);
        let options = ordered(Order::Forward, Some(2 * model.layers[0].len()));
        let members = join(rigs, &model.layers, options);
        let [first, second, third] = &members[..] else { unreachable!("there are three") };
        let layers = usize::try_from(dice.below(5)).expect("few");
        for layer in 0..layers {
            members.iter().for_each(|member| member.pass_by(layer));
        }
        first.settle();
        thread::sleep(Duration::from_micros(dice.below(1000)));
        assert_eq!(first.stream.close().expect("an end"), Vec::<String>::new());
        assert!(first.rig.next(&first.stream).is_err(), "it is closed");
        for member in [second, third] {
            (layers..COUNT).for_each(|layer| member.pass_by(layer));
            assert!(member.take(None, SHORT).is_none());
            member.pass(&model);
        }
        members.iter().for_each(Member::settle);
        third.stream.close().expect("an end");
        second.pass(&model);
        second.stream.close().expect("an end");
        // The engine's own slots stay.
        assert!(first.rig.device.registrations() <= registered + 1);
        Some(())
    });
}

#[test]
fn layers_on_the_host_are_shared_by_all_streams() {
    let _watchdog = Watchdog::start();
    let rigs = rigs(2);
    let Some((fuse, layers)) = served(&rigs[0]) else { return };
    let mut options = ordered(Order::Appended, Some(2 * LEN as u64));
    options.host_budget = (COUNT * (LEN + 4096)) as u64;
    let members = join(rigs, &layers, options);
    for _ in 0..3 {
        for member in &members {
            member.stream.prefetch(&[0, 1, 2, 3, 4, 5]).expect("layers that there are");
        }
        for layer in 0..COUNT {
            members.iter().for_each(|member| member.pass_by(layer));
        }
    }
    members.iter().for_each(Member::settle);
    assert_eq!(times_read(&fuse), (1, 1), "a late stream copies resident pages");
}

#[test]
fn pages_are_pinned_once_for_all_and_released_when_a_file_changes() {
    let _watchdog = Watchdog::start();
    let rigs = rigs(2);
    let mut model = rigs[0].model(COUNT, LEN);
    let mut options = ordered(Order::Forward, Some(2 * model.layers[0].len()));
    options.mapped_budget = Some(u64::MAX);
    let folder = rigs[0].folder.path().to_owned();
    let members = join(rigs, &model.layers, options);
    thread::sleep(SETTLED);
    let all = |what: &dyn Fn(&Member) -> u64| {
        members.iter().map(what).min().expect("there are some") //
    };
    let mapped = |member: &Member| {
        let last = member.stream.statistics().passes.last().cloned();
        last.map_or(0, |pass| if pass.file_bytes == 0 { pass.mapped_bytes } else { 0 })
    };
    let until_pinned = |model: &Model| {
        (0..200).any(|_| {
            (0..2).for_each(|n| drop(std::fs::read(folder.join(format!("file {n}")))));
            pass_in_step(&members, model);
            all(&mapped) > 0
        })
    };
    assert!(until_pinned(&model), "{:?}", members[0].stream.mapped());
    let bytes: u64 = model.bytes.iter().flatten().map(|part| part.len() as u64).sum();
    assert_eq!(members[0].stream.mapped(), (bytes, None));
    assert_eq!(members[1].stream.mapped(), (bytes, None));
    // Three parts of each layer, and what the streams and the engine pass layers through.
    assert!(members[0].rig.device.registrations() <= 3 * COUNT + 4);
    // Copies before the change are not reported.
    members.iter().for_each(|member| {
        member.settle();
        drop(member.stream.statistics());
    });
    for part in &mut model.bytes[2] {
        part.fill(9);
    }
    for (part, bytes) in model.layers[2].parts().iter().zip(&model.bytes[2]) {
        use std::os::unix::fs::FileExt;
        let file = std::fs::OpenOptions::new().write(true).open(part.file.path()).expect("it is");
        file.write_all_at(bytes, part.offset).expect("room");
    }
    // What was queued before the change may have the old bytes, for one pass.
    members.iter().for_each(|member| {
        (0..COUNT).for_each(|layer| member.pass_by(layer));
        assert!(member.take(None, SHORT).is_none());
        member.settle();
    });
    pass_in_step(&members, &model);
    members.iter().for_each(|member| drop(member.stream.close().expect("an end")));
    assert!(members[0].rig.device.registrations() <= 2);
}

#[test]
fn an_unreadable_layer_is_reported_to_all() {
    let _watchdog = Watchdog::start();
    let rigs = rigs(2);
    let Some((fuse, layers)) = served(&rigs[0]) else { return };
    fuse.set(|faults| faults.fail_at = Some((3 * LEN + SLOT / 2) as u64));
    let members = join(rigs, &layers, ordered(Order::Forward, Some(2 * LEN as u64)));
    for layer in 0..3 {
        members.iter().for_each(|member| member.pass_by(layer));
    }
    for member in &members {
        let error = member.rig.next(&member.stream).expect_err("it cannot be read");
        assert_eq!(error.to_string(), "cannot read the layer `layer 3`");
        assert!(matches!(error.without_layer(), Error::Io { .. }), "{error:?}");
    }
    fuse.set(|faults| faults.fail_at = None);
    for member in &members {
        // It may have been tried again before.
        let came = (0..3).find_map(|_| member.rig.next(&member.stream).ok());
        assert_eq!(came.flatten().expect("a layer").layer(), 3);
    }
    for layer in 4..COUNT {
        members.iter().for_each(|member| member.pass_by(layer));
    }
}

#[test]
fn a_gpu_that_fails_ends_all_streams() {
    let _watchdog = Watchdog::start();
    let first = Rig::new();
    let second = first.sibling("sim:bandwidth=4GB/s,lost-after=20");
    let model = first.model(COUNT, LEN);
    let options = ordered(Order::Forward, Some(2 * model.layers[0].len()));
    let members = join(vec![first, second], &model.layers, options);
    let errors = members.iter().map(|member| {
        let mut taken = (0..200).map(|_| member.rig.next(&member.stream).map(drop));
        taken.find_map(Result::err).expect("a GPU is lost").to_string()
    });
    let errors: Vec<String> = errors.rev().collect();
    assert!(errors.iter().all(|error| error.contains("sim:1")), "{errors:?}");
}

#[test]
fn invalid_groups_are_refused() {
    let rig = Rig::new();
    let model = writable(&rig, LEN);
    let group = |gpus: &[Arc<dyn Device>]| {
        let streams =
            LayerStream::group(&rig.engine, gpus, &model.layers, StreamOptions::default());
        streams.map(drop).expect_err("it is refused").to_string()
    };
    assert!(group(&[]).contains("one GPU at least"), "{}", group(&[]));
    let other = SimDevice::new(7, "sim".parse().expect("one"), Arc::new(SystemClock::new()));
    let refused = group(&[rig.gpu(), Arc::new(other)]);
    assert!(refused.contains("sim:0 and sim:7") && refused.contains("pinned"), "{refused}");
    let (sibling, layers) = (rig.sibling("sim"), &model.layers);
    let members = join(vec![rig, sibling], layers, StreamOptions::default());
    let layer = members[0].rig.next(&members[0].stream).expect("it can be read").expect("one");
    let error = write_back(&members[0].rig, &layer).expect_err("others have it");
    assert!(error.to_string().contains("layer 0"), "{error}");
    let reason = error.without_layer().to_string();
    assert!(reason.contains("streams to other GPUs share the layer"), "{reason}");
}
