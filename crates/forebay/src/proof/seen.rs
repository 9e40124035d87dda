//! What a source of evidence told, or why it did not.

use std::fmt;

use super::json::Json;
use crate::topology::Absent;

/// What one source of evidence told.
#[derive(Debug, Clone, PartialEq)]
pub enum Seen<T> {
    /// The answer.
    Told(T),
    /// There is nothing here that it could count; holds what.
    Nothing(String),
    /// It could have told something, and did not.
    Missing(Missing),
}

impl<T> Seen<T> {
    /// A source that did not tell, and how to make it.
    pub fn missing(why: impl Into<String>, remedy: impl Into<String>) -> Self {
        Self::Missing(Missing { why: why.into(), remedy: remedy.into() })
    }

    /// The answer, where there is one.
    #[must_use]
    pub const fn told(&self) -> Option<&T> {
        match self {
            Self::Told(value) => Some(value),
            Self::Nothing(_) | Self::Missing(_) => None,
        }
    }

    /// The same without an answer, for what is said of it beside the others.
    #[must_use]
    pub fn absence(&self) -> Option<String> {
        match self {
            Self::Told(_) => None,
            Self::Nothing(why) => Some(why.clone()),
            Self::Missing(missing) => Some(missing.to_string()),
        }
    }

    /// The same, with its own remedy, or with `remedy` where it has none.
    pub(super) fn lack(&self, what: &str, remedy: &str) -> Option<Missing> {
        let (why, remedy) = match self {
            Self::Told(_) => return None,
            Self::Nothing(why) => (why, remedy),
            Self::Missing(missing) => (&missing.why, missing.remedy.as_str()),
        };
        Some(Missing { why: format!("{what}: {why}"), remedy: remedy.into() })
    }

    /// Another answer made of this one.
    #[must_use]
    pub fn map<U>(self, make: impl FnOnce(T) -> U) -> Seen<U> {
        self.and_then(|value| Seen::Told(make(value)))
    }

    /// Another answer made of this one, which may fail.
    #[must_use]
    pub fn and_then<U>(self, make: impl FnOnce(T) -> Seen<U>) -> Seen<U> {
        match self {
            Self::Told(value) => make(value),
            Self::Nothing(why) => Seen::Nothing(why),
            Self::Missing(missing) => Seen::Missing(missing),
        }
    }

    /// What happened between two readings, by `grown`, which says what cannot be.
    pub(super) fn since<U>(
        self,
        earlier: Self,
        grown: impl FnOnce(T, T) -> Result<U, String>,
    ) -> Seen<U> {
        self.and_then(|later| {
            earlier.and_then(|earlier| match grown(earlier, later) {
                Ok(value) => Seen::Told(value),
                Err(why) => Seen::missing(why, AGAIN),
            })
        })
    }

    pub(super) fn json(&self, fields: impl FnOnce(&T) -> Vec<(&'static str, Json)>) -> Json {
        Json::Object(match self {
            Self::Told(value) => fields(value),
            Self::Nothing(why) => vec![("nothing", why.into())],
            Self::Missing(missing) => {
                vec![("missing", (&missing.why).into()), ("remedy", (&missing.remedy).into())]
            }
        })
    }
}

/// What to do about a counter that was changed by others meanwhile.
pub(super) const AGAIN: &str = "repeat the span, with nobody who resets counters meanwhile";

/// Why a source did not tell.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
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

/// How far a counter came, which nobody but a reset can have turned back.
pub(super) fn grown(what: &str, earlier: u64, later: u64) -> Result<u64, String> {
    later
        .checked_sub(earlier)
        .ok_or_else(|| format!("{what} went back from {earlier} to {later}: somebody has reset it"))
}

/// A file of the system's that gives no answer: what is said where it is not there, and what to do
/// where it may not be read.
pub(super) fn unread<T>(path: &str, absent: Absent, missing: impl FnOnce() -> Seen<T>) -> Seen<T> {
    match absent {
        Absent::Missing => missing(),
        Absent::Denied => Seen::missing(format!("`{path}` may not be read"), "run as root"),
        other => Seen::missing(format!("`{path}`: {other}"), "look at what is there"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_missing_at_either_edge_is_missing() {
        let told = || Seen::Told(5);
        let difference = |later: Seen<u64>, earlier| later.since(earlier, |a, b| grown("x", a, b));
        assert_eq!(difference(Seen::Told(7), told()), Seen::Told(2));
        assert_eq!(difference(told(), Seen::Nothing("n".into())), Seen::Nothing("n".into()));
        let gone = Seen::missing("gone", "bring it back");
        assert_eq!(difference(gone.clone(), told()), gone);
        let back = difference(told(), Seen::Told(7)).absence().unwrap();
        assert!(back.starts_with("x went back from 7 to 5"), "{back}");
    }

    #[test]
    fn why_a_file_gives_no_answer_decides_what_to_do() {
        let seen = |absent| unread::<u64>("p", absent, || Seen::Nothing("no p".into()));
        assert_eq!(seen(Absent::Missing), Seen::Nothing("no p".into()));
        assert_eq!(seen(Absent::Denied), Seen::missing("`p` may not be read", "run as root"));
        assert_eq!(
            seen(Absent::NotText).absence().unwrap(),
            "`p`: no readable text (look at what \
                   is there)"
        );
    }
}
