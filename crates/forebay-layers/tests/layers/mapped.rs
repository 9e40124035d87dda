//! Layers that are copied from the page cache where they lie there, and files that change under
//! them.

use std::fs::{self, OpenOptions};
use std::io::{Seek, SeekFrom, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use forebay::gpu::Device;
use forebay::{Error, Residency};
use forebay_layers::{LayerStream, Order, StreamOptions};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use crate::lab::watchdog::Watchdog;
use crate::lab::{child, or_skip, unprivileged};
use crate::rig::{Model, Rig, ordered};
use crate::writing::{writable, write_back};
use crate::{LEN, SHORT};

pub(crate) const COUNT: usize = 5;

/// Until a file was not changed for long enough.
pub(crate) const SETTLED: Duration = Duration::from_millis(2100);

pub(crate) fn options(model: &Model, budget: u64) -> StreamOptions {
    let mut options = ordered(Order::Forward, Some(2 * model.layers[0].len()));
    options.mapped_budget = Some(budget);
    options
}

/// Brings all of the model's files into the page cache.
pub(crate) fn bring_in(rig: &Rig) {
    for number in 0..2 {
        fs::read(rig.folder.path().join(format!("file {number}"))).expect("it is there");
    }
}

/// Takes passes until nothing comes by other ways than pinned pages, and checks each.
pub(crate) fn settle(rig: &Rig, model: &Model, stream: &LayerStream) {
    let all: Vec<usize> = (0..COUNT).collect();
    for _ in 0..200 {
        bring_in(rig);
        model.check_all(&rig.pass(stream, SHORT).expect("a pass"), &all);
        let last = stream.statistics().passes.last().cloned().expect("there was one");
        if last.mapped_bytes > 0 && last.file_bytes == 0 {
            return;
        }
    }
    panic!("not all pages are pinned: {:?}, {:?}", stream.mapped(), stream.statistics().passes);
}

/// Layers whose pages are all pinned, of a model that has not changed since.
fn pinned() -> (Rig, Model, LayerStream) {
    let rig = Rig::new();
    let model = rig.model(COUNT, LEN);
    thread::sleep(SETTLED);
    let stream = rig.stream(&model, options(&model, u64::MAX));
    settle(&rig, &model, &stream);
    (rig, model, stream)
}

fn tail(rig: &Rig, number: usize) -> std::path::PathBuf {
    rig.folder.path().join(format!("file {number}"))
}

#[test]
fn pages_are_pinned_at_the_first_or_at_the_second_use() {
    let rig = Rig::new();
    let model = rig.model(COUNT, LEN);
    thread::sleep(SETTLED);
    let passes = |budget: Option<u64>| {
        let mut options = options(&model, 0);
        options.mapped_budget = budget;
        bring_in(&rig);
        let stream = rig.stream(&model, options);
        for _ in 0..3 {
            bring_in(&rig);
            model.check_all(&rig.pass(&stream, SHORT).expect("a pass"), &[0, 1, 2, 3, 4]);
        }
        let reported = stream.statistics().passes;
        reported.iter().map(|pass| (pass.mapped_bytes > 0, pass.file_bytes > 0)).collect::<Vec<_>>()
    };
    // The kernel may take pages out of memory meanwhile, but not each time.
    let again = |budget, expected: &[(usize, (bool, bool))]| {
        let is_so = (0..50).any(|_| {
            let reported = passes(budget);
            expected.iter().all(|&(pass, so)| reported[pass] == so)
        });
        assert!(is_so, "{budget:?}");
    };
    again(Some(u64::MAX), &[(0, (true, false)), (1, (true, false))]);
    assert!(!passes(None)[0].0, "it was not requested");
    again(None, &[(0, (false, true)), (2, (true, false))]);
}

#[test]
fn pages_of_what_was_changed_just_now_are_pinned_later_and_copied_from_then_on() {
    let rig = Rig::new();
    let model = rig.model(COUNT, LEN);
    let stream = rig.stream(&model, options(&model, u64::MAX));
    let all: Vec<usize> = (0..COUNT).collect();
    model.check_all(&rig.pass(&stream, SHORT).expect("a pass"), &all);
    assert_eq!(stream.statistics().passes[0].mapped_bytes, 0);
    thread::sleep(SETTLED);
    settle(&rig, &model, &stream);
    let (bytes, refused) = stream.mapped();
    assert_eq!(
        (bytes, refused),
        (
            model
                .layers
                .iter()
                .map(|layer| { layer.parts().iter().map(|part| part.len).sum::<u64>() })
                .sum(),
            None
        )
    );
    for _ in 0..20 {
        model.check_all(&rig.pass(&stream, SHORT).expect("a pass"), &all);
    }
    assert!(stream.close().expect("an end").is_empty());
}

#[test]
fn pinned_pages_keep_to_their_budget() {
    let rig = Rig::new();
    let model = rig.model(COUNT, LEN);
    thread::sleep(SETTLED);
    for (budget, most) in [(0, 0), (2 * LEN as u64 + 100, 2)] {
        let stream = rig.stream(&model, options(&model, budget));
        for _ in 0..10 {
            bring_in(&rig);
            rig.pass(&stream, SHORT).expect("a pass");
        }
        let (pinned, why) = stream.mapped();
        assert!(pinned <= budget, "{pinned} of {budget}");
        let expected = (budget > 0).then_some("`mapped_budget` has no room for more layers");
        assert_eq!(why.as_deref(), expected);
        let times = stream.statistics().layers;
        let came = |layer| times.iter().any(|times| times.layer == layer && times.mapped);
        assert_eq!((0..COUNT).filter(|&layer| came(layer)).count(), most);
    }
    // Few passes are not worth it.
    let mut few = options(&model, 0);
    (few.mapped_budget, few.passes) = (None, Some(4));
    let stream = rig.stream(&model, few);
    for _ in 0..4 {
        rig.pass(&stream, SHORT).expect("a pass");
    }
    let why = "4 passes are too few to bring its cost in";
    assert_eq!(stream.mapped(), (0, Some(why.into())));
}

/// Changes a file in a way, and the model with it where `model` is to show that.
fn overwrite(path: &Path, flags: i32, bytes: &[u8]) {
    let file = OpenOptions::new().write(true).custom_flags(flags).open(path);
    let mut file = file.expect("it is there");
    file.seek(SeekFrom::Start(0)).expect("a file");
    file.write_all(bytes).expect("room");
}

/// Memory for requests that pass the page cache.
fn aligned(rig: &Rig, bytes: &[u8]) -> forebay::Buffer {
    let mut buffer = rig.engine.allocate_pinned(bytes.len() as u64).expect("memory");
    buffer.as_mut_slice().expect("no other has it").copy_from_slice(bytes);
    buffer
}

#[test]
fn an_overwritten_layer_is_read_again() {
    for flags in [0, libc::O_DIRECT] {
        let rig = Rig::new();
        let mut model = rig.model(COUNT, LEN);
        thread::sleep(SETTLED);
        let stream = rig.stream(&model, options(&model, u64::MAX));
        settle(&rig, &model, &stream);
        let path = tail(&rig, 0);
        let mut bytes = fs::read(&path).expect("it is there");
        bytes.truncate(bytes.len() / 4096 * 4096);
        bytes.iter_mut().for_each(|byte| *byte = !*byte);
        overwrite(&path, flags, aligned(&rig, &bytes).as_slice().expect("host memory"));
        for (layer, parts) in model.layers.iter().zip(&mut model.bytes) {
            for (part, expected) in layer.parts().iter().zip(parts) {
                if part.file.path() == path {
                    expected.iter_mut().for_each(|byte| *byte = !*byte);
                }
            }
        }
        let before = stream.statistics().passes.len();
        model.check_all(&rig.pass(&stream, SHORT).expect("a pass"), &[0, 1, 2, 3, 4]);
        let passes = stream.statistics().passes;
        let last = passes.last().filter(|_| passes.len() > before);
        assert!(last.is_some_and(|pass| pass.file_bytes > 0), "{passes:?}");
        thread::sleep(SETTLED);
        settle(&rig, &model, &stream); // and pinned again
    }
}

/// Far longer than a layer takes to come.
const BUSY: Duration = Duration::from_millis(300);

/// Takes three layers and computes with each for so long that copies of others wait, and changes
/// a file meanwhile.
fn change_meanwhile(rig: &Rig, stream: &LayerStream, change: impl FnOnce(&Path)) {
    change_after(3, rig, stream, change);
}

/// The same of so many layers.
fn change_after(layers: usize, rig: &Rig, stream: &LayerStream, change: impl FnOnce(&Path)) {
    for _ in 0..layers {
        rig.next(stream).expect("it is there").expect("a layer");
        rig.device.work(rig.compute(), BUSY).expect("a stream");
    }
    change(&tail(rig, 1));
}

fn is_overwritten(error: &Error) -> bool {
    let is = matches!(error.without_layer(), Error::FileOverwritten { .. });
    is && error.to_string().starts_with("cannot read the layer `layer ")
}

#[test]
fn a_change_during_the_copies_fails_a_layer() {
    type Change = fn(&Path);
    let changes: [Change; 2] = [
        |path| overwrite(path, 0, &[1; 9000]),
        |path| OpenOptions::new().write(true).open(path).expect("it is").set_len(9).expect("a cut"),
    ];
    for change in changes {
        let (rig, _, stream) = pinned();
        change_meanwhile(&rig, &stream, change);
        // A caller that runs ahead of the copies gets the error once they are over.
        let until = Instant::now() + 20 * BUSY;
        let error = loop {
            match rig.next(&stream) {
                Ok(_) => thread::sleep(SHORT),
                Err(error) if is_overwritten(&error) => break error,
                // What was cut cannot be read again either.
                Err(error) => assert!(error.to_string().contains("layer"), "{error:?}"),
            }
            assert!(Instant::now() < until, "no call failed");
        };
        let cause = error.without_layer().to_string();
        assert!(cause.contains("file 1") && cause.contains("changed while a GPU"), "{cause}");
    }
}

#[test]
fn each_layer_reports_pages_that_changed_while_they_were_copied() {
    let (rig, _, stream) = pinned();
    // Two copies wait for compute.
    change_after(4, &rig, &stream, |path| overwrite(path, 0, &[1; 9000]));
    rig.device.synchronize(rig.stream).expect("the compute ends");
    let mut reported: Vec<String> = (0..2)
        .map(|_| rig.next(&stream).expect_err("a file was changed"))
        .inspect(|error| assert!(is_overwritten(error), "{error:?}"))
        .map(|error| error.to_string())
        .collect();
    reported.dedup();
    assert_eq!(reported.len(), 2, "{reported:?}");
}

#[test]
fn foreign_changes_are_reported_also_where_the_stream_writes_to_the_same_file() {
    let rig = Rig::new();
    let model = writable(&rig, LEN);
    thread::sleep(SETTLED);
    let stream = rig.stream(&model, options(&model, u64::MAX));
    settle(&rig, &model, &stream);
    let mut last = None;
    for _ in 0..3 {
        last = rig.next(&stream).expect("it is there");
        rig.device.work(rig.compute(), BUSY).expect("a stream");
    }
    overwrite(&tail(&rig, 1), 0, &[1; 9000]);
    write_back(&rig, &last.expect("a layer")).expect("it can be written");
    let error = stream.close().expect_err("a file was changed");
    assert!(is_overwritten(&error), "{error:?}");
}

#[test]
fn a_change_during_the_last_copies_fails_the_close() {
    let (rig, _, stream) = pinned();
    change_meanwhile(&rig, &stream, |path| overwrite(path, 0, &[1; 9000]));
    let error = stream.close().expect_err("a file was changed");
    assert!(is_overwritten(&error), "{error:?}");
}

#[test]
fn a_file_replaced_during_the_copies_keeps_its_bytes() {
    let (rig, _, stream) = pinned();
    change_meanwhile(&rig, &stream, |path| {
        let other = path.with_extension("new");
        fs::write(&other, [1; 100]).expect("room");
        fs::rename(&other, path).expect("one folder");
    });
    while rig.next(&stream).expect("no byte of it has changed").is_some() {}
    stream.close().expect("an end");
}

#[test]
fn a_replaced_file_keeps_its_old_contents() {
    let (rig, model, stream) = pinned();
    let other = rig.folder.path().join("other");
    fs::write(&other, vec![1; COUNT * (LEN + 1000)]).expect("room");
    fs::rename(&other, tail(&rig, 0)).expect("one folder");
    for _ in 0..3 {
        model.check_all(&rig.pass(&stream, SHORT).expect("a pass"), &[0, 1, 2, 3, 4]);
    }
}

#[test]
fn a_truncated_file_fails_its_layer() {
    let (rig, _, stream) = pinned();
    let file = OpenOptions::new().write(true).open(tail(&rig, 1)).expect("it is there");
    file.set_len(100).expect("a cut");
    let error = rig.next(&stream).expect_err("its bytes are gone");
    let cause = error.without_layer();
    let is_end = matches!(cause, Error::EndOfFile { .. } | Error::FileChanged { .. });
    assert!(is_end && cause.to_string().contains("file 1"), "{error:?}");
    assert_eq!(error.to_string(), "cannot read the layer `layer 0`");
}

#[test]
fn checked_layers_and_slices_come_from_pages_too() {
    for (check, quarters) in [(true, 8), (false, 5), (true, 5)] {
        let rig = Rig::new();
        let model = rig.model(COUNT, 4 * LEN);
        thread::sleep(SETTLED);
        let mut options = options(&model, u64::MAX);
        (options.check, options.gpu_budget) = (check, Some(quarters * model.layers[0].len() / 4));
        let stream = rig.stream(&model, options);
        assert_eq!(stream.slices(), if quarters < 8 { 2 } else { 1 });
        let mut settled = 0;
        for _ in 0..200 {
            bring_in(&rig);
            let seen = rig.pass(&stream, SHORT).expect("a pass");
            assert_eq!(seen.len(), COUNT * stream.slices());
            seen.iter().for_each(|seen| model.check(seen));
            let last = stream.statistics().passes.last().cloned().expect("there was one");
            settled += u32::from(last.mapped_bytes > 0 && last.file_bytes == 0);
            if settled > 4 {
                break;
            }
        }
        assert!(settled > 4, "{:?}, {:?}", stream.mapped(), stream.statistics().passes.last());
        stream.close().expect("an end");
    }
}

/// In a process of another user: root has no limit of threads.
#[test]
fn without_a_pinning_thread_layers_come_through_slots() {
    if child::role().is_none() {
        child::run("threads");
        return;
    }
    let _watchdog = Watchdog::start();
    let tried = unprivileged(|| {
        let rig = Rig::new();
        let model = rig.model(COUNT, LEN);
        let all: Vec<usize> = (0..COUNT).collect();
        let mut options = options(&model, 0);
        options.mapped_budget = None; // when a layer comes again
        let stream = rig.stream(&model, options);
        // The engine has the threads that it needs, and none pins pages.
        rig.next(&stream).expect("it can be read").expect("a layer");
        let before = getrlimit(Resource::Nproc);
        setrlimit(Resource::Nproc, Rlimit { current: Some(1), ..before }).expect("a lower limit");
        rig.pass(&stream, SHORT).expect("the rest of a pass");
        for _ in 0..4 {
            model.check_all(&rig.pass(&stream, SHORT).expect("a pass"), &all);
        }
        // What was claimed is refused soon.
        let until = Instant::now() + Duration::from_secs(10);
        while stream.mapped().0 > 0 && Instant::now() < until {
            thread::sleep(Duration::from_millis(1));
        }
        let held = stream.mapped();
        setrlimit(Resource::Nproc, before).expect("the limit that was");
        let reason = "no thread can be started to pin and unpin pages".to_owned();
        assert_eq!(held, (0, Some(reason)));
        thread::sleep(SETTLED);
        settle(&rig, &model, &stream);
        stream.close().expect("an end");
        assert_eq!(stream.mapped().0, 0);
    });
    or_skip(tried);
}

#[test]
fn files_that_are_not_in_the_page_cache_are_not_brought_there() {
    let rig = Rig::new();
    let model = rig.model(COUNT, LEN);
    thread::sleep(SETTLED);
    let stream = rig.stream(&model, options(&model, u64::MAX));
    let file = &model.layers[0].parts()[0].file;
    if file.no_direct_io().is_some() {
        return; // all that is read of it is in the page cache
    }
    let cold =
        |file: &forebay::File| matches!(file.evict(), Ok(Residency::Known { resident: 0, .. }));
    for _ in 0..4 {
        if !model.layers[0].parts()[..2].iter().all(|part| cold(&part.file)) {
            return;
        }
        model.check_all(&rig.pass(&stream, SHORT).expect("a pass"), &[0, 1, 2, 3, 4]);
    }
    assert_eq!(stream.statistics().passes.iter().map(|pass| pass.mapped_bytes).sum::<u64>(), 0);
}

#[test]
fn a_stream_ends_at_any_moment_while_pages_are_pinned() {
    let rig = Rig::new();
    let model = rig.model(COUNT, LEN);
    thread::sleep(SETTLED);
    bring_in(&rig);
    let held = || (rig.device.registrations(), rig.device.events());
    let mut before = held();
    for round in 0..60_u64 {
        let stream = rig.stream(&model, options(&model, u64::MAX));
        for _ in 0..round % 23 {
            if rig.next(&stream).expect("it can be read").is_some() {
                rig.device.work(rig.compute(), SHORT).expect("a stream");
            }
        }
        let start = Instant::now();
        stream.close().expect("an end");
        assert!(start.elapsed() < Duration::from_secs(5), "{:?}", start.elapsed());
        if round == 0 {
            before = held(); // the engine's own are there now
        }
    }
    rig.device.synchronize(rig.stream).expect("the compute ends");
    let until = Instant::now() + Duration::from_secs(10);
    let is_left = || held().0 > before.0 || held().1 > before.1;
    while is_left() && Instant::now() < until {
        thread::sleep(Duration::from_millis(10)); // pages that were pinned without a wait
    }
    assert!(!is_left(), "{:?}, and {before:?} after the first", held());
}
