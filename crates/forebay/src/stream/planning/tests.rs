//! Streams that are planned, and what is said where they are not.

use super::super::mapper::Maps;
use super::super::{Layer, LayerStream, Order, StreamOptions};
use super::*;
use crate::clock::SystemClock;
use crate::gpu::sim::SimDevice;
use crate::gpu::{CallerStream, Device};
use crate::{Engine, Options};

pub(in super::super) const LEN: u64 = 100_001;

/// A stream of eight layers from odd places of a file, whose planning nothing has begun.
pub(in super::super) fn stream(gpu: &str, host_budget: u64) -> LayerStream {
    stream_of(gpu, [2 * LEN, host_budget], (8, LEN))
}

/// The same of so many layers of so many bytes.
fn stream_of(gpu: &str, budgets: [u64; 2], layers: (u64, u64)) -> LayerStream {
    stream_with(gpu, layers, |options| {
        (options.gpu_budget, options.host_budget) = (Some(budgets[0]), budgets[1]);
    })
}

/// The same with what `set` asks for.
fn stream_with(
    gpu: &str,
    (count, len): (u64, u64),
    set: impl Fn(&mut StreamOptions),
) -> LayerStream {
    let engine = Engine::new(Options::default()).unwrap();
    let clock = Arc::new(SystemClock::new());
    let device: Arc<dyn Device> = Arc::new(SimDevice::new(0, gpu.parse().unwrap(), clock));
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("file"), vec![7; 1 << 20]).unwrap();
    let file = engine.open(folder.path().join("file")).unwrap();
    let layers: Vec<Layer> =
        (0..count).map(|n| Layer::named(format!("layer {n}")).with(&file, n * len, len)).collect();
    let mut options = StreamOptions::ordered(Order::Forward);
    options.mapped_budget = Some(0);
    set(&mut options);
    LayerStream::new(&engine, &device, &layers, options).unwrap()
}

/// Layers that take next to no compute and come from a drive that is slower than any link.
pub(in super::super) fn slow() -> Seen {
    let cost = LayerCost { bytes: LEN, compute: Duration::from_micros(1), resident: false };
    Seen {
        end: 8,
        costs: vec![cost; 8],
        came: Came { drive: Some(1e5), page_cache: Some(1e5), copied: None },
    }
}

#[test]
fn what_would_help_counts_from_the_budget_that_was_given() {
    let more = |budget: u64| {
        let placement =
            stream_of("sim", [budget, 0], (8, LEN)).shared.place(slow()).unwrap().placement;
        let raise = placement.prediction.lift.and_then(|lift| lift.gpu).unwrap();
        (raise.bytes, raise.pass)
    };
    let (whole, with_spare) = (more(2 * LEN), more(2 * LEN + 1000));
    assert!(whole.0 > LEN, "{whole:?}");
    assert_eq!(with_spare.0, whole.0 - 1000);
}

#[test]
fn what_could_not_be_pinned_is_said_and_predicted() {
    let (whole, short) = (stream("sim", 8 * (LEN + 512)), stream("sim", 8 * LEN));
    let all = whole.shared.place(slow()).unwrap().placement;
    assert_eq!((&all.tiers[..], &all.short), (&[Tier::Pinned; 8][..], &None));
    // Layers from odd places take some bytes more.
    let fewer = short.shared.place(slow()).unwrap().placement;
    let is_pinned = |tier: &&Tier| **tier == Tier::Pinned;
    assert_eq!(fewer.tiers.iter().filter(is_pinned).count(), 7);
    let reason = fewer.short.unwrap();
    let begins = "1 of 8 layers that were to be pinned are not: `layer 7` takes 100";
    assert!(reason.starts_with(begins) && reason.contains("`host_budget`"), "{reason}");
    // One layer comes from the drive in each pass.
    let pass = fewer.prediction.pass.as_secs_f64();
    assert!((pass / (LEN as f64 / 1e5) - 1.0).abs() < 0.02, "{pass}");
    assert!(all.prediction.pass.as_secs_f64() < pass / 2.0, "{:?}", all.prediction);
    assert_eq!(fewer.prediction.bytes.pinned, 7 * LEN);
    let file = fewer.prediction.bytes.drive + fewer.prediction.bytes.page_cache;
    assert_eq!(file, LEN);
    assert!(fewer.prediction.lift.is_some());
}

