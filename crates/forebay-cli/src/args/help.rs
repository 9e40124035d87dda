//! The text of `--help` beyond the flags, and its colours.

use clap::builder::Styles;
use clap::builder::styling::AnsiColor;

use crate::variables;

pub(super) const STYLES: Styles = Styles::styled()
    .header(AnsiColor::Green.on_default().bold())
    .usage(AnsiColor::Green.on_default().bold())
    .literal(AnsiColor::Cyan.on_default().bold())
    .placeholder(AnsiColor::Cyan.on_default());

const EXAMPLES: &str = "\
Examples:
  forebay bench                          measure a scratch file in this folder
  forebay bench model.safetensors        measure reading your file; it is never written
  forebay bench --size 1G,8G --repeats 5 choose how much and how often
  forebay bench --gpu sim --json         a simulated GPU, results as JSON
  forebay compare                        standard against direct and ours, run by run
  forebay read model.safetensors         move a file to the GPU and say how it went
  forebay map /data                      the drives under it, and how far from the GPUs
  forebay sweep /data                    every size and depth, with latencies
  forebay stream --tokens 1024,8192      a model's layers behind their compute
  forebay tune /data                     how much to keep in flight there
  forebay doctor /data                   what keeps bytes from going to the GPU directly
  forebay import fio f.json -o results   what another tool measured, beside ours
  forebay report results -o report.html  results as a page for a browser
  forebay diff before.jsonl after.jsonl  two results side by side";

const EXIT_CODES: &str = "\
Exit codes:
  0    done
  1    something failed, or wrong data were found
  2    the command makes no sense
  130  stopped by Ctrl-C, as a shell tells it

Sizes: K, M, G, KiB, MiB, GiB are powers of two; kB, MB, GB are powers of ten
(of two for `gdsio`).
NO_COLOR switches colours off.";

/// Examples, exit codes and environment variables.
pub(super) fn beyond_flags() -> String {
    format!("{EXAMPLES}\n\n{EXIT_CODES}\n\n{}", variables::help())
}
