//! The names of quantities and axes, the meaning of a table's columns, and values that a file
//! lacks: `size=Block,throughput="BW (MiB/s)":MiB/s,direction:=read`.

use std::collections::BTreeMap;
use std::str::FromStr;

use forebay::units::parse_size;

use super::units::{Kind, scale};
use crate::near::near;

/// Most characters of a value.
const TEXT_MAX: usize = 4096;

/// The quantities of columns: the name, the kind, and headings of common tables that mean it.
const QUANTITIES: [(&str, Kind, &str); 11] = [
    ("throughput", Kind::Rate, "bandwidth|bw|rate|mib/s|gib/s|mb/s|gb/s|mib/s last"),
    ("iops", Kind::Count, "iops last"),
    ("bytes", Kind::Size, ""),
    ("requests", Kind::Count, ""),
    ("seconds", Kind::Time, "time"),
    ("mean", Kind::Time, "avg|lat avg|io lat us avg"),
    ("p50", Kind::Time, ""),
    ("p90", Kind::Time, ""),
    ("p99", Kind::Time, "io lat us p99"),
    ("p99.9", Kind::Time, ""),
    ("max", Kind::Time, "io lat us max"),
];

/// The axes, likewise.
pub(super) const AXES: [(&str, Kind, &str); 11] = [
    ("method", Kind::Text, "tool"),
    ("path", Kind::Text, "file"),
    ("target", Kind::Text, ""),
    ("direction", Kind::Text, "operation|rw"),
    ("pattern", Kind::Text, ""),
    ("size", Kind::Size, "block size|block|bs"),
    ("depth", Kind::Count, "io depth|iodepth"),
    ("batch", Kind::Count, ""),
    ("threads", Kind::Count, ""),
    ("files", Kind::Count, ""),
    ("cache", Kind::Text, ""),
];

/// Values of axes by name: sizes in bytes, directions as a percentage of reads.
pub(super) type Axes = BTreeMap<&'static str, String>;

/// Sets a value, as a user or a table has it, on an axis.
///
/// # Errors
/// It is not a value of the axis.
pub(super) fn set(axes: &mut Axes, axis: &'static str, value: &str) -> Result<(), String> {
    if value.is_empty() || value.chars().count() > TEXT_MAX {
        return Err(format!("`{axis}` needs a value of at most {TEXT_MAX} characters"));
    }
    let value = match axis {
        "target" => value.split('+').map(str::trim).collect::<Vec<_>>().join("+"),
        "direction" => {
            let (percent, pattern) = direction(value)?;
            if let Some(pattern) = pattern {
                axes.entry("pattern").or_insert_with(|| pattern.to_owned());
            }
            percent.to_string()
        }
        "size" => {
            let size = parse_size(value).filter(|size| *size > 0);
            size.ok_or("`size` takes a size such as `64K`")?.to_string()
        }
        "depth" | "batch" | "threads" | "files" => {
            let count = value.parse::<u32>().ok().filter(|count| *count > 0);
            count.ok_or_else(|| format!("`{axis}` takes a number of 1 or more"))?.to_string()
        }
        "cache" if !["cold", "resident"].contains(&value) => {
            return Err("`cache` takes `cold` or `resident`".into());
        }
        _ => value.to_owned(),
    };
    axes.insert(axis, value);
    Ok(())
}

/// The percentage of reads, and the order if the word includes it.
fn direction(text: &str) -> Result<(u8, Option<&'static str>), String> {
    let lower = text.to_lowercase();
    let mixed = lower.strip_prefix("mixed:").and_then(|percent| percent.parse().ok());
    match (lower.as_str(), mixed) {
        ("read" | "r", _) => Ok((100, None)),
        ("write" | "w", _) => Ok((0, None)),
        ("randread", _) => Ok((100, Some("random"))),
        ("randwrite", _) => Ok((0, Some("random"))),
        ("seqread", _) => Ok((100, Some("sequential"))),
        ("seqwrite", _) => Ok((0, Some("sequential"))),
        (_, Some(percent @ 0..=100)) => Ok((percent, None)),
        _ => Err("`direction` takes `read`, `write`, or `mixed:70` for 70 % reads".into()),
    }
}

