//! The properties by which points differ, and their values. Pure.

use clap::ValueEnum;
use forebay::units::{format_size, parse_size};

use super::{Line, Model, grouped};

/// A property by which points differ.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Axis {
    /// The run, by its label or its file.
    #[value(name = "label")]
    Run,
    /// The file or the folder.
    Path,
    /// The method.
    Method,
    /// The required route.
    Route,
    /// From or to the file.
    Direction,
    /// The order of I/Os.
    Pattern,
    /// The state of the page cache.
    Cache,
    /// The memory.
    #[value(name = "gpu")]
    Target,
    /// Bytes of one I/O.
    BlockSize,
    /// Concurrent I/Os of each thread.
    Depth,
    /// I/Os in one call.
    Batch,
    /// Threads for each target.
    Threads,
    /// Files that the threads share.
    Files,
}

use Axis::{Batch, Cache, Files, Method, Path, Route, Threads};
use Axis::{BlockSize, Depth, Direction, Pattern, Run, Target};

impl Axis {
    /// All, in the order of columns.
    pub fn all() -> impl Iterator<Item = Self> {
        Self::value_variants().iter().copied()
    }

    /// Axes with numbers, the likeliest horizontal axis of a chart first.
    pub const NUMBERS: [Self; 6] = [BlockSize, Depth, Threads, Batch, Files, Run];

    /// Its name in a heading.
    #[must_use]
    pub fn name(self) -> String {
        match self {
            Run => "run".into(),
            Target => "GPU".into(),
            _ => self.key().replace('-', " "),
        }
    }

    /// Its name on the command line, and for programs.
    #[must_use]
    pub fn key(self) -> String {
        self.to_possible_value().map(|value| value.get_name().to_owned()).unwrap_or_default()
    }

    /// The text of a line's value; `None` if it is unknown.
    #[must_use]
    pub fn text(self, model: &Model, line: &Line) -> Option<String> {
        let point = &line.point;
        let text = match self {
            Run => model.runs.get(line.run).map(|run| run.name.clone()),
            Path => Some(point.path.clone()),
            Method => Some(line.method.clone()),
            Route => point.route.clone(),
            Direction => Some(match point.read_percent {
                100 => "read".into(),
                0 => "write".into(),
                percent => format!("{percent} % read"),
            }),
            Pattern => Some(point.pattern.clone()),
            Cache => point.cache.map(|cache| cache.name().into()),
            Target => Some(targets(&point.targets)),
            BlockSize => (point.request_size > 0).then(|| size(point.request_size)),
            Depth | Batch | Threads | Files => {
                self.number(model, line).map(|count| count.to_string())
            }
        };
        text.filter(|text| !text.is_empty())
    }

    /// A line's value as a number, if it is one.
    #[must_use]
    #[expect(clippy::cast_precision_loss, reason = "an axis needs no more than 52 bits")]
    pub fn number(self, model: &Model, line: &Line) -> Option<f64> {
        let point = &line.point;
        let number = match self {
            Run => model.runs.get(line.run)?.name.trim().parse().ok()?,
            BlockSize => point.request_size as f64,
            Depth => f64::from(point.depth),
            Batch => f64::from(point.batch),
            Threads => f64::from(point.threads),
            Files => f64::from(point.files),
            _ => return None,
        };
        Some(number).filter(|number| number.is_finite() && (*number > 0.0 || self == Run))
    }
}

/// A size, exact to the byte if it is no round number: two sizes never have the same text.
fn size(bytes: u64) -> String {
    let short = format_size(bytes);
    if parse_size(&short) == Some(bytes) { short } else { format!("{bytes} B") }
}

/// The targets of a point: `cuda:0`, or `8 GPUs (0-7)`.
fn targets(names: &[String]) -> String {
    let [first, _, ..] = names else { return names.join("") };
    let kind = first.split_once(':').map_or("", |(kind, _)| kind);
    let index = |name: &String| name.strip_prefix(kind)?.strip_prefix(':')?.parse::<u32>().ok();
    let found: Option<Vec<u32>> = names.iter().map(index).collect();
    let Some(mut found) = found.filter(|_| ["cuda", "sim"].contains(&kind)) else {
        return names.join(" + ");
    };
    found.sort_unstable();
    found.dedup();
    // Neighbours are as far from their places.
    let spans = grouped(found.iter().zip(0_u32..).map(|(index, at)| (index - at, index)));
    let spans = spans.iter().map(|(_, span)| match span.as_slice() {
        [first, .., last] => format!("{first}-{last}"),
        one => one.iter().map(ToString::to_string).collect(),
    });
    let spans: Vec<String> = spans.collect();
    let kind = if kind == "sim" { "simulated GPUs" } else { "GPUs" };
    format!("{} {kind} ({})", found.len(), spans.join(","))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn several_gpus_have_a_short_name() {
        let of =
            |names: &[&str]| targets(&names.iter().map(|name| (*name).into()).collect::<Vec<_>>());
        let eight: Vec<String> = (0..8).map(|index| format!("cuda:{index}")).collect();
        assert_eq!(targets(&eight), "8 GPUs (0-7)");
        assert_eq!(of(&["sim:3", "sim:0", "sim:1"]), "3 simulated GPUs (0-1,3)");
        assert_eq!(
            [of(&[]), of(&["host"]), of(&["host", "cuda:1"])],
            ["", "host", "host + cuda:1"]
        );
    }

    #[test]
    fn sizes_and_names_of_axes_are_unique() {
        assert_eq!([size(65536), size(65537)], ["64 KiB", "65537 B"]);
        let mut keys: Vec<String> = Axis::all().map(Axis::key).collect();
        keys.sort_unstable();
        assert!(keys.windows(2).all(|two| two[0] != two[1]) && keys.len() == 13);
        assert_eq!([Axis::Target, Axis::BlockSize].map(Axis::name), ["GPU", "block size"]);
        assert_eq!([Axis::Target, Axis::BlockSize].map(Axis::key), ["gpu", "block-size"]);
    }
}
