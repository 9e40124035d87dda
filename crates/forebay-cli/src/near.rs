//! The name that was probably meant. Pure.

use strsim::damerau_levenshtein;

/// Most letters of a name that are compared, in quadratic time.
const LETTERS_MAX: usize = 100;

/// The one of `names` that is nearest to `name`, if any is near.
pub(crate) fn near<'a>(name: &str, names: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let plain = |text: &str| -> String {
        let letters = text.chars().filter(|letter| letter.is_alphanumeric());
        letters.flat_map(char::to_lowercase).take(LETTERS_MAX).collect()
    };
    let wanted = plain(name);
    let of = |other: &str| {
        let other = plain(other);
        let contains = |a: &str, b: &str| b.len() > 1 && a.contains(b);
        // A heading may also have its unit, or words around the name.
        match contains(&other, &wanted) || contains(&wanted, &other) {
            true => (1, other.len().abs_diff(wanted.len())),
            false => (damerau_levenshtein(&wanted, &other), other.len()),
        }
    };
    let most = (wanted.chars().count() / 3).max(1);
    let best = names.into_iter().map(|other| (of(other), other)).min_by_key(|(steps, _)| *steps);
    best.filter(|((steps, _), _)| *steps <= most && !wanted.is_empty()).map(|(_, name)| name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_near_name_is_found() {
        let names = ["Block Size", "BW (MiB/s)", "p99 (us)", "Threads"];
        let found = |name| near(name, names);
        assert_eq!(found("Blok Size"), Some("Block Size"));
        assert_eq!(found("bw"), Some("BW (MiB/s)"));
        assert_eq!(found("P99"), Some("p99 (us)"));
        assert_eq!(found("threds"), Some("Threads"));
        assert_eq!([found("latency"), found(""), near("x", [])], [None, None, None]);
    }
}
