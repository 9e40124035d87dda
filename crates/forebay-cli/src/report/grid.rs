//! A table for any form: headings, and cells with a text and a number.
//!
//! [`Grid::fitted`] keeps the columns that fit a width, the most important first; [`Grid::csv`] has
//! all, with every digit.

use std::fmt::Write as _;

use anstyle::{AnsiColor, Color, Style};
use forebay_measure::failure::{Failure, Result};
use forebay_measure::plain::{columns, cut, padded, plain};

use super::numbers::counted;

/// Letters of a line for a terminal.
pub const WIDTH: usize = 80;
/// The rank of columns for CSV only.
pub const CSV: u8 = u8::MAX;
/// Most letters of a cell in a table of a limited width.
const CELL_MAX: usize = 30;
/// Letters of the longest and the shortest bar.
const BAR: (usize, usize) = (17, 8);
/// Letters of a section's first column, and of the columns behind the bars.
const NAME: usize = 25;
const NUMBERS: [usize; 4] = [7, 10, 11, 9];
/// Letters between two columns.
const GAP: usize = 2;

/// A table.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Grid {
    /// Its columns.
    pub columns: Vec<Column>,
    /// Its rows, with a cell per column.
    pub rows: Vec<Vec<Cell>>,
    /// The marks of the rows; empty if no row is marked.
    pub marks: Vec<Mark>,
    /// The column that bars show.
    pub bars: Option<usize>,
    /// Whether bars stand after the first column, in columns of fixed widths.
    pub is_section: bool,
    /// Number of rows that are not shown.
    pub left_out: usize,
    /// Headings of hidden columns.
    pub dropped: Vec<String>,
}

/// How a row is marked.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Mark {
    /// Not at all.
    #[default]
    None,
    /// A limit of the machine.
    Limit,
    /// The best.
    Best,
    /// Forebay's row, if it is not the best.
    Own,
    /// It moved wrong data.
    Wrong,
}

impl Mark {
    /// Its style in a terminal.
    fn style(self) -> Style {
        let coloured = |color| Style::new().bold().fg_color(Some(Color::Ansi(color)));
        match self {
            Self::None => Style::new(),
            Self::Limit => Style::new().dimmed(),
            Self::Best => coloured(AnsiColor::Green),
            Self::Own => Style::new().bold(),
            Self::Wrong => coloured(AnsiColor::Red),
        }
    }

    /// Its name in a page.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::None => "",
            Self::Limit => "limit",
            Self::Best => "best",
            Self::Own => "own",
            Self::Wrong => "wrong",
        }
    }
}

/// A column.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Column {
    /// Its heading.
    pub heading: String,
    /// Its name in CSV, with the unit of its numbers; empty if CSV lacks the column.
    pub key: String,
    /// Whether its cells are numbers.
    pub number: bool,
    /// 0 for a column that every table needs; of the others, the largest is left out first. [`CSV`]
    /// for one that only CSV has.
    pub rank: u8,
}

/// The heading of a column, its rank, and its name in CSV.
type Named<'a> = (&'a str, u8, &'a str);

impl Column {
    /// A column of numbers, or of text.
    #[must_use]
    pub fn new((heading, rank, key): Named<'_>, number: bool) -> Self {
        Self { heading: heading.into(), key: key.into(), number, rank }
    }
}

/// A cell.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Cell {
    /// Its text; may be empty.
    pub text: String,
    /// Its number, to sort by.
    pub number: Option<f64>,
    /// The least and the largest number behind it.
    pub range: Option<(f64, f64)>,
}

impl Cell {
    /// A cell without a number.
    #[must_use]
    pub fn text(text: impl Into<String>) -> Self {
        Self { text: text.into(), ..Self::default() }
    }

    /// A cell with a number, shown by `show`; empty unless the number is finite.
    #[must_use]
    pub fn number(number: Option<f64>, show: impl Fn(f64) -> String) -> Self {
        let number = number.filter(|number| number.is_finite());
        Self { text: number.map(show).unwrap_or_default(), number, range: None }
    }
}

/// Neighbouring columns, and their cells of a row.
type Columns<'a, T> = (Vec<Column>, Box<dyn Fn(&T) -> Vec<Cell> + 'a>);

/// The columns of a table, with their cells of a row.
pub(crate) struct Fields<'a, T>(Vec<Columns<'a, T>>);

impl<'a, T> Fields<'a, T> {
    /// Without columns.
    pub(crate) const fn new() -> Self {
        Self(Vec::new())
    }

