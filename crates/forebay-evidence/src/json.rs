//! A minimal JSON writer for verdicts and evidence. Field names are constants of the program.

use std::fmt::{self, Display, Formatter};

use forebay_topology::quoted;

/// A JSON value.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Json {
    Null,
    Flag(bool),
    Number(u64),
    Real(f64),
    Text(String),
    List(Vec<Json>),
    Object(Vec<(&'static str, Json)>),
}

impl Display for Json {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match self {
            Self::Null => f.write_str("null"),
            Self::Flag(flag) => flag.fmt(f),
            Self::Number(number) => number.fmt(f),
            // JSON cannot express NaN or infinity.
            Self::Real(real) if real.is_finite() => real.fmt(f),
            Self::Real(_) => f.write_str("null"),
            Self::Text(text) => f.write_str(&quoted(text)),
            Self::List(list) => {
                f.write_str("[")?;
                for (index, value) in list.iter().enumerate() {
                    f.write_str(if index == 0 { "" } else { "," })?;
                    value.fmt(f)?;
                }
                f.write_str("]")
            }
            Self::Object(fields) => {
                f.write_str("{")?;
                for (index, (name, value)) in fields.iter().enumerate() {
                    f.write_str(if index == 0 { "" } else { "," })?;
                    write!(f, "\"{name}\":{value}")?;
                }
                f.write_str("}")
            }
        }
    }
}

impl From<u64> for Json {
    fn from(number: u64) -> Self {
        Self::Number(number)
    }
}

impl From<f64> for Json {
    fn from(real: f64) -> Self {
        Self::Real(real)
    }
}

impl From<bool> for Json {
    fn from(flag: bool) -> Self {
        Self::Flag(flag)
    }
}

impl From<&str> for Json {
    fn from(text: &str) -> Self {
        Self::Text(text.to_owned())
    }
}

impl From<&String> for Json {
    fn from(text: &String) -> Self {
        Self::Text(text.clone())
    }
}

impl<T: Into<Json>> From<Option<T>> for Json {
    fn from(value: Option<T>) -> Self {
        value.map_or(Self::Null, Into::into)
    }
}

/// Makes a list of values.
pub(super) fn list<T: Into<Json>>(values: impl IntoIterator<Item = T>) -> Json {
    Json::List(values.into_iter().map(Into::into).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_written() {
        let value = Json::Object(vec![
            ("a", list([1_u64, 2])),
            ("b", Json::from("x\"\n")),
            ("c", Json::Object(vec![("d", Json::Real(f64::NAN)), ("e", 0.5.into())])),
            ("f", Json::from(None::<u64>)),
            ("g", true.into()),
        ]);
        let text = r#"{"a":[1,2],"b":"x\"\u000a","c":{"d":null,"e":0.5},"f":null,"g":true}"#;
        assert_eq!(value.to_string(), text);
    }
}