#[test]
fn what_comes_to_a_layers_place_waits_for_its_copies() {
    let stream = stream("sim", 0);
    let until = Instant::now() + Duration::from_secs(10);
    let came = || stream.shared.lock().loads.iter().all(Option::is_some);
    while !came() && Instant::now() < until {
        thread::sleep(Duration::from_millis(1));
    }
    // Nobody has taken them, so nothing else would hold up what comes.
    let state = stream.shared.lock();
    for (load, frees) in state.loads.iter().zip(&state.frees) {
        let ready = load.as_ref().expect("it has come").ready.event();
        assert!(frees.iter().any(|mark| mark.event() == ready), "{frees:?}");
    }
}

#[test]
fn a_stream_that_ends_meanwhile_pins_nothing() {
    let stream = stream("sim", 8 * (LEN + 512));
    stream.close().unwrap();
    let placed = stream.shared.place(slow()).unwrap().placement;
    assert!(!placed.tiers.contains(&Tier::Pinned), "{placed:?}");
    let reason = placed.short.unwrap();
    assert!(reason.ends_with("8 layers that were to be pinned are not: the stream was closed"));
    assert!(matches!(stream.placement(), Err(Unplanned::Ended { .. })));
}

#[test]
fn why_nothing_is_planned_is_said() {
    let text = |error: Unplanned| error.to_string();
    let open = stream("sim", 0);
    assert!(text(open.placement().unwrap_err()).starts_with("layers are placed once"));
    let mut none = slow();
    none.costs[3].compute = Duration::MAX;
    let refused = open.shared.place(none).unwrap_err();
    assert!(matches!(refused, Unplanned::CannotPlace(CannotPlace::TooMuch)), "{refused}");
    let broken = stream("sim:lost-after=0", 0);
    let refused = broken.shared.place(slow()).unwrap_err();
    assert!(matches!(&refused, Unplanned::Link { device, .. } if device.to_string() == "sim:0"));
    assert_eq!(text(refused), "the speed of the link to sim:0 could not be measured");
}

#[test]
fn a_pass_that_was_copied_alone_tells_the_link_and_nothing_is_measured() {
    // Any copy would fail.
    let broken = stream("sim:lost-after=0", 0);
    let came = Came { drive: None, page_cache: None, copied: Some(2e9) };
    let made = broken.shared.place(Seen { came, ..slow() }).unwrap();
    let Rates { link, drive, .. } = made.known.rates;
    assert_eq!((link, drive, made.known.slots), (2e9, 2e9, 2e9));
    assert!(!broken.shared.lock().is_probing);
    // Of a pass that came from files too, the link is not known.
    let came = Came { drive: Some(1e9), page_cache: None, copied: Some(2e9) };
    let refused = broken.shared.place(Seen { came, ..slow() }).unwrap_err();
    assert!(matches!(refused, Unplanned::Link { .. }), "{refused}");
}

#[test]
fn whoever_takes_all_passes_before_the_gpu_is_done_with_one_is_told_so() {
    let waits_for = |passes: u64, taken: u64| {
        let stream = stream_with("sim", (8, LEN), |options| options.passes = Some(passes));
        let mut left = taken;
        while left > 0 {
            // SAFETY: the default stream is alive, and nothing is queued on it.
            let came = unsafe { stream.next(CallerStream(0)) }.unwrap();
            left -= u64::from(came.is_some()); // between two passes none comes
        }
        // As if the first pass were not over yet.
        stream.shared.lock().why_waiting(0)
    };
    assert!(matches!(waits_for(1, 0), Unplanned::NoPass));
    assert!(matches!(waits_for(1, 8), Unplanned::NoPass));
    assert!(matches!(waits_for(2, 8), Unplanned::NotYet));
    assert!(matches!(waits_for(2, 15), Unplanned::NotYet));
    assert!(matches!(waits_for(2, 16), Unplanned::TooLate));
}

