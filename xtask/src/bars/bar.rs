//! The definition of a bar: a comparison with a bound; and the list of all bars.

use std::error::Error;
use std::fmt;

use serde::{Deserialize, Serialize};

use crate::drives::in_child;
use crate::lab::Lab;
use crate::sample::Series;
use crate::{cold, resident, small};

/// One bar.
#[derive(Clone, Copy)]
pub(crate) struct Bar {
    /// Its name for `--only`.
    pub(crate) name: &'static str,
    /// Takes the samples and compares.
    pub(crate) run: Run,
}

type Run = fn(&Lab) -> Result<Measured, Stop>;

const fn bar(name: &'static str, run: Run) -> Bar {
    Bar { name, run }
}

/// Every bar, in execution order: those that need files in the page cache first.
pub(crate) const BARS: [Bar; 13] = [
    bar("host-resident", resident::host),
    bar("host-direct-1M", cold::host),
    bar("host-write", cold::writes),
    bar("host-random-small", small::random),
    bar("pread-direct-1M", cold::rings),
    bar("drives-shuffled", |lab| in_child(lab, "drives-shuffled")),
    bar("drives-striped", |lab| in_child(lab, "drives-striped")),
    bar("drives-unequal", |lab| in_child(lab, "drives-unequal")),
    bar("drives-hung", |lab| in_child(lab, "drives-hung")),
    bar("drives-urgent", |lab| in_child(lab, "drives-urgent")),
    bar("drives-idle", |lab| in_child(lab, "drives-idle")),
    bar("sweep-capped", |lab| in_child(lab, "sweep-capped")),
    bar("sweep-delayed", |lab| in_child(lab, "sweep-delayed")),
];

/// The result of a bar.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(crate) struct Measured {
    /// The comparisons, each with its bound.
    pub(crate) checks: Vec<Check>,
    /// The raw samples.
    pub(crate) series: Vec<Series>,
    /// Routes taken, sizes, and other notes for the reader of the numbers.
    pub(crate) notes: Vec<String>,
}

impl Measured {
    pub(crate) fn of(series: Vec<Series>) -> Self {
        Self { series, ..Self::default() }
    }

    pub(crate) fn at_least(mut self, what: impl Into<String>, value: f64, bound: f64) -> Self {
        self.checks.push(Check { what: what.into(), value, bound: Bound::AtLeast(bound) });
        self
    }

    pub(crate) fn at_most(mut self, what: impl Into<String>, value: f64, bound: f64) -> Self {
        self.checks.push(Check { what: what.into(), value, bound: Bound::AtMost(bound) });
        self
    }

    pub(crate) fn note(mut self, note: impl Into<String>) -> Self {
        self.notes.push(note.into());
        self
    }

    /// The median rate of one side relative to another's.
    pub(crate) fn ratio(&self, side: usize, other: usize) -> f64 {
        self.series[side].rate() / self.series[other].rate()
    }
}

/// One comparison.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Check {
    /// The subject of the comparison.
    pub(crate) what: String,
    /// The result.
    pub(crate) value: f64,
    /// The bound to meet.
    pub(crate) bound: Bound,
}

impl Check {
    /// Whether the bound is met; a value that is not a number meets none.
    pub(crate) fn holds(&self) -> bool {
        match self.bound {
            Bound::AtLeast(bound) => self.value >= bound,
            Bound::AtMost(bound) => self.value <= bound,
        }
    }
}

/// The bound of a value.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Bound {
    /// This or more.
    AtLeast(f64),
    /// This or less.
    AtMost(f64),
}

impl fmt::Display for Bound {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::AtLeast(bound) => write!(f, ">= {bound:.3}"),
            Self::AtMost(bound) => write!(f, "<= {bound:.3}"),
        }
    }
}

/// Why a bar has no result.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum Stop {
    /// The machine lacks something.
    Skip(String),
    /// Something broke.
    Fail(String),
}

impl<E: Error> From<E> for Stop {
    /// The error and its causes in one line.
    fn from(error: E) -> Self {
        let mut text = error.to_string();
        let mut cause = error.source();
        while let Some(error) = cause {
            text = format!("{text}: {error}");
            cause = error.source();
        }
        Self::Fail(text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bounds_are_inclusive_and_nan_keeps_none() {
        let held = |measured: Measured| measured.checks[0].holds();
        let measured = Measured::default;
        assert!(held(measured().at_least("a", 0.97, 0.97)));
        assert!(!held(measured().at_least("a", 0.96, 0.97)));
        assert!(held(measured().at_most("a", 1.1, 1.1)));
        assert!(!held(measured().at_most("a", f64::NAN, 1.1)));
        assert!(!held(measured().at_least("a", f64::NAN, 0.1)));
    }

    #[test]
    fn names_are_unique() {
        let mut names: Vec<&str> = BARS.iter().map(|bar| bar.name).collect();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), BARS.len());
    }
}