/// A column of the user's table.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Column {
    /// A quantity or an axis.
    pub(super) name: &'static str,
    pub(super) kind: Kind,
    /// Its heading.
    pub(super) heading: String,
    /// The factor of its unit, if given by the user.
    pub(super) unit: Option<String>,
}

/// The value of `--map`.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Map {
    /// The columns of a table.
    pub(super) columns: Vec<Column>,
    /// Values that the file lacks.
    pub(super) values: Axes,
}

impl FromStr for Map {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let mut map = Self::default();
        let mut names = Vec::new();
        for part in parts(text)? {
            let wrong = || format!("`{}` is not `NAME=COLUMN` or `NAME:=VALUE`", part.trim());
            let (name, rest) = part.split_once('=').ok_or_else(wrong)?;
            let (name, is_value) = match name.trim_end().strip_suffix(':') {
                Some(name) => (name, true),
                None => (name, false),
            };
            let (name, kind) = named(name.trim())?;
            if names.contains(&name) {
                return Err(format!("`{name}` is named twice"));
            }
            names.push(name);
            match is_value {
                true if AXES.iter().all(|(axis, ..)| *axis != name) => {
                    return Err(format!("`{name}` can only be a column: `{name}=COLUMN`"));
                }
                true => set(&mut map.values, name, rest.trim())?,
                false => map.columns.push(column(name, kind, rest.trim()).ok_or_else(wrong)??),
            }
        }
        Ok(map)
    }
}

impl Map {
    /// The columns of a table: those that the map names, else those whose headings are known.
    pub(super) fn columns_of(&self, headings: &[String]) -> Vec<Column> {
        if !self.columns.is_empty() {
            return self.columns.clone();
        }
        let mut columns: Vec<Column> = Vec::new();
        for heading in headings {
            // Brackets without a unit, as `[last]`, are part of the name.
            let plain = heading.to_lowercase().replace(['(', ')', '[', ']'], " ");
            let whole = plain.split_whitespace().collect::<Vec<_>>().join(" ");
            let (first, last) = whole.rsplit_once([' ', '_']).unwrap_or((&whole, ""));
            let is_unit = |kind| scale(kind, last).is_some();
            let has_unit = [Kind::Size, Kind::Rate, Kind::Time].into_iter().any(is_unit)
                || last.ends_with("b/s");
            let of = |text: &str| {
                QUANTITIES.into_iter().chain(AXES).find(|(name, _, others)| {
                    *name == text || (!text.is_empty() && others.split('|').any(|one| one == text))
                })
            };
            let Some((name, kind, _)) = of(&whole).or_else(|| has_unit.then(|| of(first))?) else {
                continue;
            };
            let is_taken = columns.iter().any(|column| column.name == name);
            if !is_taken && !self.values.contains_key(name) {
                columns.push(Column { name, kind, heading: heading.clone(), unit: None });
            }
        }
        columns
    }
}

/// The parts between commas that are not quoted.
fn parts(text: &str) -> Result<Vec<&str>, String> {
    let mut quoted = false;
    let parts: Vec<&str> = text
        .split(|letter: char| {
            quoted ^= letter == '"';
            letter == ',' && !quoted
        })
        .collect();
    if quoted { Err("a quote is not closed".into()) } else { Ok(parts) }
}

/// One column, as `HEADING` or `HEADING:UNIT`; `None` if it is neither.
fn column(name: &'static str, kind: Kind, rest: &str) -> Option<Result<Column, String>> {
    let (heading, unit) = match rest.strip_prefix('"') {
        Some(quoted) => {
            let (heading, behind) = quoted.split_once('"')?;
            let unit = match behind.trim() {
                "" => None,
                behind => Some(behind.strip_prefix(':')?.trim()),
            };
            (heading, unit)
        }
        // A heading may contain colons.
        None => match rest.rsplit_once(':') {
            Some((heading, unit)) if scale(kind, unit.trim()).is_some() => {
                (heading.trim(), Some(unit.trim()))
            }
            _ => (rest, None),
        },
    };
    if heading.is_empty() {
        return None;
    }
    if let Some(unit) = unit.filter(|unit| scale(kind, unit).is_none()) {
        return Some(Err(format!("`{unit}` is not a unit of `{name}`{}", kind.units())));
    }
    Some(Ok(Column { name, kind, heading: heading.into(), unit: unit.map(str::to_owned) }))
}

