//! How long the stages of a read took, as a table for people.

use super::json::{Stage, Stages};
use crate::report::table::drawn;

const HEADINGS: [&str; 6] = ["stage", "count", "median", "p99", "longest", "total"];

/// The table; one line if nothing was counted.
pub(super) fn render(stages: &Stages) -> String {
    if stages.named().iter().all(|(_, stage)| stage.count == 0) {
        let text = "none: the calling thread moves small requests itself";
        return format!("{:<9}{text}\n", "stages");
    }
    let rows = stages.named().map(|(name, Stage { count, p50_s, p99_s, max_s, sum_s })| {
        let times = [p50_s, p99_s, max_s, (count > 0).then_some(sum_s)];
        let times = times.map(|seconds| seconds.map_or_else(|| "–".to_owned(), time));
        [name.to_owned(), count.to_string()].into_iter().chain(times)
    });
    format!("\n{}", drawn(HEADINGS, rows, |index| index > 0))
}

/// A time with three significant digits.
fn time(seconds: f64) -> String {
    let (value, unit) = match seconds {
        1.0.. => (seconds, "s"),
        1e-3.. => (seconds * 1e3, "ms"),
        _ => (seconds * 1e6, "µs"),
    };
    match value {
        100.0.. => format!("{value:.0} {unit}"),
        10.0.. => format!("{value:.1} {unit}"),
        _ => format!("{value:.2} {unit}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_counted_is_a_table() {
        let none = Stage { count: 0, p50_s: None, p99_s: None, max_s: None, sum_s: 0.0 };
        let file = Stage {
            count: 1234,
            p50_s: Some(0.000_012_34),
            p99_s: Some(0.123_4),
            max_s: Some(12.34),
            sum_s: 123.4,
        };
        let stages = Stages { slot_wait: none, file, link_wait: none, copy: none };
        insta::assert_snapshot!(render(&stages), @"

        stage              count   median     p99  longest  total
        wait for a slot        0        –       –        –      –
        request             1234  12.3 µs  123 ms   12.3 s  123 s
        wait for the link      0        –       –        –      –
        copy                   0        –       –        –      –
        ");
        let stages = Stages { file: none, ..stages };
        assert_eq!(
            render(&stages),
            "stages   none: the calling thread moves small requests itself\n"
        );
    }
}
