//! Numbers as people read them. Pure.

/// A number with three significant digits or more.
#[must_use]
pub fn digits(value: f64) -> String {
    match value.abs() {
        size if size == 0.0 || !size.is_finite() => format!("{value}"),
        1e6.. => format!("{value:.2e}"),
        100.0.. => format!("{value:.0}"),
        10.0.. => format!("{value:.1}"),
        1.0.. => format!("{value:.2}"),
        0.001.. => format!("{value:.3}"),
        _ => format!("{value:.1e}"),
    }
}

/// Bytes per second with their unit.
#[must_use]
pub fn rate_text(bytes_per_second: f64) -> String {
    format!("{} GB/s", digits(bytes_per_second * 1e-9))
}

/// A count in thousands or millions: `84.4 k`.
#[must_use]
pub fn count_text(count: f64) -> String {
    match count.abs() {
        1e9.. => digits(count),
        999_500.0.. => format!("{} M", digits(count * 1e-6)),
        1e3.. => format!("{} k", digits(count * 1e-3)),
        100.0.. => format!("{count:.0}"),
        _ => digits(count),
    }
}

/// Seconds in the unit that fits: `7.20 ms`.
#[must_use]
pub fn time_text(seconds: f64) -> String {
    match seconds.abs() {
        1.0.. => format!("{} s", digits(seconds)),
        1e-3.. => format!("{} ms", digits(seconds * 1e3)),
        1e-6.. => format!("{} µs", digits(seconds * 1e6)),
        _ => format!("{} ns", digits(seconds * 1e9)),
    }
}

/// A share in percent.
#[must_use]
pub fn percent(share: f64) -> String {
    // A share from a damaged file may be near the largest number.
    let percent = (share * 100.0).clamp(-1e9, 1e9);
    match percent.abs() {
        10.0.. => format!("{percent:.0} %"),
        _ => format!("{percent:.1} %"),
    }
}

/// `1 point`, `2 points`.
#[must_use]
pub fn counted(count: usize, what: &str) -> String {
    if count == 1 { format!("1 {what}") } else { format!("{count} {what}s") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_short_and_have_their_units() {
        let texts = [0.0, 0.1234, 1.0, 12.34, 123.4, 99_999.0, 1e300, 1e-9, f64::NAN].map(digits);
        let expected = ["0", "0.123", "1.00", "12.3", "123", "99999", "1.00e300", "1.0e-9", "NaN"];
        assert_eq!(texts, expected);
        assert_eq!(rate_text(5.4e9), "5.40 GB/s");
        assert_eq!(
            [84_394.0, 2.5e6, 950.0, 3.0].map(count_text),
            ["84.4 k", "2.50 M", "950", "3.00"]
        );
        assert_eq!(
            [0.0072, 3e-4, 2.0, 5e-9].map(time_text),
            ["7.20 ms", "300 µs", "2.00 s", "5.00 ns"]
        );
        assert_eq!([0.031, 0.79, 1.0].map(percent), ["3.1 %", "79 %", "100 %"]);
        assert_eq!([1, 2].map(|count| counted(count, "point")), ["1 point", "2 points"]);
    }
}
