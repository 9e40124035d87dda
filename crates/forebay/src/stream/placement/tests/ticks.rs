//! Plays passes a second time, tick by tick and with the schedule itself, to compare.

use std::collections::VecDeque;

use crate::stream::order::{Order, Sequence};
use crate::stream::placement::{LayerCost, Placement, Rates, Tier};
use crate::stream::schedule::{Load, Next, Schedule};

const TICK: f64 = 1e-4;

/// One way to the buffers.
#[derive(Default)]
struct Lane {
    /// What it brings, with the position that must be computed before, and the bytes left.
    loads: VecDeque<(Load, Option<u64>, f64)>,
}

struct World<'a> {
    layers: &'a [LayerCost],
    rates: &'a Rates,
    tiers: &'a [Tier],
    schedule: Schedule,
    lanes: [Lane; 2],
    /// For each buffer the position at which it was taken last.
    last: Vec<Option<u64>>,
    taken: Option<usize>,
    /// Seconds of compute left for each layer that was taken and not computed.
    computes: VecDeque<f64>,
    computed: u64,
}

impl World<'_> {
    fn host(&mut self) {
        loop {
            while let Some(load) = self.schedule.next_load() {
                let lane = usize::from(self.tiers[load.unit] != Tier::Pinned);
                let bytes = self.layers[load.unit].bytes as f64;
                self.lanes[lane].loads.push_back((load, self.last[load.buffer], bytes));
            }
            let Next::There(buffer) = self.schedule.next() else { return };
            if self.computes.len() > 64 {
                return; // all that is left is there
            }
            let position = self.schedule.position();
            let unit = self.schedule.sequence().at(position).expect("without end");
            if let Some(before) = self.taken.replace(buffer) {
                self.schedule.release(before);
            }
            self.schedule.take(buffer);
            self.last[buffer] = Some(position);
            self.computes.push_back(self.layers[unit].compute.as_secs_f64());
        }
    }

    fn tick(&mut self) {
        self.host();
        let computed = self.computed;
        let heads = [0, 1].map(|lane| {
            let (load, needs, _) = self.lanes[lane].loads.front()?;
            needs.is_none_or(|position| position < computed).then_some(load.unit)
        });
        let wanted = heads.map(|unit| match unit {
            None => 0.0,
            Some(unit) if self.tiers[unit] == Tier::Pinned => self.rates.link,
            Some(unit) if self.layers[unit].resident => self.rates.page_cache,
            Some(_) => self.rates.drive,
        });
        let half = self.rates.link / 2.0;
        let file = if wanted[0] > 0.0 { wanted[1].min(half) } else { wanted[1] };
        for (lane, rate) in [(0, wanted[0] - file), (1, file)] {
            if heads[lane].is_some() {
                let front = self.lanes[lane].loads.front_mut().expect("a head");
                front.2 -= rate * TICK;
                if front.2 <= rate * TICK * 0.5 {
                    let (load, ..) = self.lanes[lane].loads.pop_front().expect("a head");
                    self.schedule.arrived(load.buffer);
                }
            }
        }
        if let Some(left) = self.computes.front_mut() {
            *left -= TICK;
            if *left <= TICK * 0.5 {
                self.computes.pop_front();
                self.computed += 1;
            }
        }
    }
}

/// Seconds of a pass, the mean of 24 after 4.
pub(super) fn pass_seconds(
    order: &Order,
    layers: &[LayerCost],
    rates: &Rates,
    placement: &Placement,
) -> f64 {
    let sequence = Sequence::new(order, layers.len(), 1, None).expect("layers");
    let len = sequence.pass_len();
    let mut schedule = Schedule::new(sequence, placement.buffers);
    let stays = placement.tiers.iter().map(|&tier| tier == Tier::Gpu).collect();
    schedule.arrange(stays, placement.protects);
    let mut world = World {
        layers,
        rates,
        tiers: &placement.tiers,
        schedule,
        lanes: [Lane::default(), Lane::default()],
        last: vec![None; placement.buffers],
        taken: None,
        computes: VecDeque::new(),
        computed: 0,
    };
    let mut at = |computed: u64| {
        let mut ticks = 0_u32;
        while world.computed < computed {
            world.tick();
            ticks += 1;
            assert!(ticks < 10_000_000, "it goes on");
        }
        f64::from(ticks) * TICK
    };
    at(4 * len);
    at(28 * len) / 24.0
}
