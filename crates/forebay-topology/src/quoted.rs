//! Text in the JSON of records and traces.

use super::system::moves_cursor;

/// `text` as a JSON string, without characters that move a terminal's cursor.
pub fn quoted(text: &str) -> String {
    printable(&serde_json::Value::from(text).to_string())
}

/// JSON with such characters escaped; they occur in its strings only.
pub(super) fn printable(json: &str) -> String {
    let escaped = |c: char| match c {
        c if moves_cursor(c) => format!("\\u{:04x}", u32::from(c)),
        c => c.to_string(),
    };
    json.chars().map(escaped).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn quoted_text_is_read_back(text in any::<String>()) {
            prop_assert_eq!(serde_json::from_str::<String>(&quoted(&text)).unwrap(), text);
        }
    }
}
