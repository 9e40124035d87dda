//! Radix sort, one digit at a time from the lowest: faster than comparing for many numbers.

/// Bits per digit: the 2,048 buckets that a pass writes to fit into the L1 cache.
const DIGIT: u32 = 11;
const BUCKETS: usize = 1 << DIGIT;
const MASK: u64 = (1 << DIGIT) - 1;

/// Fewer keys sort faster by comparing, even if only one digit is used.
const COUNT_MIN: usize = 2048;

/// Sorts `keys` by the bits from `low` on. Keys that are equal in these bits must already be in
/// order. There must be at most `u32::MAX` keys.
pub(super) fn sort(keys: &mut Vec<u64>, low: u32) {
    if keys.len() < COUNT_MIN {
        return keys.sort_unstable();
    }
    if keys.is_sorted() {
        return;
    }
    let used = u64::BITS - keys.iter().fold(0, |all, key| all | key).leading_zeros();
    let mut other = vec![0; keys.len()];
    for shift in (low..used).step_by(DIGIT as usize) {
        by_digit(keys, &mut other, shift);
        std::mem::swap(keys, &mut other);
    }
}

/// Stable pass: writes `from` to `to` by the digit that starts at bit `shift`.
fn by_digit(from: &[u64], to: &mut [u64], shift: u32) {
    let digit = |key: u64| usize::try_from(key >> shift & MASK).expect("a digit is small");
    let mut next = [0_u32; BUCKETS];
    from.iter().for_each(|&key| next[digit(key)] += 1);
    let mut before = 0;
    for place in &mut next {
        before += std::mem::replace(place, before);
    }
    for &key in from {
        let place = &mut next[digit(key)];
        to[*place as usize] = key;
        *place += 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(32))]
        #[test]
        fn many_are_sorted_as_few_are(
            low in 0_u32..20,
            bits in 1_u32..44,
            count in COUNT_MIN..3 * COUNT_MIN,
            seed in any::<u64>(),
        ) {
            let mut number = seed | 1;
            let mut keys: Vec<u64> = (0..count as u64)
                .map(|index| {
                    number = number.wrapping_mul(0x5851_F42D_4C95_7F2D).rotate_left(23) ^ index;
                    // The low bits are in order, like the numbers of pieces.
                    (number & ((1 << bits) - 1)) << 20 | index.min((1 << low) - 1)
                })
                .collect();
            let mut expected = keys.clone();
            expected.sort_unstable();
            sort(&mut keys, low);
            prop_assert_eq!(keys, expected);
        }
    }
}