#[test]
fn a_gpu_that_is_full_is_planned_for_as_well() {
    // Room for the buffers, and for nothing beside them.
    let full = stream("sim:memory=600K", 8 * (LEN + 512));
    assert_eq!(full.shared.place(slow()).unwrap().placement.tiers, [Tier::Pinned; 8]);
}

#[test]
fn only_what_can_be_pinned_where_it_lies_comes_as_fast_as_the_link() {
    let resident = LayerCost { resident: true, ..slow().costs[0] };
    let rate = |stream: &LayerStream, costs: &[LayerCost]| {
        stream.shared.page_cache_rate(costs, (4e9, 1e9))
    };
    let is = |told: f64, expected: f64| (told / expected - 1.0).abs() < 1e-9;
    assert!(is(rate(&stream("sim", 0), &[resident; 8]), 1e9), "none may be pinned");
    // Of four two may be.
    let half = stream_of("sim", [2 << 18, 0], (4, 1 << 18));
    half.shared.group.homes().maps = Maps::new(half.shared.units(), Some(2 << 18), None);
    let told = rate(&half, &[resident; 4]);
    let why = half.shared.units()[0].files[0].no_pages();
    let expected = if why.is_some() { 1e9 } else { 1.6e9 };
    assert!(is(told, expected), "{told}: {why:?}");
    assert!(is(rate(&half, &slow().costs[..4]), 1e9), "none is resident");
}

#[test]
fn a_stream_plans_where_the_one_that_was_to_could_not() {
    let stream = stream("sim", 0);
    let pass = || {
        // SAFETY: the default stream is alive, and nothing is queued on it.
        while unsafe { stream.next(CallerStream(0)) }.unwrap().is_some() {}
    };
    // As if another stream of the group were at it.
    assert!(stream.shared.group.is_to_plan());
    (0..5).for_each(|_| pass());
    assert!(matches!(stream.shared.lock().plan, Plan::Making { from: 0 }));
    assert!(matches!(stream.placement(), Err(Unplanned::NotYet)));
    stream.shared.group.is_not_planned();
    let until = Instant::now() + Duration::from_secs(10);
    while stream.placement().is_err() && Instant::now() < until {
        pass();
    }
    stream.placement().expect("a plan of its own");
}

#[test]
fn a_stream_that_ends_waits_for_the_planners_copies() {
    // A layer takes the link 0.1 s here, and so does each of the three copies.
    let stream = stream("sim:bandwidth=1MB/s", 0);
    let until = Instant::now() + Duration::from_secs(30);
    while !stream.shared.lock().is_probing && Instant::now() < until {
        // SAFETY: the default stream is alive, and nothing is queued on it.
        let _ = unsafe { stream.next(CallerStream(0)) }.unwrap();
    }
    assert!(stream.shared.lock().is_probing, "nothing was planned");
    stream.close().unwrap();
    assert!(!stream.shared.lock().is_probing);
}

#[test]
#[expect(unsafe_code, reason = "takes a layer for the default stream")]
fn a_planner_that_panics_ends_the_streams_that_wait_for_it() {
    let stream = stream("sim", 0);
    stream.shared.lock().is_measuring = true; // no layer is brought until it ends
    thread::scope(|scope| {
        // SAFETY: the default stream is there.
        let taking = scope.spawn(|| unsafe {
            while stream.next(CallerStream(0))?.is_some() {}
            Ok::<_, Error>(())
        });
        let group = Arc::downgrade(&stream.shared.group);
        make(|| panic!("a plan is broken"), &group);
        let error = taking.join().unwrap().unwrap_err();
        assert!(error.to_string().contains("has panicked"), "{error}");
    });
    assert!(stream.close().is_ok());
}