    /// Adds a column of text.
    pub(crate) fn text(&mut self, named: Named<'_>, text: impl Fn(&T) -> String + 'a) {
        let cells = move |row: &T| vec![Cell::text(text(row))];
        self.add_all(vec![Column::new(named, false)], cells);
    }

    /// Adds a column of numbers, shown by `show`.
    pub(crate) fn number(
        &mut self,
        named: Named<'_>,
        number: impl Fn(&T) -> Option<f64> + 'a,
        show: impl Fn(f64) -> String + 'a,
    ) {
        let cells = move |row: &T| vec![Cell::number(number(row), &show)];
        self.add_all(vec![Column::new(named, true)], cells);
    }

    /// Adds neighbouring columns.
    pub(crate) fn add_all(&mut self, columns: Vec<Column>, cells: impl Fn(&T) -> Vec<Cell> + 'a) {
        self.0.push((columns, Box::new(cells)));
    }

    /// The table with the first `most` of the rows.
    pub(crate) fn grid(self, rows: &[T], most: usize) -> Grid {
        let (columns, cells): (Vec<_>, Vec<_>) = self.0.into_iter().unzip();
        let row = |row: &T| cells.iter().flat_map(|cells| cells(row)).collect();
        let shown: Vec<Vec<Cell>> = rows.iter().take(most).map(row).collect();
        let left_out = rows.len() - shown.len();
        Grid { columns: columns.concat(), rows: shown, left_out, ..Grid::default() }
    }
}

impl Grid {
    /// Keeps these columns.
    fn keep(&mut self, kept: &[usize]) {
        self.bars = self.bars.and_then(|bars| kept.iter().position(|at| *at == bars));
        self.columns = kept.iter().map(|at| self.columns[*at].clone()).collect();
        for row in &mut self.rows {
            *row = kept.iter().map(|at| std::mem::take(&mut row[*at])).collect();
        }
    }

    fn widths(&self) -> Vec<usize> {
        let of = |(at, column): (usize, &Column)| {
            let cells = self.rows.iter().map(|row| columns(&row[at].text));
            cells.max().unwrap_or(0).max(columns(&column.heading))
        };
        self.columns.iter().enumerate().map(of).collect()
    }

    /// The columns with a text, in at most `width` letters a line, with all texts made harmless.
    #[must_use]
    pub fn fitted(mut self, width: Option<usize>) -> Self {
        let has_text = |at: usize| self.rows.iter().any(|row| !row[at].text.is_empty());
        let is_shown =
            |at: &usize| self.is_section || (self.columns[*at].rank < CSV && has_text(*at));
        self.keep(&(0..self.columns.len()).filter(is_shown).collect::<Vec<_>>());
        let shown = |text: &str| match width {
            Some(_) if !self.is_section => cut(&plain(text), CELL_MAX),
            _ => plain(text),
        };
        for cell in self.rows.iter_mut().flatten() {
            cell.text = shown(&cell.text);
        }
        for column in &mut self.columns {
            column.heading = plain(&column.heading);
        }
        let Some(width) = width else { return self };
        if self.is_section {
            self.fit_section(width);
            return self;
        }
        loop {
            let widths = self.widths();
            let over = (widths.iter().sum::<usize>() + GAP * widths.len().saturating_sub(1))
                .saturating_sub(width);
            if over == 0 {
                return self;
            }
            let rank = |at: &usize| self.columns[*at].rank;
            let last = (0..widths.len()).filter(|at| rank(at) > 0).max_by_key(rank);
            if let Some(last) = last {
                self.dropped.insert(0, self.columns[last].heading.clone());
                self.keep(&(0..widths.len()).filter(|at| *at != last).collect::<Vec<_>>());
                continue;
            }
            // Only columns remain that name the rows: the widest is cut.
            let widest = (0..widths.len()).max_by_key(|at| widths[*at]).unwrap_or(0);
            let most = widths[widest].saturating_sub(over).max(3);
            if most >= widths[widest] {
                return self;
            }
            let column = &mut self.columns[widest];
            column.heading = cut(&column.heading, most);
            for row in &mut self.rows {
                row[widest].text = cut(&row[widest].text, most);
            }
        }
    }

    /// Hides the last columns of a section that do not fit.
    fn fit_section(&mut self, width: usize) {
        let numbers = |columns: usize| NUMBERS.iter().take(columns - 1).sum::<usize>();
        while self.columns.len() > 2 && NAME + BAR.1 - 1 + numbers(self.columns.len()) > width {
            self.dropped.insert(0, self.columns.pop().expect("there are three").heading);
            self.rows.iter_mut().for_each(|row| row.truncate(self.columns.len()));
        }
    }

