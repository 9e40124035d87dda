//! The name that was probably meant: pure.

/// Most characters of a name that are compared, in quadratic time.
const LETTERS_MAX: usize = 100;

/// The one of `names` that is nearest to `name`, if any is near.
pub(crate) fn near<'a>(name: &str, names: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let plain = |text: &str| -> Vec<char> {
        let letters = text.chars().filter(|c| c.is_alphanumeric());
        letters.flat_map(char::to_lowercase).take(LETTERS_MAX).collect()
    };
    let wanted = plain(name);
    let of = |other: &str| {
        let other = plain(other);
        let contains = |a: &[char], b: &[char]| b.len() > 1 && a.windows(b.len()).any(|w| w == b);
        // A heading may also have its unit, or words around the name.
        if contains(&other, &wanted) || contains(&wanted, &other) {
            return (1, other.len().abs_diff(wanted.len()));
        }
        (steps(&wanted, &other), other.len())
    };
    let most = (wanted.len() / 3).max(1);
    let best = names.into_iter().map(|other| (of(other), other)).min_by_key(|(steps, _)| *steps);
    best.filter(|((steps, _), _)| *steps <= most && !wanted.is_empty()).map(|(_, name)| name)
}

/// The edit distance: characters to insert, delete or change.
fn steps(a: &[char], b: &[char]) -> usize {
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, from) in a.iter().enumerate() {
        let mut corner = row[0];
        row[0] = i + 1;
        for (j, to) in b.iter().enumerate() {
            let change = corner + usize::from(from != to);
            corner = row[j + 1];
            row[j + 1] = change.min(row[j] + 1).min(corner + 1);
        }
    }
    row[b.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_near_is_found_and_nothing_else() {
        let names = ["Block Size", "BW (MiB/s)", "p99 (us)", "Threads"];
        let found = |name| near(name, names);
        assert_eq!(found("Blok Size"), Some("Block Size"));
        assert_eq!(found("bw"), Some("BW (MiB/s)"));
        assert_eq!(found("P99"), Some("p99 (us)"));
        assert_eq!(found("threds"), Some("Threads"));
        assert_eq!([found("latency"), found(""), near("x", [])], [None, None, None]);
        assert_eq!(steps(&['a', 'b'], &['b']), 1);
    }
}
