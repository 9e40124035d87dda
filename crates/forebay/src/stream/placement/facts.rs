//! What is known before anything is decided: the order, and what each layer costs. In it all makes
//! sense: sums do not overflow, and every time is finite.

use super::{CannotPlace, LayerCost, Order, Rates};
use crate::stream::order::Sequence;

/// Bytes per second; what is said to be faster takes no time that counts.
const RATE_MAX: f64 = 1e30;
/// A pass may take so many seconds, which are 30 years.
const SECONDS_MAX: f64 = 1e9;

/// The two ways into the buffers, each of which brings one layer after the other.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Lane {
    /// Pinned memory.
    Memory,
    /// Files, in the page cache or on drives.
    File,
}

/// See the module's own text.
#[derive(Debug, Clone)]
pub(super) struct Facts {
    /// The layers that one pass takes.
    pub(super) pass: Vec<usize>,
    /// For each place in a pass: after how many positions its layer is taken again.
    pub(super) again: Vec<usize>,
    /// The layers that are taken at all, in the order in which they are taken first.
    pub(super) taken: Vec<usize>,
    /// How often a pass takes all of those: twice for there and back.
    pub(super) turns: f64,
    pub(super) bytes: Vec<u64>,
    /// Seconds of compute for each layer.
    pub(super) compute: Vec<f64>,
    pub(super) resident: Vec<bool>,
    /// Bytes of the largest layer, which are those of each buffer.
    pub(super) largest: u64,
    pub(super) rates: Rates,
    /// Seconds of compute in a pass.
    pub(super) computes: f64,
}

impl Facts {
    pub(super) fn new(
        order: &Order,
        layers: &[LayerCost],
        rates: &Rates,
    ) -> Result<Self, CannotPlace> {
        let pass = pass(order, layers.len())?;
        let rate = |name, rate: f64| match rate > 0.0 {
            true => Ok(rate.min(RATE_MAX)),
            false => Err(CannotPlace::Rate { name, rate }),
        };
        let link = rate("link", rates.link)?;
        // What comes out of files crosses the link too.
        let rates = Rates {
            link,
            page_cache: rate("page cache", rates.page_cache)?.min(link),
            drive: rate("drive", rates.drive)?.min(link),
        };
        let (again, taken) = uses(&pass, layers.len());
        let compute: Vec<f64> = layers.iter().map(|layer| layer.compute.as_secs_f64()).collect();
        let bytes: Vec<u64> = layers.iter().map(|layer| layer.bytes).collect();
        let largest = bytes.iter().copied().max().ok_or(CannotPlace::NoLayers)?;
        let all = bytes.iter().try_fold(0_u64, |sum, &bytes| sum.checked_add(bytes));
        all.and(largest.checked_mul(2)).ok_or(CannotPlace::TooMuch)?;
        let facts = Self {
            turns: if matches!(order, Order::Training) { 2.0 } else { 1.0 },
            computes: pass.iter().map(|&layer| compute[layer]).sum(),
            resident: layers.iter().map(|layer| layer.resident).collect(),
            pass,
            again,
            taken,
            bytes,
            compute,
            largest,
            rates,
        };
        let reads: f64 = facts.pass.iter().map(|&layer| facts.file_seconds(layer)).sum();
        let slow = facts.pass.iter().map(|&layer| facts.link_seconds(layer)).sum::<f64>() + reads;
        // A number that is not one is not below either.
        if slow + facts.computes < SECONDS_MAX { Ok(facts) } else { Err(CannotPlace::TooMuch) }
    }

    /// The bytes per second at which a file's layer is brought.
    pub(super) fn file_rate(&self, layer: usize) -> f64 {
        if self.resident[layer] { self.rates.page_cache } else { self.rates.drive }
    }

    /// How long the file lane takes for a layer.
    pub(super) fn file_seconds(&self, layer: usize) -> f64 {
        self.bytes[layer] as f64 / self.file_rate(layer)
    }

    /// How long a layer takes on the link.
    pub(super) fn link_seconds(&self, layer: usize) -> f64 {
        self.bytes[layer] as f64 / self.rates.link
    }

    /// The bytes of these layers together.
    pub(super) fn bytes_of(&self, layers: impl Iterator<Item = usize>) -> u64 {
        layers.map(|layer| self.bytes[layer]).sum()
    }
}

/// The layers that one pass takes.
fn pass(order: &Order, layers: usize) -> Result<Vec<usize>, CannotPlace> {
    let is_unknown = match order {
        Order::List(list) => list.is_empty(),
        order => *order == Order::Told,
    };
    let order = if is_unknown { &Order::Forward } else { order };
    let sequence = Sequence::new(order, layers, 1, None)
        .map_err(|layer| CannotPlace::NoSuchLayer { layer, layers })?;
    if layers == 0 {
        return Err(CannotPlace::NoLayers);
    }
    Ok((0..sequence.pass_len()).filter_map(|place| sequence.at(place)).collect())
}

/// After how many positions the layer of each place is taken again, and the layers in the order in
/// which they are taken first.
fn uses(pass: &[usize], layers: usize) -> (Vec<usize>, Vec<usize>) {
    let (mut first, mut taken) = (vec![None; layers], Vec::new());
    for (place, &layer) in pass.iter().enumerate() {
        if first[layer].is_none() {
            first[layer] = Some(place + pass.len());
            taken.push(layer);
        }
    }
    let mut again = vec![0; pass.len()];
    for (place, &layer) in pass.iter().enumerate().rev() {
        let next = first[layer].replace(place).expect("it is taken");
        again[place] = next - place;
    }
    (again, taken)
}
