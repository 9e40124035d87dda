//! Where each layer is kept, so that what must be read hides behind the compute. Pure.
//!
//! Passes are played with a clock for some of the ways to place the layers ([`search`]), and the
//! best one is taken. What is played is what [`Schedule`](super::schedule) decides ([`script`]), on
//! two lanes that share the link ([`clock`]).

use std::time::Duration;

use super::order::Order;

mod clock;
mod facts;
mod script;
mod search;
mod spread;

use facts::Facts;
use script::Script;
use search::{Choice, Floors, HIDDEN, MANY, Search, first};

/// A lift of many layers is found to so many parts of what there is.
const STEPS_MANY: usize = 16;

/// What a layer takes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LayerCost {
    /// Its bytes.
    pub bytes: u64,
    /// How long the GPU computes each time that it is taken.
    pub compute: Duration,
    /// Whether its file is in the page cache.
    pub resident: bool,
}

/// How fast layers can be brought, in bytes per second. What is faster than the link is as fast as
/// the link; infinity is a rate.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Rates {
    /// From pinned memory to the GPU, and of all that crosses the link at the same time.
    pub link: f64,
    /// From the page cache through slots to the GPU.
    pub page_cache: f64,
    /// From the drives to the GPU.
    pub drive: f64,
}

/// What may be taken for layers, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Budget {
    /// On the GPU, for the buffers that layers are brought to.
    pub gpu: u64,
    /// In pinned memory, for layers that are kept there.
    pub host: u64,
}

/// Where a layer is kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Tier {
    /// On the GPU, for good.
    Gpu,
    /// In pinned memory.
    Pinned,
    /// In its file, which is in the page cache.
    PageCache,
    /// In its file, on drives.
    Drive,
}

/// What the time of a pass is bound by.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Ceiling {
    /// The compute: all else hides behind it, but for 0.5 %.
    Compute,
    /// The link to the GPU.
    Link,
    /// What comes out of the page cache.
    PageCache,
    /// What comes from the drives.
    Drive,
}

/// Bytes that a pass reads, by where they are kept.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct PassBytes {
    /// Out of pinned memory.
    pub pinned: u64,
    /// Out of the page cache.
    pub page_cache: u64,
    /// From drives.
    pub drive: u64,
}

/// How long a pass takes when it is one of many, and why. A pass of [`Order::Training`] is there
/// and back.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Prediction {
    /// The time of a pass.
    pub pass: Duration,
    /// How much of that the GPU computes.
    pub compute: Duration,
    /// How much of it the GPU waits.
    pub stall: Duration,
    /// What is read. Where passes differ it is their mean, rounded down.
    pub bytes: PassBytes,
    /// What binds. Where layers come too late although nothing is busy all the time, it is what is
    /// busy the longest.
    pub ceiling: Ceiling,
    /// What would hide what is read behind the compute; `None`: it is hidden.
    pub lift: Option<Lift>,
}

/// What would hide what is read behind the compute, so that a pass takes 0.5 % longer than that at
/// most: either of these alone.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Lift {
    /// Memory of the GPU.
    pub gpu: Option<Raise>,
    /// Pinned memory; `None`: no amount of it would.
    pub host: Option<Raise>,
}

/// A larger budget; of pinned memory that could not all be had, more than that.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Raise {
    /// The least that was found to do, on top of the budget, in bytes.
    pub bytes: u64,
    /// The time of a pass then.
    pub pass: Duration,
}

/// Where layers are kept, and how long a pass takes then.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Placement {
    /// For each layer where it is kept; of a stream that takes layers in slices, for each slice,
    /// those of a layer one behind the other.
    pub tiers: Vec<Tier>,
    /// How many buffers there are on the GPU, each as large as the largest layer. With those of the
    /// layers that are kept there for good.
    pub buffers: usize,
    /// How many of the layers that were taken last do not give way to others.
    pub protects: u64,
    /// What is to be expected of it.
    pub prediction: Prediction,
    /// Why fewer layers are pinned than was planned, where that is so; the prediction is of those
    /// that are.
    pub short: Option<String>,
}

