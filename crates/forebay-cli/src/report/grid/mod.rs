//! Tables for any output format: headings, and cells with a text and a number.

pub mod full;
pub mod layers;
pub mod people;

/// A table.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Grid {
    /// Its caption.
    pub caption: String,
    /// Its columns.
    pub columns: Vec<Column>,
    /// Its rows; each has a cell for each column.
    pub rows: Vec<Vec<Cell>>,
    /// How many rows were left out.
    pub left_out: usize,
}

impl Grid {
    /// Removes columns without values.
    #[must_use]
    pub fn without_empty(self) -> Self {
        let used = |column: usize| self.rows.iter().any(|row| !row[column].text.is_empty());
        let kept: Vec<bool> = (0..self.columns.len()).map(used).collect();
        let keep = |index: &usize| kept[*index];
        let only = |cells: Vec<Cell>| {
            cells.into_iter().enumerate().filter(|(at, _)| keep(at)).map(|(_, cell)| cell).collect()
        };
        let columns = self.columns.into_iter().enumerate();
        Self {
            columns: columns.filter(|(at, _)| keep(at)).map(|(_, column)| column).collect(),
            rows: self.rows.into_iter().map(only).collect(),
            ..self
        }
    }
}

/// A column.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Column {
    /// Its name for programs, which includes the unit of numbers.
    pub key: String,
    /// Its name for people.
    pub heading: String,
    /// Whether it holds numbers.
    pub number: bool,
}

impl Column {
    /// A column of text.
    #[must_use]
    pub fn text(key: impl Into<String>, heading: impl Into<String>) -> Self {
        Self { key: key.into(), heading: heading.into(), number: false }
    }

    /// A column of numbers.
    #[must_use]
    pub fn number(key: impl Into<String>, heading: impl Into<String>) -> Self {
        Self { number: true, ..Self::text(key, heading) }
    }
}

/// A cell.
#[derive(Debug, Clone, PartialEq)]
pub struct Cell {
    /// The text for people; may be empty.
    pub text: String,
    /// The number for programs, in the unit of the column's key.
    pub number: Option<f64>,
}

impl Cell {
    /// An empty cell.
    #[must_use]
    pub const fn empty() -> Self {
        Self { text: String::new(), number: None }
    }

    /// A cell with text.
    #[must_use]
    pub fn text(text: impl Into<String>) -> Self {
        Self { text: text.into(), number: None }
    }

    /// A cell with a number, and its text for people.
    #[must_use]
    pub fn number(number: f64, text: impl Into<String>) -> Self {
        Self { text: text.into(), number: Some(number).filter(|number| number.is_finite()) }
    }

    /// A cell with a number, or an empty one.
    #[must_use]
    pub fn maybe(number: Option<f64>) -> Self {
        let number = number.filter(|number| number.is_finite());
        number.map_or_else(Self::empty, |number| Self::number(number, number.to_string()))
    }
}