/// The quantity or the axis of this name, and its kind.
fn named(name: &str) -> Result<(&'static str, Kind), String> {
    let all = || QUANTITIES.into_iter().chain(AXES);
    if let Some((name, kind, _)) = all().find(|(known, ..)| *known == name) {
        return Ok((name, kind));
    }
    let names = || all().map(|(name, ..)| name);
    Err(match near(name, names()) {
        Some(near) => format!("unknown name `{name}`: perhaps `{near}` was meant"),
        None => {
            format!("unknown name `{name}`: use {}", names().collect::<Vec<_>>().join(", "))
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_map_names_columns_units_and_values() {
        let map: Map = r#"size=Block, throughput="BW (MiB/s), all":MiB/s,p99=lat: p99:us,method=W,
                          cache:=cold,direction:=randread,target := cuda:0 + cuda:1"#
            .parse()
            .unwrap();
        let columns: Vec<_> =
            map.columns.iter().map(|c| (c.name, c.heading.as_str(), c.unit.as_deref())).collect();
        assert_eq!(
            columns,
            [
                ("size", "Block", None),
                ("throughput", "BW (MiB/s), all", Some("MiB/s")),
                ("p99", "lat: p99", Some("us")),
                ("method", "W", None),
            ]
        );
        let values: Vec<_> =
            map.values.iter().map(|(axis, value)| (*axis, value.as_str())).collect();
        assert_eq!(
            values,
            [
                ("cache", "cold"),
                ("direction", "100"),
                ("pattern", "random"),
                ("target", "cuda:0+cuda:1")
            ]
        );
    }

    #[test]
    fn unknown_names_values_and_units_are_refused() {
        let why = |text: &str| text.parse::<Map>().unwrap_err();
        assert!(why("troughput=a").contains("perhaps `throughput` was meant"));
        assert_eq!(why("threds:=3"), "unknown name `threds`: perhaps `threads` was meant");
        assert!(why("colour=a").contains("use throughput, iops"));
        assert!(why("throughput=\"a\":MiB").contains("not a unit of `throughput`: use MiB/s"));
        assert!(why("p50=a,p50=b").contains("twice") && why("size=a,size:=4K").contains("twice"));
        assert!(why("iops:=3").contains("can only be a column"));
        assert!(why("depth:=0").contains("1 or more") && why("size:=-1").contains("`64K`"));
        assert!(why("cache:=warm").contains("`resident`"));
        assert!(why("path:=").contains("needs a value"));
        assert!(why("direction:=mixed:101").contains("mixed:70"));
        for text in ["", "size", "size=", "size=\"a", "size=\"a\"b", "size=\"\""] {
            assert!(text.parse::<Map>().is_err(), "{text}");
        }
    }

    #[test]
    fn common_headings_are_known() {
        let of = |map: &str, headings: &[&str]| {
            let headings: Vec<String> = headings.iter().map(|one| (*one).to_owned()).collect();
            let map = if map.is_empty() { Map::default() } else { map.parse().unwrap() };
            let found = map.columns_of(&headings);
            found.into_iter().map(|one| format!("{}={}", one.name, one.heading)).collect::<Vec<_>>()
        };
        let found = of("", &["Block Size", "BW (MiB/s)", "p99_us", "Threads", "note", "bw"]);
        assert_eq!(
            found,
            ["size=Block Size", "throughput=BW (MiB/s)", "p99=p99_us", "threads=Threads"]
        );
        let elbencho = [
            "operation",
            "block size",
            "IO depth",
            "IOPS [last]",
            "MiB/s [last]",
            "IO lat us [avg]",
        ];
        assert_eq!(of("", &elbencho).len(), 6);
        assert_eq!(of("direction:=read", &["rw", "bw"]), ["throughput=bw"]);
        assert_eq!(of("size=a", &["a", "bw"]), ["size=a"]);
    }

    proptest::proptest! {
        #[test]
        fn no_text_ends_the_command(text: String, rest in "[a-z\",:= /]{0,40}") {
            let _ = (text.parse::<Map>(), format!("size={rest}").parse::<Map>());
            let _ = format!("direction:={text},size:={rest}").parse::<Map>();
        }
    }
}
