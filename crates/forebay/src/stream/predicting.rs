//! How long a pass is to take, by what the last one took.
//!
//! Layers are placed by the first pass, which is no measure of all that follow: a GPU that works
//! all the time may lower its clocks (`docs/internals/layers.md`), and drives change their rates.

use std::time::Duration;

use super::placement::{
    Budget, CannotPlace, LayerCost, Placement, Prediction, Rates, Tier, predict_kept,
};
use super::planning::whole;
use super::rates::Came;
use super::ring::{SLOTS, slot_len};
use super::shared::Shared;
use super::statistics::LayerTimes;

/// A pass that takes no more than this longer than what is known explains was like any other: two
/// that are alike differ by as much.
const EXPLAINED: f64 = 0.03;

/// What was placed, and what that was found by.
#[derive(Debug, Clone)]
pub(super) struct Made {
    pub(super) placement: Placement,
    pub(super) known: Known,
}

/// What a prediction is made by.
#[derive(Debug, Clone)]
pub(super) struct Known {
    /// From which position on passes show how layers come as they were placed.
    pub(super) from: u64,
    pub(super) costs: Vec<LayerCost>,
    pub(super) rates: Rates,
    /// Bytes per second from the page cache by way of slots; `rates` has what comes from pages
    /// that are pinned where they lie as well.
    pub(super) slots: f64,
    pub(super) budget: Budget,
}

impl Shared {
    /// Which unit was taken.
    pub(super) fn unit_of(&self, times: &LayerTimes) -> usize {
        times.layer * self.slices + times.slice
    }

    /// Takes in how long each unit was computed in a pass, each time that it was taken.
    pub(super) fn see_compute(&self, costs: &mut [LayerCost], pass: &[&LayerTimes]) {
        let mut computed = vec![(Duration::ZERO, 0); costs.len()];
        for times in pass {
            let (compute, takes) = &mut computed[self.unit_of(times)];
            (*compute, *takes) = (*compute + times.compute, *takes + 1);
        }
        for (cost, (compute, takes)) in costs.iter_mut().zip(computed) {
            cost.compute = compute / takes.max(1);
        }
    }

    /// Takes in whether the page cache had the units that came from files in a pass.
    fn see_residency(&self, costs: &mut [LayerCost], pass: &[&LayerTimes]) {
        for times in pass.iter().filter(|times| times.bytes > 0 && !times.pinned) {
            costs[self.unit_of(times)].resident = times.drive_bytes * 2 <= times.bytes;
        }
    }

    /// How fast layers came in a pass.
    pub(super) fn came(&self, pass: &[&LayerTimes]) -> Came {
        Came::of(pass, SLOTS * slot_len(&self.engine))
    }

    /// What was placed, with what is to be expected by the last pass that is `told` whole, which
    /// takes so many layers: as it was placed where that makes no sense, or none came since.
    pub(super) fn predict_anew(&self, made: Made, told: &[LayerTimes], len: u64) -> Placement {
        let Made { mut placement, mut known } = made;
        let Some(pass) = last_pass(told, len, known.from) else { return placement };
        self.see_compute(&mut known.costs, &pass);
        self.see_residency(&mut known.costs, &pass);
        // Nothing is placed anew, so what is left of the budget is of no use to what is there.
        let kept = placement.tiers.iter().zip(&known.costs);
        let pinned = kept.filter(|(tier, _)| **tier == Tier::Pinned).map(|(_, cost)| cost.bytes);
        let pinned: u64 = pinned.sum();
        let spare = known.budget.host.saturating_sub(pinned);
        known.budget.host = pinned;
        let came = self.came(&pass);
        let took: Duration = pass.iter().map(|times| times.time()).sum();
        // A place that had to wait for others was seen at less than it can.
        let as_known = self.predict(&placement, &known, came, f64::max);
        let as_it_came = || self.predict(&placement, &known, came, |_, came| came);
        let is_slower = |known: &Prediction| took > known.pass.mul_f64(1.0 + EXPLAINED);
        let prediction = match as_known {
            Ok(known) if is_slower(&known) => as_it_came().map(|came| {
                if came.pass.abs_diff(took) < known.pass.abs_diff(took) { came } else { known }
            }),
            other => other,
        };
        let Ok(mut prediction) = prediction else { return placement };
        self.count_spare(&mut prediction);
        let host = prediction.lift.as_mut().and_then(|lift| lift.host.as_mut());
        host.into_iter().for_each(|raise| raise.bytes = raise.bytes.saturating_sub(spare));
        placement.prediction = prediction;
        for (tier, cost) in placement.tiers.iter_mut().zip(&known.costs) {
            if matches!(tier, Tier::PageCache | Tier::Drive) {
                *tier = if cost.resident { Tier::PageCache } else { Tier::Drive };
            }
        }
        placement
    }

    /// What is to be expected where each place is as fast as `rate` makes of what was known of it
    /// and how fast layers `came` from it.
    fn predict(
        &self,
        placement: &Placement,
        known: &Known,
        came: Came,
        rate: impl Fn(f64, f64) -> f64,
    ) -> Result<Prediction, CannotPlace> {
        let of = |known: f64, came: Option<f64>| came.map_or(known, |came| rate(known, came));
        let link = of(known.rates.link, came.copied);
        let slots = of(known.slots, came.page_cache).min(link);
        let drive = of(known.rates.drive, came.drive).min(link);
        let page_cache = self.page_cache_rate(&known.costs, (link, slots));
        let rates = Rates { link, page_cache, drive };
        predict_kept(&self.order, &known.costs, &rates, &known.budget, placement)
    }
}

/// The last pass from position `from` on that is told whole.
fn last_pass(told: &[LayerTimes], len: u64, from: u64) -> Option<Vec<&LayerTimes>> {
    let last = told.iter().map(|times| times.position).max()?;
    let mut passes = (from.checked_div(len)?..=last / len).rev();
    passes.find_map(|pass| whole(told, pass * len..(pass + 1) * len))
}

#[cfg(test)]
mod tests;
