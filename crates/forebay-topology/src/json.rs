//! A minimal JSON reader and string quoter for records.
//!
//! Records may be damaged, so depth is bounded and every accessor returns an `Option`.

use super::system::moves_cursor;

/// Maximum depth of nested values.
const DEPTH_MAX: usize = 32;

/// A JSON value.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Json {
    Null,
    Flag(bool),
    /// A number as it was written.
    Number(String),
    Text(String),
    List(Vec<Json>),
    Object(Vec<(String, Json)>),
}

impl Json {
    /// Parses `text`, which must be one value.
    pub(super) fn parse(text: &str) -> Option<Self> {
        let mut reader = Reader { rest: text.trim(), depth: 0 };
        let value = reader.value()?;
        reader.blank();
        reader.rest.is_empty().then_some(value)
    }

    pub(super) fn get(&self, name: &str) -> Option<&Self> {
        match self {
            Self::Object(fields) => {
                fields.iter().find(|(found, _)| found == name).map(|(_, value)| value)
            }
            _ => None,
        }
    }

    pub(super) fn text(&self) -> Option<&str> {
        match self {
            Self::Text(text) => Some(text),
            _ => None,
        }
    }

    pub(super) fn list(&self) -> Option<&[Self]> {
        match self {
            Self::List(list) => Some(list),
            _ => None,
        }
    }

    pub(super) fn number(&self) -> Option<u64> {
        match self {
            Self::Number(text) => text.parse().ok(),
            _ => None,
        }
    }
}

/// `text` as a JSON string, without characters that move a terminal's cursor.
pub fn quoted(text: &str) -> String {
    let mut out = String::with_capacity(text.len() + 2);
    out.push('"');
    for c in text.chars() {
        match c {
            '"' | '\\' => out.extend(['\\', c]),
            c if moves_cursor(c) => out.push_str(&format!("\\u{:04x}", u32::from(c))),
            c => out.push(c),
        }
    }
    out.push('"');
    out
}

struct Reader<'a> {
    rest: &'a str,
    depth: usize,
}

impl Reader<'_> {
    fn blank(&mut self) {
        self.rest = self.rest.trim_start_matches([' ', '\t', '\n', '\r']);
    }

    fn takes(&mut self, token: &str) -> bool {
        self.blank();
        match self.rest.strip_prefix(token) {
            Some(rest) => {
                self.rest = rest;
                true
            }
            None => false,
        }
    }

    fn value(&mut self) -> Option<Json> {
        if self.depth == DEPTH_MAX {
            return None;
        }
        self.depth += 1;
        let value = self.any();
        self.depth -= 1;
        value
    }

    fn any(&mut self) -> Option<Json> {
        if self.takes("{") {
            return self.object();
        }
        if self.takes("[") {
            return self.array();
        }
        if self.takes("\"") {
            return self.string().map(Json::Text);
        }
        for (word, value) in
            [("null", Json::Null), ("true", Json::Flag(true)), ("false", Json::Flag(false))]
        {
            if self.takes(word) {
                return Some(value);
            }
        }
        let is_part = |c: char| c.is_ascii_digit() || matches!(c, '-' | '+' | '.' | 'e' | 'E');
        let end = self.rest.find(|c| !is_part(c)).unwrap_or(self.rest.len());
        let (number, rest) = self.rest.split_at(end);
        number.starts_with(|c: char| c.is_ascii_digit() || c == '-').then(|| {
            self.rest = rest;
            Json::Number(number.to_owned())
        })
    }

    fn object(&mut self) -> Option<Json> {
        let mut fields = Vec::new();
        if self.takes("}") {
            return Some(Json::Object(fields));
        }
        loop {
            if !self.takes("\"") {
                return None;
            }
            let name = self.string()?;
            if !self.takes(":") {
                return None;
            }
            fields.push((name, self.value()?));
            if self.takes("}") {
                return Some(Json::Object(fields));
            }
            if !self.takes(",") {
                return None;
            }
        }
    }

    fn array(&mut self) -> Option<Json> {
        let mut list = Vec::new();
        if self.takes("]") {
            return Some(Json::List(list));
        }
        loop {
            list.push(self.value()?);
            if self.takes("]") {
                return Some(Json::List(list));
            }
            if !self.takes(",") {
                return None;
            }
        }
    }

    /// Reads the rest of a string after its opening quote.
    fn string(&mut self) -> Option<String> {
        let mut text = String::new();
        let mut chars = self.rest.char_indices();
        loop {
            match chars.next()? {
                (at, '"') => {
                    self.rest = &self.rest[at + 1..];
                    return Some(text);
                }
                (_, '\\') => match chars.next()?.1 {
                    'n' => text.push('\n'),
                    't' => text.push('\t'),
                    'r' => text.push('\r'),
                    'b' => text.push('\u{8}'),
                    'f' => text.push('\u{c}'),
                    'u' => {
                        let mut code = 0;
                        for _ in 0..4 {
                            code = code * 16 + chars.next()?.1.to_digit(16)?;
                        }
                        // A lone surrogate is no character.
                        text.push(char::from_u32(code).unwrap_or('\u{fffd}'));
                    }
                    c => text.push(c),
                },
                (_, c) => text.push(c),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn values_are_read() {
        let value = Json::parse(r#" {"a": [1, -2.5e3, null, true], "b": "x\"\u0041\n", "c": {}} "#);
        let value = value.expect("it is JSON");
        assert_eq!(value.get("b").and_then(Json::text), Some("x\"A\n"));
        assert_eq!(value.get("a").and_then(Json::list).map(<[_]>::len), Some(4));
        assert_eq!(value.get("a").and_then(|a| a.list()?.first()?.number()), Some(1));
        for text in ["", "{", "[1,", "\"x", "{\"a\"}", "{\"a\":}", "1 2", "nul", "[1 2]", "\"\\u00"]
        {
            assert_eq!(Json::parse(text), None, "{text}");
        }
        assert_eq!(Json::parse(&"[".repeat(1_000_000)), None);
    }

    proptest! {
        #[test]
        fn what_is_quoted_is_read_back(text in any::<String>()) {
            prop_assert_eq!(Json::parse(&quoted(&text)), Some(Json::Text(text)));
        }

        #[test]
        fn nothing_panics(text in "[\\[\\]{}:,\"\\\\u0-9a-f ntrue-]{0,60}") {
            let _ = Json::parse(&text);
        }
    }
}
