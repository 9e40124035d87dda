//! The text of `--help` beyond the flags, and its colours.

use clap::builder::Styles;
use clap::builder::styling::AnsiColor;
use forebay_measure::variables;

use crate::map::look::Look;

pub(super) const STYLES: Styles = Styles::styled()
    .header(AnsiColor::Green.on_default().bold())
    .usage(AnsiColor::Green.on_default().bold())
    .literal(AnsiColor::Cyan.on_default().bold())
    .placeholder(AnsiColor::Cyan.on_default());

/// Most columns of help.
const WIDTH_MAX: usize = 90;

/// The columns of help: those of the terminal, within bounds.
pub(super) fn width() -> usize {
    Look::of(std::io::stdout()).map_or(WIDTH_MAX, |look| look.0.min(WIDTH_MAX))
}

const EXAMPLES: &str = "\
Examples:
  forebay bench                           measure a scratch file in this folder
  forebay bench model.safetensors         measure reads of your file
  forebay bench /data --block-size 4K,1M --depth 1,32
  forebay read model.safetensors          read a file into GPU memory
  forebay doctor /data                    what prevents direct transfers
  forebay doctor --tree /data             drives, and their distance to each GPU
  forebay report results -o report.html   results as a page for a browser
  forebay report before.jsonl after.jsonl ratios of two results
  forebay report fio.json                 results of another tool";

/// Verbs that take the options of another tool; the list of verbs leaves them out.
pub(super) const OTHER_TOOLS: &str = "\
Other tools' command lines:
  gdsio               Run gdsio's command lines and job files
  gpu-file-benchmark  Run the GPU file benchmark's modes";

const EXIT_CODES: &str = "\
Exit codes:
  0    success
  1    failure, or a mismatch in the data
  2    wrong command line or variable
  130  stopped by Ctrl-C, as a shell reports it

Sizes: K, M, G (or k, m, g), KiB, MiB, GiB are powers of two; kB, MB, GB are powers
of ten (of two for `gdsio`).
NO_COLOR switches colours off.";

/// Other tools' verbs, examples, exit codes and environment variables.
pub(super) fn beyond_flags() -> String {
    format!("{OTHER_TOOLS}\n\n{EXAMPLES}\n\n{EXIT_CODES}\n\n{}", variables::help())
}
