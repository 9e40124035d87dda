//! Counts the faults of a run, and the work it did.

use std::collections::BTreeMap;
use std::fmt;

/// Number of occurrences by name.
#[derive(Debug, Clone, Default)]
pub(super) struct Tally(BTreeMap<&'static str, u64>);

impl Tally {
    /// Counts `what` if `happens`; returns `happens`.
    pub(super) fn note(&mut self, what: &'static str, happens: bool) -> bool {
        if happens {
            self.count(what, 1);
        }
        happens
    }

    pub(super) fn count(&mut self, what: &'static str, times: u64) {
        *self.0.entry(what).or_default() += times;
    }

    /// Number of occurrences.
    pub(super) fn of(&self, what: &str) -> u64 {
        self.0.get(what).copied().unwrap_or(0)
    }

    pub(super) fn add(&mut self, other: &Self) {
        other.0.iter().for_each(|(what, times)| self.count(what, *times));
    }
}

/// `name=count` pairs separated by spaces, as the task that reads them expects.
impl fmt::Display for Tally {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let all: Vec<String> = self.0.iter().map(|(what, n)| format!("{what}={n}")).collect();
        f.write_str(&all.join(" "))
    }
}
