//! The text of the file: a head with the version, then one line for each drive and direction.
//!
//! Pure. Whatever the bytes are, reading them gives at most [`ENTRIES_MAX`] entries whose numbers
//! make sense, and skips what does not read as one.

use crate::queue::Direction;
use crate::remember::words::{escape, unescape};
use crate::tune::{Learned, Rate};

/// First words of the file; the version follows.
const HEAD: &str = "forebay learned, version";
const VERSION: u64 = 1;

/// Entries that are kept; those that were written longest ago leave.
pub(super) const ENTRIES_MAX: usize = 512;
/// Bytes of a drive's identity that are kept. Longer ones are not remembered.
const IDENTITY_MAX: usize = 256;
/// A file that is larger was not written by us: each byte of an identity takes up to three.
pub(super) const FILE_MAX: u64 = (ENTRIES_MAX * (3 * IDENTITY_MAX + 128)) as u64;

/// One drive in one direction.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Entry {
    pub(super) identity: String,
    pub(super) direction: Direction,
    pub(super) learned: Learned,
    /// Seconds since 1970 when it was noted.
    pub(super) written_s: u64,
}

/// What a file's text is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Text {
    /// Of this version, or so damaged that it may be written anew.
    Entries(Vec<Entry>),
    /// Of a later version, which is left alone.
    Later,
}

impl Entry {
    /// An entry, if it can be kept.
    pub(super) fn new(
        identity: &str,
        direction: Direction,
        learned: Learned,
        written_s: u64,
    ) -> Option<Self> {
        let Learned { depth, size, rate: Rate(rate) } = learned;
        let fits = (1..=IDENTITY_MAX).contains(&identity.len())
            && (1..=1024).contains(&depth)
            && size.is_power_of_two()
            && (4096..=1 << 30).contains(&size)
            && (1..=1 << 44).contains(&rate);
        fits.then(|| Self { identity: identity.to_owned(), direction, learned, written_s })
    }

    fn is_about(&self, other: &Self) -> bool {
        self.identity == other.identity && self.direction == other.direction
    }
}

/// Reads the bytes of a file.
pub(super) fn parse(bytes: &[u8]) -> Text {
    let text = String::from_utf8_lossy(bytes);
    let mut lines = text.lines();
    let version = lines.next().and_then(|line| line.strip_prefix(HEAD));
    match version.and_then(|version| version.trim().parse::<u64>().ok()) {
        Some(VERSION) => {}
        Some(later) if later > VERSION => return Text::Later,
        _ => return Text::Entries(Vec::new()),
    }
    let mut entries = Vec::new();
    for entry in lines.filter_map(parse_line) {
        if entries.len() == ENTRIES_MAX {
            break;
        }
        insert(&mut entries, entry);
    }
    Text::Entries(entries)
}

fn parse_line(line: &str) -> Option<Entry> {
    let mut words = line.split(' ');
    let identity = unescape(words.next()?)?;
    let direction = match words.next()? {
        "read" => Direction::Read,
        "write" => Direction::Write,
        _ => return None,
    };
    let mut number = || words.next()?.parse::<u64>().ok();
    let (depth, size, rate, written_s) = (number()?, number()?, number()?, number()?);
    // The last word shows that the line is whole.
    if words.next()? != "." || words.next().is_some() {
        return None;
    }
    let learned = Learned { depth: usize::try_from(depth).ok()?, size, rate: Rate(rate) };
    Entry::new(&identity, direction, learned, written_s)
}

/// The text of a file, the newest entries first.
pub(super) fn format(entries: &[Entry]) -> String {
    let mut newest: Vec<&Entry> = entries.iter().collect();
    newest.sort_by_key(|entry| std::cmp::Reverse(entry.written_s));
    let mut text = format!("{HEAD} {VERSION}\n");
    for entry in newest.into_iter().take(ENTRIES_MAX) {
        let Learned { depth, size, rate: Rate(rate) } = entry.learned;
        let direction = match entry.direction {
            Direction::Read => "read",
            Direction::Write => "write",
        };
        let (identity, written) = (escape(&entry.identity), entry.written_s);
        text += &format!("{identity} {direction} {depth} {size} {rate} {written} .\n");
    }
    text
}

