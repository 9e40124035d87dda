//! The offsets of one thread's requests. Pure: equal seeds give equal offsets.

use std::fmt;
use std::str::FromStr;

use forebay::units::{GIB, KIB, MIB, parse_size};

/// An order of requests in a region of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Pattern {
    /// In sequence; after the end, from the start again.
    Sequential,
    /// Each at a random offset, all equally likely.
    Random,
    /// At this distance in bytes.
    Strided(u64),
}

impl fmt::Display for Pattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Sequential => f.write_str("sequential"),
            Self::Random => f.write_str("random"),
            Self::Strided(stride) => write!(f, "strided:{}", exact_size(*stride)),
        }
    }
}

/// A size in the notation of the command line, exact to the byte.
#[must_use]
pub fn exact_size(len: u64) -> String {
    let units = [(GIB, "G"), (MIB, "M"), (KIB, "K")];
    let unit = units.into_iter().find(|(unit, _)| len > 0 && len.is_multiple_of(*unit));
    unit.map_or_else(|| len.to_string(), |(unit, name)| format!("{}{name}", len / unit))
}

impl FromStr for Pattern {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let stride = |text| parse_size(text).filter(|stride| *stride > 0);
        match text.split_once(':') {
            None if text == "sequential" => Ok(Self::Sequential),
            None if text == "random" => Ok(Self::Random),
            Some(("strided", size)) => stride(size).map(Self::Strided).ok_or_else(|| {
                format!("`{size}` is not a distance: use bytes, such as `strided:1M`")
            }),
            _ => Err(format!("`{text}` is none of `sequential`, `random` and `strided:SIZE`")),
        }
    }
}

/// The part of a file that one thread uses.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Region {
    /// The offset of its first byte.
    pub start: u64,
    /// Length in bytes.
    pub len: u64,
}

/// The endless offsets of one thread's requests.
#[derive(Debug, Clone)]
pub struct Offsets {
    region: Region,
    size: u64,
    pattern: Pattern,
    /// Position in the pattern, or the state of the random generator.
    state: u64,
}

/// The next random number below `end`. SplitMix64 (Steele, Lea, Flood 2014): equidistributed, no
/// state but a counter.
pub(crate) fn random_below(state: &mut u64, end: u64) -> u64 {
    *state = state.wrapping_add(0x9E37_79B9_7F4A_7C15);
    let mut word = *state;
    word = (word ^ (word >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    word = (word ^ (word >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    word ^= word >> 31;
    u64::try_from((u128::from(word) * u128::from(end)) >> 64).expect("less than the end")
}

impl Offsets {
    /// Requests of `size` bytes in `region`; `None` if not one fits.
    #[must_use]
    pub fn new(region: Region, size: u64, pattern: Pattern, seed: u64) -> Option<Self> {
        if size == 0 || region.len < size {
            return None;
        }
        let state = if pattern == Pattern::Random { seed } else { 0 };
        Some(Self { region, size, pattern, state })
    }
}

impl Offsets {
    /// The number of requests after which the offsets repeat; `None` if they are random.
    #[must_use]
    pub fn period(&self) -> Option<u64> {
        match self.pattern {
            Pattern::Sequential => Some(self.region.len / self.size),
            Pattern::Random => None,
            Pattern::Strided(stride) => {
                let (rows, columns) = self.grid(stride);
                Some(rows.saturating_mul(columns))
            }
        }
    }

    /// The rows and columns of a grid with one row per stride.
    fn grid(&self, stride: u64) -> (u64, u64) {
        let last = self.region.len - self.size;
        (last / stride + 1, (stride / self.size).max(1))
    }
}

impl Iterator for Offsets {
    type Item = u64;

    /// The offset of the next request; never `None`.
    fn next(&mut self) -> Option<u64> {
        let places = self.region.len / self.size;
        let at = match self.pattern {
            Pattern::Sequential => {
                let place = self.state;
                self.state = (place + 1) % places;
                place * self.size
            }
            Pattern::Random => random_below(&mut self.state, places) * self.size,
            Pattern::Strided(stride) => {
                // Column after column, so that all are used.
                let last = self.region.len - self.size;
                let (rows, columns) = self.grid(stride);
                let (row, column) = (self.state % rows, self.state / rows % columns);
                self.state = self.state.wrapping_add(1);
                let at = row.saturating_mul(stride).saturating_add(column * self.size);
                if at > last { row * stride } else { at }
            }
        };
        Some(self.region.start + at)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;
    use proptest::prelude::*;

    fn region() -> impl Strategy<Value = (Region, u64)> {
        (0_u64..1 << 40, 1_u64..1 << 24, 1_u64..1 << 12).prop_map(|(start, size, places)| {
            (Region { start, len: size * places + size / 2 }, size)
        })
    }

    fn pattern() -> impl Strategy<Value = Pattern> {
        prop_oneof![
            Just(Pattern::Sequential),
            Just(Pattern::Random),
            (1_u64..1 << 30).prop_map(Pattern::Strided),
        ]
    }

    proptest! {
        #[test]
        fn no_request_leaves_its_region(
            (region, size) in region(),
            pattern in pattern(),
            seed: u64,
        ) {
            let mut offsets = Offsets::new(region, size, pattern, seed).unwrap();
            for _ in 0..500 {
                let at = offsets.next().unwrap();
                prop_assert!(at >= region.start);
                prop_assert!(at + size <= region.start + region.len, "{at}");
            }
        }

        #[test]
        fn a_name_is_read_back(pattern in pattern()) {
            prop_assert_eq!(pattern.to_string().parse::<Pattern>().unwrap(), pattern);
        }

        #[test]
        fn no_word_ends_the_command(word: String) {
            let _ = word.parse::<Pattern>();
            let _ = format!("strided:{word}").parse::<Pattern>();
        }
    }

    fn first(pattern: Pattern, count: usize) -> Vec<u64> {
        let region = Region { start: 1000, len: 100 };
        let offsets = Offsets::new(region, 10, pattern, 7).unwrap();
        offsets.take(count).collect()
    }

    #[test]
    fn each_pattern_goes_its_way() {
        assert_eq!(first(Pattern::Sequential, 3), [1000, 1010, 1020]);
        assert_eq!(first(Pattern::Sequential, 11)[10], 1000, "from the start again");
        assert_eq!(first(Pattern::Strided(40), 6), [1000, 1040, 1080, 1010, 1050, 1090]);
        let random: HashSet<u64> = first(Pattern::Random, 1000).into_iter().collect();
        assert_eq!(random.len(), 10, "every offset occurs");
        assert_eq!(first(Pattern::Random, 50), first(Pattern::Random, 50), "the same seed");
        let strided: HashSet<u64> = first(Pattern::Strided(30), 1000).into_iter().collect();
        assert_eq!(strided.len(), 10, "{strided:?}");
    }

    #[test]
    fn a_region_without_room_has_no_requests() {
        let region = Region { start: 0, len: 9 };
        assert!(Offsets::new(region, 10, Pattern::Random, 0).is_none());
        assert!(Offsets::new(region, 0, Pattern::Random, 0).is_none());
    }
}