/// Why layers cannot be placed.
#[derive(Debug, Clone, Copy, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum CannotPlace {
    /// One layer is computed while the next one is brought.
    #[error("two buffers for layers take {needed} bytes of GPU memory, the budget is {budget}")]
    TooSmall {
        /// Bytes for two buffers.
        needed: u64,
        /// Bytes of the budget.
        budget: u64,
    },
    /// There is nothing to place.
    #[error("there are no layers")]
    NoLayers,
    /// The order names one that is none.
    #[error("the order names layer {layer}, of {layers} layers")]
    NoSuchLayer {
        /// What was named.
        layer: usize,
        /// How many there are; they are counted from 0.
        layers: usize,
    },
    /// Not a number above zero.
    #[error("a rate of {rate} bytes per second makes no sense: {name}")]
    Rate {
        /// Which one.
        name: &'static str,
        /// What was said.
        rate: f64,
    },
    /// The bytes of all layers are no number of 64 bits, or a pass takes more than 30 years.
    #[error("the layers are larger or slower than anything is")]
    TooMuch,
}

/// Places layers so that a pass takes as short as can be found: kept on the GPU, in pinned memory,
/// or left in their files.
///
/// No more is pinned than it takes to come within 0.5 % of the shortest pass that is found. Those
/// that stay and those that are pinned are spread evenly over the pass, by how long it takes to
/// read them out of their files. A layer that is never taken is left in its file. An order that is
/// [`Told`](Order::Told) cannot be predicted: it is placed as if all layers were taken from the
/// first to the last.
///
/// The work is bounded, and the same budgets always yield the same placement: with 100 layers some
/// milliseconds. Where a pass takes 2,000 layers or more only one way is tried, with as many layers
/// in buffers and in pinned memory as the budgets allow, and a lift is found only roughly.
///
/// # Errors
/// What makes no sense, and a budget that is too small.
pub fn place(
    order: &Order,
    layers: &[LayerCost],
    rates: &Rates,
    budget: &Budget,
) -> Result<Placement, CannotPlace> {
    let facts = Facts::new(order, layers, rates)?;
    let needed = 2 * facts.largest;
    if budget.gpu < needed {
        return Err(CannotPlace::TooSmall { needed, budget: budget.gpu });
    }
    let choice = Search::new(&facts, room(&facts, budget), budget.host).choose();
    let prediction = predict(&facts, &choice, budget);
    let tier = |layer: usize| match (choice.stays[layer], choice.pinned[layer]) {
        (true, _) => Tier::Gpu,
        (false, true) => Tier::Pinned,
        (false, false) if facts.resident[layer] => Tier::PageCache,
        (false, false) => Tier::Drive,
    };
    Ok(Placement {
        tiers: (0..layers.len()).map(tier).collect(),
        buffers: choice.buffers,
        protects: choice.protects as u64,
        prediction,
        short: None,
    })
}

/// What is to be expected where layers are kept as `placement` says, whatever it predicts itself,
/// and `budget` has as much as is taken for them.
///
/// # Errors
/// As [`place`].
pub(super) fn predict_kept(
    order: &Order,
    layers: &[LayerCost],
    rates: &Rates,
    budget: &Budget,
    placement: &Placement,
) -> Result<Prediction, CannotPlace> {
    let facts = Facts::new(order, layers, rates)?;
    let is = |tier: Tier| placement.tiers.iter().map(move |other| *other == tier).collect();
    let (stays, pinned): (Vec<bool>, Vec<bool>) = (is(Tier::Gpu), is(Tier::Pinned));
    let protects = usize::try_from(placement.protects).unwrap_or(usize::MAX);
    let buffers = placement.buffers;
    let script = Script::new(&facts, buffers, &stays, protects);
    let floor = Floors::new(&facts, &script.brought, script.counted, &pinned).most();
    // As the search has it: what is read ahead of the passes that count would be missing.
    let pass = clock::pass_seconds(&facts, &script, &pinned).max(floor);
    let host = facts.bytes_of((0..layers.len()).filter(|&layer| pinned[layer]));
    let Script { brought, counted, .. } = script;
    let choice = Choice { buffers, protects, stays, pinned, host, pass, brought, counted };
    Ok(predict(&facts, &choice, budget))
}

