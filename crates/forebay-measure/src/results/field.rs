//! The settings of a point. Their names, places in a point, parsers and texts are defined here
//! alone. Pure.

use std::str::FromStr;

use forebay::units::{format_size, parse_size};

use super::{Cache, Point};
use crate::workload::pattern::exact_size;

/// A setting by which points differ, in the order of columns.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Field {
    /// The run, by its label or its file; no part of a point.
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
    Target,
    /// Bytes of an I/O.
    BlockSize,
    /// Concurrent I/Os per thread.
    Depth,
    /// I/Os per call.
    Batch,
    /// Threads per target.
    Threads,
    /// Files that the threads share.
    Files,
}

use Field::{Batch, Cache as State, Files, Method, Path, Route, Threads};
use Field::{BlockSize, Depth, Direction, Pattern, Run, Target};

impl Field {
    /// All, in the order of columns.
    pub const ALL: [Self; 13] = [
        Run, Path, Method, Route, Direction, Pattern, State, Target, BlockSize, Depth, Batch,
        Threads, Files,
    ];

    /// Its name on the command line and for programs.
    #[must_use]
    pub const fn key(self) -> &'static str {
        match self {
            Run => "label",
            Path => "path",
            Method => "method",
            Route => "route",
            Direction => "direction",
            Pattern => "pattern",
            State => "cache",
            Target => "gpu",
            BlockSize => "block-size",
            Depth => "depth",
            Batch => "batch",
            Threads => "threads",
            Files => "files",
        }
    }

    /// Its name in a heading.
    #[must_use]
    pub fn name(self) -> String {
        match self {
            Run => "run".into(),
            Target => "GPU".into(),
            _ => self.key().replace('-', " "),
        }
    }

    /// Its value as the command line takes it; `None` if unknown.
    #[must_use]
    pub fn value(self, point: &Point) -> Option<String> {
        let value = match self {
            Run => None,
            Path => Some(point.path.clone()),
            Method => Some(point.method.clone()),
            Route => point.route.clone(),
            Direction => Some(match point.read_percent {
                100 => "read".into(),
                0 => "write".into(),
                percent => format!("mixed:{percent}"),
            }),
            Pattern => Some(point.pattern.clone()),
            State => point.cache.map(|cache| cache.name().into()),
            Target => Some(point.targets.join("+")),
            BlockSize => (point.request_size > 0).then(|| exact_size(point.request_size)),
            Depth | Batch | Threads | Files => {
                self.number(point).filter(|count| *count > 0).map(|count| count.to_string())
            }
        };
        value.filter(|value| !value.is_empty())
    }

    /// Its value in tables and headings; `None` if unknown.
    #[must_use]
    pub fn text(self, point: &Point) -> Option<String> {
        match (self, point.read_percent) {
            (Direction, percent @ 1..=99) => Some(format!("{percent} % read")),
            (BlockSize, _) => (point.request_size > 0).then(|| size(point.request_size)),
            (Target, _) => Some(targets(&point.targets)).filter(|text| !text.is_empty()),
            _ => self.value(point),
        }
    }

    /// Its value as a size or a count; 0 if unknown, `None` if it is neither.
    #[must_use]
    pub fn number(self, point: &Point) -> Option<u64> {
        match self {
            BlockSize => Some(point.request_size),
            Depth => Some(point.depth.into()),
            Batch => Some(point.batch.into()),
            Threads => Some(point.threads.into()),
            Files => Some(point.files.into()),
            _ => None,
        }
    }

    /// Sets the value that `text` names. A direction such as `randread` also sets a missing
    /// pattern.
    ///
    /// # Errors
    /// It names none.
    pub fn set(self, point: &mut Point, text: &str) -> Result<(), String> {
        let count = || {
            let count = text.parse().ok().filter(|count| *count > 0);
            count.ok_or_else(|| format!("`{}` takes a number of 1 or more", self.key()))
        };
        match self {
            Run => return Err("a label belongs to a run".into()),
            Path => point.path = text.into(),
            Method => point.method = text.into(),
            Route => point.route = Some(text.into()),
            Pattern => point.pattern = text.into(),
            Target => point.targets = text.split('+').map(|name| name.trim().into()).collect(),
            State => {
                let cache = Cache::from_str(text).map_err(|_| "`cache` takes `cold` or `warm`");
                point.cache = Some(cache?);
            }
            BlockSize => {
                let size = parse_size(text).filter(|size| *size > 0);
                point.request_size = size.ok_or("`block-size` takes a size such as `64K`")?;
            }
            Depth => point.depth = count()?,
            Batch => point.batch = count()?,
            Threads => point.threads = count()?,
            Files => point.files = count()?,
            Direction => {
                let (percent, pattern) = direction(&text.to_lowercase())?;
                point.read_percent = percent;
                if let Some(pattern) = pattern.filter(|_| point.pattern.is_empty()) {
                    point.pattern = pattern.into();
                }
            }
        }
        Ok(())
    }
}

