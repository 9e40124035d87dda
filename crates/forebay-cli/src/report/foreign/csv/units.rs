//! Numbers of a table with their units, which are in the map, in the heading, or in the cell.

use crate::report::foreign::found::number;

/// The kind of a column.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    Text,
    /// A number without a unit.
    Count,
    /// Bytes; without a unit they are bytes.
    Size,
    /// Bytes per second.
    Rate,
    /// Time, in nanoseconds.
    Time,
}

/// Prefixes of units: decimal ones, and powers of two.
const PREFIXES: [(&str, f64); 9] = [
    ("", 1.0),
    ("k", 1e3),
    ("Ki", 1024.0),
    ("M", 1e6),
    ("Mi", 1_048_576.0),
    ("G", 1e9),
    ("Gi", 1_073_741_824.0),
    ("T", 1e12),
    ("Ti", 1_099_511_627_776.0),
];

/// The factor of this unit; `None` for a unit of another kind.
pub(super) fn scale(kind: Kind, unit: &str) -> Option<f64> {
    match kind {
        Kind::Text | Kind::Count => None,
        Kind::Size => size(unit),
        Kind::Rate => rate(unit),
        Kind::Time => time(unit),
    }
}

fn prefix(text: &str) -> Option<f64> {
    PREFIXES.iter().find(|(name, _)| *name == text).map(|(_, scale)| *scale)
}

fn size(unit: &str) -> Option<f64> {
    // A single letter is a power of two, as on the command line.
    match unit {
        "K" | "k" => Some(1024.0),
        "M" | "m" => prefix("Mi"),
        "G" | "g" => prefix("Gi"),
        "T" | "t" => prefix("Ti"),
        "byte" | "bytes" => Some(1.0),
        // `kb`, `MIB`: a size never means bits.
        _ => {
            let lower = unit.to_lowercase();
            let letters = lower.strip_suffix('b')?;
            let of = |(name, _): &&(&str, f64)| name.to_lowercase() == letters;
            PREFIXES.iter().find(of).map(|(_, scale)| *scale)
        }
    }
}

fn rate(unit: &str) -> Option<f64> {
    let per_second = ["/s", "/sec", "/second"].iter().find_map(|end| unit.strip_suffix(end));
    let (amount, bits) = match per_second {
        Some(amount) => {
            let bits = ["bits", "bit", "b"].iter().find_map(|end| amount.strip_suffix(end));
            (bits.or_else(|| amount.strip_suffix('B'))?, bits.is_some())
        }
        None => match unit.strip_suffix("bps") {
            Some(amount) => (amount, true),
            None => (unit.strip_suffix("Bps")?, false),
        },
    };
    // In rates, `KB/s` never means a power of two.
    let scale = if amount == "K" { 1e3 } else { prefix(amount)? };
    Some(if bits { scale / 8.0 } else { scale })
}

fn time(unit: &str) -> Option<f64> {
    match unit {
        "ns" | "nsec" | "nsecs" => Some(1.0),
        "us" | "µs" | "μs" | "usec" | "usecs" => Some(1e3),
        "ms" | "msec" | "msecs" => Some(1e6),
        "s" | "sec" | "secs" | "seconds" => Some(1e9),
        _ => None,
    }
}

/// The unit at the end of a heading, as in `BW (MiB/s)`, `p99 [us]`, `lat_us` or `time, ms`. Text
/// in brackets that is no unit (`MiB/s [last]`) is part of the name.
pub(super) fn of_heading(kind: Kind, mut heading: &str) -> Option<f64> {
    while let Some((name, within)) = bracketed(heading) {
        if let Some(scale) = scale(kind, within) {
            return Some(scale);
        }
        heading = name;
    }
    let heading = heading.trim();
    let last = heading.rsplit([' ', '_', ',', ':']).next().unwrap_or(heading);
    scale(kind, heading).or_else(|| scale(kind, last)).or_else(|| {
        // `mib_s` is the closest that an identifier comes to `MiB/s`.
        let (_, named) = heading.rsplit_once(' ').unwrap_or(("", heading));
        (kind == Kind::Rate).then(|| underscored(named))?
    })
}

