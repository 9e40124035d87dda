//! A report for a terminal: the answer, bars, and the tables.

use std::fmt::Write as _;

use crate::report::digest::{Axis, Digest, Line, answer, digits, rate_text};
use crate::report::grid::{Cell, Column, Grid, layers, people};
use crate::report::layers::{Layers, said};
use crate::report::plain::{cut, plain};
use crate::report::table;

/// Letters of a whole bar.
const WIDTH: usize = 32;
/// Letters of a name before a bar.
const NAME_MAX: usize = 48;
/// Most bars that are drawn.
const BARS_MAX: usize = 40;
/// Most rows of a table.
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
    if !digest.runs.is_empty() || digest.layers.is_empty() {
        text.push_str(&body(digest));
    }
    behind_compute(&mut text, &digest.layers);
    text
}

/// The measurements of layers behind compute: a table and its conclusions for each run.
fn behind_compute(text: &mut String, all: &[Layers]) {
    for layers in all {
        let gap = if text.is_empty() { "" } else { "\n" };
        let (name, command) = (plain(&layers.name), plain(&layers.command));
        let _ = writeln!(text, "{gap}{name}: {command}\n{}", plain(&layers.about()));
        let grid = layers::people(layers, ROWS_MAX);
        if !grid.rows.is_empty() {
            let _ = writeln!(text, "\n{}", rows(&grid));
        }
        for line in said::sentences(layers).iter().chain(&said::left_out(layers)) {
            let _ = writeln!(text, "{}", plain(line));
        }
    }
    if !all.is_empty() {
        text.push('\n');
        said::LEGEND.iter().for_each(|(name, is)| text.push_str(&format!("{name}: {is}\n")));
    }
}

/// The body without the commands that made it.
#[must_use]
pub fn body(digest: &Digest) -> String {
    let mut text = common(digest).map_or_else(String::new, |common| common + "\n");
    let _ = writeln!(text, "\n{}", answer::sentence(digest));
    section(&mut text, "Limits, and the share reached", &ceilings(digest));
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

/// A bar's name, its share of the whole, and the text after it.
struct Bar {
    name: String,
    share: f64,
    value: String,
}

fn ceilings(digest: &Digest) -> Vec<Bar> {
    let bars = digest.ceilings.iter().take(BARS_MAX).map(|bound| {
        let reached = people::reached_share(digest, bound);
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

/// The fastest lines, in the order of measurement; failed ones only if there is room.
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
        // The reason of a failure is longer than a cell, and the same for many points.
        why if column.key == "error" => format!("[{}]", table::mark(why, failures)),
        text => cut(&plain(text), NAME_MAX),
    }
}

/// The values that all points share, on axes that otherwise distinguish points.
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
    use crate::report::layers::tests::{MAPPED, hostile};
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
        let (bars, _) = text.split_once("\nmethod ").unwrap();
        let narrow = bars.replace(", ", ",\n").replace("  █", "\n█");
        let narrow: Vec<&str> = narrow.lines().map(str::trim_end).collect();
        insta::assert_snapshot!(narrow.join("\n"), @"
        a: forebay sweep /data/model.safetensors --depth 1,8,32
        all points: path /data/model.safetensors,
        method forebay,
        direction read,
        pattern random,
        cache cold,
        target cuda:0,
        batch 1,
        threads 1,
        files 1

        At best,
        forebay reads 5.55 GB/s (5.49 to 5.60) with block size 1 MiB,
        depth 8,
        79.2 % of the limit `storage`,
        verdict: mixed 75 % staged / 25 % cached.

        Limits,
        and the share reached
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

    #[test]
    fn layers_have_a_table_and_what_it_shows() {
        let text = text(&digest_of(&[("large", MAPPED)]));
        let words = |line: &str| line.split_whitespace().collect::<Vec<_>>().join(" ");
        let (shown, legend) = text.split_once("\n\ncompute, transfer: ").unwrap();
        let narrow: Vec<String> = shown.lines().map(words).collect();
        let narrow = narrow.join("\n").replace(" --", "\n--").replace("ms ", "ms\n");
        insta::assert_snapshot!(narrow, @"
        large: python3 -m forebay.stream_bench
        --layers 6
        --layer-mb 1237
        --tokens 1024,8192,32768
        --from mapped
        --ways forebay,two-buffers
        --file large.bin
        --rounds 5
        --out FOLDER
        6 layers of 1,237 MB, forward, from mapped, NVIDIA H200, 16 cores

        tokens method compute, ms
        transfer, ms
        reads pass, ms
        line, ms
        overhead, % over compute, % stall, ms
        compute slowdown CPU, s/GB
        1,024 forebay 1.09 22.36 6 134.9 135.3 -0.3 +1965.2 128.2 1.029 0.018
        1,024 two-buffers 1.09 22.36 6 135.3 135.3 +0.0 +1971.5 128.7 1.012 0.018
        8,192 forebay 10.79 22.35 6 143.8 144.9 -0.7 +122.1 82.8 0.943 0.019
        8,192 two-buffers 10.79 22.35 6 144.3 144.9 -0.5 +122.7 83.3 0.941 0.019
        32,768 forebay 79.00 22.38 6 481.1 496.4 -3.1 +1.5 22.3 0.968 0.065
        32,768 two-buffers 79.00 22.38 6 490.1 496.4 -1.3 +3.4 22.5 0.987 0.066

        forebay: free from 32,768 tokens on; on its line from 1,024 tokens on
        two-buffers: free from 32,768 tokens on; on its line from 1,024 tokens on
        ");
        assert_eq!(legend.lines().count(), said::LEGEND.len());
        let results = made::file(&Sweep { repeats: 1, ..Sweep::default() });
        let both = self::text(&digest_of(&[("l", MAPPED), ("a", &results)]));
        assert!(both.starts_with("a: forebay sweep") && both.contains("\nAt best, forebay"));
        assert!(both.contains("\n\nl: python3 -m forebay.stream_bench"), "{both}");
        let hostile = self::text(&digest_of(&[("h", &hostile())]));
        assert!(hostile.chars().all(|letter| letter == '\n' || !letter.is_control()));
        assert!(hostile.contains("1080 more rows: `--csv` has all"), "{hostile}");
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
