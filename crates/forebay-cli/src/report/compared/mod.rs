//! The findings of `forebay compare` besides the rates of its methods: the first run separately,
//! the variation of the others, whether bytes went by DMA, the GPU's own work, and the location of
//! GPU and drives.
//!
//! [`facts`] and [`runs`] are its data. [`said`] puts them into words, for reports and for `forebay
//! compare`. [`read`] parses them from a file, which is not trusted.

pub mod facts;
pub mod read;
pub mod runs;
pub mod said;

use self::facts::{ComputeFacts, Sockets};
use self::runs::Judgement;
use self::said::Said;
use super::json::{Direction, MethodName, Row};

/// The findings of one run of `forebay compare`.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Comparison {
    /// The index of its run in the digest; the lines of that run are its rows.
    pub run: usize,
    /// `compare`, `dma` or `all`.
    pub mode: String,
    /// Runs of each method.
    pub runs: Option<u64>,
    /// The bytes of each run.
    pub each_run: Option<Said>,
    /// The location of GPU and drives.
    pub topology: Option<Sockets>,
    /// How many drives are left out there.
    pub drives_left_out: usize,
    /// Whether bytes went by DMA, in each direction.
    pub dma: Vec<Said>,
    /// The GPU's own work.
    pub compute: Option<ComputeFacts>,
    /// True if that, or a concurrent read, found wrong data.
    pub compute_wrong: bool,
    /// Parts that are left out as invalid, and why.
    pub refused: Vec<String>,
}

/// The runs of one method in one direction, as far as they were reported. Rates are bytes per
/// second.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Told {
    /// The first run's rate.
    pub first: Option<f64>,
    /// The mean of the other runs.
    pub mean: Option<f64>,
    /// The range of these, as a share of their mean.
    pub variation: Option<f64>,
}

impl Told {
    /// The variation of the runs, in a word.
    #[must_use]
    pub fn judgement(&self) -> Option<Judgement> {
        self.variation.map(Judgement::of)
    }

    /// The variation in words, with its number.
    #[must_use]
    pub fn variation_text(&self) -> Option<String> {
        Some(said::variation(self.variation?, self.judgement()?))
    }
}

impl Comparison {
    /// Adds the sentences on its rows.
    pub(crate) fn take(&mut self, rows: &[Row]) {
        let ways = || rows.iter().filter(|row| !row.method.is_ceiling());
        let first = ways().find_map(|row| Some((row, row.cache?)));
        let simulated = ways().any(|row| row.simulated);
        self.each_run = first.map(|(row, cache)| said::each_run(row.bytes, cache, simulated));
        let directions = [Direction::Write, Direction::Read].into_iter();
        self.dma = directions.filter_map(|direction| said::dma(rows, direction)).collect();
    }

    /// All sentences, in the order in which `compare` prints them.
    #[must_use]
    pub fn sentences(&self) -> Vec<Said> {
        let mut found: Vec<Said> = self.topology.iter().flat_map(said::distances).collect();
        if self.drives_left_out > 0 {
            found.push(("distance", format!("{} more drives are left out", self.drives_left_out)));
        }
        found.extend(self.each_run.clone());
        found.extend(self.dma.iter().cloned());
        found.extend(self.compute.iter().flat_map(said::compute));
        found
    }

    /// Whether it has findings without a row.
    #[must_use]
    pub fn says_something(&self) -> bool {
        self.compute.is_some() || self.compute_wrong
    }
}

/// Whether a method is the baseline of the others.
#[must_use]
pub fn is_standard(way: Option<&str>) -> bool {
    way == Some(MethodName::Standard.name())
}
