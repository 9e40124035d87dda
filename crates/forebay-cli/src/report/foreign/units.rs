//! Numbers of a table with their units, which are in the map, in the heading, or in the cell.

/// The kind of a column.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    Text,
    /// A plain number.
    Count,
    /// Bytes; without a unit they are bytes.
    Size,
    /// Bytes per second.
    Rate,
    /// Time, in nanoseconds.
    Time,
}

impl Kind {
    /// Some units of this kind, for an error.
    pub(super) const fn units(self) -> &'static str {
        match self {
            Self::Text => ", which has none",
            Self::Count => ": use k or M",
            Self::Size => ": use B, KiB, MiB, kB, MB and so on",
            Self::Rate => ": use MiB/s, GiB/s, MB/s, GB/s, Gbit/s and so on",
            Self::Time => ": use ns, us, ms or s",
        }
    }
}

/// The factor of this unit; `None` for a unit of a different kind.
pub(super) fn scale(kind: Kind, unit: &str) -> Option<f64> {
    match (kind, unit) {
        (Kind::Count, "k" | "K" | "kIOPS" | "thousand" | "thousands") => Some(1e3),
        (Kind::Count, "M" | "MIOPS" | "million" | "millions") => Some(1e6),
        (Kind::Size, _) => size(unit),
        (Kind::Rate, _) => rate(unit),
        (Kind::Time, "ns" | "nsec" | "nsecs") => Some(1.0),
        (Kind::Time, "us" | "µs" | "μs" | "usec" | "usecs") => Some(1e3),
        (Kind::Time, "ms" | "msec" | "msecs") => Some(1e6),
        (Kind::Time, "s" | "sec" | "secs" | "seconds") => Some(1e9),
        _ => None,
    }
}

/// The factor of a prefix, as `M` or `Ki`.
fn prefix(letters: &str) -> Option<f64> {
    let binary = letters.strip_suffix(['i', 'I']);
    let power = match (binary.unwrap_or(letters), binary) {
        ("", None) => 0,
        ("K", _) | ("k", None) => 1,
        ("M", _) => 2,
        ("G", _) => 3,
        ("T", _) => 4,
        _ => return None,
    };
    Some(if binary.is_some() { 1024.0_f64 } else { 1000.0 }.powi(power))
}

fn size(unit: &str) -> Option<f64> {
    match unit.to_uppercase().as_str() {
        "BYTE" | "BYTES" => Some(1.0),
        // A single letter is a power of two, as on the command line.
        letter @ ("K" | "M" | "G" | "T") => prefix(&format!("{letter}i")),
        // `kb`, `MIB`: a size never means bits.
        upper => prefix(upper.strip_suffix('B')?),
    }
}

fn rate(unit: &str) -> Option<f64> {
    let ends = ["/s", "/sec", "/Sec", "/second", "ps"];
    let amount = ends.iter().find_map(|end| unit.strip_suffix(end))?;
    match ["bits", "bit", "b"].iter().find_map(|end| amount.strip_suffix(end)) {
        Some(amount) => prefix(amount).map(|scale| scale / 8.0),
        None => prefix(amount.strip_suffix('B')?),
    }
}