/// Puts an entry among the others, in the place of the one about the same drive. Their times do not
/// matter, for a clock may have been set back.
pub(super) fn insert(entries: &mut Vec<Entry>, entry: Entry) {
    match entries.iter_mut().find(|other| other.is_about(&entry)) {
        Some(other) => *other = entry,
        None => entries.push(entry),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn entry() -> impl Strategy<Value = Entry> {
        let direction = prop_oneof![Just(Direction::Read), Just(Direction::Write)];
        let numbers = (1..=1024_usize, 12..=30_u32, 1..=1_u64 << 44, any::<u64>());
        (any::<String>(), direction, numbers).prop_filter_map("too long", |(name, way, numbers)| {
            let (depth, size, rate, written_s) = numbers;
            let learned = Learned { depth, size: 1 << size, rate: Rate(rate) };
            Entry::new(&name, way, learned, written_s)
        })
    }

    /// Entries about different drives.
    fn entries() -> impl Strategy<Value = Vec<Entry>> {
        proptest::collection::vec(entry(), 0..20).prop_map(|all| {
            let mut entries = Vec::new();
            all.into_iter().for_each(|entry| insert(&mut entries, entry));
            entries
        })
    }

    fn makes_sense(entry: &Entry) -> bool {
        let Entry { identity, direction, learned, written_s } = entry;
        Entry::new(identity, *direction, *learned, *written_s).as_ref() == Some(entry)
    }

    fn sorted(mut entries: Vec<Entry>) -> Vec<Entry> {
        entries.sort_by(|a, b| format!("{a:?}").cmp(&format!("{b:?}")));
        entries
    }

    proptest! {
        #[test]
        fn what_is_written_is_read(entries in entries()) {
            let Text::Entries(read) = parse(format(&entries).as_bytes()) else {
                panic!("it is of this version");
            };
            prop_assert_eq!(sorted(read), sorted(entries));
        }

        #[test]
        fn any_bytes_are_harmless(bytes in proptest::collection::vec(any::<u8>(), 0..400)) {
            let with_head = [format(&[]).as_bytes(), &bytes].concat();
            for bytes in [bytes, with_head] {
                if let Text::Entries(entries) = parse(&bytes) {
                    prop_assert!(entries.iter().all(makes_sense));
                }
            }
        }

        #[test]
        fn damage_stays_small(
            entries in entries(), at in any::<proptest::sample::Index>(), byte in any::<u8>(),
            cut in any::<bool>(),
        ) {
            let mut bytes = format(&entries).into_bytes();
            let at = at.index(bytes.len());
            if cut { bytes.truncate(at) } else { bytes[at] = byte }
            if let Text::Entries(read) = parse(&bytes) {
                prop_assert!(read.iter().all(makes_sense));
                // A cut file gives only what was written; one wrong byte spoils one or two lines.
                let strange = read.iter().filter(|entry| !entries.contains(entry)).count();
                prop_assert!(strange <= if cut { 0 } else { 2 }, "{read:?}");
            }
        }
    }

    #[test]
    fn a_later_version_is_told_from_damage() {
        assert_eq!(parse(b"forebay learned, version 2\nanything"), Text::Later);
        for damaged in ["", "\n", "forebay learned, version", "forebay learned, version 0", "{}"] {
            assert_eq!(parse(damaged.as_bytes()), Text::Entries(Vec::new()), "{damaged:?}");
        }
    }

    #[test]
    fn the_oldest_leave_first() {
        let learned = Learned { depth: 1, size: 4096, rate: Rate(1) };
        let all: Vec<Entry> = (0..2000)
            .map(|n| Entry::new(&format!("drive {n}"), Direction::Read, learned, n).expect("fits"))
            .collect();
        let Text::Entries(kept) = parse(format(&all).as_bytes()) else { panic!("this version") };
        assert_eq!(kept.len(), ENTRIES_MAX);
        assert!(kept.iter().all(|entry| entry.written_s >= 2000 - ENTRIES_MAX as u64));
        // Nothing that is written is too large to be read.
        let long = "\u{1}".repeat(IDENTITY_MAX);
        let large = Entry::new(&long, Direction::Write, learned, u64::MAX).expect("fits");
        let line = format(&[large]).len() as u64 + 40;
        assert!(line * ENTRIES_MAX as u64 <= FILE_MAX + 40 * ENTRIES_MAX as u64);
    }

    #[test]
    fn what_makes_no_sense_is_not_kept() {
        let good = Learned { depth: 4, size: 1 << 20, rate: Rate(1_000_000) };
        let new = |identity: &str, learned| Entry::new(identity, Direction::Read, learned, 7);
        assert!(new("a drive", good).is_some());
        assert!(new("", good).is_none() && new(&"x".repeat(257), good).is_none());
        for bad in [
            Learned { depth: 0, ..good },
            Learned { depth: 1025, ..good },
            Learned { size: 777_777, ..good },
            Learned { size: 512, ..good },
            Learned { size: 1 << 40, ..good },
            Learned { rate: Rate(0), ..good },
            Learned { rate: Rate(u64::MAX), ..good },
        ] {
            assert!(new("a drive", bad).is_none(), "{bad:?}");
        }
    }
}
