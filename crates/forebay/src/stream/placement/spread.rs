//! Which layers are taken out of many, so that none is far from the next.

/// So many of these, spread evenly; where they are unlike, evenly by `weight`, so that those with
/// more of it are taken first of all. In the order of `layers`.
pub(super) fn spread(layers: &[usize], count: usize, weight: impl Fn(usize) -> f64) -> Vec<usize> {
    let weights: Vec<f64> = layers.iter().map(|&layer| weight(layer)).collect();
    if weights.windows(2).all(|two| two[0] == two[1]) {
        let place = |index: usize| (2 * index + 1) * layers.len() / (2 * count);
        return (0..count).map(|index| layers[place(index)]).collect();
    }
    let (is_sure, left, rest) = sure(&weights, count);
    let unsure = is_sure.iter().filter(|&&is_sure| !is_sure).count();
    let (mut sum, mut chosen) = (0.0_f64, Vec::with_capacity(count));
    for ((&layer, &weight), &is_sure) in layers.iter().zip(&weights).zip(&is_sure) {
        let share = if rest > 0.0 { weight / rest } else { 1.0 / unsure as f64 };
        let before = (sum + 0.5).floor();
        sum += if is_sure { 0.0 } else { share * left as f64 };
        if is_sure || (sum + 0.5).floor() > before {
            chosen.push(layer);
        }
    }
    chosen.truncate(count);
    chosen
}

/// Which ones have so much of the weight that they are taken whatever the others are; how many are
/// left to be taken, and the weight of the others.
fn sure(weights: &[f64], count: usize) -> (Vec<bool>, usize, f64) {
    let mut is_sure = vec![false; weights.len()];
    loop {
        let left = count - is_sure.iter().filter(|&&is_sure| is_sure).count();
        let others = weights.iter().zip(&is_sure).filter(|&(_, &is_sure)| !is_sure);
        let rest: f64 = others.map(|(weight, _)| weight).sum();
        let mut more = 0;
        for (weight, is_sure) in weights.iter().zip(&mut is_sure) {
            if !*is_sure && more < left && *weight > 0.0 && weight * left as f64 >= rest {
                *is_sure = true;
                more += 1;
            }
        }
        if more == 0 {
            return (is_sure, left, rest);
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn gaps_are_even_and_weight_counts() {
        let layers: Vec<usize> = (0..8).collect();
        assert_eq!(spread(&layers, 2, |_| 1.0), [2, 6]);
        assert_eq!(spread(&layers, 4, |_| 0.0), [1, 3, 5, 7]);
        let odd = |layer: usize| if layer % 2 == 1 { 1.0 } else { 0.0 };
        assert_eq!(spread(&layers, 4, odd), [1, 3, 5, 7]);
        assert_eq!(spread(&layers, 2, odd), [1, 5]);
        assert_eq!(spread(&layers, 2, |layer| if layer == 3 { 9.0 } else { 1.0 }), [3, 4]);
    }

    proptest! {
        #[test]
        fn each_is_taken_once_and_no_more_than_asked(
            weights in
                prop::collection::vec(prop_oneof![Just(0.0), 0.0..9.0_f64, Just(4.0)], 1..40),
            share in 0.0..=1.0_f64,
        ) {
            let layers: Vec<usize> = (0..weights.len()).collect();
            let most = share * layers.len() as f64;
            let count = (0..=layers.len()).take_while(|&n| n as f64 <= most).count() - 1;
            let chosen = spread(&layers, count, |layer| weights[layer]);
            prop_assert!(chosen.windows(2).all(|two| two[0] < two[1]));
            // Sums of weights are rounded.
            prop_assert!(chosen.len() <= count && chosen.len() + 1 >= count, "{chosen:?}");
            if count == layers.len() {
                prop_assert_eq!(chosen, layers);
            }
        }
    }
}
