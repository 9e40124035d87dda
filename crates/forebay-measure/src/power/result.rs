//! Power and throttling over a span: plain data in the form of the JSON.
//!
//! Data that is read back may come from another version: unknown keys are ignored, and missing ones
//! mean that nothing was measured.

use serde::{Deserialize, Serialize};

/// The measurements of one span.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(default)]
pub struct Power {
    /// How long the span was.
    pub seconds: f64,
    /// The consumption of each source. Sources of one part may be added ([`Power::joules_of`]); two
    /// parts may not, since one may include the other.
    pub sources: Vec<Source>,
    /// The parts that were throttled, and why.
    pub throttled: Vec<Throttled>,
    /// Notes for the reader of the numbers, as sentences with the next step.
    pub warnings: Vec<String>,
}

/// The consumption of one source.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(default)]
pub struct Source {
    /// Its name: `gpu cuda:0`, `package-0`, `dram-0`, `psys`, `server`.
    pub name: String,
    /// The part it belongs to.
    pub part: Part,
    /// The average power over the covered part of the span.
    pub watts: f64,
    /// That power over the whole span.
    pub joules: f64,
    /// Number of readings within the span.
    pub samples: u64,
    /// The covered part of the span, from 0 to 1.
    pub covered: f64,
    /// How it was measured.
    pub how: String,
}

/// The subject of a source.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum Part {
    /// A GPU with its memory.
    Gpu,
    /// A processor's package: cores, caches, controllers.
    Package,
    /// Memory outside a package.
    Dram,
    /// The whole platform as the board's maker defines it, packages included.
    Platform,
    /// The server, as the user's command reports it.
    Server,
    /// A value of another version.
    #[default]
    #[serde(other)]
    Other,
}

/// A throttled part, or one about to be.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(default)]
pub struct Throttled {
    /// `gpu cuda:0`.
    pub name: String,
    /// The reason, such as `hardware thermal slowdown`.
    pub reason: String,
    /// The share of the readings with this reason, from 0 to 1.
    pub share: f64,
}

/// A source that is not measured.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(default)]
pub struct Absent {
    /// The quantity that it would have measured.
    pub name: String,
    /// Why it does not.
    pub why: String,
    /// What to do about it; null if the machine has no such source.
    pub remedy: Option<String>,
}

impl Absent {
    pub(super) fn new(name: impl Into<String>, why: impl Into<String>) -> Self {
        Self { name: name.into(), why: why.into(), remedy: None }
    }

    pub(super) fn remedy(self, remedy: impl Into<String>) -> Self {
        Self { remedy: Some(remedy.into()), ..self }
    }
}

impl Power {
    /// Joules of all GPUs, all packages or all memory, of the platform or of the server. `None` if
    /// there is no such source, or if its sources may include each other.
    pub fn joules_of(&self, part: Part) -> Option<f64> {
        let of = || self.sources.iter().filter(|source| source.part == part);
        let joules = of().map(|source| source.joules);
        match part {
            Part::Gpu | Part::Package | Part::Dram => joules.reduce(|sum, more| sum + more),
            Part::Platform | Part::Server | Part::Other => {
                (of().count() == 1).then(|| joules.sum())
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn source(name: &str, part: Part, joules: f64) -> Source {
        Source { name: name.into(), part, joules, ..Source::default() }
    }

    #[test]
    fn only_separate_parts_are_added() {
        let sources = vec![
            source("package-0", Part::Package, 3.0),
            source("package-1", Part::Package, 4.0),
            source("psys", Part::Platform, 9.0),
            source("server", Part::Server, 21.0),
            source("one", Part::Other, 1.0),
            source("two", Part::Other, 1.0),
        ];
        let power = Power { sources, ..Power::default() };
        assert_eq!(power.joules_of(Part::Package), Some(7.0));
        assert_eq!(power.joules_of(Part::Platform), Some(9.0));
        assert_eq!(power.joules_of(Part::Server), Some(21.0));
        assert_eq!(power.joules_of(Part::Other), None, "each may hold the other");
        assert_eq!(power.joules_of(Part::Gpu), None);
    }

    #[test]
    fn results_of_another_version_are_read() {
        let text = r#"{"sources": [{"name": "rack", "part": "rack", "watts": 5, "novel": [1]}],
                       "throttled": [{"name": "gpu cuda:0"}], "novel": {}}"#;
        let power: Power = serde_json::from_str(text).unwrap();
        assert_eq!((power.sources[0].part, power.sources[0].watts), (Part::Other, 5.0));
        assert_eq!(power.throttled[0].name, "gpu cuda:0");
        let again: Power = serde_json::from_str(&serde_json::to_string(&power).unwrap()).unwrap();
        assert_eq!(again, power);
    }
}
