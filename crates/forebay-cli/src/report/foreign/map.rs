//! The names of quantities and axes, the meaning of a table's columns, and values that a file
//! lacks: `block-size=Block,throughput="BW (MiB/s)":MiB/s,direction:=read`.

use std::str::FromStr;

use forebay_measure::results::{Field as Setting, Point};

use super::units::{Kind, of_heading, scale};
use crate::near::near;

/// Most characters of a value.
const TEXT_MAX: usize = 4096;

/// A quantity or an axis: its name, its kind, whether it is an axis, and headings that mean it, the
/// preferred heading first, with their unit behind a colon if it is not in brackets.
pub(super) type Field = (&'static str, Kind, bool, &'static str);

const FIELDS: [Field; 22] = [
    (
        "throughput",
        Kind::Rate,
        false,
        "aggregate b/w|b/w|bandwidth|bw|rate|mib/s|gib/s|mb/s|gb/s|mib/s [last]:MiB/s",
    ),
    ("iops", Kind::Count, false, "iops [last]"),
    ("bytes", Kind::Size, false, ""),
    ("requests", Kind::Count, false, ""),
    ("seconds", Kind::Time, false, "time"),
    ("mean", Kind::Time, false, "avg|lat avg|avg tx|io lat us [avg]:us"),
    ("p50", Kind::Time, false, ""),
    ("p90", Kind::Time, false, ""),
    ("p99", Kind::Time, false, "p99 tx|io lat us [p99]:us"),
    ("p99.9", Kind::Time, false, ""),
    ("max", Kind::Time, false, "io lat us [max]:us"),
    ("method", Kind::Text, true, "tool"),
    ("path", Kind::Text, true, "file"),
    ("gpu", Kind::Text, true, "target"),
    ("direction", Kind::Text, true, "operation|rw"),
    ("pattern", Kind::Text, true, ""),
    ("block-size", Kind::Size, true, "size|block size|block|bs"),
    ("depth", Kind::Count, true, "io depth|iodepth|qd|queue depth"),
    ("batch", Kind::Count, true, "batch size"),
    ("threads", Kind::Count, true, ""),
    ("files", Kind::Count, true, ""),
    ("cache", Kind::Text, true, ""),
];

/// The known settings of a point.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct Axes {
    pub(super) point: Point,
    /// Whether the direction is known; a point always has one.
    pub(super) has_direction: bool,
}

impl Axes {
    /// Sets a value of a user or a table on an axis.
    ///
    /// # Errors
    /// It is not a value of the axis.
    pub(super) fn set(&mut self, axis: &str, value: &str) -> Result<(), String> {
        if value.is_empty() || value.chars().count() > TEXT_MAX {
            return Err(format!("`{axis}` needs a value of at most {TEXT_MAX} characters"));
        }
        let axis = axis.parse::<Setting>()?;
        axis.set(&mut self.point, value)?;
        self.has_direction |= axis == Setting::Direction;
        Ok(())
    }

    /// The value of an axis, if it is known.
    pub(super) fn get(&self, axis: Setting) -> Option<String> {
        axis.value(&self.point).filter(|_| self.has_direction || axis != Setting::Direction)
    }
}

/// A column of the user's table.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Column {
    pub(super) field: Field,
    pub(super) heading: String,
    /// The factor of its unit, if the user gives one.
    pub(super) scale: Option<f64>,
}

/// The value of `--columns`.
#[derive(Debug, Clone, Default, PartialEq)]
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
            let name = name.trim_end();
            let value_of = name.strip_suffix(':');
            let field = named(value_of.unwrap_or(name).trim())?;
            let (name, _, is_axis, _) = field;
            if names.contains(&name) {
                return Err(format!("`{name}` is named twice"));
            }
            names.push(name);
            match value_of {
                None => map.columns.push(column(field, rest.trim()).ok_or_else(wrong)??),
                Some(_) if is_axis => map.values.set(name, rest.trim())?,
                Some(_) => return Err(format!("`{name}` can only be a column: `{name}=COLUMN`")),
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
        let is_given = |name: &str| name.parse().is_ok_and(|axis| self.values.get(axis).is_some());
        let lacking = FIELDS.into_iter().filter(|(name, ..)| !is_given(name));
        let column = |field| {
            let mut all = known(field);
            let heading = all.find_map(|(known, _)| {
                headings.iter().find(|heading| is_known(field, heading, known))
            });
            Some(Column { field, heading: heading?.clone(), scale: None })
        };
        lacking.filter_map(column).collect()
    }
}

/// The headings that mean a field, with their units.
fn known((name, .., headings): Field) -> impl Iterator<Item = (&'static str, &'static str)> {
    let all = [name].into_iter().chain(headings.split('|').filter(|known| !known.is_empty()));
    all.map(|known| known.split_once(':').unwrap_or((known, "")))
}

/// Whether a heading, or its text before the unit in brackets, is a known heading of a field.
fn is_known((_, kind, ..): Field, heading: &str, known: &str) -> bool {
    let text = heading.to_lowercase();
    let (plain, in_brackets) = text.rsplit_once(['(', '[']).unwrap_or((&text, ""));
    let is_unit = matches!(of_heading(kind, heading), Ok(Some(_))) && !in_brackets.is_empty();
    // A rate or a time without a unit would cost the row, so these are matched exactly.
    let is = |text: &str| match kind {
        Kind::Rate | Kind::Time => text == known,
        _ => text.replace('_', " ") == known,
    };
    is(&text) || is_unit && is(plain.trim_end())
}

