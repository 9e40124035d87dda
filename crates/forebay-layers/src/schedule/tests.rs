//! Loads for known cases, the minimum number of loads, and buffers in use.

use std::collections::HashMap;

use proptest::prelude::*;

use super::*;
use crate::order::Order;

fn schedule(order: &Order, layers: usize, buffers: usize, passes: Option<u64>) -> Schedule {
    let sequence = Sequence::new(order, layers, 1, passes).expect("known layers");
    Schedule::new(sequence, buffers)
}

/// Does all possible loads at once.
fn bring(schedule: &mut Schedule) -> Vec<usize> {
    let mut brought = Vec::new();
    while let Some(load) = schedule.next_load() {
        schedule.arrived(load.buffer);
        brought.push(load.unit);
    }
    brought
}

/// Takes `count` layers, each of which releases the one before it; returns what was loaded.
fn run(schedule: &mut Schedule, count: usize) -> Vec<usize> {
    let (mut brought, mut before) = (bring(schedule), None);
    for _ in 0..count {
        if let Some(buffer) = before {
            schedule.release(buffer);
        }
        brought.extend(bring(schedule));
        let Next::There(buffer) = schedule.next() else { break };
        schedule.take(buffer);
        before = Some(buffer);
        brought.extend(bring(schedule));
    }
    brought
}

/// The minimum number of loads by exhaustive search: at each position a missing layer may replace
/// any but the `protects` most recently taken.
fn fewest(units: &[usize], buffers: usize, protects: usize) -> usize {
    let mut states: HashMap<Vec<usize>, usize> = HashMap::from([(Vec::new(), 0)]);
    for (at, &unit) in units.iter().enumerate() {
        let recent = &units[at.saturating_sub(protects)..at];
        let mut after: HashMap<Vec<usize>, usize> = HashMap::new();
        for (held, cost) in states {
            let mut reach = |mut held: Vec<usize>, cost: usize| {
                held.sort_unstable();
                let best = after.entry(held).or_insert(usize::MAX);
                *best = (*best).min(cost);
            };
            if held.contains(&unit) {
                reach(held, cost);
            } else if held.len() < buffers {
                reach([held, vec![unit]].concat(), cost + 1);
            } else {
                for (place, other) in held.iter().enumerate() {
                    if !recent.contains(other) {
                        let mut held = held.clone();
                        held[place] = unit;
                        reach(held, cost + 1);
                    }
                }
            }
        }
        states = after;
    }
    states.into_values().min().expect("there is a way")
}

#[test]
fn layers_at_the_turn_are_not_read_again() {
    let mut schedule = schedule(&Order::Training, 8, 3, Some(1));
    let brought = run(&mut schedule, 16);
    assert_eq!(brought, [0, 1, 2, 3, 4, 5, 6, 7, 4, 3, 2, 1, 0]);
    assert_eq!(schedule.next(), Next::End);
}

#[test]
fn from_pass_to_pass_both_turns_are_used() {
    let mut schedule = schedule(&Order::Training, 8, 3, Some(3));
    // 8 at first, then 5 at each of 5 turns.
    assert_eq!(run(&mut schedule, 48).len(), 8 + 5 * 5);
}

#[test]
fn layers_that_fit_are_brought_once() {
    for order in [Order::Forward, Order::Backward, Order::Training] {
        assert_eq!(run(&mut schedule(&order, 4, 4, None), 100).len(), 4, "{order:?}");
    }
}

#[test]
fn kept_layers_are_read_once_and_the_others_take_turns() {
    let mut schedule = schedule(&Order::Forward, 6, 4, None);
    schedule.arrange(vec![true, false, false, true, false, false], 1);
    let brought = run(&mut schedule, 60);
    let times = |unit| brought.iter().filter(|&&other| other == unit).count();
    assert_eq!((times(0), times(3)), (1, 1));
    assert!([1, 2, 4, 5].into_iter().all(|unit| times(unit) > 1), "{brought:?}");
}

#[test]
fn kept_layers_stay_and_too_many_of_them_are_reported() {
    let mut schedule = schedule(&Order::Forward, 5, 3, None);
    for _ in 0..3 {
        bring(&mut schedule);
        let Next::There(buffer) = schedule.next() else { panic!("{:?}", schedule.next()) };
        schedule.take(buffer);
        schedule.keep(buffer);
    }
    assert_eq!((bring(&mut schedule), schedule.next()), (vec![], Next::NoRoom));
    schedule.release(1);
    assert_eq!((bring(&mut schedule), schedule.next()), (vec![3], Next::There(1)));
}

