//! The text of the file: a head with the version, then one line for each answer.
//!
//! Pure. Whatever the bytes are, reading them gives at most [`ENTRIES_MAX`] entries, each as it was
//! written: a line whose sum is wrong is none.

use super::identity::{Digest, Subject};
use crate::remember::{escape, unescape};

/// First words of the file; the version follows.
const HEAD: &str = "forebay answers, version";
const VERSION: u64 = 1;

/// Answers that are kept; those that were written longest ago leave.
pub(super) const ENTRIES_MAX: usize = 64;
/// Bytes of one answer. A longer one is not remembered.
const LINES_MAX: usize = 4 << 10;
/// A file that is larger was not written by us: each byte of an answer takes up to three.
pub(super) const FILE_MAX: u64 = (ENTRIES_MAX * (3 * LINES_MAX + 256)) as u64;

/// One answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Entry {
    pub(super) subject: Subject,
    /// Which file the library was, where one was loaded.
    pub(super) file: Option<Digest>,
    /// Seconds since 1970 when it was given.
    pub(super) written_s: u64,
    /// The same when a process began to open the driver for its sake, and has not come to an end.
    pub(super) opening_s: Option<u64>,
    /// What was said.
    pub(super) lines: String,
}

impl Entry {
    /// Whether it is short enough to be kept.
    pub(super) fn fits(&self) -> bool {
        self.lines.len() <= LINES_MAX
    }

    fn sum(&self) -> Digest {
        let Subject { boot, key } = self.subject;
        Digest::of(&(boot, key, self.file, self.written_s, self.opening_s, &self.lines))
    }
}

/// The entries of a file; `None`: it is of a later version, and left alone.
pub(super) fn parse(bytes: &[u8]) -> Option<Vec<Entry>> {
    let text = String::from_utf8_lossy(bytes);
    let mut lines = text.lines();
    let version = lines.next().and_then(|line| line.strip_prefix(HEAD));
    match version.and_then(|version| version.trim().parse::<u64>().ok()) {
        Some(VERSION) => Some(lines.filter_map(parse_line).take(ENTRIES_MAX).collect()),
        Some(later) if later > VERSION => None,
        _ => Some(Vec::new()),
    }
}

fn parse_line(line: &str) -> Option<Entry> {
    let mut words = line.split(' ');
    let mut digest = || Digest::parse(words.next()?);
    let (sum, boot, key) = (digest()?, digest()?, digest()?);
    let file = match words.next()? {
        "-" => None,
        file => Some(Digest::parse(file)?),
    };
    let written_s = words.next()?.parse().ok()?;
    let opening_s = match words.next()? {
        "-" => None,
        time => Some(time.parse().ok()?),
    };
    let lines = unescape(words.next()?)?;
    let entry = Entry { subject: Subject { boot, key }, file, written_s, opening_s, lines };
    (words.next().is_none() && entry.fits() && entry.sum() == sum).then_some(entry)
}

/// The text of a file, the newest entries first.
pub(super) fn format(entries: &[Entry]) -> String {
    let mut newest: Vec<&Entry> = entries.iter().collect();
    newest.sort_by_key(|entry| std::cmp::Reverse(entry.written_s));
    let mut text = format!("{HEAD} {VERSION}\n");
    for entry in newest.into_iter().take(ENTRIES_MAX) {
        let Entry { subject: Subject { boot, key }, file, written_s, opening_s, lines } = entry;
        let file = file.map_or_else(|| "-".to_owned(), |file| file.to_string());
        let opening = opening_s.map_or_else(|| "-".to_owned(), |time| time.to_string());
        let (sum, lines) = (entry.sum(), escape(lines));
        text += &format!("{sum} {boot} {key} {file} {written_s} {opening} {lines}\n");
    }
    text
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn entry() -> impl Strategy<Value = Entry> {
        let numbers = (any::<[u64; 3]>(), any::<[Option<u64>; 2]>());
        ("(?s).{0,60}", numbers).prop_map(|(lines, numbers)| {
            let ([boot, key, written_s], [file, opening_s]) = numbers;
            let subject = Subject { boot: Digest::of(&boot), key: Digest::of(&key) };
            let file = file.map(|file| Digest::of(&file));
            Entry { subject, file, written_s, opening_s, lines }
        })
    }

    fn sorted(mut entries: Vec<Entry>) -> Vec<Entry> {
        entries.sort_by_key(|entry| format!("{entry:?}"));
        entries
    }

    proptest! {
        #[test]
        fn what_is_written_is_read(entries in proptest::collection::vec(entry(), 0..9)) {
            let text = format(&entries);
            prop_assert_eq!(parse(text.as_bytes()).map(sorted), Some(sorted(entries)));
        }

        #[test]
        fn no_bytes_are_an_answer(bytes in proptest::collection::vec(any::<u8>(), 0..400)) {
            let with_head = [format(&[]).as_bytes(), &bytes].concat();
            for bytes in [bytes, with_head] {
                prop_assert!(parse(&bytes).is_none_or(|entries| entries.is_empty()));
            }
        }

        #[test]
        fn what_is_damaged_is_gone(
            entries in proptest::collection::vec(entry(), 1..5),
            at in any::<proptest::sample::Index>(), byte in any::<u8>(), cut in any::<bool>(),
        ) {
            let mut bytes = format(&entries).into_bytes();
            let at = at.index(bytes.len());
            if cut { bytes.truncate(at) } else { bytes[at] = byte }
            let read = parse(&bytes).unwrap_or_default();
            prop_assert!(read.iter().all(|entry| entries.contains(entry)), "{read:?}");
        }
    }

    fn at(written_s: u64, lines: &str) -> Entry {
        let subject = Subject { boot: Digest::of(&1), key: Digest::of(&written_s) };
        Entry { subject, file: None, written_s, opening_s: None, lines: lines.into() }
    }

    #[test]
    fn a_later_version_is_told_from_damage() {
        assert_eq!(parse(b"forebay answers, version 2\nanything"), None);
        for damaged in ["", "\n", "forebay answers, version", "forebay learned, version 1", "{}"] {
            assert_eq!(parse(damaged.as_bytes()), Some(Vec::new()), "{damaged:?}");
        }
    }

    #[test]
    fn the_oldest_leave_first_and_nothing_is_too_long_to_be_read() {
        let all: Vec<Entry> = (0..200).map(|n| at(n, "opened\n")).collect();
        let kept = parse(format(&all).as_bytes()).expect("this version");
        assert_eq!(kept.len(), ENTRIES_MAX);
        assert!(kept.iter().all(|entry| entry.written_s >= 200 - ENTRIES_MAX as u64));
        let long = "\u{1}".repeat(LINES_MAX);
        let all: Vec<Entry> = (0..64).map(|n| at(u64::MAX - n, &long)).collect();
        let text = format(&all);
        assert!(text.len() as u64 <= FILE_MAX, "{}", text.len());
        assert_eq!(parse(text.as_bytes()).expect("this version").len(), ENTRIES_MAX);
        assert!(!at(1, &(long + "x")).fits());
    }
}
