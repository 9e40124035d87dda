//! Unknown values: empty or 0 in memory, null in JSON.
//!
//! For axes and facts that are never empty or 0. A key that may be 0 is an `Option` instead.

use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// Writes a value, or null.
///
/// # Errors
/// Errors of the serializer.
pub fn serialize<T: Serialize + Default + PartialEq, S: Serializer>(
    value: &T,
    serializer: S,
) -> Result<S::Ok, S::Error> {
    Some(value).filter(|value| **value != T::default()).serialize(serializer)
}

/// Reads a value, or null.
///
/// # Errors
/// Errors of the deserializer.
pub fn deserialize<'de, T: Deserialize<'de> + Default, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<T, D::Error> {
    Ok(Option::deserialize(deserializer)?.unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, PartialEq, Serialize, Deserialize)]
    struct Facts {
        #[serde(with = "super")]
        text: String,
        #[serde(with = "super")]
        count: u32,
    }

    #[test]
    fn what_nobody_told_is_null() {
        for (text, count, json) in
            [("a", 3, r#"{"text":"a","count":3}"#), ("", 0, r#"{"text":null,"count":null}"#)]
        {
            let facts = Facts { text: text.into(), count };
            assert_eq!(serde_json::to_string(&facts).unwrap(), json);
            assert_eq!(serde_json::from_str::<Facts>(json).unwrap(), facts);
        }
        assert!(serde_json::from_str::<Facts>(r#"{"text":1,"count":null}"#).is_err());
        // A key may be null, but not missing.
        assert!(serde_json::from_str::<Facts>(r#"{"text":"a"}"#).is_err());
    }
}