    /// The table as text, `width` letters wide at most.
    #[must_use]
    pub fn drawn(self, width: Option<usize>) -> String {
        self.fitted(width).text(width)
    }

    /// A fitted table as text.
    pub(crate) fn text(&self, width: Option<usize>) -> String {
        if self.is_section {
            return self.section(width.unwrap_or(WIDTH));
        }
        let (left_out, grid) = (self.left_out, self);
        let widths = grid.widths();
        let used = widths.iter().sum::<usize>() + GAP * widths.len();
        let room = width.unwrap_or(usize::MAX).saturating_sub(used).min(BAR.0);
        let values = |row: &Vec<Cell>| grid.bars.and_then(|at| row.get(at)?.number);
        let most = grid.bars_end();
        let line = |texts: &mut dyn Iterator<Item = &str>, bar: &str| {
            let mut line = String::new();
            for ((text, column), width) in texts.zip(&grid.columns).zip(&widths) {
                let blanks = " ".repeat(width.saturating_sub(columns(text)));
                let parts = if column.number { [&blanks, text] } else { [text, &blanks] };
                line.extend(parts);
                line.push_str("  ");
            }
            line.push_str(bar);
            line.trim_end().to_owned()
        };
        let dim = Style::new().dimmed();
        let heading = line(&mut grid.columns.iter().map(|column| column.heading.as_str()), "");
        let mut text = format!("{dim}{heading}{dim:#}\n");
        for (number, row) in grid.rows.iter().enumerate() {
            let share = values(row).filter(|_| room >= BAR.1 && most > 0.0);
            let bar = share.map_or_else(String::new, |value| bar(value / most, room));
            let shown = line(&mut row.iter().map(|cell| cell.text.as_str()), &bar);
            let style = grid.mark(number).style();
            let _ = writeln!(text, "{style}{shown}{style:#}");
        }
        if left_out > 0 {
            let rows = counted(left_out, "more row");
            let _ = writeln!(text, "{rows}: `--format csv` has all");
        }
        text
    }

    /// How a row is marked.
    #[must_use]
    pub fn mark(&self, row: usize) -> Mark {
        self.marks.get(row).copied().unwrap_or_default()
    }

    /// The end of the longest bar; 0 without bars.
    #[must_use]
    pub fn bars_end(&self) -> f64 {
        let values =
            self.bars.map(|at| self.rows.iter().filter_map(move |row| row.get(at)?.number));
        values.map_or(0.0, |values| values.fold(0.0, f64::max))
    }

    /// A section: bars after the first column, then the numbers. A row without a number has the
    /// text of that cell in the place of its bar.
    fn section(&self, width: usize) -> String {
        let most = self.bars_end();
        let numbers = NUMBERS.iter().take(self.columns.len() - 1).sum::<usize>();
        let room = width.saturating_sub(NAME + numbers + 1).clamp(BAR.1 - 2, 2 * BAR.0);
        let line =
            |style: Style, name: &str, bar: &str, numbers: &mut dyn Iterator<Item = &str>| {
                let mut line = padded(&(padded(name, NAME) + bar), NAME + room + 1);
                for (text, width) in numbers.zip(NUMBERS) {
                    let _ = write!(line, "{text:>width$}");
                }
                format!("{style}{}{style:#}\n", line.trim_end())
            };
        let title = cut(&self.columns[0].heading, NAME + room);
        let headings = &mut self.columns[1..].iter().map(|column| column.heading.as_str());
        let mut text = line(Style::new().bold(), &title, "", headings);
        for (number, row) in self.rows.iter().enumerate() {
            let style = self.mark(number).style();
            let name = format!("  {}", cut(&row[0].text, NAME - 3));
            text += &match row[1].number {
                Some(rate) => {
                    let numbers = &mut row[1..].iter().map(|cell| cell.text.as_str());
                    line(style, &name, &bar(rate / most, room), numbers)
                }
                None => {
                    let why = cut(&row[1].text, width.saturating_sub(NAME));
                    line(style, &name, &why, &mut std::iter::empty())
                }
            };
        }
        text
    }

    /// Whether the columns that name the rows fit this width.
    #[must_use]
    pub fn has_room(&self, width: usize) -> bool {
        let widths = self.widths().into_iter().zip(&self.columns);
        let needed = widths.filter(|(_, column)| column.rank == 0);
        needed.map(|(own, _)| own.min(CELL_MAX) + GAP).sum::<usize>() <= width + GAP
    }

