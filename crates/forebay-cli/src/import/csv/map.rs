//! The meaning of columns: `size=Block,throughput="BW (MiB/s)":MiB/s`.

use std::str::FromStr;

use super::units::{Kind, scale};
use crate::import::near::near;
use crate::import::said::AXES;

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
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Map(pub(super) Vec<Column>);

impl FromStr for Map {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let mut columns: Vec<Column> = Vec::new();
        for part in parts(text)? {
            let column = column(part)?;
            if columns.iter().any(|known| known.name == column.name) {
                return Err(format!("`{}` is named twice", column.name));
            }
            columns.push(column);
        }
        Ok(Self(columns))
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
        _ => (name == "way" || AXES.contains(&name)).then_some(Kind::Text),
    };
    quantity.or_else(of_axis).ok_or_else(|| {
        let names = QUANTITIES.iter().map(|(name, _)| *name).chain(["way"]).chain(AXES);
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
        let map: Map = r#"size=Block, throughput="BW (MiB/s), all":MiB/s,p99=lat: p99:us,way=W"#
            .parse()
            .unwrap();
        let told: Vec<_> = map
            .0
            .iter()
            .map(|c| (c.name.as_str(), c.heading.as_str(), c.unit.as_deref()))
            .collect();
        assert_eq!(
            told,
            [
                ("size", "Block", None),
                ("throughput", "BW (MiB/s), all", Some("MiB/s")),
                ("p99", "lat: p99", Some("us")),
                ("way", "W", None),
            ]
        );
    }

    #[test]
    fn what_makes_no_sense_is_refused() {
        let why = |text: &str| text.parse::<Map>().unwrap_err();
        assert!(why("troughput=a").contains("perhaps `throughput` was meant"));
        assert!(why("colour=a").contains("use throughput, iops"));
        assert!(why("throughput=\"a\":MiB").contains("not a unit of `throughput`: use MiB/s"));
        assert!(why("p50=a,p50=b").contains("twice"));
        for text in ["", "size", "size=", "size=\"a", "size=\"a\"b", "size=\"\""] {
            assert!(text.parse::<Map>().is_err(), "{text}");
        }
    }

    proptest::proptest! {
        #[test]
        fn no_text_ends_the_command(text: String, rest in "[a-z\",:= /]{0,40}") {
            let _ = (text.parse::<Map>(), format!("size={rest}").parse::<Map>());
        }
    }
}
