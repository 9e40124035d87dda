//! Chooses where to cut layers, from the lengths of their parts alone; packing comes after a layer
//! is known to fit the GPU. Pure.

use std::ops::Range;

/// Alignment of the parts of a layer on the GPU, like an allocation.
pub(super) const PART_ALIGNMENT: u64 = 256;

/// Bytes of the parts on the GPU; `None` if that exceeds any memory.
pub(super) fn length(parts: impl IntoIterator<Item = u64>) -> Option<u64> {
    parts.into_iter().try_fold(0, append)
}

/// Total bytes with a further part.
fn append(before: u64, part: u64) -> Option<u64> {
    before.checked_next_multiple_of(PART_ALIGNMENT)?.checked_add(part)
}

/// The fewest slices of at most `most` bytes; no part may be longer than that.
fn within(parts: &[u64], most: u64) -> Vec<Range<usize>> {
    let (mut slices, mut start, mut len) = (Vec::new(), 0, 0);
    for (number, &part) in parts.iter().enumerate() {
        match append(len, part).filter(|&longer| longer <= most) {
            Some(longer) => len = longer,
            None => {
                slices.push(start..number);
                (start, len) = (number, part);
            }
        }
    }
    slices.push(start..parts.len());
    slices
}

/// The number of slices of at most `most` bytes; `None` if a part is longer.
pub(super) fn count(parts: &[u64], most: u64) -> Option<usize> {
    let fits = parts.iter().all(|&part| part <= most);
    fits.then(|| within(parts, most).len())
}

/// Cuts into `count` slices with the longest as short as possible. The last ones may be empty.
pub(super) fn cut(parts: &[u64], count: usize) -> Vec<Range<usize>> {
    let mut least = parts.iter().copied().max().unwrap_or(0);
    let mut most = length(parts.iter().copied()).unwrap_or(u64::MAX).max(least);
    while least < most {
        let middle = least + (most - least) / 2;
        match within(parts, middle).len() <= count {
            true => most = middle,
            false => least = middle + 1,
        }
    }
    let mut slices = within(parts, most);
    slices.resize(count.max(slices.len()), parts.len()..parts.len());
    slices
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// The longest slice of the best possible cut.
    fn best(parts: &[u64], count: usize) -> u64 {
        let of = |range: Range<usize>| length(parts[range].iter().copied()).expect("small");
        if count == 1 {
            return of(0..parts.len());
        }
        let last = |cut: usize| best(&parts[..cut], count - 1).max(of(cut..parts.len()));
        (0..=parts.len()).map(last).min().expect("one way at least")
    }

    proptest! {
        #[test]
        fn no_way_to_cut_has_fewer_or_shorter_slices(
            parts in prop::collection::vec(0..2000_u64, 1..8),
            slices in 1..5_usize,
            most in 1..6000_u64,
        ) {
            let found = cut(&parts, slices);
            prop_assert_eq!(found.len(), slices);
            let mut next = 0;
            for slice in &found {
                prop_assert_eq!(slice.start, next);
                next = slice.end;
            }
            prop_assert_eq!(next, parts.len());
            let of = |range: Range<usize>| length(parts[range].iter().copied()).unwrap();
            let longest = found.into_iter().map(of).max().unwrap();
            prop_assert_eq!(longest, best(&parts, slices));
            match count(&parts, most) {
                None => prop_assert!(parts.iter().any(|&part| part > most)),
                Some(needed) => {
                    prop_assert!(best(&parts, needed) <= most);
                    prop_assert!(needed == 1 || best(&parts, needed - 1) > most);
                }
            }
        }
    }

    #[test]
    fn lengths_beyond_any_memory_are_refused() {
        let half = u64::MAX / 2;
        assert_eq!(length([1, 1, 0]), Some(512));
        assert_eq!(length([half, 1]), Some(half + 2));
        assert_eq!(length([half, half, 10]), None);
        assert_eq!(length([u64::MAX, 0]), None);
        assert_eq!(length([u64::MAX]), Some(u64::MAX));
        assert_eq!(count(&[half, half, 10], half), Some(3));
        assert_eq!(cut(&[half, half, 10], 3), [0..1, 1..2, 2..3]);
    }

    #[test]
    fn many_parts_are_cut_at_once() {
        // Miri is too slow: all of it would take an hour.
        let len: usize = if cfg!(miri) { 500 } else { 200_000 };
        let parts: Vec<u64> = (0..len as u64).map(|number| 2049 + number % 7).collect();
        assert_eq!(count(&parts, 4000), Some(len));
        assert_eq!(count(&parts, 2050), None);
        assert!(cut(&parts, len / 2).iter().all(|slice| slice.len() == 2));
    }
}
