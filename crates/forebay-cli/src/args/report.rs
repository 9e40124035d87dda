//! The arguments of `forebay report`.

use std::path::PathBuf;

use clap::Args;

/// What `forebay report` takes.
#[derive(Debug, Clone, Args)]
#[command(after_long_help = "Examples:\n  \
    forebay report results -o report.html      a page to open in a browser\n  \
    forebay report results                     the same for a terminal\n  \
    forebay report local remote -o both.html   two runs in one report\n  \
    forebay bench --json >b.json; forebay report b.json\n  \
    forebay report layers/stream_bench.json    what `forebay stream --out layers` wrote\n  \
    forebay report results --csv >results.csv  for a spreadsheet")]
pub struct ReportArgs {
    /// Results files, and what `bench --json`, `compare --json` or `stream --out` wrote
    #[arg(value_name = "RESULTS", required = true)]
    pub results: Vec<PathBuf>,

    /// Write to this new file, by default one page of HTML that needs nothing else
    #[arg(short, long, value_name = "FILE")]
    pub output: Option<PathBuf>,

    /// Replace FILE if it is there
    #[arg(long, requires = "output")]
    pub overwrite: bool,

    /// Write Markdown: the answer, the tables, and the warnings
    #[arg(long, conflicts_with_all = ["csv", "prometheus"])]
    pub markdown: bool,

    /// Write CSV: a row for each point, with every number
    #[arg(long, conflicts_with = "prometheus")]
    pub csv: bool,

    /// Write the text format of Prometheus, for a collector that reads files
    #[arg(long)]
    pub prometheus: bool,
}
