//! Assigns overlapping spans to lanes: a span gets the first free lane.

/// The lanes of spans (start and end), which must be ordered by start.
pub(super) fn lanes(spans: impl IntoIterator<Item = (u64, u64)>) -> Vec<usize> {
    let mut ends: Vec<u64> = Vec::new();
    let lane = |(start, end): (u64, u64)| {
        let free = ends.iter().position(|&end| end <= start);
        let lane = free.unwrap_or(ends.len());
        if lane == ends.len() {
            ends.push(end);
        }
        ends[lane] = end;
        lane
    };
    spans.into_iter().map(lane).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn as_many_lanes_as_run_at_once() {
        assert_eq!(lanes([(0, 10), (1, 3), (2, 5), (3, 4), (10, 11)]), [0, 1, 2, 1, 0]);
    }

    proptest! {
        #[test]
        fn no_two_of_a_lane_overlap(
            spans in proptest::collection::vec((0_u64..99, 0_u64..20), 0..50),
        ) {
            let mut spans: Vec<(u64, u64)> =
                spans.into_iter().map(|(start, len)| (start, start + len)).collect();
            spans.sort_unstable();
            let lanes = lanes(spans.iter().copied());
            for (index, &(start, _)) in spans.iter().enumerate() {
                for earlier in 0..index {
                    prop_assert!(lanes[earlier] != lanes[index] || spans[earlier].1 <= start);
                }
            }
        }
    }
}
