//! The verdict on a span of work: the data paths of its bytes, or why these are unproven.

use std::fmt;

use super::seen::Missing;

/// A data path.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[non_exhaustive]
pub enum DataPath {
    /// Between drive and GPU by the kernel's peer-to-peer DMA (p2pdma).
    P2pdma,
    /// Between drive and GPU by nvidia-fs.
    NvidiaFs,
    /// With O_DIRECT, through the engine's host memory and the GPU's link.
    Staged,
    /// Through the page cache and the GPU's link.
    Cached,
    /// Through host memory, which cuFile uses when no direct path is available.
    Compat,
    /// Between drive and host memory, with O_DIRECT.
    HostDrive,
    /// Between page cache and host memory.
    HostCache,
}

impl DataPath {
    /// Its name in the text of a verdict.
    pub const fn name(self) -> &'static str {
        match self {
            Self::P2pdma => "direct (p2pdma)",
            Self::NvidiaFs => "direct (nvidia-fs)",
            Self::Staged => "staged",
            Self::Cached => "cached",
            Self::Compat => "compat",
            Self::HostDrive => "host (drive)",
            Self::HostCache => "host (page cache)",
        }
    }

    /// Whether the path bypasses host memory.
    pub const fn is_direct(self) -> bool {
        matches!(self, Self::P2pdma | Self::NvidiaFs)
    }
}

/// The share of a span's bytes on a data path.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Share {
    /// The data path.
    pub way: DataPath,
    /// Fraction of all bytes, more than 0 and at most 1.
    pub share: f64,
}

/// The result of a verdict.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
#[non_exhaustive]
pub enum Finding {
    /// All bytes used the same path, apart from amounts too small for any counter.
    One(DataPath),
    /// The bytes took several paths.
    Mixed,
    /// The evidence is not sufficient.
    Unproven,
    /// The evidence contradicts the claim.
    Contradictory,
}

/// The verdict on a span of work. It does not depend on speed.
#[derive(Debug, Clone, PartialEq)]
pub struct Verdict {
    /// The result.
    pub finding: Finding,
    /// The paths, most bytes first; the shares add up to 1. Empty if nothing is proven.
    pub shares: Vec<Share>,
    /// Whether the GPU was simulated in host memory.
    pub simulated: bool,
    /// The evidence it is based on, as sentences.
    pub grounds: Vec<String>,
    /// Missing evidence, and how to get it.
    pub missing: Vec<Missing>,
    /// Claims that counters contradict.
    pub contradictions: Vec<String>,
    /// Counts that other processes may have caused.
    pub doubts: Vec<String>,
}

/// A path with a smaller share counts to the main path, unless either is direct.
const SHARE_MIN: f64 = 0.01;

impl Verdict {
    /// The finding and the shares for these paths and their bytes; no bytes prove nothing.
    pub(super) fn of_ways(ways: &[(DataPath, u64)]) -> (Finding, Vec<Share>) {
        let total = ways.iter().map(|(_, bytes)| u128::from(*bytes)).sum();
        let ways = ways.iter().filter(|(_, bytes)| *bytes > 0);
        let shares = summed(ways.map(|&(way, bytes)| Share { way, share: part(bytes, total) }));
        (finding(&shares), shares)
    }

    /// The combined verdict of several pieces of work with their bytes: only as good as the
    /// worst piece. The shares are weighted by bytes.
    pub fn together(all: &[(Self, u64)]) -> Option<Self> {
        let (first, _) = all.first()?;
        let mut sum = first.clone();
        let worst = all.iter().map(|(one, _)| one.finding).max().unwrap_or(first.finding);
        let total = all.iter().map(|(_, bytes)| u128::from(*bytes)).sum();
        sum.shares = summed(all.iter().flat_map(|(one, own)| {
            let weighted =
                |share: &Share| Share { share: share.share * part(*own, total), ..*share };
            one.shares.iter().map(weighted)
        }));
        for (one, _) in all {
            extend(&mut sum.missing, &one.missing);
            extend(&mut sum.contradictions, &one.contradictions);
            extend(&mut sum.doubts, &one.doubts);
            sum.simulated |= one.simulated;
        }
        sum.finding = match worst {
            Finding::Unproven | Finding::Contradictory => {
                sum.shares.clear();
                worst
            }
            _ => finding(&sum.shares),
        };
        Some(sum)
    }

    /// The finding as a word or two: `direct (p2pdma)`, `staged`, `mixed`, `unproven`.
    pub const fn word(&self) -> &'static str {
        match self.finding {
            Finding::One(way) => way.name(),
            Finding::Mixed => "mixed",
            Finding::Unproven => "unproven",
            Finding::Contradictory => "contradictory",
        }
    }
}

/// Formats the finding with its shares: `mixed 93 % staged / 7 % cached`.
impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.word())?;
        if self.finding == Finding::Mixed {
            for (index, share) in self.shares.iter().enumerate() {
                let by = if index == 0 { " " } else { " / " };
                write!(f, "{by}{} {}", percent(share.share), share.way.name())?;
            }
        }
        Ok(())
    }
}

