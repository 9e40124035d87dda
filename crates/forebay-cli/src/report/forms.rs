//! The forms of a report for people, except the page: text for a terminal, and Markdown. Pure.

use anstyle::Style;
use forebay_measure::plain::{cut, plain};

use super::grid::{Grid, WIDTH};
use super::model::unique;
use super::numbers::counted;
use super::show::Block;

/// Most letters of a line of text: longer ones are hard to read.
const LINE_MAX: usize = 100;

/// Text for a terminal of this width, or as wide as its tables. The last line names the columns
/// that do not fit.
#[must_use]
pub fn terminal(blocks: &[Block], width: Option<usize>) -> String {
    let lines = width.unwrap_or(WIDTH).min(LINE_MAX);
    let (mut text, mut dropped) = (String::new(), Vec::new());
    let mut before: Option<&Block> = None;
    for block in blocks {
        let is_line = |block: &Block| matches!(block, Block::Line(_));
        if before.is_some_and(|before| !(is_line(before) && is_line(block))) {
            text.push('\n');
        }
        match block {
            Block::Title(title) => {
                let bold = Style::new().bold();
                text.push_str(&format!("{bold}{}{bold:#}\n", cut(&plain(title), lines)));
            }
            Block::Line(line) => text.push_str(&wrapped(&plain(line), lines)),
            Block::Table(grid) => {
                let grid = grid.clone().fitted(width);
                text.push_str(&grid.text(width));
                dropped.extend(grid.dropped);
            }
        }
        before = Some(block);
    }
    let dropped = unique(dropped).join(", ");
    if !dropped.is_empty() {
        text.push_str(&wrapped(
            &format!("more columns: {dropped} (`--format csv` has all)"),
            lines,
        ));
    }
    text
}

/// Words in lines of this width, the later ones indented by two columns; a longer word is cut. A
/// number stays with its unit.
pub(crate) fn wrapped(text: &str, width: usize) -> String {
    indented(text, width, "  ")
}

/// As [`wrapped`], with the later lines indented by `indent`.
pub(crate) fn indented(text: &str, width: usize, indent: &str) -> String {
    const UNITS: [[&str; 2]; 2] = [[" %", "\u{a0}%"], [" GB/s", "\u{a0}GB/s"]];
    let joined = UNITS.iter().fold(text.to_owned(), |text, [own, kept]| text.replace(own, kept));
    let options = textwrap::Options::new(width)
        .subsequent_indent(indent)
        .wrap_algorithm(textwrap::WrapAlgorithm::FirstFit)
        .word_splitter(textwrap::WordSplitter::NoHyphenation);
    let lines = textwrap::fill(&joined, options);
    UNITS.iter().fold(lines, |text, [own, kept]| text.replace(kept, own)) + "\n"
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
    let grid = grid.clone().fitted(None);
    let line = |cells: Vec<String>| format!("| {} |\n", cells.join(" | "));
    let mut text = line(grid.columns.iter().map(|column| escaped(&column.heading)).collect());
    let rules = grid.columns.iter().map(|column| if column.number { "---:" } else { "---" });
    text.push_str(&line(rules.map(str::to_owned).collect()));
    for row in &grid.rows {
        text.push_str(&line(row.iter().map(|cell| escaped(&cell.text)).collect()));
    }
    if grid.left_out > 0 {
        let rows = counted(grid.left_out, "more row");
        text.push_str(&format!("\n{rows}: `--format csv` has all\n"));
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::made::{self, Sweep};
    use crate::report::model::Metric;
    use crate::report::model::gather::tests::model_of;
    use crate::report::show;

    fn plain_text(texts: &[(&str, &str)]) -> String {
        let model = model_of(texts);
        let blocks = show::report(&model, &[], Metric::Rate, 200);
        anstream::adapter::strip_str(&terminal(&blocks, Some(WIDTH))).to_string()
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
        let begins = "a  forebay bench /data/model.safetensors --depth 1,8,32\n\
             NVIDIA H200 · nvme0n1 (Fast One)";
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
        let sweep =
            Sweep { targets: eight, methods: vec!["forebay", "cpu-gpu"], ..Sweep::default() };
        for text in [made::file(&sweep), made::hostile()] {
            let text = plain_text(&[("a", &text)]);
            assert!(text.chars().all(|letter| letter == '\n' || !letter.is_control()));
            assert!(text.lines().all(|line| line.chars().count() <= WIDTH), "{text}");
            assert!(text.contains("\nmore columns: "), "{text}");
        }
        let mut sweep = Sweep { repeats: 1, ..Sweep::default() };
        sweep.depths = (1..100).collect();
        let text = plain_text(&[("a", &made::file(&sweep))]);
        assert!(text.contains("295 more rows: `--format csv` has all"), "{text}");
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
}
