//! Separates Rust code from its comments and text, so that a path in a string or a word in a
//! comment does not mislead the naming rules. Lines and columns are preserved.

/// `text` with comments, strings and character literals blanked out; line breaks stay.
pub(crate) fn only(text: &str) -> String {
    let mut lexer = Lexer { bytes: text.as_bytes(), at: 0, out: Vec::with_capacity(text.len()) };
    while lexer.at < lexer.bytes.len() {
        lexer.step();
    }
    // Whole tokens were blanked byte by byte, so the rest is still UTF-8.
    String::from_utf8_lossy(&lexer.out).into_owned()
}

/// The identifiers and keywords of `code` (see [`only`]), each with its line from 1.
pub(crate) fn words(code: &str) -> impl Iterator<Item = (usize, &str)> {
    code.lines().enumerate().flat_map(|(index, line)| {
        line.split(|c: char| !c.is_alphanumeric() && c != '_')
            .filter(|word| !word.is_empty())
            .map(move |word| (index + 1, word))
    })
}

struct Lexer<'a> {
    bytes: &'a [u8],
    at: usize,
    out: Vec<u8>,
}

impl Lexer<'_> {
    fn peek(&self, ahead: usize) -> u8 {
        self.bytes.get(self.at + ahead).copied().unwrap_or(0)
    }

    fn keep(&mut self) {
        self.out.push(self.bytes[self.at]);
        self.at += 1;
    }

    fn blank(&mut self, count: usize) {
        for _ in 0..count.min(self.bytes.len() - self.at) {
            self.out.push(if self.bytes[self.at] == b'\n' { b'\n' } else { b' ' });
            self.at += 1;
        }
    }

    fn step(&mut self) {
        match self.peek(0) {
            b'/' if self.peek(1) == b'/' => {
                let rest = &self.bytes[self.at..];
                self.blank(rest.iter().position(|&b| b == b'\n').unwrap_or(rest.len()));
            }
            b'/' if self.peek(1) == b'*' => self.block_comment(),
            b'"' => self.string(),
            b'\'' => self.quote(),
            b'r' if !self.inside_word() => self.maybe_raw(),
            _ => self.keep(),
        }
    }

    /// Whether the byte before is part of a word, so that an `r` here starts no raw string.
    /// The `b` and `c` of `br"…"` and `cr"…"` do not count.
    fn inside_word(&self) -> bool {
        let is_word = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_';
        let before = |back: usize| self.at.checked_sub(back).map_or(0, |at| self.bytes[at]);
        is_word(before(1)) && (is_word(before(2)) || !matches!(before(1), b'b' | b'c'))
    }

    fn block_comment(&mut self) {
        let mut depth = 0_usize;
        loop {
            match (self.peek(0), self.peek(1)) {
                (b'/', b'*') => {
                    depth += 1;
                    self.blank(2);
                }
                (b'*', b'/') => {
                    depth -= 1;
                    self.blank(2);
                }
                _ => self.blank(1),
            }
            if depth == 0 || self.at >= self.bytes.len() {
                return;
            }
        }
    }

    fn string(&mut self) {
        self.blank(1);
        while self.at < self.bytes.len() {
            match self.peek(0) {
                b'\\' => self.blank(2),
                b'"' => return self.blank(1),
                _ => self.blank(1),
            }
        }
    }

    /// A character literal or a lifetime: only the former ends in a quote.
    fn quote(&mut self) {
        if self.peek(1) == b'\\' {
            self.blank(3);
            while self.at < self.bytes.len() && self.peek(0) != b'\'' {
                self.blank(1);
            }
            return self.blank(1);
        }
        let rest = &self.bytes[self.at + 1..];
        // The first character takes one to four bytes.
        let len = rest.iter().skip(1).position(|&b| b & 0xC0 != 0x80).map_or(1, |more| more + 1);
        if rest.get(len) == Some(&b'\'') { self.blank(len + 2) } else { self.keep() }
    }

    fn maybe_raw(&mut self) {
        let hashes = self.bytes[self.at + 1..].iter().take_while(|&&b| b == b'#').count();
        if self.peek(1 + hashes) != b'"' {
            return self.keep();
        }
        self.blank(2 + hashes);
        let end = [&b"\""[..], &vec![b'#'; hashes]].concat();
        while self.at < self.bytes.len() && !self.bytes[self.at..].starts_with(&end) {
            self.blank(1);
        }
        self.blank(end.len());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all_words(text: &str) -> Vec<String> {
        words(&only(text)).map(|(_, word)| word.to_owned()).collect()
    }

    #[test]
    fn comments_and_text_are_blanked() {
        assert_eq!(all_words("a // b\nc /* d /* e */ f */ g"), ["a", "c", "g"]);
        assert_eq!(all_words(r#"x("crates/src", 'q', '\'', b"y")"#), ["x", "b"]);
        assert_eq!(all_words("r#\"in \" here\"# out r\"x\" br\"y\" var\"z\""), ["out", "b", "var"]);
        assert_eq!(all_words("'µ' m '\\u{1F600}' n"), ["m", "n"]);
    }

    #[test]
    fn lifetimes_and_raw_names_stay() {
        assert_eq!(all_words("fn f<'a>(x: &'a str)"), ["fn", "f", "a", "x", "a", "str"]);
        assert_eq!(all_words("r#type"), ["r", "type"]);
    }

    #[test]
    fn lines_stay_where_they_were() {
        let text = "/* one\ntwo */ a\n\"x\ny\" b";
        assert_eq!(words(&only(text)).collect::<Vec<_>>(), [(2, "a"), (4, "b")]);
    }

    #[test]
    fn unfinished_text_ends_with_the_file() {
        for text in ["\"abc", "/* abc", "r#\"abc", "'\\", "'", "\"\\"] {
            assert_eq!(only(text).len(), text.len(), "{text}");
        }
    }
}
