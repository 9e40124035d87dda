//! fio's JSON, whose options repeat keys in an order that matters, and whose numbers may be `nan`.

use std::fmt;

use serde::de::{Deserialize, Deserializer, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Value};

/// Objects whose members stay a list of pairs.
const OPTIONS: [&str; 2] = ["global options", "job options"];

/// The objects of a text in sequence; options are arrays of `[key, value]`.
pub(super) struct Ordered<const OPTIONS: bool = false>(pub(super) Value);

impl<'de, const PAIRS: bool> Deserialize<'de> for Ordered<PAIRS> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(Reader::<PAIRS>).map(Self)
    }
}

struct Reader<const PAIRS: bool>;

impl<'de, const PAIRS: bool> Visitor<'de> for Reader<PAIRS> {
    type Value = Value;

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("a value of JSON")
    }

    fn visit_bool<E>(self, value: bool) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_i64<E>(self, value: i64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_u64<E>(self, value: u64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_f64<E>(self, value: f64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_str<E>(self, value: &str) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_unit<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut access: A) -> Result<Value, A::Error> {
        let mut values = Vec::new();
        while let Some(Ordered::<false>(value)) = access.next_element()? {
            values.push(value);
        }
        Ok(values.into())
    }

    fn visit_map<A: MapAccess<'de>>(self, mut access: A) -> Result<Value, A::Error> {
        let (mut pairs, mut members) = (Vec::new(), Map::new());
        while let Some(key) = access.next_key::<String>()? {
            if PAIRS {
                let Ordered::<false>(value) = access.next_value()?;
                pairs.push(Value::Array(vec![key.into(), value]));
            } else if OPTIONS.contains(&key.as_str()) {
                let Ordered::<true>(value) = access.next_value()?;
                members.insert(key, value);
            } else {
                let Ordered::<false>(value) = access.next_value()?;
                members.insert(key, value);
            }
        }
        Ok(if PAIRS { pairs.into() } else { members.into() })
    }
}

/// Replaces each `nan`, `-nan` or `inf` of a C library by an empty string of the same length. The
/// other fields of the file remain usable.
pub(super) fn without_nan(text: &str) -> String {
    let mut bytes = text.as_bytes().to_vec();
    let (mut at, mut quoted) = (0, false);
    while at < bytes.len() {
        match bytes[at] {
            b'\\' if quoted => at += 1,
            b'"' => quoted = !quoted,
            // No string extends beyond its line, whatever fio printed before its JSON.
            b'\n' => quoted = false,
            b':' | b',' | b'[' if !quoted => {
                let rest = &bytes[at + 1..];
                let begin = at + 1 + rest.len() - rest.trim_ascii_start().len();
                if let Some(len) = no_number(&bytes[begin..]) {
                    bytes[begin..begin + len].fill(b' ');
                    bytes[begin..begin + 2].fill(b'"');
                }
            }
            _ => {}
        }
        at += 1;
    }
    // Only ASCII letters were replaced, by ASCII.
    String::from_utf8(bytes).unwrap_or_else(|_| text.to_owned())
}

/// The length of a value that is not a number (NaN, infinity).
fn no_number(bytes: &[u8]) -> Option<usize> {
    let signed = usize::from(bytes.first().is_some_and(|sign| b"+-".contains(sign)));
    let word = &bytes[signed..];
    let len = word.iter().position(|byte| !byte.is_ascii_alphabetic()).unwrap_or(word.len());
    let named = ["nan", "inf", "infinity"];
    let is_named = |name: &&str| word[..len].eq_ignore_ascii_case(name.as_bytes());
    named.iter().any(is_named).then_some(signed + len)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn options_keep_their_order_and_repeats() {
        let text = r#"{"a":{"b":1,"b":2},"job options":{"z":"1","a":"2","z":"3"}}"#;
        let Ordered::<false>(value) = serde_json::from_str(text).unwrap();
        let options = json!([["z", "1"], ["a", "2"], ["z", "3"]]);
        assert_eq!(value, json!({"a": {"b": 2}, "job options": options}));
    }

    #[test]
    fn what_is_no_number_is_no_value() {
        let text = "a quote \"\n{\"a\" : -nan,\n\"b\":[nan, inf,-INF ,1], \"nan, :nan\": \
                    \"a:nan\\\":nan\", \"c\": nano}";
        let read = without_nan(text);
        assert_eq!(read.len(), text.len());
        let expected = "a quote \"\n{\"a\" : \"\"  ,\n\"b\":[\"\" , \"\" ,\"\"   ,1], \
                        \"nan, :nan\": \"a:nan\\\":nan\", \"c\": nano}";
        assert_eq!(read, expected);
    }

    proptest::proptest! {
        #[test]
        fn json_stays_as_it_is(text: String) {
            let json = json!({&text: [&text, 1.5, {"x": &text}]}).to_string();
            proptest::prop_assert_eq!(without_nan(&json), json);
            proptest::prop_assert_eq!(without_nan(&text).len(), text.len());
        }
    }
}
