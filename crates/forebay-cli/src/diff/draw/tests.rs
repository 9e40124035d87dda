//! The picture of a ratio.

use super::*;

#[test]
fn a_line_stands_around_one() {
    let scale = 2.0_f64.ln();
    assert_eq!(drawn(1.0, Some((1.0, 1.0)), scale, 9), "    ●    ");
    assert_eq!(drawn(2.0, Some((1.0, 4.0)), scale, 9), "    ┼───●");
    assert_eq!(drawn(0.71, Some((0.5, 0.8)), scale, 9), "──●─│    ");
    assert_eq!(drawn(1.2, Some((0.1, 9.0)), scale, 9), "‹───┼●──›");
    assert_eq!(drawn(0.5, None, scale, 9), "●   │    ");
    assert_eq!(drawn(f64::NAN, Some((0.0, f64::INFINITY)), scale, 9).chars().count(), 9);
}

#[test]
fn ratios_are_told_to_a_thousandth() {
    assert_eq!(ratio_text(1.2345, Some((1.0, 2.5))), "1.234 (1.000–2.500)");
    assert_eq!(ratio_text(31.04, None), "31.0");
    assert_eq!(ratio_text(0.001, Some((1e-9, 1e9))), "0.001 (1.0e-9–1.00e9)");
}

proptest::proptest! {
    #[test]
    fn a_picture_has_its_width(
        ratio: f64, low: f64, high: f64, scale in 0.02..50.0_f64, half in 7..20_usize
    ) {
        let interval = (low <= high).then_some((low, high));
        let text = drawn(ratio, interval, scale, 2 * half + 1);
        proptest::prop_assert_eq!(text.chars().count(), 2 * half + 1);
        proptest::prop_assert!(text.contains('●'));
    }
}
