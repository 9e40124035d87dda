//! A report for those without a browser: the answer, bars, and the table.

use std::fmt::Write as _;

use crate::report::digest::{Axis, Digest, Line, answer, digits, rate_text};
use crate::report::grid::{Cell, Column, Grid, people};
use crate::report::plain::{cut, plain};
use crate::report::table;

/// Letters of a whole bar.
const WIDTH: usize = 32;
/// Letters of a name before a bar.
const NAME_MAX: usize = 48;
/// Bars at most: nobody reads more.
const BARS_MAX: usize = 40;
/// Rows of the table at most.
const ROWS_MAX: usize = 200;

/// The whole report.
#[must_use]
pub fn text(digest: &Digest) -> String {
    let mut text = String::new();
    for run in &digest.runs {
        // Writing to a string cannot fail.
        let told = run.imported.as_ref().map(|_| run.origin());
        let told = told.unwrap_or_else(|| run.environment.command.clone());
        let _ = writeln!(text, "{}: {}", plain(&run.name), plain(&told));
    }
    text + &body(digest)
}

/// The same without the commands that made it.
#[must_use]
pub fn body(digest: &Digest) -> String {
    let mut text = common(digest).map_or_else(String::new, |common| common + "\n");
    let _ = writeln!(text, "\n{}", answer::sentence(digest));
    section(&mut text, "Ceilings, and what was reached of them", &ceilings(digest));
    section(&mut text, "Throughput", &throughput(digest));
    let grid = people::results(digest, ROWS_MAX);
    if !grid.rows.is_empty() {
        let _ = write!(text, "\n{}", rows(&grid));
    }
    let targets = people::targets(digest, ROWS_MAX);
    if !targets.rows.is_empty() {
        let _ = write!(text, "\n{}", rows(&targets));
    }
    text
}

/// A bar's name, how much of the whole it is, and what stands behind it.
struct Bar {
    name: String,
    share: f64,
    value: String,
}

fn ceilings(digest: &Digest) -> Vec<Bar> {
    let bars = digest.ceilings.iter().take(BARS_MAX).map(|bound| {
        let reached = people::reached(digest, bound).map(|rate| rate / bound.rate);
        let theory = if bound.theory { ", theory" } else { "" };
        let direction = bound.direction.map_or_else(String::new, |way| format!(" {}", way.name()));
        let percent = reached.map(|share| format!(", {} % reached", digits(share * 100.0)));
        let of_theory = bound.of_theory();
        let of_theory = of_theory.map(|share| format!(", {} % of theory", digits(share * 100.0)));
        Bar {
            name: format!("{}{direction} of {}", bound.name, bound.of),
            share: reached.unwrap_or_default(),
            value: format!(
                "{}{theory}{}{}",
                rate_text(bound.rate),
                of_theory.unwrap_or_default(),
                percent.unwrap_or_default()
            ),
        }
    });
    bars.collect()
}

/// The fastest lines, in the order in which they were measured; what failed only where there is
/// room.
fn throughput(digest: &Digest) -> Vec<Bar> {
    let mut places: Vec<(usize, &Line)> = digest.lines.iter().enumerate().collect();
    let rate = |line: &Line| line.rate().unwrap_or(f64::NEG_INFINITY);
    places.sort_by(|(_, a), (_, b)| rate(b).total_cmp(&rate(a)));
    places.truncate(BARS_MAX);
    places.sort_by_key(|(place, _)| *place);
    let lines: Vec<&Line> = places.into_iter().map(|(_, line)| line).collect();
    let most = lines.iter().filter_map(|line| line.rate()).fold(0.0, f64::max);
    let bars = lines.into_iter().map(|line| Bar {
        name: people::label(digest, line),
        share: line.rate().map_or(0.0, |rate| if most > 0.0 { rate / most } else { 0.0 }),
        value: people::value(line),
    });
    bars.collect()
}

fn section(text: &mut String, heading: &str, bars: &[Bar]) {
    if bars.is_empty() {
        return;
    }
    let _ = writeln!(text, "\n{heading}");
    let names: Vec<String> = bars.iter().map(|bar| cut(&plain(&bar.name), NAME_MAX)).collect();
    let width = names.iter().map(|name| name.chars().count()).max().unwrap_or_default();
    for (bar, name) in bars.iter().zip(names) {
        let _ = writeln!(text, "  {name:<width$}  {}  {}", drawn(bar.share), plain(&bar.value));
    }
}

/// A bar by eighths of a letter.
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    clippy::cast_precision_loss,
    reason = "a number of eighths of a bar"
)]
fn drawn(share: f64) -> String {
    const EIGHTHS: [char; 8] = [' ', '▏', '▎', '▍', '▌', '▋', '▊', '▉'];
    let share = if share.is_finite() { share.clamp(0.0, 1.0) } else { 0.0 };
    let eighths = (share * WIDTH as f64 * 8.0).round() as usize;
    let whole = eighths / 8;
    let mut bar = "█".repeat(whole);
    if whole < WIDTH {
        bar.push(EIGHTHS[eighths % 8]);
        bar.push_str(&" ".repeat(WIDTH - whole - 1));
    }
    bar
}

