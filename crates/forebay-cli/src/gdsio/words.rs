//! gdsio's words: its types by number and by name, and its notation of sizes. Pure.

use std::fmt;

use forebay::units::{GIB, KIB, MIB};
use forebay_measure::memory::whole;
use forebay_measure::workload::backend::Plain;

/// Limit of a plausible size.
const SIZE_MAX: u64 = 1 << 60;
/// Most sizes in a range: all are separate runs.
const SIZES_MAX: u64 = 256;

/// The types of transfer, by their numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Transfer {
    Direct,
    CpuOnly,
    CpuGpu,
    CpuAsyncGpu,
    CpuCachedGpu,
    DirectAsync,
    Batch,
    BatchStream,
}

/// The transfers by number: the name in result lines, the call that gdsio makes, and the method for
/// types that use host memory.
const TRANSFERS: [(Transfer, &str, &str, Option<Plain>); 8] = [
    (Transfer::Direct, "GPUD", "cufile", None),
    (Transfer::CpuOnly, "CPUONLY", "cpu", Some(Plain::Cpu)),
    (Transfer::CpuGpu, "CPU_GPU", "cpu-gpu", Some(Plain::CpuGpu)),
    (Transfer::CpuAsyncGpu, "CPU_ASYNC_GPU", "cpu-async-gpu", Some(Plain::CpuAsyncGpu)),
    (Transfer::CpuCachedGpu, "CPU_CACHED_GPU", "cpu-cached-gpu", Some(Plain::CpuCachedGpu)),
    (Transfer::DirectAsync, "GPUD_ASYNC", "cufile-async", None),
    (Transfer::Batch, "GPU_BATCH", "cufile-batch", None),
    (Transfer::BatchStream, "GPU_BATCH_STREAM", "cufile-batch-stream", None),
];

impl Transfer {
    /// All, by number.
    pub(crate) fn all() -> impl Iterator<Item = Self> {
        TRANSFERS.into_iter().map(|(transfer, ..)| transfer)
    }

    /// The type of a number, as the command line and job files have it.
    pub(crate) fn parse(text: &str) -> Result<Self, String> {
        of_number(Self::all(), text).ok_or_else(|| "it takes a type from 0 to 7".into())
    }

    pub(crate) const fn number(self) -> usize {
        self as usize
    }

    /// Its name in result lines.
    pub(crate) const fn label(self) -> &'static str {
        TRANSFERS[self as usize].1
    }

    /// The call that gdsio makes for it.
    pub(crate) const fn call(self) -> &'static str {
        TRANSFERS[self as usize].2
    }

    /// The method of a type that uses host memory.
    pub(crate) const fn plain(self) -> Option<Plain> {
        TRANSFERS[self as usize].3
    }

    /// The note on a type whose requests are those of a different type.
    pub(crate) const fn stands_for(self) -> Option<&'static str> {
        match self {
            Self::DirectAsync => Some(
                "`-x 5` makes the requests of `-x 0` and waits for each, without a CUDA stream",
            ),
            Self::BatchStream => Some("`-x 7` makes the requests of `-x 6`, without a CUDA stream"),
            _ => None,
        }
    }

    /// Whether it requests the direct route, without a copy in host memory.
    pub(crate) const fn is_direct(self) -> bool {
        self.plain().is_none()
    }

    /// Whether a thread keeps many requests in flight.
    pub(crate) const fn is_batch(self) -> bool {
        matches!(self, Self::Batch | Self::BatchStream)
    }
}

/// The operation on the files.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Io {
    pub(crate) writes: bool,
    pub(crate) is_random: bool,
}

impl Io {
    fn all() -> impl Iterator<Item = Self> {
        [(false, false), (true, false), (false, true), (true, true)]
            .into_iter()
            .map(|(writes, is_random)| Self { writes, is_random })
    }

    /// Parses its number, as in `-I`.
    pub(crate) fn parse(text: &str) -> Result<Self, String> {
        of_number(Self::all(), text).ok_or_else(|| {
            "it takes 0 (read), 1 (write), 2 (random read) or 3 (random write)".into()
        })
    }

    /// Parses its word, as in `rw=` of job files.
    pub(crate) fn parse_word(text: &str) -> Result<Self, String> {
        let found = Self::all().find(|io| io.label().to_lowercase() == text);
        found.ok_or_else(|| "it takes `read`, `write`, `randread` or `randwrite`".into())
    }

    /// Its number, as in `-I`.
    pub(crate) const fn number(self) -> usize {
        self.writes as usize + 2 * self.is_random as usize
    }

    pub(crate) const fn label(self) -> &'static str {
        ["READ", "WRITE", "RANDREAD", "RANDWRITE"][self.number()]
    }
}

fn of_number<T>(mut all: impl Iterator<Item = T>, text: &str) -> Option<T> {
    all.nth(text.parse().ok()?)
}

/// A size: a whole number, with an optional K, M or G, and an optional B after that, in either
/// case, all powers of two.
pub(crate) fn size(text: &str) -> Result<u64, String> {
    let text = text.strip_suffix(['B', 'b']).unwrap_or(text);
    let units = [(['K', 'k'], KIB), (['M', 'm'], MIB), (['G', 'g'], GIB)];
    let found = units.iter().find_map(|(names, unit)| Some((text.strip_suffix(*names)?, *unit)));
    let (digits, unit) = found.unwrap_or((text, 1));
    let number = digits.parse::<u64>().ok().filter(|_| !digits.starts_with('+'));
    let number =
        number.ok_or("it takes a whole number, optionally with K, M or G, such as `64K`")?;
    let bytes = number.checked_mul(unit).filter(|bytes| *bytes <= SIZE_MAX);
    bytes.ok_or_else(|| "no file is that large".into())
}

