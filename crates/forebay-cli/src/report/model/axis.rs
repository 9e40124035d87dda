//! The values of lines on the axes along which they differ. Pure.

pub use forebay_measure::results::Field as Axis;

use super::{Line, Model};
use Axis::{Batch, BlockSize, Depth, Files, Method, Run, Threads};

/// Axes with numbers, the likeliest horizontal axis of a chart first.
pub const NUMBERS: [Axis; 6] = [BlockSize, Depth, Threads, Batch, Files, Run];

impl Model {
    /// The text of a line's value; `None` if it is unknown.
    #[must_use]
    pub fn text(&self, axis: Axis, line: &Line) -> Option<String> {
        let text = match axis {
            Run => self.runs.get(line.run).map(|run| run.name.clone()),
            Method => Some(line.method.clone()),
            _ => axis.text(&line.point),
        };
        text.filter(|text| !text.is_empty())
    }

    /// A line's value as a number, if it is one.
    #[must_use]
    #[expect(clippy::cast_precision_loss, reason = "an axis needs no more than 52 bits")]
    pub fn number(&self, axis: Axis, line: &Line) -> Option<f64> {
        match axis {
            Run => {
                self.runs.get(line.run)?.name.trim().parse().ok().filter(|n: &f64| n.is_finite())
            }
            _ => axis.number(&line.point).filter(|number| *number > 0).map(|number| number as f64),
        }
    }
}
