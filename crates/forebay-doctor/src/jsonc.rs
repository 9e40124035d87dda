//! JSON with comments, the format of cuFile's settings. The file is not trusted.

use std::collections::BTreeSet;

use jsonc_parser::ast;
use jsonc_parser::errors::ParseError;
use jsonc_parser::tokens::Token;
use jsonc_parser::{CollectOptions, ParseOptions, Scanner, ScannerOptions, parse_to_ast};
use serde_json::Value;

/// A syntax error, and its line.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Damage {
    pub(super) line: usize,
    pub(super) what: String,
}

impl Damage {
    fn new(line: usize, what: &str) -> Self {
        Self { line, what: what.to_owned() }
    }
}

impl From<ParseError> for Damage {
    fn from(error: ParseError) -> Self {
        Self { line: error.line_display(), what: error.kind().to_string() }
    }
}

/// Some parsers accept a trailing comma, so it is no error.
const STRICT: ParseOptions = ParseOptions {
    allow_comments: true,
    allow_trailing_commas: true,
    allow_loose_object_property_names: false,
    allow_missing_commas: false,
    allow_single_quoted_strings: false,
    allow_hexadecimal_numbers: false,
    allow_unary_plus_numbers: false,
    allow_bare_decimal_point_numbers: false,
    allow_non_finite_numbers: false,
    allow_extended_string_escapes: false,
};

/// Parses `text`; also returns the names that occur twice in an object.
pub(super) fn parse(text: &str) -> Result<(Value, Vec<String>), Damage> {
    if text.starts_with('\u{feff}') {
        return Err(Damage::new(1, "it begins with a byte-order mark, which cuFile refuses"));
    }
    let parsed = parse_to_ast(text, &CollectOptions::default(), &STRICT)?;
    let value = parsed.value.ok_or_else(|| Damage::new(1, "there is no value in it"))?;
    let mut twice = Vec::new();
    find_twice(&value, &mut twice);
    Ok((value.into(), twice))
}

fn find_twice(value: &ast::Value<'_>, twice: &mut Vec<String>) {
    match value {
        ast::Value::Object(object) => {
            let mut names = BTreeSet::new();
            for field in &object.properties {
                let name = field.name.as_str();
                if !names.insert(name) {
                    twice.push(name.to_owned());
                }
                find_twice(&field.value, twice);
            }
        }
        ast::Value::Array(list) => list.elements.iter().for_each(|one| find_twice(one, twice)),
        _ => {}
    }
}

/// `text` without comments, and with all text values masked except those whose name `keeps`
/// accepts; for records. Syntax errors stay, in the same line.
pub(super) fn masked(text: &str, keeps: impl Fn(&str) -> bool) -> String {
    let options = ScannerOptions {
        allow_single_quoted_strings: false,
        allow_hexadecimal_numbers: false,
        allow_unary_plus_numbers: false,
        allow_bare_decimal_point_numbers: false,
        allow_non_finite_numbers: false,
        allow_extended_string_escapes: false,
    };
    let mut scanner = Scanner::new(text, &options);
    let (mut out, mut name, mut end) = (String::new(), String::new(), 0);
    loop {
        let token = scanner.scan();
        out += &text[end..scanner.token_start()]; // white space
        end = scanner.token_end();
        let own = &text[scanner.token_start()..end];
        match token {
            Ok(Some(Token::CommentLine(_) | Token::CommentBlock(_))) => {
                out.push(' '); // separates the words around the comment
                out.extend(own.matches('\n'));
            }
            Ok(Some(Token::String(found))) if text[end..].trim_start().starts_with(':') => {
                name = found.into_owned();
                out += own;
            }
            Ok(Some(Token::String(_))) if !keeps(&name) => out += "\"masked\"",
            Ok(Some(_)) => out += own,
            Ok(None) => return out,
            Err(_) => {
                match text[scanner.token_start()..].chars().next() {
                    Some('/') => out += "/*",
                    Some(strange) if !strange.is_ascii() => out.push(strange),
                    _ => out.push('"'), // a text without an end
                }
                return out;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use serde_json::json;

    const TEXT: &str = r#"{
    // NOTE: of the site's own
    "properties": { /* two */ "use_pci_p2pdma": true, "n": -1.5e3, "n": 2, },
    "denylist": { "mounts": ["/a", "/b//c"], "devices": [] },
    "logging": { "dir": "/home/me \"x\"" }
}
"#;

    #[test]
    fn comments_are_skipped_and_repeated_names_returned() {
        let (value, twice) = parse(TEXT).unwrap();
        let properties = json!({ "use_pci_p2pdma": true, "n": 2 });
        assert_eq!(value["properties"], properties);
        assert_eq!(value["denylist"], json!({ "mounts": ["/a", "/b//c"], "devices": [] }));
        assert_eq!(twice, ["n"]);
    }

    #[test]
    fn an_error_has_its_line() {
        let what = |text: &str| parse(text).unwrap_err();
        assert_eq!(what("{\n \"a\": 1\n \"b\": 2}").line, 2);
        assert_eq!(what("{ \"a\": }").what, "Unexpected close brace");
        assert_eq!(what("{ \"a\": \"x }").what, "Unterminated string literal");
        assert_eq!(what("{} {}").what, "Text cannot contain more than one JSON value");
        assert_eq!(what("/* {}").what, "Unterminated comment block");
        assert_eq!(what("").what, "there is no value in it");
        // Version 1.17 of cuFile reports "parsing error, invalid json config" and does not start.
        assert!(what("\u{feff}{}").what.contains("byte-order mark"));
        assert_eq!(what(&"[".repeat(60_000)).what, "Maximum nesting depth exceeded");
    }

    #[test]
    fn masked_text_keeps_known_texts_and_its_lines() {
        let kept = masked(TEXT, |name| name == "mounts");
        assert!(!kept.contains("site") && !kept.contains("/home") && !kept.contains("two"));
        assert!(kept.contains("\"/b//c\"") && kept.contains("\"dir\": \"masked\""));
        assert_eq!(kept.matches('\n').count(), TEXT.matches('\n').count());
        let (value, _) = parse(&kept).unwrap();
        assert_eq!(value["properties"]["use_pci_p2pdma"], true);
        assert!(parse(&masked("{ \"a\": \"b", |_| false)).is_err());
        assert!(!masked("{ /* secret", |_| true).contains("secret"));
        assert!(parse(&masked("0/* secret", |_| true)).is_err(), "damage stays");
    }

    proptest! {
        #[test]
        fn any_text_is_parsed_or_refused(
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
