//! Parsing and formatting of sizes, rates and durations, and arithmetic on byte ranges.
//!
//! `K`, `M`, `G`, `KiB`, `MiB`, `GiB` are powers of two; `kB`, `MB`, `GB` are powers of ten.

use std::fmt;
use std::time::Duration;

/// 1024 bytes.
pub const KIB: u64 = 1 << 10;
/// 1024 KiB.
pub const MIB: u64 = 1 << 20;
/// 1024 MiB.
pub const GIB: u64 = 1 << 30;

/// Contiguous bytes `[start, end)`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct ByteRange {
    /// First byte.
    pub start: u64,
    /// One past the last byte; never below `start`.
    pub end: u64,
}

impl ByteRange {
    /// The range of `len` bytes at `offset`, cut at `u64::MAX`.
    #[must_use]
    pub const fn at(offset: u64, len: u64) -> Self {
        Self { start: offset, end: offset.saturating_add(len) }
    }

    /// Number of bytes.
    #[must_use]
    pub const fn len(self) -> u64 {
        self.end.saturating_sub(self.start)
    }

    /// Whether the range is empty.
    #[must_use]
    pub const fn is_empty(self) -> bool {
        self.end <= self.start
    }

    /// The bytes in both ranges; if there are none, an empty range at the nearer end of `self`.
    #[must_use]
    pub fn intersect(self, other: Self) -> Self {
        let start = self.start.max(other.start).min(self.end);
        Self { start, end: self.end.min(other.end).max(start) }
    }
}

impl fmt::Display for ByteRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}+{}", self.start, self.len())
    }
}

/// `value` rounded down to a multiple of `align`, a power of two.
#[must_use]
pub const fn align_down(value: u64, align: u64) -> u64 {
    debug_assert!(align.is_power_of_two());
    value & !(align - 1)
}

/// `value` rounded up to a multiple of `align`, a power of two; saturates at the last multiple.
#[must_use]
pub const fn align_up(value: u64, align: u64) -> u64 {
    debug_assert!(align.is_power_of_two());
    match value.checked_add(align - 1) {
        Some(sum) => sum & !(align - 1),
        None => align_down(u64::MAX, align),
    }
}

/// Growth of the counter `what`.
///
/// # Errors
/// It went back, which only a reset can cause.
pub fn grown(what: &str, earlier: u64, later: u64) -> Result<u64, String> {
    later
        .checked_sub(earlier)
        .ok_or_else(|| format!("{what} went back from {earlier} to {later}: it was reset"))
}

/// Parses a size in bytes: `4096`, `64K`, `1.5GiB`, `10GB`. `None` if it is not a size.
#[must_use]
pub fn parse_size(text: &str) -> Option<u64> {
    let text = text.trim();
    let split = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let (number, unit) = text.split_at(split);
    let scale: u64 = match unit.trim() {
        "" | "B" => 1,
        "K" | "k" | "KiB" => KIB,
        "M" | "m" | "MiB" => MIB,
        "G" | "g" | "GiB" => GIB,
        "T" | "t" | "TiB" => 1 << 40,
        "kB" => 1_000,
        "MB" => 1_000_000,
        "GB" => 1_000_000_000,
        "TB" => 1_000_000_000_000,
        _ => return None,
    };
    scaled(number, scale)
}

/// `number` × `scale` in whole bytes, rounded down.
fn scaled(number: &str, scale: u64) -> Option<u64> {
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    if whole.is_empty() || (number.contains('.') && fraction.is_empty()) || fraction.len() > 15 {
        return None;
    }
    let whole = whole.parse::<u64>().ok()?.checked_mul(scale)?;
    if fraction.is_empty() {
        return Some(whole);
    }
    let digits = u32::try_from(fraction.len()).ok()?;
    let numerator = u128::from(fraction.parse::<u64>().ok()?) * u128::from(scale);
    let denominator = 10_u128.pow(digits);
    // `0.1G` is not a whole number of bytes; round down.
    whole.checked_add(u64::try_from(numerator / denominator).ok()?)
}

/// Parses a rate in bytes per second: a size followed by `/s`, as in `50GB/s`.
#[must_use]
pub fn parse_rate(text: &str) -> Option<u64> {
    parse_size(text.trim().strip_suffix("/s")?)
}

/// Parses a duration: a number followed by `ns`, `us`, `ms`, `s` or `h`; a bare number is in
/// seconds.
#[must_use]
pub fn parse_duration(text: &str) -> Option<Duration> {
    let text = text.trim();
    let split = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let (number, unit) = text.split_at(split);
    let scale = match unit {
        "ns" => 1,
        "us" | "µs" => 1_000,
        "ms" => 1_000_000,
        "s" | "" => 1_000_000_000,
        "h" => 3_600_000_000_000,
        _ => return None,
    };
    scaled(number, scale).map(Duration::from_nanos)
}

/// Formats `len` bytes for reading: `1.5 GiB`, `64 KiB`, `100 B`.
#[must_use]
pub fn format_size(len: u64) -> String {
    for (scale, name) in [(1 << 40, "TiB"), (GIB, "GiB"), (MIB, "MiB"), (KIB, "KiB")] {
        if len >= scale {
            let tenths = u128::from(len) * 10 / u128::from(scale);
            return if tenths.is_multiple_of(10) {
                format!("{} {name}", tenths / 10)
            } else {
                format!("{}.{} {name}", tenths / 10, tenths % 10)
            };
        }
    }
    format!("{len} B")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_read_in_both_systems() {
        assert_eq!(parse_size("4096"), Some(4096));
        assert_eq!(parse_size("64K"), Some(64 * KIB));
        assert_eq!(parse_size("64KiB"), Some(64 * KIB));
        assert_eq!(parse_size("64k"), Some(64 * KIB), "as fio writes it");
        assert_eq!(parse_size("1g"), Some(GIB));
        assert_eq!(parse_size("64kB"), Some(64_000));
        assert_eq!(parse_size("1.5G"), Some(GIB + GIB / 2));
        assert_eq!(parse_size("10 GB"), Some(10_000_000_000));
        for bad in ["", "K", "-1", "1.", ".5", "1Q", "1kib", "99999999999G", "1..2", "1e9", "0x10"]
        {
            assert_eq!(parse_size(bad), None, "{bad}");
        }
    }

    #[test]
    fn rates_and_times() {
        assert_eq!(parse_rate("50GB/s"), Some(50_000_000_000));
        assert_eq!(parse_rate("50GB"), None);
        assert_eq!(parse_duration("10us"), Some(Duration::from_micros(10)));
        assert_eq!(parse_duration("1.5ms"), Some(Duration::from_micros(1500)));
        assert_eq!(parse_duration("1h"), Some(Duration::from_secs(3600)));
        assert_eq!(parse_duration("0.5"), Some(Duration::from_millis(500)));
        assert_eq!(["", "s", ".", "5x", "-5"].map(parse_duration), [None; 5]);
    }

    #[test]
    fn alignment_saturates() {
        assert_eq!(align_down(4097, 4096), 4096);
        assert_eq!(align_up(4097, 4096), 8192);
        assert_eq!(align_up(u64::MAX, 4096), u64::MAX - 4095);
    }

    #[test]
    fn sizes_are_shown_short() {
        assert_eq!(format_size(100), "100 B");
        assert_eq!(format_size(64 * KIB), "64 KiB");
        assert_eq!(format_size(GIB + GIB / 2), "1.5 GiB");
    }
}
