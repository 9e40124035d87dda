//! Parses JSON with comments, the format of cuFile's settings.
//!
//! The file is not trusted: depth and count are bounded, and an error has a line number.

use std::collections::BTreeMap;
use std::fmt::Write as _;

/// Maximum depth of nested values, and maximum number of values.
const DEPTH_MAX: usize = 32;
const VALUES_MAX: usize = 16 << 10;

/// A JSON value.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Value {
    Null,
    Flag(bool),
    /// A number as it was written.
    Number(String),
    Text(String),
    List(Vec<Value>),
    Object(BTreeMap<String, Value>),
}

impl Value {
    /// The value at this path of names.
    pub(super) fn at(&self, names: &[&str]) -> Option<&Self> {
        names.iter().try_fold(self, |value, name| match value {
            Self::Object(fields) => fields.get(*name),
            _ => None,
        })
    }

    pub(super) fn flag(&self, names: &[&str]) -> Option<bool> {
        match self.at(names)? {
            Self::Flag(flag) => Some(*flag),
            _ => None,
        }
    }

    /// The texts in the list at this path of names.
    pub(super) fn texts(&self, names: &[&str]) -> Vec<&str> {
        let Some(Self::List(list)) = self.at(names) else { return Vec::new() };
        let texts = list.iter().filter_map(|value| match value {
            Self::Text(text) => Some(text.as_str()),
            _ => None,
        });
        texts.collect()
    }
}

/// A syntax error, and its line.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Damage {
    pub(super) line: usize,
    pub(super) what: &'static str,
}

/// Parses `text`; also returns the names that occur twice in an object.
pub(super) fn parse(text: &str) -> Result<(Value, Vec<String>), Damage> {
    let mut reader = Reader { text, at: 0, depth: 0, values: 0, twice: Vec::new() };
    if reader.next_is('\u{feff}') {
        return Err(reader.damage("it begins with a byte-order mark, which cuFile refuses"));
    }
    let value = reader.value()?;
    reader.blank()?;
    if reader.at < text.len() {
        return Err(reader.damage("there is text after its end"));
    }
    Ok((value, reader.twice))
}

/// `text` without comments, and with all text values masked except those whose name `keeps`
/// accepts; for records. Syntax errors are preserved.
pub(super) fn masked(text: &str, keeps: impl Fn(&str) -> bool) -> String {
    let mut reader = Reader { text, at: 0, depth: 0, values: 0, twice: Vec::new() };
    let (mut out, mut name) = (String::new(), String::new());
    while reader.at < text.len() {
        let start = reader.at;
        if reader.comment().unwrap_or(true) {
            let lines = text[start..reader.at].matches('\n').count();
            out.push(' '); // separates the words around the comment
            out.extend(std::iter::repeat_n('\n', lines));
            if reader.at == start {
                out += "/*"; // it has no end, and is to have none in a record
                break;
            }
        } else if reader.next_is('"') {
            let Ok(found) = reader.string() else {
                out.push('"');
                break;
            };
            let rest = text[reader.at..].trim_start();
            if rest.starts_with(':') {
                name = found;
                let _ = write!(out, "{}", &text[start..reader.at]);
            } else if keeps(&name) {
                out += &text[start..reader.at];
            } else {
                out += "\"masked\"";
            }
        } else {
            let Some(next) = text[start..].chars().next() else { break };
            out.push(next);
            reader.at += next.len_utf8();
        }
    }
    out
}

struct Reader<'a> {
    text: &'a str,
    at: usize,
    depth: usize,
    values: usize,
    twice: Vec<String>,
}

