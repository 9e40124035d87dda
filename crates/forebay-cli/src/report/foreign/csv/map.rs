//! The meaning of columns, and values that a file lacks:
//! `size=Block,throughput="BW (MiB/s)":MiB/s,direction:=read`.

use std::str::FromStr;

use super::units::{Kind, scale};
use crate::report::foreign::near::near;
use crate::report::foreign::said::{AXES, Said};

/// The quantities of columns, each with its kind.
pub(super) const QUANTITIES: [(&str, Kind); 11] = [
    ("throughput", Kind::Rate),
    ("iops", Kind::Count),
    ("bytes", Kind::Size),
    ("requests", Kind::Count),
    ("seconds", Kind::Time),
    ("mean", Kind::Time),
    ("p50", Kind::Time),
    ("p90", Kind::Time),
    ("p99", Kind::Time),
    ("p99.9", Kind::Time),
    ("max", Kind::Time),
];

/// A column of the user's table.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Column {
    /// A quantity, an axis, or `way`.
    pub(super) name: String,
    pub(super) kind: Kind,
    /// Its heading.
    pub(super) heading: String,
    /// The unit of its numbers, if given by the user.
    pub(super) unit: Option<String>,
}

/// The value of `--map`.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Map {
    /// The columns of a table.
    pub(super) columns: Vec<Column>,
    /// Values that the file lacks.
    pub(in crate::report::foreign) values: Vec<Said>,
}

impl FromStr for Map {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let mut map = Self::default();
        for part in parts(text)? {
            let value = part
                .split_once('=')
                .and_then(|(name, value)| Some((name.trim_end().strip_suffix(':')?, value)));
            let name = match value {
                Some((name, value)) => {
                    map.values.push(Said::of(name, value)?);
                    name.trim()
                }
                None => {
                    map.columns.push(column(part)?);
                    part.split('=').next().unwrap_or_default().trim()
                }
            };
            let columns = map.columns.iter().filter(|column| column.name == name).count();
            if columns + map.values.iter().filter(|said| said.axis() == name).count() > 1 {
                return Err(format!("`{name}` is named twice"));
            }
        }
        Ok(map)
    }
}

/// Headings of common tables, without their units, and what they mean.
const KNOWN: [(&str, &str); 44] = [
    ("throughput", "throughput"),
    ("bandwidth", "throughput"),
    ("bw", "throughput"),
    ("rate", "throughput"),
    ("mib/s", "throughput"),
    ("gib/s", "throughput"),
    ("mb/s", "throughput"),
    ("gb/s", "throughput"),
    ("mib/s last", "throughput"),
    ("iops", "iops"),
    ("iops last", "iops"),
    ("bytes", "bytes"),
    ("requests", "requests"),
    ("seconds", "seconds"),
    ("time", "seconds"),
    ("mean", "mean"),
    ("avg", "mean"),
    ("lat avg", "mean"),
    ("io lat us avg", "mean"),
    ("io lat us max", "max"),
    ("io lat us p99", "p99"),
    ("p50", "p50"),
    ("p90", "p90"),
    ("p99", "p99"),
    ("p99.9", "p99.9"),
    ("max", "max"),
    ("method", "method"),
    ("tool", "method"),
    ("path", "path"),
    ("file", "path"),
    ("target", "target"),
    ("direction", "direction"),
    ("operation", "direction"),
    ("rw", "direction"),
    ("pattern", "pattern"),
    ("block size", "size"),
    ("block", "size"),
    ("bs", "size"),
    ("size", "size"),
    ("io depth", "depth"),
    ("depth", "depth"),
    ("iodepth", "depth"),
    ("threads", "threads"),
    ("cache", "cache"),
];

impl Map {
    /// Whether it names columns of a table.
    #[must_use]
    pub fn has_columns(&self) -> bool {
        !self.columns.is_empty()
    }

    /// This map with the columns of a table whose headings are known, if it names none.
    pub(super) fn for_headings(&self, headings: &[String]) -> Self {
        let mut map = self.clone();
        if !map.columns.is_empty() {
            return map;
        }
        for heading in headings {
            // Brackets without a unit, as `[last]`, are part of the name.
            let plain = heading.to_lowercase().replace(['(', ')', '[', ']'], " ");
            let words: Vec<&str> = plain.split_whitespace().collect();
            let whole = words.join(" ");
            let (first, last) = whole.rsplit_once([' ', '_']).unwrap_or((&whole, ""));
            let is_unit = |kind| scale(kind, last).is_some();
            let has_unit = [Kind::Size, Kind::Rate, Kind::Time].into_iter().any(is_unit)
                || last.ends_with("b/s");
            let of = |name: &str| KNOWN.iter().find(|(known, _)| *known == name);
            let found = of(&whole).or_else(|| has_unit.then(|| of(first))?);
            let is_taken = |name: &str| map.columns.iter().any(|column| column.name == name);
            let Some((_, name)) = found.filter(|(_, name)| !is_taken(name)) else { continue };
            if let Ok(kind) = kind(name) {
                let (name, heading) = ((*name).to_owned(), heading.clone());
                map.columns.push(Column { name, kind, heading, unit: None });
            }
        }
        map.columns.retain(|column| map.values.iter().all(|said| said.axis() != column.name));
        map
    }
}

