//! Text from outside, made fit for one line of a terminal.

/// `text` with every control character as an escape: a file may have any name, and its name must
/// not clear the screen, break a line or turn the writing around.
#[must_use]
pub fn plain(text: &str) -> String {
    let mut shown = String::with_capacity(text.len());
    for letter in text.chars() {
        if letter.is_control() || is_turning(letter) {
            shown.extend(letter.escape_default());
        } else {
            shown.push(letter);
        }
    }
    shown
}

/// The first letters of a text, and that there are more.
#[must_use]
pub fn cut(text: &str, most: usize) -> String {
    if text.chars().nth(most).is_none() {
        return text.to_owned();
    }
    text.chars().take(most.saturating_sub(1)).chain(['…']).collect()
}

/// Whether a letter changes the direction of the writing, unseen.
const fn is_turning(letter: char) -> bool {
    matches!(letter, '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_acts_is_escaped() {
        assert_eq!(plain("modèle – 模型.bin"), "modèle – 模型.bin");
        assert_eq!(plain("a\nb\t\u{1b}[2J\u{7f}"), r"a\nb\t\u{1b}[2J\u{7f}");
        assert_eq!(plain("x\u{202e}nib"), r"x\u{202e}nib");
    }

    #[test]
    fn what_is_longer_is_cut() {
        assert_eq!((cut("abc", 3), cut("äbcd", 3)), ("abc".into(), "äb…".into()));
    }
}
