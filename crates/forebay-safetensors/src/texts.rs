//! Many strings in one allocation, with the places of those to look up in sorted order.

/// Strings by their number. After `sort` those with every `step`-th number can be found.
#[derive(Debug, Default)]
pub(crate) struct Texts {
    all: String,
    /// The end of each string in `all`.
    ends: Vec<u32>,
    /// The numbers of strings, in the order of the strings; and a value for each.
    sorted: Vec<(u32, u32)>,
}

impl Texts {
    pub(crate) fn len(&self) -> usize {
        self.ends.len()
    }

    /// The string of a number.
    pub(crate) fn get(&self, number: impl TryInto<usize>) -> &str {
        let number = number.try_into().unwrap_or(usize::MAX);
        let begin = number.checked_sub(1).map_or(0, |before| self.ends[before] as usize);
        &self.all[begin..self.ends[number] as usize]
    }

    /// Appends a string, and returns its number. A header has at most `HEADER_MAX` bytes, so
    /// numbers and places fit.
    pub(crate) fn push(&mut self, text: &str) -> u32 {
        self.all.push_str(text);
        self.ends.push(u32::try_from(self.all.len()).unwrap_or(u32::MAX));
        u32::try_from(self.ends.len() - 1).unwrap_or(u32::MAX)
    }

    /// Sorts the strings whose numbers `numbers` yields, for `find`; each has its position there
    /// as its value. Returns one that occurs twice.
    pub(crate) fn sort(&mut self, numbers: impl Iterator<Item = u32>) -> Option<&str> {
        let mut sorted: Vec<(u32, u32)> = numbers.zip(0..).collect();
        sorted.sort_unstable_by(|one, other| self.get(one.0).cmp(self.get(other.0)));
        self.sorted = sorted;
        let mut pairs = self.sorted.windows(2).map(|pair| (pair[0].0, pair[1].0));
        let twice = pairs.find(|&(one, other)| self.get(one) == self.get(other));
        twice.map(|(one, _)| self.get(one))
    }

    /// The value of a sorted string.
    pub(crate) fn find(&self, text: &str) -> Option<usize> {
        let place = self.sorted.binary_search_by(|&(number, _)| self.get(number).cmp(text)).ok()?;
        usize::try_from(self.sorted[place].1).ok()
    }

    /// Frees memory that is reserved for more strings.
    pub(crate) fn shrink(&mut self) {
        self.all.shrink_to_fit();
        self.ends.shrink_to_fit();
    }
}
