//! The forms of a report, except the page: text for a terminal, Markdown, and CSV. Pure.

use anstyle::Style;

use super::compare::{Comparison, Verdict};
use super::grid::Grid;
use super::model::{Axis, Line, Metric, Model};
use super::plain::{cut, plain};
use super::show::Block;
use crate::failure::{Failure, Result};

/// Letters of a line for a terminal.
pub const WIDTH: usize = 80;

/// Text for a terminal, 80 letters wide, or as wide as its tables.
#[must_use]
pub fn terminal(blocks: &[Block], wide: bool) -> String {
    let width = (!wide).then_some(WIDTH);
    let mut text = String::new();
    let mut before: Option<&Block> = None;
    for block in blocks {
        let is_line = |block: &Block| matches!(block, Block::Line(_));
        if before.is_some_and(|before| !(is_line(before) && is_line(block))) {
            text.push('\n');
        }
        match block {
            Block::Title(title) => {
                let bold = Style::new().bold();
                text.push_str(&format!("{bold}{}{bold:#}\n", cut(&plain(title), WIDTH)));
            }
            Block::Line(line) => text.push_str(&wrapped(&plain(line), WIDTH)),
            Block::Table(grid) => text.push_str(&grid.clone().drawn(width)),
        }
        before = Some(block);
    }
    text
}

/// Words in lines of this width, the later ones indented; a longer word is cut.
pub(crate) fn wrapped(text: &str, width: usize) -> String {
    let letters = |text: &str| text.chars().count();
    let (mut lines, mut line) = (String::new(), String::new());
    for word in text.split(' ') {
        let mut word: Vec<char> = word.chars().collect();
        if !line.trim().is_empty() && letters(&line) + 1 + word.len() > width {
            lines.push_str(&format!("{line}\n"));
            line = "  ".into();
        } else if !line.trim().is_empty() {
            line.push(' ');
        }
        while letters(&line) + word.len() > width {
            let rest = word.split_off(width.saturating_sub(letters(&line)).max(1));
            lines.push_str(&format!("{line}{}\n", word.iter().collect::<String>()));
            (line, word) = ("  ".into(), rest);
        }
        line.extend(word);
    }
    lines + &line + "\n"
}

/// Markdown: headings, paragraphs and tables, with the warnings at the end.
#[must_use]
pub fn markdown(blocks: &[Block], warnings: &[String]) -> String {
    let mut text = "# Report\n".to_owned();
    for block in blocks {
        text.push('\n');
        match block {
            Block::Title(title) => text.push_str(&format!("## {}\n", escaped(title))),
            Block::Line(line) => text.push_str(&format!("{}\n", escaped(line))),
            Block::Table(grid) => text.push_str(&markdown_table(grid)),
        }
    }
    if !warnings.is_empty() {
        text.push_str("\n## Warnings\n\n");
        warnings.iter().for_each(|warning| text.push_str(&format!("- {}\n", escaped(warning))));
    }
    text
}

fn markdown_table(grid: &Grid) -> String {
    let line = |cells: Vec<String>| format!("| {} |\n", cells.join(" | "));
    let mut text = line(grid.columns.iter().map(|column| escaped(&column.heading)).collect());
    let rules = grid.columns.iter().map(|column| if column.number { "---:" } else { "---" });
    text.push_str(&line(rules.map(str::to_owned).collect()));
    for row in &grid.rows {
        text.push_str(&line(row.iter().map(|cell| escaped(&cell.text)).collect()));
    }
    if grid.left_out > 0 {
        text.push_str(&format!("\n{} more rows: `--csv` has all\n", grid.left_out));
    }
    text
}

/// A text of which no letter marks up anything. Pairs of backticks are kept as code.
fn escaped(text: &str) -> String {
    let text = plain(text);
    let has_code = text.matches('`').count().is_multiple_of(2) && !text.contains('<');
    let mut shown = String::with_capacity(text.len());
    let mut in_code = false;
    for letter in text.chars() {
        match letter {
            '<' => shown.push_str("&lt;"),
            '`' if has_code => {
                in_code = !in_code;
                shown.push(letter);
            }
            '|' => shown.push_str("\\|"),
            '`' | '\\' | '*' | '_' | '[' | ']' | '>' | '#' | '~' | '&' | '$' if !in_code => {
                shown.extend(['\\', letter]);
            }
            _ => shown.push(letter),
        }
    }
    shown
}

