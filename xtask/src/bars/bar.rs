//! The definition of a bar: a comparison with a bound; and the list of all bars.

use std::error::Error;
use std::fmt;

use serde::{Deserialize, Serialize};

use crate::lab::Lab;
use crate::sample::Series;
use crate::{
    cold, drives, first, host, many, map, memlock, memory, resident, small, statistics, sweep,
    write,
};

/// One bar.
#[derive(Clone, Copy)]
pub(crate) struct Bar {
    /// Its name for `--only`.
    pub(crate) name: &'static str,
    /// The machine it is meant for.
    pub(crate) setting: Setting,
    /// Takes the samples and compares.
    pub(crate) run: fn(&Lab) -> Result<Measured, Stop>,
}

/// The machine a bar is meant for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Setting {
    /// One without a GPU.
    Host,
    /// One with a GPU.
    Gpu,
    /// Any.
    Any,
}

/// Every bar, in execution order: those that need files in the page cache first.
pub(crate) const BARS: [Bar; 34] = [
    Bar { name: "gpu-resident-disk", setting: Setting::Gpu, run: resident::disk },
    Bar { name: "gpu-resident-tmpfs", setting: Setting::Gpu, run: resident::tmpfs },
    Bar { name: "gpu-first-transfer", setting: Setting::Gpu, run: first::run },
    Bar { name: "gpu-resident-256M", setting: Setting::Gpu, run: resident::short },
    Bar { name: "gpu-4K-latency", setting: Setting::Gpu, run: small::latency },
    Bar { name: "gpu-write-new", setting: Setting::Gpu, run: write::new_file },
    Bar { name: "gpu-write-over", setting: Setting::Gpu, run: write::overwritten },
    Bar { name: "gpu-pieces", setting: Setting::Gpu, run: many::pieces },
    Bar { name: "gpu-16-threads", setting: Setting::Gpu, run: many::threads },
    Bar { name: "gpu-small-beside", setting: Setting::Gpu, run: many::small_beside_large },
    Bar { name: "gpu-write-8-files", setting: Setting::Gpu, run: many::eight_files },
    Bar { name: "gpu-cold", setting: Setting::Gpu, run: cold::run },
    Bar { name: "host-resident", setting: Setting::Host, run: host::resident },
    Bar { name: "host-direct-1M", setting: Setting::Host, run: host::direct },
    Bar { name: "host-random-4K", setting: Setting::Host, run: small::random },
    Bar { name: "pread-direct-1M", setting: Setting::Host, run: host::pread_direct },
    Bar { name: "pread-resident", setting: Setting::Host, run: host::pread_resident },
    Bar { name: "host-memlock", setting: Setting::Host, run: memlock::run },
    Bar { name: "statistics-resident", setting: Setting::Host, run: statistics::resident },
    Bar { name: "statistics-random", setting: Setting::Host, run: statistics::random },
    Bar { name: "memory-host", setting: Setting::Any, run: memory::host },
    Bar { name: "memory-sim", setting: Setting::Any, run: memory::sim },
    Bar { name: "map-resolve", setting: Setting::Any, run: map::resolve },
    Bar { name: "drives-sum", setting: Setting::Host, run: drives::four },
    Bar { name: "drives-shuffled", setting: Setting::Host, run: drives::shuffled },
    Bar { name: "drives-striped", setting: Setting::Host, run: drives::striped },
    Bar { name: "drives-unequal", setting: Setting::Host, run: drives::unequal },
    Bar { name: "drives-hung", setting: Setting::Host, run: drives::hung },
    Bar { name: "drives-depth", setting: Setting::Host, run: drives::depth },
    Bar { name: "drives-urgent", setting: Setting::Host, run: drives::urgent },
    Bar { name: "drives-idle", setting: Setting::Host, run: drives::idle },
    Bar { name: "sweep-capped", setting: Setting::Host, run: drives::agree_capped },
    Bar { name: "sweep-delayed", setting: Setting::Host, run: drives::agree_delayed },
    Bar { name: "sweep-disk", setting: Setting::Host, run: sweep::own_disk },
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
    pub(crate) fn new(what: impl Into<String>, value: f64, bound: Bound) -> Self {
        Self { what: what.into(), value, bound }
    }

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
#[derive(Debug)]
pub(crate) enum Stop {
    /// The machine lacks something.
    Skip(String),
    /// Something broke.
    Fail(String),
}

impl From<forebay::Error> for Stop {
    fn from(error: forebay::Error) -> Self {
        Self::Fail(chain(&error))
    }
}

impl From<forebay::gpu::DeviceError> for Stop {
    fn from(error: forebay::gpu::DeviceError) -> Self {
        Self::Fail(chain(&error))
    }
}

impl From<std::io::Error> for Stop {
    fn from(error: std::io::Error) -> Self {
        Self::Fail(chain(&error))
    }
}

/// An error and its causes in one line.
fn chain(error: &dyn Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        text = format!("{text}: {error}");
        cause = error.source();
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bounds_are_inclusive_and_nan_keeps_none() {
        assert!(Check::new("a", 0.97, Bound::AtLeast(0.97)).holds());
        assert!(!Check::new("a", 0.96, Bound::AtLeast(0.97)).holds());
        assert!(Check::new("a", 1.1, Bound::AtMost(1.1)).holds());
        assert!(!Check::new("a", f64::NAN, Bound::AtMost(1.1)).holds());
        assert!(!Check::new("a", f64::NAN, Bound::AtLeast(0.1)).holds());
    }

    #[test]
    fn names_are_unique() {
        let mut names: Vec<&str> = BARS.iter().map(|bar| bar.name).collect();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), BARS.len());
    }
}