/// The factor of the unit that a heading names.
///
/// # Errors
/// The unit of a size is unknown.
pub(super) fn unit_of(field: Field, heading: &str) -> Result<Option<f64>, String> {
    let mut all = known(field);
    let unit = all.find(|(known, _)| known.eq_ignore_ascii_case(heading)).map(|(_, unit)| unit);
    match unit.and_then(|unit| scale(field.1, unit)) {
        None => of_heading(field.1, heading),
        found => Ok(found),
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

/// A column, as `HEADING` or `HEADING:UNIT`; `None` if it is neither.
fn column(field: Field, rest: &str) -> Option<Result<Column, String>> {
    let (name, kind, ..) = field;
    let (heading, unit) = match rest.strip_prefix('"').map(|rest| rest.split_once('"')) {
        Some(quoted) => match quoted?.1.trim() {
            "" => (quoted?.0, None),
            behind => (quoted?.0, Some(behind.strip_prefix(':')?)),
        },
        // A heading may contain colons.
        None => match rest.rsplit_once(':') {
            Some((heading, unit)) if scale(kind, unit.trim()).is_some() => (heading, Some(unit)),
            _ => (rest, None),
        },
    };
    if heading.trim().is_empty() {
        return None;
    }
    let column = |scale| Column { field, heading: heading.trim().into(), scale };
    let Some(unit) = unit.map(str::trim) else { return Some(Ok(column(None))) };
    let wrong = || format!("`{unit}` is not a unit of `{name}`{}", kind.units());
    Some(scale(kind, unit).map(|scale| column(Some(scale))).ok_or_else(wrong))
}

/// The quantity or the axis of this name.
fn named(name: &str) -> Result<Field, String> {
    let names = || FIELDS.into_iter().map(|(name, ..)| name);
    FIELDS.into_iter().find(|(known, ..)| *known == name).ok_or_else(|| match near(name, names()) {
        Some(near) => format!("unknown name `{name}`: perhaps `{near}` was meant"),
        None => format!("unknown name `{name}`: use {}", names().collect::<Vec<_>>().join(", ")),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_map_names_columns_units_and_values() {
        let map: Map =
            r#"block-size=Block, throughput="BW (MiB/s), all":MiB/s,p99=lat: p99:us,method=W,
                          cache:=cold,direction:=randread,gpu := cuda:0 + cuda:1"#
                .parse()
                .unwrap();
        let columns: Vec<_> =
            map.columns.iter().map(|c| (c.field.0, c.heading.as_str(), c.scale)).collect();
        assert_eq!(
            columns,
            [
                ("block-size", "Block", None),
                ("throughput", "BW (MiB/s), all", Some(1_048_576.0)),
                ("p99", "lat: p99", Some(1e3)),
                ("method", "W", None),
            ]
        );
        let values = Setting::ALL.into_iter().filter_map(|axis| map.values.get(axis));
        let expected = ["read", "random", "cold", "cuda:0+cuda:1"];
        assert_eq!(values.collect::<Vec<_>>(), expected);
    }

    #[test]
    fn unknown_names_values_and_units_are_refused() {
        let why = |text: &str| text.parse::<Map>().unwrap_err();
        assert!(why("troughput=a").contains("perhaps `throughput` was meant"));
        assert_eq!(why("threds:=3"), "unknown name `threds`: perhaps `threads` was meant");
        assert!(why("colour=a").contains("use throughput, iops"));
        assert!(why("throughput=\"a\":MiB").contains("not a unit of `throughput`: use MiB/s"));
        assert!(
            why("p50=a,p50=b").contains("twice")
                && why("block-size=a,block-size:=4K").contains("twice")
        );
        assert!(why("iops:=3").contains("can only be a column"));
        assert!(why("depth:=0").contains("1 or more") && why("block-size:=-1").contains("`64K`"));
        assert!(why("cache:=resident").contains("`warm`"));
        assert!(why("path:=").contains("needs a value"));
        assert!(why("direction:=mixed:101").contains("mixed:70"));
        for text in [
            "",
            "block-size",
            "block-size=",
            "block-size=\"a",
            "block-size=\"a\"b",
            "block-size=\"\"",
        ] {
            assert!(text.parse::<Map>().is_err(), "{text}");
        }
    }

    #[test]
    fn common_headings_are_known() {
        let of = |map: &str, headings: &[&str]| {
            let headings: Vec<String> = headings.iter().map(|one| (*one).to_owned()).collect();
            let map = if map.is_empty() { Map::default() } else { map.parse().unwrap() };
            let found = map.columns_of(&headings);
            found
                .into_iter()
                .map(|one| format!("{}={}", one.field.0, one.heading))
                .collect::<Vec<_>>()
        };
        let headings = [
            "Block_Size",
            "BW (MiB/s)",
            "p99 [us]",
            "Threads",
            "note",
            "bw",
            "lat_us",
            "BW (best)",
        ];
        assert_eq!(
            of("", &headings),
            ["throughput=BW (MiB/s)", "p99=p99 [us]", "block-size=Block_Size", "threads=Threads"]
        );
        let nixlbench = ["Block Size (B)", "Batch Size", "B/W (GiB/Sec)", "Aggregate B/W (GB/Sec)"];
        let found = of("", &nixlbench);
        assert_eq!(found[0], "throughput=Aggregate B/W (GB/Sec)");
        assert_eq!(found[1..], ["block-size=Block Size (B)", "batch=Batch Size"]);
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
        assert_eq!(of("block-size=a", &["a", "bw"]), ["block-size=a"]);
    }

    proptest::proptest! {
        #[test]
        fn no_text_ends_the_command(text: String, rest in "[a-z\",:= /]{0,40}") {
            let _ = (text.parse::<Map>(), format!("block-size={rest}").parse::<Map>());
            let _ = format!("direction:={text},block-size:={rest}").parse::<Map>();
        }
    }
}
