//! The properties by which points differ, and their values. Pure.

use forebay::units::{format_size, parse_size};

use super::{Line, Model};

/// A property by which points differ.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Axis {
    /// The run, by its label or its file.
    Run,
    /// The file or the folder.
    Path,
    /// The queues for I/O, or connections, that the run set.
    Queues,
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

/// All axes in the order of columns, each with its names in a heading and on the command line.
const ALL: [(Axis, &str, &str); 14] = [
    (Axis::Run, "run", "label"),
    (Axis::Path, "path", "path"),
    (Axis::Queues, "queues", "queues"),
    (Axis::Method, "method", "method"),
    (Axis::Route, "route", "route"),
    (Axis::Direction, "direction", "direction"),
    (Axis::Pattern, "pattern", "pattern"),
    (Axis::Cache, "cache", "cache"),
    (Axis::Target, "target", "gpu"),
    (Axis::BlockSize, "block size", "block-size"),
    (Axis::Depth, "depth", "depth"),
    (Axis::Batch, "batch", "batch"),
    (Axis::Threads, "threads", "threads"),
    (Axis::Files, "files", "files"),
];

impl Axis {
    /// All, in the order of columns.
    pub fn all() -> impl Iterator<Item = Self> {
        ALL.into_iter().map(|(axis, ..)| axis)
    }

    /// Axes with numbers, the likeliest horizontal axis of a chart first.
    pub const NUMBERS: [Self; 7] = [
        Self::BlockSize,
        Self::Depth,
        Self::Queues,
        Self::Threads,
        Self::Batch,
        Self::Files,
        Self::Run,
    ];

    /// Its name in a heading.
    #[must_use]
    pub const fn name(self) -> &'static str {
        ALL[self as usize].1
    }

    /// Its name on the command line, and for programs.
    #[must_use]
    pub const fn key(self) -> &'static str {
        ALL[self as usize].2
    }

    /// The text of a line's value; `None` if it is unknown.
    #[must_use]
    pub fn text(self, model: &Model, line: &Line) -> Option<String> {
        let point = &line.point;
        let count = |number: u32| (number > 0).then(|| number.to_string());
        let text = match self {
            Self::Run => model.runs.get(line.run).map(|run| run.name.clone()),
            Self::Path => Some(point.path.clone()),
            Self::Queues => line.queues(),
            Self::Method => Some(line.method.clone()),
            Self::Route => point.route.clone(),
            Self::Direction => Some(match point.read_percent {
                100 => "read".into(),
                0 => "write".into(),
                percent => format!("{percent} % read"),
            }),
            Self::Pattern => Some(point.pattern.clone()),
            Self::Cache => point.cache.map(|cache| cache.name().into()),
            Self::Target => Some(targets(&point.targets)),
            Self::BlockSize => (point.request_size > 0).then(|| size(point.request_size)),
            Self::Depth => count(point.depth),
            Self::Batch => count(point.batch),
            Self::Threads => count(point.threads),
            Self::Files => count(point.files),
        };
        text.filter(|text| !text.is_empty())
    }

    /// A line's value as a number, if it is one.
    #[must_use]
    #[expect(clippy::cast_precision_loss, reason = "an axis needs no more than 52 bits")]
    pub fn number(self, model: &Model, line: &Line) -> Option<f64> {
        let point = &line.point;
        let number = match self {
            Self::Run => model.runs.get(line.run)?.name.trim().parse().ok()?,
            Self::Queues => f64::from(line.queues_found.first().copied().or(point.queues)?),
            Self::BlockSize => point.request_size as f64,
            Self::Depth => f64::from(point.depth),
            Self::Batch => f64::from(point.batch),
            Self::Threads => f64::from(point.threads),
            Self::Files => f64::from(point.files),
            _ => return None,
        };
        Some(number).filter(|number| number.is_finite() && (*number > 0.0 || self == Self::Run))
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
    let mut spans: Vec<(u32, u32)> = Vec::new();
    for index in &found {
        match spans.last_mut() {
            Some((_, last)) if last.checked_add(1) == Some(*index) => *last = *index,
            _ => spans.push((*index, *index)),
        }
    }
    let spans = spans.into_iter().map(|(first, last)| match last - first {
        0 => first.to_string(),
        _ => format!("{first}-{last}"),
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
        let mut keys = ALL.map(|(axis, ..)| axis.key());
        keys.sort_unstable();
        assert!(keys.windows(2).all(|two| two[0] != two[1]));
        assert_eq!([Axis::Cache, Axis::Files].map(Axis::name), ["cache", "files"]);
        assert!(Axis::all().enumerate().all(|(at, axis)| axis as usize == at));
        assert!(Axis::NUMBERS.into_iter().all(|axis| Axis::all().any(|one| one == axis)));
    }
}
