//! The order in which layers are taken. Pure.

use std::collections::VecDeque;

/// The order in which layers are taken.
///
/// What is known of it in advance is read in advance; of an order that is
/// [`Told`](Self::Told) only what was told.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Order {
    /// From the first to the last, pass after pass.
    Forward,
    /// From the last to the first, pass after pass.
    Backward,
    /// From the first to the last and back again, as training with recomputation takes them, pass
    /// after pass. The last layer is taken twice in a row, and so is the first between two passes.
    Training,
    /// These layers by their numbers, pass after pass.
    List(Vec<usize>),
    /// What [`prefetch`](super::LayerStream::prefetch) is told while the stream runs, as the
    /// routing of a mixture of experts asks for it.
    Told,
}

/// A position that never comes.
pub(super) const NEVER: u64 = u64::MAX;

/// The layers by position: what is taken first, next, and so on.
#[derive(Debug, Clone)]
pub(super) struct Sequence {
    /// What one pass takes; of an order that is told nothing.
    pass: Vec<usize>,
    /// Passes in all; `None`: without end.
    passes: Option<u64>,
    /// What was told, from the position `told_from` on.
    told: VecDeque<usize>,
    told_from: u64,
    /// For each layer its places in a pass, or the positions at which it was told, in order.
    places: Vec<VecDeque<u64>>,
}

impl Sequence {
    /// Of `layers` layers, each of which is taken as so many `slices`, one after the other.
    ///
    /// # Errors
    /// What a list names that is no layer.
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
            Order::Told => Vec::new(),
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
        Ok(Self { pass, passes, told: VecDeque::new(), told_from: 0, places })
    }

    /// Whether what comes is told while it runs.
    pub(super) fn is_told(&self) -> bool {
        self.pass.is_empty()
    }

    /// Positions in one pass; of an order that is told none.
    pub(super) fn pass_len(&self) -> u64 {
        self.pass.len() as u64
    }

    /// Makes one pass more, where they are counted.
    pub(super) fn add_pass(&mut self) {
        self.passes = self.passes.map(|passes| passes.saturating_add(1));
    }

    /// What is taken there, where that is known.
    pub(super) fn at(&self, position: u64) -> Option<usize> {
        if self.is_told() {
            let index = position.checked_sub(self.told_from)?;
            return self.told.get(usize::try_from(index).ok()?).copied();
        }
        let (pass, place) = (position / self.pass_len(), position % self.pass_len());
        let is_there = self.passes.is_none_or(|passes| pass < passes);
        is_there.then(|| self.pass[usize::try_from(place).expect("inside a pass")])
    }

    /// The first position from `from` on that takes `unit`; [`NEVER`] where none is known.
    pub(super) fn next_use(&self, unit: usize, from: u64) -> u64 {
        let places = &self.places[unit];
        if self.is_told() {
            return places.get(places.partition_point(|&at| at < from)).copied().unwrap_or(NEVER);
        }
        let (pass, place) = (from / self.pass_len(), from % self.pass_len());
        let (pass, place) = match places.get(places.partition_point(|&at| at < place)) {
            Some(&here) => (pass, here),
            None => match places.front() {
                Some(&first) => (pass + 1, first),
                None => return NEVER, // a list leaves it out
            },
        };
        let is_there = self.passes.is_none_or(|passes| pass < passes);
        if is_there { pass * self.pass_len() + place } else { NEVER }
    }

    /// Tells what is taken behind all that was told before.
    pub(super) fn tell(&mut self, unit: usize) {
        self.places[unit].push_back(self.told_from + self.told.len() as u64);
        self.told.push_back(unit);
    }

    /// Forgets what was told of positions before `position`.
    pub(super) fn forget(&mut self, position: u64) {
        while self.told_from < position
            && let Some(unit) = self.told.pop_front()
        {
            self.places[unit].pop_front();
            self.told_from += 1;
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
        assert_eq!(first(&Order::Told, 2, 1, None), []);
    }

    #[test]
    fn what_was_told_is_forgotten_from_the_front() {
        let mut sequence = Sequence::new(&Order::Told, 3, 1, None).expect("no list");
        [2, 0, 2].into_iter().for_each(|unit| sequence.tell(unit));
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
