//! The limits as a table, from the drives to the GPUs.

use super::parts::Part;
use crate::report::table::{drawn, rate};
use crate::results::Ceiling;

const HEADINGS: [&str; 6] = ["ceiling", "of", "theory", "measured", "of theory", "what limits it"];
/// Rows that are shown.
const ROWS_MAX: usize = 100;

/// The table, in GB/s; empty if nothing is known.
#[must_use]
pub(in crate::sweep) fn render(ceilings: &[Ceiling], parts: &[Part]) -> String {
    let before = |part: &&Part| matches!(part.name, "pcie" | "network");
    let measured = |storage: bool| {
        ceilings.iter().filter(move |c| !c.theory && (c.name == "storage") == storage)
    };
    let drives = parts.iter().filter(before).map(of_theory);
    let between = parts.iter().filter(|part| !before(part)).map(of_theory);
    let rows = drives
        .chain(measured(true).map(of_measured))
        .chain(between)
        .chain(measured(false).map(of_measured));
    let rows: Vec<[String; 6]> = rows.collect();
    if rows.is_empty() {
        return String::new();
    }
    let left = rows.len().saturating_sub(ROWS_MAX);
    let more = if left > 0 { format!("{left} more\n") } else { String::new() };
    let shown = rows.into_iter().take(ROWS_MAX);
    let table = drawn(HEADINGS, shown, |index| (2..5).contains(&index));
    format!("ceilings, GB/s\n{table}{more}")
}

fn of_theory(part: &Part) -> [String; 6] {
    let whose = (part.shared_by.len() > 1).then(|| format!("shared by {}", list(&part.shared_by)));
    let untold = part.rate.is_none().then(|| part.how.clone());
    let limits: Vec<String> = [part.limits.clone(), whose, untold].into_iter().flatten().collect();
    let rate = part.rate.map_or_else(dash, rate);
    [part.name.into(), part.of.clone(), rate, dash(), dash(), limits.join("; ")]
}

fn of_measured(ceiling: &Ceiling) -> [String; 6] {
    let direction = ceiling.direction.map_or("", |direction| direction.name());
    let theory = ceiling.theory_bytes_per_second;
    let share = theory.filter(|theory| *theory > 0.0);
    let share = share.map(|theory| ceiling.bytes_per_second / theory * 100.0);
    [
        format!("{} {direction}", ceiling.name).trim_end().to_owned(),
        ceiling.of.clone(),
        theory.map_or_else(dash, rate),
        rate(ceiling.bytes_per_second),
        share.map_or_else(dash, |share| format!("{share:.0} %")),
        ceiling.limits.clone().unwrap_or_default(),
    ]
}

fn dash() -> String {
    "–".into()
}

fn list(names: &[String]) -> String {
    const SHOWN: usize = 8;
    let more = names.len().saturating_sub(SHOWN);
    let shown = names[..names.len().min(SHOWN)].join(", ");
    if more > 0 { format!("{shown} and {more} more") } else { shown }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::json::Direction;

    #[test]
    fn each_ceiling_has_a_row_and_nothing_reaches_the_terminal() {
        let link = |of: &str, rate, theory: Option<f64>| Ceiling {
            name: "link".into(),
            of: of.into(),
            direction: Some(Direction::Read),
            bytes_per_second: rate,
            theory_bytes_per_second: theory,
            limits: Some("trained down: it runs at x8 of x16 at 32 GT/s".into()),
            ..Ceiling::default()
        };
        let storage = Ceiling { name: "storage".into(), ..link("/data", 6.5e9, None) };
        let up = Part {
            name: "uplink",
            of: "0000:40:01.0".into(),
            rate: Some(28.6e9),
            shared_by: vec!["cuda:0".into(), "cuda:1".into()],
            ..Part::default()
        };
        let how = "no rate is reported (sata)".into();
        let part = Part { name: "pcie", how, ..Part::default() };
        let drive = Part { of: "sda\u{1b}[2J".into(), ..part };
        let text = render(&[link("cuda:0", 25e9, Some(28.6e9)), storage], &[drive, up]);
        let words = |line: &str| line.split_whitespace().collect::<Vec<_>>().join(" ");
        let text: Vec<String> = text.lines().map(words).collect();
        insta::assert_snapshot!(text.join("\n"), @r"
        ceilings, GB/s
        ceiling of theory measured of theory what limits it
        pcie sda\u{1b}[2J – – – no rate is reported (sata)
        storage read /data – 6.50 – trained down: it runs at x8 of x16 at 32 GT/s
        uplink 0000:40:01.0 28.6 – – shared by cuda:0, cuda:1
        link read cuda:0 28.6 25.0 87 % trained down: it runs at x8 of x16 at 32 GT/s
        ");
        assert_eq!(render(&[], &[]), "");
    }
}
