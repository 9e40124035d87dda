//! Student's distribution: the error of a mean of few samples. Pure.

use statrs::distribution::{ContinuousCDF as _, StudentsT};
use statrs::function::beta::checked_beta_reg;

/// The probability that a value is at least as far from zero as `t`, in either direction, with
/// these degrees of freedom; 1 if either is no number.
#[must_use]
pub fn tail(t: f64, freedom: f64) -> f64 {
    let distribution = StudentsT::new(0.0, 1.0, freedom).ok().filter(|_| !t.is_nan());
    distribution.map_or(1.0, |distribution| 2.0 * distribution.sf(t.abs()))
}

/// The distance from zero that a value exceeds with probability `tail`.
#[must_use]
pub fn quantile(tail: f64, freedom: f64) -> f64 {
    let distribution = StudentsT::new(0.0, 1.0, freedom);
    distribution.map_or(f64::INFINITY, |distribution| distribution.inverse_cdf(1.0 - tail / 2.0))
}

/// The share of the beta distribution of `a` and `b` below `x`.
#[must_use]
pub fn beta_share(x: f64, a: f64, b: f64) -> f64 {
    checked_beta_reg(a, b, x.clamp(0.0, 1.0)).unwrap_or(1.0)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Compares with the tables of textbooks.
    #[test]
    fn quantiles_are_those_of_the_tables() {
        for (freedom, of_twenty, of_hundred) in [
            (1.0, 12.706, 63.657),
            (2.0, 4.303, 9.925),
            (4.0, 2.776, 4.604),
            (10.0, 2.228, 3.169),
            (30.0, 2.042, 2.750),
            (1e6, 1.960, 2.576),
        ] {
            assert!((quantile(0.05, freedom) - of_twenty).abs() < 6e-4, "{freedom}");
            assert!((quantile(0.01, freedom) - of_hundred).abs() < 6e-4, "{freedom}");
        }
        assert!((tail(1.0, 1.0) - 0.5).abs() < 1e-12);
        assert_eq!(
            (tail(f64::INFINITY, 3.0), tail(f64::NAN, 3.0), tail(0.0, 3.0)),
            (0.0, 1.0, 1.0)
        );
        assert!((beta_share(0.5, 7.5, 7.5) - 0.5).abs() < 1e-12);
        // With `b` = 1 it is a power.
        assert!((beta_share(0.3, 3.0, 1.0) - 0.027).abs() < 1e-12);
    }

    proptest! {
        #[test]
        fn a_share_grows_with_its_place(
            x in 0.0..1.0_f64, more in 0.0..0.5_f64, a in 0.5..2000.0_f64, b in 0.5..2000.0_f64
        ) {
            let (one, two) = (beta_share(x, a, b), beta_share((x + more).min(1.0), a, b));
            prop_assert!((0.0..=1.0).contains(&one) && one <= two + 1e-10, "{one} {two}");
            prop_assert!((one + beta_share(1.0 - x, b, a) - 1.0).abs() < 1e-9);
        }

        #[test]
        fn a_quantile_has_its_tail(chance in 1e-6..0.5_f64, freedom in 1.0..500.0_f64) {
            let t = quantile(chance, freedom);
            prop_assert!((tail(t, freedom) / chance - 1.0).abs() < 1e-6);
        }
    }
}