#[expect(clippy::cast_precision_loss, reason = "a share needs no more digits")]
fn part(bytes: u64, total: u128) -> f64 {
    bytes as f64 / total.max(1) as f64
}

/// The shares of the paths, most bytes first.
fn summed(all: impl Iterator<Item = Share>) -> Vec<Share> {
    let mut shares: Vec<Share> = Vec::new();
    for one in all {
        match shares.iter_mut().find(|known| known.way == one.way) {
            Some(known) => known.share += one.share,
            None => shares.push(one),
        }
    }
    shares.sort_by(|a, b| b.share.total_cmp(&a.share).then(a.way.cmp(&b.way)));
    shares
}

fn percent(share: f64) -> String {
    match share * 100.0 {
        small if small < 1.0 => "<1 %".into(),
        // Nearly all is not all.
        large if large > 99.0 => ">99 %".into(),
        percent => format!("{percent:.0} %"),
    }
}

fn finding(shares: &[Share]) -> Finding {
    match shares {
        [] => Finding::Unproven,
        [one] => Finding::One(one.way),
        [first, second, ..] => {
            let direct = shares.iter().any(|share| share.way.is_direct());
            let one = !direct && second.share < SHARE_MIN;
            if one { Finding::One(first.way) } else { Finding::Mixed }
        }
    }
}

fn extend<T: Clone + PartialEq>(into: &mut Vec<T>, from: &[T]) {
    for one in from {
        if !into.contains(one) {
            into.push(one.clone());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    pub(super) fn verdict(ways: &[(DataPath, u64)]) -> Verdict {
        let (finding, shares) = Verdict::of_ways(ways);
        Verdict {
            finding,
            shares,
            simulated: false,
            grounds: vec!["g".into()],
            missing: Vec::new(),
            contradictions: Vec::new(),
            doubts: Vec::new(),
        }
    }

    #[test]
    fn tiny_shares_are_named_only_next_to_a_direct_path() {
        let text = |ways: &[(DataPath, u64)]| verdict(ways).to_string();
        assert_eq!(
            text(&[(DataPath::Staged, 930), (DataPath::Cached, 70)]),
            "mixed 93 % staged / 7 % cached"
        );
        assert_eq!(text(&[(DataPath::Staged, 999), (DataPath::Cached, 1)]), "staged");
        let spoiled = text(&[(DataPath::P2pdma, 9999), (DataPath::Compat, 1)]);
        assert_eq!(spoiled, "mixed >99 % direct (p2pdma) / <1 % compat");
        assert_eq!(text(&[(DataPath::NvidiaFs, 5), (DataPath::NvidiaFs, 5)]), "direct (nvidia-fs)");
        assert_eq!(text(&[(DataPath::Staged, 0)]), "unproven");
    }

    #[test]
    fn several_spans_are_as_good_as_the_worst() {
        let (staged, cached) =
            (verdict(&[(DataPath::Staged, 1)]), verdict(&[(DataPath::Cached, 1)]));
        let none = Verdict {
            missing: vec![Missing { why: "w".into(), remedy: "r".into() }],
            ..verdict(&[])
        };
        let together = |all: &[(&Verdict, u64)]| {
            let all: Vec<_> = all.iter().map(|(one, bytes)| ((*one).clone(), *bytes)).collect();
            Verdict::together(&all).unwrap()
        };
        assert_eq!(together(&[(&staged, 7), (&staged, 9)]), staged);
        let mixed = together(&[(&staged, 9 << 60), (&cached, 1 << 60)]);
        assert_eq!(mixed.to_string(), "mixed 90 % staged / 10 % cached");
        let unproven = together(&[(&staged, 1), (&none, 1), (&none, 1)]);
        assert_eq!((unproven.word(), unproven.missing.len()), ("unproven", 1));
        assert!(unproven.shares.is_empty());
        assert_eq!(Verdict::together(&[]), None);
    }

    #[test]
    fn a_mixed_verdict_shows_its_shares() {
        let verdict = verdict(&[(DataPath::Compat, 3), (DataPath::P2pdma, 1)]);
        assert_eq!(verdict.to_string(), "mixed 75 % compat / 25 % direct (p2pdma)");
    }

    proptest! {
        #[test]
        fn shares_add_up_to_one(bytes in proptest::collection::vec(any::<u64>(), 1..7)) {
            let all = [
                DataPath::P2pdma,
                DataPath::NvidiaFs,
                DataPath::Staged,
                DataPath::Cached,
                DataPath::Compat,
                DataPath::HostDrive,
                DataPath::HostCache,
            ];
            let ways: Vec<(DataPath, u64)> = all.into_iter().zip(bytes).collect();
            let verdict = verdict(&ways);
            let sum: f64 = verdict.shares.iter().map(|share| share.share).sum();
            let some = ways.iter().any(|(_, bytes)| *bytes > 0);
            prop_assert_eq!(some, !verdict.shares.is_empty());
            prop_assert!(!some || (sum - 1.0).abs() < 1e-9);
            let two = Verdict::together(&[(verdict.clone(), 1), (verdict.clone(), 2)]).unwrap();
            prop_assert_eq!(two.finding, verdict.finding);
        }
    }
}
