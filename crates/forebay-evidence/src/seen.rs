//! The result of a source of evidence, or the reason why it is missing.

use std::fmt;

use forebay_topology::Absent;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

/// The result of a source of evidence.
#[derive(Debug, Clone, Default, PartialEq)]
pub enum Seen<T> {
    /// The value.
    Value(T),
    /// Not applicable: there is nothing to count here; holds the reason.
    Nothing(String),
    /// The source was not queried.
    #[default]
    NotQueried,
    /// The source should have a value but does not.
    Missing(Missing),
}

/// The reason for a source that was not queried.
const NOT_QUERIED: &str = "not queried";

impl Seen<String> {
    /// The text of a file of `/proc` or `/sys`; `missing` makes the result if it does not exist.
    pub(super) fn read(
        path: &str,
        text: Result<String, Absent>,
        missing: impl FnOnce() -> Self,
    ) -> Self {
        match text {
            Ok(text) => Self::Value(text),
            Err(Absent::Missing) => missing(),
            Err(Absent::Denied) => {
                Self::missing(format!("`/{path}` may not be read"), "run as root")
            }
            Err(other) => {
                Self::missing(format!("`/{path}`: {other}"), "try to read that file as this user")
            }
        }
    }
}

impl<T> Seen<T> {
    /// A missing value, and how to get it.
    pub fn missing(why: impl Into<String>, remedy: impl Into<String>) -> Self {
        Self::Missing(Missing { why: why.into(), remedy: remedy.into() })
    }

    /// A value that must be there, or why it is missing.
    pub(super) fn of(value: Option<T>, why: impl Into<String>, remedy: &str) -> Self {
        value.map_or_else(|| Self::missing(why, remedy), Self::Value)
    }

    /// The value of a call, or why it failed.
    pub(super) fn tried(result: Result<T, String>, remedy: &str) -> Self {
        result.map_or_else(|why| Self::missing(why, remedy), Self::Value)
    }

    /// The value, if there is any.
    pub const fn value(&self) -> Option<&T> {
        match self {
            Self::Value(value) => Some(value),
            Self::Nothing(_) | Self::NotQueried | Self::Missing(_) => None,
        }
    }

    /// The reason why there is no value, as text.
    pub fn absence(&self) -> Option<String> {
        match self {
            Self::Value(_) => None,
            Self::Nothing(why) => Some(why.clone()),
            Self::NotQueried => Some(NOT_QUERIED.into()),
            Self::Missing(missing) => Some(missing.to_string()),
        }
    }

    /// The missing value as a [`Missing`], with its own remedy, or else with `remedy`.
    pub(super) fn lack(&self, what: &str, remedy: &str) -> Option<Missing> {
        let (why, remedy) = match self {
            Self::Value(_) => return None,
            Self::Nothing(why) => (why.as_str(), remedy),
            Self::NotQueried => (NOT_QUERIED, remedy),
            Self::Missing(missing) => (missing.why.as_str(), missing.remedy.as_str()),
        };
        Some(Missing { why: format!("{what}: {why}"), remedy: remedy.into() })
    }

    /// Maps the value.
    pub fn map<U>(self, make: impl FnOnce(T) -> U) -> Seen<U> {
        self.and_then(|value| Seen::Value(make(value)))
    }

    /// Maps the value with a function that may fail.
    pub fn and_then<U>(self, make: impl FnOnce(T) -> Seen<U>) -> Seen<U> {
        match self {
            Self::Value(value) => make(value),
            Self::Nothing(why) => Seen::Nothing(why),
            Self::NotQueried => Seen::NotQueried,
            Self::Missing(missing) => Seen::Missing(missing),
        }
    }

    /// The difference of two readings. `grown` computes it, or reports why it is impossible.
    pub(super) fn since<U>(
        self,
        earlier: Self,
        grown: impl FnOnce(T, T) -> Result<U, String>,
    ) -> Seen<U> {
        self.and_then(|later| earlier.and_then(|earlier| Seen::tried(grown(earlier, later), AGAIN)))
    }

    /// The value as JSON, or why there is none.
    pub(super) fn json(&self, value: impl FnOnce(&T) -> Value) -> Value {
        match self {
            Self::Value(found) => value(found),
            Self::Nothing(why) => json!({"nothing": why}),
            Self::NotQueried => json!({"nothing": NOT_QUERIED}),
            Self::Missing(Missing { why, remedy }) => json!({"missing": why, "remedy": remedy}),
        }
    }
}

/// Remedy for a counter that was reset during the span.
pub(super) const AGAIN: &str = "repeat the span, and reset no counters during it";

/// Why a source lacks a value.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Missing {
    /// The reason.
    pub why: String,
    /// How to get it.
    pub remedy: String,
}

impl fmt::Display for Missing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({})", self.why, self.remedy)
    }
}

/// All values, or the first result that is none.
impl<T> FromIterator<Seen<T>> for Seen<Vec<T>> {
    fn from_iter<I: IntoIterator<Item = Seen<T>>>(all: I) -> Self {
        let mut values = Vec::new();
        for one in all {
            match one {
                Seen::Value(value) => values.push(value),
                other => return other.map(|_| Vec::new()),
            }
        }
        Seen::Value(values)
    }
}

#[cfg(test)]
mod tests {
    use forebay_base::units::grown;

    use super::*;

    #[test]
    fn a_value_missing_at_one_edge_is_missing() {
        let reported = || Seen::Value(5);
        let difference = |later: Seen<u64>, earlier| later.since(earlier, |a, b| grown("x", a, b));
        assert_eq!(difference(Seen::Value(7), reported()), Seen::Value(2));
        assert_eq!(difference(reported(), Seen::Nothing("n".into())), Seen::Nothing("n".into()));
        let gone = Seen::missing("gone", "bring it back");
        assert_eq!(difference(gone.clone(), reported()), gone);
        let back = difference(reported(), Seen::Value(7)).absence().unwrap();
        assert!(back.starts_with("x went back from 7 to 5"), "{back}");
    }

    #[test]
    fn why_a_file_gives_no_answer_decides_what_to_do() {
        let seen = |absent| Seen::read("p", Err(absent), || Seen::Nothing("no p".into()));
        assert_eq!(seen(Absent::Missing), Seen::Nothing("no p".into()));
        assert_eq!(seen(Absent::Denied), Seen::missing("`/p` may not be read", "run as root"));
        assert_eq!(
            seen(Absent::NotText).absence().unwrap(),
            "`/p`: no readable text (try to read that file as this user)"
        );
    }
}
