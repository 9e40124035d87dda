//! A report as Markdown, for a ticket or a repository.

use std::fmt::Write as _;

use crate::report::digest::{Digest, answer};
use crate::report::grid::{Grid, layers, people};
use crate::report::layers::{Layers, said};
use crate::report::plain::plain;

/// Most rows of a table: larger ones are for the other formats.
const ROWS_MAX: usize = 1000;

/// The whole report.
#[must_use]
pub fn text(digest: &Digest) -> String {
    let mut text = "# Report\n".to_owned();
    if !digest.runs.is_empty() || digest.layers.is_empty() {
        // Writing to a string cannot fail.
        let _ = writeln!(text, "\n{}", escaped(&answer::sentence(digest)));
    }
    for run in &digest.runs {
        let _ = writeln!(
            text,
            "\n- {}: {}, {}",
            escaped(&run.name),
            code(&run.environment.command),
            escaped(&run.origin())
        );
    }
    for grid in [
        people::ceilings(digest, ROWS_MAX),
        people::results(digest, ROWS_MAX),
        people::targets(digest, ROWS_MAX),
    ] {
        if !grid.rows.is_empty() {
            let _ = write!(text, "\n## {}\n\n{}", escaped(&grid.caption), table(&grid));
        }
    }
    behind_compute(&mut text, &digest.layers);
    if !digest.warnings.is_empty() {
        text.push_str("\n## Warnings\n\n");
        for warning in &digest.warnings {
            let _ = writeln!(text, "- {}", escaped(warning));
        }
    }
    text
}

/// The measurements of layers behind compute: a table and its conclusions for each run.
fn behind_compute(text: &mut String, all: &[Layers]) {
    for layers in all {
        let (name, about) = (escaped(&layers.name), escaped(&layers.about()));
        let _ = write!(text, "\n## Layers behind compute: {name}\n\n{about}: ");
        let _ = writeln!(text, "{}", code(&layers.command));
        let grid = layers::people(layers, ROWS_MAX);
        if !grid.rows.is_empty() {
            let _ = write!(text, "\n{}", table(&grid));
        }
        text.push('\n');
        for line in said::sentences(layers).iter().chain(&said::left_out(layers)) {
            let _ = writeln!(text, "- {}", escaped(line));
        }
    }
    if !all.is_empty() {
        text.push('\n');
        said::LEGEND.iter().for_each(|(name, is)| text.push_str(&format!("- {name}: {is}\n")));
    }
}

/// One table.
#[must_use]
pub fn table(grid: &Grid) -> String {
    let line = |cells: Vec<String>| format!("| {} |\n", cells.join(" | "));
    let mut text = line(grid.columns.iter().map(|column| escaped(&column.heading)).collect());
    let rule = |number: bool| if number { "---:" } else { "---" };
    text.push_str(&line(grid.columns.iter().map(|column| rule(column.number).into()).collect()));
    for row in &grid.rows {
        text.push_str(&line(row.iter().map(|cell| escaped(&cell.text)).collect()));
    }
    if grid.left_out > 0 {
        let _ = writeln!(text, "\n{} more rows: `forebay report --csv` has all.", grid.left_out);
    }
    text
}

/// Text without meaning to Markdown, or to HTML within it.
pub(crate) fn escaped(text: &str) -> String {
    let mut shown = String::new();
    for letter in plain(text).chars() {
        match letter {
            '&' => shown.push_str("&amp;"),
            '<' => shown.push_str("&lt;"),
            '>' => shown.push_str("&gt;"),
            '\\' | '`' | '*' | '_' | '[' | ']' | '|' | '#' | '!' | '~' => {
                shown.push('\\');
                shown.push(letter);
            }
            letter => shown.push(letter),
        }
    }
    shown
}