/// The text before brackets at the end of a heading, and within them.
fn bracketed(heading: &str) -> Option<(&str, &str)> {
    let heading = heading.trim();
    [('(', ')'), ('[', ']')].into_iter().find_map(|(open, close)| {
        let (name, within) = heading.strip_suffix(close)?.rsplit_once(open)?;
        Some((name, within.trim()))
    })
}

/// The end of a heading of sizes or counts, if it may be an unknown unit, so that its numbers are
/// ambiguous.
pub(super) fn doubtful(kind: Kind, mut heading: &str) -> Option<&str> {
    if !matches!(kind, Kind::Size | Kind::Count) {
        return None;
    }
    while let Some((name, within)) = bracketed(heading) {
        if is_known(kind, within) {
            return None;
        }
        if may_be_unit(within) {
            return Some(within);
        }
        heading = name;
    }
    let heading = heading.trim();
    let last = heading.rsplit([' ', '_', ',', ':', '/']).next().unwrap_or(heading);
    // `…/s` may end anything.
    let per_second = ["s", "sec", "second"].contains(&last);
    let is_letter = heading.eq_ignore_ascii_case("b"); // as `a`, `b` and `c` are
    (may_be_unit(last) && !per_second && !is_letter && !is_known(kind, last)).then_some(last)
}

fn is_known(kind: Kind, unit: &str) -> bool {
    let of_count = ["", "#", "n", "/s", "1/s", "iops", "ops", "ops/s", "io/s", "req/s"];
    let words = ["count", "number", "requests", "requests/s"];
    let lower = unit.to_lowercase();
    match kind {
        Kind::Count => of_count.iter().chain(&words).any(|word| *word == lower),
        _ => scale(kind, unit).is_some(),
    }
}

/// Whether a word may mean an amount, as `sectors`, `4k`, `thousands`, `x1000` or `%`.
fn may_be_unit(word: &str) -> bool {
    let lower = word.to_lowercase();
    let ends = ["bit", "bits", "byte", "bytes", "sectors", "pages", "blocks"];
    let many = ["thousand", "thousands", "million", "millions", "billion", "billions"];
    let named = ["%", "percent", "pb", "pib", "eb", "eib", "kiops", "miops", "k", "m", "g", "t"];
    let factor = lower.trim_start_matches(['x', '×', '*', ' ']);
    let is_digit = |c: char| c.is_ascii_digit();
    let rest = factor.trim_start_matches(|c| is_digit(c) || ['.', ',', '^', 'e', ' '].contains(&c));
    let is_factor = factor.starts_with(is_digit) && ["", "k", "m", "g", "t"].contains(&rest);
    is_factor
        || ends.iter().chain(&many).any(|end| lower.ends_with(end))
        || named.contains(&lower.as_str())
        || [Kind::Size, Kind::Rate, Kind::Time].iter().any(|kind| scale(*kind, word).is_some())
}

/// The unit in `…_mib_s`, `…_gb_per_s`, `…_gbps`. Identifiers have no capitals, so bits are only
/// recognized by `bit`.
fn underscored(name: &str) -> Option<f64> {
    let lower = name.to_lowercase();
    let amount = ["_per_second", "_per_sec", "_per_s", "_sec", "_s"]
        .iter()
        .find_map(|end| lower.strip_suffix(end))?;
    let amount = amount.rsplit('_').next()?;
    match amount {
        "b" | "bytes" => Some(1.0),
        "kb" => Some(1e3),
        "mb" => Some(1e6),
        "gb" => Some(1e9),
        "kib" => prefix("Ki"),
        "mib" => prefix("Mi"),
        "gib" => prefix("Gi"),
        _ => None,
    }
}

