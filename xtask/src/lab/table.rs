//! The table that a person reads.

use super::found::Row;

/// Columns of the route, whose reason is shown in full elsewhere.
const ROUTE_LEN: usize = 44;

/// The rows as lines, with aligned columns and differences below their row.
pub(crate) fn lines(rows: &[Row]) -> Vec<String> {
    let cells: Vec<[String; 6]> = rows.iter().map(cells).collect();
    let head =
        ["situation", "path", "drives found", "expected", "bytes", "route"].map(str::to_owned);
    let widths: Vec<usize> = (0..head.len())
        .map(|column| {
            let all = cells.iter().chain([&head]).map(|row| row[column].chars().count());
            all.max().unwrap_or_default()
        })
        .collect();
    let line = |cells: &[String; 6]| {
        let cells = cells.iter().zip(&widths).map(|(cell, width)| format!("{cell:<width$}"));
        cells.collect::<Vec<_>>().join("  ").trim_end().to_owned()
    };
    let mut lines = vec![line(&head)];
    for (row, cells) in rows.iter().zip(&cells) {
        lines.push(line(cells));
        lines.extend(row.differences.iter().map(|text| format!("    differs: {text}")));
    }
    lines
}

fn cells(row: &Row) -> [String; 6] {
    let expected =
        if row.expected == row.found { "the same".into() } else { row.expected.join(" ") };
    [
        row.situation.clone(),
        row.path.clone(),
        row.found.join(" "),
        expected,
        row.bytes.clone(),
        row.route.chars().take(ROUTE_LEN).collect(),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_stand_below_each_other() {
        let row = |situation: &str, differences: &[&str]| Row {
            situation: situation.into(),
            found: vec!["A".into(), "B".into()],
            expected: vec!["A".into(), "B".into()],
            bytes: "right".into(),
            differences: differences.iter().map(|&text| text.into()).collect(),
            ..Row::default()
        };
        let lines = lines(&[row("md", &[]), row("a longer one", &["layout x"])]);
        assert_eq!(lines[1], "md                  A B           the same  right");
        assert_eq!(lines[3], "    differs: layout x");
    }
}