/// How many buffers a budget has room for, as far as they are of use.
fn room(facts: &Facts, budget: &Budget) -> usize {
    let most = facts.taken.len().max(2);
    let room = budget.gpu.checked_div(facts.largest);
    room.map_or(most, |room| usize::try_from(room).map_or(most, |room| room.min(most)))
}

/// What is to be expected.
fn predict(facts: &Facts, choice: &Choice, budget: &Budget) -> Prediction {
    let (mut pinned, mut page_cache, mut drive) = (0, 0, 0);
    for (layer, &times) in choice.brought.iter().enumerate() {
        let bytes = u128::from(facts.bytes[layer]) * u128::from(times);
        match (choice.pinned[layer], facts.resident[layer]) {
            (true, _) => pinned += bytes,
            (false, true) => page_cache += bytes,
            (false, false) => drive += bytes,
        }
    }
    let of_pass = |bytes: u128| u64::try_from(bytes / choice.counted as u128).unwrap_or(u64::MAX);
    let bytes = PassBytes {
        pinned: of_pass(pinned),
        page_cache: of_pass(page_cache),
        drive: of_pass(drive),
    };
    let floors = Floors::new(facts, &choice.brought, choice.counted, &choice.pinned);
    let ceiling = if choice.pass <= facts.computes * HIDDEN {
        Ceiling::Compute
    } else if floors.link >= floors.page_cache + floors.drive {
        Ceiling::Link
    } else if floors.page_cache > floors.drive {
        Ceiling::PageCache
    } else {
        Ceiling::Drive
    };
    let (pass, compute) = (time(choice.pass), time(facts.computes));
    let stall = pass.saturating_sub(compute);
    let lift = (choice.pass > facts.computes * HIDDEN).then(|| lift(facts, budget));
    Prediction { pass, compute, stall, bytes, ceiling, lift }
}

/// The least of either budget that hides what is read.
fn lift(facts: &Facts, budget: &Budget) -> Lift {
    let room = room(facts, budget);
    let hides = |room| Search::new(facts, room, budget.host).hides().is_some();
    // Of many layers some more or less do not matter. All of them fit at last.
    let all = facts.taken.len();
    let step = if facts.pass.len() < MANY { 1 } else { (all - room).div_ceil(STEPS_MANY) };
    let steps =
        first(1, (all - room).div_ceil(step), |steps| hides((room + steps * step).min(all)));
    let least = (room + steps * step).min(all);
    let needed = facts.largest.saturating_mul(least as u64);
    let gpu = Raise {
        bytes: needed.saturating_sub(budget.gpu),
        pass: time(Search::new(facts, least, budget.host).choose().pass),
    };
    Lift { gpu: Some(gpu), host: host_lift(facts, room, budget.host) }
}

/// The least pinned memory that hides what is read.
fn host_lift(facts: &Facts, room: usize, host: u64) -> Option<Raise> {
    // What is not pinned in the way that is found is not needed.
    let hides = |budget: u64, low: u64| {
        let pins = Search::new(facts, room, budget).hides()?;
        let is_enough = |pins: &u64| Search::new(facts, room, *pins).hides().is_some();
        let trimmed = Some(pins).filter(|&pins| low < pins && pins < budget).filter(is_enough);
        Some(trimmed.unwrap_or(budget))
    };
    // What is known to be too little, and what is known to do.
    let (mut low, all) = (host, facts.bytes_of(facts.taken.iter().copied()));
    let mut high = if low < all { hides(all, low)? } else { return None };
    // Closer than that to each other, they differ by less than most layers.
    let parts = if facts.pass.len() < MANY { 2 * facts.taken.len() } else { STEPS_MANY };
    let close = (all / parts as u64).max(1);
    while high - low > close {
        let middle = low + (high - low) / 2;
        match hides(middle, low) {
            Some(budget) => high = budget,
            None => low = middle,
        }
    }
    Some(Raise { bytes: high - host, pass: time(Search::new(facts, room, high).choose().pass) })
}

/// Seconds as time, of which no more than 30 years are asked for.
fn time(seconds: f64) -> Duration {
    Duration::try_from_secs_f64(seconds).unwrap_or(Duration::MAX)
}

#[cfg(test)]
mod tests;