impl Reader<'_> {
    fn rest(&self) -> &str {
        &self.text[self.at..]
    }

    fn next_is(&self, next: char) -> bool {
        self.rest().starts_with(next)
    }

    fn damage(&self, what: &'static str) -> Damage {
        Damage { line: self.text[..self.at].matches('\n').count() + 1, what }
    }

    /// Skips a comment; returns whether there was one.
    fn comment(&mut self) -> Result<bool, Damage> {
        let rest = self.rest();
        if rest.starts_with("//") {
            self.at += rest.find('\n').unwrap_or(rest.len());
        } else if let Some(inside) = rest.strip_prefix("/*") {
            let end = inside.find("*/").ok_or_else(|| self.damage("a comment has no end"))?;
            self.at += end + 4;
        } else {
            return Ok(false);
        }
        Ok(true)
    }

    fn blank(&mut self) -> Result<(), Damage> {
        loop {
            let rest = self.rest();
            self.at += rest.len() - rest.trim_start_matches([' ', '\t', '\r', '\n']).len();
            if !self.comment()? {
                return Ok(());
            }
        }
    }

    /// Skips white space and then `mark`; returns whether it was there.
    fn takes(&mut self, mark: char) -> Result<bool, Damage> {
        self.blank()?;
        let is_there = self.next_is(mark);
        self.at += if is_there { mark.len_utf8() } else { 0 };
        Ok(is_there)
    }

    fn value(&mut self) -> Result<Value, Damage> {
        self.blank()?;
        self.values += 1;
        if self.values > VALUES_MAX || self.depth >= DEPTH_MAX {
            return Err(self.damage("it holds too much"));
        }
        self.depth += 1;
        let value = match self.rest().chars().next() {
            Some('{') => self.object(),
            Some('[') => self.list(),
            Some('"') => self.string().map(Value::Text),
            _ => self.word(),
        };
        self.depth -= 1;
        value
    }

    fn object(&mut self) -> Result<Value, Damage> {
        self.at += 1;
        let mut fields = BTreeMap::new();
        loop {
            if self.takes('}')? {
                return Ok(Value::Object(fields));
            }
            if !self.next_is('"') {
                return Err(self.damage("a name in quotes is missing"));
            }
            let name = self.string()?;
            if !self.takes(':')? {
                return Err(self.damage("a colon is missing"));
            }
            let value = self.value()?;
            if fields.insert(name.clone(), value).is_some() {
                self.twice.push(name);
            }
            // Some parsers accept a trailing comma, so it is no error.
            if !self.takes(',')? && !self.next_is('}') {
                return Err(self.damage("a comma or a closing brace is missing"));
            }
        }
    }

    fn list(&mut self) -> Result<Value, Damage> {
        self.at += 1;
        let mut list = Vec::new();
        loop {
            if self.takes(']')? {
                return Ok(Value::List(list));
            }
            list.push(self.value()?);
            if !self.takes(',')? && !self.next_is(']') {
                return Err(self.damage("a comma or a closing bracket is missing"));
            }
        }
    }

    fn string(&mut self) -> Result<String, Damage> {
        let mut found = String::new();
        let mut letters = self.text[self.at + 1..].char_indices();
        while let Some((at, letter)) = letters.next() {
            match letter {
                '"' => {
                    self.at += at + 2;
                    return Ok(found);
                }
                '\n' => break,
                '\\' => match letters.next() {
                    Some((_, 'u')) => {
                        let digits: String = letters.by_ref().take(4).map(|(_, c)| c).collect();
                        let code = u32::from_str_radix(&digits, 16).ok().and_then(char::from_u32);
                        found.push(code.unwrap_or('\u{fffd}'));
                    }
                    Some((_, escaped @ ('n' | 't' | 'r' | 'b' | 'f'))) => {
                        found.push(if escaped == 'n' { '\n' } else { ' ' });
                    }
                    Some((_, other)) => found.push(other),
                    None => break,
                },
                other => found.push(other),
            }
        }
        Err(self.damage("a text has no end"))
    }

    fn word(&mut self) -> Result<Value, Damage> {
        let rest = self.rest();
        let end = rest.find(|c: char| !c.is_ascii_alphanumeric() && !"+-.".contains(c));
        let word = &rest[..end.unwrap_or(rest.len())];
        let value = match word {
            "true" => Value::Flag(true),
            "false" => Value::Flag(false),
            "null" => Value::Null,
            number if number.parse::<f64>().is_ok() => Value::Number(number.to_owned()),
            _ => return Err(self.damage("a value is missing")),
        };
        self.at += word.len();
        Ok(value)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const TEXT: &str = r#"{
    // NOTE: of the site's own
    "properties": { /* two */ "use_pci_p2pdma": true, "n": -1.5e3, "n": 2, },
    "denylist": { "mounts": ["/a", "/b//c"], "devices": [] },
    "logging": { "dir": "/home/me \"x\"" }
}
"#;

    #[test]
    fn comments_are_passed_and_names_that_stand_twice_are_told() {
        let (value, twice) = parse(TEXT).unwrap();
        assert_eq!(value.flag(&["properties", "use_pci_p2pdma"]), Some(true));
        assert_eq!(value.texts(&["denylist", "mounts"]), ["/a", "/b//c"]);
        assert_eq!(value.at(&["properties", "n"]), Some(&Value::Number("2".into())));
        assert_eq!((value.flag(&["properties"]), twice), (None, vec!["n".to_owned()]));
    }

    #[test]
    fn damage_is_told_by_its_line() {
        let what = |text: &str| parse(text).unwrap_err();
        assert_eq!(what("{\n \"a\": 1\n \"b\": 2}").line, 3);
        assert_eq!(what("{ \"a\": }").what, "a value is missing");
        assert_eq!(what("{ \"a\": \"x\n\" }").what, "a text has no end");
        assert_eq!(what("{} {}").what, "there is text after its end");
        assert_eq!(what("/* {}").what, "a comment has no end");
        assert_eq!(what("").what, "a value is missing");
        // Version 1.17 of cuFile reports "parsing error, invalid json config" and does not start.
        assert!(what("\u{feff}{}").what.contains("byte-order mark"));
        assert_eq!(what(&"[".repeat(99)).what, "it holds too much");
        assert_eq!(what(&format!("[{}]", "1,".repeat(20_000))).what, "it holds too much");
    }

    #[test]
    fn what_is_masked_keeps_what_is_known_and_its_lines() {
        let kept = masked(TEXT, |name| name == "mounts");
        assert!(!kept.contains("site") && !kept.contains("/home") && !kept.contains("two"));
        assert!(kept.contains("\"/b//c\"") && kept.contains("\"dir\": \"masked\""));
        assert_eq!(kept.matches('\n').count(), TEXT.matches('\n').count());
        let (value, _) = parse(&kept).unwrap();
        assert_eq!(value.flag(&["properties", "use_pci_p2pdma"]), Some(true));
        assert!(parse(&masked("{ \"a\": \"b", |_| false)).is_err());
        assert!(!masked("{ /* secret", |_| true).contains("secret"));
        assert!(parse(&masked("0/* secret", |_| true)).is_err(), "damage stays");
    }

    proptest! {
        #[test]
        fn nothing_is_too_strange(
            text in "[\\[\\]{}\",:/*\\\\u0-9a-ftrue \n\u{e9}\u{1f600}]{0,80}",
            cut in 0..TEXT.len(),
        ) {
            let _ = parse(&text);
            // The masked text is valid exactly if the original is.
            prop_assert_eq!(parse(&text).is_ok(), parse(&masked(&text, |_| true)).is_ok());
            let _ = masked(&text, |_| false);
            prop_assert!(parse(&TEXT[..cut]).is_err() || TEXT[cut..].trim().is_empty());
        }
    }
}
