//! The order in which layers are taken. Pure.

use std::collections::VecDeque;

/// The order in which layers are taken.
///
/// Known positions are loaded ahead; with [`Appended`](Self::Appended) only those given so far are
/// known.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum Order {
    /// From the first to the last, pass after pass.
    #[default]
    Forward,
    /// From the last to the first, pass after pass.
    Backward,
    /// From the first to the last and back again, as in training with recomputation, pass after
    /// pass. The last layer is taken twice in a row, and so is the first between two passes.
    Training,
    /// These layers by number, pass after pass.
    List(Vec<usize>),
    /// The layers given to [`prefetch`](super::LayerStream::prefetch) while the stream runs, for
    /// example by the router of a mixture of experts.
    Appended,
}

/// A position that is never reached.
pub(super) const NEVER: u64 = u64::MAX;

/// The layers by position.
#[derive(Debug, Clone, Default)]
pub(super) struct Sequence {
    /// The units of a pass; empty for [`Order::Appended`].
    pass: Vec<usize>,
    /// Total number of passes; `None`: unlimited.
    passes: Option<u64>,
    /// The units given by `prefetch`, from the position `appended_from` on.
    appended: VecDeque<usize>,
    appended_from: u64,
    /// Per layer: its places in a pass, or the positions at which `prefetch` listed it, in order.
    places: Vec<VecDeque<u64>>,
}

impl Sequence {
    /// Creates the sequence for `layers` layers, each of which is taken as this many `slices` in a
    /// row.
    ///
    /// # Errors
    /// The number in a list without a layer.
    pub(super) fn new(
        order: &Order,
        layers: usize,
        slices: usize,
        passes: Option<u64>,
    ) -> Result<Self, usize> {
        let pass: Vec<usize> = match order {
            Order::Forward => (0..layers).collect(),
            Order::Backward => (0..layers).rev().collect(),
            Order::Training => (0..layers).chain((0..layers).rev()).collect(),
            Order::List(list) => list.clone(),
            Order::Appended => Vec::new(),
        };
        if let Some(&unknown) = pass.iter().find(|&&layer| layer >= layers) {
            return Err(unknown);
        }
        let cut = |layer: usize| (0..slices).map(move |slice| layer * slices + slice);
        let pass: Vec<usize> = pass.into_iter().flat_map(cut).collect();
        let mut places = vec![VecDeque::new(); layers * slices];
        for (place, &unit) in pass.iter().enumerate() {
            places[unit].push_back(place as u64);
        }
        Ok(Self { pass, passes, appended: VecDeque::new(), appended_from: 0, places })
    }

    /// Whether the order is given while it runs.
    pub(super) fn is_appended(&self) -> bool {
        self.pass.is_empty()
    }

    /// Positions in a pass; 0 for [`Order::Appended`].
    pub(super) fn pass_len(&self) -> u64 {
        self.pass.len() as u64
    }

    /// Adds a pass, if their number is limited.
    pub(super) fn add_pass(&mut self) {
        self.passes = self.passes.map(|passes| passes.saturating_add(1));
    }

    /// The unit at a position, if it is known.
    pub(super) fn at(&self, position: u64) -> Option<usize> {
        if self.is_appended() {
            let index = position.checked_sub(self.appended_from)?;
            return self.appended.get(usize::try_from(index).ok()?).copied();
        }
        let (pass, place) = (position / self.pass_len(), position % self.pass_len());
        let is_there = self.passes.is_none_or(|passes| pass < passes);
        is_there.then(|| self.pass[usize::try_from(place).expect("inside a pass")])
    }

    /// The first position from `from` on that takes `unit`; [`NEVER`] if none is known.
    pub(super) fn next_use(&self, unit: usize, from: u64) -> u64 {
        let places = &self.places[unit];
        if self.is_appended() {
            return places.get(places.partition_point(|&at| at < from)).copied().unwrap_or(NEVER);
        }
        let (pass, place) = (from / self.pass_len(), from % self.pass_len());
        let (pass, place) = match places.get(places.partition_point(|&at| at < place)) {
            Some(&here) => (pass, here),
            None => match places.front() {
                Some(&first) => (pass + 1, first),
                None => return NEVER, // the unit is not in the list
            },
        };
        let is_there = self.passes.is_none_or(|passes| pass < passes);
        if is_there { pass * self.pass_len() + place } else { NEVER }
    }

    /// Appends a unit to the order.
    pub(super) fn append(&mut self, unit: usize) {
        self.places[unit].push_back(self.appended_from + self.appended.len() as u64);
        self.appended.push_back(unit);
    }

    /// Drops the units given for positions before `position`.
    pub(super) fn forget(&mut self, position: u64) {
        while self.appended_from < position
            && let Some(unit) = self.appended.pop_front()
        {
            self.places[unit].pop_front();
            self.appended_from += 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn first(order: &Order, layers: usize, slices: usize, passes: Option<u64>) -> Vec<usize> {
        let sequence = Sequence::new(order, layers, slices, passes).expect("known layers");
        (0..8).map_while(|position| sequence.at(position)).collect()
    }

    #[test]
    fn orders_are_what_they_say() {
        assert_eq!(first(&Order::Forward, 3, 1, None), [0, 1, 2, 0, 1, 2, 0, 1]);
        assert_eq!(first(&Order::Backward, 3, 1, Some(2)), [2, 1, 0, 2, 1, 0]);
        assert_eq!(first(&Order::Training, 3, 1, Some(1)), [0, 1, 2, 2, 1, 0]);
        assert_eq!(first(&Order::Backward, 2, 2, Some(1)), [2, 3, 0, 1]);
        assert_eq!(first(&Order::List(vec![1, 1, 0]), 2, 1, Some(1)), [1, 1, 0]);
        assert_eq!(Sequence::new(&Order::List(vec![0, 2]), 2, 1, None).unwrap_err(), 2);
        assert_eq!(first(&Order::Appended, 2, 1, None), [0_usize; 0]);
    }

    #[test]
    fn announced_layers_are_forgotten_from_the_front() {
        let mut sequence = Sequence::new(&Order::Appended, 3, 1, None).expect("no list");
        [2, 0, 2].into_iter().for_each(|unit| sequence.append(unit));
        assert_eq!((sequence.at(1), sequence.next_use(2, 1)), (Some(0), 2));
        sequence.forget(2);
        assert_eq!((sequence.at(1), sequence.at(2), sequence.at(3)), (None, Some(2), None));
        assert_eq!((sequence.next_use(2, 0), sequence.next_use(0, 0)), (2, NEVER));
    }

    proptest! {
        #[test]
        fn the_next_use_is_the_first_position_that_takes_it(
            list in prop::collection::vec(0..5_usize, 1..12),
            passes in prop::option::of(1..4_u64),
            (unit, from) in (0..5_usize, 0..40_u64),
        ) {
            let sequence = Sequence::new(&Order::List(list), 5, 1, passes).expect("known layers");
            let found = (from..from + 40).find(|&at| sequence.at(at) == Some(unit));
            prop_assert_eq!(sequence.next_use(unit, from), found.unwrap_or(NEVER));
        }
    }
}
