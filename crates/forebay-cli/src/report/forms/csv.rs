//! A table as CSV (RFC 4180).

use crate::report::grid::{Cell, Grid};
use crate::report::plain::plain;

/// The table, with a line of keys.
#[must_use]
pub fn text(grid: &Grid) -> String {
    let keys = grid.columns.iter().map(|column| field(&column.key));
    let mut text = line(keys);
    for row in &grid.rows {
        text.push_str(&line(row.iter().map(cell)));
    }
    text
}

fn line(fields: impl Iterator<Item = String>) -> String {
    fields.collect::<Vec<_>>().join(",") + "\r\n"
}

fn cell(cell: &Cell) -> String {
    // For whole numbers the text has all digits.
    match cell.number {
        Some(_) if cell.text.bytes().all(|byte| byte.is_ascii_digit()) => cell.text.clone(),
        Some(number) => number.to_string(),
        None => field(&cell.text),
    }
}

/// Characters that begin a formula in a spreadsheet, in either width.
const FORMULA: [char; 8] = ['=', '+', '-', '@', '＝', '＋', '－', '＠'];

/// A field without control characters, quoted if needed. Text that a spreadsheet would take for a
/// formula gets a leading apostrophe: names in results are external.
fn field(text: &str) -> String {
    let text = plain(text);
    let shown = if text.starts_with(FORMULA) { format!("'{text}") } else { text };
    if shown.contains([',', '"']) { format!("\"{}\"", shown.replace('"', "\"\"")) } else { shown }
}

#[cfg(test)]
pub(crate) mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::report::digest::gather::tests::digest_of;
    use crate::report::grid::{Column, full};
    use crate::report::made::{self, Sweep};

    /// The fields of a text, as RFC 4180 has them.
    pub(crate) fn parsed(text: &str) -> Vec<Vec<String>> {
        let (mut rows, mut row, mut field) = (Vec::new(), Vec::new(), String::new());
        let mut letters = text.chars().peekable();
        let mut quoted = false;
        while let Some(letter) = letters.next() {
            match letter {
                '"' if quoted && letters.peek() == Some(&'"') => {
                    letters.next();
                    field.push('"');
                }
                '"' => quoted = !quoted,
                ',' if !quoted => row.push(std::mem::take(&mut field)),
                '\r' if !quoted && letters.peek() == Some(&'\n') => {
                    letters.next();
                    row.push(std::mem::take(&mut field));
                    rows.push(std::mem::take(&mut row));
                }
                letter => field.push(letter),
            }
        }
        rows
    }

    #[test]
    fn every_number_is_there_to_the_last_digit() {
        let digest = digest_of(&[("a", &made::file(&Sweep { fails: 7, ..Sweep::default() }))]);
        let rows = parsed(&text(&full::results(&digest)));
        assert_eq!(rows.len(), 16);
        let at = |key: &str| rows[0].iter().position(|other| other == key).unwrap();
        for (row, line) in rows[1..].iter().zip(&digest.lines) {
            assert_eq!(row.len(), rows[0].len());
            let rate: Option<f64> = row[at("bytes_per_second")].parse().ok();
            assert_eq!(rate, line.rate());
            assert_eq!(row[at("bytes")], line.bytes.to_string());
        }
        assert_eq!(
            (&rows[1][at("request_size")], &rows[1][at("depth")]),
            (&"65536".to_owned(), &"1".to_owned())
        );
        assert_eq!(rows[7][at("error")], "cannot read: input/output error");
    }

    #[test]
    fn no_cell_acts() {
        for text in ["＝1", "＋1", "－1", "＠1", "=1"] {
            assert_eq!(field(text), format!("'{text}"));
        }
        assert_eq!(field("a\n\u{9b}b,\u{202e}"), r#""a\n\u{9b}b,\u{202e}""#);
    }

    proptest! {
        #[test]
        fn any_text_is_one_field_and_no_formula(
            texts in prop::collection::vec(any::<String>(), 1..5)
        ) {
            let columns = texts.iter().map(|text| Column::text(text.clone(), "")).collect();
            let cells = texts.iter().map(Cell::text).collect();
            let grid = Grid { columns, rows: vec![cells], ..Grid::default() };
            let rows = parsed(&text(&grid));
            prop_assert_eq!(rows.len(), 2);
            for (field, given) in rows.concat().iter().zip(texts.iter().chain(&texts)) {
                let given = plain(given);
                prop_assert_eq!(field.trim_start_matches('\''), given.trim_start_matches('\''));
                prop_assert!(!field.starts_with(FORMULA));
            }
        }
    }
}