    /// All rows and all columns with a name as CSV.
    ///
    /// # Errors
    /// Errors of the writer.
    pub fn csv(&self) -> Result<String> {
        let failed = |why: String| Failure::new("cannot write CSV").because(why);
        let named = |at: &usize| !self.columns[*at].key.is_empty();
        let places: Vec<usize> = (0..self.columns.len()).filter(named).collect();
        let mut writer = csv::Writer::from_writer(Vec::new());
        let head = places.iter().map(|at| self.columns[*at].key.as_str());
        writer.write_record(head).map_err(|error| failed(error.to_string()))?;
        for row in &self.rows {
            let field = |at: &usize| match row[*at].number {
                Some(number) => number.to_string(),
                // Programs read numbers here: the column `note` says why there is none.
                None if self.columns[*at].number => String::new(),
                None => harmless(&row[*at].text),
            };
            let written = writer.write_record(places.iter().map(field));
            written.map_err(|error| failed(error.to_string()))?;
        }
        let bytes = writer.into_inner().map_err(|error| failed(error.to_string()))?;
        Ok(String::from_utf8_lossy(&bytes).into_owned())
    }
}

/// Letters that begin a formula in a spreadsheet, in either width.
const FORMULA: [char; 8] = ['=', '+', '-', '@', '＝', '＋', '－', '＠'];

/// A field that no spreadsheet evaluates as a formula: names in results are untrusted.
fn harmless(field: &str) -> String {
    let text = plain(field);
    let is_number = text.parse::<f64>().is_ok();
    if text.starts_with(FORMULA) && !is_number { format!("'{text}") } else { text }
}

/// A bar by eighths of a letter.
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    clippy::cast_precision_loss,
    reason = "a number of eighths of a bar"
)]
pub(crate) fn bar(share: f64, width: usize) -> String {
    const EIGHTHS: [&str; 8] = ["", "▏", "▎", "▍", "▌", "▋", "▊", "▉"];
    let share = if share.is_finite() { share.clamp(0.0, 1.0) } else { 0.0 };
    let eighths = (share * width as f64 * 8.0).round() as usize;
    "█".repeat(eighths / 8) + EIGHTHS[eighths % 8]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn grid() -> Grid {
        let columns = vec![
            Column::new(("point", 0, ""), false),
            Column::new(("GB/s", 0, ""), true),
            Column::new(("p50", 1, ""), true),
            Column::new(("a long heading", 2, ""), false),
        ];
        let row = |name: &str, rate: f64| {
            let number = |number| Cell::number(Some(number), |number| format!("{number:.1}"));
            vec![Cell::text(name), number(rate), number(3.0), Cell::text("x")]
        };
        let rows = vec![row("one", 1.0), row("two\n", 2.0)];
        let marks = vec![Mark::None, Mark::Best];
        Grid { columns, rows, marks, bars: Some(1), ..Grid::default() }
    }

    #[test]
    fn columns_are_left_out_until_the_table_fits() {
        let drawn = |width| anstream::adapter::strip_str(&grid().drawn(width)).to_string();
        insta::assert_snapshot!(drawn(Some(60)), @r"
        point  GB/s  p50  a long heading
        one     1.0  3.0  x               ████████▌
        two\n   2.0  3.0  x               █████████████████
        ");
        assert!(drawn(Some(20)).starts_with("point  GB/s  p50\none  "), "{}", drawn(Some(20)));
        for width in [1, 9, 12, 30] {
            let most = drawn(Some(width)).lines().map(|line| line.chars().count()).max().unwrap();
            assert!(most <= width.max(3 + 3 + GAP), "{width}: {most}");
        }
    }

    #[test]
    fn csv_has_every_digit_and_no_formula() {
        let mut grid = grid();
        grid.columns[0].key = "point".into();
        grid.columns[1].key = "rate".into();
        (grid.rows[0][0].text, grid.rows[1][1].number) = ("=1+1".into(), Some(0.1));
        assert_eq!(grid.csv().unwrap(), "point,rate\n'=1+1,1\ntwo\\n,0.1\n");
        assert_eq!(["=1+1", "-5", "-x", "＠a"].map(harmless), ["'=1+1", "-5", "'-x", "'＠a"]);
    }

    proptest::proptest! {
        #[test]
        fn a_longer_bar_is_more(low in 0.0..1.0_f64, high: f64) {
            let letters = |share| bar(share, BAR.0).chars().count();
            proptest::prop_assert!(letters(high) <= BAR.0);
            let is_more = high >= low && high.is_finite();
            proptest::prop_assert!(!is_more || letters(low) <= letters(high));
        }
    }
}