/// A size above zero.
pub(crate) fn positive_size(text: &str) -> Result<u64, String> {
    size(text).and_then(|size| if size > 0 { Ok(size) } else { Err("it must be above 0".into()) })
}

/// Block sizes: a single size, or from the least to the most in steps.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Sizes {
    pub(crate) min: u64,
    pub(crate) max: u64,
    pub(crate) step: u64,
}

impl Sizes {
    pub(crate) const fn one(size: u64) -> Self {
        Self { min: size, max: size, step: size }
    }

    /// `SIZE`, or `MIN:MAX:STEP`.
    pub(crate) fn parse(text: &str) -> Result<Self, String> {
        let parts: Vec<&str> = text.splitn(4, ':').collect();
        match parts[..] {
            [one] => positive_size(one).map(Self::one),
            [min, max, step] => {
                let (min, max) = (positive_size(min)?, positive_size(max)?);
                let sizes = Self { min, max, step: positive_size(step)? };
                if max < min {
                    return Err("its second size is less than its first".into());
                }
                if (max - min) / sizes.step >= SIZES_MAX {
                    return Err(format!("it has more than {SIZES_MAX} sizes: use a larger step"));
                }
                Ok(sizes)
            }
            _ => Err("it takes a size such as `64K`, or `MIN:MAX:STEP`".into()),
        }
    }

    /// All of them.
    pub(crate) fn all(self) -> Vec<u64> {
        (self.min..=self.max).step_by(whole(self.step)).collect()
    }
}

impl fmt::Display for Sizes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.min == self.max {
            return write!(f, "{}(KiB)", kib(self.min));
        }
        write!(f, "{}-{}-{}(KiB)", kib(self.min), kib(self.max), kib(self.step))
    }
}

/// A number of KiB, with a fraction only if needed.
#[expect(clippy::cast_precision_loss, reason = "it is shown in a few digits")]
pub(crate) fn kib(bytes: u64) -> String {
    if bytes.is_multiple_of(KIB) {
        return (bytes / KIB).to_string();
    }
    format!("{:.3}", bytes as f64 / KIB as f64)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn types_have_gdsios_numbers_and_names() {
        let labels: Vec<&str> =
            (0..8).map(|number| Transfer::parse(&number.to_string()).unwrap().label()).collect();
        assert_eq!(
            labels.join(" "),
            "GPUD CPUONLY CPU_GPU CPU_ASYNC_GPU CPU_CACHED_GPU GPUD_ASYNC GPU_BATCH \
             GPU_BATCH_STREAM"
        );
        assert_eq!(Transfer::parse("6").unwrap().number(), 6);
        let direct = (0..8).filter(|number| TRANSFERS[*number].0.is_direct());
        assert_eq!(direct.collect::<Vec<_>>(), [0, 5, 6, 7]);
        Transfer::parse("8").unwrap_err();
        Transfer::parse("-1").unwrap_err();
        assert_eq!(Io::parse("3").unwrap().label(), "RANDWRITE");
        assert_eq!(Io::parse_word("randread"), Io::parse("2"));
        Io::parse_word("READ").unwrap_err();
        Io::parse("4").unwrap_err();
    }

    #[test]
    fn sizes_are_whole_and_powers_of_two() {
        assert_eq!(size("64k"), Ok(64 * KIB));
        assert_eq!(size("512M"), Ok(512 * MIB));
        assert_eq!(size("2G"), Ok(2 * GIB));
        assert_eq!(size("4096"), Ok(4096));
        for (text, bytes) in [("1KB", KIB), ("1MB", MIB), ("2gb", 2 * GIB), ("512B", 512)] {
            assert_eq!(size(text), Ok(bytes), "{text}");
        }
        assert_eq!(positive_size("0").unwrap_err(), "it must be above 0");
        for wrong in [
            "",
            "k",
            "1.5G",
            "-1",
            "+1",
            "1 M",
            "1 MB",
            "B",
            "MB",
            "1BB",
            "1BK",
            "1KiB",
            "1TB",
            "1T",
            "99999999999G",
            "1M:2M",
        ] {
            assert!(size(wrong).is_err(), "{wrong}");
        }
        let range = Sizes::parse("4k:16K:4K").unwrap();
        assert_eq!(range.all(), [4096, 8192, 12_288, 16_384]);
        assert_eq!(range.to_string(), "4-16-4(KiB)");
        assert_eq!(Sizes::parse("1M").unwrap().all(), [MIB]);
        assert_eq!(Sizes::one(512).to_string(), "0.500(KiB)");
        for wrong in ["4k:2k:1k", "4k:8k", "4k:8k:0", "4k:1G:4k", "1:2:3:4", "::", "4k:8k:1k:"] {
            assert!(Sizes::parse(wrong).is_err(), "{wrong}");
        }
    }

    proptest! {
        #[test]
        fn no_word_ends_the_command(word: String) {
            let _ = (size(&word), Transfer::parse(&word), Io::parse(&word), Io::parse_word(&word));
            if let Ok(sizes) = Sizes::parse(&word) {
                let _ = sizes.all();
            }
        }

        #[test]
        fn a_range_has_bounds(min: u64, more in 0_u64..1 << 40, step in 1_u64..1 << 40) {
            if let Ok(sizes) = Sizes::parse(&format!("{min}:{}:{step}", min.saturating_add(more))) {
                let all = sizes.all();
                prop_assert!(!all.is_empty() && all.len() as u64 <= SIZES_MAX);
                prop_assert!(all.iter().all(|size| (sizes.min..=sizes.max).contains(size)));
            }
        }
    }
}
