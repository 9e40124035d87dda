//! Notes on the rows of a comparison, each with the next thing to try.

use super::json::CompareRow;
use crate::report::compared::runs::Judgement;
use crate::report::json::Row;
use crate::report::warnings::{SECONDS_MIN, Warning, name_of};

/// Wrong data, runs that are too short, and runs that vary too much.
pub(super) fn about(rows: &[CompareRow], runs: u32) -> Vec<Warning> {
    let name = |row: &Row| name_of(row, None, false);
    let mut warnings = Vec::new();
    let (mut short, mut unstable, mut most) = (Vec::new(), Vec::new(), 0.0_f64);
    for CompareRow { row, runs } in rows {
        if row.verified == Some(false) {
            warnings.push(Warning::Wrong { row: name(row) });
        }
        if row.seconds.iter().any(|seconds| *seconds < SECONDS_MIN) {
            short.push(name(row));
        } else if let (Some(Judgement::Unstable), Some(variation)) =
            (runs.judgement, runs.variation)
        {
            unstable.push(name(row));
            most = most.max(variation);
        }
    }
    if !short.is_empty() {
        warnings.push(Warning::Short { rows: short });
    }
    if !unstable.is_empty() {
        warnings.push(Warning::Unstable { rows: unstable, variation: most, runs });
    }
    warnings
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::compared::runs::Runs;
    use crate::report::json::tests::report;

    fn rows() -> Vec<CompareRow> {
        let rows = report().results.into_iter().filter(|row| !row.method.is_ceiling());
        let row = |row: Row| CompareRow { runs: Runs::of(row.bytes, &row.seconds).unwrap().0, row };
        rows.map(row).collect()
    }

    #[test]
    fn quiet_rows_say_nothing() {
        assert_eq!(about(&rows(), 3), []);
    }

    #[test]
    fn rows_that_mislead_are_named() {
        let mut rows = rows();
        (rows[0].row.verified, rows[0].runs.variation) = (Some(false), Some(1.2));
        rows[0].runs.judgement = Some(Judgement::Unstable);
        rows[1].row.seconds[2] = 0.001;
        // A run that is too short gets no other note.
        rows[1].runs = Runs { variation: Some(3.0), ..rows[0].runs };
        let (first, second) = ("`standard` read, cold", "`forebay` read, resident");
        assert_eq!(
            about(&rows, 3),
            [
                Warning::Wrong { row: first.into() },
                Warning::Short { rows: vec![second.into()] },
                Warning::Unstable { rows: vec![first.into()], variation: 1.2, runs: 3 },
            ]
        );
    }
}
