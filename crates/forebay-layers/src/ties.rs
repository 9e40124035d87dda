//! Which layers share bytes, and which share files. It matters when a layer is written back, and is
//! computed once. Pure.

use std::collections::HashMap;

/// Identifies a file.
type Identity = (u64, u64);

/// A byte range of a file: identity, offset, length.
pub(super) type Bytes = (Identity, u64, u64);

/// The overlaps between units.
#[derive(Debug)]
pub(super) struct Ties {
    /// Per unit: one of its parts that overlaps, and the unit it overlaps with: another one, or the
    /// same one in another part.
    shared: Vec<Option<(usize, usize)>>,
    /// Per unit: its files. Per file: the units that use it.
    files: Vec<Vec<usize>>,
    units: Vec<Vec<usize>>,
}

/// A part that is not empty.
struct Piece {
    file: usize,
    start: u64,
    end: u64,
    unit: usize,
    part: usize,
}

impl Ties {
    /// Finds the overlaps of units from the bytes of their parts.
    pub(super) fn new<I: IntoIterator<Item = Bytes>>(of: impl Iterator<Item = I>) -> Self {
        let mut ties = Self { shared: Vec::new(), files: Vec::new(), units: Vec::new() };
        let (mut numbers, mut pieces) = (HashMap::new(), Vec::new());
        for (unit, parts) in of.enumerate() {
            let mut files = Vec::new();
            for (part, (identity, start, len)) in parts.into_iter().enumerate() {
                let file = *numbers.entry(identity).or_insert(ties.units.len());
                if file == ties.units.len() {
                    ties.units.push(Vec::new());
                }
                if ties.units[file].last() != Some(&unit) {
                    ties.units[file].push(unit);
                    files.push(file);
                }
                if len > 0 {
                    pieces.push(Piece { file, start, end: start + len, unit, part });
                }
            }
            ties.files.push(files);
        }
        ties.shared = vec![None; ties.files.len()];
        pieces.sort_by_key(|piece| (piece.file, piece.start));
        // The piece that reaches furthest so far in its file overlaps whatever another one does.
        let mut furthest: Option<&Piece> = None;
        for piece in &pieces {
            let before = furthest.filter(|before| before.file == piece.file);
            if let Some(before) = before.filter(|before| before.end > piece.start) {
                ties.shared[piece.unit].get_or_insert((piece.part, before.unit));
                ties.shared[before.unit].get_or_insert((before.part, piece.unit));
            }
            if before.is_none_or(|before| piece.end > before.end) {
                furthest = Some(piece);
            }
        }
        ties
    }

    /// A part of the unit that overlaps, and the other unit; itself if another part of it overlaps.
    pub(super) fn shared(&self, unit: usize) -> Option<(usize, usize)> {
        self.shared[unit]
    }

    /// The units that share a file with this unit, including itself; some may be repeated.
    pub(super) fn tied_to(&self, unit: usize) -> impl Iterator<Item = usize> {
        self.files[unit].iter().flat_map(|&file| self.units[file].iter().copied())
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
            let ties = Ties::new(units.iter().map(|parts| parts.iter().copied()));
            for (number, parts) in units.iter().enumerate() {
                let meets = |part: usize, other: usize| {
                    units[other].iter().enumerate().any(|(place, of)| {
                        (other, place) != (number, part) && meet(&parts[part], of) //
                    })
                };
                let is_tied =
                    (0..parts.len()).any(|part| (0..units.len()).any(|other| meets(part, other)));
                prop_assert_eq!(ties.shared(number).is_some(), is_tied);
                if let Some((part, other)) = ties.shared(number) {
                    prop_assert!(meets(part, other));
                }
                let mut tied: Vec<usize> = ties.tied_to(number).collect();
                tied.sort_unstable();
                tied.dedup();
                let has = |other: &[Bytes]| {
                    other.iter().any(|of| parts.iter().any(|part| part.0 == of.0))
                };
                let all: Vec<usize> =
                    (0..units.len()).filter(|&other| has(&units[other])).collect();
                prop_assert_eq!(tied, all);
            }
        }
    }
}
