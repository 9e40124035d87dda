//! Escapes external text (file names, labels, models, errors of other programs) before it is shown.

use serde::Serialize;
use unicode_width::{UnicodeWidthChar as _, UnicodeWidthStr as _};

/// `text` on one line, with control characters, line separators and marks of the writing direction
/// as escapes: a file name must not clear the screen, forge a line or reverse the text behind it.
#[must_use]
pub fn plain(text: &str) -> String {
    let mut shown = String::with_capacity(text.len());
    for letter in text.chars() {
        if acts(letter) {
            shown.extend(letter.escape_default());
        } else {
            shown.push(letter);
        }
    }
    shown
}

/// The columns that a text takes on a terminal: some letters take two, some none.
#[must_use]
pub fn columns(text: &str) -> usize {
    text.width()
}

/// The beginning of a text that fits `most` columns, with a mark if there is more.
#[must_use]
pub fn cut(text: &str, most: usize) -> String {
    if columns(text) <= most {
        return text.to_owned();
    }
    let (mut shown, mut used) = (String::new(), 0);
    for letter in text.chars() {
        used += letter.width().unwrap_or(0);
        if used > most.saturating_sub(1) {
            break;
        }
        shown.push(letter);
    }
    shown + "…"
}

/// A text with blanks behind it, up to `width` columns.
#[must_use]
pub fn padded(text: &str, width: usize) -> String {
    let blanks = width.saturating_sub(columns(text));
    format!("{text}{}", " ".repeat(blanks))
}

/// `value` as one line of JSON in which no letter acts on a terminal.
///
/// # Errors
/// Errors of the serializer.
pub fn json<T: Serialize + ?Sized>(value: &T) -> serde_json::Result<String> {
    serde_json::to_string(value).map(|text| json_escaped(&text))
}

/// Like `json` over several lines, with a final line feed.
///
/// # Errors
/// Errors of the serializer.
pub fn json_lines<T: Serialize + ?Sized>(value: &T) -> serde_json::Result<String> {
    serde_json::to_string_pretty(value).map(|text| json_escaped(&text) + "\n")
}

/// JSON with special letters as `\u` escapes; they can only occur within its strings.
pub fn json_escaped(text: &str) -> String {
    let mut shown = String::with_capacity(text.len());
    for letter in text.chars() {
        if letter != '\n' && acts(letter) {
            shown.push_str(&format!("\\u{:04x}", u32::from(letter)));
        } else {
            shown.push(letter);
        }
    }
    shown
}

/// The bytes of a text without the byte order mark that some editors write first.
pub fn without_mark(bytes: &[u8]) -> &[u8] {
    bytes.strip_prefix(b"\xef\xbb\xbf").unwrap_or(bytes)
}

/// Whether a letter moves the cursor, ends a line or changes the direction of the writing: the
/// controls (C0, DEL, C1), the separators of lines and paragraphs, and Unicode's `Bidi_Control`.
fn acts(letter: char) -> bool {
    letter.is_control()
        || matches!(
            letter,
            '\u{61c}'
                | '\u{200e}'
                | '\u{200f}'
                | '\u{2028}'..='\u{202e}'
                | '\u{2066}'..='\u{2069}'
        )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_acts_is_escaped() {
        assert_eq!(plain("modèle – 模型.bin"), "modèle – 模型.bin");
        assert_eq!(plain("a\nb\t\u{1b}[2J\u{7f}"), r"a\nb\t\u{1b}[2J\u{7f}");
        assert_eq!(plain("x\u{202e}nib"), r"x\u{202e}nib");
        assert_eq!(plain("\u{9b}\u{61c}\u{2028}\u{2069}"), r"\u{9b}\u{61c}\u{2028}\u{2069}");
    }

    #[test]
    fn json_says_the_same_without_letters_that_act() {
        let text = "\u{7f}\u{9b}2J\u{202e}\u{2066}\u{61c}\u{200f}\u{2029}\u{1b}\n é";
        for json in [json(text).unwrap(), json_lines(&[text]).unwrap()] {
            let acting = json.chars().filter(|letter| acts(*letter) && *letter != '\n');
            assert_eq!(acting.count(), 0, "{json}");
            let value: serde_json::Value = serde_json::from_str(&json).unwrap();
            assert_eq!(value.as_str().or_else(|| value[0].as_str()), Some(text));
        }
    }

    #[test]
    fn longer_text_is_cut() {
        assert_eq!((cut("abc", 3), cut("äbcd", 3)), ("abc".into(), "äb…".into()));
    }
}