/// CSV with every number: a row for each quantity of each compared point, or for each point.
///
/// # Errors
/// There are results and layers: these have different columns.
pub fn csv(model: &Model, comparisons: &[Comparison]) -> Result<String> {
    let rows = if !comparisons.is_empty() {
        compared_rows(comparisons)
    } else if model.layers.is_empty() {
        point_rows(model)
    } else if model.runs.is_empty() {
        layer_rows(model)
    } else {
        return Err(Failure::usage("cannot write results and layers into one table")
            .because("results and layers behind compute have different columns")
            .hint("give files of one kind with `--csv`"));
    };
    let mut writer = csv::WriterBuilder::new().flexible(true).from_writer(Vec::new());
    for row in &rows {
        let written = writer.write_record(row.iter().map(|field| harmless(field)));
        written.map_err(|error| Failure::new("cannot write CSV").because(error.to_string()))?;
    }
    let bytes = writer
        .into_inner()
        .map_err(|error| Failure::new("cannot write CSV").because(error.to_string()))?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

/// Letters that begin a formula in a spreadsheet, in either width.
const FORMULA: [char; 8] = ['=', '+', '-', '@', '＝', '＋', '－', '＠'];

/// A field that no spreadsheet takes for a formula: names in results come from others.
fn harmless(field: &str) -> String {
    let text = plain(field);
    let is_number = text.parse::<f64>().is_ok();
    if text.starts_with(FORMULA) && !is_number { format!("'{text}") } else { text }
}

fn number(value: Option<f64>) -> String {
    value.filter(|value| value.is_finite()).map(|value| value.to_string()).unwrap_or_default()
}

fn point_rows(model: &Model) -> Vec<Vec<String>> {
    let has_axis = |axis: &Axis| model.lines.iter().any(|line| axis.text(model, line).is_some());
    let has = |metric: &Metric| model.lines.iter().any(|line| !line.samples(*metric).is_empty());
    let axes: Vec<Axis> = Axis::ALL.into_iter().filter(has_axis).collect();
    let metrics: Vec<Metric> = Metric::ALL.into_iter().filter(has).collect();
    let mut head: Vec<String> = axes.iter().map(|axis| axis.key().into()).collect();
    for metric in &metrics {
        head.extend(["", "_low", "_high", "_min", "_max"].map(|end| metric.key().to_owned() + end));
    }
    let more = [
        "samples",
        "failed",
        "bytes",
        "share_of_limit",
        "limit",
        "bound",
        "route",
        "path_taken",
        "verified",
        "steady",
        "simulated",
        "error",
    ];
    head.extend(more.map(str::to_owned));
    let row = |line: &Line| {
        let axis = |axis: &Axis| {
            let text = axis.text(model, line).unwrap_or_default();
            let number = axis.number(model, line).filter(|_| *axis != Axis::Run);
            number.map_or(text, |number| number.to_string())
        };
        let mut row: Vec<String> = axes.iter().map(axis).collect();
        for metric in &metrics {
            let found = line.estimate(*metric);
            let interval = found.and_then(|found| found.interval);
            row.extend(
                [
                    found.map(|found| found.median),
                    interval.map(|interval| interval.0),
                    interval.map(|interval| interval.1),
                    found.map(|found| found.min),
                    found.map(|found| found.max),
                ]
                .map(number),
            );
        }
        row.extend([
            line.samples(Metric::Rate).len().to_string(),
            line.failed.to_string(),
            line.bytes.to_string(),
            number(line.share()),
            line.limit.as_ref().map_or_else(String::new, |(name, _)| name.clone()),
            line.bound.clone().unwrap_or_default(),
            line.route.clone(),
            line.verdict.clone(),
            line.verified.map_or_else(String::new, |verified| verified.to_string()),
            (line.unsteady == 0).to_string(),
            line.simulated.to_string(),
            line.error.clone().unwrap_or_default(),
        ]);
        row
    };
    let mut rows = vec![head];
    rows.extend(model.lines.iter().map(row));
    rows
}

fn compared_rows(comparisons: &[Comparison]) -> Vec<Vec<String>> {
    let pairs = || comparisons.iter().flat_map(|one| one.pairs.iter().map(move |pair| (one, pair)));
    let has = |axis: &Axis| pairs().any(|(_, pair)| pair.key.contains_key(axis));
    let axes: Vec<Axis> = Axis::ALL.into_iter().filter(has).collect();
    let mut head = vec!["base".to_owned(), "other".into()];
    head.extend(axes.iter().map(|axis| axis.key().to_owned()));
    let more = [
        "metric",
        "base_median",
        "other_median",
        "ratio",
        "ratio_low",
        "ratio_high",
        "chance",
        "verdict",
        "base_samples",
        "other_samples",
    ];
    head.extend(more.map(str::to_owned));
    let mut rows = vec![head];
    for (one, pair) in pairs() {
        for found in &pair.quantities {
            let mut row = vec![one.base.clone(), one.other.clone()];
            row.extend(axes.iter().map(|axis| pair.key.get(axis).cloned().unwrap_or_default()));
            let interval = found.ratio.interval();
            row.extend([
                found.metric.key().to_owned(),
                number(Some(found.medians.0)),
                number(Some(found.medians.1)),
                number(Some(found.ratio.value())),
                number(interval.map(|interval| interval.0)),
                number(interval.map(|interval| interval.1)),
                number(found.chance),
                match found.verdict() {
                    Some(Verdict::Better) => "better".into(),
                    Some(Verdict::Worse) => "worse".into(),
                    None => String::new(),
                },
                found.samples.0.to_string(),
                found.samples.1.to_string(),
            ]);
            rows.push(row);
        }
    }
    rows
}

fn layer_rows(model: &Model) -> Vec<Vec<String>> {
    let head = [
        "run",
        "tokens",
        "method",
        "compute_s",
        "pass_s",
        "ideal_s",
        "over_ideal",
        "over_compute",
        "stall_s",
        "cpu_s_per_gb",
    ];
    let mut rows = vec![head.map(str::to_owned).to_vec()];
    for layers in &model.layers {
        rows.extend(layers.grid().rows.into_iter().map(|cells| {
            let fields = cells.into_iter().map(|cell| match cell.number {
                Some(number) => number.to_string(),
                None => cell.text,
            });
            std::iter::once(layers.name.clone()).chain(fields).collect()
        }));
    }
    rows
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::made::{self, Sweep};
    use crate::report::model::gather::tests::model_of;
    use crate::report::show;

    fn plain_text(texts: &[(&str, &str)]) -> String {
        let model = model_of(texts);
        let blocks = show::report(&model, &[], Metric::Rate, 200);
        anstream::adapter::strip_str(&terminal(&blocks, false)).to_string()
    }

    #[test]
    fn a_table_has_its_head_and_its_best_row() {
        let sweep = Sweep {
            request_sizes: vec![65536, 1 << 20],
            depths: vec![1, 8],
            fails: 3,
            ..Sweep::default()
        };
        let text = plain_text(&[("a", &made::file(&sweep))]);
        let begins =
            "a  forebay bench /data/model.safetensors --depth 1,8,32\nNVIDIA H200 · Fast One";
        assert!(text.starts_with(begins), "{text}");
        for word in [
            "\nall: path /data/model.safetensors, method forebay, direction read,",
            "\nblock size  depth    GB/s      ±    IOPS ",
            "\n     1 MiB      1  failed",
            "\nBest: 5.55 GB/s (1 MiB, depth 8), 79 % of storage (7.00 GB/s).\n",
            "\nPath: mixed 75 % staged / 25 % cached. All data verified.\n",
        ] {
            assert!(text.contains(word), "{word}: {text}");
        }
    }

    #[test]
    fn a_report_fits_80_columns_and_does_nothing_to_the_terminal() {
        let eight: Vec<&'static str> =
            vec!["sim:0", "sim:1", "sim:2", "sim:3", "sim:4", "sim:5", "sim:6", "sim:7"];
        let sweep = Sweep { targets: eight, ways: vec!["forebay", "cpu-gpu"], ..Sweep::default() };
        for text in [made::file(&sweep), made::hostile()] {
            let text = plain_text(&[("a", &text)]);
            assert!(text.chars().all(|letter| letter == '\n' || !letter.is_control()));
            assert!(text.lines().all(|line| line.chars().count() <= WIDTH), "{text}");
        }
        let mut sweep = Sweep { repeats: 1, ..Sweep::default() };
        sweep.depths = (1..100).collect();
        let text = plain_text(&[("a", &made::file(&sweep))]);
        assert!(text.contains("295 more rows: `--csv` has all"), "{text}");
    }

    #[test]
    fn words_are_wrapped_and_only_long_ones_cut() {
        assert_eq!(wrapped("one two three", 8), "one two\n  three\n");
        assert_eq!(wrapped("abcdefghij", 4), "abcd\n  ef\n  gh\n  ij\n");
        assert_eq!(wrapped("", 4), "\n");
    }

    #[test]
    fn markdown_shows_every_letter_as_it_is() {
        assert_eq!(escaped("a|b *x* `c_d` [e]"), r"a\|b \*x\* `c_d` \[e\]");
        assert_eq!(escaped("<i> `c`"), r"&lt;i\> \`c\`");
        assert_eq!(escaped("one ` tick"), r"one \` tick");
        let model = model_of(&[("a", &made::hostile())]);
        let text = markdown(&show::report(&model, &[], Metric::Rate, 200), &model.warnings);
        assert!(!text.contains("<script") && text.contains("## Warnings"), "{text}");
    }

    #[test]
    fn csv_has_every_number_to_the_last_digit() {
        let model = model_of(&[("a", &made::file(&Sweep { fails: 7, ..Sweep::default() }))]);
        let text = csv(&model, &[]).unwrap();
        let mut reader = csv::Reader::from_reader(text.as_bytes());
        let head = reader.headers().unwrap().clone();
        let at = |key: &str| head.iter().position(|other| other == key).unwrap();
        let rows: Vec<csv::StringRecord> = reader.records().map(Result::unwrap).collect();
        assert_eq!(rows.len(), 15);
        for (row, line) in rows.iter().zip(&model.lines) {
            for metric in [Metric::Rate, Metric::P99, Metric::CpuCost] {
                let found = row[at(metric.key())].parse().ok();
                assert_eq!(found, line.estimate(metric).map(|found| found.median));
            }
            assert_eq!(row[at("block-size")].parse::<u64>().unwrap(), line.point.request_size);
        }
        let hostile = csv(&model_of(&[("a", &made::hostile())]), &[]).unwrap();
        let rows = csv::Reader::from_reader(hostile.as_bytes()).into_records().count();
        assert_eq!(rows, model_of(&[("a", &made::hostile())]).lines.len());
        assert_eq!(["=1+1", "-5", "-x", "＠a"].map(harmless), ["'=1+1", "-5", "'-x", "'＠a"]);
    }
}