/// The unit of a heading in its last brackets, as in `BW (MiB/s)` or `p99 [us]`, or a rate that is
/// the whole heading.
///
/// # Errors
/// The unit of a size is unknown, as in `bs (sectors)`, or that of a size or a count stands outside
/// brackets, as in `bs_kb`: without it, numbers would be bytes and ones.
pub(super) fn of_heading(kind: Kind, heading: &str) -> Result<Option<f64>, String> {
    let Some((_, unit)) = heading.rsplit_once(['(', '[']) else {
        let last = heading.rsplit(|c: char| !c.is_alphanumeric()).next().unwrap_or_default();
        return match kind {
            Kind::Rate => Ok(scale(kind, heading)),
            // A letter alone is a name.
            Kind::Size | Kind::Count if last.len() > 1 => match scale(kind, last) {
                Some(scale) if scale > 1.0 => Err(last.to_owned()),
                found => Ok(found),
            },
            _ => Ok(None),
        };
    };
    let unit = unit.trim_end_matches([')', ']', ' ']).trim_start();
    match scale(kind, unit) {
        None if kind == Kind::Size && !unit.is_empty() => Err(unit.to_owned()),
        found => Ok(found),
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
    let end = match number(cell) {
        Some(_) => cell.len(),
        None => cell.find(|c| !is_digit(c)).unwrap_or(cell.len()),
    };
    let (digits, unit) = cell.split_at(end);
    let number = number(&pointed(digits)?).ok_or("it is not a number of 0 or more")?;
    let scale = match (unit.trim(), kind) {
        ("", Kind::Rate | Kind::Time) => of_column.ok_or("it has no unit")?,
        ("", _) => of_column.unwrap_or(1.0),
        (unit, _) => scale(kind, unit).ok_or("its unit is unknown")?,
    };
    Ok(Some(number * scale))
}

/// A number written by a tool; `None` if it is not a number, or negative.
pub(super) fn number(text: &str) -> Option<f64> {
    let begins = |c: char| c.is_ascii_digit() || c == '.' || c == '+';
    let text = text.trim();
    let number = text.starts_with(begins).then(|| text.parse::<f64>().ok())??;
    (number.is_finite() && number >= 0.0).then_some(number)
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
    fn a_number_is_plain_and_not_negative() {
        assert_eq!(number(" 1.5 "), Some(1.5));
        for text in ["", "nan", "inf", "-1", "1e999", "1x", "0x10", "-nan", "+inf"] {
            assert_eq!(number(text), None, "{text}");
        }
    }

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
        assert_eq!(
            ["us", "µs", "ms", "h"].map(|unit| scale(Kind::Time, unit)),
            [Some(1e3), Some(1e3), Some(1e6), None]
        );
        assert_eq!(["KiB", "k", "kB", "B"].map(size), [1024.0, 1024.0, 1e3, 1.0].map(Some));
    }

    #[test]
    fn a_heading_may_name_its_unit() {
        let of = |kind, heading| of_heading(kind, heading).unwrap();
        assert_eq!(of(Kind::Rate, "BW (MiB/s)"), Some(1_048_576.0));
        assert_eq!(of(Kind::Rate, "total (all) [ GB/s ]"), Some(1e9));
        assert_eq!(of(Kind::Rate, "MB/s"), Some(1e6));
        assert_eq!(of(Kind::Rate, "B/W (GB/Sec)"), Some(1e9));
        assert_eq!(of(Kind::Time, "p99 [us]"), Some(1e3));
        assert_eq!(of(Kind::Size, "Block (KiB)"), Some(1024.0));
        // Other units are not guessed: `--columns` names them.
        for heading in ["BW", "BW (best)", "BW ()", ")", "s", "[last]", "bw_gb_per_s", "BW Gbit/s"]
        {
            assert_eq!(of(Kind::Rate, heading), None, "{heading}");
        }
        assert_eq!(["lat_us", "us", "time, ms"].map(|one| of(Kind::Time, one)), [None; 3]);
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
    fn sizes_have_units_in_any_case_and_no_unknown_ones() {
        let of = |heading| of_heading(Kind::Size, heading);
        assert_eq!(
            ["bs (kb)", "bs (kib)", "Size [MB]", "io (MIB)", "size [gb]", "bs (gib)"].map(of),
            [1e3, 1024.0, 1e6, 1_048_576.0, 1e9, 1_073_741_824.0].map(|scale| Ok(Some(scale)))
        );
        assert_eq!(
            ["size (sectors)", "bs [4k]", "bs (blocks) [KB]"].map(of),
            [Err("sectors".into()), Err("4k".into()), Ok(Some(1e3))]
        );
        assert_eq!(["Block", "bs", "IO block", "io_pages"].map(of), [const { Ok(None) }; 4]);
    }

    #[test]
    fn counts_may_be_in_thousands() {
        let of = |heading| of_heading(Kind::Count, heading).unwrap();
        assert_eq!(
            ["IOPS (k)", "IOPS [kIOPS]", "ops (millions)"].map(of),
            [1e3, 1e3, 1e6].map(Some)
        );
        assert_eq!(["IOPS [last]", "depth [#]", "k", "M", "Threads"].map(of), [None; 5]);
        for (heading, unit) in [("kIOPS", "kIOPS"), ("ops, millions", "millions")] {
            assert_eq!(of_heading(Kind::Count, heading), Err(unit.into()));
        }
        assert_eq!(value(Kind::Count, "84.4 k", None), Ok(Some(84_400.0)));
    }

    #[test]
    fn brackets_in_brackets_take_no_stack() {
        for brackets in [" [x]", " (x)", "[", "]", "([])"] {
            let heading = brackets.repeat(200_000);
            for kind in [Kind::Count, Kind::Rate] {
                assert_eq!(of_heading(kind, &heading), Ok(None));
            }
        }
    }

    proptest::proptest! {
        #[test]
        fn no_text_ends_the_command(text: String) {
            for kind in [Kind::Text, Kind::Count, Kind::Size, Kind::Rate, Kind::Time] {
                let _ = (of_heading(kind, &text), scale(kind, &text));
                if let Ok(Some(value)) = value(kind, &text, Some(2.0)) {
                    proptest::prop_assert!(value >= 0.0);
                }
            }
        }
    }
}
