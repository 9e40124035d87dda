//! Whether a rate was steady. Pure.
//!
//! Judged as by `fio`: a straight line is fitted to the rates of equal parts of a span, by least
//! squares. If it hardly rises or falls, the rate is steady.

use crate::results::Steady;
use crate::stats::float;

/// The line may rise or fall by this share of the mean from one end of the span to the other.
pub const SLOPE_MAX: f64 = 0.05;
/// Minimum number of parts.
pub const PARTS_MIN: usize = 4;

/// Judges the rates of parts of `part_s` seconds each; `None` if there are too few, or nothing
/// moved.
#[must_use]
pub fn judge(rates: &[f64], part_s: f64) -> Option<Steady> {
    if rates.len() < PARTS_MIN {
        return None;
    }
    let count = float(rates.len() as u64);
    let mean = rates.iter().sum::<f64>() / count;
    if mean <= 0.0 || !mean.is_finite() {
        return None;
    }
    let middle = (count - 1.0) / 2.0;
    let places = || (0..rates.len() as u64).map(|place| float(place) - middle);
    let squares: f64 = places().map(|place| place * place).sum();
    let rise: f64 = places().zip(rates).map(|(place, rate)| place * rate).sum();
    let slope = rise / squares * (count - 1.0) / mean;
    let deviation = rates.iter().map(|rate| (rate - mean).abs()).fold(0.0, f64::max) / mean;
    let reached = slope.abs() <= SLOPE_MAX;
    Some(Steady { rates: rates.to_vec(), part_s, slope, deviation, reached })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_steady_rate_is_distinguished_from_a_rising_one() {
        let still = judge(&[10.0, 10.2, 9.8, 10.0, 10.0], 0.1).unwrap();
        assert!(still.reached && still.slope.abs() < 0.02, "{still:?}");
        assert!((still.deviation - 0.02).abs() < 1e-9, "{still:?}");
        let rising = judge(&[10.0, 11.0, 12.0, 13.0, 14.0], 0.1).unwrap();
        assert!(!rising.reached);
        assert!((rising.slope - 4.0 / 12.0).abs() < 1e-9, "from 10 to 14 about 12: {rising:?}");
        let falling = judge(&[14.0, 13.0, 12.0, 11.0, 10.0], 0.1).unwrap();
        assert!((falling.slope + rising.slope).abs() < 1e-9);
    }

    #[test]
    fn a_rate_that_varies_without_a_trend_is_steady() {
        let wobbles = judge(&[10.0, 20.0, 10.0, 20.0, 20.0, 10.0, 20.0, 10.0], 0.1).unwrap();
        assert!(wobbles.reached, "{wobbles:?}");
        assert!((wobbles.deviation - 1.0 / 3.0).abs() < 1e-9);
    }

    #[test]
    fn too_few_parts_have_no_judgement() {
        assert_eq!(judge(&[1.0, 1.0, 1.0], 0.1), None);
        assert_eq!(judge(&[0.0; 8], 0.1), None);
        assert_eq!(judge(&[f64::INFINITY, 1.0, 1.0, 1.0], 0.1), None);
    }
}
