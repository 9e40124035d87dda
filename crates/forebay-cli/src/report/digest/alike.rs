//! Merges sentences of samples that differ only in their numbers: each is reported once, with its
//! count and points. Pure.

use std::collections::HashMap;

use super::gather::KEPT_MAX;
use super::{Axis, Digest, Line};

/// Most points that are named.
const NAMED_MAX: usize = 3;

/// Sentences reported by samples.
#[derive(Debug, Default)]
pub(super) struct Alike {
    /// The index of each distinct sentence, by its text without numbers.
    places: HashMap<String, usize>,
    told: Vec<Told>,
}

#[derive(Debug)]
struct Told {
    first: String,
    count: usize,
    /// The line numbers, each once: they arrive in order.
    lines: Vec<usize>,
}

impl Alike {
    /// Adds a sentence of the sample at this line.
    pub(super) fn add(&mut self, text: &str, line: usize) {
        let kind = kind(text);
        let next = self.told.len();
        let place = match self.places.get(&kind) {
            Some(place) => *place,
            None if next >= KEPT_MAX => return,
            None => {
                self.told.push(Told { first: text.to_owned(), count: 0, lines: Vec::new() });
                self.places.insert(kind, next);
                next
            }
        };
        let told = &mut self.told[place];
        told.count += 1;
        if told.lines.last() != Some(&line) {
            told.lines.push(line);
        }
    }

    /// All sentences, each with its count and points.
    pub(super) fn sentences(&self, digest: &Digest) -> Vec<String> {
        let mut axes = digest.varying();
        axes.sort_by_key(|axis| *axis == Axis::Path);
        self.told.iter().map(|told| told.sentence(digest, &axes)).collect()
    }
}

impl Told {
    fn sentence(&self, digest: &Digest, axes: &[Axis]) -> String {
        let Self { first, count, lines } = self;
        if *count < 2 {
            return first.clone();
        }
        let (all, points) = (digest.lines.len(), lines.len());
        let mut text =
            format!("{first} (the first of {count} such samples, in {points} of {all} points");
        if points < all {
            let named = lines.iter().take(NAMED_MAX).filter_map(|line| digest.lines.get(*line));
            let names: Vec<String> = named.map(|line| name(line, axes)).collect();
            let more = points.saturating_sub(names.len());
            let more = if more > 0 { format!("; and {more} more") } else { String::new() };
            text = format!("{text}: {}{more}", names.join("; "));
        }
        text + ")"
    }
}

fn name(line: &Line, axes: &[Axis]) -> String {
    let marks: Vec<&str> = axes.iter().filter_map(|axis| line.mark(*axis)).collect();
    marks.join(", ")
}

/// The common text of sentences that differ in their numbers; a name in backticks is kept.
fn kind(text: &str) -> String {
    let parts = text.split('`').enumerate().map(|(index, part)| {
        if index % 2 == 1 {
            return part.to_owned();
        }
        let mut kind = String::with_capacity(part.len());
        for letter in part.chars() {
            match letter {
                '0'..='9' if kind.ends_with('0') => {}
                '0'..='9' => kind.push('0'),
                '.' if kind.ends_with('0') => {}
                other => kind.push(other),
            }
        }
        kind
    });
    parts.collect::<Vec<_>>().join("`")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::digest::gather::tests::digest_of;
    use crate::report::made::{self, Sweep};

    #[test]
    fn numbers_make_no_kind_and_names_do() {
        let of =
            |name: &str, percent: &str, text: &str| format!("`{name}` is at {percent} %{text}");
        assert_eq!(kind(&of("gpu 0", "9", "")), kind(&of("gpu 0", "63.25", "")));
        assert_ne!(kind(&of("gpu 0", "9", "")), kind(&of("gpu 1", "9", "")));
        assert_ne!(kind(&of("gpu 0", "9", "")), kind(&of("gpu 0", "9", ": it is hot")));
    }

    #[test]
    fn what_many_samples_tell_stands_there_once() {
        let sweep = Sweep::default();
        let mut records = vec![made::run(&sweep)];
        records.extend(made::samples(&sweep));
        let all = records.len() - 1;
        for (number, record) in records.iter_mut().skip(1).enumerate() {
            let mut told = vec![format!("`gpu cuda:0` told in {number} % of its readings: hot")];
            if number % 15 < 4 {
                told.push(format!("`psys` was read {number} times"));
            }
            if number == 7 {
                told.push("`drive` told no power".into());
            }
            record["measured"]["power"]["warnings"] = told.into();
        }
        let warnings = digest_of(&[("a", &made::text(&records))]).warnings;
        assert_eq!(all, 45);
        let narrow = warnings.join("\n").replace(" (", "\n(").replace(": 64", ":\n64");
        insta::assert_snapshot!(narrow, @"
        `gpu cuda:0` told in 0 % of its readings: hot
        (the first of 45 such samples, in 15 of 15 points)
        `psys` was read 0 times
        (the first of 12 such samples, in 4 of 15 points:
        64 KiB, 1; 64 KiB, 8; 64 KiB, 32; and 1 more)
        `drive` told no power
        ");
    }

    proptest::proptest! {
        #[test]
        fn no_sentence_ends_the_report(texts: Vec<(String, usize)>) {
            let mut alike = Alike::default();
            for (text, line) in &texts {
                alike.add(text, *line);
            }
            let sentences = alike.sentences(&Digest::default());
            proptest::prop_assert!(sentences.len() <= texts.len());
        }
    }
}
