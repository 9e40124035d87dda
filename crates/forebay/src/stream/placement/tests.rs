//! Placements that are known by hand, what holds for all, and passes that are played tick by tick.

use proptest::prelude::*;

use super::*;
use crate::stream::order::Sequence;
use crate::stream::schedule::{Next, Schedule};

mod ticks;

const MB: u64 = 1_000_000;

fn layer(megabytes: u64, millis: u64) -> LayerCost {
    let compute = Duration::from_millis(millis);
    LayerCost { bytes: megabytes * MB, compute, resident: false }
}

/// A link of 10 GB/s, 5 GB/s out of the page cache and 1 GB/s from drives.
const RATES: Rates = Rates { link: 1e10, page_cache: 5e9, drive: 1e9 };

fn budget(gpu_megabytes: u64, host_megabytes: u64) -> Budget {
    Budget { gpu: gpu_megabytes * MB, host: host_megabytes * MB }
}

fn millis(time: Duration) -> f64 {
    time.as_secs_f64() * 1e3
}

fn near(time: Duration, expected_ms: f64) -> bool {
    (millis(time) - expected_ms).abs() < 1e-3
}

/// Loads as the schedule lets them be made, when each has arrived as soon as it may begin:
/// position, layer, buffer, and how many layers were taken before.
fn loads(order: &Order, way: (usize, &[bool], u64), until: usize) -> Vec<[usize; 4]> {
    let (buffers, stays, protects) = way;
    let sequence = Sequence::new(order, stays.len(), 1, None).expect("layers");
    let mut schedule = Schedule::new(sequence, buffers);
    schedule.arrange(stays.to_vec(), protects);
    let (mut all, mut before) = (Vec::new(), None);
    for taken in 0..until {
        while let Some(load) = schedule.next_load() {
            schedule.arrived(load.buffer);
            let position = usize::try_from(load.position).expect("few");
            all.push([position, load.unit, load.buffer, taken]);
        }
        let Next::There(buffer) = schedule.next() else { panic!("{:?}", schedule.next()) };
        if let Some(before) = before.replace(buffer) {
            schedule.release(before);
        }
        schedule.take(buffer);
    }
    all
}

#[test]
fn two_buffers_overlap_compute_and_transfer() {
    for (millis, expected_ms, ceiling) in
        [(4, 80.0, Ceiling::Drive), (10, 80.0, Ceiling::Compute), (12, 96.0, Ceiling::Compute)]
    {
        let placement =
            place(&Order::Forward, &[layer(10, millis); 8], &RATES, &budget(20, 0)).expect("room");
        let prediction = placement.prediction;
        assert!(near(prediction.pass, expected_ms), "{prediction:?}");
        assert_eq!((placement.buffers, placement.protects), (2, 1));
        assert_eq!(placement.tiers, [Tier::Drive; 8]);
        assert_eq!(prediction.bytes, PassBytes { drive: 80 * MB, ..PassBytes::default() });
        assert_eq!(prediction.ceiling, ceiling);
        assert_eq!(prediction.stall, prediction.pass - prediction.compute);
    }
}

#[test]
fn training_reads_no_more_than_the_turns_need() {
    // No compute: five of eight layers at each of two turns, 10 ms each, as long as all fit.
    let layers = [layer(10, 0); 8];
    let placement = place(&Order::Training, &layers, &RATES, &budget(35, 0)).expect("room");
    assert!(near(placement.prediction.pass, 100.0), "{placement:?}");
    assert_eq!(placement.prediction.ceiling, Ceiling::Drive);
    let lift = placement.prediction.lift.expect("it waits for drives");
    assert_eq!(lift.gpu, Some(Raise { bytes: 45 * MB, pass: Duration::ZERO }));
    assert_eq!(lift.host, None);
}

