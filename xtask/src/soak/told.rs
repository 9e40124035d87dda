//! The counts that the processes of a soak report: `soak: NAME=COUNT ...`, summed over all of them.

use std::collections::BTreeMap;

/// Counts in the lines that are no faults.
const WORK: [&str; 5] = ["at", "seeds", "failed", "steps", "bytes"];

/// The latest line of one process.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub(super) struct Told(BTreeMap<String, u64>);

impl Told {
    /// Parses a line; `None` if it is of another kind.
    pub(super) fn read(line: &str) -> Option<Self> {
        let words = line.strip_prefix("soak: ")?.split_whitespace();
        let counts = words.map(|word| {
            let (name, count) = word.split_once('=')?;
            Some((name.to_owned(), count.parse().ok()?))
        });
        counts.collect::<Option<_>>().map(Self)
    }

    /// How often something happened.
    pub(super) fn of(&self, name: &str) -> u64 {
        self.0.get(name).copied().unwrap_or(0)
    }

    /// The sum of several.
    pub(super) fn sum<'a>(all: impl Iterator<Item = &'a Self>) -> Self {
        let mut sum = Self::default();
        for (name, count) in all.flat_map(|told| &told.0) {
            *sum.0.entry(name.clone()).or_default() += count;
        }
        sum
    }

    /// How often each fault was met, for a person.
    pub(super) fn faults(&self) -> String {
        let faults = self.0.iter().filter(|(name, _)| !WORK.contains(&name.as_str()));
        let faults: Vec<String> = faults.map(|(name, n)| format!("{name} {n}")).collect();
        faults.join(", ")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_read_and_added_up() {
        let one = Told::read("soak: at=5 seeds=3 steps=70 bytes=4096 eio=2 late=1").unwrap();
        let two = Told::read("soak: at=6 seeds=4 steps=30 bytes=0 eio=1").unwrap();
        let sum = Told::sum([&one, &two].into_iter());
        assert_eq!((sum.of("seeds"), sum.of("steps"), sum.of("bytes")), (7, 100, 4096));
        assert_eq!(sum.faults(), "eio 3, late 1");
        assert_eq!(sum.of("lost"), 0);
    }

    #[test]
    fn other_lines_are_not_taken_for_one() {
        for line in
            ["running 1 test", "soak-failed: FOREBAY_SEED=1 cargo", "soak: at=x", "soak: at"]
        {
            assert_eq!(Told::read(line), None, "{line}");
        }
    }
}