impl FromStr for Field {
    type Err = String;

    fn from_str(key: &str) -> Result<Self, String> {
        Self::ALL.into_iter().find(|field| field.key() == key).ok_or_else(|| {
            let keys = Self::ALL.map(|field| format!("`{}`", field.key()));
            format!("it takes {}", keys.join(", "))
        })
    }
}

/// The percentage of reads, and the order if the word of a tool includes it.
fn direction(text: &str) -> Result<(u8, Option<&'static str>), String> {
    let mixed = text.strip_prefix("rwmix").or_else(|| text.strip_prefix("mixed:"));
    let mixed = mixed.map(|percent| percent.parse().ok().filter(|percent| *percent <= 100));
    match (text, mixed) {
        ("read" | "r", _) => Ok((100, None)),
        ("write" | "w", _) => Ok((0, None)),
        ("randread", _) => Ok((100, Some("random"))),
        ("randwrite", _) => Ok((0, Some("random"))),
        ("seqread", _) => Ok((100, Some("sequential"))),
        ("seqwrite", _) => Ok((0, Some("sequential"))),
        (_, Some(Some(percent))) => Ok((percent, None)),
        _ if text.starts_with("rwmix") => Err("`RWMIX` has no percentage".into()),
        _ => Err("`direction` takes `read`, `write`, or `mixed:70` for 70 % reads".into()),
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
    let spans = found.chunk_by(|one, other| one + 1 == *other).map(|span| match span {
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
    fn names_are_unique_and_found() {
        assert_eq!([size(65536), size(65537)], ["64 KiB", "65537 B"]);
        for field in Field::ALL {
            assert_eq!(field.key().parse(), Ok(field));
        }
        assert_eq!([Target, BlockSize].map(Field::name), ["GPU", "block size"]);
        assert!(Field::from_str("size").unwrap_err().contains("`block-size`"));
    }

    #[test]
    fn a_value_is_set_as_the_command_line_takes_it() {
        for (field, text) in [
            (Path, "/data"),
            (Method, "forebay"),
            (Route, "staged"),
            (Direction, "mixed:70"),
            (Pattern, "strided:1M"),
            (State, "warm"),
            (Target, "cuda:0+cuda:1"),
            (BlockSize, "65537"),
            (Depth, "8"),
            (Batch, "2"),
            (Threads, "3"),
            (Files, "4"),
        ] {
            let mut point = Point::default();
            field.set(&mut point, text).unwrap();
            assert_eq!(field.value(&point).as_deref(), Some(text), "{field:?}");
        }
        let unknown = Point::default();
        assert!(Field::ALL.iter().all(|it| *it == Direction || it.value(&unknown).is_none()));
        let mut point = Point::default();
        Direction.set(&mut point, "RandRead").unwrap();
        assert_eq!((point.read_percent, point.pattern.as_str()), (100, "random"));
        Direction.set(&mut point, "rwmix30").unwrap();
        assert_eq!(Direction.text(&point).unwrap(), "30 % read");
        for (field, wrong) in [
            (Direction, "mixed:101"),
            (Direction, "rwmix"),
            (State, "hot"),
            (Depth, "0"),
            (Run, "a"),
        ] {
            assert!(field.set(&mut point, wrong).is_err(), "{wrong}");
        }
    }
}