#[test]
fn every_other_layer_pinned_hides_where_there_is_room_ahead() {
    // Four layers of 10 ms each behind eight computes of 6 ms. With two buffers a layer from a
    // drive has one compute to hide behind, with three two.
    let facts = Facts::new(&Order::Forward, &[layer(10, 6); 8], &RATES).expect("sense");
    let pinned = [false, true, false, true, false, true, false, true];
    for (buffers, expected) in [(2, 0.064), (3, 0.048)] {
        let script = script::Script::new(&facts, buffers, &[false; 8], buffers - 1);
        let seconds = clock::pass_seconds(&facts, &script, &pinned);
        assert!((seconds - expected).abs() < 1e-9, "{buffers}: {seconds}");
    }
    let placement =
        place(&Order::Forward, &[layer(10, 6); 8], &RATES, &budget(30, 40)).expect("room");
    assert!(millis(placement.prediction.pass) <= 48.0 * HIDDEN, "{placement:?}");
    assert_eq!((placement.prediction.ceiling, placement.prediction.lift), (Ceiling::Compute, None));
}

#[test]
fn a_lane_that_wants_less_than_half_of_the_link_gets_it() {
    // Out of the page cache at 5 GB/s: half of the link is left for as many pinned ones.
    let layers = [LayerCost { resident: true, ..layer(10, 0) }; 8];
    let facts = Facts::new(&Order::Forward, &layers, &RATES).expect("sense");
    let script = script::Script::new(&facts, 4, &[false; 8], 3);
    let pinned = [false, true, false, true, false, true, false, true];
    let seconds = clock::pass_seconds(&facts, &script, &pinned);
    assert!((seconds - 0.008).abs() < 1e-9, "{seconds}");
}

#[test]
fn what_binds_is_told() {
    let all = |layer| {
        let placed = place(&Order::Forward, &[layer; 8], &RATES, &budget(20, 80)).expect("room");
        placed.prediction.ceiling
    };
    assert_eq!(all(layer(10, 0)), Ceiling::Link);
    assert_eq!(all(layer(10, 20)), Ceiling::Compute);
    let resident = [LayerCost { resident: true, ..layer(10, 1) }; 8];
    let placed = place(&Order::Backward, &resident, &RATES, &budget(20, 0)).expect("room");
    assert_eq!(placed.prediction.ceiling, Ceiling::PageCache);
    assert!(near(placed.prediction.pass, 16.0), "{placed:?}");
}

#[test]
fn what_fits_is_read_never_again() {
    for order in [Order::Forward, Order::Training, Order::List(vec![0, 2, 0]), Order::Told] {
        let layers = [layer(10, 3), layer(20, 5), layer(0, 1)];
        let placed = place(&order, &layers, &RATES, &budget(60, 0)).expect("room");
        assert_eq!(placed.prediction.bytes, PassBytes::default());
        assert_eq!(placed.prediction.pass, placed.prediction.compute);
        let left_out = if matches!(order, Order::List(_)) { Tier::Drive } else { Tier::Gpu };
        assert_eq!(placed.tiers, [Tier::Gpu, left_out, Tier::Gpu], "{order:?}");
    }
}