#[test]
fn a_failed_layer_is_read_again() {
    let mut schedule = schedule(&Order::Forward, 3, 2, Some(1));
    let first = schedule.next_load().expect("the first layer");
    let second = schedule.next_load().expect("the second layer");
    assert_eq!((first.unit, second.unit, schedule.next()), (0, 1, Next::Coming));
    schedule.failed(first.buffer);
    assert_eq!(schedule.next_load(), Some(first));
}

#[test]
fn an_announced_order_is_followed_as_far_as_it_is_known() {
    let mut schedule = schedule(&Order::Appended, 100, 2, None);
    assert_eq!(schedule.next(), Next::End);
    [40, 7, 40].into_iter().for_each(|unit| schedule.append(unit));
    assert_eq!(run(&mut schedule, 3), [40, 7]);
    schedule.append(3);
    assert_eq!(run(&mut schedule, 1), [3]);
    assert_eq!(schedule.next(), Next::End);
}

fn any_order() -> impl Strategy<Value = (Order, u64)> {
    let list = prop::collection::vec(0..5_usize, 1..7).prop_map(Order::List);
    let order =
        prop_oneof![Just(Order::Forward), Just(Order::Backward), Just(Order::Training), list];
    (order, 1..3_u64)
}

proptest! {
    /// No rule that protects the most recently taken layers reads fewer.
    #[test]
    fn no_rule_reads_fewer((order, passes) in any_order(), buffers in 2..5_usize) {
        let mut schedule = schedule(&order, 5, buffers, Some(passes));
        let units: Vec<usize> = (0..).map_while(|at| schedule.sequence().at(at)).collect();
        let brought = run(&mut schedule, units.len());
        prop_assert_eq!(schedule.next(), Next::End);
        prop_assert_eq!(brought.len(), fewest(&units, buffers, 1), "{:?}", brought);
    }

    /// With any layers kept, released and failing: layers in use are not evicted, none is in two
    /// buffers, and two buffers that are not kept suffice for progress.
    #[test]
    fn layers_in_use_are_never_replaced(
        (order, passes) in any_order(),
        buffers in 2..6_usize,
        protects in 1..4_u64,
        steps in prop::collection::vec(0..5_u8, 1..60),
    ) {
        let mut schedule = schedule(&order, 5, buffers, Some(passes));
        schedule.arrange(Vec::new(), protects);
        let (mut coming, mut before): (Vec<Load>, Option<usize>) = (Vec::new(), None);
        let mut kept: Vec<usize> = Vec::new();
        for step in steps {
            let users: Vec<u32> = schedule.buffers.iter().map(|buffer| buffer.users).collect();
            match step {
                0 if let Some(load) = schedule.next_load() => {
                    prop_assert_eq!(users[load.buffer], 0);
                    coming.push(load);
                }
                1 if !coming.is_empty() => schedule.arrived(coming.remove(0).buffer),
                2 if !coming.is_empty() => schedule.failed(coming.remove(0).buffer),
                3 if let Some(buffer) = before && kept.len() + 2 < buffers => {
                    schedule.keep(buffer);
                    kept.push(buffer);
                    before = None;
                }
                _ => {
                    if let Some(buffer) = before.take() {
                        schedule.release(buffer);
                    }
                    if let Next::There(buffer) = schedule.next() {
                        prop_assert_eq!(
                            schedule.buffers[buffer].unit(),
                            schedule.sequence().at(schedule.position())
                        );
                        schedule.take(buffer);
                        before = Some(buffer);
                    }
                }
            }
            let mut units: Vec<usize> = schedule.buffers.iter().filter_map(Held::unit).collect();
            let all = units.len();
            units.sort_unstable();
            units.dedup();
            prop_assert_eq!(units.len(), all, "one layer in two buffers");
        }
        coming.into_iter().for_each(|load| schedule.arrived(load.buffer));
        let left = passes * schedule.sequence().pass_len() - schedule.position();
        if let Some(buffer) = before {
            schedule.release(buffer);
        }
        run(&mut schedule, usize::try_from(left).expect("few"));
        prop_assert_eq!(schedule.next(), Next::End);
    }
}