/// The number of a cell in its own unit, else in that of its column.
///
/// # Errors
/// It is not a number, is negative, is ambiguous, or lacks a required unit.
pub(super) fn value(kind: Kind, cell: &str, of_column: Option<f64>) -> Result<Option<f64>, String> {
    let cell = cell.trim();
    let missing = ["", "-", "–", "na", "n/a", "nan", "-nan", "inf", "-inf", "null", "none"];
    if missing.contains(&cell.to_lowercase().as_str()) {
        return Ok(None);
    }
    let is_digit = |c: char| c.is_ascii_digit() || matches!(c, '.' | ',' | '+' | '-');
    let mut end = cell.find(|c| !is_digit(c)).unwrap_or(cell.len());
    // An exponent, not the beginning of a unit.
    let rest = cell[end..].strip_prefix(['e', 'E']);
    let exponent = rest.filter(|rest| rest.starts_with(|c: char| is_digit(c) && c != ','));
    if let Some(rest) = exponent {
        end = cell.len() - rest.len() + rest.find(|c| !is_digit(c)).unwrap_or(rest.len());
    }
    let (digits, unit) = cell.split_at(end);
    let number = number(&pointed(digits)?).ok_or("it is not a number of 0 or more")?;
    let scale = match (unit.trim(), kind) {
        ("", Kind::Size) => of_column.unwrap_or(1.0),
        ("", Kind::Count | Kind::Text) => 1.0,
        ("", _) => of_column.ok_or("it has no unit")?,
        (_, Kind::Count | Kind::Text) => return Err("it is not a plain number".into()),
        (unit, _) => scale(kind, unit).ok_or("its unit is unknown")?,
    };
    Ok(Some(number * scale))
}