fn rows(grid: &Grid) -> String {
    let headings: Vec<String> = grid.columns.iter().map(|column| plain(&column.heading)).collect();
    let mut failures = Vec::new();
    let mut shown = Vec::new();
    for row in &grid.rows {
        let cells = row.iter().zip(&grid.columns);
        let texts = cells.map(|(cell, column)| text_of(cell, column, &mut failures));
        shown.push(texts.collect::<Vec<String>>());
    }
    let is_number = |index: usize| grid.columns.get(index).is_some_and(|column| column.number);
    let mut text = table::drawn(headings, shown, is_number) + &table::footnotes(&failures);
    if grid.left_out > 0 {
        let _ = writeln!(text, "{} more rows: `--csv` has all", grid.left_out);
    }
    text
}

fn text_of<'a>(cell: &'a Cell, column: &Column, failures: &mut Vec<&'a str>) -> String {
    match cell.text.as_str() {
        "" => "–".to_owned(),
        // Why a point failed is longer than a cell, and the same for many.
        why if column.key == "error" => format!("[{}]", table::mark(why, failures)),
        text => cut(&plain(text), NAME_MAX),
    }
}

/// What all points have in common, of what tells points apart elsewhere.
fn common(digest: &Digest) -> Option<String> {
    let first = digest.lines.first()?;
    let same = Axis::ALL.into_iter().filter(|axis| *axis != Axis::Run && digest.values(*axis) < 2);
    let same =
        same.filter_map(|axis| Some(format!("{} {}", axis.name(), plain(first.mark(axis)?))));
    let same: Vec<String> = same.collect();
    (!same.is_empty()).then(|| format!("all points: {}", same.join(", ")))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::digest::gather::tests::digest_of;
    use crate::report::made::{self, Sweep};

    #[test]
    fn a_report_has_its_answer_bars_and_a_table() {
        let sweep = Sweep {
            request_sizes: vec![65536, 1 << 20],
            depths: vec![1, 8],
            fails: 3,
            ..Sweep::default()
        };
        let text = text(&digest_of(&[("a", &made::file(&sweep))]));
        let (bars, _) = text.split_once("\nway ").unwrap();
        let narrow = bars.replace(", ", ",\n").replace("  █", "\n█");
        let narrow: Vec<&str> = narrow.lines().map(str::trim_end).collect();
        insta::assert_snapshot!(narrow.join("\n"), @"
        a: forebay sweep /data/model.safetensors --depth 1,8,32
        all points: path /data/model.safetensors,
        way forebay,
        direction read,
        pattern random,
        cache cold,
        target cuda:0,
        batch 1,
        threads 1,
        files 1

        At best,
        forebay reads 5.55 GB/s (5.49 to 5.60) with request size 1 MiB,
        depth 8,
        79.2 % of the ceiling `storage`,
        verdict: mixed 75 % staged / 25 % cached.

        Ceilings,
        and what was reached of them
          link read of cuda:0
        ███████▏                          25.0 GB/s,
        22.2 % reached
          storage read of /data/model.safetensors
        █████████████████████████▍        7.00 GB/s,
        79.2 % reached
          pcie read of nvme0n1
        ██████████████████████▌           7.90 GB/s,
        theory,
        70.2 % reached

        Throughput
          64 KiB,
        1
        █▎                                0.218 GB/s,
        3.11 %
          64 KiB,
        8
        ████████▎                         1.43 GB/s,
        20.4 %
          1 MiB,
        1                                     failed
          1 MiB,
        8
        ████████████████████████████████  5.55 GB/s,
        79.2 %
        ");
    }

    #[test]
    fn a_report_is_bounded_and_does_nothing_to_the_terminal() {
        let text = text(&digest_of(&[("a", &made::hostile())]));
        assert!(text.chars().all(|letter| letter == '\n' || !letter.is_control()));
        let mut sweep = Sweep { repeats: 1, ..Sweep::default() };
        sweep.depths = (1..100).collect();
        let text = self::text(&digest_of(&[("a", &made::file(&sweep))]));
        assert!(text.contains("295 more rows: `--csv` has all"), "{text}");
        assert!(text.lines().count() < 300);
    }

    proptest::proptest! {
        #[test]
        fn a_bar_has_its_width(share: f64) {
            proptest::prop_assert_eq!(drawn(share).chars().count(), WIDTH);
        }

        #[test]
        fn a_longer_bar_is_more(low in 0.0..1.0_f64, high in 0.0..1.0_f64) {
            let full = |share| drawn(share).matches('█').count();
            proptest::prop_assert!(low > high || full(low) <= full(high));
        }
    }

    #[test]
    fn what_was_measured_is_shown_before_what_failed() {
        let sweep = Sweep { depths: (1..=20).collect(), repeats: 1, ..Sweep::default() };
        let mut digest = digest_of(&[("a", &made::file(&sweep))]);
        for (number, line) in digest.lines.iter_mut().enumerate() {
            if number < 95 {
                line.metrics.clear();
            }
        }
        let bars = throughput(&digest);
        assert_eq!((digest.lines.len(), bars.len()), (100, BARS_MAX));
        let measured = bars.iter().filter(|bar| bar.value != "failed").count();
        assert_eq!(measured, 5);
        assert!(bars[BARS_MAX - 5..].iter().all(|bar| bar.value != "failed"));
    }
}
