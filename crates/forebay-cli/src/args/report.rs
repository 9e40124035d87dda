//! The arguments of `forebay report`.

use std::path::PathBuf;

use clap::Args;

/// Arguments of `forebay report`.
#[derive(Debug, Clone, Args)]
#[command(after_long_help = "Examples:\n  \
    forebay report results -o report.html      page for a browser\n  \
    forebay report results                     text for a terminal\n  \
    forebay report local remote -o both.html   two runs in one report\n  \
    forebay bench --json >b.json; forebay report b.json\n  \
    forebay report layers/stream_bench.json    output of `stream_bench`\n  \
    forebay report results --csv >results.csv  table for a spreadsheet")]
pub struct ReportArgs {
    /// Results files, or output of `bench --json` or `forebay.stream_bench`
    #[arg(value_name = "RESULTS", required = true)]
    pub results: Vec<PathBuf>,

    /// Write to this new file, by default one self-contained page of HTML
    #[arg(short, long, value_name = "FILE")]
    pub output: Option<PathBuf>,

    /// Replace an existing FILE
    #[arg(long, requires = "output")]
    pub overwrite: bool,

    /// Write Markdown: the summary, the tables and the warnings
    #[arg(long, conflicts_with_all = ["csv", "prometheus"])]
    pub markdown: bool,

    /// Write CSV: a row for each point, with every number
    #[arg(long, conflicts_with = "prometheus")]
    pub csv: bool,

    /// Write the text format of Prometheus, for a collector that reads files
    #[arg(long)]
    pub prometheus: bool,
}