/// Text as code: the fence is longer than any in it.
pub(crate) fn code(text: &str) -> String {
    let text = plain(text);
    let longest = text.split(|letter| letter != '`').map(str::len).max().unwrap_or(0);
    let fence = "`".repeat(longest + 1);
    if longest == 0 { format!("{fence}{text}{fence}") } else { format!("{fence} {text} {fence}") }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::digest::gather::tests::digest_of;
    use crate::report::layers::tests::MAPPED;
    use crate::report::made::{self, Sweep};

    #[test]
    fn a_report_has_its_answer_and_its_tables() {
        let sweep = Sweep { request_sizes: vec![65536], depths: vec![1, 8], ..Sweep::default() };
        let text = text(&digest_of(&[("a", &made::file(&sweep))]));
        let (text, results) = text.split_once("\n## Results\n\n").unwrap();
        insta::assert_snapshot!(text.replace(", ", ",\n"), @r"
        # Report

        At best,
        forebay reads 1.43 GB/s (1.41 to 1.44) with depth 8,
        20.4 % of the limit \`storage\`,
        verdict: mixed 75 % staged / 25 % cached.

        - a: `forebay sweep /data/model.safetensors --depth 1,8,32`,
        Linux 6.18.0

        ## Limits

        | limit | of | direction | found by | GB/s | reached,
        % | how |
        | --- | --- | --- | --- | ---: | ---: | --- |
        | link | cuda:0 | read | measured | 25.0 | 5.71 | by hand |
        | storage | /data/model.safetensors | read | measured | 7.00 | 20.4 | by hand |
        | pcie | nvme0n1 | read | theory | 7.90 | 18.1 | by hand |
        ");
        assert_eq!(results.lines().count(), 4);
        assert!(results.starts_with("| method | direction | depth | throughput, GB/s | requests"));
        assert!(results.contains("\n| forebay | read | 8 | 1.43 (1.41–1.44) | 21766 |"));
    }

    #[test]
    fn layers_have_a_table_and_what_it_shows() {
        let text = text(&digest_of(&[("large", MAPPED)]));
        let (shown, _) = text.split_once("\n\n- compute, transfer: ").unwrap();
        let shown: Vec<&str> = shown.lines().filter(|line| !line.starts_with("| ---:")).collect();
        let narrow = shown.join("\n").replace(" --", "\n--").replace("ms | ", "ms |\n");
        let narrow = narrow.replace(": `", ":\n`");
        let (head, rows) = narrow.split_once("\n| 1,024").unwrap();
        let narrow = format!("{head}\n| 1,024{}", rows.replace(" | ", "|"));
        insta::assert_snapshot!(narrow, @"
        # Report

        ## Layers behind compute: large

        6 layers of 1,237 MB, forward, from mapped, NVIDIA H200, 16 cores:
        `python3 -m forebay.stream_bench
        --layers 6
        --layer-mb 1237
        --tokens 1024,8192,32768
        --from mapped
        --ways forebay,two-buffers
        --file large.bin
        --rounds 5
        --out FOLDER`

        | tokens | method | compute, ms |
        transfer, ms |
        reads | pass, ms |
        line, ms |
        overhead, % | over compute, % | stall, ms |
        compute slowdown | CPU, s/GB |
        | 1,024|forebay|1.09|22.36|6|134.9|135.3|-0.3|+1965.2|128.2|1.029|0.018 |
        | 1,024|two-buffers|1.09|22.36|6|135.3|135.3|+0.0|+1971.5|128.7|1.012|0.018 |
        | 8,192|forebay|10.79|22.35|6|143.8|144.9|-0.7|+122.1|82.8|0.943|0.019 |
        | 8,192|two-buffers|10.79|22.35|6|144.3|144.9|-0.5|+122.7|83.3|0.941|0.019 |
        | 32,768|forebay|79.00|22.38|6|481.1|496.4|-3.1|+1.5|22.3|0.968|0.065 |
        | 32,768|two-buffers|79.00|22.38|6|490.1|496.4|-1.3|+3.4|22.5|0.987|0.066 |

        - forebay: free from 32,768 tokens on; on its line from 1,024 tokens on
        - two-buffers: free from 32,768 tokens on; on its line from 1,024 tokens on
        ");
    }

    #[test]
    fn nothing_acts() {
        let hostile = crate::report::layers::tests::hostile();
        let text = text(&digest_of(&[("a", &made::hostile()), ("b", &hostile)]));
        // In code blocks nothing is interpreted.
        let text = text.replace(&code(made::HARM), "");
        let text = text.replace(&code(&crate::shell_word(made::HARM)), "");
        assert!(!text.contains("<script") && !text.contains("<img"), "{text}");
        // Every row has as many separators as its table's head.
        let bars = |line: &str| line.replace("\\|", "").matches('|').count();
        let mut head = 0;
        for line in text.lines() {
            if !line.starts_with('|') {
                head = 0;
                continue;
            }
            head = if head == 0 { bars(line) } else { head };
            assert_eq!(bars(line), head, "{line}");
        }
        assert_eq!(code("a `b` c"), "`` a `b` c ``");
    }
}