#[test]
fn what_makes_no_sense_is_refused() {
    let layers = [layer(10, 1); 4];
    let place_with = |rates: Rates| place(&Order::Forward, &layers, &rates, &budget(20, 0));
    for rate in [0.0, -1.0, f64::NAN, f64::NEG_INFINITY] {
        for rates in [
            Rates { link: rate, ..RATES },
            Rates { page_cache: rate, ..RATES },
            Rates { drive: rate, ..RATES },
        ] {
            assert!(matches!(place_with(rates), Err(CannotPlace::Rate { .. })), "{rates:?}");
        }
    }
    let slow = place_with(Rates { drive: 1e-300, ..RATES });
    assert_eq!(slow, Err(CannotPlace::TooMuch));
    let endless = f64::INFINITY;
    let fast = place_with(Rates { link: endless, page_cache: endless, drive: endless });
    assert!(near(fast.expect("no limit").prediction.pass, 4.0));
    assert_eq!(
        place(&Order::Forward, &layers, &RATES, &budget(19, 99)),
        Err(CannotPlace::TooSmall { needed: 20 * MB, budget: 19 * MB })
    );
    let huge = LayerCost { bytes: u64::MAX, ..layer(0, 1) };
    let full = Budget { gpu: u64::MAX, host: u64::MAX };
    for layers in [vec![huge], vec![huge; 3], vec![LayerCost { bytes: u64::MAX / 2, ..huge }; 3]] {
        let refused = place(&Order::Training, &layers, &RATES, &full);
        assert_eq!(refused, Err(CannotPlace::TooMuch));
    }
    let forever = LayerCost { compute: Duration::MAX, ..layer(1, 1) };
    assert_eq!(place(&Order::Forward, &[forever], &RATES, &full), Err(CannotPlace::TooMuch));
    assert_eq!(place(&Order::Forward, &[], &RATES, &full), Err(CannotPlace::NoLayers));
    assert_eq!(
        place(&Order::List(vec![0, 4]), &layers, &RATES, &full),
        Err(CannotPlace::NoSuchLayer { layer: 4, layers: 4 })
    );
}

#[test]
fn ten_thousand_experts_are_placed_as_far_as_budgets_allow() {
    let layers = vec![layer(10, 1); 10_000];
    let placed = place(&Order::Told, &layers, &RATES, &budget(50_000, 20_000)).expect("room");
    let count = |tier| placed.tiers.iter().filter(|&&other| other == tier).count();
    assert_eq!((placed.buffers, count(Tier::Gpu)), (5_000, 4_992));
    // As few as bring a pass within half a percent.
    assert!((1_985..=2_000).contains(&count(Tier::Pinned)), "{}", count(Tier::Pinned));
    // 3,008 layers from drives.
    assert!(
        (millis(placed.prediction.pass) / 30_080.0 - 1.0).abs() < HIDDEN - 1.0,
        "{:?}",
        placed.prediction
    );
}

#[derive(Debug, Clone)]
struct Case {
    order: Order,
    layers: Vec<LayerCost>,
    rates: Rates,
    budget: Budget,
}

impl Case {
    fn place(&self, budget: Budget) -> Placement {
        place(&self.order, &self.layers, &self.rates, &budget).expect("it makes sense")
    }
}

fn any_order(layers: usize) -> impl Strategy<Value = Order> {
    prop_oneof![
        Just(Order::Forward),
        Just(Order::Backward),
        Just(Order::Training),
        Just(Order::Told),
        prop::collection::vec(0..layers, 1..2 * layers).prop_map(Order::List),
    ]
}

fn any_layers(most: usize) -> impl Strategy<Value = Vec<LayerCost>> {
    let one = (0..20_u64, 0..20_u64, any::<bool>())
        .prop_map(|(size, time, resident)| LayerCost { resident, ..layer(size, time) });
    let same = (1..20_u64, 0..20_u64, 1..most)
        .prop_map(|(size, time, count)| vec![layer(size, time); count]);
    prop_oneof![prop::collection::vec(one, 1..most), same]
}

fn any_case(most: usize) -> impl Strategy<Value = Case> {
    let rates = (5..50_u32, 1..60_u32, 1..20_u32).prop_map(|(link, page_cache, drive)| Rates {
        link: f64::from(link) * 2e8,
        page_cache: f64::from(page_cache) * 2e8,
        drive: f64::from(drive) * 2e8,
    });
    (any_layers(most), rates, 2.0..13.0_f64, 0..200_u64).prop_flat_map(
        |(layers, rates, buffers, host)| {
            let largest = layers.iter().map(|layer| layer.bytes).max().unwrap_or(0);
            let tenths = (buffers * 10.0).round();
            let gpu = (0..200_u64).find(|&n| n as f64 >= tenths).unwrap_or(20) * largest / 10;
            let budget = Budget { gpu, host: host * MB };
            any_order(layers.len()).prop_map(move |order| Case {
                order,
                layers: layers.clone(),
                rates,
                budget,
            })
        },
    )
}

