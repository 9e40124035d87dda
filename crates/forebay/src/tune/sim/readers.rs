//! Readers of resident data: threads that share cores, a link that may bind, and pieces of slots
//! that wait for it.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use super::{MS, SECOND, nearly_all, seeds};
use crate::gpu::sim::Dice;
use crate::tune::{ReaderLimits, ReaderTuner};
use crate::units::MIB;

/// A machine with resident data.
#[derive(Debug, Clone, Copy)]
struct Machine {
    /// Cores that may be used.
    cores: u64,
    /// Bytes a second that one reader copies, all of them together, and the link.
    one: u64,
    all: u64,
    link: u64,
}

/// Pieces that may be filled and not yet copied.
const SLOTS: u64 = 64;

/// Runs the readers for so long; the rate, and how many there were at the end.
fn run(machine: Machine, tuner: &mut ReaderTuner, ns: u64, seed: u64) -> u64 {
    let mut dice = Dice::new(seed);
    let (mut now_ns, mut done, mut link_free_ns) = (0_u64, 0_u64, 0_u64);
    let mut running: BinaryHeap<Reverse<(u64, u64)>> = BinaryHeap::new();
    let piece_ns = |rate: u64| MIB * SECOND / rate;
    while now_ns < ns {
        let waiting = link_free_ns.saturating_sub(now_ns).div_ceil(piece_ns(machine.link));
        let full = waiting + running.len() as u64 >= SLOTS;
        if !full && running.len() < tuner.count() {
            let busy = running.len() as u64 + 1;
            let share = machine.all.min(machine.one * machine.cores.min(busy)) / busy;
            let took_ns = piece_ns(share) * (80 + dice.next() % 41) / 100;
            running.push(Reverse((now_ns + took_ns, now_ns)));
            continue;
        }
        let next_ns = running.peek().map_or(u64::MAX, |piece| piece.0.0);
        let freed_ns = link_free_ns.saturating_sub((SLOTS - 1) * piece_ns(machine.link));
        if full && running.is_empty() {
            now_ns = freed_ns.max(now_ns + 1);
            continue;
        }
        let busy = running.len();
        now_ns = next_ns.max(now_ns);
        let piece = running.pop().expect("it was looked at");
        tuner.completed(now_ns, MIB, now_ns - piece.0.1, busy);
        link_free_ns = link_free_ns.max(now_ns) + piece_ns(machine.link);
        done += MIB;
    }
    done * 1000 / (ns / MS)
}

fn tuned(machine: Machine, limits: ReaderLimits, seed: u64) -> (u64, usize) {
    let mut tuner = ReaderTuner::new(limits, MIB);
    run(machine, &mut tuner, 2 * SECOND, seed);
    let rate = run(machine, &mut tuner, SECOND, seed);
    assert!(tuner.rate().is_none_or(|found| found.0 > rate / 2), "{:?}", tuner.rate());
    (rate, tuner.count())
}

const GB: u64 = 1_000_000_000;

#[test]
fn readers_grow_until_the_memory_or_the_link_binds() {
    for seed in seeds() {
        let machine = Machine { cores: 16, one: 8 * GB, all: 100 * GB, link: 200 * GB };
        let (rate, count) = tuned(machine, ReaderLimits { start: 4, max: 16 }, seed);
        assert!(rate > 92 * GB && count >= 11, "seed {seed}: {count} readers, {rate}");
        let bound = Machine { link: 55 * GB, ..machine };
        let (rate, count) = tuned(bound, ReaderLimits { start: 10, max: 16 }, seed);
        assert!(rate > 54 * GB && (7..=11).contains(&count), "seed {seed}: {count}, {rate}");
    }
}

#[test]
fn readers_beyond_the_cores_are_let_go() {
    let machine = Machine { cores: 2, one: 6 * GB, all: 100 * GB, link: 55 * GB };
    let run = |seed| {
        let (rate, count) = tuned(machine, ReaderLimits { start: 10, max: 16 }, seed);
        assert!(rate > 11 * GB, "seed {seed}: {count} readers, {rate}");
        count as u64
    };
    let counts: Vec<u64> = seeds().map(run).collect();
    assert!(nearly_all(counts.clone()) <= 6, "{counts:?}");
}

#[test]
fn a_quota_bounds_the_readers() {
    assert_eq!(ReaderLimits::of(16, None), ReaderLimits { start: 10, max: 16 });
    assert_eq!(ReaderLimits::of(4, None), ReaderLimits { start: 4, max: 4 });
    assert_eq!(ReaderLimits::of(1, None), ReaderLimits { start: 2, max: 2 });
    assert_eq!(ReaderLimits::of(64, Some(3_500)), ReaderLimits { start: 4, max: 4 });
    assert_eq!(ReaderLimits::of(64, Some(0)), ReaderLimits { start: 2, max: 2 });
    assert_eq!(ReaderLimits::of(2, Some(64_000)), ReaderLimits { start: 2, max: 2 });
}
