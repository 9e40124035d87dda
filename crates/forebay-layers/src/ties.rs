//! Which layers share bytes, and which share files. It matters when a layer is written back. Pure.

/// Identifies a file.
type Identity = (u64, u64);

/// A byte range of a file: identity, offset, length.
pub(super) type Bytes = (Identity, u64, u64);

/// The units that share a file with a unit, including itself.
#[derive(Debug, Default)]
pub(super) struct Ties {
    pub(super) units: Vec<usize>,
    /// A part of the unit that overlaps, and the unit it overlaps with: a different one, or itself
    /// in a second part.
    pub(super) shared: Option<(usize, usize)>,
}

impl Ties {
    /// Finds those of unit `number` from the bytes of all units' parts.
    pub(super) fn new<I: IntoIterator<Item = Bytes>>(
        number: usize,
        own: impl Iterator<Item = Bytes> + Clone,
        all: impl Iterator<Item = I>,
    ) -> Self {
        let mut files: Vec<Identity> = own.clone().map(|(file, ..)| file).collect();
        files.sort_unstable();
        files.dedup();
        let pieces = own.enumerate().filter(|(_, (.., len))| *len > 0);
        let pieces = pieces.map(|(part, (file, start, len))| (file, start, start + len, part));
        let mut pieces: Vec<_> = pieces.collect();
        pieces.sort_unstable();
        let overlaps = pieces.windows(2).find(|two| two[0].0 == two[1].0 && two[0].2 > two[1].1);
        let mut ties = Self { shared: overlaps.map(|two| (two[0].3, number)), ..Self::default() };
        for (unit, parts) in all.enumerate() {
            let mut is_tied = false;
            for (file, start, len) in parts {
                is_tied |= files.binary_search(&file).is_ok();
                if unit == number || len == 0 || ties.shared.is_some() {
                    continue;
                }
                // Its own pieces do not overlap, so their ends are in order too.
                let next = pieces.partition_point(|piece| (piece.0, piece.2) <= (file, start));
                let next = pieces.get(next).filter(|piece| piece.0 == file);
                let met = next.filter(|piece| piece.1 < start + len);
                ties.shared = met.map(|piece| (piece.3, unit));
            }
            ties.units.extend(is_tied.then_some(unit));
        }
        ties
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn meet(one: &Bytes, other: &Bytes) -> bool {
        one.0 == other.0
            && one.1 < other.1 + other.2
            && other.1 < one.1 + one.2
            && one.2.min(other.2) > 0
    }

    proptest! {
        #[test]
        fn ties_are_those_that_each_pair_has(
            units in prop::collection::vec(
                prop::collection::vec(((0..2_u64, Just(7_u64)), 0..40_u64, 0..9_u64), 0..4),
                1..9,
            ),
        ) {
            for (number, parts) in units.iter().enumerate() {
                let all = units.iter().map(|parts| parts.iter().copied());
                let ties = Ties::new(number, parts.iter().copied(), all);
                let meets = |part: usize, other: usize| {
                    units[other].iter().enumerate().any(|(place, of)| {
                        (other, place) != (number, part) && meet(&parts[part], of) //
                    })
                };
                let is_tied =
                    (0..parts.len()).any(|part| (0..units.len()).any(|other| meets(part, other)));
                prop_assert_eq!(ties.shared.is_some(), is_tied);
                if let Some((part, other)) = ties.shared {
                    prop_assert!(meets(part, other));
                }
                let has = |other: &[Bytes]| {
                    other.iter().any(|of| parts.iter().any(|part| part.0 == of.0))
                };
                let all: Vec<usize> =
                    (0..units.len()).filter(|&other| has(&units[other])).collect();
                prop_assert_eq!(ties.units, all);
            }
        }
    }
}