/// What 0.5 % longer is, or a rounding.
fn longer(time: Duration) -> Duration {
    time.mul_f64(1.005) + Duration::from_nanos(2)
}

proptest! {
    /// The script is what the schedule decides.
    #[test]
    fn a_script_is_what_the_schedule_does(
        case in any_case(12),
        (buffers, protects) in (2..8_usize, 1..7_usize),
        stays in prop::collection::vec(any::<bool>(), 12),
    ) {
        let facts = Facts::new(&case.order, &case.layers, &case.rates).expect("sense");
        let buffers = buffers.min(facts.taken.len().saturating_sub(1)).max(2);
        let mut stays = stays[..case.layers.len()].to_vec();
        let mut staying = 0;
        for stay in &mut stays {
            *stay &= staying + 2 < buffers;
            staying += usize::from(*stay);
        }
        let script = script::Script::new(&facts, buffers, &stays, protects);
        let until = script.passes() * facts.pass.len();
        let order = if case.order == Order::Told { &Order::Forward } else { &case.order };
        let all = loads(order, (buffers, &stays, protects as u64), until);
        let mine = script.loads.iter().map(|it| [it.position, it.layer, it.buffer, it.after]);
        let mine: Vec<[usize; 4]> = mine.collect();
        prop_assert_eq!(&mine[..], &all[..mine.len()]);
        prop_assert!(all[mine.len()..].iter().all(|load| load[0] >= until));
    }

    /// Budgets are kept, and no time is below what must be moved and computed.
    #[test]
    fn budgets_are_kept_and_no_pass_is_faster_than_its_parts(case in any_case(12)) {
        let placed = case.place(case.budget);
        let largest = case.layers.iter().map(|layer| layer.bytes).max().expect("layers");
        prop_assert!(placed.buffers as u64 * largest <= case.budget.gpu);
        prop_assert!(placed.buffers >= 2);
        let tiers = &placed.tiers;
        let of = |tier| (0..tiers.len()).filter(move |&it| tiers[it] == tier);
        let read = placed.prediction.bytes;
        let pinned: u64 = of(Tier::Pinned).map(|it| case.layers[it].bytes).sum();
        prop_assert!(pinned <= case.budget.host);
        let stay = of(Tier::Gpu).count();
        prop_assert!(stay <= placed.buffers);
        prop_assert!(stay + 2 <= placed.buffers || read == PassBytes::default());
        prop_assert!(of(Tier::PageCache).all(|it| case.layers[it].resident));
        prop_assert!(of(Tier::Drive).all(|it| !case.layers[it].resident));
        let (pass, rates) = (placed.prediction.pass.as_secs_f64() * 1.000_001 + 1e-8, case.rates);
        let all = (read.pinned + read.page_cache + read.drive) as f64;
        prop_assert!(placed.prediction.pass >= placed.prediction.compute);
        prop_assert!(pass >= all / rates.link);
        prop_assert!(pass >= read.page_cache as f64 / rates.page_cache);
        prop_assert!(pass >= read.drive as f64 / rates.drive);
    }

    /// What is kept as it was placed takes as long as was said; with one layer less in pinned
    /// memory as much is read.
    #[test]
    fn what_is_kept_is_predicted(case in any_case(12), missing in 0..12_usize) {
        let mut placed = case.place(case.budget);
        let Case { order, layers, rates, budget } = &case;
        let predict = |placed: &Placement, budget: &Budget| {
            predict_kept(order, layers, rates, budget, placed).expect("it makes sense")
        };
        prop_assert_eq!(predict(&placed, budget), placed.prediction);
        let pinned = (0..layers.len()).filter(|&it| placed.tiers[it] == Tier::Pinned);
        let Some(layer) = pinned.cycle().nth(missing) else { return Ok(()) };
        placed.tiers[layer] = if layers[layer].resident { Tier::PageCache } else { Tier::Drive };
        let pinned = (0..layers.len()).filter(|&it| placed.tiers[it] == Tier::Pinned);
        let host = pinned.map(|it| layers[it].bytes).sum();
        let fallen = predict(&placed, &Budget { host, ..*budget });
        let all = |of: PassBytes| of.pinned + of.page_cache + of.drive;
        let (read, before) = (fallen.bytes, placed.prediction.bytes);
        prop_assert!(all(read).abs_diff(all(before)) <= 3, "{read:?}, {before:?}");
        prop_assert!(read.pinned <= before.pinned);
        let pass = fallen.pass.as_secs_f64() * 1.000_001 + 1e-8;
        prop_assert!(fallen.pass >= fallen.compute && pass >= read.drive as f64 / rates.drive);
        prop_assert_eq!(fallen.lift.is_none(), fallen.ceiling == Ceiling::Compute);
    }

    /// A larger budget makes no pass longer.
    #[test]
    fn more_budget_is_no_slower(
        case in any_case(12),
        (gpu, host) in (0..100_u64, 0..100_u64),
    ) {
        let before = case.place(case.budget).prediction.pass;
        let Budget { gpu: gpu_before, host: host_before } = case.budget;
        let more = Budget { gpu: gpu_before + gpu * MB, ..case.budget };
        prop_assert!(case.place(more).prediction.pass <= longer(before), "GPU: {more:?}");
        let more = Budget { host: host_before + host * MB, ..case.budget };
        prop_assert!(case.place(more).prediction.pass <= longer(before), "host: {more:?}");
    }

    /// A lift does what it says.
    #[test]
    fn a_lift_does_what_it_says(case in any_case(12)) {
        let prediction = case.place(case.budget).prediction;
        let hidden = longer(prediction.compute);
        let Some(lift) = prediction.lift else {
            prop_assert!(prediction.pass <= hidden);
            return Ok(());
        };
        prop_assert!(prediction.pass > prediction.compute);
        let Budget { gpu, host } = case.budget;
        let more = lift.gpu.expect("all fit at last");
        let lifted = case.place(Budget { gpu: gpu + more.bytes, host }).prediction;
        prop_assert_eq!((lifted.pass, lifted.ceiling), (more.pass, Ceiling::Compute));
        prop_assert!(more.pass <= hidden);
        let less = case.place(Budget { gpu: gpu + more.bytes - 1, host }).prediction;
        prop_assert!(less.pass.mul_f64(1.005) > prediction.compute, "less would do");
        if let Some(more) = lift.host {
            let lifted = case.place(Budget { gpu, host: host + more.bytes }).prediction;
            prop_assert_eq!((lifted.pass, lifted.ceiling), (more.pass, Ceiling::Compute));
            prop_assert!(more.pass <= hidden);
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

    /// Whoever plays the same passes tick by tick finds the same time.
    #[test]
    fn ticks_agree(
        layers in prop::collection::vec((5..40_u64, 5..40_u64, any::<bool>()), 8),
        host in 0..100_u64,
        (page_cache, drive) in (2..12_u32, 1..4_u32),
    ) {
        let layers: Vec<LayerCost> = layers
            .into_iter()
            .map(|(size, time, resident)| LayerCost { resident, ..layer(size, time) })
            .collect();
        let [page_cache, drive] = [page_cache, drive].map(|rate| f64::from(rate) * 5e8);
        let rates = Rates { link: 4e9, page_cache, drive };
        let largest = layers.iter().map(|layer| layer.bytes).max().expect("eight");
        let budget = Budget { gpu: 3 * largest, host: host * MB };
        let placed = place(&Order::Training, &layers, &rates, &budget).expect("room");
        let clipped = Rates { page_cache: rates.page_cache.min(rates.link), ..rates };
        let ticks = ticks::pass_seconds(&Order::Training, &layers, &clipped, &placed);
        let said = placed.prediction.pass.as_secs_f64();
        prop_assert!((ticks / said - 1.0).abs() < 0.02, "{said} s, by ticks {ticks} s: {placed:?}");
    }
}
