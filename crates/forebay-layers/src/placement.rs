//! Decides which layers are kept on the GPU and in pinned memory: as many as the budgets hold. They
//! are spread evenly over the order, so that layers that are read alternate with kept ones. Pure.
//!
//! In a repeating order every kept layer saves the same number of reads; only their even spread
//! matters. If the order is given step by step, the first layers that fit are pinned, so the
//! caller's list decides.

use super::order::Sequence;

/// Where a layer is kept between two uses.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Tier {
    /// On the GPU.
    Gpu,
    /// In pinned memory.
    Pinned,
    /// In its files: every use reads it, or copies it from the page cache.
    File,
}

/// GPU buffers shared by the layers that do not stay: for the current layer and the next two.
const TURNING: usize = 3;

/// The tiers of the layers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Placement {
    pub(super) tiers: Vec<Tier>,
    /// This many of the most recently taken layers are not evicted by read-ahead.
    pub(super) protects: u64,
}

impl Placement {
    /// Places units that take `lens` bytes of pinned memory, for at least two GPU buffers and this
    /// many bytes of pinned memory.
    pub(super) fn new(sequence: &Sequence, lens: &[u64], buffers: usize, host_budget: u64) -> Self {
        let mut tiers = vec![Tier::File; lens.len()];
        if sequence.is_appended() {
            pin_first(&mut tiers, lens, host_budget);
            return Self { tiers, protects: 1 };
        }
        let taken = taken(sequence, lens.len());
        if taken.len() <= buffers {
            taken.iter().for_each(|&unit| tiers[unit] = Tier::Gpu);
            return Self { tiers, protects: 1 };
        }
        let stay = buffers.saturating_sub(TURNING) as u64;
        keep(&mut tiers, Tier::Gpu, taken.iter().map(|&unit| (unit, 1)), stay);
        let files = taken.iter().filter(|&&unit| tiers[unit] == Tier::File && lens[unit] > 0);
        let files: Vec<(usize, u64)> = files.map(|&unit| (unit, lens[unit])).collect();
        keep(&mut tiers, Tier::Pinned, files.iter().copied(), host_budget);
        // A layer that is read is surrounded by kept layers. It may use the time of several layers
        // to arrive if its load may begin during the second layer before it.
        let is_mixed = tiers.iter().any(|tier| *tier != Tier::File);
        let protects = if is_mixed && buffers >= TURNING { 2 } else { 1 };
        Self { tiers, protects }
    }
}

/// Pins the first units that fit.
fn pin_first(tiers: &mut [Tier], lens: &[u64], budget: u64) {
    let mut left = budget;
    for (tier, &len) in tiers.iter_mut().zip(lens) {
        if len > 0 && len <= left {
            left -= len;
            *tier = Tier::Pinned;
        }
    }
}

/// The distinct units of a pass, in the order of their first use.
fn taken(sequence: &Sequence, units: usize) -> Vec<usize> {
    let mut is_new = vec![true; units];
    let pass = (0..sequence.pass_len()).filter_map(|position| sequence.at(position));
    pass.filter(|&unit| std::mem::replace(&mut is_new[unit], false)).collect()
}

/// Assigns `tier` to evenly spread units whose lengths add up to at most `budget`.
fn keep(
    tiers: &mut [Tier],
    tier: Tier,
    units: impl Iterator<Item = (usize, u64)> + Clone,
    budget: u64,
) {
    let total: u128 = units.clone().map(|(_, len)| u128::from(len)).sum();
    let budget = u128::from(budget).min(total);
    // Every unit adds its share of the budget; a unit is kept once the sum of shares covers its
    // length.
    let mut saved = 0;
    for (unit, len) in units {
        saved += u128::from(len) * budget;
        if saved >= u128::from(len) * total {
            saved -= u128::from(len) * total;
            tiers[unit] = tier;
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::order::Order;
    use super::*;

    fn place(order: &Order, lens: &[u64], buffers: usize, host_budget: u64) -> Placement {
        let sequence = Sequence::new(order, lens.len(), 1, None).expect("known layers");
        Placement::new(&sequence, lens, buffers, host_budget)
    }

    /// One letter per layer.
    fn shown(placement: &Placement) -> String {
        let letter = |tier: &Tier| match tier {
            Tier::Gpu => 'g',
            Tier::Pinned => 'p',
            Tier::File => '.',
        };
        placement.tiers.iter().map(letter).collect()
    }

    #[test]
    fn kept_layers_are_spread_evenly() {
        for (buffers, host, expected, protects) in [
            (2, 0, "........", 1),
            (3, 0, "........", 1),
            (2, 40, ".p.p.p.p", 1),
            (3, 40, ".p.p.p.p", 2),
            (3, 25, "...p..p.", 2),
            (5, 0, "...g...g", 2),
            (5, 30, ".p.gp.pg", 2),
            (3, 1000, "pppppppp", 2),
            (8, 1000, "gggggggg", 1),
        ] {
            let placement = place(&Order::Forward, &[10; 8], buffers, host);
            let found = (shown(&placement), placement.protects);
            assert_eq!(found, (expected.to_owned(), protects), "{buffers} buffers, {host} bytes");
        }
    }

    #[test]
    fn layers_are_spread_over_the_order_that_takes_them() {
        let list = Order::List(vec![5, 0, 4, 1, 5, 2]);
        assert_eq!(shown(&place(&list, &[10; 6], 2, 20)), "..p.p.".to_owned());
        assert_eq!(shown(&place(&Order::Appended, &[10, 20, 10, 10], 4, 25)), "p.p.");
        // An empty layer takes no memory.
        assert_eq!(shown(&place(&Order::Forward, &[10, 0, 10, 0], 2, 1000)), "p.p.");
    }

    proptest! {
        #[test]
        fn budgets_are_kept_and_used(
            lens in prop::collection::vec(0..20_u64, 1..30),
            (buffers, host) in (2..12_usize, 0..300_u64),
            order in prop_oneof![
                Just(Order::Forward),
                Just(Order::Training),
                Just(Order::Appended),
            ],
        ) {
            let placement = place(&order, &lens, buffers, host);
            let of = |tier| (0..lens.len()).filter(|&it| placement.tiers[it] == tier).collect();
            let (stay, pinned): (Vec<usize>, Vec<usize>) = (of(Tier::Gpu), of(Tier::Pinned));
            prop_assert!(stay.len() == lens.len() || stay.len() + 2 <= buffers || stay.is_empty());
            let bytes: u64 = pinned.iter().map(|&it| lens[it]).sum();
            prop_assert!(bytes <= host);
            let largest = lens.iter().copied().max().unwrap_or(0);
            let left: Vec<usize> = of(Tier::File);
            let is_full = left.iter().all(|&it| lens[it] == 0) || bytes + largest > host;
            prop_assert!(is_full, "{} of {}: {:?}", bytes, host, placement);
        }
    }
}
