//! Text of a system: names, lines of tables, device numbers, and what makes text safe in reports.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

/// Maximum length of a text in a report.
const TEXT_LEN_MAX: usize = 4 << 10;

/// What follows `name` in the first line of `table` that begins with it.
pub fn entry<'a>(table: &'a str, name: &str) -> Option<&'a str> {
    Some(table.lines().find_map(|line| line.strip_prefix(name))?.trim())
}

/// Whether `text` is a decimal number.
pub fn is_number(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit())
}

/// `name` as text that is safe in reports and paths; `None` if it is not.
pub(super) fn name_of(name: &OsStr) -> Option<String> {
    let text = std::str::from_utf8(name.as_bytes()).ok()?;
    (!text.is_empty() && text.len() <= 255 && !text.contains(moves_cursor)).then(|| text.to_owned())
}

/// `text` made safe for a report: no control characters, and bounded in length.
pub fn clean(text: &str) -> String {
    let mut end = text.len().min(TEXT_LEN_MAX);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    text[..end].replace(moves_cursor, "\u{fffd}")
}

/// A path as text that is safe for a report.
pub fn shown(path: &Path) -> String {
    clean(&String::from_utf8_lossy(path.as_os_str().as_bytes()))
}

/// Whether a character acts on a terminal: controls, line separators, Unicode's `Bidi_Control`.
pub fn moves_cursor(c: char) -> bool {
    c.is_control()
        || matches!(u32::from(c), 0x61c | 0x200e | 0x200f | 0x2028..=0x202e | 0x2066..=0x2069)
}

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

/// A device number as `MAJOR:MINOR`.
pub(super) fn device_text(number: u64) -> String {
    format!("{}:{}", rustix::fs::major(number), rustix::fs::minor(number))
}

/// `MAJOR:MINOR` as a device number.
pub(super) fn device_number(text: &str) -> Option<u64> {
    let (major, minor) = text.split_once(':')?;
    Some(rustix::fs::makedev(major.parse().ok()?, minor.parse().ok()?))
}

/// The value of `name` in a list of `name=value` or bare names; empty for a bare name.
pub(super) fn option<'a>(list: &'a str, name: &str) -> Option<&'a str> {
    list.split(',').find_map(|item| match item.split_once('=') {
        Some((found, value)) => (found == name).then_some(value),
        None => (item == name).then_some(""),
    })
}

pub(super) fn path_of(bytes: Vec<u8>) -> PathBuf {
    PathBuf::from(OsString::from_vec(bytes))
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
