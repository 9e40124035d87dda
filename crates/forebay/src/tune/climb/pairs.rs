//! Two levels compared in turn, where rates vary by themselves.
//!
//! A drive whose other users come and go, or a virtual one, has moods: its rate differs by a tenth
//! for a tenth of a second. A level that is measured once, in a good one, seems better than it is.
//! So the other level and the one that is held are measured in turn, each between two
//! measurements of the other, and the ratios are looked at: a mood that lasts cancels out, one that
//! changes shows as their spread.

use crate::tune::Rate;

/// Pairs at most: with rates that vary by a twentieth, eight tell a thirtieth.
const PAIRS_MAX: usize = 8;
/// Pairs at least, for one has no spread.
const PAIRS_MIN: usize = 3;

/// What pairs have shown.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Verdict {
    Enough,
    TooLittle,
    Unclear,
}

/// See the module's own text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Pairs {
    home: Rate,
    away: Option<Rate>,
    /// How long the other level was measured.
    away_ns: u64,
    /// Thousandths of the level that is held.
    ratios: Vec<u64>,
}

impl Pairs {
    /// The level that is held has just shown `home`.
    pub(super) fn new(home: Rate) -> Self {
        Self { home, away: None, away_ns: 0, ratios: Vec::new() }
    }

    /// Takes in what the other level has shown, in `ns`.
    pub(super) fn away(&mut self, rate: Rate, ns: u64) {
        self.away = Some(rate);
        self.away_ns = self.away_ns.saturating_add(ns);
    }

    /// How long the other level was measured.
    pub(super) fn away_ns(&self) -> u64 {
        self.away_ns
    }

    /// Takes in what the held level has shown after that.
    pub(super) fn home(&mut self, rate: Rate) {
        if let Some(away) = self.away.take() {
            let beside = self.home.between(rate);
            let ratio = u128::from(away.0) * 1000 / u128::from(beside.0.max(1));
            self.ratios.push(u64::try_from(ratio).unwrap_or(u64::MAX).min(1_000_000));
        }
        self.home = rate;
    }

    /// Thousandths of the held level's rate that the other has, on average.
    pub(super) fn mean(&self) -> u64 {
        self.ratios.iter().sum::<u64>() / self.ratios.len().max(1) as u64
    }

    /// How far off the mean may be: twice its standard error, taken from the mean distance.
    fn doubt(&self) -> u64 {
        let count = self.ratios.len().max(1) as u64;
        let mean = self.mean();
        let distance = self.ratios.iter().map(|ratio| ratio.abs_diff(mean)).sum::<u64>() / count;
        5 * distance / (2 * count.isqrt())
    }

    /// Whether the other level has at least so many thousandths of the held one. What stays unclear
    /// to the end is `lenient`: more likely than not is enough; or it is not.
    pub(super) fn verdict(&self, thousandths: u64, lenient: bool) -> Verdict {
        if self.away.is_some() || self.ratios.len() < PAIRS_MIN {
            return Verdict::Unclear;
        }
        let (mean, doubt) = (self.mean(), self.doubt());
        if mean >= thousandths + doubt {
            Verdict::Enough
        } else if mean + doubt < thousandths {
            Verdict::TooLittle
        } else if self.ratios.len() < PAIRS_MAX {
            Verdict::Unclear
        } else if lenient && mean >= thousandths {
            Verdict::Enough
        } else {
            Verdict::TooLittle
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn after(pairs: &[(u64, u64)], thousandths: u64, lenient: bool) -> Verdict {
        let mut all = Pairs::new(Rate(1_000_000));
        for &(away, home) in pairs {
            all.away(Rate(away * 1000), 1);
            all.home(Rate(home * 1000));
        }
        all.verdict(thousandths, lenient)
    }

    #[test]
    fn what_is_clear_is_told_soon_and_what_is_not_later() {
        assert_eq!(after(&[(1100, 1000); 2], 1015, false), Verdict::Unclear);
        assert_eq!(after(&[(1100, 1000); 3], 1015, false), Verdict::Enough);
        assert_eq!(after(&[(1000, 1000); 3], 1015, false), Verdict::TooLittle);
        let moody = [(1110, 1000), (940, 1000), (1050, 1000)];
        assert_eq!(after(&moody, 1015, false), Verdict::Unclear);
        let all: Vec<_> = moody.into_iter().cycle().take(8).collect();
        assert_eq!(after(&all, 1015, false), Verdict::TooLittle);
        assert_eq!(after(&all, 1015, true), Verdict::Enough);
    }

    #[test]
    fn a_mood_that_lasts_cancels_out() {
        // Both fall by a tenth in the middle.
        let pairs = [(1020, 1000), (1020, 1000), (918, 900), (918, 900)];
        assert_eq!(after(&pairs[..2], 1015, false), Verdict::Unclear);
        let rates = after(&[(1020, 1000), (1020, 1000), (1020, 1000)], 1015, false);
        assert_eq!(rates, Verdict::Enough);
        assert_ne!(after(&pairs, 1015, true), Verdict::TooLittle);
    }
}
