//! Layers behind compute, as `forebay.stream_bench --out` writes them: one table.

use serde::Deserialize;
use serde_json::Value;

use super::grid::{Cell, Column, Grid};
use super::numbers::{digits, percent, time_text};
use super::plain::cut;
use std::collections::BTreeMap;

/// The newest `layers_schema` that is read.
const SCHEMA: u64 = 6;
/// Most letters of a text that is kept.
const TEXT_MAX: usize = 1000;

/// The results of one run.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
pub struct Layers {
    /// Its unique name; the file has none.
    #[serde(skip)]
    pub name: String,
    /// Whether the GPU was simulated.
    #[serde(default)]
    pub simulated: bool,
    /// Why it ended early.
    pub failed: Option<String>,
    #[serde(default)]
    command: Vec<String>,
    layer_bytes: u64,
    layers: u64,
    from: String,
    order: String,
    points: Vec<Point>,
}

/// A number of tokens.
#[derive(Debug, Clone, PartialEq, Deserialize)]
struct Point {
    tokens: u64,
    compute_s: f64,
    ways: BTreeMap<String, Method>,
}

/// The times of a method's passes.
#[derive(Debug, Clone, PartialEq, Deserialize)]
struct Method {
    pass_s: f64,
    line_s: f64,
    stall_s: Option<f64>,
    cpu_s_per_gb: f64,
}

/// Whether an object holds such results.
#[must_use]
pub fn is_layers(value: &Value) -> bool {
    let has = |key| value.get(key).is_some();
    has("layers_schema") || (has("layer_bytes") && has("points") && !has("results"))
}

/// Reads an object.
///
/// # Errors
/// It is of another version, or something is missing or impossible; the text says what.
pub fn read(value: Value) -> Result<Layers, String> {
    let version = value.get("layers_schema").map(|version| version.as_u64().unwrap_or(0));
    if let Some(version) = version.filter(|version| !(1..=SCHEMA).contains(version)) {
        return Err(format!("it has version {version}, and this program reads 1 to {SCHEMA}"));
    }
    let mut found: Layers = serde_json::from_value(value).map_err(|why| why.to_string())?;
    found.failed = found.failed.map(|why| cut(&why, TEXT_MAX));
    for point in &found.points {
        for (name, method) in &point.ways {
            for (key, seconds) in [
                ("compute_s", point.compute_s),
                ("pass_s", method.pass_s),
                ("line_s", method.line_s),
            ] {
                if !(seconds.is_finite() && seconds > 0.0) {
                    return Err(format!("`{key}` of `{name}` is {seconds}, and not more than 0"));
                }
            }
        }
    }
    Ok(found)
}

impl Layers {
    /// Whether there is nothing to show.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.points.is_empty() && self.failed.is_none()
    }

    /// The command, and what was measured.
    #[must_use]
    pub fn about(&self) -> [String; 2] {
        #[expect(clippy::cast_precision_loss, reason = "a size in MB")]
        let size = digits(self.layer_bytes as f64 * 1e-6);
        let about =
            format!("{} layers of {size} MB, {}, from {}", self.layers, self.order, self.from);
        [cut(&self.command.join(" "), TEXT_MAX), about]
    }

    /// The times of each method at each number of tokens. A pass over its ideal is the part that
    /// compute does not hide.
    #[must_use]
    pub fn grid(&self) -> Grid {
        let columns = vec![
            Column::number("tokens", 0),
            Column::text("method", 0),
            Column::number("compute", 2),
            Column::number("pass", 0),
            Column::number("ideal", 1),
            Column::number("over ideal", 1),
            Column::number("over compute", 1),
            Column::number("stall", 2),
            Column::number("CPU s/GB", 3),
        ];
        let over = |part: f64, whole: f64| Cell::number(Some(part / whole - 1.0), percent);
        #[expect(clippy::cast_precision_loss, reason = "a count of tokens")]
        let row = |point: &Point, (name, method): (&String, &Method)| {
            let time = |seconds| Cell::number(Some(seconds), time_text);
            vec![
                Cell { text: point.tokens.to_string(), number: Some(point.tokens as f64) },
                Cell::text(name),
                time(point.compute_s),
                time(method.pass_s),
                time(method.line_s),
                over(method.pass_s, method.line_s),
                over(method.pass_s, point.compute_s),
                Cell::number(method.stall_s, time_text),
                Cell::number(Some(method.cpu_s_per_gb), digits),
            ]
        };
        let rows =
            self.points.iter().flat_map(|point| point.ways.iter().map(move |one| row(point, one)));
        Grid { columns, rows: rows.collect(), ..Grid::default() }
    }
}
