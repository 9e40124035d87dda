//! The position of each measurement on each axis: points of results files, and rows of benches.
//! Pure.

use std::collections::{BTreeMap, BTreeSet};

use forebay::units::format_size;

use super::{Axis, Mark};
use crate::report::json::Row;
use crate::results::Point;

/// Most queue counts of one point that are reported.
const NUMBERS_MAX: usize = 4;

/// The position of a point on all axes.
pub(super) fn marks(point: &Point) -> BTreeMap<Axis, Mark> {
    let direction = match point.read_percent {
        100 => "read".to_owned(),
        0 => "write".to_owned(),
        percent => format!("{percent} % read"),
    };
    let count = |number: u32| Mark { text: number.to_string(), number: Some(f64::from(number)) };
    let mut marks = BTreeMap::from([
        (Axis::Path, Mark::text(&point.path)),
        (Axis::Way, Mark::text(&point.way)),
        (Axis::Direction, Mark::text(direction)),
        (Axis::Pattern, Mark::text(&point.pattern)),
        (Axis::Target, Mark::text(point.targets.join(" + "))),
        (Axis::RequestSize, size(point.request_size)),
        (Axis::Depth, count(point.depth)),
        (Axis::Batch, count(point.batch)),
        (Axis::Threads, count(point.threads)),
        (Axis::Files, count(point.files)),
    ]);
    marks.extend(point.cache.map(|cache| (Axis::Cache, Mark::text(cache.name()))));
    // An unknown value has no position on its axis.
    marks.retain(|_, mark| !mark.text.is_empty() && mark.number != Some(0.0));
    marks.extend(point.route.iter().map(|route| (Axis::Demanded, Mark::text(route))));
    marks
}

/// The position of a bench's row.
pub(super) fn marks_of_row(row: &Row) -> BTreeMap<Axis, Mark> {
    let mut marks = BTreeMap::from([
        (Axis::Way, Mark::text(row.method.name())),
        (Axis::Direction, Mark::text(row.direction.name())),
        (Axis::Target, Mark::text(&row.target)),
        (Axis::Size, size(row.bytes)),
    ]);
    let paths = row.paths.iter().map(|paths| (Axis::Path, Mark::text(paths.join(", "))));
    marks.extend(paths);
    marks.extend(row.cache.iter().map(|cache| (Axis::Cache, Mark::text(cache.name()))));
    marks.extend(row.demanded.iter().map(|route| (Axis::Demanded, Mark::text(route))));
    let settings = row.settings.iter();
    marks.extend(settings.map(|told| (Axis::Settings, Mark::text(&told.name))));
    marks
}

/// A size, exact to the byte if it is no round number: two sizes never read the same.
#[expect(clippy::cast_precision_loss, reason = "an axis needs no more than 52 bits")]
pub(super) fn size(bytes: u64) -> Mark {
    let short = format_size(bytes);
    let exact = forebay::units::parse_size(&short) == Some(bytes);
    let text = if exact { short } else { format!("{bytes} B") };
    Mark { text, number: Some(bytes as f64) }
}

/// The queues of a point whose samples found these counts, and whether they differ from the
/// request. The found count comes first, since it is the one measured.
pub(super) fn queues(point: &Point, found: &BTreeSet<u32>) -> Option<(Mark, bool)> {
    let asked = point.queues?;
    let (text, is_other) = match found.first() {
        None => (format!("{asked} requested"), false),
        Some(only) if found.len() == 1 && *only == asked => (asked.to_string(), false),
        Some(_) => {
            let texts: Vec<String> = found.iter().take(NUMBERS_MAX).map(u32::to_string).collect();
            let more = if found.len() > NUMBERS_MAX { ", …" } else { "" };
            (format!("{}{more}, not {asked}", texts.join(" and ")), true)
        }
    };
    let number = f64::from(found.first().copied().unwrap_or(asked));
    Some((Mark { text, number: Some(number) }, is_other))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn queues_are_never_called_by_what_was_asked_for_alone() {
        let point = |queues| {
            let text = serde_json::json!({
                "path": "a", "targets": ["host"], "way": "cpu", "route": null,
                "read_percent": 100, "pattern": "random", "request_size": 4096, "depth": 1,
                "batch": 1, "threads": 1, "files": 1, "cache": null, "queues": queues,
            });
            serde_json::from_value::<Point>(text).unwrap()
        };
        let told = |asked: u32, found: &[u32]| {
            let (mark, is_other) =
                queues(&point(Some(asked)), &found.iter().copied().collect()).unwrap();
            (mark.text, mark.number.unwrap(), is_other)
        };
        assert_eq!(told(8, &[8]), ("8".into(), 8.0, false));
        assert_eq!(told(8, &[]), ("8 requested".into(), 8.0, false));
        assert_eq!(told(8, &[4]), ("4, not 8".into(), 4.0, true));
        assert_eq!(told(8, &[8, 4, 8]), ("4 and 8, not 8".into(), 4.0, true));
        let many = told(9, &[1, 2, 3, 4, 5]).0;
        assert_eq!(many, "1 and 2 and 3 and 4, …, not 9");
        assert_eq!(queues(&point(None::<u32>), &BTreeSet::from([4])), None);
    }
}
