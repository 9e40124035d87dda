//! Any text as one word of a line: names of drives may hold blanks and worse.

/// A text as one word.
pub(crate) fn escape(text: &str) -> String {
    let mut word = String::new();
    for byte in text.bytes() {
        if byte.is_ascii_graphic() && byte != b'%' {
            word.push(char::from(byte));
        } else {
            word += &format!("%{byte:02X}");
        }
    }
    word
}

/// What [`escape`] made a word of; `None`: of nothing.
pub(crate) fn unescape(word: &str) -> Option<String> {
    let mut bytes = Vec::with_capacity(word.len());
    let mut rest = word.as_bytes();
    while let [first, after @ ..] = rest {
        rest = after;
        if *first != b'%' {
            bytes.push(*first);
            continue;
        }
        let [high, low, after @ ..] = rest else { return None };
        let digit = |byte: u8| char::from(byte).to_digit(16).and_then(|d| u8::try_from(d).ok());
        bytes.push(digit(*high)? * 16 + digit(*low)?);
        rest = after;
    }
    String::from_utf8(bytes).ok()
}