/// The parts between commas that are not quoted.
fn parts(text: &str) -> Result<Vec<&str>, String> {
    let (mut parts, mut quoted, mut begin) = (Vec::new(), false, 0);
    for (at, letter) in text.char_indices() {
        match letter {
            '"' => quoted = !quoted,
            ',' if !quoted => {
                parts.push(&text[begin..at]);
                begin = at + 1;
            }
            _ => {}
        }
    }
    if quoted {
        return Err("a quote is not closed".into());
    }
    parts.push(&text[begin..]);
    Ok(parts)
}

/// One column, as `NAME=HEADING` or `NAME=HEADING:UNIT`.
fn column(text: &str) -> Result<Column, String> {
    let wrong = || format!("`{}` is not `NAME=COLUMN` or `NAME=COLUMN:UNIT`", text.trim());
    let (name, rest) = text.split_once('=').ok_or_else(wrong)?;
    let (name, rest) = (name.trim(), rest.trim());
    let kind = kind(name)?;
    let (heading, unit) = match rest.strip_prefix('"') {
        Some(quoted) => {
            let (heading, behind) = quoted.split_once('"').ok_or_else(wrong)?;
            let unit = match behind.trim() {
                "" => None,
                behind => Some(behind.strip_prefix(':').ok_or_else(wrong)?.trim()),
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
        return Err(wrong());
    }
    if let Some(unit) = unit.filter(|unit| scale(kind, unit).is_none()) {
        return Err(format!("`{unit}` is not a unit of `{name}`{}", units(kind)));
    }
    let (name, heading, unit) = (name.into(), heading.into(), unit.map(str::to_owned));
    Ok(Column { name, kind, heading, unit })
}

/// Some units of a kind, for an error.
pub(super) const fn units(kind: Kind) -> &'static str {
    match kind {
        Kind::Text | Kind::Count => ", which has none",
        Kind::Size => ": use B, KiB, MiB, kB, MB and so on",
        Kind::Rate => ": use MiB/s, GiB/s, MB/s, GB/s, Gbit/s and so on",
        Kind::Time => ": use ns, us, ms or s",
    }
}

fn kind(name: &str) -> Result<Kind, String> {
    let quantity = QUANTITIES.iter().find(|(known, _)| *known == name).map(|(_, kind)| *kind);
    let of_axis = || match name {
        "size" => Some(Kind::Size),
        "depth" | "batch" | "threads" | "files" => Some(Kind::Count),
        _ => (name == "method" || AXES.contains(&name)).then_some(Kind::Text),
    };
    quantity.or_else(of_axis).ok_or_else(|| {
        let names = QUANTITIES.iter().map(|(name, _)| *name).chain(["method"]).chain(AXES);
        match near(name, names.clone()) {
            Some(near) => format!("unknown name `{name}`: perhaps `{near}` was meant"),
            None => {
                let names: Vec<&str> = names.collect();
                format!("unknown name `{name}`: use {}", names.join(", "))
            }
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_map_names_columns_and_units() {
        let map: Map = r#"size=Block, throughput="BW (MiB/s), all":MiB/s,p99=lat: p99:us,method=W,
                          cache:=cold"#
            .parse()
            .unwrap();
        let told: Vec<_> = map
            .columns
            .iter()
            .map(|c| (c.name.as_str(), c.heading.as_str(), c.unit.as_deref()))
            .collect();
        assert_eq!(
            told,
            [
                ("size", "Block", None),
                ("throughput", "BW (MiB/s), all", Some("MiB/s")),
                ("p99", "lat: p99", Some("us")),
                ("method", "W", None),
            ]
        );
        assert_eq!(map.values, [Said::of("cache", "cold").unwrap()]);
    }

    #[test]
    fn unknown_names_and_units_are_refused() {
        let why = |text: &str| text.parse::<Map>().unwrap_err();
        assert!(why("troughput=a").contains("perhaps `throughput` was meant"));
        assert!(why("colour=a").contains("use throughput, iops"));
        assert!(why("throughput=\"a\":MiB").contains("not a unit of `throughput`: use MiB/s"));
        assert!(why("p50=a,p50=b").contains("twice"));
        assert!(why("size=a,size:=4K").contains("twice"));
        for text in ["", "size", "size=", "size=\"a", "size=\"a\"b", "size=\"\""] {
            assert!(text.parse::<Map>().is_err(), "{text}");
        }
    }

    #[test]
    fn common_headings_are_known() {
        let of = |map: &str, headings: &[&str]| {
            let headings: Vec<String> = headings.iter().map(|one| (*one).to_owned()).collect();
            let map = if map.is_empty() { Map::default() } else { map.parse().unwrap() };
            let found = map.for_headings(&headings).columns;
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
        }
    }
}