/// A number with a decimal point, from either mark.
fn pointed(digits: &str) -> Result<String, String> {
    let Some((whole, rest)) = digits.split_once(',') else { return Ok(digits.to_owned()) };
    if rest.contains(['.', ',']) || rest.len() == 3 || whole.contains('.') {
        return Err("its comma is ambiguous: write numbers without it".into());
    }
    Ok(format!("{whole}.{rest}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn units_are_what_they_say() {
        let rates = ["MiB/s", "MB/s", "GB/sec", "KB/s", "Gbit/s", "Gb/s", "Mbps", "GBps", "B/s"];
        let scales = [1_048_576.0, 1e6, 1e9, 1e3, 1.25e8, 1.25e8, 1.25e5, 1e9, 1.0];
        for (unit, expected) in rates.into_iter().zip(scales) {
            assert_eq!(scale(Kind::Rate, unit), Some(expected), "{unit}");
        }
        for unit in ["", "MiB", "/s", "bps/s", "m/s", "mib/s"] {
            assert_eq!(scale(Kind::Rate, unit), None, "{unit}");
        }
        assert_eq!(["us", "µs", "ms", "h"].map(time), [Some(1e3), Some(1e3), Some(1e6), None]);
        assert_eq!(["KiB", "k", "kB", "B"].map(size), [1024.0, 1024.0, 1e3, 1.0].map(Some));
    }

    #[test]
    fn a_heading_may_name_its_unit() {
        let of = of_heading;
        assert_eq!(of(Kind::Rate, "BW (MiB/s)"), Some(1_048_576.0));
        assert_eq!(of(Kind::Rate, "bw_gb_per_s"), Some(1e9));
        assert_eq!(of(Kind::Rate, "read mib_s"), Some(1_048_576.0));
        assert_eq!(of(Kind::Rate, "total, GB/s"), Some(1e9));
        assert_eq!(of(Kind::Time, "p99 [us]"), Some(1e3));
        assert_eq!(of(Kind::Time, "lat_ms"), Some(1e6));
        assert_eq!(of(Kind::Size, "Block (KiB)"), Some(1024.0));
        // Headings of elbencho and cloudai.
        assert_eq!(of(Kind::Rate, "MiB/s [last]"), Some(1_048_576.0));
        assert_eq!(of(Kind::Rate, "bw_gb_sec"), Some(1e9));
        assert_eq!(of(Kind::Time, "IO lat us [avg]"), Some(1e3));
        assert_eq!(of(Kind::Time, "time ms [last]"), Some(1e6));
        assert_eq!(of(Kind::Time, "lat (us) [p99]"), Some(1e3));
        for heading in ["BW", "BW (best)", "BW ()", ")", "s", "[last]"] {
            assert_eq!(of(Kind::Rate, heading), None, "{heading}");
        }
    }

    #[test]
    fn a_cell_is_read_in_one_way_or_refused() {
        let rate = |cell| value(Kind::Rate, cell, Some(1e6));
        assert_eq!(rate("1.5"), Ok(Some(1.5e6)));
        assert_eq!(rate("1,5"), Ok(Some(1.5e6)));
        assert_eq!(rate("2 GB/s"), Ok(Some(2e9)));
        assert_eq!(rate("1e3"), Ok(Some(1e9)));
        assert_eq!(["", "NaN", "-", "-nan", "inf"].map(rate), [const { Ok(None) }; 5]);
        for wrong in ["1,234", "1.234,5", "1,234,567", "-5", "x", "1e999", "3 parsecs", "1ee5"] {
            assert!(rate(wrong).is_err(), "{wrong}");
        }
        assert_eq!(value(Kind::Size, "64K", None), Ok(Some(65536.0)));
        assert_eq!(value(Kind::Size, "4096", None), Ok(Some(4096.0)));
        assert!(value(Kind::Rate, "3", None).unwrap_err().contains("no unit"));
        assert!(value(Kind::Count, "3 x", None).is_err());
    }

    #[test]
    fn sizes_have_units_in_any_case_and_what_may_be_another_is_in_doubt() {
        let of = |heading| of_heading(Kind::Size, heading);
        assert_eq!(
            ["bs_kb", "bs (kib)", "Size [MB]", "io_MIB", "size gb", "bs_gib"].map(of),
            [1e3, 1024.0, 1e6, 1_048_576.0, 1e9, 1_073_741_824.0].map(Some)
        );
        let size = |heading| doubtful(Kind::Size, heading);
        assert_eq!(
            ["size (sectors)", "bs [4k]", "io_pages", "read_ms", "size_PiB"].map(size),
            ["sectors", "4k", "pages", "ms", "PiB"].map(Some)
        );
        assert_eq!(
            ["Block", "bs", "size (KiB)", "IO block", "bytes", "bs_kb"].map(size),
            [None; 6]
        );
        let count = |heading| doubtful(Kind::Count, heading);
        assert_eq!(
            ["IOPS (k)", "kIOPS", "requests_M", "ops (thousands)"].map(count),
            ["k", "kIOPS", "M", "thousands"].map(Some)
        );
        assert_eq!(
            ["IOPS (x1000)", "IOPS (4 k)", "IOPS [%]", "IOPS (1e3)", "entries k [last]"].map(count),
            ["x1000", "4 k", "%", "1e3", "k"].map(Some)
        );
        assert_eq!(["IOPS", "IO/s", "iops (1/s)", "Threads", "depth [#]"].map(count), [None; 5]);
        assert_eq!(
            ["IOPS [last]", "entries [first]", "IOPS (avg)", "ops_per_sec", "req/sec"].map(count),
            [None; 5]
        );
    }

    #[test]
    fn brackets_in_brackets_take_no_stack() {
        let kinds = [Kind::Size, Kind::Count, Kind::Rate];
        for brackets in [" [x]", " (x)", "[", "]", "([])"] {
            let heading = brackets.repeat(200_000);
            for kind in kinds {
                assert_eq!((of_heading(kind, &heading), doubtful(kind, &heading)), (None, None));
            }
        }
    }

    proptest::proptest! {
        #[test]
        fn no_text_ends_the_command(text: String) {
            for kind in [Kind::Text, Kind::Count, Kind::Size, Kind::Rate, Kind::Time] {
                let _ = (of_heading(kind, &text), scale(kind, &text), doubtful(kind, &text));
                if let Ok(Some(value)) = value(kind, &text, Some(2.0)) {
                    proptest::prop_assert!(value >= 0.0);
                }
            }
        }
    }
}
